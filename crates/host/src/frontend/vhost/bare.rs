//! A queue without a shard and without a machine, for fuzz targets: its owner writes the guest's
//! memory and the in-flight log as a guest and its machine can, and answers in the engine's place.

use super::inflight::{Region, queue_bytes};
use super::memory::Memory;
use super::queue::{QueuePort, QueueSetup};
use super::request::ID_BYTES;
use super::rings::Rings;
use crate::driver::{Backend, Driver};
use crate::frontend::port::{PortAnswer, PortLink, PortRequest};
use crate::notice::Notices;
use forebay_engine::{Buf, BufPool, IoError, Request, VolumeId};
use forebay_sys as sys;
use forebay_sys::waker::Waker;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_queue::{Queue, QueueT};

/// Queues of which the in-flight log has a part: that of the one, and one more.
const LOGGED: u16 = 2;

/// Where a queue lies, and how large it is.
pub struct BareSetup {
    /// Bytes of the guest's memory, which begins at 0.
    pub memory_bytes: u64,
    /// Descriptors of the queue.
    pub size: u16,
    /// Addresses of its descriptors, available ring and used ring.
    pub places: [u64; 3],
    /// Which request it begins with.
    pub base: u16,
    /// The content of the in-flight log of two queues, where there is one.
    pub log: Option<Vec<u8>>,
}

/// A queue on its own.
pub struct BareQueue {
    port: QueuePort,
    /// What the guest's memory consists of, and the log.
    pub memory: File,
    /// The log, where there is one.
    pub log: Option<File>,
    driver: Driver,
    bufs: BufPool,
    requests: Vec<PortRequest>,
    notices: Notices,
    told: Arc<AtomicU64>,
}

impl BareQueue {
    /// Bytes of the log's part of one queue.
    pub fn log_bytes(size: u16) -> usize {
        queue_bytes(size)
    }

    /// A queue that is not started.
    ///
    /// # Errors
    /// The system refuses memory, or the setup is none.
    pub fn new(setup: BareSetup) -> io::Result<BareQueue> {
        let refused = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let memory = sys::file::memory_file(setup.memory_bytes)?;
        let piece = VhostUserMemoryRegion::new(0, setup.memory_bytes, 0, 0);
        let mapped = Memory::new().with(&piece, memory.try_clone()?)?;
        let mut queue = Queue::new(setup.size).map_err(refused)?;
        let [table, available, used] = setup.places.map(virtio_queue_address);
        queue.set_desc_table_address(table.0, table.1);
        queue.set_avail_ring_address(available.0, available.1);
        queue.set_used_ring_address(used.0, used.1);
        queue.set_next_avail(setup.base);
        queue.set_ready(true);
        let log = setup.log.map(|content| -> io::Result<(File, Region)> {
            let bytes = queue_bytes(setup.size) * usize::from(LOGGED);
            let file = sys::file::memory_file(bytes as u64)?;
            file.write_all_at(&content[..content.len().min(bytes)], 0)?;
            let region = Region::map(file.try_clone()?, 0, LOGGED, setup.size)?;
            Ok((file, region))
        });
        let log = log.transpose()?;
        let region = log.as_ref().map(|(_, region)| (region, 0));
        let port = QueuePort::new(QueueSetup {
            volume: VolumeId(1),
            name: [b'n'; ID_BYTES],
            rings: Rings::new(Arc::new(mapped), queue, region),
            kick: sys::eventfd::new()?,
            call: None,
            durable_writes: false,
            next_avail: Arc::default(),
        });
        let (driver, _) = Driver::new(Backend::Threads, &Waker::new()?)?;
        let told = Arc::new(AtomicU64::new(0));
        let sink = Arc::clone(&told);
        let notices = Notices::new(Box::new(move |_| {
            sink.fetch_add(1, Ordering::Relaxed);
        }));
        let (bufs, requests) = (BufPool::new(0), Vec::new());
        let log = log.map(|(file, _)| file);
        Ok(BareQueue { port, memory, log, driver, bufs, requests, notices, told })
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut QueuePort, &mut PortLink) -> T) -> T {
        let BareQueue { port, driver, bufs, requests, notices, .. } = self;
        act(port, &mut PortLink { key: 0, driver, bufs, requests, notices })
    }

    /// Begins.
    ///
    /// # Errors
    /// The rings do not lie in the guest's memory.
    pub fn start(&mut self) -> io::Result<()> {
        self.with(|port, link| port.start(link))
    }

    /// As the shard looks at the ring. Whether there was something.
    pub fn look(&mut self) -> bool {
        self.with(QueuePort::look)
    }

    /// As the shard stops to look. Whether there was something.
    pub fn park(&mut self) -> bool {
        self.with(QueuePort::park)
    }

    /// The guest kicks.
    pub fn kick(&mut self) {
        self.with(|port, link| port.kicked(link));
    }

    /// The requests that were begun since this was asked last, with their tags.
    pub fn begun(&mut self) -> Vec<(u32, Request)> {
        self.requests.drain(..).map(|(_, tag, request)| (tag, request)).collect()
    }

    /// The engine's answer.
    pub fn complete(&mut self, tag: u32, result: Result<(), IoError>, buf: Buf) {
        self.with(|port, link| port.complete(link, tag, PortAnswer { result, buf }));
    }

    /// How many requests were taken out of the ring, and how many answered, each as the rings count
    /// them; and how many are neither.
    pub fn counts(&self) -> (u16, u16, usize) {
        self.port.counts()
    }

    /// What the administrator was told so far.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

/// The halves of an address.
fn virtio_queue_address(address: u64) -> (Option<u32>, Option<u32>) {
    (Some(address as u32), Some((address >> 32) as u32))
}
