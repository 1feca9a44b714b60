//! A tiered origin: devices, and the machine of `forebay-tier` that says what of it lives on which.
//!
//! It is opened here, on the thread of whoever asks, with plain system calls; after that the
//! executor of the volume's shard carries out what the machine wants (`executor/tiers.rs`).

mod member;
mod planned;
mod unused;

use super::OriginIo;
use crate::device::Device;
use forebay_engine::{OpId, Time};
use forebay_format::tier::{EXTENT_SIZE, Superblock, TierLayout};
pub use forebay_tier::Tuning;
use forebay_tier::{
    Addition, At, Command, CommandId, CommandReply, Effect, Event, Io, IoId, MemberId, MemberState,
    Notice, OpenError, Refusal, Settings, Tiers, View, assemble,
};
use member::ABSENT;
pub use member::Member;
pub use planned::{NewTier, NewTiered, Planned, share_of};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
pub use unused::Unused;

/// How old the machine's time may be while somebody waits for an I/O.
const SHOWN_NS: Time = 1_000_000_000;

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
    /// A device cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The device.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// None of the devices belongs to the set that was asked for.
    #[error("none of these devices belongs to a tiered origin")]
    NoMembers,
    /// A device is smaller than what lives on it.
    #[error(
        "{path} has {bytes} bytes, and {needed} of it belong to the tiers: it was cut, or is only \
         a part of the device; give it back its size, or leave it out, and what lives on it fails"
    )]
    Cut {
        /// The device.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// Bytes up to the end of its last slot.
        needed: u64,
    },
    /// It cannot be made as it was asked for.
    #[error("{0}")]
    Create(String),
    /// The map cannot be read or written.
    #[error("the tiers cannot be opened: {0}")]
    Open(OpenError),
}

/// A device that is to join a set.
#[derive(Debug, Clone, Copy)]
pub struct NewDevice {
    /// Its identity, random.
    pub uuid: [u8; 16],
    /// How much of it is used, in percent.
    pub use_percent: u8,
    /// Its tier.
    pub at: At,
}

/// A tiered origin at one moment.
#[derive(Debug, Clone)]
pub struct TiersSnapshot {
    /// What the machine shows.
    pub view: View,
    /// Identities of the members, by number.
    pub uuids: Vec<[u8; 16]>,
    /// Bytes that members had when it was seen that they were cut in use, by number.
    pub cut: Vec<Option<u64>>,
    /// Writes that were refused because no member had room.
    pub no_room_writes: u64,
    /// Where on a member its first slot is, in bytes.
    pub slots_offset: u64,
    /// Bytes that the map has room for.
    pub bytes_max: u64,
    /// The time of the view, in seconds of the clock by which it tells times.
    pub now_s: u32,
    /// Whether the content ends with the machine.
    pub is_ephemeral: bool,
}

/// An open tiered origin.
#[derive(Debug)]
pub struct Tiered {
    tiers: Tiers,
    members: Vec<Option<Member>>,
    bytes: u64,
    set: [u8; 16],
    is_ephemeral: bool,
    /// Identities of the members, by number.
    uuids: Vec<[u8; 16]>,
    /// Which of the devices that it was opened with each member is, by number.
    given: Vec<Option<usize>>,
    layout: TierLayout,
    /// A change of the size that was asked for.
    resizing: Option<(CommandId, u64)>,
    /// Writes that were refused because no member had room.
    no_room_writes: u64,
    /// When the machine was told anything last: it knows no other time.
    told_at: Time,
    /// What the start told.
    notices: Vec<Notice>,
    /// What the machine wanted as it was told something.
    effects: Vec<Effect>,
    /// I/O of the engine that the machine has not answered, with how long its buffer is.
    unanswered: BTreeMap<OpId, usize>,
}

