//! One boot of the guest: QEMU's command line, the console, the watchdog.

use super::disk::Disk;
use super::packages::{Kernel, Packages};
use super::served::Served;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the disk that a daemon of this machine serves.
pub const SERVED: &str = "served";
/// What starts a line of the guest that is meant for us.
pub const MARK: &str = "vm> ";
/// How long a guest that has told its result may take to power itself off.
const FAREWELL: Duration = Duration::from_secs(15);
/// How long a whole system may take to end in order.
const SHUTDOWN: Duration = Duration::from_secs(80);
/// QEMU stops the machine after it said this, and waits for a debugger.
const STUCK: &str = "KVM internal error";
/// Lines by which a kernel says that it is unwell.
const OOPSES: [&str; 9] = [
    "Kernel panic",
    "BUG: ",
    "Oops: ",
    "general protection fault",
    "blocked for more than",
    "soft lockup",
    "rcu_sched self-detected stall",
    "WARNING: CPU",
    STUCK,
];

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor, through `/dev/kvm`.
    Kvm,
    /// Software.
    Tcg,
}

impl Accelerator {
    /// As QEMU names it.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
        }
    }
}

/// A machine to boot.
pub struct Machine<'a> {
    pub packages: &'a Packages,
    pub kernel: &'a Kernel,
    pub initramfs: &'a Path,
    pub disks: &'a [Disk],
    /// A daemon of this machine that serves one more disk.
    pub served: Option<&'a Mutex<Served>>,
    /// The image of a system that is booted, if it is not the initramfs alone.
    pub root: Option<&'a Path>,
    pub accelerator: Accelerator,
    /// Bytes of memory, in MiB.
    pub memory_mib: u32,
    /// Words for the scenario, added to the kernel's command line.
    pub words: String,
}

/// How a scenario ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail(String),
    /// It goes on in the machine's next life.
    Next,
}

/// When to pull the plug.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// After this many more lines that tell of a flush.
    pub after_flushes: u64,
    /// And then this much later.
    pub delay: Duration,
}

/// What a boot brought.
pub struct Ended {
    /// `None` if the plug was pulled.
    pub verdict: Option<Verdict>,
    /// The last number of a `flushed` line.
    pub flushed: Option<u64>,
}

