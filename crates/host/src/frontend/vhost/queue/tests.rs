use super::super::inflight::{Region, queue_bytes};
use super::super::memory::Memory;
use super::*;
use crate::driver::{Backend, Driver};
use crate::frontend::port::PortRequest;
use crate::notice::Notices;
use forebay_sys::waker::Waker;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestMemoryMmap};

const SIZE: u16 = 16;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Heads of requests, and the stretch that all data goes to.
const HEADS: u64 = 0x3000;
const DATA: u64 = 0x10_0000;
const MEMORY_BYTES: u64 = 64 << 20;
const NO_KICKS: u16 = 1;
const LOST: &str = "the machine took memory away that it shares with the daemon";

/// A queue in a guest's memory, on a shard's driver.
struct Rig {
    port: QueuePort,
    memory: GuestMemoryMmap,
    /// What the memory consists of.
    file: File,
    driver: Driver,
    bufs: BufPool,
    requests: Vec<PortRequest>,
    notices: Notices,
    told: Arc<Mutex<Vec<String>>>,
    published: u16,
}

impl Rig {
    fn new() -> Rig {
        Rig::with_log(None)
    }

    fn with_log(log: Option<&Region>) -> Rig {
        let file = sys::file::memory_file(MEMORY_BYTES).unwrap();
        let piece = VhostUserMemoryRegion::new(0, MEMORY_BYTES, 0, 0);
        let memory = Memory::new().with(&piece, file.try_clone().unwrap()).unwrap();
        let mut queue = Queue::new(SIZE).unwrap();
        queue.set_avail_ring_address(Some(AVAIL as u32), None);
        queue.set_used_ring_address(Some(USED as u32), None);
        queue.set_ready(true);
        let setup = QueueSetup {
            volume: VolumeId(1),
            name: [0; ID_BYTES],
            rings: Rings::new(Arc::new(memory.clone()), queue, log.map(|region| (region, 0))),
            kick: sys::eventfd::new().unwrap(),
            call: None,
            durable_writes: false,
            next_avail: Arc::default(),
        };
        let (driver, _) = Driver::new(Backend::Threads, &Waker::new().unwrap()).unwrap();
        let port = QueuePort::new(setup);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&told);
        let notices =
            Notices::new(Box::new(move |notice| sink.lock().unwrap().push(notice.to_string())));
        let (bufs, requests) = (BufPool::new(0), Vec::new());
        // As the machine maps it: what it does there it does to a file that it has not cut.
        let memory = memory.map().clone();
        Rig { port, memory, file, driver, bufs, requests, notices, told, published: 0 }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut QueuePort, &mut PortLink) -> T) -> T {
        let Rig { port, driver, bufs, requests, notices, .. } = self;
        act(port, &mut PortLink { key: 0, driver, bufs, requests, notices })
    }

    /// The guest wants to read so many bytes. It does not kick.
    fn publish(&mut self, len: u32) {
        let (memory, number) = (&self.memory, self.published);
        let (first, head) = (u64::from(number) * 2, HEADS + u64::from(number) * 16);
        memory.write_obj([0_u8; 16], GuestAddress(head)).unwrap();
        let chain = [(head, 16, 1, number * 2 + 1), (DATA, len + 1, 2, 0)];
        for (index, (address, len, flags, next)) in (first..).zip(chain) {
            let descriptor = virtio_queue::desc::split::Descriptor::new(address, len, flags, next);
            memory.write_obj(descriptor, GuestAddress(index * 16)).unwrap();
        }
        self.publish_head(number * 2);
    }

    fn publish_head(&mut self, head: u16) {
        let slot = AVAIL + 4 + 2 * u64::from(self.published);
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.claim(self.published + 1);
    }

    /// The guest says that it has made so many requests.
    fn claim(&mut self, published: u16) {
        self.published = published;
        self.memory.store(published, GuestAddress(AVAIL + 2), Ordering::SeqCst).unwrap();
    }

    /// What the administrator was told: that the queue is broken, each time why.
    fn told(&self) -> Vec<String> {
        let told = std::mem::take(&mut *self.told.lock().unwrap());
        let why = |line: String| {
            let from = line.find("on volume 1 is broken (").expect("says which volume");
            line[from..].split(['(', ')']).nth(1).expect("says why").to_owned()
        };
        told.into_iter().map(why).collect()
    }

    /// Whether the guest is told not to kick.
    fn is_quiet(&self) -> bool {
        self.memory.load::<u16>(GuestAddress(USED), Ordering::SeqCst).unwrap() == NO_KICKS
    }
}

