//! What happens to the volumes: each is told of it by its number, or by the key of a block.

use crate::event::*;
use crate::ids::{Dseq, Key, Written};
use crate::requests::Req;
use crate::volume::volumes::Volumes;
use crate::volume::{Look, Sync, Task, Volume};
use forebay_format::BLOCK_SIZE;
use forebay_format::mode::Mode;
use forebay_format::stats::Reason;

impl Volumes {
    /// A volume that a request or an operation of ours holds: it is not removed before they end.
    #[inline]
    fn at(&mut self, id: VolumeId) -> &mut Volume {
        let at = self.find(id).expect("the volume stays while something runs on it");
        &mut self.volumes[at]
    }

    /// The volume of a cached block, and the block's number there.
    #[inline]
    fn block(&mut self, key: Key) -> (&mut Volume, u64) {
        let at = self.find_key(key).expect("keys are of volumes");
        let volume = &mut self.volumes[at];
        let block = key - volume.base();
        (volume, block)
    }
}

/// Requests.
impl Volumes {
    /// A request was refused before it had a place. Its volume may not be there.
    pub(crate) fn refused(&mut self, id: VolumeId) {
        if let Some(at) = self.find(id) {
            self.volumes[at].stats.errors += 1;
        }
    }

    /// A request came, whatever it asks.
    #[inline]
    pub(crate) fn request_came(&mut self, id: VolumeId) {
        let volume = self.at(id);
        volume.streams.request_came();
        volume.traffic.request_came();
    }

    /// It is accepted. Whether it belongs to a sequential stream of at least `bytes_min` bytes.
    #[inline]
    pub(crate) fn request_begins(&mut self, req: &Req, now: Time, bytes_min: u64) -> bool {
        let Req { volume, kind, offset, len, .. } = *req;
        let volume = self.at(volume);
        let stats = &mut volume.stats;
        match kind {
            RequestKind::Flush => stats.flushes += 1,
            RequestKind::Read => {
                stats.reads += 1;
                stats.read_bytes += len;
            }
            RequestKind::Write => {
                stats.writes += 1;
                stats.write_bytes += len;
                volume.traffic.wrote(now);
            }
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => {
                stats.discards += 1;
                stats.discard_bytes += len;
                volume.traffic.wrote(now);
            }
            RequestKind::Prefetch => {}
        }
        let streams = matches!(kind, RequestKind::Read | RequestKind::Write) && len > 0;
        streams && volume.streams.goes_on(offset, len, bytes_min)
    }

    /// It is answered, so long after it came; it was a write into the cache, or was not.
    #[inline]
    pub(crate) fn request_ended(
        &mut self,
        id: VolumeId,
        kind: RequestKind,
        cached: bool,
        is_ok: bool,
        latency: Time,
    ) {
        let volume = self.at(id);
        volume.traffic.request_ended(cached);
        volume.stats.errors += u64::from(!is_ok);
        match kind {
            RequestKind::Read => volume.stats.read_latency.record(latency),
            RequestKind::Write => volume.stats.write_latency.record(latency),
            RequestKind::Flush => volume.stats.flush_latency.record(latency),
            _ => {}
        }
    }

    /// All blocks of a read are here: so many were in the cache, and so many were not.
    #[inline]
    pub(crate) fn read_ended(&mut self, id: VolumeId, hits: u32, misses: u32) {
        let stats = &mut self.at(id).stats;
        match (hits, misses) {
            (_, 0) => stats.read_hits_full += 1,
            (0, _) => stats.read_misses += 1,
            _ => stats.read_hits_partial += 1,
        }
    }

    /// So many bytes that are asked for were in RAM.
    #[inline]
    pub(crate) fn read_from_ram(&mut self, id: VolumeId, bytes: usize) {
        self.at(id).stats.read_bytes_ram += bytes as u64;
    }

    /// So many were read from the cache.
    #[inline]
    pub(crate) fn read_from_cache(&mut self, id: VolumeId, bytes: usize) {
        self.at(id).stats.read_bytes_cache += bytes as u64;
    }

    /// So many came from the origin.
    pub(crate) fn read_from_origin(&mut self, id: VolumeId, bytes: usize) {
        self.at(id).stats.read_bytes_origin += bytes as u64;
    }

