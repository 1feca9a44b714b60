//! A server for tests: sessions on a real unix socket, plain threads, and a disk in memory.

use forebay_engine::{BlockStatus, Buf, BufPool, IoError, Request, RequestKind, VolumeId};
use forebay_host::frontend::VolumeBytes;
use forebay_host::frontend::nbd::{
    Budget, Export, ExportTable, Limits, Session, SessionEvent, Share, Tls,
};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A volume in memory that counts what it is asked.
pub struct Disk {
    pub bytes: Mutex<Vec<u8>>,
    pub counts: Mutex<Counts>,
}

/// Requests to a [`Disk`].
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub fua: u64,
    pub flushes: u64,
    pub discards: u64,
    pub zeroes_unmap: u64,
    pub zeroes_no_hole: u64,
    pub prefetched_bytes: u64,
}

impl Disk {
    pub fn new(bytes: usize) -> Arc<Disk> {
        Arc::new(Disk { bytes: Mutex::new(vec![0; bytes]), counts: Mutex::default() })
    }

    pub fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    /// Blocks by turns of sixteen: not cached, clean, dirty.
    pub fn status(block: u64) -> BlockStatus {
        match block / 16 % 3 {
            0 => BlockStatus::NotCached,
            1 => BlockStatus::Clean,
            _ => BlockStatus::Dirty,
        }
    }

    /// Carries out a request as an engine would, and returns its buffer.
    pub fn run(&self, request: Request) -> (Result<(), IoError>, Buf) {
        let mut counts = self.counts.lock().unwrap();
        let mut bytes = self.bytes.lock().unwrap();
        let Request { kind, offset, len, mut buf, fua, .. } = request;
        assert!(offset.is_multiple_of(512) && len.is_multiple_of(512));
        counts.fua += u64::from(fua);
        let range = offset as usize..(offset + len) as usize;
        match kind {
            RequestKind::Read => {
                counts.reads += 1;
                buf.bytes_mut().copy_from_slice(&bytes[range]);
            }
            RequestKind::Write => {
                counts.writes += 1;
                bytes[range].copy_from_slice(buf.bytes());
            }
            RequestKind::Flush => counts.flushes += 1,
            RequestKind::Discard => {
                counts.discards += 1;
                bytes[range].fill(0);
            }
            RequestKind::WriteZeroes { unmap } => {
                counts.zeroes_unmap += u64::from(unmap);
                counts.zeroes_no_hole += u64::from(!unmap);
                bytes[range].fill(0);
            }
            RequestKind::Prefetch => counts.prefetched_bytes += len,
        }
        (Ok(()), buf)
    }
}

/// A server on a unix socket in a directory of its own.
pub struct Server {
    directory: tempfile::TempDir,
    pub exports: Arc<ExportTable>,
    pub disk: Arc<Disk>,
    pub budget: Arc<Budget>,
    stopping: Arc<AtomicBool>,
}

impl Server {
    /// Serves one disk of `bytes` bytes as `disk`, and the same read-only as `locked`.
    pub fn start(bytes: usize, tls: Tls) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let exports = Arc::new(ExportTable::new());
        exports.insert(export("disk", bytes as u64, false));
        exports.insert(export("locked", bytes as u64, true));
        let server = Server {
            directory,
            exports,
            disk: Disk::new(bytes),
            budget: Arc::new(Budget::new(256 << 20, 512)),
            stopping: Arc::default(),
        };
        let listener = UnixListener::bind(server.socket()).unwrap();
        let (exports, disk) = (Arc::clone(&server.exports), Arc::clone(&server.disk));
        let (budget, stopping) = (Arc::clone(&server.budget), Arc::clone(&server.stopping));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let session = Session::new(
                    Arc::clone(&exports),
                    Arc::new(Limits::default()),
                    Arc::clone(&budget),
                    tls.clone(),
                );
                let disk = Arc::clone(&disk);
                std::thread::spawn(move || serve(stream.unwrap(), session, &disk));
            }
        });
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(self.socket());
    }
}

pub fn export(name: &str, bytes: u64, read_only: bool) -> Export {
    Export {
        name: name.to_owned(),
        description: format!("a test disk, {name}"),
        pool: 0,
        volume: VolumeId(1),
        bytes: VolumeBytes::new(bytes),
        read_only,
        sparse: false,
        fast_zero: AtomicBool::new(true),
        share: Share::default(),
    }
}

/// Drives one session until its client is gone, as simply as the interface allows.
fn serve(mut stream: UnixStream, mut session: Session, disk: &Disk) {
    let mut bufs = BufPool::new(64 << 20);
    let mut events = Vec::new();
    let mut input = vec![0; 256 << 10];
    let mut have = 0..0;
    loop {
        while session.has_output() {
            let parcel = session.output(64, &mut bufs);
            let slices: Vec<_> = parcel.slices().map(IoSlice::new).collect();
            let written = stream.write_vectored(&slices);
            session.sent(parcel, *written.as_ref().unwrap_or(&0), &mut bufs);
            if written.is_err() {
                return session.disconnected(&mut bufs);
            }
        }
        if session.wants_close() {
            return;
        }
        if have.is_empty() && !session.paused() {
            match stream.read(&mut input) {
                Ok(0) => return session.disconnected(&mut bufs),
                Ok(count) => have = 0..count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return session.disconnected(&mut bufs),
            }
        }
        have.start += session.receive(&input[have.clone()], &mut bufs, &mut events);
        if session.paused() && events.is_empty() && !session.has_output() {
            std::thread::sleep(Duration::from_millis(1));
        }
        while let Some(event) = events.pop() {
            // Last in, first out: a session may not count on order.
            answer(event, &mut session, disk, &mut bufs, &mut events);
        }
    }
}

/// Carries out one event.
pub fn answer(
    event: SessionEvent,
    session: &mut Session,
    disk: &Disk,
    bufs: &mut BufPool,
    events: &mut Vec<SessionEvent>,
) {
    match event {
        SessionEvent::Opened(_) => {}
        SessionEvent::Submit { ticket, mut request } => {
            if request.kind == RequestKind::Read {
                request.buf = bufs.take(request.len as usize);
            }
            let (result, buf) = disk.run(request);
            session.complete(ticket, result, buf, bufs, events);
        }
        SessionEvent::Status { ticket, .. } => session.status(ticket, Disk::status, bufs, events),
    }
}
