//! `cargo xtask golden`: writes the golden images that `crates/format/tests/golden.rs` and
//! `tiers.rs` beside it read.
//!
//! The images are checked in. When the format changes on purpose, run this, review the difference,
//! change the test's values by hand (it does not share code with this file) and add a line to the
//! version history in `docs/format.md`.

mod tier;

use anyhow::{Context, Result};
use forebay_format::checkpoint::{
    self, BlockItem, BucketItem, ChunkHeader, ChunkKind, MaskItem, SegmentItem, TableItem,
    VolumeItem,
};
use forebay_format::record::{self, Entry, EntryKind, RecordClass, RecordHeader};
use forebay_format::superblock::{
    DeviceEntry, SUPERBLOCK_SIZE, Superblock, VolumeEntry, text_field,
};
use forebay_format::{Address, BLOCK_SIZE, FORMAT_VERSION, MASK_FULL, checksum};
use std::path::Path;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

/// Writes all images into `directory`.
///
/// # Errors
/// Says which file could not be written.
pub fn write(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let save = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    };
    let good = encoded(&superblock());
    save("superblock.bin", &good)?;
    save("superblock-torn.bin", &torn(&good, BLOCK_SIZE + 512))?;
    save("superblock-ro-compat.bin", &featured(|sb| sb.header.features_ro_compat = U64::new(4)))?;
    save("superblock-incompat.bin", &featured(|sb| sb.header.features_incompat = U64::new(8)))?;
    save("superblock-version.bin", &version(good.clone(), FORMAT_VERSION + 1))?;
    save("superblock-too-old.bin", &version(good, 1))?;
    let dirty = dirty_record();
    save("record-dirty.bin", &dirty)?;
    save("record-torn-header.bin", &torn(&dirty, 100))?;
    save("record-torn-payload.bin", &torn(&dirty, BLOCK_SIZE + 512))?;
    save("record-clean.bin", &clean_record())?;
    let chunks = checkpoint_chunks();
    save("checkpoint.bin", &chunks)?;
    save("checkpoint-torn.bin", &torn(&chunks, BLOCK_SIZE + 32))?;
    tier::images().iter().try_for_each(|(name, bytes)| save(name, bytes))
}

/// What a write leaves that only reached `kept` bytes of a device full of 0xff.
fn torn(bytes: &[u8], kept: usize) -> Vec<u8> {
    let mut torn = bytes.to_vec();
    torn[kept..].fill(0xff);
    torn
}

fn encoded(superblock: &Superblock) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    superblock.encode(&mut bytes);
    bytes
}

fn featured(change: impl FnOnce(&mut Superblock)) -> Vec<u8> {
    let mut superblock = superblock();
    change(&mut superblock);
    encoded(&superblock)
}

