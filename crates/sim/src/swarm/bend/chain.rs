//! Bends whose worlds walk long chains of rare things: what nobody was told of before a crash,
//! starts that can only use the checkpoint of the life before, and what the log still has of blocks
//! that the cache forgot.

use super::{NO_MIX, even_latency};
use crate::disk::{CutMode, FlushLoss};
use crate::rng::Rng;
use crate::swarm::{Faults, MILLISECOND, Mix, Params};
use forebay_engine::Mode;

impl Params {
    /// Something is lost, and a crash comes before those are told who should know.
    pub(super) fn leave_untold(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        (self.segment_blocks, self.admin.pause_ns) = (32, 0);
        self.places.aligned = 1.0;
        self.cache_latency = even_latency(MILLISECOND / 50);
        self.origin_latency = even_latency(MILLISECOND / 10);
        (self.clients, self.think_ns, self.ram_bytes) = (4, MILLISECOND, 0);
        (self.ends.early, self.ends.looks, self.ends.shutdown) = (0.0, 0.0, 0);
        match rng.coin() {
            true => self.forget_in_doubt(rng),
            false => self.go_untold(rng),
        }
    }

    /// An origin forgets what clients wrote past the cache and a FLUSH failed to keep; another
    /// succeeds, for a sync point, and the process is killed before a client asks for one.
    fn forget_in_doubt(&mut self, rng: &mut Rng) {
        self.modes.fill(Mode::WriteThrough);
        self.mix = Mix { read: 30, write: 60, ..NO_MIX };
        self.faults = Faults { origin_errors: 6, ..Faults::default() };
        self.faults.origin_flush_loss = Some(FlushLoss::Forget);
        self.origin_volatile = true;
        self.devices = 1;
        self.tuning.admit_second_miss = false;
        self.tuning.sequential_bytes = u64::MAX;
        self.tuning.sync_interval_ns = rng.log_range(MILLISECOND, 8 * MILLISECOND);
        self.tuning.idle_ns = MILLISECOND;
        self.tuning.region_blocks = rng.pick(&[1, 4, 16]);
        (self.places.hot, self.places.hot_sectors) = (0.5, rng.log_range(64, 1024));
        self.places.sectors_max = 64;
        self.requests = rng.log_range(100, 400);
        (self.ends.cut, self.ends.kill) = (rng.pick(&[0, 1]), 2);
        (self.lives, self.ends.events_max) = (rng.range(4, 12), 3000);
    }

    /// One of three devices fails, and is back when a start reads the others, of which one
    /// vanishes; checkpoints take so long that none says that it was away. Most of the log is on
    /// two of them.
    fn go_untold(&mut self, rng: &mut Rng) {
        self.devices = 3;
        self.segments = 8;
        let more = rng.range(8, 24);
        self.segments_more = vec![more, more];
        (self.cache_volatile, self.origin_volatile) = (true, true);
        self.faults = Faults { vanish: 0.9, vanish_early: true, ..Faults::default() };
        self.modes.fill(Mode::WriteBack);
        self.mix = Mix { read: 5, write: 60, flush: 30, ..NO_MIX };
        (self.places.hot, self.places.sectors_max) = (0.0, 64);
        self.checkpoint_slowness = rng.log_range(1_000, 10_000);
        self.tuning.checkpoint_share = 4.0;
        (self.clients, self.think_ns) = (2, 4 * MILLISECOND);
        self.requests = rng.log_range(50, 200);
        self.ends.cut_modes = vec![CutMode::DropAll, CutMode::PerWrite];
        (self.ends.cut, self.ends.kill) = (8, 2);
        (self.lives, self.ends.events_max) = (rng.range(6, 16), 2000);
    }

    /// The newest checkpoint is damaged when a start needs it, and what the one before says of the
    /// life before last does not hold any more.
    pub(super) fn last_resort(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        (self.devices, self.segments_more) = (1, Vec::new());
        (self.cache_volatile, self.origin_volatile) = (true, true);
        // After a killed process what is pending keeps the start after it from being spoilt.
        self.faults = Faults { metadata: 1.0, newest_checkpoint: true, ..Faults::default() };
        self.checkpoint_slowness = 100_000;
        self.tuning.checkpoint_share = 4.0;
        self.tuning.admit_second_miss = false;
        self.tuning.sequential_bytes = u64::MAX;
        (self.admin.pause_ns, self.ram_bytes, self.places.aligned) = (0, 0, 1.0);
        (self.ends.early, self.ends.looks, self.ends.shutdown) = (0.0, 0.0, 0);
        self.cache_latency = even_latency(MILLISECOND / 50);
        self.origin_latency = even_latency(MILLISECOND / 20);
        match rng.below(4) == 2 {
            true => self.trust_in_vain(rng),
            false => self.free_in_vain(rng),
        }
    }

