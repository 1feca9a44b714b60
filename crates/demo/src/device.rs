//! What the workload runs against: an export, the simulated disk itself, or the fast file itself.
//! All three take requests without waiting and hand back what has ended, so that one generator
//! serves them.

use forebay_host::origin::OriginIo;
use forebay_host::origin::spindle::{Buf, Completion, OpId, Spindle};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::nbd;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fills the buffer.
    Read,
    /// Writes the buffer.
    Write,
    /// Brings a range into the cache.
    Prefetch,
}

/// The end of a request.
pub struct Ended {
    /// The request.
    pub cookie: usize,
    /// What it did.
    pub kind: Kind,
    /// 0, or an error number.
    pub error: i32,
    /// Its buffer.
    pub buf: Buf,
}

/// Where requests go.
pub enum Device {
    /// An export of the daemon.
    Nbd(Box<nbd::Client>),
    /// The simulated disk, with nothing in between.
    Spindle(Box<BareSpindle>),
    /// A file, past the page cache, with nothing in between.
    File(BareFile),
}

impl Device {
    /// Begins one request, or queues it until [`Device::wait`].
    pub fn submit(&mut self, cookie: usize, kind: Kind, offset: u64, len: usize, buf: Buf) {
        match self {
            Device::Nbd(client) => client.submit(cookie, kind, offset, len, buf),
            Device::Spindle(disk) => disk.submit(cookie, kind, offset, buf),
            Device::File(file) => file.submit(cookie, kind, offset, buf),
        }
    }

    /// Waits until at least one request has ended.
    ///
    /// # Errors
    /// When the device is gone; then nothing under way will end.
    pub fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        match self {
            Device::Nbd(client) => client.wait(ended),
            Device::Spindle(disk) => disk.wait(ended),
            Device::File(file) => file.wait(ended),
        }
    }
}

/// The simulated disk in this process.
pub struct BareSpindle {
    disk: Spindle,
    since: Instant,
    kinds: Vec<Kind>,
    done: Vec<(OpId, Completion)>,
}

impl BareSpindle {
    /// Takes the disk over.
    pub fn new(disk: Spindle) -> BareSpindle {
        BareSpindle { disk, since: Instant::now(), kinds: Vec::new(), done: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn submit(&mut self, cookie: usize, kind: Kind, offset: u64, buf: Buf) {
        let io = match kind {
            Kind::Read => OriginIo::Read { offset, buf },
            Kind::Write => OriginIo::Write { offset, buf },
            // A bare disk has no cache to prefetch into.
            Kind::Prefetch => OriginIo::Flush,
        };
        self.kinds.resize(self.kinds.len().max(cookie + 1), kind);
        self.kinds[cookie] = kind;
        self.disk.submit(OpId(cookie as u64), io, self.now());
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        loop {
            self.disk.poll(self.now(), &mut self.done);
            for (op, completion) in self.done.drain(..) {
                let cookie = op.0 as usize;
                let error = if completion.result.is_ok() { 0 } else { libc::EIO };
                ended.push(Ended { cookie, kind: self.kinds[cookie], error, buf: completion.buf });
            }
            if !ended.is_empty() {
                return Ok(());
            }
            let Some(due) = self.disk.next_due() else { return Ok(()) };
            thread::sleep(Duration::from_nanos(due.saturating_sub(self.now())));
        }
    }
}

/// A request to a file: cookie, kind, offset, buffer.
type Job = (usize, Kind, u64, Buf);

/// The queue between the generator and the threads that do its I/O.
#[derive(Default)]
struct Jobs {
    queue: Mutex<(VecDeque<Job>, bool)>,
    more: Condvar,
}

/// A file with one thread for each request under way.
pub struct BareFile {
    jobs: Arc<Jobs>,
    ended: Receiver<Ended>,
    threads: Vec<JoinHandle<()>>,
}

impl BareFile {
    /// Opens `path` past the page cache, for `depth` requests at once.
    ///
    /// # Errors
    /// When the file cannot be opened so.
    pub fn open(path: &Path, depth: usize) -> Result<BareFile> {
        let file = Arc::new(open_direct(path)?);
        let jobs = Arc::new(Jobs::default());
        let (send, ended) = channel();
        let threads = (0..depth)
            .map(|_| {
                let (jobs, file, send) = (jobs.clone(), file.clone(), send.clone());
                thread::Builder::new().spawn(move || serve(&jobs, &file, &send))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(BareFile { jobs, ended, threads })
    }

    fn submit(&mut self, cookie: usize, kind: Kind, offset: u64, buf: Buf) {
        let mut queue = self.jobs.queue.lock().expect("no thread panics with the queue");
        queue.0.push_back((cookie, kind, offset, buf));
        drop(queue);
        self.jobs.more.notify_one();
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        let gone = |_| Error::new(ErrorKind::BrokenPipe, "the threads are gone");
        ended.push(self.ended.recv().map_err(gone)?);
        ended.extend(self.ended.try_iter());
        Ok(())
    }
}

impl Drop for BareFile {
    fn drop(&mut self) {
        self.jobs.queue.lock().expect("no thread panics with the queue").1 = true;
        self.jobs.more.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens a file for direct I/O, or where its file system has none, for ordinary I/O.
///
/// # Errors
/// When the file cannot be opened.
pub fn open_direct(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
    match direct {
        Err(error) if error.kind() == ErrorKind::InvalidInput => options.open(path),
        other => other,
    }
}

fn serve(jobs: &Jobs, file: &File, send: &Sender<Ended>) {
    loop {
        let mut queue = jobs.queue.lock().expect("no thread panics with the queue");
        let (cookie, kind, offset, mut buf) = loop {
            if let Some(job) = queue.0.pop_front() {
                break job;
            }
            if queue.1 {
                return;
            }
            queue = jobs.more.wait(queue).expect("no thread panics with the queue");
        };
        drop(queue);
        let result = match kind {
            Kind::Read => file.read_exact_at(buf.bytes_mut(), offset),
            Kind::Write => file.write_all_at(buf.bytes(), offset),
            Kind::Prefetch => Ok(()),
        };
        let error = result.err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
        if send.send(Ended { cookie, kind, error, buf }).is_err() {
            return;
        }
    }
}
