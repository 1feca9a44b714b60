//! Without a daemon: the very recovery that a daemon would run, by an engine of its own, on cache
//! devices that are never written to. What it writes stays in memory, on top of them, and is gone
//! with it; and there is no origin.

use super::{Dirty, Part, Span, Unread};
use crate::device::Device;
use crate::pool::PoolOnDisk;
use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceSettings, Distrust, Effect, Engine,
    Event, IoError, Notice, OpId, OpenError, OriginSettings, Presence, Request, RequestId,
    RequestKind, Settings, State, Target, Time, Tuning, VolumeId, Witness,
};
use forebay_format::BLOCK_SIZE;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often a place is read that cannot be.
const TRIES: u32 = 3;
/// The pause before it is read again.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Reads under way at once.
const READS_MAX: usize = 16;
/// The one command: the origin is lost.
const LOSS: CommandId = CommandId(1);

/// What is known of a pool, beside what is on its devices.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// What of it must not be used.
    pub distrust: Distrust,
    /// How far its log went.
    pub witness: Witness,
    /// The devices that are not here will never be: what only they hold is lost.
    pub absent_given_up: bool,
}

/// A cache device, and what would have been written to it.
struct Under<'a> {
    device: &'a Device,
    /// Where segments begin. What is before them no engine reads in the life that wrote it.
    segments_offset: u64,
    /// By block.
    written: BTreeMap<u64, Vec<u8>>,
}

/// A read of a device.
struct CacheRead {
    op: OpId,
    device: usize,
    offset: u64,
    buf: Buf,
}

/// A pool that was opened for one of its volumes.
pub struct Rescue<'a> {
    engine: Engine,
    devices: Vec<Option<Under<'a>>>,
    volume: VolumeId,
    bytes: u64,
    happened: Vec<Event>,
    answers: BTreeMap<RequestId, Result<Buf, IoError>>,
    loss: Option<CommandReply>,
    notes: Vec<String>,
    now: Time,
}

impl<'a> Rescue<'a> {
    /// Opens a pool for a volume that its superblock names. Nothing is written anywhere.
    ///
    /// # Errors
    /// The engine does not open the pool.
    pub fn open(
        pool: &'a PoolOnDisk,
        volume: VolumeId,
        known: &Known,
    ) -> Result<Rescue<'a>, OpenError> {
        let volumes = pool.superblock.volumes.iter();
        let own = volumes.clone().find(|entry| entry.id.get() == volume.0);
        let bytes = own.ok_or("the pool has no such volume")?.bytes.get();
        let mut effects = Vec::new();
        let engine = Engine::open(settings(pool, volume, known), 0, &mut effects);
        let under = |slot: &'a crate::pool::PoolDevice| {
            let segments_offset = pool.superblock.layout().segments_offset;
            let device = slot.device.as_ref().ok()?;
            Some(Under { device, segments_offset, written: BTreeMap::new() })
        };
        let mut rescue = Rescue {
            engine,
            devices: pool.devices.iter().map(under).collect(),
            volume,
            bytes,
            // It is kept until the pool is open: nothing is to be sent home.
            happened: vec![Event::Command(LOSS, Command::OriginLost(volume))],
            answers: BTreeMap::new(),
            loss: None,
            notes: Vec::new(),
            now: 0,
        };
        rescue.carry_out(effects);
        while rescue.loss.is_none() && !matches!(rescue.engine.state(), State::Failed(_)) {
            rescue.turn()?;
        }
        match (rescue.engine.state(), rescue.loss.take()) {
            (State::Failed(why), _) => Err(why),
            (_, Some(CommandReply::Changed)) => Ok(rescue),
            (_, other) => Err(format!("the volume is not served: {other:?}").into()),
        }
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks of the volume that are dirty.
    pub fn dirty_blocks(&self) -> u64 {
        self.engine.volume_stats(self.volume).map_or(0, |stats| stats.dirty_blocks)
    }

    /// What was wrong with the devices, and what was done without it.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The last record of the log.
    pub fn log_end(&self) -> u64 {
        self.engine.durable().unwrap_or_default()
    }

    /// Dirty blocks of the volume, from this one on.
    pub fn dirty(&self, from: u64) -> Dirty {
        super::dirty(&self.engine, self.volume, from..self.bytes.div_ceil(BLOCK_SIZE as u64))
    }

    /// Reads dirty blocks.
    ///
    /// # Errors
    /// The engine is stuck.
    pub fn read(&mut self, dirty: &Dirty) -> Result<Part, OpenError> {
        let mut stuck = Ok(());
        let part = super::read(dirty, self.bytes, |spans| {
            if let Err(why) = self.ask(spans) {
                stuck = Err(why);
            }
            let answers = spans.iter().enumerate().map(|(n, _)| RequestId(n as u64));
            answers
                .map(|id| match self.answers.remove(&id) {
                    Some(Ok(buf)) => Ok(buf),
                    _ => Err(Unread::Lost),
                })
                .collect()
        });
        stuck.map(|()| part)
    }

    /// Asks the engine for these, and waits until it has answered all.
    fn ask(&mut self, spans: &[Span]) -> Result<(), OpenError> {
        self.answers.clear();
        for (n, span) in spans.iter().enumerate() {
            let request = Request {
                volume: self.volume,
                kind: RequestKind::Read,
                offset: span.offset,
                len: span.bytes,
                fua: false,
                buf: Buf::zeroed(span.bytes as usize),
            };
            self.happened.push(Event::Submit(RequestId(n as u64), request));
        }
        while self.answers.len() < spans.len() {
            self.turn()?;
        }
        Ok(())
    }

    /// Tells the engine what happened, and does what it wants.
    fn turn(&mut self) -> Result<(), OpenError> {
        let mut effects = Vec::new();
        for event in std::mem::take(&mut self.happened) {
            self.engine.handle(self.now, event, &mut effects);
        }
        self.engine.settle(self.now, &mut effects);
        if !effects.is_empty() {
            self.carry_out(effects);
            return Ok(());
        }
        // Nothing is under way: time passes until the engine has something to do.
        let due = self.engine.deadline().ok_or("the engine waits for nothing")?;
        self.now = due.max(self.now + 1);
        self.happened.push(Event::Tick);
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        let mut reads = Vec::new();
        for effect in effects {
            match effect {
                Effect::Read { op, target: Target::Cache(device), offset, buf } => {
                    let device = usize::from(device.0);
                    reads.push(CacheRead { op, device, offset, buf });
                }
                Effect::Write { op, target: Target::Cache(device), offset, buf } => {
                    let under = self.devices[usize::from(device.0)].as_mut();
                    let result = under.ok_or(IoError::Io).map(|it| it.write(offset, buf.bytes()));
                    self.ended(op, result, buf);
                }
                // The start flushes the origin, and there is nothing to flush.
                Effect::Flush { op, .. }
                | Effect::Discard { op, target: Target::Cache(_), .. }
                | Effect::Distrust { op, .. } => self.ended(op, Ok(()), Buf::empty()),
                Effect::Read { op, buf, .. } | Effect::Write { op, buf, .. } => {
                    self.ended(op, Err(IoError::Gone), buf);
                }
                Effect::Zero { op, .. } | Effect::Discard { op, .. } => {
                    self.ended(op, Err(IoError::Gone), Buf::empty());
                }
                Effect::Reply { id, result, buf } => {
                    self.answers.insert(id, result.map(|()| buf));
                }
                Effect::CommandDone { reply, .. } => self.loss = Some(reply),
                Effect::Notice(Notice::Repaired(text) | Notice::DeviceFailed(_, text)) => {
                    self.notes.push(text);
                }
                Effect::Notice(_) => {}
            }
        }
        self.read_all(reads);
    }

    fn ended(&mut self, op: OpId, result: Result<(), IoError>, buf: Buf) {
        self.happened.push(Event::Done(op, Completion { result, buf }));
    }

    /// Reads of one turn, beside each other: they are many, and small where data is scattered.
    fn read_all(&mut self, mut reads: Vec<CacheRead>) {
        let share = reads.len().div_ceil(READS_MAX).max(1);
        let devices = &self.devices;
        let results: Vec<Vec<Result<(), IoError>>> = std::thread::scope(|scope| {
            let carry = |reads: &mut [CacheRead]| -> Vec<Result<(), IoError>> {
                reads.iter_mut().map(|read| read.carry_out(devices)).collect()
            };
            if reads.len() <= 1 {
                return vec![carry(&mut reads)];
            }
            let threads: Vec<_> =
                reads.chunks_mut(share).map(|some| scope.spawn(move || carry(some))).collect();
            threads.into_iter().map(|it| it.join().expect("reading does not panic")).collect()
        });
        for (read, result) in reads.into_iter().zip(results.into_iter().flatten()) {
            self.ended(read.op, result, read.buf);
        }
    }
}

