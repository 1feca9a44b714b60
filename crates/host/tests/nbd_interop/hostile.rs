//! Clients that mean harm, or are cut to pieces by the network. No sockets: sessions are driven by
//! hand.

use crate::certificates::Certificates;
use crate::server::{Disk, answer, export};
use allocation_counter::measure;
use forebay_engine::BufPool;
use forebay_host::frontend::nbd::{
    Budget, ExportTable, Limits, Session, SessionEvent, Tls, TlsConfig,
};
use std::sync::Arc;

const DISK_BYTES: usize = 256 << 10;

/// Unused buffers that a test keeps.
const BUFS_BYTES: usize = 1 << 20;

/// A small generator: the tests are the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Limits small enough to be reached.
fn small_limits() -> Limits {
    Limits {
        option_bytes_max: 8 << 10,
        requests_max: 16,
        in_flight_bytes_max: 64 << 10,
        payload_bytes_max: 64 << 10,
        part_bytes_max: 16 << 10,
        zeroes_bytes_max: 32 << 10,
        dataless_bytes_max: 48 << 10,
        output_bytes_max: 4 << 10,
        status_extents_max: 8,
        status_slice_blocks: 5,
        ..Limits::default()
    }
}

/// A session, its disk and what came out of it.
struct Peer {
    session: Session,
    disk: Arc<Disk>,
    bufs: BufPool,
    budget: Arc<Budget>,
    events: Vec<SessionEvent>,
    out: Vec<u8>,
    /// Bytes of the budget that were taken at most.
    used_max: u64,
}

impl Peer {
    fn new(limits: Limits, tls: Tls) -> Peer {
        let exports = Arc::new(ExportTable::new());
        exports.insert(export("disk", DISK_BYTES as u64, false));
        let budget = Arc::new(Budget::new(256 << 20, 512));
        Peer {
            session: Session::new(exports, Arc::new(limits), Arc::clone(&budget), tls),
            disk: Disk::new(DISK_BYTES),
            bufs: BufPool::new(BUFS_BYTES),
            budget,
            events: Vec::new(),
            out: Vec::new(),
            used_max: 0,
        }
    }

    /// Gives the session `input` in pieces as `piece` says, answers what it asks, takes what it
    /// says.
    fn feed(&mut self, input: &[u8], mut piece: impl FnMut(usize) -> usize) {
        let mut rest = input;
        let mut idle = 0;
        loop {
            let len = if rest.is_empty() { 0 } else { piece(rest.len()).min(rest.len()) };
            let taken = self.session.receive(&rest[..len], &mut self.bufs, &mut self.events);
            assert!(taken == len || self.session.paused() || self.session.wants_close());
            rest = &rest[taken..];
            let quiet = self.events.is_empty() && !self.session.has_output();
            self.used_max = self.used_max.max(self.budget.used_bytes());
            while !self.events.is_empty() {
                // In order, and what follows from an answer first, so that overlapping requests
                // always come in the same order.
                let event = self.events.remove(0);
                let mut next = Vec::new();
                answer(event, &mut self.session, &self.disk, &mut self.bufs, &mut next);
                self.events.splice(0..0, next);
                self.used_max = self.used_max.max(self.budget.used_bytes());
            }
            while self.session.has_output() {
                let parcel = self.session.output(7, &mut self.bufs);
                let before = self.out.len();
                parcel.slices().for_each(|slice| self.out.extend_from_slice(slice));
                let len = self.out.len() - before;
                assert!(len > 0);
                self.session.sent(parcel, len, &mut self.bufs);
            }
            idle = if quiet && taken == 0 { idle + 1 } else { 0 };
            if self.session.wants_close() || rest.is_empty() && !self.session.paused() {
                return;
            }
            assert!(idle < 3, "the session is paused with nothing under way");
        }
    }

