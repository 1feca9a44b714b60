//! What one seed's world is like. In swarm mode each seed switches operations, faults and sizes on
//! and off, so that rare combinations are common somewhere; in plain mode everything happens a
//! little.

pub mod bend;
mod wide;

use crate::disk::{CUT_MODES, CutMode, FlushLoss};
use crate::rng::Rng;
use bend::THEMES;
use forebay_engine::{Mode, Tuning};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Longest I/O, nanoseconds.
const SPIKE_NS_MAX: u64 = 1_000 * MILLISECOND;

/// How often each client operation is chosen, by weight.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Flushes.
    pub flush: u64,
    /// Discards.
    pub discard: u64,
    /// Write-zeroes.
    pub zeroes: u64,
    /// Prefetches.
    pub prefetch: u64,
    /// Share of writes with FUA.
    pub fua: f64,
}

/// Where and how large requests are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Most sectors of a request.
    pub sectors_max: u64,
    /// Share of requests on block boundaries.
    pub aligned: f64,
    /// Share of requests that fall into the hot part.
    pub hot: f64,
    /// Sectors of the hot part.
    pub hot_sectors: u64,
    /// Share of requests that go on where the client's last one ended.
    pub sequential: f64,
}

/// How often an administrator does what, by weight.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Time between commands, nanoseconds; 0 for none.
    pub pause_ns: u64,
    /// Mode switches.
    pub set_mode: u64,
    /// Drains.
    pub drain: u64,
    /// Cancels.
    pub cancel: u64,
    /// Removal of a volume, and adding it again later.
    pub remove: u64,
    /// Growth of a volume that shows only a part of its origin.
    pub resize: u64,
    /// Share of turns in which an origin is pulled out, to be plugged in again.
    pub replug: f64,
    /// Time between looks for a cache device to replace, nanoseconds; 0 for none.
    pub replace_ns: u64,
    /// Share of turns in which lost dirty data, or that of a missing origin, is given up.
    pub force_drop: f64,
    /// Share of the removed volumes whose origin somebody writes to before it is added again.
    pub foreign_writes: f64,
}

/// What breaks besides the power.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Errors of origins, per life.
    pub origin_errors: u64,
    /// Errors of cache devices when they are read, per life.
    pub cache_read_errors: u64,
    /// Those during a start come anywhere in so many reads, not with the first ones; 0 for these.
    pub start_reads: u64,
    /// Errors of cache devices when they are written or flushed, per life.
    pub cache_write_errors: u64,
    /// Share of errors that last until the end of the life.
    pub lasting: f64,
    /// Sectors with client data that rot, per life.
    pub rot: u64,
    /// One cache write in so many loses a page, or puts it elsewhere; 0 for none.
    pub astray_one_in: u64,
    /// Share of lives in which a cache device vanishes.
    pub vanish: f64,
    /// In half of them, within its first moments.
    pub vanish_early: bool,
    /// The device that errs, rots or is absent; the others are sound, unless any may vanish.
    pub bad_device: usize,
    /// Only that one vanishes.
    pub one_vanishes: bool,
    /// Share of starts at which that one is absent.
    pub absent: f64,
    /// Share of starts for which any devices come too late, several at once.
    pub late: f64,
    /// Share of starts at which superblock copies or checkpoints are spoilt: where there is one
    /// device, never one without which a start cannot do.
    pub metadata: f64,
    /// Of a device alone the newest checkpoint may be spoilt, not only the one before.
    pub newest_checkpoint: bool,
    /// A superblock copy or checkpoint area of the bad device, one of several, cannot be written
    /// or read: share of lives.
    pub metadata_errors: f64,
    /// Share of lives in which an origin is missing at the start.
    pub origin_missing: f64,
    /// Share of the attempts to write down distrust that fail.
    pub distrust_fails: f64,
    /// What a failed flush of an origin does.
    pub origin_flush_loss: Option<FlushLoss>,
    /// What a failed flush of a cache device does.
    pub cache_flush_loss: Option<FlushLoss>,
    /// Power cuts spoil sectors in flight.
    pub spoil: bool,
}