/// The image as if another version had written it, with a valid checksum.
fn version(mut bytes: Vec<u8>, version: u32) -> Vec<u8> {
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[12..16].fill(0);
    let crc = checksum(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A number of three bytes.
const BIG: u32 = 0x0008_0706;

fn volume(id: u32, mode: u8, bytes: u64, name: &str, origin: &str) -> VolumeEntry {
    VolumeEntry {
        id: U32::new(id),
        used: 1,
        mode,
        reserved: [0; 2],
        bytes: U64::new(bytes),
        uuid: [0x10 + id as u8; 16],
        name: text_field(name),
        fingerprint: [0x20 + id as u8; 32],
        origin: text_field(origin),
    }
}

fn superblock() -> Superblock {
    let mut superblock = Superblock::empty();
    let header = &mut superblock.header;
    header.features_compat = U64::new(1 << 40);
    header.pool_uuid = *b"pool-uuid-16byte";
    header.pool_name = text_field("goldpool");
    header.generation = U64::new(0x0102_0304_0506_0708);
    header.epoch = U64::new(17);
    header.device_index = U16::new(1);
    header.device_count = U16::new(2);
    header.volume_id_next = U32::new(0x0009_0a0b);
    header.segment_blocks = U32::new(256);
    header.clean = 1;
    header.checkpoint_area = 1;
    header.checkpoint_area_bytes = U64::new(896 << 10);
    header.segments_offset = U64::new(2 << 20);
    header.checkpoint_generation = U64::new(33);
    header.checkpoint_blocks = U64::new(7);
    header.checkpoint_seq = U64::new(1001);
    header.checkpoint_dseq = U64::new(901);
    header.checkpoint_epoch = U64::new(16);
    header.previous_generation = U64::new(32);
    header.previous_blocks = U64::new(6);
    header.previous_seq = U64::new(1000);
    header.previous_dseq = U64::new(900);
    header.previous_epoch = U64::new(15);
    header.checkpoint_index_blocks = U64::new(5);
    header.previous_index_blocks = U64::new(4);
    let device = |uuid, count, mib: u64| DeviceEntry {
        uuid,
        away: U32::new(0),
        segment_count: U32::new(count),
        bytes: U64::new(mib << 20),
    };
    header.devices[0] = device([0xa1; 16], 30, 32);
    header.devices[1] = device([0xa2; 16], 62, 64);
    superblock.volumes = vec![
        volume(3, 1, 10 << 30, "mail", "/dev/disk/by-id/ata-OLD-1"),
        volume(BIG, 4, (1 << 40) + 512, "big@2", "nbd://store/big"),
    ];
    superblock
}

fn record_header(class: RecordClass) -> RecordHeader {
    let mut header = RecordHeader::new_zeroed();
    header.class = class as u8;
    header.pool = U64::new(0x1122_3344_5566_7788);
    header.epoch = U64::new(17);
    header.durable_dseq = U64::new(1499);
    header.offset = U32::new(130);
    header
}

fn payload(seed: u8) -> Vec<u8> {
    (0..BLOCK_SIZE).map(|at| (at / 16) as u8 ^ (at as u8).wrapping_mul(seed)).collect()
}

fn block_entry(kind: EntryKind, volume: u32, block: u64, mask: u8, payload: &[u8]) -> Entry {
    Entry { mask, crc: U32::new(checksum(payload)), ..Entry::plain(kind, volume, block, 0) }
}

fn dirty_record() -> Vec<u8> {
    let (first, second, void) = (payload(3), payload(5), payload(9));
    let mut header = record_header(RecordClass::Dirty);
    header.seq = U64::new(2002);
    header.dseq = U64::new(1502);
    header.durable_seq = U64::new(1996);
    header.segment = U32::new(4);
    header.segment_generation = U32::new(71);
    let entries = [
        block_entry(EntryKind::Dirty, 3, 0x0081_0203_0405, 0b0001_1000, &first),
        block_entry(EntryKind::Clean, BIG, 77, MASK_FULL, &second),
        Entry::plain(EntryKind::Tombstone, 3, 100, 4096),
        Entry::plain(EntryKind::MarkClean, 3, 101, 1034),
        Entry::plain(EntryKind::SegmentFree, 0, 12, 69),
        Entry::plain(EntryKind::Intent, BIG, 256, 64),
        Entry::plain(EntryKind::SyncPoint, BIG, 0, 1480),
        Entry::plain(EntryKind::CleanDrop, BIG, 0, 0),
        Entry::plain(EntryKind::VolumeDrop, 7, 0, 0),
        Entry::plain(EntryKind::Void, 3, 5, 0),
    ];
    let mut bytes = vec![0; BLOCK_SIZE];
    record::encode(&header, &entries, &mut bytes);
    [bytes, first, second, void].concat()
}

fn clean_record() -> Vec<u8> {
    let data = payload(7);
    let mut header = record_header(RecordClass::Clean);
    header.seq = U64::new(2001);
    header.dseq = U64::new(1501);
    header.segment = U32::new(7);
    header.segment_generation = U32::new(70);
    let entries = [block_entry(EntryKind::Clean, 3, 42, MASK_FULL, &data)];
    let mut bytes = vec![0; BLOCK_SIZE];
    record::encode(&header, &entries, &mut bytes);
    [bytes, data].concat()
}

fn checkpoint_chunks() -> Vec<u8> {
    let header = |kind: ChunkKind, position: u64| {
        let mut header = ChunkHeader::new_zeroed();
        header.kind = kind as u8;
        header.pool = U64::new(0x1122_3344_5566_7788);
        header.generation = U64::new(33);
        header.position = U64::new(position);
        header
    };
    let segment = |segment, generation, last_seq, flags| SegmentItem {
        last_seq: U64::new(last_seq),
        segment: U32::new(segment),
        generation: U32::new(generation),
        reserved: U32::new(0),
        flags: U32::new(flags),
    };
    let block = |volume, block, slot, crc, flags, mask| BlockItem {
        address: Address::new(volume, block),
        slot: U32::new(slot),
        crc: U32::new(crc),
        flags,
        mask,
        reserved: U16::new(0),
    };
    let volume = |volume, kind, value, aux, blocks| VolumeItem {
        address: Address::new(volume, value),
        aux: U64::new(aux),
        blocks: U32::new(blocks),
        kind,
        reserved: [0; 3],
    };
    let mut bytes = vec![0; 7 * BLOCK_SIZE];
    let (bytes_before, table) = bytes.split_at_mut(4 * BLOCK_SIZE);
    let (segments, rest) = bytes_before.split_at_mut(BLOCK_SIZE);
    let (blocks, volumes) = rest.split_at_mut(2 * BLOCK_SIZE);
    let items = [segment(4, 71, 2002, 1 | 4), segment(6, 70, 2001, 4 | 8), segment(60, 2, 90, 2)];
    checkpoint::encode(&header(ChunkKind::Segments, 0), &items, segments);
    let items = [
        block(3, 0x0081_0203_0405, 1155, 0xdead_beef, checkpoint::FLAG_DIRTY, 0x18),
        block(3, 9, checkpoint::SLOT_NONE, 0, 0, 0xff),
        block(BIG, 77, 1156, 0x1234_5678, 0, MASK_FULL),
    ];
    checkpoint::encode(&header(ChunkKind::Blocks, 1), &items, blocks);
    let items = [volume(BIG, 0, 256, 1490, 64), volume(BIG, 1, 4096, 512, 0)];
    checkpoint::encode(&header(ChunkKind::Volumes, 3), &items, volumes);
    index_chunks(&header, table);
    bytes
}

/// A table's shape, two of its buckets and a mask.
fn index_chunks(header: &dyn Fn(ChunkKind, u64) -> ChunkHeader, bytes: &mut [u8]) {
    let (table, rest) = bytes.split_at_mut(BLOCK_SIZE);
    let (buckets, masks) = rest.split_at_mut(BLOCK_SIZE);
    let item =
        TableItem { buckets: U32::new(1000), slot_bits: 12, key_bits: 37, reserved: U16::new(0) };
    checkpoint::encode(&header(ChunkKind::Table, 4), &[item], table);
    let bucket = |n: u32| BucketItem {
        crc: std::array::from_fn(|way| U32::new(n << 8 | way as u32)),
        low: std::array::from_fn(|way| U32::new(n << 16 | way as u32)),
        high: U64::new(u64::from(n) << 60),
        dirty: n as u8,
    };
    let mut head = header(ChunkKind::Buckets, 5);
    head.first = U32::new(998);
    checkpoint::encode(&head, &[bucket(5), bucket(6)], buckets);
    let item = MaskItem { slot: U32::new(1155), mask: 0x18, reserved: [0; 3] };
    checkpoint::encode(&header(ChunkKind::Masks, 6), &[item], masks);
}
