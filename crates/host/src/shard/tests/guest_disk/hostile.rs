//! Machines that mean harm: any descriptor, any message, any bytes in rings and in-flight log,
//! memory that is taken away. Beside each a neighbour on the same thread goes on.

use super::*;
use forebay_sys::file::memory_file;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Requests of the protocol.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const SET_INFLIGHT_FD: u32 = 32;
const REQUESTS: [u32; 25] =
    [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 21, 24, 25, 31, 32, 36, 37, 38, 39];
/// "Of this version", and "answer".
const PLAIN: u32 = 1;
const ANSWER: u32 = 9;
/// How long the random machines go on: seconds, or as many as `FOREBAY_HOSTILE_SECONDS` says.
fn random_time() -> Duration {
    let seconds = std::env::var("FOREBAY_HOSTILE_SECONDS").ok();
    seconds.map_or(Duration::from_secs(4), |it| Duration::from_secs(it.parse().expect("seconds")))
}

/// A connection on which anything can be said. Its memory is a file that is never mapped here: what
/// it does to it cannot hurt the test.
struct Machine {
    socket: UnixStream,
    memory: File,
    log: File,
    kick: EventFd,
    call: EventFd,
}

impl Machine {
    fn connect(path: &std::path::Path) -> Machine {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(SECONDS)).unwrap();
        let (memory, log) = (memory_file(MEMORY_BYTES as u64), memory_file(64 << 10));
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let (memory, log) = (memory.unwrap(), log.unwrap());
        Machine { socket, memory, log, kick: event(), call: event() }
    }

    /// Says something. Nobody may be there any more.
    fn say(&self, request: u32, flags: u32, payload: &[u8], files: &[RawFd]) {
        let head = [request, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        let bytes = [&head, payload].concat();
        let _ = self.socket.send_with_fds(&[&bytes[..]], files);
    }

    /// The payload of an answer, or `None` at the end of the connection.
    fn hear(&self) -> Option<Vec<u8>> {
        let mut head = [0; 12];
        (&self.socket).read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_ne_bytes(head[8..].try_into().unwrap()) as usize];
        (&self.socket).read_exact(&mut payload).ok()?;
        Some(payload)
    }

    /// Whether something was accepted.
    fn asks(&self, request: u32, payload: &[u8], files: &[RawFd]) -> bool {
        self.say(request, ANSWER, payload, files);
        self.hear().is_some_and(|answer| answer == [0; 8])
    }

    fn greet(&self, features: u64) -> bool {
        self.say(SET_OWNER, PLAIN, &[], &[]);
        self.say(GET_FEATURES, PLAIN, &[], &[]);
        let known = self.hear().is_some();
        self.say(SET_FEATURES, PLAIN, &(VERSION_1 | PROTOCOL | features).to_ne_bytes(), &[]);
        self.say(GET_PROTOCOL_FEATURES, PLAIN, &[], &[]);
        let Some(protocol) = self.hear().filter(|_| known) else { return false };
        self.asks(SET_PROTOCOL_FEATURES, &protocol, &[])
    }

    fn tell_memory(&self) -> bool {
        let table = numbers(&[1, 0, MEMORY_BYTES as u64, USER, 0]);
        self.asks(SET_MEM_TABLE, &table, &[self.memory.as_raw_fd()])
    }

    fn tell_log(&self, queues: u16, size: u16) -> bool {
        let sizes = u64::from(queues) | u64::from(size) << 16;
        let told = numbers(&[64 << 10, 0, sizes]);
        self.asks(SET_INFLIGHT_FD, &told, &[self.log.as_raw_fd()])
    }

    /// Sets up the first queue up to its kick.
    fn place(&self) -> bool {
        let rings = numbers(&[0, USER + TABLE, USER + USED, USER + AVAIL, 0]);
        self.asks(SET_VRING_NUM, &pair(0, SIZE.into()), &[])
            && self.asks(SET_VRING_BASE, &pair(0, 0), &[])
            && self.asks(SET_VRING_ADDR, &rings, &[])
            && self.asks(SET_VRING_CALL, &numbers(&[0]), &[self.call.as_raw_fd()])
    }

    fn start(&self) -> bool {
        self.asks(SET_VRING_KICK, &numbers(&[0]), &[self.kick.as_raw_fd()])
            && self.asks(SET_VRING_ENABLE, &pair(0, 1), &[])
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn pair(index: u32, value: u32) -> Vec<u8> {
    [index, value].map(u32::to_ne_bytes).concat()
}

/// Random numbers by a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// A number at which something may begin, end or overflow.
    fn edge(&mut self) -> u64 {
        let (within, any) = (self.below(MEMORY_BYTES as u64), self.next());
        self.of(&[0, 1, 4096, USER, USER + within, within, 1 << 63, u64::MAX - 4095, u64::MAX, any])
    }

    fn index(&mut self) -> u32 {
        self.of(&[0, 0, 0, 1, 15, 16, 255, u32::MAX])
    }

    /// What is said of the wrong thing, or wrongly.
    fn payload(&mut self, request: u32) -> Vec<u8> {
        match request {
            8 | 10 | 11 | 18 => {
                let value = self.of(&[0, 1, 2, 3, 255, 256, 1024, 1025, 65_535, 65_536, u32::MAX]);
                pair(self.index(), value)
            }
            9 => {
                let index = u64::from(self.index());
                numbers(&[index, self.edge(), self.edge(), self.edge(), 0])
            }
            5 => {
                let count = self.below(10);
                let regions: Vec<u64> = (0..count * 4).map(|_| self.edge()).collect();
                [numbers(&[count]), numbers(&regions)].concat()
            }
            37 | 38 => numbers(&[0, self.edge(), self.edge(), self.edge(), self.edge()]),
            12..=14 => numbers(&[self.of(&[0, 0, 1, 15, 0x100, 0x1ff, u64::MAX])]),
            31 | 32 => numbers(&[self.edge(), self.edge(), self.edge()]),
            2 | 16 => numbers(&[self.edge()]),
            _ => {
                let count = self.of(&[0, 0, 4, 8, 12, 100]);
                self.bytes(count)
            }
        }
    }

    /// A descriptor's 16 bytes.
    fn descriptor(&mut self) -> Vec<u8> {
        let address = self.edge();
        let lens = [0, 1, 16, 32, 48, 512, 4096, 65_536, u32::MAX, self.next() as u32];
        let (len, flags) = (self.of(&lens), self.of(&[0, 1, 1, 2, 3, 3, 4, 5, 7, u16::MAX]));
        let next = self.below(u64::from(SIZE) + 8) as u16;
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
            .concat()
    }

    /// A request whose shape is right, and whose contents may not be.
    fn request(&mut self, machine: &Machine) {
        let head = self.below(u64::from(SIZE) - 3) as u16;
        let kind = self.of(&[0_u32, 1, 4, 8, 11, 13, 99]);
        let sector = self.of(&[0, 8, ORIGIN_BYTES / 512 - 1, 1 << 55, u64::MAX]);
        let at = DATA + u64::from(head) * 32;
        machine.write(at, &[u64::from(kind), sector].map(u64::to_le_bytes).concat());
        let len = self.of(&[1_u32, 16, 20, 512, 4096, 1 << 20, 1 << 31]);
        let flags = self.of(&[1_u16, 3]);
        let data = if self.below(4) == 0 { self.edge() } else { DATA + (1 << 20) };
        let chain = [(at, 16, 1), (data, len, flags), (at + 16, 1, 2)];
        for (number, (address, len, flags)) in (head..).zip(chain) {
            let tail = [&flags.to_le_bytes()[..], &(number + 1).to_le_bytes()].concat();
            let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &tail].concat();
            machine.write(TABLE + u64::from(number) * 16, &bytes);
        }
    }
}

