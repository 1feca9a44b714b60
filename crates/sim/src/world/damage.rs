//! What breaks, and the atlas: which client data the scheduler may have destroyed the last good
//! copy of.

use super::copies::{Copied, client_data, copies, copies_in_blocks};
use super::{Due, Flow, Life, Place, Step, World};
use crate::content::{self, Content};
use crate::disk::{Astray, Disk, Fault, FlushLoss, Io, IoKind};
use crate::model::{Value, Violation};
use crate::swarm::Faults;
use forebay_engine::{BlockStatus, Engine, VolumeId};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;
/// Random places that are looked at to find one that holds client data.
const SEARCH_MAX: u64 = 64;

impl World {
    /// Plans the errors of a life.
    pub(super) fn plan_faults(&mut self) {
        let faults = self.params.faults.clone();
        let span = (self.params.requests * self.params.think_ns).max(1_000_000);
        for index in 0..self.origins.len() {
            let loss = faults.origin_flush_loss.unwrap_or(FlushLoss::Nothing);
            self.origins[index].disk.flush_loss = loss;
            for _ in 0..faults.origin_errors {
                let size = self.origins[index].disk.sectors();
                let fault = self.plan_fault(0..size, span, 0);
                self.origins[index].disk.faults.push(fault);
            }
        }
        for index in 0..self.caches.len() {
            let size = self.caches[index].sectors();
            let first = self.layout.segments_offset / SECTOR_SIZE as u64;
            self.caches[index].flush_loss = faults.cache_flush_loss.unwrap_or(FlushLoss::Nothing);
            // Of several devices only one fails: the others hold the mirror.
            if index == faults.bad_device {
                // Recovery meets fewer errors than it tries: what it cannot read at all may have
                // been the end of the log or not, and a single copy does not tell. The others begin
                // when it serves.
                self.caches[index].reads_fail_first = faults.cache_read_errors.min(3);
                if faults.start_reads > 0 {
                    self.caches[index].reads_fail_after = self.rng.below(faults.start_reads);
                }
                for _ in 0..faults.cache_read_errors {
                    let fault = self.plan_fault(first..size, span, 1);
                    self.life.read_faults.push(fault);
                }
                for _ in 0..faults.cache_write_errors {
                    let fault = self.plan_fault(0..size, span, 2);
                    self.caches[index].faults.push(fault);
                }
            }
        }
        self.plan_metadata_errors();
        for _ in 0..faults.rot {
            let after = self.rng.below(span);
            self.schedule(after, Due::Rot);
        }
        if self.rng.chance(faults.vanish) {
            let early = faults.vanish_early && self.wide_rng.coin();
            let after = match early {
                true => self.wide_rng.log_range(1_000, 100_000_000),
                false => self.rng.below(span),
            };
            let any = self.rng.below(self.caches.len() as u64) as usize;
            let device = if faults.one_vanishes { faults.bad_device } else { any };
            self.schedule(after, Due::Vanish(device));
        }
    }

    /// `what`: 0 any I/O, 1 reads, 2 writes and flushes.
    fn plan_fault(&mut self, sectors: Range<u64>, span: u64, what: u64) -> Fault {
        let kind = match what {
            0 => self.rng.pick(&[IoKind::Read, IoKind::Write, IoKind::Flush]),
            1 => IoKind::Read,
            _ => self.rng.pick(&[IoKind::Write, IoKind::Flush]),
        };
        let room = sectors.end - sectors.start;
        let first = sectors.start + self.rng.below(room);
        let count = self.rng.log_range(1, room.max(2));
        let from = self.now + self.rng.below(span);
        let lasts = self.rng.chance(self.params.faults.lasting);
        let until = if lasts { u64::MAX } else { from + self.rng.below(span) };
        let one_in = self.rng.pick(&[1, 1, 3]);
        Fault { kind, first, end: first + count, from, until, one_in }
    }

    /// The content of these sectors of a cache device is, or may be, unreadable: whatever client
    /// data is there and neither at the origin nor on another cache device may be lost.
    pub(super) fn harm(&mut self, device: usize, sectors: Range<u64>) {
        let found = copies(&self.caches[device], sectors);
        for copy in found {
            self.harm_copy(device, copy);
        }
    }

