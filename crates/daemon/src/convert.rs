//! From the engine's and host's words to those of the API.

use crate::state::owner_of;
use forebay_api::hint::{AtLeast, Devices, Flag, NoRoom};
use forebay_api::size::human;
use forebay_api::{ApiError, Hint};
use forebay_host::device::DeviceError;
use forebay_host::pool::PoolError;
use forebay_host::shard::ShardError;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Random bytes for an identity.
///
/// # Errors
/// The system gives none.
pub fn random_uuid() -> Result<[u8; 16], ApiError> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut uuid))
        .map_err(|error| ApiError::failed(format!("read /dev/urandom: {error}")))?;
    Ok(uuid)
}

/// Identity as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has these hexadecimal digits, if they are as many as it takes.
pub fn unhex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digits = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..BYTES).map(digits).collect();
    bytes.filter(|_| text.len() == 2 * BYTES)?.try_into().ok()
}

/// What the thread of a pool does not do.
pub fn shard_error(pool: &str, error: &ShardError) -> ApiError {
    match owner_of(pool) {
        Some(volume) => ApiError::failed(format!("volume {volume}: {error}")),
        None => ApiError::failed(format!("pool {pool}: {error}")),
    }
}

/// A device that cannot be opened.
pub fn device_error(error: &DeviceError) -> ApiError {
    match error {
        DeviceError::InUse { .. } => ApiError::refused(error.to_string()),
        DeviceError::WrongType { .. } => ApiError::usage(error.to_string()),
        DeviceError::System { source, .. } if source.kind() == ErrorKind::StorageFull => {
            ApiError::failed(error.to_string()).hint(Hint::FreeSpace { at: NoRoom::UnderDevice })
        }
        DeviceError::System { .. } => ApiError::failed(error.to_string()),
    }
}

/// A pool that cannot be made or read.
pub fn pool_error(error: &PoolError) -> ApiError {
    match error {
        PoolError::Device(error) => device_error(error),
        PoolError::NotEmpty { path, content } => {
            let path = path.display().to_string();
            ApiError::refused(format!("{path} holds {content}; it was not touched"))
                .hint(Hint::LookAt { path })
                .hint(Hint::Again { with: Flag::ForceLost })
        }
        PoolError::TooMuchRam { .. } => ApiError::refused(error.to_string()),
        PoolError::NoPool(_) => ApiError::not_found(error.to_string()),
        PoolError::TooSmall { path, have, needed, largest, fit } => {
            too_small(path, (*have, *needed), largest, fit)
        }
        PoolError::Format { .. } => ApiError::failed(error.to_string()),
    }
}

/// A device that cannot hold what each device of a pool has to.
fn too_small(
    path: &Path,
    (have, needed): (u64, u64),
    largest: &(PathBuf, u64),
    fit: &[PathBuf],
) -> ApiError {
    let text = format!("{} ({}) is too small for this pool", path.display(), human(have));
    let enough = Hint::LargerDevice { bytes: AtLeast(needed) };
    if largest.0 == path {
        let text = format!("{text}: its metadata and a few segments need more");
        return ApiError::failed(text).hint(enough);
    }
    let text = format!(
        "{text}: each device holds the metadata of the whole pool, and the largest, {} ({}), \
         decides how much that is",
        largest.0.display(),
        human(largest.1)
    );
    let fit = fit.iter().map(|path| path.display().to_string()).collect();
    let error = ApiError::failed(text).hint(enough);
    error.hint(Hint::UseOnly { devices: Devices::Paths(fit) })
}