impl Faults {
    /// Whether any fault may destroy the only copy of data, or make the engine give up a device.
    pub fn any_cache_fault(&self) -> bool {
        self.cache_read_errors > 0
            || self.cache_write_errors > 0
            || self.rot > 0
            || self.astray_one_in > 0
            || self.vanish > 0.0
    }
}

/// How long I/O takes.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Least time, nanoseconds.
    pub base_ns: u64,
    /// Up to so much more, nanoseconds.
    pub spread_ns: u64,
    /// One I/O in so many takes a thousand times as long; 0 for none.
    pub spike_one_in: u64,
}

impl Latency {
    /// Draws one.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let time = self.base_ns + rng.below(self.spread_ns + 1);
        let spike = self.spike_one_in > 0 && rng.one_in(self.spike_one_in);
        if spike { (1000 * time).min(SPIKE_NS_MAX) } else { time }
    }
}

/// How lives end, by weight.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The power is cut.
    pub cut: u64,
    /// The process is killed.
    pub kill: u64,
    /// An orderly stop.
    pub shutdown: u64,
    /// Share of the orderly stops that a crash cuts short.
    pub stop_cut: f64,
    /// Share of new lives that end within the first events (crash during recovery).
    pub early: f64,
    /// Share of lives in which nothing happens but that everything is read.
    pub looks: f64,
    /// Most events of a life that ends in a crash.
    pub events_max: u64,
    /// Ways to cut.
    pub cut_modes: Vec<CutMode>,
}

/// The world of one seed.
#[derive(Debug, Clone)]
pub struct Params {
    /// Lives of the engine, the last of which is checked to the end.
    pub lives: u64,
    /// Requests of each life.
    pub requests: u64,
    /// Clients, each with one request under way.
    pub clients: u64,
    /// Time between a client's requests, nanoseconds, at most.
    pub think_ns: u64,
    /// One pause in so many is long enough for idle work.
    pub long_pause_one_in: u64,
    /// Sectors of each origin.
    pub volumes: Vec<u64>,
    /// Sectors that each volume has at first.
    pub shown: Vec<u64>,
    /// Mode of each volume at first.
    pub modes: Vec<Mode>,
    /// Cache devices.
    pub devices: usize,
    /// Segments that each device has beyond `segments`; none where the list ends.
    pub segments_more: Vec<u64>,
    /// Whether a device is volatile when the others are not, or the other way round.
    pub turned: Vec<bool>,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Segments of each device, about.
    pub segments: u64,
    /// Whether cache devices have volatile write caches.
    pub cache_volatile: bool,
    /// Whether cache devices are told what is free.
    pub cache_discards: bool,
    /// Whether origins have volatile write caches.
    pub origin_volatile: bool,
    /// Whether origins can give space back.
    pub origin_unmap: bool,
    /// Blocks of a stripe of each origin; 0 where it has none.
    pub stripe_blocks: u32,
    /// Bytes of the RAM tier.
    pub ram_bytes: u64,
    /// The engine's tuning.
    pub tuning: Tuning,
    /// Share of lives with a tuning of their own.
    pub retuned: f64,
    /// At the end everything is read, not only what was ever written.
    pub reads_all: bool,
    /// Client operations.
    pub mix: Mix,
    /// Their places.
    pub places: Places,
    /// The administrator.
    pub admin: Admin,
    /// Faults.
    pub faults: Faults,
    /// Cache latency.
    pub cache_latency: Latency,
    /// Origin latency.
    pub origin_latency: Latency,
    /// A write of a checkpoint takes so many times as long as another of its device.
    pub checkpoint_slowness: u64,
    /// A FLUSH of a cache device takes so many times as long as another I/O of it.
    pub flush_slowness: u64,
    /// Ends of lives.
    pub ends: Ends,
    /// Most events between two calls of `settle`.
    pub batch_max: u64,
    /// Time that passes before an engine with more to do at once goes on, nanoseconds.
    pub busy_ns: u64,
    /// The index is so many times as large as the pool wants.
    pub index_times: u64,
    /// `Engine::check` is called once in so many steps.
    pub check_one_in: u64,
}

