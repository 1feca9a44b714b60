//! What is home is home: once a drain, a switch or an idle pool says that nothing is dirty, the
//! cache device may die and no client notices (contract, point 4).

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, CommandId, CommandReply, Distrust, Event, Mode, RequestKind};
use instant::{VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4 << 10;
const SECOND: u64 = 1_000_000_000;

fn world() -> World {
    let mut world = World::new(&WorldSpec::new(64 << 20, 256 << 20));
    world.write_all(BLOCKS * BLOCK, 64 << 10);
    world
}

/// Kills the device, writes over all that was home, and flushes.
fn survives(mut world: World) {
    (world.cache_dead, world.errors) = (true, 0);
    world.run(16, BLOCKS, RequestKind::Write, BLOCK, |n| n);
    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
    assert_eq!(world.errors, 0, "requests failed after a device died that held nothing dirty");
}

#[test]
fn a_device_may_die_after_a_drain() {
    for asked in [Command::Drain(VOLUME), Command::SetMode(VOLUME, Mode::WriteThrough)] {
        let mut world = world();
        world.engine.handle(world.now, Event::Command(CommandId(1), asked), &mut world.out);
        while world.commands.is_empty() {
            world.step();
        }
        assert_eq!(world.commands, [CommandReply::Changed]);
        survives(world);
    }
}

#[test]
fn a_device_may_die_when_an_idle_pool_has_nothing_dirty() {
    let mut world = world();
    let dirty = |world: &World| world.engine.volume_stats(VOLUME).expect("it").dirty_blocks;
    while dirty(&world) > 0 {
        world.step();
    }
    let rest = world.now + SECOND;
    while world.now < rest {
        world.step();
    }
    survives(world);
}

#[test]
fn a_stop_waits_for_what_is_on_its_way_home_and_for_no_more() {
    let mut world = world();
    let stats = |world: &World| world.engine.volume_stats(VOLUME).expect("it").clone();
    while stats(&world).writeback_writes == 0 {
        world.step();
    }
    let stop = Event::Command(CommandId(1), Command::Shutdown);
    world.engine.handle(world.now, stop, &mut world.out);
    while world.commands.is_empty() {
        world.step();
    }
    assert_eq!(world.commands, [CommandReply::Changed]);
    let (left, sent) = (stats(&world).dirty_blocks, BLOCKS - stats(&world).dirty_blocks);
    assert!(left >= BLOCKS / 4, "{sent} of {BLOCKS} blocks went home first");
}

#[test]
fn a_note_of_an_older_life_does_not_speak_for_this_one() {
    // An administrator gave up the clean blocks of every life there may be.
    let distrust = Distrust { epoch: u64::MAX, ..Distrust::default() };
    let mut world = World::new(&WorldSpec { distrust, ..WorldSpec::new(64 << 20, 256 << 20) });
    (world.cache_dead, world.notes_fail) = (true, true);
    world.run(16, 16, RequestKind::Write, BLOCK, |n| n);
    world.errors = 0;
    world.run(16, 16, RequestKind::Write, BLOCK, |n| n);
    assert_eq!(world.errors, 16, "origins were written to before it was durable what that drops");
    world.notes_fail = false;
    let rest = world.now + SECOND;
    while world.now < rest {
        world.step();
    }
    survives(world);
}