    /// A read failed: the blocks in it that cannot be read are harmed, those beside them are not.
    pub(super) fn harm_unreadable(&mut self, device: usize, sectors: Range<u64>) {
        let now = self.now;
        let end = sectors.end;
        for block in sectors.step_by(SECTORS_PER_BLOCK) {
            let block = block..(block + PER_BLOCK).min(end);
            if block.clone().any(|sector| self.caches[device].is_unreadable(sector, now)) {
                self.harm(device, block);
            }
        }
    }

    fn harm_copy(&mut self, device: usize, copy: Copied) {
        let (disk, sector, _) = copy;
        // A block on its way home is dirty until a FLUSH of the origin and a record follow.
        let home = self.origin_has(disk, sector) && !self.is_dirty(disk, sector / PER_BLOCK);
        if !home && self.others_have(device, copy) {
            return;
        }
        self.harmed.insert(copy, self.totals.crashes);
        if home {
            return;
        }
        self.coverage.mark("last copies destroyed");
        self.say(|_| format!("the last copy of disk {disk} sector {sector} is harmed"));
        self.checker.lose_block(disk, sector, self.stamp);
    }

    /// Whether this sector is after a crash what it was when its copy was harmed: the record that
    /// called it clean was lost, or the one that replaced it.
    fn came_back_harmed(&self, disk: usize, sector: u64) -> bool {
        let harmed = |value: &Value| match *value {
            Value::Data(version) => self
                .harmed
                .get(&(disk, sector, version))
                .is_some_and(|&crashes| crashes < self.totals.crashes),
            Value::Zero => false,
        };
        self.checker.possible(disk, sector, self.stamp).iter().any(harmed)
    }

    /// Whether the origin has all that a client may read there. Its block counts as a whole.
    pub(super) fn origin_has(&self, disk: usize, sector: u64) -> bool {
        let first = sector / PER_BLOCK * PER_BLOCK;
        let end = (first + PER_BLOCK).min(self.origins[disk].disk.sectors());
        let mut bytes = [0; SECTOR_SIZE];
        (first..end).all(|sector| {
            self.origins[disk].disk.peek(sector, &mut bytes);
            self.checker.origin_suffices(disk, sector, &bytes, self.stamp)
        })
    }

    fn others_have(&self, device: usize, copy: Copied) -> bool {
        let first = self.layout.segments_offset / SECTOR_SIZE as u64;
        self.used_beside(device)
            .any(|(index, disk)| self.copies_on(index, first..disk.sectors()).contains(&copy))
    }

    /// The other cache devices that are there and were not given up.
    fn used_beside(&self, device: usize) -> impl Iterator<Item = (usize, &Disk)> {
        let is_used = move |(index, disk): &(usize, &Disk)| {
            *index != device
                && disk.dead_from > self.now
                && !self.life.devices_failed.contains(index)
        };
        self.caches.iter().enumerate().filter(is_used)
    }

    /// Notes when client data goes to a cache device.
    pub(super) fn note_written(&mut self, device: usize, bytes: &[u8]) {
        if self.caches.len() > 2 || self.params.admin.replace_ns > 0 {
            let brought = bytes.chunks_exact(SECTOR_SIZE).filter_map(client_data);
            self.written.extend(brought.map(|copy| ((device, copy), self.now)));
        }
    }

    /// All dirty data on devices that are gone is out of reach, unless another device holds it too:
    /// with one of two devices missing for a while, some of it has one copy only. What went to this
    /// device later than to another was moved to a place whose partner was missing, maybe: the copy
    /// on the other is then one that the log has left. Beside a whole mirror only what a crash left
    /// undecided may be on one device: nobody was promised anything of it.
    pub(super) fn lose_dirty(&mut self, gone: usize, whole: bool) {
        if whole && self.undecided.is_empty() {
            return;
        }
        let first = self.layout.segments_offset / SECTOR_SIZE as u64;
        let mut elsewhere = BTreeSet::new();
        let moved = |device: usize, copy: &Copied| {
            let at = |device| self.written.get(&(device, *copy));
            at(gone) > at(device)
        };
        for (index, disk) in self.used_beside(gone) {
            let there = self.copies_on(index, first..disk.sectors()).into_iter();
            elsewhere.extend(there.filter(|copy| !moved(index, copy)));
        }
        for disk in 0..self.origins.len() {
            for sector in self.checker.touched(disk).to_vec() {
                if whole && !self.undecided.contains(&(disk, sector / PER_BLOCK)) {
                    continue;
                }
                let held = |value: Value| match value {
                    Value::Data(version) => elsewhere.contains(&(disk, sector, version)),
                    Value::Zero => false,
                };
                let safe = self.checker.possible(disk, sector, self.stamp).into_iter().all(held);
                // A block on its way home is dirty until a FLUSH of the origin and a record follow.
                let dirty = self.is_dirty(disk, sector / PER_BLOCK);
                if !safe && (dirty || !self.origin_has(disk, sector)) {
                    self.checker.lose_block(disk, sector, self.stamp);
                }
            }
        }
    }

