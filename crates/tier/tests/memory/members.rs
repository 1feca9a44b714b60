//! Members that join, leave and are given up.

use crate::world::{World, device, member, spec, still, superblock};
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::{EXTENT_SIZE, SUPERBLOCK_OFFSETS};
use forebay_tier::*;

const TWO: [(u8, u8, u64); 2] = [(1, 0, 4), (2, 1, 8)];

fn world(members: &[(u8, u8, u64)]) -> World {
    let members: Vec<NewMember> =
        members.iter().map(|&(uuid, tier, slots)| member(uuid, tier, slots)).collect();
    World::new(&spec(members, 4), still())
}

fn addition(world: &World, uuid: u8, at: At) -> Addition {
    Addition {
        member: world.tiers.next_member().expect("there is a number"),
        uuid: [uuid; 16],
        bytes: 9 * EXTENT_SIZE,
        at,
        is_volatile: false,
        settings: World::settings(true),
    }
}

fn add(world: &mut World, uuid: u8, at: At) -> CommandReply {
    let addition = addition(world, uuid, at);
    let number = usize::from(addition.member.0);
    world.devices.resize_with(world.devices.len().max(number + 1), Vec::new);
    world.devices[number] = device(addition.bytes);
    world.command(Command::Add(addition))
}

fn refused(refusal: Refusal) -> CommandReply {
    CommandReply::Refused(refusal)
}

fn tiers(world: &World) -> Vec<(MemberState, u8)> {
    world.tiers.view().members.iter().map(|it| (it.state, it.tier)).collect()
}

#[test]
fn a_member_joins_and_takes_extents() {
    let mut world = world(&TWO);
    world.write(0, 4096, 1);
    assert_eq!(add(&mut world, 3, At::Before(0)), CommandReply::Added(MemberId(2)));
    let (state, grown) = (MemberState::In, vec![1, 2, 0]);
    assert_eq!(tiers(&world), grown.into_iter().map(|tier| (state, tier)).collect::<Vec<_>>());
    world.write(EXTENT_SIZE, 4096, 2);
    assert_eq!(world.tiers.place_of(1), Some((MemberId(2), 0)));
    let mut world = world.again(still());
    assert_eq!(world.read(0, 4096), vec![1; 4096]);
    assert_eq!(world.read(EXTENT_SIZE, 4096), vec![2; 4096]);
    assert_eq!(add(&mut world, 4, At::Join(7)), CommandReply::Added(MemberId(3)));
    assert_eq!(tiers(&world)[3], (MemberState::In, 7));
    // Without it the set is the same, but for what would live there.
    let mut world = world.again_without(&[3], still());
    assert_eq!(world.read(EXTENT_SIZE, 4096), vec![2; 4096]);
}

#[test]
fn an_addition_that_makes_no_sense_is_refused() {
    let mut world = world(&TWO);
    assert_eq!(add(&mut world, 1, At::Join(0)), refused(Refusal::IsMember));
    assert_eq!(add(&mut world, 3, At::Join(16)), refused(Refusal::TooMany));
    assert_eq!(add(&mut world, 3, At::Join(15)), CommandReply::Added(MemberId(2)));
    assert_eq!(add(&mut world, 4, At::Before(15)), refused(Refusal::TooMany));
    let right = addition(&world, 4, At::Join(0));
    let wrong = Addition { member: MemberId(9), ..right.clone() };
    let asked = world.command(Command::Add(wrong));
    assert_eq!(asked, refused(Refusal::OtherNumber(MemberId(3))));
    let small = Addition { bytes: EXTENT_SIZE, ..right.clone() };
    assert!(matches!(
        world.command(Command::Add(small)),
        CommandReply::Refused(Refusal::TooSmall(_))
    ));
    let volatile = Addition { is_volatile: true, ..right };
    assert_eq!(world.command(Command::Add(volatile)), refused(Refusal::Volatile));
}