    /// The client hangs up: everything must be given back.
    fn end(mut self) -> Vec<u8> {
        self.session.disconnected(&mut self.bufs);
        assert_eq!(self.session.in_flight(), 0);
        drop(self.session);
        assert_eq!(self.budget.used_bytes(), 0);
        self.out
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn named(name: &str, tail: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes(), tail].concat()
}

fn request(extended: bool, flags: u16, command: u16, offset: u64, len: u64) -> Vec<u8> {
    request_as(offset ^ len, extended, flags, command, offset, len)
}

fn request_as(
    cookie: u64,
    extended: bool,
    flags: u16,
    command: u16,
    offset: u64,
    len: u64,
) -> Vec<u8> {
    let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    match extended {
        true => bytes.extend(len.to_be_bytes()),
        false => bytes.extend((len as u32).to_be_bytes()),
    }
    bytes
}

/// A client's side of a whole connection, without errors.
struct Script {
    extended: bool,
    structured: bool,
    handshake: Vec<u8>,
    requests: Vec<u8>,
    /// Bytes that each request reads.
    reads: Vec<u64>,
}

impl Script {
    fn new(dice: &mut Dice) -> Script {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        let (extended, structured) = (dice.below(2) == 0, dice.below(2) == 0);
        if dice.below(2) == 0 {
            bytes.extend(option(3, &[]));
        }
        if structured {
            bytes.extend(option(8, &[]));
        }
        if extended {
            bytes.extend(option(11, &[]));
        }
        if extended || structured {
            let mut queries = 2u32.to_be_bytes().to_vec();
            queries.extend(named("base:allocation", &[]));
            queries.extend(named("forebay:cache", &[]));
            bytes.extend(option(9, &named("disk", &0u32.to_be_bytes())));
            bytes.extend(option(10, &named("disk", &queries)));
        }
        bytes.extend(option(6, &named("disk", &[0, 2, 0, 1, 0, 3])));
        bytes.extend(option(7, &named("disk", &[0, 0])));
        let structured = structured || extended;
        let mut script = Script {
            extended,
            structured,
            handshake: bytes,
            requests: Vec::new(),
            reads: Vec::new(),
        };
        for _ in 0..dice.below(40) {
            script.push(dice);
        }
        script.requests.extend(request(extended, 0, 2, 0, 0));
        script
    }

    /// Adds a request.
    fn push(&mut self, dice: &mut Dice) {
        let offset = 512 * dice.below(400) as u64;
        let len = 512 * (1 + dice.below(100)) as u64;
        let command = [0, 1, 1, 3, 4, 5, 6, 7][dice.below(8)];
        let fua = u16::from(dice.below(4) == 0);
        let cookie = self.reads.len() as u64;
        let extended = self.extended;
        let ask = |flags, offset, len| request_as(cookie, extended, flags, command, offset, len);
        let bytes = &mut self.requests;
        match command {
            1 => {
                bytes.extend(ask(u16::from(extended) << 5 | fua, offset, len));
                bytes.extend((0..len).map(|n| (n * 7 + offset) as u8));
            }
            3 => bytes.extend(ask(0, 0, 0)),
            7 if extended && dice.below(2) == 0 => {
                bytes.extend(ask(1 << 5, offset, 12));
                bytes.extend(len.to_be_bytes());
                bytes.extend((1 + dice.below(2) as u32).to_be_bytes());
            }
            _ => bytes.extend(ask(fua, offset, len)),
        }
        self.reads.push(if command == 0 { len } else { 0 });
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.handshake[..], &self.requests[..]].concat()
    }

