//! What the service manager is told, and asked: that the daemon serves, how it is, that it lives.
//! Without systemd all of it does nothing.

use crate::supervisor::Supervisor;
use forebay_format::name::escaped;
use forebay_host::hold::systemd_socket;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at a daemon that is not ready, and at one that is.
const INTERVAL: Duration = Duration::from_millis(100);
const READY_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at how many volumes are served.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// When a pool takes longer to open, the machine goes on to start without it. Below the
/// `TimeoutStartSec` of the unit.
const READY_AT_LATEST: Duration = Duration::from_secs(120);
/// How long the service manager may take for each word.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long `systemctl` may take.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// The way to the service manager.
#[derive(Debug)]
pub struct Manager {
    socket: Option<UnixDatagram>,
    /// How long it may hear nothing before it ends the daemon.
    watchdog: Option<Duration>,
}

impl Manager {
    /// The one that started this process, if one did.
    pub fn find() -> Manager {
        let socket = systemd_socket().unwrap_or_else(|error| {
            tracing::warn!("systemd's notification socket: {error}");
            None
        });
        if let Some(socket) = &socket {
            // Without a limit a word may wait; that is no reason not to send it.
            let _ = socket.set_write_timeout(Some(PATIENCE));
        }
        let word = |name: &str| std::env::var(name).ok();
        let own = word("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = word("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let watchdog = watchdog.filter(|_| own).map(Duration::from_micros);
        Manager { socket, watchdog }
    }

    /// Sends lines of `NAME=value`.
    fn tell(&self, words: &str) {
        let sent = self.socket.as_ref().map(|socket| socket.send(words.as_bytes()));
        if let Some(Err(error)) = sent {
            tracing::debug!("tell systemd: {error}");
        }
    }

    /// Tells that the daemon ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Stopping the pools.");
    }

    /// Tells how the daemon is, until the process ends: that it serves, once all that it knows is
    /// served or known to be missing; and again and again that it lives, as long as each pool's
    /// thread answers.
    pub fn keep_told(&self, supervisor: &Supervisor) {
        if self.socket.is_none() {
            return;
        }
        let started = Instant::now();
        let mut ready = false;
        let (mut alive_next, mut status_next) = (started, started);
        let mut status = String::new();
        loop {
            let now = Instant::now();
            if !ready && (supervisor.is_opened() || started.elapsed() > READY_AT_LATEST) {
                ready = true;
                status_next = now;
                self.tell("READY=1");
            }
            let stopping = supervisor.is_stopping();
            if now >= status_next && !stopping {
                status_next = now + STATUS_INTERVAL;
                let new = supervisor.one_line();
                if new != status {
                    self.tell(&format!("STATUS={}", escaped(&new)));
                    status = new;
                }
            }
            if let Some(watchdog) = self.watchdog.filter(|_| now >= alive_next) {
                alive_next = now + watchdog / 4;
                if stopping || supervisor.is_alive(watchdog / 4) {
                    self.tell("WATCHDOG=1");
                }
            }
            let often = self.watchdog.map_or(READY_INTERVAL, |watchdog| watchdog / 4);
            std::thread::sleep(if ready { often.min(READY_INTERVAL) } else { INTERVAL });
        }
    }
}

/// Whether systemd is taking the machine down.
pub fn machine_stops() -> bool {
    let asked = forebay_host::limit::within(ASK_LIMIT, "systemctl", || {
        let mut command = Command::new("systemctl");
        command.arg("is-system-running").stdin(Stdio::null()).stderr(Stdio::null()).output()
    });
    asked.is_ok_and(|output| output.stdout.trim_ascii() == b"stopping")
}
