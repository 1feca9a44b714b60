//! `cargo xtask e2e`: what a user does with a block device, with the kernel of this machine. Needs
//! root, FUSE and loop devices, and leaves nothing behind.

mod away;
mod broken;
mod crash;
mod database;
mod discard;
mod file_system;
mod growth;
mod hangs;
mod hangs_tier;
mod life;
mod lost;
mod machine;
mod reconnect;
mod rescue;
mod sectors;
mod stacked;
mod twins;

use crate::command::cargo;
use anyhow::{Result, bail, ensure};
use machine::Missing;

/// A test: its name, what it needs, and what runs it.
struct Test {
    name: &'static str,
    programs: &'static [&'static str],
    /// A file system of the kernel.
    kernel: Option<&'static str>,
    run: fn() -> Result<()>,
}

const TESTS: [Test; 21] = [
    Test {
        name: "ext4",
        programs: &["fio", "mkfs.ext4", "e2fsck", "fstrim", "blkdiscard"],
        kernel: Some("ext4"),
        run: || file_system::run(&file_system::EXT4),
    },
    Test {
        name: "xfs",
        programs: &["fio", "mkfs.xfs", "xfs_repair", "fstrim", "blkdiscard"],
        kernel: Some("xfs"),
        run: || file_system::run(&file_system::XFS),
    },
    Test {
        name: "btrfs",
        programs: &["fio", "mkfs.btrfs", "btrfs", "fstrim", "blkdiscard"],
        kernel: Some("btrfs"),
        run: || file_system::run(&file_system::BTRFS),
    },
    Test {
        name: "kill",
        programs: &["fio", "mkfs.ext4", "e2fsck"],
        kernel: Some("ext4"),
        run: crash::run,
    },
    Test {
        name: "sqlite",
        programs: &["sqlite3", "mkfs.ext4", "e2fsck"],
        kernel: Some("ext4"),
        run: database::sqlite,
    },
    Test {
        name: "postgres",
        programs: &["psql", "runuser", "mkfs.ext4", "e2fsck"],
        kernel: Some("ext4"),
        run: database::postgres,
    },
    Test { name: "reconnect", programs: &["qemu-io"], kernel: None, run: reconnect::run },
    Test { name: "life", programs: &["mkfs.ext4"], kernel: Some("ext4"), run: life::run },
    Test { name: "away", programs: &["mkfs.ext4"], kernel: Some("ext4"), run: away::run },
    Test { name: "stacked", programs: &["mkfs.ext4"], kernel: Some("ext4"), run: stacked::run },
    Test { name: "broken", programs: &["fio"], kernel: Some("tmpfs"), run: broken::run },
    Test {
        name: "twins",
        programs: &["mkfs.ext4", "mkfs.btrfs"],
        kernel: Some("ext4"),
        run: twins::run,
    },
    Test {
        name: "sectors",
        programs: &["mkfs.ext4", "mkfs.xfs", "e2fsck", "xfs_repair"],
        kernel: Some("xfs"),
        run: sectors::run,
    },
    Test {
        name: "growth",
        programs: &["fio", "mkfs.btrfs", "btrfs"],
        kernel: Some("btrfs"),
        run: growth::run,
    },
    Test {
        name: "hangs",
        programs: &["nbdfuse", "nbdkit", "qemu-io"],
        kernel: None,
        run: hangs::origin,
    },
    Test {
        name: "hangs-cache",
        programs: &["nbdfuse", "nbdkit", "qemu-io"],
        kernel: None,
        run: hangs::cache_device,
    },
    Test {
        name: "hangs-end",
        programs: &["nbdfuse", "nbdkit", "qemu-io"],
        kernel: None,
        run: hangs::end,
    },
    Test {
        name: "hangs-tier",
        programs: &["nbdfuse", "nbdkit", "qemu-io"],
        kernel: None,
        run: hangs_tier::run,
    },
    Test {
        name: "rescue",
        programs: &["nbdfuse", "nbdkit", "qemu-io", "ddrescue"],
        kernel: None,
        run: rescue::run,
    },
    Test { name: "discard", programs: &[], kernel: None, run: discard::run },
    Test { name: "lost", programs: &["nbdfuse", "nbdkit"], kernel: None, run: lost::run },
];

/// Runs the named tests, or all.
///
/// # Errors
/// A test that failed, or with `FOREBAY_REQUIRE_TOOLS=1` one whose programs are missing.
pub fn run(names: &[String]) -> Result<()> {
    for name in names {
        let known = TESTS.map(|test| test.name);
        ensure!(known.contains(&name.as_str()), "no test `{name}`: there are {}", known.join(", "));
    }
    let required = std::env::var_os("FOREBAY_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    if let Some(why) = machine::without_devices() {
        // Nothing that could be installed would help.
        println!("e2e: skipped: {why}");
        return Ok(());
    }
    cargo(&["build", "--release", "-p", "forebay-daemon", "-p", "forebay-cli"])?;
    let mut failed = Vec::new();
    for test in TESTS.iter().filter(|it| names.is_empty() || names.iter().any(|n| n == it.name)) {
        let outcome = match machine::missing(test.programs, test.kernel) {
            Some(Missing::Program(name)) if required => bail!("{}: {name} is missing", test.name),
            Some(missing) => {
                println!("e2e {}: skipped: {missing}", test.name);
                continue;
            }
            None => (test.run)(),
        };
        match outcome {
            Ok(()) => println!("e2e {}: ok", test.name),
            Err(error) => {
                println!("e2e {}: FAILED: {error:#}", test.name);
                failed.push(test.name);
            }
        }
    }
    ensure!(failed.is_empty(), "e2e: failed: {}", failed.join(", "));
    Ok(())
}