impl Machine<'_> {
    /// QEMU for this machine. With `interactive`, the console is the caller's terminal.
    ///
    /// # Errors
    /// If the kernel's image is missing.
    pub fn command(&self, interactive: bool) -> Result<Command> {
        let qemu = self.packages.program("usr/bin/qemu-system-x86_64");
        // Other work on this machine goes first.
        let mut command = Command::new("nice");
        command.arg("-n2").arg(qemu.get_program()).args(qemu.get_args());
        let share = self.packages.tools.join("usr/share");
        command.arg("-L").arg(share.join("qemu")).arg("-L").arg(share.join("seabios"));
        // A virtual machine of a task that was killed ends too.
        command.args(["-run-with", "exit-with-parent=on"]);
        command.args(["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"]);
        let machine = if self.served.is_some() { "q35,memory-backend=memory" } else { "q35" };
        command.args(["-machine", machine, "-cpu", "max", "-smp", "2"]);
        if let Some(served) = self.served {
            let socket = locked(served).socket(SERVED);
            let (size, path) = (self.memory_mib, socket.display());
            command
                .arg("-object")
                .arg(format!("memory-backend-memfd,id=memory,size={size}M,share=on"));
            command.arg("-chardev").arg(format!("socket,id=served,path={path},reconnect-ms=200"));
            command.args(["-device", "vhost-user-blk-pci,chardev=served,num-queues=2"]);
        }
        command.args(["-accel", self.accelerator.name()]);
        command.args(["-m", &format!("{}M", self.memory_mib)]);
        command.args(["-serial", if interactive { "mon:stdio" } else { "stdio" }]);
        for disk in self.disks {
            let (name, socket) = (disk.name, disk.socket().display());
            command.arg("-blockdev").arg(format!(
                "driver=nbd,node-name={name},server.type=unix,server.path={socket},export={name}"
            ));
            command.arg("-device").arg(format!(
                "virtio-blk-pci,drive={name},serial={name},write-cache=on,num-queues=2"
            ));
        }
        if let Some(root) = self.root {
            let file = root.display();
            command.arg("-drive").arg(format!(
                "file={file},format=qcow2,if=none,id=root,cache=unsafe,discard=unmap"
            ));
            command.args(["-device", "virtio-blk-pci,drive=root,serial=root"]);
        }
        command.arg("-kernel").arg(self.kernel.image()?).arg("-initrd").arg(self.initramfs);
        // A quiet console: each byte of it costs an exit of the virtual machine.
        command.arg("-append").arg(format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 cryptomgr.notests no_timer_check \
             random.trust_cpu=on systemd.show_status=0 {}",
            self.words
        ));
        Ok(command)
    }

    /// Boots and watches until the scenario has ended, the time is up, or the plug is pulled.
    /// Everything on the console goes to `log`.
    ///
    /// # Errors
    /// If QEMU cannot be started.
    pub fn run(&self, log: &Path, limit: Duration, cut: Option<Cut>) -> Result<Ended> {
        let mut file = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = self.command(false)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start QEMU")?;
        let lines = read_lines(&mut child);
        let farewell = if self.root.is_some() { SHUTDOWN } else { FAREWELL };
        let served = self.served;
        let mut watch = Watch::new(served, farewell, cut);
        let timed_out = watch.follow(&lines, &mut file, limit)?;
        if watch.cut_is_due() {
            self.disks.iter().for_each(Disk::power_off);
        }
        // Ends the machine, whatever it does; a killed process is what a power cut looks like.
        let _ = child.kill();
        child.wait()?;
        // What was printed before the end counts.
        watch.drain(&lines, &mut file)?;
        let verdict = match (watch.oops, watch.verdict) {
            (Some(oops), _) => Some(Verdict::Fail(format!("the kernel said: {oops}"))),
            (None, _) if watch.cut_at.is_some() => None,
            (None, Some(Verdict::Pass | Verdict::Next)) if timed_out && self.root.is_some() => {
                Some(Verdict::Fail(format!(
                    "the machine was to end, and goes on after {} s",
                    SHUTDOWN.as_secs()
                )))
            }
            (None, Some(verdict)) => Some(verdict),
            (None, None) if timed_out => {
                Some(Verdict::Fail(format!("no end after {} s", limit.as_secs())))
            }
            (None, None) => Some(Verdict::Fail("the machine ended without a result".to_string())),
        };
        Ok(Ended { verdict, flushed: watch.flushed })
    }
}

fn locked(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lines of the console and of QEMU, as they come. The channel closes when QEMU ends.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let console = child.stdout.take().expect("piped");
    let errors = child.stderr.take().expect("piped");
    let (send, lines) = channel();
    let also = send.clone();
    thread::spawn(move || forward(console, &send));
    thread::spawn(move || forward(errors, &also));
    lines
}

fn forward(stream: impl Read, lines: &Sender<String>) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
        if lines.send(line).is_err() {
            return;
        }
    }
}

struct Watch<'a> {
    /// What is replaced when the guest says so.
    served: Option<&'a Mutex<Served>>,
    /// How long the guest may take to end once it has told its result.
    farewell: Duration,
    cut: Option<Cut>,
    /// When the plug is pulled, once that is known.
    cut_at: Option<Instant>,
    verdict: Option<Verdict>,
    oops: Option<String>,
    flushed: Option<u64>,
    /// A scenario began since this was last looked at.
    began: bool,
}

