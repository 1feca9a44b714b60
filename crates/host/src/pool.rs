//! Pools on their devices: made, and read back with a word on everything that was wrong.

use crate::device::content::{Content, identify_device, uuid_text};
use crate::device::{Access, Device, DeviceError};
use forebay_engine::{Buf, Presence};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::standing::{Standing, standings};
use forebay_format::superblock::{
    DeviceEntry, PoolSpec, SUPERBLOCK_SIZE, Superblock, field_text, new_pool,
};
use forebay_format::{BLOCK_SIZE, FormatError};
use forebay_sys as sys;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// RAM that the index needs for each slot of the pool, in bytes.
pub const INDEX_BYTES_PER_SLOT: u64 = 10;
/// Bytes at the end of a device that are zeroed when a pool is made: other owners keep marks there.
const TAIL_BYTES: u64 = 128 << 10;

/// Why a pool could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device holds something.
    #[error("{path} holds {content}; give --force to write over it, and lose that")]
    NotEmpty {
        /// The device.
        path: PathBuf,
        /// What it holds.
        content: Content,
    },
    /// The index would need more RAM than is allowed.
    #[error(
        "a pool of this size needs {needed} bytes of RAM for its index, and {allowed} are allowed; \
         allow more or use a smaller device"
    )]
    TooMuchRam {
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// A device is too small for this pool: each holds the metadata of all of it.
    #[error("{path} ({have} bytes) is too small for this pool and needs at least {needed} bytes")]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        have: u64,
        /// Bytes that are enough for it beside the others.
        needed: u64,
        /// The largest device, and its bytes.
        largest: (PathBuf, u64),
        /// The devices that can be a pool without those that are too small.
        fit: Vec<PathBuf>,
    },
    /// The devices cannot form a pool.
    #[error("{what}: {source}")]
    Format {
        /// The device or devices.
        what: String,
        /// Why.
        source: FormatError,
    },
    /// No device of the pool could be read.
    #[error("no pool can be opened: {0}")]
    NoPool(String),
}

/// What to make.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Name of the pool, at most 64 bytes.
    pub name: String,
    /// Write over what is on the devices.
    pub force: bool,
    /// Blocks of one segment; `None` for what suits the size.
    pub segment_blocks: Option<u32>,
    /// RAM that the index may need, in bytes; `None` for any.
    pub ram_bytes_max: Option<u64>,
}

/// What making a pool would do.
#[derive(Debug, Clone)]
pub struct PoolPlan {
    /// One superblock for each device.
    pub superblocks: Vec<Superblock>,
    /// What each device holds now.
    pub contents: Vec<Content>,
    /// Blocks that the pool can cache.
    pub slots: u64,
    /// RAM that the index needs when the pool is full, in bytes.
    pub index_bytes: u64,
}

/// Checks everything that [`format_pool`] checks and writes nothing.
///
/// # Errors
/// As [`format_pool`].
pub fn plan_pool(devices: &[Device], options: &FormatOptions) -> Result<PoolPlan, PoolError> {
    let contents = devices
        .iter()
        .map(|device| {
            identify_device(device).map_err(|e| DeviceError::system(device.path(), "read", e))
        })
        .collect::<Result<Vec<_>, _>>()?;
    for (device, content) in devices.iter().zip(&contents) {
        if !content.is_empty() && !options.force {
            let (path, content) = (device.path().to_owned(), content.clone());
            return Err(PoolError::NotEmpty { path, content });
        }
    }
    let block = BLOCK_SIZE as u64;
    let bytes = |device: &Device| device.info().bytes / block * block;
    let spec = PoolSpec {
        name: options.name.clone(),
        uuid: sys::random(),
        devices: devices.iter().map(|device| (bytes(device), sys::random())).collect(),
        segment_blocks: options.segment_blocks,
    };
    let superblocks = new_pool(&spec).map_err(|source| match source {
        FormatError::TooSmall { have, .. } => too_small(devices, &spec, have),
        source => {
            let names: Vec<_> = devices.iter().map(|d| d.path().display().to_string()).collect();
            PoolError::Format { what: names.join(", "), source }
        }
    })?;
    let slots: u64 = superblocks
        .iter()
        .map(|sb| u64::from(sb.layout().segment_count) * u64::from(sb.layout().segment_blocks))
        .sum();
    let needed = slots * INDEX_BYTES_PER_SLOT;
    match options.ram_bytes_max {
        Some(allowed) if needed > allowed => Err(PoolError::TooMuchRam { needed, allowed }),
        _ => Ok(PoolPlan { superblocks, contents, slots, index_bytes: needed }),
    }
}

