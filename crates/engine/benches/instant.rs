//! An executor whose devices are memory and whose I/O ends at once.

use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceId, DeviceSettings, Effect, Engine,
    Event, IoError, Notice, OpenError, OriginSettings, Presence, Request, RequestId, RequestKind,
    Settings, State, Target, VolumeId,
};
use std::collections::VecDeque;
use std::time::Instant;

#[path = "memory.rs"]
mod memory;

pub use memory::{Devices, WorldSpec};

pub const VOLUME: VolumeId = VolumeId(1);

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// What one call of the engine took.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// What it was told.
    pub what: &'static str,
    /// Steps, as the engine counts them.
    pub steps: u64,
    /// Time.
    pub ns: u64,
    /// Bytes of blocks and records that it sent or was given.
    pub payload: u64,
}

/// Watches the calls of an engine.
#[derive(Default)]
pub struct Meter {
    /// What each took.
    pub calls: Vec<Call>,
    /// Those of which a profiler should see the instructions, in order.
    pub profiled: VecDeque<usize>,
    /// Called before and after each of them.
    pub profile: Option<fn(usize)>,
}

/// A call on its own, under a name that a profiler can find.
#[inline(never)]
pub fn profiled_call(engine: &mut Engine, now: u64, event: Option<Event>, out: &mut Vec<Effect>) {
    match event {
        Some(event) => engine.handle(now, event, out),
        None => engine.settle(now, out),
    }
}

fn plain_call(engine: &mut Engine, now: u64, event: Option<Event>, out: &mut Vec<Effect>) {
    match event {
        Some(event) => engine.handle(now, event, out),
        None => engine.settle(now, out),
    }
}

fn name_of(event: Option<&Event>) -> &'static str {
    match event {
        None => "settle",
        Some(Event::Submit(..)) => "request",
        Some(Event::Done(..)) => "I/O ended",
        Some(Event::Command(..)) => "command",
        Some(Event::Tick) => "tick",
    }
}

fn payload_of(effect: &Effect) -> u64 {
    match effect {
        Effect::Write { buf, .. } | Effect::Reply { buf, .. } => buf.len() as u64,
        _ => 0,
    }
}

/// An engine and its devices.
pub struct World {
    /// The engine.
    pub engine: Engine,
    devices: Devices,
    /// The time, in nanoseconds.
    pub now: u64,
    /// What the engine wants.
    pub out: Vec<Effect>,
    done: VecDeque<Event>,
    bufs: Vec<Buf>,
    submitted: u64,
    submitted_commands: u64,
    replies: u64,
    /// Each call of the engine is measured.
    pub meter: Option<Meter>,
    /// Answers to commands.
    pub commands: Vec<CommandReply>,
    /// The next FLUSH of the origin fails.
    pub flush_fails: bool,
    /// Every I/O of the cache devices fails.
    pub cache_dead: bool,
    /// Every I/O of the second one fails.
    pub second_dead: bool,
    /// Every write and FLUSH of the origin fails.
    pub origin_refuses: bool,
    /// No write of the origin ends, as long as this holds.
    pub origin_hangs: bool,
    /// No write of a cache device ends, as long as this holds.
    pub cache_hangs: bool,
    hung: Vec<Event>,
    /// What each read and write of the origin takes, one after the other, in nanoseconds: 0, they
    /// end at once.
    pub origin_io_ns: u64,
    /// Where the origin was written to, and how many bytes, if somebody wants to know.
    pub origin_writes: Option<Vec<(u64, u64)>>,
    /// Those that have not ended, with their times.
    slow: VecDeque<(u64, Event)>,
    /// It has refused something.
    origin_refused: bool,
    /// No note of distrust becomes durable.
    pub notes_fail: bool,
    /// Requests that were answered with an error.
    pub errors: u64,
}

impl World {
    /// A new pool, opened.
    pub fn new(spec: &WorldSpec) -> World {
        World::with_devices(spec, Devices::new(spec.pool_bytes, spec.volume_bytes, false))
    }

