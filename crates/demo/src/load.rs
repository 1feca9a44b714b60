//! The workload: a closed loop of a fixed depth against one device, with latencies, a timeline, and
//! every read held against the ledger.

use forebay_host::origin::spindle::Buf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::device::{Device, Ended, Kind};
use super::ledger::{BLOCK, Ledger, Permitted};

/// Width of one point of the timeline.
pub const BIN: Duration = Duration::from_millis(100);
/// Share of reads of the mixed workload.
const READ_PERCENT: u64 = 75;
/// Blocks of one hot spot: 4 MiB.
const SPOT_BLOCKS: u64 = 1024;

/// Where the working set lies: hot spots of 4 MiB at equal distances.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    /// First byte of the first spot, a multiple of 4096.
    pub offset: u64,
    /// Spots.
    pub spots: u64,
    /// Bytes from one spot to the next.
    pub stride: u64,
}

impl Area {
    /// Blocks of the working set.
    pub fn blocks(&self) -> u64 {
        self.spots * SPOT_BLOCKS
    }

    /// Where a block of the working set is.
    pub fn place(&self, block: u64) -> u64 {
        let (spot, inside) = (block / SPOT_BLOCKS, block % SPOT_BLOCKS);
        self.offset + spot * self.stride + inside * BLOCK as u64
    }
}

