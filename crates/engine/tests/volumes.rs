//! Volumes come and go for years: a host makes one for each machine.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, CommandReply, Mode, VolumeId, VolumeSpec};
use instant::{World, WorldSpec};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// More than fit into 16 bits.
const ROUNDS: u64 = 66_000;
const SAMPLE: u64 = 2_000;

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

fn add(world: &mut World, name: &str) -> CommandReply {
    let spec = VolumeSpec {
        name: name.to_owned(),
        origin: "ram:1M".to_owned(),
        uuid: [9; 16],
        fingerprint: [9; 32],
        bytes: MIB,
        mode: Mode::WriteBack,
        volatile_cache: true,
        exact_flushes: false,
        stripe_blocks: 0,
    };
    ask(world, Command::AddVolume(Box::new(spec)))
}

fn add_and_remove(world: &mut World) -> VolumeId {
    let CommandReply::Added(volume) = add(world, "v") else { panic!("it is not added") };
    assert_eq!(ask(world, Command::RemoveVolume(volume)), CommandReply::Changed);
    volume
}

/// A number is never used twice, so there must be many, and those that are gone must cost nothing.
#[test]
fn sixty_six_thousand_volumes_come_and_go() {
    let mut world = World::new(&WorldSpec::quiet(16 * MIB, MIB));
    let mut took = Vec::new();
    #[allow(clippy::disallowed_methods, reason = "what a pool's past costs is time")]
    let mut since = Instant::now();
    for round in 0..ROUNDS {
        let volume = add_and_remove(&mut world);
        assert_eq!(u64::from(volume.0), 2 + round);
        if (round + 1) % SAMPLE == 0 {
            took.push(since.elapsed());
            since += *took.last().expect("just put there");
        }
    }
    let least = took.iter().min().copied().unwrap_or(Duration::ZERO);
    let last = took[took.len() - 3..].iter().min().copied().unwrap_or(Duration::MAX);
    assert!(last < 4 * least, "the last {SAMPLE} took {last:?}, others {least:?}");
}

/// Told before anything is made.
#[test]
fn a_pool_that_has_as_many_volumes_as_it_can_hold_says_so() {
    let mut world = World::new(&WorldSpec::quiet(16 * MIB, MIB));
    let most = forebay_format::superblock::VOLUMES_MAX;
    for number in 1..most {
        let added = add(&mut world, &format!("v{number}"));
        assert!(matches!(added, CommandReply::Added(_)), "{number}: {added:?}");
    }
    let CommandReply::Failed(why) = add(&mut world, "one too many") else { panic!("it is added") };
    assert!(why.contains("as many volumes as it can hold"), "{why}");
    assert_eq!(world.engine.volumes().len(), most);
}