#[test]
fn who_holds_the_map_leaves_when_another_has_it() {
    let mut world = world(&[(1, 0, 4), (2, 1, 8), (3, 2, 8)]);
    for extent in 0..4_u64 {
        world.write(extent * EXTENT_SIZE, 12 << 10, extent as u8 + 1);
    }
    assert_eq!(world.command(Command::Remove(vec![MemberId(0)])), refused(Refusal::NotEmpty(4)));
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(world.command(Command::Remove(vec![MemberId(0)])), CommandReply::Changed);
    let holders = |world: &World| {
        let view = world.tiers.view();
        view.members.iter().map(|it| it.is_holder).collect::<Vec<bool>>()
    };
    assert_eq!(holders(&world), [false, true, true]);
    for offset in SUPERBLOCK_OFFSETS {
        assert!(world.devices[0][offset as usize..][..4096].iter().all(|&byte| byte == 0));
    }
    // Either of those that are left has all of the map.
    for missing in [1, 2] {
        let mut world = World::open(world.without(&[0, missing]), still());
        let lives = world.tiers.place_of(0).map(|it| it.0);
        if lives != Some(MemberId(missing as u8)) {
            assert_eq!(world.read(0, 12 << 10), vec![1; 12 << 10]);
        }
    }
    let mut world = world.again_without(&[0], still());
    for extent in 0..4_u64 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 12 << 10), vec![extent as u8 + 1; 12 << 10]);
    }
    // Its number is another's now, and its tier has a hole that does no harm.
    assert_eq!(add(&mut world, 4, At::Join(0)), CommandReply::Added(MemberId(0)));
    world.write(4 * EXTENT_SIZE - 4096, 4096, 9);
    assert_eq!(tiers(&world)[0], (MemberState::In, 0));
    let mut world = world.again(still());
    assert_eq!(world.read(3 * EXTENT_SIZE, 12 << 10), vec![4; 12 << 10]);
}

#[test]
fn the_last_tier_does_not_leave_and_one_that_is_alone_gets_a_second_holder() {
    let mut world = world(&[(1, 0, 4)]);
    assert_eq!(world.command(Command::Remove(vec![MemberId(0)])), refused(Refusal::LastPersistent));
    assert_eq!(world.command(Command::Remove(vec![MemberId(1)])), refused(Refusal::NoMember));
    assert_eq!(add(&mut world, 2, At::Join(1)), CommandReply::Added(MemberId(1)));
    assert!(world.tiers.view().members.iter().all(|it| it.is_holder));
    world.write(0, 4096, 5);
    assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
    assert_eq!(world.command(Command::Remove(vec![MemberId(0)])), CommandReply::Changed);
    let mut world = world.again(still());
    assert_eq!(world.read(0, 4096), vec![5; 4096]);
}

#[test]
fn who_is_given_up_takes_its_extents_along() {
    let mut world = world(&TWO);
    for extent in 0..4_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, extent as u8 + 1);
    }
    assert_eq!(world.command(Command::GiveUp(MemberId(0))), refused(Refusal::IsHere));
    assert_eq!(world.command(Command::GiveUp(MemberId(7))), refused(Refusal::NoMember));
    let old = world.devices[0].clone();
    let mut world = world.again_without(&[0], still());
    assert_eq!(world.command(Command::GiveUp(MemberId(0))), CommandReply::Changed);
    assert_eq!(world.command(Command::GiveUp(MemberId(0))), refused(Refusal::NoMember));
    let failed = |world: &mut World, io: Io| world.ask(io).result == Err(IoError::Io);
    let read = |offset| Io::Read { offset, buf: forebay_format::io::Buf::zeroed(4096) };
    assert!(failed(&mut world, read(0)));
    // What was never written there is zeros; what is written again is there.
    assert_eq!(world.read(512 << 10, 4096), vec![0; 4096]);
    world.write(0, 4096, 9);
    assert_eq!(world.tiers.place_of(0).map(|it| it.0), Some(MemberId(1)));
    assert_eq!(world.read(0, 4096), vec![9; 4096]);
    assert!(failed(&mut world, read(4096)));
    assert_eq!(world.ask(Io::Discard { offset: EXTENT_SIZE, len: EXTENT_SIZE }).result, Ok(()));
    assert_eq!(world.read(EXTENT_SIZE, 4096), vec![0; 4096]);
    // Of the first, what was written and is not again: in blocks.
    assert!(world.tiers.lost().eq([4096..64 << 10, 2 * EXTENT_SIZE..4 * EXTENT_SIZE]));
    assert_eq!(world.tiers.view().lost_blocks, 15);
    assert_eq!((world.tiers.view().away, world.tiers.view().lost), (2, 1));
    // Extents name its number still. Once none does it is another's.
    assert_eq!(world.tiers.next_member(), Some(MemberId(2)));
    assert_eq!(world.ask(Io::Discard { offset: 0, len: 4 * EXTENT_SIZE }).result, Ok(()));
    world.pass(5);
    assert_eq!(world.tiers.next_member(), Some(MemberId(0)));
    let mut devices = world.without(&[]);
    devices[0] = old;
    let mut world = World::open(devices, still());
    assert!(!world.tiers.view().members[0].is_here);
    assert_eq!(add(&mut world, 5, At::Join(0)), CommandReply::Added(MemberId(0)));
    world.write(0, 4096, 6);
    assert_eq!(world.tiers.place_of(0).map(|it| it.0), Some(MemberId(0)));
}

