//! Tiered worlds: virtual time, the machine that places and moves extents, the members of its
//! tiers, clients, an administrator, and the end of its lives. `docs/testing.md` has the rules.

mod admin;
mod client;
mod doubt;
mod errors;
mod fault;
mod finish;
mod io;
mod life;
mod members;
mod pins;
mod places;
mod plan;
mod set;
mod space;

use crate::checker::Checker;
use crate::coverage::Coverage;
use crate::disk::Disk;
use crate::model::{Stamp, Violation};
use crate::rng::{Rng, mix};
use crate::{Options, Totals};
use admin::Asked;
use client::{Client, Held, Waiting};
use fault::Trouble;
use forebay_format::io::{OpId, Time};
use forebay_tier::{CommandId, Effect, Event, IoId, Tiers};
use io::Op;
use life::Life;
use members::Doubt;
use places::Places;
use plan::Plan;
use space::Space;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Steps without an answer after which a world is called stuck.
const STEPS_MAX: u64 = 300_000;
/// Ticks in a row, with nothing else in between, after which the machine is called stuck.
const TICKS_MAX: u64 = 20_000;
/// Ticks at one moment after which it is called busy with nothing.
const TICKS_AT_ONCE_MAX: u64 = 1_000;
/// Longest that a request may wait, nanoseconds: a thousand I/Os of the slowest kind.
const REQUEST_NS_MAX: Time = 1_000_000_000_000;
/// Events within which a life ends that ends soon after a move has begun.
const EVENTS_OF_MOVE: u64 = 400;
/// Makes the numbers of tiered worlds others than those of the others.
const TIERED: u64 = 0x71e2_ed00_5eed_0001;

/// And those of the choice among members of a tier others than those of all else.
const CHOICE: u64 = 0x5017_c4ed_0ffe_7e02;

/// What is due at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Io(OpId),
    Client(usize),
    /// Requests that were held back may go on.
    Held,
    Admin,
    Tick,
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

type Step = Result<Flow, Violation>;
type Check = Result<(), Violation>;

/// A tiered world.
pub struct Tiered {
    options: Options,
    plan: Plan,
    rng: Rng,
    /// Which members of a tier of several: worlds without such tiers do not ask.
    choice: Rng,
    now: Time,
    stamp: Stamp,
    hash: u64,
    totals: Totals,
    coverage: Coverage,
    tiers: Option<Tiers>,
    disks: Vec<Disk>,
    /// Sets that were made so far.
    sets: u8,
    /// Identity of the running kernel.
    boot: u8,
    space: Space,
    checker: Checker,
    /// Sectors of which the oracle knows that they were zeros at first.
    known: Vec<bool>,
    places: Places,
    /// Bytes of the volume: acknowledged last, and asked for since.
    bytes: u64,
    bytes_asked: BTreeSet<u64>,
    clients: Vec<Client>,
    requests: BTreeMap<IoId, Waiting>,
    held: Vec<Held>,
    commands: BTreeMap<CommandId, Asked>,
    ops: BTreeMap<OpId, Op>,
    trouble: Trouble,
    doubt: Doubt,
    queue: BinaryHeap<Reverse<(Time, u64, u64, Due)>>,
    queued: u64,
    next_id: u64,
    next_version: u64,
    /// Requests that clients have sent.
    sent: u64,
    /// The next request that is sent looks at what one before has changed.
    looks: bool,
    /// First sector of the hot part.
    hot_first: u64,
    unsettled: u64,
    batch: u64,
    ticks: u64,
    ticked_at: Time,
    ticks_at_once: u64,
    /// Steps at the last answer.
    answered_at: u64,
    /// No faults and no latency spikes any more.
    calm: bool,
    life: Life,
}

impl Tiered {
    /// The world of a seed, before its first life.
    pub fn new(seed: u64, options: Options) -> Tiered {
        let mut rng = Rng::new(mix(seed ^ TIERED));
        let plan = Plan::draw(&mut rng, !options.plain);
        let space = plan.space();
        let sectors = space.extents_max() * space::EXTENT_SECTORS;
        Tiered {
            options,
            rng,
            choice: Rng::new(mix(seed ^ CHOICE)),
            now: 0,
            stamp: 0,
            hash: seed,
            totals: Totals::default(),
            coverage: Coverage::default(),
            tiers: None,
            disks: (0..plan.members.len()).map(|member| set::disk(&plan, member)).collect(),
            sets: 0,
            boot: 1,
            checker: Checker::new(&[sectors]),
            known: vec![false; sectors as usize],
            places: Places::default(),
            bytes: plan.bytes,
            bytes_asked: BTreeSet::new(),
            clients: (0..plan.clients).map(|_| Client::default()).collect(),
            requests: BTreeMap::new(),
            held: Vec::new(),
            commands: BTreeMap::new(),
            ops: BTreeMap::new(),
            trouble: Trouble::default(),
            doubt: Doubt::default(),
            queue: BinaryHeap::new(),
            queued: 0,
            next_id: 0,
            next_version: 0,
            sent: 0,
            looks: false,
            hot_first: 0,
            unsettled: 0,
            batch: 1,
            ticks: 0,
            ticked_at: 0,
            ticks_at_once: 0,
            answered_at: 0,
            calm: false,
            life: Life::default(),
            space,
            plan,
        }
    }

