//! Where the parts lie on one cache device.
//!
//! ```text
//! 0        64 KiB     128 KiB                                            device end
//! | super A | super B | checkpoint A | checkpoint B | segment 0 | segment 1 | … |
//! ```

use crate::{BLOCK_SIZE, FormatError};

/// Byte offsets of the two superblock copies: far enough apart not to share a flash page.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Where the checkpoint areas start.
pub const CHECKPOINT_OFFSET: u64 = 128 << 10;
/// Bytes reserved in a checkpoint area for each slot of the pool (an item is 20 bytes, plus chunk
/// headers).
const CHECKPOINT_BYTES_PER_SLOT: u64 = 21;
/// Bytes reserved in a checkpoint area for each segment of the pool.
const CHECKPOINT_BYTES_PER_SEGMENT: u64 = 32;
/// Room for chunk headers, volumes and marked regions.
const CHECKPOINT_BYTES_FIXED: u64 = 512 << 10;
/// Fewest segments that a device must hold: two write points, a reserve and something to cache in.
pub const SEGMENTS_MIN: u32 = 8;
/// Most segments of a pool: as many of the largest that suit a size as 16 TiB hold. It bounds what
/// a superblock makes its reader keep in memory.
pub const SEGMENTS_MAX: u32 = 1 << 18;

/// Where the parts of one cache device lie. All offsets and sizes are in bytes unless named
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of one of the two checkpoint areas.
    pub checkpoint_area_bytes: u64,
    /// First byte of the first segment.
    pub segments_offset: u64,
    /// Blocks of one segment.
    pub segment_blocks: u32,
    /// Segments on this device.
    pub segment_count: u32,
}

impl Layout {
    /// Plans a device of `device_bytes` in a pool whose devices hold `pool_bytes` together.
    ///
    /// # Errors
    /// [`FormatError::TooSmall`] if fewer than [`SEGMENTS_MIN`] segments fit.
    pub fn plan(
        device_bytes: u64,
        pool_bytes: u64,
        segment_blocks: u32,
    ) -> Result<Layout, FormatError> {
        let segment_bytes = u64::from(segment_blocks) * BLOCK_SIZE as u64;
        let pool_slots = pool_bytes / BLOCK_SIZE as u64;
        let area = pool_slots * CHECKPOINT_BYTES_PER_SLOT
            + pool_bytes / segment_bytes * CHECKPOINT_BYTES_PER_SEGMENT
            + CHECKPOINT_BYTES_FIXED;
        let area = area.next_multiple_of(BLOCK_SIZE as u64);
        let segments_offset = (CHECKPOINT_OFFSET + 2 * area).next_multiple_of(segment_bytes);
        let room = device_bytes.saturating_sub(segments_offset);
        let segment_count = u32::try_from(room / segment_bytes).unwrap_or(u32::MAX - 1);
        if segment_count < SEGMENTS_MIN {
            return Err(FormatError::TooSmall {
                needed: segments_offset + u64::from(SEGMENTS_MIN) * segment_bytes,
                have: device_bytes,
            });
        }
        Ok(Layout { checkpoint_area_bytes: area, segments_offset, segment_blocks, segment_count })
    }

    /// First byte of checkpoint area `which` (0 or 1).
    pub fn checkpoint_offset(&self, which: usize) -> u64 {
        assert!(which < 2);
        CHECKPOINT_OFFSET + which as u64 * self.checkpoint_area_bytes
    }

    /// Segment size that suits a pool of `pool_bytes`: a few thousand segments, of 1 to 64 MiB.
    pub fn segment_blocks_for(pool_bytes: u64) -> u32 {
        let wanted = (pool_bytes / 2048).clamp(1 << 20, 64 << 20);
        (wanted.next_power_of_two().min(64 << 20) / BLOCK_SIZE as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{
        BUCKET_WAYS, BlockItem, BucketItem, CHUNK_BLOCKS_MAX, SegmentItem, items_per_chunk,
    };

    /// Blocks that a checkpoint takes that holds every slot and every segment of the pool, and
    /// every fourth slot a second time because its key was placed meanwhile.
    fn full_checkpoint_blocks(layout: &Layout) -> u64 {
        let slots = u64::from(layout.segment_count) * u64::from(layout.segment_blocks);
        let chunks = |items: u64, per_chunk: usize| {
            items.div_ceil(per_chunk as u64) * CHUNK_BLOCKS_MAX as u64
        };
        let buckets = slots.div_ceil(BUCKET_WAYS as u64) * 100 / 97;
        chunks(buckets, items_per_chunk::<BucketItem>(CHUNK_BLOCKS_MAX))
            + chunks(slots / 4, items_per_chunk::<BlockItem>(CHUNK_BLOCKS_MAX))
            + chunks(layout.segment_count.into(), items_per_chunk::<SegmentItem>(CHUNK_BLOCKS_MAX))
    }

    #[test]
    fn a_full_index_fits_a_checkpoint_area() {
        for shift in 24..44 {
            let bytes = 1_u64 << shift;
            let layout = Layout::plan(bytes, bytes, Layout::segment_blocks_for(bytes)).unwrap();
            let area_blocks = layout.checkpoint_area_bytes / BLOCK_SIZE as u64;
            let used = full_checkpoint_blocks(&layout);
            assert!(used + 16 <= area_blocks, "{used} of {area_blocks} blocks at {bytes} bytes");
            let end = layout.segments_offset
                + u64::from(layout.segment_count) * u64::from(layout.segment_blocks) * 4096;
            assert!(end <= bytes);
            assert!(
                layout.checkpoint_offset(1) + layout.checkpoint_area_bytes
                    <= layout.segments_offset
            );
        }
    }

    #[test]
    fn segments_are_one_to_64_mib_and_a_few_thousand() {
        assert_eq!(Layout::segment_blocks_for(0), 256);
        assert_eq!(Layout::segment_blocks_for(4 << 30), 512);
        assert_eq!(Layout::segment_blocks_for(1 << 40), 16384);
        assert_eq!(Layout::segment_blocks_for(u64::MAX), 16384);
    }
}
