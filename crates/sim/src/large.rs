//! Large worlds: pools of thousands of segments under load, with disks that take their time. Their
//! rules are T (no request waits longer than its disks explain) and C (the work of one call is
//! bounded whatever the pool holds); what a sector may hold is checked as a version of its block.

mod clock;
mod plan;
mod store;

use crate::coverage::Coverage;
use crate::model::Violation;
use crate::rng::{Rng, mix};
use crate::{Options, Totals};
use clock::{Clock, Flash, Kind, Spindle};
use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceSettings, Effect, Engine, Event,
    IoError, Notice, OpId, OriginSettings, Request, RequestId, RequestKind, STALL_NS_MAX, Settings,
    State, Target, Time, VolumeId,
};
use forebay_format::layout::{CHECKPOINT_OFFSET, SUPERBLOCK_OFFSETS};
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};
use plan::{Plan, Trouble, VolumePlan};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use store::{Named, Store, fill, parse};
use zerocopy::little_endian::{U16, U64};

const MILLISECOND: Time = 1_000_000;
const SECOND: Time = 1_000 * MILLISECOND;
/// Rule T: so much longer than its bare disks let a request wait, where nothing fails.
pub const EXTRA_NS: Time = 250 * MILLISECOND;
/// Rule T: so many times as long, where something does. Raising it needs a decision.
pub const FACTOR: Time = 4;
/// Rule C: steps of one `handle` or `settle`.
pub const STEPS_MAX: u64 = 40_000;
/// Blocks of a hard disk's cache.
const SPINDLE_CACHE: usize = 512;
/// A start takes no longer than reading and writing what it must, and this.
const OPEN_NS_MAX: Time = SECOND;
/// Reads that look at what is there after a start.
const LOOKS: u64 = 400;
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
    Writer { number: u64, left: u64 },
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

const VOLUME_FIRST: u16 = 1;

