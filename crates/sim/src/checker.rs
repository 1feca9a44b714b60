//! The oracle: holds what clients were told against what they read, sector by sector.

use crate::content::{self, Content};
use crate::disk::Disk;
use crate::model::{Crash, NEVER, Sector, Stamp, Value, Violation, WriteSpec};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::collections::BTreeSet;
use std::ops::Range;

/// What is known of one origin and the volume in front of it.
struct History {
    sectors: Vec<Sector>,
    /// Sectors that were ever written, each once.
    touched: Vec<u64>,
    is_touched: Vec<bool>,
    /// Submissions of the requests that wait for an answer.
    waiting: BTreeSet<Stamp>,
    /// Sectors of which the origin forgot a write.
    loose: Vec<u64>,
    /// Submission of the last removal that was refused with the word that writes before may be
    /// gone, in this life; 0 for none.
    told: Stamp,
    /// Submission of the last flush that was acknowledged.
    flushed: Stamp,
    /// Whether that was in this life.
    reflushed: bool,
    /// The volume was put on the origin in this life: what it found there may not be durable.
    adopted: bool,
}

/// The oracle.
pub struct Checker {
    histories: Vec<History>,
    /// Sectors checked by reads.
    pub sectors_read: u64,
    /// Forgets nothing: what is durable may be destroyed in this world.
    pub keeps_all: bool,
}

impl Checker {
    /// An oracle for origins of so many sectors.
    pub fn new(sectors: &[u64]) -> Checker {
        let history = |&count: &u64| History {
            sectors: vec![Sector::default(); count as usize],
            touched: Vec::new(),
            is_touched: vec![false; count as usize],
            waiting: BTreeSet::new(),
            loose: Vec::new(),
            told: 0,
            flushed: 0,
            reflushed: false,
            adopted: false,
        };
        Checker {
            histories: sectors.iter().map(history).collect(),
            sectors_read: 0,
            keeps_all: false,
        }
    }

    /// A request was submitted.
    pub fn submitted(&mut self, disk: usize, invoke: Stamp) {
        self.histories[disk].waiting.insert(invoke);
    }

    /// A request was answered.
    pub fn answered(&mut self, disk: usize, invoke: Stamp) {
        self.histories[disk].waiting.remove(&invoke);
    }

    /// A write was submitted; call [`Checker::submitted`] too.
    pub fn begin_write(&mut self, disk: usize, range: Range<u64>, write: WriteSpec, invoke: Stamp) {
        let history = &mut self.histories[disk];
        let oldest = history.waiting.first().copied().unwrap_or(NEVER);
        let oldest = if self.keeps_all { 0 } else { oldest };
        for sector in range {
            let index = sector as usize;
            if !history.is_touched[index] {
                history.is_touched[index] = true;
                history.touched.push(sector);
            }
            history.sectors[index].begin(write, invoke, oldest, history.flushed);
        }
    }

    /// A write was answered.
    pub fn end_write(&mut self, disk: usize, range: Range<u64>, id: u64, now: Stamp, ok: bool) {
        for sector in range {
            self.histories[disk].sectors[sector as usize].end(id, now, ok);
        }
    }

    /// A flush that was submitted at `invoke` succeeded.
    pub fn flushed(&mut self, disk: usize, invoke: Stamp) {
        let history = &mut self.histories[disk];
        history.flushed = history.flushed.max(invoke);
        history.reflushed = true;
        let sectors = &mut history.sectors;
        history.loose.retain(|&sector| !sectors[sector as usize].tighten(invoke));
    }

    /// A client's flush was answered with an error: it knows that what it wrote may be gone.
    pub fn told(&mut self, disk: usize) {
        self.histories[disk].loose.clear();
    }

    /// A removal that was asked for at `invoke` was refused with the word that what was written
    /// before may be gone: the next one need not say so again.
    pub fn told_for_good(&mut self, disk: usize, invoke: Stamp) {
        self.told(disk);
        let history = &mut self.histories[disk];
        history.told = history.told.max(invoke);
    }

    /// The origin forgot a write to the sector that it had not made durable, and that only the
    /// origin had: until a flush succeeds, or for good when one fails first, what was there before
    /// may be there.
    pub fn loosen(&mut self, disk: usize, sector: u64, now: Stamp, replugged: bool) {
        let history = &mut self.histories[disk];
        history.sectors[sector as usize].loosen(now, history.flushed);
        let told = history.told;
        if told == 0 || !replugged || history.sectors[sector as usize].acknowledged_since(told) {
            history.loose.push(sector);
        }
    }

    /// Whether this write was acknowledged.
    pub fn is_acknowledged(&self, disk: usize, sector: u64, version: u64) -> bool {
        self.histories[disk].sectors[sector as usize].is_acknowledged(version)
    }

    /// A volume was put on the origin.
    pub fn adopted(&mut self, disk: usize) {
        self.histories[disk].adopted = true;
    }

