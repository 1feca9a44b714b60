//! An executor whose devices are memory and whose I/O ends at once.

use forebay_engine::{
    Buf, CommandReply, Completion, DeviceSettings, Distrust, Effect, Engine, Event, IoError, Mode,
    Notice, OriginSettings, Request, RequestId, RequestKind, Settings, State, Target, Tuning,
    VolumeId,
};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use std::collections::VecDeque;
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
    /// Bytes of the one cache device.
    pub pool_bytes: u64,
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

/// The memory of both devices. Pages that were never written to take none.
pub struct Devices {
    cache: Vec<u8>,
    origin: Vec<u8>,
    sparse: bool,
    cache_bytes_written: u64,
    cache_bytes_read: u64,
}

impl Devices {
    /// Zeros, and a new pool on the cache device. With `sparse`, clients write zeros, and pages of
    /// zeros take no memory: for large pools.
    pub fn new(pool_bytes: u64, volume_bytes: u64, sparse: bool) -> Devices {
        let mut devices = Devices {
            cache: vec![0; pool_bytes as usize],
            origin: vec![0; volume_bytes as usize],
            sparse,
            cache_bytes_written: 0,
            cache_bytes_read: 0,
        };
        let pool = PoolSpec {
            name: "bench".into(),
            uuid: [1; 16],
            devices: vec![(pool_bytes, [2; 16])],
            segment_blocks: None,
        };
        let mut superblock = new_pool(&pool).expect("a pool of this size").remove(0);
        let mut volume = VolumeEntry::new_zeroed();
        volume.id = VOLUME.0.into();
        volume.used = 1;
        volume.bytes = volume_bytes.into();
        volume.name = text_field("bench");
        superblock.volumes.push(volume);
        superblock.header.volume_id_next = 2.into();
        for offset in SUPERBLOCK_OFFSETS {
            let at = offset as usize;
            superblock.encode(&mut devices.cache[at..at + SUPERBLOCK_SIZE]);
        }
        devices
    }

    fn superblock(&self, mode: Mode) -> Superblock {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let at = offset as usize;
            Superblock::decode(&self.cache[at..at + SUPERBLOCK_SIZE])
        });
        let (mut superblock, _) = Superblock::choose(copies).expect("a superblock was written");
        superblock.volumes[0].mode = mode as u8;
        superblock
    }

    fn bytes(&mut self, target: Target) -> &mut Vec<u8> {
        match target {
            Target::Cache(_) => &mut self.cache,
            Target::Origin(_) => &mut self.origin,
        }
    }

    fn read(&mut self, target: Target, offset: u64, buf: &mut Buf) {
        if matches!(target, Target::Cache(_)) {
            self.cache_bytes_read += buf.len() as u64;
        }
        let (at, len) = (offset as usize, buf.len());
        buf.bytes_mut().copy_from_slice(&self.bytes(target)[at..at + len]);
    }

    fn write(&mut self, target: Target, offset: u64, buf: &Buf) {
        if matches!(target, Target::Cache(_)) {
            self.cache_bytes_written += buf.len() as u64;
        }
        let (at, len) = (offset as usize, buf.len());
        let sparse = self.sparse;
        let room = &mut self.bytes(target)[at..at + len];
        if !sparse {
            room.copy_from_slice(buf.bytes());
            return;
        }
        for (old, new) in room.chunks_mut(4096).zip(buf.bytes().chunks(4096)) {
            if old != new {
                old.copy_from_slice(new);
            }
        }
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
    replies: u64,
    /// Answers to commands.
    pub commands: Vec<CommandReply>,
    /// The next FLUSH of the origin fails.
    pub flush_fails: bool,
    /// Every I/O of the cache device fails.
    pub cache_dead: bool,
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
    pub fn with_devices(spec: &WorldSpec, mut devices: Devices) -> World {
        devices.cache_bytes_read = 0;
        devices.cache_bytes_written = 0;
        let settings = Settings {
            superblock: devices.superblock(spec.mode),
            devices: vec![DeviceSettings {
                behind: false,
                bytes: spec.pool_bytes,
                volatile_cache: true,
                present: true,
            }],
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
            replies: 0,
            commands: Vec::new(),
            flush_fails: false,
            cache_dead: false,
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
        let first = self.replies;
        let mut sent = 0;
        while self.replies < first + count {
            while sent < count && first + sent - self.replies < depth {
                let buf = self.request_buf(kind, len, sent);
                let request = Request {
                    volume: VOLUME,
                    kind,
                    offset: block(sent) * 4096,
                    len,
                    fua: false,
                    buf,
                };
                sent += 1;
                let event = Event::Submit(RequestId(first + sent), request);
                self.engine.handle(self.now, event, &mut self.out);
            }
            self.step();
        }
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
        self.engine.settle(self.now, &mut self.out);
        let mut out = std::mem::take(&mut self.out);
        let idle = out.is_empty();
        for effect in out.drain(..) {
            self.execute(effect);
        }
        self.out = out;
        if idle {
            let due = self.engine.deadline().unwrap_or(self.now);
            self.now = due.max(self.now + 1000);
            self.engine.handle(self.now, Event::Tick, &mut self.out);
        }
        self.now += 1000;
        while let Some(event) = self.done.pop_front() {
            self.engine.handle(self.now, event, &mut self.out);
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
            Effect::Distrust { .. } if self.notes_fail => Err(IoError::Io),
            _ => Ok(()),
        };
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
                    let at = offset as usize;
                    self.devices.bytes(target)[at..at + len as usize].fill(0);
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
                assert!(result.is_ok() || self.cache_dead, "devices that do not fail");
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
        self.done.push_back(Event::Done(op, Completion { result, buf }));
    }
}
