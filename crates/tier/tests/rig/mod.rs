//! A set on disks whose caches lose what is not flushed: one effect is carried out at a time, so
//! that a test can stop anywhere.

use forebay_format::io::{Buf, Completion, IoError, OpId, Time};
use forebay_format::tier::{
    EXTENT_SIZE, HEAD_OFFSETS, JOURNAL_OFFSET, SUPERBLOCK_OFFSETS, Superblock, TierLayout,
};
use forebay_tier::*;
use std::collections::{BTreeMap, VecDeque};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// What a disk holds where nothing was written.
pub const BLANK: u8 = 0xee;
/// And where it was told that nothing is needed.
const TRIMMED: u8 = 0xdd;
/// Where the pages of the map are, of which there is one.
pub const PAGES_OFFSET: u64 = JOURNAL_OFFSET + 64 * BLOCK as u64;
/// What passes between two events.
const STEP_NS: Time = 10_000_000;

/// What a power cut takes of what was not flushed.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    All,
    None,
    /// Writes by chance, from this number on.
    Some(u64),
}

/// What was carried out, on which member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Read(u8, u64),
    Write(u8, u64),
    Flush(u8, bool),
    Discard(u8, u64),
}

/// Blocks by offset.
type Blocks = BTreeMap<u64, Vec<u8>>;

#[derive(Clone, Default)]
struct Disk {
    current: Blocks,
    durable: Blocks,
    pending: Vec<(u64, Vec<u8>)>,
    bytes: u64,
    /// So many flushes fail, and forget what was pending.
    fails: u32,
    /// Nothing is kept of what is written from here on.
    kept: Option<u64>,
}

impl Disk {
    fn read(&self, offset: u64, out: &mut [u8]) {
        assert!(offset + out.len() as u64 <= self.bytes);
        for (at, block) in (offset..).step_by(BLOCK).zip(out.chunks_mut(BLOCK)) {
            match self.current.get(&(at / BLOCK as u64 * BLOCK as u64)) {
                Some(own) => block.copy_from_slice(&own[at as usize % BLOCK..][..block.len()]),
                None => block.fill(BLANK),
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(offset.is_multiple_of(BLOCK as u64) && data.len().is_multiple_of(BLOCK));
        assert!(offset + data.len() as u64 <= self.bytes);
        if self.kept.is_some_and(|kept| offset >= kept) {
            return;
        }
        for (at, block) in (offset..).step_by(BLOCK).zip(data.chunks(BLOCK)) {
            self.current.insert(at, block.to_vec());
            self.pending.push((at, block.to_vec()));
        }
    }

    fn poke(&mut self, offset: u64, block: &[u8]) {
        self.current.insert(offset, block.to_vec());
        self.durable.insert(offset, block.to_vec());
    }

    fn flush(&mut self) -> bool {
        let is_well = self.fails == 0;
        self.fails = self.fails.saturating_sub(1);
        let pending = std::mem::take(&mut self.pending);
        match is_well {
            true => self.durable.extend(pending),
            false => self.current = self.durable.clone(),
        }
        is_well
    }

    /// At once, and for good: the worst that it can do.
    fn discard(&mut self, offset: u64, len: u64) {
        if self.kept.is_some_and(|kept| offset >= kept) {
            return;
        }
        for at in (offset..offset + len).step_by(BLOCK) {
            self.poke(at, &[TRIMMED; BLOCK]);
        }
    }

    fn cut(&mut self, cut: Cut) {
        for (number, (at, block)) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let is_kept = match cut {
                Cut::All => false,
                Cut::None => true,
                Cut::Some(seed) => {
                    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64;
                    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 63 == 0
                }
            };
            if is_kept {
                self.durable.insert(at, block);
            }
        }
        self.current = self.durable.clone();
    }
}

pub struct Rig {
    disks: Vec<Disk>,
    tiers: Option<Tiers>,
    queue: VecDeque<Effect>,
    /// What was carried out since it was opened last.
    pub log: Vec<Op>,
    replies: BTreeMap<IoId, Completion>,
    pub notices: Vec<Notice>,
    /// Writes of superblocks of this member take long.
    pub late: Option<u8>,
    /// And writes of its head.
    pub late_heads: Option<u8>,
    /// Flushes do not end.
    pub holds_flushes: bool,
    /// Extents that may be partly written.
    pub fine_max: usize,
    pub placement: Placement,
    /// How it was opened and what happened since: a copy does it again.
    story: Vec<Told>,
    now: Time,
    next: u64,
    /// Steps that late writes wait.
    patience: u32,
}

/// What a copy has to do again, from the disks as they were.
#[derive(Clone)]
enum Told {
    Opened(Vec<Disk>, u8),
    Steps(usize),
}

impl Clone for Rig {
    fn clone(&self) -> Rig {
        let (disks, fine_max, placement) = (self.disks.clone(), self.fine_max, self.placement);
        let mut rig = Rig { disks, fine_max, placement, ..Rig::empty() };
        for told in &self.story {
            match told {
                Told::Opened(disks, boot) => {
                    rig.disks.clone_from(disks);
                    rig.open(*boot);
                }
                Told::Steps(count) => rig.steps(*count),
            }
        }
        rig
    }
}

impl Rig {
    fn empty() -> Rig {
        Rig {
            disks: Vec::new(),
            tiers: None,
            queue: VecDeque::new(),
            log: Vec::new(),
            replies: BTreeMap::new(),
            notices: Vec::new(),
            late: None,
            late_heads: None,
            holds_flushes: false,
            fine_max: Tuning::default().fine_max,
            placement: Placement::Spill,
            story: Vec::new(),
            now: 0,
            next: 0,
            patience: 30,
        }
    }