impl Tiered {
    /// Opens the set that these devices belong to; with `of`, those of them that belong to that
    /// one. Devices that are missing keep only their extents from being served. Nothing moves until
    /// [`Tiered::move_on`]: pins come first.
    ///
    /// # Errors
    /// Says why the map cannot be used.
    pub fn open(
        members: Vec<Member>,
        of: Option<[u8; 16]>,
        tuning: Tuning,
    ) -> Result<Tiered, TieredError> {
        let mut found = Vec::new();
        let mut numbers = Vec::new();
        let is_of = |it: &Superblock| of.is_none_or(|set| it.block.set == set);
        for (number, member) in members.iter().enumerate() {
            if let Some(superblock) = member.superblock()?.filter(is_of) {
                found.push(superblock);
                numbers.push(number);
            }
        }
        let assembled = assemble(&found).ok_or(TieredError::NoMembers)?;
        let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
        let places = assembled.found.iter();
        let given: Vec<Option<usize>> = places.map(|it| it.map(|found| numbers[found])).collect();
        let take = |it: &Option<usize>| it.and_then(|index| members[index].take());
        let ordered: Vec<Option<Member>> = given.iter().map(take).collect();
        for (member, entry) in ordered.iter().zip(assembled.superblock.members()) {
            let needed = assembled.superblock.layout().slot_offset(entry.slots.get());
            if let Some(member) = member
                && member.bytes() < needed
            {
                let (path, bytes) = (member.path(), member.bytes());
                return Err(TieredError::Cut { path, bytes, needed });
            }
        }
        let settings = |member: &Option<Member>| member.as_ref().map_or(ABSENT, Member::settings);
        let (bytes, set) = (assembled.superblock.block.bytes.get(), assembled.superblock.block.set);
        let is_ephemeral = assembled.superblock.is_ephemeral();
        let uuids = assembled.superblock.members().iter().map(|it| it.uuid).collect();
        let layout = assembled.superblock.layout();
        let settings = Settings {
            members: ordered.iter().map(settings).collect(),
            superblock: assembled.superblock,
            boot: boot(),
            tuning,
            is_paused: true,
            mutant: None,
        };
        let mut effects = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut effects);
        let mut tiered = Tiered {
            tiers,
            members: ordered,
            bytes,
            set,
            is_ephemeral,
            uuids,
            given,
            layout,
            resizing: None,
            no_room_writes: 0,
            told_at: 0,
            notices: Vec::new(),
            effects: Vec::new(),
            unanswered: BTreeMap::new(),
        };
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
                // What a set that has opened wants: devices are told what is free.
                other => self.effects.push(other),
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

    /// How old its newest superblock is ([`Superblock::age`]).
    pub fn age(&self) -> (u64, u64, u64) {
        self.tiers.age()
    }

    /// The members that are here: identity, and which of the devices it was opened with it is.
    pub fn given(&self) -> impl Iterator<Item = ([u8; 16], usize)> {
        let all = self.uuids.iter().zip(&self.given);
        all.filter_map(|(uuid, given)| Some((*uuid, (*given)?)))
    }

    /// Whether the content ends with the machine.
    pub fn is_ephemeral(&self) -> bool {
        self.is_ephemeral
    }

    /// The machine, to look at.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// What there is to show of it.
    pub fn snapshot(&self, now: Time) -> TiersSnapshot {
        let mut view = self.tiers.view();
        // An I/O goes on taking time while nothing happens.
        for it in view.members.iter_mut().filter(|it| it.waits_ns > 0) {
            it.waits_ns += now.saturating_sub(self.told_at);
        }
        TiersSnapshot {
            view,
            uuids: self.uuids.clone(),
            cut: self.members.iter().map(|it| it.as_ref().and_then(Member::cut_to)).collect(),
            no_room_writes: self.no_room_writes,
            is_ephemeral: self.is_ephemeral,
            slots_offset: self.layout.slots_offset(),
            bytes_max: u64::from(self.layout.extents_max) * EXTENT_SIZE,
            now_s: u32::try_from(now / 1_000_000_000).unwrap_or(u32::MAX),
        }
    }