#[test]
fn a_queue_that_is_looked_at_needs_no_kick_and_one_that_is_parked_does() {
    let mut rig = Rig::new();
    rig.with(|port, link| port.start(link)).unwrap();
    assert!(rig.port.is_attentive() && rig.is_quiet());
    rig.publish(4096);
    assert!(rig.with(QueuePort::look));
    assert!(!rig.with(QueuePort::look), "there was one");
    assert_eq!(rig.requests.len(), 1);
    // What comes before kicks are asked for is taken, and the guest is quiet again.
    rig.publish(4096);
    assert!(rig.with(QueuePort::park));
    assert_eq!(rig.requests.len(), 2);
    assert!(rig.port.is_attentive() && rig.is_quiet());
    assert!(!rig.with(QueuePort::park));
    assert!(!rig.port.is_attentive() && !rig.is_quiet());
    rig.publish(4096);
    assert!(!rig.with(QueuePort::look), "it is not looked at");
    rig.with(|port, link| port.arrived(link, KICK, 1));
    assert_eq!(rig.requests.len(), 3);
    assert!(rig.port.is_attentive() && rig.is_quiet());
}

#[test]
fn what_is_under_way_has_a_bound_and_the_ring_keeps_the_rest() {
    let mut rig = Rig::new();
    let longest = (PARTS_MAX * PART_BYTES) as u32;
    (0..3).for_each(|_| rig.publish(longest));
    rig.with(|port, link| port.start(link)).unwrap();
    assert_eq!(rig.requests.len() as u64, 2 * PARTS_MAX, "two requests reach the bound");
    assert!(!rig.with(QueuePort::look) && !rig.with(QueuePort::park));
    assert!(rig.port.is_attentive(), "the answers bring it back");
    let answered: Vec<PortRequest> = rig.requests.drain(..PARTS_MAX as usize).collect();
    for (_, tag, request) in answered {
        let answer = PortAnswer { result: Err(IoError::Io), buf: request.buf };
        rig.with(|port, link| port.complete(link, tag, answer));
    }
    assert!(rig.with(QueuePort::look));
    assert_eq!(rig.requests.len() as u64, 2 * PARTS_MAX);
}

#[test]
fn a_head_that_the_queue_does_not_have_stays_in_the_ring() {
    for head in [SIZE, u16::MAX] {
        let mut rig = Rig::new();
        rig.with(|port, link| port.start(link)).unwrap();
        rig.publish(4096);
        rig.publish_head(head);
        rig.publish(4096);
        assert!(rig.with(QueuePort::look));
        assert_eq!(rig.told(), ["a request begins at a descriptor that it does not have"]);
        assert_eq!((rig.requests.len(), rig.port.setup.rings.next_avail()), (1, 1));
        // What was taken before it is answered.
        let (_, tag, request) = rig.requests.pop().unwrap();
        let answer = PortAnswer { result: Ok(()), buf: request.buf };
        rig.with(|port, link| port.complete(link, tag, answer));
        assert_eq!(rig.memory.load::<u16>(GuestAddress(USED + 2), Ordering::SeqCst).unwrap(), 1);
        rig.with(|port, link| port.arrived(link, KICK, 1));
        assert!(!rig.with(QueuePort::look) && !rig.with(QueuePort::park));
        assert!(rig.told().is_empty(), "once");
    }
}

