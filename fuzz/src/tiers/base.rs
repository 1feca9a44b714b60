//! Sets with some life behind them: written, flushed, given back, moved, stopped, killed.

use super::EXTENT_SECTORS;
use super::sectors::Sectors;
use crate::input::Random;
use crate::members::{Device, Executor};
use crate::model::{SECTOR, Version, fill};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use forebay_format::tier::{EXTENT_SIZE, SUPERBLOCK_OFFSETS};
use forebay_tier::{Command, CommandReply, Io, MemberId, NewMember, NewSet, create};
use std::sync::OnceLock;

/// Extents of the volume: three pages of the map.
pub const EXTENTS: u32 = 1200;
/// Those that are used, which are as many as there are slots.
const USED: [usize; 7] = [0, 1, 2, 579, 580, 1160, 1199];
/// A kernel that none of the sets has seen.
pub const OTHER_BOOT: [u8; 16] = [0xbb; 16];

/// A set, and what its volume holds.
pub struct Base {
    /// Its members.
    pub devices: Vec<Device>,
    /// The members as they were in an earlier life.
    pub old: Vec<Device>,
    /// The kernel in which it was last open.
    pub boot: [u8; 16],
    /// What its sectors may hold.
    pub sectors: Sectors,
    /// Blocks of each member, before its slots, that are not zeros.
    pub used: Vec<Vec<usize>>,
}

/// Blocks of each member that are its journal; pages follow.
pub const JOURNAL: std::ops::Range<usize> = 128..128 + JOURNAL_BLOCKS as usize;
/// How many these are.
pub const JOURNAL_BLOCKS: u32 = 128;

/// The extents that are written in each life.
type Lives = [&'static [usize]; 4];

/// How a set has lived last.
struct Last {
    /// I/Os in that life.
    steps: u32,
    is_stopped: bool,
}

/// How many sets there are.
pub const BASES: usize = 11;

/// A set of one to three members, by number. It is made when it is first asked for.
pub fn base(number: usize) -> &'static Base {
    static ALL: [OnceLock<Base>; BASES] = [const { OnceLock::new() }; BASES];
    ALL[number].get_or_init(|| made(number))
}

fn made(number: usize) -> Base {
    const ONE: &[(u8, u64)] = &[(0, 8)];
    const TWO: &[(u8, u64)] = &[(0, 3), (1, 8)];
    const THREE: &[(u8, u64)] = &[(0, 2), (1, 4), (1, 4)];
    // Extents of the first, the second and the third page of the map.
    const OLD_DOUBLES: Lives = [&[0, 580, 1160], &[580], &[0, 2], &[1]];
    const FEW_DOUBLES: Lives = [&[0, 580, 1160], &[580], &[1160, 1], &[0, 2]];
    let killed = |members, steps| lived(members, &Last { steps, is_stopped: false });
    let stopped = |members, steps| lived(members, &Last { steps, is_stopped: true });
    match number {
        0 => killed(ONE, 90),
        1 => killed(TWO, 90),
        2 => killed(THREE, 90),
        3 => stopped(TWO, 90),
        4 => stopped(ONE, 90),
        5 => killed(ONE, 2),
        6 => killed(TWO, 2),
        7 => stopped(THREE, 2),
        8 => whole_pieces(ONE, OLD_DOUBLES),
        9 => whole_pieces(TWO, OLD_DOUBLES),
        _ => whole_pieces(TWO, FEW_DOUBLES),
    }
}

/// A place that clients like: few extents, the first and last blocks of pieces.
pub fn sector(extent: u8, place: u8) -> usize {
    let extent = USED[usize::from(extent) % USED.len()];
    let piece = [0, 1, 2, 15][usize::from(place >> 6)];
    extent * EXTENT_SECTORS + piece * 128 + usize::from(place & 63) * 2
}

/// A read of sectors.
pub fn read(first: usize, count: usize) -> Io {
    Io::Read { offset: (first * SECTOR) as u64, buf: Buf::zeroed(count * SECTOR) }
}

/// A write of a version to sectors.
pub fn write(version: Version, first: usize, count: usize) -> Io {
    let mut buf = Buf::zeroed(count * SECTOR);
    for (sector, into) in (first..).zip(buf.bytes_mut().chunks_exact_mut(SECTOR)) {
        fill(version, sector, into);
    }
    Io::Write { offset: (first * SECTOR) as u64, buf }
}

/// Zeros in sectors, and their space given back.
pub fn zero(first: usize, count: usize) -> Io {
    let (offset, len) = ((first * SECTOR) as u64, (count * SECTOR) as u64);
    Io::Zero { offset, len, unmap: true }
}

