//! What is behind an origin or a cache device hangs: a program that answers a FUSE file is stopped.
//! Others go on, questions are answered, and what hung is served again when it goes on.

use super::machine::tool;
use crate::bench::daemon::{Daemon, Directory};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BYTES: u64 = 64 << 20;
/// How long what has to do with nobody that hangs may take.
pub const SOON: Duration = Duration::from_secs(8);
/// After ten seconds `status` says what hangs.
const TOLD: Duration = Duration::from_secs(20);
/// A cache device that hangs is waited for half a minute.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// A file on FUSE that hangs when it is told to.
pub struct Sick {
    server: Child,
    point: PathBuf,
    image: PathBuf,
}

impl Sick {
    /// Makes one of a file, through nbdfuse and its own server.
    pub fn mount(directory: &Directory) -> Result<Sick> {
        let image = directory.file("image", BYTES)?;
        let point = directory.path().join("fuse");
        std::fs::create_dir(&point)?;
        let sick = Sick { server: serve(&point, &image)?, point, image };
        until(SOON, "the FUSE file is there", || Ok(sick.path().exists()))?;
        Ok(sick)
    }

    /// It ends at once: whatever is open of it fails for ever.
    pub fn pull_out(&mut self) -> Result<()> {
        self.server.kill()?;
        self.server.wait()?;
        let unmounted = Command::new("umount").arg("-l").arg(&self.point).status()?;
        ensure!(unmounted.success(), "it cannot be unmounted");
        Ok(())
    }

    /// It is there again.
    pub fn plug_in(&mut self) -> Result<()> {
        self.server = serve(&self.point, &self.image)?;
        until(SOON, "the FUSE file is there", || Ok(self.path().exists()))
    }

    /// What it keeps its bytes in.
    pub fn image(&self) -> &Path {
        &self.image
    }

    pub fn path(&self) -> PathBuf {
        self.point.join("disk")
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        let told = Command::new("kill").args([name, &self.server.id().to_string()]).status()?;
        ensure!(told.success(), "nbdfuse is gone");
        Ok(())
    }
}

