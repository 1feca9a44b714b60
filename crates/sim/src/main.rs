//! Runs seeds and says what they met. See `docs/testing.md`.
#![forbid(unsafe_code)]
// Worlds have their own clock. This program measures how fast they run, and draws fresh seeds.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use forebay_sim::coverage::Coverage;
use forebay_sim::swarm::bend::Bend;
use forebay_sim::{Options, Outcome, Totals, hashes, run_seed};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const USAGE: &str = "\
forebay-sim: one seed is one world of lying, tearing, dying disks

usage: forebay-sim [--seed N | --seeds A..B | --time SECS] [--jobs N] [--plain|--swarm]
                   [--tiered] [--trace] [--keep-going]

  --seed N       run one seed
  --seeds A..B   run seeds A up to B, B not included (default 0..1000)
  --time SECS    run new seeds for so long
  --jobs N       threads (default: all cores)
  --plain        worlds without faults but crashes
  --swarm        worlds in which each seed switches faults and sizes on and off (default)
  --tiered       worlds of the tiers below the cache, instead of the engine's
  --trace        print every event
  --keep-going   do not stop at the first failure
  --bend NAME    bend every world towards one thing: brief (many short lives of a small pool), away
                 (and devices or origins that come and go), dwindle (and a few devices that vanish
                 one after the other), repair (and reads that fail while a start copies what one of
                 two devices lost), harm (and a cache that errs or rots), starve (a full pool whose
                 checkpoints take long), admin (volumes that come, go, grow and change their mode
                 all the time), and others that docs/testing.md tells of
  --hashes FILE  compare what worlds do with what the file says; with --write: write it; with
                 --first: some of them only
  --known FILE   seeds (first word of a line) whose failure is known and open: counted, not fatal
  --mutant NAME  with this planted bug, in a build with the feature `mutants`";

/// Failures that are printed.
const FAILURES_MAX: usize = 50;

struct Arguments {
    seeds: Range<u64>,
    jobs: u64,
    time: Option<Duration>,
    keep_going: bool,
    known: BTreeSet<String>,
    hashes: Option<PathBuf>,
    write: bool,
    first: bool,
    options: Options,
}

fn parse_arguments() -> Result<Option<Arguments>, String> {
    let mut parsed = Arguments {
        seeds: 0..1000,
        jobs: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        time: None,
        keep_going: false,
        known: BTreeSet::new(),
        hashes: None,
        write: false,
        first: false,
        options: Options::default(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match argument.as_str() {
            "--seed" => {
                let seed = number(value()?)?;
                parsed.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let text = value()?;
                let (first, end) = text.split_once("..").ok_or(format!("{text} is not A..B"))?;
                parsed.seeds = number(first.into())?..number(end.into())?;
            }
            "--time" => {
                parsed.time = Some(Duration::from_secs(number(value()?)?));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let first = now.as_nanos() as u64 >> 8 << 24;
                parsed.seeds = first..u64::MAX;
            }
            "--jobs" => parsed.jobs = number(value()?)?.clamp(1, 256),
            "--plain" => parsed.options.plain = true,
            "--swarm" => parsed.options.plain = false,
            "--tiered" => parsed.options.tiered = true,
            "--trace" => parsed.options.trace = true,
            "--bend" => {
                let name = value()?;
                let bend =
                    Bend::named(&name).ok_or(format!("{name} is no bend; --help lists them"))?;
                parsed.options.bend = Some(bend);
            }
            "--keep-going" => parsed.keep_going = true,
            #[cfg(feature = "mutants")]
            "--mutant" => {
                let name = value()?;
                let engine = forebay_engine::Mutant::ALL.iter();
                let tiers = forebay_tier::Mutant::ALL.iter();
                parsed.options.mutant = engine.copied().find(|it| format!("{it:?}") == name);
                parsed.options.tier_mutant = tiers.copied().find(|it| format!("{it:?}") == name);
                if parsed.options.mutant.is_none() && parsed.options.tier_mutant.is_none() {
                    return Err(format!("{name} is no planted bug"));
                }
            }
            "--hashes" => parsed.hashes = Some(value()?.into()),
            "--write" => parsed.write = true,
            "--first" => parsed.first = true,
            "--known" => parsed.known = known_seeds(&value()?)?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}; --help lists them")),
        }
    }
    Ok(Some(parsed))
}

/// The first words of the lines of a file, without comments.
fn known_seeds(path: &str) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    Ok(lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect())
}

impl Arguments {
    /// Whether a seed fails that is listed, as the lists call it: N, or N/NAME of a bend.
    fn knows(&self, seed: u64) -> bool {
        self.known.contains(&match self.options.bend {
            None => seed.to_string(),
            Some(bend) => format!("{seed}/{}", bend.name()),
        })
    }
}

/// What one thread found.
#[derive(Default)]
struct Share {
    seeds: u64,
    twice: u64,
    totals: Totals,
    coverage: Coverage,
    failures: Vec<Outcome>,
}