    /// A new set of two tiers, of three and of six extents.
    pub fn new() -> Rig {
        Rig::of(6, [4 * MIB, 7 * MIB], 64)
    }

    /// One of which only the map is kept, and none of which may be partly written.
    #[allow(dead_code)]
    pub fn large(extents: u32) -> Rig {
        let journal_blocks = TierLayout::journal_blocks_min(extents);
        let kept = TierLayout { journal_blocks, extents_max: extents }.slots_offset();
        let bytes = kept + u64::from(extents) * MIB;
        let mut rig = Rig::of(extents.into(), [bytes; 2], journal_blocks);
        rig.disks.iter_mut().for_each(|disk| disk.kept = Some(kept));
        rig.fine_max = 0;
        rig
    }

    /// One of so many extents, on members of these sizes.
    fn of(extents: u64, sizes: [u64; 2], journal_blocks: u32) -> Rig {
        let member = |(tier, bytes): (u8, &u64)| NewMember {
            uuid: [tier + 1; 16],
            bytes: *bytes,
            tier,
            is_volatile: false,
        };
        let spec = NewSet {
            name: "starts".into(),
            set: [7; 16],
            bytes: extents * EXTENT_SIZE,
            journal_blocks,
            bytes_max: extents * EXTENT_SIZE,
            overcommit: false,
            members: (0..).zip(&sizes).map(member).collect(),
        };
        let mut disks = Vec::new();
        for (superblock, bytes) in create(&spec).expect("it can be made").iter().zip(sizes) {
            let mut disk = Disk { bytes, ..Disk::default() };
            let mut block = [0; BLOCK];
            superblock.encode(&mut block);
            SUPERBLOCK_OFFSETS.iter().for_each(|&offset| disk.poke(offset, &block));
            disks.push(disk);
        }
        Rig { disks, ..Rig::empty() }
    }