    /// A request that is under way is a write into the cache.
    #[inline]
    pub(crate) fn cache_write_begins(&mut self, id: VolumeId) {
        self.at(id).traffic.cache_write_begins();
    }

    /// It goes to the origin instead.
    pub(crate) fn cache_write_goes_around(&mut self, id: VolumeId) {
        self.at(id).traffic.cache_write_goes_around();
    }

    /// A block that a client writes is in the log.
    #[inline]
    pub(crate) fn block_written(&mut self, id: VolumeId) {
        self.at(id).stats.write_bytes_cache += BLOCK_SIZE as u64;
    }

    /// So many blocks are not kept in the cache, and why.
    pub(crate) fn not_cached(&mut self, id: VolumeId, reason: Reason, blocks: u64) {
        self.at(id).stats.not_cached[reason as usize] += blocks;
    }

    /// A cached block cannot be read, and is `lost` if it was dirty.
    pub(crate) fn block_is_bad(&mut self, id: VolumeId, lost: bool) {
        let stats = &mut self.at(id).stats;
        stats.bad_blocks += 1;
        stats.lost_blocks += u64::from(lost);
    }
}

/// Blocks that are cached, dirty, or neither any more.
impl Volumes {
    /// A block is cached. Whether the version `before` it was dirty, if there was one, and whether
    /// this one is.
    #[inline]
    pub(crate) fn block_placed(&mut self, key: Key, before: Option<bool>, dirty: bool) {
        let (volume, block) = self.block(key);
        match before {
            Some(before) => volume.block_replaced(block, before, dirty),
            None => volume.block_came(block, dirty),
        }
    }

    /// A dirty block is equal to the origin now.
    #[inline]
    pub(crate) fn block_cleaned(&mut self, key: Key) {
        let (volume, block) = self.block(key);
        volume.block_cleaned(block);
    }

    /// A block is not cached any more, which was `dirty`, or was not.
    #[inline]
    pub(crate) fn block_left(&mut self, key: Key, dirty: bool) {
        let (volume, block) = self.block(key);
        volume.block_left(block, dirty);
    }

    /// This record says of dirty blocks that they are home, or gone.
    pub(crate) fn ended_by(&mut self, id: VolumeId, dseq: Dseq) {
        self.at(id).dirty.ended_by(dseq);
    }

    /// A start begins once more: nothing is cached.
    pub(crate) fn forget_blocks(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.forget_blocks());
    }

    /// A start has found so many blocks cached.
    pub(crate) fn found_cached(&mut self, id: VolumeId, blocks: u64) {
        self.at(id).stats.cached_blocks += blocks;
    }

    /// These among them are dirty, in order.
    pub(crate) fn found_dirty(&mut self, id: VolumeId, blocks: impl Iterator<Item = u64>) {
        self.at(id).dirty.insert_sorted(blocks);
    }

    /// A start has found all that is dirty.
    pub(crate) fn count_dirty(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.count_dirty());
    }
}

/// What goes home.
impl Volumes {
    /// A slice begins: a sweep that has come to the end of the volume begins anew.
    pub(crate) fn sweep_on(&mut self, id: VolumeId) {
        self.at(id).dirty.sweep_on();
    }

    /// The sweep has come so far while the log was durable up to `durable`.
    pub(crate) fn swept(&mut self, id: VolumeId, look: &Look, durable: Dseq, now: Time) {
        let volume = self.at(id);
        if volume.dirty.swept(look, durable) {
            volume.quarantine.nothing_to_send(now);
        }
    }

    /// A run of dirty blocks is on its way home.
    pub(crate) fn run_sent(&mut self, id: VolumeId) {
        self.at(id).stats.writeback_writes += 1;
    }

    /// The origin took it.
    pub(crate) fn run_taken(&mut self, id: VolumeId) {
        self.at(id).quarantine.took();
    }

    /// The origin refused a block. Whether this is the first that it refuses.
    pub(crate) fn block_refused(&mut self, id: VolumeId, block: u64, now: Time) -> bool {
        self.at(id).quarantine.refused(block, now)
    }

    /// No copy of a dirty block can be read.
    pub(crate) fn block_unreadable(&mut self, key: Key, now: Time) {
        let (volume, block) = self.block(key);
        volume.quarantine.cannot_read(block, now);
    }

    /// Such a block is given up.
    pub(crate) fn block_given_up(&mut self, id: VolumeId, block: u64) {
        self.at(id).quarantine.forget(block);
    }

