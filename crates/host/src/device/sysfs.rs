//! What `/sys` and `/proc` tell of a device: its queue, its names, and who uses it.

use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What `/sys` tells of a block device.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub volatile_cache: bool,
    pub rotational: bool,
    pub stripe_blocks: u32,
    pub discard: bool,
    pub serial: Option<String>,
    pub model: Option<String>,
}

fn number(device: u64) -> (u32, u32) {
    (libc::major(device), libc::minor(device))
}

fn text(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Reads the queue of block device `device`. What cannot be read is taken for the worst: a volatile cache.
pub(super) fn queue(device: u64) -> Queue {
    let (major, minor) = number(device);
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let partition = text(own.join("partition"));
    // A partition's queue and names are those of its disk.
    let disk = match (&partition, fs::canonicalize(&own)) {
        (Some(_), Ok(real)) => real.parent().map_or(own.clone(), PathBuf::from),
        _ => own.clone(),
    };
    let names = ["wwid", "device/wwid", "serial", "device/serial", "device/unique_id"];
    let name = names.iter().find_map(|name| text(disk.join(name)));
    let serial = match (name, &partition) {
        (Some(name), Some(number)) => Some(format!("{name} partition {number}")),
        (name, _) => name,
    };
    let discard = text(disk.join("queue/discard_max_bytes"));
    Queue {
        volatile_cache: text(disk.join("queue/write_cache")).as_deref() != Some("write through"),
        rotational: text(disk.join("queue/rotational")).as_deref() == Some("1"),
        stripe_blocks: stripe_blocks(&disk, partition.is_some().then_some(&own)),
        discard: discard.is_some_and(|bytes| bytes != "0"),
        serial,
        model: text(disk.join("device/model")),
    }
}

/// Blocks of a stripe of a disk, or of this partition of it: how it wants to be written. None where
/// the stripes do not begin where the partition does.
fn stripe_blocks(disk: &Path, partition: Option<&PathBuf>) -> u32 {
    let number = |path: PathBuf| text(path).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let stripe = number(disk.join("queue/optimal_io_size"));
    let start = partition.map_or(0, |own| number(own.join("start")) * SECTOR_SIZE as u64);
    let begins = stripe > 0 && start.is_multiple_of(stripe);
    let blocks = stripe.is_multiple_of(BLOCK_SIZE as u64) && begins;
    if blocks { u32::try_from(stripe / BLOCK_SIZE as u64).unwrap_or(0) } else { 0 }
}

/// Says who holds a block device that refused an exclusive open.
pub(super) fn block_user(metadata: &Metadata) -> String {
    let (major, minor) = number(metadata.rdev());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{major}:{minor}");
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(&number)).then(|| fields.nth(1).unwrap_or("?").to_owned())
    });
    if let Some(place) = mounted {
        return format!("mounted at {place}");
    }
    let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders"));
    if let Some(holder) = holders.ok().and_then(|mut dir| dir.next()?.ok()) {
        return format!("in use by the block device {}", holder.file_name().to_string_lossy());
    }
    by_process(process_with_open(metadata.rdev()))
}

/// The number that the kernel gave this instance of a disk, and gives to no other, if it tells.
pub(super) fn instance(device: u64) -> Option<u64> {
    let (major, minor) = number(device);
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/diskseq")).ok()?;
    text.trim().parse().ok()
}

/// Says who holds the lock of a file, as `/proc/locks` has it.
pub(super) fn lock_user(metadata: &Metadata) -> String {
    by_process(lock_holder(metadata))
}

/// Who has a file or block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// A process that has ended: the kernel still clears up behind it.
    Gone,
    /// This process: a ring of ours that has just ended, or another pool.
    Ours,
    /// A mount, a block device on it, or a process that we can see.
    Living,
}

/// Who has the file or block device that is in use.
pub(super) fn holder(path: &Path) -> Holder {
    let Ok(metadata) = fs::metadata(path) else { return Holder::Living };
    if metadata.file_type().is_block_device() {
        let gone = block_user(&metadata) == by_process(None);
        return if gone { Holder::Gone } else { Holder::Living };
    }
    let Some(pid) = lock_holder(&metadata) else { return Holder::Gone };
    if pid == std::process::id() {
        return Holder::Ours;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    match state {
        None | Some('Z' | 'X') => Holder::Gone,
        Some(_) => Holder::Living,
    }
}

fn lock_holder(metadata: &Metadata) -> Option<u32> {
    let (major, minor) = number(metadata.dev());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let wanted = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| *field == wanted)?;
        fields.get(at.checked_sub(1)?)?.parse().ok()
    })
}

fn by_process(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => "already in use by this process".to_owned(),
        Some(pid) => format!("in use by another process (pid {pid})"),
        None => "in use by another process".to_owned(),
    }
}

/// A process that has the block device open, as far as we may look.
fn process_with_open(device: u64) -> Option<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_string_lossy().parse::<u32>().ok());
    pids.into_iter().filter(|&pid| pid != own).find(|pid| {
        let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        open.flatten().any(|entry| {
            fs::metadata(entry.path())
                .is_ok_and(|m| m.file_type().is_block_device() && m.rdev() == device)
        })
    })
}

/// The loop device that was made of this file and can be written to, if there is one: a mount of it
/// would not know of us, nor we of it. Told by its path: to ask for the files behind loop devices
/// themselves could wait for ever, where one lies on a device that nobody serves.
pub(super) fn loop_on(path: &Path) -> Option<String> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let own = std::fs::canonicalize(path).ok()?;
    let names = std::fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).find_map(|name| {
        let dir = Path::new("/sys/block").join(&name);
        let behind = std::fs::read_to_string(dir.join("loop/backing_file")).ok()?;
        let read_only = std::fs::read_to_string(dir.join("ro")).is_ok_and(|ro| ro.trim() == "1");
        let same = Path::new(behind.trim_end_matches('\n')) == own;
        (same && !read_only).then(|| format!("/dev/{name}"))
    })
}