fn work(arguments: &Arguments, next: &AtomicU64, stop: &AtomicBool, start: Instant) -> Share {
    let mut share = Share::default();
    while !stop.load(Ordering::Relaxed) {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= arguments.seeds.end || arguments.time.is_some_and(|time| start.elapsed() > time)
        {
            break;
        }
        let mut outcome = run_seed(seed, arguments.options);
        share.seeds += 1;
        // One seed in a hundred runs twice: the same seed must be the same world.
        if seed.is_multiple_of(100) && outcome.failure.is_none() {
            share.twice += 1;
            let again = run_seed(seed, arguments.options);
            if again.hash != outcome.hash {
                let text = "two runs of this seed differ".to_string();
                outcome.failure = Some(forebay_sim::model::Violation::new("determinism", text));
            }
        }
        share.totals.merge(&outcome.totals);
        share.coverage.merge(&outcome.coverage);
        if outcome.failure.is_some() {
            share.failures.push(outcome);
            if !arguments.keep_going && !arguments.knows(seed) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    share
}

fn run(arguments: &Arguments) -> Share {
    let next = AtomicU64::new(arguments.seeds.start);
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let mut sum = Share::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.jobs)
            .map(|_| scope.spawn(|| work(arguments, &next, &stop, start)))
            .collect();
        for thread in threads {
            let share = thread.join().expect("a worker does not panic outside a seed");
            sum.seeds += share.seeds;
            sum.twice += share.twice;
            sum.totals.merge(&share.totals);
            sum.coverage.merge(&share.coverage);
            sum.failures.extend(share.failures);
        }
    });
    sum.failures.sort_by_key(|outcome| outcome.seed);
    report(&sum, start.elapsed(), arguments);
    sum
}

fn report(sum: &Share, elapsed: Duration, arguments: &Arguments) {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let rate = |count: u64| count as f64 / seconds;
    let totals = &sum.totals;
    println!("seeds         {:>12}   {:>10.0}/s", sum.seeds, rate(sum.seeds));
    println!("crashes       {:>12}   {:>10.0}/s", totals.crashes, rate(totals.crashes));
    println!("requests      {:>12}   {:>10.0}/s", totals.requests, rate(totals.requests));
    println!("device I/Os   {:>12}   {:>10.0}/s", totals.ios, rate(totals.ios));
    println!("sectors read  {:>12}   {:>10.0}/s", totals.sectors_read, rate(totals.sectors_read));
    println!("run twice     {:>12}", sum.twice);
    println!("seconds       {seconds:>12.1}   {} threads", arguments.jobs);
    println!("coverage");
    for (name, count) in sum.coverage.iter() {
        println!("  {name:<36} {count:>12}");
    }
    let plain = if arguments.options.plain { " --plain" } else { "" };
    let tiered = if arguments.options.tiered { " --tiered" } else { "" };
    let bend = arguments.options.bend.map_or(String::new(), |b| format!(" --bend {}", b.name()));
    let (known, new): (Vec<_>, Vec<_>) =
        sum.failures.iter().partition(|outcome| arguments.knows(outcome.seed));
    println!("known failures, still open {:>5}", known.len());
    for outcome in new.iter().take(FAILURES_MAX) {
        let Some(failure) = &outcome.failure else { continue };
        println!("FAILED seed {}: rule {}: {}", outcome.seed, failure.rule, failure.text);
        println!("  replay: forebay-sim --seed {} --trace{tiered}{plain}{bend}", outcome.seed);
    }
    println!("failures      {:>12}", new.len());
}

/// Compares the list of hashes with what the engine does today, or writes it anew.
fn compare_hashes(path: &Path, arguments: &Arguments) -> Result<bool, String> {
    let found = hashes::list(arguments.jobs, arguments.first);
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    if arguments.write && !arguments.first {
        return std::fs::write(path, found).map(|()| true).map_err(failed);
    }
    let listed = std::fs::read_to_string(path).map_err(failed)?;
    let differ = hashes::differ(&listed, &found);
    for line in &differ {
        println!("not in {}: {line}", path.display());
    }
    println!("hashes that differ {:>5}", differ.len());
    Ok(differ.is_empty())
}

fn main() -> ExitCode {
    let arguments = match parse_arguments() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("forebay-sim: {text}");
            return ExitCode::from(2);
        }
    };
    if arguments.seeds.end - arguments.seeds.start > 1 {
        // A failed assertion is reported with its seed; where it stands, the replay of the seed
        // prints.
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(path) = &arguments.hashes {
        return match compare_hashes(path, &arguments) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(text) => {
                eprintln!("forebay-sim: {text}");
                ExitCode::from(2)
            }
        };
    }
    let sum = run(&arguments);
    let new = sum.failures.iter().any(|outcome| !arguments.knows(outcome.seed));
    if new { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
