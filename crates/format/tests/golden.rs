//! Golden images: what version 4 of the format looks like on a device, field by field. The values
//! here are written by hand and share no code with `cargo xtask golden`, which wrote the images.

use forebay_format::checkpoint::{self, Chunk};
use forebay_format::record::{self, EntryKind};
use forebay_format::superblock::{Superblock, field_text};
use forebay_format::{Address, BLOCK_SIZE, FormatError, Pairing, checksum};
use std::path::Path;

const POOL: u64 = 0x1122_3344_5566_7788;

fn image(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The number of the second volume: it takes three bytes.
const BIG: u32 = 0x0008_0706;

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn superblock_header_fields() {
    let superblock = Superblock::decode(&image("superblock.bin")).unwrap();
    let header = &superblock.header;
    assert_eq!(&header.magic, b"Forebay1");
    assert_eq!(header.version.get(), 5);
    assert_eq!(header.features_compat.get(), 1 << 40);
    assert_eq!(header.features_ro_compat.get(), 0);
    assert_eq!(header.features_incompat.get(), 0);
    assert_eq!(&header.pool_uuid, b"pool-uuid-16byte");
    assert_eq!(field_text(&header.pool_name), "goldpool");
    assert_eq!(header.generation.get(), 0x0102_0304_0506_0708);
    assert_eq!(header.epoch.get(), 17);
    assert_eq!(header.device_index.get(), 1);
    assert_eq!(header.device_count.get(), 2);
    assert_eq!(header.shard_count.get(), 1);
    assert_eq!(header.volume_id_next.get(), 0x0009_0a0b);
    assert_eq!(header.segment_blocks.get(), 256);
    assert_eq!(header.clean, 1);
    assert_eq!(header.checkpoint_area, 1);
    assert_eq!(header.checkpoint_area_bytes.get(), 917_504);
    assert_eq!(header.segments_offset.get(), 2 << 20);
    assert_eq!(header.checkpoint_generation.get(), 33);
    assert_eq!(header.checkpoint_blocks.get(), 7);
    assert_eq!(header.checkpoint_seq.get(), 1001);
    assert_eq!(header.checkpoint_dseq.get(), 901);
    assert_eq!(header.checkpoint_epoch.get(), 16);
    assert_eq!(header.previous_generation.get(), 32);
    assert_eq!(header.previous_blocks.get(), 6);
    assert_eq!(header.previous_seq.get(), 1000);
    assert_eq!(header.previous_dseq.get(), 900);
    assert_eq!(header.previous_epoch.get(), 15);
    assert_eq!(header.checkpoint_index_blocks.get(), 5);
    assert_eq!(header.previous_index_blocks.get(), 4);
    assert!(header.reserved_tail.iter().all(|&byte| byte == 0));
    assert!(superblock.writable().is_ok());
}

#[test]
fn superblock_devices_and_layout() {
    let superblock = Superblock::decode(&image("superblock.bin")).unwrap();
    let devices = &superblock.header.devices;
    assert_eq!(devices[0].uuid, [0xa1; 16]);
    assert_eq!(devices[0].away.get(), 0);
    assert_eq!(devices[0].segment_count.get(), 30);
    assert_eq!(devices[0].bytes.get(), 32 << 20);
    assert_eq!(devices[1].uuid, [0xa2; 16]);
    assert_eq!(devices[1].away.get(), 0);
    assert_eq!(devices[1].segment_count.get(), 62);
    assert_eq!(devices[1].bytes.get(), 64 << 20);
    assert!(devices[2..].iter().all(|device| device.bytes.get() == 0));
    let layout = superblock.layout();
    assert_eq!(layout.segment_count, 62);
    assert_eq!(layout.checkpoint_offset(0), 128 << 10);
    assert_eq!(layout.checkpoint_offset(1), 1 << 20);
    assert_eq!(layout.segments_offset, 2 << 20);
}

/// Where each segment lies, in the order of their numbers: device, and which of its segments.
fn places(pairing: &Pairing) -> Vec<(u8, u32)> {
    (0..pairing.segments()).map(|segment| pairing.place(segment)).collect()
}

/// Where a segment lies follows from the counts alone: a table that changed would look for the data
/// of every pool in the wrong place.
#[test]
fn pairing_of_equal_and_unequal_devices() {
    assert_eq!(places(&Pairing::new(&[3])), [(0, 0), (0, 1), (0, 2)]);
    let equal = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)];
    assert_eq!(places(&Pairing::new(&[3, 3])), equal);
    let larger = [(1, 0), (0, 0), (1, 1), (0, 1), (1, 2), (1, 3)];
    assert_eq!(places(&Pairing::new(&[2, 4])), larger);
    let larger = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3)];
    assert_eq!(places(&Pairing::new(&[4, 2])), larger);
    let three = [
        [(0, 0), (1, 0)],
        [(2, 0), (0, 1)],
        [(1, 1), (2, 1)],
        [(0, 2), (1, 2)],
        [(2, 2), (0, 3)],
        [(1, 3), (2, 3)],
    ];
    assert_eq!(places(&Pairing::new(&[4, 4, 4])), three.concat());
    let uneven =
        [[(2, 0), (1, 0)], [(2, 1), (0, 0)], [(2, 2), (1, 1)], [(2, 3), (0, 1)], [(1, 2), (2, 4)]];
    assert_eq!(places(&Pairing::new(&[2, 3, 5])), uneven.concat());
    // One that cannot be paired is left over.
    let odd = [(0, 0), (1, 0), (2, 0)];
    assert_eq!(places(&Pairing::new(&[1, 1, 1])), odd);
}

