//! `docs/format.md` draws the structures by hand; this test holds its tables and numbers to the
//! code.

use forebay_format::checkpoint::{
    BlockItem, BucketItem, ChunkHeader, MaskItem, SegmentItem, TableItem, VolumeItem,
};
use forebay_format::record::{self, Entry, EntryKind, RecordHeader};
use forebay_format::superblock::{self, DeviceEntry, Header, JoinedEntry, VolumeEntry};
use forebay_format::tier::{
    self, EntryBlock, HeadBlock, MemberEntry, PageEntry, PageHeader,
    RecordHeader as TierRecordHeader, SuperblockBlock,
};
use forebay_format::{Pairing, checkpoint, layout};
use std::mem::offset_of;
use std::path::Path;

/// One row: the offset in bytes, the size in bytes, the field.
type Row = (usize, usize, &'static str);

/// The rows of a structure without padding. Does not compile unless all its fields are named.
macro_rules! rows {
    ($structure:ident { $($field:ident),* $(,)? }) => {{
        #[allow(dead_code)]
        fn all_fields_are_named($structure { $($field: _),* }: $structure) {}
        let starts = [$((offset_of!($structure, $field), stringify!($field))),*];
        let ends = starts[1..].iter().map(|start| start.0).chain([size_of::<$structure>()]);
        let rows: Vec<Row> =
            starts.iter().zip(ends).map(|(&(at, field), end)| (at, end - at, field)).collect();
        (stringify!($structure), rows)
    }};
}

fn structures() -> Vec<(&'static str, Vec<Row>)> {
    vec![
        rows!(Header {
            magic,
            version,
            crc,
            features_compat,
            features_ro_compat,
            features_incompat,
            pool_uuid,
            pool_name,
            generation,
            epoch,
            device_index,
            device_count,
            volume_id_next,
            segment_blocks,
            clean,
            checkpoint_area,
            shard_count,
            checkpoint_area_bytes,
            segments_offset,
            checkpoint_generation,
            checkpoint_blocks,
            checkpoint_seq,
            checkpoint_dseq,
            checkpoint_epoch,
            previous_generation,
            previous_blocks,
            previous_seq,
            previous_dseq,
            previous_epoch,
            devices,
            checkpoint_index_blocks,
            previous_index_blocks,
            joined,
            reserved_tail,
        }),
        rows!(DeviceEntry { uuid, away, segment_count, bytes }),
        rows!(JoinedEntry { epoch, seq, checkpoint }),
        rows!(VolumeEntry { id, used, mode, reserved, bytes, uuid, name, fingerprint, origin }),
        rows!(RecordHeader {
            magic,
            crc,
            version,
            class,
            flags,
            pool,
            epoch,
            seq,
            dseq,
            durable_dseq,
            segment,
            segment_generation,
            offset,
            entry_count,
            payload_blocks,
            durable_seq,
            reserved,
        }),
        rows!(Entry { address, aux, crc, reserved, kind, mask }),
        rows!(ChunkHeader {
            magic,
            crc,
            blocks,
            kind,
            version,
            pool,
            generation,
            position,
            count,
            first,
        }),
        rows!(SegmentItem { last_seq, segment, generation, reserved, flags }),
        rows!(TableItem { buckets, slot_bits, key_bits, reserved }),
        rows!(BucketItem { crc, low, high, dirty }),
        rows!(MaskItem { slot, mask, reserved }),
        rows!(BlockItem { address, slot, crc, flags, mask, reserved }),
        rows!(VolumeItem { address, aux, blocks, kind, reserved }),
    ]
}

/// Those of a tiered origin.
fn tier_structures() -> Vec<(&'static str, Vec<Row>)> {
    vec![
        rows!(SuperblockBlock {
            magic,
            version,
            crc,
            features_incompat,
            features_compat,
            set,
            name,
            generation,
            epoch,
            boot,
            bytes,
            journal_blocks,
            extents_max,
            member,
            member_count,
            holders,
            flags,
            placement,
            reserved,
            members,
            closed,
            reserved_tail,
        }),
        rows!(MemberEntry {
            uuid,
            slots,
            tier,
            state,
            flags,
            reserved,
            epoch,
            generation,
            reserved_tail
        }),
        rows!(HeadBlock { magic, crc, reserved, set, epoch, tail, reserved_tail }),
        rows!(PageHeader { magic, crc, number, set, seq }),
        rows!(PageEntry { place, pieces, heat }),
        rows!(TierRecordHeader {
            magic,
            crc,
            count,
            reserved,
            set,
            epoch,
            seq,
            confirmed,
            durable,
            reserved_tail,
        }),
        rows!(EntryBlock { extent, place, kind, heat, reserved, blocks }),
    ]
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    std::fs::read_to_string(&path).unwrap()
}

/// The cells of the table that follows `marker`, without head and rule.
fn table<'a>(document: &'a str, marker: &str) -> Vec<Vec<&'a str>> {
    let (_, rest) = document.split_once(marker).unwrap_or_else(|| panic!("no {marker}"));
    rest.lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn tables_match_the_structures() {
    let document = document();
    for (name, rows) in structures().into_iter().chain(tier_structures()) {
        let written = table(&document, &format!("<!-- table: {name} -->"));
        let written: Vec<[&str; 3]> = written.iter().map(|row| [row[0], row[1], row[2]]).collect();
        let expected: Vec<[String; 3]> = rows
            .iter()
            .map(|(at, size, field)| [at.to_string(), size.to_string(), format!("`{field}`")])
            .collect();
        assert_eq!(written, expected, "the table of {name} in docs/format.md");
    }
}

