//! Two of three cache devices fail at the same moment: the file system that they lie on is full.
//! What was acknowledged can be read, what does not depend on the cache goes on, and after the next
//! start, with room again, everything is as before.

use super::machine::{Machine, tool};
use crate::bench::daemon::Directory;
use anyhow::{Result, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What the two have together, and the bytes that each seems to have.
const ROOM: &str = "size=64M";
const LARGE: u64 = 256 << 20;
/// The third is so small that the log goes to the others first.
const SMALL: u64 = 24 << 20;
/// Places of the volume: for what is acknowledged before, for what fails, and for what is written
/// past the cache.
const KEPT: [&str; 2] = ["--offset=0", "--size=8M"];
const FAILING: [&str; 2] = ["--offset=64M", "--size=1M"];
const PASSING: [&str; 2] = ["--offset=128M", "--size=1M"];

/// A file system in memory, below a directory.
struct Memory<'a>(&'a Path);

impl<'a> Memory<'a> {
    fn mount(path: &'a Path) -> Result<Memory<'a>> {
        tool(&["mount", "-t", "tmpfs", "-o", ROOM, "none", &path.display().to_string()])?;
        Ok(Memory(path))
    }

    /// Takes all the room that is left.
    fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.0.join("filler"))?;
        let full = loop {
            if let Err(e) = filler.write_all(&[1; 4096]) {
                break e;
            }
        };
        ensure!(full.kind() == std::io::ErrorKind::StorageFull, "{full}");
        Ok(())
    }

    fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("filler"))?)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let place = Directory::create(None, "e2e-broken-full")?;
    let memory = Memory::mount(place.path())?;
    let directory = Directory::create(None, "e2e-broken")?;
    let caches =
        [place.file("one", LARGE)?, directory.file("small", SMALL)?, place.file("two", LARGE)?];
    let mut machine = Machine::start_in(directory, LARGE, &caches, |_| Ok(()))?;
    write(&machine, &KEPT)?;
    memory.fill()?;
    // An error; unless writeback met the full file system before: then the cache is used no longer.
    let went_past = write(&machine, &FAILING).is_ok();
    let (_, told) = machine.daemon.said(&["status"])?;
    for part in ["no longer used: a write failed", "No space left", "can be read and not written"] {
        ensure!(told.contains(part), "status does not say `{part}`: {told}");
    }
    read(&machine, &KEPT)?;
    write(&machine, &PASSING)?;
    read(&machine, &PASSING)?;
    memory.make_room()?;
    machine.daemon.kill_and_start()?;
    machine.wait_until_served()?;
    let (well, told) = machine.daemon.said(&["status"])?;
    ensure!(well && !told.contains("degraded"), "{told}");
    read(&machine, &KEPT)?;
    read(&machine, &PASSING)?;
    if went_past {
        read(&machine, &FAILING)?;
    }
    write(&machine, &FAILING)?;
    read(&machine, &FAILING)?;
    machine.finish()
}

fn write(machine: &Machine, place: &[&str]) -> Result<()> {
    fio(machine, &[place, &["--rw=randwrite", "--do_verify=0"]].concat())
}

fn read(machine: &Machine, place: &[&str]) -> Result<()> {
    fio(machine, &[place, &["--rw=randread", "--verify_only=1"]].concat())
}

fn fio(machine: &Machine, more: &[&str]) -> Result<()> {
    let device = format!("--filename={}", machine.device());
    let common = ["fio", "--name=broken", "--ioengine=io_uring", "--direct=1", "--bs=4k", &device];
    let verify = ["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
    tool(&[&common[..], &verify, more].concat()).map(drop)
}