#[test]
fn who_is_given_up_is_named_until_the_others_have_what_it_had_of_the_map() {
    let mut world = world(&TWO);
    world.write(0, 64 << 10, 1);
    // Records come late to the second; the first has them, and fails.
    world.slow = Some(MemberId(1));
    world.write(EXTENT_SIZE, 64 << 10, 2);
    world.unreadable.insert(MemberId(0));
    assert_eq!(world.byte(0), Err(IoError::Io));
    world.begin(Command::GiveUp(MemberId(0)));
    world.pass(5);
    let named = |world: &World| superblock(&world.devices[1]).expect("it is a member");
    assert!(named(&world).members()[0].is_used(), "its records are nowhere else yet");
    assert!(world.done.is_empty(), "so nobody is told that it has left");
    world.slow = None;
    world.release();
    world.pass(5);
    assert_eq!(world.done.pop(), Some(CommandReply::Changed));
    assert!(!named(&world).members()[0].is_used());
    assert_eq!(named(&world).holders().collect::<Vec<u8>>(), [1]);
    let devices = world.without(&[]);
    let world = World::open(devices, still());
    assert!(!world.tiers.view().members[0].is_here, "it is not believed with its old superblock");
}

/// The process is killed after each I/O of a command in turn, and the set is found again with all
/// its devices, and with those that it had before.
fn killed_at_every_step(
    before: impl Fn() -> World,
    command: impl Fn(&mut World) -> Command,
    is_all: impl Fn(&mut World, bool),
) {
    for fuel in 0.. {
        let mut world = before();
        let known = world.devices.len();
        let asked = command(&mut world);
        world.fuel = fuel;
        let reply = world.command_cut(asked);
        let later: Vec<usize> = (known..world.devices.len()).collect();
        for missing in [Vec::new(), later] {
            let is_done = reply.is_some();
            if is_done && !missing.is_empty() {
                continue;
            }
            let mut world = World::open(world.without(&missing), still());
            is_all(&mut world, is_done);
            let mut world = world.again(still());
            is_all(&mut world, is_done);
        }
        if reply.is_some() {
            assert!(fuel > 3, "it takes some I/O");
            return;
        }
    }
}

#[test]
fn a_member_that_joins_is_in_the_set_or_not() {
    let before = || {
        let mut world = world(&TWO);
        world.write(0, 4096, 1);
        world
    };
    let command = |world: &mut World| {
        let addition = addition(world, 3, At::Before(1));
        world.devices.push(device(addition.bytes));
        Command::Add(addition)
    };
    killed_at_every_step(before, command, |world, is_done| {
        assert_eq!(world.read(0, 4096), vec![1; 4096]);
        let (tiers, state) = (tiers(world), MemberState::In);
        let is_in = tiers == [(state, 0), (state, 2), (state, 1)];
        assert!(is_in || (tiers == [(state, 0), (state, 1)] && !is_done), "{tiers:?}");
    });
}

#[test]
fn a_tier_that_leaves_is_in_the_set_or_not() {
    let before = || {
        let mut world = world(&[(1, 0, 4), (2, 1, 8), (3, 2, 8)]);
        world.write(0, 4096, 1);
        assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
        world.write(EXTENT_SIZE, 12 << 10, 2);
        world
    };
    killed_at_every_step(
        before,
        |_| Command::Remove(vec![MemberId(0)]),
        |world, is_done| {
            assert_eq!(world.read(0, 4096), vec![1; 4096]);
            assert_eq!(world.read(EXTENT_SIZE, 12 << 10), vec![2; 12 << 10]);
            let state = tiers(world)[0].0;
            assert!(state == MemberState::None || (state == MemberState::Leaving && !is_done));
        },
    );
}

fn numbers(world: &World) -> Vec<u8> {
    let used = tiers(world).into_iter().filter(|it| it.0 != MemberState::None);
    let mut numbers: Vec<u8> = used.map(|it| it.1).collect();
    numbers.sort();
    numbers
}

