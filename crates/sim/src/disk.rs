//! A disk with a volatile write cache that lies as much as real ones do, and not more.
//!
//! - A completed write is pending until a flush that was **submitted** after it completed has
//!   completed.
//! - A read returns, sector by sector, what was there when it was submitted or when it completed,
//!   or what a write in flight brings.
//! - A power cut tears writes in flight at 512 bytes, may spoil such sectors, and keeps any subset
//!   of the pending writes that its [`CutMode`] allows.
//! - A killed process leaves pending writes alone; I/O in flight happens as a whole or not at all.
//! - An I/O that fails may have changed any part of its range.

mod fault;
mod plug;
mod rot;
mod store;

#[cfg(test)]
mod tests;

use crate::content::{self, Content};
use crate::rng::Rng;
pub use fault::{CUT_MODES, CutMode, Fault, FlushLoss, IoKind};
use forebay_engine::{Buf, Completion, IoError, OpId, Time};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
pub use store::{Blank, Store};

/// What a disk is asked to do.
#[derive(Debug)]
pub enum Io {
    /// Fill the buffer.
    Read(Buf),
    /// Write the buffer.
    Write(Buf),
    /// Zeros for so many sectors.
    Zero(u64),
    /// Any content for so many sectors: kept, or zeros, each sector as it likes.
    Discard(u64),
    /// Make pending writes durable.
    Flush,
}

#[derive(Debug)]
struct InFlight {
    io: Io,
    first: u64,
    end: u64,
    /// Writes completed when this was submitted.
    mark: u64,
    /// Sectors of which a read has already returned the new content.
    shown: BTreeSet<u64>,
    /// Place where the data of one page go instead, or nowhere: set by the fault scheduler.
    astray: Option<Astray>,
}

/// One page of a write that does not arrive where it should.
#[derive(Debug, Clone, Copy)]
pub struct Astray {
    /// First sector of the page, counted from the first of the write.
    pub page: u64,
    /// First sector of the place where it lands; `None` when it lands nowhere.
    pub lands: Option<u64>,
}

/// A completed write that is not durable yet.
struct Pending {
    number: u64,
    first: u64,
    data: Vec<u8>,
}

/// The end of an I/O.
pub struct Finished {
    /// For the engine.
    pub completion: Completion,
    /// What it was.
    pub kind: IoKind,
    /// The sectors.
    pub sectors: Range<u64>,
    /// What a failed flush forgot: sectors, and what the writes that are lost held there.
    pub forgot: Vec<(u64, Content)>,
}

/// A disk.
pub struct Disk {
    current: Store,
    durable: Store,
    pending: Vec<Pending>,
    in_flight: BTreeMap<OpId, InFlight>,
    completed: u64,
    /// Sectors that cannot be read until they are written again.
    unreadable: BTreeSet<u64>,
    /// Errors to return.
    pub faults: Vec<Fault>,
    /// So many of the next reads fail, now and then one.
    pub reads_fail_first: u64,
    /// After so many that do not.
    pub reads_fail_after: u64,
    /// What a failed flush does.
    pub flush_loss: FlushLoss,
    /// From this time on every I/O fails.
    pub dead_from: Time,
    /// From which sector on, and when, writes find no room: mostly where nothing was written yet.
    pub no_room: Option<(u64, Range<Time>)>,
    /// Whether there is a volatile write cache.
    pub volatile: bool,
    /// Whether it is plugged in.
    plug: plug::Plug,
}

impl Disk {
    /// A disk of `sectors` sectors.
    pub fn new(sectors: u64, blank: Blank, volatile: bool) -> Disk {
        Disk {
            current: Store::new(sectors, blank),
            durable: Store::new(sectors, blank),
            pending: Vec::new(),
            in_flight: BTreeMap::new(),
            completed: 0,
            unreadable: BTreeSet::new(),
            faults: Vec::new(),
            reads_fail_first: 0,
            reads_fail_after: 0,
            flush_loss: FlushLoss::Nothing,
            dead_from: Time::MAX,
            no_room: None,
            volatile,
            plug: plug::Plug::default(),
        }
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.current.sectors()
    }

    /// What is there now, read past all faults.
    pub fn peek(&self, first: u64, out: &mut [u8]) {
        self.current.read(first, out);
    }

