//! What the engine keeps of a volume: parts, each of which owns its state and is told what
//! happened, and what concerns several of them.

use crate::event::{Time, VolumeId, VolumeSpec};
use crate::ids::Key;
use crate::policy::streams::Streams;
use crate::quarantine::Quarantine;
use crate::writeback::Home;
use forebay_format::mode::Mode;
use forebay_format::stats::VolumeStats;

mod dirty;
mod entry;
mod flush;
mod intents;
mod service;
mod task;
mod traffic;
pub(crate) mod volumes;

use dirty::Dirty;
pub(crate) use dirty::Look;
use entry::{Identity, Life, Size};
use flush::OriginFlush;
use intents::Intents;
pub(crate) use intents::Sync;
use service::Service;
use task::Running;
pub(crate) use task::Task;
use traffic::Traffic;

/// One volume.
#[derive(Debug)]
pub struct Volume {
    /// Its number.
    id: VolumeId,
    /// Who it is.
    identity: Identity,
    /// Its size.
    size: Size,
    /// Key of its first block.
    base: Key,
    /// The mode in force.
    mode: Mode,
    /// Whether it is served.
    service: Service,
    /// Dirty blocks, and the sweep through them.
    dirty: Dirty,
    /// Regions with intents, and the sync point being made.
    intents: Intents,
    /// FLUSHes of the origin.
    flush: OriginFlush,
    /// Whether it is in the superblock.
    life: Life,
    /// The long command under way.
    running: Option<Running>,
    /// What does not go home for now.
    quarantine: Quarantine,
    /// Blocks of a stripe of its origin, if that has any.
    stripe_blocks: u32,
    /// What clients do with the volume.
    traffic: Traffic,
    /// Sequential streams of theirs.
    streams: Streams,
    /// Counts.
    stats: VolumeStats,
}

impl Volume {
    /// A new volume.
    pub fn new(id: VolumeId, spec: VolumeSpec, base: Key) -> Volume {
        Volume {
            id,
            identity: Identity {
                name: spec.name,
                origin: spec.origin,
                uuid: spec.uuid,
                fingerprint: spec.fingerprint,
            },
            size: Size::new(spec.bytes),
            base,
            mode: spec.mode,
            service: Service::default(),
            dirty: Dirty::default(),
            intents: Intents::default(),
            flush: OriginFlush::new(spec.volatile_cache, spec.exact_flushes),
            life: Life::There,
            running: None,
            quarantine: Quarantine::default(),
            stripe_blocks: spec.stripe_blocks,
            traffic: Traffic::default(),
            streams: Streams::default(),
            stats: VolumeStats::default(),
        }
    }

    /// A volume that is being added.
    pub(crate) fn to_add(id: VolumeId, spec: VolumeSpec, base: Key, now: Time) -> Volume {
        let mut volume = Volume::new(id, spec, base);
        volume.traffic = Traffic::from(now);
        volume.life = Life::Adding;
        volume.flush.others_wrote();
        volume
    }

    /// Its number.
    #[inline]
    pub(crate) fn id(&self) -> VolumeId {
        self.id
    }

    /// Who it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it is served.
    #[inline]
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Dirty blocks, and the sweep through them.
    #[inline]
    pub(crate) fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Regions with intents, and the sync point being made.
    pub(crate) fn intents(&self) -> &Intents {
        &self.intents
    }

    /// FLUSHes of the origin.
    pub(crate) fn flush(&self) -> &OriginFlush {
        &self.flush
    }

    /// What does not go home for now.
    pub(crate) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// What clients do with the volume.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Counts.
    pub(crate) fn stats(&self) -> &VolumeStats {
        &self.stats
    }

    /// Key of its first block.
    #[inline]
    pub(crate) fn base(&self) -> Key {
        self.base
    }

    /// A start gives it other keys, before it has blocks.
    pub(crate) fn rebase(&mut self, base: Key) {
        self.base = base;
    }

    /// One more block of it is cached.
    pub(crate) fn block_came(&mut self, block: u64, dirty: bool) {
        if dirty {
            self.block_dirtied(block);
        }
        self.stats.cached_blocks += 1;
    }

