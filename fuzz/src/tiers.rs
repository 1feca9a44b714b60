//! Members of a tiered origin that somebody or something changed while nobody looked. A set that
//! the machine made itself is changed as the input says, opened, read, written, and opened again.
//!
//! It is refused with a text, or it serves; no I/O leaves its member; what is held at once has a
//! bound; `Tiers::check` holds after each I/O. Slots have no checksums, so only what describes
//! them is changed. Where accidents changed one member of several, all is there as it was, but what
//! lives on that member may be missing. Where they changed more, each sector that is read is as it
//! was, or an error; one that somebody wrote there, if the journal was changed. Where somebody put
//! the checksums right it may be anything.

mod base;
mod sectors;

use crate::formats::fix_checksum;
use crate::input::{Input, Random};
use crate::members::{Device, Executor};
use crate::model::{SECTOR, Version};
use base::{BASES, Base, EXTENTS, OTHER_BOOT, read, write, zero};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::IoError;
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::{Command, CommandReply, MemberId, Notice};
use sectors::Sectors;
use std::collections::BTreeSet;

/// Bytes that opening, reading and writing may hold at once, beside the members.
const HELD_BYTES_MAX: u64 = 16 << 20;
/// Sectors of an extent.
const EXTENT_SECTORS: usize = EXTENT_SIZE as usize / SECTOR;

/// What was done to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// An accident on one member of several.
    One(usize),
    /// Accidents that spared the journal.
    Map,
    /// Accidents. What was said last may be taken for never said: there is no later record.
    Journal,
    /// Somebody put checksums right.
    Forged,
}

/// Puts right the checksum of a block, if it has one.
fn fix(block: &mut [u8]) {
    match &block[..8] {
        b"FbTier01" => fix_checksum(block, 12, BLOCK_SIZE),
        b"FbTrHead" | b"FbTrPage" | b"FbTrJrnl" => fix_checksum(block, 8, BLOCK_SIZE),
        _ => {}
    }
}

/// Changes one block of a member: which one.
fn change_block(input: &mut Input, used: &[usize], device: &mut Device, is_forged: bool) -> usize {
    let kind = input.byte();
    let number = used[input.below(used.len())];
    let reach = if kind & 0x80 == 0 { 256 } else { BLOCK_SIZE };
    let within = input.below(reach);
    let len = (1 + input.below(64)).min(BLOCK_SIZE - within);
    let piece = within..within + len;
    match kind & 7 {
        0..=3 if is_forged => {
            let bytes = input.bytes(len);
            let block = device.block_mut(number);
            block[within..within + bytes.len()].copy_from_slice(bytes);
            fix(block);
        }
        0 | 4 => {
            // The input cannot choose it, and so makes no checksum right.
            let mut noise = Random(u64::from(input.long()));
            let block = device.block_mut(number);
            block[piece].iter_mut().for_each(|byte| *byte ^= noise.number() as u8);
        }
        1 | 5 => device.block_mut(number).fill(0),
        2 => device.block_mut(number)[piece].fill(0),
        _ => {
            let from = used[input.below(used.len())];
            let copy = device.block(from).to_vec();
            device.block_mut(number).copy_from_slice(&copy);
        }
    }
    number
}

/// Changes members as the input says.
fn change(input: &mut Input, base: &Base, devices: &mut Vec<Device>) -> Harm {
    let choice = input.byte();
    let victim = usize::from(choice >> 2) % devices.len();
    let mut harm = match choice & 3 {
        0 | 1 if devices.len() > 1 => Harm::One(victim),
        0..=2 => Harm::Map,
        _ => Harm::Forged,
    };
    for _ in 0..1 + input.below(12) {
        let member = match harm {
            Harm::One(victim) => victim,
            _ => input.below(devices.len()),
        };
        let is_forged = harm == Harm::Forged;
        let block = change_block(input, &base.used[member], &mut devices[member], is_forged);
        if harm == Harm::Map && base::JOURNAL.contains(&block) {
            harm = Harm::Journal;
        }
    }
    if let Harm::One(victim) = harm {
        match choice >> 4 {
            0 => devices[victim] = base.old[victim].clone(),
            1 => drop(devices.remove(victim)),
            _ => {}
        }
    }
    harm
}

/// A set that was opened.
struct World {
    executor: Executor,
    harm: Harm,
    sectors: Sectors,
    /// Sectors that were written since it was opened.
    written: BTreeSet<usize>,
    number: u64,
}

impl World {
    /// Whether an I/O there may fail: the member is not here, or nobody knows.
    fn may_fail(&self, extent: u32, error: IoError) -> bool {
        let is_here = |member: u8| self.executor.devices[usize::from(member)].is_some();
        match self.harm {
            Harm::One(_) => {
                let place = self.executor.tiers.place_of(extent);
                error == IoError::NoSpace || place.is_some_and(|(member, _)| !is_here(member.0))
            }
            Harm::Map | Harm::Journal | Harm::Forged => true,
        }
    }

