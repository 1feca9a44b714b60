//! Members that come back as they were before, and holders of the map that are away after a kill.

use crate::world::{World, member, spec, still};
use forebay_format::io::IoError;
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;

fn two() -> World {
    World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 4), still())
}

fn flush(world: &mut World) -> Result<(), IoError> {
    world.ask(Io::Flush).result
}

fn is_doubtful(world: &World) -> bool {
    world.notices.iter().any(|it| matches!(it, Notice::Opened { doubt: true, .. }))
}

/// A snapshot of one member, taken while the set was open, is put back after an orderly stop: what
/// was written there since is not served as it was then.
#[test]
fn an_older_copy_of_a_member_that_was_stopped_is_not_believed() {
    for moved in [0, 1] {
        let mut world = two();
        world.write(0, 64 << 10, 1);
        world.write(EXTENT_SIZE, 64 << 10, 1);
        let pin = Command::Pin { first: 1, count: 1, tier: Some(1) };
        assert_eq!(world.command(pin), CommandReply::Changed);
        world.pass(20);
        assert_eq!(flush(&mut world), Ok(()));
        let older = world.devices[moved].clone();
        world.write(0, 64 << 10, 2);
        world.write(EXTENT_SIZE, 64 << 10, 2);
        assert_eq!(flush(&mut world), Ok(()));
        assert_eq!(world.command(Command::Stop), CommandReply::Changed);
        let mut devices = world.devices.clone();
        devices[moved] = older;
        let mut again = World::open(devices, still());
        let read = |world: &mut World| [0, EXTENT_SIZE].map(|at| world.byte(at));
        let mut expected = [Ok(2), Ok(2)];
        expected[moved] = Err(IoError::Io);
        assert_eq!(read(&mut again), expected);
        assert!(!is_doubtful(&again), "all had been flushed and stopped");
        // The one that was there is still believed, and so is what it was stopped with.
        let mut whole = World::open(world.devices.clone(), still());
        assert_eq!(read(&mut whole), [Ok(2), Ok(2)]);
        assert!(!is_doubtful(&whole));
    }
}

/// A change counts when the first holder of the map has it. Where that one is away after a kill,
/// what was not flushed may be gone, and who flushes next hears of it: once.
#[test]
fn a_start_without_a_holder_of_a_killed_life_is_told_of_by_the_next_flush() {
    let mut world = two();
    world.write(0, 4096, 1);
    assert_eq!(flush(&mut world), Ok(()));
    let killed = world.without(&[0]);
    let mut again = World::open(killed, still());
    assert!(is_doubtful(&again));
    assert_eq!(flush(&mut again), Err(IoError::Io));
    assert_eq!(flush(&mut again), Ok(()));
    let all = World::open(world.devices.clone(), still());
    assert!(!is_doubtful(&all), "everybody says what it has");
    // An orderly stop leaves nothing that only one has.
    let stopped = world.again_without(&[0], still());
    assert!(!is_doubtful(&stopped));
}
