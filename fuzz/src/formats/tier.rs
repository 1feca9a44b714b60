//! Decoders of what lies on the members of a tiered origin.

use super::{comes_back, fix_checksum, measured, patch};
use crate::input::Input;
use forebay_format::tier::survey::{MapCopy, Survey};
use forebay_format::tier::{
    EntryKind, Head, PLACE_NONE, Page, Place, Record, SLOTS_MAX, Superblock, pages_of,
};
use forebay_format::{BLOCK_SIZE, name};

const MEMBER: &[u8] = include_bytes!("../../../crates/format/tests/golden/tier-fast.bin");
/// First half of the set's uuid, in the golden image.
const SET: u64 = u64::from_le_bytes(*b"tier-set");
/// Where a superblock lies, a head, a page, a record; and the checksum in each.
const STRUCTURES: [(u64, usize); 4] = [(0, 12), (0x3_0000, 8), (0xc_0000, 8), (0x9_7000, 8)];

/// A block of the golden image, which has each behind its offset.
fn block(offset: u64) -> Vec<u8> {
    let mut blocks = MEMBER.chunks_exact(8 + BLOCK_SIZE);
    let found = blocks.find(|block| block[..8] == offset.to_le_bytes());
    found.expect("it is in the image")[8..].to_vec()
}

fn encoded(encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    encode(&mut bytes);
    bytes
}

fn superblock(bytes: &[u8]) {
    let Ok(superblock) = measured(bytes, Superblock::decode) else { return };
    let block = &superblock.block;
    assert!(name::RawName(block.name).checked().is_some());
    assert!(usize::from(block.member) < superblock.members().len());
    assert!(superblock.members().iter().all(|it| it.slots.get() <= SLOTS_MAX));
    for holder in superblock.holders() {
        assert!(superblock.members()[usize::from(holder)].is_used());
    }
    // Whatever it says, places have offsets, and a copy of its map begins small.
    let layout = superblock.layout();
    let end = layout.slot_offset(SLOTS_MAX - 1);
    assert!(layout.pages_offset() < layout.slots_offset() && layout.slots_offset() < end);
    assert!(layout.record_offset(u64::MAX) < layout.page_offset(0));
    let pages = pages_of(block.extents_max.get());
    assert!(layout.page_offset(pages) <= layout.slots_offset());
    let copy = MapCopy::new(&superblock);
    assert_eq!(Survey::of(&superblock, &[copy]).problem_count, 1, "there is no map");
    let encode = |superblock: &Superblock| encoded(|out| superblock.encode(out));
    comes_back(&superblock, encode, |bytes| Superblock::decode(bytes).ok());
}

fn head(bytes: &[u8]) {
    let Ok(head) = measured(bytes, |bytes| Head::decode(SET, bytes)) else { return };
    assert!(head.tail >= 1);
    let encode = |head: &Head| encoded(|out| head.encode(SET, out));
    comes_back(&head, encode, |bytes| Head::decode(SET, bytes).ok());
}

fn page(bytes: &[u8]) {
    let Ok(page) = measured(bytes, |bytes| Page::decode(SET, bytes)) else { return };
    for entry in &page.entries {
        let is_nowhere = entry.place.get() == PLACE_NONE;
        assert_eq!(is_nowhere, Place::of_number(entry.place.get()).is_none());
        assert!(!is_nowhere || (entry.pieces.get() == 0 && !entry.is_fine()));
    }
    let encode = |page: &Page| encoded(|out| page.encode(SET, out));
    comes_back(&page, encode, |bytes| Page::decode(SET, bytes).ok());
}

fn record(bytes: &[u8]) {
    let Ok(record) = measured(bytes, |bytes| Record::decode(SET, bytes)) else { return };
    assert!(record.durable <= record.confirmed && record.confirmed < record.seq);
    for entry in &record.entries {
        let is_nowhere = Place::of_number(entry.place).is_none();
        assert!(!is_nowhere || entry.kind == EntryKind::Lost || entry.blocks.is_empty());
    }
    let encode = |record: &Record| encoded(|out| record.encode(SET, out));
    comes_back(&record, encode, |bytes| Record::decode(SET, bytes).ok());
}

/// One of the structures, patched.
pub fn run(input: &mut Input, kind: u8, as_it_is: bool) {
    let number = usize::from(kind & 3);
    let (offset, crc) = STRUCTURES[number];
    let mut bytes = block(offset);
    patch(input, &mut bytes);
    if !as_it_is {
        fix_checksum(&mut bytes, crc, BLOCK_SIZE);
    }
    [superblock, head, page, record][number](&bytes);
}