#[test]
fn superblock_pairing() {
    let superblock = Superblock::decode(&image("superblock.bin")).unwrap();
    let pairing = Pairing::of(&superblock.header);
    assert_eq!((pairing.segments(), pairing.pairs()), (92, 30));
    assert_eq!([0, 1, 2, 3].map(|it| pairing.place(it)), [(1, 0), (0, 0), (1, 1), (0, 1)]);
    assert_eq!([58, 59].map(|it| pairing.place(it)), [(1, 29), (0, 29)]);
    assert_eq!([60, 91].map(|it| pairing.place(it)), [(1, 30), (1, 61)]);
    assert_eq!([0, 1, 58, 59].map(|it| pairing.partner(it)), [1, 0, 59, 58].map(Some));
    assert_eq!([60, 61, 91].map(|it| pairing.partner(it)), [None; 3]);
}

#[test]
fn superblock_volumes() {
    let superblock = Superblock::decode(&image("superblock.bin")).unwrap();
    let [mail, big] = superblock.volumes.as_slice() else { panic!("two volumes") };
    assert_eq!((mail.id.get(), mail.used, mail.mode), (3, 1, 1));
    assert_eq!(mail.bytes.get(), 10 << 30);
    assert_eq!(mail.uuid, [0x13; 16]);
    assert_eq!(field_text(&mail.name), "mail");
    assert_eq!(mail.fingerprint, [0x23; 32]);
    assert_eq!(field_text(&mail.origin), "/dev/disk/by-id/ata-OLD-1");
    assert_eq!((big.id.get(), big.used, big.mode), (BIG, 1, 4));
    assert_eq!(big.bytes.get(), (1 << 40) + 512);
    assert_eq!(big.uuid, [0x16; 16]);
    assert_eq!(field_text(&big.name), "big@2");
    assert_eq!(big.fingerprint, [0x26; 32]);
    assert_eq!(field_text(&big.origin), "nbd://store/big");
}

/// The same image read without the crate's types: a wrong offset in the types cannot hide.
#[test]
fn superblock_raw_offsets() {
    let bytes = image("superblock.bin");
    assert_eq!(bytes.len(), 32 << 10);
    assert_eq!(&bytes[..8], b"Forebay1");
    assert_eq!(le32(&bytes, 8), 5);
    let mut without = bytes.clone();
    without[12..16].fill(0);
    assert_eq!(le32(&bytes, 12), checksum(&without));
    assert_eq!(le64(&bytes, 16), 1 << 40);
    assert_eq!(&bytes[40..56], b"pool-uuid-16byte");
    assert_eq!(&bytes[56..64], b"goldpool");
    assert_eq!(le64(&bytes, 120), 0x0102_0304_0506_0708);
    assert_eq!(le64(&bytes, 128), 17);
    assert_eq!(le16(&bytes, 136), 1);
    assert_eq!(le16(&bytes, 138), 2);
    assert_eq!(le32(&bytes, 140), 0x0009_0a0b);
    assert_eq!(le32(&bytes, 144), 256);
    assert_eq!(bytes[148], 1);
    assert_eq!(bytes[149], 1);
    assert_eq!(le16(&bytes, 150), 1);
    assert_eq!(le64(&bytes, 160), 2 << 20);
    assert_eq!(le64(&bytes, 168), 33);
    assert_eq!(le64(&bytes, 240), 15);
    assert_eq!(bytes[248..264], [0xa1; 16]);
    assert_eq!(le32(&bytes, 248 + 20), 30);
    assert_eq!(bytes[248 + 32..248 + 48], [0xa2; 16]);
    assert_eq!(le32(&bytes, 248 + 32 + 16), 0);
    assert_eq!(le32(&bytes, 248 + 32 + 20), 62);
    assert_eq!(le64(&bytes, 248 + 32 + 24), 64 << 20);
    assert_eq!(le32(&bytes, 4096), 3);
    assert_eq!(bytes[4096 + 4..4096 + 8], [1, 1, 0, 0]);
    assert_eq!(le32(&bytes, 4096 + 256), BIG);
    assert_eq!(&bytes[4096 + 32..4096 + 36], b"mail");
}