#[test]
fn a_guest_that_claims_more_requests_than_the_ring_holds_is_told_of() {
    let mut rig = Rig::new();
    rig.with(|port, link| port.start(link)).unwrap();
    rig.claim(SIZE + 1);
    assert!(rig.with(QueuePort::look));
    assert_eq!(rig.told(), ["more requests wait than it has room for"]);
    assert!(!rig.port.is_attentive() && rig.requests.is_empty());
}

#[test]
fn a_log_that_somebody_wrote_over_breaks_its_queue_once() {
    let file = tempfile::tempfile().unwrap();
    let region_bytes = 2 * queue_bytes(SIZE);
    file.set_len(region_bytes as u64).unwrap();
    let region = Region::map(file.try_clone().unwrap(), 0, 2, SIZE).unwrap();
    assert_eq!(region.queue(0, SIZE).unwrap().open(0), []);
    // All is taken, and the last head is none. There is nothing in the table of descriptors.
    let mut bytes = vec![1; queue_bytes(SIZE)];
    bytes[8..16].copy_from_slice(&[1, 0, SIZE as u8, 0, 0xff, 0xff, 9, 9]);
    let write = |at: u64, bytes: &[u8]| {
        file.write_all_at(bytes, at).unwrap();
    };
    write(0, &bytes);
    write(bytes.len() as u64, &[0xaa; 16]);
    let mut rig = Rig::with_log(Some(&region));
    rig.with(|port, link| port.start(link)).unwrap();
    assert_eq!(rig.told(), ["a request has no room for its status"]);
    assert!(rig.requests.is_empty() && !rig.port.is_attentive());
    let mut next = vec![0; 16];
    file.read_exact_at(&mut next, bytes.len() as u64).unwrap();
    assert_eq!(next, [0xaa; 16], "the next queue's part");
}

#[test]
fn a_descriptor_for_calls_that_is_full_does_not_stop_the_queue() {
    let mut rig = Rig::new();
    let call = sys::eventfd::new().unwrap();
    sys::socket::set_nonblocking(call.as_raw_fd(), false).unwrap();
    (&call).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (mut reader, (done, wait)) = (call.try_clone().unwrap(), std::sync::mpsc::channel());
    // Lets a write that blocks end.
    let rescue = std::thread::spawn(move || {
        let late = wait.recv_timeout(std::time::Duration::from_secs(5)).is_err();
        if late {
            let _ = std::io::Read::read(&mut reader, &mut [0; 8]);
        }
        late
    });
    rig.port.setup.call = Some(call);
    rig.with(|port, link| {
        port.start(link).unwrap();
        port.signal = true;
        port.arm(link);
    });
    done.send(()).unwrap();
    assert!(!rescue.join().unwrap(), "it waited for somebody to read");
}

/// Long writes and long chains, all there at once, were one go: the thread's other clients waited.
#[test]
fn what_is_copied_and_followed_in_one_go_has_a_bound() {
    let mut rig = Rig::new();
    rig.with(|port, link| port.start(link)).unwrap();
    for number in 0..3_u16 {
        rig.publish(4096);
        let (first, head) = (number * 2, HEADS + u64::from(number) * 16);
        rig.memory.write_obj(1_u8, GuestAddress(head)).unwrap();
        // One table for all.
        let table = virtio_queue::desc::split::Descriptor::new(0x20_0000, 1003 * 16, 4, 0);
        rig.memory.write_obj(table, GuestAddress(u64::from(first) * 16)).unwrap();
    }
    for piece in 0..1003_u16 {
        let (address, len, flags) = match piece {
            0 => (HEADS, 16, 1),
            1002 => (DATA, 1, 2),
            _ => (DATA, 8192, 1),
        };
        let descriptor = virtio_queue::desc::split::Descriptor::new(address, len, flags, piece + 1);
        let at = GuestAddress(0x20_0000 + u64::from(piece) * 16);
        rig.memory.write_obj(descriptor, at).unwrap();
    }
    for _ in 0..3 {
        assert!(rig.requests.is_empty());
        assert!(rig.with(QueuePort::look));
        assert_eq!(
            rig.requests.iter().map(|(_, _, request)| request.len).sum::<u64>(),
            1001 * 8192
        );
        rig.requests.clear();
    }
    assert!(!rig.with(QueuePort::look), "there were three");
}

