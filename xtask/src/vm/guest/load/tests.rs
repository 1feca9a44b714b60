//! The check against disks that behave, and that do not.

use super::*;
use std::collections::BTreeMap;

const BLOCKS: u64 = 256;

/// A disk in memory that fails after so many flushes.
#[derive(Default, Clone)]
struct Memory {
    blocks: BTreeMap<u64, Vec<u8>>,
    flushed: BTreeMap<u64, Vec<u8>>,
    flushes_left: u64,
}

impl Blocks for Memory {
    fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> Result<()> {
        self.blocks.extend(blocks.iter().cloned());
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        ensure!(self.flushes_left > 0, "the power is off");
        self.flushes_left -= 1;
        self.flushed.clone_from(&self.blocks);
        Ok(())
    }

    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        let one = |block| self.blocks.get(&block).cloned().unwrap_or_else(|| vec![0; BLOCK]);
        Ok((block..block + count).flat_map(one).collect())
    }
}

/// Runs a life of some flushes. Returns the last write that was flushed, as the host learns it.
fn live(disk: &mut Memory, life: u64) -> u64 {
    disk.flushes_left = 40;
    write_for_ever(disk, BLOCKS, life).unwrap_err();
    let is_flushed = |number: &u64| {
        let block = block_of(*number, BLOCKS);
        disk.flushed.get(&block).is_some_and(|bytes| number_of(bytes, block).unwrap() >= *number)
    };
    (life << 32..(life << 32) + 8000).take_while(is_flushed).last().unwrap()
}

struct Ledger(std::path::PathBuf);

impl Ledger {
    fn new(name: &str) -> Ledger {
        Ledger(std::env::temp_dir().join(format!("forebay-ledger-{name}-{}", std::process::id())))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_disk_that_keeps_what_was_flushed_passes() {
    let ledger = Ledger::new("good");
    let mut disk = Memory::default();
    verify(&mut disk, BLOCKS, 0, 0, &ledger.0).unwrap();
    let flushed = live(&mut disk, 0);
    verify(&mut disk.clone(), BLOCKS, 1, flushed, &ledger.0).unwrap();
    // The same without what was not flushed: but then it was not read before.
    disk.blocks.clone_from(&disk.flushed);
    verify(&mut disk, BLOCKS, 1, flushed, &ledger.0).unwrap_err();
    let ledger = Ledger::new("good-too");
    verify(&mut Memory::default(), BLOCKS, 0, 0, &ledger.0).unwrap();
    verify(&mut disk, BLOCKS, 1, flushed, &ledger.0).unwrap();
    let flushed = live(&mut disk, 1);
    verify(&mut disk, BLOCKS, 2, flushed, &ledger.0).unwrap();
}

#[test]
fn old_foreign_and_torn_blocks_are_found() {
    let ledger = Ledger::new("bad");
    let mut disk = Memory::default();
    verify(&mut disk, BLOCKS, 0, 0, &ledger.0).unwrap();
    let flushed = live(&mut disk, 0);
    let saved = fs::read(&ledger.0).unwrap();
    let check = |change: &dyn Fn(&mut Memory)| {
        fs::write(&ledger.0, &saved).unwrap();
        let mut disk = disk.clone();
        change(&mut disk);
        verify(&mut disk, BLOCKS, 1, flushed, &ledger.0).map_err(|e| e.to_string())
    };
    let last = block_of(flushed, BLOCKS);
    let lost = check(&|disk| drop(disk.blocks.remove(&last))).unwrap_err();
    assert!(lost.contains("older than"), "{lost}");
    let foreign = check(&|disk| {
        let other = disk.blocks.keys().copied().find(|block| *block != last).unwrap();
        let bytes = disk.blocks[&other].clone();
        disk.blocks.insert(last, bytes);
    });
    assert!(foreign.unwrap_err().contains("is not of write"));
    let torn = check(&|disk| disk.blocks.get_mut(&last).unwrap()[4000] ^= 1).unwrap_err();
    assert!(torn.contains("sector 7"), "{torn}");
}