    /// Lives all lives.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Check {
        self.say(|world| format!("{:#?}", world.plan));
        self.coverage.add("volumes that may be full", u64::from(self.plan.overcommit));
        self.coverage.add("maps of several pages", u64::from(self.plan.parts.len() > 1));
        self.coverage.add("ephemeral volumes", u64::from(self.plan.is_ephemeral()));
        self.make_set();
        for number in 1..=self.plan.lives {
            self.live(number, number == self.plan.lives)?;
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

    fn say(&self, text: impl Fn(&Tiered) -> String) {
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

    fn tiers(&mut self) -> &mut Tiers {
        self.tiers.as_mut().expect("a machine lives")
    }

    fn schedule(&mut self, after: Time, due: Due) {
        self.queued += 1;
        let order = self.rng.bits();
        self.queue.push(Reverse((self.now + after, order, self.queued, due)));
    }

    /// Does the next thing.
    fn step(&mut self) -> Step {
        self.totals.steps += 1;
        if self.totals.steps > self.answered_at + STEPS_MAX && self.waits() {
            let text = format!("{STEPS_MAX} steps and no answer; {}", self.waiting());
            return Err(Violation::new("H", text));
        }
        let next = self.queue.peek().map(|Reverse(entry)| entry.0);
        let deadline = self.tiers().deadline().map(|at| at.max(self.now));
        let due = [next, deadline].into_iter().flatten().min();
        if self.unsettled > 0
            && (self.unsettled >= self.batch || due.is_none_or(|at| at > self.now))
        {
            return self.settle();
        }
        let Some(at) = due else { return Ok(Flow::Idle) };
        self.now = self.now.max(at);
        if next.is_some_and(|next| next <= at) {
            let Reverse((_, _, _, due)) = self.queue.pop().expect("an entry is due");
            if due != Due::Tick {
                self.ticks = 0;
            }
            return self.happen(due);
        }
        self.tick()
    }

    /// The machine wanted to be called now.
    fn tick(&mut self) -> Step {
        if self.ticked_at != self.now {
            (self.ticked_at, self.ticks_at_once) = (self.now, 0);
        }
        self.ticks_at_once += 1;
        // While I/O is under way the machine may well wait for it, and tick meanwhile.
        self.ticks += u64::from(!self.requests.is_empty() && self.ops.is_empty());
        if self.ticks > TICKS_MAX || self.ticks_at_once > TICKS_AT_ONCE_MAX {
            let why = "the machine asks for ticks without end";
            return Err(Violation::new("H", format!("{why}; {}", self.waiting())));
        }
        self.say(|world| {
            let tiers = world.tiers.as_ref().expect("a machine lives");
            format!("tick, {} moves, deadline {:?}", tiers.moving(), tiers.deadline())
        });
        self.feed(Event::Tick)
    }

    fn happen(&mut self, due: Due) -> Step {
        match due {
            Due::Io(op) => self.finish_io(op),
            Due::Client(client) => self.client_turn(client),
            Due::Held => self.release_held(),
            Due::Admin => self.admin_turn(),
            Due::Tick => {
                if !self.life.quiet {
                    self.schedule_tick();
                }
                self.feed(Event::Tick)
            }
        }
    }

    fn settle(&mut self) -> Step {
        self.unsettled = 0;
        self.batch = self.rng.range(1, self.plan.batch_max);
        let mut effects = Vec::new();
        let now = self.now;
        self.tiers().settle(now, &mut effects);
        self.watch()?;
        self.perform(effects)
    }

    /// Gives the machine an event and carries out what it says.
    fn feed(&mut self, event: Event) -> Step {
        self.unsettled += 1;
        let mut effects = Vec::new();
        let now = self.now;
        self.tiers().handle(now, event, &mut effects);
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

    /// Looks at the machine. Rule H: nobody waits for ever beside others that are answered.
    fn watch(&mut self) -> Check {
        let oldest = self.requests.first_key_value();
        if let Some((_, request)) = oldest
            && self.now - request.since > REQUEST_NS_MAX
        {
            return Err(Violation::new("H", format!("too long; {}", self.waiting())));
        }
        if self.rng.one_in(self.plan.check_one_in) {
            self.tiers().check();
        }
        if self.life.ends_at_move && self.tiers().moving() > 0 && self.rng.one_in(8) {
            self.life.ends_at_move = false;
            self.end_within(EVENTS_OF_MOVE);
        }
        self.look_at_places()
    }

    /// Whether anybody waits for an answer.
    fn waits(&self) -> bool {
        !self.requests.is_empty() || !self.held.is_empty() || !self.commands.is_empty()
    }

    /// Who waits, and what for.
    fn waiting(&self) -> String {
        let request = self.requests.iter().next();
        let command = self.commands.iter().next();
        let count = self.requests.len();
        let moving = self.tiers.as_ref().map(Tiers::moving);
        format!(
            "waiting: {count} requests, first {request:?}; command {command:?}; \
             moves {moving:?}; I/Os {:?}",
            self.ops.iter().take(4).collect::<Vec<_>>()
        )
    }
}
