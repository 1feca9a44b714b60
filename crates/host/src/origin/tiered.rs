//! A tiered origin: devices, and the machine of `forebay-tier` that says what of it lives on which.
//!
//! It is opened here, on the thread of whoever asks, with plain system calls; after that the
//! executor of the volume's shard carries out what the machine wants (`executor/tiers.rs`).

use super::spindle::Spindle;
use super::{OriginError, OriginIo};
use crate::device::{Access, Device, DeviceError};
use forebay_engine::{Buf, Completion, IoError, OpId, Time};
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_sys as sys;
use forebay_tier::{
    CreateError, Effect, Event, Io, IoId, MemberId, MemberSettings, NewMember, NewSet, Notice,
    OpenError, Settings, Tiers, Tuning, assemble, create,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Blocks that are copied at a time: what turns is read and written in long pieces.
const PIECE_BLOCKS_ROTATIONAL: u32 = 64;
/// On what seeks at once short pieces keep others waiting less.
const PIECE_BLOCKS: u32 = 4;
/// Blocks of the journal.
const JOURNAL_BLOCKS: u32 = 2048;
/// A map has room for so many times the bytes that a set begins with.
const GROWTH: u64 = 4;

/// Why a tiered origin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TieredError {
    /// A device cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The device.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// None of the devices belongs to the set that was asked for.
    #[error("none of these devices belongs to a tiered origin")]
    NoMembers,
    /// It cannot be made as it was asked for.
    #[error("{0}")]
    Create(String),
    /// The map cannot be read or written.
    #[error("the tiers cannot be opened: {0}")]
    Open(OpenError),
}

/// A device of a tier.
#[derive(Debug)]
pub enum Member {
    /// A file, a block device, or a file in memory.
    File(Arc<Device>),
    /// A modelled hard disk.
    Spindle(Box<Spindle>),
}

impl Member {
    /// Opens what a URI names, for us alone: a path, `ram:40G`, `spindle:PATH?preset=NAME`.
    ///
    /// # Errors
    /// As [`super::Origin::open`].
    pub fn open(uri: &str) -> Result<Member, OriginError> {
        if let Some(("ram", size)) = uri.split_once(':') {
            let bytes = super::ram::Ram::open(size)?.bytes();
            let memory = sys::file::memory_file(bytes)
                .map_err(|e| DeviceError::system(Path::new("memory"), "reserve", e))?;
            let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
            return Ok(Member::File(Arc::new(Device::open(&path, Access::Exclusive)?)));
        }
        match super::Origin::open(uri)? {
            super::Origin::File(device) => Ok(Member::File(device)),
            super::Origin::Spindle(spindle, _) => Ok(Member::Spindle(spindle)),
            _ => unreachable!("a member is a file or a modelled disk"),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Member::File(device) => device.info().bytes,
            Member::Spindle(spindle) => spindle.bytes(),
        }
    }

    /// Whether its content ends with the machine.
    pub fn is_volatile(&self) -> bool {
        matches!(self, Member::File(device) if device.info().in_memory)
    }

    fn path(&self) -> PathBuf {
        match self {
            Member::File(device) => device.path().to_owned(),
            Member::Spindle(_) => PathBuf::from("a modelled disk"),
        }
    }

    fn file(&self, offset: u64, len: u64) -> &File {
        match self {
            Member::File(device) => device.file_for(offset, len),
            Member::Spindle(spindle) => spindle.file(),
        }
    }

    fn settings(&self) -> MemberSettings {
        let rotational = match self {
            Member::File(device) => device.info().rotational,
            Member::Spindle(_) => true,
        };
        MemberSettings {
            is_here: true,
            volatile_cache: match self {
                Member::File(device) => device.needs_flush(),
                Member::Spindle(spindle) => spindle.volatile_cache(),
            },
            discards: matches!(self, Member::File(device) if device.info().discard),
            piece_blocks: if rotational { PIECE_BLOCKS_ROTATIONAL } else { PIECE_BLOCKS },
        }
    }

