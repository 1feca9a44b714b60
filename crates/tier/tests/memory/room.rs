//! Devices that say that they have no room though their tier has: sparse files on a file system
//! that is full, thin devices.

use crate::world::{World, member, spec, still};
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::{EXTENT_SIZE, TierLayout};
use forebay_tier::*;

const FAST: MemberId = MemberId(0);
const SLOW: MemberId = MemberId(1);
const SECOND: u64 = 1_000_000_000;

fn world() -> World {
    World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still())
}

fn lives_on(world: &World, extent: u32) -> Option<MemberId> {
    world.tiers.place_of(extent).map(|it| it.0)
}

/// How a write ends.
fn try_write(world: &mut World, offset: u64, len: usize, byte: u8) -> Result<(), IoError> {
    let mut buf = Buf::zeroed(len);
    buf.bytes_mut().fill(byte);
    world.ask(Io::Write { offset, buf }).result
}

#[test]
fn a_new_extent_goes_to_the_next_tier_where_a_device_has_no_room() {
    let mut world = world();
    world.full.insert(FAST);
    world.write(0, 4096, 1);
    assert_eq!(lives_on(&world, 0), Some(SLOW));
    // It is left alone for a while, and then tried again.
    world.full.clear();
    world.write(EXTENT_SIZE, 4096, 2);
    assert_eq!(lives_on(&world, 1), Some(SLOW));
    world.now += 11 * SECOND;
    world.write(2 * EXTENT_SIZE, 4096, 3);
    assert_eq!(lives_on(&world, 2), Some(FAST));
    for extent in 0..3 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![extent as u8 + 1; 4096]);
    }
}

#[test]
fn an_extent_that_cannot_grow_leaves_before_its_write_is_answered() {
    let mut world = world();
    for block in [0, 7, 100] {
        world.write(block * 4096, 4096, block as u8 + 1);
    }
    assert_eq!(lives_on(&world, 0), Some(FAST));
    world.full.insert(FAST);
    // What is there may be written again where it is.
    world.write(7 * 4096, 4096, 77);
    assert_eq!(lives_on(&world, 0), Some(FAST));
    // Half a block, new: the rest of it is zeros wherever it lands. Moves of all others are paused.
    assert_eq!(world.command(Command::Pause), CommandReply::Changed);
    world.write(200 * 4096 + 512, 1024, 9);
    assert_eq!(lives_on(&world, 0), Some(SLOW));
    let wanted = |world: &mut World| {
        assert_eq!(world.read(0, 4096), vec![1; 4096]);
        assert_eq!(world.read(7 * 4096, 4096), vec![77; 4096]);
        assert_eq!(world.read(100 * 4096, 4096), vec![101; 4096]);
        let block = world.read(200 * 4096, 4096);
        assert!(block[..512].iter().chain(&block[1536..]).all(|&byte| byte == 0));
        assert!(block[512..1536].iter().all(|&byte| byte == 9));
    };
    wanted(&mut world);
    // It is in the map.
    wanted(&mut world.again(still()));
}

#[test]
fn many_writes_of_one_extent_find_no_room_at_once() {
    let mut world = world();
    world.write(0, 4096, 1);
    world.full.insert(FAST);
    // One request of two extents, and others beside it.
    let mut out = Vec::new();
    for number in 0..8_u64 {
        let mut buf = Buf::zeroed(4096);
        buf.bytes_mut().fill(number as u8 + 10);
        let io = Io::Write { offset: (16 * number + 8) * 4096, buf };
        world.tiers.handle(world.now, Event::Submit(IoId(100 + number), io), &mut out);
    }
    let mut buf = Buf::zeroed(2 << 20);
    buf.bytes_mut().fill(5);
    let io = Io::Write { offset: EXTENT_SIZE, buf };
    world.tiers.handle(world.now, Event::Submit(IoId(200), io), &mut out);
    world.run(out);
    world.pass(5);
    assert_eq!(world.replies.len(), 9);
    for (id, done) in world.replies.drain(..) {
        assert_eq!(done.result, Ok(()), "{id:?}");
        let len = if id == IoId(200) { 2 << 20 } else { 4096 };
        assert_eq!(done.buf.len(), len, "{id:?} gets its own buffer back");
    }
    for number in 0..8_u64 {
        let read = world.read((16 * number + 8) * 4096, 4096);
        assert_eq!(read, vec![number as u8 + 10; 4096]);
    }
    assert_eq!(world.read(EXTENT_SIZE, 2 << 20), vec![5; 2 << 20]);
    assert_eq!(world.read(0, 4096), vec![1; 4096]);
    for extent in 0..3 {
        assert_eq!(lives_on(&world, extent), Some(SLOW));
    }
}

