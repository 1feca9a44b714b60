//! The engine's I/O on its way to the disks and back.

use super::{Delivered, Due, Place, Step, World};
use crate::disk::{Disk, Finished, FlushLoss, Io, IoKind};
use crate::model::Violation;
use forebay_engine::{Buf, Completion, Event, IoError, Notice, OpId, Target, Time};
use forebay_format::layout::CHECKPOINT_OFFSET;
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};

/// Longest time that an I/O takes, nanoseconds.
const LATENCY_NS_MAX: Time = 20_000_000_000;

impl World {
    pub(super) fn place(&self, target: Target) -> Option<Place> {
        match target {
            Target::Cache(device) => {
                let index = usize::from(device.0);
                (index < self.caches.len()).then_some(Place::Cache(index))
            }
            Target::Origin(volume) => self
                .origins
                .iter()
                .position(|origin| origin.volume == Some(volume) && origin.present)
                .map(Place::Origin),
        }
    }

    fn disk(&mut self, place: Place) -> &mut Disk {
        match place {
            Place::Cache(index) => &mut self.caches[index],
            Place::Origin(index) => &mut self.origins[index].disk,
        }
    }

    pub(super) fn start_io(
        &mut self,
        op: OpId,
        target: Target,
        offset: u64,
        len: u64,
        io: Io,
    ) -> Result<(), Violation> {
        self.totals.ios += 1;
        self.note(op.0 ^ offset.rotate_left(20) ^ len.rotate_left(40));
        let what = format_io(&io);
        self.say(|_| format!("{what} {target:?} {offset}+{len} ({op:?})"));
        let wrong = |why: &str| {
            let text = format!("{what} {target:?} {offset}+{len}: {why}");
            Violation::new("I", text)
        };
        let calm = self.calm;
        let Some(place) = self.place(target) else { return Err(wrong("there is no such disk")) };
        let sectors = match place {
            Place::Cache(index) => self.caches[index].sectors(),
            Place::Origin(index) => self.origins[index].sectors,
        };
        let end = sectors * SECTOR_SIZE as u64;
        let aligned = |value: u64| value.is_multiple_of(SECTOR_SIZE as u64);
        if !aligned(offset) || !aligned(len) || len == 0 || offset + len > end {
            return Err(wrong("not whole sectors of the disk"));
        }
        let astray = !calm && matches!((&io, target), (Io::Write(_), Target::Cache(_)));
        let plan = if astray { self.plan_astray(place, offset, &io) } else { None };
        let (writes, flushes) = (matches!(io, Io::Write(_)), matches!(io, Io::Flush));
        match (place, &io) {
            (Place::Origin(index), Io::Write(buf)) => self.note_home(index, buf.bytes()),
            (Place::Cache(index), Io::Write(buf)) => self.note_written(index, buf.bytes()),
            _ => {}
        }
        let disk = self.disk(place);
        disk.submit(op, offset / SECTOR_SIZE as u64, io);
        if let Some(astray) = plan {
            disk.lead_astray(op, astray);
        }
        self.ops.insert(op, (target, place));
        let checkpoint = writes && self.in_checkpoint(target, offset);
        let slowness = match (place, checkpoint) {
            (Place::Cache(_), true) => self.params.checkpoint_slowness,
            (Place::Cache(_), false) if flushes => self.params.flush_slowness,
            _ => 1,
        };
        let after = (self.latency(target) * slowness).min(LATENCY_NS_MAX);
        self.schedule(after, Due::Io(op));
        Ok(())
    }

    fn in_checkpoint(&self, target: Target, offset: u64) -> bool {
        let area = CHECKPOINT_OFFSET..self.layout.segments_offset;
        matches!(target, Target::Cache(_)) && area.contains(&offset)
    }

    fn latency(&mut self, target: Target) -> Time {
        let latency = match target {
            Target::Cache(_) => &self.params.cache_latency,
            Target::Origin(_) => &self.params.origin_latency,
        };
        if self.calm { latency.base_ns } else { latency.draw(&mut self.rng) }
    }

    pub(super) fn refuse(&mut self, op: OpId, target: Target) -> Result<(), Violation> {
        // Answered like any I/O, later: as a flush of nothing would be, but with its own result.
        self.say(|_| format!("zero with unmap is not supported ({op:?})"));
        let Some(place) = self.place(target) else {
            return Err(Violation::new("I", format!("zero {target:?}: there is no such disk")));
        };
        self.ops.insert(op, (target, place));
        let after = self.latency(target);
        self.schedule(after, Due::Io(op));
        Ok(())
    }