/// Names the device of `have` bytes that is too small, and what can be done.
fn too_small(devices: &[Device], spec: &PoolSpec, have: u64) -> PoolError {
    let first = |spec: &PoolSpec| match new_pool(spec) {
        Err(FormatError::TooSmall { needed, have }) => {
            let at = spec.devices.iter().position(|device| device.0 == have)?;
            Some((at, needed))
        }
        _ => None,
    };
    let at = spec.devices.iter().position(|device| device.0 == have).unwrap_or_default();
    // A larger device makes the pool larger, and so what each device needs.
    let mut grown = spec.clone();
    while let Some((_, needed)) = first(&grown).filter(|(which, _)| *which == at) {
        grown.devices[at].0 = needed;
    }
    let mut left = spec.clone();
    let mut fit: Vec<PathBuf> = devices.iter().map(|device| device.path().to_owned()).collect();
    while let Some((at, _)) = first(&left) {
        left.devices.remove(at);
        fit.remove(at);
    }
    let largest = devices.iter().max_by_key(|device| device.info().bytes).unwrap_or(&devices[at]);
    PoolError::TooSmall {
        path: devices[at].path().to_owned(),
        have,
        needed: grown.devices[at].0,
        largest: (largest.path().to_owned(), largest.info().bytes),
        fit,
    }
}

/// Makes a pool of these devices: both superblock copies on each, empty checkpoints, no mark of a former
/// owner. Durable when it returns.
///
/// # Errors
/// A device holds something (without `force`), is too small or cannot be written; the pool needs too much
/// RAM.
pub fn format_pool(devices: &[Device], options: &FormatOptions) -> Result<PoolPlan, PoolError> {
    let plan = plan_pool(devices, options)?;
    for (device, superblock) in devices.iter().zip(&plan.superblocks) {
        write_device(device, superblock)
            .map_err(|e| DeviceError::system(device.path(), "write to", e))?;
    }
    Ok(plan)
}

fn write_device(device: &Device, superblock: &Superblock) -> io::Result<()> {
    let info = device.info();
    if info.is_block && info.discard {
        // The flash starts empty. A device that refuses is as good.
        let _ = sys::file::block_discard(device.file(), 0, info.bytes);
    }
    let layout = superblock.layout();
    let zeros = Buf::zeroed(TAIL_BYTES as usize);
    // Between the copies too: a former owner's mark must not outlive its data.
    write_at(device, &zeros, 0)?;
    let bytes = info.bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    write_at(device, &zeros, bytes - TAIL_BYTES)?;
    let mut block = Buf::zeroed(BLOCK_SIZE);
    write_at(device, &block, layout.checkpoint_offset(0))?;
    write_at(device, &block, layout.checkpoint_offset(1))?;
    let rest = (info.bytes - bytes) as usize;
    if rest > 0 {
        block.set_len(rest);
        write_at(device, &block, bytes)?;
    }
    device.file().sync_all()?;
    let mut copy = Buf::zeroed(SUPERBLOCK_SIZE);
    superblock.encode(copy.bytes_mut());
    for offset in SUPERBLOCK_OFFSETS {
        write_at(device, &copy, offset)?;
    }
    device.file().sync_all()
}