impl CacheRead {
    fn carry_out(&mut self, devices: &[Option<Under<'_>>]) -> Result<(), IoError> {
        let under = devices[self.device].as_ref().ok_or(IoError::Io)?;
        under.read(self.offset, self.buf.bytes_mut()).map_err(|_| IoError::Io)
    }
}

impl Under<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let block = BLOCK_SIZE as u64;
        let blocks = offset / block..(offset + bytes.len() as u64).div_ceil(block);
        let count = (blocks.end - blocks.start) as usize;
        if self.written.range(blocks.clone()).count() < count {
            self.read_device(offset, bytes)?;
        }
        for (&at, content) in self.written.range(blocks) {
            let at = at * block;
            let (from, to) = (at.max(offset), (at + block).min(offset + bytes.len() as u64));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&content[(from - at) as usize..(to - at) as usize]);
        }
        Ok(())
    }

    /// A disk that dies may read at the second try what it did not at the first.
    fn read_device(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.device.file_for(offset, bytes.len() as u64);
        let mut tries = 1;
        loop {
            match file.read_exact_at(bytes, offset) {
                Err(e) if e.kind() != io::ErrorKind::UnexpectedEof && tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(TRY_AGAIN);
                }
                other => return other,
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let block = BLOCK_SIZE as u64;
        assert!(offset.is_multiple_of(block) && bytes.len().is_multiple_of(BLOCK_SIZE));
        if offset < self.segments_offset {
            return;
        }
        for (n, content) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            self.written.insert(offset / block + n as u64, content.to_vec());
        }
    }
}

/// The volume has an origin until the pool is open, or it would not be served; the others have
/// none.
fn settings(pool: &PoolOnDisk, volume: VolumeId, known: &Known) -> Settings {
    let devices = pool.devices.iter().map(|slot| DeviceSettings {
        bytes: slot.device.as_ref().map_or(slot.entry.bytes.get(), |it| it.info().bytes),
        volatile_cache: false,
        discards: false,
        presence: match slot.presence {
            Presence::Absent if known.absent_given_up => Presence::GivenUp,
            presence => presence,
        },
    });
    let volumes = pool.superblock.volumes.iter();
    let origins = volumes.map(|entry| OriginSettings {
        volume: VolumeId(entry.id.get()),
        present: entry.id.get() == volume.0,
        volatile_cache: true,
        stripe_blocks: 0,
    });
    Settings {
        superblock: pool.superblock.clone(),
        devices: devices.collect(),
        origins: origins.collect(),
        distrust: known.distrust.clone(),
        witness: known.witness,
        ram_bytes: 0,
        tuning: Tuning::default(),
    }
}
