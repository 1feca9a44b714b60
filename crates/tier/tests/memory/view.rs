//! What is shown of the machine.

use crate::world::{World, member, spec, still};
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;

#[test]
fn a_view_tells_who_is_there_and_what_they_did() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    for extent in 0..3_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, 7);
    }
    world.read(0, 4096);
    let view = world.tiers.view();
    let [fast, slow] = view.members[..] else { panic!("two members") };
    assert_eq!((fast.state, fast.tier, fast.slots, fast.used), (MemberState::In, 0, 4, 3));
    assert!(fast.is_here && fast.is_holder && slow.is_holder);
    assert_eq!((fast.traffic.writes, fast.traffic.written_bytes), (3, 3 * (64 << 10)));
    assert_eq!((fast.traffic.reads, fast.traffic.read_bytes), (1, 4096));
    assert_eq!((view.extents, view.placed, view.away, view.lost), (8, 3, 0, 0));
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    let view = world.tiers.view();
    assert_eq!(view.members[0].state, MemberState::Leaving);
    let members = vec![MemberId(0)];
    assert_eq!(view.evacuations, [Evacuation { tier: 0, members, is_whole: true, left: 0 }]);
    assert_eq!(view.members[0].traffic.moved_out_bytes, 3 * (64 << 10));
    assert_eq!(view.members[1].traffic.moved_in_bytes, 3 * (64 << 10));
    assert!(view.pending.is_empty());
}

#[test]
fn an_extent_is_explained() {
    let tuning = Tuning { reserve_per_mille: 0, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 2), member(2, 1, 8)], 8), tuning);
    for extent in 0..4_u64 {
        world.write(extent * EXTENT_SIZE, 4096, 7);
    }
    world.pass(5);
    let why = |world: &World, extent| world.tiers.explain(extent).expect("it is inside").why;
    assert_eq!(why(&world, 0), NotHigher::Fastest);
    assert!(matches!(why(&world, 3), NotHigher::TooCold { .. }));
    assert_eq!(why(&world, 7), NotHigher::Unwritten);
    assert_eq!(world.tiers.explain(8), None);
    for _ in 0..50 {
        world.read(0, 4096);
        world.read(EXTENT_SIZE, 4096);
    }
    for _ in 0..40 {
        world.read(3 * EXTENT_SIZE, 4096);
    }
    for _ in 0..20 {
        world.pass(1);
    }
    assert!(matches!(why(&world, 3), NotHigher::HigherIsFull { .. }), "{:?}", why(&world, 3));
    let explained = world.tiers.explain(3).expect("it is inside");
    assert_eq!((explained.tier, explained.blocks), (Some(1), (1, 0)));
}

#[test]
fn what_is_lost_with_a_device_is_listed() {
    let mut world = World::new(&spec(vec![member(1, 0, 2), member(2, 1, 8)], 8), still());
    for extent in 0..5_u64 {
        world.write(extent * EXTENT_SIZE, 4096, 7);
    }
    let mut world = world.again_without(&[1], still());
    assert!(world.tiers.lost().eq(std::iter::once(2 * EXTENT_SIZE..5 * EXTENT_SIZE)));
    let view = world.tiers.view();
    assert_eq!((view.away, view.lost, view.members[1].is_here), (3, 0, false));
    assert_eq!(world.tiers.explain(3).map(|it| it.why), Some(NotHigher::Lost));
    assert_eq!(world.read(0, 4096), vec![7; 4096]);
}

#[test]
fn a_member_that_fails_is_seen_for_a_while_and_counted_for_ever() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    world.write(0, 4096, 7);
    assert!(world.tiers.view().members.iter().all(|it| !it.is_sick && it.errors.reads == 0));
    world.unreadable.insert(MemberId(0));
    let read = Io::Read { offset: 0, buf: Buf::zeroed(4096) };
    assert_eq!(world.ask(read).result, Err(IoError::Io));
    let [fast, slow] = world.tiers.view().members[..] else { panic!("two members") };
    assert_eq!((fast.is_sick, fast.errors.reads, fast.errors.writes), (true, 1, 0));
    assert_eq!((slow.is_sick, slow.errors), (false, Errors::default()));
    world.now += 301_000_000_000;
    world.read(EXTENT_SIZE, 4096);
    let fast = world.tiers.view().members[0];
    assert_eq!((fast.is_sick, fast.errors.reads), (false, 1));
}

#[test]
fn a_copy_of_the_map_that_is_lost_is_told_until_another_takes_its_place() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    world.broken = Some(MemberId(1));
    world.write(0, 4096, 7);
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    let lost: Vec<bool> = world.tiers.view().members.iter().map(|it| it.lost_map).collect();
    assert_eq!(lost, [false, true]);
    world.broken = None;
    let world = world.again(still());
    assert!(world.tiers.view().members.iter().all(|it| it.is_holder && !it.lost_map));
}

#[test]
fn an_io_that_does_not_end_is_seen() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    let mut out = Vec::new();
    let io = Io::Write { offset: 0, buf: Buf::zeroed(4096) };
    world.tiers.handle(world.now, Event::Submit(IoId(7), io), &mut out);
    world.now += 9_000_000_000;
    world.tiers.handle(world.now, Event::Tick, &mut out);
    let waits: Vec<u64> = world.tiers.view().members.iter().map(|it| it.waits_ns).collect();
    assert_eq!(waits, [9_000_000_000, 0]);
    world.run(out);
    assert!(world.tiers.view().members.iter().all(|it| it.waits_ns == 0));
}
