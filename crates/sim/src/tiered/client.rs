//! The clients: what they ask, and what they make of the answers.

use super::space::{EXTENT_SECTORS, extents_of, whole_blocks};
use super::{Check, Due, Flow, Step, Tiered};
use crate::content;
use crate::model::{Stamp, Violation, WriteSpec};
use forebay_format::io::{Buf, Completion, Time};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use forebay_tier::{Event, Io, IoId};
use std::ops::Range;

const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;
/// What a buffer for a read is full of before: nothing that a client wrote.
const UNREAD: u8 = 0xa5;
/// A pause in which plans are made and moves happen, nanoseconds.
const LONG_PAUSE_NS: u64 = 3_000_000_000;
/// Events within which a life ends that ends soon after a look.
const EVENTS_AFTER_LOOK: u64 = 8;
/// Most sectors of a read that looks at what a request has changed.
const LOOK_SECTORS_MAX: u64 = 64;

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Zero { unmap: bool },
    Discard,
}

/// A client.
#[derive(Debug, Default)]
pub struct Client {
    /// What it did last, and where that ended.
    stream: Option<(Kind, u64)>,
    /// What it wants to look at next.
    pub(super) look: Option<Range<u64>>,
}

/// A request without an answer.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The client, or none for the checks at the end of a life.
    pub client: Option<usize>,
    /// What was asked.
    pub kind: Kind,
    /// The sectors, of those that clients use.
    pub range: Range<u64>,
    /// When, in the order of events.
    pub invoke: Stamp,
    /// When.
    pub since: Time,
    /// Number of the write.
    pub version: u64,
    /// It looks at what a request before has changed.
    pub looks: bool,
    /// A part of it lived on a member that is not there.
    pub away: bool,
}

/// A request that touches what another one that is under way touches.
#[derive(Debug, Clone)]
pub struct Held {
    client: Option<usize>,
    kind: Kind,
    range: Range<u64>,
}

impl Waiting {
    /// Whether it changes what sectors hold.
    pub fn writes(&self) -> bool {
        writes(self.kind)
    }
}

fn writes(kind: Kind) -> bool {
    matches!(kind, Kind::Write | Kind::Zero { .. } | Kind::Discard)
}

/// Whether two requests must not be under way at the same time.
fn conflict(one: (Kind, &Range<u64>), other: (Kind, &Range<u64>)) -> bool {
    let (a, b) = (whole_blocks(one.1), whole_blocks(other.1));
    (writes(one.0) || writes(other.0)) && a.start < b.end && b.start < a.end
}

impl Tiered {
    /// Sectors that clients use of the volume.
    pub(super) fn sectors(&self) -> u64 {
        self.space.sectors(self.bytes)
    }

    pub(super) fn client_turn(&mut self, client: usize) -> Step {
        if self.life.quiet || self.life.requests_left == 0 {
            return Ok(Flow::Go);
        }
        self.life.requests_left -= 1;
        self.sent += 1;
        if self.sent.is_multiple_of(self.plan.places.hot_requests) {
            self.hot_first = self.rng.below(self.sectors());
        }
        if let Some(range) = self.clients[client].look.take() {
            self.looks = true;
            return self.submit(Some(client), Kind::Read, range);
        }
        let mix = &self.plan.mix;
        let weights = [mix.read, mix.write, mix.flush, mix.zero, mix.discard];
        let mut kind = match self.rng.weighted(&weights) {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Flush,
            3 => Kind::Zero { unmap: self.rng.coin() },
            _ => Kind::Discard,
        };
        if kind == Kind::Flush {
            return self.submit(Some(client), kind, 0..0);
        }
        let removes = matches!(kind, Kind::Zero { .. } | Kind::Discard);
        let range = if removes && self.rng.chance(self.plan.mix.everything) {
            0..self.sectors()
        } else if removes && self.rng.chance(self.plan.mix.whole) {
            self.choose_extents()
        } else {
            self.choose_range(client, &mut kind)
        };
        if writes(kind) && self.rng.chance(self.plan.mix.look) {
            let first = range.start + self.rng.below(range.end - range.start);
            let end = range.end.min(first + self.rng.range(1, LOOK_SECTORS_MAX));
            let end = end.min(self.space.end_of_part(first));
            self.clients[client].look = Some(first..end);
        }
        self.submit(Some(client), kind, range)
    }

    /// Some whole extents.
    fn choose_extents(&mut self) -> Range<u64> {
        let size = self.sectors();
        let first = self.rng.below(size) / EXTENT_SECTORS * EXTENT_SECTORS;
        let end = first + self.rng.log_range(1, 4) * EXTENT_SECTORS;
        first..end.min(size).min(self.space.end_of_part(first))
    }

