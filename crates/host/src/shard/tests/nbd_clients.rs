//! NBD clients that ask much, leave early or say nothing, and those beside them.

use super::*;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const GIB: u64 = 1 << 30;
/// Requests that one client may have under way.
const QUEUED: u64 = 1024;
/// What a read of a cached block may take beside others' large requests, on a machine that is busy
/// with other tests. It took seconds.
const LONGEST: Duration = Duration::from_millis(400);

fn limited(limits: ServerLimits) -> Rig {
    let dir = TempDir::new().unwrap();
    let mut rig = start(&dir, 1, Backend::Auto, &NbdServer::new(limits));
    rig.dir = dir;
    rig
}

/// Adds a volume on a file of a terabyte without any data.
fn add_vast(rig: &Rig, mode: Mode) -> VolumeId {
    let path = rig.dir.path().join("vast");
    std::fs::File::create_new(&path).unwrap().set_len(1 << 40).unwrap();
    rig.add_as("vast", path.to_str().unwrap(), mode)
}

fn queue(command: wire::Command, len: u64) -> Vec<u8> {
    let stretch = len.next_power_of_two();
    let head = |n| head(command, n, n * stretch % (512 * GIB), len as u32);
    (0..QUEUED).flat_map(head).collect()
}

/// Reads cached blocks one after the other while another client is served. The median and the
/// longest answer.
fn reads_beside(reader: &mut Client, time: Duration) -> (Duration, Duration) {
    let mut took = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let asked = Instant::now();
        reader.send(wire::Command::Read, 1, 600 * GIB, 4096, &[]);
        assert_eq!(reader.reply(), (0, 1));
        assert_eq!(reader.read(4096), [7; 4096]);
        took.push(asked.elapsed());
    }
    took.sort();
    (took[took.len() / 2], *took.last().unwrap())
}

/// A client with a cached block.
fn reader(path: &std::path::Path) -> Client {
    let mut reader = Client::connect(path, "vast");
    reader.0.set_read_timeout(Some(6 * SECONDS)).unwrap();
    reader.send(wire::Command::Write, 0, 600 * GIB, 4096, &[7; 4096]);
    assert_eq!(reader.reply(), (0, 0));
    reads_beside(&mut reader, Duration::from_millis(100));
    reader
}

/// One sent 28 KiB, and the others waited for minutes: 1,024 requests to zero 4 GiB each.
#[test]
fn who_asks_little_is_answered_soon_beside_one_who_zeroes_terabytes() {
    for (mode, command) in [
        (Mode::WriteBack, wire::Command::WriteZeroes),
        (Mode::WriteThrough, wire::Command::WriteZeroes),
        (Mode::WriteBack, wire::Command::Trim),
        (Mode::WriteBack, wire::Command::Cache),
    ] {
        let rig = rig(Backend::Auto);
        add_vast(&rig, mode);
        let path = rig.listen();
        let mut reader = reader(&path);
        let mut greedy = Client::connect(&path, "vast");
        greedy.0.write_all(&queue(command, 4 * GIB - 4096)).unwrap();
        let (median, longest) = reads_beside(&mut reader, Duration::from_secs(2));
        println!("{mode:?} {command:?}: median {median:?}, longest {longest:?}");
        assert!(longest < LONGEST, "{mode:?} {command:?}: {median:?}, {longest:?}");
        drop(greedy);
        rig.shard.stop(SECONDS).unwrap();
    }
}

/// Its parts were as small as zeroes that are written as data: all of them went to the cache
/// device, and from there home.
#[test]
fn a_long_range_of_zeroes_is_zeroed_at_the_origin() {
    let rig = rig(Backend::Auto);
    add_vast(&rig, Mode::WriteBack);
    let path = rig.listen();
    let mut client = reader(&path);
    let before = rig.shard.snapshot().unwrap().pool.written_bytes.dirty;
    client.send(wire::Command::WriteZeroes, 2, 600 * GIB, 256 << 20, &[]);
    assert_eq!(client.reply(), (0, 2));
    client.send(wire::Command::Read, 3, 600 * GIB, 4096, &[]);
    assert_eq!(client.reply(), (0, 3));
    assert_eq!(client.read(4096), [0; 4096]);
    let written = rig.shard.snapshot().unwrap().pool.written_bytes.dirty - before;
    assert!(written < 1 << 20, "{written} bytes for 256 MiB of zeroes");
    rig.shard.stop(SECONDS).unwrap();
}

