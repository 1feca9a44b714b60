//! The engine alone, on instant devices in RAM, on one core: what the decisions cost.
//!
//! `cargo bench -p forebay-engine --bench engine -- [SECTION…]` prints one JSON line for each
//! round: `{"bench": …, "round": …, "value": …, "unit": …, …}`. `cargo xtask bench engine` keeps
//! them and compares medians with the targets. Devices are flat memory: a read or write is a copy,
//! a FLUSH is nothing, and every I/O ends at once, so that all the time that passes is the engine's
//! own plus one copy.
// The bench measures real time: the ban is for the engine.
#![allow(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the tests use the rest")]
mod instant;

use forebay_engine::RequestKind;
use instant::{Devices, Random, World, WorldSpec};
use std::time::Instant;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const ROUNDS: usize = 5;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let sections: [(&str, fn()); 5] = [
        ("read-hit", read_hit),
        ("write-back", write_back),
        ("record-overhead", record_overhead),
        ("index-memory", index_memory),
        ("recovery", recovery),
    ];
    for (name, run) in sections {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            run();
        }
    }
}

/// Seconds that this thread has spent on a processor: on a machine with other work, what "one core"
/// can do is told by this and not by the wall clock.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse::<f64>().ok());
    nanoseconds.expect("the kernel counts the time of threads") / 1e9
}

/// Runs `work` and reports how often a second of processor time it did one of `count` things, with
/// the rate by the wall clock and the heap allocations beside it.
fn report_rate(bench: &str, round: usize, count: u64, work: impl FnOnce()) {
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let info = allocation_counter::measure(work);
    let per_second = count as f64 / (cpu_seconds() - cpu);
    let wall_rate = count as f64 / wall.elapsed().as_secs_f64();
    let allocations = info.count_total as f64 / count as f64;
    let more =
        format!("\"wall_rate\": {wall_rate:.0}, \"allocations_per_request\": {allocations:.6}");
    report(bench, round, per_second, "requests/s", &more);
}

/// Prints one result. `more` are further pairs of JSON.
fn report(bench: &str, round: usize, value: f64, unit: &str, more: &str) {
    let comma = if more.is_empty() { "" } else { ", " };
    println!(
        "{{\"bench\": \"{bench}\", \"round\": {round}, \"value\": {value:.3}, \
         \"unit\": \"{unit}\"{comma}{more}}}"
    );
}

/// 4 KiB reads at depth 32 that hit the cache device (there is no RAM tier), and how often they
/// allocate. The hot set of 4 MiB keeps the copy within the processor's caches; the set of 256 MiB
/// does not.
fn read_hit() {
    for (bench, set_bytes) in [("read-hit", 4 * MIB), ("read-hit-256m", 256 * MIB)] {
        let mut world = World::new(&WorldSpec::new(4 * GIB, 512 * MIB));
        world.write_all(set_bytes, 128 * KIB);
        let before = world.cache_bytes_read();
        let mut random = Random(7);
        let mut read = |world: &mut World, count: u64| {
            world.run(32, count, RequestKind::Read, BLOCK, |_| random.below(set_bytes / BLOCK))
        };
        read(&mut world, 200_000);
        let from_cache = world.cache_bytes_read() - before;
        assert!(from_cache >= 200_000 * BLOCK, "{from_cache} bytes came from the cache device");
        for round in 0..ROUNDS {
            let count = 1_000_000;
            report_rate(bench, round, count, || read(&mut world, count));
        }
    }
}

/// 4 KiB random writes at depth 32 in write-back mode, over 64 MiB, so that the log goes round and
/// segments die on their own.
fn write_back() {
    let mut world = World::new(&WorldSpec::new(GIB, 64 * MIB));
    let mut random = Random(11);
    let mut write = |world: &mut World, count: u64| {
        world.run(32, count, RequestKind::Write, BLOCK, |_| random.below(64 * MIB / BLOCK))
    };
    write(&mut world, 600_000);
    for round in 0..ROUNDS {
        let count = 500_000;
        report_rate("write-back", round, count, || write(&mut world, count));
    }
}

