//! The acts of the demo, in order, and what each has shown.

use forebay_api::tiers::Placement;
use forebay_api::{ApiError, Mode};
use forebay_host::origin::spindle::{Buf, Spindle};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::daemon::Daemon;
use super::device::{BareFile, BareSpindle, Device, open_direct};
use super::files::{self, Content};
use super::ledger::Ledger;
use super::load::{self, Area, Job, Seen, Until};
use super::tiers::{self, Placed};

/// Size of the slow disk.
pub const ORIGIN_BYTES: u64 = 4 << 30;
/// The file on it that the workload works on.
const DATABASE_BYTES: u64 = 3584 << 20;
/// Size of the fast device.
pub const CACHE_BYTES: u64 = 1 << 30;
/// Hot spots of 4 MiB: a working set of 256 MiB.
const SPOTS: u64 = 64;
/// What the sequential workload reads, again and again.
pub const SEQUENTIAL_BYTES: u64 = 128 << 20;
/// The simulated drive.
pub const PRESET: &str = "nas-5400";
/// Requests under way: mixed workload.
pub const DEPTH: usize = 64;
/// Requests under way: sequential workload and prefetch.
pub const DEPTH_SEQUENTIAL: usize = 8;

const MIXED_BARE: Duration = Duration::from_secs(6);
const MIXED: Duration = Duration::from_secs(4);
const SEQUENTIAL: Duration = Duration::from_secs(2);
const KILL_AFTER: Duration = Duration::from_secs(4);
const VERIFY_MAX: Duration = Duration::from_secs(25);
const PREFETCH_MAX: Duration = Duration::from_secs(30);

/// One line of the table.
pub struct Row {
    /// What was measured.
    pub name: &'static str,
    /// The mixed workload.
    pub mixed: Seen,
    /// The sequential one.
    pub sequential: Seen,
    /// Share of the mixed workload's reads that the cache answered.
    pub hits: Option<f64>,
    /// Share of the sequential workload's bytes that the cache answered.
    pub sequential_hits: Option<f64>,
}

/// What the kill has shown.
#[derive(Default)]
pub struct Crash {
    /// The run until the kill.
    pub before: Seen,
    /// Writes that were begun and not acknowledged when the daemon died.
    pub unsettled: usize,
    /// Dirty bytes shortly before.
    pub dirty_bytes: u64,
    /// From the start of the new daemon to its first answered read.
    pub first_read: Duration,
    /// The verification of every block that was ever written.
    pub verified: Seen,
    /// Blocks to verify.
    pub written: usize,
    /// Share of these first reads that the cache answered.
    pub verified_hits: Option<f64>,
    /// From the kill to the first answered request of the workload.
    pub gap: Duration,
}

/// What sending everything home has shown.
#[derive(Default)]
pub struct Home {
    /// Dirty bytes before.
    pub dirty_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The working set, read from the disk's own file without any cache.
    pub read: Seen,
    /// Its blocks.
    pub blocks: usize,
}

/// Everything that was seen.
pub struct Show {
    /// The table.
    pub rows: Vec<Row>,
    /// The kill.
    pub crash: Crash,
    /// The end: everything sent home.
    pub home: Home,
    /// Tiers, by each way to place data.
    pub tiers: Vec<Placed>,
    /// Files on the disk, bytes in them.
    pub files: (usize, u64),
    /// How often all files were read back and compared.
    pub file_checks: usize,
    /// Files that were not what they had been.
    pub broken_files: Vec<String>,
    /// Reads whose content was compared, and those that were wrong.
    pub checked: (u64, u64),
    /// Requests answered with an error.
    pub errors: u64,
    /// How long it took in all.
    pub elapsed: Duration,
}