fn of_tier(world: &World, tier: u8) -> Vec<MemberId> {
    let view = world.tiers.view();
    let own = view.members.iter().filter(|it| it.state != MemberState::None && it.tier == tier);
    own.map(|it| it.member).collect()
}

/// Tiers that went left their numbers behind: of two tiers one could be replaced 14 times.
#[test]
fn numbers_of_tiers_that_have_gone_are_given_again() {
    let mut world = world(&TWO);
    assert_eq!(world.command(Command::CloseUp), CommandReply::Unchanged);
    world.write(0, 4096, 1);
    world.write(EXTENT_SIZE, 4096, 2);
    for turn in 0..40_u8 {
        assert!(matches!(add(&mut world, turn + 10, At::Join(2)), CommandReply::Added(_)));
        let pin = |first, tier| Command::Pin { first, count: 1, tier: Some(tier) };
        assert_eq!(world.command(pin(0, 2)), CommandReply::Changed);
        assert_eq!(world.command(pin(1, 0)), CommandReply::Changed);
        let fastest = of_tier(&world, 0);
        assert_eq!(world.command(Command::Evacuate(fastest.clone())), CommandReply::Changed);
        assert_eq!(world.command(Command::Remove(fastest)), CommandReply::Changed);
        assert_eq!(numbers(&world), [1, 2]);
        assert_eq!(world.command(Command::CloseUp), CommandReply::Changed);
        assert_eq!(numbers(&world), [0, 1]);
        // Each pin is where it was; what was pinned to the tier that is gone is free.
        assert_eq!(world.tiers.explain(0).unwrap().pinned, Some(1), "turn {turn}");
        assert_eq!(world.tiers.explain(1).unwrap().pinned, None);
        world = world.again(still());
        assert_eq!(numbers(&world), [0, 1]);
        assert_eq!(world.read(0, 4096), vec![1; 4096]);
        assert_eq!(world.read(EXTENT_SIZE, 4096), vec![2; 4096]);
    }
}

#[test]
fn numbers_are_closed_up_or_as_they_were() {
    let before = || {
        let mut world = world(&[(1, 0, 4), (2, 1, 8), (3, 2, 8)]);
        world.write(0, 4096, 1);
        assert_eq!(world.command(Command::Evacuate(vec![MemberId(0)])), CommandReply::Changed);
        assert_eq!(world.command(Command::Remove(vec![MemberId(0)])), CommandReply::Changed);
        world
    };
    killed_at_every_step(
        before,
        |_| Command::CloseUp,
        |world, is_done| {
            assert_eq!(world.read(0, 4096), vec![1; 4096]);
            let numbers = numbers(world);
            assert!(numbers == [0, 1] || (numbers == [1, 2] && !is_done), "{numbers:?}");
        },
    );
}

#[test]
fn a_holder_that_fails_is_named_until_the_other_has_what_was_answered() {
    let mut world = world(&TWO);
    world.slow = Some(MemberId(1));
    // Answered when only the first holder has said it.
    world.write(0, 4096, 1);
    world.write(EXTENT_SIZE, 12 << 10, 2);
    world.broken = Some(MemberId(0));
    let mut effects = Vec::new();
    let io = Io::Write { offset: 2 * EXTENT_SIZE, buf: Buf::zeroed(4096) };
    world.tiers.handle(world.now, Event::Submit(IoId(99), io), &mut effects);
    world.run(effects);
    assert!(world.notices.contains(&Notice::HolderLost(MemberId(0))));
    let held = |world: &World| {
        let all = world.devices.iter().filter_map(|it| superblock(it));
        all.map(|it| it.holders().collect()).collect::<Vec<Vec<u8>>>()
    };
    assert_eq!(held(&world), [[0, 1]; 2]);
    let mut killed = World::open(world.without(&[]), still());
    assert_eq!(killed.read(0, 4096), vec![1; 4096]);
    assert_eq!(killed.read(EXTENT_SIZE, 12 << 10), vec![2; 12 << 10]);
    world.slow = None;
    let records = std::mem::take(&mut world.held);
    world.run(records);
    assert_eq!(world.replies.pop().map(|it| it.0), Some(IoId(99)));
    assert_eq!(held(&world), [[1]; 2]);
    let mut killed = World::open(world.without(&[]), still());
    assert_eq!(killed.read(0, 4096), vec![1; 4096]);
    assert_eq!(killed.read(EXTENT_SIZE, 12 << 10), vec![2; 12 << 10]);
}
