//! The clients: what they ask, and what they make of the answers.

use super::{Due, Flow, Step, World};
use crate::content;
use crate::model::{Stamp, Violation, WriteSpec};
use forebay_engine::{
    Buf, Event, IoError, Request, RequestId, RequestKind, STALL_NS_MAX, Target, Time,
};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::ops::Range;

const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;
/// What a buffer for a read is full of before: nothing that a client wrote.
const UNREAD: u8 = 0xa5;
/// A pause in which idle work and sync points happen, nanoseconds.
const LONG_PAUSE_NS: u64 = 3_000_000_000;

/// A client.
#[derive(Debug, Default)]
pub struct Client {
    /// Where a sequential stream goes on: disk and sector.
    stream: Option<(usize, u64)>,
}

/// A request without an answer.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The client, or none for the checks at the end of a life.
    pub client: Option<usize>,
    /// The origin.
    pub disk: usize,
    /// What was asked.
    pub kind: RequestKind,
    /// The sectors.
    pub range: Range<u64>,
    /// Durable when answered.
    pub fua: bool,
    /// When, in the order of events.
    pub invoke: Stamp,
    /// When.
    pub since: Time,
    /// Number of the write.
    pub version: u64,
}

impl Waiting {
    /// Whether it changes what sectors hold.
    pub fn writes(&self) -> bool {
        matches!(
            self.kind,
            RequestKind::Write | RequestKind::Discard | RequestKind::WriteZeroes { .. }
        )
    }
}

impl World {
    pub(super) fn client_turn(&mut self, client: usize) -> Step {
        if self.life.quiet || self.life.requests_left == 0 {
            return Ok(Flow::Go);
        }
        let open: Vec<usize> = (0..self.origins.len())
            .filter(|&disk| self.origins[disk].volume.is_some() && !self.origins[disk].resting)
            .collect();
        self.life.requests_left -= 1;
        if open.is_empty() {
            let pause = self.rng.below(self.params.think_ns) + 1;
            self.schedule(pause, Due::Client(client));
            return Ok(Flow::Go);
        }
        let mix = &self.params.mix;
        let weights = [mix.read, mix.write, mix.flush, mix.discard, mix.zeroes, mix.prefetch];
        let kind = match self.rng.weighted(&weights) {
            0 => RequestKind::Read,
            1 => RequestKind::Write,
            2 => RequestKind::Flush,
            3 => RequestKind::Discard,
            4 => RequestKind::WriteZeroes { unmap: self.rng.coin() },
            _ => RequestKind::Prefetch,
        };
        let disk = self.rng.pick(&open);
        let (disk, range) = if kind == RequestKind::Flush {
            (disk, 0..0)
        } else {
            self.choose_range(client, disk, &open)
        };
        let writes =
            !matches!(kind, RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch);
        let fua = writes && self.rng.chance(self.params.mix.fua);
        self.submit(Some(client), disk, kind, range, fua)
    }

    fn choose_range(&mut self, client: usize, disk: usize, open: &[usize]) -> (usize, Range<u64>) {
        let places = self.params.places.clone();
        let aligned = self.rng.chance(places.aligned);
        let mut count = self.rng.log_range(1, places.sectors_max);
        if aligned {
            count = count.next_multiple_of(PER_BLOCK);
        }
        let stream = self.clients[client].stream.filter(|(disk, _)| open.contains(disk));
        let (disk, mut first) = match stream {
            Some((disk, sector)) if self.rng.chance(places.sequential) => (disk, sector),
            _ => {
                let size = self.origins[disk].sectors;
                let hot = places.hot_sectors.min(size);
                let room = if self.rng.chance(places.hot) { hot } else { size };
                (disk, self.rng.below(room))
            }
        };
        let size = self.origins[disk].sectors;
        if aligned {
            first = first / PER_BLOCK * PER_BLOCK;
        }
        if first >= size {
            first = 0;
        }
        let end = (first + count).min(size);
        self.clients[client].stream = Some((disk, end));
        (disk, first..end)
    }

    /// Sends a request.
    pub(super) fn submit(
        &mut self,
        client: Option<usize>,
        disk: usize,
        kind: RequestKind,
        range: Range<u64>,
        fua: bool,
    ) -> Step {
        let invoke = self.next_stamp();
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.next_version += 1;
        let version = self.next_version;
        let len = (range.end - range.start) * SECTOR_SIZE as u64;
        let mut buf = Buf::empty();
        if matches!(kind, RequestKind::Read | RequestKind::Write) {
            buf = Buf::zeroed(len as usize);
            buf.bytes_mut().fill(UNREAD);
        }
        if kind == RequestKind::Write {
            for (sector, bytes) in range.clone().zip(buf.bytes_mut().chunks_exact_mut(SECTOR_SIZE))
            {
                content::fill(bytes, disk, sector, version);
            }
        }
        let since = self.now;
        let waiting =
            Waiting { client, disk, kind, range: range.clone(), fua, invoke, since, version };
        self.checker.submitted(disk, invoke);
        if waiting.writes() {
            let zero = kind != RequestKind::Write;
            let optional = kind == RequestKind::Discard;
            let write = WriteSpec { id: version, zero, optional, fua };
            self.checker.begin_write(disk, range.clone(), write, invoke);
        }
        self.say(|_| {
            let fua = if fua { " fua" } else { "" };
            format!("{id:?} {kind:?}{fua} disk {disk} sectors {range:?} version {version}")
        });
        self.note(version ^ range.start << 32);
        self.requests.insert(id, waiting);
        let volume = self.origins[disk].volume.expect("the volume is served");
        let offset = range.start * SECTOR_SIZE as u64;
        self.feed(Event::Submit(id, Request { volume, kind, offset, len, fua, buf }))
    }