/// Says random things with random files.
fn say_anything(machine: &Machine, random: &mut Random) {
    let zeros = File::open("/dev/zero").unwrap();
    let files = [&machine.memory, &machine.log, &zeros].map(AsRawFd::as_raw_fd);
    let files = [&files[..], &[machine.kick.as_raw_fd(), machine.socket.as_raw_fd()]].concat();
    let _ = machine.socket.set_read_timeout(Some(Duration::from_millis(2)));
    for _ in 0..=random.below(12) {
        let request = random.of(&REQUESTS);
        let payload = random.payload(request);
        let count = if matches!(request, 5 | 12..=14 | 21 | 32 | 37) || random.below(9) == 0 {
            random.of(&[0, 1, 1, 1, 2, 8])
        } else {
            0
        };
        let files: Vec<RawFd> = (0..count).map(|_| random.of(&files)).collect();
        machine.say(request, random.of(&[1, 1, 9, 9, 0, u32::MAX]), &payload, &files);
        let _ = machine.hear();
    }
    let _ = machine.socket.set_read_timeout(Some(SECONDS));
}

/// Fills rings with random requests and kicks.
fn fill_rings(machine: &Machine, random: &mut Random) {
    for _ in 0..random.below(60) {
        let at = TABLE + random.below(u64::from(SIZE)) * 16;
        machine.write(at, &random.descriptor());
    }
    for _ in 0..random.below(20) {
        random.request(machine);
    }
    let heads: Vec<u8> = (0..SIZE)
        .flat_map(|_| {
            match random.below(40) {
                0 => random.next() as u16,
                _ => random.below(SIZE.into()) as u16,
            }
            .to_le_bytes()
        })
        .collect();
    machine.write(AVAIL + 4, &heads);
    let index = match random.below(4) {
        0 => random.next() as u16,
        _ => random.below(u64::from(SIZE) + 1) as u16,
    };
    machine.write(AVAIL + 2, &index.to_le_bytes());
    if random.below(5) == 0 {
        machine.write(USED + 2, &(random.next() as u16).to_le_bytes());
    }
    let _ = machine.kick.write(1);
}