fn write_at(device: &Device, buf: &Buf, offset: u64) -> io::Result<()> {
    device.file_for(offset, buf.len() as u64).write_all_at(buf.bytes(), offset)
}

/// Bytes of the device of [`stand_in`]; its memory is taken as it is written.
const STAND_IN_BYTES: u64 = 16 << 20;

/// A new pool in memory, which is gone when it is closed. Volumes in pass-through mode can do
/// without their own while its devices are missing.
///
/// # Errors
/// The system refuses the memory.
pub fn stand_in(name: &str) -> Result<PoolOnDisk, PoolError> {
    let memory = sys::file::memory_file(STAND_IN_BYTES)
        .map_err(|e| DeviceError::system(Path::new("memory"), "reserve", e))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    let device = Device::open(&path, Access::Exclusive)?;
    let options = FormatOptions { name: name.to_owned(), ..FormatOptions::default() };
    format_pool(&[device], &options)?;
    read_pool(&[path], Access::Exclusive)
}

/// One device of a pool.
#[derive(Debug)]
pub struct PoolDevice {
    /// The open device, or why it is not there.
    pub device: Result<Device, String>,
    /// What the pool remembers of it.
    pub entry: DeviceEntry,
    /// Whether it can be used.
    pub presence: Presence,
}

/// A pool as it was read.
#[derive(Debug)]
pub struct PoolOnDisk {
    /// The newest valid superblock of all devices.
    pub superblock: Superblock,
    /// The devices, by their index in the superblock.
    pub devices: Vec<PoolDevice>,
    /// What was damaged, missing or not ours, and what was done about it: sentences for the log.
    pub findings: Vec<String>,
}

impl PoolOnDisk {
    /// The devices that are not here will never be: what only they hold is given up.
    pub fn give_up_absent(&mut self) {
        for slot in &mut self.devices {
            if slot.presence == Presence::Absent {
                slot.presence = Presence::GivenUp;
            }
        }
    }

    /// Name of the pool.
    pub fn name(&self) -> String {
        field_text(&self.superblock.header.pool_name)
    }

    /// Identity of the pool.
    pub fn uuid(&self) -> [u8; 16] {
        self.superblock.header.pool_uuid
    }
}

/// A path that was tried.
struct Found {
    path: PathBuf,
    device: Device,
    superblock: Superblock,
}

/// Reads the pool on these devices: both superblock copies of each, the newest of all counts. A device that
/// is missing, damaged, stale or of another pool is left out and named in the findings. The pool is that of
/// the newest superblock of the first path that has one.
///
/// # Errors
/// A device is in use by another process, or no path holds a readable superblock; the text says for each
/// path why.
pub fn read_pool(paths: &[PathBuf], access: Access) -> Result<PoolOnDisk, PoolError> {
    let mut findings = Vec::new();
    let mut found: Vec<Found> = Vec::new();
    for path in paths {
        match read_device(path, access, &mut findings) {
            Ok(one) => found.push(one),
            Err(PoolError::Device(in_use @ DeviceError::InUse { .. })) => return Err(in_use.into()),
            Err(error) => findings.push(error.to_string()),
        }
    }
    let headers: Vec<_> = found.iter().map(|one| &one.superblock.header).collect();
    let Some(stand) = standings(&headers) else {
        return Err(PoolError::NoPool(match findings.is_empty() {
            true => "no device was named".to_owned(),
            false => findings.join("; "),
        }));
    };
    let superblock = found[stand.newest].superblock.clone();
    let count = usize::from(superblock.header.device_count.get());
    let mut devices: Vec<PoolDevice> = superblock.header.devices[..count]
        .iter()
        .map(|entry| PoolDevice {
            device: Err(String::new()),
            entry: *entry,
            presence: Presence::Absent,
        })
        .collect();
    for (one, standing) in found.into_iter().zip(stand.of) {
        place(one, standing, &superblock, &mut devices, &mut findings);
    }
    for (index, slot) in devices.iter_mut().enumerate() {
        if let Err(reason) = &mut slot.device
            && reason.is_empty()
        {
            let uuid = uuid_text(&slot.entry.uuid);
            *reason = format!("device {} of {count} (uuid {uuid}) is missing", index + 1);
            findings.push(reason.clone());
        }
    }
    Ok(PoolOnDisk { superblock, devices, findings })
}

