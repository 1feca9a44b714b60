//! What a large world is like: pools of thousands of segments that fill in a second or two, and
//! what then goes wrong, if anything.

use crate::rng::{Rng, mix};
use crate::swarm::bend::Bend;
use forebay_engine::{Mode, Time, Tuning};

const SECOND: Time = 1_000_000_000;
const MILLISECOND: Time = 1_000_000;

/// Blocks of a pool: as many as a world can fill in a moment of ours.
const SLOTS_MAX: u64 = 48 << 10;

/// How long an origin hangs.
pub const HANGS_NS: Time = 12 * SECOND;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// The origin of the first volume fails every write and FLUSH from some moment on.
    OriginFails,
    /// The origin of the first volume ends no write and no FLUSH for some seconds.
    OriginHangs,
    /// A cache device fails.
    DeviceDies,
    /// A cache device is not there at the second start.
    DeviceMissing,
}

/// One volume and its clients.
#[derive(Debug, Clone)]
pub struct VolumePlan {
    pub blocks: u64,
    pub mode: Mode,
    pub writers: u64,
    pub readers: u64,
    /// Writers write in this part, in blocks.
    pub hot_blocks: u64,
    /// Most blocks of a request.
    pub blocks_max: u64,
    /// A writer flushes after so many writes; 0 for never.
    pub flush_after: u64,
    /// Longest pause between two requests of a client.
    pub think_ns: Time,
    /// All writers but two pause until the next multiple of this, when they are in the last seven
    /// eighths of it; 0 for never.
    pub burst_ns: Time,
    pub spindle: bool,
    /// I/Os a second that its provider allows, if that is what limits it.
    pub capped: Option<u64>,
}

/// The world of one seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Segments of each device, about.
    pub segments: Vec<u64>,
    pub volatile: Vec<bool>,
    pub segment_blocks: u32,
    pub volumes: Vec<VolumePlan>,
    /// Blocks a second of a cache device.
    pub cache_rate: u64,
    /// How long a FLUSH of a cache device takes.
    pub cache_flush_ns: Time,
    pub tuning: Tuning,
    pub trouble: Trouble,
    /// When it comes.
    pub trouble_at: Time,
    /// When clients stop.
    pub lasts_ns: Time,
    /// Or have asked so much.
    pub requests_max: u64,
    /// Most events between two calls of `settle`.
    pub batch_max: u64,
    /// It is looked at whether the engine asks for the time that it needs.
    pub probes: bool,
}

impl Plan {
    /// The world of a seed; what came later is drawn apart, so that older seeds keep theirs.
    pub fn of(seed: u64, rng: &mut Rng, bend: Option<Bend>) -> Plan {
        let mut plan = Plan::draw(rng);
        plan.widen(&mut Rng::new(mix(seed ^ 0x5eed_0002)));
        let plan = plan.crowded(&mut Rng::new(mix(!seed)));
        match bend {
            Some(Bend::Cloud) => plan.cloudy(&mut Rng::new(mix(seed ^ 0xc10d))),
            Some(Bend::Short) => plan.shortened(&mut Rng::new(mix(seed ^ 0x5eed_0003))),
            _ => plan,
        }
    }

