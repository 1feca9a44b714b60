//! What ends many blocks takes few entries in the log, and not one a block, nor a record each: it
//! may happen when there is hardly any room, and what makes room needs room. In a pool of a real
//! size, such entries filled the log for good. (The simulator's pools are too small for that.)

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, CommandId, CommandReply, Event, RequestKind};
use instant::{VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16 << 10;
/// Records for what is told here.
const RECORDS_MAX: u64 = 24;
const SECOND: u64 = 1_000_000_000;

/// A pool that sends nothing home by itself.
fn spec() -> WorldSpec {
    WorldSpec::quiet(256 << 20, 1 << 30)
}

fn dirty(world: &World) -> u64 {
    world.engine.volume_stats(VOLUME).expect("the volume").dirty_blocks
}

fn records(world: &World) -> u64 {
    world.engine.pool_stats().records
}

fn command(world: &mut World, command: Command) -> CommandReply {
    world.engine.handle(world.now, Event::Command(CommandId(1), command), &mut world.out);
    while world.commands.is_empty() {
        world.step();
    }
    world.commands.remove(0)
}

#[test]
fn zeroes_that_end_together_take_two_records_each() {
    let mut world = World::new(&spec());
    world.write_all(BLOCKS * BLOCK, 64 << 10);
    assert_eq!(dirty(&world), BLOCKS);
    let before = records(&world);
    let piece = BLOCKS / 16;
    let zeroes = RequestKind::WriteZeroes { unmap: false };
    world.run(16, 16, zeroes, piece * BLOCK, |n| n * piece);
    assert_eq!(dirty(&world), 0);
    let took = records(&world) - before;
    // Each waits for a word before the origin is zeroed, and for one behind it.
    assert!(took <= 2 * 16 + RECORDS_MAX / 4, "{took} records");
}

#[test]
fn dirty_data_that_is_given_up_takes_one_entry() {
    let mut world = World::new(&spec());
    world.write_all(BLOCKS * BLOCK, 64 << 10);
    let devices = world.kill();
    let mut world = World::with_devices(&WorldSpec { origin_present: false, ..spec() }, devices);
    assert_eq!(dirty(&world), BLOCKS);
    let before = records(&world);
    assert_eq!(command(&mut world, Command::ForceDropDirty(VOLUME)), CommandReply::Changed);
    assert_eq!(dirty(&world), 0);
    assert_eq!(command(&mut world, Command::Shutdown), CommandReply::Changed);
    let took = records(&world) - before;
    assert!(took <= RECORDS_MAX, "{took} records");
}

#[test]
fn clean_data_that_an_origin_may_have_forgotten_takes_one_entry() {
    let mut world = World::new(&spec());
    // Every other block is dirty; some that were read, far from them, are clean.
    world.run(32, BLOCKS, RequestKind::Write, BLOCK, |n| 2 * n);
    world.run(32, 64, RequestKind::Read, BLOCK, |n| 4 * BLOCKS + n);
    // The origin is written to, so that a FLUSH reaches it.
    let zeroes = RequestKind::WriteZeroes { unmap: false };
    world.run(1, 1, zeroes, 4 << 20, |_| 5 * BLOCKS);
    let cached = |world: &World| world.engine.pool_stats().cached_blocks;
    assert_eq!((dirty(&world), cached(&world)), (BLOCKS, BLOCKS + 64));
    let before = records(&world);
    world.flush_fails = true;
    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
    assert_eq!(world.errors, 1, "the client is told");
    let end = world.now + 30 * SECOND;
    while world.now < end {
        world.step();
    }
    assert!(!world.flush_fails, "a FLUSH failed");
    assert_eq!((dirty(&world), cached(&world)), (BLOCKS, BLOCKS), "the clean blocks are given up");
    let took = records(&world) - before;
    assert!(took <= RECORDS_MAX, "{took} records");
}
