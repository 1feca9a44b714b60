//! Errors as the client is told them.

use forebay_engine::IoError;
use forebay_nbd::wire::Errno;

/// An error with the text that structured replies carry.
pub(super) type Fault = (Errno, &'static str);

/// The system refuses memory, and nothing of the client is under way whose end would free some.
pub(super) const NO_MEMORY: Fault = (Errno::NoMemory, "the server has no memory for it now");

/// What the client is told of an error of the engine.
pub(super) fn fault_of(error: IoError) -> Fault {
    match error {
        IoError::Io => (Errno::Io, "the device failed"),
        IoError::Invalid => (Errno::Invalid, "the engine refused the range"),
        IoError::NoSpace => (Errno::NoSpace, "no space is left"),
        IoError::Unsupported => (Errno::NotSupported, "the origin cannot do this"),
        IoError::Gone => (Errno::Io, "the volume is not served; see forebay status"),
        IoError::Shutdown => (Errno::Shutdown, "the server stops"),
    }
}
