//! Large worlds: pools of thousands of segments under load, with disks that take their time. Their
//! rules are T (no request waits longer than its disks explain) and C (the work of one call is
//! bounded whatever the pool holds); what a sector may hold is checked as a version of its block.

mod client;
mod clock;
mod io;
mod life;
mod plan;
mod store;

use crate::coverage::Coverage;
use crate::model::Violation;
use crate::rng::{Rng, mix};
use crate::{Options, Totals};
use clock::{Clock, Flash, Spindle};
use forebay_engine::{
    Buf, CommandId, CommandReply, Effect, Engine, Event, OpId, RequestId, RequestKind, State,
    Target, Time, VolumeId,
};
use forebay_format::BLOCK_SIZE;
use forebay_format::layout::{CHECKPOINT_OFFSET, SUPERBLOCK_OFFSETS};
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use plan::{Plan, Trouble, VolumePlan};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use store::Store;
use zerocopy::little_endian::{U32, U64};

const MILLISECOND: Time = 1_000_000;
const SECOND: Time = 1_000 * MILLISECOND;
/// Rule T: so much longer than its bare disks let a request wait, where nothing fails.
pub const EXTRA_NS: Time = 250 * MILLISECOND;
/// Rule T: so many times as long, where something does. Raising it needs a decision.
pub const FACTOR: Time = 4;
/// Rule C: steps of one `handle` or `settle`.
pub const STEPS_MAX: u64 = 10_000;
/// Blocks of a hard disk's cache.
const SPINDLE_CACHE: usize = 512;
/// A start takes no longer than reading and writing what it must, and this.
const OPEN_NS_MAX: Time = SECOND;
/// Reads that look at what is there after a start.
const LOOKS: u64 = 400;
/// Short worlds look once in so many times that pass whether something is due before.
const PROBE_ONE_IN: u64 = 16;
/// Steps without an answer after which a world stands still.
const STEPS_IDLE_MAX: u64 = 2_000_000;

type Check = Result<(), Violation>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Io(OpId),
    Client(usize),
    Trouble,
}

/// A disk: what it holds, and how long it takes.
struct Disk {
    store: Store,
    clock: Clock,
    /// Every I/O fails.
    dead: bool,
    /// Writes and FLUSHes fail.
    refuses: bool,
    /// Writes and FLUSHes do not end, but these later.
    hangs: bool,
    hung: Vec<OpId>,
}

#[derive(Debug)]
enum Io {
    Read(Buf),
    Write(Buf),
    Zero(u64),
    Nothing,
}

struct UnderWay {
    target: Target,
    offset: u64,
    io: Io,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Writer {
        number: u64,
        left: u64,
    },
    Reader,
    /// Looks at what is there after a start.
    Looker,
}

#[derive(Debug)]
struct Client {
    volume: usize,
    role: Role,
}

#[derive(Debug, Clone)]
struct Waiting {
    client: usize,
    kind: RequestKind,
    block: u64,
    blocks: u64,
    since: Time,
    /// For each block of a read: the version that was acknowledged when it was sent.
    least: Vec<u64>,
}

/// What clients know of the blocks of a volume.
struct Known {
    acked: Vec<u32>,
    sent: Vec<u32>,
}

/// A large world.
pub struct Large {
    plan: Plan,
    options: Options,
    rng: Rng,
    now: Time,
    hash: u64,
    engine: Option<Engine>,
    caches: Vec<Disk>,
    origins: Vec<Disk>,
    known: Vec<Known>,
    clients: Vec<Client>,
    requests: BTreeMap<RequestId, Waiting>,
    ops: BTreeMap<OpId, UnderWay>,
    queue: BinaryHeap<Reverse<(Time, u64, Due)>>,
    queued: u64,
    next_id: u64,
    unsettled: u64,
    batch: u64,
    quiet: bool,
    troubled: bool,
    answered: BTreeMap<CommandId, CommandReply>,
    answered_at: u64,
    /// When the last write of each volume was answered.
    wrote_at: Vec<Time>,
    looked: u64,
    opened_in: Time,
    /// The longest that a read, a write, a FLUSH took, and that all writers of a volume waited.
    worst: [Time; 4],
    steps_worst: u64,
    out: Vec<Effect>,
    totals: Totals,
    coverage: Coverage,
}

