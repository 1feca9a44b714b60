//! Four clients that read and write pieces of several sizes, on pools of one device, of twins, of
//! unequal devices and of three, with the mode left alone and switched each second. Each request
//! must be answered, and well, within [`LIMIT`]; so must the commands.
//!
//! The origins are files in memory, where a switch is done at once; one is a simulated hard disk,
//! which takes longer to send all home than a turn lasts.

use super::super::nbd_client::connect;
use super::super::results::{Results, Row, Target};
use super::answers::{Answer, Answers};
use super::{Daemon, Directory, GAP_MAX, MIB, PRESET, add_volume, keep_state, text};
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a request or a command may take.
pub const LIMIT: Duration = Duration::from_secs(25);
const SECONDS: u64 = 20;
const VOLUME_BYTES: u64 = 256 * MIB;
const BLOCK: u64 = 4096;
const CLIENTS: u64 = 4;
/// Pieces that are written and read, in blocks.
const WRITTEN: [u64; 3] = [1, 4, 16];
const READ: [u64; 2] = [1, 16];
const PIECE_MAX: u64 = 16;
/// The modes, each for a second.
const TURNS: [&str; 4] = ["writethrough", "writeback", "writearound", "writeback"];

/// A pool, by the sizes of its devices in MiB.
struct Pool {
    name: &'static str,
    devices_mib: &'static [u64],
    slow: bool,
}

const POOLS: [Pool; 5] = [
    Pool { name: "one", devices_mib: &[120], slow: false },
    Pool { name: "two", devices_mib: &[80, 80], slow: false },
    Pool { name: "uneven", devices_mib: &[60, 120], slow: false },
    Pool { name: "three", devices_mib: &[60, 90, 130], slow: false },
    Pool { name: "slow", devices_mib: &[60, 120], slow: true },
];

/// Runs them all.
///
/// # Errors
/// If a request or a command fails or hangs.
pub fn run(results: &mut Results) -> Result<()> {
    for pool in &POOLS {
        for switched in [false, true] {
            pool.run(results, switched)?;
        }
    }
    Ok(())
}

impl Pool {
    fn run(&self, results: &mut Results, switched: bool) -> Result<()> {
        let name = format!("mixed-{}{}", self.name, if switched { "-switched" } else { "" });
        let directory = Directory::in_memory(&name)?;
        results.scrub(directory.path(), "$DIR");
        let mut daemon = Daemon::start(&directory, &[])?;
        let origin = self.origin(&directory)?;
        add_volume(&daemon, &directory, &origin, self.devices_mib)?;
        let (answers, turns) = load(&daemon, switched);
        let kept = keep_state(results, &daemon, &name);
        // What the clients met says more than a daemon that does not tell its state.
        let answers = answers.with_context(|| name.clone())?;
        let turns = turns.with_context(|| name.clone())?;
        kept?;
        let words = [format!("{CLIENTS} clients on devices of {:?} MiB", self.devices_mib)];
        let table = answers.table(SECONDS as usize);
        results.raw(&format!("{name}-seconds.txt"), &words, &table)?;
        daemon.forebay_within(LIMIT, &["volume", "remove", "vol", "--yes"])?;
        daemon.stop()?;
        self.add_rows(results, &answers, switched.then_some(turns));
        Ok(())
    }

    fn origin(&self, directory: &Directory) -> Result<String> {
        let file = text(&directory.file("origin", VOLUME_BYTES)?)?;
        Ok(if self.slow { format!("spindle:{file}?preset={PRESET}") } else { file })
    }

    fn add_rows(&self, results: &mut Results, answers: &Answers, turns: Option<usize>) {
        let switched = if turns.is_some() { ", switched" } else { "" };
        let slow = if self.slow { " before a spindle" } else { "" };
        let what = format!("mixed, {:?} MiB{slow}{switched}: longest gap", self.devices_mib);
        let note = format!(
            "4 to 64 KiB, half reads, over 256 MiB, {SECONDS} s, {} requests{}",
            answers.count(),
            turns.map_or(String::new(), |turns| format!(", {turns} switches of the mode"))
        );
        let gap = vec![answers.longest_gap(SECONDS as f64)];
        // A switch ends with a FLUSH of the disk, and no read passes that one by.
        let target = if self.slow { Target::None } else { Target::AtMost(GAP_MAX) };
        results.row(Row::new(&what, gap, "s", target, &note));
        let target = Target::AtMost(LIMIT.as_secs_f64());
        let longest = vec![answers.longest()];
        results.row(Row::new("the same: longest request", longest, "s", target, "the same run"));
    }
}

/// All answers of the clients, and how often the mode was switched meanwhile.
fn load(daemon: &Daemon, switched: bool) -> (Result<Answers>, Result<usize>) {
    let (start, socket) = (Instant::now(), daemon.nbd_socket());
    thread::scope(|scope| {
        let client = |number| {
            scope.spawn({
                let socket = &socket;
                move || client(socket, number, start)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let turns = if switched { switch(daemon, start) } else { Ok(0) };
        let mut answers = Vec::new();
        let mut failed = None;
        for client in clients {
            match client.join().expect("a client does not panic") {
                Ok(its) => answers.extend(its),
                Err(error) => failed = Some(error),
            }
        }
        (failed.map_or_else(|| Ok(Answers::new(answers)), Err), turns)
    })
}

/// Switches the mode each second, and does not wait until all is home.
fn switch(daemon: &Daemon, start: Instant) -> Result<usize> {
    let mut turns = 0;
    for mode in TURNS.iter().cycle() {
        if start.elapsed().as_secs() >= SECONDS {
            break;
        }
        let words = ["volume", "mode", "vol", mode, "--yes", "--no-wait"];
        daemon.forebay_within(LIMIT, &words)?;
        turns += 1;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(turns)
}

/// Reads and writes by turns of chance until the time is over.
fn client(socket: &Path, number: u64, start: Instant) -> Result<Vec<Answer>> {
    let mut connection = connect(socket, "vol", LIMIT)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1));
    let mut buffer = vec![number as u8; (PIECE_MAX * BLOCK) as usize];
    let mut answers = Vec::new();
    while start.elapsed().as_secs() < SECONDS {
        let offset = random.below(VOLUME_BYTES / BLOCK - PIECE_MAX) * BLOCK;
        let writes = random.below(2) == 0;
        let pieces: &[u64] = if writes { &WRITTEN } else { &READ };
        let blocks = pieces[random.below(pieces.len() as u64) as usize];
        let piece = &mut buffer[..(blocks * BLOCK) as usize];
        let sent = Instant::now();
        let answered =
            if writes { connection.write(offset, piece) } else { connection.read(offset, piece) };
        answered.map_err(|error| {
            let second = start.elapsed().as_secs_f64();
            anyhow!("client {number}, {offset}+{}, second {second:.1}: {error:#}", piece.len())
        })?;
        let took = sent.elapsed();
        ensure!(took <= LIMIT, "client {number} waited for {took:?}");
        answers.push(Answer { at: start.elapsed().as_secs_f64(), took: took.as_secs_f64() });
    }
    Ok(answers)
}

/// A small generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The high bits are the better ones.
        (self.0 >> 20) % limit
    }
}
