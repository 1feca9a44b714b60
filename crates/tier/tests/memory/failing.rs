//! Devices that fail to keep what they have, or to write the map.

use crate::world::{Fate, JOURNAL_BLOCKS, World, filled, member, spec, still};
use forebay_format::io::IoError;
use forebay_format::tier::{EXTENT_SIZE, JOURNAL_OFFSET, SUPERBLOCK_OFFSETS};
use forebay_tier::*;
use std::cell::Cell;
use std::rc::Rc;

const BLOCK: u64 = 4096;

fn two() -> World {
    World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), still())
}

fn pin(first: u32, tier: u8) -> Command {
    Command::Pin { first, count: 1, tier: Some(tier) }
}

fn flush(world: &mut World) -> Result<(), IoError> {
    world.ask(Io::Flush).result
}

/// All writes of records fail.
fn break_map(world: &mut World) {
    let records = JOURNAL_OFFSET..JOURNAL_OFFSET + u64::from(JOURNAL_BLOCKS) * BLOCK;
    world.decide(move |effect| match effect {
        Effect::Write { offset, .. } if records.contains(offset) => Fate::Fails,
        _ => Fate::Done,
    });
}

#[test]
fn a_flush_fails_until_the_device_has_kept_what_it_was_asked_to() {
    // The map is on the first two tiers.
    let tiers = (0..3).map(|tier| member(tier + 1, tier, 4)).collect();
    let mut world = World::new(&spec(tiers, 4), still());
    let bad = MemberId(2);
    assert_eq!(world.command(pin(0, 2)), CommandReply::Changed);
    world.write(0, 4096, 1);
    world.write(EXTENT_SIZE, 64 << 10, 2);
    assert_eq!(flush(&mut world), Ok(()));
    world.write(0, 4096, 3);
    world.decide(move |effect| match effect {
        Effect::Flush { member, .. } if *member == bad => Fate::Fails,
        _ => Fate::Done,
    });
    for _ in 0..4 {
        assert_eq!(flush(&mut world), Err(IoError::Io), "it is in the cache of the device still");
    }
    // What has nothing to do with that device goes on.
    assert_eq!(world.command(pin(1, 1)), CommandReply::Changed);
    world.pass(20);
    assert_eq!(world.tiers.place_of(1).map(|it| it.0), Some(MemberId(1)));
    assert_eq!(world.tiers.free_slots(MemberId(0)), 4);
    let asked = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked);
    world.decide(move |effect| {
        let is_asked = matches!(effect, Effect::Flush { member, .. } if *member == bad);
        count.set(count.get() + u32::from(is_asked));
        Fate::Done
    });
    let answers: Vec<_> = (0..3).map(|_| flush(&mut world)).collect();
    assert_eq!(answers[2], Ok(()), "{answers:?}");
    // Once for the FLUSH; the others keep superblocks, which say that somebody has heard of it.
    assert!((1..=3).contains(&asked.get()), "{} flushes", asked.get());
    assert_eq!(world.byte(0), Ok(3));
}

#[test]
fn padding_does_not_bring_lost_blocks_back() {
    let tuning = Tuning { fine_max: 1, ..still() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), tuning);
    world.write(0, 64 << 10, 1);
    let mut world = world.again_without(&[0], tuning);
    assert_eq!(world.command(Command::GiveUp(MemberId(0))), CommandReply::Changed);
    // So many extents are remembered by their blocks, and not more: a whole piece is written.
    world.write(BLOCK, 4096, 2);
    let expected = [Err(IoError::Io), Ok(2), Err(IoError::Io)];
    let read = |world: &mut World| [0, BLOCK, 2 * BLOCK].map(|at| world.byte(at));
    assert_eq!(read(&mut world), expected);
    let mut world = world.again_without(&[0], tuning);
    assert_eq!(read(&mut world), expected);
    world.write(0, 4096, 3);
    assert_eq!(world.ask(Io::Discard { offset: 2 * BLOCK, len: 60 << 10 }).result, Ok(()));
    assert_eq!(world.byte(0), Ok(3));
}

