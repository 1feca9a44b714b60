//! The scenarios: what each needs, and the function that runs in the guest.

use super::guest::{self, Guest};
use super::packages::SUITE;
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
    /// The same in the short run.
    pub cuts_short: u64,
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
    /// The release of Debian.
    pub suite: &'static str,
    /// The version of its glibc: programs that were linked to a newer one may not run.
    pub libc: (u32, u32),
    /// What happens in each of its lives.
    pub lives: &'static [&'static str],
    /// The same in the short run.
    pub lives_short: &'static [&'static str],
    /// The serial number of a disk that is missing in one of its lives, and that life.
    pub absent: (&'static str, &'static str),
}

/// What one machine does: a scenario, or several that share a boot.
pub struct Work {
    /// `--kernel`'s name for the kernel.
    pub kernel: &'static str,
    /// One after the other. Those that share a boot have neither power cuts nor a whole system.
    pub scenarios: Vec<&'static Scenario>,
    /// Whether it is part of the short run.
    pub short: bool,
}

impl Work {
    /// The names of its scenarios, for people and for the guest.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.scenarios.iter().map(|scenario| scenario.name).collect();
        names.join(",")
    }

    /// Disks with a volatile cache: the longest list of its scenarios holds the others.
    pub fn disks(&self) -> &'static [(&'static str, usize)] {
        let lists = self.scenarios.iter().map(|scenario| scenario.disks);
        lists.max_by_key(|list| list.len()).unwrap_or_default()
    }

    /// Seconds that a scenario may take, with its boot.
    pub fn limit_seconds(&self) -> u64 {
        self.scenarios.iter().map(|scenario| scenario.limit_seconds).max().unwrap_or_default()
    }

    /// How often the power is cut.
    pub fn cuts(&self) -> u64 {
        let cuts = |scenario: &&Scenario| match self.short {
            true => scenario.cuts_short,
            false => scenario.cuts,
        };
        self.scenarios.iter().map(cuts).sum()
    }

    /// How often its machine starts.
    pub fn boots(&self) -> u64 {
        self.cuts() + (self.lives().len() as u64).max(1)
    }

    /// The whole system that it boots, if it does.
    pub fn system(&self) -> Option<System> {
        self.scenarios.iter().find_map(|scenario| scenario.system)
    }

    /// What happens in each life of a whole system, or nothing.
    pub fn lives(&self) -> &'static [&'static str] {
        self.system().map_or(&[], |it| if self.short { it.lives_short } else { it.lives })
    }
}

/// A pool, an origin and a place for the daemon's state.
const USUAL: &[(&str, usize)] = &[("state", 48), ("pool", 64), ("origin", 96)];

/// The short run: each scenario once, on one of the kernels. The longest machines come first, so
/// that others run beside them. The driver of ublk is missing until the first that wants it so has
/// ended.
const SHORT: &[(&str, &[&str])] = &[
    ("6.12", &["systemd"]),
    ("newest", &["ublk-missing", "ublk-port", "ublk-user", "ublk-replaced", "nbd", "vhost-user"]),
    ("6.12", &["ublk-killed", "nbd-kernel"]),
    ("newest", &["systemd-252"]),
    ("newest", &["power-cut"]),
    ("6.12", &["power-cut-xfs"]),
    ("newest", &["power-cut-ublk"]),
    ("newest", &["power-cut-ext4"]),
    ("6.12", &["power-cut-tiers"]),
    ("6.12", &["raid"]),
    ("newest", &["power-cut-tiers-cached"]),
];

/// What is to be done on these kernels, in order. `is_wanted` chooses by name.
pub fn plan(kernels: &[&str], short: bool, is_wanted: impl Fn(&str) -> bool) -> Vec<Work> {
    let found = |names: &[&str]| -> Vec<&'static Scenario> {
        names.iter().filter(|name| is_wanted(name)).filter_map(|name| find(name)).collect()
    };
    let mut all = Vec::new();
    for kernel in ["6.12", "newest"].into_iter().filter(|kernel| kernels.contains(kernel)) {
        for scenario in SCENARIOS.iter().filter(|_| !short) {
            all.push(Work { kernel, scenarios: found(&[scenario.name]), short });
        }
    }
    for (kernel, names) in SHORT.iter().filter(|(kernel, _)| short && kernels.contains(kernel)) {
        all.push(Work { kernel, scenarios: found(names), short });
    }
    all.retain(|work| !work.scenarios.is_empty());
    all
}

