//! Read hits from a virtual machine's disk: `qemu-img bench` through QEMU's own driver of
//! vhost-user-blk, so that nothing of a guest is measured with it. The programs come from the
//! packages of `cargo xtask vm`.

use super::daemon::{Daemon, Directory, processor_seconds};
use super::results::{Results, Row, Target};
use crate::command::output;
use crate::vm::{machine_disk, packages};
use anyhow::{Context, Result};

const ROUNDS: usize = 7;
const REQUESTS: u64 = 1_000_000;
const BLOCK: u64 = 4096;

/// Runs the bench.
///
/// # Errors
/// If a package cannot be fetched, or a program fails.
pub fn run(results: &mut Results) -> Result<()> {
    let packages = packages()?;
    let (directory, cache) = Directory::with_cache("vhost")?;
    results.scrub(directory.path(), "$DIR");
    results.scrub(&packages.tools, "$TOOLS");
    let daemon = Daemon::start(&directory, &[])?;
    let new = ["cache", "ram:256M", "--with", &cache, "--mode", "writeback", "--name", "hit"];
    daemon.forebay(&[&new[..], &["--yes", "--export", "vhost-user"]].concat())?;
    let socket = daemon.state().join("vhost/hit.sock");
    // Steps of a prime number of blocks come by each block before the first comes again.
    let bench = |count: u64, depth: u32, more: &[&str]| {
        let mut command = machine_disk::program(&packages, "qemu-img");
        command.args(["bench", "-s", &BLOCK.to_string(), "-S", &(BLOCK * 7919).to_string()]);
        command.args(["-c", &count.to_string(), "-d", &depth.to_string()]).args(more);
        command.args(machine_disk::disk(&socket));
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        output(&mut command).map(|said| (words, said))
    };
    bench(65_536, 32, &["-w"])?;
    bench(65_536, 32, &[])?;
    let (mut rates, mut costs, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let before = processor_seconds(daemon.pid())?;
        let (words, said): (Vec<String>, String) = bench(REQUESTS, 32, &[])?;
        let used = processor_seconds(daemon.pid())? - before;
        results.raw(&format!("vhost-{round}.txt"), &words, &said)?;
        rates.push(REQUESTS as f64 / seconds(&said)?);
        costs.push(used * 1e6 / REQUESTS as f64);
        let (words, said): (Vec<String>, String) = bench(REQUESTS / 20, 1, &[])?;
        results.raw(&format!("vhost-{round}-alone.txt"), &words, &said)?;
        alone.push((REQUESTS / 20) as f64 / seconds(&said)?);
    }
    let note = "qemu-img bench, 4 KiB reads, depth 32, 256 MiB, all hits, one queue";
    results.row(Row::new("vhost-user-blk", rates, "IOPS", Target::AtLeast(250_000.0), note));
    let note = "the whole daemon, user and system";
    results.row(Row::new("processor time a request", costs, "µs", Target::AtMost(2.0), note));
    results.row(Row::new("depth 1", alone, "IOPS", Target::None, ""));
    Ok(())
}

/// What `qemu-img bench` says that it took.
fn seconds(said: &str) -> Result<f64> {
    let after = said.split("Run completed in ").nth(1).context("qemu-img bench told no time")?;
    let word = after.split_whitespace().next().unwrap_or_default();
    word.parse().with_context(|| format!("{word:?} is no time"))
}
