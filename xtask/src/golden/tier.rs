//! The members of a tiered origin, with some life behind them; and two that were only made.
//!
//! A member is a MiB of structures and its slots, mostly zeros. An image has only the blocks that
//! are not: each behind its offset, eight bytes.

use super::payload;
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{
    Blocks, DOUBLES_OFFSET, Entry, EntryKind, HEAD_OFFSETS, Head, MemberEntry, PLACE_NONE, Page,
    PageEntry, Place, Record, SUPERBLOCK_OFFSETS, Superblock, member_state,
};
use std::collections::BTreeMap;

/// First half of the set's uuid.
const SET: u64 = u64::from_le_bytes(*b"tier-set");
/// The fast member, and the slow one; number 1 is gone.
const FAST: u8 = 0;
const SLOW: u8 = 2;

/// A member, by offset.
type Member = BTreeMap<u64, Vec<u8>>;

/// All images of tiers, by name.
pub fn images() -> Vec<(&'static str, Vec<u8>)> {
    let new = |member| packed(&new_member(member));
    vec![
        ("tier-fast.bin", packed(&fast())),
        ("tier-slow.bin", packed(&slow())),
        ("tier-new-0.bin", new(0)),
        ("tier-new-1.bin", new(1)),
    ]
}

fn packed(member: &Member) -> Vec<u8> {
    let blocks = member.iter().map(|(offset, block)| [&offset.to_le_bytes()[..], block].concat());
    blocks.collect::<Vec<_>>().concat()
}

fn block(encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    encode(&mut bytes);
    bytes
}

fn entry(uuid: u8, slots: u32, tier: u8, state: u8, epoch: u64) -> MemberEntry {
    MemberEntry {
        uuid: [uuid; 16],
        slots: slots.into(),
        tier,
        state,
        flags: 0,
        reserved: 0,
        epoch: epoch.into(),
        generation: 0.into(),
        reserved_tail: [0; 8],
    }
}

/// A superblock of the set that was used.
fn superblock(member: u8, generation: u64) -> Superblock {
    let mut superblock = Superblock::empty();
    let block = &mut superblock.block;
    block.features_compat = (1 << 40).into();
    block.set = *b"tier-set-uuid-16";
    block.name[..8].copy_from_slice(b"goldtier");
    block.generation = generation.into();
    block.epoch = 5.into();
    block.boot = [0xb0; 16];
    block.bytes = ((4 << 20) + 1536).into();
    block.journal_blocks = 64.into();
    block.extents_max = 600.into();
    block.member = member;
    block.member_count = 3;
    block.holders = [FAST, SLOW];
    block.members[0] = entry(0xa0, 3, 0, member_state::IN, 5);
    block.members[1] = entry(0xa1, 9, 1, member_state::NONE, 2);
    block.members[2] = entry(0xa2, 4, 3, member_state::LEAVING, 5);
    superblock
}

fn heads(member: &mut Member, heads: [Head; 2]) {
    for (offset, head) in HEAD_OFFSETS.into_iter().zip(heads) {
        member.insert(offset, block(|out| head.encode(SET, out)));
    }
}

/// Superblocks, pages and their doubles, and what is left of an earlier life.
fn holder(number: u8) -> Member {
    let mut member = Member::new();
    for (generation, copy) in [(12, 0), (11, 1)] {
        let encoded = block(|out| superblock(number, generation).encode(out));
        member.insert(SUPERBLOCK_OFFSETS[copy], encoded);
    }
    let layout = superblock(number, 0).layout();
    let old = Entry { kind: EntryKind::Lost, ..state(3, PLACE_NONE, 1, Blocks::ALL) };
    for seq in [12, 15, 20] {
        let record =
            Record { epoch: 4, seq, confirmed: seq - 1, durable: seq - 2, entries: vec![old] };
        member.insert(layout.record_offset(seq), block(|out| record.encode(SET, out)));
    }
    for number in 0..2 {
        let page = block(|out| page(number).encode(SET, out));
        member.insert(DOUBLES_OFFSET + u64::from(number) * BLOCK_SIZE as u64, page.clone());
        member.insert(layout.page_offset(number), page);
    }
    member
}

fn place(member: u8, slot: u32) -> u32 {
    Place::new(member, slot).number()
}

