//! `cargo xtask vm`: scenarios in a virtual machine with a stock kernel.

mod cpio;
mod disk;
pub mod guest;
mod initramfs;
pub mod machine_disk;
mod missing;
mod modules;
mod packages;
mod qemu;
mod root;
mod scenario;
mod served;

use crate::bench::daemon::Directory;
use anyhow::{Context, Result, bail, ensure};
use disk::Disk;
use packages::{Kernel, Packages};
use qemu::{Accelerator, Cut, Machine, SERVED, Verdict};
use scenario::{SCENARIOS, System, Work};
use served::Served;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The unit that runs a scenario in a whole system.
const GUEST_UNIT: &str = "forebay-scenario.service";
/// What a whole system would do beside, which takes seconds under software emulation.
const MASKED: [&str; 13] = [
    "modprobe@configfs.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "systemd-logind.service",
    "getty.target",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
];
/// As `--kernel` names them.
const KERNELS: [&str; 2] = ["6.12", "newest"];
/// The scenario that needs no guest.
const MACHINE_DISK: &str = "machine-disk";
/// Memory of a guest.
const MEMORY_MIB: u32 = 1536;
/// No machine of the short run starts later than this.
const SHORT_LIMIT: Duration = Duration::from_secs(12 * 60);
/// How long a guest under KVM may take to say that it runs.
const PROBE: Duration = Duration::from_secs(10);

/// Arguments of `cargo xtask vm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The packages (a QEMU, two kernels, tools) come from the mirror of Debian \
    in the system's apt sources, or $FOREBAY_VM_MIRROR. They are kept in $FOREBAY_VM_CACHE, else \
    $XDG_CACHE_HOME/forebay-vm, else ~/.cache/forebay-vm; once they are there, no network is \
    needed. Nothing is installed, and root is not needed. The guest runs with KVM where it can be \
    used, else under software emulation; FOREBAY_VM_ACCEL=tcg or kvm chooses.")]
pub struct Arguments {
    /// `shell` gives a prompt in the virtual machine
    #[arg(value_parser = ["shell"])]
    action: Option<String>,
    /// Run on one kernel alone
    #[arg(long, value_parser = KERNELS)]
    kernel: Option<String>,
    /// Run these scenarios alone
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// List the scenarios (with --short: which share a machine) and end
    #[arg(long)]
    list: bool,
    /// Fetch the packages anew: the newest kernel may be a newer one
    #[arg(long)]
    refresh: bool,
    /// Fetch the packages and make the Debian system, if they are missing, and end
    #[arg(long)]
    fetch: bool,
    /// Run each scenario once, on one of the kernels: what fits into a run of CI
    #[arg(long)]
    short: bool,
    /// How many virtual machines run at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where power cuts fall, and what outlives them, follows from this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Arguments {
    /// Whether nothing else is wanted.
    fn runs_scenarios(&self) -> bool {
        self.action.is_none() && !self.fetch && !self.refresh
    }
}

/// Runs the task.
///
/// # Errors
/// If a scenario failed, or could not be run.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.list {
        list(arguments.short);
        return Ok(());
    }
    for name in &arguments.only {
        ensure!(
            name == MACHINE_DISK || scenario::find(name).is_some(),
            "no scenario {name}: see --list"
        );
    }
    let start = Instant::now();
    let cache = cache_directory()?;
    std::fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let packages = match Packages::find_or_fetch(&cache, arguments.refresh) {
        Err(error) if arguments.runs_scenarios() && missing::is_skip(&error) => {
            println!("vm: skipped: {error:#}");
            return Ok(());
        }
        found => found?,
    };
    let fetched = start.elapsed();
    if arguments.fetch {
        for system in SCENARIOS.iter().filter_map(|scenario| scenario.system) {
            root::find_or_make(&cache, &packages, system.suite, arguments.refresh)?;
        }
        return Ok(());
    }
    let programs = initramfs::build_programs(&cache.join("programs"))?;
    let built = start.elapsed();
    let mut lab = Lab {
        cache: &cache,
        packages: &packages,
        programs: &programs,
        accelerator: Accelerator::Tcg,
    };
    lab.choose_accelerator()?;
    let wanted = |kernel: &&Kernel| arguments.kernel.as_ref().is_none_or(|k| k == kernel.name);
    let kernels: Vec<&Kernel> = packages.kernels.iter().filter(wanted).collect();
    if arguments.action.is_some() {
        return lab.shell(kernels.last().context("no kernel")?);
    }
    let todo = lab.prepare(&kernels, arguments)?;
    let (mut passed, mut failed) = lab.run_all(&todo, arguments)?;
    if arguments.only.is_empty() || arguments.only.iter().any(|name| name == MACHINE_DISK) {
        match machine_disk::run(&packages, lab.own_programs()?) {
            Ok(()) => passed += 1,
            Err(error) => failed.push(format!("{MACHINE_DISK}: {error:#}")),
        }
    }
    let seconds = |time: Duration| time.as_secs();
    println!(
        "vm: {passed} passed, {} failed; packages {} s, build {} s, scenarios {} s",
        failed.len(),
        seconds(fetched),
        seconds(built - fetched),
        seconds(start.elapsed() - built)
    );
    ensure!(failed.is_empty(), "failed in the virtual machine: {}", failed.join(", "));
    ensure!(passed > 0, "no scenario ran");
    Ok(())
}

