//! A witness outside of a pool's devices: how far the log was durable. An older copy of the devices
//! can look like the newest state in all else.
//!
//! What a shard has seen is written to the state directory by a thread of its own, at most so long
//! later: whatever the file says is true, and after an orderly stop it is all. It is not flushed
//! meanwhile: a power cut may leave an older number there, which is true as well.

use crate::notice::{HostNotice, Notices};
use forebay_engine::Witness;
use forebay_sys::file::{create_private, read_plain, replace_private};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two writes of the file, which others may see as well.
const PAUSE: Duration = Duration::from_millis(100);
/// The file has a line with a number, or this word.
const BYTES_MAX: u64 = 64;
const ACCEPTED: &str = "accepted";
/// How long the last write may take.
const LAST_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Seen {
    durable: AtomicU64,
    /// Why it could not be written down.
    failed: OnceLock<String>,
}

/// The witness of a shard. When it is dropped, it has written down what it saw.
pub(crate) struct WitnessFile {
    seen: Arc<Seen>,
    last: Option<u64>,
    told: bool,
    file: PathBuf,
    wakes: Option<SyncSender<()>>,
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
}

fn file(state_dir: &Path, pool: &[u8; 16]) -> PathBuf {
    let uuid = crate::device::content::uuid_text(pool);
    state_dir.join(format!("witness-{uuid}"))
}

/// What was seen of a pool's log.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(state_dir: &Path, pool: &[u8; 16]) -> io::Result<Witness> {
    let text = match read_plain(&file(state_dir, pool), BYTES_MAX) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Witness::Missing),
        Err(e) => return Err(e),
    };
    let text = str::from_utf8(&text).unwrap_or_default().trim();
    Ok(match text.parse() {
        Ok(durable) => Witness::Seen(durable),
        Err(_) if text == ACCEPTED => Witness::Accepted,
        Err(_) => Witness::Missing,
    })
}

/// Writes down what is known of a pool before it is opened: that it is new, or that an
/// administrator goes on with what is there. Durable when it returns.
///
/// # Errors
/// The file cannot be written.
pub fn note(state_dir: &Path, pool: &[u8; 16], known: Witness) -> io::Result<()> {
    let line = match known {
        Witness::Seen(durable) => line(durable),
        Witness::Accepted => format!("{ACCEPTED}\n"),
        Witness::Missing => return forget(state_dir, pool),
    };
    replace_private(&file(state_dir, pool), line.as_bytes())
}

