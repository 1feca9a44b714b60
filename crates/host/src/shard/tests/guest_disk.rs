//! A guest's disk without a guest: a front end of the `vhost` crate speaks the protocol, and the
//! test is the driver that fills the rings.

use super::refused_memory::{LEFT, allow, is_alone};
use super::*;
use crate::frontend::vhost::{Head, Region, VhostServer, VhostVolume};
use std::fs::File;
use std::sync::atomic::Ordering;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{
    Frontend, FrontendReqHandler, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandlerMut,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

mod hostile;

const SIZE: u16 = 256;
const MEMORY_BYTES: usize = 8 << 20;
const TABLE: u64 = 0;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
/// Each request has a stretch of memory for head, data and status.
const DATA: u64 = 0x10000;
const STRETCH: u64 = 0x10000;
/// Addresses of the driver's process.
const USER: u64 = 0x7000_0000_0000;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
const EVENT_IDX: u64 = 1 << 29;
const FLUSH: u64 = 1 << 9;

/// One queue of a guest's disk.
struct Guest {
    memory: GuestMemoryMmap,
    front: Frontend,
    /// The queue's number, and how far behind those of the first its rings lie.
    queue: usize,
    rings: u64,
    kick: EventFd,
    call: EventFd,
    avail: u16,
    seen: u16,
}

/// The guest's memory, which lives longer than a connection.
fn memory() -> GuestMemoryMmap {
    let file = forebay_sys::file::memory_file(MEMORY_BYTES as u64).unwrap();
    let range = (GuestAddress(0), MEMORY_BYTES, Some(FileOffset::new(file, 0)));
    GuestMemoryMmap::from_ranges_with_files([range]).unwrap()
}

impl Guest {
    fn connect(path: &std::path::Path, memory: GuestMemoryMmap, extra: u64) -> Guest {
        let mut front = Frontend::connect(path, 4).unwrap();
        front.set_owner().unwrap();
        let offered = front.get_features().unwrap();
        let features = VERSION_1 | PROTOCOL | extra;
        assert_eq!(offered & features, features);
        front.set_features(features).unwrap();
        let known = front.get_protocol_features().unwrap();
        assert!(known.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
        front.set_protocol_features(known).unwrap();
        let (kick, call) =
            (EventFd::new(EFD_NONBLOCK).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
        let mut guest = Guest { memory, front, queue: 0, rings: 0, kick, call, avail: 0, seen: 0 };
        guest.tell_memory();
        guest
    }

    /// Another queue of the same disk.
    fn second(&self) -> Guest {
        Guest {
            memory: self.memory.clone(),
            front: self.front.clone(),
            queue: 1,
            rings: 0x2000,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
            avail: 0,
            seen: 0,
        }
    }

    /// Hands over the memory in which the daemon writes down what it has taken.
    fn tell_log(&mut self, told: &VhostUserInflight, file: &File) {
        self.front.set_inflight_fd(told, std::os::fd::AsRawFd::as_raw_fd(file)).unwrap();
    }

    fn tell_memory(&mut self) {
        let region = self.memory.iter().next().unwrap();
        let file = vm_memory::GuestMemoryRegion::file_offset(region).unwrap();
        let told = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: std::os::fd::AsRawFd::as_raw_fd(file.file()),
        };
        self.front.set_mem_table(&[told]).unwrap();
    }

    fn start(&mut self, base: u16) {
        (self.avail, self.seen) = (base, base);
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + self.rings + TABLE,
            used_ring_addr: USER + self.rings + USED,
            avail_ring_addr: USER + self.rings + AVAIL,
            log_addr: None,
        };
        let queue = self.queue;
        self.front.set_vring_num(queue, SIZE).unwrap();
        self.front.set_vring_addr(queue, &config).unwrap();
        self.front.set_vring_base(queue, base).unwrap();
        self.front.set_vring_call(queue, &self.call).unwrap();
        self.front.set_vring_kick(queue, &self.kick).unwrap();
        self.front.set_vring_enable(queue, true).unwrap();
    }

    fn describe(&self, index: u64, address: u64, len: u32, flags: u16, next: u16) {
        let at = self.rings + TABLE + index * 16;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(len, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Puts a request of three descriptors into the table: its number below 85 names it.
    fn prepare(&self, number: u16, kind: u32, sector: u64, data: Result<&[u8], u32>) -> u16 {
        let (head, at) = (number * 3, DATA + u64::from(number) * STRETCH);
        self.memory.write_obj(kind, GuestAddress(at)).unwrap();
        self.memory.write_obj(sector, GuestAddress(at + 8)).unwrap();
        let (len, flags) = match data {
            Ok(data) => {
                self.memory.write_slice(data, GuestAddress(at + 64)).unwrap();
                (data.len() as u32, 1)
            }
            Err(len) => (len, 1 | 2),
        };
        let status = at + STRETCH - 1;
        self.memory.write_obj(0xff_u8, GuestAddress(status)).unwrap();
        let index = u64::from(head);
        if len == 0 {
            self.describe(index, at, 16, 1, head + 2);
        } else {
            self.describe(index, at, 16, 1, head + 1);
            self.describe(index + 1, at + 64, len, flags, head + 2);
        }
        self.describe(index + 2, status, 1, 2, 0);
        head
    }

    fn publish(&mut self, head: u16) {
        let slot = self.rings + AVAIL + 4 + 2 * u64::from(self.avail % SIZE);
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.avail = self.avail.wrapping_add(1);
        let index = GuestAddress(self.rings + AVAIL + 2);
        self.memory.store(self.avail, index, Ordering::SeqCst).unwrap();
    }

    /// How many answers the daemon has given.
    fn used(&self) -> u16 {
        self.memory.load(GuestAddress(self.rings + USED + 2), Ordering::SeqCst).unwrap()
    }

    /// The driver begins again with empty rings.
    fn clear_rings(&self) {
        for at in [AVAIL, USED] {
            self.memory.write_slice(&[0; 0x1000], GuestAddress(self.rings + at)).unwrap();
        }
    }

    /// Waits for so many more answers. The heads, and the bytes written for each.
    fn wait(&mut self, count: u16) -> Vec<(u16, u32)> {
        let end = Instant::now() + SECONDS;
        let mut answers = Vec::new();
        while answers.len() < usize::from(count) {
            assert!(Instant::now() < end, "{} of {count} answers", answers.len());
            let used = self.used();
            while self.seen != used {
                let at = self.rings + USED + 4 + 8 * u64::from(self.seen % SIZE);
                let head: u32 = self.memory.read_obj(GuestAddress(at)).unwrap();
                let len = self.memory.read_obj(GuestAddress(at + 4)).unwrap();
                answers.push((head as u16, len));
                self.seen = self.seen.wrapping_add(1);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        answers
    }

    fn status(&self, number: u16) -> u8 {
        let at = DATA + u64::from(number) * STRETCH + STRETCH - 1;
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    fn data(&self, number: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let at = DATA + u64::from(number) * STRETCH + 64;
        self.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
        data
    }

    /// One request from begin to end: its status.
    fn ask(&mut self, kind: u32, sector: u64, data: Result<&[u8], u32>) -> u8 {
        let head = self.prepare(0, kind, sector, data);
        self.publish(head);
        self.kick.write(1).unwrap();
        assert_eq!(self.wait(1)[0].0, head);
        self.status(0)
    }
}

fn serve(rig: &Rig, volume: VolumeId) -> (VhostServer, PathBuf) {
    serve_bytes(rig, volume, &VolumeBytes::new(ORIGIN_BYTES))
}

fn serve_bytes(rig: &Rig, volume: VolumeId, bytes: &VolumeBytes) -> (VhostServer, PathBuf) {
    let path = rig.dir.path().join(format!("disk-{}.sock", volume.0));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let name = "the-name-of-the-disk-is-long".to_owned();
    let volume = VhostVolume { shard: rig.shard.clone(), volume, bytes: bytes.clone(), name };
    (VhostServer::start(listener, volume).unwrap(), path)
}

/// Waits until the administrator is told something. All of it.
fn told(rig: &Rig, of: &str) -> Vec<String> {
    let end = Instant::now() + SECONDS;
    while rig.seen.lock().unwrap().is_empty() {
        assert!(Instant::now() < end, "nobody was told of {of}");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::mem::take(&mut rig.seen.lock().unwrap())
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn a_guests_requests_reach_the_volume_and_come_back() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (_server, path) = serve(&rig, volume);
        let mut guest = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = guest.front.get_config(0, 60, flags, &[0; 60]).unwrap();
        assert_eq!(config[..8], (ORIGIN_BYTES / 512).to_le_bytes());
        guest.start(0);
        let data: Vec<u8> = (0..20_480_u32).map(|n| (n / 7) as u8).collect();
        assert_eq!(guest.ask(1, 9, Ok(&data)), 0);
        assert_eq!(guest.ask(4, 0, Err(0)), 0);
        assert_eq!(guest.ask(0, 9, Err(20_480)), 0);
        assert_eq!(guest.data(0, 20_480), data);
        assert_eq!(guest.ask(8, 0, Err(20)), 0);
        assert_eq!(guest.data(0, 20), b"the-name-of-the-disk");
        assert_eq!(guest.ask(13, 0, Ok(&range(16, 8, 1))), 0);
        assert_eq!(guest.ask(0, 16, Err(4096)), 0);
        assert_eq!(guest.data(0, 4096), vec![0; 4096]);
        assert_eq!(guest.ask(11, 0, Ok(&range(24, 8, 0))), 0);
        assert_eq!(guest.ask(0, 9, Err(3584)), 0);
        assert_eq!(guest.data(0, 3584), data[..3584]);
        // Many at once.
        for number in 0..20 {
            let head = guest.prepare(number, 1, u64::from(number) * 8, Ok(&[number as u8; 4096]));
            guest.publish(head);
        }
        guest.kick.write(1).unwrap();
        assert_eq!(guest.wait(20).len(), 20);
        for number in 0..20 {
            let head = guest.prepare(number, 0, u64::from(number) * 8, Err(4096));
            guest.publish(head);
        }
        guest.kick.write(1).unwrap();
        guest.wait(20);
        for number in 0..20 {
            assert_eq!((guest.status(number), guest.data(number, 4096)[77]), (0, number as u8));
        }
        // What cannot be done is answered, and the queue goes on.
        assert_eq!(guest.ask(77, 0, Err(0)), 2);
        assert_eq!(guest.ask(0, ORIGIN_BYTES / 512, Err(512)), 1);
        assert_eq!(guest.ask(1, ORIGIN_BYTES / 512 - 1, Ok(&[1; 1024])), 1);
        assert_eq!(guest.ask(0, 0, Err(100)), 1);
        assert_eq!(guest.ask(13, 0, Ok(&range(0, 8, 2))), 2);
        assert_eq!(guest.ask(11, 0, Ok(&range(0, 1 << 20, 0))), 1);
        assert_eq!(guest.ask(0, u64::MAX, Err(512)), 1);
        assert_eq!(guest.front.get_vring_base(0).unwrap(), u32::from(guest.avail));
    });
}

#[test]
fn more_than_is_taken_in_one_go_is_answered_after_one_kick() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let (_server, path) = serve(&rig, volume);
        let mut guest = Guest::connect(&path, memory(), FLUSH);
        guest.start(0);
        // A queue that was just begun is looked at without a kick: that is over after an answer.
        assert_eq!(guest.ask(8, 0, Err(20)), 0);
        std::thread::sleep(Duration::from_millis(100));
        assert!(guest.call.read().unwrap() > 0);
        // Names are answered at once: the ring would never be seen empty by who only fills it.
        for number in 0..80 {
            let head = guest.prepare(number, 8, 0, Err(20));
            guest.publish(head);
        }
        guest.kick.write(1).unwrap();
        guest.wait(80);
        // Without an event index each go tells of its answers once: others had their turn between.
        assert_eq!(guest.call.read().unwrap(), 2);
        assert!((0..80).all(|number| guest.status(number) == 0));
        // More data than may be under way: 40 reads of 4 MiB, all into the same memory.
        let (place, len) = (MEMORY_BYTES as u64 / 2, 4 << 20);
        for number in 0..40 {
            let head = guest.prepare(number, 0, 0, Err(4096));
            guest.describe(u64::from(head) + 1, place, len, 3, head + 2);
            guest.publish(head);
        }
        guest.kick.write(1).unwrap();
        assert!(guest.wait(40).iter().all(|answer| answer.1 == len + 1));
        assert!((0..40).all(|number| guest.status(number) == 0));
    });
}

#[test]
fn a_guests_requests_wait_for_memory_that_the_system_refuses() {
    if !is_alone("guest_disk::a_guests_requests_wait_for_memory_that_the_system_refuses") {
        return;
    }
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let (_server, path) = serve(&rig, volume);
    let mut guest = Guest::connect(&path, memory(), FLUSH);
    guest.start(0);
    let mut read = |left: Option<u64>, (count, len): (u16, u32)| {
        allow(left);
        for number in 0..count {
            let head = guest.prepare(number, 0, 0, Err(4096));
            guest.describe(u64::from(head) + 1, MEMORY_BYTES as u64 / 2, len, 3, head + 2);
            guest.publish(head);
        }
        guest.kick.write(1).unwrap();
        guest.wait(count);
        (0..count).map(|number| guest.status(number)).collect::<Vec<u8>>()
    };
    // The driver, and what else the first requests need.
    assert_eq!(read(None, (4, 4096)), [0; 4]);
    assert_eq!(read(Some(0), (1, 2 << 20)), [1], "nothing is under way that frees any");
    assert_eq!(read(Some(0), (4, 4096)), [0; 4], "that much is left");
    assert_eq!(read(Some(LEFT), (16, 4 << 20)), [0; 16], "some at a time");
    assert_eq!(read(None, (4, 4 << 20)), [0; 4]);
    drop(rig);
}

#[test]
fn a_guest_that_knows_of_no_volatile_cache_finds_its_writes_durable() {
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let flushes = |extra: u64| {
        let (_server, path) = serve(&rig, volume);
        let mut guest = Guest::connect(&path, memory(), extra);
        guest.start(0);
        let before = rig.shard.snapshot().unwrap().pool.cache_flushes;
        for sector in 0..5 {
            assert_eq!(guest.ask(1, sector * 8, Ok(&[1; 4096])), 0);
        }
        rig.shard.snapshot().unwrap().pool.cache_flushes - before
    };
    let (volatile, durable) = (flushes(FLUSH), flushes(0));
    assert!(volatile < 5, "{volatile} flushes for a guest that asks for those it needs");
    assert!(durable >= 5, "{durable} flushes for 5 writes, one after the other");
}

#[test]
fn requests_that_a_dead_daemon_took_are_done_by_the_next() {
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let (server, path) = serve(&rig, volume);
    let mut guest = Guest::connect(&path, memory(), FLUSH);
    let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
    let (told, file) = guest.front.get_inflight_fd(&wanted).unwrap();
    guest.front.set_inflight_fd(&told, std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    guest.start(0);
    assert_eq!(guest.ask(1, 0, Ok(&[1; 4096])), 0);
    let memory = guest.memory.clone();
    drop(guest);
    drop(server);
    // A daemon took two requests and was killed.
    let region = Region::map(file.try_clone().unwrap(), told.mmap_offset, 1, SIZE).unwrap();
    let mut log = region.queue(0, SIZE).unwrap();
    assert!(log.open(1).is_empty());
    let (server, path) = serve(&rig, volume);
    let mut guest = Guest::connect(&path, memory, FLUSH);
    guest.front.set_inflight_fd(&told, std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    (guest.avail, guest.seen) = (1, 1);
    for number in [1, 2] {
        let head = guest.prepare(number, 1, u64::from(number) * 8, Ok(&[9; 4096]));
        guest.publish(head);
        log.take(Head::new(head, SIZE).unwrap());
    }
    // The other side knows only what was answered.
    guest.start(1);
    guest.avail = 3;
    let mut heads: Vec<u16> = guest.wait(2).into_iter().map(|(head, _)| head).collect();
    heads.sort_unstable();
    assert_eq!(heads, [3, 6]);
    assert_eq!((guest.status(1), guest.status(2)), (0, 0));
    assert_eq!(guest.ask(0, 8, Err(8192)), 0);
    assert_eq!(guest.data(0, 8192), vec![9; 8192]);
    drop(server);
}

/// What listens for the daemon in a machine.
#[derive(Default)]
struct Listener {
    told: u32,
}

impl VhostUserFrontendReqHandlerMut for Listener {
    fn handle_config_change(&mut self) -> HandlerResult<u64> {
        self.told += 1;
        Ok(0)
    }
}

#[test]
fn a_machine_that_goes_on_is_told_of_another_size() {
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let sectors = |guest: &mut Guest| {
        let (_, config) =
            guest.front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
        u64::from_le_bytes(config[..8].try_into().unwrap())
    };
    let size = VolumeBytes::new(ORIGIN_BYTES / 2);
    for bytes in [ORIGIN_BYTES / 2, ORIGIN_BYTES] {
        size.grow(bytes);
        let (server, path) = serve_bytes(&rig, volume, &size);
        let mut guest = Guest::connect(&path, memory(), FLUSH);
        assert!(server.is_deaf());
        let listener = Arc::new(Mutex::new(Listener::default()));
        let mut channel = FrontendReqHandler::new(Arc::clone(&listener)).unwrap();
        guest.front.set_backend_request_fd(&channel.get_tx_raw_fd()).unwrap();
        let told = || listener.lock().unwrap().told;
        assert_eq!(told(), 0, "a machine that has not begun asks by itself");
        guest.start(0);
        let mut listen = |times: u32| {
            channel.handle_request().unwrap();
            assert_eq!(told(), times);
        };
        listen(1);
        assert_eq!(sectors(&mut guest), bytes / 512);
        assert!(!server.is_deaf());
        // The volume grows under a machine that runs.
        size.grow(bytes + 4096);
        server.announce();
        listen(2);
        assert_eq!(sectors(&mut guest), (bytes + 4096) / 512);
        // Who is told asks on the same connection, and requests go on.
        assert_eq!(guest.ask(1, 0, Ok(&[3; 4096])), 0);
    }
    // Who does not listen, or no longer, is served all the same.
    let (_server, path) = serve(&rig, volume);
    let mut guest = Guest::connect(&path, memory(), FLUSH);
    let channel = FrontendReqHandler::new(Arc::new(Mutex::new(Listener::default()))).unwrap();
    guest.front.set_backend_request_fd(&channel.get_tx_raw_fd()).unwrap();
    drop(channel);
    guest.start(0);
    assert_eq!(guest.ask(0, 0, Err(512)), 0);
    assert_eq!(guest.data(0, 512), vec![3; 512]);
}

#[test]
fn a_guest_that_breaks_the_rules_harms_itself_only() {
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let (_server, path) = serve(&rig, volume);
    let broken = |what: &str, spoil: &dyn Fn(&Guest) -> u16| {
        let mut guest = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
        guest.start(0);
        assert_eq!(guest.ask(1, 0, Ok(&[1; 512])), 0, "before {what}");
        rig.seen.lock().unwrap().clear();
        let head = spoil(&guest);
        guest.publish(head);
        guest.kick.write(1).unwrap();
        assert!(told(&rig, what)[0].contains("is broken"), "{what}");
    };
    broken("a loop", &|guest| {
        guest.describe(0, DATA, 16, 1, 1);
        guest.describe(1, DATA, 16, 1, 0);
        0
    });
    broken("a head outside", &|_| SIZE);
    broken("a wrong order", &|guest| {
        guest.describe(0, DATA, 16, 3, 1);
        guest.describe(1, DATA, 16, 0, 0);
        0
    });
    broken("no status", &|guest| {
        guest.describe(0, DATA, 16, 0, 0);
        0
    });
    broken("an indirect table outside", &|guest| {
        guest.describe(0, u64::MAX - 8, 48, 4, 0);
        0
    });
    broken("an indirect table in a table", &|guest| {
        guest.describe(0, DATA, 16, 4, 0);
        guest.memory.write_obj(DATA, GuestAddress(DATA)).unwrap();
        guest.memory.write_obj(16_u32, GuestAddress(DATA + 8)).unwrap();
        guest.memory.write_obj(4_u16, GuestAddress(DATA + 12)).unwrap();
        0
    });
    // Data outside of memory is an error of that request alone.
    let mut guest = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
    guest.start(0);
    let head = guest.prepare(0, 0, 0, Err(4096));
    guest.describe(1, u64::MAX - 100, 4096, 3, 2);
    guest.publish(head);
    guest.kick.write(1).unwrap();
    guest.wait(1);
    assert_eq!(guest.status(0), 1);
    assert_eq!(guest.ask(0, 0, Err(512)), 0);
    assert_eq!(guest.data(0, 512), vec![1; 512]);
    // A queue that does not lie in memory is refused when it is set up.
    guest.front.set_vring_enable(0, false).unwrap();
    let config = VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags: 0,
        desc_table_addr: USER + MEMORY_BYTES as u64 - 16,
        used_ring_addr: USER + USED,
        avail_ring_addr: USER + AVAIL,
        log_addr: None,
    };
    guest.front.set_vring_addr(0, &config).unwrap();
    let _ = guest.front.set_vring_enable(0, true);
    drop(guest);
    let mut guest = Guest::connect(&path, memory(), FLUSH);
    guest.start(0);
    assert_eq!(guest.ask(0, 0, Err(512)), 0, "the next connection is served");
}

/// Trial of November 2026, S2: the head that a guest put into its available ring named a state in
/// the in-flight log before anybody looked whether the queue has such a descriptor. Beyond the log
/// that ended the daemon, at each reconnect again; inside it another queue lost or got requests.
#[test]
fn a_head_beyond_its_queue_stops_that_queue_and_nothing_else() {
    let rig = rig(Backend::Auto);
    let (volume, other) = (rig.add("disk"), rig.add("other"));
    let (_other_server, path) = serve(&rig, other);
    let mut neighbour = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
    neighbour.start(0);
    // A queue takes 4,160 bytes of the log, and a state 16, behind a head of 16. In the log: just
    // behind this queue's states, another queue's first one, the last; behind the log: the first
    // and the last that can be said.
    for head in [SIZE, SIZE + 4, 518, 519, u16::MAX] {
        let (server, path) = serve(&rig, volume);
        let mut guest = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
        let wanted = VhostUserInflight::new(0, 0, 2, SIZE);
        let (log, file) = guest.front.get_inflight_fd(&wanted).unwrap();
        assert_eq!(log.mmap_size, 2 * 4160);
        guest.tell_log(&log, &file);
        let mut second = guest.second();
        guest.start(0);
        second.start(0);
        assert_eq!(guest.ask(1, 0, Ok(&[7; 512])), 0);
        assert_eq!(second.ask(1, 1, Ok(&[8; 512])), 0);
        let written = || {
            let mut bytes = vec![0; log.mmap_size as usize];
            file.read_exact_at(&mut bytes, log.mmap_offset).unwrap();
            bytes
        };
        let (before, sentence) = (written(), format!("volume {} is broken", volume.0));
        rig.seen.lock().unwrap().clear();
        guest.publish(head);
        guest.kick.write(1).unwrap();
        let notices = told(&rig, "a head beyond the queue");
        assert!(notices[0].contains(&sentence), "{head}: {notices:?}");
        assert!(written() == before, "something is written down of head {head}");
        assert_eq!((second.ask(0, 0, Err(1024)), neighbour.ask(0, 0, Err(512))), (0, 0));
        assert_eq!(second.data(0, 1024), [[7; 512], [8; 512]].concat());
        // The machine goes on, and connects again: to this daemon, and to its successor.
        let memory = guest.memory.clone();
        drop((guest, second));
        let (bases, mut server) = ([1, 2], Some(server));
        for fresh in [false, true] {
            if fresh {
                drop(server.take());
                server = Some(serve(&rig, volume).0);
            }
            let mut guest = Guest::connect(&path, memory.clone(), EVENT_IDX | FLUSH);
            guest.tell_log(&log, &file);
            guest.start(bases[0]);
            assert!(told(&rig, "the same head again")[0].contains(&sentence));
            let mut second = guest.second();
            second.start(bases[1] + u16::from(fresh));
            assert_eq!((second.ask(4, 0, Err(0)), neighbour.ask(0, 0, Err(512))), (0, 0));
            assert_eq!(guest.used(), bases[0]);
        }
        // Its driver begins again.
        let mut guest = Guest::connect(&path, memory, EVENT_IDX | FLUSH);
        let (log, file) = guest.front.get_inflight_fd(&wanted).unwrap();
        guest.tell_log(&log, &file);
        guest.clear_rings();
        guest.start(0);
        assert_eq!(guest.ask(0, 0, Err(512)), 0);
        assert_eq!(guest.data(0, 512), [7; 512]);
        assert_eq!(rig.seen.lock().unwrap().as_slice(), &[] as &[String]);
    }
}

/// An origin that takes seconds for a request, or for ever, does not hold up who ends the socket.
#[test]
fn a_socket_ends_although_the_origin_does_not_answer() {
    const BYTES: u64 = 4 << 30;
    let rig = rig(Backend::Auto);
    let file = rig.dir.path().join("slow");
    create_file(&file, BYTES).unwrap();
    let uri = format!(
        "spindle:{}?stroke=full&read-ahead=0&seek-track=900&seek=950&seek-full=1000",
        file.display()
    );
    let volume = rig.add_on("slow", &uri);
    let (server, path) = serve_bytes(&rig, volume, &VolumeBytes::new(BYTES));
    let mut guest = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
    let mut second = guest.second();
    guest.start(0);
    second.start(0);
    // A second each, one after the other.
    let sectors = BYTES / 512;
    for (queue, from) in [(&mut guest, 0), (&mut second, sectors / 2)] {
        for number in 0..8 {
            let head = queue.prepare(number, 0, from + u64::from(number) * sectors / 16, Err(512));
            queue.publish(head);
        }
        queue.kick.write(1).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    // The queues are taken back when their requests have ended, and nothing is broken.
    let (_server, path) = serve(&rig, volume);
    let mut again = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
    again.start(0);
    assert_eq!(again.ask(8, 0, Err(20)), 0);
}
