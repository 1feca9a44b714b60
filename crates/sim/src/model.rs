//! What one sector may hold: the oracle's memory of it.
//!
//! Each write is a *version*. Time stamps are event numbers, strictly increasing. A version was
//! certainly in place from `fmin` on (it was acknowledged, or a read returned it) and a reader or
//! the writer still waited for it at `smax`. `u` was forced to come before `v` when `u.fmin <
//! v.smax`; two versions that are both forced before each other cannot happen in a register: that
//! one test of pairs is rule L.

#[cfg(test)]
mod tests;

/// Number of an event.
pub type Stamp = u64;
/// An event that has not happened.
pub const NEVER: Stamp = u64::MAX;

/// A value that a sector can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Zeros.
    Zero,
    /// What this write put there.
    Data(u64),
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Letter of the rule, as the fault model's description names it.
    pub rule: &'static str,
    /// What happened.
    pub text: String,
}

impl Violation {
    /// A violation of `rule`.
    pub fn new(rule: &'static str, text: String) -> Violation {
        Violation { rule, text }
    }
}

/// How a world crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process was killed: nothing that was acknowledged is lost.
    Kill,
    /// The power was cut: what was flushed stays.
    Cut,
    /// The power was cut or the process killed after parts of the log were destroyed in this life.
    /// The last record of a log that is damaged cannot be told from one that was never whole, so
    /// what the life before left is all that must stay.
    Damaged,
}

#[derive(Debug, Clone)]
struct Version {
    id: u64,
    value: Value,
    /// A discard: it may never take effect, though acknowledged.
    optional: bool,
    fua: bool,
    invoke: Stamp,
    /// Acknowledged as done.
    ack: Stamp,
    /// From here on it has taken effect, or never will.
    end: Stamp,
    fmin: Stamp,
    smax: Stamp,
}

impl Version {
    /// Whether a crash must keep it, or something newer. Of a discard only what was seen counts.
    fn durable(&self, crash: Crash, flushed_before: Stamp) -> bool {
        let unseen = self.optional && self.fmin == NEVER;
        if self.ack == NEVER || unseen || crash == Crash::Damaged {
            return false;
        }
        let done = if self.optional { self.ack.max(self.fmin) } else { self.ack };
        crash == Crash::Kill || self.fua || done < flushed_before
    }

    /// If it took effect at all, then before this.
    fn latest(&self) -> Stamp {
        self.fmin.min(self.end)
    }
}

/// What a crash may have left. `live` is false for a value that only a power cut can bring back.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    value: Value,
    live: bool,
}

/// The history of one sector since the last crash, and what the crash may have left.
#[derive(Debug, Clone, Default)]
pub struct Sector {
    /// Empty stands for version 0.
    base: Vec<Candidate>,
    /// No base value can be there any more.
    base_gone: bool,
    base_smax: Stamp,
    versions: Vec<Version>,
    /// When the scheduler destroyed its last good copy: since then an error is as good as the right
    /// value, until a later write is acknowledged, and again when a crash takes that write back. 0
    /// for never.
    lost: Stamp,
    /// As `lost`, before the process was killed with a later write that a power cut may still take.
    lost_before: Stamp,
    /// As `lost`, before the administrator gave it up: a damaged log may not say that he did.
    given_up: Stamp,
    /// And what was there then.
    dropped: Vec<Value>,
    /// When he did, in this life.
    chosen_at: Stamp,
    /// What may be there too, since the origin forgot a write, and when that was.
    loose: Vec<Value>,
    loose_since: Stamp,
}

/// A write as the model sees it.
#[derive(Debug, Clone, Copy)]
pub struct WriteSpec {
    /// Its number; the content names it.
    pub id: u64,
    /// Zeros instead of named content.
    pub zero: bool,
    /// It may take no effect (a discard).
    pub optional: bool,
    /// Durable when acknowledged.
    pub fua: bool,
}

impl Sector {
    fn candidates(&self) -> Vec<Candidate> {
        match (self.base_gone, self.base.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => vec![Candidate { value: Value::Data(0), live: true }],
            (false, false) => self.base.clone(),
        }
    }