/// What most scenarios have in common.
const USUALLY: Scenario = Scenario {
    name: "",
    about: "",
    limit_seconds: 180,
    disks: USUAL,
    cuts: 0,
    cuts_short: 0,
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
        system: Some(System {
            suite: SUITE,
            libc: (2, 41),
            lives: &["make", "compare", "boot", "without-the-cache", "with-it-again"],
            lives_short: &["make", "boot", "without-the-cache"],
            absent: ("pool", "without-the-cache"),
        }),
        run: guest::systemd::run_scenario,
        ..USUALLY
    },
    Scenario {
        name: "systemd-252",
        about: "the same with the systemd of Debian 12, older than all that knows ublk",
        limit_seconds: 300,
        disks: &[("pool", 64), ("origin", 96), ("second", 64), ("plain", 64)],
        system: Some(System {
            suite: "bookworm",
            libc: (2, 36),
            lives: &["make", "boot", "without-the-cache", "with-it-again"],
            lives_short: &["make", "boot"],
            absent: ("pool", "without-the-cache"),
        }),
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
        name: "raid",
        about: "an md RAID 5 below: what it reads itself while tiers and a cache send data home",
        limit_seconds: 240,
        // So large that nothing goes home before the drain.
        disks: &[("state", 48), ("pool", 256), ("origin", 48), ("second", 48), ("third", 48)],
        run: guest::raid::run,
        ..USUALLY
    },
    Scenario {
        name: "power-cut",
        about: "writes over NBD, the power is cut three times, all that was flushed is there",
        cuts: 3,
        cuts_short: 1,
        run: guest::power::run,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-ublk",
        about: "the same with direct writes to a block device of ublk",
        cuts: 2,
        cuts_short: 1,
        run: guest::power::run_ublk,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-ext4",
        about: "an ext4 on ublk; after each cut it is whole and has each synced file",
        cuts: 2,
        cuts_short: 1,
        run: guest::fsck::ext4,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-xfs",
        about: "the same with xfs",
        disks: &[("state", 48), ("pool", 64), ("origin", 320)],
        cuts: 2,
        cuts_short: 1,
        run: guest::fsck::xfs,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-tiers",
        about: "a volume over two tiers, the power is cut while all of it moves to and fro",
        limit_seconds: 240,
        cuts: 5,
        cuts_short: 2,
        run: guest::tiers::run,
        ..USUALLY
    },
    Scenario {
        name: "power-cut-tiers-cached",
        about: "the same with a write-back cache above the tiers",
        limit_seconds: 240,
        disks: &[("state", 48), ("pool", 64), ("origin", 96), ("second", 64)],
        cuts: 5,
        cuts_short: 1,
        run: guest::tiers::run_cached,
        ..USUALLY
    },
];

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_run_has_each_scenario_once() {
        let mut names: Vec<&str> =
            SHORT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.sort_unstable();
        let mut all: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        all.sort_unstable();
        assert_eq!(names, all);
        let long = plan(&["6.12", "newest"], false, |_| true);
        assert_eq!(long.len(), 2 * SCENARIOS.len());
        let one = plan(&["newest"], true, |name| name == "nbd");
        assert_eq!(one.iter().map(Work::name).collect::<Vec<_>>(), ["nbd"]);
    }

    #[test]
    fn what_shares_a_boot_can() {
        for work in plan(&["6.12", "newest"], true, |_| true) {
            let shared = work.scenarios.len() > 1;
            assert!(!shared || work.cuts() + work.lives().len() as u64 == 0, "{}", work.name());
            for scenario in &work.scenarios {
                assert!(work.disks().starts_with(scenario.disks), "{}", scenario.name);
            }
            let without = work.scenarios.iter().skip(1).find(|it| it.without.is_some());
            assert!(without.is_none(), "a module cannot be taken away again");
        }
    }
}