/// Prints the scenarios, or which of them share a machine in the short run.
fn list(short: bool) {
    if short {
        for work in scenario::plan(&KERNELS, true, |_| true) {
            println!(
                "{:7} {}: boots {}",
                work.kernel,
                work.name().replace(',', ", "),
                work.boots()
            );
        }
        println!("{:7} {MACHINE_DISK}", "none");
        return;
    }
    for scenario in SCENARIOS {
        println!("{:16} {}", scenario.name, scenario.about);
    }
    println!("{MACHINE_DISK:16} a vhost-user disk under QEMU's own driver, on this machine");
}

/// The packages, fetched if they are not there.
///
/// # Errors
/// If they cannot be fetched.
pub fn packages() -> Result<Packages> {
    let cache = cache_directory()?;
    std::fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    Packages::find_or_fetch(&cache, false)
}

fn cache_directory() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let below = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let path = variable("FOREBAY_VM_CACHE").or_else(|| Some(below?.join("forebay-vm")));
    let path = path.context("no $HOME: set FOREBAY_VM_CACHE to a folder for the packages")?;
    std::path::absolute(path).context("find the cache folder")
}

/// What all boots have in common.
struct Lab<'a> {
    cache: &'a Path,
    packages: &'a Packages,
    programs: &'a [(&'static str, PathBuf)],
    accelerator: Accelerator,
}

