//! Origins that are lost while their volumes are served.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, CommandReply, Mode, RequestKind, VolumeSpec};
use instant::{VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const DIRTY: u64 = 3000;

/// What is dirty ends in slices: a write that came between two of them was acknowledged, and given
/// up with the rest.
#[test]
fn nothing_is_written_beside_dirty_data_that_is_given_up() {
    let mut world = World::new(&WorldSpec::quiet(64 << 20, 64 << 20));
    world.run(8, DIRTY, RequestKind::Write, BLOCK, |n| 2 * n);
    world.command(Command::OriginLost(VOLUME));
    world.run(1, 1, RequestKind::Write, BLOCK, |_| 1);
    assert_eq!(world.errors, 0, "what can be written into the cache is");
    world.command(Command::ForceDropDirty(VOLUME));
    world.run(1, 1, RequestKind::Write, BLOCK, |_| 2 * DIRTY - 1);
    assert_eq!(world.errors, 1, "the volume is not served any more");
    for _ in 0..10_000 {
        if world.commands.len() == 2 {
            break;
        }
        world.step();
    }
    assert_eq!(world.commands, [CommandReply::Changed, CommandReply::Changed]);
    let dirty = world.engine.volume_stats(VOLUME).expect("it").dirty_blocks;
    assert_eq!(dirty, 0, "of {DIRTY} blocks");
}

/// The half of what may be dirty is for those whose origins take something: their clients fell to
/// two requests a second, with four seconds between two of them.
#[test]
fn a_volume_whose_origin_is_lost_leaves_half_of_the_pool_to_others() {
    const POOL_BLOCKS: u64 = (64 << 20) / BLOCK;
    let mut world = World::new(&WorldSpec::quiet(64 << 20, 128 << 20));
    world.command(Command::AddVolume(Box::new(VolumeSpec {
        name: "other".to_owned(),
        origin: "ram:1M".to_owned(),
        uuid: [9; 16],
        fingerprint: [9; 32],
        bytes: 1 << 20,
        mode: Mode::WriteBack,
        volatile_cache: true,
        exact_flushes: false,
        stripe_blocks: 0,
    })));
    (0..1000).for_each(|_| world.step());
    assert!(matches!(world.commands[..], [CommandReply::Added(_)]), "{:?}", world.commands);
    world.command(Command::OriginLost(VOLUME));
    for block in 0..POOL_BLOCKS {
        world.submit(RequestKind::Write, block * BLOCK, BLOCK);
        for _ in 0..1000 {
            world.step();
            if world.under_way() == 0 {
                break;
            }
        }
        if world.under_way() > 0 || world.errors > 0 {
            break;
        }
    }
    let dirty = world.engine.volume_stats(VOLUME).expect("it").dirty_blocks;
    assert!((POOL_BLOCKS / 4..=POOL_BLOCKS / 2).contains(&dirty), "{dirty} of {POOL_BLOCKS}");
}

/// Whoever opens the pool looks for the origin where it is said to be; under one that is in use
/// nobody takes the name away.
#[test]
fn the_origin_of_a_volume_is_called_otherwise_only_while_it_is_not_there() {
    let mut world = World::new(&WorldSpec::quiet(64 << 20, 64 << 20));
    let call = |world: &mut World, name: &str| {
        world.command(Command::CallOrigin(VOLUME, name.to_owned()));
        (0..1000).for_each(|_| world.step());
        let view = world.engine.volumes().into_iter().find(|view| view.id == VOLUME);
        (world.commands.pop().expect("an answer"), view.expect("it").origin)
    };
    let (reply, was) = call(&mut world, "/new");
    assert!(matches!(&reply, CommandReply::Failed(why) if why.contains("in use")), "{reply:?}");
    world.command(Command::OriginLost(VOLUME));
    assert_eq!(call(&mut world, "/new"), (CommandReply::Changed, "/new".to_owned()));
    assert_eq!(call(&mut world, "/new"), (CommandReply::Unchanged, "/new".to_owned()));
    assert_ne!(was, "/new");
}
