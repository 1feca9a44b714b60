//! An older state of the devices is not believed where somebody has seen a newer one.

#![forbid(unsafe_code)]

#[path = "../benches/instant.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod instant;

use forebay_engine::{
    Command, CommandReply, DeviceId, Mode, OpenError, RequestKind, Target, WhyClosed, Witness,
};
use forebay_format::record;
use instant::{Devices, VOLUME, World, WorldSpec};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn spec(mode: Mode) -> WorldSpec {
    WorldSpec { mode, ..WorldSpec::quiet(64 * MIB, 64 * MIB) }
}

/// Why a pool on these devices is not opened by somebody who has seen so much of its log.
fn refusal(spec: &WorldSpec, devices: Devices, witness: Witness) -> Option<OpenError> {
    let spec = WorldSpec { witness, ..spec.clone() };
    World::try_open(&spec, devices, None).err()
}

fn seen(world: &World) -> Witness {
    Witness::Seen(world.engine.durable().expect("it is open"))
}

/// A pool in use, the devices as they were before that, and how much of its log was seen.
fn used(spec: &WorldSpec) -> (World, Devices, Witness) {
    let mut world = World::new(spec);
    world.run(4, 200, RequestKind::Write, BLOCK, |n| n);
    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
    let image = world.devices().clone();
    world.run(4, 200, RequestKind::Write, BLOCK, |n| n + 100);
    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
    let witness = seen(&world);
    (world, image, witness)
}

/// Until no region is marked any more.
fn rest(world: &mut World) {
    for _ in 0..10_000 {
        world.now += 2_000_000;
        world.step();
    }
}

#[test]
fn an_older_state_of_the_same_life_is_refused() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let spec = spec(mode);
        let (world, image, witness) = used(&spec);
        let why = refusal(&spec, image.clone(), witness).expect("it is old");
        assert_eq!(why.why, WhyClosed::OlderState, "{why}");
        assert_eq!(refusal(&spec, world.kill(), witness), None, "it is not");
        assert_eq!(
            refusal(&spec, image, Witness::Accepted),
            None,
            "an administrator may go on with it"
        );
    }
}

#[test]
fn an_older_state_is_refused_after_an_orderly_stop() {
    let spec = spec(Mode::WriteBack);
    let (mut world, image, _) = used(&spec);
    world.command(Command::Shutdown);
    while world.commands.is_empty() {
        world.step();
    }
    let witness = seen(&world);
    assert!(refusal(&spec, image, witness).is_some_and(|why| why.why == WhyClosed::OlderState));
    assert_eq!(refusal(&spec, world.kill(), witness), None);
}

/// What no client has flushed is durable too when a pool was closed.
#[test]
fn an_older_state_from_before_an_orderly_stop_is_refused_though_nobody_flushed() {
    let spec = spec(Mode::WriteBack);
    let (mut world, ..) = used(&spec);
    let image = world.devices().clone();
    world.run(4, 200, RequestKind::Write, BLOCK, |n| n);
    world.command(Command::Shutdown);
    while world.commands.is_empty() {
        world.step();
    }
    let witness = seen(&world);
    assert!(refusal(&spec, image, witness).is_some_and(|why| why.why == WhyClosed::OlderState));
    assert_eq!(refusal(&spec, world.kill(), witness), None);
}

/// What the origin holds when all has gone home; nothing where that failed.
fn home(spec: &WorldSpec, devices: Devices, witness: Witness) -> Option<Vec<u8>> {
    let spec = WorldSpec { witness, ..spec.clone() };
    let mut world = World::try_open(&spec, devices, None).ok()?;
    world.command(Command::Drain(VOLUME));
    while world.commands.is_empty() {
        world.step();
    }
    if !matches!(world.commands[0], CommandReply::Changed | CommandReply::Unchanged) {
        return None;
    }
    let mut bytes = vec![0; 300 * BLOCK as usize];
    world.kill().memory(Target::Origin(VOLUME)).read(0, &mut bytes);
    Some(bytes)
}

fn block(devices: &Devices, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    devices.cache[0].read(at, &mut bytes);
    bytes
}

/// Where the blocks in the end of the log lie.
fn end_of_log<'a>(
    spec: &WorldSpec,
    (image, newest): (&'a Devices, &'a Devices),
) -> impl Iterator<Item = u64> + 'a {
    let all = (0..spec.pool_bytes / BLOCK).map(|block| block * BLOCK).rev();
    all.filter(|&at| block(image, at) != block(newest, at)).take(24)
}

