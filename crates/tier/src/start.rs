//! How a life begins.
//!
//! First all members are flushed: what is read then is durable, and what is written can be said to
//! come after it. Then the superblocks are looked at, so that none goes over the only valid copy;
//! the map is read (`recovery.rs`); the superblocks name the new life, and only then is anything
//! written of it. Until the set is open, pages say what was confirmed before, no place becomes
//! free, and a power cut finds the life before as it was. What a killed life had not confirmed is
//! confirmed when the set is open, and not before.

use crate::Mutant;
use crate::barrier::Barrier;
use crate::event::{MemberId, Notice, OpenError};
use crate::io::{Purpose, UnderWay};
use crate::journal::Journal;
use crate::recovery::{Recovery, all_pages};
use crate::set::After;
use crate::tiers::{Opening, Phase, Tiers};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion};
use forebay_format::tier::{Head, SUPERBLOCK_OFFSETS, Superblock, UNHELD};
use std::collections::{BTreeMap, BTreeSet};

/// Members are flushed, then their superblocks are read.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    boot: [u8; 16],
    under_way: u32,
    /// Members of which the flush failed.
    failed: BTreeSet<u8>,
    are_flushed: bool,
    /// Generation of each valid copy.
    copies: BTreeMap<MemberId, [Option<u64>; 2]>,
}

/// What a superblock says of a start in doubt: no kernel has this name. What was not confirmed is
/// not believed.
const IN_DOUBT: [u8; 16] = [0; 16];

/// What a superblock says of this kernel as long as a flush has failed of which no client has
/// heard.
pub(crate) fn doubted(boot: [u8; 16]) -> [u8; 16] {
    boot.map(|byte| !byte)
}

/// Whether superblocks that say this tell of a flush that failed.
pub(crate) fn is_doubtful(said: [u8; 16], boot: [u8; 16]) -> bool {
    said == IN_DOUBT || said == doubted(boot)
}

impl Tiers {
    /// Begins a start: what was written is to be durable before anything else is.
    pub(crate) fn begin_start(&mut self, boot: [u8; 16]) {
        self.phase = Phase::Settling(Box::new(Settling { boot, ..Settling::default() }));
        if !self.set.superblock().is_ephemeral() && !self.is(Mutant::UnsettledStart) {
            for member in self.set.here().collect::<Vec<MemberId>>() {
                if self.set.member(member).settings.volatile_cache {
                    self.settling().under_way += 1;
                    self.io.flush(member, Purpose::Settle(member, 0));
                }
            }
        }
        if self.settling().under_way == 0 {
            self.look_at_superblocks();
        }
    }

    fn settling(&mut self) -> &mut Settling {
        match &mut self.phase {
            Phase::Settling(settling) => settling,
            _ => unreachable!("a start begins"),
        }
    }

