//! Devices of unequal sizes: each holds the metadata of the whole pool.

use crate::world::World;

/// All files of these names and sizes, sparse.
fn files(world: &World, sizes: &[(&str, u64)]) {
    sizes.iter().for_each(|(name, bytes)| world.empty_file(name, *bytes));
}

fn refused(world: &World, devices: &[&str]) -> crate::world::Said {
    let create = [&["pool", "create", "p"][..], devices].concat();
    let planned = world.forebay(&[&create[..], &["--dry-run"]].concat()).expect(1);
    let said = world.forebay(&create).expect(1);
    assert_eq!(planned.err, said.err);
    world.empty_file("o.img", 1 << 20);
    let cache = [&["cache", "o.img", "--with"][..], devices].concat();
    world.forebay(&cache).expect(1).complains("is too small for this pool");
    assert_eq!(world.forebay(&["pool", "list", "-o", "csv"]).expect(0).out.lines().count(), 1);
    said
}

#[test]
fn a_device_far_smaller_than_the_largest_is_named_and_may_be_left_out() {
    let world = World::started();
    files(&world, &[("g1", 1 << 30), ("m20", 20 << 20), ("m100", 100 << 20)]);
    let said = refused(&world, &["g1", "m20", "m100"]);
    let (g1, m20, m100) = (world.text("g1"), world.text("m20"), world.text("m100"));
    let said = said.complains(&format!("{m20} (20.0M) is too small for this pool"));
    let said = said.complains("each device holds the metadata of the whole pool");
    let said = said.complains(&format!("the largest, {g1} (1.0G), decides"));
    let said = said
        .complains("give it at least 21M")
        .complains(&format!("or leave it out, and use {g1} {m100} alone"));
    assert!(!said.err.contains("20971520"), "{said:#?}");
    world.forebay(&["pool", "create", "p", "g1", "m100"]).expect(0);
}

#[test]
fn what_is_said_to_be_enough_is_enough() {
    let world = World::started();
    files(&world, &[("t1", 1 << 40), ("g1", 1 << 30), ("g12", 12 << 30)]);
    let said = refused(&world, &["t1", "g1"]);
    let said = said.complains("g1 (1.0G) is too small").complains("t1 (1.0T), decides");
    said.complains("give it at least 12G");
    world.forebay(&["pool", "create", "p", "t1", "g12", "--dry-run"]).expect(0);
}

#[test]
fn three_devices_of_very_unequal_sizes() {
    let world = World::started();
    files(&world, &[("m64", 64 << 20), ("m128", 128 << 20), ("g6", 6400 << 20)]);
    let said = refused(&world, &["m64", "m128", "g6"]);
    said.complains("m64 (64.0M) is too small").complains("leave it out");
    world.forebay(&["pool", "create", "p", "m128", "g6"]).expect(0);
}

#[test]
fn a_device_smaller_than_the_least_is_told_what_is_least() {
    let world = World::started();
    files(&world, &[("tiny", 1 << 20), ("m10", 10 << 20)]);
    let said = refused(&world, &["tiny"]);
    let said = said.complains("tiny (1.0M) is too small for this pool");
    let said = said.complains("give it at least 10M");
    assert!(!said.err.contains("leave it out"), "{said:#?}");
    world.forebay(&["pool", "create", "p", "m10"]).expect(0);
}
