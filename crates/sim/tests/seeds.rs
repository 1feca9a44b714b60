//! Worlds that run with every test run: the seeds that once found something, and a block of fresh
//! ones.

use forebay_sim::coverage::Coverage;
use forebay_sim::swarm::bend::Bend;
use forebay_sim::{Options, Outcome, run_seed};

/// Seeds of one block: what fits a test run beside everything else.
const BLOCK: u64 = 300;

fn assert_passes(outcome: &Outcome, plain: bool) {
    let flag = if plain { " --plain" } else { "" };
    assert!(
        outcome.failure.is_none(),
        "seed {}: {:?}\nreplay: cargo run -p forebay-sim -- --seed {} --trace{flag}",
        outcome.seed,
        outcome.failure,
        outcome.seed
    );
}

fn run_block(first: u64, plain: bool) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in first..first + BLOCK {
        let outcome = run_seed(seed, Options { plain, ..Options::default() });
        assert_passes(&outcome, plain);
        coverage.merge(&outcome.coverage);
    }
    coverage
}

/// Seeds in `seeds/regressions.txt`: the first word of each line that is not a comment.
fn regressions() -> Vec<(u64, Option<Bend>)> {
    include_str!("../seeds/regressions.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| line.split_whitespace().next().expect("a word"))
        .map(|word| forebay_sim::listed(word).expect("a seed"))
        .collect()
}

#[test]
fn seeds_that_once_failed_pass() {
    for (seed, bend) in regressions() {
        assert_passes(&run_seed(seed, Options { bend, ..Options::default() }), false);
    }
}

#[test]
fn plain_worlds_pass() {
    run_block(0, true);
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..20 {
        let (first, second) =
            (run_seed(seed, Options::default()), run_seed(seed, Options::default()));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.totals, second.totals, "seed {seed}");
        assert_eq!(first.coverage, second.coverage, "seed {seed}");
    }
}

/// Swarm worlds pass, and they go where bugs live: each of these rare things happens in one block.
#[test]
fn swarm_worlds_pass_and_reach_the_rare_paths() {
    let coverage = run_block(1_200_600, false);
    for mark in [
        "power cuts",
        "killed processes",
        "orderly stops",
        "crashes during recovery",
        "crashes during a command",
        "writes torn",
        "records rolled forward",
        "lives opened with dirty blocks",
        "checkpoints",
        "segments dropped",
        "segments cleaned",
        "blocks written back",
        "blocks filled",
        "blocks mirrored",
        "bytes read from the cache",
        "bytes read from RAM",
        "modes switched",
        "volumes drained",
        "volumes added",
        "volumes removed",
        "volumes grown",
        "commands cancelled",
        "origin written while detached",
        "origin missing at open",
        "errors: origin write",
        "errors: origin flush",
        "errors: cache read",
        "errors: cache write",
        "devices failed",
        "pages misdirected",
        "blocks reinserted",
        "reads held",
        "devices vanished",
        "devices came back",
        "sectors rotten",
        "bad blocks noticed",
        "last copies destroyed",
        "overtaken",
        "sequential",
        "first-miss",
    ] {
        assert!(coverage.count(mark) > 0, "{BLOCK} seeds never reached \"{mark}\"");
    }
}
