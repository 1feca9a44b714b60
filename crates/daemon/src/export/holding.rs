//! What outlives the daemon: the open files behind block devices, held by systemd or by a process
//! of ours, so that a daemon that is killed or replaced costs its clients a pause and no error.

use crate::lock::lock;
use anyhow::{Context, ensure};
use forebay_host::hold::{self, Holder};
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The holder's socket, in the state directory.
const SOCKET: &str = "holder.sock";

/// Runs a holder that listens at `socket`: `forebayd hold SOCKET`.
///
/// # Errors
/// There is one already, or the system refuses.
pub fn run_holder(socket: &Path) -> anyhow::Result<()> {
    ensure!(
        UnixStream::connect(socket).is_err(),
        "{} has a holder; it ends when it holds nothing",
        socket.display()
    );
    let _ = fs::remove_file(socket);
    // It was started as /proc/self/exe, which would be its name in lists of processes.
    let _ = fs::write("/proc/self/comm", "forebayd-hold");
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
    let held = hold::serve(&listener, socket);
    let _ = fs::remove_file(socket);
    held.context("hold open files")
}

/// Who holds open what the devices need, beside this process.
pub struct Holding {
    /// Where a process of ours listens.
    socket: PathBuf,
    /// None was needed yet, or it has ended.
    holder: Mutex<Option<Holder>>,
}

impl Holding {
    /// The holder that there is. Returns what it holds, too.
    pub fn find(state_dir: &Path) -> (Holding, Vec<(String, OwnedFd)>) {
        let socket = state_dir.join(SOCKET);
        let holder = match Holder::systemd() {
            Ok(Some(holder)) => Some(holder),
            Ok(None) => Holder::process(&socket).ok(),
            Err(error) => {
                tracing::warn!("systemd's notification socket: {error}");
                Holder::process(&socket).ok()
            }
        };
        let held = holder.as_ref().map_or(Ok(Vec::new()), Holder::list);
        let held = held.unwrap_or_else(|error| {
            tracing::error!("the holder of open files does not answer: {error}");
            Vec::new()
        });
        (Holding { socket, holder: Mutex::new(holder) }, held)
    }

    /// Has a volume's open file held.
    pub fn put(&self, name: &str, file: BorrowedFd) -> anyhow::Result<()> {
        let mut holder = lock(&self.holder);
        let holder = self.ready(&mut holder)?;
        holder.put(name, file).context("give the holder an open file")
    }

    /// Has a volume's open file held no longer.
    pub fn drop_file(&self, name: &str) {
        if let Some(Err(error)) = lock(&self.holder).as_ref().map(|it| it.drop_file(name)) {
            tracing::warn!(volume = name, "the holder of open files: {error}");
        }
    }

    /// A holder that answers, started if there is none.
    fn ready<'h>(&self, holder: &'h mut Option<Holder>) -> anyhow::Result<&'h Holder> {
        if !holder.as_ref().is_some_and(Holder::is_there) {
            let status = Command::new("/proc/self/exe")
                .arg0("forebayd")
                .arg("hold")
                .arg(&self.socket)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .context("start the holder of open files")?;
            ensure!(status.success(), "the holder of open files ended: {status}");
            let started =
                Holder::process(&self.socket).context("reach the holder of open files")?;
            *holder = Some(started);
        }
        holder.as_ref().context("a holder was started")
    }

    /// Starts another holder if it has ended, and has all of this held again.
    pub fn watch<'f>(&self, files: impl Iterator<Item = (&'f String, BorrowedFd<'f>)>) {
        let mut holder = lock(&self.holder);
        if holder.as_ref().is_none_or(Holder::is_there) {
            return;
        }
        *holder = None;
        let mut files = files.peekable();
        if files.peek().is_none() {
            return;
        }
        tracing::warn!("the holder of open files has ended; another one is started");
        let held = self
            .ready(&mut holder)
            .and_then(|holder| files.try_for_each(|(name, file)| Ok(holder.put(name, file)?)));
        if let Err(error) = held {
            tracing::error!("block devices end with forebayd: {error:#}");
        }
    }
}