#[test]
fn a_read_at_depth_1_has_its_turn_beside_128_requests_of_32_mib_of_zeroes() {
    let rig = rig(Backend::Auto);
    add_vast(&rig, Mode::WriteBack);
    let path = rig.listen();
    let mut reader = reader(&path);
    let mut greedy = Client::connect(&path, "vast");
    let requests = queue(wire::Command::WriteZeroes, 32 << 20);
    let (at_once, rest) = requests.split_at(128 * REQUEST_BYTES);
    greedy.0.write_all(at_once).unwrap();
    let rest = rest.to_vec();
    let zeroing = std::thread::spawn(move || {
        // As long as it is served.
        let mut goes_on = |request: &&[u8]| {
            let reply = greedy.0.read_exact(&mut [0; SIMPLE_REPLY_BYTES]);
            reply.and_then(|()| greedy.0.write_all(request)).is_ok()
        };
        rest.chunks(REQUEST_BYTES).take_while(|request| goes_on(request)).count()
    });
    let (median, longest) = reads_beside(&mut reader, Duration::from_secs(2));
    println!("median {median:?}, longest {longest:?}");
    assert!(longest < LONGEST, "{median:?}, {longest:?}");
    rig.shard.stop(SECONDS).unwrap();
    assert!(zeroing.join().unwrap() > 0, "it goes on too");
}

#[test]
fn a_read_at_depth_1_has_its_turn_beside_many_who_zero_and_read() {
    let rig = rig(Backend::Auto);
    add_vast(&rig, Mode::WriteBack);
    let path = rig.listen();
    let mut reader = reader(&path);
    let zeroes = queue(wire::Command::WriteZeroes, 4 * GIB - 4096);
    let reads = queue(wire::Command::Read, 1 << 20);
    let mut greedy: Vec<Client> = (0..48).map(|_| Client::connect(&path, "vast")).collect();
    for (n, it) in greedy.iter_mut().enumerate() {
        it.0.write_all(if n % 2 == 0 { &zeroes } else { &reads }).unwrap();
    }
    let (median, longest) = reads_beside(&mut reader, Duration::from_secs(2));
    println!("median {median:?}, longest {longest:?}");
    assert!(longest < LONGEST, "{median:?}, {longest:?}");
}

/// Negotiates chunks and both contexts.
fn with_contexts(path: &std::path::Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SECONDS)).unwrap();
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let queries = [string("base:allocation"), string("forebay:cache")].concat();
    let contexts = [string("vast"), 2_u32.to_be_bytes().to_vec(), queries].concat();
    let go = [string("vast"), vec![0, 0]].concat();
    let flags = Head::new().u32(CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
    stream.write_all(flags.bytes()).unwrap();
    for (number, data) in [
        (option::STRUCTURED_REPLY, &[][..]),
        (option::SET_META_CONTEXT, &contexts),
        (option::GO, &go),
    ] {
        stream.write_all(Head::option(number, data.len() as u32).bytes()).unwrap();
        stream.write_all(data).unwrap();
    }
    stream
}

#[test]
fn block_status_of_terabytes_does_not_hold_others_up() {
    let rig = rig(Backend::Auto);
    let volume = add_vast(&rig, Mode::WriteBack);
    let sparse = rig.server.exports.find("vast").unwrap();
    rig.server.exports.insert(Export {
        name: "vast".to_owned(),
        description: String::new(),
        pool: rig.shard.number(),
        volume,
        bytes: VolumeBytes::new(sparse.bytes.get()),
        read_only: false,
        sparse: true,
        fast_zero: AtomicBool::new(false),
        share: Share::default(),
    });
    let path = rig.listen();
    let mut reader = reader(&path);
    let mut curious: Vec<UnixStream> = (0..8).map(|_| with_contexts(&path)).collect();
    let requests = queue(wire::Command::BlockStatus, GIB);
    curious.iter_mut().for_each(|it| it.write_all(&requests).unwrap());
    let (median, longest) = reads_beside(&mut reader, Duration::from_secs(2));
    println!("median {median:?}, longest {longest:?}");
    assert!(longest < LONGEST, "{median:?}, {longest:?}");
    for it in &mut curious {
        it.read_exact(&mut [0; 4096]).expect("they are answered too");
    }
}