#[test]
fn superblock_damaged_and_newer() {
    let error = |name| Superblock::decode(&image(name)).unwrap_err();
    assert_eq!(error("superblock-torn.bin"), FormatError::Damaged { what: "superblock" });
    let newer = error("superblock-incompat.bin");
    assert_eq!(newer, FormatError::TooNew { what: "superblock", missing: 8 });
    assert!(newer.to_string().contains("use a newer Forebay"), "{newer}");
    let newer = error("superblock-version.bin");
    assert_eq!(newer, FormatError::TooNewVersion { what: "superblock", version: 6 });
    assert!(newer.to_string().contains("use a newer Forebay"), "{newer}");
}

#[test]
fn superblock_of_a_version_that_was_never_released() {
    let older = Superblock::decode(&image("superblock-too-old.bin")).unwrap_err();
    assert_eq!(older, FormatError::TooOld { what: "superblock", version: 1 });
    assert!(older.to_string().contains("make the pool anew"), "{older}");
    assert!(older.to_string().contains("dirty data that it holds needs that build"), "{older}");
}

#[test]
fn superblock_read_only_compatible() {
    let superblock = Superblock::decode(&image("superblock-ro-compat.bin")).unwrap();
    assert_eq!(superblock.volumes.len(), 2);
    let error = superblock.writable().unwrap_err();
    assert_eq!(error, FormatError::ReadOnly { what: "superblock", missing: 4 });
    assert!(error.to_string().contains("open it read-only"), "{error}");
}

#[test]
fn dirty_record_header() {
    let bytes = image("record-dirty.bin");
    let (header, _) = record::decode(&bytes[..BLOCK_SIZE]).unwrap();
    assert_eq!(&header.magic, b"FbRecord");
    assert_eq!(header.version.get(), 5);
    assert_eq!((header.class, header.flags), (1, 0));
    assert_eq!(header.pool.get(), POOL);
    assert_eq!(header.epoch.get(), 17);
    assert_eq!(header.seq.get(), 2002);
    assert_eq!(header.dseq.get(), 1502);
    assert_eq!(header.durable_dseq.get(), 1499);
    assert_eq!(header.segment.get(), 4);
    assert_eq!(header.segment_generation.get(), 71);
    assert_eq!(header.offset.get(), 130);
    assert_eq!(header.entry_count.get(), 10);
    assert_eq!(header.payload_blocks.get(), 3);
    assert_eq!(header.durable_seq.get(), 1996);
    assert_eq!(header.reserved, [0; 16]);
}