    /// A read returned these bytes from sector `first` on.
    ///
    /// # Errors
    /// The first rule that a sector breaks.
    pub fn read(
        &mut self,
        disk: usize,
        first: u64,
        bytes: &[u8],
        invoke: Stamp,
        now: Stamp,
    ) -> Result<(), Violation> {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR_SIZE)) {
            self.sectors_read += 1;
            let value = value_of(disk, sector, bytes)?;
            let history = &mut self.histories[disk];
            let entry = &mut history.sectors[sector as usize];
            let adopted = history.adopted && !history.reflushed;
            let result = match adopted || entry.is_chosen(history.flushed) {
                true => entry.read_unflushed(value, invoke, now),
                false => entry.read(value, invoke, now),
            };
            result.map_err(|mut violation| {
                violation.text = format!("disk {disk} sector {sector}: {}", violation.text);
                violation
            })?;
        }
        Ok(())
    }

    /// The world crashed: a killed process or a power cut.
    pub fn crash(&mut self, crash: Crash) {
        for history in &mut self.histories {
            history.waiting.clear();
            for &sector in &history.touched {
                history.sectors[sector as usize].crash(crash, history.flushed, history.reflushed);
            }
            (history.reflushed, history.adopted) = (false, false);
            history.loose.clear();
            history.told = 0;
        }
    }

    /// Sectors that were ever written.
    pub fn touched(&self, disk: usize) -> &[u64] {
        &self.histories[disk].touched
    }

    /// Whether any of these sectors, as far as they exist, was ever written.
    pub fn any_touched(&self, disk: usize, mut range: Range<u64>) -> bool {
        let touched = &self.histories[disk].is_touched;
        range.any(|sector| touched.get(sector as usize) == Some(&true))
    }

    /// The sector's history in words.
    pub fn describe(&self, disk: usize, sector: u64) -> String {
        self.histories[disk].sectors[sector as usize].describe()
    }

    /// What a read of the sector that is submitted now could return.
    pub fn possible(&self, disk: usize, sector: u64, now: Stamp) -> Vec<Value> {
        self.histories[disk].sectors[sector as usize].possible(now)
    }

    /// Whether a read of the sector that is submitted now could return these bytes.
    pub fn could_read(&self, disk: usize, sector: u64, bytes: &[u8], now: Stamp) -> bool {
        let value = value_of(disk, sector, bytes);
        value.is_ok_and(|value| self.possible(disk, sector, now).contains(&value))
    }

    /// Whether a read of the sector can only return what `bytes`, read from the origin, hold.
    pub fn origin_suffices(&self, disk: usize, sector: u64, bytes: &[u8], now: Stamp) -> bool {
        let Ok(value) = value_of(disk, sector, bytes) else { return false };
        self.histories[disk].sectors[sector as usize].possible(now) == [value]
    }

    /// The last good copy of the block of this sector may be gone: errors are allowed for it.
    pub fn lose_block(&mut self, disk: usize, sector: u64, now: Stamp) {
        let per_block = SECTORS_PER_BLOCK as u64;
        let first = sector / per_block * per_block;
        let history = &mut self.histories[disk];
        let end = (first + per_block).min(history.sectors.len() as u64);
        for sector in first..end {
            history.sectors[sector as usize].lose(now);
        }
    }

    /// Whether an error is allowed for a request on these sectors that was submitted at `invoke`.
    pub fn any_lost(&self, disk: usize, range: Range<u64>, invoke: Stamp) -> bool {
        self.histories[disk].sectors[range.start as usize..range.end as usize]
            .iter()
            .any(|sector| sector.is_lost(invoke))
    }

    /// Whether an error is allowed for any sector of this disk.
    pub fn has_lost(&self, disk: usize) -> bool {
        let history = &self.histories[disk];
        // A neighbour of a touched sector may be lost too, but never without it.
        history.touched.iter().any(|&sector| history.sectors[sector as usize].is_lost(NEVER))
    }

    /// The administrator gave the block up: what the origin holds counts there from now on. What
    /// was there before may still be read: nothing says when the cache forgets it.
    pub fn give_up(&mut self, disk: usize, block: u64, origin: &Disk, now: Stamp) {
        let history = &mut self.histories[disk];
        let per_block = SECTORS_PER_BLOCK as u64;
        let end = ((block + 1) * per_block).min(history.sectors.len() as u64);
        for sector in block * per_block..end {
            let entry = &mut history.sectors[sector as usize];
            for bytes in origin.versions(sector) {
                if let Ok(value) = value_of(disk, sector, &bytes) {
                    entry.also_allow(value, now);
                }
            }
        }
    }
}

fn value_of(disk: usize, sector: u64, bytes: &[u8]) -> Result<Value, Violation> {
    match content::parse(bytes) {
        Content::Zero => Ok(Value::Zero),
        Content::Data { disk: d, sector: s, version } if d == disk && s == sector => {
            Ok(Value::Data(version))
        }
        other => Err(Violation::new(
            "F",
            format!("disk {disk} sector {sector}: foreign content {other:?}"),
        )),
    }
}