fn rotten(devices: &Devices, at: u64) -> Devices {
    let mut rotten = devices.clone();
    rotten.memory(Target::Cache(DeviceId(0))).write(at, &[0x5a; BLOCK as usize]);
    rotten
}

/// Blocks in the end of the log that, each rotten, take acknowledged data back without a word.
fn silent(spec: &WorldSpec, of: (&Devices, &Devices), witness: Witness) -> usize {
    let good = home(spec, of.1.clone(), witness).expect("nothing is rotten");
    let takes_back =
        |at: &u64| home(spec, rotten(of.1, *at), witness).is_some_and(|found| found != good);
    end_of_log(spec, of).filter(takes_back).count()
}

/// The end of the log rots: what is gone is told, and nothing older is returned in its place.
#[test]
fn rot_in_the_end_of_the_log_is_told() {
    let spec = WorldSpec::quiet(16 * MIB, 16 * MIB);
    let (world, image, witness) = used(&spec);
    let newest = world.kill();
    assert_eq!(silent(&spec, (&image, &newest), witness), 0);
    assert!(silent(&spec, (&image, &newest), Witness::default()) > 0, "nobody else can tell");
}

/// A payload that rots before what was seen is a lost block: the end of the log lies where it lay.
#[test]
fn rot_in_what_was_seen_keeps_a_pool_closed_only_where_nobody_knows_what_it_held() {
    let spec = WorldSpec::quiet(16 * MIB, 16 * MIB);
    let (world, image, witness) = used(&spec);
    let newest = world.kill();
    let mut headers = 0;
    for at in end_of_log(&spec, (&image, &newest)) {
        let is_header = record::decode(&block(&newest, at)).is_ok();
        let why = refusal(&spec, rotten(&newest, at), witness).map(|error| error.why);
        assert_eq!(why, is_header.then_some(WhyClosed::OlderState), "at {at}");
        headers += usize::from(is_header);
    }
    assert!((1..24).contains(&headers));
}

/// One of two devices is replaced by an older copy of itself: what it holds clean may be old.
#[test]
fn what_is_clean_is_not_believed_beside_an_older_half() {
    let mut spec = spec(Mode::WriteThrough);
    spec.devices = 2;
    let mut world = World::with_devices(&spec, Devices::of(&spec, false));
    let write = |world: &mut World| {
        world.run(4, 2000, RequestKind::Write, BLOCK, |n| n);
        world.run(1, 1, RequestKind::Flush, 0, |_| 0);
        rest(world);
    };
    write(&mut world);
    let older = world.devices().cache[1].clone();
    write(&mut world);
    let witness = seen(&world);
    let spec = WorldSpec { witness, ..spec };
    let cached = |devices: Devices| {
        let world = World::try_open(&spec, devices, None).expect("one has all that is dirty");
        world.engine.pool_stats().cached_blocks
    };
    let newest = world.kill();
    assert!(cached(newest.clone()) >= 1900);
    let mut mixed = newest;
    mixed.cache[1] = older;
    assert_eq!(cached(mixed), 0);
}

/// Without a witness nobody knows how old what is there is: nothing clean is believed, and nothing
/// dirty before somebody accepts it.
#[test]
fn what_nobody_has_seen_is_not_believed() {
    for (mode, dirty) in [(Mode::WriteThrough, false), (Mode::WriteBack, true)] {
        let spec = spec(mode);
        let (mut world, ..) = used(&spec);
        if !dirty {
            rest(&mut world);
        }
        let newest = world.kill();
        let kept = if dirty { 300 } else { 0 };
        assert_eq!(cached(&spec, newest.clone(), Witness::default()), Some((300, kept)));
        assert_eq!(cached(&spec, newest.clone(), Witness::Accepted), Some((kept, kept)));
        match dirty {
            true => {
                let error = refusal(&spec, newest, Witness::Missing).expect("some is dirty");
                assert_eq!(error.why, WhyClosed::UnknownAge);
                assert!(error.text.contains("1200 KiB of volume"), "{error}");
            }
            false => assert_eq!(cached(&spec, newest, Witness::Missing), Some((0, 0))),
        }
    }
}

/// Blocks that are cached when a pool is open, and those of them that are dirty.
fn cached(spec: &WorldSpec, devices: Devices, witness: Witness) -> Option<(u64, u64)> {
    let spec = WorldSpec { witness, ..spec.clone() };
    let world = World::try_open(&spec, devices, None).ok()?;
    let dirty = world.engine.volume_stats(VOLUME).expect("it is there").dirty_blocks;
    Some((world.engine.pool_stats().cached_blocks, dirty))
}