    /// The newest of its superblocks, if it has one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn superblock(&self) -> Result<Option<Superblock>, TieredError> {
        let mut copies = SUPERBLOCK_OFFSETS.map(|offset| (offset, Buf::zeroed(BLOCK_SIZE)));
        for (offset, buf) in &mut copies {
            let file = self.file(*offset, BLOCK_SIZE as u64);
            let read = file.read_exact_at(buf.bytes_mut(), *offset);
            read.map_err(|source| TieredError::Read { path: self.path(), source })?;
        }
        let [one, other] = &copies;
        Ok(Superblock::newest_of([one.1.bytes(), other.1.bytes()]).ok())
    }

    fn perform(&self, effect: Effect) -> Option<(OpId, Completion)> {
        let (op, result, buf) = match effect {
            Effect::Read { op, offset, mut buf, .. } => {
                let file = self.file(offset, buf.len() as u64);
                (op, file.read_exact_at(buf.bytes_mut(), offset), buf)
            }
            Effect::Write { op, offset, buf, .. } => {
                let file = self.file(offset, buf.len() as u64);
                (op, file.write_all_at(buf.bytes(), offset), buf)
            }
            Effect::Flush { op, .. } => (op, self.file(0, 0).sync_data(), Buf::empty()),
            Effect::Discard { op, .. } => (op, Ok(()), Buf::empty()),
            _ => return None,
        };
        let result = result.map_err(|_| IoError::Io);
        Some((op, Completion { result, buf }))
    }
}

/// A tier of a new set: its devices.
#[derive(Debug)]
pub struct NewTier {
    /// Its devices, with the share of each that may be used, in percent.
    pub members: Vec<(Member, u8)>,
}

/// What a new set is to be.
#[derive(Debug, Clone)]
pub struct NewTiered {
    /// Name of the volume.
    pub name: String,
    /// Bytes of the volume; all that the members have room for, if `None`.
    pub bytes: Option<u64>,
    /// It may be larger than its members together.
    pub overcommit: bool,
}

/// An open tiered origin.
#[derive(Debug)]
pub struct Tiered {
    tiers: Tiers,
    members: Vec<Option<Member>>,
    bytes: u64,
    set: [u8; 16],
    is_ephemeral: bool,
    /// What the start told.
    notices: Vec<Notice>,
    /// What the machine wanted as it was told something.
    effects: Vec<Effect>,
}

impl Tiered {
    /// Makes a set of these tiers, the fastest first, and opens it.
    ///
    /// # Errors
    /// Says what is wrong with the tiers or the size.
    pub fn create(
        spec: &NewTiered,
        tiers: Vec<NewTier>,
        tuning: Tuning,
    ) -> Result<Tiered, TieredError> {
        let mut members = Vec::new();
        let mut news = Vec::new();
        for (tier, of) in (0..).zip(tiers) {
            for (member, share) in of.members {
                let bytes = member.bytes() / 100 * u64::from(share.clamp(1, 100));
                let is_volatile = member.is_volatile();
                news.push(NewMember { uuid: sys::random(), bytes, tier, is_volatile });
                members.push(member);
            }
        }
        let all: u64 = news.iter().map(|it| it.bytes).sum();
        let bytes_max = spec.bytes.unwrap_or(all).max(all).saturating_mul(GROWTH);
        let mut set = NewSet {
            name: spec.name.clone(),
            set: sys::random(),
            bytes: spec.bytes.unwrap_or(1 << 20),
            journal_blocks: JOURNAL_BLOCKS,
            bytes_max,
            overcommit: spec.overcommit,
            members: news,
        };
        let mut superblocks = create(&set).map_err(|error| refused(&error, &members))?;
        if spec.bytes.is_none() {
            let slots: u64 =
                superblocks[0].members().iter().map(|it| u64::from(it.slots.get())).sum();
            set.bytes = slots << 20;
            superblocks = create(&set).map_err(|error| refused(&error, &members))?;
        }
        for (member, superblock) in members.iter().zip(&superblocks) {
            write_superblock(member, superblock)
                .map_err(|source| TieredError::Read { path: member.path(), source })?;
        }
        Tiered::open(members, tuning)
    }

