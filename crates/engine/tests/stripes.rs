//! An origin of stripes gets whole ones, wherever slices end: a RAID array reads nothing for their
//! parity.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, RequestKind, Tuning};
use instant::{VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Blocks that are written, in no order.
const BLOCKS: u64 = 4 << 10;
const STEP: u64 = 1_597;

/// Of all that goes home in short slices, the share that goes as parts of stripes.
fn parts_of_stripes(told: u32, stripe: u64) -> f64 {
    let tuning = Tuning { writeback_slice_blocks: 20, ..WorldSpec::quiet(MIB, MIB).tuning };
    let quiet = WorldSpec::quiet(64 * MIB, 256 * MIB);
    let mut world = World::new(&WorldSpec { stripe_blocks: told, tuning, ..quiet });
    world.run(8, BLOCKS, RequestKind::Write, BLOCK, |n| n * STEP % BLOCKS);
    // What is not durable would be left out, and go home later.
    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
    world.origin_writes = Some(Vec::new());
    world.command(Command::Drain(VOLUME));
    while world.commands.is_empty() {
        world.step();
    }
    let writes = world.origin_writes.take().expect("it was wanted");
    assert_eq!(writes.iter().map(|it| it.1).sum::<u64>(), BLOCKS * BLOCK, "each goes home once");
    let is_whole = |&&(offset, bytes): &&(u64, u64)| {
        offset.is_multiple_of(stripe * BLOCK) && bytes.is_multiple_of(stripe * BLOCK)
    };
    let whole: u64 = writes.iter().filter(is_whole).map(|it| it.1).sum();
    1.0 - whole as f64 / (BLOCKS * BLOCK) as f64
}

#[test]
fn whole_stripes_go_home_together() {
    for stripe in [16, 48, 256] {
        // What is behind the last whole stripe can only be a part of one.
        let rest = (BLOCKS % stripe) as f64 / BLOCKS as f64;
        let parts = parts_of_stripes(stripe as u32, stripe);
        assert!(parts <= rest + f64::EPSILON, "{stripe} blocks: {parts} in parts, {rest} are rest");
        let untold = parts_of_stripes(0, stripe);
        assert!(untold > 0.5, "{stripe} blocks: {untold} of those of which nobody told");
    }
}

#[test]
fn a_stripe_that_no_write_can_hold_changes_nothing() {
    assert_eq!(parts_of_stripes(257, 16), parts_of_stripes(0, 16));
}
