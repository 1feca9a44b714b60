//! The golden images of a set, as they are and changed.

use super::*;
use crate::BLOCK_SIZE;
use crate::tier::{DOUBLES_MAX, DOUBLES_OFFSET, HEAD_OFFSETS, Head, JOURNAL_OFFSET, Record};

const SET: u64 = u64::from_le_bytes(*b"tier-set");

type Device = BTreeMap<u64, Vec<u8>>;

fn image(bytes: &[u8]) -> Device {
    let block = |it: &[u8]| {
        (u64::from_le_bytes(it[..8].try_into().expect("eight bytes")), it[8..].to_vec())
    };
    bytes.chunks_exact(8 + BLOCK_SIZE).map(block).collect()
}

fn golden() -> [Device; 2] {
    [
        image(include_bytes!("../../../tests/golden/tier-fast.bin")),
        image(include_bytes!("../../../tests/golden/tier-slow.bin")),
    ]
}

fn superblock(device: &Device) -> Superblock {
    Superblock::decode(&device[&0]).unwrap()
}

fn copy(device: &Device) -> MapCopy {
    let read = |offset: u64, blocks: u32| {
        let at = |block| offset + u64::from(block) * BLOCK_SIZE as u64;
        let block =
            |number| device.get(&at(number)).cloned().unwrap_or_else(|| vec![0; BLOCK_SIZE]);
        (0..blocks).map(block).collect::<Vec<_>>().concat()
    };
    let superblock = superblock(device);
    let mut copy = MapCopy::new(&superblock);
    for (number, offset) in HEAD_OFFSETS.into_iter().enumerate() {
        copy.take_head(number, &read(offset, 1));
    }
    copy.take_doubles(&read(DOUBLES_OFFSET, DOUBLES_MAX as u32));
    copy.take_journal(0, &read(JOURNAL_OFFSET, 22));
    copy.take_journal(22, &read(JOURNAL_OFFSET + 22 * BLOCK_SIZE as u64, 42));
    copy.take_pages(0, &read(superblock.layout().pages_offset(), 2));
    copy
}

fn survey(devices: &[Device]) -> Survey {
    let copies: Vec<MapCopy> = devices.iter().map(copy).collect();
    Survey::of(&superblock(&devices[0]), &copies)
}

/// Puts a page in the place of the one that is there, and removes its double.
fn put_page(device: &mut Device, change: impl FnOnce(&mut Page)) {
    let offset = superblock(device).layout().page_offset(0);
    let mut page = Page::decode(SET, &device[&offset]).unwrap();
    change(&mut page);
    page.encode(SET, device.get_mut(&offset).unwrap());
    device.remove(&DOUBLES_OFFSET);
}

#[test]
fn a_sound_set_is_told_as_it_is() {
    let found = survey(&golden());
    let span = Span { epoch: 5, tail: 21, last: 25, confirmed: 23, is_torn: true, behind: 0 };
    assert_eq!(found.span, Some(span));
    assert_eq!((found.problems.as_slice(), found.problem_count), (&[][..], 0));
    assert_eq!(found.lives, BTreeMap::from([(0, 3), (2, 2)]));
    assert_eq!((found.partly, found.lost_extents, found.lost_blocks), (2, 1, 2));
    assert_eq!(found.unconfirmed, 1);
    let source = |member, last| Source { member, is_used: true, last, bad_pages: 0, doubled: 0 };
    assert_eq!(found.sources, [source(0, 25), source(2, 24)]);
}

#[test]
fn one_holder_is_enough_and_none_is_no_map() {
    let [fast, slow] = golden();
    assert_eq!(survey(std::slice::from_ref(&fast)).lives, BTreeMap::from([(0, 3), (2, 2)]));
    let alone = survey(&[slow]);
    assert_eq!(alone.span.map(|it| (it.last, it.is_torn)), Some((24, false)));
    assert_eq!((alone.lives, alone.problem_count), (BTreeMap::from([(0, 3), (2, 1)]), 0));
    assert_eq!(Survey::of(&superblock(&fast), &[]).problems, [Problem::NoMap]);
}

#[test]
fn torn_pages_are_taken_from_doubles_and_from_the_other_holder() {
    let mut both = golden();
    let layout = superblock(&both[0]).layout();
    both[0].get_mut(&layout.page_offset(0)).unwrap()[700] ^= 1;
    let found = survey(&both);
    assert_eq!((found.sources[0].bad_pages, found.sources[0].doubled), (1, 1));
    assert_eq!((found.problem_count, found.lives.len()), (0, 2));
    both[0].remove(&DOUBLES_OFFSET);
    assert_eq!(survey(&both).problem_count, 0);
    both[1].remove(&DOUBLES_OFFSET);
    both[1].remove(&layout.page_offset(0));
    assert_eq!(survey(&both).problems, [Problem::BadPage(0)]);
}

/// The doubles have what was written there last, which may be long ago.
#[test]
fn a_double_from_before_the_tail_is_not_taken() {
    let mut device = golden()[0].clone();
    let layout = superblock(&device).layout();
    let double = device.get_mut(&DOUBLES_OFFSET).unwrap();
    let old = Page { seq: 19, ..Page::decode(SET, double).unwrap() };
    old.encode(SET, double);
    device.remove(&layout.page_offset(0));
    let found = survey(&[device]);
    assert_eq!((found.sources[0].bad_pages, found.sources[0].doubled), (1, 0));
    assert_eq!(found.problems, [Problem::BadPage(0)]);
}