/// The map before the records of the journal.
fn page(number: u32) -> Page {
    let mut entries = vec![PageEntry::NONE; if number == 0 { 580 } else { 20 }];
    if number == 0 {
        let lives = |place: u32, pieces: u16, heat| PageEntry {
            place: place.into(),
            pieces: pieces.into(),
            heat,
        };
        entries[0] = lives(place(FAST, 1), 0xffff, 0x21);
        entries[1] = lives(place(SLOW, 0), 0b11, 0x05 | PageEntry::FINE);
        entries[3] = lives(place(SLOW, 2), 0xffff, 0x11);
    }
    Page { number, seq: 20, entries }
}

fn state(extent: u32, place: u32, heat: u8, blocks: Blocks) -> Entry {
    Entry { kind: EntryKind::State, extent, place, heat, blocks }
}

/// The journal of this life: what pages cannot say, a write and a move that are confirmed, and a
/// write that is not.
fn records() -> Vec<Record> {
    let lost = Entry { kind: EntryKind::Lost, ..state(0, PLACE_NONE, 0, Blocks::range(200, 202)) };
    let said: [(u64, u64, Vec<Entry>); 5] = [
        (20, 20, vec![state(1, place(SLOW, 0), 0x05, Blocks::range(0, 40)), lost]),
        (21, 20, vec![]),
        (
            21,
            21,
            vec![
                state(2, place(FAST, 0), 0x0a, Blocks::range(0, 16)),
                state(3, place(FAST, 2), 0x12, Blocks::ALL),
            ],
        ),
        (23, 21, vec![]),
        (23, 23, vec![state(4, place(SLOW, 1), 0x01, Blocks::range(0, 1))]),
    ];
    let record = |(seq, (confirmed, durable, entries))| Record {
        epoch: 5,
        seq,
        confirmed,
        durable,
        entries,
    };
    (21..).zip(said).map(record).collect()
}

/// A block of a slot.
fn data(member: &mut Member, slot: u32, number: u64, seed: u8) {
    let offset = superblock(FAST, 0).layout().slot_offset(slot) + number * BLOCK_SIZE as u64;
    member.insert(offset, payload(seed));
}

fn fast() -> Member {
    let mut member = holder(FAST);
    heads(&mut member, [Head { epoch: 4, tail: 9 }, Head { epoch: 5, tail: 21 }]);
    let layout = superblock(FAST, 0).layout();
    for record in records() {
        member.insert(layout.record_offset(record.seq), block(|out| record.encode(SET, out)));
    }
    // One that the power took on its way.
    let torn = Record { epoch: 5, seq: 26, confirmed: 23, durable: 23, entries: vec![] };
    let mut torn = block(|out| torn.encode(SET, out));
    torn[512..].fill(0xff);
    member.insert(layout.record_offset(26), torn);
    data(&mut member, 1, 0, 3);
    data(&mut member, 1, 255, 5);
    data(&mut member, 0, 15, 7);
    // Never written by anybody who says so.
    data(&mut member, 0, 16, 0xee);
    data(&mut member, 2, 100, 9);
    member
}

fn slow() -> Member {
    let mut member = holder(SLOW);
    heads(&mut member, [Head { epoch: 5, tail: 21 }, Head { epoch: 4, tail: 9 }]);
    let layout = superblock(SLOW, 0).layout();
    // The last one did not come so far.
    for record in records().into_iter().filter(|record| record.seq < 25) {
        member.insert(layout.record_offset(record.seq), block(|out| record.encode(SET, out)));
    }
    data(&mut member, 0, 39, 11);
    data(&mut member, 0, 40, 0xee);
    data(&mut member, 1, 0, 13);
    // Where the extent lived that has moved.
    data(&mut member, 2, 100, 0xdd);
    member
}

/// A member of a set that was made and never opened; one of its members is RAM.
fn new_member(member: u8) -> Member {
    let mut superblock = Superblock::empty();
    let block_of = &mut superblock.block;
    block_of.set = *b"new--set-uuid-16";
    block_of.name[..3].copy_from_slice(b"new");
    block_of.bytes = (3 << 20).into();
    block_of.journal_blocks = 64.into();
    block_of.extents_max = 12.into();
    block_of.member = member;
    block_of.member_count = 2;
    block_of.holders[0] = 0;
    block_of.members[0] = entry(0xc0, 1, 0, member_state::IN, 0);
    block_of.members[0].flags = MemberEntry::VOLATILE;
    block_of.members[1] = entry(0xc1, 2, 1, member_state::IN, 0);
    superblock.set_ephemeral(true);
    superblock.set_fresh(true);
    let encoded = block(|out| superblock.encode(out));
    SUPERBLOCK_OFFSETS.into_iter().map(|offset| (offset, encoded.clone())).collect()
}
