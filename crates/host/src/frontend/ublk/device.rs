//! A block device of the kernel, from its making to its end. What serves it is a
//! [port](super::UblkPort) of a shard.

use crate::device::is_held;
use crate::frontend::{SECTOR_BYTES, sector_bytes};
use forebay_engine::VolumeId;
use forebay_sys::ublk::control::{self, Ask};
use forebay_sys::ublk::uapi::{self, DeviceInfo, Params, flag, state};
use forebay_sys::ublk::{Descriptors, Known, Node};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Requests of one queue under way at once.
const DEPTH: u16 = 64;
/// Queues of a device. All are served by one thread; more of them let more processors submit.
const QUEUES_MAX: u16 = 4;
/// Bytes of the largest read or write.
const REQUEST_BYTES_MAX: u32 = 512 << 10;
/// Bytes of the largest read or write where each tag must have a buffer of its own.
const REQUEST_BYTES_MAX_COPY: u32 = 128 << 10;
/// Bytes of the largest discard.
const RANGE_BYTES_MAX: u32 = 32 << 20;
const BLOCK_SHIFT: u8 = 12;
/// How long a server that died may be about to be noticed, and a device node to appear.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(10);
/// How long requests under way may take when a device is to rest or to end.
const REST: Duration = Duration::from_secs(60);

/// What a device is to be.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its size, a multiple of 512.
    pub bytes: u64,
    /// Kept by the kernel with the device, to know it again.
    pub mark: u64,
    /// The origin can give space back.
    pub discard: bool,
    /// It has sectors of 512 bytes, and else of 4096 where its size allows that.
    pub small_sectors: bool,
    /// The number it had, if that is free.
    pub number: Option<u32>,
    /// Without the rights of root. The device then ends with its server.
    pub unprivileged: bool,
    /// The kernel copies data into buffers of each tag, also where it could do better.
    pub plain_copy: bool,
}

/// A device of the kernel. Dropping this leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UblkDevice {
    /// `N` of `/dev/ublkbN`.
    pub number: u32,
    /// What kernel and server agreed on.
    pub flags: u64,
    known: Known,
}

/// What a port is made of.
#[derive(Debug)]
pub struct UblkSetup {
    /// The volume.
    pub volume: VolumeId,
    pub(super) node: Node,
    pub(super) queues: Vec<Descriptors>,
    pub(super) depth: u16,
    pub(super) request_bytes_max: u32,
}

/// What is asked of the kernel, of that which it offers.
fn wanted_flags(offered: u64, wanted: &Wanted) -> u64 {
    let mut flags = flag::IOCTL_ENCODE;
    if wanted.unprivileged {
        // The kernel allows neither recovery of such a device, and so no rest, because anyone could
        // keep others' requests waiting, nor user copy, because a read could give out what memory
        // held before.
        flags |= flag::UNPRIVILEGED;
    } else {
        flags |= flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | offered & flag::QUIESCE;
        if !wanted.plain_copy {
            flags |= offered & flag::USER_COPY;
        }
    }
    flags | offered & flag::UPDATE_SIZE
}

