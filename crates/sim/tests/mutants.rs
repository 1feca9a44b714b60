//! Mutation proof: each bug that `forebay_engine::Mutant` names is put back, alone, and must be
//! caught.
//!
//! `cargo test --release -p forebay-sim --features mutants --test mutants -- --nocapture` prints
//! the table; `FOREBAY_MUTANT=Name` looks at one bug only. `seeds/mutants.txt` has the least seed
//! that caught each bug when it was last searched for: that one is tried first. After a change that
//! makes other worlds of the seeds, the search costs minutes, and its finds belong into the list.
#![cfg(feature = "mutants")]

use forebay_engine::Mutant;
use forebay_sim::{Options, run_seed};
use std::sync::atomic::{AtomicU64, Ordering};

/// A bug must be caught within so many seeds, where the list has none.
const SEEDS_MAX: u64 = 16_000;

/// Bugs that so few seeds do not catch. Free segments are used oldest first: in a pool this small
/// none is emptied, freed and used again within one scan of the index.
const OPEN: [Mutant; 1] = [Mutant::FreshSegmentsCount];

/// The seed that caught `mutant` last.
fn listed(mutant: Mutant) -> Option<u64> {
    let name = format!("{mutant:?}");
    include_str!("../seeds/mutants.txt")
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(listed, _)| *listed == name)
        .map(|(_, seed)| seed.trim().parse().expect("a seed is a number"))
}

/// The rule that `mutant` breaks in the world of this seed, which is sound without it.
fn caught(mutant: Mutant, seed: u64) -> Option<&'static str> {
    let options = Options { mutant: Some(mutant), ..Options::default() };
    let innocent = || run_seed(seed, Options::default()).failure.is_none();
    run_seed(seed, options).failure.filter(|_| innocent()).map(|failure| failure.rule)
}

/// The least seed that catches `mutant`, with the rule that it breaks.
fn hunt(mutant: Mutant) -> Option<(u64, &'static str)> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let next = AtomicU64::new(0);
    let found = AtomicU64::new(u64::MAX);
    let hunt_some = || {
        let mut least = None;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS_MAX || seed >= found.load(Ordering::Relaxed) {
                return least;
            }
            if let Some(rule) = caught(mutant, seed) {
                found.fetch_min(seed, Ordering::Relaxed);
                least = Some((seed, rule));
            }
        }
    };
    std::thread::scope(|scope| {
        let hunters: Vec<_> = (0..threads).map(|_| scope.spawn(hunt_some)).collect();
        hunters.into_iter().filter_map(|hunter| hunter.join().expect("no panic")).min()
    })
}

#[test]
fn every_planted_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    println!("{:<28} {:>10}  rule", "bug", "first seed");
    let only = std::env::var("FOREBAY_MUTANT").ok();
    let wanted = |mutant: &&Mutant| only.as_ref().is_none_or(|name| format!("{mutant:?}") == *name);
    for &mutant in Mutant::ALL.iter().filter(wanted) {
        if OPEN.contains(&mutant) {
            println!("{:<28} {:>10}  open", format!("{mutant:?}"), "-");
            continue;
        }
        let again = listed(mutant).and_then(|seed| Some((seed, caught(mutant, seed)?, "")));
        let search = || hunt(mutant).map(|(seed, rule)| (seed, rule, "  not in seeds/mutants.txt"));
        match again.or_else(search) {
            Some((seed, rule, new)) => {
                println!("{:<28} {seed:>10}  {rule}{new}", format!("{mutant:?}"));
            }
            None => {
                println!("{:<28} {:>10}  not caught", format!("{mutant:?}"), "-");
                missed.push(mutant);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught within {SEEDS_MAX} seeds: {missed:?}");
}