    /// What a sector holds, and whatever a power cut may leave there: what was written last may go
    /// before what was written earlier.
    pub fn versions(&self, sector: u64) -> Vec<[u8; SECTOR_SIZE]> {
        let mut versions = vec![[0; SECTOR_SIZE]; 2];
        self.current.read(sector, &mut versions[0]);
        self.durable.read(sector, &mut versions[1]);
        for done in self.pending.iter().filter(|done| done.sectors().contains(&sector)) {
            let from = (sector - done.first) as usize * SECTOR_SIZE;
            versions.push(done.data[from..from + SECTOR_SIZE].try_into().expect("a sector"));
        }
        versions
    }

    /// Whether anything was ever written near this sector.
    pub fn written(&self, sector: u64) -> bool {
        self.current.written(sector)
    }

    /// Puts bytes there, durably, past the cache and all faults.
    pub fn poke(&mut self, first: u64, data: &[u8]) {
        self.current.write(first, data);
        self.durable.write(first, data);
        // What was written before, and is in the volatile cache, does not come after it.
        for pending in &mut self.pending {
            for (sector, new) in (first..).zip(data.chunks_exact(SECTOR_SIZE)) {
                let at = sector.checked_sub(pending.first).map(|at| at as usize * SECTOR_SIZE);
                let old = at.and_then(|at| pending.data.get_mut(at..at + SECTOR_SIZE));
                old.into_iter().for_each(|old| old.copy_from_slice(new));
            }
        }
        for sector in first..first + (data.len() / SECTOR_SIZE) as u64 {
            self.unreadable.remove(&sector);
        }
    }

    /// I/Os under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Completed writes that no flush has covered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Starts an I/O at sector `first`.
    pub fn submit(&mut self, op: OpId, first: u64, mut io: Io) {
        let count = match &mut io {
            Io::Read(buf) => {
                self.current.read(first, buf.bytes_mut());
                buf.len() as u64 / SECTOR_SIZE as u64
            }
            Io::Write(buf) => buf.len() as u64 / SECTOR_SIZE as u64,
            Io::Zero(count) | Io::Discard(count) => *count,
            Io::Flush => 0,
        };
        let end = first + count;
        assert!(end <= self.sectors(), "I/O behind the end of a disk: sectors {first}..{end}");
        let entry =
            InFlight { io, first, end, mark: self.completed, shown: BTreeSet::new(), astray: None };
        assert!(self.in_flight.insert(op, entry).is_none(), "{op:?} is used twice");
        self.plug.submitted(op);
    }

    /// Lets one page of a write in flight go astray.
    pub fn lead_astray(&mut self, op: OpId, astray: Astray) {
        self.in_flight.get_mut(&op).expect("a write in flight").astray = Some(astray);
    }

    /// Where a page of this write will land. Nowhere, if somebody is writing there: nobody could
    /// tell what would be left. Nor where there is no client data any more: it may be the header of
    /// a record, and what a record without one held nobody can know.
    pub fn landing(&mut self, op: OpId) -> Option<u64> {
        let lands = self.in_flight.get(&op)?.astray?.lands?;
        let taken = self.in_flight.iter().any(|(&other, entry)| {
            other != op && entry.first < lands + SECTORS_PER_BLOCK as u64 && lands < entry.end
        });
        let mut bytes = [0; SECTOR_SIZE];
        let taken = taken
            || !(lands..lands + SECTORS_PER_BLOCK as u64).any(|sector| {
                self.current.read(sector, &mut bytes);
                matches!(content::parse(&bytes), Content::Data { .. })
            });
        if taken && let Some(astray) = &mut self.in_flight.get_mut(&op)?.astray {
            astray.lands = None;
        }
        (!taken).then_some(lands)
    }

