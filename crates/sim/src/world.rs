//! One world: virtual time, the engine, its devices, its clients, and the end of its lives.

mod admin;
mod client;
mod copies;
mod crash;
mod damage;
mod finish;
mod io;
mod metadata;
mod older;
mod open;
mod plug;
mod replace;

use crate::checker::Checker;
use crate::coverage::Coverage;
use crate::disk::{Disk, Fault, Io};
use crate::model::{Stamp, Violation};
use crate::rng::{Rng, mix};
use crate::swarm::Params;
use crate::swarm::bend::Bend;
use crate::{Options, Totals};
use admin::Asked;
use client::{Client, Waiting};
use forebay_engine::Distrust;
use forebay_engine::{
    CommandId, Effect, Engine, Event, Mode, OpId, OpenError, RequestId, Target, Time, VolumeId,
};
use forebay_format::{Layout, SECTOR_SIZE};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Steps without an answer after which a world is called stuck.
const STEPS_MAX: u64 = 300_000;
/// Ticks in a row, with nothing else in between, after which the engine is called stuck.
const TICKS_MAX: u64 = 20_000;
/// Makes the numbers of wider worlds others than those of the index.
const WIDE: u64 = 0x3d5e_71c4_9a80_26b7;

/// What is due at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Io(OpId),
    Distrust(OpId),
    Client(usize),
    Admin,
    Tick,
    Rot,
    Vanish(usize),
    Replace,
    Swap(usize),
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// There is more to do.
    Go,
    /// The crash point is reached.
    Crash,
    /// Nothing will ever happen again by itself.
    Idle,
}

/// A disk of this world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cache(usize),
    Origin(usize),
}

type Step = Result<Flow, Violation>;

/// An error that the engine got from a device.
struct Delivered {
    stamp: Stamp,
    target: Target,
    first: u64,
    end: u64,
}

/// An origin, and the volume in front of it while there is one.
struct Origin {
    disk: Disk,
    volume: Option<VolumeId>,
    present: bool,
    /// It was missing when the pool was opened, and came in this life.
    came_late: bool,
    /// Sectors that the volume has.
    sectors: u64,
    /// Sectors that it has at least after a crash.
    durable_sectors: u64,
    /// Sectors that it was to have, since it was acknowledged last that it has them.
    asked_sectors: Vec<u64>,
    /// The mode of its volume in the superblock, or none when it has no volume there.
    noted: Option<Mode>,
    /// What may be there instead: asked for since, or seen at a start that did not end.
    noted_perhaps: Vec<Option<Mode>>,
    /// What this start found there.
    noted_found: Option<Option<Mode>>,
    /// So many of `noted_perhaps` are older than this start.
    noted_before: usize,
    /// New requests are not sent (a removal is asked for).
    resting: bool,
}

/// What belongs to one life of the engine.
#[derive(Default)]
struct Life {
    number: u64,
    /// No new requests.
    quiet: bool,
    /// Requests still to send.
    requests_left: u64,
    /// Events until the crash.
    crash_in: Option<u64>,
    serving: bool,
    /// A shutdown was asked for.
    stopping: bool,
    /// A shutdown was answered.
    stopped: bool,
    errors: Vec<Delivered>,
    open_failed: Option<OpenError>,
    /// What must not be used again could not be written down at first.
    unnoted: bool,
    /// Devices that the engine said have failed.
    devices_failed: BTreeSet<usize>,
    /// The engine uses none of them any more: a record was lost that no start would get past.
    log_broken: bool,
    /// Blocks that it called lost.
    blocks_lost: u64,
    /// Errors of the first cache device's reads, to begin when the engine serves.
    read_faults: Vec<Fault>,
    cancelled: bool,
    /// Times that an origin was pulled out.
    pulls: u64,
    /// Times that somebody wrote to an origin without a volume.
    foreign_writes: u64,
    /// Devices on which parts of the log were destroyed.
    damaged: BTreeSet<usize>,
    /// Devices that were in use when it began.
    devices: BTreeSet<usize>,
    /// Devices that vanished.
    vanished: BTreeSet<usize>,
    /// Client data of writes to cache devices that failed, while no other copy is there.
    unwritten: BTreeSet<copies::Copied>,
}

