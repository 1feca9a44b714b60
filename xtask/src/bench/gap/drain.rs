//! One reader of a simulated hard disk while all that is dirty before it is sent home by a command.

use super::super::fio;
use super::super::results::{Results, Row, Target};
use super::answers::Answers;
use super::{Daemon, Directory, GAP_MAX, MIB, PRESET, add_volume, keep_state};
use anyhow::{Context, Result};
use std::thread;
use std::time::{Duration, Instant};

const DISK_MIB: u64 = 1024;
const CACHE_MIB: u64 = 256;
const DIRTY_MIB: u64 = 128;
const SECONDS: usize = 60;
/// How long the drain may take in all.
const LIMIT: Duration = Duration::from_secs(400);
const ROUNDS: usize = 3;
/// Another one than fio's own: else what is read is what was written, and in the cache.
const READ_SEED: u64 = 7;
/// Reads in a second beside the drain, of those after it.
const SHARE_LEAST: f64 = 0.25;

/// What the rounds measured.
#[derive(Default)]
struct Measured {
    beside: Vec<f64>,
    share: Vec<f64>,
    longest: Vec<f64>,
    drained: Vec<f64>,
}

/// Runs the rounds.
///
/// # Errors
/// If fio fails, or the drain does not end.
pub fn run(results: &mut Results) -> Result<()> {
    let mut measured = Measured::default();
    for round in 0..ROUNDS {
        self::round(results, &format!("drain-{round}"), &mut measured)?;
    }
    let note = format!(
        "{DIRTY_MIB} MiB of random blocks go home to preset {PRESET} of {DISK_MIB} MiB; fio \
         randread 4 KiB, depth 1, from the start of the drain, {SECONDS} s at most"
    );
    let what = "reads beside a drain";
    results.row(Row::new(what, measured.beside, "IOPS", Target::None, &note));
    let note = "the same reads, when all is home";
    let target = Target::AtLeast(SHARE_LEAST);
    results.row(Row::new("the same / after it", measured.share, "×", target, note));
    let target = Target::AtMost(2.0 * GAP_MAX);
    results.row(Row::new("the same: longest read", measured.longest, "s", target, "beside it"));
    let note = "with the reader beside it";
    results.row(Row::new("the same: the drain", measured.drained, "s", Target::None, note));
    Ok(())
}

fn round(results: &mut Results, name: &str, measured: &mut Measured) -> Result<()> {
    let directory = Directory::in_memory(name)?;
    results.scrub(directory.path(), "$DIR");
    let disk = directory.file("disk", DISK_MIB * MIB)?;
    let origin = format!("spindle:{}?preset={PRESET}", disk.display());
    let mut daemon = Daemon::start(&directory, &[])?;
    add_volume(&daemon, &directory, &origin, &[CACHE_MIB])?;
    let target = fio::nbd_target(&daemon.nbd_socket(), "vol");
    let fill =
        format!("--rw=randwrite --bs=4k --iodepth=16 --size={DISK_MIB}m --io_size={DIRTY_MIB}m");
    let limit = ["timeout".to_string(), (SECONDS + 60).to_string()];
    fio::run(results, &format!("{name}-fill"), &limit, &target, &fill)?;
    let log = directory.path().join("fio");
    let read = format!(
        "--rw=randread --norandommap --bs=4k --iodepth=1 --time_based --runtime={SECONDS} \
         --size={DISK_MIB}m --disable_slat=1 --disable_clat=1 --randrepeat=0 \
         --randseed={READ_SEED} --write_lat_log={}",
        log.display()
    );
    let (beside, drained) = thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let start = Instant::now();
            daemon.forebay_within(LIMIT, &["volume", "drain", "vol", "--yes"])?;
            anyhow::Ok(start.elapsed().as_secs_f64())
        });
        let beside = fio::run(results, &format!("{name}-beside"), &limit, &target, &read);
        (beside, drain.join().expect("a command does not panic"))
    });
    beside?;
    let drained = drained?;
    let log = std::fs::read_to_string(directory.path().join("fio_lat.1.log"))
        .context("read fio's log of latencies")?;
    let answers = Answers::of_fio(&log)?;
    let words = [format!("fio_lat.1.log of {name}-beside, by second")];
    results.raw(&format!("{name}-seconds.txt"), &words, &answers.table(SECONDS))?;
    let seconds = drained.min(SECONDS as f64);
    let beside = answers.until(seconds) as f64 / seconds;
    let after = fio::run(results, &format!("{name}-after"), &limit, &target, &read)?.read_iops;
    measured.beside.push(beside);
    measured.share.push(beside / after);
    measured.longest.push(answers.longest());
    measured.drained.push(drained);
    keep_state(results, &daemon, name)?;
    daemon.kill();
    Ok(())
}