impl Lab<'_> {
    /// KVM, if a guest starts with it: on some machines it is there and cannot run a whole kernel.
    fn choose_accelerator(&mut self) -> Result<()> {
        match std::env::var("FOREBAY_VM_ACCEL").as_deref() {
            Ok("tcg") => return Ok(()),
            Ok("kvm") => self.accelerator = Accelerator::Kvm,
            Ok(other) => bail!("FOREBAY_VM_ACCEL={other}: it is tcg or kvm"),
            Err(_) => {
                let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm");
                if kvm.is_err() {
                    return Ok(());
                }
                self.accelerator = Accelerator::Kvm;
                let kernel = self.packages.kernels.first().context("no kernel")?;
                let initramfs = self.initramfs(kernel)?;
                let machine = self.machine(kernel, &initramfs, &[], "forebay.scenario=none".into());
                let log = self.log("kvm", kernel)?;
                if machine.run(&log, PROBE, None)?.verdict != Some(Verdict::Pass) {
                    println!("vm: KVM is there but runs no guest; using software emulation");
                    self.accelerator = Accelerator::Tcg;
                }
            }
        }
        Ok(())
    }

    /// A fresh file for what a guest prints.
    fn log(&self, name: &str, kernel: &Kernel) -> Result<PathBuf> {
        let logs = self.cache.join("logs");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{name}-{}.log", kernel.name));
        let _ = std::fs::remove_file(&log);
        Ok(log)
    }

    /// What is to be done, with what it boots from written.
    fn prepare(&self, kernels: &[&Kernel], arguments: &Arguments) -> Result<Vec<Work>> {
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name).collect();
        let all = arguments.only.is_empty();
        let is_wanted = |name: &str| all || arguments.only.iter().any(|only| only == name);
        let mut todo = scenario::plan(&names, arguments.short, is_wanted);
        todo.retain(|work| {
            let newer = work.system().and_then(|system| missing::newer_libc(system.libc));
            if let Some(libc) = &newer {
                println!("vm: skipped {}: {libc} built what it would run", work.name());
            }
            newer.is_none()
        });
        for kernel in kernels {
            let own = || todo.iter().filter(|work| work.kernel == kernel.name);
            if own().any(|work| work.lives().is_empty()) {
                self.initramfs(kernel)?;
            }
            if !own().any(|work| !work.lives().is_empty()) {
                continue;
            }
            let systems: Vec<System> = own().filter_map(Work::system).collect();
            match self.initramfs_for_root(kernel, &systems, arguments.refresh) {
                Err(error) if missing::is_skip(&error) => {
                    println!("vm: skipped a whole system on {}: {error:#}", kernel.name);
                    todo.retain(|it| it.kernel != kernel.name || it.lives().is_empty());
                }
                made => made?,
            }
        }
        Ok(todo)
    }

    /// Does all of it, several machines at a time. Returns how many scenarios passed, and what
    /// failed.
    fn run_all(&self, todo: &[Work], arguments: &Arguments) -> Result<(usize, Vec<String>)> {
        let (next, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failed = Mutex::new(Vec::new());
        let begin = Instant::now();
        let work = || -> Result<()> {
            while let Some(work) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                let kernel = self.kernel(work)?;
                let verdict = match arguments.short && begin.elapsed() > SHORT_LIMIT {
                    true => Err(format!("not run: {} s are over", SHORT_LIMIT.as_secs())),
                    false => self.run(work, kernel, arguments.seed)?,
                };
                let line = format!("{} on {} ({})", work.name(), kernel.name, kernel.release);
                let seconds = start.elapsed().as_secs();
                match verdict {
                    Ok(()) => {
                        passed.fetch_add(work.scenarios.len(), Ordering::Relaxed);
                        println!("vm: ok     {line}: {seconds} s");
                    }
                    Err(why) => {
                        println!("vm: FAILED {line}: {seconds} s: {why}");
                        failed.lock().expect("no panic holds it").push(line);
                    }
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..arguments.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            ended.map(|end| end.expect("a worker does not panic")).collect::<Result<Vec<()>>>()
        })?;
        Ok((passed.into_inner(), failed.into_inner().expect("no panic held it")))
    }

    /// Makes these systems, and writes the initramfs that boots one of them with what is tested.
    fn initramfs_for_root(&self, kernel: &Kernel, systems: &[System], refresh: bool) -> Result<()> {
        for system in systems {
            root::find_or_make(self.cache, self.packages, system.suite, refresh)?;
        }
        let directory = Directory::create(None, "vm-payload")?;
        let payload = directory.path();
        crate::install::put(self.programs, payload)?;
        let ours = self.programs.iter().find(|(name, _)| *name == "xtask");
        let (_, xtask) = ours.context("xtask was built")?;
        std::fs::copy(xtask, payload.join("usr/bin/xtask"))?;
        let units = payload.join("etc/systemd/system");
        let wanted = units.join("multi-user.target.wants");
        std::fs::create_dir_all(&wanted)?;
        std::fs::write(units.join(GUEST_UNIT), guest::systemd::UNIT)?;
        std::os::unix::fs::symlink(Path::new("..").join(GUEST_UNIT), wanted.join(GUEST_UNIT))?;
        for unit in MASKED {
            std::os::unix::fs::symlink("/dev/null", units.join(unit))?;
        }
        // Not the first boot of a new system, in which systemd would enable all units.
        std::fs::write(payload.join("etc/machine-id"), "f0eba000000000000000000000000001\n")?;
        let modules = self.cache.join(format!("modules-{}", kernel.release));
        modules::install(kernel, &modules::USED, &modules, payload)?;
        let path = self.initramfs_path(kernel, true);
        initramfs::write_for_root(self.packages, kernel, payload, &modules, &path)
    }

    /// `forebayd` and `forebay`.
    fn own_programs(&self) -> Result<[PathBuf; 2]> {
        let find = |name: &str| self.programs.iter().find(|(program, _)| *program == name);
        let path = |name: &str| find(name).map(|(_, path)| path.clone()).context("it was built");
        Ok([path("forebayd")?, path("forebay")?])
    }

    fn initramfs_path(&self, kernel: &Kernel, for_root: bool) -> PathBuf {
        let what = if for_root { "initramfs-root" } else { "initramfs" };
        self.cache.join(format!("{what}-{}", kernel.name))
    }

    fn initramfs(&self, kernel: &Kernel) -> Result<PathBuf> {
        let path = self.initramfs_path(kernel, false);
        let modules = self.cache.join(format!("modules-{}", kernel.release));
        initramfs::write(self.packages, kernel, self.programs, &modules, &path)?;
        Ok(path)
    }

    /// A prompt, with the disks of most scenarios.
    fn shell(&self, kernel: &Kernel) -> Result<()> {
        let initramfs = self.initramfs(kernel)?;
        let directory = Directory::create(None, "vm-shell")?;
        let disks = serve(scenario::find("nbd").map_or(&[], |s| s.disks), directory.path())?;
        let machine = self.machine(kernel, &initramfs, &disks, "forebay.scenario=shell".into());
        let status = machine.command(true)?.status().context("start QEMU")?;
        ensure!(status.success(), "QEMU ended: {status}");
        Ok(())
    }

    fn machine<'b>(
        &'b self,
        kernel: &'b Kernel,
        initramfs: &'b Path,
        disks: &'b [Disk],
        words: String,
    ) -> Machine<'b> {
        let packages = self.packages;
        let accelerator = self.accelerator;
        let memory_mib = MEMORY_MIB;
        let (root, served) = (None, None);
        Machine { packages, kernel, initramfs, disks, served, root, accelerator, memory_mib, words }
    }

    fn kernel(&self, work: &Work) -> Result<&Kernel> {
        let found = self.packages.kernels.iter().find(|kernel| kernel.name == work.kernel);
        found.with_context(|| format!("no kernel {}", work.kernel))
    }

    /// Does one machine's work: as many boots as it has power cuts or restarts, and one. The inner
    /// error says what failed in the guest.
    fn run(&self, work: &Work, kernel: &Kernel, seed: u64) -> Result<Result<(), String>> {
        let name = work.scenarios.first().context("a machine has a scenario")?.name;
        let directory = Directory::create(None, &format!("vm-{name}-{}", kernel.name))?;
        let disks = serve(work.disks(), directory.path())?;
        let system = work.system();
        let layer = system.map(|system| {
            let image = root::image(self.cache, system.suite);
            root::layer(self.packages, &image, directory.path())
        });
        let layer = layer.transpose()?;
        let served = match work.scenarios.iter().any(|scenario| scenario.served) {
            true => Some(Served::start(SERVED, kernel.name, self.own_programs()?)?),
            false => None,
        };
        let served = served.map(Mutex::new);
        let initramfs = self.initramfs_path(kernel, layer.is_some());
        let log = self.log(name, kernel)?;
        let limit = Duration::from_secs(work.limit_seconds());
        let lives = work.lives();
        let (cuts, last) = (work.cuts(), work.boots() - 1);
        let mut flushed = 0;
        for life in 0..=last {
            let words = words(work, life, last, flushed);
            let about = lives.get(life as usize);
            let absent = system.map(|system| system.absent).filter(|(_, of)| about == Some(of));
            let is_there = |disk: &&Disk| absent.is_none_or(|(name, _)| name != disk.name);
            let there: Vec<Disk> = disks.iter().filter(is_there).cloned().collect();
            let mut machine = self.machine(kernel, &initramfs, &there, words);
            machine.root = layer.as_deref();
            machine.served = served.as_ref();
            let plan = plan(seed.wrapping_add(life));
            let cut = (life < cuts).then_some(plan);
            let ended = machine.run(&log, limit, cut)?;
            match ended.verdict {
                Some(Verdict::Pass) if life == last => return Ok(Ok(())),
                Some(Verdict::Pass) => bail!("the guest ended before its last life"),
                Some(Verdict::Next) if life < last && cut.is_none() => continue,
                Some(Verdict::Next) => bail!("the guest wants one more life than it has"),
                Some(Verdict::Fail(why)) => {
                    let place = log.display();
                    return Ok(Err(format!("life {life}: {why}; see {place}")));
                }
                None => {}
            }
            flushed = ended.flushed.context("the power was cut after a flush")?;
            for (number, disk) in disks.iter().enumerate() {
                let flushes = disk.flushes();
                let fate = disk.power_on(plan_seed(seed, life, number as u64));
                println!("    power cut {}: {fate} ({flushes} flushes so far)", life + 1);
            }
        }
        unreachable!("the last life is not cut")
    }
}

/// What the kernel's command line tells the guest.
fn words(work: &Work, life: u64, last: u64, flushed: u64) -> String {
    let mut words = format!(
        "forebay.scenario={} forebay.life={life} forebay.last={last} forebay.flushed={flushed} ",
        work.name()
    );
    if !work.lives().is_empty() {
        words.push_str(&format!("forebay.lives={} ", work.lives().join(",")));
    }
    // The first of several: it is loaded when that one has ended.
    if let Some(module) = work.scenarios.first().and_then(|scenario| scenario.without) {
        words.push_str(&format!("forebay.without={module} "));
    }
    words
}

/// After how many flushes and how much later the power is cut.
fn plan(seed: u64) -> Cut {
    let mixed = plan_seed(seed, 17, 4711);
    Cut { after_flushes: 10 + mixed % 30, delay: Duration::from_millis((mixed >> 32) % 300) }
}

fn plan_seed(seed: u64, life: u64, disk: u64) -> u64 {
    let mixed = (seed ^ (life << 20) ^ (disk << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn serve(disks: &[(&'static str, usize)], directory: &Path) -> Result<Vec<Disk>> {
    disks.iter().map(|(name, mib)| Disk::serve(name, mib << 20, directory)).collect()
}