/// The counts in a picture's marker, and the numbers in its lines, device by device.
fn pictures(document: &str) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let numbers = |text: &str| text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    let picture = |text: &str| {
        let (counts, rest) = text.split_once("-->").expect("the marker ends");
        let (_, drawn) = rest.split_once("```text").expect("a picture follows");
        let (drawn, _) = drawn.split_once("```").expect("the picture ends");
        let devices = drawn.lines().filter_map(|line| line.strip_prefix("device "));
        let rows = devices.map(|line| numbers(line.split_once('|').expect("segments").1));
        (numbers(counts), rows.collect())
    };
    document.split("<!-- pairing:").skip(1).map(picture).collect()
}

#[test]
fn pictures_match_the_pairing() {
    let pictures = pictures(&document());
    assert_eq!(pictures.len(), 3);
    for (counts, drawn) in pictures {
        let pairing = Pairing::new(&counts);
        let mut expected: Vec<Vec<u32>> = counts.iter().map(|&n| vec![0; n as usize]).collect();
        for segment in 0..pairing.segments() {
            let (device, index) = pairing.place(segment);
            expected[usize::from(device)][index as usize] = segment;
        }
        assert_eq!(drawn, expected, "the picture of {counts:?} in docs/format.md");
    }
}

#[test]
fn every_entry_kind_is_described() {
    let document = document();
    let written: Vec<(String, String)> = table(&document, "<!-- table: EntryKind -->")
        .iter()
        .map(|row| (row[0].to_string(), row[1].to_string()))
        .collect();
    let expected: Vec<(String, String)> = (0..=u8::MAX)
        .filter_map(|raw| EntryKind::from_raw(raw).map(|kind| (raw, kind)))
        .map(|(raw, kind)| (raw.to_string(), format!("`{kind:?}`")))
        .collect();
    assert_eq!(written, expected);
}

/// The names and values of a table of constants.
fn constants<'a>(document: &'a str, marker: &str) -> Vec<(&'a str, u64)> {
    let rows = table(document, marker);
    let row =
        |row: &Vec<&'a str>| (row[0].trim_matches('`'), row[1].parse().expect("a number of bytes"));
    rows.iter().map(row).collect()
}

#[test]
fn numbers_of_tiers_match_the_constants() {
    let document = document();
    let expected: Vec<(&str, u64)> = vec![
        ("VERSION", tier::VERSION.into()),
        ("EXTENT_SIZE", tier::EXTENT_SIZE),
        ("EXTENT_BLOCKS", tier::EXTENT_BLOCKS as u64),
        ("Blocks::PIECE", tier::Blocks::PIECE as u64),
        ("SUPERBLOCK_OFFSETS[1]", tier::SUPERBLOCK_OFFSETS[1]),
        ("HEAD_OFFSETS[0]", tier::HEAD_OFFSETS[0]),
        ("HEAD_OFFSETS[1]", tier::HEAD_OFFSETS[1]),
        ("DOUBLES_OFFSET", tier::DOUBLES_OFFSET),
        ("DOUBLES_MAX", tier::DOUBLES_MAX as u64),
        ("JOURNAL_OFFSET", tier::JOURNAL_OFFSET),
        ("PAGE_ENTRIES", tier::PAGE_ENTRIES.into()),
        ("ENTRIES_MAX", tier::ENTRIES_MAX as u64),
        ("MEMBERS_MAX", tier::MEMBERS_MAX as u64),
        ("TIERS_MAX", tier::TIERS_MAX.into()),
        ("SLOTS_MAX", tier::SLOTS_MAX.into()),
        ("PLACE_NONE", tier::PLACE_NONE.into()),
        ("UNHELD", tier::UNHELD.into()),
    ];
    assert_eq!(constants(&document, "<!-- table: tier constants -->"), expected);
}

#[test]
fn numbers_match_the_constants() {
    let document = document();
    let expected: Vec<(&str, u64)> = vec![
        ("BLOCK_SIZE", forebay_format::BLOCK_SIZE as u64),
        ("SECTOR_SIZE", forebay_format::SECTOR_SIZE as u64),
        ("FORMAT_VERSION", forebay_format::FORMAT_VERSION.into()),
        ("SUPERBLOCK_SIZE", superblock::SUPERBLOCK_SIZE as u64),
        ("SUPERBLOCK_OFFSETS[1]", layout::SUPERBLOCK_OFFSETS[1]),
        ("CHECKPOINT_OFFSET", layout::CHECKPOINT_OFFSET),
        ("SEGMENTS_MIN", layout::SEGMENTS_MIN.into()),
        ("SEGMENTS_MAX", layout::SEGMENTS_MAX.into()),
        ("SEGMENT_BLOCKS.start", (*superblock::SEGMENT_BLOCKS.start()).into()),
        ("SEGMENT_BLOCKS.end", (*superblock::SEGMENT_BLOCKS.end()).into()),
        ("POOL_DEVICES_MAX", forebay_format::POOL_DEVICES_MAX as u64),
        ("VOLUMES_MAX", superblock::VOLUMES_MAX as u64),
        ("ENTRIES_MAX", record::ENTRIES_MAX as u64),
        ("PAYLOAD_BLOCKS_MAX", record::PAYLOAD_BLOCKS_MAX as u64),
        ("CHUNK_BLOCKS_MAX", checkpoint::CHUNK_BLOCKS_MAX as u64),
    ];
    assert_eq!(constants(&document, "<!-- table: constants -->"), expected);
}