/// Trial of November 2026, S13, and what belongs to it: memory that the machine shares with the
/// daemon and then takes away was a SIGBUS.
#[test]
fn memory_that_is_cut_breaks_its_queue_wherever_it_is_touched_next() {
    // Before the next request, in its rings; within it, in its head; behind all of these.
    for left in [0, AVAIL, USED, HEADS] {
        let mut rig = Rig::new();
        rig.with(|port, link| port.start(link)).unwrap();
        rig.publish(4096);
        assert!(rig.with(QueuePort::look));
        rig.publish(4096);
        rig.file.set_len(left).unwrap();
        rig.with(|port, link| {
            port.look(link);
            port.arm(link);
        });
        assert_eq!(rig.told(), [LOST], "{left}");
        assert!(!rig.port.is_attentive() && rig.requests.len() == 1);
        // The answer to what was taken before goes nowhere.
        let (_, tag, request) = rig.requests.pop().unwrap();
        let answer = PortAnswer { result: Ok(()), buf: request.buf };
        rig.with(|port, link| port.complete(link, tag, answer));
        rig.with(|port, link| port.arm(link));
        assert!(rig.told().is_empty(), "once");
    }
}

#[test]
fn data_whose_memory_is_cut_is_not_written_as_zeros() {
    let mut rig = Rig::new();
    rig.with(|port, link| port.start(link)).unwrap();
    rig.publish(4096);
    // A write of three pages, of which the last is gone.
    rig.memory.write_obj(1_u8, GuestAddress(HEADS)).unwrap();
    let chain = [(HEADS, 16, 1, 1), (MEMORY_BYTES - 12_288, 12_288, 1, 2), (HEADS + 32, 1, 2, 0)];
    for (index, (address, len, flags, next)) in (0_u64..).zip(chain) {
        let descriptor = virtio_queue::desc::split::Descriptor::new(address, len, flags, next);
        rig.memory.write_obj(descriptor, GuestAddress(index * 16)).unwrap();
    }
    rig.file.set_len(MEMORY_BYTES - 4096).unwrap();
    assert!(rig.with(QueuePort::look));
    rig.with(|port, link| port.arm(link));
    assert!(rig.requests.is_empty());
    assert_eq!(rig.told(), [LOST]);
}

#[test]
fn an_answer_into_memory_that_was_cut_breaks_the_queue() {
    let mut rig = Rig::new();
    rig.with(|port, link| port.start(link)).unwrap();
    rig.publish(4096);
    assert!(rig.with(QueuePort::look));
    rig.file.set_len(DATA).unwrap();
    let (_, tag, request) = rig.requests.pop().unwrap();
    let answer = PortAnswer { result: Ok(()), buf: request.buf };
    rig.with(|port, link| {
        port.complete(link, tag, answer);
        port.arm(link);
    });
    assert_eq!(rig.told(), [LOST]);
    assert!(!rig.port.is_attentive());
}

#[test]
fn an_in_flight_log_that_is_cut_breaks_its_queue() {
    let file = sys::file::memory_file(2 * queue_bytes(SIZE) as u64).unwrap();
    let region = Region::map(file.try_clone().unwrap(), 0, 2, SIZE).unwrap();
    let mut rig = Rig::with_log(Some(&region));
    rig.with(|port, link| port.start(link)).unwrap();
    file.set_len(0).unwrap();
    rig.publish(4096);
    rig.publish(4096);
    assert!(rig.with(QueuePort::look));
    rig.with(|port, link| port.arm(link));
    assert_eq!(rig.told(), [LOST]);
    assert!(!rig.port.is_attentive());
}