fn volume_id(index: usize) -> VolumeId {
    VolumeId(VOLUME_FIRST + index as u16)
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
        let plan = Plan::draw(&mut rng);
        let spec = pool_spec(&plan);
        let mut superblocks = new_pool(&spec).expect("the pool is large enough");
        for superblock in &mut superblocks {
            superblock.volumes =
                plan.volumes.iter().enumerate().map(|(n, volume)| entry(n, volume)).collect();
            superblock.header.volume_id_next = U16::new(1 + plan.volumes.len() as u16);
        }
        let cache = |(bytes, superblock): (u64, &Superblock)| {
            let mut store = Store::new(bytes / BLOCK_SIZE as u64, None);
            let mut copy = vec![0; SUPERBLOCK_SIZE];
            superblock.encode(&mut copy);
            for offset in SUPERBLOCK_OFFSETS {
                store.write(offset / BLOCK_SIZE as u64, &copy);
            }
            let clock = Clock::Flash(Flash::new(plan.cache_rate, MILLISECOND));
            Disk { store, clock, dead: false, refuses: false }
        };
        let caches =
            spec.devices.iter().map(|device| device.0).zip(&superblocks).map(cache).collect();
        let origin = |(n, volume): (usize, &VolumePlan)| {
            let clock = match volume.spindle {
                true => Clock::Spindle(Spindle::new(volume.blocks, SPINDLE_CACHE)),
                false => Clock::Flash(Flash::new(plan.cache_rate / 8, 4 * MILLISECOND)),
            };
            let store = Store::new(volume.blocks, Some(n as u32));
            Disk { store, clock, dead: false, refuses: false }
        };
        let known = |volume: &VolumePlan| Known {
            acked: vec![0; volume.blocks as usize],
            sent: vec![0; volume.blocks as usize],
        };
        let mut clients = Vec::new();
        for (n, volume) in plan.volumes.iter().enumerate() {
            for number in 0..volume.writers {
                let left = volume.flush_after;
                clients.push(Client { volume: n, role: Role::Writer { number, left } });
            }
            clients.extend((0..volume.readers).map(|_| Client { volume: n, role: Role::Reader }));
        }
        Large {
            options,
            now: 0,
            hash: seed,
            engine: None,
            caches,
            origins: plan.volumes.iter().enumerate().map(origin).collect(),
            known: plan.volumes.iter().map(known).collect(),
            clients,
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
        if matches!(self.plan.trouble, Trouble::OriginFails | Trouble::DeviceDies) {
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
            Trouble::DeviceDies => "worlds in which a cache device dies",
            Trouble::DeviceMissing => "worlds that start again without a cache device",
        });
        let text = format!(
            "worst read {} ms, write {} ms, flush {} ms, gap of all writers {} ms; steps {}; {} requests",
            self.worst[0] / MILLISECOND,
            self.worst[1] / MILLISECOND,
            self.worst[2] / MILLISECOND,
            self.worst[3] / MILLISECOND,
            self.steps_worst,
            self.totals.requests,
        );
        self.say(|world| format!("{text}; {:?}", world.engine.as_ref().map(Engine::pool_stats)));
    }

    /// The process is killed; what it acknowledged is there after the next start.
    fn second_life(&mut self) -> Check {
        self.totals.crashes += 1;
        self.engine = None;
        // What is under way to a disk happens or not.
        let ops = std::mem::take(&mut self.ops);
        for under_way in ops.into_values() {
            if let Io::Write(buf) = under_way.io
                && self.rng.coin()
            {
                let disk = self.disk(under_way.target);
                if !disk.dead && !disk.refuses {
                    disk.store.write(under_way.offset / BLOCK_SIZE as u64, buf.bytes());
                }
            }
        }
        self.requests.clear();
        self.queue.clear();
        self.now += SECOND;
        let dies = self.plan.trouble == Trouble::DeviceMissing && self.caches.len() > 1;
        if dies {
            let device = self.rng.below(self.caches.len() as u64) as usize;
            self.caches[device].dead = true;
            self.troubled = true;
        }
        for origin in &mut self.origins {
            origin.refuses = false;
        }
        if self.caches.iter().all(|disk| disk.dead) {
            return Ok(()); // What no device holds, no start can bring back.
        }
        self.open()?;
        self.quiet = true;
        self.look()?;
        self.engine().check();
        let drained = self.drain()?;
        self.coverage.add("worlds drained", u64::from(drained));
        self.engine().check();
        Ok(())
    }

    /// Reads here and there.
    fn look(&mut self) -> Check {
        self.looked = 0;
        let first = self.clients.len();
        for _ in 0..8 {
            let volume = self.rng.below(self.origins.len() as u64) as usize;
            self.clients.push(Client { volume, role: Role::Looker });
        }
        for client in first..self.clients.len() {
            self.schedule(0, Due::Client(client));
        }
        while self.looked < LOOKS || !self.requests.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    /// All goes home. Whether it could.
    fn drain(&mut self) -> Result<bool, Violation> {
        let mut asked = Vec::new();
        for volume in 0..self.origins.len() {
            self.next_id += 1;
            let id = CommandId(self.next_id);
            asked.push(id);
            self.feed(Event::Command(id, Command::Drain(volume_id(volume))))?;
        }
        while asked.iter().any(|id| !self.answered.contains_key(id)) {
            self.step()?;
        }
        let good = asked.iter().all(|id| !matches!(self.answered[id], CommandReply::Failed(_)));
        if !good {
            return Ok(false);
        }
        for volume in 0..self.origins.len() {
            for block in 0..self.plan.volumes[volume].blocks {
                let sent = self.known[volume].sent[block as usize];
                if sent > 0 {
                    self.check_home(volume, block)?;
                }
            }
        }
        Ok(true)
    }

    fn check_home(&self, volume: usize, block: u64) -> Check {
        let mut bytes = [0; BLOCK_SIZE];
        self.origins[volume].store.read(block, &mut bytes);
        self.check_block(volume, block, &bytes, u64::from(self.known[volume].acked[block as usize]))
            .map_err(|mut violation| {
                violation.text = format!("after a drain: {}", violation.text);
                violation
            })
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
            Target::Origin(volume) => &mut self.origins[usize::from(volume.0 - VOLUME_FIRST)],
        }
    }

    fn schedule(&mut self, after: Time, due: Due) {
        self.queued += 1;
        self.queue.push(Reverse((self.now + after, self.queued, due)));
    }

    fn superblocks(&self) -> Vec<Option<Superblock>> {
        let of = |disk: &Disk| {
            if disk.dead {
                return None;
            }
            let copy = |offset: u64| {
                let mut bytes = vec![0; SUPERBLOCK_SIZE];
                disk.store.read(offset / BLOCK_SIZE as u64, &mut bytes);
                Superblock::decode(&bytes)
            };
            Superblock::choose(SUPERBLOCK_OFFSETS.map(copy)).ok().map(|(superblock, _)| superblock)
        };
        self.caches.iter().map(of).collect()
    }

    /// Opens the pool as the host does.
    fn open(&mut self) -> Check {
        let all = self.superblocks();
        let generation = |superblock: &Superblock| superblock.header.generation.get();
        let newest = all.iter().flatten().map(generation).max().unwrap_or(0);
        let superblock = all.iter().flatten().find(|it| generation(it) == newest).cloned();
        let Some(superblock) = superblock else {
            return Err(Violation::new("R", "no superblock can be read".into()));
        };
        let device = |(n, own): (usize, &Option<Superblock>)| {
            let own = own.as_ref().map_or(0, generation);
            DeviceSettings {
                bytes: self.caches[n].store.blocks() * BLOCK_SIZE as u64,
                volatile_cache: self.plan.volatile[n],
                present: own + 1 >= newest && own > 0,
                behind: own + 1 == newest,
            }
        };
        let devices: Vec<DeviceSettings> = all.iter().enumerate().map(device).collect();
        let origins = (0..self.origins.len())
            .map(|n| OriginSettings { volume: volume_id(n), present: true, volatile_cache: true })
            .collect();
        let settings = Settings {
            superblock,
            devices,
            origins,
            distrust_epoch: 0,
            ram_bytes: 0,
            tuning: self.plan.tuning.clone(),
            #[cfg(feature = "mutants")]
            mutant: self.options.mutant,
        };
        let mut out = Vec::new();
        let since = self.now;
        self.engine = Some(Engine::open(settings, self.now, &mut out));
        self.out = out;
        self.unsettled = 1;
        self.perform()?;
        while self.engine().state() == State::Opening {
            self.step()?;
        }
        if let State::Failed(why) = self.engine().state() {
            return Err(Violation::new("R", format!("the pool cannot be opened: {why}")));
        }
        self.opened_in = self.now - since;
        self.say(|world| format!("opened in {} ms", world.opened_in / MILLISECOND));
        self.wrote_at.fill(self.now);
        Ok(())
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

    /// Rule C.
    fn check_work(&mut self, what: &str) -> Check {
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

    fn perform_one(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::Read { op, target, offset, buf } => {
                let blocks = (buf.len() / BLOCK_SIZE) as u64;
                self.start(op, target, Kind::Read, offset, blocks, Io::Read(buf))
            }
            Effect::Write { op, target, offset, buf } => {
                let blocks = (buf.len() / BLOCK_SIZE) as u64;
                self.start(op, target, Kind::Write, offset, blocks, Io::Write(buf))
            }
            Effect::Flush { op, target } => {
                self.start(op, target, Kind::Flush, 0, 0, Io::Nothing)
            }
            Effect::Zero { op, target, offset, len, .. } => {
                let blocks = len / BLOCK_SIZE as u64;
                self.start(op, target, Kind::Write, offset, blocks, Io::Zero(blocks))
            }
            Effect::Discard { op, target, offset, len } => {
                let blocks = len / BLOCK_SIZE as u64;
                self.start(op, target, Kind::Write, offset, blocks, Io::Nothing)
            }
            Effect::Distrust { op, .. } => {
                let under_way = UnderWay { target: Target::Origin(volume_id(0)), offset: 0, io: Io::Nothing };
                self.ops.insert(op, under_way);
                self.schedule(MILLISECOND, Due::Io(op));
                Ok(())
            }
            Effect::Reply { id, result, buf } => self.reply(id, result, buf),
            Effect::CommandDone { id, reply } => {
                self.answered_at = self.totals.steps;
                self.say(|_| format!("{id:?} {reply:?}"));
                self.answered.insert(id, reply);
                Ok(())
            }
            Effect::Notice(notice) => {
                self.say(|_| format!("{notice:?}"));
                match notice {
                    Notice::OpenFailed(why) => Err(Violation::new("R", why)),
                    Notice::BadBlock { .. } if !self.troubled => {
                        Err(Violation::new("E", format!("{notice:?} in a world without faults")))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn start(
        &mut self,
        op: OpId,
        target: Target,
        kind: Kind,
        offset: u64,
        blocks: u64,
        io: Io,
    ) -> Check {
        self.totals.ios += 1;
        self.hash = mix(self.hash ^ op.0 ^ offset.rotate_left(20) ^ blocks.rotate_left(50));
        let now = self.now;
        let disk = self.disk(target);
        let ends = disk.clock.ends(now, kind, offset / BLOCK_SIZE as u64, blocks);
        self.ops.insert(op, UnderWay { target, offset, io });
        self.schedule(ends - now, Due::Io(op));
        Ok(())
    }

    fn finish_io(&mut self, op: OpId) -> Check {
        let UnderWay { target, offset, io } = self.ops.remove(&op).expect("under way");
        let first = offset / BLOCK_SIZE as u64;
        let disk = self.disk(target);
        let failed = disk.dead || (disk.refuses && !matches!(io, Io::Read(_)));
        let mut buf = Buf::empty();
        match io {
            Io::Read(mut into) => {
                if !failed {
                    disk.store.read(first, into.bytes_mut());
                }
                buf = into;
            }
            Io::Write(data) => {
                if !failed {
                    disk.store.write(first, data.bytes());
                }
                buf = data;
            }
            Io::Zero(blocks) => {
                if !failed {
                    disk.store.write(first, &vec![0; blocks as usize * BLOCK_SIZE]);
                }
            }
            Io::Nothing => {}
        }
        let result = if failed { Err(IoError::Io) } else { Ok(()) };
        self.feed(Event::Done(op, Completion { result, buf }))
    }

    fn trouble(&mut self) -> Check {
        self.troubled = true;
        match self.plan.trouble {
            Trouble::OriginFails => self.origins[0].refuses = true,
            Trouble::DeviceDies => {
                let device = self.rng.below(self.caches.len() as u64) as usize;
                self.say(|_| format!("cache {device} dies"));
                self.caches[device].dead = true;
            }
            Trouble::Nothing | Trouble::DeviceMissing => {}
        }
        Ok(())
    }

    fn client_turn(&mut self, client: usize) -> Check {
        let Client { volume, role } = self.clients[client];
        let of = &self.plan.volumes[volume];
        let (all, hot, most, writers) = (of.blocks, of.hot_blocks, of.blocks_max, of.writers);
        match role {
            _ if self.quiet && role != Role::Looker => Ok(()),
            Role::Looker => {
                if self.looked >= LOOKS {
                    return Ok(());
                }
                self.looked += 1;
                let block = self.rng.below(all);
                self.submit(client, RequestKind::Read, block, 1)
            }
            Role::Reader => {
                let block = self.rng.below(all);
                let blocks = self.rng.range(1, most).min(all - block);
                self.submit(client, RequestKind::Read, block, blocks)
            }
            Role::Writer { number, left: 1 } => {
                let left = self.plan.volumes[volume].flush_after;
                self.clients[client].role = Role::Writer { number, left };
                self.submit(client, RequestKind::Flush, 0, 0)
            }
            Role::Writer { number, left } => {
                let left = left.saturating_sub(1);
                self.clients[client].role = Role::Writer { number, left };
                // Each writer has stretches of its own: nobody else writes there.
                let stretches = (hot / most / writers).max(1);
                let stretch = self.rng.below(stretches) * writers + number;
                let block = (stretch * most).min(all - 1);
                let end = ((stretch + 1) * most).min(all);
                if stretch * most >= all {
                    return self.submit(client, RequestKind::Flush, 0, 0);
                }
                let blocks = self.rng.range(1, end - block);
                self.submit(client, RequestKind::Write, block, blocks)
            }
        }
    }

    fn submit(&mut self, client: usize, kind: RequestKind, block: u64, blocks: u64) -> Check {
        let volume = self.clients[client].volume;
        self.next_id += 1;
        let id = RequestId(self.next_id);
        let len = blocks * BLOCK_SIZE as u64;
        let range = block as usize..(block + blocks) as usize;
        let known = &mut self.known[volume];
        let mut least = Vec::new();
        let mut buf = Buf::empty();
        match kind {
            RequestKind::Read => {
                least = known.acked[range].iter().map(|&version| version.into()).collect();
                buf = Buf::zeroed(len as usize);
            }
            RequestKind::Write => {
                buf = Buf::zeroed(len as usize);
                for (at, bytes) in range.zip(buf.bytes_mut().chunks_exact_mut(BLOCK_SIZE)) {
                    known.sent[at] += 1;
                    let version = known.sent[at].into();
                    fill(Named { volume: volume as u32, block: at as u32, version }, bytes);
                }
            }
            _ => {}
        }
        let waiting = Waiting { client, kind, block, blocks, since: self.now, least };
        self.requests.insert(id, waiting);
        let request = Request {
            volume: volume_id(volume),
            kind,
            offset: block * BLOCK_SIZE as u64,
            len,
            fua: false,
            buf,
        };
        self.feed(Event::Submit(id, request))
    }

    fn reply(&mut self, id: RequestId, result: Result<(), IoError>, buf: Buf) -> Check {
        let Some(waiting) = self.requests.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        self.totals.requests += 1;
        self.answered_at = self.totals.steps;
        self.hash = mix(self.hash ^ id.0 ^ self.now << 20);
        let volume = self.clients[waiting.client].volume;
        let took = self.now - waiting.since;
        let at = match waiting.kind {
            RequestKind::Read => 0,
            RequestKind::Flush => 2,
            _ => 1,
        };
        self.worst[at] = self.worst[at].max(took);
        if at == 1 {
            let gap = self.now - self.wrote_at[volume].max(waiting.since);
            self.worst[3] = self.worst[3].max(gap);
            self.wrote_at[volume] = self.now;
        }
        self.check_time(&waiting, volume)?;
        let range = waiting.block as usize..(waiting.block + waiting.blocks) as usize;
        match (result, waiting.kind) {
            (Ok(()), RequestKind::Read) => {
                for (n, bytes) in buf.bytes().chunks_exact(BLOCK_SIZE).enumerate() {
                    self.check_block(volume, waiting.block + n as u64, bytes, waiting.least[n])?;
                }
                self.totals.sectors_read += waiting.blocks * (BLOCK_SIZE / SECTOR_SIZE) as u64;
            }
            (Ok(()), RequestKind::Write) => {
                let known = &mut self.known[volume];
                for at in range {
                    known.acked[at] = known.sent[at];
                }
            }
            (Ok(()), _) => {}
            (Err(error), _) => self.check_error(&waiting, volume, error)?,
        }
        self.engine().recycle(buf);
        let pause = match result {
            Ok(()) => self.rng.below(self.plan.volumes[volume].think_ns + 1),
            Err(_) => self.rng.below(100 * MILLISECOND),
        };
        self.schedule(pause, Due::Client(waiting.client));
        Ok(())
    }

    fn check_block(&self, volume: usize, block: u64, bytes: &[u8], least: u64) -> Check {
        let found = parse(bytes);
        let most = u64::from(self.known[volume].sent[block as usize]);
        let good = found.is_some_and(|named| {
            named.volume as usize == volume
                && u64::from(named.block) == block
                && (least..=most).contains(&named.version)
        });
        if good {
            return Ok(());
        }
        let text = format!("block {block} of volume {volume} holds {found:?}, not {least} to {most}");
        Err(Violation::new("L", text))
    }

    fn check_error(&mut self, waiting: &Waiting, volume: usize, error: IoError) -> Check {
        let dead = self.caches.iter().filter(|disk| disk.dead).count();
        let expected = match self.plan.trouble {
            _ if !self.troubled => false,
            Trouble::OriginFails => volume == 0,
            Trouble::DeviceDies | Trouble::DeviceMissing => dead == self.caches.len(),
            Trouble::Nothing => false,
        };
        if expected {
            return Ok(());
        }
        let text = format!("{waiting:?} is answered with \"{error}\" without a reason");
        Err(Violation::new("E", text))
    }

    /// Rule T: how long a request may wait that was sent at this time.
    fn bound(&self, waiting: &Waiting, volume: usize) -> Time {
        let clients = self.clients.len() as u64;
        let cache = self.caches.iter().map(|disk| disk.clock.worst_ns(clients)).max().unwrap_or(0);
        let bare = self.origins[volume].clock.worst_ns(clients) + cache;
        if !self.troubled {
            return bare + EXTRA_NS;
        }
        let own = self.plan.trouble == Trouble::OriginFails && volume == 0;
        let writes = !matches!(waiting.kind, RequestKind::Read);
        // Writes to an origin that fails wait for it as long as the engine has hope.
        let hope = if own && writes { 2 * STALL_NS_MAX } else { 0 };
        FACTOR * (bare + EXTRA_NS) + hope
    }

    fn check_time(&self, waiting: &Waiting, volume: usize) -> Check {
        let (took, bound) = (self.now - waiting.since, self.bound(waiting, volume));
        if took <= bound {
            return Ok(());
        }
        let text = format!(
            "{:?} of volume {volume} took {} ms; its disks explain {} ms",
            waiting.kind,
            took / MILLISECOND,
            bound / MILLISECOND
        );
        Err(Violation::new("T", text))
    }

    /// Rule T for those that still wait.
    fn check_waits(&mut self) -> Check {
        let Some((_, oldest)) = self.requests.first_key_value() else { return Ok(()) };
        let volume = self.clients[oldest.client].volume;
        self.check_time(oldest, volume).map_err(|mut violation| {
            let engine = self.engine.as_ref().map(Engine::describe).unwrap_or_default();
            violation.text = format!("{} and more; {engine}", violation.text);
            violation
        })
    }
}

fn entry(index: usize, volume: &VolumePlan) -> VolumeEntry {
    VolumeEntry {
        id: U16::new(volume_id(index).0),
        used: 1,
        mode: volume.mode as u8,
        reserved: [0; 4],
        bytes: U64::new(volume.blocks * BLOCK_SIZE as u64),
        uuid: [index as u8 + 1; 16],
        name: text_field(&format!("v{index}")),
        fingerprint: [index as u8 + 1; 32],
        origin: text_field(&format!("large:{index}")),
    }
}
