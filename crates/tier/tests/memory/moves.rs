//! Moves beside writes and beside devices that fail, and which moves are made.

use crate::world::{Fate, JOURNAL_BLOCKS, World, filled, member, spec, still, superblock};
use forebay_format::io::IoError;
use forebay_format::tier::{EXTENT_SIZE, JOURNAL_OFFSET};
use forebay_tier::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const BLOCK: u64 = 4096;
const SLOW: MemberId = MemberId(1);

/// Two tiers, and a volume of four extents.
fn two() -> World {
    World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), still())
}

fn pin(first: u32, count: u32, tier: u8) -> Command {
    Command::Pin { first, count, tier: Some(tier) }
}

/// Holds writes of so many bytes to slots of a member.
fn hold_writes(world: &mut World, to: MemberId, len: u64) {
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Write { member, offset, buf, .. }
            if *member == to && *offset >= slots && buf.len() as u64 == len =>
        {
            Fate::Held
        }
        _ => Fate::Done,
    });
}

fn place(world: &World, extent: u32) -> Option<MemberId> {
    world.tiers.place_of(extent).map(|it| it.0)
}

#[test]
fn a_write_to_what_is_copied_a_second_time_is_in_the_new_place() {
    let mut world = two();
    world.write(BLOCK, 4096, 1);
    hold_writes(&mut world, SLOW, BLOCK);
    world.begin(Command::Evacuate(vec![MemberId(0)]));
    world.pass(2);
    assert_eq!(world.held.len(), 1, "the block is being copied");
    // Its neighbours are written: the next piece reaches over all three.
    world.write(0, 4096, 2);
    world.write(2 * BLOCK, 4096, 3);
    let copied = std::mem::take(&mut world.held);
    hold_writes(&mut world, SLOW, 3 * BLOCK);
    world.run(copied);
    world.pass(2);
    assert_eq!(world.held.len(), 1, "it is being copied again, as it was");
    world.submit(Io::Write { offset: BLOCK, buf: filled(4096, 4) });
    world.release();
    world.pass(20);
    assert_eq!(place(&world, 0), Some(SLOW));
    assert_eq!(world.byte(BLOCK), Ok(4));
    let mut world = world.again(still());
    assert_eq!([0, BLOCK, 2 * BLOCK].map(|at| world.byte(at)), [Ok(2), Ok(4), Ok(3)]);
}

/// Extents left a tier to which they had been pinned: an evacuation had planned it before it was
/// cancelled.
#[test]
fn what_an_evacuation_planned_is_not_begun_when_it_was_cancelled() {
    let tuning = Tuning { moves_max: 1, ..still() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), tuning);
    for extent in 0..3 {
        world.write(extent * EXTENT_SIZE, 4096, 1);
    }
    hold_writes(&mut world, SLOW, BLOCK);
    world.begin(Command::Evacuate(vec![MemberId(0)]));
    world.pass(1);
    assert_eq!((world.tiers.moving(), world.held.len()), (1, 1), "one leaves, others wait for it");
    assert_eq!(world.command(Command::Cancel(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(world.command(pin(3, 1, 0)), CommandReply::Changed);
    world.release();
    world.pass(100);
    let stay = (0..3).filter(|&extent| place(&world, extent) == Some(MemberId(0))).count();
    assert_eq!((world.tiers.moving(), stay), (0, 2));
    assert_eq!(world.tiers.moved_bytes(), BLOCK, "nor do those that stay move about");
}

#[test]
fn an_extent_goes_back_with_what_was_confirmed_though_both_places_failed() {
    // The map is on the first two tiers.
    let tiers = (0..4).map(|tier| member(tier + 1, tier, 4)).collect();
    let mut world = World::new(&spec(tiers, 4), still());
    let (before, after) = (MemberId(2), MemberId(3));
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.write(0, 3 * 4096, 1);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    assert_eq!(place(&world, 0), Some(before));
    // One that nobody has confirmed, and a newer version of one that was.
    world.write(8 * BLOCK, 4096, 2);
    world.write(BLOCK, 4096, 3);
    world.decide(move |effect| match effect {
        Effect::Flush { member, .. } if [before, after].contains(member) => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 1, 3)), CommandReply::Changed);
    world.pass(10);
    assert_eq!((place(&world, 0), world.held.len()), (Some(after), 2), "it waits to be confirmed");
    world.fail_held();
    world.release();
    world.pass(10);
    assert_eq!(place(&world, 0), Some(before));
    let expected = [Ok(1), Ok(3), Ok(1), Err(IoError::Io)];
    let read = |world: &mut World| [0, BLOCK, 2 * BLOCK, 8 * BLOCK].map(|at| world.byte(at));
    assert_eq!(read(&mut world), expected, "what was confirmed is whole in the old place");
    let mut world = world.again(still());
    assert_eq!(read(&mut world), expected);
}

/// An extent of two blocks that has moved from the third tier to the fourth, which nobody has
/// confirmed: the map is on the first two. Flushes of those and writes to the old place are held.
fn moved() -> (World, MemberId, MemberId) {
    moved_with(|_| false)
}

/// The same, while writes of these members are held.
fn moved_with(is_slow: fn(MemberId) -> bool) -> (World, MemberId, MemberId) {
    let tiers = (0..4).map(|tier| member(tier + 1, tier, 4)).collect();
    let mut world = World::new(&spec(tiers, 4), still());
    let (before, after) = (MemberId(2), MemberId(3));
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.write(0, 2 * 4096, 1);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Flush { member, .. } if [before, after].contains(member) => Fate::Held,
        Effect::Write { member, offset, .. } if *member == before && *offset >= slots => Fate::Held,
        Effect::Write { member, .. } if is_slow(*member) => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 1, 3)), CommandReply::Changed);
    world.pass(10);
    assert_eq!(place(&world, 0), Some(after), "it waits to be confirmed");
    (world, before, after)
}

