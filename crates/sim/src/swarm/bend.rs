//! Worlds that are bent towards one thing, where chance alone goes too seldom.

mod chain;
mod name;

pub use name::{BENDS, Bend};

use super::{Faults, Latency, MILLISECOND, Mix, Params};
use crate::disk::{CutMode, FlushLoss};
use crate::rng::Rng;
use forebay_engine::Mode;

impl Params {
    /// Bends a world as a run of seeds asks for.
    pub fn bend(&mut self, bend: Bend, rng: &mut Rng) {
        match bend {
            Bend::Starve => self.starve(rng),
            Bend::Brief => self.live_briefly(rng),
            Bend::Away => self.come_and_go(rng),
            Bend::Dwindle => self.dwindle(rng),
            Bend::Harm => self.harm_often(rng),
            Bend::Admin => self.manage(rng),
            Bend::Repair => self.repair_in_vain(rng),
            Bend::Linger => self.linger(rng),
            Bend::Turnover => self.turn_over(rng),
            Bend::Vain => self.zero_in_vain(rng),
            Bend::Spare => self.need_the_spare(rng),
            Bend::Overtake => self.overtake(rng),
            Bend::Evict => self.evict(rng),
            Bend::Untold => self.leave_untold(rng),
            Bend::Resort => self.last_resort(rng),
            Bend::Late => self.come_late(rng),
            Bend::Replug => self.replug(rng),
            Bend::Older => self.come_back_older(rng),
            Bend::Stripes => self.stripe(rng),
            Bend::Replace => self.replace(rng),
            Bend::Large | Bend::Cloud | Bend::Short => {}
        }
    }

    /// Bends one world in a few, by chance.
    pub fn bend_some(&mut self, swarm: bool, rng: &mut Rng) {
        if rng.one_in(6) {
            self.grow(rng);
        } else if swarm && rng.one_in(20) {
            self.zero_in_vain(rng);
        } else if swarm && rng.one_in(20) {
            self.starve(rng);
        } else if swarm && rng.one_in(10) {
            self.live_briefly(rng);
        } else if swarm && rng.one_in(20) {
            self.come_and_go(rng);
        } else if swarm && rng.one_in(20) {
            self.harm_often(rng);
        }
    }

    /// Checkpoints that take long in a cache that is emptied and filled again meanwhile.
    pub fn scan_slowly(&mut self, rng: &mut Rng) {
        self.tuning.scan_buckets = rng.range(1, 4) as usize;
        self.tuning.checkpoint_share = 0.02;
        (self.tuning.dirty_target, self.tuning.dirty_high) = (0.0, 0.1);
        self.tuning.admit_second_miss = false;
        self.segments = self.segments.min(14);
        self.requests *= 2;
    }

    /// Volumes that show a part of their origins, and grow.
    fn grow(&mut self, rng: &mut Rng) {
        for shown in &mut self.shown {
            *shown = 8 * rng.range(1, *shown / 8);
        }
        self.admin.resize = rng.range(1, 10);
        if self.admin.pause_ns == 0 {
            self.admin.pause_ns = rng.log_range(MILLISECOND, 1_000 * MILLISECOND);
        }
    }

    /// Zeroes that a power cut takes back from the origin after clients have read them there: a
    /// sync point of the next life must not vouch for what the life before cached.
    fn zero_in_vain(&mut self, rng: &mut Rng) {
        self.follow(Theme::Zeroes, rng);
        self.modes.fill(Mode::WriteBack);
        self.mix = Mix { read: 60, write: 10, discard: 40, ..NO_MIX };
        self.ends.cut_modes = vec![rng.pick(&[CutMode::NewestFirst, CutMode::DropAll])];
        (self.ends.cut, self.ends.kill, self.ends.looks) = (1, 1, 0.0);
        self.ends.events_max = rng.log_range(200, 4000);
        self.tuning.admit_second_miss = false;
        self.tuning.sync_interval_ns = rng.log_range(5, 50) * MILLISECOND;
        self.tuning.checkpoint_share = 4.0;
        self.origin_latency.spike_one_in = 0;
        (self.lives, self.places.hot) = (6, 0.9);
    }