    /// Opens the set that these devices belong to. Devices that are missing keep only their extents
    /// from being served.
    ///
    /// # Errors
    /// Says why the map cannot be used.
    pub fn open(members: Vec<Member>, tuning: Tuning) -> Result<Tiered, TieredError> {
        let mut found = Vec::new();
        let mut of = Vec::new();
        for (number, member) in members.iter().enumerate() {
            if let Some(superblock) = member.superblock()? {
                found.push(superblock);
                of.push(number);
            }
        }
        let assembled = assemble(&found).ok_or(TieredError::NoMembers)?;
        let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
        let places = assembled.found.iter();
        let ordered: Vec<Option<Member>> =
            places.map(|it| it.and_then(|found| members[of[found]].take())).collect();
        let absent = MemberSettings {
            is_here: false,
            volatile_cache: true,
            discards: false,
            piece_blocks: PIECE_BLOCKS,
        };
        let settings = |member: &Option<Member>| member.as_ref().map_or(absent, Member::settings);
        let (bytes, set) = (assembled.superblock.block.bytes.get(), assembled.superblock.block.set);
        let is_ephemeral = assembled.superblock.is_ephemeral();
        let settings = Settings {
            members: ordered.iter().map(settings).collect(),
            superblock: assembled.superblock,
            boot: boot(),
            tuning,
            mutant: None,
        };
        let mut effects = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut effects);
        let (notices, left) = (Vec::new(), Vec::new());
        let (members, effects_left) = (ordered, left);
        let mut tiered =
            Tiered { tiers, members, bytes, set, is_ephemeral, notices, effects: effects_left };
        tiered.run_to_open(effects)?;
        Ok(tiered)
    }

    /// Carries out what a start wants, one thing after the other.
    fn run_to_open(&mut self, mut effects: Vec<Effect>) -> Result<(), TieredError> {
        self.tiers.settle(0, &mut effects);
        while !self.tiers.is_open() {
            let mut next = Vec::new();
            for effect in effects.drain(..) {
                match effect {
                    Effect::Notice(Notice::OpenFailed(error)) => {
                        return Err(TieredError::Open(error));
                    }
                    Effect::Notice(notice) => self.notices.push(notice),
                    effect => {
                        let member = member_of(&effect).expect("an I/O on a member");
                        let member = self.members[usize::from(member.0)].as_ref();
                        let member = member.expect("only members that are there get I/O");
                        let (op, done) = member.perform(effect).expect("an I/O");
                        self.tiers.handle(0, Event::Done(op, done), &mut next);
                    }
                }
            }
            self.tiers.settle(0, &mut next);
            if next.is_empty() && !self.tiers.is_open() {
                self.tiers.handle(0, Event::Tick, &mut next);
                self.tiers.settle(0, &mut next);
            }
            effects = next;
        }
        for effect in effects {
            match effect {
                Effect::Notice(notice) => self.notices.push(notice),
                other => unreachable!("nothing is under way when a set has opened: {other:?}"),
            }
        }
        Ok(())
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Identity of the set.
    pub fn set(&self) -> [u8; 16] {
        self.set
    }

    /// Whether the content ends with the machine.
    pub fn is_ephemeral(&self) -> bool {
        self.is_ephemeral
    }

    /// The machine, to look at.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Its devices that are files.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (MemberId, &Arc<Device>)> {
        self.members.iter().enumerate().filter_map(|(number, member)| match member {
            Some(Member::File(device)) => Some((MemberId(number as u8), device)),
            _ => None,
        })
    }

    /// A member that is a file.
    pub(crate) fn device(&self, member: MemberId) -> Option<Arc<Device>> {
        match &self.members[usize::from(member.0)] {
            Some(Member::File(device)) => Some(Arc::clone(device)),
            _ => None,
        }
    }

    /// Takes an I/O on the origin.
    pub(crate) fn submit(&mut self, op: OpId, io: OriginIo, now: Time) {
        let io = match io {
            OriginIo::Read { offset, buf } => Io::Read { offset, buf },
            OriginIo::Write { offset, buf } => Io::Write { offset, buf },
            OriginIo::Flush => Io::Flush,
            OriginIo::Zero { offset, len, unmap } => Io::Zero { offset, len, unmap },
            OriginIo::Discard { offset, len } => Io::Discard { offset, len },
        };
        self.tell(now, Event::Submit(IoId(op.0), io));
    }

    /// Tells the machine something. What it wants comes with [`Tiered::settle`].
    pub(crate) fn tell(&mut self, now: Time, event: Event) {
        self.tiers.handle(now, event, &mut self.effects);
    }

    /// What the machine wants now.
    pub(crate) fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        out.append(&mut self.effects);
        self.tiers.settle(now, out);
    }

    /// Gives a modelled disk its I/O.
    pub(crate) fn submit_below(&mut self, op: OpId, member: MemberId, io: OriginIo, now: Time) {
        match &mut self.members[usize::from(member.0)] {
            Some(Member::Spindle(spindle)) => spindle.submit(op, io, now),
            _ => unreachable!("files have lanes"),
        }
    }

    /// Takes in what modelled disks have ended, and that time has passed. Whether there was any of
    /// it.
    pub(crate) fn poll(&mut self, now: Time) -> bool {
        let mut ended = Vec::new();
        for member in self.members.iter_mut().flatten() {
            if let Member::Spindle(spindle) = member {
                spindle.poll(now, &mut ended);
            }
        }
        let is_due = self.tiers.deadline().is_some_and(|due| due <= now);
        let is_stirred = !ended.is_empty() || is_due;
        for (op, completion) in ended {
            self.tell(now, Event::Done(op, completion));
        }
        if is_due {
            self.tell(now, Event::Tick);
        }
        is_stirred
    }

    /// When [`Tiered::poll`] has something.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let spindles = self.members.iter().flatten().filter_map(|member| match member {
            Member::Spindle(spindle) => spindle.next_due(),
            Member::File(_) => None,
        });
        spindles.chain(self.tiers.deadline()).min()
    }
}

