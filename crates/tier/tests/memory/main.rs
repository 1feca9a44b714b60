//! The machine on devices that are memory, each I/O of which ends at once.

mod failing;
mod hanging;
mod members;
mod moves;
mod older;
mod pins;
mod room;
mod single;
mod view;
mod world;

use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;
use world::{World, member, spec, still};

#[test]
fn what_was_never_written_is_zeros_and_what_was_stays() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 12), still());
    assert_eq!(world.read(5 * EXTENT_SIZE - 4096, 8192), vec![0; 8192]);
    world.write(EXTENT_SIZE - 512, 1024, 7);
    let around = world.read(EXTENT_SIZE - 4096, 8192);
    assert!(around[..3584].iter().all(|&byte| byte == 0));
    assert!(around[3584..4608].iter().all(|&byte| byte == 7));
    assert!(around[4608..].iter().all(|&byte| byte == 0));
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    let mut world = world.again(still());
    assert_eq!(world.read(EXTENT_SIZE - 4096, 8192), around);
}

#[test]
fn it_spills_and_discards_give_room_back() {
    let mut world = World::new(&spec(vec![member(1, 0, 2), member(2, 1, 4)], 6), still());
    for extent in 0..6 {
        world.write(extent * EXTENT_SIZE, 1 << 20, extent as u8 + 1);
        let tier = world.tiers.place_of(extent as u32).expect("it lives somewhere").0;
        assert_eq!(tier, MemberId(u8::from(extent >= 2)));
    }
    for piece in 0..256 {
        let (offset, len) = (piece * 4096, 4096);
        assert_eq!(world.ask(Io::Discard { offset, len }).result, Ok(()));
    }
    assert_eq!(world.tiers.place_of(0), None);
    world.pass(5);
    assert_eq!(world.tiers.free_slots(MemberId(0)), 1);
    assert_eq!(world.read(0, 8192), vec![0; 8192]);
    let mut world = world.again(still());
    assert_eq!(world.read(0, 8192), vec![0; 8192]);
    assert_eq!(world.read(EXTENT_SIZE, 4096), vec![2; 4096]);
}

#[test]
fn a_tier_is_emptied_and_everything_is_there() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    for extent in 0..6_u64 {
        world.write(extent * EXTENT_SIZE + 4096, 300 << 10, extent as u8 + 1);
    }
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(world.tiers.free_slots(MemberId(0)), 4);
    let mut world = world.again(still());
    for extent in 0..6_u64 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![0; 4096]);
        assert_eq!(world.read(extent * EXTENT_SIZE + 4096, 4096), vec![extent as u8 + 1; 4096]);
        assert_eq!(world.tiers.place_of(extent as u32).map(|it| it.0), Some(MemberId(1)));
    }
    assert_eq!(world.command(Command::Cancel(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(
        world.command(Command::Cancel(vec![MemberId(0)])),
        CommandReply::Refused(Refusal::NotLeaving)
    );
}

#[test]
fn what_is_hot_comes_up_and_room_is_kept() {
    let tuning = Tuning { reserve_per_mille: 250, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 20)], 20), tuning);
    for extent in 0..20_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, extent as u8 + 1);
    }
    for _ in 0..200 {
        world.read(17 * EXTENT_SIZE, 4096);
        world.pass(3);
    }
    assert_eq!(world.tiers.place_of(17).map(|it| it.0), Some(MemberId(0)));
    assert!(world.tiers.free_slots(MemberId(0)) >= 1);
    for extent in 0..20_u64 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![extent as u8 + 1; 4096]);
    }
}

#[test]
fn the_journal_goes_round() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    for turn in 0..3_u64 {
        for block in 0..200 {
            world.write(block * 8192, 4096, (turn + block) as u8);
        }
    }
    for block in 0..200 {
        let (offset, len) = (block * 8192, 4096);
        assert_eq!(world.ask(Io::Zero { offset, len, unmap: true }).result, Ok(()));
        world.write(block * 8192, 4096, block as u8);
    }
    let mut world = world.again(still());
    for block in 0..200 {
        assert_eq!(world.read(block * 8192, 4096), vec![block as u8; 4096]);
        assert_eq!(world.read(block * 8192 + 4096, 4096), vec![0; 4096]);
    }
}
