//! The engine alone: `crates/engine/benches/engine.rs`.

use super::results::{Results, Row, Target};
use crate::command::{cargo_command, output};
use anyhow::Result;
use serde_json::Value;

struct Case {
    bench: &'static str,
    what: &'static str,
    unit: &'static str,
    target: Target,
}

const CASES: [Case; 8] = [
    Case {
        bench: "read-hit",
        what: "4 KiB read hit from the cache device, depth 32, hot set 4 MiB",
        unit: "requests/s",
        target: Target::AtLeast(1_000_000.0),
    },
    Case {
        bench: "read-hit-256m",
        what: "the same, hot set 256 MiB (the copy misses the processor's caches)",
        unit: "requests/s",
        target: Target::None,
    },
    Case {
        bench: "write-back",
        what: "4 KiB write-back write, depth 32, with checksums",
        unit: "requests/s",
        target: Target::AtLeast(500_000.0),
    },
    Case {
        bench: "overhead-depth-1-flush",
        what: "bytes written / accepted, 4 KiB random, depth 1 with FLUSH each",
        unit: "",
        target: Target::AtMost(2.1),
    },
    Case {
        bench: "overhead-depth-32",
        what: "bytes written / accepted, 4 KiB random, depth 32",
        unit: "",
        target: Target::AtMost(1.10),
    },
    Case {
        bench: "overhead-depth-64",
        what: "bytes written / accepted, 4 KiB random, depth 64",
        unit: "",
        target: Target::AtMost(1.10),
    },
    Case {
        bench: "index-memory",
        what: "heap for each cached 4 KiB block, random 4 KiB, cache full",
        unit: "bytes",
        target: Target::AtMost(10.0),
    },
    Case {
        bench: "recovery-cpu",
        what: "recovery on instant devices, for 100 GiB of cache in use",
        unit: "s",
        target: Target::AtMost(2.0),
    },
];

/// Runs the bench binary and reads its lines.
///
/// # Errors
/// If it cannot be built or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let arguments = ["bench", "--quiet", "-p", "forebay-engine", "--bench", "engine"];
    let raw = output(&mut cargo_command(&arguments))?;
    let words: Vec<String> = std::iter::once("cargo").chain(arguments).map(String::from).collect();
    let lines = results.raw_json("engine.jsonl", &words, &raw)?;
    for case in &CASES {
        let rounds: Vec<&Value> = lines.iter().filter(|line| line["bench"] == case.bench).collect();
        let numbers = |key: &str| -> Vec<f64> {
            rounds.iter().filter_map(|round| round[key].as_f64()).collect()
        };
        let row = |what: String, values: Vec<f64>, unit, target, note: &str| Row {
            what,
            values,
            unit,
            target,
            note: note.into(),
        };
        results.row(row(case.what.into(), numbers("value"), case.unit, case.target, note(case)));
        let allocations = numbers("allocations_per_request");
        if !allocations.is_empty() {
            let what = format!("heap allocations a request, {}", case.bench);
            let zero = matches!(case.bench, "read-hit" | "read-hit-256m");
            let target = if zero { Target::AtMost(0.0) } else { Target::None };
            results.row(row(what, allocations, "", target, "the allocator's own count"));
        }
    }
    Ok(())
}

fn note(case: &Case) -> &'static str {
    match case.bench {
        "read-hit" | "read-hit-256m" => "one thread, no RAM tier; includes the device's copy",
        "write-back" => "one thread; includes the client's, the record's and the device's copy",
        "index-memory" => "heap of a 1 GiB pool minus that of a 64 MiB pool, by blocks cached",
        "recovery-cpu" => "the processor's part; see the bench `recovery` for real devices",
        _ => "all bytes to the cache device: records, checkpoints, superblocks",
    }
}