impl Params {
    /// Draws the world of a seed.
    pub fn draw(rng: &mut Rng, swarm: bool) -> Params {
        let volumes = draw_volumes(rng);
        let modes = draw_modes(rng, volumes.len());
        let segment_blocks = rng.log_range(32, 128) as u32;
        let least = volumes.iter().copied().min().expect("at least one volume");
        let mut params = Params {
            lives: rng.range(1, 6),
            requests: rng.log_range(8, 400),
            clients: rng.range(1, 8),
            think_ns: rng.log_range(MICROSECOND, 20 * MILLISECOND),
            long_pause_one_in: rng.log_range(10, 1000),
            modes,
            devices: if rng.one_in(4) { 2 } else { 1 },
            segments_more: Vec::new(),
            turned: Vec::new(),
            segment_blocks,
            segments: rng.log_range(12, 40),
            cache_volatile: !rng.one_in(8),
            cache_discards: false,
            origin_volatile: !rng.one_in(8),
            origin_unmap: rng.coin(),
            stripe_blocks: 0,
            ram_bytes: if rng.coin() { 0 } else { 4096 * rng.log_range(1, 64) },
            tuning: draw_tuning(rng),
            retuned: 0.0,
            reads_all: false,
            mix: draw_mix(rng, swarm),
            places: draw_places(rng, least),
            shown: volumes.clone(),
            volumes,
            admin: draw_admin(rng, swarm),
            faults: if swarm { draw_faults(rng) } else { Faults::default() },
            cache_latency: draw_latency(rng, 10 * MICROSECOND, MILLISECOND),
            origin_latency: draw_latency(rng, 50 * MICROSECOND, 20 * MILLISECOND),
            checkpoint_slowness: 1,
            flush_slowness: 1,
            ends: draw_ends(rng, swarm),
            batch_max: rng.log_range(1, 16),
            busy_ns: 0,
            index_times: 1,
            check_one_in: rng.log_range(16, 256),
        };
        if swarm && rng.one_in(3) {
            params.follow(rng.pick(&THEMES), rng);
        }
        params
    }
}

fn draw_volumes(rng: &mut Rng) -> Vec<u64> {
    let count = if rng.coin() { 1 } else { rng.range(2, 3) };
    let volume = |rng: &mut Rng| {
        let blocks = rng.log_range(8, 1024);
        // A volume need not end on a block boundary.
        8 * blocks + if rng.one_in(3) { rng.below(8) } else { 0 }
    };
    (0..count).map(|_| volume(rng)).collect()
}

fn draw_modes(rng: &mut Rng, count: usize) -> Vec<Mode> {
    let usual = rng.coin();
    let mode = |rng: &mut Rng| if usual { Mode::WriteBack } else { rng.pick(&Mode::ALL) };
    (0..count).map(|_| mode(rng)).collect()
}

fn draw_tuning(rng: &mut Rng) -> Tuning {
    let share = |rng: &mut Rng, least: u64, most: u64| rng.range(least, most) as f64 / 100.0;
    let dirty_max = share(rng, 30, 75);
    let dirty_high = dirty_max * share(rng, 30, 100);
    Tuning {
        records_in_flight_max: rng.range(1, 4) as usize,
        dirty_high,
        dirty_max,
        dirty_target: dirty_high * share(rng, 0, 100),
        sync_interval_ns: rng.log_range(MILLISECOND, 5_000 * MILLISECOND),
        writeback_slice_blocks: rng.log_range(1, 256) as usize,
        writeback_depth: rng.log_range(1, 32) as usize,
        region_blocks: {
            // Drawn for a knob that is gone, so that older seeds keep their worlds.
            let _ = rng.coin() || rng.log_range(1, 64) > 0;
            1 << rng.below(8)
        },
        regions_max: usize::MAX,
        sequential_bytes: if rng.coin() { u64::MAX } else { rng.log_range(4096, 1 << 20) },
        checkpoint_share: if rng.one_in(3) { share(rng, 60, 400) } else { share(rng, 2, 60) },
        idle_ns: rng.log_range(MILLISECOND, 1_000 * MILLISECOND),
        scan_buckets: rng.log_range(2, 2048) as usize,
        index_share: 1.0,
        admit_second_miss: rng.coin(),
    }
}