impl Drop for Sick {
    fn drop(&mut self) {
        let _ = self.signal("-CONT");
        let _ = Command::new("umount").arg("-l").arg(&self.point).stderr(Stdio::null()).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Serves a file as `disk` below a directory.
fn serve(point: &Path, image: &Path) -> Result<Child> {
    let mut command = Command::new("nbdfuse");
    command.arg(point.join("disk")).args(["--command", "nbdkit", "-s", "file"]).arg(image);
    Ok(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// Waits until something is so.
pub fn until(limit: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + limit;
    while !is_so()? {
        ensure!(Instant::now() < end, "not in {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Reads or writes the first blocks of a volume with many requests at once, in time.
pub fn io(daemon: &Daemon, volume: &str, words: &str, limit: Duration) -> Result<()> {
    let mut child = begin_io(daemon, volume, words)?;
    let ended =
        until(limit, &format!("{words} of volume {volume}"), || Ok(child.try_wait()?.is_some()));
    let _ = child.kill();
    let status = child.wait()?;
    ended?;
    ensure!(status.success(), "{words} of volume {volume} failed");
    Ok(())
}

pub fn begin_io(daemon: &Daemon, volume: &str, words: &str) -> Result<Child> {
    let uri = format!("nbd+unix:///{volume}?socket={}", daemon.nbd_socket().display());
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &uri]).stdin(Stdio::null()).stdout(Stdio::null());
    for n in 0..64 {
        command.args(["-c", &format!("aio_{words} {}k 4k", n * 256)]);
    }
    command.args(["-c", "aio_flush"]).stderr(Stdio::null()).spawn().context("start qemu-io")
}

fn cache(daemon: &Daemon, origin: &Path, caches: &[PathBuf], name: &str) -> Result<()> {
    let origin = origin.display().to_string();
    let caches: Vec<String> = caches.iter().map(|path| path.display().to_string()).collect();
    let mut words = vec!["cache", origin.as_str()];
    words.extend(caches.iter().flat_map(|cache| ["--with", cache.as_str()]));
    words.extend(["--mode", "writeback", "--name", name, "--export", "nbd", "--yes"]);
    daemon.forebay_within(SOON, &words).map(drop)
}

/// An origin hangs, first while its volume is used and then when the daemon starts.
///
/// # Errors
/// The first step that fails.
pub fn origin() -> Result<()> {
    let directory = Directory::create(None, "e2e-hangs-origin")?;
    let sick = Sick::mount(&directory)?;
    let (cached, well) = (directory.file("cache", BYTES)?, directory.file("well", BYTES)?);
    let mut daemon = Daemon::start(&directory, &[])?;
    cache(&daemon, &sick.path(), std::slice::from_ref(&cached), "sick")?;
    cache(&daemon, &well, &[cached], "well")?;
    sick.signal("-STOP")?;
    // More than the kernel lets wait in the background for a FUSE file.
    let mut stuck = begin_io(&daemon, "sick", "read")?;
    let others = (|| {
        std::thread::sleep(Duration::from_secs(1));
        daemon.forebay_within(SOON, &["status"])?;
        for words in ["write", "read"] {
            io(&daemon, "well", words, SOON)?;
        }
        until(TOLD, "status names the origin that hangs", || {
            let (_, told) = daemon.said(&["status"])?;
            Ok(told.contains("its origin") && told.contains("has not ended an I/O for"))
        })?;
        ensure!(stuck.try_wait()?.is_none(), "the origin does not hang");
        ask_of_hung(&daemon, &sick)
    })();
    sick.signal("-CONT")?;
    let went_on = until(SOON, "the reads go on", || Ok(stuck.try_wait()?.is_some()));
    let _ = stuck.kill();
    let _ = stuck.wait();
    others.and(went_on)?;
    daemon.stop()?;
    sick.signal("-STOP")?;
    daemon.start_again()?;
    until(SOON, "the other volume is served", || Ok(io(&daemon, "well", "read", SOON).is_ok()))?;
    let (_, told) = daemon.said(&["status"])?;
    for part in ["offline", "has not answered", "served as soon as it answers"] {
        ensure!(told.contains(part), "status does not say `{part}`: {told}");
    }
    sick.signal("-CONT")?;
    until(SOON, "the late volume is served", || Ok(io(&daemon, "sick", "read", SOON).is_ok()))?;
    daemon.stop()?;
    sick.signal("-STOP")?;
    daemon.start_again()?;
    let replaced = replace(&daemon, &directory);
    sick.signal("-CONT")?;
    replaced?;
    // It answers, and nobody waits for it any more.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        ensure!(reads(&daemon, "sick")?, "another volume has its name, and is not served");
        std::thread::sleep(Duration::from_millis(100));
    }
    daemon.stop()
}

/// Commands about what hangs end with an error in time, and others do not wait for them.
fn ask_of_hung(daemon: &Daemon, sick: &Sick) -> Result<()> {
    let begin = Instant::now();
    let (_, told) = daemon.said(&["volume", "resize", "sick"])?;
    ensure!(told.contains("has not answered for"), "{told}");
    daemon.forebay_within(SOON, &["volume", "mode", "well", "writethrough"])?;
    daemon.forebay_within(SOON, &["volume", "mode", "well", "writeback"])?;
    ensure!(begin.elapsed() < SOON, "a size that is not told takes {:?}", begin.elapsed());
    let path = sick.path().display().to_string();
    let (is_made, told) =
        daemon.said(&["volume", "create", "again", "--origin", &path, "--dry-run"])?;
    ensure!(!is_made && begin.elapsed() < GIVEN_UP, "{:?}: {told}", begin.elapsed());
    Ok(())
}

/// A daemon that is told to end twice while an origin hangs ends when that answers, and no other
/// one takes its place before.
///
/// # Errors
/// The first step that fails.
pub fn end() -> Result<()> {
    let directory = Directory::create(None, "e2e-hangs-end")?;
    let sick = Sick::mount(&directory)?;
    let (cached, well) = (directory.file("cache", BYTES)?, directory.file("well", BYTES)?);
    let mut daemon = Daemon::start(&directory, &[])?;
    cache(&daemon, &sick.path(), std::slice::from_ref(&cached), "sick")?;
    cache(&daemon, &well, &[cached], "well")?;
    io(&daemon, "sick", "write -P 1", SOON)?;
    sick.signal("-STOP")?;
    let mut stuck = begin_io(&daemon, "sick", "read")?;
    std::thread::sleep(Duration::from_secs(1));
    let (_, told) = daemon.said(&["volume", "drain", "sick", "--no-wait"])?;
    for _ in 0..2 {
        tool(&["kill", &daemon.pid().to_string()])?;
        std::thread::sleep(Duration::from_secs(2));
    }
    let _ = stuck.kill();
    let _ = stuck.wait();
    // Where the kernel lets it end at once the next one serves; else that does not begin.
    let is_next_there = daemon.start_again().is_ok();
    let served = || until(SOON, "the other volume is served", || reads(&daemon, "well"));
    let others = if is_next_there { served() } else { Ok(()) };
    sick.signal("-CONT")?;
    others.context(told)?;
    if !is_next_there {
        // It waits for the one before, which ends now.
        daemon.start_again()?;
        until(SOON, "the other volume is served", || reads(&daemon, "well"))?;
    }
    until(SOON, "what hung is served", || Ok(io(&daemon, "sick", "read -P 1", SOON).is_ok()))?;
    daemon.stop()
}

/// Makes another volume of the name of the one whose origin hangs.
fn replace(daemon: &Daemon, directory: &Directory) -> Result<()> {
    daemon.forebay_within(SOON, &["volume", "remove", "sick", "--drop-dirty", "--yes"])?;
    let origin = directory.file("another", BYTES)?.display().to_string();
    let create = ["volume", "create", "sick", "--origin", &origin, "--export", "nbd", "--yes"];
    daemon.forebay_within(SOON, &create)?;
    ensure!(reads(daemon, "sick")?, "the new volume is not served");
    Ok(())
}

/// Whether a client that connects now can read a volume.
fn reads(daemon: &Daemon, volume: &str) -> Result<bool> {
    let uri = format!("nbd+unix:///{volume}?socket={}", daemon.nbd_socket().display());
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &uri, "-c", "read 0 64k"]).stdin(Stdio::null());
    Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
}

/// What hung goes on, and is a device of the pool again, as an empty one.
fn come_back(daemon: &Daemon, sick: &Sick) -> Result<()> {
    let (_, volume) = daemon.said(&["volume", "show", "disk", "-o", "json"])?;
    let volume: serde_json::Value = serde_json::from_str(&volume)?;
    let pool = volume["pool"].as_str().context("a pool")?;
    let shown = daemon.said(&["pool", "show", pool])?.1;
    ensure!(shown.contains(", failed ") && shown.contains(" ago)"), "{shown}");
    let path = sick.path().display().to_string();
    let replace = ["pool", "replace", pool, &path, &path, "--force", "--yes"];
    until(SOON, "the device has its place again", || Ok(daemon.said(&replace)?.0))?;
    let shown = daemon.forebay_within(SOON, &["pool", "show", pool])?;
    ensure!(!shown.contains(", failed "), "{shown}");
    io(daemon, "disk", "read -P 2", SOON)
}

/// One of two cache devices hangs: the pool does without it.
///
/// # Errors
/// The first step that fails.
pub fn cache_device() -> Result<()> {
    let directory = Directory::create(None, "e2e-hangs-cache")?;
    let sick = Sick::mount(&directory)?;
    let (twin, origin) = (directory.file("twin", BYTES)?, directory.file("origin", BYTES)?);
    let mut daemon = Daemon::start(&directory, &[])?;
    cache(&daemon, &origin, &[sick.path(), twin], "disk")?;
    io(&daemon, "disk", "write -P 1", SOON)?;
    sick.signal("-STOP")?;
    let gave_up = (|| {
        io(&daemon, "disk", "write -P 2", GIVEN_UP)?;
        io(&daemon, "disk", "read -P 2", SOON)?;
        let (_, told) = daemon.said(&["status"])?;
        ensure!(told.contains("is waited for no longer"), "{told}");
        anyhow::Ok(())
    })();
    // What the kernel still had to do ends now: nobody believes it any more.
    sick.signal("-CONT")?;
    gave_up?;
    io(&daemon, "disk", "read -P 2", SOON)?;
    come_back(&daemon, &sick)?;
    daemon.stop()
}