#[test]
fn there_is_no_room_for_a_client_only_where_there_is_none_anywhere() {
    let mut world = world();
    world.write(0, 4096, 1);
    world.full.extend([FAST, SLOW]);
    assert_eq!(try_write(&mut world, 8192, 4096, 2), Err(IoError::NoSpace));
    assert_eq!(try_write(&mut world, 3 * EXTENT_SIZE, 4096, 2), Err(IoError::NoSpace));
    // All else goes on, and no place is kept by what was refused.
    world.write(0, 4096, 3);
    assert_eq!(world.read(0, 4096), vec![3; 4096]);
    assert_eq!(world.read(8192, 4096), vec![0; 4096]);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    world.pass(5);
    assert_eq!(world.tiers.free_slots(FAST), 3);
    assert_eq!(world.tiers.free_slots(SLOW), 8);
    world.full.clear();
    world.now += 11 * SECOND;
    world.write(8192, 4096, 4);
    world.write(3 * EXTENT_SIZE, 4096, 5);
    assert_eq!(world.read(8192, 4096), vec![4; 4096]);
}

#[test]
fn what_cannot_be_read_where_there_is_no_room_stays_and_the_write_fails() {
    let mut world = world();
    world.write(0, 4096, 1);
    world.full.insert(FAST);
    world.unreadable.insert(FAST);
    assert_eq!(try_write(&mut world, 8192, 4096, 2), Err(IoError::NoSpace));
    assert_eq!(lives_on(&world, 0), Some(FAST));
    world.unreadable.clear();
    world.now += 2 * SECOND;
    world.write(8192, 4096, 3);
    assert_eq!(lives_on(&world, 0), Some(SLOW));
    assert_eq!(world.read(0, 4096), vec![1; 4096]);
}

#[test]
fn nothing_is_moved_to_a_device_that_has_no_room() {
    let tuning = Tuning { reserve_per_mille: 250, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 20)], 20), tuning);
    world.full.insert(FAST);
    for extent in 0..6_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, extent as u8 + 1);
    }
    world.notices.clear();
    for _ in 0..60 {
        world.read(5 * EXTENT_SIZE, 4096);
        world.pass(1);
    }
    assert!(world.now < 9 * SECOND, "{}", world.now);
    assert_eq!(lives_on(&world, 5), Some(SLOW));
    assert_eq!(world.tiers.view().members[0].traffic.moved_in_bytes, 0);
    assert_eq!(world.notices, []);
    // When it has some again, what is hot comes up.
    world.full.clear();
    world.now += 11 * SECOND;
    for _ in 0..200 {
        world.read(5 * EXTENT_SIZE, 4096);
        world.pass(3);
    }
    assert_eq!(lives_on(&world, 5), Some(FAST));
}

/// Ten tebibytes that were never written took 81 s: each of their extents was a part of its own, of
/// which a call makes 256.
#[test]
fn what_was_never_written_is_discarded_in_few_calls() {
    const EXTENTS: u64 = 1 << 17;
    let members = vec![member(1, 0, 4), member(2, 1, 8)];
    let set = NewSet {
        bytes_max: EXTENTS * EXTENT_SIZE,
        journal_blocks: TierLayout::journal_blocks_min(EXTENTS as u32),
        overcommit: true,
        ..spec(vec![], EXTENTS)
    };
    let members = members.into_iter().map(|it| NewMember { bytes: it.bytes + (64 << 20), ..it });
    let mut world = World::new(&NewSet { members: members.collect(), ..set }, still());
    for extent in [0, 5, EXTENTS - 1] {
        world.write(extent * EXTENT_SIZE, 4096, 3);
    }
    let mut out = Vec::new();
    let io = Io::Discard { offset: 4096, len: EXTENTS * EXTENT_SIZE - 8192 };
    world.tiers.handle(world.now, Event::Submit(IoId(9), io), &mut out);
    let mut calls = 0;
    while world.replies.is_empty() {
        calls += 1;
        assert!(calls < 100, "{calls} calls and no answer");
        world.tiers.handle(world.now, Event::Tick, &mut out);
        world.run(std::mem::take(&mut out));
    }
    assert_eq!(world.replies.pop().map(|it| it.1.result), Some(Ok(())));
    assert_eq!(world.read(0, 8192), [vec![3; 4096], vec![0; 4096]].concat());
    assert_eq!(world.read(5 * EXTENT_SIZE, 4096), vec![0; 4096]);
    // What is at its end is no whole extent, and stays: the first block is within.
    assert_eq!(world.read((EXTENTS - 1) * EXTENT_SIZE, 4096), vec![0; 4096]);
    assert_eq!([lives_on(&world, 0), lives_on(&world, 5)], [Some(FAST), None]);
}