#[test]
fn dirty_record_entries() {
    let bytes = image("record-dirty.bin");
    let (_, entries) = record::decode(&bytes[..BLOCK_SIZE]).unwrap();
    let plain: Vec<_> = entries
        .iter()
        .map(|entry| (entry.kind(), entry.address.volume(), entry.address.block(), entry.aux.get()))
        .collect();
    assert_eq!(
        plain,
        [
            (EntryKind::Dirty, 3, 0x0081_0203_0405, 0),
            (EntryKind::Clean, BIG, 77, 0),
            (EntryKind::Tombstone, 3, 100, 4096),
            (EntryKind::MarkClean, 3, 101, 1034),
            (EntryKind::SegmentFree, 0, 12, 69),
            (EntryKind::Intent, BIG, 256, 64),
            (EntryKind::SyncPoint, BIG, 0, 1480),
            (EntryKind::CleanDrop, BIG, 0, 0),
            (EntryKind::VolumeDrop, 7, 0, 0),
            (EntryKind::Void, 3, 5, 0),
        ]
    );
    let masks: Vec<u8> = entries.iter().map(|entry| entry.mask).collect();
    assert_eq!(masks, [0x18, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(entries[0].crc.get(), checksum(&bytes[BLOCK_SIZE..2 * BLOCK_SIZE]));
    assert_eq!(entries[1].crc.get(), checksum(&bytes[2 * BLOCK_SIZE..3 * BLOCK_SIZE]));
    assert!(entries[2..].iter().all(|entry| entry.crc.get() == 0));
}

/// The same image read without the crate's types.
#[test]
fn dirty_record_raw_offsets() {
    let bytes = image("record-dirty.bin");
    assert_eq!(bytes.len(), 4 * 4096);
    assert_eq!(&bytes[..8], b"FbRecord");
    let used = 96 + 10 * 24;
    let mut without = bytes[..used].to_vec();
    without[8..12].fill(0);
    assert_eq!(le32(&bytes, 8), checksum(&without));
    assert_eq!(le16(&bytes, 12), 5);
    assert_eq!(bytes[14], 1);
    assert_eq!(le64(&bytes, 16), POOL);
    assert_eq!(le64(&bytes, 32), 2002);
    assert_eq!(le32(&bytes, 56), 4);
    assert_eq!(le32(&bytes, 60), 71);
    assert_eq!(le32(&bytes, 64), 130);
    assert_eq!(le16(&bytes, 68), 10);
    assert_eq!(le16(&bytes, 70), 3);
    assert_eq!(le64(&bytes, 72), 1996);
    assert_eq!(bytes[80..96], [0; 16]);
    assert_eq!(le64(&bytes, 96), 0x0000_0381_0203_0405);
    assert_eq!(le64(&bytes, 96 + 24), 0x0807_0600_0000_004d);
    assert_eq!(bytes[96 + 22], 1);
    assert_eq!(bytes[96 + 23], 0x18);
    let kinds: Vec<u8> = (0..10).map(|n| bytes[96 + n * 24 + 22]).collect();
    assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert!(bytes[used..4096].iter().all(|&byte| byte == 0));
}

#[test]
fn clean_record() {
    let bytes = image("record-clean.bin");
    let (header, entries) = record::decode(&bytes[..BLOCK_SIZE]).unwrap();
    assert_eq!(header.class, 2);
    assert_eq!((header.segment.get(), header.segment_generation.get()), (7, 70));
    assert_eq!((header.seq.get(), header.dseq.get()), (2001, 1501));
    assert_eq!(header.durable_seq.get(), 0);
    let [entry] = entries.as_slice() else { panic!("one entry") };
    assert_eq!(
        (entry.kind(), entry.address.volume(), entry.address.block()),
        (EntryKind::Clean, 3, 42)
    );
    assert_eq!(entry.mask, 0xff);
    assert_eq!(entry.crc.get(), checksum(&bytes[BLOCK_SIZE..]));
}

#[test]
fn records_and_chunks_of_another_version() {
    let invalid = |what| FormatError::Invalid { what, field: "version" };
    // The byte that holds the version, and the bytes that the checksum covers.
    let changed = |name: &str, at: usize, used: usize, version: u8| {
        let mut bytes = image(name);
        bytes[at] = version;
        bytes[8..12].fill(0);
        let crc = checksum(&bytes[..used]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let of_record = |version| {
        let bytes = changed("record-dirty.bin", 12, 96 + 10 * 24, version);
        record::decode(&bytes[..BLOCK_SIZE]).map(|_| ())
    };
    assert_eq!([4, 6].map(of_record), [Err(invalid("record")), Err(invalid("record"))]);
    assert_eq!(of_record(5), Ok(()));
    let of_chunk = |version| {
        let bytes = changed("checkpoint.bin", 15, 48 + 3 * 24, version);
        checkpoint::decode(&bytes, POOL, 33, 0).map(|_| ())
    };
    assert_eq!([4, 6].map(of_chunk), [Err(invalid("checkpoint")), Err(invalid("checkpoint"))]);
    assert_eq!(of_chunk(5), Ok(()));
}

#[test]
fn torn_records_are_recognised() {
    let torn = image("record-torn-header.bin");
    let error = record::decode(&torn[..BLOCK_SIZE]).unwrap_err();
    assert_eq!(error, FormatError::Damaged { what: "record" });
    let torn = image("record-torn-payload.bin");
    let (_, entries) = record::decode(&torn[..BLOCK_SIZE]).unwrap();
    assert_ne!(entries[0].crc.get(), checksum(&torn[BLOCK_SIZE..2 * BLOCK_SIZE]));
    assert_ne!(entries[1].crc.get(), checksum(&torn[2 * BLOCK_SIZE..3 * BLOCK_SIZE]));
}

#[test]
fn checkpoint_chunks() {
    let bytes = image("checkpoint.bin");
    let (chunk, blocks) = checkpoint::decode(&bytes, POOL, 33, 0).unwrap();
    let Chunk::Segments(items) = chunk else { panic!("segments first") };
    assert_eq!((blocks, items.len()), (1, 3));
    let fact = |i: usize| (items[i].segment.get(), items[i].generation.get());
    assert_eq!((fact(0), fact(1), fact(2)), ((4, 71), (6, 70), (60, 2)));
    let fact = |i: usize| (items[i].last_seq.get(), items[i].reserved.get(), items[i].flags.get());
    assert_eq!(fact(0), (2002, 0, checkpoint::SEGMENT_DIRTY_CLASS | checkpoint::SEGMENT_OPEN));
    assert_eq!(fact(1), (2001, 0, checkpoint::SEGMENT_OPEN | checkpoint::SEGMENT_FRESH));
    assert_eq!(fact(2), (90, 0, checkpoint::SEGMENT_FREE));
    assert_eq!([0, 1, 2].map(|i| items[i].flags.get()), [1 | 4, 4 | 8, 2]);

    let (chunk, blocks) = checkpoint::decode(&bytes[BLOCK_SIZE..], POOL, 33, 1).unwrap();
    let Chunk::Blocks(items) = chunk else { panic!("blocks second") };
    assert_eq!((blocks, items.len()), (2, 3));
    assert_eq!(items[0].address, Address::new(3, 0x0081_0203_0405));
    assert_eq!((items[0].slot.get(), items[0].crc.get()), (1155, 0xdead_beef));
    assert_eq!((items[0].flags, items[0].mask), (1, 0x18));
    assert_eq!((items[1].address, items[1].flags), (Address::new(3, 9), 0));
    assert_eq!(items[1].slot.get(), checkpoint::SLOT_NONE);
    assert_eq!((items[2].address, items[2].flags), (Address::new(BIG, 77), 0));
    assert_eq!(items[2].slot.get(), 1156);

    let (chunk, blocks) = checkpoint::decode(&bytes[3 * BLOCK_SIZE..], POOL, 33, 3).unwrap();
    let Chunk::Volumes(items) = chunk else { panic!("volumes third") };
    assert_eq!((blocks, items.len()), (1, 2));
    let fact = |i: usize| (items[i].address.volume(), items[i].kind, items[i].address.block());
    assert_eq!((fact(0), fact(1)), ((BIG, 0, 256), (BIG, 1, 4096)));
    assert_eq!([0, 1].map(|i| items[i].aux.get()), [1490, 512]);
    assert_eq!([0, 1].map(|i| items[i].blocks.get()), [64, 0]);
}

#[test]
fn checkpoint_index_chunks() {
    let bytes = image("checkpoint.bin");
    let chunk = |position: usize| {
        let (chunk, blocks) =
            checkpoint::decode(&bytes[position * BLOCK_SIZE..], POOL, 33, position as u64).unwrap();
        assert_eq!(blocks, 1);
        chunk
    };
    let Chunk::Table(table) = chunk(4) else { panic!("the table fourth") };
    assert_eq!((table.buckets.get(), table.slot_bits, table.key_bits), (1000, 12, 37));
    let Chunk::Buckets(first, buckets) = chunk(5) else { panic!("buckets fifth") };
    assert_eq!((first, buckets.len()), (998, 2));
    for (bucket, n) in buckets.iter().zip([5_u32, 6]) {
        assert_eq!(bucket.crc.map(|crc| crc.get()), [0, 1, 2, 3, 4, 5, 6].map(|w| n << 8 | w));
        assert_eq!(bucket.low.map(|low| low.get()), [0, 1, 2, 3, 4, 5, 6].map(|w| n << 16 | w));
        assert_eq!((bucket.high.get(), u32::from(bucket.dirty)), (u64::from(n) << 60, n));
    }
    let Chunk::Masks(masks) = chunk(6) else { panic!("masks last") };
    assert_eq!((masks.len(), masks[0].slot.get(), masks[0].mask), (1, 1155, 0x18));
}

#[test]
fn checkpoint_of_another_pool_time_or_place() {
    let bytes = image("checkpoint.bin");
    let invalid = |field| FormatError::Invalid { what: "checkpoint", field };
    let error = |pool, generation, position| {
        checkpoint::decode(&bytes, pool, generation, position).unwrap_err()
    };
    assert_eq!(error(POOL + 1, 33, 0), invalid("pool"));
    assert_eq!(error(POOL, 34, 0), invalid("generation"));
    assert_eq!(error(POOL, 33, 1), invalid("generation"));
    let torn = image("checkpoint-torn.bin");
    assert!(checkpoint::decode(&torn, POOL, 33, 0).is_ok());
    let error = checkpoint::decode(&torn[BLOCK_SIZE..], POOL, 33, 1).unwrap_err();
    assert_eq!(error, FormatError::Damaged { what: "checkpoint" });
}
