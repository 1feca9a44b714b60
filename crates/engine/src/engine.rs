//! Stand-in with the engine's real interface: passes everything to the origin. Replaced by the engine.

use crate::*;
use std::collections::BTreeMap;

/// Where the engine stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Recovery runs; requests wait.
    Opening,
    /// Requests are served.
    Serving,
    /// A shutdown command was accepted; nothing new is served.
    Stopping,
    /// The pool could not be opened; the text says why and what to do.
    Failed(String),
}

/// What the engine knows of one volume.
#[derive(Debug, Clone)]
pub struct VolumeView {
    /// The volume.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// URI of the origin.
    pub origin: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Identity of the origin.
    pub fingerprint: [u8; 32],
    /// The mode in force.
    pub mode: Mode,
    /// The mode that it drains for, if it does.
    pub draining: bool,
    /// Whether its requests are served; otherwise why not.
    pub offline: Option<String>,
}

/// One shard: one log, one index, one thread.
pub struct Engine {
    ops: BTreeMap<OpId, (RequestId, Buf)>,
    next: u64,
    volumes: Vec<VolumeView>,
    stats: VolumeStats,
}
use crate::stats::{PoolStats, VolumeStats};

impl Engine {
    /// Opens a pool: emits the reads of recovery. Requests may be submitted at once; they wait.
    pub fn open(settings: Settings, _now: Time, _out: &mut Vec<Effect>) -> Engine {
        let volumes = settings
            .superblock
            .volumes
            .iter()
            .map(|v| VolumeView {
                id: VolumeId(v.id.get()),
                name: forebay_format::superblock::field_text(&v.name),
                origin: forebay_format::superblock::field_text(&v.origin),
                bytes: v.bytes.get(),
                uuid: v.uuid,
                fingerprint: v.fingerprint,
                mode: Mode::from_raw(v.mode).unwrap_or(Mode::WriteThrough),
                draining: false,
                offline: None,
            })
            .collect();
        Engine { ops: BTreeMap::new(), next: 0, volumes, stats: VolumeStats::default() }
    }

    /// Takes one event. Effects are appended to `out`.
    pub fn handle(&mut self, _now: Time, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Submit(id, request) => {
                self.next += 1;
                let op = OpId(self.next);
                let target = Target::Origin(request.volume);
                let (offset, len) = (request.offset, request.len);
                let mut kept = Buf::empty();
                match request.kind {
                    RequestKind::Read => {
                        out.push(Effect::Read { op, target, offset, buf: request.buf })
                    }
                    RequestKind::Write => {
                        out.push(Effect::Write { op, target, offset, buf: request.buf })
                    }
                    RequestKind::WriteZeroes { unmap } => {
                        kept = request.buf;
                        out.push(Effect::Zero { op, target, offset, len, unmap })
                    }
                    _ => {
                        kept = request.buf;
                        out.push(Effect::Flush { op, target })
                    }
                }
                self.ops.insert(op, (id, kept));
            }
            Event::Done(op, completion) => {
                let (id, kept) = self.ops.remove(&op).expect("an op of ours");
                let buf = if completion.buf.capacity() > 0 { completion.buf } else { kept };
                out.push(Effect::Reply { id, result: completion.result, buf });
            }
            Event::Command(id, Command::AddVolume(spec)) => {
                let volume = VolumeId(self.volumes.len() as u16 + 1);
                self.volumes.push(VolumeView {
                    id: volume,
                    name: spec.name,
                    origin: spec.origin,
                    bytes: spec.bytes,
                    uuid: spec.uuid,
                    fingerprint: spec.fingerprint,
                    mode: spec.mode,
                    draining: false,
                    offline: None,
                });
                out.push(Effect::CommandDone { id, reply: CommandReply::Added(volume) });
            }
            Event::Command(id, _) => {
                out.push(Effect::CommandDone { id, reply: CommandReply::Unchanged })
            }
            Event::Tick => {}
        }
    }

    /// To be called after each batch of events: sends what has gathered (group commit) and does a bounded
    /// piece of background work.
    pub fn settle(&mut self, _now: Time, _out: &mut Vec<Effect>) {}

    /// When the next `Tick` is due at the latest.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Where the engine stands.
    pub fn state(&self) -> State {
        State::Serving
    }

    /// The volumes of the pool.
    pub fn volumes(&self) -> Vec<VolumeView> {
        self.volumes.clone()
    }

    /// Counts of one volume.
    pub fn volume_stats(&self, _volume: VolumeId) -> Option<&VolumeStats> {
        Some(&self.stats)
    }

    /// Counts of the pool.
    pub fn pool_stats(&self) -> PoolStats {
        PoolStats::default()
    }

    /// Where a block is. Free of I/O.
    pub fn block_status(&self, _volume: VolumeId, _block: u64) -> BlockStatus {
        BlockStatus::NotCached
    }

    /// Takes a buffer back that a reply or effect carried and the executor has no use for.
    pub fn recycle(&mut self, _buf: Buf) {}

    /// Asserts the numbered invariants over the whole state. Slow; the simulator calls it.
    pub fn check(&self) {}
}
