use super::*;

#[test]
fn blocks_are_counted_by_pieces_and_ranges() {
    let blocks = Blocks::range(16, 48);
    assert_eq!((blocks.count(), blocks.pieces(), blocks.bounds()), (32, 0b110, Some((16, 47))));
    assert_eq!(Blocks::of_pieces(0b110), blocks);
    assert!(blocks.is_whole_pieces());
    let partly = blocks.or(Blocks::range(60, 70));
    assert!(!partly.is_whole_pieces());
    assert_eq!(partly.without(blocks), Blocks::range(60, 70));
    assert_eq!(partly.and(Blocks::range(0, 64)).count(), 36);
    assert_eq!(Blocks::of_pieces(0xffff), Blocks::ALL);
    assert_eq!((Blocks::NONE.bounds(), Blocks::range(9, 9)), (None, Blocks::NONE));
    assert!(Blocks::range(255, 256).has(255) && !Blocks::range(255, 256).has(254));
}

#[test]
fn a_place_is_a_member_and_a_slot() {
    let place = Place::new(62, SLOTS_MAX - 1);
    assert_eq!((place.member(), place.slot()), (62, SLOTS_MAX - 1));
    assert_eq!(Place::of_number(place.number()), Some(place));
    assert_eq!(Place::of_number(PLACE_NONE), None);
}

#[test]
fn a_record_comes_back_as_it_was() {
    let entry = |extent| Entry {
        kind: if extent % 7 == 3 { EntryKind::Lost } else { EntryKind::State },
        extent,
        place: Place::new(3, extent).number(),
        heat: 9,
        blocks: Blocks::range(extent as usize, 200),
    };
    let entries = (0..ENTRIES_MAX as u32).map(entry).collect();
    let record = Record { epoch: 3, seq: 77, confirmed: 70, durable: 69, entries };
    let mut bytes = vec![0xaa; BLOCK_SIZE];
    record.encode(11, &mut bytes);
    assert_eq!(Record::decode(11, &bytes).unwrap(), record);
    assert!(Record::decode(12, &bytes).is_err());
    for at in (0..BLOCK_SIZE).step_by(101) {
        let mut torn = bytes.clone();
        torn[at..].fill(0xff);
        assert!(Record::decode(11, &torn).is_err(), "torn at {at}");
    }
}

#[test]
fn a_page_and_a_head_come_back_as_they_were() {
    let entries = (0..PAGE_ENTRIES)
        .map(|n| PageEntry {
            place: Place::new(1, n).number().into(),
            pieces: (n as u16).into(),
            heat: 5,
        })
        .collect();
    let page = Page { number: 4, seq: 99, entries };
    let mut bytes = vec![0; BLOCK_SIZE];
    page.encode(8, &mut bytes);
    let back = Page::decode(8, &bytes).unwrap();
    assert_eq!((back.number, back.seq, back.entries), (4, 99, page.entries));
    bytes[4000] ^= 1;
    assert!(Page::decode(8, &bytes).is_err());
    let head = Head { epoch: 2, tail: 1 << 40 };
    head.encode(8, &mut bytes);
    assert_eq!(Head::decode(8, &bytes).unwrap(), head);
    // The number of the issue: at most 8 bytes of map per MiB of a tier.
    assert!(BLOCK_SIZE as u32 <= 8 * PAGE_ENTRIES);
}

#[test]
fn an_impossible_superblock_is_refused() {
    let mut superblock = Superblock::empty();
    superblock.block.name[..2].copy_from_slice(b"v1");
    superblock.block.member_count = 2;
    superblock.block.holders = [1, UNHELD];
    superblock.block.bytes = (5 * EXTENT_SIZE).into();
    superblock.block.extents_max = 8.into();
    superblock.block.journal_blocks = 64.into();
    for member in &mut superblock.block.members[..2] {
        member.state = member_state::IN;
        member.slots = 100.into();
    }
    let decoded = |superblock: &Superblock| {
        let mut bytes = vec![0; BLOCK_SIZE];
        superblock.encode(&mut bytes);
        Superblock::decode(&bytes)
    };
    assert_eq!(decoded(&superblock).unwrap().holders().collect::<Vec<_>>(), [1]);
    let bad: [fn(&mut Superblock); 10] = [
        |it| it.block.member_count = 0,
        |it| it.block.member = 2,
        |it| it.block.holders = [7, UNHELD],
        |it| it.block.holders = [UNHELD; 2],
        |it| it.block.bytes = (9 * EXTENT_SIZE).into(),
        |it| it.block.journal_blocks = 63.into(),
        |it| it.block.extents_max = (8 * 84 + 1).into(),
        |it| it.block.members[1].slots = u32::MAX.into(),
        |it| it.block.epoch = u64::MAX.into(),
        |it| it.block.name[0] = b'/',
    ];
    for (number, change) in bad.iter().enumerate() {
        let mut changed = superblock.clone();
        change(&mut changed);
        assert!(decoded(&changed).is_err(), "change {number}");
    }
}

#[test]
fn what_no_map_says_is_refused() {
    let mut bytes = vec![0; BLOCK_SIZE];
    let mut decoded = |place: u32, pieces: u16, heat: u8, seq: u64| {
        let entries = vec![PageEntry { place: place.into(), pieces: pieces.into(), heat }];
        Page { number: 0, seq, entries }.encode(8, &mut bytes);
        Page::decode(8, &bytes).is_ok()
    };
    let (place, beyond) = (Place::new(1, 2).number(), u32::MAX - 1);
    assert!(decoded(place, 3, 9, 7) && decoded(PLACE_NONE, 0, 9, 7));
    assert!(!decoded(PLACE_NONE, 3, 0, 7), "written, and nowhere");
    assert!(!decoded(PLACE_NONE, 0, PageEntry::FINE, 7), "partly written, and nowhere");
    assert!(!decoded(beyond, 3, 0, 7), "a place that no member has");
    assert!(!decoded(place, 3, 0, u64::MAX), "a number that no record has");
    let mut decoded = |kind, place, blocks| {
        let entries = vec![Entry { kind, extent: 1, place, heat: 0, blocks }];
        Record { epoch: 1, seq: 5, confirmed: 4, durable: 3, entries }.encode(8, &mut bytes);
        Record::decode(8, &bytes).is_ok()
    };
    assert!(decoded(EntryKind::State, place, Blocks::ALL));
    assert!(decoded(EntryKind::State, PLACE_NONE, Blocks::NONE));
    assert!(decoded(EntryKind::Lost, PLACE_NONE, Blocks::ALL));
    assert!(!decoded(EntryKind::State, PLACE_NONE, Blocks::ALL));
    assert!(!decoded(EntryKind::State, beyond, Blocks::NONE));
    Head { epoch: 1, tail: 0 }.encode(8, &mut bytes);
    assert!(Head::decode(8, &bytes).is_err(), "records are numbered from 1");
}