    /// Many short lives of a small pool: what one of them leaves behind meets what others did.
    fn live_briefly(&mut self, rng: &mut Rng) {
        self.lives = rng.range(8, 30);
        self.requests = rng.log_range(8, 150);
        self.ends.events_max = rng.log_range(20, 600);
        (self.segment_blocks, self.segments) = (32, rng.range(8, 14));
        self.devices = if rng.one_in(3) { 2 } else { 1 };
        self.tuning.checkpoint_share = rng.pick(&[0.05, 0.5, 4.0]);
        self.tuning.admit_second_miss = rng.one_in(4);
    }

    /// Short lives in which one of two devices, or an origin, comes and goes.
    fn come_and_go(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.devices = 2;
        let origin_missing = rng.pick(&[0.0, 0.3]);
        self.faults = Faults { vanish: 0.5, origin_missing, ..Faults::default() };
    }

    /// Short lives of a few devices that vanish one after the other, many while a start reads them.
    fn dwindle(&mut self, rng: &mut Rng) {
        self.come_and_go(rng);
        self.devices = rng.range(3, 4) as usize;
        (self.faults.vanish, self.faults.vanish_early) = (0.7, true);
        self.faults.origin_missing = 0.0;
    }

    /// Short lives of a few sound devices of which some come too late for a start, after all ends.
    fn come_late(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.devices = rng.range(2, 4) as usize;
        self.faults = Faults { late: rng.pick(&[0.3, 0.6]), ..Faults::default() };
        self.ends.shutdown = rng.pick(&[1, 8]);
    }

    /// Lives whose devices come back as older copies of themselves, one of them or all, while clean
    /// blocks are replaced.
    fn come_back_older(&mut self, rng: &mut Rng) {
        self.follow(Theme::Through, rng);
        self.live_briefly(rng);
        self.devices = rng.range(1, 3) as usize;
        for mode in &mut self.modes {
            *mode = rng.pick(&[Mode::WriteBack, Mode::WriteThrough, Mode::WriteThrough]);
        }
        self.requests = rng.log_range(50, 600);
        self.ends.events_max = rng.log_range(300, 5000);
        (self.ends.cut, self.ends.looks, self.ends.early) = (8, 0.1, 0.0);
        self.ends.shutdown = rng.pick(&[0, 8]);
        self.tuning.checkpoint_share = 4.0;
        self.tuning.admit_second_miss = false;
        self.tuning.region_blocks = rng.pick(&[1, 16]);
        self.tuning.sync_interval_ns = rng.log_range(MILLISECOND, 50 * MILLISECOND);
        self.think_ns = rng.log_range(MILLISECOND / 10, 4 * MILLISECOND);
    }

    /// Origins that are pulled out and plugged in again, while they are used.
    fn replug(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.lives = rng.range(2, 8);
        self.requests = rng.log_range(100, 1000);
        self.ends.events_max = rng.log_range(1000, 10_000);
        self.faults = Faults::default();
        self.origin_volatile = !rng.one_in(8);
        self.admin.pause_ns = rng.log_range(MILLISECOND, 50 * MILLISECOND);
        self.admin.replug = rng.pick(&[0.02, 0.1, 0.3]);
        self.think_ns = rng.log_range(MILLISECOND / 10, 10 * MILLISECOND);
        self.tuning.idle_ns = rng.pick(&[1, 1000]) * MILLISECOND;
    }

    /// Lives in which devices fail, or are let go, and others take their place, while what is dirty
    /// stays.
    fn replace(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.devices = rng.pick(&[2, 2, 2, 3, 4]);
        self.lives = rng.range(2, 10);
        self.requests = rng.log_range(60, 800);
        self.ends.events_max = rng.log_range(300, 8000);
        self.segments = rng.range(10, 30);
        self.faults = Faults { vanish: rng.pick(&[0.0, 0.5, 0.9]), ..Faults::default() };
        self.admin.replace_ns = rng.log_range(MILLISECOND / 2, 50 * MILLISECOND);
        self.think_ns = rng.log_range(MILLISECOND / 10, 4 * MILLISECOND);
        self.checkpoint_slowness = rng.pick(&[1, 1, 100]);
        if rng.coin() {
            self.modes.fill(Mode::WriteBack);
        }
        if rng.coin() {
            (self.tuning.dirty_target, self.tuning.dirty_high) = (0.7, 0.7);
            self.tuning.dirty_max = 0.75;
            self.tuning.idle_ns = 1_000_000_000 * MILLISECOND;
        }
    }