    /// A write was submitted. `oldest` is the submission of the oldest request that still waits.
    pub fn begin(&mut self, write: WriteSpec, invoke: Stamp, oldest: Stamp, flushed: Stamp) {
        if self.versions.len() >= 8 {
            self.prune(oldest, flushed);
        }
        let value = if write.zero { Value::Zero } else { Value::Data(write.id) };
        self.versions.push(Version {
            id: write.id,
            value,
            optional: write.optional,
            fua: write.fua,
            invoke,
            ack: NEVER,
            end: NEVER,
            fmin: NEVER,
            smax: invoke,
        });
    }

    /// A write was answered.
    pub fn end(&mut self, id: u64, now: Stamp, ok: bool) {
        let version = self.versions.iter_mut().find(|version| version.id == id);
        // A version that cannot be read any more may have been forgotten before it was answered.
        let Some(version) = version else { return };
        version.end = now;
        version.fmin = if version.fmin == NEVER { NEVER } else { version.fmin.min(now) };
        if ok {
            version.ack = now;
            if !version.optional {
                version.fmin = version.fmin.min(now);
            }
        }
    }

    /// Forgets versions that nothing can bring back: a durable one certainly came later, and every
    /// request that could still see them was submitted after that one was in place.
    fn prune(&mut self, oldest: Stamp, flushed: Stamp) {
        let firm: Vec<(u64, Stamp)> = self
            .versions
            .iter()
            .filter(|version| version.durable(Crash::Cut, flushed) && version.fmin < oldest)
            .map(|version| (version.id, version.smax))
            .collect();
        self.base_gone |= !firm.is_empty();
        self.versions.retain(|version| {
            let later = |&(id, smax): &(u64, Stamp)| id != version.id && version.latest() < smax;
            !firm.iter().any(later)
        });
    }

    /// Whether a read may return version `index`, submitted at `invoke`, answered at `now`.
    fn version_fits(&self, index: usize, invoke: Stamp, now: Stamp) -> bool {
        let version = &self.versions[index];
        let fmin = version.latest().min(now);
        let smax = version.smax.max(invoke);
        let conflict =
            |(at, other): (usize, &Version)| at != index && other.fmin < smax && fmin < other.smax;
        fmin >= self.base_smax && !self.versions.iter().enumerate().any(conflict)
    }

    fn base_fits(&self, invoke: Stamp) -> bool {
        let smax = self.base_smax.max(invoke);
        !self.versions.iter().any(|version| version.fmin < smax)
    }