#[test]
fn a_write_is_not_answered_for_that_the_old_place_misses_to_which_the_extent_goes_back() {
    // The second holder does not have the record yet that says where the extent is now.
    let (mut world, before, after) = moved_with(|member| member == MemberId(1));
    let write = world.submit(Io::Write { offset: BLOCK, buf: filled(4096, 2) });
    assert_eq!(world.held.len(), 3, "it is written in the new place");
    // That fails to flush, and then the write to the old place.
    let is_one = |effect: &mut Effect| match effect {
        Effect::Flush { member, .. } => *member == after,
        Effect::Write { member, .. } => *member == before,
        _ => false,
    };
    let failing: Vec<Effect> = world.held.extract_if(.., is_one).collect();
    let others = std::mem::replace(&mut world.held, failing);
    world.fail_held();
    assert_eq!(place(&world, 0), Some(before));
    assert_eq!(world.answer(write), Some(Err(IoError::Io)));
    world.run(others);
}

#[test]
fn a_write_goes_to_the_new_place_alone_when_all_holders_know_it() {
    let (mut world, before, _) = moved();
    let write = world.submit(Io::Write { offset: BLOCK, buf: filled(4096, 2) });
    assert_eq!((world.held.len(), world.answer(write)), (1, Some(Ok(()))));
    // That fails to flush: what only it has is lost, and nobody is told otherwise.
    world.fail_held();
    world.decide(|_| Fate::Done);
    world.release();
    world.pass(10);
    assert_eq!(place(&world, 0), Some(before));
    let read = |world: &mut World| [0, BLOCK].map(|at| world.byte(at));
    assert_eq!(read(&mut world), [Ok(1), Err(IoError::Io)]);
    assert_eq!(world.ask(Io::Flush).result, Err(IoError::Io));
    let mut world = world.again(still());
    assert_eq!(read(&mut world), [Ok(1), Err(IoError::Io)]);
}

#[test]
fn what_cannot_be_read_where_it_has_just_moved_is_read_where_it_was() {
    let (mut world, _, after) = moved();
    // Only the new place has this one.
    let write = world.submit(Io::Write { offset: BLOCK, buf: filled(4096, 2) });
    assert_eq!(world.answer(write), Some(Ok(())));
    world.unreadable.insert(after);
    let read = |world: &mut World| [0, BLOCK].map(|at| world.byte(at));
    assert_eq!(read(&mut world), [Ok(1), Err(IoError::Io)]);
    world.unreadable.clear();
    assert_eq!(read(&mut world), [Ok(1), Ok(2)]);
}