/// A weight that is 0 for one seed in four.
fn weight(rng: &mut Rng, swarm: bool, most: u64) -> u64 {
    if swarm && rng.one_in(4) { 0 } else { rng.range(1, most) }
}

fn draw_mix(rng: &mut Rng, swarm: bool) -> Mix {
    let flush_most = rng.pick(&[2, 10, 40]);
    Mix {
        read: rng.range(1, 100),
        write: rng.range(1, 100),
        flush: weight(rng, swarm, flush_most),
        discard: if rng.coin() { weight(rng, swarm, 15) } else { 0 },
        zeroes: if rng.coin() { weight(rng, swarm, 15) } else { 0 },
        prefetch: if rng.coin() { weight(rng, swarm, 10) } else { 0 },
        fua: if rng.coin() { 0.0 } else { rng.range(1, 60) as f64 / 100.0 },
    }
}

fn draw_places(rng: &mut Rng, volume_sectors: u64) -> Places {
    let most = rng.pick(&[1, 8, 8, 16, 64, 64, 256]);
    let most = if rng.one_in(50) { 2048 } else { most };
    Places {
        sectors_max: most,
        aligned: rng.pick(&[0.0, 0.3, 0.8, 1.0]),
        hot: rng.pick(&[0.0, 0.5, 0.9, 1.0]),
        hot_sectors: rng.log_range(8, volume_sectors.max(8)),
        sequential: rng.pick(&[0.0, 0.0, 0.3, 0.9]),
    }
}

fn draw_admin(rng: &mut Rng, swarm: bool) -> Admin {
    let idle = swarm && rng.coin();
    Admin {
        pause_ns: if idle { 0 } else { rng.log_range(MILLISECOND, 1_000 * MILLISECOND) },
        set_mode: weight(rng, swarm, 10),
        drain: weight(rng, swarm, 5),
        cancel: weight(rng, swarm, 3),
        remove: weight(rng, swarm, 4),
        resize: 0,
        replug: 0.0,
        replace_ns: 0,
        force_drop: 0.0,
        foreign_writes: rng.pick(&[0.0, 0.5, 1.0]),
    }
}

fn draw_faults(rng: &mut Rng) -> Faults {
    let mut faults = Faults { spoil: rng.one_in(3), ..Faults::default() };
    if rng.coin() {
        return faults;
    }
    faults.lasting = rng.pick(&[0.0, 0.3, 1.0]);
    match rng.below(8) {
        0..=1 => faults.origin_errors = rng.range(1, 6),
        2 => faults.cache_read_errors = rng.range(1, 4),
        3 => {
            faults.cache_write_errors = 1;
            let losses = [FlushLoss::Nothing, FlushLoss::Some, FlushLoss::Forget];
            faults.cache_flush_loss = Some(rng.pick(&losses));
        }
        // What a power cut spoils at an origin only the log protects: it must be whole then.
        4 => (faults.rot, faults.spoil) = (rng.range(1, 8), false),
        5 => (faults.astray_one_in, faults.spoil) = (rng.log_range(2, 64), false),
        6 => faults.vanish = rng.pick(&[0.3, 1.0]),
        _ => faults.origin_missing = 0.3,
    }
    faults
}

fn draw_latency(rng: &mut Rng, least: u64, most: u64) -> Latency {
    let base_ns = rng.log_range(least, most);
    Latency {
        base_ns,
        spread_ns: base_ns * rng.pick(&[0, 1, 10, 30]),
        spike_one_in: if rng.one_in(4) { 50 } else { 0 },
    }
}

fn draw_ends(rng: &mut Rng, swarm: bool) -> Ends {
    let all = !swarm || rng.coin();
    let modes = if all { CUT_MODES.to_vec() } else { vec![rng.pick(&CUT_MODES)] };
    Ends {
        cut: rng.range(1, 10),
        kill: weight(rng, swarm, 4),
        shutdown: weight(rng, swarm, 3),
        stop_cut: 0.0,
        early: rng.pick(&[0.0, 0.2, 0.5]),
        looks: rng.pick(&[0.0, 0.0, 0.3, 0.6]),
        events_max: rng.log_range(50, 4000),
        cut_modes: modes,
    }
}