/// The demo while it runs.
pub struct Demo {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    since: Instant,
    content: Content,
    area: Area,
    sequential: u64,
    ledger: Ledger,
    show: Show,
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> ApiError {
    let what = what.to_string();
    move |error| ApiError::failed(format!("{what}: {error}"))
}

impl Demo {
    /// Makes the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(dir: &Path, stop: Arc<AtomicBool>) -> Result<Demo, ApiError> {
        let since = Instant::now();
        let disk = dir.join("disk.img");
        say(since, "a disk of 4 GiB with a file system full of files");
        let content =
            files::make(&disk, ORIGIN_BYTES, DATABASE_BYTES).map_err(io("make the disk"))?;
        let start = content.database_offset.next_multiple_of(1 << 20);
        let first = start + SEQUENTIAL_BYTES + (64 << 20);
        let rest = content.database_offset + content.database_bytes - first;
        let area = Area { offset: first, spots: SPOTS, stride: rest / SPOTS / 4096 * 4096 };
        let ledger = Ledger::new(area.blocks() as usize);
        let show = Show {
            rows: Vec::new(),
            crash: Crash::default(),
            home: Home::default(),
            tiers: Vec::new(),
            files: (content.files.len(), content.bytes()),
            file_checks: 0,
            broken_files: Vec::new(),
            checked: (0, 0),
            errors: 0,
            elapsed: Duration::ZERO,
        };
        let dir = dir.to_path_buf();
        Ok(Demo { dir, stop, since, content, area, sequential: start, ledger, show })
    }

    /// All acts.
    ///
    /// # Errors
    /// When one of them could not be played. What it would show is then unknown.
    pub fn play(mut self) -> Result<Show, ApiError> {
        self.bare_spindle()?;
        self.bare_fast()?;
        let state = self.dir.join("state");
        std::fs::create_dir_all(&state).map_err(io("make the state directory"))?;
        let daemon = Daemon::start(&state)?;
        self.cache(&daemon)?;
        let daemon = self.crash(daemon, &state)?;
        self.check_files(&daemon)?;
        self.send_home(daemon)?;
        self.tiers()?;
        self.show.elapsed = self.since.elapsed();
        Ok(self.show)
    }

    fn origin(&self) -> String {
        format!("spindle:{}?preset={PRESET}", self.dir.join("disk.img").display())
    }

    fn cache_path(&self) -> PathBuf {
        self.dir.join("fast.img")
    }

    fn say(&self, what: &str) {
        say(self.since, what);
    }