/// What to do.
pub enum Job<'l> {
    /// 75 % reads, 25 % writes of 4 KiB, at random over the working set, every read checked.
    Mixed(Area, &'l mut Ledger),
    /// The same without checks, for a device whose content means nothing.
    MixedBlind(Area),
    /// Reads of 256 KiB from `offset` on, again from the start after `bytes`.
    Sequential {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Writes of 256 KiB of zeros, once over the range.
    Fill {
        /// First byte.
        offset: u64,
        /// Bytes, a multiple of 256 KiB.
        bytes: u64,
    },
    /// Reads each of these blocks of the working set once and settles the ledger with what they
    /// hold.
    Settle(Area, &'l mut Ledger, Vec<usize>),
    /// Brings these ranges (offset, bytes) into the cache.
    Prefetch(Vec<(u64, u64)>),
}

impl Job<'_> {
    fn request_bytes(&self) -> usize {
        match self {
            Job::Sequential { .. } | Job::Fill { .. } | Job::Prefetch(_) => 256 << 10,
            _ => BLOCK,
        }
    }
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Requests that ended.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Latencies in nanoseconds, sorted.
    pub latencies: Vec<u32>,
    /// Requests that ended in each [`BIN`].
    pub timeline: Vec<u64>,
    /// Reads whose content was wrong.
    pub wrong: u64,
    /// Reads whose content was checked.
    pub checked: u64,
    /// Requests that the device refused.
    pub errors: u64,
    /// Why it ended early.
    pub broken: Option<String>,
}

impl Seen {
    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Megabytes (10^6) a second.
    pub fn megabytes(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The latency that `share` (0 to 1) of the requests did not exceed, in milliseconds.
    pub fn latency_ms(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let index = (self.latencies.len() as f64 * share) as usize;
        f64::from(self.latencies.get(index.min(last)).copied().unwrap_or(0)) / 1e3
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Slot {
    since: Instant,
    block: usize,
    permitted: Permitted,
    len: usize,
}

/// When to stop.
pub struct Until<'s> {
    /// After this time, if the job does not end by itself.
    pub time: Duration,
    /// When this is set.
    pub stop: &'s AtomicBool,
}

struct Run<'d, 'l> {
    device: &'d mut Device,
    job: Job<'l>,
    random: u64,
    position: u64,
    seen: Seen,
    slots: Vec<Option<Slot>>,
    spare: Vec<Buf>,
    started: Instant,
}

/// Runs `job` with `depth` requests under way.
pub fn run(device: &mut Device, job: Job, depth: usize, until: &Until) -> Seen {
    let spare = (0..depth).map(|_| Buf::zeroed(job.request_bytes())).collect();
    let mut run = Run {
        device,
        job,
        random: 0x5EED,
        position: 0,
        seen: Seen::default(),
        slots: vec![None; depth],
        spare,
        started: Instant::now(),
    };
    let mut ended = Vec::new();
    loop {
        let over = run.started.elapsed() >= until.time || until.stop.load(Ordering::Relaxed);
        if !over {
            run.fill_up();
        }
        if run.spare.len() == depth {
            break;
        }
        if let Err(error) = run.device.wait(&mut ended) {
            run.seen.broken = Some(error.to_string());
            break;
        }
        let now = Instant::now();
        for end in ended.drain(..) {
            run.take(end, now);
        }
    }
    run.seen.elapsed = run.started.elapsed();
    run.seen.latencies.sort_unstable();
    run.seen
}

impl Run<'_, '_> {
    fn fill_up(&mut self) {
        for cookie in 0..self.slots.len() {
            if self.slots[cookie].is_none() && !self.begin(cookie) {
                return;
            }
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(end)) >> 64) as u64
    }

    /// Begins the next request; `false` when there is none.
    fn begin(&mut self, cookie: usize) -> bool {
        let (pick, percent) = (self.below(u64::MAX), self.below(100));
        let mut buf = self.spare.pop().expect("a buffer for each slot");
        let Some(next) = next(&mut self.job, &mut self.position, (pick, percent), &mut buf) else {
            self.spare.push(buf);
            return false;
        };
        let Next { kind, offset, len, block, permitted } = next;
        self.slots[cookie] = Some(Slot { since: Instant::now(), block, permitted, len });
        self.device.submit(cookie, kind, offset, len, buf);
        true
    }

    fn take(&mut self, end: Ended, now: Instant) {
        let slot = self.slots[end.cookie].take().expect("a request of ours");
        let nanos = now.duration_since(slot.since).as_nanos() / 1000;
        self.seen.requests += 1;
        self.seen.bytes += slot.len as u64;
        self.seen.latencies.push(u32::try_from(nanos).unwrap_or(u32::MAX));
        let bin = (now.duration_since(self.started).as_nanos() / BIN.as_nanos()) as usize;
        if self.seen.timeline.len() <= bin {
            self.seen.timeline.resize(bin + 1, 0);
        }
        self.seen.timeline[bin] += 1;
        if end.error != 0 {
            self.seen.errors += 1;
        } else {
            self.check(&slot, &end);
        }
        self.spare.push(end.buf);
    }

    fn check(&mut self, slot: &Slot, end: &Ended) {
        let right = match &mut self.job {
            Job::Mixed(_, ledger) if end.kind == Kind::Write => {
                ledger.end_write(slot.block);
                return;
            }
            Job::Mixed(_, ledger) => ledger.is_right(slot.block, slot.permitted, end.buf.bytes()),
            Job::Settle(_, ledger, _) => ledger.settle(slot.block, end.buf.bytes()),
            _ => return,
        };
        self.seen.checked += 1;
        self.seen.wrong += u64::from(!right);
    }
}

/// A request to begin.
struct Next {
    kind: Kind,
    offset: u64,
    len: usize,
    block: usize,
    permitted: Permitted,
}

/// The next request of `job`, by two random numbers: one of any size, and a percentage. A write's
/// data is put into `buf`.
fn next(job: &mut Job, position: &mut u64, random: (u64, u64), buf: &mut Buf) -> Option<Next> {
    let any = |area: &Area| ((u128::from(random.0) * u128::from(area.blocks())) >> 64) as usize;
    let writes = random.1 >= READ_PERCENT;
    let len = buf.len();
    let unchecked = Permitted { oldest: 0 };
    let read = |offset| Next { kind: Kind::Read, offset, len, block: 0, permitted: unchecked };
    let next = match job {
        Job::Mixed(area, ledger) => {
            let (block, mut kind) = (any(area), Kind::Read);
            let permitted = ledger.begin_read(block);
            if writes && ledger.begin_write(block, buf.bytes_mut()).is_some() {
                kind = Kind::Write;
            }
            Next { kind, offset: area.place(block as u64), len, block, permitted }
        }
        Job::MixedBlind(area) => {
            let next = read(area.place(any(area) as u64));
            Next { kind: if writes { Kind::Write } else { Kind::Read }, ..next }
        }
        Job::Sequential { offset, bytes } => {
            let at = *position % *bytes;
            *position += len as u64;
            read(*offset + at)
        }
        Job::Fill { offset, bytes } => {
            let at = *position;
            *position += len as u64;
            // The buffers come back as they were: zeros.
            (at < *bytes).then(|| Next { kind: Kind::Write, ..read(*offset + at) })?
        }
        Job::Settle(area, ledger, blocks) => {
            let block = blocks.pop()?;
            let permitted = ledger.begin_read(block);
            Next { block, permitted, ..read(area.place(block as u64)) }
        }
        Job::Prefetch(ranges) => {
            let (offset, bytes) = ranges.pop()?;
            let len = (len as u64).min(bytes);
            if len < bytes {
                ranges.push((offset + len, bytes - len));
            }
            Next { kind: Kind::Prefetch, len: len as usize, ..read(offset) }
        }
    };
    Some(next)
}
