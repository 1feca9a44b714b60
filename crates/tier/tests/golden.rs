//! The golden images of a set (`crates/format/tests/golden`, which `cargo xtask golden` writes),
//! opened by the machine.

use forebay_format::io::{Buf, Completion, IoError, OpId, Time};
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_tier::*;
use std::path::Path;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// The kernel in which the set was last opened.
const BOOT: [u8; 16] = [0xb0; 16];

fn device(name: &str, bytes: u64) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/golden");
    let image = std::fs::read(folder.join(name)).unwrap();
    let mut device = vec![0; bytes as usize];
    for block in image.chunks_exact(8 + BLOCK) {
        let offset = u64::from_le_bytes(block[..8].try_into().unwrap()) as usize;
        device[offset..][..BLOCK].copy_from_slice(&block[8..]);
    }
    device
}

fn golden() -> Vec<Option<Vec<u8>>> {
    vec![Some(device("tier-fast.bin", 4 * MIB)), None, Some(device("tier-slow.bin", 5 * MIB))]
}

/// The content that `cargo xtask golden` writes.
fn payload(seed: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 16) as u8 ^ (at as u8).wrapping_mul(seed)).collect()
}

struct Set {
    tiers: Tiers,
    devices: Vec<Option<Vec<u8>>>,
    replies: Vec<Completion>,
    notices: Vec<Notice>,
    now: Time,
}

impl Set {
    fn open(devices: Vec<Option<Vec<u8>>>, boot: [u8; 16]) -> Set {
        let superblock = |device: &Vec<u8>| {
            let copies = SUPERBLOCK_OFFSETS.map(|offset| &device[offset as usize..][..BLOCK]);
            Superblock::newest_of(copies).expect("a member")
        };
        let found: Vec<Superblock> = devices.iter().flatten().map(superblock).collect();
        let assembled = assemble(&found).expect("a set");
        let member = |found: &Option<usize>| MemberSettings {
            is_here: found.is_some(),
            volatile_cache: true,
            discards: false,
            piece_blocks: 16,
            stripe_blocks: 0,
        };
        let settings = Settings {
            members: assembled.found.iter().map(member).collect(),
            superblock: assembled.superblock,
            boot,
            tuning: Tuning { placement: Placement::Spill, ..Tuning::default() },
            is_paused: false,
            mutant: None,
        };
        let mut out = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut out);
        let mut set = Set { tiers, devices, replies: vec![], notices: vec![], now: 0 };
        set.run(out);
        set
    }

    /// Carries out what is wanted, until nothing is wanted or due any more.
    fn run(&mut self, mut effects: Vec<Effect>) {
        for _ in 0..10_000 {
            let mut next = Vec::new();
            for effect in effects.drain(..) {
                if let Some((op, buf)) = self.perform(effect) {
                    let done = Completion { result: Ok(()), buf };
                    self.tiers.handle(self.now, Event::Done(op, done), &mut next);
                }
            }
            self.tiers.settle(self.now, &mut next);
            self.tiers.check();
            if next.is_empty() {
                let due = self.tiers.deadline().filter(|_| !self.tiers.is_open());
                let Some(due) = due else { return };
                self.now = self.now.max(due);
                self.tiers.handle(self.now, Event::Tick, &mut next);
            }
            effects = next;
        }
        panic!("it never rests");
    }

    fn perform(&mut self, effect: Effect) -> Option<(OpId, Buf)> {
        let of = |devices: &mut Vec<Option<Vec<u8>>>, member: MemberId| {
            devices[usize::from(member.0)].take().expect("only members that are here get I/O")
        };
        match effect {
            Effect::Read { op, member, offset, mut buf } => {
                let device = of(&mut self.devices, member);
                let len = buf.len();
                buf.bytes_mut().copy_from_slice(&device[offset as usize..][..len]);
                self.devices[usize::from(member.0)] = Some(device);
                return Some((op, buf));
            }
            Effect::Write { op, member, offset, buf } => {
                let mut device = of(&mut self.devices, member);
                device[offset as usize..][..buf.len()].copy_from_slice(buf.bytes());
                self.devices[usize::from(member.0)] = Some(device);
                return Some((op, buf));
            }
            Effect::Flush { op, .. } | Effect::Discard { op, .. } => {
                return Some((op, Buf::empty()));
            }
            Effect::Reply { completion, .. } => self.replies.push(completion),
            Effect::CommandDone { .. } => {}
            Effect::Notice(notice) => self.notices.push(notice),
        }
        None
    }

    /// Reads a block; of the last extent, which is short, a sector.
    fn block(&mut self, extent: u64, block: u64) -> Result<Vec<u8>, IoError> {
        let offset = extent * MIB + block * BLOCK as u64;
        let buf = Buf::zeroed(if extent == 4 { 512 } else { BLOCK });
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Submit(IoId(1), Io::Read { offset, buf }), &mut out);
        self.run(out);
        let done = self.replies.pop().expect("it is answered");
        done.result.map(|()| done.buf.bytes().to_vec())
    }

    /// What was written and confirmed.
    fn has_what_is_confirmed(&mut self) {
        let zeros = vec![0; BLOCK];
        assert_eq!(self.block(0, 0).unwrap(), payload(3));
        assert_eq!(self.block(0, 255).unwrap(), payload(5));
        assert_eq!(self.block(0, 199).unwrap(), zeros);
        assert_eq!(self.block(0, 200), Err(IoError::Io), "it is lost");
        assert_eq!(self.block(1, 39).unwrap(), payload(11));
        assert_eq!(self.block(1, 40).unwrap(), zeros, "nobody wrote it");
        assert_eq!(self.block(2, 15).unwrap(), payload(7));
        assert_eq!(self.block(2, 16).unwrap(), zeros, "nobody wrote it");
        assert_eq!(self.block(3, 100).unwrap(), payload(9), "it has moved");
        let places: Vec<_> = (0..4).map(|extent| self.tiers.place_of(extent)).collect();
        let at = |member, slot| Some((MemberId(member), slot));
        assert_eq!(places, [at(0, 1), at(2, 0), at(0, 0), at(0, 2)]);
    }
}