#[test]
fn a_write_that_waits_for_its_second_place_may_be_lost_in_the_first() {
    let mut world = World::new(&spec((0..4).map(|it| member(it + 1, it, 4)).collect(), 4), still());
    let (from, to) = (MemberId(2), MemberId(3));
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.write(0, 2 << 16, 1);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    // The second piece is not copied yet, and what is written goes to both places.
    world.decide(move |effect| match effect {
        Effect::Write { member, offset, buf, .. }
            if *member == to && (*offset >= slots + (1 << 16) || buf.len() == 18 << 12) =>
        {
            Fate::Held
        }
        Effect::Flush { member, .. } if *member == from => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 1, 3)), CommandReply::Changed);
    world.pass(10);
    assert_eq!(world.held.len(), 1, "the second piece is being copied");
    let write = world.submit(Io::Write { offset: 15 * BLOCK, buf: filled(18 << 12, 2) });
    let flush = world.submit(Io::Flush);
    assert_eq!((world.held.len(), world.answer(write)), (3, None), "one of both places has it");
    let is_flush = |effect: &mut Effect| matches!(effect, Effect::Flush { .. });
    let flushes: Vec<Effect> = world.held.extract_if(.., is_flush).collect();
    let others = std::mem::replace(&mut world.held, flushes);
    world.fail_held();
    world.decide(|_| Fate::Done);
    world.run(others);
    world.pass(10);
    assert_eq!(world.answer(flush), Some(Err(IoError::Io)));
    assert_eq!(world.answer(write), Some(Err(IoError::Io)));
}

#[test]
fn an_extent_that_could_go_up_and_down_moves_once() {
    let members = vec![member(1, 0, 3), member(2, 1, 2), member(3, 2, 8)];
    let mut world = World::new(&spec(members, 8), still());
    assert_eq!(world.command(pin(0, 2, 1)), CommandReply::Changed);
    for extent in 0..2_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, extent as u8 + 1);
    }
    let free = Command::Pin { first: 1, count: 1, tier: None };
    assert_eq!(world.command(free), CommandReply::Changed);
    for _ in 0..50 {
        world.read(EXTENT_SIZE, 4096);
    }
    // Of its tier, where room is wanted, it is the hottest that is not pinned, and the coldest.
    let tuning = Tuning { reserve_per_mille: 300, moves_max: 1, ..Tuning::default() };
    assert_eq!(world.command(Command::Tune(tuning)), CommandReply::Changed);
    world.pass(400);
    assert_eq!(place(&world, 1), Some(MemberId(0)));
    assert_eq!(world.tiers.moved_bytes(), 64 << 10);
}

/// As long as somebody wrote new data the fast tier stayed full of what was old.
#[test]
fn room_is_made_while_new_data_goes_past_the_fast_tier() {
    let tuning = Tuning { reserve_per_mille: 250, reserve_rate: 40_000_000, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 8), member(2, 1, 50)], 58), tuning);
    let mut left = Vec::new();
    for extent in 0..40_u64 {
        let buf = filled(1 << 20, extent as u8 + 1);
        world.submit(Io::Write { offset: extent * EXTENT_SIZE, buf });
        for _ in 0..5 {
            world.now += 2_000_000;
            let mut out = Vec::new();
            world.tiers.handle(world.now, Event::Tick, &mut out);
            world.run(out);
        }
        left.push(world.tiers.view().members[0].traffic.moved_out_bytes);
    }
    // It is slower than what is written, and does not stop.
    let spilled = (0..40).filter(|&it| place(&world, it) == Some(SLOW)).count() as u64;
    assert!(spilled * EXTENT_SIZE > left[39], "{spilled} {left:?}");
    assert!(left[39] >= left[20] + EXTENT_SIZE, "{left:?}");
}

/// What had become hot waited for all that had been proposed before, a minute on a slow disk.
#[test]
fn what_is_hot_by_now_does_not_wait_for_what_was_proposed_before() {
    let tuning = Tuning { move_rate: 1_000_000, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 24), member(2, 1, 32)], 20), tuning);
    assert_eq!(world.command(pin(0, 20, 1)), CommandReply::Changed);
    for extent in 0..20_u64 {
        world.write(extent * EXTENT_SIZE, 1 << 20, 1);
        for _ in 0..extent.min(1) * 20 {
            world.read(extent * EXTENT_SIZE, 4096);
        }
    }
    let free = Command::Pin { first: 0, count: 20, tier: None };
    assert_eq!(world.command(free), CommandReply::Changed);
    let pass = |world: &mut World, ms: u64| {
        for _ in 0..ms / 10 {
            world.tick(world.now + 10_000_000);
        }
    };
    pass(&mut world, 500);
    for _ in 0..200 {
        world.read(0, 4096);
    }
    pass(&mut world, 2500);
    let risen = (1..20).filter(|&it| place(&world, it) == Some(MemberId(0))).count();
    assert_eq!(place(&world, 0), Some(MemberId(0)), "{risen} others have risen");
    assert!(risen < 15, "{risen}");
}

