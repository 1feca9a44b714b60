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
    /// One more disk, which a daemon of this machine serves over vhost-user.
    pub served: bool,
    /// A whole Debian with systemd instead of a small system of our own.
    pub system: Option<System>,
    /// What happens in the guest. Runs once for each boot.
    pub run: fn(&Guest) -> Result<()>,
}

/// A machine that ends in order and starts again.
#[derive(Clone, Copy)]
pub struct System {
    /// How often it starts again.
    pub restarts: u64,
    /// The serial number of a disk that is missing in one of its lives, and that life.
    pub absent: (&'static str, u64),
}

/// A pool, an origin and a place for the daemon's state.
const USUAL: &[(&str, usize)] = &[("state", 48), ("pool", 64), ("origin", 96)];

/// Where the short run has a scenario on the oldest kernel; the others run on the newest.
const SHORT_ON_OLDEST: [&str; 4] = ["systemd", "ublk-killed", "nbd-kernel", "power-cut-xfs"];

impl Scenario {
    /// Whether the short run has it on this kernel: each scenario runs once.
    pub fn is_short_on(&self, kernel: &str) -> bool {
        SHORT_ON_OLDEST.contains(&self.name) == (kernel == "6.12")
    }
}

/// What most scenarios have in common.
const USUALLY: Scenario = Scenario {
    name: "",
    about: "",
    limit_seconds: 180,
    disks: USUAL,
    cuts: 0,
    without: None,
    served: false,
    system: None,
    run: guest::nbd::run,
};

/// All scenarios, in the order in which they run: the longest first, so that others run beside it.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "systemd",
        about: "Debian with the unit: boot, kill, upgrade, watchdog, reboot, no cache disk",
        limit_seconds: 300,
        disks: &[("pool", 64), ("origin", 96), ("second", 64), ("plain", 64)],
        system: Some(System { restarts: 4, absent: ("pool", 3) }),
        run: guest::systemd::run_scenario,
        ..USUALLY
    },
    Scenario {
        name: "nbd",
        about: "pool and origin on virtio disks, fio verify over NBD, kill -9, detach, compare",
        run: guest::nbd::run,
        ..USUALLY
    },
    Scenario {
        name: "ublk-port",
        about: "the host's own tests of ublk: both ways to copy, hand-over, quiesce, resize",
        disks: &[],
        run: guest::ublk::port,
        ..USUALLY
    },
    Scenario {
        name: "ublk-killed",
        about: "ext4 on ublk, kill -9 under a writer, twice; discard, zeroes, detach, fsck",
        limit_seconds: 240,
        run: guest::ublk::killed,
        ..USUALLY
    },
    Scenario {
        name: "ublk-replaced",
        about: "ext4 on ublk, the daemon ends in order under a writer, twice",
        limit_seconds: 240,
        run: guest::ublk::replaced,
        ..USUALLY
    },
    Scenario {
        name: "nbd-kernel",
        about: "ext4 on /dev/nbdN, kill -9 under a writer, twice; discard, zeroes, detach, fsck",
        limit_seconds: 240,
        run: guest::ublk::nbd_killed,
        ..USUALLY
    },
    Scenario {
        name: "ublk-user",
        about: "a daemon without rights makes a device",
        limit_seconds: 120,
        run: guest::ublk::unprivileged,
        ..USUALLY
    },
    Scenario {
        name: "ublk-missing",
        about: "without the driver the message says what to do",
        limit_seconds: 150,
        without: Some("ublk_drv"),
        run: guest::ublk::missing,
        ..USUALLY
    },
    Scenario {
        name: "vhost-user",
        about: "a guest's disk from a daemon of the host, which is killed under a writer, twice",
        limit_seconds: 240,
        disks: &[],
        served: true,
        run: guest::vhost::run,
        ..USUALLY
    },
    Scenario {
        name: "power-cut",
        about: "writes over NBD, the power is cut three times, all that was flushed is there",
        cuts: 3,
        run: guest::power::run,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-ublk",
        about: "the same with direct writes to a block device of ublk",
        cuts: 2,
        run: guest::power::run_ublk,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-ext4",
        about: "an ext4 on ublk; after each cut it is whole and has each synced file",
        cuts: 2,
        run: guest::fsck::ext4,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-xfs",
        about: "the same with xfs",
        disks: &[("state", 48), ("pool", 64), ("origin", 320)],
        cuts: 2,
        run: guest::fsck::xfs,
        ..USUALLY
    },
];

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