    fn choose_range(&mut self, client: usize, kind: &mut Kind) -> Range<u64> {
        let places = self.plan.places.clone();
        let size = self.sectors();
        let aligned = self.rng.chance(places.aligned);
        let is_large = self.rng.chance(places.large);
        let most = if is_large { places.large_max } else { places.sectors_max };
        let mut count = self.rng.log_range(1, most);
        if aligned {
            count = count.next_multiple_of(PER_BLOCK);
        }
        let mut first = match self.clients[client].stream {
            Some((before, sector)) if self.rng.chance(places.sequential) => {
                *kind = before;
                sector
            }
            _ if places.window > 0 => self.choose_in_window(places.window, places.moving),
            _ if self.rng.chance(places.hot) => {
                (self.hot_first + self.rng.below(places.hot_sectors)) % size
            }
            _ => self.rng.below(size),
        };
        if aligned {
            first = first / PER_BLOCK * PER_BLOCK;
        }
        if first >= size {
            first = 0;
        }
        let end = (first + count).min(size).min(self.space.end_of_part(first));
        self.clients[client].stream = Some((*kind, end));
        first..end
    }

    /// A sector near the beginning of an extent: of one that is being moved, if it may be.
    fn choose_in_window(&mut self, window: u64, moving: f64) -> u64 {
        let moves = if self.rng.chance(moving) { self.moving_extents() } else { Vec::new() };
        let extent = match moves.is_empty() {
            true => self.rng.below(self.sectors()) / EXTENT_SECTORS,
            false => self.rng.pick(&moves),
        };
        extent * EXTENT_SECTORS + self.rng.below(window)
    }

    /// Sends a request, or holds it back as long as others touch the same blocks.
    pub(super) fn submit(&mut self, client: Option<usize>, kind: Kind, range: Range<u64>) -> Step {
        let held = self.held.iter().map(|held| (held.kind, &held.range));
        let mut others = self.requests.values().map(|it| (it.kind, &it.range)).chain(held);
        if kind != Kind::Flush && others.any(|other| conflict((kind, &range), other)) {
            self.coverage.mark("requests held back");
            self.looks = false;
            self.held.push(Held { client, kind, range });
            return Ok(Flow::Go);
        }
        self.send(client, kind, range)
    }

    /// Sends what was held back and need not be any more.
    pub(super) fn release_held(&mut self) -> Step {
        let mut at = 0;
        while at < self.held.len() {
            let wanted = (self.held[at].kind, &self.held[at].range);
            let before = self.held[..at].iter().map(|held| (held.kind, &held.range));
            let mut others = self.requests.values().map(|it| (it.kind, &it.range)).chain(before);
            if others.any(|other| conflict(wanted, other)) {
                at += 1;
                continue;
            }
            let Held { client, kind, range } = self.held.remove(at);
            let flow = self.send(client, kind, range)?;
            if flow != Flow::Go {
                return Ok(flow);
            }
        }
        Ok(Flow::Go)
    }

    fn send(&mut self, client: Option<usize>, kind: Kind, range: Range<u64>) -> Step {
        self.next_version += 1;
        let version = self.next_version;
        if writes(kind) {
            self.learn(range.clone());
        }
        let invoke = self.next_stamp();
        self.next_id += 1;
        let id = IoId(self.next_id);
        let (since, away) = (self.now, self.is_away(&range));
        let looks = std::mem::take(&mut self.looks);
        let waiting =
            Waiting { client, kind, range: range.clone(), invoke, since, version, looks, away };
        self.checker.submitted(0, invoke);
        if writes(kind) {
            let (zero, optional) = (kind != Kind::Write, kind == Kind::Discard);
            let write = WriteSpec { id: version, zero, optional, fua: false };
            self.checker.begin_write(0, range.clone(), write, invoke);
        }
        self.say(|_| format!("{id:?} {kind:?} sectors {range:?} version {version}"));
        self.note(version ^ range.start << 32);
        self.count_request(kind, &range);
        self.requests.insert(id, waiting);
        let io = self.io(kind, range, version);
        self.feed(Event::Submit(id, io))
    }

    /// The request in the machine's words.
    fn io(&self, kind: Kind, range: Range<u64>, version: u64) -> Io {
        // With what lies between the parts that clients use.
        let first = self.space.volume_sector(range.start);
        let last = self.space.volume_sector(range.end.max(range.start + 1) - 1);
        let offset = first * SECTOR_SIZE as u64;
        let len = (last + 1 - first) * SECTOR_SIZE as u64;
        let buf = || {
            let mut buf = Buf::zeroed(len as usize);
            buf.bytes_mut().fill(UNREAD);
            buf
        };
        match kind {
            Kind::Read => Io::Read { offset, buf: buf() },
            Kind::Write => {
                let mut buf = buf();
                let sectors = buf.bytes_mut().chunks_exact_mut(SECTOR_SIZE);
                for (sector, bytes) in range.zip(sectors) {
                    content::fill(bytes, 0, sector, version);
                }
                Io::Write { offset, buf }
            }
            Kind::Flush => Io::Flush,
            Kind::Zero { unmap } => Io::Zero { offset, len, unmap },
            Kind::Discard => Io::Discard { offset, len },
        }
    }