    fn draw(rng: &mut Rng) -> Plan {
        let count = rng.pick(&[1, 1, 2, 2, 2, 3, 4]);
        let segment_blocks = rng.pick(&[8, 8, 16, 32]);
        let most = rng.pick(&[1, 3, 3, 40]);
        let share = |rng: &mut Rng| if rng.coin() { 1 } else { rng.range(1, most) };
        let shares: Vec<u64> = (0..count).map(|_| share(rng)).collect();
        let all = rng.range(1000, 4000).min(SLOTS_MAX / u64::from(segment_blocks));
        let least = all / shares.iter().sum::<u64>();
        let segments: Vec<u64> = shares.iter().map(|share| share * least).collect();
        let slots = segments.iter().sum::<u64>() * u64::from(segment_blocks);
        let volumes = if rng.one_in(3) { 2 } else { 1 };
        let trouble = rng.pick(&[
            Trouble::Nothing,
            Trouble::Nothing,
            Trouble::Nothing,
            Trouble::OriginFails,
            Trouble::DeviceDies,
            Trouble::DeviceMissing,
        ]);
        let lasts_ns = rng.range(3, 8) * SECOND;
        Plan {
            volumes: (0..volumes).map(|_| VolumePlan::draw(rng, slots)).collect(),
            volatile: (0..count).map(|_| !rng.one_in(4)).collect(),
            cache_rate: rng.log_range(20_000, 120_000),
            cache_flush_ns: MILLISECOND,
            tuning: Tuning {
                scan_buckets: rng.log_range(64, 256) as usize,
                sequential_bytes: u64::MAX,
                sync_interval_ns: rng.log_range(100, 5_000) * MILLISECOND,
                checkpoint_share: rng.range(2, 10) as f64 / 100.0,
                admit_second_miss: rng.coin(),
                ..Tuning::default()
            },
            trouble,
            trouble_at: rng.range(1, lasts_ns / 2),
            lasts_ns,
            requests_max: 3 * slots,
            batch_max: rng.log_range(1, 32),
            probes: false,
            segments,
            segment_blocks,
        }
    }
}

impl Plan {
    /// Some worlds get a neighbour for the volume whose origin is sick, and some a sick origin.
    fn widen(&mut self, rng: &mut Rng) {
        if self.trouble == Trouble::Nothing && rng.one_in(3) {
            self.trouble = Trouble::OriginHangs;
            self.lasts_ns = self.trouble_at + HANGS_NS + rng.range(1, 4) * SECOND;
        }
        let sick = matches!(self.trouble, Trouble::OriginFails | Trouble::OriginHangs);
        if sick && self.volumes.len() == 1 && !rng.one_in(4) {
            let slots = self.segments.iter().sum::<u64>() * u64::from(self.segment_blocks);
            self.volumes.push(VolumePlan::draw(rng, slots));
        }
        if self.trouble == Trouble::OriginHangs && rng.coin() {
            self.fill_with_the_sick(rng);
        }
    }

    /// The volume whose origin hangs writes as much as the pool takes, and its neighbour some.
    fn fill_with_the_sick(&mut self, rng: &mut Rng) {
        for (n, volume) in self.volumes.iter_mut().enumerate() {
            volume.mode = Mode::WriteBack;
            volume.hot_blocks = volume.blocks;
            (volume.writers, volume.think_ns) = if n == 0 { (32, 0) } else { (4, 2_000_000) };
            (volume.blocks_max, volume.flush_after) = (if n == 0 { 16 } else { 4 }, 0);
        }
        self.trouble_at = rng.range(1, 200) * MILLISECOND;
        self.requests_max *= 4;
    }

    /// In some worlds a crowd.
    fn crowded(mut self, rng: &mut Rng) -> Plan {
        if rng.one_in(4) {
            self.crowd(rng);
        }
        self
    }

    /// More writers than go on at once, all the time, before a hard disk that cannot follow.
    fn crowd(&mut self, rng: &mut Rng) {
        let slots = self.segments.iter().sum::<u64>() * u64::from(self.segment_blocks);
        self.volumes.truncate(1);
        let volume = &mut self.volumes[0];
        (volume.mode, volume.spindle) = (Mode::WriteBack, true);
        (volume.writers, volume.readers) = (rng.range(48, 96), 0);
        volume.hot_blocks = volume.blocks.min(slots * rng.range(1, 4));
        (volume.flush_after, volume.think_ns) = (0, 0);
        volume.blocks_max = rng.pick(&[1, 4, 16]);
        if rng.coin() {
            (self.tuning.dirty_high, self.tuning.dirty_max) = (0.2, 0.4);
        }
        self.trouble = Trouble::Nothing;
        self.lasts_ns = self.lasts_ns.max(6 * SECOND);
        self.requests_max = 6 * slots;
    }
}

