//! Worlds that are wider than those of old: more devices, of unequal kind, and starts without one.
//! All of it is drawn apart, so that the worlds of older seeds stay what they were in all else.

use super::{Params, draw_tuning};
use crate::disk::FlushLoss;
use crate::rng::Rng;
use forebay_engine::Tuning;

/// Most devices of a pool here.
const DEVICES_MAX: u64 = 4;

impl Params {
    /// Widens a world, by chance.
    pub fn widen(&mut self, swarm: bool, rng: &mut Rng) {
        if rng.one_in(6) {
            self.mix_devices(rng);
        }
        if rng.one_in(5) {
            self.retuned = rng.pick(&[0.2, 1.0]);
        }
        self.reads_all = rng.one_in(6);
        if swarm && self.devices > 1 {
            self.choose_bad_device(rng);
        }
        if swarm {
            self.let_origins_forget(rng);
            self.faults.distrust_fails = rng.pick(&[0.0, 0.0, 0.5, 0.9]);
            self.admin.force_drop = rng.pick(&[0.0, 0.0, 0.1, 0.5]);
        }
        self.ends.stop_cut = rng.pick(&[0.0, 0.5]);
        // A device that fails while others are late may have had the only copy.
        if swarm && rng.one_in(8) && self.faults.late == 0.0 {
            self.faults.metadata = rng.pick(&[0.2, 0.5, 1.0]);
            self.faults.newest_checkpoint = rng.coin();
            self.faults.metadata_errors = rng.pick(&[0.0, 0.2, 0.5]);
        }
        if rng.one_in(4) {
            self.tuning.regions_max = rng.log_range(1, 64) as usize;
        }
        self.cache_discards = rng.one_in(3);
    }

    /// What an administrator may change between two lives.
    pub fn retune(&mut self, rng: &mut Rng) {
        let regions_max = self.tuning.regions_max;
        self.tuning = Tuning { regions_max, ..draw_tuning(rng) };
        self.ram_bytes = if rng.coin() { 0 } else { 4096 * rng.log_range(1, 64) };
    }

    /// Origins whose failed flushes do more than fail.
    fn let_origins_forget(&mut self, rng: &mut Rng) {
        if self.faults.origin_errors == 0 && !self.faults.any_cache_fault() && rng.one_in(8) {
            self.faults.origin_errors = rng.range(1, 6);
        }
        if self.faults.origin_errors > 0 && rng.coin() {
            let loss = rng.pick(&[FlushLoss::Some, FlushLoss::Forget, FlushLoss::Forget]);
            self.faults.origin_flush_loss = Some(loss);
        }
    }

    /// Other numbers of devices, of unequal sizes, some with a volatile cache and some without.
    fn mix_devices(&mut self, rng: &mut Rng) {
        self.devices = rng.range(1, DEVICES_MAX) as usize;
        let uneven = rng.coin();
        for _ in 0..self.devices {
            let more = if uneven { rng.below(2 * self.segments) } else { 0 };
            self.segments_more.push(more);
            self.turned.push(rng.one_in(3));
        }
    }

    /// What fails, rots or is absent at a start is so on one device: any.
    fn choose_bad_device(&mut self, rng: &mut Rng) {
        if rng.coin() {
            self.faults.bad_device = rng.below(self.devices as u64) as usize;
        }
        // Where any device may vanish, another's absence would leave no copy.
        if self.faults.vanish == 0.0 && rng.one_in(3) {
            self.faults.absent = rng.pick(&[0.1, 0.3, 0.6]);
        } else if self.faults.vanish > 0.0 && rng.one_in(3) {
            self.faults.one_vanishes = true;
        }
    }
}