#[test]
fn moves_end_in_the_order_in_which_they_began() {
    let tuning = Tuning { move_rate: 1_000_000, ..still() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), tuning);
    for extent in 0..3_u64 {
        world.write(extent * EXTENT_SIZE, 1 << 20, extent as u8 + 1);
    }
    for extent in [2, 0, 1] {
        assert_eq!(world.command(pin(extent, 1, 1)), CommandReply::Changed);
        world.pass(3);
    }
    assert_eq!(world.tiers.moving(), 3);
    let mut came = Vec::new();
    for _ in 0..1000 {
        world.pass(1);
        let is_new = |it: &u32| place(&world, *it) == Some(SLOW) && !came.contains(it);
        let new: Vec<u32> = (0..3).filter(is_new).collect();
        came.extend(new);
    }
    assert_eq!(came, [2, 0, 1]);
}

/// Where a member was written to beyond its map, in blocks of its first slot, and how many.
fn pieces_to(world: &mut World, to: MemberId) -> Rc<RefCell<Vec<(u64, u64)>>> {
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    let pieces: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
    let own = Rc::clone(&pieces);
    world.decide(move |effect| {
        if let Effect::Write { member, offset, buf, .. } = effect
            && *member == to
            && *offset >= slots
        {
            let piece = (*offset / BLOCK, buf.len() as u64 / BLOCK);
            own.borrow_mut().push(piece);
        }
        Fate::Done
    });
    pieces
}

#[test]
fn a_disk_that_seeks_is_given_one_large_piece_at_a_time() {
    let devices =
        World::new(&spec(vec![member(1, 0, 8), member(2, 1, 8)], 4), still()).without(&[]);
    let mut world = World::open_as(devices, still(), |number, it| MemberSettings {
        piece_blocks: [4, 64][number],
        ..it
    });
    assert_eq!(world.command(pin(0, 4, 0)), CommandReply::Changed);
    (0..4_u64).for_each(|extent| world.write(extent * EXTENT_SIZE, EXTENT_SIZE as usize, 1));
    let slots = superblock(&world.devices[1]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Write { member: SLOW, offset, .. } if *offset >= slots => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 4, 1)), CommandReply::Changed);
    world.pass(20);
    let len = |effect: &Effect| match effect {
        Effect::Write { buf, .. } => buf.len(),
        other => panic!("{other:?} is held"),
    };
    assert_eq!(world.held.iter().map(len).collect::<Vec<usize>>(), [256 << 10]);
    world.release();
    world.pass(200);
    assert!((0..4).all(|extent| place(&world, extent) == Some(SLOW)));
}

/// Its cache took eight pieces at once, and a client's read waited for all of them: with a real
/// kernel and a disk with a cache the p99 of a disk half busy was 3.6 times what it was at rest.
#[test]
fn a_disk_that_seeks_has_the_time_that_a_piece_takes_however_fast_it_says_that_it_has_it() {
    let tuning = Tuning { move_rate: 1_000_000_000, ..still() };
    let devices = World::new(&spec(vec![member(1, 0, 8), member(2, 1, 8)], 4), tuning).without(&[]);
    let mut world = World::open_as(devices, tuning, |number, it| MemberSettings {
        piece_blocks: [4, 64][number],
        ..it
    });
    assert_eq!(world.command(pin(0, 4, 0)), CommandReply::Changed);
    (0..4_u64).for_each(|extent| world.write(extent * EXTENT_SIZE, EXTENT_SIZE as usize, 1));
    let pieces = pieces_to(&mut world, SLOW);
    assert_eq!(world.command(pin(0, 4, 1)), CommandReply::Changed);
    let mut came = Vec::new();
    for _ in 0..250 {
        world.tick(world.now + 1_000_000);
        came.push(pieces.borrow().len());
    }
    assert!(came.windows(9).all(|it| it[8] - it[0] <= 1), "{came:?}");
    // Nor does it wait longer than that.
    assert!(came.windows(15).all(|it| it[14] > it[0] || it[0] == 0 || it[0] == 16), "{came:?}");
    assert_eq!(came.last(), Some(&16));
}

