//! No more blocks are dirty than the tuning allows, whatever clients write and however long their
//! origin takes; and one that refused them is tried again soon where somebody waits. (Clients of
//! the simulator cannot see the limit: more dirty blocks harm nobody before there is no room for
//! them.)

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Buf, Command, Event, Request, RequestId, RequestKind};
use instant::{VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const POOL_BYTES: u64 = 64 << 20;
/// Blocks of one write.
const PIECE: u64 = 16;
const SECOND: u64 = 1_000_000_000;

#[test]
fn writers_wait_at_the_limit_of_dirty_blocks() {
    let mut spec = WorldSpec::new(POOL_BYTES, 256 << 20);
    (spec.tuning.dirty_high, spec.tuning.dirty_max) = (0.08, 0.10);
    let most = POOL_BYTES / BLOCK / 10;
    let mut world = World::new(&spec);
    world.origin_hangs = true;
    for n in 0..2 * most / PIECE {
        let (offset, len) = (n * PIECE * BLOCK, PIECE * BLOCK);
        let (kind, buf) = (RequestKind::Write, Buf::zeroed(len as usize));
        let request = Request { volume: VOLUME, kind, offset, len, fua: false, buf };
        world.engine.handle(world.now, Event::Submit(RequestId(n), request), &mut world.out);
    }
    while world.now < 5 * SECOND {
        world.step();
    }
    let dirty = world.engine.volume_stats(VOLUME).expect("the volume").dirty_blocks;
    assert!((most / 2..most + PIECE).contains(&dirty), "{dirty} blocks are dirty of {most}");
}

/// The longer an origin refuses what it is sent, the longer it rests; but not beyond a second or so
/// where a command waits for what goes home.
#[test]
fn an_origin_that_somebody_waits_for_is_tried_each_second() {
    let mut spec = WorldSpec::new(POOL_BYTES, 256 << 20);
    spec.tuning.dirty_target = 0.0;
    let mut world = World::new(&spec);
    world.origin_refuses = true;
    world.write_all(POOL_BYTES / 20, PIECE * BLOCK);
    let longest_rest = |world: &mut World, until: u64| {
        let mut longest = 0;
        while world.now < until {
            let before = world.now;
            world.step();
            longest = longest.max(world.now - before);
        }
        longest
    };
    assert!(longest_rest(&mut world, 100 * SECOND) > 10 * SECOND, "it rests while nobody waits");
    world.command(Command::Drain(VOLUME));
    // The rest that has begun already.
    let begun = world.now + 2 * SECOND;
    longest_rest(&mut world, begun);
    let until = world.now + 60 * SECOND;
    let longest = longest_rest(&mut world, until);
    assert!(longest < 2 * SECOND, "it rests {longest} ns");
}
