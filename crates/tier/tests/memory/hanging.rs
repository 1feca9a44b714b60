//! Members that do not answer: who need not wait for them does not.

use crate::world::{Fate, SECOND, World, filled, member, spec, still, superblock};
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;

const BLOCK: u64 = 4096;
/// It does not hold the map.
const FAR: MemberId = MemberId(2);

/// Three tiers, and a volume of four extents.
fn three() -> World {
    let tiers = (0..3).map(|tier| member(tier + 1, tier, 4)).collect();
    World::new(&spec(tiers, 8), still())
}

fn pin(first: u32, count: u32, tier: u8) -> Command {
    Command::Pin { first, count, tier: Some(tier) }
}

/// Nothing that is of extents ends on a member any more, nor does a flush.
fn hang(world: &mut World, who: MemberId) {
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    world.decide(move |effect| match effect {
        Effect::Write { member, offset, .. } | Effect::Read { member, offset, .. }
            if *member == who && *offset >= slots =>
        {
            Fate::Held
        }
        Effect::Flush { member, .. } if *member == who => Fate::Held,
        _ => Fate::Done,
    });
}

/// So many seconds pass.
fn wait(world: &mut World, seconds: u64) {
    let until = world.now + seconds * SECOND;
    while let Some(due) = world.tiers.deadline().filter(|&due| due <= until) {
        world.tick(due);
    }
    world.tick(until);
}

fn answer_in(world: &mut World, seconds: u64, io: Io) -> Option<Result<(), IoError>> {
    let id = world.submit(io);
    assert_eq!(world.answer(id), None, "it has something to wait for");
    wait(world, seconds);
    world.answer(id)
}

fn place(world: &World, extent: u32) -> Option<MemberId> {
    world.tiers.place_of(extent).map(|it| it.0)
}

fn write_of(offset: u64, byte: u8) -> Io {
    Io::Write { offset, buf: filled(4096, byte) }
}

