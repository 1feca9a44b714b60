//! Forebay's proof. One seed is one world: disks with volatile caches that lose, tear and reorder
//! writes, rot, fail and vanish; clients and an administrator; crashes at any point; and an oracle
//! that knows what each sector may hold. `docs/testing.md` describes the fault model and the
//! output.
#![forbid(unsafe_code)]

pub mod checker;
pub mod content;
pub mod coverage;
pub mod disk;
pub mod hashes;
pub mod large;
pub mod model;
pub mod rng;
pub mod swarm;
pub mod tiered;
pub mod world;

use coverage::Coverage;
use large::Large;
use model::Violation;
use std::panic::{AssertUnwindSafe, catch_unwind};
use swarm::bend::Bend;
use tiered::Tiered;
use world::World;

/// How to run a seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Print every event.
    pub trace: bool,
    /// Plain worlds instead of swarm worlds: no faults but crashes, nothing switched off.
    pub plain: bool,
    /// What every world is bent towards.
    pub bend: Option<Bend>,
    /// Tiered worlds instead of those of the engine.
    pub tiered: bool,
    /// The bug to put back into the engine.
    #[cfg(feature = "mutants")]
    pub mutant: Option<forebay_engine::Mutant>,
    /// The bug to put back into the tiers.
    #[cfg(feature = "mutants")]
    pub tier_mutant: Option<forebay_tier::Mutant>,
}

/// What a world did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Power cuts and killed processes.
    pub crashes: u64,
    /// Requests of clients that were answered.
    pub requests: u64,
    /// I/Os that reached a device.
    pub ios: u64,
    /// Steps of the event loop.
    pub steps: u64,
    /// Sectors whose content was checked.
    pub sectors_read: u64,
}

impl Totals {
    /// Adds another world's.
    pub fn merge(&mut self, other: &Totals) {
        self.crashes += other.crashes;
        self.requests += other.requests;
        self.ios += other.ios;
        self.steps += other.steps;
        self.sectors_read += other.sectors_read;
    }
}

/// How a seed ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The broken rule, if one was.
    pub failure: Option<Violation>,
    /// Hash over all events: the same in every run of the seed.
    pub hash: u64,
    /// What it did.
    pub totals: Totals,
    /// What it met.
    pub coverage: Coverage,
}

/// Runs the world of `seed` to its end, or to the first broken rule. An assertion that fails is one
/// too.
pub fn run_seed(seed: u64, options: Options) -> Outcome {
    if options.tiered {
        let mut world = Tiered::new(seed, options);
        let failure = failure_of(|| world.run());
        let (hash, totals) = (world.hash(), world.totals());
        return Outcome { seed, failure, hash, totals, coverage: world.take_coverage() };
    }
    if options.bend.is_some_and(Bend::is_large) {
        let mut world = Large::new(seed, options);
        let failure = failure_of(|| world.run());
        let (hash, totals) = (world.hash(), world.totals());
        return Outcome { seed, failure, hash, totals, coverage: world.take_coverage() };
    }
    let mut world = World::new(seed, options);
    let failure = failure_of(|| world.run());
    let (hash, totals) = (world.hash(), world.totals());
    Outcome { seed, failure, hash, totals, coverage: world.take_coverage() }
}

/// The rule that a world broke, if it broke one.
fn failure_of(run: impl FnOnce() -> Result<(), Violation>) -> Option<Violation> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
                .unwrap_or_else(|| "a panic without words".into());
            Some(Violation::new("P", format!("an assertion failed: {text}")))
        }
    }
}

/// What the lists of seeds hold: `7`, or `7/brief` for seed 7 of the run with this bend.
pub fn listed(word: &str) -> Option<(u64, Option<swarm::bend::Bend>)> {
    match word.split_once('/') {
        None => Some((word.parse().ok()?, None)),
        Some((seed, name)) => Some((seed.parse().ok()?, Some(swarm::bend::Bend::named(name)?))),
    }
}
