//! An engine and its devices, which are memory. Each I/O waits until somebody ends it: in any
//! order, well or with an error.

use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceId, DeviceSettings, Distrust, Effect,
    Engine, Event, IoError, OpId, OriginSettings, Presence, Request, RequestId, Settings, State,
    Target, Tuning, VolumeId, Witness,
};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};

/// The one volume.
pub const VOLUME: VolumeId = VolumeId(1);
/// Its bytes.
pub const VOLUME_BYTES: u64 = 96 * 4096;
/// Bytes of a cache device.
const CACHE_BYTES: u64 = 3 << 20;
/// Blocks of a segment.
const SEGMENT_BLOCKS: u32 = 16;
/// Steps in which whatever was asked must have ended.
const STEPS_MAX: usize = 200_000;

/// What outlives an engine.
#[derive(Clone)]
pub struct Disks {
    /// The cache devices.
    pub cache: Vec<Vec<u8>>,
    /// The origin.
    pub origin: Vec<u8>,
    /// The newest note of distrust.
    pub distrust: Distrust,
}

impl Disks {
    /// A new pool on so many devices, and a volume in write-back mode before this origin.
    pub fn new(devices: u8, origin: Vec<u8>) -> Disks {
        assert_eq!(origin.len() as u64, VOLUME_BYTES);
        let spec = PoolSpec {
            name: "fuzz".into(),
            uuid: [1; 16],
            devices: (0..devices).map(|n| (CACHE_BYTES, [2 + n; 16])).collect(),
            segment_blocks: Some(SEGMENT_BLOCKS),
        };
        let volume = VolumeEntry {
            id: VOLUME.0.into(),
            used: 1,
            mode: 1,
            reserved: [0; 2],
            bytes: VOLUME_BYTES.into(),
            uuid: [9; 16],
            name: text_field("volume"),
            fingerprint: [8; 32],
            origin: text_field("ram:384K"),
        };
        let superblocks = new_pool(&spec).expect("the devices are large enough");
        let cache = superblocks.into_iter().map(|mut superblock| {
            superblock.volumes.push(volume);
            superblock.header.volume_id_next = 2.into();
            let mut device = vec![0; CACHE_BYTES as usize];
            for at in SUPERBLOCK_OFFSETS {
                superblock.encode(&mut device[at as usize..][..SUPERBLOCK_SIZE]);
            }
            device
        });
        Disks { cache: cache.collect(), origin, distrust: Distrust::default() }
    }

    /// The newest superblock of the first device, if it is one of a pool that these devices can be.
    pub fn superblock(&self) -> Option<Superblock> {
        let copies = SUPERBLOCK_OFFSETS
            .map(|at| Superblock::decode(&self.cache[0][at as usize..][..SUPERBLOCK_SIZE]));
        let (superblock, _) = Superblock::choose(copies).ok()?;
        // What the host compares before it opens a pool.
        let header = &superblock.header;
        let claimed = &header.devices[..usize::from(header.device_count.get())];
        let there = claimed.len() == self.cache.len()
            && header.device_index.get() == 0
            && claimed.iter().all(|device| device.bytes.get() <= CACHE_BYTES);
        (there && superblock.writable().is_ok()).then_some(superblock)
    }

    fn device(&mut self, target: Target) -> &mut Vec<u8> {
        match target {
            Target::Cache(DeviceId(index)) => &mut self.cache[usize::from(index)],
            Target::Origin(_) => &mut self.origin,
        }
    }

    /// The range of an I/O. All of them stay on their device.
    fn range(&mut self, target: Target, offset: u64, len: u64) -> &mut [u8] {
        let device = self.device(target);
        let end = offset.checked_add(len).expect("an I/O ends");
        assert!(end <= device.len() as u64, "{target:?}: {len} bytes at {offset} are beyond it");
        &mut device[offset as usize..end as usize]
    }
}

/// An engine at work.
pub struct Executor {
    /// The engine.
    pub engine: Engine,
    /// Its devices.
    pub disks: Disks,
    /// I/Os under way.
    pub pending: Vec<Effect>,
    /// Answers that nobody has looked at.
    pub replies: Vec<(RequestId, Result<(), IoError>, Buf)>,
    /// The same of commands.
    pub commands: Vec<(CommandId, CommandReply)>,
    now: u64,
    out: Vec<Effect>,
}