    fn superblock(&self, member: usize) -> Superblock {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let mut block = [0; BLOCK];
            self.disks[member].read(offset, &mut block);
            block
        });
        Superblock::newest_of([&copies[0], &copies[1]]).expect("a copy is valid")
    }

    /// Begins a start in this kernel.
    pub fn open(&mut self, boot: u8) {
        self.story = vec![Told::Opened(self.disks.clone(), boot)];
        let found: Vec<Superblock> = (0..self.disks.len()).map(|it| self.superblock(it)).collect();
        let assembled = assemble(&found).expect("a set");
        assert!(assembled.found.iter().all(Option::is_some), "a member is not believed");
        let member = MemberSettings {
            is_here: true,
            volatile_cache: true,
            discards: true,
            piece_blocks: 4,
            stripe_blocks: 0,
        };
        let settings = Settings {
            members: vec![member; found.len()],
            superblock: assembled.superblock,
            boot: [boot; 16],
            tuning: Tuning {
                placement: self.placement,
                fine_max: self.fine_max,
                ..Tuning::default()
            },
            is_paused: false,
            mutant: None,
        };
        let mut out = Vec::new();
        (self.log, self.notices) = (Vec::new(), Vec::new());
        let mut tiers = Tiers::open(settings, self.now, &mut out);
        tiers.settle(self.now, &mut out);
        self.tiers = Some(tiers);
        self.queue = out.into();
    }

    fn tiers(&mut self) -> &mut Tiers {
        self.tiers.as_mut().expect("it lives")
    }

    /// Carries one effect out. `false` if there is nothing to do.
    fn step(&mut self) -> bool {
        let is_open = self.tiers().is_open();
        self.now += STEP_NS;
        let now = self.now;
        let mut out = Vec::new();
        let is_late = |effect: &Effect| {
            matches!(effect, Effect::Write { member, offset, .. }
                if (Some(member.0) == self.late && *offset < HEAD_OFFSETS[0])
                    || (Some(member.0) == self.late_heads && HEAD_OFFSETS.contains(offset)))
        };
        if self.queue.front().is_some_and(is_late) && self.patience > 0 {
            self.patience -= 1;
            self.queue.rotate_left(1);
            self.tiers().handle(now, Event::Tick, &mut out);
            self.tiers().settle(now, &mut out);
            self.queue.extend(out);
            return true;
        }
        let is_held = |effect: &Effect| matches!(effect, Effect::Flush { .. });
        let first = match self.holds_flushes {
            true => self.queue.iter().position(|effect| !is_held(effect)),
            false => self.queue.front().map(|_| 0),
        };
        match first.and_then(|first| self.queue.remove(first)) {
            Some(effect) => {
                if let Some((op, done)) = self.perform(effect) {
                    self.tiers().handle(now, Event::Done(op, done), &mut out);
                }
            }
            None if !is_open && self.tiers().deadline().is_some() => {
                self.tiers().handle(now, Event::Tick, &mut out);
            }
            None => return false,
        }
        self.tiers().settle(now, &mut out);
        if self.disks[0].kept.is_none() {
            self.tiers().check();
        }
        self.queue.extend(out);
        true
    }

    /// So many, or as many as there are.
    pub fn steps(&mut self, count: usize) {
        self.story.push(Told::Steps(count));
        for _ in 0..count {
            if !self.step() {
                return;
            }
        }
    }

    pub fn run_to_open(&mut self) {
        for _ in 0..10_000 {
            if self.tiers().is_open() {
                return;
            }
            assert!(self.step(), "the start stands still: {:?}", self.notices);
        }
        panic!("the start does not end");
    }

    /// Until superblocks are durable, and something else is written.
    #[allow(dead_code)]
    pub fn run_until_named(&mut self) {
        let is_map = |op: &Op| matches!(op, Op::Write(_, at) if *at >= HEAD_OFFSETS[0]);
        while !self.log.iter().any(is_map) && !self.tiers().is_open() {
            assert!(self.step(), "the start stands still: {:?}", self.notices);
        }
    }

    /// How often it becomes due in a time in which nothing happens.
    #[allow(dead_code)]
    pub fn ticks_in(&mut self, span: Time) -> u32 {
        while self.step() {}
        let (mut count, end) = (0, self.now + span);
        while let Some(due) = self.tiers().deadline().filter(|&due| due < end) {
            self.now = self.now.max(due);
            count += 1;
            let (now, mut out) = (self.now, Vec::new());
            self.tiers().handle(now, Event::Tick, &mut out);
            self.tiers().settle(now, &mut out);
            self.queue.extend(out);
            while self.step() {}
        }
        count
    }

    /// What becomes due without a client, for a time.
    pub fn run_background(&mut self) {
        for _ in 0..100 {
            if !self.step() {
                self.tick();
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<(OpId, Completion)> {
        let ok = |op, buf| Some((op, Completion { result: Ok(()), buf }));
        match effect {
            Effect::Read { op, member, offset, mut buf } => {
                self.log.push(Op::Read(member.0, offset));
                self.disks[usize::from(member.0)].read(offset, buf.bytes_mut());
                ok(op, buf)
            }
            Effect::Write { op, member, offset, buf } => {
                self.log.push(Op::Write(member.0, offset));
                self.disks[usize::from(member.0)].write(offset, buf.bytes());
                ok(op, buf)
            }
            Effect::Flush { op, member } => {
                let is_well = self.disks[usize::from(member.0)].flush();
                self.log.push(Op::Flush(member.0, is_well));
                let result = if is_well { Ok(()) } else { Err(IoError::Io) };
                Some((op, Completion { result, buf: Buf::empty() }))
            }
            Effect::Discard { op, member, offset, len } => {
                self.log.push(Op::Discard(member.0, offset));
                self.disks[usize::from(member.0)].discard(offset, len);
                ok(op, Buf::empty())
            }
            Effect::Reply { id, completion } => {
                self.replies.insert(id, completion);
                None
            }
            Effect::CommandDone { .. } => None,
            Effect::Notice(notice) => {
                self.notices.push(notice);
                None
            }
        }
    }

    /// Ends the process: caches stay.
    pub fn kill(&mut self) {
        self.end();
    }

    pub fn cut(&mut self, cut: Cut) {
        self.end();
        self.disks.iter_mut().for_each(|disk| disk.cut(cut));
    }

    fn end(&mut self) {
        self.tiers = None;
        self.queue.clear();
        self.story.clear();
        self.disks.iter_mut().for_each(|disk| disk.fails = 0);
    }

    /// The next flushes of a member fail, and forget what was to be flushed.
    pub fn fail_flushes(&mut self, member: usize, count: u32) {
        self.disks[member].fails = count;
    }

    /// A block is bad.
    pub fn spoil(&mut self, member: usize, offset: u64) {
        self.disks[member].poke(offset, &[BLANK; BLOCK]);
    }

    fn ask(&mut self, io: Io) -> Completion {
        let id = self.submit(io);
        loop {
            if let Some(done) = self.replies.remove(&id) {
                return done;
            }
            if !self.step() {
                self.tick();
            }
        }
    }

    fn submit(&mut self, io: Io) -> IoId {
        self.next += 1;
        let id = IoId(self.next);
        let (now, mut out) = (self.now, Vec::new());
        self.tiers().handle(now, Event::Submit(id, io), &mut out);
        self.tiers().settle(now, &mut out);
        self.queue.extend(out);
        id
    }

    fn tick(&mut self) {
        self.now += STEP_NS;
        let (now, mut out) = (self.now, Vec::new());
        self.tiers().handle(now, Event::Tick, &mut out);
        self.tiers().settle(now, &mut out);
        self.queue.extend(out);
    }

    /// Asks, and does what there is to do. What it was answered, if it was.
    #[allow(dead_code)]
    fn ask_in_vain(&mut self, io: Io) -> Option<Completion> {
        let id = self.submit(io);
        for _ in 0..3 {
            while self.step() {}
            self.tick();
        }
        self.replies.remove(&id)
    }

    /// Discards these extents at once. Whether it is answered.
    #[allow(dead_code)]
    pub fn discard_all(&mut self, extents: u64) -> bool {
        let io = Io::Discard { offset: 0, len: extents * EXTENT_SIZE };
        self.ask_in_vain(io).is_some()
    }

    /// Writes a block. Whether it is answered.
    #[allow(dead_code)]
    pub fn write_in_vain(&mut self, extent: u64) -> bool {
        let io = Io::Write { offset: extent * EXTENT_SIZE, buf: Buf::zeroed(BLOCK) };
        self.ask_in_vain(io).is_some()
    }

    /// Writes a block of an extent full of this.
    pub fn write(&mut self, extent: u64, block: u64, value: u8) {
        let mut buf = Buf::zeroed(BLOCK);
        buf.bytes_mut().fill(value);
        let offset = extent * EXTENT_SIZE + block * BLOCK as u64;
        self.ask(Io::Write { offset, buf }).result.expect("it is written");
    }

    /// What a block is full of.
    pub fn read(&mut self, extent: u64, block: u64) -> Result<u8, IoError> {
        let offset = extent * EXTENT_SIZE + block * BLOCK as u64;
        let done = self.ask(Io::Read { offset, buf: Buf::zeroed(BLOCK) });
        done.result?;
        let bytes = done.buf.bytes();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        Ok(bytes[0])
    }

    pub fn discard(&mut self, extent: u64) {
        let (offset, len) = (extent * EXTENT_SIZE, EXTENT_SIZE);
        self.ask(Io::Discard { offset, len }).result.expect("a hint");
    }

    pub fn flush(&mut self) -> Result<(), IoError> {
        self.ask(Io::Flush).result
    }
}