#[test]
fn what_does_not_fit_is_told() {
    let place = |member, slot| Place::new(member, slot);
    let change = |to: Place| {
        let mut both = golden();
        for device in &mut both {
            put_page(device, |page| page.entries[0] = entry(to));
        }
        survey(&both).problems
    };
    assert_eq!(change(place(0, 2)), [Problem::TwoInOnePlace(0, 3, place(0, 2))]);
    assert_eq!(change(place(0, 3)), [Problem::NoSuchPlace(0, place(0, 3))]);
    assert_eq!(change(place(1, 0)), [Problem::NoSuchPlace(0, place(1, 0))], "it is gone");
    let mut both = golden();
    put_page(&mut both[1], |page| page.entries[0].heat ^= 1);
    assert_eq!(survey(&both).problems, [], "heat is no matter");
    put_page(&mut both[1], |page| page.entries[0].pieces = 1.into());
    assert_eq!(survey(&both).problems, [Problem::HoldersDiffer(0, 0, 2)]);
    // What the journal says again counts, whatever the pages say.
    let mut both = golden();
    put_page(&mut both[1], |page| page.entries[3] = PageEntry::NONE);
    assert_eq!(survey(&both).problems, []);
}

fn entry(place: Place) -> PageEntry {
    PageEntry { place: place.number().into(), pieces: 0xffff.into(), heat: 1 }
}

#[test]
fn a_record_that_was_durable_is_missed_and_one_behind_a_gap_is_counted() {
    let mut both = golden();
    let layout = superblock(&both[0]).layout();
    for device in &mut both {
        device.remove(&layout.record_offset(22));
    }
    let found = survey(&both);
    assert_eq!(found.problems, [Problem::BadJournal(22)]);
    assert_eq!(found.span.map(|it| (it.last, it.behind)), Some((21, 3)));
    // The last records are not promised: they never happened.
    let mut both = golden();
    both[0].remove(&layout.record_offset(25));
    let late = Record { epoch: 5, seq: 26, confirmed: 23, durable: 23, entries: vec![] };
    let mut block = vec![0; BLOCK_SIZE];
    late.encode(SET, &mut block);
    both[0].insert(layout.record_offset(26), block);
    let found = survey(&both);
    assert_eq!(
        (found.problem_count, found.span.map(|it| (it.last, it.behind))),
        (0, Some((24, 1)))
    );
}

#[test]
fn what_the_journal_should_know_and_does_not_is_lost() {
    let mut both = golden();
    let offset = superblock(&both[0]).layout().record_offset(21);
    for device in &mut both {
        let block = device.get_mut(&offset).unwrap();
        let mut record = Record::decode(SET, block).unwrap();
        record.entries.clear();
        record.encode(SET, block);
    }
    let found = survey(&both);
    // Two pieces of it are known.
    assert_eq!((found.problem_count, found.lost_extents, found.lost_blocks), (0, 1, 224));
}

#[test]
fn who_is_no_member_of_the_set_is_known() {
    let [fast, slow] = golden();
    let (newest, own) = (superblock(&fast), superblock(&slow));
    let changed = |change: fn(&mut Superblock)| {
        let mut own = own.clone();
        change(&mut own);
        standing(&newest, &own)
    };
    assert_eq!(changed(|_| {}), Standing::Fits);
    assert_eq!(changed(|it| it.block.epoch = 6.into()), Standing::Fits, "a start was cut short");
    assert_eq!(changed(|it| it.block.epoch = 4.into()), Standing::Old);
    assert_eq!(changed(|it| it.block.set[0] ^= 1), Standing::OtherSet);
    assert_eq!(changed(|it| it.block.members[2].uuid = [1; 16]), Standing::Unknown);
    assert_eq!(changed(|it| it.block.member = 1), Standing::Unknown, "it is gone");
}

/// A ring that has a record of a number so far ahead has lost the one at its tail.
#[test]
fn a_record_further_ahead_than_the_ring_is_long_is_damage() {
    let mut both = golden();
    let layout = superblock(&both[0]).layout();
    let ring = u64::from(layout.journal_blocks);
    for device in &mut both {
        let record = Record::decode(SET, &device[&layout.record_offset(24)]).unwrap();
        let far = Record { seq: 21 + ring, durable: 0, ..record };
        let mut bytes = vec![0; BLOCK_SIZE];
        far.encode(SET, &mut bytes);
        device.insert(layout.record_offset(21 + ring), bytes);
    }
    assert!(survey(&both).problems.contains(&Problem::BadJournal(21)));
}

/// Pages count only where the journal has all that was said since.
#[test]
fn pages_of_a_holder_whose_journal_has_a_gap_are_not_taken() {
    let mut both = golden();
    let layout = superblock(&both[0]).layout();
    let head = |device: &Device| {
        let copies = HEAD_OFFSETS.map(|it| Head::decode(SET, device.get(&it)?).ok());
        copies.into_iter().flatten().max().expect("a head")
    };
    // The one that knows most has lost its page, and the other one's head is older than the ring.
    both[0].remove(&layout.page_offset(0));
    both[0].remove(&DOUBLES_OFFSET);
    let old = Head { tail: 2, ..head(&both[1]) };
    for offset in HEAD_OFFSETS {
        both[1].remove(&offset);
    }
    let mut bytes = vec![0; BLOCK_SIZE];
    old.encode(SET, &mut bytes);
    both[1].insert(HEAD_OFFSETS[0], bytes);
    for device in &mut both {
        device.remove(&layout.record_offset(3));
    }
    assert_eq!(survey(&both).problems, [Problem::BadPage(0)]);
}