impl<'a> Watch<'a> {
    fn new(served: Option<&'a Mutex<Served>>, farewell: Duration, cut: Option<Cut>) -> Watch<'a> {
        Watch {
            served,
            farewell,
            cut,
            cut_at: None,
            verdict: None,
            oops: None,
            flushed: None,
            began: false,
        }
    }

    /// Follows the console to its end. Returns whether the time was up.
    fn follow(
        &mut self,
        lines: &Receiver<String>,
        log: &mut impl Write,
        limit: Duration,
    ) -> Result<bool> {
        let mut end = Instant::now() + limit;
        loop {
            let next = self.cut_at.map_or(end, |at| at.min(end));
            match lines.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let before = self.verdict.is_some();
                    self.take(&line, log)?;
                    // The limit is for each scenario.
                    if std::mem::take(&mut self.began) {
                        end = Instant::now() + limit;
                    }
                    if line.contains(STUCK) {
                        return Ok(false);
                    }
                    if !before && self.verdict.is_some() {
                        end = end.min(Instant::now() + self.farewell);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Err(RecvTimeoutError::Timeout) if self.cut_is_due() => return Ok(false),
                Err(RecvTimeoutError::Timeout) => return Ok(true),
            }
        }
    }

    fn served(&self) -> Result<MutexGuard<'a, Served>> {
        self.served.map(locked).context("no daemon of this machine serves the guest")
    }

    fn cut_is_due(&self) -> bool {
        self.cut_at.is_some_and(|at| at <= Instant::now())
    }

    fn drain(&mut self, lines: &Receiver<String>, log: &mut impl Write) -> Result<()> {
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(2)) {
            self.take(&line, log)?;
        }
        Ok(())
    }

    fn take(&mut self, line: &str, log: &mut impl Write) -> Result<()> {
        writeln!(log, "{line}")?;
        if self.oops.is_none() && OOPSES.iter().any(|oops| line.contains(oops)) {
            self.oops = Some(line.trim().to_string());
        }
        // The kernel may have been printing when our line began.
        let Some((_, said)) = line.split_once(MARK) else { return Ok(()) };
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "start" => self.began = true,
            "pass" => self.verdict = Some(Verdict::Pass),
            "next" => self.verdict = Some(Verdict::Next),
            "replace" => self.served()?.replace()?,
            "grow" => self.served()?.grow()?,
            "measured" => println!("    {rest}"),
            "fail" => self.verdict = Some(Verdict::Fail(rest.to_string())),
            "flushed" => self.flush_told(rest)?,
            _ => {}
        }
        Ok(())
    }

    fn flush_told(&mut self, number: &str) -> Result<()> {
        // A line that the end of the machine cut short tells nothing.
        let Some(number) = number.strip_suffix('.') else { return Ok(()) };
        let Ok(number) = number.parse() else { bail!("the guest flushed `{number}`") };
        self.flushed = Some(number);
        if let Some(cut) = &mut self.cut {
            cut.after_flushes = cut.after_flushes.saturating_sub(1);
            if cut.after_flushes == 0 && self.cut_at.is_none() {
                self.cut_at = Some(Instant::now() + cut.delay);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_guest_are_understood() {
        let cut = Cut { after_flushes: 2, delay: Duration::ZERO };
        let mut watch = Watch::new(None, FAREWELL, Some(cut));
        let mut log = Vec::new();
        for line in ["noise", "vm> flushed 5.", "[  1.0] x vm> flushed 9.", "vm> flushed 1"] {
            assert!(!watch.cut_is_due());
            watch.take(line, &mut log).unwrap();
            if line.ends_with("9.") {
                assert!(watch.cut_is_due());
                watch.cut_at = None;
            }
        }
        assert_eq!(watch.flushed, Some(9));
        watch.take("vm> fail fio: exit 1", &mut log).unwrap();
        assert_eq!(watch.verdict, Some(Verdict::Fail("fio: exit 1".into())));
        watch.take("[ 3.1] BUG: unable to handle page fault", &mut log).unwrap();
        assert!(watch.oops.is_some());
    }
}