    /// Ends an I/O. `None` if it is none of this disk's.
    pub fn complete(&mut self, op: OpId, now: Time, rng: &mut Rng) -> Option<Finished> {
        let mut entry = self.in_flight.remove(&op)?;
        let kind = entry.kind();
        let is_write = matches!(entry.io, Io::Write(_));
        let is_full = is_write && self.has_no_room(entry.first..entry.end, now, rng);
        let failed = is_full
            || self.plug.fails(op, rng)
            || self.fails(kind, entry.first, entry.end, now, rng);
        if failed && kind == IoKind::Read && self.reads_fail_first > 0 {
            self.reads_fail_first -= 1;
        }
        if kind == IoKind::Read {
            self.reads_fail_after = self.reads_fail_after.saturating_sub(1);
        }
        let sectors = entry.first..entry.end;
        let mut forgot = Vec::new();
        let result = match (is_full, failed) {
            (true, _) => Err(IoError::NoSpace),
            (false, true) => Err(IoError::Io),
            (false, false) => Ok(()),
        };
        let buf = match std::mem::replace(&mut entry.io, Io::Flush) {
            Io::Read(mut buf) if failed => {
                spoil(buf.bytes_mut(), rng);
                buf
            }
            Io::Read(mut buf) => {
                self.finish_read(entry.first, buf.bytes_mut(), rng);
                buf
            }
            Io::Write(buf) => {
                match entry.astray {
                    Some(astray) if !failed => self.write_astray(entry.first, buf.bytes(), astray),
                    _ => self.finish_write(&entry, buf.bytes(), failed, rng),
                }
                buf
            }
            Io::Zero(count) => {
                let zeros = vec![0; count as usize * SECTOR_SIZE];
                self.finish_write(&entry, &zeros, failed, rng);
                Buf::empty()
            }
            Io::Discard(count) => {
                self.finish_discard(entry.first, count, rng);
                Buf::empty()
            }
            Io::Flush => {
                forgot = self.finish_flush(entry.mark, failed, rng);
                Buf::empty()
            }
        };
        self.plug.ended(op);
        Some(Finished { completion: Completion { result, buf }, kind, sectors, forgot })
    }

    /// Whether there is no room for one of these sectors now. What was written before has its own,
    /// mostly: snapshots and file systems that write elsewhere want new room for it, too.
    fn has_no_room(&self, mut sectors: Range<u64>, now: Time, rng: &mut Rng) -> bool {
        let Some((least, when)) = &self.no_room else { return false };
        let is_new = |sector: u64| !self.current.written(sector);
        let is_there = sectors.start >= *least && when.contains(&now);
        is_there && (sectors.any(is_new) || rng.one_in(4))
    }

    fn fails(&self, kind: IoKind, first: u64, end: u64, now: Time, rng: &mut Rng) -> bool {
        if now >= self.dead_from {
            return true;
        }
        if kind == IoKind::Read && self.unreadable.range(first..end).next().is_some() {
            return true;
        }
        let may_fail = self.reads_fail_first > 0 && self.reads_fail_after == 0;
        if kind == IoKind::Read && may_fail && rng.one_in(4) {
            return true;
        }
        let hit = |fault: &Fault, rng: &mut Rng| {
            fault.covers(kind, first, end, now) && rng.one_in(fault.one_in)
        };
        self.faults.iter().any(|fault| hit(fault, rng))
    }

    /// The buffer holds what was there at submission. Mixes in what is there now and what is on its
    /// way.
    fn finish_read(&mut self, first: u64, out: &mut [u8], rng: &mut Rng) {
        let late = rng.below(4);
        let end = first + (out.len() / SECTOR_SIZE) as u64;
        for (sector, bytes) in (first..end).zip(out.chunks_exact_mut(SECTOR_SIZE)) {
            if late == 0 || (late == 1 && rng.coin()) {
                self.current.read(sector, bytes);
            }
        }
        for entry in self.in_flight.values_mut() {
            if entry.first >= end || entry.end <= first {
                continue;
            }
            let both = entry.first.max(first)..entry.end.min(end);
            for sector in both {
                let at = (sector - first) as usize * SECTOR_SIZE;
                let from = (sector - entry.first) as usize * SECTOR_SIZE;
                let bytes = &mut out[at..at + SECTOR_SIZE];
                match &entry.io {
                    Io::Write(data) if rng.coin() => {
                        bytes.copy_from_slice(&data.bytes()[from..from + SECTOR_SIZE]);
                    }
                    Io::Zero(_) if rng.coin() => bytes.fill(0),
                    _ => continue,
                }
                entry.shown.insert(sector);
            }
        }
    }

    /// Applies a write. Where another write completed while this one was under way, either may win.
    /// Of a failed write any part arrives, and all that a read has seen.
    fn finish_write(&mut self, entry: &InFlight, data: &[u8], failed: bool, rng: &mut Rng) {
        let (first, mark) = (entry.first, entry.mark);
        let count = (data.len() / SECTOR_SIZE) as u64;
        let rivals: Vec<Range<u64>> = self
            .pending
            .iter()
            .filter(|done| done.number > mark)
            .map(Pending::sectors)
            .filter(|done| done.start < first + count && first < done.end)
            .collect();
        if rivals.is_empty() && !failed {
            self.store(first, data.to_vec());
            return;
        }
        for (sector, bytes) in (first..).zip(data.chunks_exact(SECTOR_SIZE)) {
            let contested = failed || rivals.iter().any(|rival| rival.contains(&sector));
            if !contested || entry.shown.contains(&sector) || rng.coin() {
                self.store(sector, bytes.to_vec());
            }
        }
    }