    /// Takes the replies to the requests apart, in the order of the requests.
    fn replies(&self, mut out: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut replies = Vec::new();
        while !out.is_empty() {
            let number = |at: usize, len: usize| {
                out[at..at + len].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
            };
            let cookie = number(8, 8);
            let len = match number(0, 4) {
                0x6744_6698 if self.structured => 16,
                0x6744_6698 if number(4, 4) == 0 => 16 + self.reads[cookie as usize],
                0x6744_6698 => 16,
                0x668e_33ef => 20 + number(16, 4),
                0x6e8a_278c => 32 + number(24, 8),
                other => panic!("magic {other:x}"),
            };
            assert_eq!(self.extended, number(0, 4) == 0x6e8a_278c);
            let (reply, rest) = out.split_at(len as usize);
            replies.push((cookie, reply.to_vec()));
            out = rest;
        }
        replies.sort();
        replies
    }
}

#[test]
fn any_cut_within_messages_gives_the_same_bytes() {
    for seed in 0..30 {
        let mut dice = Dice(seed);
        let mut bytes = Script::new(&mut dice).bytes();
        if seed % 2 == 1 {
            let at = dice.below(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        let mut single = Peer::new(small_limits(), Tls::Off);
        single.feed(&bytes, |_| 1);
        let disk = Arc::clone(&single.disk);
        let single = single.end();
        for _ in 0..3 {
            // Too short for the ends of two requests.
            let mut cut = Peer::new(small_limits(), Tls::Off);
            cut.feed(&bytes, |_| 1 + dice.below(28));
            assert!(*cut.disk.bytes.lock().unwrap() == *disk.bytes.lock().unwrap(), "seed {seed}");
            assert!(cut.end() == single, "seed {seed}");
        }
    }
}

#[test]
fn any_cut_gives_the_same_replies() {
    for seed in 0..30 {
        let mut dice = Dice(seed);
        let script = Script::new(&mut dice);
        let mut wanted = None;
        for pieces in [1, 100, 5000, usize::MAX] {
            // Parts that waited for others would come behind requests that overlap them.
            let limits = Limits { dataless_bytes_max: 64 << 20, ..small_limits() };
            let mut peer = Peer::new(limits, Tls::Off);
            peer.feed(&script.handshake, |len| len.min(pieces));
            let greeted = peer.out.len();
            peer.feed(&script.requests, |len| len.min(pieces));
            assert!(peer.session.wants_close());
            let disk = Arc::clone(&peer.disk);
            let out = peer.end();
            let replies = script.replies(&out[greeted..]);
            let answered = |cookie| replies.iter().any(|(answered, _)| *answered == cookie);
            assert!((0..script.reads.len() as u64).all(answered), "seed {seed}");
            let disk = disk.bytes.lock().unwrap().clone();
            let got = (out[..greeted].to_vec(), replies, disk);
            assert!(*wanted.get_or_insert_with(|| got.clone()) == got, "seed {seed}, {pieces}");
        }
    }
}

#[test]
fn mutated_sessions_neither_panic_nor_hold_more_than_the_limit() {
    let limits = small_limits();
    let allowed = limits.in_flight_bytes_max + 2 * limits.payload_bytes_max;
    for seed in 0..3000 {
        let mut dice = Dice(seed);
        let mut bytes = Script::new(&mut dice).bytes();
        for _ in 0..1 + dice.below(6) {
            let at = dice.below(bytes.len());
            match dice.below(4) {
                0 => bytes[at] = dice.next() as u8,
                1 => bytes[at] = [0, 0xff, 0x7f, 0x80][dice.below(4)],
                2 => {
                    let end = (at + dice.below(64)).min(bytes.len());
                    bytes.drain(at..end);
                }
                _ => {
                    let end = (at + dice.below(64)).min(bytes.len());
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        let mut used_max = 0;
        let peak = measure(|| {
            let mut peer = Peer::new(limits.clone(), Tls::Off);
            peer.feed(&bytes, |len| 1 + dice.below(len));
            used_max = peer.used_max;
            peer.end();
        })
        .bytes_max;
        assert!(used_max <= allowed, "seed {seed}: {used_max} bytes");
        // The heap saw no more than that, besides the disk, the pool's spare buffers, what the
        // test itself collects, and the session's small things.
        let around = DISK_BYTES as u64 + BUFS_BYTES as u64 + (6 << 20);
        assert!(peak <= allowed + around, "seed {seed}: {peak} bytes of heap");
    }
}

#[test]
fn floods_of_requests_without_data_hold_little_memory() {
    // Each would make the server work, wait or answer; the client reads nothing.
    let status = request(true, 0, 7, 0, DISK_BYTES as u64);
    let floods = [
        request(true, 0, 3, 0, 0),
        request(true, 0, 4, 0, DISK_BYTES as u64),
        request(true, 0, 0, 0, 64 << 10),
        request(true, 0, 0, 0, 1 << 40),
        request(true, 0, 99, 0, 1 << 40),
        status,
    ];
    let limits = Limits { in_flight_bytes_max: 1 << 20, ..Limits::default() };
    for flood in floods {
        let mut peer = Peer::new(limits.clone(), Tls::Off);
        let mut queries = 2u32.to_be_bytes().to_vec();
        queries.extend(named("base:allocation", &[]));
        queries.extend(named("forebay:cache", &[]));
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(option(11, &[]));
        bytes.extend(option(10, &named("disk", &queries)));
        bytes.extend(option(7, &named("disk", &[0, 0])));
        peer.feed(&bytes, |len| len);
        let flood = flood.repeat(20_000);
        let mut taken = 0;
        let peak = measure(|| {
            // First nothing is answered, then nothing is read.
            for _ in 0..100 {
                taken += peer.session.receive(&flood[taken..], &mut peer.bufs, &mut peer.events);
            }
            for _ in 0..10_000 {
                let Some(event) = peer.events.pop() else { break };
                answer(event, &mut peer.session, &peer.disk, &mut peer.bufs, &mut peer.events);
                taken += peer.session.receive(&flood[taken..], &mut peer.bufs, &mut peer.events);
            }
        })
        .bytes_max;
        assert!(peer.session.paused());
        assert!(taken < flood.len());
        assert!(peak < 5 << 20, "{peak} bytes");
        peer.end();
    }
}

#[test]
fn requests_of_a_warm_session_allocate_nothing() {
    for extended in [false, true] {
        let mut peer = Peer::new(Limits::default(), Tls::Off);
        let mut bytes = 3u32.to_be_bytes().to_vec();
        if extended {
            bytes.extend(option(11, &[]));
        }
        bytes.extend(option(7, &named("disk", &[0, 0])));
        peer.feed(&bytes, |len| len);
        let mut batch = Vec::new();
        for n in 0..32 {
            batch.extend(request(extended, u16::from(extended) << 5, 1, n * 4096, 4096));
            batch.extend([n as u8; 4096]);
            batch.extend(request(extended, 0, 0, n * 4096, 4096));
            batch.extend(request(extended, 0, 4, n * 4096, 4096));
        }
        batch.extend(request(extended, 0, 3, 0, 0));
        let mut round = || {
            let taken = peer.session.receive(&batch, &mut peer.bufs, &mut peer.events);
            assert_eq!(taken, batch.len());
            while let Some(event) = peer.events.pop() {
                answer(event, &mut peer.session, &peer.disk, &mut peer.bufs, &mut peer.events);
            }
            while peer.session.has_output() {
                let parcel = peer.session.output(256, &mut peer.bufs);
                let len = parcel.slices().map(<[u8]>::len).sum();
                peer.session.sent(parcel, len, &mut peer.bufs);
            }
        };
        round();
        round();
        assert_eq!(measure(|| (0..100).for_each(|_| round())).count_total, 0);
    }
}

#[test]
fn noise_is_hung_up_on() {
    for seed in 0..3000 {
        let mut dice = Dice(seed);
        let mut bytes: Vec<u8> = (0..dice.below(3000)).map(|_| dice.next() as u8).collect();
        if seed % 2 == 0 {
            bytes.splice(0..0, 3u32.to_be_bytes());
        }
        let mut peer = Peer::new(small_limits(), Tls::Off);
        peer.feed(&bytes, |len| len);
        assert!(bytes.len() < 20 || peer.session.wants_close(), "seed {seed}");
        peer.end();
    }
}

#[test]
fn a_client_that_does_not_read_stops_being_read() {
    let limits = small_limits();
    let mut peer = Peer::new(limits.clone(), Tls::Off);
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option(7, &named("disk", &[0, 0])));
    peer.feed(&bytes, |len| len);
    let reads = request(false, 0, 0, 0, 16 << 10).repeat(1000);
    let mut taken = 0;
    // Answers are made, and nobody takes them.
    for _ in 0..1000 {
        taken += peer.session.receive(&reads[taken..], &mut peer.bufs, &mut peer.events);
        while let Some(event) = peer.events.pop() {
            answer(event, &mut peer.session, &peer.disk, &mut peer.bufs, &mut peer.events);
        }
    }
    assert!(peer.session.paused());
    assert!(taken < reads.len() / 100, "{taken}");
    assert!(peer.budget.used_bytes() <= limits.in_flight_bytes_max);
    // It reads after all: everything is answered.
    let slow = Arc::clone(&peer.disk);
    peer.feed(&reads[taken..], |len| len);
    assert_eq!(slow.counts().reads, 1000);
    peer.end();
}

#[test]
fn headers_of_large_writes_take_no_memory() {
    let mut peer = Peer::new(small_limits(), Tls::Off);
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option(7, &named("disk", &[0, 0])));
    bytes.extend(request(false, 0, 1, 0, 64 << 10));
    peer.feed(&bytes, |len| len);
    assert_eq!(peer.budget.used_bytes(), 0);
    peer.feed(&[1], |len| len);
    assert_eq!(peer.budget.used_bytes(), 16 << 10);
    peer.end();
}

#[test]
fn what_is_sent_in_the_open_after_starttls_is_never_read_as_options() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path());
    let config = TlsConfig::load(
        &certificates.path("server-cert.pem"),
        &certificates.path("server-key.pem"),
        None,
    )
    .unwrap();
    for pieces in [1, 7, 1000] {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(option(3, &[]));
        bytes.extend(option(5, &[]));
        bytes.extend(option(3, &[]));
        bytes.extend(option(7, &named("disk", &[0, 0])));
        let mut peer = Peer::new(small_limits(), Tls::Require(config.clone()));
        peer.feed(&bytes, |_| pieces);
        assert!(peer.session.wants_close());
        assert!(peer.session.export().is_none());
        let out = peer.end();
        // The list is refused, TLS is agreed to, and an alert (21) ends it.
        let replies = out.windows(8).filter(|w| *w == 0x0003_e889_0455_65a9u64.to_be_bytes());
        assert_eq!(replies.count(), 2);
        assert!(!out.windows(4).any(|w| w == b"disk"));
        let starttls_ack = 18 + 20 + "this server wants TLS first".len() + 20;
        assert_eq!(out[starttls_ack], 21, "{out:?}");
    }
}

#[test]
fn tls_records_of_noise_are_hung_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path());
    let config = TlsConfig::load(
        &certificates.path("server-cert.pem"),
        &certificates.path("server-key.pem"),
        None,
    )
    .unwrap();
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(option(5, &[]));
        // Records with a plausible header and any content.
        for _ in 0..1 + dice.below(5) {
            let len = dice.below(600);
            bytes.extend([20 + dice.below(5) as u8, 3, 1 + dice.below(3) as u8]);
            bytes.extend((len as u16).to_be_bytes());
            bytes.extend((0..len).map(|_| dice.next() as u8));
        }
        let mut peer = Peer::new(small_limits(), Tls::On(config.clone()));
        peer.feed(&bytes, |len| 1 + dice.below(len));
        assert!(peer.session.in_handshake());
        peer.end();
    }
}