    /// A read that was submitted at `invoke` and answered at `now` returned `value`.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn read(&mut self, value: Value, invoke: Stamp, now: Stamp) -> Result<(), Violation> {
        let loose = self.is_loose(value, invoke);
        let result = self.read_firm(value, invoke, now);
        if loose { Ok(()) } else { result }
    }

    /// Whether the value may be there because the origin forgot what followed it.
    fn is_loose(&self, value: Value, invoke: Stamp) -> bool {
        let later = |v: &Version| v.invoke > self.loose_since && v.fmin < invoke;
        self.loose.contains(&value) && !self.versions.iter().any(later)
    }

    /// The origin forgot, now, a write that only it had.
    pub fn loosen(&mut self, now: Stamp, flushed: Stamp) {
        let allowed = self.allowed(Crash::Cut, flushed);
        let mut values = Vec::new();
        if allowed.base {
            values.extend(self.candidates().iter().map(|candidate| candidate.value));
        }
        let versions = self.versions.iter().zip(&allowed.versions);
        values.extend(versions.filter(|(_, allowed)| **allowed).map(|(v, _)| v.value));
        values.retain(|value| !self.loose.contains(value));
        self.loose.extend(values);
        self.loose_since = now;
    }

    /// A flush that was submitted at `invoke` succeeded: nothing was lost before. Whether that is
    /// all.
    pub fn tighten(&mut self, invoke: Stamp) -> bool {
        let all = self.loose_since < invoke;
        if all {
            self.loose.clear();
        }
        all
    }

    /// Whether a write was acknowledged later.
    pub fn acknowledged_since(&self, then: Stamp) -> bool {
        self.versions.iter().any(|version| version.ack != NEVER && version.ack >= then)
    }

    /// Whether this write was acknowledged.
    pub fn is_acknowledged(&self, id: u64) -> bool {
        let version = self.versions.iter().find(|version| version.id == id);
        // One that the last crash left counts too: clients may have seen it.
        version.is_none_or(|version| version.ack != NEVER)
    }

    fn read_firm(&mut self, value: Value, invoke: Stamp, now: Stamp) -> Result<(), Violation> {
        let same: Vec<usize> =
            (0..self.versions.len()).filter(|&index| self.versions[index].value == value).collect();
        let base = self.candidates().into_iter().find(|candidate| candidate.value == value);
        if same.is_empty() && base.is_none() {
            return Err(self.unknown(value));
        }
        let fits: Vec<usize> =
            same.iter().copied().filter(|&index| self.version_fits(index, invoke, now)).collect();
        let base_live = base.is_some_and(|candidate| candidate.live);
        let base_fits = base_live && self.base_fits(invoke);
        match (fits.as_slice(), base_fits) {
            ([], false) if base.is_some() && !base_live => {
                Err(Violation::new("K", format!("a killed process lost what followed {value:?}")))
            }
            ([], false) => Err(self.stale(value)),
            ([], true) => {
                self.base = vec![Candidate { value, live: true }];
                self.base_smax = self.base_smax.max(invoke);
                Ok(())
            }
            (&[index], false) => {
                let version = &mut self.versions[index];
                version.fmin = version.latest().min(now);
                version.smax = version.smax.max(invoke);
                Ok(())
            }
            // Several writes of zeros fit: which one was seen is not known.
            _ => Ok(()),
        }
    }

    /// Whether the administrator chose what the origin holds, and no flush sent since succeeded.
    pub fn is_chosen(&self, flushed: Stamp) -> bool {
        self.chosen_at > flushed
    }

    /// As [`Sector::read`], where nobody has flushed the origin since a volume was put on it, or
    /// what it holds was chosen: a power cut may bring back whatever else could have been there.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn read_unflushed(
        &mut self,
        value: Value,
        invoke: Stamp,
        now: Stamp,
    ) -> Result<(), Violation> {
        let before = self.base.clone();
        self.read(value, invoke, now)?;
        for Candidate { value, .. } in before {
            if !self.base.iter().any(|other| other.value == value) {
                self.base.push(Candidate { value, live: false });
            }
        }
        Ok(())
    }

    fn unknown(&self, value: Value) -> Violation {
        let rule = if self.versions.is_empty() { "D" } else { "L" };
        Violation::new(rule, format!("{value:?} cannot be there any more; {}", self.describe()))
    }

    fn stale(&self, value: Value) -> Violation {
        Violation::new("L", format!("{value:?} does not fit; {}", self.describe()))
    }

    /// The history in words.
    pub fn describe(&self) -> String {
        let base: Vec<String> = self
            .candidates()
            .iter()
            .map(|c| format!("{:?}{}", c.value, if c.live { "" } else { " (power cut only)" }))
            .collect();
        let stamp = |value: Stamp| if value == NEVER { "-".into() } else { value.to_string() };
        let versions: Vec<String> = self
            .versions
            .iter()
            .map(|v| {
                format!(
                    "#{} {:?} sent {} acked {} over {} seen {} wanted {}",
                    v.id,
                    v.value,
                    v.invoke,
                    stamp(v.ack),
                    stamp(v.end),
                    stamp(v.fmin),
                    v.smax
                )
            })
            .collect();
        format!(
            "base [{}] until {}, writes [{}]",
            base.join(", "),
            self.base_smax,
            versions.join("; ")
        )
    }

    /// The scheduler destroyed, now, what may be the last good copy.
    pub fn lose(&mut self, now: Stamp) {
        self.lost = now;
    }

    /// Whether an error is allowed for a request that was submitted at `invoke`.
    pub fn is_lost(&self, invoke: Stamp) -> bool {
        let renewed = |v: &Version| v.ack < invoke && !v.optional && v.invoke > self.lost;
        self.lost > 0 && !self.versions.iter().any(renewed)
    }

    /// Whether the sector's history is more than one settled value.
    pub fn is_open(&self) -> bool {
        !self.versions.is_empty() || self.base.len() > 1
    }

    /// A crash: what may be there afterwards. `flushed` is the submission of the last flush that
    /// was acknowledged, `reflushed` whether that was in this life.
    pub fn crash(&mut self, crash: Crash, flushed: Stamp, reflushed: bool) {
        let reflushed = reflushed && !self.is_chosen(flushed);
        self.chosen_at = 0;
        let given_up = std::mem::take(&mut self.given_up);
        let dropped = std::mem::take(&mut self.dropped);
        if crash == Crash::Damaged {
            self.lost = self.lost.max(given_up);
            self.loose.extend(dropped);
        }
        self.crash_of_loss(crash, flushed, reflushed);
        let firm = |crash| {
            let later = |v: &Version| v.invoke > self.loose_since && v.durable(crash, flushed);
            self.versions.iter().any(later)
        };
        let (loose_live, loose_gone) = (!firm(crash), firm(Crash::Cut));
        let loose = std::mem::take(&mut self.loose);
        let loose = if loose_gone && !loose_live { Vec::new() } else { loose };
        if !self.is_open() && loose.is_empty() {
            self.base_smax = 0;
            return;
        }
        let mut after: Vec<Candidate> = Vec::new();
        // What a power cut would leave is remembered also when the process is killed: until it is
        // read or flushed, a later power cut may still bring it back.
        let kill = crash == Crash::Kill;
        let in_all = self.allowed(if kill { Crash::Cut } else { crash }, flushed);
        let in_kill = self.allowed(Crash::Kill, flushed);
        if in_all.base {
            for candidate in self.candidates() {
                if candidate.live || !reflushed || crash == Crash::Damaged {
                    add(&mut after, candidate.value, !kill || (candidate.live && in_kill.base));
                }
            }
        }
        for (index, version) in self.versions.iter().enumerate() {
            if in_all.versions[index] {
                add(&mut after, version.value, !kill || in_kill.versions[index]);
            }
        }
        for value in loose {
            add(&mut after, value, loose_live);
        }
        assert!(after.iter().any(|candidate| candidate.live), "a crash leaves something");
        self.base = after;
        self.base_gone = false;
        self.base_smax = 0;
        self.versions.clear();
    }

    /// What a crash makes of the harm to the last good copy.
    fn crash_of_loss(&mut self, crash: Crash, flushed: Stamp, reflushed: bool) {
        if reflushed && crash != Crash::Damaged {
            self.lost_before = 0;
        }
        if crash != Crash::Kill {
            self.lost = self.lost.max(std::mem::take(&mut self.lost_before));
        }
        let lost = self.lost;
        let renewed = |crash| {
            let counts = |v: &Version| v.invoke > lost && v.durable(crash, flushed);
            self.versions.iter().any(counts)
        };
        if renewed(crash) {
            if !renewed(Crash::Cut) {
                self.lost_before = self.lost_before.max(lost);
            }
            self.lost = 0;
        }
    }

    fn allowed(&self, crash: Crash, flushed: Stamp) -> Allowed {
        let firm: Vec<&Version> =
            self.versions.iter().filter(|version| version.durable(crash, flushed)).collect();
        let versions = self
            .versions
            .iter()
            .map(|v| !firm.iter().any(|firm| firm.id != v.id && v.latest() < firm.smax))
            .collect();
        Allowed { base: firm.is_empty() && !self.base_gone, versions }
    }

    /// Every value that a read submitted now could return.
    pub fn possible(&self, now: Stamp) -> Vec<Value> {
        let mut values: Vec<Value> = Vec::new();
        if self.base_fits(now) {
            values.extend(self.candidates().iter().filter(|c| c.live).map(|c| c.value));
        }
        let fits = (0..self.versions.len()).filter(|&index| self.version_fits(index, now, now));
        values.extend(fits.map(|index| self.versions[index].value));
        values.extend(self.loose.iter().filter(|&&value| self.is_loose(value, now)));
        values
    }

    /// From `now` on `value`, which the administrator chose to keep, may be there too.
    pub fn also_allow(&mut self, value: Value, now: Stamp) {
        let mut base = self.candidates();
        add(&mut base, value, true);
        self.versions.iter().for_each(|version| add(&mut base, version.value, true));
        let given_up = self.lost.max(self.lost_before).max(self.given_up);
        let mut dropped: Vec<Value> = base.iter().map(|candidate| candidate.value).collect();
        dropped.extend(&self.dropped);
        *self = Sector { base, given_up, dropped, chosen_at: now, ..Sector::default() };
    }
}

/// One candidate of a value: it is live if any word says so.
fn add(candidates: &mut Vec<Candidate>, value: Value, live: bool) {
    match candidates.iter_mut().find(|candidate| candidate.value == value) {
        Some(candidate) => candidate.live |= live,
        None => candidates.push(Candidate { value, live }),
    }
}

struct Allowed {
    base: bool,
    versions: Vec<bool>,
}