    /// What a start dropped because its region was marked is in the checkpoint before, and is
    /// written past the cache in the life after that start.
    fn trust_in_vain(&mut self, rng: &mut Rng) {
        self.modes.fill(Mode::WriteAround);
        self.mix = Mix { read: 50, write: 50, flush: rng.pick(&[0, 2]), ..NO_MIX };
        (self.places.hot, self.places.hot_sectors) = (1.0, rng.log_range(256, 1024));
        self.places.sectors_max = 16;
        self.tuning.region_blocks = rng.pick(&[4, 16]);
        self.tuning.sync_interval_ns = rng.log_range(MILLISECOND, 8 * MILLISECOND);
        self.ends.cut_modes = vec![CutMode::DropAll, CutMode::KeepAll];
        (self.ends.cut, self.ends.kill) = (1, 1);
        (self.clients, self.think_ns, self.requests) = (4, MILLISECOND, rng.log_range(50, 200));
        (self.lives, self.ends.events_max) = (20, 10_000);
    }

    /// A power cut takes what was read into a segment, while the word that it is empty is there
    /// already; dirty data comes into the segment next. FLUSHes take long: what comes to the device
    /// meanwhile waits together for the next.
    fn free_in_vain(&mut self, rng: &mut Rng) {
        (self.volumes, self.shown) = (vec![8 * 512], vec![8 * 512]);
        self.modes = vec![Mode::WriteBack];
        self.faults.metadata = 0.6;
        self.mix = Mix { read: 60, write: 15, discard: 5, flush: 8, ..NO_MIX };
        (self.places.hot, self.places.hot_sectors, self.places.sectors_max) = (1.0, 2048, 256);
        (self.segments, self.flush_slowness) = (9, 4_000);
        self.tuning.idle_ns = 1_000 * MILLISECOND;
        self.ends.cut_modes = vec![CutMode::DropAll, CutMode::NewestFirst, CutMode::PerWrite];
        (self.ends.cut, self.ends.kill) = (8, 0);
        (self.clients, self.think_ns, self.requests) = (8, MILLISECOND, rng.log_range(50, 400));
        (self.lives, self.ends.events_max) = (20, 4000);
    }

    /// Blocks that are read, evicted and then written past the cache, with many sync points and few
    /// checkpoints: the log still has what the cache forgot, and nothing marks it any more.
    pub(super) fn evict(&mut self, rng: &mut Rng) {
        self.live_briefly(rng);
        let blocks = rng.range(300, 500);
        (self.volumes, self.shown) = (vec![8 * blocks], vec![8 * blocks]);
        self.modes = vec![Mode::WriteAround];
        self.mix = Mix { read: 70, write: 30, flush: 2, ..NO_MIX };
        (self.places.aligned, self.places.hot, self.places.sectors_max) = (1.0, 0.0, 128);
        (self.faults, self.admin.pause_ns, self.ram_bytes) = (Faults::default(), 0, 0);
        (self.clients, self.think_ns, self.requests) = (4, MILLISECOND / 5, 400);
        (self.devices, self.segments) = (1, 8);
        self.tuning.admit_second_miss = false;
        self.tuning.sequential_bytes = u64::MAX;
        self.tuning.region_blocks = rng.pick(&[1, 16]);
        self.tuning.sync_interval_ns = 2 * MILLISECOND;
        self.tuning.checkpoint_share = 4.0;
        self.cache_latency = even_latency(MILLISECOND / 100);
        self.origin_latency = even_latency(MILLISECOND / 10);
        (self.lives, self.ends.looks, self.ends.early) = (12, 0.0, 0.0);
        (self.ends.cut, self.ends.kill, self.ends.shutdown) = (4, 4, 0);
        self.ends.events_max = 3000;
    }
}