    fn look_at_superblocks(&mut self) {
        self.settling().are_flushed = true;
        for member in self.set.here().collect::<Vec<MemberId>>() {
            for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
                self.settling().under_way += 1;
                let what = UnderWay::meta(member, Purpose::Settle(member, copy));
                self.io.read(what, offset, Buf::zeroed(BLOCK_SIZE));
            }
        }
        if self.settling().under_way == 0 {
            self.open_failed(OpenError::NoMap);
        }
    }

    /// A member was flushed, or a copy of its superblock was read.
    pub(crate) fn settled(&mut self, member: MemberId, copy: usize, done: Completion) {
        let set = self.set.superblock().block.set;
        let settling = self.settling();
        settling.under_way -= 1;
        if !settling.are_flushed && done.result.is_err() {
            settling.failed.insert(member.0);
        } else if settling.are_flushed && done.result.is_ok() {
            let found = Superblock::decode(done.buf.bytes()).ok().map(|it| it.block);
            let own = found.filter(|it| it.set == set && it.member == member.0);
            settling.copies.entry(member).or_default()[copy] = own.map(|it| it.generation.get());
        }
        if settling.under_way > 0 {
            return;
        }
        if !settling.are_flushed {
            return self.look_at_superblocks();
        }
        let Settling { boot, failed, copies, .. } = std::mem::take(settling);
        for (member, generations) in copies {
            self.set.set_copies(member, generations);
        }
        self.begin_recovery(boot, failed);
    }

    /// Who holds the map from now on: best none of which a flush has just failed.
    fn choose_holders(&self, failed: &BTreeSet<u8>) -> [u8; 2] {
        let members = self.set.superblock().members();
        let is_here = |it: u8| self.set.is_here(MemberId(it));
        let sound = crate::assemble::holders(members, |it| is_here(it) && !failed.contains(&it));
        match sound == [UNHELD; 2] {
            true => crate::assemble::holders(members, is_here),
            false => sound,
        }
    }

    /// The map is known. First the superblocks say that a new life begins.
    pub(crate) fn begin_life(&mut self, recovery: Recovery) {
        self.phase = Phase::Naming;
        let is_fresh = recovery.head.is_none();
        let forgets = self.is(Mutant::DoubtForgotten);
        let boot = self.boot;
        let block = &mut self.set.superblock_mut().block;
        block.epoch = (block.epoch.get() + 1).into();
        if recovery.doubt && !forgets {
            block.boot = if recovery.cut { IN_DOUBT } else { doubted(boot) };
        }
        let epoch = block.epoch.get();
        let source = |&it: &usize| {
            let source = &recovery.sources[it];
            Some((source.member, (it, source.head()?)))
        };
        let sources: BTreeMap<u8, (usize, Head)> =
            recovery.order.iter().filter_map(source).collect();
        let holders = self.choose_holders(&recovery.failed);
        let (last, tail) = (recovery.last, recovery.head.map_or(recovery.last + 1, |it| it.tail));
        let is_there = |holder: &u8| *holder != UNHELD;
        let named: Vec<(MemberId, u64)> =
            holders.iter().filter(|it| is_there(it)).map(|&it| (MemberId(it), tail)).collect();
        for (index, (member, _)) in named.iter().enumerate() {
            if let Some((source, head)) = sources.get(&member.0) {
                let copy = recovery.sources[*source].heads.iter().position(|it| *it == Some(*head));
                self.checkpoint.set_head(index, copy.unwrap_or(0));
            }
        }
        let layout = self.set.layout();
        let id = (self.set.id(), epoch);
        // Where nothing is unconfirmed, all numbers up to the first new one are.
        let next = recovery.first_new.max(1);
        let is_all = recovery.confirmed == recovery.last;
        let confirmed = if is_all { next - 1 } else { recovery.confirmed };
        let numbers = (next, confirmed);
        self.journal = Journal::new(id, layout, numbers, &named, self.tuning.fine_max);
        self.barrier = Barrier::new(confirmed);
        if recovery.doubt {
            self.barrier.count_failure();
        }
        // Who has another head has other pages, too; and who failed may not have what was read.
        let is_known = |it: &(MemberId, u64)| {
            sources.get(&it.0.0).is_some_and(|(_, head)| Some(*head) == recovery.head)
        };
        let needs_all = is_fresh || !recovery.failed.is_empty() || !named.iter().all(is_known);
        let pages = if needs_all { all_pages(layout.extents_max) } else { recovery.mended };
        let records = last + 1 - tail.min(last + 1);
        let cut = recovery.cut && !is_fresh;
        self.planner.hurry(self.io.now());
        self.opening = Some(Opening { pages, records, cut, holders });
        self.set.ask(After::Life);
    }

    /// The superblocks say that this life has begun: the map can be written.
    pub(crate) fn life_has_begun(&mut self) {
        self.phase = Phase::Beginning;
        let pages = self.opening.as_ref().expect("it is opening").pages.clone();
        self.begin_checkpoint(pages);
    }

    /// The map is written: the superblocks say who was there, and then I/O is served.
    pub(crate) fn begin_serving(&mut self) {
        let holders = self.opening.as_ref().expect("it is opening").holders;
        let alive: Vec<u8> = self.journal.holders().map(|(_, member)| member.0).collect();
        // Who could not be told of this life would be taken for an older copy of itself.
        let told: Vec<MemberId> = self.set.told().collect();
        // Only now: until the map was written, what an earlier life had not confirmed could have
        // been mistaken for what this kernel has seen.
        let boot = self.said_boot();
        let block = &mut self.set.superblock_mut().block;
        block.boot = boot;
        block.holders = holders.map(|it| if alive.contains(&it) { it } else { UNHELD });
        block.holders.sort_unstable_by_key(|&it| it == UNHELD);
        let epoch = block.epoch;
        for member in told {
            block.members[usize::from(member.0)].epoch = epoch;
        }
        self.set.superblock_mut().set_fresh(false);
        self.set.ask(After::Opened);
    }

    /// What superblocks of an open set say of the kernel.
    fn said_boot(&self) -> [u8; 16] {
        let is_doubted = self.barrier.is_untold() && !self.is(Mutant::DoubtForgotten);
        if is_doubted { doubted(self.boot) } else { self.boot }
    }

    /// A flush failed, or a client has heard of it: the superblocks say so. Who is killed before
    /// they do leaves nothing that tells of it.
    pub(crate) fn step_doubt(&mut self) {
        let is_open = matches!(self.phase, Phase::Open | Phase::Stopping(_));
        let boot = self.said_boot();
        if is_open && self.set.superblock().block.boot != boot {
            self.set.superblock_mut().block.boot = boot;
            self.set.ask(After::Nobody);
        }
    }

    /// The set is open, and what was read of the life before is all confirmed.
    pub(crate) fn has_opened(&mut self) {
        let Opening { records, cut, .. } = self.opening.take().expect("it was opening");
        self.phase = Phase::Open;
        self.map.changed_is_dirty();
        self.confirm(self.barrier.confirmed());
        let (extents, doubt) = (self.map.placed(), self.barrier.is_untold());
        self.notice(Notice::Opened { records, extents, cut, doubt });
    }

    /// All that records up to this one tell of is confirmed: at a start, when the set is open.
    pub(crate) fn confirm(&mut self, seq: u64) {
        if matches!(self.phase, Phase::Beginning) && !self.is(Mutant::StartConfirms) {
            return;
        }
        self.map.confirm(seq);
        self.space.confirm(seq);
    }

    pub(crate) fn open_failed(&mut self, error: OpenError) {
        self.phase = Phase::Over(Some(error));
        self.notice(Notice::OpenFailed(error));
    }
}
