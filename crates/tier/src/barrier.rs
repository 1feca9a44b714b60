//! The barrier: what makes durable. One is under way at a time, for all clients that flush, for
//! moves, and for places that are to be free.
//!
//! Its steps: all holders have the records so far, and the members are flushed that were written
//! to; then a record says that all before it is durable, and the holders are flushed. Only then
//! does what it is for count (T4). So a journal that reaches its device before the data do is never
//! believed after a power loss.

use crate::event::MemberId;
use crate::limits::{GATHER_MAX_NS, GATHER_NS};
use forebay_format::io::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is under way.
    Idle,
    /// Members are flushed, holders get records.
    Data,
    /// The record that confirms is on its way to the holders.
    Saying(u64),
    /// The holders are flushed.
    Holders,
}

/// The owner of the barrier.
#[derive(Debug)]
pub(crate) struct Barrier {
    step: Step,
    /// What it will confirm.
    target: u64,
    /// What the last one did.
    confirmed: u64,
    /// Flushes under way, and whether what is to be confirmed needs them.
    flushing: BTreeMap<MemberId, bool>,
    /// Members of which a flush of data failed that was needed.
    failed: BTreeSet<MemberId>,
    /// It goes on without a member that does not answer, of which it would confirm something: it
    /// begins again when what is under way has ended.
    is_void: bool,
    /// Flushes that failed, whatever they were for; how many had when this one began; and of how
    /// many clients were told. What a client wrote while one was under way is told of by the next.
    failures: u64,
    failures_before: u64,
    told: u64,
    /// Clients' requests that wait for this one, and for the next.
    waiting: Vec<u64>,
    next: Vec<u64>,
    /// Somebody wants all up to this record confirmed, from this time on.
    wanted: Option<(u64, Time)>,
    /// When the one under way began, and what those of late took that flushed something.
    began: Time,
    took: Time,
    has_flushed: bool,
}

impl Barrier {
    pub fn new(confirmed: u64) -> Barrier {
        Barrier {
            step: Step::Idle,
            target: confirmed,
            confirmed,
            flushing: BTreeMap::new(),
            failed: BTreeSet::new(),
            is_void: false,
            failures: 0,
            failures_before: 0,
            told: 0,
            waiting: Vec::new(),
            next: Vec::new(),
            wanted: None,
            began: 0,
            took: 0,
            has_flushed: false,
        }
    }

    pub fn step(&self) -> &Step {
        &self.step
    }

    pub fn set_step(&mut self, step: Step) {
        self.step = step;
    }

    pub fn target(&self) -> u64 {
        self.target
    }

    /// Everything up to this record is durable.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// A client's flush: of what has ended by now.
    pub fn join(&mut self, request: u64) {
        self.next.push(request);
    }

    /// Somebody wants record `seq` confirmed, at `due` at the latest.
    pub fn want(&mut self, seq: u64, due: Time) {
        if seq <= self.confirmed {
            return;
        }
        let (old_seq, old_due) = self.wanted.unwrap_or((seq, due));
        self.wanted = Some((seq.max(old_seq), due.min(old_due)));
    }

    /// Nobody can confirm anything: whoever wants it asks again later.
    pub fn forgo(&mut self) {
        self.wanted = None;
    }

    /// How long what it is for may gather, if it is to take one part in `share` of the time.
    pub fn gather(&self, share: u64) -> Time {
        self.took.saturating_mul(share).clamp(GATHER_NS, GATHER_MAX_NS)
    }

    /// When the next one is due.
    pub fn due(&self) -> Option<Time> {
        let is_idle = self.step == Step::Idle;
        self.wanted.filter(|_| is_idle).map(|(_, due)| due)
    }

    /// Whether one should begin.
    pub fn is_due(&self, now: Time) -> bool {
        self.step == Step::Idle && (!self.next.is_empty() || self.due().is_some_and(|it| it <= now))
    }

    /// One begins, and will confirm up to `target`.
    pub fn begin(&mut self, target: u64, now: Time) {
        assert!(self.step == Step::Idle && self.flushing.is_empty());
        self.step = Step::Data;
        self.target = target;
        (self.began, self.has_flushed) = (now, false);
        self.failed.clear();
        self.failures_before = self.failures;
        self.waiting = std::mem::take(&mut self.next);
        self.wanted = self.wanted.filter(|&(seq, _)| seq > target);
    }