/// A world.
pub struct World {
    options: Options,
    params: Params,
    rng: Rng,
    /// Draws what the index is like; apart, so that older seeds keep their worlds.
    index_rng: Rng,
    /// Draws what only wider worlds have; apart too.
    wide_rng: Rng,
    now: Time,
    stamp: Stamp,
    hash: u64,
    totals: Totals,
    /// Steps at the last answer.
    answered_at: u64,
    coverage: Coverage,
    engine: Option<Engine>,
    caches: Vec<Disk>,
    layout: Layout,
    origins: Vec<Origin>,
    checker: Checker,
    /// Copies that were harmed, but for those that another device had, and the crashes until then.
    harmed: BTreeMap<copies::Copied, u64>,
    /// When client data was last written to a cache device, in pools of three devices and more.
    written: BTreeMap<(usize, copies::Copied), Time>,
    /// Client data that was sent to an origin after it was acknowledged.
    sent_home: BTreeSet<copies::Copied>,
    /// Generations of checkpoints that were spoilt on a device alone.
    spoilt_checkpoints: BTreeSet<u64>,
    /// Devices that ever failed, rotted or were away.
    troubled: BTreeSet<usize>,
    /// Blocks of which the last crash left more than one value possible.
    undecided: BTreeSet<(usize, u64)>,
    clients: Vec<Client>,
    requests: BTreeMap<RequestId, Waiting>,
    commands: BTreeMap<CommandId, Asked>,
    ops: BTreeMap<OpId, (Target, Place)>,
    distrusts: BTreeMap<OpId, Distrust>,
    /// What the host has written down about distrust.
    distrust: Distrust,
    /// And about how far the log is durable.
    older: older::Older,
    replaced: replace::Replaced,
    queue: BinaryHeap<Reverse<(Time, u64, u64, Due)>>,
    queued: u64,
    next_id: u64,
    next_version: u64,
    unsettled: u64,
    batch: u64,
    ticks: u64,
    /// Calm: no faults and no latency spikes any more.
    calm: bool,
    life: Life,
}

impl World {
    /// The world of a seed, before its first life.
    pub fn new(seed: u64, options: Options) -> World {
        let mut rng = Rng::new(seed);
        let mut index_rng = Rng::new(mix(seed));
        let mut params = Params::draw(&mut rng, !options.plain);
        if index_rng.one_in(6) {
            params.scan_slowly(&mut index_rng);
        }
        // Apart too.
        let mut bend_rng = Rng::new(mix(!seed));
        params.bend_some(!options.plain, &mut bend_rng);
        if let Some(bend) = options.bend {
            params.bend(bend, &mut bend_rng);
        }
        let mut wide_rng = Rng::new(mix(mix(seed) ^ WIDE));
        params.widen(!options.plain, &mut wide_rng);
        let (caches, layout) = open::make_caches(&params);
        let origins: Vec<Origin> = open::make_origins(&params);
        let sectors: Vec<u64> = origins.iter().map(|origin| origin.disk.sectors()).collect();
        let clients = (0..params.clients).map(|_| Client::default()).collect();
        World {
            options,
            rng,
            index_rng,
            wide_rng,
            now: 0,
            stamp: 0,
            hash: seed,
            totals: Totals::default(),
            answered_at: 0,
            coverage: Coverage::default(),
            engine: None,
            caches,
            layout,
            origins,
            checker: Checker::new(&sectors),
            harmed: BTreeMap::new(),
            written: BTreeMap::new(),
            sent_home: BTreeSet::new(),
            spoilt_checkpoints: BTreeSet::new(),
            troubled: BTreeSet::new(),
            undecided: BTreeSet::new(),
            clients,
            requests: BTreeMap::new(),
            commands: BTreeMap::new(),
            ops: BTreeMap::new(),
            distrusts: BTreeMap::new(),
            distrust: Distrust::default(),
            older: older::Older::new(seed, options.bend == Some(Bend::Older)),
            replaced: replace::Replaced::new(seed),
            queue: BinaryHeap::new(),
            queued: 0,
            next_id: 0,
            next_version: 0,
            unsettled: 0,
            batch: 1,
            ticks: 0,
            calm: false,
            life: Life::default(),
            params,
        }
    }