const VOLUME_FIRST: u32 = 1;

fn volume_id(index: usize) -> VolumeId {
    VolumeId(VOLUME_FIRST + index as u32)
}

fn make_clients(plan: &Plan) -> Vec<Client> {
    let mut clients = Vec::new();
    for (n, volume) in plan.volumes.iter().enumerate() {
        let writer = |number| Role::Writer { number, left: volume.flush_after };
        let writers = (0..volume.writers).map(writer);
        let readers = (0..volume.readers).map(|_| Role::Reader);
        clients.extend(writers.chain(readers).map(|role| Client { volume: n, role }));
    }
    clients
}

fn pool_spec(plan: &Plan) -> PoolSpec {
    let segment = u64::from(plan.segment_blocks) * BLOCK_SIZE as u64;
    let slots = plan.segments.iter().sum::<u64>() * u64::from(plan.segment_blocks);
    let areas = 2 * (slots * 24 + (1 << 20));
    let offset = (CHECKPOINT_OFFSET + areas).next_multiple_of(segment);
    let bytes = |segments: &u64| offset + segments * segment;
    PoolSpec {
        name: "large".into(),
        uuid: [0xf1; 16],
        devices: plan
            .segments
            .iter()
            .enumerate()
            .map(|(n, segments)| (bytes(segments), [n as u8 + 1; 16]))
            .collect(),
        segment_blocks: Some(plan.segment_blocks),
    }
}

impl Large {
    /// The large world of a seed.
    pub fn new(seed: u64, options: Options) -> Large {
        let mut rng = Rng::new(mix(seed ^ 0x1a26e));
        let plan = Plan::of(seed, &mut rng, options.bend);
        let spec = pool_spec(&plan);
        let mut superblocks = new_pool(&spec).expect("the pool is large enough");
        for superblock in &mut superblocks {
            superblock.volumes =
                plan.volumes.iter().enumerate().map(|(n, volume)| entry(n, volume)).collect();
            superblock.header.volume_id_next = U32::new(1 + plan.volumes.len() as u32);
        }
        let cache = |(bytes, superblock): (u64, &Superblock)| {
            let mut store = Store::new(bytes / BLOCK_SIZE as u64, None);
            let mut copy = vec![0; SUPERBLOCK_SIZE];
            superblock.encode(&mut copy);
            for offset in SUPERBLOCK_OFFSETS {
                store.write(offset / BLOCK_SIZE as u64, &copy);
            }
            let clock = Clock::Flash(Flash::new(plan.cache_rate, plan.cache_flush_ns));
            Disk { store, clock, dead: false, refuses: false, hangs: false, hung: Vec::new() }
        };
        let caches =
            spec.devices.iter().map(|device| device.0).zip(&superblocks).map(cache).collect();
        let origin = |(n, volume): (usize, &VolumePlan)| {
            let clock = match (volume.capped, volume.spindle) {
                (Some(ios_per_s), _) => Clock::Flash(Flash::capped(ios_per_s)),
                (None, true) => Clock::Spindle(Spindle::new(volume.blocks, SPINDLE_CACHE)),
                (None, false) => Clock::Flash(Flash::new(plan.cache_rate / 8, 4 * MILLISECOND)),
            };
            let store = Store::new(volume.blocks, Some(n as u32));
            Disk { store, clock, dead: false, refuses: false, hangs: false, hung: Vec::new() }
        };
        let known = |volume: &VolumePlan| Known {
            acked: vec![0; volume.blocks as usize],
            sent: vec![0; volume.blocks as usize],
        };
        Large {
            options,
            now: 0,
            hash: seed,
            engine: None,
            caches,
            origins: plan.volumes.iter().enumerate().map(origin).collect(),
            known: plan.volumes.iter().map(known).collect(),
            clients: make_clients(&plan),
            requests: BTreeMap::new(),
            ops: BTreeMap::new(),
            queue: BinaryHeap::new(),
            queued: 0,
            next_id: 0,
            unsettled: 0,
            batch: 1,
            quiet: false,
            troubled: false,
            answered: BTreeMap::new(),
            answered_at: 0,
            wrote_at: vec![0; plan.volumes.len()],
            looked: 0,
            opened_in: 0,
            worst: [0; 4],
            steps_worst: 0,
            out: Vec::new(),
            totals: Totals::default(),
            coverage: Coverage::default(),
            rng,
            plan,
        }
    }

