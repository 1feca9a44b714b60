//! What the engine counts. One set for each volume, one for the pool. Counters only grow; whoever
//! shows them divides.

/// Why a block was not served from, or not put into, the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// The mode does not cache it.
    Mode = 0,
    /// Part of a sequential stream.
    Sequential = 1,
    /// Seen for the first time: admitted at the second miss.
    FirstMiss = 2,
    /// A write reached the block while it was being read.
    Overtaken = 3,
    /// No free segment.
    NoSpace = 4,
    /// The cache device has failed.
    DeviceFailed = 5,
    /// The pool is still being opened, or stops.
    NotReady = 6,
    /// The cache device has enough to write.
    DeviceBusy = 7,
}

/// Names of the reasons, by their number, as metrics and `forebay why` spell them.
pub const REASONS: [&str; 8] = [
    "mode",
    "sequential",
    "first-miss",
    "overtaken",
    "no-space",
    "device-failed",
    "not-ready",
    "device-busy",
];

/// A latency histogram: bucket `n` counts values in `[2^n, 2^(n+1))` nanoseconds, in four linear
/// parts each.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Counts; bucket `4 * n + part`.
    pub counts: [u64; Histogram::BUCKETS],
    /// Sum of all values, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// Buckets: 40 powers of two (18 minutes), four parts each.
    pub const BUCKETS: usize = 160;

    /// Counts one value.
    pub fn record(&mut self, ns: u64) {
        let value = ns.max(4);
        let power = 63 - value.leading_zeros() as usize;
        let part = (value >> (power - 2)) as usize & 3;
        self.counts[(4 * power + part).min(Histogram::BUCKETS - 1)] += 1;
        self.sum_ns += ns;
    }

    /// Least value of bucket `index`, in nanoseconds.
    pub fn floor_ns(index: usize) -> u64 {
        let (power, part) = (index / 4, index as u64 % 4);
        if power < 2 { 0 } else { (4 + part) << (power - 2) }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The least bucket boundary that `fraction` (0 to 1) of the values do not exceed, in
    /// nanoseconds.
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        let wanted = (self.count() as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Histogram::floor_ns(index + 1);
            }
        }
        0
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; Histogram::BUCKETS], sum_ns: 0 }
    }
}

/// Counts of one volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeStats {
    /// Read requests and bytes.
    pub reads: u64,
    /// Bytes of read requests.
    pub read_bytes: u64,
    /// Read requests answered wholly from RAM or cache device.
    pub read_hits_full: u64,
    /// Read requests answered partly from the cache.
    pub read_hits_partial: u64,
    /// Read requests answered wholly from the origin.
    pub read_misses: u64,
    /// Bytes of reads served from RAM.
    pub read_bytes_ram: u64,
    /// Bytes of reads served from a cache device.
    pub read_bytes_cache: u64,
    /// Bytes of reads served from the origin.
    pub read_bytes_origin: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes of write requests.
    pub write_bytes: u64,
    /// Bytes of writes accepted by the cache (dirty).
    pub write_bytes_cache: u64,
    /// Bytes of writes sent straight to the origin.
    pub write_bytes_origin: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// Discard and write-zeroes requests.
    pub discards: u64,
    /// Bytes of discard and write-zeroes requests.
    pub discard_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Blocks not cached, by [`Reason`].
    pub not_cached: [u64; REASONS.len()],
    /// Blocks in the cache.
    pub cached_blocks: u64,
    /// Dirty blocks among them.
    pub dirty_blocks: u64,
    /// Blocks sent home.
    pub writeback_blocks: u64,
    /// Writes to the origin that sent them.
    pub writeback_writes: u64,
    /// FLUSHes sent to the origin.
    pub origin_flushes: u64,
    /// Blocks whose checksum did not match when read from a cache device.
    pub bad_blocks: u64,
    /// Dirty blocks whose only good copy is lost.
    pub lost_blocks: u64,
    /// Read latency.
    pub read_latency: Histogram,
    /// Write latency.
    pub write_latency: Histogram,
    /// FLUSH latency.
    pub flush_latency: Histogram,
}

/// Counts of the pool.
#[derive(Debug, Clone, Default)]
pub struct PoolStats {
    /// Bytes written to cache devices for dirty data (payload).
    pub dirty_bytes: u64,
    /// Bytes written to cache devices for read fills and written-through data (payload).
    pub fill_bytes: u64,
    /// Bytes written to cache devices to move live blocks out of segments (payload).
    pub reinsert_bytes: u64,
    /// Bytes written to cache devices for record headers.
    pub header_bytes: u64,
    /// Bytes written to cache devices for checkpoints and superblocks.
    pub checkpoint_bytes: u64,
    /// Bytes written to cache devices to mirror dirty data.
    pub mirror_bytes: u64,
    /// Records written.
    pub records: u64,
    /// FLUSHes sent to cache devices.
    pub cache_flushes: u64,
    /// Bytes of freed segments that cache devices were told of.
    pub discarded_bytes: u64,
    /// Segments freed without reading or writing a block.
    pub segments_dropped: u64,
    /// Segments emptied by moving blocks.
    pub segments_cleaned: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Segments in all, free, and waiting to become free.
    pub segments: u64,
    /// Free segments.
    pub segments_free: u64,
    /// Blocks of the log that are free for dirty data.
    pub room_free_blocks: u64,
    /// Blocks that will be free when what is under way has ended.
    pub room_coming_blocks: u64,
    /// Blocks that a writer may count on: what is free, less what makes room.
    pub room_writable_blocks: u64,
    /// Slots in all.
    pub slots: u64,
    /// Blocks in the index.
    pub cached_blocks: u64,
    /// Blocks in the RAM tier.
    pub ram_blocks: u64,
    /// Blocks that fit the RAM tier.
    pub ram_blocks_max: u64,
    /// Bytes of the index in RAM.
    pub index_bytes: u64,
    /// Times that a write waited for space.
    pub write_stalls: u64,
    /// Reads of an origin that waited for a writeback slice to end.
    pub reads_held: u64,
    /// Times that such reads went on before the slice had ended, because it took too long.
    pub holds_cut: u64,
    /// Whether a cache device has failed.
    pub degraded: bool,
}