    /// A block is home, and this record says so.
    pub(crate) fn block_home(&mut self, id: VolumeId, block: u64, dseq: Dseq) {
        let volume = self.at(id);
        volume.dirty.ended_by(dseq);
        volume.quarantine.forget(block);
        volume.stats.writeback_blocks += 1;
    }

    /// The FLUSH of a slice has ended, well or not; whether the origin took anything of it.
    pub(crate) fn slice_flushed(&mut self, id: VolumeId, flushed: bool, wrote: bool, now: Time) {
        let quarantine = &mut self.at(id).quarantine;
        match flushed {
            true if wrote => quarantine.flushed(),
            true => {}
            false => quarantine.flush_failed(now),
        }
    }

    /// Somebody waits for what goes home.
    pub(crate) fn is_waited_for(&mut self, id: VolumeId) {
        self.at(id).quarantine.is_waited_for();
    }
}

/// Origins.
impl Volumes {
    /// A client's write to the origin begins, of so many bytes; of zeros none count.
    pub(crate) fn origin_write_begins(&mut self, id: VolumeId, bytes: usize, now: Time) {
        let volume = self.at(id);
        volume.traffic.uses_origin(now);
        volume.stats.write_bytes_origin += bytes as u64;
    }

    /// A write to the origin has ended, of a client's or of a dirty block.
    pub(crate) fn origin_write_ended(&mut self, id: VolumeId, by_client: bool) {
        self.at(id).flush.write_ended(by_client);
    }

    /// A read of the origin begins.
    pub(crate) fn origin_read_begins(&mut self, id: VolumeId, now: Time) {
        self.at(id).traffic.origin_read_begins(now);
    }

    /// One has ended. How many have not.
    pub(crate) fn origin_read_ended(&mut self, id: VolumeId, now: Time) -> u32 {
        self.at(id).traffic.origin_read_ended(now)
    }

    /// A record marks a range of the volume, or without one all of it.
    pub(crate) fn mark(&mut self, id: VolumeId, range: Option<(u64, u64)>, dseq: Dseq, now: Time) {
        self.at(id).intents.mark(range, dseq, now);
    }

    /// A sync point begins: intents up to this record will be over when all that is written now is
    /// durable.
    pub(crate) fn sync_begins(&mut self, id: VolumeId, mark_dseq: Dseq, now: Time) {
        let volume = self.at(id);
        let (written, failures) = (volume.flush.written(), volume.flush.failures());
        volume.intents.sync_begins(Sync { mark_dseq, written, failures }, now);
    }

    /// It comes to nothing.
    pub(crate) fn sync_fails(&mut self, id: VolumeId) {
        self.at(id).intents.sync_fails();
    }

    /// No cache device works: none comes to anything.
    pub(crate) fn syncs_fail(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.intents.sync_fails());
    }

    /// The origin was flushed: intents up to this record are over.
    pub(crate) fn synced(&mut self, id: VolumeId, mark_dseq: Dseq) {
        self.at(id).intents.synced(mark_dseq);
    }

    /// Somebody wants so many writes to the origin durable. Whether they are not.
    pub(crate) fn want_flushed(&mut self, id: VolumeId, written: Written) -> bool {
        self.at(id).flush.want(written)
    }

    /// A FLUSH of the origin is on its way.
    pub(crate) fn flush_sent(&mut self, id: VolumeId, now: Time) {
        let volume = self.at(id);
        volume.flush.sent(now);
        volume.stats.origin_flushes += 1;
    }

    /// It has ended. But for a planted bug it `counts` if it failed. If those have failed with it
    /// that waited for so many writes, and no later ones, they are told.
    pub(crate) fn flush_ended(
        &mut self,
        id: VolumeId,
        now: Time,
        result: Result<(), IoError>,
        counts: bool,
    ) -> Option<Written> {
        self.at(id).flush.ended(now, result, counts)
    }

    /// A client was told that it has failed.
    pub(crate) fn flush_failure_heard(&mut self, id: VolumeId) {
        self.at(id).flush.heard();
    }

    /// Who asks for the volume's removal is told that the origin has failed a FLUSH, if they have
    /// to be. Whether they have.
    pub(crate) fn tell(&mut self, id: VolumeId) -> bool {
        self.at(id).flush.tell()
    }

    /// They are told that the origin cannot be flushed, whoever wrote what is there.
    pub(crate) fn tell_anyway(&mut self, id: VolumeId) {
        self.at(id).flush.tell_anyway();
    }

    /// Clients know that the origin has failed a FLUSH, and what is cached of it is given up.
    pub(crate) fn clients_know(&mut self, id: VolumeId) {
        self.at(id).flush.clients_know();
    }
}

