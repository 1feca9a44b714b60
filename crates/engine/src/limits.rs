//! Every bound of the engine, in one place.

use forebay_format::BLOCK_SIZE;
use forebay_format::record::{ENTRIES_MAX, PAYLOAD_BLOCKS_MAX};

/// Blocks of one client request; larger ones are refused (front ends split).
pub const REQUEST_BLOCKS_MAX: u64 = 1024;
/// Entries after which a record is closed: room is kept for entries that come in groups.
pub const RECORD_ENTRIES: usize = ENTRIES_MAX - 8;
/// Age at which a record of fills is written although it is not full: each record costs a block of
/// the cache device, and nobody waits for fills.
pub const FILL_AGE_MAX_NS: u64 = 1_000_000_000;
/// Clean records under way from which on read misses are not put into the cache: hits would wait
/// behind them for a device that is slower than the origin is at that moment. 8 MiB at most.
pub const FILLS_UNDER_WAY_MAX: usize = 16;
/// Time over which the number of writes under way is averaged: a power of two, about 0.27 s.
pub const PACE_NS: u64 = 1 << 28;
/// Writes into the cache under way from which on a small record waits for more of them.
pub const GATHER_WRITES_MIN: u32 = 8;
/// A small record is sent when it holds one in so many of the writes under way.
pub const GATHER_SHARE: u32 = 4;
/// A small record is sent at the latest when it has waited this long.
pub const GATHER_NS_MAX: u64 = 500_000;
/// Times that a write to a cache device is tried before the device counts as failed.
pub const CACHE_WRITE_TRIES: u8 = 4;
/// Places in a row that a start could not read until it reads no more of that device.
pub const START_READS_FAILED_MAX: u32 = 64;
/// Times that a read from a cache device is tried before the block counts as unreadable.
pub const CACHE_READ_TRIES: u8 = 3;
/// FLUSHes of origins that may fail before a shutdown gives up.
pub const SHUTDOWN_FLUSHES_MAX: u64 = 8;
/// Time after which an origin that could not be flushed at the start is tried again.
pub const OFFLINE_RETRY_NS: u64 = 1_000_000_000;
/// Time after which a FLUSH of an origin that failed may be tried again.
pub const FLUSH_RETRY_NS: u64 = 20_000_000;
/// Times that a FLUSH of an origin is tried when a pool is opened.
pub const FLUSH_TRIES: u8 = 3;
/// Intervals that a sync point waits for its origin to rest, at most: or longer, `SYNC_REST` times
/// what a FLUSH takes.
pub const SYNC_INTERVALS_MAX: u64 = 12;
/// Times that a FLUSH of an origin took, for which a sync point waits under load that does not end.
pub const SYNC_REST: u64 = 64;
/// One unit in so many is left to moves of dirty blocks, beside one.
pub const MOVES_SHARE: usize = 128;

