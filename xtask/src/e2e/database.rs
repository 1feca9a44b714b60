//! Databases on a mounted volume while its daemon is killed five times: each transaction that was
//! confirmed is there, and the database finds itself sound.

use super::crash::{BETWEEN, KILLS};
use super::machine::{Machine, tool};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 30;
/// Clients of PostgreSQL, and what of its bench is in the database: 100,000 accounts for each.
const CLIENTS: &str = "4";
const SCALE: &str = "3";

/// A volume with ext4, mounted.
fn mounted(name: &str) -> Result<Machine> {
    let mut machine = Machine::start(name, BYTES)?;
    tool(&["mkfs.ext4", "-q", "-F", &machine.device()])?;
    machine.mount()?;
    Ok(machine)
}

/// Everything is read from the device again.
fn mount_again(machine: &mut Machine) -> Result<()> {
    machine.wait_until_served()?;
    machine.unmount()?;
    tool(&["e2fsck", "-f", "-n", &machine.device()])?;
    machine.mount()
}

/// SQLite, with its rollback journal: one row a transaction, each confirmed before the next.
///
/// # Errors
/// A row that was confirmed and is not there, or a damaged database.
pub fn sqlite() -> Result<()> {
    let mut machine = mounted("sqlite")?;
    let file = format!("{}/rows.db", machine.mount_point());
    tool(&["sqlite3", &file, "create table row(n integer primary key, text text)"])?;
    let mut shell = Command::new("sqlite3");
    shell.args(["-bail", &file]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().context("start sqlite3")?;
    let mut ask = shell.stdin.take().context("its input")?;
    let answers = BufReader::new(shell.stdout.take().context("its output")?);
    let end = Instant::now() + BETWEEN * (KILLS + 1);
    let writer = thread::spawn(move || -> Result<u64> {
        let mut confirmed = 0;
        writeln!(ask, "pragma synchronous=full;")?;
        let mut answers = answers.lines();
        while Instant::now() < end {
            let next = confirmed + 1;
            writeln!(ask, "insert into row values({next}, hex(randomblob(700))); select {next};")?;
            let answer = answers.next().context("sqlite3 ended")??;
            ensure!(answer == next.to_string(), "sqlite3 said {answer:?} to row {next}");
            confirmed = next;
        }
        Ok(confirmed)
    });
    for _ in 0..KILLS {
        thread::sleep(BETWEEN);
        machine.daemon.kill_and_start()?;
    }
    let confirmed = writer.join().expect("the writer does not panic")?;
    ensure!(shell.wait()?.success(), "sqlite3 failed");
    mount_again(&mut machine)?;
    let found = tool(&["sqlite3", &file, "select count(*), max(n) from row"])?;
    ensure!(found.trim() == format!("{confirmed}|{confirmed}"), "{confirmed} rows, found {found}");
    let sound = tool(&["sqlite3", &file, "pragma integrity_check"])?;
    ensure!(sound.trim() == "ok", "sqlite3 finds its file damaged: {sound}");
    println!("e2e sqlite: {KILLS} kills, {confirmed} transactions, all there");
    machine.unmount()?;
    machine.finish()
}

/// A cluster of PostgreSQL on the volume.
struct Cluster {
    programs: PathBuf,
    data: String,
    socket: String,
}

impl Cluster {
    fn make(machine: &Machine) -> Result<Cluster> {
        let data = format!("{}/cluster", machine.mount_point());
        let socket = machine.directory.path().join("socket").display().to_string();
        for path in [&data, &socket] {
            tool(&["install", "-d", "-o", "postgres", "-m", "700", path])?;
        }
        let cluster = Cluster { programs: programs()?, data, socket };
        cluster.run("initdb", &["-D", &cluster.data, "-k", "--auth=trust", "-U", "postgres"])?;
        Ok(cluster)
    }

    /// A program of PostgreSQL's; it refuses to run as root.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120", "runuser", "-u", "postgres", "--"]);
        command.arg(self.programs.join(program)).args(arguments).current_dir("/");
        command.env("PGHOST", &self.socket).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        crate::command::output(&mut self.command(program, arguments))
    }

    fn start(&self) -> Result<()> {
        let options = format!("-k {} -c listen_addresses=", self.socket);
        let log = format!("{}/log", self.socket);
        self.run("pg_ctl", &["-D", &self.data, "-w", "-l", &log, "-o", &options, "start"]).map(drop)
    }

    fn stop(&self) -> Result<()> {
        self.run("pg_ctl", &["-D", &self.data, "-w", "-m", "fast", "stop"]).map(drop)
    }

    fn ask(&self, question: &str) -> Result<String> {
        let answer = self.run("psql", &["-U", "postgres", "-XAtc", question])?;
        Ok(answer.trim().to_string())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have been stopped.
        let mut stop = self.command("pg_ctl", &["-D", &self.data, "-m", "immediate", "stop"]);
        let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Where Debian puts PostgreSQL's programs: the newest version's.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let places = versions.map(|version| version.path().join("bin"));
    let newest = places.filter(|path| path.join("pgbench").is_file()).max();
    newest.context("no initdb and pgbench below /usr/lib/postgresql: install postgresql")
}

/// What a run of pgbench says of itself.
fn number_after(text: &str, words: &str) -> Result<u64> {
    let after = text.split(words).nth(1).with_context(|| format!("{words:?} in {text}"))?;
    let digits: String = after.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("{words:?} in {text}"))
}

/// PostgreSQL with checksums, under its own bench.
///
/// # Errors
/// A transaction that failed or is not there, sums that do not agree, or a page with a wrong
/// checksum.
pub fn postgres() -> Result<()> {
    let mut machine = mounted("postgres")?;
    let cluster = Cluster::make(&machine)?;
    cluster.start()?;
    cluster.run("pgbench", &["-U", "postgres", "-q", "-i", "-s", SCALE, "postgres"])?;
    let seconds = (BETWEEN * (KILLS + 1)).as_secs().to_string();
    let load = ["-U", "postgres", "-n", "-c", CLIENTS, "-T", &seconds, "postgres"];
    let mut load = cluster.command("pgbench", &load);
    let load = load.stdout(Stdio::piped()).spawn().context("start pgbench")?;
    for _ in 0..KILLS {
        thread::sleep(BETWEEN);
        machine.daemon.kill_and_start()?;
    }
    let ended = load.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success(), "pgbench failed: {}\n{said}", ended.status);
    let done = number_after(&said, "number of transactions actually processed:")?;
    ensure!(number_after(&said, "number of failed transactions:")? == 0, "{said}");
    cluster.stop()?;
    mount_again(&mut machine)?;
    cluster.run("pg_checksums", &["--check", "-D", &cluster.data])?;
    cluster.start()?;
    let counted = cluster.ask("select count(*) from pgbench_history")?;
    ensure!(counted == done.to_string(), "{done} transactions were confirmed, {counted} are there");
    let sum = |what: &str| cluster.ask(&format!("select coalesce(sum({what}"));
    let sums = [
        sum("abalance), 0) from pgbench_accounts")?,
        sum("tbalance), 0) from pgbench_tellers")?,
        sum("bbalance), 0) from pgbench_branches")?,
        sum("delta), 0) from pgbench_history")?,
    ];
    if sums.iter().any(|one| *one != sums[0]) {
        bail!("the sums of a bank do not agree: {sums:?}");
    }
    cluster.stop()?;
    println!("e2e postgres: {KILLS} kills, {done} transactions, all there");
    // Its last process may still be leaving the file system.
    thread::sleep(Duration::from_millis(200));
    machine.unmount()?;
    machine.finish()
}
