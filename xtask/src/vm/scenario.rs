//! The scenarios: what each needs, and the function that runs in the guest.

use super::guest::{self, Guest};
use anyhow::Result;

/// A named test in a virtual machine.
pub struct Scenario {
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Seconds for each boot under software emulation; a hang is reported after that.
    pub limit_seconds: u64,
    /// Disks with a volatile cache: their serial numbers and sizes in MiB.
    pub disks: &'static [(&'static str, usize)],
    /// How often the power is cut in the middle of the load; one more boot verifies.
    pub cuts: u64,
    /// A module that is not loaded.
    pub without: Option<&'static str>,
    /// What happens in the guest. Runs once for each boot.
    pub run: fn(&Guest) -> Result<()>,
}

/// A pool, an origin and a place for the daemon's state.
const USUAL: &[(&str, usize)] = &[("state", 48), ("pool", 128), ("origin", 96)];

/// All scenarios, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "nbd",
        about: "pool and origin on virtio disks, fio verify over NBD, kill -9, detach, compare",
        limit_seconds: 180,
        disks: USUAL,
        cuts: 0,
        without: None,
        run: guest::nbd::run,
    },
    Scenario {
        name: "power-cut",
        about: "writes over NBD, the power is cut three times, all that was flushed is there",
        limit_seconds: 180,
        disks: USUAL,
        cuts: 3,
        without: None,
        run: guest::power::run,
    },
];

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
