//! An md RAID 5 below a volume. A write that is smaller than a stripe has the array read what it
//! needs for the parity; one that brings whole stripes has not.

use super::daemon::{Daemon, forebay, wait_for_volume};
use super::load::{BLOCK, Blocks};
use super::nbd::Client;
use super::{Guest, power::Device, run as run_program, wait_until};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ARRAY: &str = "/dev/md0";
/// Its settings.
const SETTINGS: &str = "/sys/block/md0/md";
/// Its disks, by serial number.
const DISKS: [&str; 3] = ["origin", "second", "third"];
/// Bytes of a chunk: what mdadm takes where nobody says anything. A stripe is two of them.
const CHUNK: u64 = 512 << 10;
/// Bytes of each disk that it uses.
const USED: u64 = 40 << 20;
/// Blocks that are written, in an order that no elevator puts right: 8 MiB, and so many at a time.
const BLOCKS: u64 = 2048;
const BATCH: u64 = 32;
/// A prime that has no factor in common with them.
const STEP: u64 = 1_597;
/// What the array may read, of what it reads where the same writes go to it alone.
const SHARE_MAX: f64 = 0.3;

/// The same writes go to the array alone, to tiers of which the fast one is emptied then, and to a
/// write-back cache that is drained.
///
/// # Errors
/// If the array reads more than its share below one of them.
pub fn run(guest: &Guest) -> Result<()> {
    let array = Array::make(guest)?;
    let bare = array.reads_of(|| {
        fill(&mut Device::open(Path::new(ARRAY))?)?;
        run_program("sync", &[]).map(drop)
    })?;
    println!("the array alone reads {bare} KiB");
    ensure!(bare > 0, "the array reads nothing for its parity");
    let fast = guest.disk("pool")?.to_str().context("a plain name")?.to_string();
    let mut daemon = Daemon::start_on(guest)?;

    let tiers = ["volume", "create", "data", "--tier", &fast, "--tier", ARRAY];
    forebay(&[&tiers[..], &["--size", "32M", "--export", "nbd", "--force", "--yes"]].concat())?;
    forebay(&["tier", "set", "data", "--rate", "1G"])?;
    wait_for_volume()?;
    fill(&mut Client::connect(&daemon.nbd(), "data")?)?;
    let tiers = array.reads_of(|| forebay(&["tier", "evacuate", "data", "0"]).map(drop))?;
    check(&mut Client::connect(&daemon.nbd(), "data")?)?;
    forebay(&["volume", "remove", "data", "--yes"])?;

    let cache = ["cache", ARRAY, "--with", &fast, "--name", "data", "--mode", "writeback"];
    forebay(&[&cache[..], &["--export", "nbd", "--force", "--yes"]].concat())?;
    wait_for_volume()?;
    let cache = array.reads_of(|| {
        fill(&mut Client::connect(&daemon.nbd(), "data")?)?;
        forebay(&["volume", "drain", "data"]).map(drop)
    })?;
    forebay(&["volume", "detach", "data", "--yes"])?;
    check(&mut Device::open(Path::new(ARRAY))?)?;
    daemon.end()?;
    array.end()?;
    let measured = [("emptied tier", tiers), ("drained cache", cache)];
    let share = |reads: u64| reads as f64 / bare as f64;
    for (what, reads) in measured {
        let share = share(reads);
        super::say(
            "measured",
            &format!("{what}: the array reads {reads} KiB, {share:.3} of {bare}"),
        );
    }
    for (what, reads) in measured {
        ensure!(share(reads) <= SHARE_MAX, "{what}: the array reads as much as it does alone");
    }
    Ok(())
}

/// Writes each block once.
fn fill(target: &mut impl Blocks) -> Result<()> {
    for first in (0..BLOCKS).step_by(BATCH as usize) {
        let blocks = (first..first + BATCH).map(|number| number * STEP % BLOCKS);
        let batch: Vec<(u64, Vec<u8>)> = blocks.map(|block| (block, content(block))).collect();
        target.write(&batch)?;
    }
    target.flush()
}

fn check(target: &mut impl Blocks) -> Result<()> {
    for first in (0..BLOCKS).step_by(BATCH as usize) {
        let found = target.read(first, BATCH)?;
        for (block, bytes) in (first..).zip(found.chunks(BLOCK)) {
            ensure!(bytes == content(block), "block {block} is not what was written");
        }
    }
    Ok(())
}

fn content(block: u64) -> Vec<u8> {
    let word = (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

struct Array {
    disks: Vec<String>,
}

impl Array {
    /// An array without a superblock, of disks that are all zeros: its parity is right.
    fn make(guest: &Guest) -> Result<Array> {
        for module in fs::read_to_string("/modules/raid456")?.lines() {
            run_program("insmod", &[&format!("/modules/{module}")])?;
        }
        write("/sys/module/md_mod/parameters/new_array", "md0")?;
        let settings = [
            ("metadata_version", "none".to_string()),
            ("level", "raid5".to_string()),
            ("raid_disks", DISKS.len().to_string()),
            ("chunk_size", CHUNK.to_string()),
            ("layout", "2".to_string()),
            ("component_size", (USED / 1024).to_string()),
            ("resync_start", "none".to_string()),
        ];
        for (name, value) in settings {
            write(format!("{SETTINGS}/{name}"), &value)?;
        }
        let mut disks = Vec::new();
        for (slot, serial) in DISKS.iter().enumerate() {
            let disk = guest.disk(serial)?;
            let name = disk.file_name().and_then(|name| name.to_str()).context("a plain name")?;
            let number = fs::read_to_string(format!("/sys/block/{name}/dev"))?;
            write(format!("{SETTINGS}/new_dev"), number.trim())?;
            write(format!("{SETTINGS}/dev-{name}/size"), &(USED / 1024).to_string())?;
            write(format!("{SETTINGS}/dev-{name}/slot"), &slot.to_string())?;
            disks.push(name.to_string());
        }
        write(format!("{SETTINGS}/array_state"), "active")?;
        let is_there = || Ok(Path::new(ARRAY).exists());
        wait_until("the array is there", Duration::from_secs(10), is_there)?;
        Ok(Array { disks })
    }

    /// KiB that its disks read meanwhile. What is asked of the array itself is none of it: nobody
    /// reads.
    fn reads_of(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let before = self.reads()?;
        work()?;
        Ok(self.reads()? - before)
    }

    fn reads(&self) -> Result<u64> {
        let sectors = self.disks.iter().map(|name| {
            let stat = fs::read_to_string(format!("/sys/block/{name}/stat"))?;
            let third = stat.split_whitespace().nth(2).context("sectors that were read")?;
            Ok(third.parse::<u64>()?)
        });
        Ok(sectors.sum::<Result<u64>>()? / 2)
    }

    fn end(self) -> Result<()> {
        write(format!("{SETTINGS}/array_state"), "clear")
    }
}

fn write(path: impl Into<PathBuf>, value: &str) -> Result<()> {
    let path = path.into();
    fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
}
