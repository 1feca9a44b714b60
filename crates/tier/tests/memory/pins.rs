//! Extents that are pinned, and numbers that change.

use crate::world::{World, member, spec, still};
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;

fn full() -> World {
    let mut world = World::new(&spec(vec![member(1, 0, 2), member(2, 1, 8)], 8), still());
    for extent in 0..5_u64 {
        world.write(extent * EXTENT_SIZE, 4096, extent as u8 + 1);
    }
    world
}

fn tier_of(world: &World, extent: u32) -> Option<u8> {
    world.tiers.place_of(extent).map(|it| it.0.0)
}

#[test]
fn what_is_pinned_comes_and_others_make_room() {
    let mut world = full();
    assert_eq!([0, 1, 2, 3].map(|it| tier_of(&world, it)), [Some(0), Some(0), Some(1), Some(1)]);
    let pin = |first, count, tier| Command::Pin { first, count, tier };
    assert_eq!(world.command(pin(2, 2, Some(0))), CommandReply::Changed);
    assert_eq!(world.command(pin(2, 2, Some(0))), CommandReply::Unchanged);
    world.pass(200);
    assert_eq!([0, 1, 2, 3].map(|it| tier_of(&world, it)), [Some(1), Some(1), Some(0), Some(0)]);
    let explained = world.tiers.explain(2).expect("it is inside");
    assert_eq!((explained.pinned, explained.why), (Some(0), NotHigher::Pinned));
    // One that is written for the first time comes to where it is pinned.
    assert_eq!(world.command(pin(7, 1, Some(1))), CommandReply::Changed);
    assert_eq!(world.ask(Io::Discard { offset: 2 * EXTENT_SIZE, len: EXTENT_SIZE }).result, Ok(()));
    world.pass(5);
    world.write(7 * EXTENT_SIZE, 4096, 9);
    assert_eq!(tier_of(&world, 7), Some(1));
    // The tier is emptied nevertheless.
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(tier_of(&world, 3), Some(1));
    assert_eq!(world.read(3 * EXTENT_SIZE, 4096), vec![4; 4096]);
}

#[test]
fn a_pin_that_makes_no_sense_is_refused() {
    let mut world = full();
    let pin = |first, count, tier| Command::Pin { first, count, tier };
    let refused = |world: &mut World, command| match world.command(command) {
        CommandReply::Refused(refusal) => Some(refusal),
        _ => None,
    };
    assert_eq!(refused(&mut world, pin(0, 9, Some(0))), Some(Refusal::Size));
    assert_eq!(refused(&mut world, pin(0, 0, Some(0))), Some(Refusal::Size));
    assert_eq!(refused(&mut world, pin(u32::MAX, u32::MAX, None)), Some(Refusal::Size));
    assert_eq!(refused(&mut world, pin(0, 1, Some(2))), Some(Refusal::NoTier));
    assert_eq!(world.command(pin(0, 1, None)), CommandReply::Unchanged);
}

#[test]
fn numbers_of_the_policy_change_at_run_time() {
    let mut world = full();
    assert_eq!(world.command(Command::Tune(still())), CommandReply::Unchanged);
    let tuning = Tuning { reserve_per_mille: 500, fine_max: 0, ..Tuning::default() };
    assert_eq!(world.command(Command::Tune(tuning)), CommandReply::Changed);
    world.pass(100);
    assert!(world.tiers.free_slots(MemberId(0)) >= 1);
    for extent in 0..5_u64 {
        world.write(extent * EXTENT_SIZE + 8192, 4096, 7);
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![extent as u8 + 1; 4096]);
    }
    let mut world = world.again(still());
    assert_eq!(world.read(8192, 4096), vec![7; 4096]);
}