impl UblkDevice {
    /// Makes a device. It shows no block device until [`UblkDevice::start`].
    ///
    /// # Errors
    /// No driver, no right to it, or a driver that cannot do what is needed.
    pub fn add(wanted: &Wanted) -> io::Result<UblkDevice> {
        // Before 6.5 it cannot be asked; such a driver copies by itself.
        let offered = match control::features() {
            Ok(offered) => offered,
            Err(e) if control::code(&e) == Some(libc::EOPNOTSUPP) => 0,
            Err(e) => return Err(e),
        };
        if wanted.unprivileged && offered & flag::UNPRIVILEGED == 0 {
            let text = "ublk: this kernel makes no devices for users without rights; use root";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let flags = wanted_flags(offered, wanted);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let bytes_max =
            if flags & flag::USER_COPY != 0 { REQUEST_BYTES_MAX } else { REQUEST_BYTES_MAX_COPY };
        let info = DeviceInfo {
            queues: (processors as u16).clamp(1, QUEUES_MAX),
            depth: DEPTH,
            request_bytes_max: bytes_max,
            device: wanted.number.unwrap_or(u32::MAX),
            flags,
            mark: wanted.mark,
            ..DeviceInfo::default()
        };
        let made = control::add(&info).or_else(|error| match control::code(&error) {
            // Another device has the number.
            Some(libc::EEXIST) if wanted.number.is_some() => {
                control::add(&DeviceInfo { device: u32::MAX, ..info })
            }
            _ => Err(error),
        })?;
        let device = UblkDevice::of(made);
        let ready = check(flags, device.flags).and_then(|()| match wanted.unprivileged {
            // Rules of udev are about to let us have it; the kernel looks at them for each command.
            true => device.open_node().map(drop),
            false => Ok(()),
        });
        ready.and_then(|()| device.set_params(wanted)).inspect_err(|_| {
            // The first error is the one that counts.
            let _ = device.delete();
        })?;
        Ok(device)
    }

    fn of(known: Known) -> UblkDevice {
        UblkDevice { number: known.device, flags: known.flags, known }
    }

    /// The device with this number, if it carries this mark and can be taken over.
    ///
    /// # Errors
    /// The driver cannot be asked.
    pub fn find(number: u32, mark: u64) -> io::Result<Option<UblkDevice>> {
        match control::info(number) {
            Ok((known, info)) => {
                let ours = info.mark == mark && info.flags & flag::USER_RECOVERY != 0;
                Ok(ours.then(|| UblkDevice::of(known)))
            }
            Err(e)
                if matches!(
                    control::code(&e),
                    Some(libc::ENODEV | libc::ENOENT | libc::EACCES)
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn ask(&self, verb: uapi::Verb) -> Ask {
        Ask { with_path: self.flags & flag::UNPRIVILEGED != 0, ..Ask::new(verb, self.number) }
    }

    fn set_params(&self, wanted: &Wanted) -> io::Result<()> {
        let shift = sector_bytes(wanted.bytes, wanted.small_sectors).ilog2() as u8;
        let range = RANGE_BYTES_MAX / SECTOR_BYTES as u32;
        let params = Params {
            len: size_of::<Params>() as u32,
            kinds: uapi::PARAM_BASIC | uapi::PARAM_DISCARD,
            attributes: uapi::ATTR_VOLATILE_CACHE | uapi::ATTR_FUA,
            logical_block_shift: shift,
            physical_block_shift: BLOCK_SHIFT,
            optimal_io_shift: BLOCK_SHIFT,
            minimal_io_shift: BLOCK_SHIFT,
            request_sectors_max: self.known.request_bytes_max / SECTOR_BYTES as u32,
            sectors: wanted.bytes / SECTOR_BYTES,
            discard_granularity: 1 << BLOCK_SHIFT,
            discard_sectors_max: if wanted.discard { range } else { 0 },
            discard_segments_max: u16::from(wanted.discard),
            zeroes_sectors_max: range,
            ..Params::default()
        };
        let payload = params.as_bytes().to_vec();
        control::ask(Ask { payload, ..self.ask(uapi::SET_PARAMS) }).map(drop)
    }

    /// Opens what a port needs.
    ///
    /// # Errors
    /// The character device does not appear, or another process serves it.
    pub fn open(&self, volume: VolumeId) -> io::Result<UblkSetup> {
        let node = self.open_node()?;
        let queues = (0..self.known.queues)
            .map(|queue| node.descriptors(queue))
            .collect::<io::Result<_>>()?;
        let (depth, request_bytes_max) = (self.known.depth, self.known.request_bytes_max);
        Ok(UblkSetup { volume, node, queues, depth, request_bytes_max })
    }

    fn open_node(&self) -> io::Result<Node> {
        let path = control::char_path(self.number);
        let end = Instant::now() + PATIENCE;
        loop {
            match Node::open(self.known) {
                Ok(node) => return Ok(node),
                Err(e) if Instant::now() > end => {
                    return Err(io::Error::new(e.kind(), format!("{}: {e}", path.display())));
                }
                // The node, its rights, or the end of the server before are about to come.
                Err(_) => std::thread::sleep(STEP),
            }
        }
    }

    /// Shows the block device. A port serves it already.
    ///
    /// # Errors
    /// The kernel refuses, or the port does not ask for requests.
    pub fn start(&self) -> io::Result<()> {
        let data = u64::from(std::process::id());
        control::ask_for(Ask { data, ..self.ask(uapi::START_DEV) }, REST).map(drop)
    }

    /// Begins to take the device over from a server that is gone.
    ///
    /// # Errors
    /// Another process serves it.
    pub fn take_over(&self) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match control::ask(self.ask(uapi::START_USER_RECOVERY)) {
                Ok(_) => return Ok(()),
                // The kernel has not noticed yet that the server is gone.
                Err(e) if control::code(&e) == Some(libc::EBUSY) && Instant::now() < end => {
                    std::thread::sleep(STEP);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends what [`UblkDevice::take_over`] began. A port serves it already. Requests that waited
    /// come now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn taken_over(&self) -> io::Result<()> {
        let data = u64::from(std::process::id());
        control::ask_for(Ask { data, ..self.ask(uapi::END_USER_RECOVERY) }, REST).map(drop)
    }

    /// Has the kernel keep new requests, waits for those under way, and ends what its port waits
    /// for: the next server takes over.
    ///
    /// # Errors
    /// Older kernels cannot; there the process simply ends.
    pub fn quiesce(&self) -> io::Result<()> {
        if self.flags & flag::QUIESCE == 0 {
            let text = "ublk: this kernel has no quiesce";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let data = REST.as_millis() as u64;
        control::ask_for(Ask { data, ..self.ask(uapi::QUIESCE_DEV) }, REST + PATIENCE).map(drop)
    }

    /// Takes the block device away. Who has it open gets errors; its port's requests end.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(&self) -> io::Result<()> {
        control::ask_for(self.ask(uapi::STOP_DEV), REST).map(drop)
    }

    /// Forgets the device. Its port is gone.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete(&self) -> io::Result<()> {
        control::ask(self.ask(uapi::DEL_DEV)).map(drop)
    }

    /// Changes the size.
    ///
    /// # Errors
    /// Older kernels cannot.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        let data = bytes / SECTOR_BYTES;
        let resized = control::ask(Ask { data, ..self.ask(uapi::UPDATE_SIZE) });
        resized.map(drop).map_err(|e| match control::code(&e) {
            Some(libc::EOPNOTSUPP | libc::ENOTTY) | None => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{e}; the new size shows after the volume is exported anew"),
            ),
            _ => e,
        })
    }

    /// Whether a server is to take it over, and no other process serves it.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn waits(&self) -> io::Result<bool> {
        let (_, info) = control::info(self.number)?;
        Ok(matches!(info.state, state::QUIESCED | state::FAIL_IO))
    }

    /// Size of the block device, in bytes.
    ///
    /// # Errors
    /// If the block device is not there.
    pub fn bytes(&self) -> io::Result<u64> {
        let path = format!("/sys/block/ublkb{}/size", self.number);
        let text = std::fs::read_to_string(path)?;
        text.trim().parse::<u64>().map(|sectors| sectors * SECTOR_BYTES).map_err(io::Error::other)
    }

    /// Whether somebody has the block device open alone, as a mount does.
    ///
    /// # Errors
    /// If the kernel does not tell who has the device open.
    pub fn is_in_use(&self) -> io::Result<bool> {
        is_held(&self.path())
    }

    /// The block device.
    pub fn path(&self) -> PathBuf {
        control::block_path(self.number)
    }
}

/// The kernel forgets silently what it does not know. Going on would hang both.
fn check(asked: u64, agreed: u64) -> io::Result<()> {
    let dropped = asked & !agreed;
    if dropped == 0 {
        return Ok(());
    }
    let text = format!("ublk: the kernel dropped the flags {dropped:#x} that are needed");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// Whether this machine can make such devices: a driver that answers.
///
/// # Errors
/// Says what to do about it.
pub fn is_available() -> io::Result<()> {
    control::features().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            bytes: 1 << 20,
            mark: 1,
            discard: true,
            small_sectors: false,
            number: None,
            unprivileged: false,
            plain_copy: false,
        }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let old = wanted_flags(0x1fe, &wanted());
        assert_eq!(old & flag::USER_COPY, flag::USER_COPY);
        assert_eq!(old & (flag::UPDATE_SIZE | flag::QUIESCE), 0);
        assert_ne!(old & flag::USER_RECOVERY_REISSUE, 0);
        let plain = wanted_flags(0x1f_ffff, &Wanted { plain_copy: true, ..wanted() });
        assert_eq!(plain & flag::USER_COPY, 0);
        assert_ne!(plain & flag::QUIESCE, 0);
        let user = wanted_flags(0x1f_ffff, &Wanted { unprivileged: true, ..wanted() });
        let refused = flag::USER_RECOVERY | flag::USER_COPY | flag::QUIESCE;
        assert_eq!(user & refused, 0, "the kernel allows neither");
    }

    #[test]
    fn flags_that_the_kernel_dropped_are_an_error() {
        assert!(check(flag::USER_COPY, flag::USER_COPY).is_ok());
        let error = check(flag::USER_COPY | flag::QUIESCE, flag::USER_COPY).unwrap_err();
        assert!(error.to_string().contains("0x1000"), "{error}");
    }
}
