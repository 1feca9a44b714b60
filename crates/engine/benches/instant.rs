//! An executor whose devices are memory and whose I/O ends at once.

use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceId, DeviceSettings, Distrust, Effect,
    Engine, Event, IoError, Mode, Notice, OriginSettings, Request, RequestId, RequestKind,
    Settings, State, Target, Tuning, VolumeId,
};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;
use zerocopy::FromZeros;

pub const VOLUME: VolumeId = VolumeId(1);
const SECOND: u64 = 1_000_000_000;

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

/// What a world is made of.
#[derive(Clone)]
pub struct WorldSpec {
    /// Bytes of the cache devices together.
    pub pool_bytes: u64,
    /// How many there are, of equal size.
    pub devices: u64,
    /// Bytes of the one volume.
    pub volume_bytes: u64,
    /// Its mode.
    pub mode: Mode,
    /// The engine's tuning.
    pub tuning: Tuning,
    /// Whether the origin can be used.
    pub origin_present: bool,
    /// What an older life noted about the pool.
    pub distrust: Distrust,
}

impl WorldSpec {
    /// Write-back before an origin that is there; no read is taken for a stream.
    pub fn new(pool_bytes: u64, volume_bytes: u64) -> WorldSpec {
        WorldSpec {
            pool_bytes,
            devices: 1,
            volume_bytes,
            mode: Mode::WriteBack,
            tuning: Tuning { sequential_bytes: u64::MAX, ..Tuning::default() },
            origin_present: true,
            distrust: Distrust::default(),
        }
    }

    /// The same; each miss is admitted and nothing goes home by itself.
    pub fn quiet(pool_bytes: u64, volume_bytes: u64) -> WorldSpec {
        let mut spec = WorldSpec::new(pool_bytes, volume_bytes);
        (spec.tuning.idle_ns, spec.tuning.admit_second_miss) = (1000 * SECOND, false);
        spec
    }
}

const PAGE: usize = 4096;

/// The memory of a device. Pages of zeros take none where it is sparse.
enum Memory {
    Flat(Vec<u8>),
    Sparse(Vec<Option<Box<[u8; PAGE]>>>),
}

