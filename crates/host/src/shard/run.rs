//! The loop: gather what happened, tell the engine, carry out what it says, wait.

mod caches;
mod fall;
mod origins;
mod planted;
mod stop;

pub(super) use fall::words_of;

use super::clients::Clients;
use super::mailbox::{Answer, Gone, Mailbox, Message};
use super::patience::Patience;
use super::ports::Ports;
use super::server::NbdServer;
use super::{ShardSnapshot, VolumeSnapshot};
use crate::driver::{Arrival, Driver};
use crate::executor::Executor;
use crate::frontend::nbd::{BlockState, SessionEvent, Ticket};
use crate::frontend::port::{PortAnswer, PortRequest};
use crate::notice::{HostNotice, NoticeSink, Notices};
use crate::origin::Origin;
use crate::rescue;
use crate::witness::WitnessFile;
use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, Effect, Engine, Event, IoError, Keyed, OpId,
    Request, RequestId, Settings, Time, VolumeId,
};
use origins::origin_of;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use stop::{Leaving, Stopping};

/// Rounds of effects and their immediate consequences before the loop looks at devices and sockets again.
const ROUNDS_MAX: usize = 64;

/// Who is told of a request's end.
enum Asker {
    Client(u32, Ticket),
    /// A port, by its key, and its tag.
    Port(u32, u32),
    Thread(SyncSender<Answer>),
}

/// A command under way.
struct Asked {
    reply: Option<SyncSender<CommandReply>>,
    /// The volume that it removes.
    removes: Option<VolumeId>,
}

/// A volume to add. One at a time: the engine's first I/O for it may come before its number is told.
struct Adding {
    command: Box<Command>,
    origin: Box<Origin>,
    reply: SyncSender<CommandReply>,
}

/// How a shard hangs together with the process.
pub(super) struct Links {
    pub mailbox: Arc<Mailbox>,
    pub server: Arc<NbdServer>,
    pub number: u32,
    /// What is seen of the log.
    pub witness: Option<WitnessFile>,
}

/// Everything that a shard's thread owns.
pub(super) struct Shard {
    engine: Engine,
    driver: Driver,
    executor: Executor,
    clients: Clients,
    ports: Ports,
    patience: Patience,
    links: Links,
    notices: Notices,
    start: Instant,
    now: Time,
    requests: Keyed<Asker>,
    commands: BTreeMap<CommandId, Asked>,
    command_next: u64,
    adds: VecDeque<Adding>,
    /// The command that adds a volume, its origin until the volume is known, and then the volume.
    adding: Option<(CommandId, Option<Box<Origin>>, Option<VolumeId>)>,
    stopping: Option<Stopping>,
    /// Volumes that are removed when their tiers rest.
    leaving: Vec<Leaving>,
    effects: Vec<Effect>,
    arrivals: Vec<Arrival>,
    completions: Vec<(OpId, Completion)>,
    mail: VecDeque<Message>,
    port_requests: Vec<PortRequest>,
    /// There is more to do at once.
    busy: bool,
}

impl Shard {
    pub fn new(
        settings: Settings,
        driver: Driver,
        executor: Executor,
        links: Links,
        sink: NoticeSink,
        texts: Vec<String>,
    ) -> Shard {
        let mut notices = Notices::new(sink);
        for text in texts {
            notices.send(HostNotice::Text(text));
        }
        let mut effects = Vec::new();
        Shard {
            engine: Engine::open(settings, 0, &mut effects),
            patience: Patience::new(driver.has_ring()),
            driver,
            executor,
            clients: Clients::new(Arc::clone(&links.server), links.number),
            ports: Ports::new(links.server.unused_bytes_max),
            links,
            notices,
            start: Instant::now(),
            now: 0,
            requests: Keyed::default(),
            commands: BTreeMap::new(),
            command_next: 1,
            adds: VecDeque::new(),
            adding: None,
            stopping: None,
            leaving: Vec::new(),
            effects,
            arrivals: Vec::new(),
            completions: Vec::new(),
            mail: VecDeque::new(),
            port_requests: Vec::new(),
            busy: true,
        }
    }