    pub(super) fn is_dirty(&self, disk: usize, block: u64) -> bool {
        let volume = self.origins[disk].volume;
        let status = |engine: &Engine| volume.map(|volume| engine.block_status(volume, block));
        self.engine.as_ref().and_then(status) == Some(BlockStatus::Dirty)
    }

    fn is_dirty_sector(&self, disk: usize, sector: u64) -> bool {
        let (Some(volume), Some(engine)) = (self.origins[disk].volume, &self.engine) else {
            return false;
        };
        engine.dirty_sectors(volume, sector / PER_BLOCK) & (1 << (sector % PER_BLOCK)) != 0
    }

    fn is_being_written(&self, disk: usize, sector: u64) -> bool {
        let mut open = self.requests.values().filter(|waiting| waiting.disk == disk);
        open.any(|waiting| waiting.writes() && waiting.range.contains(&sector))
    }

    /// Whether each copy on the one device that had any trouble has a sound one on another: no
    /// error of that device reaches clients or commands, and nothing that was promised is lost.
    pub(super) fn mirror_is_whole(&self) -> bool {
        let bad = self.params.faults.bad_device;
        self.caches.len() > 1 && self.troubled.iter().all(|&device| device == bad)
    }

    /// Whether what was destroyed in this life may have had no whole second copy.
    pub(super) fn log_is_damaged(&self) -> bool {
        let Life { damaged, vanished, devices, .. } = &self.life;
        let spoilt = damaged.union(vanished).count();
        !damaged.is_empty() && (devices.len() < 2 || spoilt > 1)
    }

    /// A write to these sectors of a cache device failed: what it brought is on another device, or
    /// stands in an older record, or will be written again before a client hears of it.
    pub(super) fn write_failed(&mut self, device: usize, sectors: &Range<u64>, bytes: &[u8]) {
        let brought: BTreeSet<Copied> =
            bytes.chunks_exact(SECTOR_SIZE).filter_map(client_data).collect();
        let first = self.layout.segments_offset / SECTOR_SIZE as u64;
        let mut elsewhere = BTreeSet::new();
        for (index, disk) in self.without_strangers() {
            // Of the device itself only what this write has not touched.
            let touched = if index == device { sectors.clone() } else { first..first };
            elsewhere.extend(copies_in_blocks(disk, first..touched.start));
            elsewhere.extend(copies_in_blocks(disk, touched.end..disk.sectors()));
        }
        self.life.unwritten.extend(brought.difference(&elsewhere));
        let alone = !self.life.unwritten.is_empty();
        self.coverage.add("failed writes whose data is nowhere else yet", u64::from(alone));
    }

    /// A write to a cache device brought these bytes.
    pub(super) fn written_after_all(&mut self, bytes: &[u8]) {
        for copy in bytes.chunks_exact(SECTOR_SIZE).filter_map(client_data) {
            self.life.unwritten.remove(&copy);
        }
    }

    /// A client was told that this is written: some copy of it must be.
    ///
    /// # Errors
    /// Each copy failed, and the origin does not have it.
    pub(super) fn check_written(
        &self,
        disk: usize,
        sectors: Range<u64>,
        version: u64,
    ) -> Result<(), Violation> {
        if self.life.unwritten.is_empty() {
            return Ok(());
        }
        let mut bytes = [0; SECTOR_SIZE];
        for sector in sectors {
            let copy = (disk, sector, version);
            self.origins[disk].disk.peek(sector, &mut bytes);
            if self.life.unwritten.contains(&copy) && client_data(&bytes) != Some(copy) {
                let text = format!(
                    "write {version} of disk {disk} is acknowledged, but each copy of its sector \
                     {sector} failed"
                );
                return Err(Violation::new("K", text));
            }
        }
        Ok(())
    }

