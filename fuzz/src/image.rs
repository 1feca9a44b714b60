//! Cache devices that somebody or something changed while nobody looked. A pool that the engine
//! made itself is changed as the input says, opened, read as a whole, and closed.
//!
//! It is refused with a text, or it serves; no I/O leaves its device; what is held at once has a
//! bound. Where accidents changed it (noise, zeros, blocks in wrong places) each sector that is
//! read is one that somebody wrote there, or an error. Where somebody put the checksums right it
//! may be anything.

use crate::disks::{Disks, Executor, VOLUME, VOLUME_BYTES};
use crate::formats::{fix_checksum, fix_chunk, fix_record};
use crate::input::{Input, Random};
use crate::model::{Model, SECTOR, SECTORS, Version, fill, first};
use forebay_engine::{Buf, Command, Request, RequestKind};
use forebay_format::BLOCK_SIZE;
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::SUPERBLOCK_SIZE;
use std::sync::LazyLock;

/// Bytes that opening, reading and closing may hold at once, beside the devices.
const HELD_BYTES_MAX: u64 = 24 << 20;

struct Base {
    disks: Disks,
    model: Model,
    /// Blocks of the first device that are not zero: where a change meets something.
    used: Vec<usize>,
}

static KILLED: LazyLock<Base> = LazyLock::new(|| base(1, false));
static CLOSED: LazyLock<Base> = LazyLock::new(|| base(1, true));
static TWINS: LazyLock<Base> = LazyLock::new(|| base(2, false));

/// A pool with some life behind it: dirty and clean blocks, parts of blocks, records that others
/// have replaced.
fn base(devices: u8, closed: bool) -> Base {
    let mut executor = Executor::open(Disks::new(devices, first())).expect("it is new");
    assert!(executor.open_up());
    let (mut model, mut random) = (Model::new(), Random(7));
    for number in 1..=220 {
        let at = random.below(SECTORS - 64);
        let sectors = match number % 4 {
            0 => at..at + 1 + random.below(12),
            _ => at & !7..(at & !7) + 8 * (1 + random.below(4)),
        };
        let (kind, len) = match number % 5 {
            4 => (RequestKind::Read, sectors.len() * SECTOR),
            3 if number % 3 == 0 => (RequestKind::Flush, 0),
            _ => (RequestKind::Write, sectors.len() * SECTOR),
        };
        let mut buf = Buf::zeroed(len);
        if kind == RequestKind::Write {
            model.begin(number, sectors.clone(), Version::Of(number));
            for (sector, into) in sectors.clone().zip(buf.bytes_mut().chunks_exact_mut(SECTOR)) {
                fill(Version::Of(number), sector, into);
            }
        }
        let offset = if len == 0 { 0 } else { (sectors.start * SECTOR) as u64 };
        let request = Request { volume: VOLUME, kind, offset, len: len as u64, fua: false, buf };
        executor.submit(number, request);
        if number == 140 {
            executor.command(1, Command::Drain(VOLUME));
            executor.run(|it| it.commands.len() == 1);
        }
        executor.run(|it| it.replies.len() as u64 == number);
    }
    if closed {
        executor.command(2, Command::Shutdown);
        executor.run(|it| it.commands.len() == 2);
    }
    let disks = executor.kill(|| true);
    let blocks = disks.cache[0].chunks_exact(BLOCK_SIZE).enumerate();
    let used = blocks.filter(|(_, block)| block.iter().any(|&byte| byte != 0));
    let used = used.map(|(at, _)| at).collect();
    Base { disks, model, used }
}

/// Puts right the checksum of what begins with this block of a device, if it has one.
fn fix(device: &mut [u8], block: usize) {
    let at = block * BLOCK_SIZE;
    let mut copies = SUPERBLOCK_OFFSETS.iter().map(|&offset| offset as usize);
    if let Some(copy) = copies.find(|copy| (*copy..copy + SUPERBLOCK_SIZE).contains(&at)) {
        return fix_checksum(&mut device[copy..copy + SUPERBLOCK_SIZE], 12, SUPERBLOCK_SIZE);
    }
    let bytes = &mut device[at..];
    match &bytes[..8] {
        b"FbRecord" => fix_record(&mut bytes[..BLOCK_SIZE]),
        b"FbCheckp" => fix_chunk(bytes),
        _ => {}
    }
}

/// Changes a device as the input says. Whether all of that could be an accident.
fn change(input: &mut Input, base: &Base, device: &mut [u8]) -> bool {
    let forged = input.byte() & 1 != 0;
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        let block = base.used[input.below(base.used.len())];
        let at = block * BLOCK_SIZE;
        let within = match kind & 0x80 {
            0 => input.below(256),
            _ => input.below(BLOCK_SIZE),
        };
        let len = (1 + input.below(64)).min(BLOCK_SIZE - within);
        let piece = at + within..at + within + len;
        match kind & 7 {
            0..=3 if forged => {
                let bytes = input.bytes(len);
                device[piece.start..piece.start + bytes.len()].copy_from_slice(bytes);
                fix(device, block);
            }
            0 | 4 => {
                // The input cannot choose it, and so makes no checksum right.
                let mut noise = Random(u64::from(input.long()));
                device[piece].iter_mut().for_each(|byte| *byte ^= noise.number() as u8);
            }
            1 | 5 => device[at..at + BLOCK_SIZE].fill(0),
            2 => device[piece].fill(0),
            _ => {
                let from = base.used[input.below(base.used.len())] * BLOCK_SIZE;
                device.copy_within(from..from + BLOCK_SIZE, at);
            }
        }
    }
    !forged
}

fn read_all(executor: &mut Executor, accident: Option<&Model>) {
    let view = executor.engine.volumes();
    let Some(bytes) = view.iter().find(|volume| volume.id == VOLUME).map(|volume| volume.bytes)
    else {
        return;
    };
    let bytes = bytes.min(VOLUME_BYTES);
    let sectors = bytes as usize / SECTOR;
    let asked = (0..sectors).step_by(8).map(|at| (at, (sectors - at).min(8)));
    let count = asked.clone().count();
    for (at, len) in asked {
        let (offset, bytes) = ((at * SECTOR) as u64, (len * SECTOR) as u64);
        let (kind, buf) = (RequestKind::Read, Buf::zeroed(len * SECTOR));
        let request = Request { volume: VOLUME, kind, offset, len: bytes, fua: false, buf };
        executor.submit(at as u64, request);
    }
    executor.run(|it| it.replies.len() == count);
    let Some(model) = accident else { return };
    for (id, result, buf) in &executor.replies {
        if result.is_ok() {
            model.check_any(id.0 as usize, buf.bytes());
        }
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let base: &Base = match input.byte() % 3 {
        0 => &KILLED,
        1 => &CLOSED,
        _ => &TWINS,
    };
    let mut disks = base.disks.clone();
    let accident = change(input, base, &mut disks.cache[0]);
    let info = allocation_counter::measure(|| {
        let Some(mut executor) = Executor::open(disks) else { return };
        if !executor.open_up() {
            return;
        }
        read_all(&mut executor, accident.then_some(&base.model));
        executor.command(3, Command::Shutdown);
        executor.run(|it| it.commands.len() == 1);
    });
    assert!(info.bytes_max <= HELD_BYTES_MAX, "{} bytes were held at once", info.bytes_max);
}
