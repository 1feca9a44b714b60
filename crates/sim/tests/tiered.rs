//! Tiered worlds that run with every test run: the seeds that once found something, and a block of
//! others.

use forebay_sim::coverage::Coverage;
use forebay_sim::{Options, Outcome, run_seed};

/// Seeds of the block: what fits a test run beside everything else.
const BLOCK: u64 = 250;

fn run(seed: u64, plain: bool) -> Outcome {
    let outcome = run_seed(seed, Options { tiered: true, plain, ..Options::default() });
    let flag = if plain { " --plain" } else { "" };
    assert!(
        outcome.failure.is_none(),
        "seed {seed}: {:?}\nreplay: forebay-sim --tiered{flag} --seed {seed} --trace",
        outcome.failure,
    );
    outcome
}

/// Seeds in `seeds/tiered.txt`: the first word of each line that is not a comment.
#[test]
fn tiered_seeds_that_once_failed_pass() {
    let lines = include_str!("../seeds/tiered.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let word = line.split_whitespace().next().expect("a word");
        run(word.parse().expect("a seed"), false);
    }
}

#[test]
fn plain_tiered_worlds_pass() {
    (0..50).for_each(|seed| drop(run(seed, true)));
}

#[test]
fn the_same_seed_is_the_same_tiered_world() {
    for seed in 0..10 {
        let (first, second) = (run(seed, false), run(seed, false));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.totals, second.totals, "seed {seed}");
        assert_eq!(first.coverage, second.coverage, "seed {seed}");
    }
}

/// Tiered worlds pass, and they go where bugs live: each of these rare things happens in the block.
#[test]
fn tiered_worlds_pass_and_reach_the_rare_paths() {
    let mut coverage = Coverage::default();
    for seed in 0..BLOCK {
        coverage.merge(&run(seed, false).coverage);
    }
    for mark in [
        "power cuts",
        "killed processes",
        "orderly stops",
        "orderly stops cut short",
        "crashes during a start",
        "crashes during a command",
        "cuts during moves",
        "kills during moves",
        "moves interrupted at a record",
        "checkpoints interrupted",
        "records interrupted",
        "records replayed",
        "writes torn",
        "writes during moves",
        "zeroes during moves",
        "discards during moves",
        "requests across extents",
        "requests held back",
        "extents promoted",
        "extents demoted",
        "extents moved within a tier",
        "extents given back",
        "journals wrapped",
        "writes without room",
        "errors: no room",
        "writes that devices had no room for",
        "tiers evacuated",
        "single members evacuated",
        "evacuations cancelled",
        "evacuations cancelled in part",
        "volumes grown",
        "members added",
        "numbers used again",
        "tiers removed",
        "single members removed",
        "maps held by others",
        "members given up",
        "extents lost with their member",
        "crashes while a member joins",
        "crashes while a tier leaves",
        "extents pinned",
        "holders lost",
        "blocks called lost",
        "requests to lost blocks failed",
        "writes forgotten",
        "moves failed",
        "members missing",
        "requests to a missing member",
        "members died",
        "maps rotten",
        "maps of several pages",
        "sets made anew",
        "errors: slot read",
        "errors: slot write",
        "errors: map write",
        "errors: flush",
    ] {
        assert!(coverage.count(mark) > 0, "{BLOCK} seeds never reached \"{mark}\"");
    }
}