impl Plan {
    /// A crowd before a volume of a cloud: nothing gets faster there by being in order, so that all
    /// wait for room in the end.
    fn cloudy(mut self, rng: &mut Rng) -> Plan {
        self.crowd(rng);
        let slots = self.segments.iter().sum::<u64>() * u64::from(self.segment_blocks);
        let volume = &mut self.volumes[0];
        volume.capped = Some(rng.log_range(150, 3000));
        volume.blocks = slots * rng.range(2, 8);
        volume.hot_blocks = volume.blocks;
        volume.blocks_max = rng.pick(&[1, 1, 4]);
        self.lasts_ns = rng.range(10, 20) * SECOND;
        self
    }

    /// Room in the log is short for a while, again and again: a small pool, many writers, some of
    /// them in bursts, and FLUSHes that take long, so that what is emptied becomes free in gulps.
    fn shortened(mut self, rng: &mut Rng) -> Plan {
        let count = rng.pick(&[1, 1, 2]);
        self.segment_blocks = rng.pick(&[8, 16, 32]);
        let all = rng.log_range(40, 400);
        self.segments = vec![all / count; count as usize];
        self.volatile = vec![true; count as usize];
        let slots = all * u64::from(self.segment_blocks);
        self.volumes.truncate(1);
        let volume = &mut self.volumes[0];
        (volume.mode, volume.spindle) = (Mode::WriteBack, true);
        volume.blocks = slots * rng.range(1, 4);
        volume.hot_blocks = volume.blocks.min(slots * rng.range(1, 4) / 2);
        (volume.writers, volume.readers) = (rng.range(33, 128), 0);
        // The pool has room for what all of them write at once, several times.
        volume.blocks_max = rng.pick(&[1, 1, 1, 4]).min(slots / 4 / volume.writers).max(1);
        volume.flush_after = rng.pick(&[0, 0, 32]);
        volume.think_ns = rng.pick(&[0, 0, 1_000 * MILLISECOND]);
        if rng.coin() {
            volume.burst_ns = rng.range(200, 2_000) * MILLISECOND;
            volume.think_ns = 50 * MILLISECOND;
        }
        self.cache_rate = rng.log_range(16_000, 64_000);
        self.cache_flush_ns = rng.log_range(8, 40) * MILLISECOND;
        let (high, most) = rng.pick(&[(0.6, 0.75), (0.2, 0.4), (0.05, 0.75)]);
        (self.tuning.dirty_high, self.tuning.dirty_max) = (high, most);
        self.tuning.dirty_target = rng.pick(&[0.05, high]);
        (self.trouble, self.probes) = (Trouble::Nothing, true);
        self.lasts_ns = rng.range(2, 4) * SECOND;
        self.requests_max = 6 * slots;
        self
    }
}

impl VolumePlan {
    fn draw(rng: &mut Rng, slots: u64) -> VolumePlan {
        let blocks = slots * rng.pick(&[1, 2, 4, 4, 8]) + rng.below(64);
        let mode = match rng.below(8) {
            0 => Mode::WriteThrough,
            1 => Mode::WriteOnly,
            _ => Mode::WriteBack,
        };
        VolumePlan {
            blocks,
            mode,
            writers: rng.pick(&[1, 4, 16, 16, 32]),
            readers: rng.pick(&[0, 0, 1, 1, 8]),
            hot_blocks: blocks / rng.pick(&[1, 1, 1, 4, 16]),
            blocks_max: rng.pick(&[1, 1, 4, 16]),
            flush_after: rng.pick(&[0, 0, 32, 256]),
            think_ns: rng.pick(&[0, 0, 100_000, 2_000_000]),
            burst_ns: 0,
            spindle: !rng.one_in(4),
            capped: None,
        }
    }
}