    /// Lives all lives.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Result<(), Violation> {
        self.say(|world| format!("{:#?}", world.params));
        let unequal = self.caches.iter().any(|disk| {
            let other = &self.caches[0];
            (disk.sectors(), disk.volatile) != (other.sectors(), other.volatile)
        });
        self.coverage.add("pools of unequal devices", u64::from(unequal));
        self.coverage.add("worlds in which all is read", u64::from(self.params.reads_all));
        self.coverage.add("pools of three devices or four", u64::from(self.caches.len() > 2));
        self.checker.keeps_all = self.params.faults.any_cache_fault();
        self.format_pool();
        for number in 1..=self.params.lives {
            let last = number == self.params.lives;
            self.live(number, last)?;
        }
        Ok(())
    }

    /// Hash over all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        Totals { sectors_read: self.checker.sectors_read, ..self.totals.clone() }
    }

    /// What was met so far.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.coverage)
    }

    fn say(&self, text: impl Fn(&World) -> String) {
        if self.options.trace {
            println!("{:>4} {:>13} {:>6} {}", self.life.number, self.now, self.stamp, text(self));
        }
    }

    fn note(&mut self, value: u64) {
        self.hash = mix(self.hash ^ value);
    }

    fn next_stamp(&mut self) -> Stamp {
        self.stamp += 1;
        self.stamp
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("an engine lives")
    }

    fn schedule(&mut self, after: Time, due: Due) {
        self.queued += 1;
        let order = self.rng.bits();
        self.queue.push(Reverse((self.now + after, order, self.queued, due)));
    }

    /// Does the next thing.
    fn step(&mut self) -> Step {
        self.totals.steps += 1;
        if self.totals.steps > self.answered_at + STEPS_MAX {
            let text = format!("{STEPS_MAX} steps and no answer; {}", self.waiting());
            return Err(Violation::new("H", text));
        }
        let next = self.queue.peek().map(|Reverse(entry)| entry.0);
        let soonest = self.now + self.params.busy_ns;
        let deadline = self.engine().deadline().map(|at| at.max(soonest));
        let due = [next, deadline].into_iter().flatten().min();
        if self.unsettled > 0
            && (self.unsettled >= self.batch || due.is_none_or(|at| at > self.now))
        {
            return self.settle();
        }
        let Some(at) = due else { return Ok(Flow::Idle) };
        if at > self.now {
            self.now = at;
        }
        self.watch()?;
        if next.is_some_and(|next| next <= at) {
            let Reverse((_, _, _, due)) = self.queue.pop().expect("an entry is due");
            if due != Due::Tick {
                self.ticks = 0;
            }
            return self.happen(due);
        }
        // While I/O is under way the engine may well wait for it, and tick meanwhile.
        let waits = !self.requests.is_empty() || !self.commands.is_empty();
        self.ticks += u64::from(waits && self.ops.is_empty() && self.distrusts.is_empty());
        if self.ticks > TICKS_MAX {
            let why = "the engine asks for ticks without end";
            return Err(Violation::new("H", format!("{why}; {}", self.waiting())));
        }
        self.feed(Event::Tick)
    }

    /// Looks at the engine now and then.
    fn watch(&mut self) -> Result<(), Violation> {
        if self.rng.one_in(self.params.check_one_in) {
            self.engine().check();
        }
        if !self.life.serving {
            self.look_at_state();
        }
        Ok(())
    }

    fn happen(&mut self, due: Due) -> Step {
        match due {
            Due::Io(op) => self.finish_io(op),
            Due::Distrust(op) => {
                let note = self.distrusts.remove(&op).expect("a distrust under way");
                if !self.calm && self.wide_rng.chance(self.params.faults.distrust_fails) {
                    self.coverage.mark("distrust not written down");
                    let buf = forebay_engine::Buf::empty();
                    let result = Err(forebay_engine::IoError::Io);
                    return self.feed(Event::Done(op, forebay_engine::Completion { result, buf }));
                }
                self.distrust = note;
                self.coverage.mark("distrust written down");
                let buf = forebay_engine::Buf::empty();
                self.feed(Event::Done(op, forebay_engine::Completion { result: Ok(()), buf }))
            }
            Due::Client(client) => self.client_turn(client),
            Due::Admin => self.admin_turn(),
            Due::Tick => {
                if !self.life.quiet {
                    self.schedule_tick();
                }
                self.feed(Event::Tick)
            }
            Due::Rot => self.rot(),
            Due::Vanish(device) => self.vanish(device),
            Due::Replace => self.replace_turn(),
            Due::Swap(device) => self.swap(device),
        }
    }

    fn settle(&mut self) -> Step {
        self.unsettled = 0;
        self.batch = self.rng.range(1, self.params.batch_max);
        let mut effects = Vec::new();
        let now = self.now;
        self.engine().settle(now, &mut effects);
        self.older_sees();
        self.perform(effects)
    }

    /// Gives the engine an event and carries out what it says.
    fn feed(&mut self, event: Event) -> Step {
        self.unsettled += 1;
        let mut effects = Vec::new();
        let now = self.now;
        self.engine().handle(now, event, &mut effects);
        self.perform(effects)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Step {
        if self.crash_is_due() {
            return Ok(Flow::Crash);
        }
        for effect in effects {
            if self.crash_is_due() {
                return Ok(Flow::Crash);
            }
            self.perform_one(effect)?;
        }
        Ok(Flow::Go)
    }

    fn crash_is_due(&mut self) -> bool {
        match &mut self.life.crash_in {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                *left == 0
            }
            None => false,
        }
    }

    fn perform_one(&mut self, effect: Effect) -> Result<(), Violation> {
        let sectors = |bytes: u64| bytes / SECTOR_SIZE as u64;
        match effect {
            Effect::Read { op, target, offset, buf } => {
                self.start_io(op, target, offset, buf.len() as u64, Io::Read(buf))
            }
            Effect::Write { op, target, offset, buf } => {
                self.start_io(op, target, offset, buf.len() as u64, Io::Write(buf))
            }
            Effect::Flush { op, target } => self.start_io(op, target, 0, 512, Io::Flush),
            Effect::Zero { op, target, offset, len, unmap } => {
                if unmap && !self.params.origin_unmap {
                    return self.refuse(op, target);
                }
                self.start_io(op, target, offset, len, Io::Zero(sectors(len)))
            }
            Effect::Discard { op, target, offset, len } => {
                self.start_io(op, target, offset, len, Io::Discard(sectors(len)))
            }
            Effect::Distrust { op, note } => {
                self.say(|_| format!("distrust {note:?} ({op:?})"));
                self.distrusts.insert(op, note);
                let after = self.params.origin_latency.draw(&mut self.rng);
                self.schedule(after, Due::Distrust(op));
                Ok(())
            }
            Effect::Reply { id, result, buf } => self.reply(id, result, buf),
            Effect::CommandDone { id, reply } => self.command_done(id, reply),
            Effect::Notice(notice) => self.notice(notice),
        }
    }
}