#[test]
fn what_a_client_asked_and_nobody_began_ends_with_it() {
    on_both(|backend| {
        let rig = rig(backend);
        add_vast(&rig, Mode::WriteBack);
        let path = rig.listen();
        let mut greedy = Client::connect(&path, "vast");
        greedy.0.write_all(&queue(wire::Command::WriteZeroes, 4 * GIB - 4096)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(rig.server.clients(), 1);
        drop(greedy);
        let start = Instant::now();
        while rig.server.clients() > 0 {
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(2), "requests of nobody after {waited:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// 512 connections that said nothing kept everybody out.
#[test]
fn who_says_nothing_makes_room_for_those_behind_him_and_bothers_no_other_door() {
    let rig = limited(ServerLimits { handshakes_max: 4, ..ServerLimits::default() });
    rig.add("disk");
    let path = rig.listen();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    rig.shard.listen(ListenerSocket::Tcp(socket), Tls::Off).unwrap();
    let mut patient = UnixStream::connect(&path).unwrap();
    patient.set_read_timeout(Some(SECONDS)).unwrap();
    patient.read_exact(&mut [0; 18]).expect("the greeting");
    let silent = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SECONDS)).unwrap();
        stream.read_exact(&mut [0; 18]).expect("the greeting");
        stream
    };
    let mut others: Vec<TcpStream> = (0..20).map(|_| silent()).collect();
    for gone in &mut others[..16] {
        assert_eq!(gone.read(&mut [0; 1]).unwrap_or(0), 0, "it made room");
    }
    for kept in &mut others[16..] {
        kept.set_nonblocking(true).unwrap();
        let waits = kept.read(&mut [0; 1]).unwrap_err();
        assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    }
    let mut honest = TcpStream::connect(address).unwrap();
    assert_eq!(open(&mut honest, "disk").unwrap().bytes, ORIGIN_BYTES);
    Client::connect(&path, "disk");
    // All the while the one on the unix socket had its place.
    let flags = Head::new().u32(CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
    patient.write_all(flags.bytes()).unwrap();
    patient.write_all(Head::option(option::ABORT, 0).bytes()).unwrap();
    patient.read_exact(&mut [0; 20]).expect("an answer");
}

#[test]
fn too_many_clients_of_a_volume_are_refused_with_the_reason() {
    let rig = limited(ServerLimits { clients_max: 2, ..ServerLimits::default() });
    rig.add("disk");
    let path = rig.listen();
    let mut kept = Client::connect(&path, "disk");
    let error = open(&mut UnixStream::connect(&path).unwrap(), "disk").unwrap_err();
    assert!(error.to_string().contains("as many clients as it may"), "{error}");
    kept.send(wire::Command::Write, 1, 0, 4096, &[7; 4096]);
    assert_eq!(kept.reply(), (0, 1));
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let mut limits = ServerLimits::default();
    limits.connection.handshake_ms = 100;
    let rig = limited(limits);
    rig.add("disk");
    let path = rig.listen();
    let mut kept = Client::connect(&path, "disk");
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.set_read_timeout(Some(SECONDS)).unwrap();
    silent.read_exact(&mut [0; 18]).expect("the greeting");
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    kept.send(wire::Command::Flush, 1, 0, 0, &[]);
    assert_eq!(kept.reply(), (0, 1), "who is through has no such limit");
}

/// A machine that lost its power says nothing more, and its client kept its place.
#[test]
fn a_tcp_client_that_says_nothing_is_asked_whether_it_is_there() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        rig.shard.listen(ListenerSocket::Tcp(socket), Tls::Off).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        open(&mut client, "disk").unwrap();
        let ends = (address.port(), client.local_addr().unwrap().port());
        let ends = format!("0100007F:{:04X} 0100007F:{:04X} ", ends.0, ends.1);
        let is_timed = || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let own = table.lines().find(|line| line.contains(&ends)).expect("our connection");
            // The kind of its timer, and when that is due in hundredths of a second.
            let timer = own.split_whitespace().nth(5).unwrap();
            let (kind, due) = timer.split_once(':').unwrap();
            let due = u64::from_str_radix(due, 16).unwrap();
            kind == "02" && due <= 6000
        };
        // Until the last answer is acknowledged the timer is another one.
        let later = || {
            std::thread::sleep(Duration::from_millis(10));
            is_timed()
        };
        assert!(std::iter::repeat_with(later).take(500).any(|timed| timed));
    });
}