/// One machine's life. Whether it came so far that a queue of it ran.
fn live(path: &std::path::Path, random: &mut Random) -> bool {
    let machine = Machine::connect(path);
    let features = random.of(&[0, EVENT_IDX, FLUSH, EVENT_IDX | FLUSH]);
    if !machine.greet(features) {
        return false;
    }
    if random.below(3) == 0 {
        say_anything(&machine, random);
    }
    if random.below(2) == 0 {
        // A log of a queue that was never ours, of the right shape or not.
        let len = random.of(&[64, 4160, 64 << 10]);
        let mut log = random.bytes(len);
        if random.below(2) == 0 {
            log[8..12].copy_from_slice(&[1, 0, 0, 1]);
            log[16..].iter_mut().step_by(16).for_each(|flag| *flag &= 1);
        }
        machine.log.write_all_at(&log, 0).unwrap();
        let _ = machine.tell_log(random.of(&[1, 2, 15]), random.of(&[SIZE, 128]));
    }
    if !machine.tell_memory() || !machine.place() || !machine.start() {
        return false;
    }
    for _ in 0..=random.below(5) {
        fill_rings(&machine, random);
        match random.below(12) {
            0 => machine.memory.set_len(random.below(MEMORY_BYTES as u64)).unwrap(),
            1 => machine.log.set_len(random.below(4096)).unwrap(),
            2 => drop(machine.tell_memory()),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(2));
        let _ = machine.kick.write(1);
    }
    if random.below(3) == 0 {
        say_anything(&machine, random);
    }
    true
}

/// The neighbour of a guest: its next request, and how long it took.
fn goes_on(neighbour: &mut Guest, byte: u8) -> Duration {
    let begin = Instant::now();
    assert_eq!(neighbour.ask(1, 8, Ok(&[byte; 4096])), 0);
    assert_eq!(neighbour.ask(0, 8, Err(4096)), 0);
    assert_eq!(neighbour.data(0, 4096), [byte; 4096]);
    begin.elapsed()
}

/// A pool with two disks, one of them served to an honest guest.
fn neighbours(rig: &Rig) -> (VolumeId, VhostServer, Guest) {
    let (volume, other) = (rig.add("disk"), rig.add("other"));
    let (server, path) = serve(rig, other);
    let mut neighbour = Guest::connect(&path, memory(), EVENT_IDX | FLUSH);
    neighbour.start(0);
    (volume, server, neighbour)
}

/// Trial of November 2026, S13: a `kick` of endless zeros kept the thread busy for ever, its own
/// socket as `kick` kept later connections out, and a full pipe as `call` stopped the pool.
#[test]
fn a_kick_or_call_that_is_no_eventfd_is_refused() {
    on_both(|backend| {
        let rig = rig(backend);
        let (volume, _server, mut neighbour) = neighbours(&rig);
        let (_server, path) = serve(&rig, volume);
        let (reader, full) = std::io::pipe().unwrap();
        forebay_sys::socket::set_nonblocking(full.as_raw_fd(), true).unwrap();
        while { &full }.write(&[0; 4096]).is_ok() {}
        forebay_sys::socket::set_nonblocking(full.as_raw_fd(), false).unwrap();
        let others: [OwnedFd; 5] = [
            File::options().read(true).write(true).open("/dev/zero").unwrap().into(),
            File::open("/").unwrap().into(),
            memory_file(4096).unwrap().into(),
            reader.into(),
            full.into(),
        ];
        for number in 0..=others.len() {
            for request in [SET_VRING_KICK, SET_VRING_CALL] {
                let machine = Machine::connect(&path);
                assert!(machine.greet(FLUSH) && machine.tell_memory() && machine.place());
                let own = machine.socket.as_raw_fd();
                let file = others.get(number).map_or(own, AsRawFd::as_raw_fd);
                assert!(!machine.asks(request, &numbers(&[0]), &[file]), "{number} as {request}");
                goes_on(&mut neighbour, number as u8);
            }
        }
        let mut guest = Guest::connect(&path, memory(), FLUSH);
        guest.start(0);
        assert_eq!(guest.ask(0, 0, Err(512)), 0);
    });
}

