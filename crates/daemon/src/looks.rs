//! Looks at the devices of the machine: which of them are of tiers, whoever uses them.
//!
//! What is looked at is bounded: a device is read in two places, for reading only, by one of a few
//! threads, and all of that together waits a moment.

use crate::convert::hex;
use crate::lock::lock;
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Where the block devices of the machine are told, partitions among them.
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Names a directory whose files are looked at instead; tests have one.
const INSTEAD: &str = "FOREBAY_DEVICES_DIR";
/// How long all devices together may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Devices that are looked at at once: so many may hang before others are not found.
const LOOKERS: usize = 8;
/// Devices that are looked at.
const DEVICES_MAX: usize = 4096;
/// What never is a device of a set, or takes a hand to look at.
const NEVER: [&str; 3] = ["sr", "fd", "ram"];

/// Whom a device belongs to, as it says itself: identities of the set and the member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub set: String,
    pub uuid: String,
}

impl Seen {
    /// What a device with this superblock is.
    pub fn of(superblock: &Superblock) -> Option<Seen> {
        let member = superblock.members().get(usize::from(superblock.block.member))?;
        Some(Seen { set: hex(&superblock.block.set), uuid: hex(&member.uuid) })
    }

    /// What a device says, whoever uses it. `None`: nothing, or it cannot be read.
    pub fn at(path: &str) -> Option<Seen> {
        Seen::of(&superblock_at(Path::new(path))?)
    }
}

/// The superblock on a device, which is neither locked nor written to.
pub fn superblock_at(path: &Path) -> Option<Superblock> {
    let kind = fs::metadata(path).ok()?.file_type();
    // The open of a pipe would wait for somebody.
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let file = File::open(path).ok()?;
    let copies = SUPERBLOCK_OFFSETS.map(|offset| {
        let mut block = vec![0; BLOCK_SIZE];
        // One that cannot be read is as one that is damaged: the other one counts.
        if file.read_exact_at(&mut block, offset).is_err() {
            block.fill(0);
        }
        block
    });
    Superblock::newest_of([&copies[0], &copies[1]]).ok()
}

/// The last look at all devices.
#[derive(Default)]
pub struct Looks(Mutex<Option<(Instant, Everything)>>);

/// All devices that are of some set, with what they say.
pub type Everything = Arc<Vec<(String, Seen)>>;

impl Looks {
    /// All devices that are of some set; anew, unless what was seen at the last time `lasts`. `own`
    /// are the block devices that are our volumes.
    pub fn all(
        &self,
        lasts: impl Fn(Instant) -> bool,
        own: impl FnOnce() -> BTreeSet<PathBuf>,
    ) -> Everything {
        let mut last = lock(&self.0);
        if let Some((_, all)) = last.as_ref().filter(|(at, _)| lasts(*at)) {
            return Arc::clone(all);
        }
        let paths = match std::env::var_os(INSTEAD) {
            Some(dir) => files_in(Path::new(&dir)),
            None => block_devices(&own()),
        };
        let all = Arc::new(look_at_all(paths));
        *last = Some((Instant::now(), Arc::clone(&all)));
        all
    }
}

/// The files of a directory, in order.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).take(DEVICES_MAX).collect();
    paths.sort();
    paths
}

/// The block devices that may be a device of a set: nobody has mounted them, nothing lies on them,
/// and they are none of ours.
fn block_devices(own: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mounted = mounted();
    let least = (SUPERBLOCK_OFFSETS[1] + BLOCK_SIZE as u64) / 512;
    let mut paths = Vec::new();
    for told in files_in(Path::new(BLOCK_DEVICES)) {
        let Some(name) = told.file_name().and_then(|it| it.to_str()) else { continue };
        let text = |of: &str| fs::read_to_string(told.join(of)).unwrap_or_default();
        let sectors: u64 = text("size").trim().parse().unwrap_or(0);
        let is_held = fs::read_dir(told.join("holders")).is_ok_and(|mut it| it.next().is_some());
        let number = text("dev").trim().to_string();
        let never = NEVER.iter().any(|it| {
            name.strip_prefix(it).is_some_and(|rest| rest.bytes().all(|it| it.is_ascii_digit()))
        });
        let path = Path::new("/dev").join(name.replace('!', "/"));
        let is_free = !is_held && !mounted.contains(&number) && !own.contains(&path);
        if sectors >= least && is_free && !never {
            paths.push(path);
        }
    }
    paths
}

/// The numbers of devices that are mounted, as `8:1`.
fn mounted() -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_string).collect()
}

/// What devices say, of those that say it in time.
fn look_at_all(paths: Vec<PathBuf>) -> Vec<(String, Seen)> {
    let (send, told) = mpsc::channel();
    let (paths, next) = (Arc::new(paths), Arc::new(AtomicUsize::new(0)));
    for _ in 0..LOOKERS.min(paths.len()) {
        let (send, paths, next) = (send.clone(), Arc::clone(&paths), Arc::clone(&next));
        let look = move || {
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                let seen = superblock_at(path).and_then(|it| Seen::of(&it));
                let seen = seen.zip(path.to_str());
                if let Some((seen, path)) = seen
                    && send.send((path.to_string(), seen)).is_err()
                {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("look".to_string()).spawn(look) {
            tracing::warn!("look for devices of tiers: {error}");
        }
    }
    drop(send);
    let until = Instant::now() + LOOK_LIMIT;
    let mut all = Vec::new();
    while let Ok(one) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        all.push(one);
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Opening a pipe that nobody writes to does not end.
    #[test]
    fn what_hangs_or_says_nothing_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("empty"), []).unwrap();
        fs::write(path("text"), vec![b'x'; 1 << 20]).unwrap();
        fs::create_dir(path("dir")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let paths = files_in(dir.path());
        assert_eq!(paths.len(), 4);
        let begin = Instant::now();
        assert_eq!(look_at_all(paths), []);
        assert!(begin.elapsed() < LOOK_LIMIT);
        assert_eq!(look_at_all(Vec::new()), []);
    }
}