    /// Notes which writes to an origin bring what a client was told before: those the cache must
    /// keep until a FLUSH.
    pub(super) fn note_home(&mut self, disk: usize, bytes: &[u8]) {
        let forgets = self.params.faults.origin_flush_loss == Some(FlushLoss::Forget);
        if !forgets && self.params.admin.replug == 0.0 {
            return;
        }
        for copy in bytes.chunks_exact(SECTOR_SIZE).filter_map(client_data) {
            let (_, sector, version) = copy;
            if self.checker.is_acknowledged(disk, sector, version) {
                self.sent_home.insert(copy);
            }
        }
    }

    /// A failed FLUSH lost these writes: what clients wrote past the cache may be gone.
    /// Or it was pulled out, and is `replugged`.
    pub(super) fn origin_forgot(
        &mut self,
        disk: usize,
        forgot: &[(u64, Content)],
        replugged: bool,
    ) {
        for &(sector, content) in forgot {
            let home = match content {
                Content::Data { disk, sector, version } => {
                    self.sent_home.contains(&(disk, sector, version))
                }
                // What is in the cache may be a later write, which reads of before need not see.
                _ => self.is_dirty_sector(disk, sector) && !self.is_being_written(disk, sector),
            };
            self.coverage.mark(match home {
                true => "sectors forgotten that the cache keeps",
                false => "sectors forgotten that clients wrote past the cache",
            });
            if !home {
                self.say(|_| format!("disk {disk} sector {sector} forgot {content:?}"));
                self.checker.loosen(disk, sector, self.stamp, replugged);
            }
        }
    }