    /// Short lives of two devices of which one has what the other lost in a power cut, but cannot
    /// always be read when a start copies it, and fails later.
    fn repair_in_vain(&mut self, rng: &mut Rng) {
        self.come_and_go(rng);
        self.faults.cache_read_errors = rng.range(1, 4);
        self.faults.start_reads = rng.log_range(4, 200);
        (self.cache_volatile, self.ends.cut) = (true, 4);
        self.faults.lasting = 0.0;
    }

    /// Short lives in which a cache device errs, or data rots there.
    fn harm_often(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.lives = rng.range(4, 12);
        self.faults = Faults { lasting: rng.pick(&[0.0, 0.3, 1.0]), ..Faults::default() };
        let faults = &mut self.faults;
        match rng.below(4) {
            0 => faults.cache_read_errors = rng.range(1, 4),
            1 => {
                let losses = [FlushLoss::Nothing, FlushLoss::Some, FlushLoss::Forget];
                (faults.cache_write_errors, faults.cache_flush_loss) = (1, Some(rng.pick(&losses)));
            }
            2 => faults.rot = rng.range(1, 8),
            _ => faults.astray_one_in = rng.log_range(2, 64),
        }
    }

    /// Short lives in which volumes are switched, drained, taken away, brought back and grown.
    fn manage(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        self.requests = rng.log_range(40, 300);
        if rng.coin() {
            self.grow(rng);
        }
        self.admin.pause_ns = rng.log_range(MILLISECOND, 50 * MILLISECOND);
        self.think_ns = rng.log_range(MILLISECOND / 10, 10 * MILLISECOND);
        self.admin.remove = rng.range(1, 10);
        self.faults = Faults { origin_missing: rng.pick(&[0.0, 0.2]), ..Faults::default() };
        self.faults.origin_errors = rng.pick(&[0, 0, 1]);
    }

    /// Checkpoints of a small pool take long, so that segments which hold nothing wait for them,
    /// while writes of all kinds want room.
    fn starve(&mut self, rng: &mut Rng) {
        self.follow(Theme::Through, rng);
        for mode in &mut self.modes {
            *mode = rng.pick(&[Mode::WriteAround, Mode::WriteThrough, Mode::WriteBack]);
        }
        self.mix.write = rng.pick(&[10, 60]);
        self.mix.flush = rng.pick(&[0, 0, 10, 60]);
        self.mix.discard = rng.pick(&[0, 0, 0, 60]);
        self.mix.fua = rng.pick(&[0.0, 0.0, 0.5]);
        (self.segment_blocks, self.segments) = (32, rng.range(8, 12));
        self.checkpoint_slowness = rng.log_range(1_000, 1_000_000);
        self.tuning.checkpoint_share = rng.pick(&[0.1, 4.0]);
        self.tuning.region_blocks = 1;
        self.tuning.sync_interval_ns = rng.log_range(5, 500) * MILLISECOND;
        self.tuning.records_in_flight_max = 4;
        self.requests = rng.log_range(200, 1600);
        self.ends.events_max = rng.log_range(200, 4000);
        (self.lives, self.ends.early, self.clients) = (rng.range(4, 16), 0.3, 8);
    }

    /// Reads of origins that take long, while parts of the same blocks are written and go home.
    fn linger(&mut self, rng: &mut Rng) {
        self.modes.fill(Mode::WriteBack);
        self.mix = Mix { read: 60, write: 40, flush: rng.below(4), ..NO_MIX };
        (self.places.aligned, self.places.hot, self.places.sequential) = (0.1, 1.0, 0.0);
        self.places.sectors_max = 8;
        self.places.hot_sectors = rng.log_range(32, 256);
        self.faults = Faults { origin_errors: rng.pick(&[0, 0, 3]), ..Faults::default() };
        self.admin.pause_ns = 0;
        (self.clients, self.think_ns) = (8, rng.log_range(MILLISECOND / 10, 4 * MILLISECOND));
        self.requests = rng.log_range(100, 800);
        self.tuning.admit_second_miss = rng.one_in(4);
        self.tuning.sequential_bytes = u64::MAX;
        (self.tuning.dirty_target, self.tuning.dirty_high) = (0.0, 0.0);
        self.tuning.idle_ns = MILLISECOND;
        self.cache_latency.spike_one_in = 0;
        let base_ns = rng.log_range(MILLISECOND / 20, MILLISECOND / 4);
        self.origin_latency = Latency { base_ns, spread_ns: base_ns, spike_one_in: 8 };
    }