/// Puts a device into its slot of the pool, if it belongs there.
fn place(
    one: Found,
    standing: Standing,
    pool: &Superblock,
    devices: &mut [PoolDevice],
    findings: &mut Vec<String>,
) {
    let (own, header) = (&one.superblock.header, &pool.header);
    let path = one.path.display();
    if standing == Standing::OtherPool {
        let (theirs, ours) = (field_text(&own.pool_name), field_text(&header.pool_name));
        findings.push(format!("{path} belongs to another pool, \"{theirs}\", not to \"{ours}\""));
        return;
    }
    if standing == Standing::Replaced {
        findings.push(format!("{path} was replaced in this pool and is no longer part of it"));
        return;
    }
    let slot = &mut devices[usize::from(own.device_index.get())];
    let is = one.device.info().bytes;
    let refused = if slot.device.is_ok() {
        findings.push(format!("{path} is a copy of another device of the pool; it is not used"));
        return;
    } else if standing == Standing::Stale {
        format!(
            "{path} was away while the pool was in use (generation {} of {}); its content is not \
             used",
            own.generation, header.generation
        )
    } else if is < slot.entry.bytes.get() {
        format!("{path} shrank from {} to {is} bytes; it is not used", slot.entry.bytes)
    } else {
        slot.device = Ok(one.device);
        slot.presence = Presence::from(standing);
        return;
    };
    findings.push(refused.clone());
    slot.device = Err(refused);
}

fn read_device(
    path: &Path,
    access: Access,
    findings: &mut Vec<String>,
) -> Result<Found, PoolError> {
    let device = Device::open(path, access)?;
    let copies = SUPERBLOCK_OFFSETS.map(|offset| read_copy(&device, offset));
    let readable =
        copies.map(|copy| copy.map_err(|e| DeviceError::system(path, "read the superblock of", e)));
    let copies = match readable {
        [Err(error), Err(_)] => return Err(error.into()),
        copies => copies.map(|copy| match copy {
            Ok(bytes) => Superblock::decode(bytes.bytes()),
            Err(_) => Err(FormatError::Damaged { what: "superblock" }),
        }),
    };
    let bad = [copies[0].is_err(), copies[1].is_err()];
    match Superblock::choose(copies) {
        Ok((superblock, passed_over)) => {
            if let Some(error) = passed_over {
                let (bad, used) = if bad[0] { ("first", "second") } else { ("second", "first") };
                findings.push(format!(
                    "{}: the {bad} superblock copy was passed over: {error}; the {used} one \
                     (generation {}) is used",
                    path.display(),
                    superblock.header.generation
                ));
            }
            Ok(Found { path: path.to_owned(), device, superblock })
        }
        Err(source @ FormatError::NotOurs { .. }) => {
            let holds = identify_device(&device)
                .map_or_else(|_| "unreadable data".to_owned(), |content| content.to_string());
            let what = format!("{} holds {holds}", path.display());
            Err(PoolError::Format { what, source })
        }
        Err(source) => Err(PoolError::Format { what: path.display().to_string(), source }),
    }
}

fn read_copy(device: &Device, offset: u64) -> io::Result<Buf> {
    let mut buf = Buf::zeroed(SUPERBLOCK_SIZE);
    if offset + SUPERBLOCK_SIZE as u64 > device.info().bytes {
        // A truncated device: what is missing counts as never written.
        return Ok(buf);
    }
    device.file_for(offset, SUPERBLOCK_SIZE as u64).read_exact_at(buf.bytes_mut(), offset)?;
    Ok(buf)
}

#[cfg(test)]
mod tests;