    /// Ctrl-C ends the demo between two steps.
    fn go_on(&self) -> Result<(), ApiError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(ApiError::new(forebay_api::ErrorKind::Cancelled, "stopped by Ctrl-C")),
            false => Ok(()),
        }
    }

    fn mixed(&mut self, device: &mut Device, time: Duration) -> Result<Seen, ApiError> {
        let until = Until { time, stop: &self.stop };
        let job = Job::Mixed(self.area, &mut self.ledger);
        let seen = load::run(device, job, DEPTH, &until);
        self.count(&seen);
        self.go_on()?;
        Ok(seen)
    }

    fn stream(&mut self, device: &mut Device) -> Result<Seen, ApiError> {
        let until = Until { time: SEQUENTIAL, stop: &self.stop };
        let job = Job::Sequential { offset: self.sequential, bytes: SEQUENTIAL_BYTES };
        let seen = load::run(device, job, DEPTH_SEQUENTIAL, &until);
        self.count(&seen);
        self.go_on()?;
        match &seen.broken {
            Some(why) => Err(ApiError::failed(format!("the sequential workload: {why}"))),
            None => Ok(seen),
        }
    }

    fn count(&mut self, seen: &Seen) {
        self.show.checked.0 += seen.checked;
        self.show.checked.1 += seen.wrong;
        self.show.errors += seen.errors;
    }

    fn bare_spindle(&mut self) -> Result<(), ApiError> {
        self.say("the bare disk");
        let uri = self.origin();
        let disk = Spindle::open(uri.strip_prefix("spindle:").unwrap_or(&uri))
            .map_err(|error| ApiError::failed(error.to_string()))?;
        let mut device = Device::Spindle(Box::new(BareSpindle::new(disk)));
        let sequential = self.stream(&mut device)?;
        let mixed = self.mixed(&mut device, MIXED_BARE)?;
        self.show.rows.push(Row {
            name: "bare disk",
            mixed,
            sequential,
            hits: None,
            sequential_hits: None,
        });
        Ok(())
    }

    fn bare_fast(&mut self) -> Result<(), ApiError> {
        self.say("the bare fast device");
        let path = self.cache_path();
        write_through(&path, CACHE_BYTES).map_err(io("make the fast device"))?;
        let file = BareFile::open(&path, DEPTH).map_err(io("open the fast device"))?;
        let mut device = Device::File(file);
        let area = Area { offset: 0, spots: SPOTS, stride: CACHE_BYTES / SPOTS };
        let until = Until { time: MIXED, stop: &self.stop };
        let mixed = load::run(&mut device, Job::MixedBlind(area), DEPTH, &until);
        self.go_on()?;
        let until = Until { time: SEQUENTIAL, stop: &self.stop };
        let job = Job::Sequential { offset: 0, bytes: SEQUENTIAL_BYTES };
        let sequential = load::run(&mut device, job, DEPTH_SEQUENTIAL, &until);
        self.show.rows.push(Row {
            name: "bare fast device",
            mixed,
            sequential,
            hits: None,
            sequential_hits: None,
        });
        self.go_on()
    }

    /// One line of the table, through the cache.
    fn row(&mut self, daemon: &Daemon, name: &'static str) -> Result<(), ApiError> {
        self.say(name);
        let mut device = Device::Nbd(Box::new(daemon.connect()?));
        // First the sequential workload: the other leaves the disk busy with sending data home.
        let before = daemon.counters()?;
        let sequential = self.stream(&mut device)?;
        let between = daemon.counters()?;
        let origin = between.stats.read_bytes_origin - before.stats.read_bytes_origin;
        let all = (between.stats.read_bytes - before.stats.read_bytes).max(1);
        let sequential_hits = Some(1.0 - (origin as f64 / all as f64).min(1.0));
        let mixed = self.mixed(&mut device, MIXED)?;
        if let Some(why) = &mixed.broken {
            return Err(ApiError::failed(format!("the mixed workload on {name}: {why}")));
        }
        let hits = daemon.counters()?.hit_ratio_since(&between);
        self.show.rows.push(Row { name, mixed, sequential, hits, sequential_hits });
        Ok(())
    }

    /// Brings the working set and the sequential range into the cache.
    fn warm(&mut self, daemon: &Daemon) -> Result<(), ApiError> {
        let client = daemon.connect()?;
        if !client.caches {
            return Err(ApiError::failed("the export does not take CACHE requests"));
        }
        let since = Instant::now();
        let mut device = Device::Nbd(Box::new(client));
        let mut ranges = vec![(self.sequential, SEQUENTIAL_BYTES)];
        ranges.extend((0..SPOTS).map(|spot| (self.area.place(spot * 1024), 4 << 20)));
        ranges.reverse();
        let until = Until { time: PREFETCH_MAX, stop: &self.stop };
        let seen = load::run(&mut device, Job::Prefetch(ranges), DEPTH_SEQUENTIAL, &until);
        self.go_on()?;
        self.say(&format!(
            "warmed: {} MiB into the cache in {:.1} s",
            seen.bytes >> 20,
            since.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn cache(&mut self, daemon: &Daemon) -> Result<(), ApiError> {
        daemon.make_volume(&self.cache_path(), &self.origin(), Mode::WriteThrough)?;
        self.row(daemon, "cold, writethrough")?;
        self.check_files(daemon)?;
        self.warm(daemon)?;
        self.row(daemon, "warm, writethrough")?;
        daemon.switch(Mode::WriteAround)?;
        self.row(daemon, "warm, writearound")?;
        daemon.switch(Mode::WriteOnly)?;
        self.row(daemon, "warm, writeonly")?;
        daemon.switch(Mode::PassThrough)?;
        self.row(daemon, "passthrough")?;
        daemon.switch(Mode::WriteBack)?;
        self.warm(daemon)?;
        self.row(daemon, "warm, writeback")
    }

    fn check_files(&mut self, daemon: &Daemon) -> Result<(), ApiError> {
        let client = daemon.connect()?;
        let bytes = client.bytes;
        let mut device = Device::Nbd(Box::new(client));
        let broken = files::check(&mut device, bytes, &self.content)
            .map_err(io("read the file system through the export"))?;
        let (files, right) = (self.content.files.len(), self.content.files.len() - broken.len());
        self.say(&format!("{right} of {files} files are what they were"));
        self.show.broken_files.extend(broken);
        self.show.file_checks += 1;
        self.go_on()
    }

    /// Kills the daemon in the middle of a write-back run, starts another, and looks for what is
    /// missing.
    fn crash(&mut self, daemon: Daemon, state: &Path) -> Result<Daemon, ApiError> {
        self.say(&format!("write-back run; kill -9 {} in the middle", daemon.pid()));
        let mut crash =
            Crash { dirty_bytes: daemon.counters()?.stats.dirty_bytes(), ..Crash::default() };
        let mut device = Device::Nbd(Box::new(daemon.connect()?));
        daemon.kill_after(KILL_AFTER);
        crash.before = self.mixed(&mut device, KILL_AFTER * 3)?;
        let killed = Instant::now();
        if crash.before.broken.is_none() {
            return Err(ApiError::failed("the daemon outlived its kill"));
        }
        drop(device);
        daemon.wait_for_death();
        drop(daemon);
        crash.unsettled = self.ledger.unsettled();

        let since = Instant::now();
        let daemon = Daemon::start(state)?;
        let mut device = Device::Nbd(Box::new(daemon.connect()?));
        let before = daemon.counters()?;
        let mut blocks: Vec<usize> = self.ledger.written().collect();
        crash.written = blocks.len();
        let last = blocks.pop();
        let until = Until { time: VERIFY_MAX, stop: &self.stop };
        let job = Job::Settle(self.area, &mut self.ledger, last.into_iter().collect());
        let first = load::run(&mut device, job, 1, &until);
        (crash.first_read, crash.gap) = (since.elapsed(), killed.elapsed());
        self.say(&format!("started again; first read after {} ms", crash.first_read.as_millis()));
        self.count(&first);
        let until = Until { time: VERIFY_MAX, stop: &self.stop };
        let job = Job::Settle(self.area, &mut self.ledger, blocks);
        crash.verified = load::run(&mut device, job, DEPTH, &until);
        let verified = crash.verified.clone();
        self.count(&verified);
        self.go_on()?;
        crash.verified.checked += first.checked;
        crash.verified.wrong += first.wrong;
        crash.verified_hits = daemon.counters()?.hit_ratio_since(&before);
        self.say(&format!(
            "{} of {} written blocks read back, {} lost",
            crash.verified.checked, crash.written, crash.verified.wrong
        ));
        drop(device);
        self.show.crash = crash;
        self.row(&daemon, "writeback, after kill -9")?;
        Ok(daemon)
    }
}

/// The disk without its cache: what it holds must be what was written. And tiers, which have
/// nothing to do with it.
impl Demo {
    fn tiers(&mut self) -> Result<(), ApiError> {
        let state = self.dir.join("state-tiers");
        std::fs::create_dir_all(&state).map_err(io("make the state directory"))?;
        let daemon = Daemon::start(&state)?;
        for placement in [Placement::Spill, Placement::Heat] {
            self.say(&format!("scratch space in memory and on a disk: {}", placement.name()));
            let placed = tiers::play(&daemon, &self.dir, placement, &self.stop)?;
            placed.runs().into_iter().for_each(|seen| self.count(seen));
            self.show.tiers.push(placed);
            self.go_on()?;
        }
        Ok(())
    }

    fn send_home(&mut self, daemon: Daemon) -> Result<(), ApiError> {
        let dirty_bytes = daemon.counters()?.stats.dirty_bytes();
        let elapsed = daemon.drain()?;
        drop(daemon);
        let disk =
            BareFile::open(&self.dir.join("disk.img"), DEPTH).map_err(io("open the disk"))?;
        let mut device = Device::File(disk);
        let blocks: Vec<usize> = self.ledger.written().collect();
        let mut home = Home { dirty_bytes, elapsed, read: Seen::default(), blocks: blocks.len() };
        let until = Until { time: VERIFY_MAX, stop: &self.stop };
        let job = Job::Settle(self.area, &mut self.ledger, blocks);
        home.read = load::run(&mut device, job, DEPTH, &until);
        self.say(&format!(
            "{} MB sent home in {:.1} s; the disk alone has {} of {} blocks right",
            dirty_bytes / 1_000_000,
            elapsed.as_secs_f64(),
            home.read.checked - home.read.wrong,
            home.blocks
        ));
        let broken = files::check(&mut device, ORIGIN_BYTES, &self.content)
            .map_err(io("read the file system on the disk"))?;
        self.show.broken_files.extend(broken);
        self.show.file_checks += 1;
        self.show.home = home;
        self.go_on()
    }
}

/// Writes a whole file past the page cache, so that its blocks exist.
fn write_through(path: &Path, bytes: u64) -> std::io::Result<()> {
    File::options().write(true).create_new(true).open(path)?.set_len(bytes)?;
    let file = open_direct(path)?;
    let mut buf = Buf::zeroed(4 << 20);
    buf.bytes_mut().fill(0xFB);
    for at in (0..bytes).step_by(buf.len()) {
        file.write_all_at(buf.bytes(), at)?;
    }
    file.sync_all()
}

fn say(since: Instant, what: &str) {
    eprintln!("[{:5.1} s] {what}", since.elapsed().as_secs_f64());
}