/// Forgets what was seen of a pool.
///
/// # Errors
/// The file cannot be removed.
fn forget(state_dir: &Path, pool: &[u8; 16]) -> io::Result<()> {
    match std::fs::remove_file(file(state_dir, pool)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Of one length, so that it is written in place.
fn line(durable: u64) -> String {
    format!("{durable:020}\n")
}

impl WitnessFile {
    /// The witness of a pool.
    pub fn new(state_dir: &Path, pool: &[u8; 16]) -> WitnessFile {
        let file = file(state_dir, pool);
        let seen = Arc::new(Seen::default());
        WitnessFile { seen, last: None, told: false, file, wakes: None, thread: None }
    }

    /// The log is durable up to here, if the pool is open.
    pub fn saw(&mut self, durable: Option<u64>, notices: &mut Notices) {
        let Some(durable) = durable.filter(|_| durable > self.last) else { return };
        self.last = Some(durable);
        self.seen.durable.store(durable, Ordering::Release);
        let alive = match &self.wakes {
            Some(wakes) => !matches!(wakes.try_send(()), Err(TrySendError::Disconnected(()))),
            None => self.begin(),
        };
        let why = self.seen.failed.get().map(String::as_str);
        let why = why.or((!alive).then_some("the system gives no thread"));
        if let (Some(why), false) = (why, self.told) {
            self.told = true;
            let file = self.file.display();
            notices.send(HostNotice::Text(format!(
                "{file} cannot be written ({why}): an old copy of the pool's devices would not be \
                 told from the newest one"
            )));
        }
    }

    fn begin(&mut self) -> bool {
        let (wakes, woken) = sync_channel(1);
        let _ = wakes.try_send(());
        let (ends, ended) = sync_channel(1);
        let (seen, path) = (Arc::clone(&self.seen), self.file.clone());
        let work = move || {
            let _ends: SyncSender<()> = ends;
            keep(&path, &seen, &woken);
        };
        let thread = std::thread::Builder::new().name("forebay-witness".to_owned()).spawn(work);
        self.thread = thread.ok().map(|thread| (thread, ended));
        self.wakes = Some(wakes);
        self.thread.is_some()
    }
}

impl Drop for WitnessFile {
    /// A disk that hangs is not waited for: then an older number stays.
    fn drop(&mut self) {
        self.wakes = None;
        if let Some((thread, ended)) = self.thread.take()
            && ended.recv_timeout(LAST_LIMIT) == Err(RecvTimeoutError::Disconnected)
        {
            let _ = thread.join();
        }
    }
}

fn keep(path: &Path, seen: &Seen, woken: &Receiver<()>) {
    let mut file = None;
    loop {
        let ends = woken.recv().is_err();
        if let Err(e) = write(path, &mut file, seen.durable.load(Ordering::Acquire), ends) {
            seen.failed.get_or_init(|| e.to_string());
            file = None;
        }
        if ends {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Writes in place, but for the first time: that needs no room on a disk that is full.
fn write(path: &Path, file: &mut Option<File>, durable: u64, flush: bool) -> io::Result<()> {
    let line = line(durable);
    let is_there = |file: &mut File| {
        let [open, named] =
            [file.metadata(), std::fs::metadata(path)].map(|it| it.map(|it| it.ino()));
        matches!((open, named), (Ok(open), Ok(named)) if open == named)
    };
    file.take_if(|file| !is_there(file)); // Somebody removed it.
    let file = match file {
        Some(file) => file,
        None => {
            if std::fs::metadata(path).map_or(0, |it| it.len()) != line.len() as u64 {
                replace_private(path, line.as_bytes())?;
            }
            file.insert(create_private(path)?)
        }
    };
    file.write_all_at(line.as_bytes(), 0)?;
    match flush {
        true => file.sync_all(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::Notices;

    const POOL: [u8; 16] = [7; 16];

    fn notices() -> (Notices, Arc<std::sync::Mutex<Vec<String>>>) {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let send = move |notice| sink.lock().unwrap().push(format!("{notice:?}"));
        (Notices::new(Box::new(send)), told)
    }

    #[test]
    fn what_was_seen_is_there_after_an_end_and_until_it_is_forgotten() {
        let dir = tempfile::TempDir::new().unwrap();
        let (mut notices, told) = notices();
        assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Missing);
        for last in [1, 70_000, u64::MAX] {
            let mut witness = WitnessFile::new(dir.path(), &POOL);
            witness.saw(None, &mut notices);
            witness.saw(Some(last - 1), &mut notices);
            witness.saw(Some(last), &mut notices);
            drop(witness);
            assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Seen(last));
        }
        forget(dir.path(), &POOL).unwrap();
        forget(dir.path(), &POOL).unwrap();
        assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Missing);
        assert!(told.lock().unwrap().is_empty());
    }

    #[test]
    fn a_word_of_an_administrator_stands_until_the_pool_is_open() {
        let dir = tempfile::TempDir::new().unwrap();
        let (mut notices, _) = notices();
        for known in [Witness::Accepted, Witness::Seen(7), Witness::Missing, Witness::Accepted] {
            note(dir.path(), &POOL, known).unwrap();
            assert_eq!(read(dir.path(), &POOL).unwrap(), known);
        }
        let mut witness = WitnessFile::new(dir.path(), &POOL);
        witness.saw(None, &mut notices);
        drop(witness);
        assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Accepted);
        let mut witness = WitnessFile::new(dir.path(), &POOL);
        witness.saw(Some(0), &mut notices);
        drop(witness);
        assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Seen(0));
        std::fs::write(file(dir.path(), &POOL), "what is this").unwrap();
        assert_eq!(read(dir.path(), &POOL).unwrap(), Witness::Missing);
    }

    #[test]
    fn what_was_seen_is_written_while_the_pool_is_in_use() {
        let dir = tempfile::TempDir::new().unwrap();
        let (mut notices, _) = notices();
        let mut witness = WitnessFile::new(dir.path(), &POOL);
        witness.saw(Some(5), &mut notices);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while read(dir.path(), &POOL).unwrap() != Witness::Seen(5) {
            assert!(std::time::Instant::now() < end, "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_file_that_was_removed_is_made_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let (mut notices, told) = notices();
        let mut witness = WitnessFile::new(dir.path(), &POOL);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        for durable in 5..8 {
            witness.saw(Some(durable), &mut notices);
            while read(dir.path(), &POOL).unwrap() != Witness::Seen(durable) {
                assert!(std::time::Instant::now() < end, "nothing is written");
                std::thread::sleep(Duration::from_millis(5));
            }
            forget(dir.path(), &POOL).unwrap();
        }
        assert!(told.lock().unwrap().is_empty());
    }

    #[test]
    fn a_witness_that_cannot_write_says_so_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let gone = dir.path().join("gone");
        let (mut notices, told) = notices();
        let mut witness = WitnessFile::new(&gone, &POOL);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        let mut at = 0;
        while told.lock().unwrap().is_empty() {
            assert!(std::time::Instant::now() < end, "nobody is told");
            at += 1;
            witness.saw(Some(at), &mut notices);
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..100).for_each(|n| witness.saw(Some(at + 1 + n), &mut notices));
        assert_eq!(told.lock().unwrap().len(), 1);
    }
}