    /// Origins of stripes, before which short slices of dirty blocks go home all the time, to their
    /// ends.
    fn stripe(&mut self, rng: &mut Rng) {
        self.stripe_blocks = rng.pick(&[2, 3, 8, 16]);
        self.modes.fill(Mode::WriteBack);
        self.places.sequential = rng.pick(&[0.3, 0.7]);
        self.tuning.writeback_slice_blocks = rng.range(1, 24) as usize;
        (self.tuning.dirty_target, self.tuning.dirty_high) = (0.0, 0.1);
    }

    /// Few segments that hold clean data only are emptied and filled again and again, while
    /// checkpoints look at a large index slowly.
    fn turn_over(&mut self, rng: &mut Rng) {
        (self.volumes, self.shown) = (vec![8 * 2048], vec![8 * 2048]);
        self.modes = vec![rng.pick(&[Mode::WriteBack, Mode::WriteThrough])];
        self.mix = Mix { read: 80, write: rng.pick(&[5, 40]), flush: 15, ..NO_MIX };
        (self.places.aligned, self.places.hot, self.places.sequential) = (1.0, 0.0, 0.0);
        self.places.sectors_max = 256;
        self.faults = Faults::default();
        self.admin.pause_ns = 0;
        (self.clients, self.ram_bytes) = (8, 0);
        self.requests = rng.log_range(100, 400);
        (self.devices, self.segment_blocks) = (2, 32);
        (self.segments, self.segments_more) = (rng.range(8, 12), vec![rng.range(1, 2)]);
        self.tuning.admit_second_miss = false;
        self.tuning.sequential_bytes = u64::MAX;
        self.tuning.sync_interval_ns = rng.log_range(MILLISECOND, 50 * MILLISECOND);
        self.tuning.checkpoint_share = 0.02;
        (self.tuning.scan_buckets, self.index_times) = (1, 18);
        self.busy_ns = rng.log_range(MILLISECOND / 4, 4 * MILLISECOND);
        (self.batch_max, self.check_one_in) = (16, 4);
        let base_ns = MILLISECOND / 100;
        self.origin_latency = Latency { base_ns, spread_ns: base_ns, spike_one_in: 0 };
        let spike_one_in = rng.pick(&[0, 20]);
        self.cache_latency = Latency { spike_one_in, ..self.origin_latency.clone() };
        self.think_ns = base_ns;
        (self.lives, self.ends.looks) = (rng.range(10, 24), 0.3);
        self.ends.events_max = rng.log_range(300, 3000);
    }

    /// Short lives with checkpoints that take long: starts that can only use the one before the
    /// newest, and devices that come back before any superblock says that they were away.
    fn need_the_spare(&mut self, rng: &mut Rng) {
        self.follow(Theme::Through, rng);
        self.live_briefly(rng);
        self.devices = rng.range(1, 2) as usize;
        self.requests = rng.log_range(50, 400);
        self.ends.events_max = rng.log_range(100, 2000);
        (self.clients, self.think_ns) = (8, MILLISECOND / 10);
        self.checkpoint_slowness = 1_000_000;
        self.tuning.checkpoint_share = 4.0;
        self.tuning.sync_interval_ns = rng.log_range(MILLISECOND, 50 * MILLISECOND);
        self.tuning.admit_second_miss = false;
        self.tuning.sequential_bytes = u64::MAX;
        self.tuning.region_blocks = rng.pick(&[1, 16, 128]);
        (self.ends.early, self.ends.looks) = (0.0, 0.2);
        (self.ends.cut, self.ends.kill) = (8, rng.pick(&[0, 8]));
        if self.devices == 1 {
            self.faults.metadata = 1.0;
            self.faults.newest_checkpoint = true;
            self.ends.cut_modes = vec![CutMode::DropAll, CutMode::NewestFirst];
        } else if rng.coin() {
            self.faults.vanish = 0.7;
            self.modes.fill(Mode::WriteAround);
            self.places.hot_sectors = rng.log_range(512, 4096);
        } else {
            self.faults.absent = rng.pick(&[0.3, 0.6]);
        }
        if rng.coin() {
            // What is read goes round and round in the log, and little is flushed.
            (self.volumes, self.shown) = (vec![8 * 2048], vec![8 * 2048]);
            self.modes = vec![Mode::WriteBack];
            (self.places.hot, self.places.sectors_max) = (0.0, 256);
            self.mix = Mix { read: 60, write: 10, flush: rng.below(4), ..NO_MIX };
        }
        match rng.below(6) {
            0 => self.outlive_the_spare(),
            1 | 2 => self.change_devices(),
            _ => {}
        }
    }