/// Bytes written to the cache device (records, checkpoints, superblocks: all of them) for each byte
/// accepted, 4 KiB random writes.
fn record_overhead() {
    let cases = [
        ("overhead-depth-1-flush", 1, true),
        ("overhead-depth-32", 32, false),
        ("overhead-depth-64", 64, false),
    ];
    for (bench, depth, flush) in cases {
        let mut world = World::new(&WorldSpec::new(GIB, 64 * MIB));
        let mut random = Random(13);
        for round in 0..ROUNDS {
            let before = world.cache_bytes_written();
            let count = 100_000;
            if flush {
                for _ in 0..count {
                    let block = random.below(64 * MIB / BLOCK);
                    world.run(1, 1, RequestKind::Write, BLOCK, |_| block);
                    world.run(1, 1, RequestKind::Flush, 0, |_| 0);
                }
            } else {
                let block = |_| random.below(64 * MIB / BLOCK);
                world.run(depth, count, RequestKind::Write, BLOCK, block);
            }
            let written = world.cache_bytes_written() - before;
            report(bench, round, written as f64 / (count * BLOCK) as f64, "bytes/byte", "");
        }
    }
}

/// Bytes that the engine holds for each cached block once random 4 KiB reads have filled the cache,
/// and once random 4 KiB writes have: the allocator's count for a large pool minus that for a small
/// one, so that what does not grow with the cache does not count, and everything that does is in it
/// (index, segment table, ghost, dirty and reference bits). Random writes leave dead blocks in the
/// log, so that fewer are cached.
fn index_memory() {
    for (bench, kind) in
        [("index-memory", RequestKind::Read), ("index-memory-writes", RequestKind::Write)]
    {
        let (small_bytes, small_cached, ..) = held(64 * MIB, kind);
        let (bytes, cached, index, slots) = held(GIB, kind);
        let per_block =
            (bytes - small_bytes) as f64 / (cached.saturating_sub(small_cached)).max(1) as f64;
        let index_per_block = index as f64 / cached as f64;
        let more = format!(
            "\"held_bytes\": {bytes}, \"cached_blocks\": {cached}, \"slots\": {slots}, \
             \"held_bytes_small\": {small_bytes}, \"cached_blocks_small\": {small_cached}, \
             \"index_bytes_per_block\": {index_per_block:.3}"
        );
        report(bench, 0, per_block, "bytes/block", &more);
    }
}

/// Fills a pool with random requests of a kind. Bytes held, blocks cached, bytes of the index,
/// slots.
fn held(pool_bytes: u64, kind: RequestKind) -> (i64, u64, u64, u64) {
    let volume_bytes = pool_bytes * 4;
    let mut world = None;
    let mut devices = Some(Devices::new(pool_bytes, volume_bytes, true));
    let info = allocation_counter::measure(|| {
        let mut made = World::with_devices(&spec_full(pool_bytes), devices.take().unwrap());
        let mut random = Random(17);
        let count = pool_bytes / BLOCK * 3 / 2;
        made.run(32, count, kind, BLOCK, |_| random.below(volume_bytes / BLOCK));
        made.shed();
        world = Some(made);
    });
    let stats = world.as_ref().unwrap().engine.pool_stats();
    (info.bytes_current, stats.cached_blocks, stats.index_bytes, pool_bytes / BLOCK)
}

/// A volume of four times the pool, cleaned as it goes.
fn spec_full(pool_bytes: u64) -> WorldSpec {
    WorldSpec::new(pool_bytes, pool_bytes * 4)
}

/// Opening a full pool after the process was killed, on devices that cost nothing: the processor's
/// part of a recovery, and the bytes that it reads.
fn recovery() {
    /// Large enough that what a start costs in any case does not count.
    const RECOVERY_GIB: u64 = 4;
    for round in 0..3 {
        let pool_bytes = RECOVERY_GIB * GIB;
        let devices = Devices::new(pool_bytes, pool_bytes * 4, true);
        let mut world = World::with_devices(&spec_full(pool_bytes), devices);
        let mut random = Random(19 + round as u64);
        let blocks = pool_bytes / BLOCK;
        world.run(32, blocks * 5 / 4, RequestKind::Write, BLOCK, |_| random.below(4 * blocks));
        let cached = world.engine.pool_stats().cached_blocks;
        let devices = world.kill();
        let start = cpu_seconds();
        let mut world = World::with_devices(&spec_full(pool_bytes), devices);
        world.run(1, 1, RequestKind::Read, BLOCK, |_| 0);
        let seconds = cpu_seconds() - start;
        let found = world.engine.pool_stats().cached_blocks;
        let used = cached.max(1) * BLOCK;
        let per_100_gib = seconds * (100 * GIB) as f64 / used as f64;
        let more = format!(
            "\"seconds\": {seconds:.3}, \"cached_blocks_before\": {cached}, \
             \"cached_blocks_after\": {found}, \"bytes_read\": {}",
            world.cache_bytes_read()
        );
        report("recovery-cpu", round, per_100_gib, "s per 100 GiB in use", &more);
    }
}