#[test]
fn writes_fail_when_nobody_holds_the_map() {
    let mut world = two();
    world.write(0, 4096, 1);
    break_map(&mut world);
    let write = |offset| Io::Write { offset, buf: filled(4096, 2) };
    assert_eq!(world.ask(write(EXTENT_SIZE)).result, Err(IoError::Io));
    // What the next start would not know of is not answered for, nor anything else.
    assert_eq!(world.ask(write(EXTENT_SIZE)).result, Err(IoError::Io));
    assert_eq!(world.ask(write(0)).result, Err(IoError::Io));
    let discard = Io::Discard { offset: 0, len: EXTENT_SIZE };
    assert_eq!(world.ask(discard).result, Err(IoError::Io));
    let zero = Io::Zero { offset: 0, len: 4096, unmap: true };
    assert_eq!(world.ask(zero).result, Err(IoError::Io));
    assert_eq!(world.byte(0), Ok(1));
}

#[test]
fn who_waits_for_a_place_is_told_that_nobody_holds_the_map() {
    let mut world = World::new(&spec(vec![member(1, 0, 1), member(2, 1, 1)], 2), still());
    world.write(0, 4096, 1);
    world.write(EXTENT_SIZE, 4096, 1);
    assert_eq!(flush(&mut world), Ok(()));
    world.decide(|effect| match effect {
        Effect::Flush { .. } => Fate::Held,
        _ => Fate::Done,
    });
    let discard = Io::Discard { offset: 0, len: EXTENT_SIZE };
    assert_eq!(world.ask(discard).result, Ok(()));
    let write = world.submit(Io::Write { offset: 0, buf: filled(4096, 2) });
    world.pass(2);
    assert_eq!(world.answer(write), None, "the place is free when that is confirmed");
    world.fail_held();
    world.pass(5);
    assert_eq!(world.answer(write), Some(Err(IoError::Io)));
}

#[test]
fn a_stop_ends_though_nobody_holds_the_map() {
    let mut world = two();
    world.write(0, 64 << 10, 1);
    assert_eq!(flush(&mut world), Ok(()));
    world.decide(|effect| match effect {
        Effect::Flush { .. } => Fate::Held,
        _ => Fate::Done,
    });
    world.begin(Command::Evacuate(vec![MemberId(0)]));
    world.pass(10);
    assert_eq!(world.tiers.place_of(0).map(|it| it.0), Some(MemberId(1)), "nothing confirms it");
    world.fail_held();
    world.pass(10);
    world.release();
    assert_eq!(world.done.pop(), Some(CommandReply::Refused(Refusal::Failed)));
    assert_eq!(world.command(Command::Stop), CommandReply::Refused(Refusal::Failed));
    assert!(world.tiers.is_stopped() && world.done.is_empty());
}

#[test]
fn a_stop_is_answered_once_though_nobody_gets_its_superblock() {
    let mut world = two();
    world.write(0, 4096, 1);
    world.decide(|effect| match effect {
        Effect::Write { offset, .. } if SUPERBLOCK_OFFSETS.contains(offset) => Fate::Fails,
        _ => Fate::Done,
    });
    assert_eq!(world.command(Command::Stop), CommandReply::Refused(Refusal::Failed));
    world.pass(5);
    assert!(world.tiers.is_stopped() && world.done.is_empty());
}

#[test]
fn another_takes_the_map_over_when_one_fails_to_keep_it() {
    let tiers = (0..3).map(|tier| member(tier + 1, tier, 4)).collect();
    let mut world = World::new(&spec(tiers, 4), still());
    world.write(0, 4096, 1);
    world.broken = Some(MemberId(0));
    world.write(EXTENT_SIZE, 4096, 2);
    world.pass(20);
    let view = world.tiers.view();
    let holders: Vec<u8> =
        view.members.iter().filter(|it| it.is_holder).map(|it| it.member.0).collect();
    assert_eq!(holders, [1, 2]);
    assert!(world.notices.contains(&Notice::HolderFound(MemberId(2))));
    assert_eq!(flush(&mut world), Ok(()));
    // Its copy alone is the map.
    let mut world = World::open(world.without(&[1]), still());
    assert_eq!((world.byte(0), world.byte(EXTENT_SIZE)), (Ok(1), Ok(2)));
}
