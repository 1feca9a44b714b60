use super::*;
use crate::driver::{Backend, Driver};
use crate::frontend::port::PortRequest;
use crate::notice::Notices;
use crate::waker::Waker;

const SIZE: u16 = 16;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Heads of requests, and the stretch that all data goes to.
const HEADS: u64 = 0x3000;
const DATA: u64 = 0x10_0000;
const NO_KICKS: u16 = 1;

/// A queue in a guest's memory, on a shard's driver.
struct Rig {
    port: QueuePort,
    memory: Arc<GuestMemoryMmap>,
    driver: Driver,
    bufs: BufPool,
    requests: Vec<PortRequest>,
    notices: Notices,
    published: u16,
}

impl Rig {
    fn new() -> Rig {
        let range = (GuestAddress(0), 64 << 20);
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[range]).unwrap());
        let mut queue = Queue::new(SIZE).unwrap();
        queue.set_avail_ring_address(Some(AVAIL as u32), None);
        queue.set_used_ring_address(Some(USED as u32), None);
        queue.set_ready(true);
        let setup = QueueSetup {
            volume: VolumeId(1),
            name: [0; ID_BYTES],
            memory: Arc::clone(&memory),
            queue,
            kick: sys::eventfd().unwrap(),
            call: None,
            log: None,
            durable_writes: false,
            next_avail: Arc::default(),
        };
        let (driver, _) = Driver::new(Backend::Threads, &Waker::new().unwrap()).unwrap();
        let port = QueuePort::new(setup);
        let notices = Notices::new(Box::new(|_| {}));
        let (bufs, requests) = (BufPool::new(0), Vec::new());
        Rig { port, memory, driver, bufs, requests, notices, published: 0 }
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
        let slot = AVAIL + 4 + 2 * u64::from(number);
        memory.write_obj(number * 2, GuestAddress(slot)).unwrap();
        self.published += 1;
        memory.store(self.published, GuestAddress(AVAIL + 2), Ordering::SeqCst).unwrap();
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
