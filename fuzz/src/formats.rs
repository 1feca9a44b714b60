//! Decoders of what lies on devices. The input is patches of a structure that is right, mostly with
//! its checksum put right afterwards.
//!
//! What is decoded is encoded and decoded to the same, from the first encoding on to the same
//! bytes; a decoder holds a small multiple of its input.

mod tier;

use crate::input::Input;
use forebay_format::superblock::{SUPERBLOCK_SIZE, Superblock};
use forebay_format::{BLOCK_SIZE, checkpoint, checksum, name, record};
use std::fmt::Debug;

const SUPERBLOCK: &[u8] = include_bytes!("../../crates/format/tests/golden/superblock.bin");
const RECORD: &[u8] = include_bytes!("../../crates/format/tests/golden/record-dirty.bin");
const CHECKPOINT: &[u8] = include_bytes!("../../crates/format/tests/golden/checkpoint.bin");
/// Of the golden images.
const POOL: u64 = 0x1122_3344_5566_7788;
const GENERATION: u64 = 33;
/// Blocks of the checkpoint at which chunks begin.
const CHUNKS: [u64; 6] = [0, 1, 3, 4, 5, 6];

/// Bytes that decoding may hold at once for each byte of input, and in any case.
const HELD_BYTES_PER_BYTE: u64 = 3;
const HELD_BYTES_FIXED: u64 = 4096;

/// Puts right the checksum at `field` over the first `used` bytes.
pub fn fix_checksum(bytes: &mut [u8], field: usize, used: usize) {
    bytes[field..field + 4].fill(0);
    let crc = checksum(&bytes[..used.min(bytes.len())]);
    bytes[field..field + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Puts right the checksum of a record's head.
pub fn fix_record(block: &mut [u8]) {
    let count = usize::from(u16::from_le_bytes([block[68], block[69]]));
    fix_checksum(block, 8, (96 + count * 24).min(BLOCK_SIZE));
}

/// Puts right the checksum of a chunk of a checkpoint.
pub fn fix_chunk(bytes: &mut [u8]) {
    let count = u32::from_le_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]) as usize;
    // Of items of each kind; another kind is refused before.
    let item_bytes = [24, 24, 20, 24, 65, 8, 8][usize::from(bytes[13]).min(6)];
    fix_checksum(bytes, 8, count.saturating_mul(item_bytes).saturating_add(48));
}

/// Writes over pieces of a structure, near its beginning more often than behind.
fn patch(input: &mut Input, bytes: &mut [u8]) {
    while !input.is_empty() {
        let reach = [64, 256, 1024, bytes.len()][input.below(4)].min(bytes.len());
        let at = input.below(reach);
        let len = 1 + input.below(16);
        let piece = input.bytes(len.min(bytes.len() - at));
        bytes[at..at + piece.len()].copy_from_slice(piece);
    }
}

fn measured<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> T) -> T {
    let mut result = None;
    let info = allocation_counter::measure(|| result = Some(decode(bytes)));
    let limit = HELD_BYTES_FIXED + HELD_BYTES_PER_BYTE * bytes.len() as u64;
    assert!(info.bytes_max <= limit, "held {} bytes of {limit}", info.bytes_max);
    result.expect("it ran")
}

/// `again` encodes what was decoded from `bytes`: it decodes to the same, and encodes to the same.
fn comes_back<T: Debug>(
    first: &T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Option<T>,
) {
    let bytes = encode(first);
    let second = decode(&bytes).expect("what was encoded is decoded");
    assert_eq!(encode(&second), bytes);
    let third = decode(&encode(&second)).expect("what was encoded is decoded");
    assert_eq!(format!("{second:?}"), format!("{third:?}"));
}

fn superblock(bytes: &[u8]) {
    let Ok(superblock) = measured(bytes, Superblock::decode) else { return };
    let layout = superblock.layout();
    let segments = u64::from(layout.segment_blocks) * BLOCK_SIZE as u64;
    let end = layout.segments_offset + u64::from(layout.segment_count) * segments;
    let own = usize::from(superblock.header.device_index.get());
    assert!(end <= superblock.header.devices[own].bytes.get());
    assert!(layout.checkpoint_offset(1) + layout.checkpoint_area_bytes <= layout.segments_offset);
    assert!(name::RawName(superblock.header.pool_name).checked().is_some());
    for volume in &superblock.volumes {
        assert!(name::RawName(volume.name).checked().is_some());
    }
    let encode = |superblock: &Superblock| {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        superblock.encode(&mut bytes);
        bytes
    };
    comes_back(&superblock, encode, |bytes| Superblock::decode(bytes).ok());
}

fn record(bytes: &[u8]) {
    let Ok(decoded) = measured(bytes, record::decode) else { return };
    let payload = decoded.1.iter().filter(|entry| entry.kind().has_payload()).count();
    assert_eq!(payload, usize::from(decoded.0.payload_blocks.get()));
    assert!(payload <= record::PAYLOAD_BLOCKS_MAX);
    let encode = |(header, entries): &(record::RecordHeader, Vec<record::Entry>)| {
        let mut block = vec![0; BLOCK_SIZE];
        record::encode(header, entries, &mut block);
        block
    };
    // Up to the last entry it is the same, byte for byte: the checksum covers no more.
    let used = 96 + decoded.1.len() * 24;
    assert_eq!(encode(&decoded)[..used], bytes[..used]);
    comes_back(&decoded, encode, |bytes| record::decode(bytes).ok());
}

fn chunk(bytes: &[u8], position: u64) {
    let decode = |bytes: &[u8]| checkpoint::decode(bytes, POOL, GENERATION, position);
    let Ok((chunk, blocks)) = measured(bytes, decode) else { return };
    assert!((1..=checkpoint::CHUNK_BLOCKS_MAX).contains(&blocks));
    assert!(blocks * BLOCK_SIZE <= bytes.len());
    let items = match &chunk {
        checkpoint::Chunk::Segments(items) => items.len(),
        checkpoint::Chunk::Blocks(items) => items.len(),
        checkpoint::Chunk::Volumes(items) => items.len(),
        checkpoint::Chunk::Buckets(_, items) => items.len(),
        checkpoint::Chunk::Masks(items) => items.len(),
        checkpoint::Chunk::Table(_) => 1,
    };
    assert!(items <= checkpoint::items_per_chunk::<checkpoint::TableItem>(blocks));
    let cut = checkpoint::decode(&bytes[..blocks * BLOCK_SIZE], POOL, GENERATION, position);
    assert_eq!(cut.ok(), Some((chunk, blocks)), "what lies behind it has no part in it");
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let kind = input.byte();
    let as_it_is = kind & 0x80 != 0;
    if kind & 0x40 != 0 {
        return tier::run(input, kind, as_it_is);
    }
    match kind & 3 {
        0 | 3 => {
            let mut bytes = SUPERBLOCK.to_vec();
            patch(input, &mut bytes);
            if !as_it_is {
                fix_checksum(&mut bytes, 12, SUPERBLOCK_SIZE);
            }
            superblock(&bytes);
        }
        1 => {
            let mut bytes = RECORD[..BLOCK_SIZE].to_vec();
            patch(input, &mut bytes);
            if !as_it_is {
                fix_record(&mut bytes);
            }
            record(&bytes);
        }
        _ => {
            let position = CHUNKS[input.below(CHUNKS.len())];
            let mut bytes = CHECKPOINT[position as usize * BLOCK_SIZE..].to_vec();
            patch(input, &mut bytes);
            if !as_it_is {
                fix_chunk(&mut bytes);
            }
            chunk(&bytes, position);
        }
    }
}
