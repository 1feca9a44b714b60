//! Golden images of a tiered origin's members: what version 1 of their format looks like, field by
//! field. The values here are written by hand and share no code with `cargo xtask golden`, which
//! wrote the images. An image has the blocks that are not zeros, each behind its offset.

use forebay_format::tier::{
    Blocks, EntryKind, Head, PLACE_NONE, Page, Place, Record, Superblock, TierLayout, member_state,
};
use forebay_format::{FormatError, checksum};
use std::collections::BTreeMap;
use std::path::Path;

const SET: u64 = u64::from_le_bytes(*b"tier-set");

fn image(name: &str) -> BTreeMap<u64, Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len() % 4104, 0);
    let block = |it: &[u8]| (le64(it, 0), it[8..].to_vec());
    bytes.chunks_exact(4104).map(block).collect()
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The bytes with this change and a checksum that is right.
fn changed(bytes: &[u8], crc: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    bytes[crc..crc + 4].fill(0);
    let sum = checksum(&bytes);
    bytes[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn parts_lie_where_they_lay() {
    let member = image("tier-fast.bin");
    // Superblocks, heads, doubles, journal, pages, slots.
    let expected: Vec<u64> = [
        &[0, 0x1_0000, 0x2_0000, 0x3_0000, 0x4_0000, 0x4_1000][..],
        &[0x8_c000, 0x8_f000, 0x9_4000],
        &[0x9_5000, 0x9_6000, 0x9_7000, 0x9_8000, 0x9_9000, 0x9_a000],
        &[0xc_0000, 0xc_1000],
        &[0x10_f000, 0x11_0000, 0x20_0000, 0x2f_f000, 0x36_4000],
    ]
    .concat();
    assert_eq!(member.keys().copied().collect::<Vec<u64>>(), expected);
    let layout = TierLayout { journal_blocks: 64, extents_max: 600 };
    assert_eq!(layout.record_offset(21), 0x9_5000);
    assert_eq!(layout.record_offset(128), 0x8_0000);
    assert_eq!(layout.page_offset(1), 0xc_1000);
    assert_eq!(layout.slot_offset(2), 0x30_0000);
    assert_eq!((layout.slots(0x40_0000), layout.slots(0x3f_ffff)), (3, 2));
    let large = TierLayout { journal_blocks: 2048, extents_max: 10 << 20 };
    assert_eq!((large.pages_offset(), large.slots_offset()), (0x88_0000, 0x50_0000 + (75 << 20)));
    assert_eq!(Place::new(2, 1).number(), 0x0800_0001);
}

#[test]
fn superblock_fields() {
    let member = image("tier-slow.bin");
    let bytes = &member[&0];
    assert_eq!(&bytes[..8], b"FbTier01");
    assert_eq!(le32(bytes, 8), 1);
    let superblock = Superblock::decode(bytes).unwrap();
    let block = &superblock.block;
    assert_eq!(block.features_incompat.get(), 0);
    assert_eq!(block.features_compat.get(), 1 << 40);
    assert_eq!(&block.set, b"tier-set-uuid-16");
    assert_eq!(&block.name[..9], b"goldtier\0");
    assert_eq!((block.generation.get(), le64(bytes, 112)), (12, 12));
    assert_eq!((block.epoch.get(), le64(bytes, 120)), (5, 5));
    assert_eq!(block.boot, [0xb0; 16]);
    assert_eq!((block.bytes.get(), le64(bytes, 144)), (0x40_0600, 0x40_0600));
    assert_eq!((block.journal_blocks.get(), block.extents_max.get()), (64, 600));
    assert_eq!((block.member, block.member_count, block.holders), (2, 3, [0, 2]));
    assert!(!superblock.is_fresh() && !superblock.is_ephemeral());
    let members = superblock.members();
    let told = |number: usize| {
        let it = &members[number];
        (it.uuid, it.slots.get(), it.tier, it.state, it.is_volatile(), it.epoch.get())
    };
    assert_eq!(told(0), ([0xa0; 16], 3, 0, member_state::IN, false, 5));
    assert_eq!(told(1), ([0xa1; 16], 9, 1, member_state::NONE, false, 2));
    assert_eq!(told(2), ([0xa2; 16], 4, 3, member_state::LEAVING, false, 5));
    assert_eq!((&bytes[272..288], bytes[293]), (&[0xa2; 16][..], 2));
    assert!(bytes[3200..].iter().all(|&byte| byte == 0));
    let newest = Superblock::newest_of([&member[&0x1_0000], bytes]).unwrap();
    assert_eq!(newest.block.generation.get(), 12);
}

#[test]
fn a_superblock_of_a_newer_version_is_refused() {
    let bytes = &image("tier-fast.bin")[&0];
    let version = changed(bytes, 12, |it| it[8] = 2);
    let error = Superblock::decode(&version).unwrap_err();
    assert!(matches!(error, FormatError::TooNewVersion { version: 2, .. }), "{error}");
    let feature = changed(bytes, 12, |it| it[16] = 8);
    let error = Superblock::decode(&feature).unwrap_err();
    assert!(matches!(error, FormatError::TooNew { missing: 8, .. }), "{error}");
    let name = changed(bytes, 12, |it| it[48] = b'\n');
    assert!(matches!(Superblock::decode(&name), Err(FormatError::BadName { .. })));
    let mut torn = bytes.clone();
    torn[512..].fill(0xff);
    assert!(matches!(Superblock::decode(&torn), Err(FormatError::Damaged { .. })));
    assert!(matches!(Superblock::decode(&[0; 4096]), Err(FormatError::NotOurs { .. })));
}

#[test]
fn a_new_set_has_one_superblock_twice() {
    for number in 0..2 {
        let member = image(&format!("tier-new-{number}.bin"));
        assert_eq!(member.keys().copied().collect::<Vec<u64>>(), [0, 0x1_0000]);
        assert_eq!(member[&0], member[&0x1_0000]);
        let superblock = Superblock::decode(&member[&0]).unwrap();
        let block = &superblock.block;
        assert!(superblock.is_fresh() && superblock.is_ephemeral());
        assert_eq!(member[&0][164], 3);
        assert_eq!((block.generation.get(), block.epoch.get()), (0, 0));
        assert_eq!((block.member, block.holders), (number, [0, 0xff]));
        assert_eq!(superblock.holders().collect::<Vec<u8>>(), [0]);
        let is_volatile = |number: usize| superblock.members()[number].is_volatile();
        assert_eq!((is_volatile(0), is_volatile(1)), (true, false));
    }
}

#[test]
fn head_fields() {
    let member = image("tier-fast.bin");
    let bytes = &member[&0x3_0000];
    assert_eq!(&bytes[..8], b"FbTrHead");
    assert_eq!((le64(bytes, 16), le64(bytes, 24), le64(bytes, 32)), (SET, 5, 21));
    assert_eq!(Head::decode(SET, bytes).unwrap(), Head { epoch: 5, tail: 21 });
    assert_eq!(Head::decode(SET, &member[&0x2_0000]).unwrap(), Head { epoch: 4, tail: 9 });
    assert!(matches!(Head::decode(SET + 1, bytes), Err(FormatError::NotOurs { .. })));
}

#[test]
fn page_fields() {
    let member = image("tier-slow.bin");
    assert_eq!(member[&0x4_0000], member[&0xc_0000], "a page and its double");
    let bytes = &member[&0xc_0000];
    assert_eq!(&bytes[..8], b"FbTrPage");
    assert_eq!((le32(bytes, 12), le64(bytes, 16), le64(bytes, 24)), (0, SET, 20));
    // Entry 1, as it lies: place, pieces, heat.
    assert_eq!((le32(bytes, 39), le16(bytes, 43), bytes[45]), (0x0800_0000, 3, 0x85));
    let page = Page::decode(SET, bytes).unwrap();
    let told: Vec<(u32, u16, u8)> =
        page.entries[..5].iter().map(|it| (it.place.get(), it.pieces.get(), it.heat)).collect();
    assert_eq!(
        told,
        [
            (1, 0xffff, 0x21),
            (0x0800_0000, 0b11, 0x85),
            (PLACE_NONE, 0, 0),
            (0x0800_0002, 0xffff, 0x11),
            (PLACE_NONE, 0, 0),
        ]
    );
    assert!(page.entries[1].is_fine() && !page.entries[0].is_fine());
    let second = Page::decode(SET, &member[&0xc_1000]).unwrap();
    assert_eq!((second.number, second.entries.len()), (1, 580));
    assert!(second.entries.iter().all(|it| it.place.get() == PLACE_NONE));
}

#[test]
fn record_fields() {
    let member = image("tier-fast.bin");
    let bytes = &member[&0x9_7000];
    assert_eq!(&bytes[..8], b"FbTrJrnl");
    assert_eq!((le16(bytes, 12), le64(bytes, 16), le64(bytes, 24)), (2, SET, 5));
    assert_eq!((le64(bytes, 32), le64(bytes, 40), le64(bytes, 48)), (23, 21, 21));
    // Its second entry: the extent that has moved.
    assert_eq!((le32(bytes, 112), le32(bytes, 116), bytes[120], bytes[121]), (3, 2, 1, 0x12));
    assert!(bytes[128..160].iter().all(|&byte| byte == 0xff));
    let record = Record::decode(SET, bytes).unwrap();
    assert_eq!((record.epoch, record.seq, record.confirmed, record.durable), (5, 23, 21, 21));
    assert_eq!(record.entries[0].blocks, Blocks::range(0, 16));
    assert_eq!((record.entries[1].extent, record.entries[1].place), (3, 2));
    let first = Record::decode(SET, &member[&0x9_5000]).unwrap();
    assert_eq!(first.entries[0].blocks, Blocks::range(0, 40));
    assert_eq!(first.entries[1].kind, EntryKind::Lost);
    assert_eq!(first.entries[1].blocks, Blocks::range(200, 202));
    let torn = Record::decode(SET, &member[&0x9_a000]);
    assert!(matches!(torn, Err(FormatError::Damaged { .. })), "{torn:?}");
    let kind = changed(bytes, 8, |it| it[72] = 3);
    assert!(matches!(Record::decode(SET, &kind), Err(FormatError::Invalid { .. })));
}