    /// What the checkpoint before the newest holds was dropped by the start after it, and written
    /// past the cache in its life.
    fn outlive_the_spare(&mut self) {
        (self.devices, self.cache_volatile) = (1, false);
        self.faults = Faults { metadata: 1.0, newest_checkpoint: true, ..Faults::default() };
        self.modes.fill(Mode::WriteAround);
        self.mix = Mix { read: 50, write: 50, ..NO_MIX };
        (self.places.hot, self.places.hot_sectors, self.places.sectors_max) = (1.0, 1024, 16);
        (self.tuning.region_blocks, self.tuning.sync_interval_ns) = (4, 3 * MILLISECOND);
        self.cache_latency = even_latency(MILLISECOND / 50);
        self.origin_latency = even_latency(MILLISECOND / 20);
        (self.clients, self.think_ns, self.requests) = (4, MILLISECOND, 100);
        (self.ends.cut, self.ends.kill, self.ends.looks) = (0, 1, 0.0);
        (self.lives, self.ends.events_max) = (20, 30_000);
    }

    /// One device vanishes, and soon after the crash the other, while the first is back.
    fn change_devices(&mut self) {
        (self.devices, self.cache_volatile) = (2, true);
        self.faults = Faults { vanish: 1.0, ..Faults::default() };
        self.modes.fill(Mode::WriteBack);
        self.mix = Mix { read: 10, write: 60, flush: 20, ..NO_MIX };
        self.cache_latency = even_latency(MILLISECOND / 50);
        self.origin_latency = even_latency(MILLISECOND / 10);
        self.checkpoint_slowness = 1000;
        (self.clients, self.think_ns, self.requests) = (4, MILLISECOND, 200);
        (self.ends.cut, self.ends.kill, self.ends.looks) = (8, 4, 0.0);
        (self.lives, self.ends.events_max) = (15, 3000);
    }