#[test]
fn after_a_killed_process_everything_is_there() {
    let mut set = Set::open(golden(), BOOT);
    assert_eq!(set.notices, [Notice::Opened { records: 5, extents: 5, cut: false, doubt: false }]);
    set.has_what_is_confirmed();
    assert_eq!(set.block(4, 0).unwrap(), payload(13)[..512]);
    assert_eq!(set.tiers.place_of(4), Some((MemberId(2), 1)));
    // And again in the life after that one.
    let mut set = Set::open(set.devices, [1; 16]);
    assert!(set.tiers.is_open(), "{:?}", set.notices);
    set.has_what_is_confirmed();
    assert_eq!(set.block(4, 0).unwrap(), payload(13)[..512]);
}

#[test]
fn after_a_power_loss_what_is_confirmed_is_there() {
    let mut set = Set::open(golden(), [1; 16]);
    assert_eq!(set.notices, [Notice::Opened { records: 3, extents: 4, cut: true, doubt: false }]);
    set.has_what_is_confirmed();
    assert_eq!(set.block(4, 0).unwrap(), vec![0; 512]);
    assert_eq!(set.tiers.place_of(4), None);
}

#[test]
fn either_holder_is_enough_for_the_map() {
    for missing in [0_usize, 2] {
        let mut devices = golden();
        devices[missing] = None;
        let mut set = Set::open(devices, BOOT);
        assert!(set.tiers.is_open(), "{:?}", set.notices);
        let lives = [0, 2, 0, 0].map(|member| member != missing);
        for (extent, is_there) in (0..4).zip(lives) {
            assert_eq!(set.block(extent, 1).is_ok(), is_there, "extent {extent}");
        }
    }
}

#[test]
fn a_torn_page_is_taken_from_its_double() {
    let mut devices = golden();
    for device in devices.iter_mut().flatten() {
        device[0xc_0000 + 512..0xc_1000].fill(0xff);
    }
    let mut set = Set::open(devices, BOOT);
    assert!(set.tiers.is_open(), "{:?}", set.notices);
    set.has_what_is_confirmed();
}

#[test]
fn a_new_set_is_empty() {
    let devices =
        vec![Some(device("tier-new-0.bin", 2 * MIB)), Some(device("tier-new-1.bin", 3 * MIB))];
    let mut set = Set::open(devices, BOOT);
    assert_eq!(set.notices, [Notice::Opened { records: 0, extents: 0, cut: false, doubt: false }]);
    for extent in 0..3 {
        assert_eq!(set.block(extent, 7).unwrap(), vec![0; BLOCK]);
    }
}