    /// A sector with client data rots, on one device only: another may hold its mirror.
    pub(super) fn rot(&mut self) -> Step {
        if self.calm || !self.life.serving {
            return Ok(Flow::Go);
        }
        let device = self.params.faults.bad_device;
        if let Some(sector) = self.find_client_sector(device) {
            let block = sector / PER_BLOCK * PER_BLOCK;
            self.say(|_| format!("cache {device} sector {sector} rots"));
            self.troubled.insert(device);
            self.harm(device, block..block + PER_BLOCK);
            let mut bytes = [0; SECTOR_SIZE];
            self.caches[device].peek(sector, &mut bytes);
            let bits = self.rng.log_range(1, 4096);
            for _ in 0..bits {
                let bit = self.rng.below(8 * SECTOR_SIZE as u64);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
            if content::parse(&bytes) == Content::Foreign {
                self.caches[device].poke(sector, &bytes);
                self.coverage.mark("sectors rotten");
                self.life.damaged.insert(device);
            }
        }
        Ok(Flow::Go)
    }

    fn find_client_sector(&mut self, device: usize) -> Option<u64> {
        let first = self.layout.segments_offset / SECTOR_SIZE as u64;
        let room = self.caches[device].sectors() - first;
        let mut bytes = [0; SECTOR_SIZE];
        for _ in 0..SEARCH_MAX {
            let sector = first + self.rng.below(room);
            if self.caches[device].written(sector) {
                self.caches[device].peek(sector, &mut bytes);
                if client_data(&bytes).is_some() {
                    return Some(sector);
                }
            }
        }
        None
    }

    /// Decides whether a page of this write to a cache device gets lost or lands on another page of
    /// client data. The header of a record is spared: what a record without a header held nobody
    /// can know.
    pub(super) fn plan_astray(&mut self, place: Place, offset: u64, io: &Io) -> Option<Astray> {
        let one_in = self.params.faults.astray_one_in;
        let (Place::Cache(device), Io::Write(buf)) = (place, io) else { return None };
        if one_in == 0
            || !self.life.serving
            || device != self.params.faults.bad_device
            || offset < self.layout.segments_offset
        {
            return None;
        }
        let pages = (buf.len() / BLOCK_SIZE) as u64;
        if pages < 2 || !self.rng.one_in(one_in) {
            return None;
        }
        let page = self.rng.range(1, pages - 1) * PER_BLOCK;
        let data = &buf.bytes()[page as usize * SECTOR_SIZE..][..BLOCK_SIZE];
        let found: Vec<Copied> = data.chunks_exact(SECTOR_SIZE).filter_map(client_data).collect();
        // A page without client data may be all zeros that a client wrote: nobody could tell whose.
        if found.is_empty() {
            return None;
        }
        let victim = if self.rng.coin() { self.find_client_sector(device) } else { None };
        let own = offset / SECTOR_SIZE as u64;
        let own = own..own + (buf.len() / SECTOR_SIZE) as u64;
        let lands = victim.map(|s| s / PER_BLOCK * PER_BLOCK).filter(|s| !own.contains(s));
        for copy in found {
            self.harm_copy(device, copy);
        }
        if let Some(lands) = lands {
            self.harm(device, lands..lands + PER_BLOCK);
        }
        let mark = if lands.is_some() { "pages misdirected" } else { "pages lost" };
        self.coverage.mark(mark);
        self.life.damaged.insert(device);
        self.troubled.insert(device);
        self.say(|_| format!("page {page} of the write goes astray: {lands:?}"));
        Some(Astray { page, lands })
    }

    /// A cache device answers nothing but errors from now on.
    pub(super) fn vanish(&mut self, device: usize) -> Step {
        if self.calm || self.caches[device].dead_from <= self.now {
            return Ok(Flow::Go);
        }
        self.say(|_| format!("cache {device} vanishes"));
        self.coverage.mark("devices vanished");
        self.caches[device].dead_from = self.now;
        self.troubled.insert(device);
        self.life.vanished.insert(device);
        self.lose_dirty(device, self.mirror_is_whole());
        Ok(Flow::Go)
    }

    /// The engine gave a device up: only after it met an error, or lost blocks, there.
    pub(super) fn device_failed(&mut self, device: usize, text: &str) -> Result<(), Violation> {
        let target = forebay_engine::Target::Cache(forebay_engine::DeviceId(device as u8));
        let whole = self.mirror_is_whole();
        self.coverage.add("devices failed beside a whole mirror", u64::from(whole));
        let dead = self.caches[device].dead_from <= self.now;
        let lost = self.life.blocks_lost > 0;
        if !dead && !lost && !self.life.errors.iter().any(|error| error.target == target) {
            let text = format!("cache device {device} is given up without an error: {text}");
            return Err(Violation::new("E", text));
        }
        self.lose_dirty(device, self.mirror_is_whole());
        Ok(())
    }

    /// A bad block needs a cause, and may be called lost only when its last copy was harmed, or
    /// when reads fail for a while: the engine cannot know that they will work again.
    pub(super) fn bad_block(
        &mut self,
        volume: VolumeId,
        block: u64,
        lost: bool,
    ) -> Result<(), Violation> {
        // Clean copies on a device that is absent, or was, are read from the origin.
        let Faults { absent, late, metadata, metadata_errors, .. } = self.params.faults;
        // So is what a power cut left on one device only, of dirty ones too, when that one fails.
        let gone = !lost || !self.life.devices_failed.is_empty();
        let absent = gone && absent + late + metadata + metadata_errors > 0.0;
        let absent = absent || !lost && self.half_came() || self.has_replaced();
        if !self.params.faults.any_cache_fault() && !absent {
            let text = format!("block {block} of {volume:?} is called bad, but nothing was harmed");
            return Err(Violation::new("E", text));
        }
        let origin = self.origins.iter().position(|origin| origin.volume == Some(volume));
        let Some(disk) = origin else { return Ok(()) };
        let first = block * PER_BLOCK;
        let end = (first + PER_BLOCK).min(self.origins[disk].disk.sectors());
        // Where another device has a sound copy, errors of one are no reason.
        let unreadable = self.params.faults.cache_read_errors > 0 && !self.mirror_is_whole();
        let zeros = |sector| self.checker.possible(disk, sector, self.stamp).contains(&Value::Zero);
        if lost && unreadable && (first..end).any(zeros) {
            // Zeros in the log do not say whose they are: `harm` does not see them.
            self.checker.lose_block(disk, first, self.stamp);
        }
        if lost && (first..end).any(|sector| self.came_back_harmed(disk, sector)) {
            self.coverage.mark("blocks as they were when harmed");
            self.checker.lose_block(disk, first, self.stamp);
        }
        self.lost_with_the_log(disk, first, lost);
        self.life.blocks_lost += u64::from(lost);
        if lost {
            self.also_given_up(disk, block);
        }
        if lost && !unreadable && !self.checker.any_lost(disk, first..end, 0) {
            let text = format!("block {block} of {volume:?} is called lost, but a copy is good");
            return Err(Violation::new("E", text));
        }
        Ok(())
    }
}