/// One piece behind eight requests moved a megabyte a second, however much the rates allowed.
#[test]
fn moves_have_their_share_of_a_disk_where_many_requests_wait() {
    let tuning = Tuning { move_rate: 1_000_000_000, ..still() };
    let devices = World::new(&spec(vec![member(1, 0, 8), member(2, 1, 8)], 5), tuning).without(&[]);
    let mut world = World::open_as(devices, tuning, |number, it| MemberSettings {
        piece_blocks: [4, 64][number],
        ..it
    });
    assert_eq!(world.command(pin(0, 4, 0)), CommandReply::Changed);
    assert_eq!(world.command(pin(4, 1, 1)), CommandReply::Changed);
    (0..5_u64).for_each(|extent| world.write(extent * EXTENT_SIZE, EXTENT_SIZE as usize, 1));
    for _ in 0..100 {
        world.tick(world.now + 1_000_000);
    }
    assert_eq!(place(&world, 4), Some(SLOW));
    let slots = superblock(&world.devices[1]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Write { member: SLOW, offset, .. } if *offset >= slots => Fate::Held,
        Effect::Read { member: SLOW, .. } => Fate::Held,
        _ => Fate::Done,
    });
    for block in 0..8 {
        let (offset, buf) = (4 * EXTENT_SIZE + block * BLOCK, filled(BLOCK as usize, 0));
        world.submit(Io::Read { offset, buf });
    }
    assert_eq!(world.command(pin(0, 4, 1)), CommandReply::Changed);
    for _ in 0..100 {
        world.tick(world.now + 1_000_000);
    }
    let pieces = world.held.iter().filter(|it| matches!(it, Effect::Write { .. })).count();
    assert_eq!((world.held.len() - pieces, pieces), (8, 2));
    world.release();
}

#[test]
fn an_array_is_given_whole_stripes() {
    for stripe in [48, 128, 256] {
        let devices = two().without(&[]);
        let mut world = World::open_as(devices, still(), |_, it| MemberSettings {
            stripe_blocks: stripe,
            ..it
        });
        world.write(0, 2 * EXTENT_SIZE as usize, 1);
        let pieces = pieces_to(&mut world, SLOW);
        world.begin(Command::Evacuate(vec![MemberId(0)]));
        world.pass(20);
        assert_eq!(place(&world, 1), Some(SLOW));
        let pieces = pieces.borrow();
        assert_eq!(pieces.iter().map(|it| it.1).sum::<u64>(), 512, "each block goes once");
        let stripe = u64::from(stripe);
        let is_whole =
            |it: &&(u64, u64)| it.0.is_multiple_of(stripe) && (it.0 + it.1).is_multiple_of(stripe);
        let whole: u64 = pieces.iter().filter(is_whole).map(|it| it.1).sum();
        // Of each extent the stripes in which it begins and ends are not all its own.
        let shared = if 256 % stripe == 0 { 0 } else { 4 * (stripe - 1) };
        assert!(whole >= 512 - shared, "stripes of {stripe}: {whole} of 512 blocks: {pieces:?}");
    }
}

#[test]
fn moves_do_not_take_a_record_each() {
    let mut world = World::new(&spec(vec![member(1, 0, 32), member(2, 1, 32)], 32), still());
    for extent in 0..24 {
        world.write(extent * EXTENT_SIZE, 4096, 1);
    }
    let written = Rc::new(Cell::new(0));
    let count = Rc::clone(&written);
    let records = JOURNAL_OFFSET..JOURNAL_OFFSET + u64::from(JOURNAL_BLOCKS) * BLOCK;
    world.decide(move |effect| {
        let is_record = matches!(effect, Effect::Write { offset, .. } if records.contains(offset));
        count.set(count.get() + u32::from(is_record));
        Fate::Done
    });
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(world.tiers.free_slots(MemberId(0)), 32);
    // Both members hold the map.
    assert!(written.get() <= 8, "{} writes for 24 moves", written.get());
}

#[test]
fn what_the_old_place_has_missed_is_answered_when_a_start_finds_the_new_one() {
    let mut world = two();
    world.write(0, 4096, 1);
    assert_eq!(world.command(pin(0, 1, 1)), CommandReply::Changed);
    while place(&world, 0) != Some(SLOW) {
        world.pass(1);
    }
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Write { member, offset, .. } if member.0 == 0 && *offset >= slots => Fate::Fails,
        _ => Fate::Done,
    });
    let id = world.submit(Io::Write { offset: 0, buf: filled(4096, 2) });
    assert_eq!(world.answer(id), Some(Ok(())));
    // The process is killed.
    let mut world = World::open(world.devices.clone(), still());
    assert_eq!(world.byte(0), Ok(2));
}