    /// How long the wait may take.
    fn timeout(&self) -> Option<Duration> {
        if self.busy || self.executor.has_ended() {
            return Some(Duration::ZERO);
        }
        let stop = self.waits_for_rest().then_some(self.now + 10_000_000);
        let due = [self.engine.deadline(), self.executor.next_due(), self.clients.next_due(), stop];
        let due = due.into_iter().flatten().min()?;
        Some(Duration::from_nanos(due.saturating_sub(self.time())))
    }

    fn time(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }

    /// Waits, and takes in what happened.
    fn gather(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let timeout = self.timeout();
        let awake = timeout == Some(Duration::ZERO);
        let looked = self.look(if awake { 0 } else { self.patience.looks() });
        let asleep = !awake && !looked && !self.ports.park(&mut self.driver, &mut self.notices);
        let before = asleep.then(|| self.time());
        let timeout = if asleep { timeout } else { Some(Duration::ZERO) };
        if let Err(e) = self.driver.wait(timeout, &mut arrivals) {
            panic!("the system refuses to wait for I/O: {e}");
        }
        self.now = self.time();
        match before {
            Some(before) => self.patience.slept(Duration::from_nanos(self.now - before)),
            None if looked => self.patience.rewarded(),
            None => {}
        }
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Io(slot, result, buf) => {
                    let (executor, driver) = (&mut self.executor, &mut self.driver);
                    executor.arrived(driver, self.now, (slot, result, buf), &mut self.notices);
                }
                Arrival::Received(key, result, input) => {
                    self.clients.received(key, (result, input));
                }
                Arrival::Sent(key, len, parcel) => self.clients.sent(key, (len, parcel), self.now),
                Arrival::Accepted(key, result) => {
                    let (clients, driver) = (&mut self.clients, &mut self.driver);
                    clients.accepted(driver, key, result, self.now, &mut self.notices);
                }
                Arrival::Port(key, tag, result, loan) => {
                    let (driver, notices) = (&mut self.driver, &mut self.notices);
                    self.ports.arrived(driver, notices, (key, tag), (result, loan));
                }
                Arrival::Woken => {}
            }
        }
        self.arrivals = arrivals;
        if self.executor.watch(self.now, &mut self.notices) {
            self.give_up_hanging();
        }
        self.clients.look_around(&mut self.driver, self.now);
        self.take_completions();
        self.take_mail();
        if self.engine.deadline().is_some_and(|due| due <= self.now) {
            self.engine.handle(self.now, Event::Tick, &mut self.effects);
        }
    }

    /// Looks for requests and for what ended, so many times more. Whether there was something.
    fn look(&mut self, more: u32) -> bool {
        let mut left = more;
        loop {
            let requests = self.ports.look(&mut self.driver, &mut self.notices);
            if requests || self.driver.look() {
                return true;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            std::hint::spin_loop();
        }
    }

    fn take_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        let (executor, driver) = (&mut self.executor, &mut self.driver);
        executor.collect(driver, self.now, &mut completions, &mut self.notices);
        for (op, completion) in completions.drain(..) {
            self.engine.handle(self.now, Event::Done(op, completion), &mut self.effects);
        }
        self.completions = completions;
    }

    fn take_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.links.mailbox.take(&mut mail);
        for message in mail.drain(..) {
            self.open(message);
        }
        self.mail = mail;
    }

    fn open(&mut self, message: Message) {
        match message {
            Message::Submit(request, reply) => self.submit(Asker::Thread(reply), request),
            Message::Command(command, None, reply) => {
                self.command(*command, Some(reply));
            }
            Message::Command(command, Some(origin), reply) => {
                self.adds.push_back(Adding { command, origin, reply });
                self.add_next();
            }
            Message::OriginBack(volume, origin, changed, reply) => {
                self.origin_back((volume, *origin), changed, reply);
            }
            Message::OriginLost(volume, why, reply) => {
                if why == Gone::GivenUp {
                    self.executor.give_up_origin(&mut self.driver, volume);
                }
                self.executor.remove_origin(volume);
                self.command(Command::OriginLost(volume), Some(reply));
            }
            Message::Tiers(volume, command, reply) => {
                self.executor.ask_tiers(&mut self.driver, self.now, volume, command, reply);
            }
            Message::RestTiers(volume, reply) => self.executor.rest_tiers(volume, Some(reply)),
            Message::RouseTiers(volume, reply) => {
                let _ = reply.send(self.executor.rouse_tiers(self.now, volume));
            }
            Message::ReplaceTiers(volume, origin, reply) => {
                let _ = reply.send(self.replace_tiers(volume, *origin));
            }
            Message::AddMember(volume, new, reply) => {
                let driver = &mut self.driver;
                self.executor.add_member(driver, self.now, volume, *new, reply);
            }
            Message::LookAtTiers(volume, look) => {
                look(self.executor.tiered(volume), self.now);
            }
            Message::CloseCache(device, reply) => self.close_cache(device, &reply),
            Message::TakeIn(new, reply) => self.take_in(*new, reply),
            Message::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Message::OriginSize(volume, reply) => {
                let _ = reply.send(self.executor.origin_size(volume));
            }
            Message::Dirty(volume, blocks, reply) => {
                let _ = reply.send(rescue::dirty(&self.engine, volume, blocks));
            }
            Message::Listen(socket, tls, reply) => {
                let _ = reply.send(self.clients.listen(&mut self.driver, socket.into(), tls));
            }
            Message::Unlisten(key) => self.clients.unlisten(&mut self.driver, key),
            Message::Adopt(migrant) => {
                let (clients, driver) = (&mut self.clients, &mut self.driver);
                clients.add(driver, *migrant, None, self.now, &mut self.notices);
            }
            Message::Attach(setup, reply) => {
                let (driver, notices) = (&mut self.driver, &mut self.notices);
                let attached = match self.stopping {
                    None => self.ports.attach(driver, notices, *setup),
                    Some(_) => Err(io::Error::from_raw_os_error(libc::ESHUTDOWN)),
                };
                let _ = reply.send(attached);
            }
            Message::Detach(key, reply) => self.ports.detach(key, reply),
            Message::Stop(reply) => self.stop(reply),
        }
    }

    fn submit(&mut self, asker: Asker, request: Request) {
        planted::look(&request);
        let id = RequestId(self.requests.insert(asker).into());
        self.engine.handle(self.now, Event::Submit(id, request), &mut self.effects);
    }

    fn command(&mut self, command: Command, reply: Option<SyncSender<CommandReply>>) -> CommandId {
        let id = CommandId(self.command_next);
        self.command_next += 1;
        let removes = match &command {
            Command::RemoveVolume(volume) => Some(*volume),
            _ => None,
        };
        self.commands.insert(id, Asked { reply, removes });
        self.engine.handle(self.now, Event::Command(id, command), &mut self.effects);
        id
    }

    fn command_done(&mut self, id: CommandId, reply: CommandReply) {
        let asked = self.commands.remove(&id).expect("a command of ours");
        if self.adding.as_ref().is_some_and(|(adding, ..)| *adding == id) {
            match reply {
                CommandReply::Added(volume) => self.adopt_origin(volume),
                _ => {
                    let early = self.adding.as_ref().and_then(|(_, _, known)| *known);
                    early.into_iter().for_each(|volume| self.executor.remove_origin(volume));
                }
            }
            self.adding = None;
            self.add_next();
        }
        let failed = matches!(reply, CommandReply::Failed(_));
        if let Some(volume) = asked.removes.filter(|_| !failed) {
            self.clients.shut_down(Some(volume));
            if self.executor.tiered(volume).is_some() {
                return self.remove_when_at_rest(volume, (reply, asked.reply));
            }
            self.executor.remove_origin(volume);
        }
        if let Some(stopping) = &mut self.stopping
            && stopping.command == id
        {
            stopping.answer = Some((reply.clone(), Instant::now()));
            self.executor.rest_all();
        }
        if let Some(sender) = asked.reply {
            let _ = sender.send(reply);
        }
    }

    fn snapshot(&self) -> ShardSnapshot {
        let volumes = self.engine.volumes().into_iter().map(|view| VolumeSnapshot {
            stats: self.engine.volume_stats(view.id).cloned().unwrap_or_default(),
            clients: self.clients.count_on(view.id),
            ports: self.ports.count_on(view.id),
            tiers: self.executor.tiered(view.id).map(|it| it.snapshot(self.now)),
            view,
        });
        ShardSnapshot {
            state: self.engine.state(),
            volumes: volumes.collect(),
            pool: self.engine.pool_stats(),
            clients: self.clients.len(),
            io_under_way: self.executor.under_way(),
            io_uring: self.driver.has_ring(),
            slow: self.executor.slow(),
        }
    }

    /// Passes on what clients and ports ask.
    fn take_events(&mut self) {
        while let Some((key, event)) = self.clients.next(self.now) {
            match event {
                SessionEvent::Opened(_) => {}
                SessionEvent::Submit { ticket, request } => {
                    self.submit(Asker::Client(key, ticket), request);
                }
                SessionEvent::Status { ticket, volume, .. } => {
                    let engine = &self.engine;
                    let mut holes = self.executor.holes(volume);
                    self.clients.status(key, ticket, |block| BlockState {
                        cache: engine.block_status(volume, block),
                        hole: holes.has(block),
                    });
                }
            }
        }
        let mut requests = std::mem::take(&mut self.port_requests);
        self.ports.take_requests(&mut requests);
        for (key, tag, request) in requests.drain(..) {
            self.submit(Asker::Port(key, tag), request);
        }
        self.port_requests = requests;
    }

    /// Tells the engine and carries out what it says until nothing more happens at once, or clients
    /// have had their pass.
    fn turn(&mut self) {
        self.busy = true;
        self.clients.begin_pass();
        for _ in 0..ROUNDS_MAX {
            self.take_events();
            self.engine.settle(self.now, &mut self.effects);
            if let Some(witness) = &mut self.links.witness {
                witness.saw(self.engine.durable(), &mut self.notices);
            }
            if self.effects.is_empty() {
                self.clients.feed_touched();
                if self.clients.pass_goes_on() {
                    continue;
                }
                self.busy = self.clients.are_waiting();
                break;
            }
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.carry_out(effect);
            }
            effects.append(&mut self.effects);
            self.effects = effects;
            self.take_completions();
        }
        self.end_leaving();
        self.clients.arm_touched(&mut self.driver, self.now);
        self.ports.arm_touched(&mut self.driver, &mut self.notices);
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { id, result, buf } => self.reply(id, result, buf),
            Effect::CommandDone { id, reply } => self.command_done(id, reply),
            Effect::Notice(notice) => self.notices.send(HostNotice::Engine(notice)),
            effect => {
                if self.adding.is_some()
                    && let Some(volume) = origin_of(&effect)
                    && !self.executor.has_origin(volume)
                {
                    self.adopt_origin(volume);
                }
                self.executor.start(&mut self.driver, self.now, effect);
            }
        }
    }

    fn reply(&mut self, id: RequestId, result: Result<(), IoError>, buf: Buf) {
        let key = u32::try_from(id.0).expect("ids are keys of the slab");
        match self.requests.remove(key).expect("one reply for each request") {
            Asker::Client(client, ticket) => {
                self.clients.complete(client, ticket, result, buf);
            }
            Asker::Port(port, tag) => {
                let (driver, notices) = (&mut self.driver, &mut self.notices);
                self.ports.complete(driver, notices, (port, tag), PortAnswer { result, buf });
            }
            Asker::Thread(sender) => {
                let _ = sender.send(Answer { result, buf });
            }
        }
    }
}

/// Runs a shard to its end on this thread.
pub(super) fn run(mut shard: Shard) {
    let worked = catch_unwind(AssertUnwindSafe(|| {
        shard.turn();
        while !shard.is_done() {
            shard.gather();
            shard.turn();
        }
        shard.leave();
    }));
    match worked {
        Ok(()) => shard.finish(),
        Err(panic) => shard.fall(panic),
    }
}