    fn read(&mut self, first: usize, count: usize) {
        let done = self.executor.ask(read(first, count));
        let extent = (first / EXTENT_SECTORS) as u32;
        if let Err(error) = done.result {
            let is_told = self.may_fail(extent, error);
            assert!(is_told, "extent {extent} cannot be read: {error:?}");
            return;
        }
        for (sector, data) in (first..first + count).zip(done.buf.bytes().chunks_exact(SECTOR)) {
            let is_exact = match (self.harm, self.written.contains(&sector)) {
                (Harm::Forged, false) => continue,
                (Harm::Journal, false) => false,
                (Harm::One(_) | Harm::Map, _) | (_, true) => true,
            };
            self.sectors.check(sector, is_exact, data);
        }
    }

    /// Reads all that was ever written, and what is around it.
    fn read_all(&mut self) {
        let blocks: BTreeSet<usize> = self.sectors.touched().map(|sector| sector / 8).collect();
        let around: BTreeSet<usize> =
            blocks.iter().flat_map(|&it| [it.saturating_sub(1), it, it + 1]).collect();
        let extents = self.executor.tiers.extents().min(EXTENTS) as usize;
        for block in around.range(..extents * EXTENT_SECTORS / 8) {
            self.read(block * 8, 8);
        }
    }

    /// Clients and an administrator, for a while.
    fn use_it(&mut self, input: &mut Input) {
        for _ in 0..16 {
            if input.is_empty() {
                return;
            }
            let choice = input.byte();
            let first = base::sector(input.byte(), input.byte());
            let count = (1 + input.below(24)).min(EXTENT_SECTORS - first % EXTENT_SECTORS);
            self.number += 1;
            let version = Version::Of(1 << 32 | self.number);
            let (io, version) = match choice & 7 {
                0..=3 => (write(version, first, count), version),
                4 => (zero(first, count), Version::Zeros),
                5 => {
                    self.read(first, count);
                    continue;
                }
                6 => {
                    self.evacuate();
                    continue;
                }
                _ => {
                    self.flush();
                    continue;
                }
            };
            let sectors = first..first + count;
            self.sectors.begin(sectors.clone(), version);
            match self.executor.ask(io).result {
                Ok(()) => {
                    self.sectors.answer(sectors.clone(), version);
                    self.written.extend(sectors);
                }
                Err(error) => {
                    let is_told = self.may_fail((first / EXTENT_SECTORS) as u32, error)
                        || error == IoError::NoSpace;
                    assert!(is_told, "sector {first} cannot be written: {error:?}");
                }
            }
        }
    }

    /// Nobody knows what it is like.
    fn is_wild(&self) -> bool {
        self.harm == Harm::Forged
    }

    fn evacuate(&mut self) {
        // With a member away it may never end.
        if self.executor.devices.iter().all(Option::is_some) && !self.is_wild() {
            let member = MemberId((self.number % self.executor.devices.len() as u64) as u8);
            self.executor.command(Command::Evacuate(vec![member]));
            self.executor.command(Command::Cancel(vec![member]));
        }
    }

    fn flush(&mut self) {
        // A start that could not ask somebody who may have known more says so, once.
        let mut notices = self.executor.notices.iter_mut();
        let doubt = notices.find_map(|it| match it {
            Notice::Opened { doubt, .. } => Some(std::mem::take(doubt)),
            _ => None,
        });
        if doubt == Some(true) {
            let told = self.executor.ask(forebay_tier::Io::Flush).result;
            assert_eq!(told, Err(IoError::Io), "what was not flushed may be gone");
        }
        let done = self.executor.ask(forebay_tier::Io::Flush);
        assert_eq!(done.result, Ok(()), "all members are well");
        self.sectors.flush();
    }
}

/// Opens a set, which may be refused.
fn open(devices: Vec<Device>, boot: [u8; 16], harm: Harm) -> Option<Executor> {
    let is_whole = matches!(harm, Harm::One(_));
    let Some(executor) = Executor::open(devices, boot) else {
        assert!(!is_whole, "the members that are well are a set");
        return None;
    };
    if let Some(Notice::OpenFailed(error)) = executor.notices.first() {
        assert!(!error.to_string().is_empty());
        assert!(!is_whole, "one of two maps is enough: {error}");
        return None;
    }
    assert!(executor.tiers.is_open());
    Some(executor)
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let base = base::base(input.below(BASES));
    let is_other_boot = input.byte() & 1 != 0;
    let mut devices = base.devices.clone();
    let harm = change(input, base, &mut devices);
    let boot = if is_other_boot { OTHER_BOOT } else { base.boot };
    let info = allocation_counter::measure(|| {
        let Some(executor) = open(devices, boot, harm) else { return };
        assert!(executor.tiers.extents() == EXTENTS || harm == Harm::Forged);
        let (mut sectors, written) = (base.sectors.clone(), BTreeSet::new());
        // A superblock that was lost may have been the one that said which kernel runs.
        if is_other_boot || harm == Harm::Map {
            sectors.lose_power();
        }
        let mut world = World { executor, harm, sectors, written, number: 0 };
        world.read_all();
        world.use_it(input);
        world.flush();
        world.read_all();
        let World { executor, sectors, written, number, .. } = world;
        // What was flushed outlives any end.
        let executor = open(executor.kill(), [0xee; 16], harm).expect("it was just open");
        let mut world = World { executor, harm, sectors, written, number };
        world.read_all();
        if harm != Harm::Forged {
            assert_eq!(world.executor.command(Command::Stop), CommandReply::Changed);
        }
    });
    assert!(info.bytes_max <= HELD_BYTES_MAX, "{} bytes were held at once", info.bytes_max);
}