/// Where an effect goes.
pub(crate) fn member_of(effect: &Effect) -> Option<MemberId> {
    match effect {
        Effect::Read { member, .. }
        | Effect::Write { member, .. }
        | Effect::Flush { member, .. }
        | Effect::Discard { member, .. } => Some(*member),
        _ => None,
    }
}

fn write_superblock(member: &Member, superblock: &Superblock) -> std::io::Result<()> {
    let mut buf = Buf::zeroed(BLOCK_SIZE);
    superblock.encode(buf.bytes_mut());
    for offset in SUPERBLOCK_OFFSETS {
        member.file(offset, BLOCK_SIZE as u64).write_all_at(buf.bytes(), offset)?;
    }
    member.file(0, 0).sync_data()
}

fn refused(error: &CreateError, members: &[Member]) -> TieredError {
    TieredError::Create(match *error {
        CreateError::Members => "1 to 63 devices on 1 to 16 tiers are needed".to_owned(),
        CreateError::TooSmall { member, needed } => format!(
            "{} is too small for a tier of this volume: {needed} bytes are needed at least",
            members[member].path().display()
        ),
        CreateError::NoRoom(bytes) => {
            format!("the tiers hold {bytes} bytes together, which is less than the volume has")
        }
        CreateError::Size => "the size must be a multiple of 512 bytes".to_owned(),
    })
}

/// Identity of the running kernel.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    crate::fingerprint::hash(&[text.trim().as_bytes()])
}

#[cfg(test)]
mod tests;
