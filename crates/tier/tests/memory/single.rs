//! One member of a tier of several that is emptied, and leaves.

use crate::world::{Fate, SECOND, World, device, member, spec, still};
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;

const FIRST: MemberId = MemberId(0);
const OTHER: MemberId = MemberId(1);
const SLOW: MemberId = MemberId(2);

/// Two members of a fast tier, which have so many places, and one of a slow tier.
fn three(slots: [u64; 3], extents: u64) -> World {
    let [one, two, slow] = slots;
    World::new(
        &spec(vec![member(1, 0, one), member(2, 0, two), member(3, 1, slow)], extents),
        still(),
    )
}

fn fill(world: &mut World, extents: u64) {
    for extent in 0..extents {
        world.write(extent * EXTENT_SIZE, 12 << 10, extent as u8 + 1);
    }
}

fn check(world: &mut World, extents: u64) {
    for extent in 0..extents {
        let held = world.read(extent * EXTENT_SIZE, 12 << 10);
        assert_eq!(held, vec![extent as u8 + 1; 12 << 10], "extent {extent}");
    }
}

/// How many extents live on each member.
fn living(world: &World) -> Vec<u32> {
    world.tiers.view().members.iter().map(|it| it.extents).collect()
}

fn refused(refusal: Refusal) -> CommandReply {
    CommandReply::Refused(refusal)
}

fn evacuate(members: &[MemberId]) -> Command {
    Command::Evacuate(members.to_vec())
}

fn cancel(members: &[MemberId]) -> Command {
    Command::Cancel(members.to_vec())
}

fn remove(members: &[MemberId]) -> Command {
    Command::Remove(members.to_vec())
}

#[test]
fn what_lives_on_it_goes_to_others_of_its_tier_first() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    assert_eq!(living(&world), [3, 3, 0]);
    assert_eq!(world.command(evacuate(&[FIRST])), CommandReply::Changed);
    assert_eq!(living(&world), [0, 4, 2], "one has room on its tier, the others below");
    let view = world.tiers.view();
    let members = vec![FIRST];
    assert_eq!(view.evacuations, [Evacuation { tier: 0, members, is_whole: false, left: 0 }]);
    // Nothing new comes there, though its tier is in use.
    assert_eq!(world.ask(Io::Discard { offset: 0, len: EXTENT_SIZE }).result, Ok(()));
    world.pass(5);
    world.write(0, 12 << 10, 1);
    assert_eq!(living(&world)[0], 0);
    assert_eq!(world.command(remove(&[FIRST])), CommandReply::Changed);
    check(&mut world, 6);
    let mut world = world.again_without(&[0], still());
    check(&mut world, 6);
    assert_eq!(world.tiers.view().members[0].state, MemberState::None);
    assert!(world.tiers.view().evacuations.is_empty());
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    for command in [evacuate, cancel, remove] {
        assert_eq!(world.command(command(&[])), refused(Refusal::NoMember));
        assert_eq!(world.command(command(&[FIRST, MemberId(7)])), refused(Refusal::NoMember));
    }
    assert_eq!(world.command(cancel(&[FIRST])), refused(Refusal::NotLeaving));
    assert_eq!(world.command(remove(&[FIRST])), refused(Refusal::NotEmpty(3)));
    let all = [FIRST, OTHER, SLOW];
    assert_eq!(world.command(evacuate(&all)), refused(Refusal::NoRoom(6)));
    assert_eq!(world.tiers.why_not_remove(&all), Some(Refusal::LastPersistent));
    assert_eq!(world.tiers.why_not_remove(&[FIRST, SLOW]), None);
    assert!(world.tiers.view().evacuations.is_empty());
    // The same one twice is one.
    assert_eq!(world.command(evacuate(&[FIRST, FIRST])), CommandReply::Changed);
    assert_eq!(world.command(remove(&[FIRST, FIRST])), CommandReply::Changed);
    assert_eq!(world.command(evacuate(&[FIRST])), refused(Refusal::NoMember));
    check(&mut world, 6);
}

#[test]
fn what_others_hold_that_leave_has_to_find_room_too() {
    let mut world = three([4, 4, 4], 6);
    fill(&mut world, 6);
    assert_eq!(living(&world), [3, 3, 0]);
    world.command(Command::Pause);
    world.begin(evacuate(&[FIRST]));
    assert_eq!(world.command(evacuate(&[OTHER])), refused(Refusal::Busy));
    // After a start nobody waits for the first any more, and it goes on all the same.
    let devices = world.without(&[]);
    let mut world = World::open(devices, still());
    world.command(Command::Pause);
    assert_eq!(world.command(evacuate(&[OTHER])), refused(Refusal::NoRoom(2)));
    assert_eq!(world.command(Command::Resume), CommandReply::Changed);
    world.pass(200);
    assert_eq!(living(&world), [0, 4, 2]);
    check(&mut world, 6);
}

#[test]
fn an_evacuation_of_several_is_cancelled_for_one() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    world.command(Command::Pause);
    world.begin(evacuate(&[FIRST, OTHER]));
    world.pass(1);
    let view = world.tiers.view();
    let members = vec![FIRST, OTHER];
    assert_eq!(view.evacuations, [Evacuation { tier: 0, members, is_whole: true, left: 6 }]);
    assert_eq!(world.command(cancel(&[OTHER, SLOW])), CommandReply::Changed);
    assert!(world.done.is_empty(), "the other leaves still");
    let members = vec![FIRST];
    let left = [Evacuation { tier: 0, members, is_whole: false, left: 3 }];
    assert_eq!(world.tiers.view().evacuations, left);
    world.begin(Command::Resume);
    world.pass(200);
    assert_eq!(living(&world), [0, 4, 2]);
    assert!(world.done.contains(&CommandReply::Changed));
    world.done.clear();
    world.command(Command::Pause);
    world.begin(evacuate(&[OTHER]));
    world.pass(1);
    world.begin(cancel(&[FIRST, OTHER]));
    world.pass(1);
    assert_eq!(world.done[..], [refused(Refusal::Cancelled), CommandReply::Changed]);
    check(&mut world, 6);
}

