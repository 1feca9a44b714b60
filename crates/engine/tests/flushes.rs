//! FLUSHes of origins that fail.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{
    Command, CommandReply, FLUSH_FAILED, Mode, RequestKind, VolumeId, VolumeSpec,
};
use instant::{World, WorldSpec};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn ask(world: &mut World, command: Command) -> CommandReply {
    let answered = world.commands.len();
    world.command(command);
    for _ in 0..10_000 {
        if world.commands.len() > answered {
            return world.commands.pop().expect("just counted");
        }
        world.step();
    }
    panic!("the command does not end");
}

/// A volume without dirty data, beside that of the world.
fn volume(world: &mut World, exact_flushes: bool) -> VolumeId {
    let spec = VolumeSpec {
        name: "v".to_owned(),
        origin: "ram:1M".to_owned(),
        uuid: [9; 16],
        fingerprint: [9; 32],
        bytes: MIB,
        mode: Mode::PassThrough,
        volatile_cache: true,
        exact_flushes,
        stripe_blocks: 0,
    };
    match ask(world, Command::AddVolume(Box::new(spec))) {
        CommandReply::Added(volume) => volume,
        other => panic!("it is not added: {other:?}"),
    }
}

/// Whether a request is answered without an error.
fn is_ok(world: &mut World, volume: VolumeId, kind: RequestKind, len: u64) -> bool {
    let (replies, errors) = (world.replies(), world.errors);
    world.submit_to(volume, kind, 0, len);
    for _ in 0..10_000 {
        if world.replies() > replies {
            return world.errors == errors;
        }
        world.step();
    }
    panic!("the request does not end");
}

fn is_poisoned(world: &World, volume: VolumeId) -> bool {
    let views = world.engine.volumes();
    views.iter().any(|it| it.id == volume && it.poisoned)
}

fn world() -> World {
    World::new(&WorldSpec::quiet(16 * MIB, MIB))
}

fn refused(why: &str) -> CommandReply {
    CommandReply::Failed(why.to_owned())
}

/// One device of tiers failed a FLUSH, and each later one failed, whatever was written since.
#[test]
fn an_origin_that_answers_each_flush_for_itself_is_asked_anew() {
    for is_exact in [false, true] {
        let world = &mut world();
        let volume = volume(world, is_exact);
        assert!(is_ok(world, volume, RequestKind::Write, BLOCK));
        world.flush_fails = true;
        assert!(!is_ok(world, volume, RequestKind::Flush, 0));
        assert!(is_ok(world, volume, RequestKind::Write, BLOCK));
        assert_eq!(is_ok(world, volume, RequestKind::Flush, 0), is_exact);
        assert_eq!(is_poisoned(world, volume), !is_exact);
        let first = if is_exact { CommandReply::Changed } else { refused(FLUSH_FAILED) };
        assert_eq!(ask(world, Command::RemoveVolume(volume)), first);
    }
}

/// The origin said so to a FLUSH that no client had asked for: no client would have heard.
#[test]
fn what_the_origin_told_nobody_the_next_client_hears() {
    let world = &mut world();
    let volume = volume(world, true);
    assert!(is_ok(world, volume, RequestKind::Write, BLOCK));
    world.flush_fails = true;
    let told = ask(world, Command::TellLoss(volume));
    assert_eq!(told, refused(FLUSH_FAILED));
    assert!(!is_ok(world, volume, RequestKind::Flush, 0), "nobody has heard");
    assert!(is_ok(world, volume, RequestKind::Flush, 0), "and now it holds");
    assert_eq!(ask(world, Command::TellLoss(volume)), CommandReply::Unchanged);
}

/// Asked for twice, ten times: each attempt to flush the origin made the removal be refused anew.
#[test]
fn a_volume_whose_origin_fails_every_flush_is_removed_when_asked_for_twice() {
    for (writes, asks_first) in [(true, true), (true, false), (false, false)] {
        let world = &mut world();
        let volume = volume(world, true);
        assert!(!writes || is_ok(world, volume, RequestKind::Write, BLOCK));
        world.origin_refuses = true;
        if asks_first {
            assert_eq!(ask(world, Command::TellLoss(volume)), refused(FLUSH_FAILED));
        } else {
            assert_eq!(ask(world, Command::RemoveVolume(volume)), refused(FLUSH_FAILED));
        }
        assert_eq!(ask(world, Command::TellLoss(volume)), CommandReply::Unchanged);
        assert_eq!(ask(world, Command::RemoveVolume(volume)), CommandReply::Changed);
    }
}

/// Who was told of a loss was not told of what comes after it.
#[test]
fn what_was_written_since_is_told_too() {
    let world = &mut world();
    let volume = volume(world, true);
    assert!(is_ok(world, volume, RequestKind::Write, BLOCK));
    world.origin_refuses = true;
    assert_eq!(ask(world, Command::TellLoss(volume)), refused(FLUSH_FAILED));
    world.origin_refuses = false;
    assert!(is_ok(world, volume, RequestKind::Write, BLOCK));
    world.origin_refuses = true;
    assert_eq!(ask(world, Command::RemoveVolume(volume)), refused(FLUSH_FAILED));
    assert_eq!(ask(world, Command::RemoveVolume(volume)), CommandReply::Changed);
}