    /// A request was answered.
    pub(super) fn reply(
        &mut self,
        id: RequestId,
        result: Result<(), IoError>,
        buf: Buf,
    ) -> Result<(), Violation> {
        let Some(waiting) = self.requests.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        let now = self.next_stamp();
        self.totals.requests += 1;
        self.checker.answered(waiting.disk, waiting.invoke);
        self.answered_at = self.totals.steps;
        self.note(id.0 ^ u64::from(result.is_err()) << 62);
        self.say(|_| format!("{id:?} answered {result:?}"));
        if waiting.writes() {
            let ok = result.is_ok();
            self.checker.end_write(waiting.disk, waiting.range.clone(), waiting.version, now, ok);
            if ok && waiting.kind == RequestKind::Write {
                self.check_written(waiting.disk, waiting.range.clone(), waiting.version)?;
            }
        }
        match result {
            Ok(()) => self.check_answer(&waiting, &buf, now)?,
            Err(error) => {
                if waiting.kind == RequestKind::Flush {
                    self.checker.told(waiting.disk);
                }
                self.check_error(&waiting, error)?;
            }
        }
        self.engine().recycle(buf);
        if let Some(client) = waiting.client {
            let pause = match self.rng.one_in(self.params.long_pause_one_in) {
                true => self.rng.below(LONG_PAUSE_NS),
                false => self.rng.below(self.params.think_ns + 1),
            };
            self.schedule(pause, Due::Client(client));
        }
        Ok(())
    }

    fn check_answer(&mut self, asked: &Waiting, buf: &Buf, now: Stamp) -> Result<(), Violation> {
        match asked.kind {
            RequestKind::Read => {
                let sectors = asked.range.end - asked.range.start;
                if buf.len() as u64 != sectors * SECTOR_SIZE as u64 {
                    return Err(Violation::new(
                        "I",
                        "a read is answered with another length".into(),
                    ));
                }
                let first = asked.range.start;
                self.checker.read(asked.disk, first, buf.bytes(), asked.invoke, now)
            }
            RequestKind::Flush => {
                self.checker.flushed(asked.disk, asked.invoke);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Rules E and X: an error needs a reason.
    fn check_error(&mut self, asked: &Waiting, error: IoError) -> Result<(), Violation> {
        self.coverage.mark("requests answered with an error");
        let origin = &self.origins[asked.disk];
        let justified = match error {
            IoError::Shutdown => self.life.stopping || self.life.open_failed.is_some(),
            IoError::Gone => {
                !origin.present
                    || origin.came_late
                    || origin.volume.is_none()
                    || origin.resting
                    || self.life.open_failed.is_some()
                    || self.checker.has_lost(asked.disk)
                    || self.origin_has_failed(asked.disk)
            }
            IoError::Io => {
                self.error_is_justified(asked) || self.given_up(asked) || self.life.unnoted
            }
            IoError::Invalid | IoError::NoSpace | IoError::Unsupported => false,
        };
        if justified || asked.kind == RequestKind::Prefetch {
            return Ok(());
        }
        let text = format!("{asked:?} is answered with \"{error}\" without a reason");
        Err(Violation::new("E", text))
    }

    /// Whether the origin returned an error in this life.
    pub(super) fn origin_has_failed(&self, disk: usize) -> bool {
        let Some(volume) = self.origins[disk].volume else { return false };
        self.life.errors.iter().any(|error| error.target == Target::Origin(volume))
    }

    /// Whether a write waited long for room that did not come: the origin takes no dirty blocks
    /// home, or they cannot be read.
    fn given_up(&mut self, asked: &Waiting) -> bool {
        let long = self.now - asked.since >= STALL_NS_MAX;
        let kept = self.origin_has_failed(asked.disk) || self.checker.has_lost(asked.disk);
        let given_up = asked.writes() && long && kept;
        if given_up {
            self.coverage.mark("writes given up behind a failing origin");
        }
        given_up
    }

    fn error_is_justified(&self, asked: &Waiting) -> bool {
        let origin = &self.origins[asked.disk];
        let Some(volume) = origin.volume else { return true };
        let target = Target::Origin(volume);
        // FUA is as hard to promise as a FLUSH, and zeroing dirty blocks needs one of the origin.
        let zeroes = matches!(asked.kind, RequestKind::Discard | RequestKind::WriteZeroes { .. });
        let device_failed = !self.life.devices_failed.is_empty() && !self.mirror_is_whole();
        let failed_device = asked.writes() && device_failed;
        if asked.kind == RequestKind::Flush || asked.fua || zeroes {
            // Behind a record that is lost nothing can be made durable any more.
            return failed_device
                || self.life.log_broken
                || self.origin_has_failed(asked.disk)
                || self.checker.has_lost(asked.disk)
                || !origin.present
                || origin.came_late;
        }
        let first = asked.range.start / PER_BLOCK * PER_BLOCK;
        let end = asked.range.end.next_multiple_of(PER_BLOCK);
        let met = self.life.errors.iter().any(|error| {
            // An error of a flush is one of the whole disk.
            let flush = error.end == 0 && asked.writes();
            let here = error.first < end && first < error.end;
            error.target == target && error.stamp > asked.invoke && (flush || here)
        });
        // A device that died may come back with a block that was dirty and went home shortly
        // before: whether it knows that, nobody can say, so writes to such blocks may be refused.
        let unsure =
            asked.writes() && device_failed && self.checker.any_touched(asked.disk, first..end);
        met || unsure || self.checker.any_lost(asked.disk, asked.range.clone(), asked.invoke)
    }
}