#[test]
fn a_tier_of_which_one_leaves_takes_another() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    let addition = |world: &World, uuid: u8| Addition {
        member: world.tiers.next_member().expect("there is a number"),
        uuid: [uuid; 16],
        bytes: 9 * EXTENT_SIZE,
        at: At::Join(0),
        is_volatile: false,
        settings: World::settings(true),
    };
    assert_eq!(world.command(evacuate(&[FIRST, OTHER])), CommandReply::Changed);
    let new = addition(&world, 4);
    assert_eq!(world.command(Command::Add(new)), refused(Refusal::Leaving));
    assert_eq!(world.command(cancel(&[OTHER])), CommandReply::Changed);
    let new = addition(&world, 4);
    world.devices.push(device(new.bytes));
    assert_eq!(world.command(Command::Add(new)), CommandReply::Added(MemberId(3)));
    assert_eq!(world.command(remove(&[FIRST])), CommandReply::Changed);
    check(&mut world, 6);
}

#[test]
fn what_is_pinned_stays_on_the_tier_of_which_one_leaves() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    let on_first =
        |world: &World, extent| world.tiers.place_of(extent).map(|it| it.0) == Some(FIRST);
    let pinned: Vec<u32> = (0..6).filter(|&it| on_first(&world, it)).collect();
    for &first in &pinned {
        let pin = Command::Pin { first, count: 1, tier: Some(0) };
        assert_eq!(world.command(pin), CommandReply::Changed);
    }
    assert_eq!(world.command(evacuate(&[FIRST])), CommandReply::Changed);
    world.pass(200);
    // What is not pinned makes room for what is.
    for &extent in &pinned {
        assert_eq!(world.tiers.place_of(extent).map(|it| it.0), Some(OTHER), "{extent}");
    }
    assert_eq!(living(&world), [0, 4, 2]);
    check(&mut world, 6);
}

#[test]
fn who_is_given_up_while_it_is_emptied_is_not_waited_for() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    world.begin(Command::Pause);
    world.pass(1);
    world.done.clear();
    world.begin(evacuate(&[FIRST]));
    world.unreadable.insert(FIRST);
    let own = (0..6).find(|&it| world.tiers.place_of(it).map(|it| it.0) == Some(FIRST)).unwrap();
    assert!(world.byte(u64::from(own) * EXTENT_SIZE).is_err());
    world.begin(Command::GiveUp(FIRST));
    world.pass(5);
    assert_eq!(world.done[..], [CommandReply::Changed, CommandReply::Changed]);
    assert!(world.tiers.view().evacuations.is_empty());
    assert_eq!(world.tiers.view().members[0].extents, 3, "they are lost with it");
}

/// The process is killed after each I/O while one member leaves, and goes on from there.
#[test]
fn it_goes_on_wherever_the_process_is_killed() {
    for fuel in (0..).step_by(3) {
        let mut world = three([4, 4, 8], 6);
        fill(&mut world, 6);
        world.fuel = fuel;
        let mut ends = |command: Command| {
            world.begin(command);
            world.pass(200);
            world.done.pop().is_some()
        };
        let is_empty = ends(evacuate(&[FIRST]));
        let is_over = is_empty && ends(remove(&[FIRST]));
        let mut world = World::open(world.without(&[]), still());
        world.pass(200);
        check(&mut world, 6);
        let view = world.tiers.view();
        match view.members[0].state {
            MemberState::In => assert!(!is_empty),
            MemberState::Leaving => assert!(view.members[0].extents == 0 && !is_over),
            MemberState::None => assert!(is_empty),
        }
        if view.members[0].state == MemberState::Leaving {
            assert_eq!(world.command(remove(&[FIRST])), CommandReply::Changed);
            let mut world = world.again_without(&[0], still());
            check(&mut world, 6);
        }
        if is_over {
            assert!(fuel > 20, "it takes some I/O");
            return;
        }
    }
}

/// Moves from a member that does not answer rest, and the rest of its tier is not waited for.
#[test]
fn one_that_does_not_answer_is_emptied_when_it_does() {
    let mut world = three([4, 4, 8], 6);
    fill(&mut world, 6);
    world.decide(|effect| match effect {
        Effect::Read { member: FIRST, .. } => Fate::Held,
        _ => Fate::Done,
    });
    world.begin(evacuate(&[FIRST]));
    for _ in 0..100 {
        let at = world.now + SECOND / 10;
        world.tick(at);
    }
    assert!(world.done.is_empty() && living(&world)[0] == 3);
    let waits = world.tiers.view().pending;
    assert!(waits.contains_key(&Pending::NoAnswer), "{waits:?}");
    world.write(EXTENT_SIZE / 2, 4096, 9);
    world.decide(|_| Fate::Done);
    world.release();
    world.pass(1000);
    assert_eq!(world.done[..], [CommandReply::Changed]);
    assert_eq!(living(&world), [0, 4, 2]);
    check(&mut world, 6);
}
