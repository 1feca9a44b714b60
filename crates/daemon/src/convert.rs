//! From the engine's and host's words to those of the API.

use forebay_api::hint::{AtLeast, Devices, Flag, NoRoom};
use forebay_api::size::human;
use forebay_api::stats::{Latency, PoolCounters, VolumeCounters};
use forebay_api::{ApiError, Hint};
use forebay_engine::stats::{Histogram, PoolStats, REASONS, VolumeStats};
use forebay_format::BLOCK_SIZE;
use forebay_host::device::DeviceError;
use forebay_host::pool::PoolError;
use forebay_host::shard::ShardError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

const BLOCK: u64 = BLOCK_SIZE as u64;

fn latency(histogram: &Histogram) -> Latency {
    let used = histogram.counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    Latency { counts: histogram.counts[..used].to_vec(), sum_ns: histogram.sum_ns }
}

/// Counters of a volume.
pub fn volume_counters(name: &str, pool: &str, stats: &VolumeStats) -> VolumeCounters {
    let reasons = REASONS.iter().zip(stats.not_cached);
    VolumeCounters {
        name: name.to_string(),
        pool: pool.to_string(),
        reads: stats.reads,
        read_bytes: stats.read_bytes,
        read_hits_full: stats.read_hits_full,
        read_hits_partial: stats.read_hits_partial,
        read_misses: stats.read_misses,
        read_bytes_ram: stats.read_bytes_ram,
        read_bytes_cache: stats.read_bytes_cache,
        read_bytes_origin: stats.read_bytes_origin,
        writes: stats.writes,
        write_bytes: stats.write_bytes,
        write_bytes_cache: stats.write_bytes_cache,
        write_bytes_origin: stats.write_bytes_origin,
        flushes: stats.flushes,
        discards: stats.discards,
        discard_bytes: stats.discard_bytes,
        errors: stats.errors,
        not_cached: reasons.map(|(name, count)| ((*name).to_string(), count)).collect(),
        cached_bytes: stats.cached_blocks * BLOCK,
        dirty_bytes: stats.dirty_blocks * BLOCK,
        writeback_bytes: stats.writeback_blocks * BLOCK,
        writeback_writes: stats.writeback_writes,
        origin_flushes: stats.origin_flushes,
        bad_blocks: stats.bad_blocks,
        lost_blocks: stats.lost_blocks,
        read_latency: latency(&stats.read_latency),
        write_latency: latency(&stats.write_latency),
        flush_latency: latency(&stats.flush_latency),
    }
}

/// Counters of a pool.
pub fn pool_counters(name: &str, stats: &PoolStats) -> PoolCounters {
    let written = [
        ("dirty", stats.dirty_bytes),
        ("fill", stats.fill_bytes),
        ("reinsert", stats.reinsert_bytes),
        ("header", stats.header_bytes),
        ("checkpoint", stats.checkpoint_bytes),
        ("mirror", stats.mirror_bytes),
    ];
    let written: BTreeMap<String, u64> =
        written.into_iter().map(|(cause, bytes)| (cause.to_string(), bytes)).collect();
    PoolCounters {
        name: name.to_string(),
        written_bytes: written,
        records: stats.records,
        cache_flushes: stats.cache_flushes,
        discarded_bytes: stats.discarded_bytes,
        segments_dropped: stats.segments_dropped,
        segments_cleaned: stats.segments_cleaned,
        checkpoints: stats.checkpoints,
        segments: stats.segments,
        segments_free: stats.segments_free,
        room_free_bytes: stats.room_free_blocks * BLOCK_SIZE as u64,
        room_coming_bytes: stats.room_coming_blocks * BLOCK_SIZE as u64,
        room_writable_bytes: stats.room_writable_blocks * BLOCK_SIZE as u64,
        capacity_bytes: stats.slots * BLOCK,
        cached_bytes: stats.cached_blocks * BLOCK,
        ram_tier_bytes: stats.ram_blocks * BLOCK,
        ram_tier_bytes_max: stats.ram_blocks_max * BLOCK,
        index_bytes: stats.index_bytes,
        write_stalls: stats.write_stalls,
        degraded: stats.degraded,
        internal_errors: 0,
    }
}