    fn write_astray(&mut self, first: u64, data: &[u8], astray: Astray) {
        let from = astray.page as usize * SECTOR_SIZE;
        let page = forebay_format::BLOCK_SIZE.min(data.len() - from);
        if from > 0 {
            self.store(first, data[..from].to_vec());
        }
        if from + page < data.len() {
            let rest = first + ((from + page) / SECTOR_SIZE) as u64;
            self.store(rest, data[from + page..].to_vec());
        }
        if let Some(place) = astray.lands {
            self.store(place, data[from..from + page].to_vec());
        }
    }

    fn finish_discard(&mut self, first: u64, count: u64, rng: &mut Rng) {
        let share = rng.pick(&[0.0, 0.5, 1.0]);
        for sector in first..first + count {
            if rng.chance(share) {
                self.store(sector, vec![0; SECTOR_SIZE]);
            }
        }
    }

    /// Takes completed content in.
    fn store(&mut self, first: u64, data: Vec<u8>) {
        self.completed += 1;
        self.current.write(first, &data);
        let end = first + (data.len() / SECTOR_SIZE) as u64;
        if !self.unreadable.is_empty() {
            self.unreadable.retain(|sector| !(first..end).contains(sector));
        }
        if self.volatile {
            self.pending.push(Pending { number: self.completed, first, data });
        } else {
            self.durable.write(first, &data);
        }
    }

    /// Returns what it forgot.
    fn finish_flush(&mut self, mark: u64, failed: bool, rng: &mut Rng) -> Vec<(u64, Content)> {
        let covered = self.pending.partition_point(|done| done.number <= mark);
        if !failed {
            for done in self.pending.drain(..covered) {
                self.durable.write(done.first, &done.data);
            }
            return Vec::new();
        }
        match self.flush_loss {
            FlushLoss::Nothing => {}
            FlushLoss::Some => {
                let some = rng.below(covered as u64 + 1) as usize;
                for done in self.pending.drain(..some) {
                    self.durable.write(done.first, &done.data);
                }
            }
            FlushLoss::Forget => return self.forget(),
        }
        Vec::new()
    }

    /// What no FLUSH has made durable is gone. Returns what that was.
    fn forget(&mut self) -> Vec<(u64, Content)> {
        let lost: Vec<Pending> = self.pending.drain(..).collect();
        self.revert(lost.iter().map(Pending::sectors));
        let contents = lost.iter().flat_map(|done| {
            let bytes = done.data.chunks_exact(SECTOR_SIZE);
            done.sectors().zip(bytes.map(content::parse))
        });
        contents.collect()
    }

    /// The given sectors hold what is durable again.
    fn revert(&mut self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut bytes = [0; SECTOR_SIZE];
        for sector in ranges.flatten() {
            self.durable.read(sector, &mut bytes);
            self.current.write(sector, &bytes);
        }
    }

    /// Cuts the power. Sectors in flight may be spoilt when `spoil_allowed` says yes for them.
    pub fn power_cut(
        &mut self,
        mode: CutMode,
        spoil_allowed: impl Fn(u64) -> bool,
        rng: &mut Rng,
    ) -> CutReport {
        self.plug = plug::Plug::default();
        let mut report = CutReport::default();
        let mut spoilt = BTreeSet::new();
        for entry in std::mem::take(&mut self.in_flight).into_values() {
            self.tear(&entry, &spoil_allowed, &mut spoilt, &mut report, rng);
        }
        let pending = std::mem::take(&mut self.pending);
        report.pending = pending.len() as u64;
        keep(&pending, mode, rng, |sector, bytes| self.durable.write(sector, bytes));
        self.revert(pending.iter().map(Pending::sectors));
        for sector in spoilt {
            let mut bytes = [0; SECTOR_SIZE];
            spoil(&mut bytes, rng);
            self.poke(sector, &bytes);
            if rng.coin() {
                self.unreadable.insert(sector);
            }
            report.spoilt += 1;
        }
        report
    }