    /// A dirty block is equal to the origin now, or about to leave.
    pub(crate) fn block_cleaned(&mut self, block: u64) {
        self.dirty.remove(block);
        self.quarantine.forget(block);
        self.stats.dirty_blocks = self.dirty.len();
    }

    /// A block is cached in a new version. Whether it was dirty `before`, and is `now`: one that
    /// stays so is no change of what is dirty, but nothing is known of the new version.
    pub(crate) fn block_replaced(&mut self, block: u64, before: bool, now: bool) {
        match (before, now) {
            (true, true) => self.quarantine.forget(block),
            (true, false) => self.block_cleaned(block),
            (false, true) => self.block_dirtied(block),
            (false, false) => {}
        }
    }

    fn block_dirtied(&mut self, block: u64) {
        self.dirty.insert(block);
        self.stats.dirty_blocks = self.dirty.len();
    }

    /// A block is not cached any more, which was `dirty`, or was not.
    pub(crate) fn block_left(&mut self, block: u64, dirty: bool) {
        if dirty {
            self.block_cleaned(block);
        }
        self.stats.cached_blocks -= 1;
    }

    /// A start begins once more: nothing of it is cached.
    pub(crate) fn forget_blocks(&mut self) {
        self.dirty.clear();
        self.stats.cached_blocks = 0;
    }

    /// A start has filled in what is dirty.
    pub(crate) fn count_dirty(&mut self) {
        self.stats.dirty_blocks = self.dirty.len();
    }

    /// Whether requests are under way, of which some may write dirty blocks, although it is not
    /// served any more.
    pub(crate) fn has_late_requests(&self) -> bool {
        !self.service.is_on() && self.traffic.has_requests()
    }

    /// Blocks of a stripe of its origin, or 0.
    pub(crate) fn stripe_blocks(&self) -> u32 {
        self.stripe_blocks
    }

    /// The mode in force.
    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// From when on the origin counts as one that hangs, if nothing of what goes home ends before.
    pub(crate) fn hangs_from(&self, home: &Home) -> Option<Time> {
        let flushes = self.flush.hangs_from().filter(|_| home.busy());
        home.hangs_from().or(flushes)
    }

    /// Whether the origin has to be flushed before the volume is removed: not one that is gone,
    /// where nobody has to hear that what clients wrote there is gone with it.
    pub(crate) fn owes_flush(&self) -> bool {
        let is_there = self.service.is_on() || self.service.retries();
        is_there || !self.flush.is_durable(self.flush.client_written())
    }

    /// Whether the origin is lost, refuses what it is sent, or ends nothing of it.
    pub(crate) fn lags(&self, home: &Home, now: Time) -> bool {
        self.service.is_lost()
            || self.quarantine.refuses_all()
            || self.hangs_from(home).is_some_and(|from| from <= now)
    }

    /// Dirty blocks of which nobody knows when they go home: those that cannot be read, or all
    /// while the origin is not there.
    pub fn stuck(&self) -> u64 {
        let dirty = self.dirty.len();
        match self.service.is_on() {
            true => dirty.min(self.quarantine.unreadable().len() as u64),
            false => dirty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_written_again_counts_once_and_is_as_dirty_as_its_newest_version() {
        let spec = VolumeSpec {
            name: String::new(),
            origin: String::new(),
            uuid: [0; 16],
            fingerprint: [0; 32],
            bytes: 8 * 4096,
            mode: Mode::WriteBack,
            volatile_cache: true,
            exact_flushes: false,
            stripe_blocks: 0,
        };
        let mut volume = Volume::new(VolumeId(1), spec, Key::FIRST);
        let counts = |volume: &Volume| {
            let stats = &volume.stats;
            (stats.cached_blocks, stats.dirty_blocks, volume.dirty.any(3, 3))
        };
        volume.block_came(3, true);
        for (before, now) in [(true, true), (true, false), (false, false), (false, true)] {
            volume.quarantine.cannot_read(3, 0);
            volume.block_replaced(3, before, now);
            assert_eq!(counts(&volume), (1, u64::from(now), now), "{before} {now}");
            let known = volume.quarantine.unreadable().contains(&3);
            assert_eq!(known, !before, "what is known of a dirty version goes with it");
        }
        volume.block_left(3, true);
        assert_eq!(counts(&volume), (0, 0, false));
    }
}
