//! A daemon of our own for a bench, in a directory that goes away with it.

use crate::command::{output, release_binary};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory below the system's place for temporary files, or below `parent`.
pub struct Directory(PathBuf);

impl Directory {
    /// A new folder in memory, where the machine has one, with a cache device of 1 GiB in it: a
    /// file, and its path as text.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn with_cache(name: &str) -> Result<(Directory, String)> {
        let directory = Directory::in_memory(name)?;
        let cache = directory.file("cache", 1 << 30)?;
        let cache = cache.to_str().context("a path of text")?.to_string();
        Ok((directory, cache))
    }

    /// A new folder in memory, where the machine has one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn in_memory(name: &str) -> Result<Directory> {
        let memory = Path::new("/dev/shm");
        Directory::create(memory.is_dir().then_some(memory), name)
    }

    /// Makes it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(parent: Option<&Path>, name: &str) -> Result<Directory> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Directory(path))
    }

    /// A sparse file of `bytes` in it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        let file =
            std::fs::File::create(&path).with_context(|| format!("make {}", path.display()))?;
        file.set_len(bytes)?;
        Ok(path)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Best effort: what is left lies among temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running `forebayd`.
pub struct Daemon {
    state: PathBuf,
    prefix: Vec<String>,
    programs: [PathBuf; 2],
    child: Child,
}

impl Daemon {
    /// Starts it with its state below `directory`; `prefix` is a program that starts it, or
    /// nothing.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start(directory: &Directory, prefix: &[String]) -> Result<Daemon> {
        let programs = [release_binary("forebayd")?, release_binary("forebay")?];
        Daemon::start_built(directory, prefix, programs)
    }

    /// As [`Daemon::start`], with another build of `forebayd` and `forebay`.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start_built(
        directory: &Directory,
        prefix: &[String],
        programs: [PathBuf; 2],
    ) -> Result<Daemon> {
        let state = directory.path().join("state");
        std::fs::create_dir_all(&state)?;
        let child = spawn(&programs[0], &state, prefix)?;
        let mut daemon = Daemon { state, prefix: prefix.to_vec(), programs, child };
        daemon.wait_until_it_answers()?;
        Ok(daemon)
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("forebayd ended at once: {status}");
            }
            if self.forebay(&["status", "-o", "json"]).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("forebayd does not answer after {START_TIMEOUT:?}")
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        // It may have ended already; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// If it does not end, or not well.
    pub fn stop(&mut self) -> Result<()> {
        output(Command::new("kill").arg(self.child.id().to_string()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                anyhow::ensure!(status.success(), "forebayd ended badly: {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("forebayd does not end after {START_TIMEOUT:?}")
    }

    /// Starts it again after [`Daemon::stop`] or [`Daemon::kill`].
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.programs[0], &self.state, &self.prefix)?;
        self.wait_until_it_answers()
    }

    /// Waits until its status says `words`: it answers before it has opened its pools.
    ///
    /// # Errors
    /// If that takes a minute.
    pub fn wait_until_says(&self, words: &str) -> Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        loop {
            let status = self.forebay(&["status", "-o", "json"]);
            if status.is_ok_and(|text| text.contains(words)) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < end, "no status says {words} in {START_TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The NBD socket.
    pub fn nbd_socket(&self) -> PathBuf {
        self.state.join("nbd.sock")
    }

    /// Runs `forebay` with these arguments and returns what it printed.
    ///
    /// # Errors
    /// If it fails.
    pub fn forebay(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.programs[1]);
        command.arg("--socket").arg(self.state.join("control.sock")).args(arguments);
        output(command.stdin(Stdio::null()))
    }

    /// As [`Daemon::forebay`], for a command that must not hang.
    ///
    /// # Errors
    /// If it fails, or has not ended within `limit`.
    pub fn forebay_within(&self, limit: Duration, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg(limit.as_secs().to_string()).arg(&self.programs[1]);
        command.arg("--socket").arg(self.state.join("control.sock")).args(arguments);
        output(command.stdin(Stdio::null()))
    }

    /// Runs `forebay` with these arguments, when the daemon answers. Returns all that it said, and
    /// whether it ended well.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn said(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let mut command = Command::new(&self.programs[1]);
            command.arg("--socket").arg(self.state.join("control.sock")).args(arguments);
            let output = command.stdin(Stdio::null()).output()?;
            let streams = [&output.stdout, &output.stderr];
            let said = streams.map(|stream| String::from_utf8_lossy(stream)).concat();
            if !said.contains("no forebayd answers") {
                return Ok((output.status.success(), said));
            }
            if Instant::now() > deadline {
                bail!("forebayd does not answer after {START_TIMEOUT:?}: {said}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The process, for [`processor_seconds`].
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without warning, and starts it again without waiting for it. Returns when the new
    /// one was started.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn kill_and_start(&mut self) -> Result<Instant> {
        self.child.kill()?;
        self.child.wait()?;
        let start = Instant::now();
        self.child = spawn(&self.programs[0], &self.state, &self.prefix)?;
        Ok(start)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait()
            && status.code().is_some_and(|code| code != 0)
        {
            let log = std::fs::read_to_string(self.state.join("log")).unwrap_or_default();
            eprintln!("forebayd ended by itself: {status}; its log:\n{log}");
        }
        // It may have ended already; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that a process and its threads have used, in seconds.
///
/// # Errors
/// If the process is not there.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold spaces; user and system time are fields 14 and 15.
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = behind_name.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>().context("read the processor time")? / TICKS_PER_SECOND)
}

/// The most memory that a process had at once, in bytes.
///
/// # Errors
/// If the process is not there.
pub fn peak_memory_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no peak of memory")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}

fn spawn(forebayd: &Path, state: &Path, prefix: &[String]) -> Result<Child> {
    let mut words: Vec<std::ffi::OsString> = prefix.iter().map(Into::into).collect();
    words.push(forebayd.into());
    let log = std::fs::File::options().create(true).append(true).open(state.join("log"))?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("--private").arg("--state-dir").arg(state);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("start forebayd")
}