    fn tear(
        &mut self,
        entry: &InFlight,
        spoil_allowed: &impl Fn(u64) -> bool,
        spoilt: &mut BTreeSet<u64>,
        report: &mut CutReport,
        rng: &mut Rng,
    ) {
        let share = rng.pick(&[0.0, 0.1, 0.5, 0.9, 1.0]);
        let spoils = rng.one_in(2);
        let mut arrived = 0;
        for sector in entry.first..entry.end {
            let from = (sector - entry.first) as usize * SECTOR_SIZE;
            let data = match &entry.io {
                Io::Write(buf) => buf.bytes()[from..from + SECTOR_SIZE].to_vec(),
                Io::Zero(_) => vec![0; SECTOR_SIZE],
                _ => return,
            };
            if rng.chance(share) {
                arrived += 1;
                self.completed += 1;
                // Even without a volatile cache what is in flight may arrive or not, each sector by
                // itself.
                self.pending.push(Pending { number: self.completed, first: sector, data });
            }
            let is_write = matches!(entry.io, Io::Write(_));
            if is_write && spoils && rng.one_in(8) && spoil_allowed(sector) {
                spoilt.insert(sector);
            }
        }
        report.in_flight += 1;
        report.torn += u64::from(arrived > 0 && arrived < entry.end - entry.first);
    }

    /// What would be read of it now.
    pub fn image(&self) -> Store {
        self.current.clone()
    }

    /// Somebody has put another one in its place, with nothing in its cache.
    pub fn restore(&mut self, image: Store) {
        self.durable = image.clone();
        self.current = image;
        self.pending.clear();
    }

    /// The process that used the disk is gone; the disk is not.
    pub fn kill(&mut self, rng: &mut Rng) {
        self.plug = plug::Plug::default();
        for entry in std::mem::take(&mut self.in_flight).into_values() {
            match &entry.io {
                Io::Write(buf) if rng.coin() => self.store(entry.first, buf.bytes().to_vec()),
                Io::Zero(count) if rng.coin() => {
                    self.store(entry.first, vec![0; *count as usize * SECTOR_SIZE]);
                }
                Io::Flush if rng.coin() => {
                    self.finish_flush(entry.mark, false, rng);
                }
                _ => {}
            }
        }
    }
}

/// What a power cut met.
#[derive(Debug, Default, Clone, Copy)]
pub struct CutReport {
    /// Writes under way.
    pub in_flight: u64,
    /// Of them, those of which a part arrived.
    pub torn: u64,
    /// Completed writes that no flush had covered.
    pub pending: u64,
    /// Sectors that became garbage or unreadable.
    pub spoilt: u64,
}

impl Pending {
    fn sectors(&self) -> Range<u64> {
        self.first..self.first + (self.data.len() / SECTOR_SIZE) as u64
    }
}

impl InFlight {
    fn kind(&self) -> IoKind {
        match self.io {
            Io::Read(_) => IoKind::Read,
            Io::Write(_) | Io::Zero(_) | Io::Discard(_) => IoKind::Write,
            Io::Flush => IoKind::Flush,
        }
    }
}

/// Calls `write` for each sector of a pending write that survives.
fn keep(pending: &[Pending], mode: CutMode, rng: &mut Rng, mut write: impl FnMut(u64, &[u8])) {
    let count = pending.len() as u64;
    if count == 0 {
        return;
    }
    let cut = rng.below(count + 1);
    let chosen = &pending[rng.below(count) as usize];
    let one = (chosen.number, chosen.first + rng.below(chosen.sectors().count() as u64));
    let one_is_kept = rng.coin();
    for (index, done) in pending.iter().enumerate() {
        let whole = rng.coin();
        for (sector, bytes) in done.sectors().zip(done.data.chunks_exact(SECTOR_SIZE)) {
            let kept = match mode {
                CutMode::DropAll => false,
                CutMode::KeepAll => true,
                CutMode::Independent => rng.coin(),
                CutMode::PerWrite => whole,
                CutMode::NewestFirst => index as u64 >= cut,
                CutMode::GlobalPrefix => (index as u64) < cut,
                CutMode::OneSectorOnly => ((done.number, sector) == one) == one_is_kept,
            };
            if kept {
                write(sector, bytes);
            }
        }
    }
}

/// Bytes that nobody wrote.
fn spoil(bytes: &mut [u8], rng: &mut Rng) {
    let mut value = rng.bits() | 1;
    for chunk in bytes.chunks_mut(8) {
        value = value.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ 0xbad;
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
}