    /// Hash over all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        self.totals.clone()
    }

    /// What was met so far.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.coverage)
    }

    /// Load, then a killed process, a start, and a look at what is there.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Check {
        self.say(|world| format!("{:#?}", world.plan));
        self.open()?;
        for client in 0..self.clients.len() {
            let after = self.rng.below(MILLISECOND);
            self.schedule(after, Due::Client(client));
        }
        if !matches!(self.plan.trouble, Trouble::Nothing | Trouble::DeviceMissing) {
            self.schedule(self.plan.trouble_at, Due::Trouble);
        }
        let end = self.now + self.plan.lasts_ns;
        while self.now < end && self.totals.requests < self.plan.requests_max {
            self.step()?;
        }
        self.engine().check();
        self.measure();
        self.second_life()
    }

    fn measure(&mut self) {
        let stats = self.engine().pool_stats();
        self.coverage.add("segments", stats.segments);
        self.coverage.add("segments emptied", stats.segments_dropped + stats.segments_cleaned);
        self.coverage.add("checkpoints", stats.checkpoints);
        self.coverage.mark(match self.plan.trouble {
            Trouble::Nothing => "worlds without faults",
            Trouble::OriginFails => "worlds whose origin fails",
            Trouble::OriginHangs => "worlds whose origin hangs",
            Trouble::DeviceDies => "worlds in which a cache device dies",
            Trouble::DeviceMissing => "worlds that start again without a cache device",
        });
        let text = format!(
            "worst read {} ms, write {} ms, flush {} ms, gap of all writers {} ms; steps {}; \
             {} requests",
            self.worst[0] / MILLISECOND,
            self.worst[1] / MILLISECOND,
            self.worst[2] / MILLISECOND,
            self.worst[3] / MILLISECOND,
            self.steps_worst,
            self.totals.requests,
        );
        self.say(|world| format!("{text}; {:?}", world.engine.as_ref().map(Engine::pool_stats)));
    }

    fn say(&self, text: impl Fn(&Large) -> String) {
        if self.options.trace {
            println!("{:>13} {}", self.now, text(self));
        }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("an engine lives")
    }

    fn disk(&mut self, target: Target) -> &mut Disk {
        match target {
            Target::Cache(device) => &mut self.caches[usize::from(device.0)],
            Target::Origin(volume) => &mut self.origins[(volume.0 - VOLUME_FIRST) as usize],
        }
    }

    fn schedule(&mut self, after: Time, due: Due) {
        self.queued += 1;
        self.queue.push(Reverse((self.now + after, self.queued, due)));
    }

    fn step(&mut self) -> Check {
        self.totals.steps += 1;
        if self.totals.steps > self.answered_at + STEPS_IDLE_MAX {
            return Err(self.stands("steps without an answer"));
        }
        let next = self.queue.peek().map(|Reverse(entry)| entry.0);
        let deadline = self.engine().deadline().map(|at| at.max(self.now));
        let due = [next, deadline].into_iter().flatten().min();
        if self.unsettled > 0
            && (self.unsettled >= self.batch || due.is_none_or(|at| at > self.now))
        {
            self.unsettled = 0;
            self.batch = self.rng.range(1, self.plan.batch_max);
            let (now, mut out) = (self.now, std::mem::take(&mut self.out));
            self.engine().settle(now, &mut out);
            self.out = out;
            self.check_work("settle")?;
            return self.perform();
        }
        let Some(at) = due else { return Err(self.stands("nothing will ever happen")) };
        if at > self.now + 1 && self.plan.probes && self.rng.one_in(PROBE_ONE_IN) {
            return self.probe(at);
        }
        if at > self.now {
            if at / SECOND > self.now / SECOND {
                self.tell();
            }
            self.now = at;
            self.check_waits()?;
        }
        if next.is_some_and(|next| next <= at) {
            let Reverse((_, _, due)) = self.queue.pop().expect("one is due");
            return match due {
                Due::Io(op) => self.finish_io(op),
                Due::Client(client) => self.client_turn(client),
                Due::Trouble => self.trouble(),
            };
        }
        self.feed(Event::Tick)
    }

    /// Rule T: the engine asked to be called when something will be due that only time makes due.
    /// So nothing is, before.
    fn probe(&mut self, at: Time) -> Check {
        self.now = self.rng.range(self.now + 1, at - 1);
        let (now, mut out) = (self.now, std::mem::take(&mut self.out));
        self.engine().handle(now, Event::Tick, &mut out);
        self.engine().settle(now, &mut out);
        let Some(effect) = out.first() else {
            self.out = out;
            return Ok(());
        };
        let text = format!(
            "{effect:?} was due at {now}, before {at}, and the engine did not ask for that"
        );
        Err(Violation::new("T", text))
    }

    /// Where the world stands, once a second.
    fn tell(&mut self) {
        let engine = self.engine.as_ref().map(Engine::describe).unwrap_or_default();
        let stats = self.engine().pool_stats();
        let room = engine.split(" state ").next().unwrap_or_default().to_owned();
        self.say(|world| {
            format!("{} requests, {} checkpoints; {room}", world.totals.requests, stats.checkpoints)
        });
    }

    fn stands(&self, why: &str) -> Violation {
        let engine = self.engine.as_ref().map(Engine::describe).unwrap_or_default();
        let oldest = self.requests.values().min_by_key(|waiting| waiting.since);
        Violation::new("H", format!("{why} at {}; {oldest:?}; {engine}", self.now))
    }

    fn feed(&mut self, event: Event) -> Check {
        self.unsettled += 1;
        let (now, mut out) = (self.now, std::mem::take(&mut self.out));
        self.engine().handle(now, event, &mut out);
        self.out = out;
        self.check_work("handle")?;
        self.perform()
    }

    /// Rule C. A start rolls the log forward in one call: nobody is served meanwhile, and rule T
    /// bounds it.
    fn check_work(&mut self, what: &str) -> Check {
        if self.engine().state() == State::Opening {
            return Ok(());
        }
        let steps = self.engine().steps();
        self.steps_worst = self.steps_worst.max(steps);
        if steps <= STEPS_MAX {
            return Ok(());
        }
        let text = format!("one {what} took {steps} steps; at most {STEPS_MAX} are allowed");
        Err(Violation::new("C", text))
    }

    fn perform(&mut self) -> Check {
        let effects = std::mem::take(&mut self.out);
        for effect in effects {
            self.perform_one(effect)?;
        }
        Ok(())
    }
}

fn entry(index: usize, volume: &VolumePlan) -> VolumeEntry {
    VolumeEntry {
        id: U32::new(volume_id(index).0),
        used: 1,
        mode: volume.mode as u8,
        reserved: [0; 2],
        bytes: U64::new(volume.blocks * BLOCK_SIZE as u64),
        uuid: [index as u8 + 1; 16],
        name: text_field(&format!("v{index}")),
        fingerprint: [index as u8 + 1; 32],
        origin: text_field(&format!("large:{index}")),
    }
}