    /// The pool on these devices, opened.
    pub fn with_devices(spec: &WorldSpec, devices: Devices) -> World {
        World::metered(spec, devices, None)
    }

    /// The same; the calls that it takes are measured.
    pub fn metered(spec: &WorldSpec, devices: Devices, meter: Option<Meter>) -> World {
        World::try_open(spec, devices, meter).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same, or why the pool does not open.
    pub fn try_open(
        spec: &WorldSpec,
        mut devices: Devices,
        meter: Option<Meter>,
    ) -> Result<World, OpenError> {
        devices.cache_bytes_read = 0;
        devices.cache_bytes_written = 0;
        let settings = Settings {
            superblock: devices.superblock(spec.mode),
            devices: (0..spec.devices)
                .map(|_| DeviceSettings {
                    bytes: spec.pool_bytes / spec.devices,
                    volatile_cache: true,
                    discards: spec.discards,
                    presence: Presence::InStep,
                })
                .collect(),
            origins: vec![OriginSettings {
                volume: VOLUME,
                present: spec.origin_present,
                volatile_cache: true,
                stripe_blocks: spec.stripe_blocks,
            }],
            distrust: spec.distrust.clone(),
            witness: spec.witness,
            ram_bytes: spec.ram_bytes,
            tuning: spec.tuning.clone(),
        };
        let mut out = Vec::new();
        let engine = Engine::open(settings, 0, &mut out);
        let mut world = World {
            engine,
            devices,
            now: 0,
            out,
            done: VecDeque::new(),
            bufs: Vec::new(),
            submitted: 0,
            submitted_commands: 1 << 32,
            replies: 0,
            meter,
            commands: Vec::new(),
            flush_fails: false,
            cache_dead: false,
            second_dead: false,
            origin_refuses: false,
            origin_hangs: false,
            cache_hangs: false,
            hung: Vec::new(),
            origin_io_ns: 0,
            origin_writes: None,
            slow: VecDeque::new(),
            origin_refused: false,
            notes_fail: false,
            errors: 0,
        };
        for _ in 0..10_000_000 {
            match world.engine.state() {
                State::Opening => world.step(),
                State::Serving => return Ok(world),
                State::Failed(error) => return Err(error),
                other => return Err(format!("the pool does not open: {other:?}").into()),
            }
        }
        Err("the pool does not open".into())
    }

    /// The devices, as a killed process leaves them: I/O under way is carried out, nothing else is.
    pub fn kill(self) -> Devices {
        self.devices
    }

    /// What is on the devices now.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Bytes written to the cache device since the engine was opened.
    pub fn cache_bytes_written(&self) -> u64 {
        self.devices.cache_bytes_written
    }

    /// Bytes read from the cache device since the engine was opened.
    pub fn cache_bytes_read(&self) -> u64 {
        self.devices.cache_bytes_read
    }

    /// Requests that were not answered yet.
    pub fn under_way(&self) -> u64 {
        self.submitted - self.replies
    }

    /// Reads of the origin so far, and their bytes.
    pub fn origin_reads(&self) -> (u64, u64) {
        (self.devices.origin_reads, self.devices.origin_bytes_read)
    }

    /// Gives back the buffers that this executor keeps.
    pub fn shed(&mut self) {
        self.bufs = Vec::new();
        self.engine.trim();
        self.out.shrink_to_fit();
        self.done.shrink_to_fit();
    }

    /// Writes the first `len` bytes of the volume once, in pieces.
    pub fn write_all(&mut self, len: u64, piece: u64) {
        let mut next = 0;
        self.run(8, len / piece, RequestKind::Write, piece, |_| {
            next += 1;
            (next - 1) * (piece / 4096)
        });
    }

    /// Sends `count` requests of `len` bytes, `depth` at a time; `block` says where the nth starts.
    pub fn run(
        &mut self,
        depth: u64,
        count: u64,
        kind: RequestKind,
        len: u64,
        mut block: impl FnMut(u64) -> u64,
    ) {
        let last = self.replies + count;
        let mut sent = 0;
        while self.replies < last {
            while sent < count && self.submitted - self.replies < depth {
                self.submit(kind, block(sent) * 4096, len);
                sent += 1;
            }
            self.step();
        }
    }

    /// For so many steps `depth` clients send a request each, and the next when it is answered;
    /// `next` says of the nth what and where it is, in blocks.
    pub fn churn(
        &mut self,
        depth: u64,
        steps: u64,
        mut next: impl FnMut(u64) -> (RequestKind, u64, u64),
    ) {
        for _ in 0..steps {
            while self.submitted - self.replies < depth {
                let (kind, block, blocks) = next(self.submitted);
                self.submit(kind, block * 4096, blocks * 4096);
            }
            self.step();
        }
    }

    /// Sends one request.
    pub fn submit(&mut self, kind: RequestKind, offset: u64, len: u64) {
        self.submit_to(VOLUME, kind, offset, len);
    }

    /// Sends one request to a volume.
    pub fn submit_to(&mut self, volume: VolumeId, kind: RequestKind, offset: u64, len: u64) {
        let buf = self.request_buf(kind, len, self.submitted);
        self.submitted += 1;
        let request = Request { volume, kind, offset, len, fua: false, buf };
        self.call(Some(Event::Submit(RequestId(self.submitted), request)));
    }

    /// Gives a command.
    pub fn command(&mut self, command: Command) {
        self.submitted_commands += 1;
        self.call(Some(Event::Command(CommandId(self.submitted_commands), command)));
    }

    /// Requests that were answered.
    pub fn replies(&self) -> u64 {
        self.replies
    }

    /// The origin and the cache devices end what they let hang.
    pub fn release(&mut self) {
        (self.origin_hangs, self.cache_hangs) = (false, false);
        self.done.extend(self.hung.drain(..));
    }

    /// Tells the engine something, or lets it settle.
    fn call(&mut self, event: Option<Event>) {
        let Some(meter) = &mut self.meter else {
            return plain_call(&mut self.engine, self.now, event, &mut self.out);
        };
        let (what, sent) = (name_of(event.as_ref()), self.out.len());
        let given = match &event {
            Some(Event::Done(_, completion)) => completion.buf.len() as u64,
            Some(Event::Submit(_, request)) => request.buf.len() as u64,
            _ => 0,
        };
        let at = meter.calls.len();
        let profile = match meter.profiled.front() == Some(&at) {
            true => meter.profile,
            false => None,
        };
        #[allow(clippy::disallowed_methods, reason = "a meter measures time")]
        let since = Instant::now();
        match profile {
            None => plain_call(&mut self.engine, self.now, event, &mut self.out),
            Some(profile) => {
                meter.profiled.pop_front();
                profile(at);
                profiled_call(&mut self.engine, self.now, event, &mut self.out);
                profile(at);
                if meter.profiled.is_empty() {
                    std::process::exit(0); // Nobody asks for what comes after the last.
                }
            }
        }
        let ns = since.elapsed().as_nanos() as u64;
        let payload = given + self.out[sent..].iter().map(payload_of).sum::<u64>();
        meter.calls.push(Call { what, steps: self.engine.steps(), ns, payload });
    }

    fn request_buf(&mut self, kind: RequestKind, len: u64, number: u64) -> Buf {
        if !matches!(kind, RequestKind::Read | RequestKind::Write) {
            return Buf::empty();
        }
        let mut buf = self.bufs.pop().unwrap_or_else(|| Buf::zeroed(len as usize));
        if buf.capacity() < len as usize {
            buf = Buf::zeroed(len as usize);
        }
        buf.set_len(len as usize);
        if kind == RequestKind::Write && !self.devices.sparse {
            buf.bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
        }
        buf
    }

    /// Carries out what the engine wants, tells it how that went, and lets time pass.
    pub fn step(&mut self) {
        self.call(None);
        let mut out = std::mem::take(&mut self.out);
        let idle = out.is_empty();
        for effect in out.drain(..) {
            self.execute(effect);
        }
        self.out = out;
        if idle {
            let slow = self.slow.front().map(|&(at, _)| at);
            let due = [self.engine.deadline(), slow].into_iter().flatten().min();
            self.now = due.unwrap_or(self.now).max(self.now + 1000);
            self.call(Some(Event::Tick));
        }
        self.now += 1000;
        while self.slow.front().is_some_and(|&(at, _)| at <= self.now) {
            self.done.extend(self.slow.pop_front().map(|(_, event)| event));
        }
        for _ in 0..self.done.len() {
            let event = self.done.pop_front();
            self.call(event);
        }
    }

    /// Whether a device that fails refuses it.
    fn fate(&self, effect: &Effect) -> Result<(), IoError> {
        let target = match effect {
            Effect::Read { target, .. }
            | Effect::Write { target, .. }
            | Effect::Flush { target, .. } => Some(target),
            _ => None,
        };
        let fails = match target {
            Some(Target::Cache(DeviceId(1))) if self.second_dead => true,
            Some(Target::Cache(_)) => self.cache_dead,
            Some(Target::Origin(_)) => {
                self.origin_refuses && !matches!(effect, Effect::Read { .. })
            }
            None => self.notes_fail && matches!(effect, Effect::Distrust { .. }),
        };
        if fails { Err(IoError::Io) } else { Ok(()) }
    }

    fn execute(&mut self, effect: Effect) {
        let mut result = self.fate(&effect);
        self.origin_refused |= self.origin_refuses;
        let of_origin = matches!(
            effect,
            Effect::Read { target: Target::Origin(_), .. }
                | Effect::Write { target: Target::Origin(_), .. }
        );
        let hangs = if of_origin { self.origin_hangs } else { self.cache_hangs };
        let hangs = hangs && matches!(effect, Effect::Write { .. });
        let slow = self.origin_io_ns > 0 && of_origin;
        let (op, buf) = match effect {
            Effect::Read { op, target, offset, mut buf } => {
                self.devices.read(target, offset, &mut buf);
                (op, buf)
            }
            Effect::Write { op, target, offset, buf } => {
                if let (true, Some(writes)) = (of_origin, &mut self.origin_writes) {
                    writes.push((offset, buf.len() as u64));
                }
                if result.is_ok() {
                    self.devices.write(target, offset, &buf);
                }
                (op, buf)
            }
            Effect::Zero { op, target, offset, len, unmap } => {
                if unmap {
                    result = Err(IoError::Unsupported);
                } else {
                    self.devices.memory(target).zero(offset, len);
                }
                (op, Buf::empty())
            }
            Effect::Flush { op, target } => {
                let origin = matches!(target, Target::Origin(_));
                if origin && std::mem::take(&mut self.flush_fails) {
                    result = Err(IoError::Io);
                    self.origin_refused = true;
                }
                (op, Buf::empty())
            }
            Effect::Discard { op, .. } | Effect::Distrust { op, .. } => (op, Buf::empty()),
            Effect::Reply { result, buf, .. } => {
                let fails = self.cache_dead || self.origin_refused || self.second_dead;
                let gone = result == Err(IoError::Gone);
                assert!(result.is_ok() || fails || gone, "devices that do not fail");
                self.errors += u64::from(result.is_err());
                self.replies += 1;
                if buf.capacity() > 0 {
                    self.bufs.push(buf);
                }
                return;
            }
            Effect::CommandDone { reply, .. } => return self.commands.push(reply),
            Effect::Notice(Notice::OpenFailed(why)) => panic!("{why}"),
            Effect::Notice(_) => return,
        };
        let event = Event::Done(op, Completion { result, buf });
        if hangs {
            self.hung.push(event);
        } else if slow {
            let free = self.slow.back().map_or(self.now, |&(at, _)| at);
            self.slow.push_back((free.max(self.now) + self.origin_io_ns, event));
        } else {
            self.done.push_back(event);
        }
    }
}