/// An extent on the first tier that moves to the last, of which one piece is there.
fn one_piece_there() -> World {
    let mut world = three();
    world.write(0, EXTENT_SIZE as usize, 1);
    let slots = superblock(&world.devices[0]).expect("it is a member").layout().slots_offset();
    let mut pieces = 0;
    world.decide(move |effect| match effect {
        Effect::Write { member, offset, .. } if *member == FAR && *offset >= slots => {
            pieces += 1;
            if pieces > 1 { Fate::Held } else { Fate::Done }
        }
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.pass(20);
    assert_eq!(world.held.len(), 1, "a piece is under way");
    hang(&mut world, FAR);
    world
}

/// The first extent comes to the last tier, which is not confirmed; then that hangs.
fn come(world: &mut World) {
    world.decide(|effect| match effect {
        Effect::Flush { member, .. } if *member == FAR => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.pass(20);
    assert_eq!(place(world, 0), Some(FAR), "it is not confirmed");
    hang(world, FAR);
}

#[test]
fn a_write_does_not_wait_for_a_copy_on_a_member_that_hangs() {
    let mut world = one_piece_there();
    assert_eq!(answer_in(&mut world, 7, write_of(0, 2)), Some(Ok(())));
    assert_eq!(place(&world, 0), Some(MemberId(0)));
    let view = world.tiers.view();
    assert_eq!((view.moving, view.pending.get(&Pending::NoAnswer)), (0, Some(&1)));
    let before = world.held.len();
    wait(&mut world, 60);
    assert_eq!(world.held.len(), before, "it gets nothing new");
    // When it answers again all goes on.
    world.release();
    wait(&mut world, 30);
    assert_eq!(place(&world, 0), Some(FAR));
    assert_eq!((world.byte(0), world.byte(BLOCK)), (Ok(2), Ok(1)));
    let mut world = world.again(still());
    assert_eq!((world.byte(0), world.byte(BLOCK)), (Ok(2), Ok(1)));
}

#[test]
fn a_flush_does_not_wait_for_a_member_that_has_copies_alone() {
    let mut world = one_piece_there();
    world.write(EXTENT_SIZE, 4096, 3);
    assert_eq!(answer_in(&mut world, 7, Io::Flush), Some(Ok(())));
    world.write(2 * EXTENT_SIZE, 4096, 4);
    assert_eq!(world.ask(Io::Flush).result, Ok(()), "the next does not ask it");
    // With the power they are what was flushed.
    let mut world = World::open(world.without(&[2]), still());
    assert_eq!([0, 1, 2].map(|at| world.byte(at * EXTENT_SIZE)), [Ok(1), Ok(3), Ok(4)]);
}

#[test]
fn a_flush_waits_for_what_lives_on_a_member_that_hangs() {
    let mut world = three();
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.write(0, 4096, 1);
    hang(&mut world, FAR);
    assert_eq!(answer_in(&mut world, 60, Io::Flush), None);
    world.release();
    world.pass(2);
    assert_eq!(world.replies.pop().map(|it| it.1.result), Some(Ok(())));
}

#[test]
fn what_has_just_come_to_a_member_that_hangs_goes_back() {
    let mut world = three();
    world.write(0, EXTENT_SIZE as usize, 1);
    come(&mut world);
    let read = Io::Read { offset: BLOCK, buf: Buf::zeroed(4096) };
    let id = world.submit(read);
    wait(&mut world, 7);
    let at = world.replies.iter().position(|it| it.0 == id).expect("it is answered");
    let (_, done) = world.replies.remove(at);
    assert_eq!((done.result, done.buf.bytes()[0]), (Ok(()), 1));
    assert_eq!(place(&world, 0), Some(MemberId(0)));
    world.write(0, 4096, 2);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    world.release();
    wait(&mut world, 100);
    assert_eq!(place(&world, 0), Some(FAR));
    assert_eq!((world.byte(0), world.byte(BLOCK)), (Ok(2), Ok(1)));
}

#[test]
fn new_extents_come_to_a_member_that_hangs_where_nobody_else_has_room() {
    let tiers = (0..3).map(|tier| member(tier + 1, tier, 2)).collect();
    let mut world = World::new(&spec(tiers, 6), still());
    world.write(0, 4096, 1);
    hang(&mut world, MemberId(0));
    assert_eq!(answer_in(&mut world, 7, write_of(0, 2)), None);
    for extent in 1..5 {
        world.write(extent * EXTENT_SIZE, 4096, 3);
        assert_ne!(place(&world, extent as u32), Some(MemberId(0)));
    }
    let id = world.submit(write_of(5 * EXTENT_SIZE, 4));
    world.release();
    assert_eq!(world.answer(id), Some(Ok(())));
    assert_eq!(place(&world, 5), Some(MemberId(0)));
}

/// Nothing ends on a member any more.
fn hang_as_a_whole(world: &mut World, who: MemberId) {
    world.decide(move |effect| match effect {
        Effect::Write { member, .. }
        | Effect::Read { member, .. }
        | Effect::Flush { member, .. }
        | Effect::Discard { member, .. }
            if *member == who =>
        {
            Fate::Held
        }
        _ => Fate::Done,
    });
}

#[test]
fn a_flush_waits_for_a_holder_of_the_map_that_hangs() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    world.write(0, 4096, 1);
    hang_as_a_whole(&mut world, MemberId(1));
    world.submit(write_of(EXTENT_SIZE, 2));
    assert_eq!(answer_in(&mut world, 60, Io::Flush), None);
    world.release();
    world.pass(2);
    assert_eq!(world.replies.pop().map(|it| it.1.result), Some(Ok(())));
    // What was answered a start finds with any of them.
    let mut world = World::open(world.without(&[0]), still());
    assert_eq!(world.tiers.place_of(1), Some((MemberId(0), 1)));
    assert_eq!(world.byte(EXTENT_SIZE), Err(IoError::Io), "it lives on who is gone");
}

#[test]
fn who_is_given_up_may_hang() {
    let mut world = three();
    world.write(0, 4096, 1);
    hang_as_a_whole(&mut world, FAR);
    assert_eq!(world.command(pin(1, 1, 2)), CommandReply::Changed);
    assert_eq!(answer_in(&mut world, 7, write_of(EXTENT_SIZE, 2)), None);
    world.begin(Command::GiveUp(FAR));
    // The executor ends what is under way there.
    world.fail_held();
    world.pass(2);
    assert_eq!(world.done.pop(), Some(CommandReply::Changed));
    world.write(EXTENT_SIZE, 4096, 3);
    assert_eq!((world.byte(0), world.byte(EXTENT_SIZE)), (Ok(1), Ok(3)));
}

#[test]
fn a_flush_waits_for_what_went_back_to_a_member_that_hangs() {
    let tiers = (0..4).map(|tier| member(tier + 1, tier, 4)).collect();
    let mut world = World::new(&spec(tiers, 8), still());
    let (from, to) = (MemberId(2), MemberId(3));
    assert_eq!(world.command(pin(0, 1, 2)), CommandReply::Changed);
    world.write(0, EXTENT_SIZE as usize, 1);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    assert_eq!(world.command(pin(0, 1, 3)), CommandReply::Changed);
    while place(&world, 0) != Some(to) {
        world.pass(1);
    }
    // It is written at both places; then the flush of the new one fails, and the old one hangs.
    let id = world.submit(write_of(0, 2));
    assert_eq!(world.answer(id), Some(Ok(())));
    let mut has_failed = false;
    world.decide(move |effect| match effect {
        Effect::Flush { member, .. } if *member == to && !has_failed => {
            has_failed = true;
            Fate::Fails
        }
        Effect::Flush { member, .. } | Effect::Read { member, .. } if *member == from => Fate::Held,
        _ => Fate::Done,
    });
    world.submit(Io::Flush);
    wait(&mut world, 3);
    assert_eq!(place(&world, 0), Some(from));
    wait(&mut world, 10);
    assert_ne!(answer_in(&mut world, 60, Io::Flush), Some(Ok(())), "it is durable nowhere");
}

#[test]
fn a_write_that_is_under_way_where_its_extent_has_come_to_is_waited_for() {
    let mut world = three();
    world.write(0, 4096, 1);
    come(&mut world);
    // A block that was never written, when all know where the extent is.
    let id = world.submit(write_of(BLOCK, 2));
    wait(&mut world, 20);
    assert_eq!(world.answer(id), None);
    world.release();
    assert_eq!(world.answer(id), Some(Ok(())));
    assert_eq!((world.byte(0), world.byte(BLOCK)), (Ok(1), Ok(2)));
}

#[test]
fn a_flush_waits_for_a_holder_of_which_the_flush_alone_hangs() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    world.write(0, 4096, 1);
    world.decide(|effect| match effect {
        Effect::Flush { member, .. } if member.0 == 1 => Fate::Held,
        _ => Fate::Done,
    });
    assert_eq!(answer_in(&mut world, 60, Io::Flush), None, "its copy of the map is not kept");
    world.release();
    world.pass(2);
    assert_eq!(world.replies.pop().map(|it| it.1.result), Some(Ok(())));
}