    /// The files and block devices among these members that are there.
    pub fn devices_of(&self, members: &[MemberId]) -> Vec<Arc<Device>> {
        let own = self.devices().filter(|(member, _)| members.contains(member));
        own.map(|it| Arc::clone(it.1)).collect()
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

    /// Takes a device in that is about to become a member, and asks the machine for that. Its
    /// number is told; nobody but the machine decides whether it stays.
    ///
    /// # Errors
    /// No number is free now.
    pub(crate) fn add_member(
        &mut self,
        now: Time,
        id: CommandId,
        (member, new): (Member, &NewDevice),
    ) -> Result<MemberId, Refusal> {
        let number = self.tiers.next_member().ok_or(Refusal::Busy)?;
        let index = usize::from(number.0);
        let addition = Addition {
            member: number,
            uuid: new.uuid,
            bytes: share_of(member.bytes(), new.use_percent),
            at: new.at,
            is_volatile: member.is_volatile(),
            settings: member.settings(),
        };
        self.members.resize_with(self.members.len().max(index + 1), || None);
        self.uuids.resize(self.uuids.len().max(index + 1), [0; 16]);
        (self.members[index], self.uuids[index]) = (Some(member), new.uuid);
        self.tell(now, Event::Command(id, Command::Add(addition)));
        Ok(number)
    }

    /// Lets go of the devices that are no members any more. Their numbers are told.
    pub(crate) fn drop_members(&mut self) -> Vec<MemberId> {
        let view = self.tiers.view();
        let is_member = |number: usize| {
            let own = view.members.get(number);
            own.is_some_and(|it| it.state != MemberState::None)
        };
        let numbers = 0..self.members.len();
        let gone = numbers.filter(|&it| self.members[it].is_some() && !is_member(it));
        let gone: Vec<usize> = gone.collect();
        gone.iter().for_each(|&number| self.members[number] = None);
        gone.into_iter().map(|number| MemberId(number as u8)).collect()
    }

    /// Pins extents to a tier, as they were before it was opened.
    pub fn pin(&mut self, first: u32, count: u32, tier: u8) {
        let pin = Command::Pin { first, count, tier: Some(tier) };
        // Nobody waits for the answer.
        self.tell(0, Event::Command(CommandId(0), pin));
    }

    /// Moves begin.
    pub fn move_on(&mut self) {
        // Nobody waits for the answer.
        self.tell(0, Event::Command(CommandId(0), Command::Resume));
    }

    /// A write was refused because no member had room.
    pub(crate) fn had_no_room(&mut self) {
        self.no_room_writes += 1;
    }

    /// Takes an I/O on the origin.
    pub(crate) fn submit(&mut self, op: OpId, io: OriginIo, now: Time) {
        let len = match &io {
            OriginIo::Read { buf, .. } | OriginIo::Write { buf, .. } => buf.len(),
            _ => 0,
        };
        let io = match io {
            OriginIo::Read { offset, buf } => Io::Read { offset, buf },
            OriginIo::Write { offset, buf } => Io::Write { offset, buf },
            OriginIo::Flush => Io::Flush,
            OriginIo::Zero { offset, len, unmap } => Io::Zero { offset, len, unmap },
            OriginIo::Discard { offset, len } => Io::Discard { offset, len },
        };
        self.unanswered.insert(op, len);
        self.tell(now, Event::Submit(IoId(op.0), io));
    }

    /// The machine has answered an I/O.
    pub(crate) fn answered(&mut self, op: OpId) {
        self.unanswered.remove(&op);
    }

    /// Whether it has answered all.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// What it will not answer any more, with how long its buffer is: that is with a device.
    pub(crate) fn take_unanswered(&mut self) -> BTreeMap<OpId, usize> {
        std::mem::take(&mut self.unanswered)
    }

    /// Tells the machine something. What it wants comes with [`Tiered::settle`].
    pub(crate) fn tell(&mut self, now: Time, event: Event) {
        if let Event::Command(id, Command::Resize(bytes)) = &event {
            self.resizing = Some((*id, *bytes));
        }
        self.told_at = now;
        self.tiers.handle(now, event, &mut self.effects);
    }

    /// What the machine wants now.
    pub(crate) fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        let before = out.len();
        out.append(&mut self.effects);
        self.told_at = now;
        self.tiers.settle(now, out);
        let Some((resize, bytes)) = self.resizing else { return };
        for effect in &out[before..] {
            if let Effect::CommandDone { id, reply } = effect
                && *id == resize
            {
                self.resizing = None;
                if *reply == CommandReply::Changed {
                    self.bytes = bytes;
                }
            }
        }
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
        let is_due = self.tiers_due().is_some_and(|due| due <= now);
        let is_stirred = !ended.is_empty() || is_due || !self.effects.is_empty();
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
        spindles.chain(self.tiers_due()).min()
    }

    /// When the machine has to be told the time: it is shown how long I/O takes that somebody waits
    /// for.
    fn tiers_due(&self) -> Option<Time> {
        let shown = (!self.is_idle()).then_some(self.told_at + SHOWN_NS);
        [self.tiers.deadline(), shown].into_iter().flatten().min()
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

/// Identity of the running kernel.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    crate::fingerprint::hash(&[text.trim().as_bytes()])
}

#[cfg(test)]
mod tests;