    /// Some I/O takes a thousand times as long as other, and what is quick overtakes it.
    /// Checkpoints and clients' FLUSHes pass records and FLUSHes of the other devices, reads pass
    /// FLUSHes of an origin that was zeroed, answers pass the word that a block is not dirty
    /// any more.
    fn overtake(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        (self.lives, self.requests) = (rng.range(8, 16), 300);
        self.ends.events_max = rng.log_range(1000, 4000);
        (self.ends.kill, self.ends.shutdown, self.ends.early) = (2, 0, 0.0);
        (self.ends.cut, self.ends.looks) = (8, 0.0);
        (self.faults, self.admin.pause_ns) = (Faults::default(), 0);
        (self.cache_volatile, self.origin_volatile) = (true, true);
        self.modes.fill(Mode::WriteBack);
        (self.clients, self.think_ns, self.ram_bytes) = (8, MILLISECOND / 10, 0);
        self.places.aligned = 1.0;
        (self.tuning.admit_second_miss, self.tuning.sequential_bytes) = (false, u64::MAX);
        let spike_one_in = rng.pick(&[5, 20]);
        self.cache_latency = Latency { spike_one_in, ..even_latency(MILLISECOND / 20) };
        self.origin_latency = even_latency(MILLISECOND / 20);
        match rng.below(4) {
            0 => {
                self.mix = Mix { read: rng.pick(&[0, 60]), write: 40, ..NO_MIX };
                self.places.hot = 0.0;
                self.tuning.checkpoint_share = 0.02;
                self.tuning.sync_interval_ns = MILLISECOND;
                self.tuning.records_in_flight_max = 4;
                self.ends.cut_modes =
                    vec![CutMode::DropAll, CutMode::Independent, CutMode::PerWrite];
            }
            1 => {
                self.devices = rng.range(3, 4) as usize;
                self.mix = Mix { read: rng.below(60), write: 60, flush: 30, ..NO_MIX };
                self.ends.cut_modes =
                    vec![CutMode::DropAll, CutMode::Independent, CutMode::PerWrite];
            }
            2 => {
                self.mix = Mix { read: 40, write: 40, discard: 40, ..NO_MIX };
                (self.places.hot, self.places.hot_sectors) = (1.0, rng.log_range(64, 256));
                self.places.sectors_max = 16;
                (self.tuning.dirty_target, self.tuning.dirty_high) = (1.0, 1.0);
                (self.ends.cut, self.ends.kill) = (0, 1);
            }
            _ => {
                self.mix = Mix { read: 60, discard: 40, ..NO_MIX };
                (self.places.hot, self.places.hot_sectors) = (1.0, rng.log_range(64, 512));
                self.places.sectors_max = 16;
                self.cache_latency = even_latency(MILLISECOND / 100);
                let spike_one_in = rng.pick(&[0, 4]);
                self.origin_latency = Latency { spike_one_in, ..even_latency(2 * MILLISECOND) };
                self.ends.kill = 0;
                self.ends.cut_modes = vec![CutMode::NewestFirst, CutMode::DropAll];
                let (sync_ns, share) = rng.pick(&[(1, 4.0), (100, 0.02)]);
                self.tuning.sync_interval_ns = sync_ns * MILLISECOND;
                self.tuning.checkpoint_share = share;
            }
        }
    }

    /// Bends a world towards one thing.
    pub(super) fn follow(&mut self, theme: Theme, rng: &mut Rng) {
        self.places.aligned = 1.0;
        self.places.hot_sectors = rng.log_range(64, 1024);
        (self.mix.fua, self.admin.pause_ns) = (0.0, 0);
        self.faults = Faults::default();
        (self.cache_volatile, self.origin_volatile) = (true, true);
        (self.ends.kill, self.ends.shutdown, self.ends.looks) = (1, 0, 0.3);
        self.lives = rng.range(2, 6);
        match theme {
            Theme::Churn => {
                self.modes.fill(Mode::WriteBack);
                self.segments = rng.log_range(8, 14);
                self.mix = Mix { read: rng.below(10), write: 100, flush: rng.below(3), ..NO_MIX };
                self.places.hot = 0.9;
                self.requests = rng.log_range(200, 1200);
                self.tuning.sync_interval_ns = 5_000 * MILLISECOND;
                self.tuning.idle_ns = 1_000 * MILLISECOND;
                self.tuning.dirty_target = self.tuning.dirty_high;
                self.long_pause_one_in = 1000;
            }
            Theme::Zeroes => {
                self.mix = Mix { read: 60, write: 40, flush: 4, discard: 30, zeroes: 10, ..NO_MIX };
                self.modes.fill(rng.pick(&[Mode::WriteBack, Mode::WriteOnly, Mode::WriteThrough]));
            }
            Theme::Through => {
                self.mix = Mix { read: 60, write: 60, flush: rng.below(6), ..NO_MIX };
                self.modes.fill(rng.pick(&[Mode::WriteThrough, Mode::WriteAround]));
                self.tuning.admit_second_miss = false;
                (self.places.hot, self.ram_bytes) = (0.9, 0);
            }
        }
    }
}

/// I/O that never takes more than twice as long as other.
fn even_latency(base_ns: u64) -> Latency {
    Latency { base_ns, spread_ns: base_ns, spike_one_in: 0 }
}

/// What a swarm world may be about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Theme {
    /// A small log that wraps all the time and is seldom flushed.
    Churn,
    /// Zeroes and discards over cached and dirty blocks.
    Zeroes,
    /// Writes to the origin beside cached copies.
    Through,
}

/// All of them.
pub(super) const THEMES: [Theme; 3] = [Theme::Churn, Theme::Zeroes, Theme::Through];

const NO_MIX: Mix =
    Mix { read: 0, write: 0, flush: 0, discard: 0, zeroes: 0, prefetch: 0, fua: 0.0 };