    /// The oracle learns that these sectors were zeros until now.
    fn learn(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            if self.known[at as usize] {
                at += 1;
                continue;
            }
            let known = &self.known[at as usize..range.end as usize];
            let count = known.iter().take_while(|known| !**known).count() as u64;
            let part = at..at + count;
            // What is lost stays lost.
            let is_lost = |&at: &u64| self.checker.any_lost(0, at..at + 1, self.stamp);
            let lost: Vec<u64> = part.clone().filter(is_lost).collect();
            self.next_version += 1;
            let (invoke, id) = (self.next_stamp(), self.next_version);
            let write = WriteSpec { id, zero: true, optional: false, fua: true };
            self.checker.begin_write(0, part.clone(), write, invoke);
            let now = self.next_stamp();
            self.checker.end_write(0, part.clone(), id, now, true);
            self.known[part.start as usize..part.end as usize].fill(true);
            lost.iter().for_each(|&sector| self.checker.lose_block(0, sector, now));
            at = part.end;
        }
    }

    fn count_request(&mut self, kind: Kind, range: &Range<u64>) {
        let moving = self.places.any_moving(extents_of(range));
        match kind {
            Kind::Write if moving => self.coverage.mark("writes during moves"),
            Kind::Read if moving => self.coverage.mark("reads during moves"),
            Kind::Zero { .. } if moving => self.coverage.mark("zeroes during moves"),
            Kind::Discard if moving => self.coverage.mark("discards during moves"),
            _ => {}
        }
        let extents = extents_of(range);
        let across = kind != Kind::Flush && extents.end - extents.start > 1;
        self.coverage.add("requests across extents", u64::from(across));
    }

    /// A request was answered.
    pub(super) fn reply(&mut self, id: IoId, completion: Completion) -> Check {
        let Some(waiting) = self.requests.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        let Completion { result, buf } = completion;
        let now = self.next_stamp();
        self.totals.requests += 1;
        self.checker.answered(0, waiting.invoke);
        self.answered_at = self.totals.steps;
        self.note(id.0 ^ u64::from(result.is_err()) << 62);
        self.say(|_| format!("{id:?} answered {result:?}"));
        if waiting.writes() {
            let (range, ok) = (waiting.range.clone(), result.is_ok());
            self.checker.end_write(0, range, waiting.version, now, ok);
        }
        match result {
            Ok(()) => self.check_answer(&waiting, &buf, now)?,
            Err(error) => {
                self.check_error(&waiting, error)?;
                if waiting.kind == Kind::Flush {
                    self.checker.told(0);
                    if std::mem::take(&mut self.life.untold) {
                        self.life.told = now;
                    }
                }
            }
        }
        if !self.held.is_empty() {
            self.schedule(0, Due::Held);
        }
        if waiting.looks && self.life.ends_at_look && self.rng.one_in(8) {
            self.life.ends_at_look = false;
            self.end_within(EVENTS_AFTER_LOOK);
        }
        if let Some(client) = waiting.client {
            let pause = match self.rng.one_in(self.plan.long_pause_one_in) {
                true => self.rng.below(LONG_PAUSE_NS),
                false => self.rng.below(self.plan.think_ns + 1),
            };
            self.schedule(pause, Due::Client(client));
        }
        Ok(())
    }

    fn check_answer(&mut self, asked: &Waiting, buf: &Buf, now: Stamp) -> Check {
        let sectors = asked.range.end - asked.range.start;
        let has_buf = matches!(asked.kind, Kind::Read | Kind::Write);
        if has_buf && buf.len() as u64 != sectors * SECTOR_SIZE as u64 {
            let text = format!("{asked:?} is answered with another buffer: {buf:?}");
            return Err(Violation::new("I", text));
        }
        match asked.kind {
            Kind::Read => self.check_read(asked, buf.bytes(), now),
            Kind::Flush if self.life.untold => {
                let text = "a flush failed before this life, and no client hears of it";
                Err(Violation::new("E", text.into()))
            }
            Kind::Flush => {
                self.checker.flushed(0, asked.invoke);
                self.places.confirmed(asked.invoke);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What was never written reads as zeros, everything else as the oracle says.
    fn check_read(&mut self, asked: &Waiting, bytes: &[u8], now: Stamp) -> Check {
        let mut at = asked.range.start;
        while at < asked.range.end {
            let known = self.known[at as usize];
            let run = &self.known[at as usize..asked.range.end as usize];
            let count = run.iter().take_while(|other| **other == known).count();
            let from = (at - asked.range.start) as usize * SECTOR_SIZE;
            let bytes = &bytes[from..from + count * SECTOR_SIZE];
            if known {
                self.checker.read(0, at, bytes, asked.invoke, now)?;
            } else if let Some(byte) = bytes.iter().position(|&byte| byte != 0) {
                let place = byte / SECTOR_SIZE;
                let sector = at + place as u64;
                let found = content::parse(&bytes[place * SECTOR_SIZE..(place + 1) * SECTOR_SIZE]);
                let text = format!("sector {sector} was never written and holds {found:?}");
                return Err(Violation::new("F", text));
            }
            at += count as u64;
        }
        Ok(())
    }
}