/// Random bytes for an identity.
///
/// # Errors
/// The system gives none.
pub fn random_uuid() -> Result<[u8; 16], ApiError> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut uuid))
        .map_err(|error| ApiError::failed(format!("read /dev/urandom: {error}")))?;
    Ok(uuid)
}

/// Identity as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has these hexadecimal digits, if they are as many as it takes.
pub fn unhex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digits = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..BYTES).map(digits).collect();
    bytes.filter(|_| text.len() == 2 * BYTES)?.try_into().ok()
}

/// What the thread of a pool does not do.
pub fn shard_error(pool: &str, error: &ShardError) -> ApiError {
    ApiError::failed(format!("pool {pool}: {error}"))
}

/// A device that cannot be opened.
pub fn device_error(error: &DeviceError) -> ApiError {
    match error {
        DeviceError::InUse { .. } => ApiError::refused(error.to_string()),
        DeviceError::WrongType { .. } => ApiError::usage(error.to_string()),
        DeviceError::System { source, .. } if source.kind() == ErrorKind::StorageFull => {
            ApiError::failed(error.to_string()).hint(Hint::FreeSpace { at: NoRoom::UnderDevice })
        }
        DeviceError::System { .. } => ApiError::failed(error.to_string()),
    }
}

/// A pool that cannot be made or read.
pub fn pool_error(error: &PoolError) -> ApiError {
    match error {
        PoolError::Device(error) => device_error(error),
        PoolError::NotEmpty { path, content } => {
            let path = path.display().to_string();
            ApiError::refused(format!("{path} holds {content}; it was not touched"))
                .hint(Hint::LookAt { path })
                .hint(Hint::Again { with: Flag::ForceLost })
        }
        PoolError::TooMuchRam { .. } => ApiError::refused(error.to_string()),
        PoolError::NoPool(_) => ApiError::not_found(error.to_string()),
        PoolError::TooSmall { path, have, needed, largest, fit } => {
            too_small(path, (*have, *needed), largest, fit)
        }
        PoolError::Format { .. } => ApiError::failed(error.to_string()),
    }
}

/// A device that cannot hold what each device of a pool has to.
fn too_small(
    path: &Path,
    (have, needed): (u64, u64),
    largest: &(PathBuf, u64),
    fit: &[PathBuf],
) -> ApiError {
    let text = format!("{} ({}) is too small for this pool", path.display(), human(have));
    let enough = Hint::LargerDevice { bytes: AtLeast(needed) };
    if largest.0 == path {
        let text = format!("{text}: its metadata and a few segments need more");
        return ApiError::failed(text).hint(enough);
    }
    let text = format!(
        "{text}: each device holds the metadata of the whole pool, and the largest, {} ({}), \
         decides how much that is",
        largest.0.display(),
        human(largest.1)
    );
    let fit = fit.iter().map(|path| path.display().to_string()).collect();
    let error = ApiError::failed(text).hint(enough);
    error.hint(Hint::UseOnly { devices: Devices::Paths(fit) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::stats;

    #[test]
    fn every_reason_has_a_meaning_and_every_count_arrives() {
        let mut stats = VolumeStats::default();
        for (index, reason) in REASONS.iter().enumerate() {
            assert!(!stats::reason_meaning(reason).is_empty(), "{reason}");
            stats.not_cached[index] = index as u64 + 1;
        }
        stats.read_latency.record(100);
        let counters = volume_counters("v", "p", &stats);
        assert_eq!(counters.not_cached["mode"], 1);
        assert_eq!(counters.not_cached["not-ready"], 7);
        assert_eq!(counters.read_latency.count(), 1);
        assert_eq!(counters.read_latency.quantile_ns(1.0), Some(112));
        assert_eq!(stats.read_latency.quantile_ns(1.0), 112);
    }
}
