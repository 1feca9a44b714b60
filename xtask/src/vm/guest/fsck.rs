//! A file system on a volume through power cuts: after each it is whole, and what was synced is
//! there.

use super::daemon::{Daemon, make_volume, wait_for_volume};
use super::{Guest, run, say, wait_until};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOUNT: &str = "/mnt/data";
/// The link to the volume's device.
const LINK: &str = "/mnt/state/forebay/dev/data";
/// Bytes of a file; they come from its number.
const FILE_BYTES: usize = 20_000;
/// Files that are kept; the oldest is removed for each more.
const FILES: u64 = 200;
/// Files in one directory.
const DIRECTORY_FILES: u64 = 16;

struct Kind {
    make: &'static [&'static str],
    name: &'static str,
    check: &'static [&'static str],
}

/// With ext4.
///
/// # Errors
/// What failed.
pub fn ext4(guest: &Guest) -> Result<()> {
    let make = &["/usr/bin/mke2fs", "-q", "-F", "-t", "ext4"];
    live(guest, &Kind { make, name: "ext4", check: &["/usr/bin/e2fsck", "-f", "-n"] })
}

/// With xfs.
///
/// # Errors
/// What failed.
pub fn xfs(guest: &Guest) -> Result<()> {
    let make = &["/usr/bin/mkfs.xfs", "-q", "-f"];
    live(guest, &Kind { make, name: "xfs", check: &["/usr/bin/xfs_repair", "-n"] })
}

fn live(guest: &Guest, kind: &Kind) -> Result<()> {
    let _daemon = Daemon::start_on(guest)?;
    let (life, last) = (guest.number("life"), guest.number("last"));
    if life == 0 {
        make_volume(guest, &["--mode", "writeback", "--export", "ublk"])?;
        with(kind.make, LINK)?;
        fs::create_dir_all(MOUNT)?;
    }
    wait_for_volume()?;
    wait_until("the device is there", Duration::from_secs(20), || Ok(Path::new(LINK).exists()))?;
    fs::create_dir_all(MOUNT)?;
    let mount = || run("mount", &["-t", kind.name, LINK, MOUNT]);
    // The file system puts itself right from its journal, and is then to be without a fault.
    mount()?;
    let synced = guest.number("flushed");
    verify(synced)?;
    run("umount", &[MOUNT])?;
    with(kind.check, LINK)?;
    if life == last {
        return Ok(());
    }
    mount()?;
    // Behind a gap, so that a file of the life before that was not told of is not met again.
    write_for_ever(synced + 1000 * (life + 1))
}

fn with(words: &[&str], device: &str) -> Result<String> {
    let (program, arguments) = words.split_first().context("a program")?;
    run(program, &[arguments, &[device]].concat())
}

fn place(number: u64) -> PathBuf {
    PathBuf::from(format!("{MOUNT}/{}/{number}", number / DIRECTORY_FILES))
}

fn content(number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(FILE_BYTES + number as usize % 5000).collect()
}

/// Every file that was told of in the last life is there and whole. Others may be there, torn.
fn verify(synced: u64) -> Result<()> {
    let told = fs::read_to_string(format!("{MOUNT}/first")).unwrap_or_default();
    let Ok(first) = told.trim().parse::<u64>() else {
        ensure!(synced == 0, "the file system has lost where its files begin");
        return Ok(());
    };
    let mut count = 0;
    for number in first.max(synced.saturating_sub(FILES - 1))..=synced {
        let place = place(number);
        let found = fs::read(&place).with_context(|| format!("read {}", place.display()))?;
        ensure!(found == content(number), "{} is not what was written", place.display());
        count += 1;
    }
    println!("{count} synced files are there and whole");
    ensure!(synced == 0 || count > 0, "nothing was verified");
    Ok(())
}

/// Writes and syncs files, telling the host of each, until the power is cut.
fn write_for_ever(first: u64) -> Result<()> {
    sync_file(Path::new(MOUNT).join("first").as_path(), first.to_string().as_bytes())?;
    for number in first.. {
        let place = place(number);
        let directory = place.parent().context("files lie in directories")?;
        if !directory.exists() {
            fs::create_dir(directory)?;
            File::open(MOUNT)?.sync_all()?;
        }
        sync_file(&place, &content(number))?;
        say("flushed", &format!("{number}."));
        if let Some(oldest) = number.checked_sub(FILES).filter(|oldest| *oldest >= first) {
            fs::remove_file(self::place(oldest))?;
        }
    }
    Ok(())
}

fn sync_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("make {}", path.display()))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    File::open(path.parent().context("files lie in directories")?)?.sync_all()?;
    Ok(())
}