impl Memory {
    fn new(bytes: u64, sparse: bool) -> Memory {
        match sparse {
            false => Memory::Flat(vec![0; bytes as usize]),
            true => Memory::Sparse(vec![None; bytes.div_ceil(PAGE as u64) as usize]),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        match self {
            Memory::Flat(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Memory::Sparse(pages) => {
                for (page, part) in pages[at / PAGE..].iter().zip(into.chunks_mut(PAGE)) {
                    match page {
                        Some(page) => part.copy_from_slice(&page[..part.len()]),
                        None => part.fill(0),
                    }
                }
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        match self {
            Memory::Flat(room) => room[at..at + bytes.len()].copy_from_slice(bytes),
            Memory::Sparse(pages) => {
                for (page, new) in pages[at / PAGE..].iter_mut().zip(bytes.chunks(PAGE)) {
                    match page {
                        None if new.iter().all(|&byte| byte == 0) => {}
                        None => page.insert(Box::new([0; PAGE]))[..new.len()].copy_from_slice(new),
                        Some(page) => page[..new.len()].copy_from_slice(new),
                    }
                }
            }
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let range = offset as usize..(offset + len) as usize;
        match self {
            Memory::Flat(bytes) => bytes[range].fill(0),
            Memory::Sparse(pages) => pages[range.start / PAGE..range.end / PAGE].fill(None),
        }
    }
}

/// The memory of all devices.
pub struct Devices {
    cache: Vec<Memory>,
    origin: Memory,
    sparse: bool,
    cache_bytes_written: u64,
    cache_bytes_read: u64,
}

impl Devices {
    /// Zeros, and a new pool on one cache device. With `sparse`, clients write zeros, and pages of
    /// zeros take no memory: for large pools.
    pub fn new(pool_bytes: u64, volume_bytes: u64, sparse: bool) -> Devices {
        Devices::of(&WorldSpec::new(pool_bytes, volume_bytes), sparse)
    }

    /// The same, as a world wants them.
    pub fn of(spec: &WorldSpec, sparse: bool) -> Devices {
        let each = spec.pool_bytes / spec.devices;
        let mut devices = Devices {
            cache: (0..spec.devices).map(|_| Memory::new(each, sparse)).collect(),
            origin: Memory::new(spec.volume_bytes, sparse),
            sparse,
            cache_bytes_written: 0,
            cache_bytes_read: 0,
        };
        let pool = PoolSpec {
            name: "bench".into(),
            uuid: [1; 16],
            devices: (0..spec.devices).map(|n| (each, [2 + n as u8; 16])).collect(),
            segment_blocks: None,
        };
        let mut volume = VolumeEntry::new_zeroed();
        volume.id = VOLUME.0.into();
        volume.used = 1;
        volume.bytes = spec.volume_bytes.into();
        volume.name = text_field("bench");
        let superblocks = new_pool(&pool).expect("a pool of this size");
        for (device, mut superblock) in devices.cache.iter_mut().zip(superblocks) {
            superblock.volumes.push(volume);
            superblock.header.volume_id_next = 2.into();
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            superblock.encode(&mut bytes);
            SUPERBLOCK_OFFSETS.iter().for_each(|&offset| device.write(offset, &bytes));
        }
        devices
    }

    /// Writes what is on sparse devices to a file.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for memory in self.cache.iter().chain([&self.origin]) {
            let Memory::Sparse(pages) = memory else { panic!("flat memory is not kept") };
            for (at, page) in (0_u64..).zip(pages) {
                if let Some(page) = page {
                    file.write_all(&at.to_le_bytes())?;
                    file.write_all(&page[..])?;
                }
            }
            file.write_all(&u64::MAX.to_le_bytes())?;
        }
        file.flush()
    }

    /// The devices of a world, as `save` left them.
    pub fn load(spec: &WorldSpec, path: &Path) -> std::io::Result<Devices> {
        let mut devices = Devices::of(spec, true);
        let mut file = BufReader::new(File::open(path)?);
        for memory in devices.cache.iter_mut().chain([&mut devices.origin]) {
            loop {
                let (mut at, mut page) = ([0; 8], [0; PAGE]);
                file.read_exact(&mut at)?;
                if at == [0xff; 8] {
                    break;
                }
                file.read_exact(&mut page)?;
                memory.write(u64::from_le_bytes(at) * PAGE as u64, &page);
            }
        }
        Ok(devices)
    }

    fn superblock(&self, mode: Mode) -> Superblock {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            self.cache[0].read(offset, &mut bytes);
            Superblock::decode(&bytes)
        });
        let (mut superblock, _) = Superblock::choose(copies).expect("a superblock was written");
        superblock.volumes[0].mode = mode as u8;
        superblock
    }

    fn memory(&mut self, target: Target) -> &mut Memory {
        match target {
            Target::Cache(device) => &mut self.cache[usize::from(device.0)],
            Target::Origin(_) => &mut self.origin,
        }
    }

    fn read(&mut self, target: Target, offset: u64, buf: &mut Buf) {
        if matches!(target, Target::Cache(_)) {
            self.cache_bytes_read += buf.len() as u64;
        }
        self.memory(target).read(offset, buf.bytes_mut());
    }

    fn write(&mut self, target: Target, offset: u64, buf: &Buf) {
        if matches!(target, Target::Cache(_)) {
            self.cache_bytes_written += buf.len() as u64;
        }
        self.memory(target).write(offset, buf.bytes());
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
    hung: Vec<Event>,
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
    pub fn metered(spec: &WorldSpec, mut devices: Devices, meter: Option<Meter>) -> World {
        devices.cache_bytes_read = 0;
        devices.cache_bytes_written = 0;
        let settings = Settings {
            superblock: devices.superblock(spec.mode),
            devices: (0..spec.devices)
                .map(|_| DeviceSettings {
                    behind: false,
                    bytes: spec.pool_bytes / spec.devices,
                    volatile_cache: true,
                    present: true,
                })
                .collect(),
            origins: vec![OriginSettings {
                volume: VOLUME,
                present: spec.origin_present,
                volatile_cache: true,
            }],
            distrust: spec.distrust.clone(),
            ram_bytes: 0,
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
            hung: Vec::new(),
            origin_refused: false,
            notes_fail: false,
            errors: 0,
        };
        for _ in 0..10_000_000 {
            match world.engine.state() {
                State::Opening => world.step(),
                State::Serving => return world,
                other => panic!("the pool does not open: {other:?}"),
            }
        }
        panic!("the pool does not open")
    }

    /// The devices, as a killed process leaves them: I/O under way is carried out, nothing else is.
    pub fn kill(self) -> Devices {
        self.devices
    }

    /// Bytes written to the cache device since the engine was opened.
    pub fn cache_bytes_written(&self) -> u64 {
        self.devices.cache_bytes_written
    }

    /// Bytes read from the cache device since the engine was opened.
    pub fn cache_bytes_read(&self) -> u64 {
        self.devices.cache_bytes_read
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
        let buf = self.request_buf(kind, len, self.submitted);
        self.submitted += 1;
        let request = Request { volume: VOLUME, kind, offset, len, fua: false, buf };
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

    /// The origin ends what it let hang.
    pub fn release_origin(&mut self) {
        self.origin_hangs = false;
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
        let since = Instant::now();
        match profile {
            None => plain_call(&mut self.engine, self.now, event, &mut self.out),
            Some(profile) => {
                meter.profiled.pop_front();
                profile(at);
                profiled_call(&mut self.engine, self.now, event, &mut self.out);
                profile(at);
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
            let due = self.engine.deadline().unwrap_or(self.now);
            self.now = due.max(self.now + 1000);
            self.call(Some(Event::Tick));
        }
        self.now += 1000;
        for _ in 0..self.done.len() {
            let event = self.done.pop_front();
            self.call(event);
        }
    }

    fn execute(&mut self, effect: Effect) {
        let mut result = match &effect {
            Effect::Read { target: Target::Cache(_), .. }
            | Effect::Write { target: Target::Cache(_), .. }
            | Effect::Flush { target: Target::Cache(_), .. }
                if self.cache_dead =>
            {
                Err(IoError::Io)
            }
            Effect::Read { target: Target::Cache(DeviceId(1)), .. }
            | Effect::Write { target: Target::Cache(DeviceId(1)), .. }
            | Effect::Flush { target: Target::Cache(DeviceId(1)), .. }
                if self.second_dead =>
            {
                Err(IoError::Io)
            }
            Effect::Write { target: Target::Origin(_), .. }
            | Effect::Flush { target: Target::Origin(_), .. }
                if self.origin_refuses =>
            {
                Err(IoError::Io)
            }
            Effect::Distrust { .. } if self.notes_fail => Err(IoError::Io),
            _ => Ok(()),
        };
        self.origin_refused |= self.origin_refuses;
        let hangs =
            self.origin_hangs && matches!(effect, Effect::Write { target: Target::Origin(_), .. });
        let (op, buf) = match effect {
            Effect::Read { op, target, offset, mut buf } => {
                self.devices.read(target, offset, &mut buf);
                (op, buf)
            }
            Effect::Write { op, target, offset, buf } => {
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
                }
                (op, Buf::empty())
            }
            Effect::Discard { op, .. } | Effect::Distrust { op, .. } => (op, Buf::empty()),
            Effect::Reply { result, buf, .. } => {
                let fails = self.cache_dead || self.origin_refused || self.second_dead;
                assert!(result.is_ok() || fails, "devices that do not fail");
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
        match hangs {
            true => self.hung.push(event),
            false => self.done.push_back(event),
        }
    }
}