    pub(super) fn finish_io(&mut self, op: OpId) -> Step {
        let (target, place) = self.ops.remove(&op).expect("an I/O under way");
        if let Place::Cache(device) = place
            && let Some(lands) = self.caches[device].landing(op)
        {
            // Something else may have been written there in the meantime.
            self.harm(device, lands..lands + SECTORS_PER_BLOCK as u64);
        }
        let now = self.now;
        let mut rng = self.rng.clone();
        let finished = self.disk(place).complete(op, now, &mut rng);
        self.rng = rng;
        let Some(finished) = finished else {
            let buf = Buf::empty();
            let result = Err(IoError::Unsupported);
            return self.feed(Event::Done(op, Completion { result, buf }));
        };
        let stamp = self.next_stamp();
        let failed = finished.completion.result.is_err();
        self.note(op.0 ^ u64::from(failed) << 63);
        self.say(|_| format!("done {op:?}{}", if failed { " with an error" } else { "" }));
        if let Place::Origin(index) = place {
            self.origin_forgot(index, &finished.forgot, false);
        }
        if failed {
            let (first, end) = (finished.sectors.start, finished.sectors.end);
            self.coverage.mark(match (target, finished.kind) {
                (Target::Cache(_), IoKind::Read) => "errors: cache read",
                (Target::Cache(_), IoKind::Write) => "errors: cache write",
                (Target::Cache(_), IoKind::Flush) => "errors: cache flush",
                (Target::Origin(_), IoKind::Read) => "errors: origin read",
                (Target::Origin(_), IoKind::Write) => "errors: origin write",
                (Target::Origin(_), IoKind::Flush) => "errors: origin flush",
            });
            self.life.errors.push(Delivered { stamp, target, first, end });
            if let Target::Cache(device) = target {
                self.cache_failed(usize::from(device.0), &finished);
            }
        } else if !self.life.unwritten.is_empty()
            && finished.kind == IoKind::Write
            && let Target::Cache(device) = target
            && !self.is_stranger(usize::from(device.0))
        {
            self.written_after_all(finished.completion.buf.bytes());
        }
        self.feed(Event::Done(op, finished.completion))
    }
}

impl World {
    /// An I/O of a cache device failed.
    fn cache_failed(&mut self, device: usize, finished: &Finished) {
        self.troubled.insert(device);
        match finished.kind {
            IoKind::Read => self.harm_unreadable(device, finished.sectors.clone()),
            // What was there before is no longer needed by anybody.
            IoKind::Write => {
                let bytes = finished.completion.buf.bytes();
                self.write_failed(device, &finished.sectors, bytes);
            }
            // All that was acknowledged since the last flush may be gone.
            IoKind::Flush if self.caches[device].flush_loss == FlushLoss::Forget => {
                self.life.damaged.insert(device);
            }
            IoKind::Flush => {}
        }
    }

    /// What an administrator is told.
    pub(super) fn notice(&mut self, notice: Notice) -> Result<(), Violation> {
        self.say(|_| format!("notice {notice:?}"));
        match notice {
            Notice::Opened { records, blocks, dirty } => {
                self.coverage.add("records rolled forward", records);
                self.coverage.add("lives opened with dirty blocks", u64::from(dirty > 0));
                return self.age_was_judged(blocks, dirty);
            }
            Notice::OpenFailed(text) => self.life.open_failed = Some(text),
            Notice::LogBroken => {
                self.life.log_broken = true;
                self.coverage.mark("logs broken beside a device that works");
            }
            Notice::DeviceFailed(device, text) => {
                let given_up = usize::from(device.0);
                self.life.devices_failed.insert(given_up);
                self.coverage.mark("devices failed");
                let lost = text == forebay_engine::LOST_SEGMENTS;
                self.coverage.add("devices failed with lost segments", u64::from(lost));
                return self.device_failed(given_up, &text);
            }
            Notice::DeviceLeft(device) => {
                // All that was promised is elsewhere; what a crash left of one record may not be.
                let device = usize::from(device.0);
                self.life.devices_failed.insert(device);
                self.troubled.insert(device);
                self.lose_dirty(device, true);
            }
            Notice::DeviceCame(device) => self.device_came(usize::from(device.0)),
            Notice::BadBlock { volume, block, lost } => {
                self.coverage.mark("bad blocks noticed");
                return self.bad_block(volume, block, lost);
            }
            Notice::WritebackFailed { .. } => self.coverage.mark("writebacks failed"),
            Notice::DistrustFailed => self.life.unnoted = true,
            Notice::Repaired(_) => self.coverage.mark("structures repaired"),
        }
        Ok(())
    }
}

fn format_io(io: &Io) -> &'static str {
    match io {
        Io::Read(_) => "read",
        Io::Write(_) => "write",
        Io::Zero(_) => "zero",
        Io::Discard(_) => "discard",
        Io::Flush => "flush",
    }
}