impl Executor {
    /// Begins to open the pool, if there is one.
    pub fn open(disks: Disks) -> Option<Executor> {
        let superblock = disks.superblock()?;
        let origins = superblock.volumes.iter().map(|volume| OriginSettings {
            volume: VolumeId(volume.id.get()),
            present: volume.id.get() == VOLUME.0 && volume.bytes.get() <= VOLUME_BYTES,
            volatile_cache: true,
            stripe_blocks: 0,
        });
        let device = DeviceSettings {
            bytes: CACHE_BYTES,
            volatile_cache: true,
            discards: true,
            presence: Presence::InStep,
        };
        let tuning = Tuning { sequential_bytes: 256 << 10, regions_max: 64, ..Tuning::default() };
        let settings = Settings {
            devices: vec![device; disks.cache.len()],
            origins: origins.collect(),
            superblock,
            distrust: disks.distrust.clone(),
            witness: Witness::default(),
            ram_bytes: 64 << 10,
            tuning,
        };
        let mut out = Vec::new();
        let engine = Engine::open(settings, 0, &mut out);
        let (pending, replies, commands) = (Vec::new(), Vec::new(), Vec::new());
        let mut executor = Executor { engine, disks, pending, replies, commands, now: 0, out };
        executor.sort();
        Some(executor)
    }

    /// Takes what the engine wants.
    fn sort(&mut self) {
        for effect in self.out.drain(..) {
            match effect {
                Effect::Reply { id, result, buf } => self.replies.push((id, result, buf)),
                Effect::CommandDone { id, reply } => self.commands.push((id, reply)),
                Effect::Notice(_) => {}
                io => self.pending.push(io),
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.engine.handle(self.now, event, &mut self.out);
        self.sort();
    }

    /// The end of a batch of events.
    pub fn settle(&mut self) {
        self.engine.settle(self.now, &mut self.out);
        self.sort();
    }

    /// A client asks.
    pub fn submit(&mut self, id: u64, request: Request) {
        self.tell(Event::Submit(RequestId(id), request));
    }

    /// An administrator asks.
    pub fn command(&mut self, id: u64, command: Command) {
        self.tell(Event::Command(CommandId(id), command));
    }

    /// Time passes, by so many nanoseconds at most.
    pub fn pass(&mut self, ns: u64) {
        let due = self.engine.deadline().unwrap_or(u64::MAX);
        self.now = due.max(self.now + 1).min(self.now + ns.max(1));
        self.tell(Event::Tick);
    }

    /// Carries out an I/O under way. `error`: it ends so, and nothing of it was done.
    pub fn end(&mut self, at: usize, error: Option<IoError>) {
        let effect = self.pending.swap_remove(at);
        let (op, buf) = match error {
            None => self.disks.carry_out(effect),
            Some(_) => taken_apart(effect),
        };
        self.tell(Event::Done(op, Completion { result: error.map_or(Ok(()), Err), buf }));
    }

    /// Ends all that is under way, in order, and lets time pass until nothing happens that `until`
    /// waits for.
    pub fn run(&mut self, until: impl Fn(&Executor) -> bool) {
        for _ in 0..STEPS_MAX {
            self.settle();
            if until(self) {
                return;
            }
            if self.pending.is_empty() {
                self.pass(1_000_000_000);
            }
            for _ in 0..self.pending.len() {
                self.end(0, None);
            }
        }
        panic!("it stands still: {}", self.engine.describe());
    }

    /// Runs until the pool serves, or is refused with a text.
    pub fn open_up(&mut self) -> bool {
        self.run(|it| it.engine.state() != State::Opening);
        match self.engine.state() {
            State::Failed(why) => {
                assert!(!why.text.is_empty());
                false
            }
            _ => true,
        }
    }

    /// The process is killed: of the I/Os under way those are done that `survives` says.
    pub fn kill(mut self, mut survives: impl FnMut() -> bool) -> Disks {
        for effect in self.pending.drain(..) {
            if survives() {
                self.disks.carry_out(effect);
            }
        }
        self.disks
    }
}

impl Disks {
    fn carry_out(&mut self, effect: Effect) -> (OpId, Buf) {
        match effect {
            Effect::Read { op, target, offset, mut buf } => {
                let bytes = self.range(target, offset, buf.len() as u64);
                buf.bytes_mut().copy_from_slice(bytes);
                (op, buf)
            }
            Effect::Write { op, target, offset, buf } => {
                self.range(target, offset, buf.len() as u64).copy_from_slice(buf.bytes());
                (op, buf)
            }
            Effect::Zero { op, target, offset, len, .. } => {
                self.range(target, offset, len).fill(0);
                (op, Buf::empty())
            }
            Effect::Discard { op, target, offset, len } => {
                self.range(target, offset, len);
                (op, Buf::empty())
            }
            Effect::Distrust { op, note } => {
                self.distrust = note;
                (op, Buf::empty())
            }
            other => taken_apart(other),
        }
    }
}

/// An I/O that is not carried out: its name, and its buffer.
fn taken_apart(effect: Effect) -> (OpId, Buf) {
    match effect {
        Effect::Read { op, buf, .. } | Effect::Write { op, buf, .. } => (op, buf),
        Effect::Flush { op, .. }
        | Effect::Zero { op, .. }
        | Effect::Discard { op, .. }
        | Effect::Distrust { op, .. } => (op, Buf::empty()),
        other => panic!("no I/O: {other:?}"),
    }
}
