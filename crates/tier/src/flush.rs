//! The steps of the barrier.

use crate::Mutant;
use crate::barrier::Step;
use crate::event::{MemberId, Notice};
use crate::io::Purpose;
use crate::limits::{GATHER_NS, GATHER_SHORT_NS, QUIET_SHARE, SHORT_SHARE, UNCONFIRMED_MAX};
use crate::map::lost_entry;
use crate::tiers::{Phase, Tiers};
use forebay_format::io::{IoError, Time};

impl Tiers {
    /// Begins a barrier, or lets it go on.
    pub(crate) fn step_barrier(&mut self) {
        let now = self.io.now();
        let unconfirmed = self.map.unconfirmed();
        // The next start says it again: it takes room in the journal until it is confirmed.
        let takes_room = unconfirmed > 0 && self.requests.waits_for_room();
        if unconfirmed > UNCONFIRMED_MAX || takes_room {
            self.barrier.want(self.journal.last(), now);
        }
        if let Some(seq) = self.places_wait_for() {
            self.barrier.want(seq, now + self.gather_time());
        }
        if !self.journal.is_held() {
            self.barrier.forgo();
        }
        loop {
            match self.barrier.step().clone() {
                Step::Idle if self.barrier.is_due(now) => self.begin_barrier(),
                Step::Data if self.may_say() => self.say_confirmed(),
                Step::Saying(seq) if self.journal.is_everywhere(seq) => self.flush_holders(),
                // What is being flushed ends first.
                _ if self.barrier.is_flushing() => return,
                Step::Data if self.barrier.is_void() => self.barrier.begin_again(),
                Step::Holders => self.end_barrier(),
                Step::Saying(_) | Step::Data if !self.journal.is_held() => self.end_barrier(),
                _ => return,
            }
        }
    }

    /// The first record that has to be confirmed for a place to become free.
    pub(crate) fn places_wait_for(&self) -> Option<u64> {
        [self.space.waits_for(), self.moves.waits_for()].into_iter().flatten().min()
    }

    /// How long places that nobody waits for may gather before they are confirmed. A flush of a
    /// hard disk takes as long as many requests, which wait for it.
    fn gather_time(&self) -> Time {
        let is_last = self.moves.are_said() && (self.is_evacuating() || !self.is_open());
        match () {
            () if self.moves.is_crowded() || is_last => GATHER_NS,
            () if self.is_short() => self.barrier.gather(SHORT_SHARE).min(GATHER_SHORT_NS),
            () => self.barrier.gather(QUIET_SHARE),
        }
    }

    fn begin_barrier(&mut self) {
        // What has been said by now, and what was answered is among it. What is said from now on is
        // in another record.
        self.journal.close();
        let target = self.journal.last();
        self.barrier.begin(target, self.io.now());
        self.io.stir();
        let asks_again = self.barrier.has_clients() && !self.is(Mutant::NotAskedAgain);
        let hanging = self.io.hanging().filter(|&it| self.is_kept_without(it)).collect();
        let dirty = self.set.take_dirty(asks_again, &hanging);
        if self.set.superblock().is_ephemeral() || self.is(Mutant::FlushSkipsMembers) {
            return;
        }
        for (member, is_needed) in dirty {
            self.barrier.flushing(member, is_needed);
            self.io.flush(member, Purpose::Barrier(member));
        }
    }

    fn may_say(&self) -> bool {
        let is_confirmed = self.barrier.target() <= self.barrier.confirmed();
        !self.barrier.is_flushing()
            && !self.barrier.is_void()
            && (is_confirmed || self.journal.is_everywhere(self.barrier.target()))
    }

    fn say_confirmed(&mut self) {
        if !self.barrier.failed().is_empty() {
            return self.end_barrier();
        }
        let target = self.barrier.target();
        if target <= self.barrier.confirmed() || self.is(Mutant::FlushSkipsJournal) {
            return self.end_barrier();
        }
        if self.set.superblock().is_ephemeral() {
            // Nothing outlives the machine, and a killed process loses nothing of a record.
            return self.end_barrier();
        }
        let seq = self.journal.say_confirmed(target);
        let Tiers { journal, io, .. } = self;
        journal.send(io);
        self.barrier.set_step(Step::Saying(seq));
    }

    fn flush_holders(&mut self) {
        self.barrier.set_step(Step::Holders);
        let holders: Vec<MemberId> = self.journal.holders().map(|(_, member)| member).collect();
        for member in holders {
            if self.set.member(member).settings.volatile_cache {
                self.barrier.flushing(member, true);
                self.io.flush(member, Purpose::Barrier(member));
            }
        }
    }

    fn end_barrier(&mut self) {
        assert!(!self.barrier.is_flushing(), "what was asked of devices has ended");
        let failed = self.barrier.failed().clone();
        let is_held = self.journal.is_held() || self.barrier.target() <= self.barrier.confirmed();
        let is_ok = failed.is_empty() && is_held;
        let (waiting, is_durable) = self.barrier.end(is_ok, self.io.now());
        self.io.stir();
        if is_ok {
            let confirmed = self.barrier.confirmed();
            self.journal.set_durable(confirmed);
            self.confirm(confirmed);
        }
        let error = (!is_durable).then_some(IoError::Io);
        for request in waiting {
            self.answer_flush(request, error);
        }
    }

    /// A flush of a member failed, whatever it was for: data and records may be lost that were
    /// written there.
    pub(crate) fn flush_failed(&mut self, member: MemberId) {
        self.barrier.count_failure();
        self.set.not_kept(member);
        let holder = self.journal.holders().find(|it| it.1 == member);
        if let Some((index, _)) = holder {
            self.holder_failed(index);
        }
        // What clients had written was flushed when the start began.
        if !matches!(self.phase, Phase::Naming | Phase::Beginning) {
            self.requests.doubt(member.0);
            self.copy_again(member);
            self.doubt(member);
        }
    }

    /// A flush of a member failed: what was written there since the last good one may be lost. What
    /// was written for the first time would read as whatever the place held before: it is lost
    /// until it is written again.
    fn doubt(&mut self, member: MemberId) {
        if self.is(Mutant::LostUnnoticed) {
            return;
        }
        let doubted: Vec<u32> = self
            .map
            .changing()
            .filter(|&extent| self.map.place(extent).is_some_and(|it| it.member() == member.0))
            .collect();
        for extent in doubted {
            if self.go_back(extent, member) {
                continue;
            }
            let (known, confirmed) = (self.map.state(extent), self.map.confirmed(extent));
            let lost = match known.place == confirmed.place {
                true => known.blocks.without(self.map.sound(extent)),
                false => known.blocks,
            };
            let before = self.map.lost(extent);
            if lost.without(before).is_empty() {
                continue;
            }
            let all = lost.or(before);
            self.map.set_lost(extent, all);
            self.journal.say(lost_entry(extent, all));
            self.notice(Notice::BlocksLost { extent, blocks: lost.without(before).count() });
        }
    }
}