fn new(members: &[(u8, u64)]) -> Vec<Device> {
    let spec = NewSet {
        name: "fuzz".into(),
        set: [7; 16],
        bytes: u64::from(EXTENTS) * EXTENT_SIZE,
        journal_blocks: JOURNAL_BLOCKS,
        bytes_max: 0,
        overcommit: true,
        members: (1..)
            .zip(members)
            .map(|(uuid, &(tier, slots))| NewMember {
                uuid: [uuid; 16],
                bytes: (2 + slots) * EXTENT_SIZE,
                tier,
                is_volatile: false,
            })
            .collect(),
    };
    let superblocks = create(&spec).expect("it is possible");
    let devices = spec.members.iter().zip(superblocks).map(|(member, superblock)| {
        let mut device = vec![0; member.bytes as usize];
        for offset in SUPERBLOCK_OFFSETS {
            superblock.encode(&mut device[offset as usize..][..BLOCK_SIZE]);
        }
        // What stood there before.
        let slots = superblock.layout().slots_offset() as usize;
        device[slots..].fill(0xee);
        Device::new(device)
    });
    devices.collect()
}

struct Maker {
    executor: Executor,
    sectors: Sectors,
    random: Random,
    number: u64,
}

impl Maker {
    fn change(&mut self, first: usize, count: usize, is_zero: bool) {
        self.number += 1;
        let version = if is_zero { Version::Zeros } else { Version::Of(self.number) };
        let io = if is_zero { zero(first, count) } else { write(version, first, count) };
        let sectors = first..first + count;
        self.sectors.begin(sectors.clone(), version);
        assert_eq!(self.executor.ask(io).result, Ok(()));
        self.sectors.answer(sectors, version);
    }

    fn live(&mut self, steps: u32) {
        for step in 0..steps {
            let first = sector(self.random.number() as u8, self.random.number() as u8);
            let count = (1 + self.random.below(40)).min(EXTENT_SECTORS - first % EXTENT_SECTORS);
            match self.random.below(10) {
                0 => self.change(first, count, true),
                1 => {
                    // The whole extent, so that its place is another's next.
                    let extent = first / EXTENT_SECTORS * EXTENT_SECTORS;
                    self.change(extent, EXTENT_SECTORS, true);
                }
                2 => self.flush(),
                3 if step % 3 == 0 => {
                    self.executor.command(Command::Evacuate(vec![MemberId(0)]));
                    self.executor.command(Command::Cancel(vec![MemberId(0)]));
                }
                _ => self.change(first, count, false),
            }
        }
    }

    fn flush(&mut self) {
        assert_eq!(self.executor.ask(Io::Flush).result, Ok(()));
        self.sectors.flush();
    }
}

fn lived(members: &[(u8, u64)], last: &Last) -> Base {
    let executor = Executor::open(new(members), [1; 16]).expect("it is new");
    let (sectors, random) = (Sectors::default(), Random(11));
    let mut maker = Maker { executor, sectors, random, number: 0 };
    maker.live(120);
    assert_eq!(maker.executor.command(Command::Stop), CommandReply::Changed);
    maker.sectors.flush();
    let old: Vec<Device> = maker.executor.kill().iter().map(Device::settled).collect();
    let boot = [2; 16];
    let executor = Executor::open(old.clone(), boot).expect("it was stopped");
    maker.executor = executor;
    maker.live(last.steps);
    maker.flush();
    maker.live(6);
    if last.is_stopped {
        assert_eq!(maker.executor.command(Command::Stop), CommandReply::Changed);
        maker.sectors.flush();
    }
    let devices: Vec<Device> = maker.executor.kill().iter().map(Device::settled).collect();
    let used = devices.iter().map(described).collect();
    Base { devices, old, boot, sectors: maker.sectors, used }
}

/// A set of whole pieces, of which each checkpoint writes few pages: its doubles are of all times.
fn whole_pieces(members: &[(u8, u64)], lives: Lives) -> Base {
    let executor = Executor::open(new(members), [1; 16]).expect("it is new");
    let (sectors, random) = (Sectors::default(), Random(12));
    let mut maker = Maker { executor, sectors, random, number: 0 };
    let mut old = Vec::new();
    for (boot, extents) in (2..).zip(lives) {
        for extent in extents {
            let first = extent * EXTENT_SECTORS + usize::from(boot) * 128;
            maker.change(first, 128, false);
        }
        assert_eq!(maker.executor.command(Command::Stop), CommandReply::Changed);
        maker.sectors.flush();
        old = maker.executor.kill().iter().map(Device::settled).collect();
        maker.executor = Executor::open(old.clone(), [boot; 16]).expect("it was stopped");
    }
    let devices: Vec<Device> = maker.executor.kill().iter().map(Device::settled).collect();
    let used = devices.iter().map(described).collect();
    Base { devices, old, boot: [5; 16], sectors: maker.sectors, used }
}

/// Blocks before the slots that are not zeros.
fn described(device: &Device) -> Vec<usize> {
    let layout = device.superblock().expect("a member").layout();
    let all = 0..layout.slots_offset() as usize / BLOCK_SIZE;
    all.filter(|&block| device.block(block).iter().any(|&byte| byte != 0)).collect()
}