/// Blocks that moves leave at least of a unit that entries opened out of their reserve.
pub const LEFT_BY_MOVES_MIN: u32 = 4;
/// Entries that fill as much of the log as one block of data: what ends all that a pool can hold
/// dirty takes one block in so many.
pub const ENTRIES_PER_UNIT_SHARE: usize = 150;
/// Rounds of background work in one `settle`.
pub const SETTLE_ROUNDS_MAX: usize = 64;
/// Blocks that leave the index, or become clean, in one slice of what ends many.
pub const ENDS_MAX: usize = 128;
/// Blocks of a range that such a slice looks up at most.
pub const ENDS_LOOK_BLOCKS: u64 = 256;
/// Units that are looked at for one step.
pub const UNITS_PER_STEP: usize = 4;
/// Steps that a bucket of the index counts which is written to a checkpoint.
pub const WRITTEN_BUCKET_STEPS: usize = 5;
/// Steps that a bucket counts of which all entries are looked at.
pub const SEEN_BUCKET_STEPS: usize = 4;
/// Steps that a block counts which a checkpoint looks up because it was placed meanwhile.
pub const PLACED_STEPS: usize = 5;
/// Steps that a block counts which is looked up in the index and in RAM.
pub const LOOKED_UP_STEPS: usize = 4;
/// Places of the RAM tier that are looked at for one step.
pub const PLACES_PER_STEP: usize = 4;
/// Steps that a block counts which leaves its slot.
pub const BURY_STEPS: usize = 4;
/// Steps that a block counts which becomes clean.
pub const CLEAN_STEPS: usize = 8;
/// Steps of work after which a `settle` leaves the rest to the next.
pub const SETTLE_STEPS: u64 = 2048;
/// A device has failed when more than one segment in so many holds dirty blocks that cannot be
/// read.
pub const LOST_SEGMENTS_SHARE: u32 = 4;
/// What administrators are told of a device that failed for that reason.
pub const LOST_SEGMENTS: &str = "too much of it cannot be read";
/// Writes that wait because room is short and go on together: they share a record.
pub const WAVE_WRITES_MAX: usize = 32;
/// Blocks after which no more go on with them: others wait for the pause behind them.
pub const WAVE_BLOCKS_MAX: u64 = 256;
/// Blocks of a write that passes large ones, and waits for no window.
pub const SMALL_WRITE_BLOCKS_MAX: u64 = crate::window::SMALL_BYTES_MAX / BLOCK_SIZE as u64;
/// Longest pause between two waves.
pub const WAVE_NS_MAX: u64 = 100_000_000;
/// Time that a block of room is taken to need before any has come back.
pub const ROOM_BLOCK_NS: u64 = 100_000;
/// Time over which it is measured how fast room comes back.
pub const ROOM_WINDOW_NS: u64 = 100_000_000;
/// One in so many units has to be dead before they are emptied though nobody wants room.
pub const DEAD_SHARE: usize = 16;
/// And so many at least.
pub const DEAD_MIN: usize = 4;
/// A cache device that was told for some time what is free rests for so many times as long.
pub const DISCARD_REST: u64 = 3;
/// Time after which a write that finds no room, because an origin takes no dirty blocks, waits no
/// more.
pub const STALL_NS_MAX: u64 = 10_000_000_000;
/// Time after which a write around the cache that finds no room for a word in the log, because an
/// origin takes no dirty blocks, fails.
pub const ROOM_NS_MAX: u64 = 2 * STALL_NS_MAX;
/// Segments that reclaim works on at once.
pub const VICTIMS_MAX: usize = 4;
/// Blocks of a victim that one read asks for: a record fits.
pub const RECLAIM_READ_BLOCKS: u32 = 256;
/// Blocks of a victim that are read one by one at once.
pub const MOVES_IN_FLIGHT_MAX: usize = 32;
/// While clients are there, the rest after a unit was emptied so that its dirty blocks get their
/// second copy back is so many times as long as that took.
pub const HALVES_REST: u64 = 3;
/// Checkpoint chunks under way at once.
pub const CHECKPOINT_WRITES_MAX: usize = 4;
/// Time after which a note of distrust that could not be written is tried again; it doubles.
pub const DISTRUST_RETRY_NS: u64 = 100_000_000;
/// Longest time between two tries to write such a note.
pub const DISTRUST_RETRY_NS_MAX: u64 = 1_000_000_000;
/// Time after which writes that wait for it fail.
pub const DISTRUST_WAIT_NS_MAX: u64 = 5_000_000_000;
/// Blocks that one read from the devices asks for during recovery.
pub const RECOVERY_READ_BLOCKS: usize = 256;
/// Reads under way during recovery: most are of one block, and wait for the device.
pub const RECOVERY_READS_MAX: usize = 128;
/// Blocks that all reads under way during recovery ask for together.
pub const RECOVERY_BLOCKS_MAX: u64 = 32 * RECOVERY_READ_BLOCKS as u64;
/// Records that get their second copy back at once.
pub const REPAIRS_MAX: usize = 32;
/// Dirty blocks need not go home soon while at least one segment in so many is free.
pub const CROWDED_SHARE: usize = 2;
/// Dirty blocks that join a writeback slice at once.
pub const WRITEBACK_SELECT_BLOCKS: usize = 256;
/// Dirty blocks of a writeback slice that somebody waits for, at least, where so many take no
/// longer than two such slices should.
pub const WRITEBACK_SLICE_MIN: usize = 64;
/// Least blocks of such a slice, however long the origin takes for them.
pub const WRITEBACK_SLICE_LEAST: usize = 8;
/// How long such a slice should take, its FLUSH among it.
pub const WRITEBACK_SLICE_NS: u64 = 100_000_000;
/// Time after which an origin that ended nothing of a slice counts as one that hangs.
pub const ORIGIN_HANGS_NS: u64 = 2_000_000_000;
/// Longest time that reads of an origin wait for a writeback slice.
pub const HOLD_NS_MAX: u64 = 500_000_000;
/// What a block of a slice is taken to need before it was measured.
pub const WRITEBACK_BLOCK_NS: u64 = 5_000_000;
/// Blocks of one write home.
pub const WRITEBACK_RUN_BLOCKS: usize = 256;
/// Time after which what could not be written home is tried again; it doubles each time.
pub const WRITEBACK_RETRY_NS: u64 = 500_000_000;
/// Times that this wait doubles.
pub const WRITEBACK_RETRY_DOUBLINGS: u32 = 6;
/// At the latest after this time where somebody waits for it.
pub const WRITEBACK_WAITED_NS: u64 = 1_000_000_000;
/// Blocks that an origin is tried with that refused all.
pub const WRITEBACK_PROBE_BLOCKS: usize = 4;
/// Writes home that an origin refuses, one after the other, before it rests as a whole.
pub const REFUSED_IN_ROW_MAX: u32 = 16;
/// Blocks of a volume that wait each for itself because its origin refused them.
pub const QUARANTINE_BLOCKS_MAX: usize = 256;
/// Dirty blocks that one search for blocks to send home looks at.
pub const WRITEBACK_LOOK_BLOCKS: usize = 1024;
/// Bytes of unused buffers that are kept.
pub const BUFFERS_HELD_MAX: usize = 64 << 20;

const _: () = assert!(PAYLOAD_BLOCKS_MAX <= RECORD_ENTRIES);
const _: () = assert!(ENTRIES_PER_UNIT_SHARE <= RECORD_ENTRIES);
const _: () = assert!(RECLAIM_READ_BLOCKS as usize > PAYLOAD_BLOCKS_MAX);
const _: () = assert!(WRITEBACK_RUN_BLOCKS as u64 <= REQUEST_BLOCKS_MAX);