/// Whether volumes are served.
impl Volumes {
    /// A start has found that a client of the life before wrote to the origin past the cache.
    pub(crate) fn clients_wrote(&mut self, id: VolumeId) {
        let volume = self.at(id);
        volume.flush.clients_wrote(volume.service.is_on());
    }

    /// The FLUSH with which an origin comes into service has failed.
    pub(crate) fn lost_perhaps(&mut self, id: VolumeId) {
        self.at(id).flush.lost_perhaps();
    }

    /// It succeeded, or was tried often enough, and is tried again later.
    pub(crate) fn first_flush_ended(
        &mut self,
        id: VolumeId,
        result: Result<(), IoError>,
        again_at: Time,
    ) {
        let volume = self.at(id);
        volume.flush.first_ended(result);
        volume.service.tried(result.is_ok(), again_at);
    }

    /// The origin is being tried.
    pub(crate) fn is_tried(&mut self, id: VolumeId) {
        self.at(id).service.is_tried();
    }

    /// The origin is lost while the volume is served: what is cached of it still is.
    pub(crate) fn origin_is_lost(&mut self, id: VolumeId) {
        self.at(id).service.origin_is_lost();
    }

    /// Nor is what is cached served any more.
    pub(crate) fn service_ends(&mut self, id: VolumeId) {
        self.at(id).service.ends();
    }

    /// The origin is there again; but for a planted bug it `counts` that it was not. Whether the
    /// volume is served at once: as one whose origin has not `changed`.
    pub(crate) fn origin_is_back(&mut self, id: VolumeId, changed: bool, counts: bool) -> bool {
        let volume = self.at(id);
        if counts {
            volume.flush.origin_was_lost();
        }
        volume.quarantine.end();
        volume.service.goes_on(changed)
    }

    /// It is to be flushed from now on before the volume is served, once the log is durable up to
    /// here if it has changed.
    pub(crate) fn origin_is_tried_from(&mut self, id: VolumeId, now: Time, said: Option<Dseq>) {
        let volume = self.at(id);
        if let Some(said) = said {
            volume.service.waits_for(said);
        }
        volume.flush.came_back();
        volume.service.retry_from(now);
    }
}

/// Long commands, and what the superblock says.
impl Volumes {
    /// A long command begins, when so many blocks had been sent home.
    pub(crate) fn task_begins(&mut self, id: VolumeId, task: Task, sent: u64) {
        self.at(id).task_begins(task, sent);
    }

    /// It ends, if there is one, whatever became of it.
    pub(crate) fn task_ends(&mut self, id: VolumeId) -> Option<Task> {
        self.at(id).task_ends()
    }

    /// It was to switch to this mode: it is in force.
    pub(crate) fn switched(&mut self, id: VolumeId, mode: Mode) {
        self.at(id).switched(mode);
    }

    /// The superblock has a new volume.
    pub(crate) fn added(&mut self, id: VolumeId) {
        self.at(id).added();
    }

    /// A volume leaves it, and its task with that is over.
    pub(crate) fn removal_begins(&mut self, id: VolumeId) {
        self.at(id).removal_begins();
    }

    /// Whether it left nobody knows; here it goes on.
    pub(crate) fn removal_failed(&mut self, id: VolumeId) {
        self.at(id).removal_failed();
    }

    /// The origin of a volume has another name.
    pub(crate) fn origin_is_called(&mut self, id: VolumeId, origin: String) {
        self.at(id).origin_is_called(origin);
    }

    /// A volume is to have so many bytes.
    pub(crate) fn grows(&mut self, id: VolumeId, bytes: u64) {
        self.at(id).grows(bytes);
    }

    /// It has them, if it was to have more. Whether it was.
    pub(crate) fn grown(&mut self, id: VolumeId) -> bool {
        self.at(id).grown()
    }

    /// It stays as large as it is.
    pub(crate) fn growth_failed(&mut self, id: VolumeId) {
        self.at(id).growth_failed();
    }
}