/// Half an hour of random machines ended with all of their disks out of reach: the daemon held the
/// other ends of connections that nobody else had any more.
#[test]
fn a_channel_cannot_keep_its_own_connection_open() {
    let rig = rig(Backend::Auto);
    let (volume, _server, _neighbour) = neighbours(&rig);
    let (_server, path) = serve(&rig, volume);
    for hidden in [false, true] {
        let machine = Machine::connect(&path);
        assert!(machine.greet(FLUSH));
        let (near, far) = UnixStream::pair().unwrap();
        near.send_with_fd(&[0_u8][..], machine.socket.as_raw_fd()).unwrap();
        let channel = if hidden { far.as_raw_fd() } else { machine.socket.as_raw_fd() };
        machine.say(SET_BACKEND_REQ_FD, PLAIN, &[], &[channel]);
        assert!(machine.greet(FLUSH), "it has been received");
        drop((machine, near, far));
        let mut guest = Guest::connect(&path, memory(), FLUSH);
        guest.start(0);
        assert_eq!(guest.ask(0, 0, Err(512)), 0, "{hidden}");
    }
}

/// Trial of November 2026, S13: each of these was SIGBUS, and the end of the daemon.
#[test]
fn memory_that_a_machine_takes_away_ends_its_queue_alone() {
    on_both(|backend| {
        let rig = rig(backend);
        let (volume, _server, mut neighbour) = neighbours(&rig);
        let (_server, path) = serve(&rig, volume);
        for cut in ["memory", "log", "both"] {
            let machine = Machine::connect(&path);
            assert!(machine.greet(FLUSH) && machine.tell_memory() && machine.tell_log(1, SIZE));
            assert!(machine.place() && machine.start());
            goes_on(&mut neighbour, 1);
            rig.seen.lock().unwrap().clear();
            let mut random = Random(7);
            (0..20).for_each(|_| random.request(&machine));
            if cut != "log" {
                machine.memory.set_len(0).unwrap();
            } else {
                machine.write(AVAIL + 2, &[5, 0]);
            }
            if cut != "memory" {
                machine.log.set_len(0).unwrap();
            }
            machine.kick.write(1).unwrap();
            let notices = told(&rig, cut);
            assert!(notices[0].contains("took memory away"), "{cut}: {notices:?}");
            goes_on(&mut neighbour, 2);
        }
        let mut guest = Guest::connect(&path, memory(), FLUSH);
        // Nobody can cut the log that the daemon makes.
        let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
        let (told, file) = guest.front.get_inflight_fd(&wanted).unwrap();
        assert!(file.set_len(0).is_err());
        guest.tell_log(&told, &file);
        guest.start(0);
        assert_eq!(guest.ask(0, 0, Err(512)), 0);
    });
}

/// Three machines that say and write anything, for a few seconds. The seed is the number of the
/// life; all of it is played again with it, but for the time between two threads.
#[test]
fn whatever_machines_say_and_write_their_neighbour_goes_on() {
    let rig = rig(Backend::Auto);
    let (volume, _server, mut neighbour) = neighbours(&rig);
    let victims = [volume, rig.add("second"), rig.add("third")];
    let served: Vec<(VhostServer, PathBuf)> =
        victims.iter().map(|&volume| serve(&rig, volume)).collect();
    let end = Instant::now() + random_time();
    let [lives, ran] = [0, 0].map(std::sync::atomic::AtomicU64::new);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for (_, path) in &served {
            scope.spawn(|| {
                while Instant::now() < end {
                    let seed = lives.fetch_add(1, Ordering::Relaxed);
                    let it_ran = live(path, &mut Random(seed));
                    ran.fetch_add(it_ran.into(), Ordering::Relaxed);
                }
            });
        }
        while Instant::now() < end {
            times.push(goes_on(&mut neighbour, times.len() as u8));
        }
    });
    times.sort_unstable();
    let (lives, ran, p99) = (lives.into_inner(), ran.into_inner(), times[times.len() * 99 / 100]);
    eprintln!("{ran} queues in {lives} lives; the neighbour: {} times, p99 {p99:?}", times.len());
    assert!(ran > 20 && ran > lives / 5, "{ran} queues ran in {lives} lives");
    assert!(p99 < Duration::from_millis(500), "{p99:?}");
    // Each of the disks still serves whoever keeps the rules.
    for (_, path) in &served {
        let mut guest = Guest::connect(path, memory(), FLUSH);
        guest.start(0);
        goes_on(&mut guest, 3);
    }
}