    /// Whether clients wait for the one under way.
    pub fn has_clients(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A member is flushed. If that is not needed, it is for clients alone: what is said of what
    /// the member has counts in any case.
    pub fn flushing(&mut self, member: MemberId, is_needed: bool) {
        self.flushing.insert(member, is_needed);
        self.has_flushed = true;
    }

    pub fn flushed(&mut self, member: MemberId, is_ok: bool) {
        let is_needed = self.flushing.remove(&member).expect("it is being flushed");
        if !is_ok && is_needed && self.step == Step::Data {
            self.failed.insert(member);
        }
    }

    /// The flush of a member is not waited for: nothing of it is to be confirmed any more.
    pub fn go_without(&mut self, member: MemberId) {
        assert!(self.step == Step::Data, "holders are waited for");
        self.flushing.remove(&member).expect("it is being flushed");
        self.is_void = true;
    }

    /// Whether one has to begin again.
    pub fn is_void(&self) -> bool {
        self.is_void
    }

    /// One that is void is over, and the next is for all that waited for it.
    pub fn begin_again(&mut self) {
        assert!(self.step == Step::Data && self.flushing.is_empty());
        self.is_void = false;
        self.step = Step::Idle;
        self.waiting.append(&mut self.next);
        self.next = std::mem::take(&mut self.waiting);
    }

    /// A flush failed, whatever it was for.
    pub fn count_failure(&mut self) {
        self.failures += 1;
    }

    /// Whether a flush failed of which no client has heard.
    pub fn is_untold(&self) -> bool {
        self.failures != self.told
    }

    pub fn is_flushing(&self) -> bool {
        !self.flushing.is_empty()
    }

    pub fn failed(&self) -> &BTreeSet<MemberId> {
        &self.failed
    }

    /// It is over. Who waited for it, and whether what they wrote is durable.
    pub fn end(&mut self, is_confirmed: bool, now: Time) -> (Vec<u64>, bool) {
        if is_confirmed {
            self.confirmed = self.confirmed.max(self.target);
            self.wanted = self.wanted.filter(|&(seq, _)| seq > self.confirmed);
        }
        self.step = Step::Idle;
        if self.has_flushed {
            // What it takes when nothing is to be flushed says little of what it does otherwise.
            self.took = (now - self.began).max(self.took - self.took / 8);
        }
        let is_durable = is_confirmed && self.failures == self.told;
        if !self.waiting.is_empty() {
            self.told = self.failures_before;
        }
        (std::mem::take(&mut self.waiting), is_durable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_one_under_way_confirms_takes_no_other() {
        let mut barrier = Barrier::new(0);
        barrier.want(7, 20);
        barrier.begin(9, 0);
        barrier.want(8, 40);
        barrier.want(9, 40);
        barrier.end(true, 0);
        assert_eq!((barrier.confirmed(), barrier.due()), (9, None));
        barrier.begin(12, 0);
        barrier.want(13, 60);
        barrier.end(true, 0);
        assert_eq!(barrier.due(), Some(60));
        // One that failed confirms nothing.
        barrier.begin(13, 0);
        barrier.want(13, 80);
        barrier.end(false, 0);
        assert_eq!(barrier.due(), Some(80));
    }

    #[test]
    fn what_nobody_waits_for_gathers_for_many_times_what_a_flush_takes() {
        const MS: Time = 1_000_000;
        let mut barrier = Barrier::new(0);
        let mut takes = |flushes: bool, took: Time| {
            barrier.begin(1, 0);
            if flushes {
                barrier.flushing(MemberId(0), true);
                barrier.flushed(MemberId(0), true);
            }
            barrier.end(true, took);
            barrier.gather(200)
        };
        assert_eq!(takes(true, 0), GATHER_NS, "nothing is known yet, or it takes no time");
        assert_eq!(takes(true, 80 * MS), 16_000 * MS);
        assert_eq!(takes(false, 0), 16_000 * MS, "without a flush it says nothing");
        assert_eq!(takes(true, MS), 14_000 * MS, "it is forgotten slowly");
        assert_eq!(takes(true, 900 * MS), GATHER_MAX_NS);
    }
}
