//! A witness outside of a pool's devices: how far the log was durable. An older copy of the devices
//! can look like the newest state in all else.
//!
//! What a shard has seen is written to the state directory by a thread of its own, at most so long
//! later: whatever the file says is true, and after an orderly stop it is all. It is not flushed
//! meanwhile: a power cut may leave an older number there, which is true as well.

use crate::notice::{HostNotice, Notices};
use forebay_sys::file::{create_private, read_plain};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two writes of the file, which others may see as well.
const PAUSE: Duration = Duration::from_millis(100);
/// The file has a line with a number.
const BYTES_MAX: u64 = 64;
/// How long the last write may take.
const LAST_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Seen {
    durable: AtomicU64,
    /// Why it could not be written down.
    failed: OnceLock<String>,
}

/// The witness of a shard. When it is dropped, it has written down what it saw.
pub(crate) struct Witness {
    seen: Arc<Seen>,
    last: u64,
    told: bool,
    file: PathBuf,
    wakes: Option<SyncSender<()>>,
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
}

fn file(state_dir: &Path, pool: &[u8; 16]) -> PathBuf {
    let uuid = crate::device::content::uuid_text(pool);
    state_dir.join(format!("witness-{uuid}"))
}

/// What was seen of a pool's log: 0 for nothing, and for what cannot be told.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(state_dir: &Path, pool: &[u8; 16]) -> io::Result<u64> {
    match read_plain(&file(state_dir, pool), BYTES_MAX) {
        // A power cut may leave what was never flushed.
        Ok(text) => Ok(std::str::from_utf8(&text).map_or(0, |it| it.trim().parse().unwrap_or(0))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Forgets what was seen of a pool: whatever is on its devices is its newest state from now on.
///
/// # Errors
/// The file cannot be removed.
pub fn forget(state_dir: &Path, pool: &[u8; 16]) -> io::Result<()> {
    match std::fs::remove_file(file(state_dir, pool)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Witness {
    /// The witness of a pool.
    pub fn new(state_dir: &Path, pool: &[u8; 16]) -> Witness {
        let file = file(state_dir, pool);
        let seen = Arc::new(Seen::default());
        Witness { seen, last: 0, told: false, file, wakes: None, thread: None }
    }

    /// The log is durable up to here.
    pub fn saw(&mut self, durable: u64, notices: &mut Notices) {
        if durable <= self.last {
            return;
        }
        self.last = durable;
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

impl Drop for Witness {
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

/// Writes in place: that needs no room on a disk that is full.
fn write(path: &Path, file: &mut Option<File>, durable: u64, flush: bool) -> io::Result<()> {
    let new = file.is_none();
    let file = match file {
        Some(file) => file,
        None => file.insert(create_private(path)?),
    };
    file.write_all_at(format!("{durable:020}\n").as_bytes(), 0)?;
    if new || flush {
        file.sync_all()?;
    }
    Ok(())
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
        assert_eq!(read(dir.path(), &POOL).unwrap(), 0);
        for last in [1, 70_000, u64::MAX] {
            let mut witness = Witness::new(dir.path(), &POOL);
            witness.saw(last - 1, &mut notices);
            witness.saw(last, &mut notices);
            drop(witness);
            assert_eq!(read(dir.path(), &POOL).unwrap(), last);
        }
        forget(dir.path(), &POOL).unwrap();
        forget(dir.path(), &POOL).unwrap();
        assert_eq!(read(dir.path(), &POOL).unwrap(), 0);
        assert!(told.lock().unwrap().is_empty());
    }

    #[test]
    fn what_was_seen_is_written_while_the_pool_is_in_use() {
        let dir = tempfile::TempDir::new().unwrap();
        let (mut notices, _) = notices();
        let mut witness = Witness::new(dir.path(), &POOL);
        witness.saw(5, &mut notices);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while read(dir.path(), &POOL).unwrap() != 5 {
            assert!(std::time::Instant::now() < end, "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_witness_that_cannot_write_says_so_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let gone = dir.path().join("gone");
        let (mut notices, told) = notices();
        let mut witness = Witness::new(&gone, &POOL);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        let mut at = 0;
        while told.lock().unwrap().is_empty() {
            assert!(std::time::Instant::now() < end, "nobody is told");
            at += 1;
            witness.saw(at, &mut notices);
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..100).for_each(|n| witness.saw(at + 1 + n, &mut notices));
        assert_eq!(told.lock().unwrap().len(), 1);
    }
}
