//! Worlds that are bent towards one thing, where chance alone goes too seldom.

use super::{Faults, MILLISECOND, Mix, Params};
use crate::disk::{CutMode, FlushLoss};
use crate::rng::Rng;
use forebay_engine::Mode;

/// What a whole run of seeds may be bent towards: `forebay-sim --bend NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// See [`Params::starve`].
    Starve,
    /// See [`Params::live_briefly`].
    Brief,
    /// See [`Params::come_and_go`].
    Away,
    /// See [`Params::harm_often`].
    Harm,
    /// See [`Params::manage`].
    Admin,
    /// See [`Params::repair_in_vain`].
    Repair,
    /// Another kind of world: see [`crate::large`].
    Large,
}

/// All of them, by name.
pub const BENDS: [(&str, Bend); 7] = [
    ("starve", Bend::Starve),
    ("brief", Bend::Brief),
    ("away", Bend::Away),
    ("harm", Bend::Harm),
    ("admin", Bend::Admin),
    ("repair", Bend::Repair),
    ("large", Bend::Large),
];

impl Bend {
    /// The bend of this name.
    pub fn named(name: &str) -> Option<Bend> {
        BENDS.iter().find(|(known, _)| *known == name).map(|&(_, bend)| bend)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        BENDS.iter().find(|(_, bend)| *bend == self).expect("all are listed").0
    }
}

/// What the lists of seeds hold: `7`, or `7/brief` for seed 7 of the run with this bend.
pub fn listed(word: &str) -> Option<(u64, Option<Bend>)> {
    match word.split_once('/') {
        None => Some((word.parse().ok()?, None)),
        Some((seed, name)) => Some((seed.parse().ok()?, Some(Bend::named(name)?))),
    }
}

impl Params {
    /// Bends a world as a run of seeds asks for.
    pub fn bend(&mut self, bend: Bend, rng: &mut Rng) {
        match bend {
            Bend::Starve => self.starve(rng),
            Bend::Brief => self.live_briefly(rng),
            Bend::Away => self.come_and_go(rng),
            Bend::Harm => self.harm_often(rng),
            Bend::Admin => self.manage(rng),
            Bend::Repair => self.repair_in_vain(rng),
            Bend::Large => {}
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
