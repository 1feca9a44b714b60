//! How much memory there is, and who may have what of it.
//!
//! A control group may hold the daemon to less than the machine has, and kills it when it takes
//! more.

use forebay_api::Size;
use std::fs;
use std::path::{Path, PathBuf};

/// Share of the memory that pools and clients may take when nothing is configured: a half.
const RAM_SHARE: u64 = 2;
/// Share of that which clients may make the daemon hold.
const CLIENTS_SHARE: u64 = 4;
/// Most that clients are given: 512 of them need no more.
const CLIENTS_BYTES_MAX: u64 = 1536 << 20;
/// Share of the machine's memory that is for others than us.
const OTHERS_SHARE: u64 = 8;
/// What the daemon takes beside pools and clients: itself, and buffers of I/O under way.
const OWN_BYTES: u64 = 96 << 20;

/// The memory of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// What the machine has, or the limit that the daemon runs under.
    pub there_bytes: u64,
    /// A control group says so.
    pub is_limited: bool,
    /// Most that pools and clients may take together.
    pub cap_bytes: u64,
    /// What of it is for clients.
    pub clients_bytes: u64,
}

impl Memory {
    /// The memory of this process, of which `wanted` is what the configuration allows.
    pub fn find(wanted: Option<Size>) -> Memory {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Memory::of(machine_bytes(), limit_bytes(&own, Path::new("/sys/fs/cgroup")), wanted)
    }

    fn of(machine: u64, limit: Option<u64>, wanted: Option<Size>) -> Memory {
        let limit = limit.filter(|limit| *limit < machine);
        let there = limit.unwrap_or(machine);
        let wanted = wanted.map_or(there / RAM_SHARE, |size| size.of(there));
        let cap_bytes = match limit {
            Some(limit) => wanted.min(limit.saturating_sub(OWN_BYTES)),
            None => wanted,
        };
        let clients_bytes = (cap_bytes / CLIENTS_SHARE).min(CLIENTS_BYTES_MAX);
        Memory { there_bytes: there, is_limited: limit.is_some(), cap_bytes, clients_bytes }
    }

    /// What pools may take together.
    pub fn pools_bytes(&self) -> u64 {
        self.cap_bytes - self.clients_bytes
    }

    /// What pools, and tiers in memory, may take together: the rest is for clients, the daemon
    /// itself, and, where no control group sets a limit, an eighth for everybody else.
    pub fn beside_clients_bytes(&self) -> u64 {
        let others = if self.is_limited { 0 } else { self.there_bytes / OTHERS_SHARE };
        self.there_bytes.saturating_sub(others + OWN_BYTES + self.clients_bytes)
    }

    /// What has to be allowed, of limit or `ram`, for pools that take `bytes`.
    pub fn least_bytes(&self, bytes: u64) -> (u64, u64) {
        let cap = (bytes + bytes.div_ceil(CLIENTS_SHARE - 1)).min(bytes + CLIENTS_BYTES_MAX);
        (cap + (cap.max(OWN_BYTES)), cap)
    }
}

/// Bytes of memory of this machine.
fn machine_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

/// The least limit of the control groups that `own` (`/proc/self/cgroup`) names, and of all above
/// them. A group that is not seen from here has one above it that is.
fn limit_bytes(own: &str, root: &Path) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return vec![] };
        let (roots, file) = match controllers {
            "" => (vec![root.to_path_buf(), root.join("unified")], "memory.max"),
            it if it.split(',').any(|it| it == "memory") => {
                (vec![root.join("memory")], "memory.limit_in_bytes")
            }
            _ => return vec![],
        };
        let group = Path::new(group.trim_start_matches('/'));
        let files = roots.iter().flat_map(|root| group.ancestors().map(|at| root.join(at)));
        files.map(|group: PathBuf| group.join(file)).collect()
    });
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        write("memory/x/memory.limit_in_bytes", "700\n");
        let limit = |own: &str| limit_bytes(own, root.path());
        assert_eq!(limit("0::/a/b\n"), Some(1000));
        assert_eq!(limit("0::/a/unseen/c\n"), Some(1000));
        assert_eq!(limit("4:cpu,memory:/x/y\n0::/a/b\n"), Some(700));
        assert_eq!(limit("4:cpu:/x\n0::/\n"), None);
    }

    #[test]
    fn a_limit_holds_all_that_is_taken_whatever_the_configuration_allows() {
        let memory = Memory::of(64 << 30, Some(256 << 20), None);
        assert_eq!((memory.cap_bytes, memory.clients_bytes), (128 << 20, 32 << 20));
        let memory = Memory::of(64 << 30, Some(256 << 20), Some(Size::Bytes(4 << 30)));
        assert_eq!(memory.cap_bytes, 160 << 20);
        let memory = Memory::of(64 << 30, Some(48 << 20), None);
        assert_eq!((memory.cap_bytes, memory.pools_bytes()), (0, 0));
        // What the kernel of a group without a limit says.
        let memory = Memory::of(64 << 30, Some(i64::MAX as u64), None);
        assert_eq!((memory.cap_bytes, memory.is_limited), (32 << 30, false));
        assert_eq!(memory.clients_bytes, CLIENTS_BYTES_MAX);
    }

    #[test]
    fn what_is_said_to_be_enough_is() {
        for bytes in [1 << 20, 40 << 20, 300 << 20, 20 << 30] {
            let (limit, ram) = Memory::of(1 << 40, None, None).least_bytes(bytes);
            assert!(Memory::of(1 << 40, Some(limit), None).pools_bytes() >= bytes);
            assert!(Memory::of(1 << 40, None, Some(Size::Bytes(ram))).pools_bytes() >= bytes);
        }
    }
}
