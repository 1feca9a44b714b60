//! Mutation proof of the tiers: each bug that `forebay_tier::Mutant` names is put back, alone, and
//! must be caught.
//!
//! `cargo test --release -p forebay-sim --features mutants --test tier_mutants -- --nocapture`
//! prints the table; `FOREBAY_MUTANT=Name` looks at one bug only. `seeds/tier-mutants.txt` has the
//! least seed that caught each bug when it was last searched for: that one is tried first.
#![cfg(feature = "mutants")]

use forebay_sim::{Options, run_seed};
use forebay_tier::Mutant;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bug must be caught within so many seeds, where the list has none.
const SEEDS_MAX: u64 = 8_000;

/// Bugs that nobody has found a seed for.
const OPEN: &[Mutant] = &[Mutant::NumberReusedEarly];

/// The seed that caught `mutant` last.
fn listed(mutant: Mutant) -> Option<u64> {
    let name = format!("{mutant:?}");
    include_str!("../seeds/tier-mutants.txt")
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(listed, _)| *listed == name)
        .map(|(_, word)| word.trim().parse().expect("a seed"))
}

/// The rule that `mutant` breaks in the world of this seed, which is sound without it.
fn caught(mutant: Mutant, seed: u64) -> Option<(&'static str, String)> {
    let sound = Options { tiered: true, ..Options::default() };
    let innocent = || run_seed(seed, sound).failure.is_none();
    run_seed(seed, Options { tier_mutant: Some(mutant), ..sound })
        .failure
        .filter(|_| innocent())
        .map(|failure| (failure.rule, failure.text))
}

/// The least seed that catches `mutant`, with the rule that it breaks.
fn hunt(mutant: Mutant) -> Option<(u64, (&'static str, String))> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let next = AtomicU64::new(0);
    let found = AtomicU64::new(u64::MAX);
    let hunt_some = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS_MAX || seed >= found.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(broken) = caught(mutant, seed) {
                found.fetch_min(seed, Ordering::Relaxed);
                return Some((seed, broken));
            }
        }
    };
    std::thread::scope(|scope| {
        let hunters: Vec<_> = (0..threads).map(|_| scope.spawn(hunt_some)).collect();
        hunters.into_iter().filter_map(|hunter| hunter.join().expect("no panic")).min()
    })
}

#[test]
fn every_planted_bug_of_the_tiers_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    println!("{:<20} {:>10}  rule", "bug", "first seed");
    let only = std::env::var("FOREBAY_MUTANT").ok();
    let wanted = |mutant: &&Mutant| only.as_ref().is_none_or(|name| format!("{mutant:?}") == *name);
    for &mutant in Mutant::ALL.iter().filter(wanted) {
        let name = format!("{mutant:?}");
        if OPEN.contains(&mutant) {
            println!("{name:<20} {:>10}  open", "-");
            continue;
        }
        let again = listed(mutant).and_then(|seed| Some((seed, caught(mutant, seed)?, "")));
        let search = || {
            let (seed, broken) = hunt(mutant)?;
            Some((seed, broken, "  not in seeds/tier-mutants.txt"))
        };
        match again.or_else(search) {
            Some((seed, (rule, text), new)) => {
                let text: String = text.chars().take(80).collect();
                println!("{name:<20} {seed:>10}  {rule}{new}: {text}");
            }
            None => {
                println!("{name:<20} {:>10}  not caught", "-");
                missed.push(mutant);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught within {SEEDS_MAX} seeds: {missed:?}");
}
