use super::*;
use crate::device::{Access, Device, create_file};
use crate::frontend::VolumeBytes;
use crate::frontend::nbd::{Export, Share};
use crate::pool::{FormatOptions, format_pool, read_pool};
use forebay_engine::{Buf, IoError, Mode, RequestKind};
use forebay_nbd::client::open;
use forebay_nbd::wire::{
    self, CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, Head, Header, REQUEST_BYTES, SIMPLE_REPLY_BYTES,
    SimpleReply, option,
};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

const SECONDS: Duration = Duration::from_secs(10);
const ORIGIN_BYTES: u64 = 16 << 20;

struct Rig {
    dir: TempDir,
    server: Arc<NbdServer>,
    shard: ShardHandle,
    seen: Arc<Mutex<Vec<String>>>,
}

fn start(dir: &TempDir, number: u32, backend: Backend, server: &Arc<NbdServer>) -> Rig {
    let pool_path = dir.path().join(format!("cache{number}"));
    create_file(&pool_path, 32 << 20).unwrap();
    let device = Device::open(&pool_path, Access::Exclusive).unwrap();
    let options = FormatOptions { name: "p".to_owned(), ..FormatOptions::default() };
    format_pool(&[device], &options).unwrap();
    start_on(dir, pool_path, Vec::new(), number, backend, server)
}

fn start_on(
    dir: &TempDir,
    pool_path: PathBuf,
    origins: Vec<(VolumeId, Origin)>,
    number: u32,
    backend: Backend,
    server: &Arc<NbdServer>,
) -> Rig {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let shard = ShardHandle::start(ShardSettings {
        pool: read_pool(&[pool_path], Access::Exclusive).unwrap(),
        origins,
        state_dir: dir.path().to_owned(),
        ram_bytes: 1 << 20,
        witness: Some(Witness::default()),
        tuning: Tuning::default(),
        backend,
        number,
        server: Arc::clone(server),
        notices: Box::new(move |notice| sink.lock().unwrap().push(notice.to_string())),
    })
    .unwrap();
    shard.wait_open(SECONDS).unwrap();
    Rig { dir: TempDir::new().unwrap(), server: Arc::clone(server), shard, seen }
}

fn rig(backend: Backend) -> Rig {
    let dir = TempDir::new().unwrap();
    let server = NbdServer::new(ServerLimits::default());
    let mut rig = start(&dir, 1, backend, &server);
    rig.dir = dir;
    rig
}

impl Rig {
    /// Adds a volume on a new file and exports it.
    fn add(&self, name: &str) -> VolumeId {
        let path = self.dir.path().join(name);
        create_file(&path, ORIGIN_BYTES).unwrap();
        self.add_on(name, path.to_str().unwrap())
    }

    fn add_on(&self, name: &str, uri: &str) -> VolumeId {
        self.add_as(name, uri, Mode::WriteThrough)
    }

    fn add_as(&self, name: &str, uri: &str, mode: Mode) -> VolumeId {
        let origin = Origin::open(uri).unwrap();
        let spec = VolumeSpec {
            name: name.to_owned(),
            origin: uri.to_owned(),
            bytes: origin.bytes(),
            uuid: forebay_sys::random(),
            fingerprint: origin.fingerprint().encode(),
            mode,
            volatile_cache: origin.volatile_cache(),
            exact_flushes: false,
            stripe_blocks: origin.stripe_blocks(),
        };
        let bytes = origin.bytes();
        let reply = self.shard.add_volume(spec, origin, SECONDS).unwrap();
        let CommandReply::Added(volume) = reply else { panic!("{reply:?}") };
        self.server.exports.insert(Export {
            name: name.to_owned(),
            description: String::new(),
            pool: self.shard.number(),
            volume,
            bytes: VolumeBytes::new(bytes),
            read_only: false,
            sparse: false,
            fast_zero: AtomicBool::new(false),
            share: Share::default(),
        });
        volume
    }

    fn ask(&self, volume: VolumeId, kind: RequestKind, offset: u64, buf: Buf) -> Answer {
        let len = buf.len() as u64;
        let request = Request { volume, kind, offset, len, fua: false, buf };
        self.shard.submit(request).unwrap().recv_timeout(SECONDS).unwrap()
    }

    fn listen(&self) -> std::path::PathBuf {
        let path = self.dir.path().join("nbd.sock");
        let socket = ListenerSocket::Unix(UnixListener::bind(&path).unwrap());
        self.shard.listen(socket, Tls::Off).unwrap();
        path
    }
}

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.bytes_mut().fill(byte);
    buf
}

fn on_both(test: impl Fn(Backend)) {
    test(Backend::Auto);
    test(Backend::Threads);
}

/// A request as NBD sends it, without its data.
fn head(command: wire::Command, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let header = Header { flags: 0, command, cookie, offset, len: len.into() };
    Head::request(&header).bytes().to_vec()
}

/// A client that knows just enough of NBD.
struct Client(UnixStream);

impl Client {
    fn connect(path: &std::path::Path, export: &str) -> Client {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(SECONDS)).unwrap();
        open(&mut stream, export).unwrap();
        Client(stream)
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn send(&mut self, command: wire::Command, cookie: u64, offset: u64, len: u32, data: &[u8]) {
        let mut request = head(command, cookie, offset, len);
        request.extend(data);
        self.0.write_all(&request).unwrap();
    }

    /// The error and the cookie of the next reply.
    fn reply(&mut self) -> (u32, u64) {
        let mut head = [0; SIMPLE_REPLY_BYTES];
        self.0.read_exact(&mut head).unwrap();
        let reply = SimpleReply::decode(&head).unwrap();
        (reply.error, reply.cookie)
    }
}

#[test]
fn requests_of_threads_reach_the_origin_and_come_back() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        for n in 0..100_u64 {
            let answer = rig.ask(volume, RequestKind::Write, n * 8192, filled(4096, n as u8 + 1));
            assert_eq!(answer.result, Ok(()));
        }
        assert_eq!(rig.ask(volume, RequestKind::Flush, 0, Buf::empty()).result, Ok(()));
        let answer = rig.ask(volume, RequestKind::Read, 99 * 8192, Buf::zeroed(8192));
        assert_eq!(answer.buf.bytes()[..4096], [100; 4096]);
        assert_eq!(answer.buf.bytes()[4096..], [0; 4096]);
        let snapshot = rig.shard.snapshot().unwrap();
        assert_eq!(snapshot.volumes[0].view.name, "disk");
        assert_eq!(snapshot.io_uring, backend == Backend::Auto);
        rig.shard.stop(SECONDS).unwrap();
        let error = rig.shard.snapshot().unwrap_err().to_string();
        assert_eq!(error, "the pool is stopped");
        // The locks are gone with the shard.
        let file = Device::open(&rig.dir.path().join("disk"), Access::Exclusive).unwrap();
        let mut byte = forebay_engine::Buf::zeroed(4096);
        file.file().read_exact_at(byte.bytes_mut(), 8192).unwrap();
        Device::open(&rig.dir.path().join("cache1"), Access::Exclusive).unwrap();
    });
}

/// The whole way: dirty data stays in the pool over a stop and a start, is drained home, and the volume goes.
#[test]
fn a_write_back_volume_comes_back_dirty_and_drains() {
    on_both(|backend| {
        let rig = rig(backend);
        let path = rig.dir.path().join("disk");
        create_file(&path, ORIGIN_BYTES).unwrap();
        let uri = path.to_str().unwrap();
        let volume = rig.add_as("disk", uri, Mode::WriteBack);
        for n in 0..64_u64 {
            let buf = filled(4096, n as u8 + 1);
            assert_eq!(rig.ask(volume, RequestKind::Write, n * 4096, buf).result, Ok(()));
        }
        assert_eq!(rig.ask(volume, RequestKind::Flush, 0, Buf::empty()).result, Ok(()));
        let dirty = rig.shard.snapshot().unwrap().volumes[0].stats.dirty_blocks;
        assert_eq!(rig.shard.stop(SECONDS).unwrap(), CommandReply::Changed);
        assert!(dirty > 0, "write-back keeps blocks in the pool");

        let Rig { dir, server, .. } = rig;
        let origins = vec![(volume, Origin::open(uri).unwrap())];
        let mut rig = start_on(&dir, dir.path().join("cache1"), origins, 1, backend, &server);
        rig.dir = dir;
        let answer = rig.ask(volume, RequestKind::Read, 0, Buf::zeroed(64 * 4096));
        assert_eq!(answer.result, Ok(()));
        let firsts: Vec<u8> = answer.buf.bytes().iter().step_by(4096).copied().collect();
        assert_eq!(firsts, (1..=64).collect::<Vec<u8>>());
        let drained = rig.shard.command(Command::Drain(volume), SECONDS).unwrap();
        assert!(!matches!(drained, CommandReply::Failed(_)), "{drained:?}");
        assert_eq!(rig.shard.snapshot().unwrap().volumes[0].stats.dirty_blocks, 0);
        let removed = rig.shard.command(Command::RemoveVolume(volume), SECONDS).unwrap();
        assert_eq!(removed, CommandReply::Changed);
        // The origin was closed with the volume, and holds everything.
        let device = Device::open(&path, Access::Exclusive).unwrap();
        let mut buf = Buf::zeroed(64 * 4096);
        device.file().read_exact_at(buf.bytes_mut(), 0).unwrap();
        assert_eq!(buf.bytes(), answer.buf.bytes());
    });
}

#[test]
fn origins_that_are_no_files_answer_too() {
    on_both(|backend| {
        let rig = rig(backend);
        let path = rig.dir.path().join("platter");
        create_file(&path, 64 << 20).unwrap();
        let spindle = format!("spindle:{}?preset=nas-5400", path.display());
        for uri in ["ram:1M", &spindle] {
            let volume = rig.add_on(uri.split(':').next().unwrap(), uri);
            let offset = 512 << 10;
            let answer = rig.ask(volume, RequestKind::Write, offset, filled(4096, 5));
            assert_eq!(answer.result, Ok(()));
            let answer = rig.ask(volume, RequestKind::Read, offset, Buf::zeroed(4096));
            assert_eq!((answer.result, answer.buf.bytes()[0]), (Ok(()), 5));
        }
    });
}

#[test]
fn nbd_clients_are_served_in_a_pipeline() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let path = rig.listen();
        let mut client = Client::connect(&path, "disk");
        for n in 0..64 {
            client.send(wire::Command::Write, n, n * 4096, 4096, &[n as u8; 4096]);
        }
        let mut cookies: Vec<_> = (0..64).map(|_| client.reply()).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..64).map(|n| (0, n)).collect::<Vec<_>>());
        // More than fits a socket buffer, so that sends are cut short.
        for n in 0..64 {
            client.send(wire::Command::Read, n, n * 4096, 128 << 10, &[]);
        }
        for _ in 0..64 {
            let (error, cookie) = client.reply();
            assert_eq!(error, 0);
            let data = client.read(128 << 10);
            let expected =
                |at: usize| (cookie as usize + at < 64) as u8 * (cookie as u8 + at as u8);
            assert!((0..32).all(|at| data[at * 4096] == expected(at)), "read {cookie}");
        }
        client.send(wire::Command::Flush, 9, 0, 0, &[]);
        assert_eq!(client.reply(), (0, 9));
        assert_eq!(rig.server.clients(), 1);
        client.send(wire::Command::Disconnect, 0, 0, 0, &[]);
        assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0, "closed after a disconnect");
        let gone = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(5));
            rig.server.clients()
        });
        assert!(gone.take(1000).any(|clients| clients == 0));
    });
}

#[test]
fn a_client_of_another_pools_volume_is_handed_over() {
    on_both(|backend| {
        let first = rig(backend);
        let second_dir = TempDir::new().unwrap();
        let second = start(&second_dir, 2, backend, &first.server);
        first.add("one");
        let path = first.listen();
        second.add("two");
        let mut client = Client::connect(&path, "two");
        client.send(wire::Command::Write, 7, 0, 4096, &[9; 4096]);
        assert_eq!(client.reply(), (0, 7));
        client.send(wire::Command::Flush, 8, 0, 0, &[]);
        assert_eq!(client.reply(), (0, 8));
        assert_eq!(std::fs::read(second.dir.path().join("two")).unwrap()[..4096], [9; 4096]);
        assert_eq!(second.shard.snapshot().unwrap().clients, 1);
        assert_eq!(first.shard.snapshot().unwrap().clients, 0);
        second.shard.stop(SECONDS).unwrap();
        first.shard.stop(SECONDS).unwrap();
    });
}

#[test]
fn a_client_that_hangs_up_in_the_middle_leaves_the_shard_in_order() {
    on_both(|backend| {
        let rig = rig(backend);
        let volume = rig.add("disk");
        let path = rig.listen();
        for round in 0..20 {
            let mut client = Client::connect(&path, "disk");
            for n in 0..round {
                client.send(wire::Command::Read, n, 0, 1 << 20, &[]);
            }
            // Half a request, then nothing.
            client.0.write_all(&head(wire::Command::Read, 0, 0, 512)[..REQUEST_BYTES / 2]).unwrap();
            drop(client);
        }
        let answer = rig.ask(volume, RequestKind::Write, 0, filled(4096, 1));
        assert_eq!(answer.result, Ok(()));
        rig.shard.stop(SECONDS).unwrap();
        assert_eq!(rig.server.clients(), 0);
        let seen = rig.seen.lock().unwrap();
        assert!(seen.iter().all(|notice| notice.starts_with("the pool is open: ")), "{seen:?}");
    });
}

#[test]
fn a_client_that_does_not_read_its_answers_holds_up_only_itself() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let path = rig.listen();
        let mut slow = Client::connect(&path, "disk");
        const READS: u64 = 400;
        const BYTES: u32 = 1 << 20;
        // Far more than it may have under way: the rest waits in its socket. In one piece: the
        // kernel counts more for each small one, and 400 of them do not always fit.
        let requests: Vec<u8> =
            (0..READS).flat_map(|n| head(wire::Command::Read, n, 0, BYTES)).collect();
        slow.0.write_all(&requests).unwrap();
        let mut other = Client::connect(&path, "disk");
        for n in 0..20 {
            other.send(wire::Command::Write, n, n * 4096, 4096, &[7; 4096]);
            assert_eq!(other.reply(), (0, n));
        }
        let mut cookies = std::collections::BTreeSet::new();
        for _ in 0..READS {
            let (error, cookie) = slow.reply();
            assert_eq!(error, 0);
            slow.read(BYTES as usize);
            cookies.insert(cookie);
        }
        assert_eq!(cookies.len() as u64, READS);
    });
}

#[test]
fn a_client_that_does_not_read_its_answers_does_not_hold_up_the_stop_for_long() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let mut slow = Client::connect(&rig.listen(), "disk");
        let requests: Vec<u8> =
            (0..100).flat_map(|n| head(wire::Command::Read, n, 0, 1 << 20)).collect();
        slow.0.write_all(&requests).unwrap();
        assert_eq!(slow.reply().0, 0);
        let start = std::time::Instant::now();
        rig.shard.stop(SECONDS).unwrap();
        let waited = start.elapsed();
        // It is given time to take its answers, and no more.
        assert!(waited > Duration::from_secs(1), "the stop took {waited:?}");
        assert!(waited < Duration::from_secs(6), "the stop took {waited:?}");
        // What fits into its socket is there for it, and then the end.
        let mut rest = Vec::new();
        let _ = slow.0.read_to_end(&mut rest);
        assert!(rest.len() < 100 << 20, "it had not read {} bytes", rest.len());
    });
}

#[test]
fn tcp_clients_are_served_and_a_listener_can_be_closed() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener = rig.shard.listen(ListenerSocket::Tcp(socket), Tls::Off).unwrap();
        let greet = || {
            let mut client = std::net::TcpStream::connect(address)?;
            client.set_read_timeout(Some(SECONDS))?;
            let mut greeting = [0; 18];
            client.read_exact(&mut greeting).map(|()| (client, greeting))
        };
        let (mut kept, greeting) = greet().unwrap();
        assert_eq!(greeting[..8], *b"NBDMAGIC");
        rig.shard.unlisten(listener);
        let refused = || {
            std::thread::sleep(Duration::from_millis(5));
            greet().is_err()
        };
        assert!(std::iter::repeat_with(refused).take(1000).any(|refused| refused));
        // The one who is in stays in: fixed newstyle, then abort, which is acknowledged.
        let flags = Head::new().u32(CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
        kept.write_all(flags.bytes()).unwrap();
        kept.write_all(Head::option(option::ABORT, 0).bytes()).unwrap();
        let mut reply = [0; 20];
        kept.read_exact(&mut reply).unwrap();
        assert_eq!(reply[12..16], 1_u32.to_be_bytes());
    });
}

#[test]
fn a_pool_without_its_device_says_why_and_can_be_stopped() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cache");
    create_file(&path, 32 << 20).unwrap();
    let device = Device::open(&path, Access::Exclusive).unwrap();
    let options = FormatOptions { name: "fast".into(), ..FormatOptions::default() };
    format_pool(&[device], &options).unwrap();
    let mut pool = read_pool(&[path], Access::Exclusive).unwrap();
    pool.devices[0].device = Err("pulled out".to_owned());
    let shard = ShardHandle::start(ShardSettings {
        pool,
        origins: Vec::new(),
        state_dir: dir.path().to_owned(),
        ram_bytes: 1 << 20,
        witness: Some(Witness::default()),
        tuning: Tuning::default(),
        backend: Backend::Auto,
        number: 1,
        server: NbdServer::new(ServerLimits::default()),
        notices: Box::new(|_| {}),
    })
    .unwrap();
    let error = shard.wait_open(SECONDS).unwrap_err();
    assert!(matches!(error, ShardError::OpenFailed(_)), "{error}");
    shard.stop(SECONDS).unwrap();
}

#[test]
fn stopping_closes_clients_and_listeners() {
    on_both(|backend| {
        let rig = rig(backend);
        rig.add("disk");
        let path = rig.listen();
        let mut client = Client::connect(&path, "disk");
        rig.shard.stop(SECONDS).unwrap();
        assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0);
        assert!(UnixStream::connect(&path).is_err());
        let request = Request {
            volume: VolumeId(1),
            kind: RequestKind::Flush,
            offset: 0,
            len: 0,
            fua: false,
            buf: Buf::empty(),
        };
        assert!(matches!(rig.shard.submit(request), Err(ShardError::Stopped)));
    });
}

#[test]
fn a_request_for_a_volume_without_origin_is_gone() {
    let rig = rig(Backend::Auto);
    let answer = rig.ask(VolumeId(77), RequestKind::Flush, 0, Buf::empty());
    assert_eq!(answer.result, Err(IoError::Gone));
}

mod fuse_port;
mod growth;
mod guest_disk;
mod nbd_clients;
mod refused_memory;
mod ublk_port;

#[test]
fn a_panic_ends_its_pool_alone_and_what_was_acknowledged_is_there() {
    on_both(|backend| {
        let rig = rig(backend);
        let uri = rig.dir.path().join("disk");
        create_file(&uri, ORIGIN_BYTES).unwrap();
        let volume = rig.add_as("disk", uri.to_str().unwrap(), Mode::WriteBack);
        let other_dir = TempDir::new().unwrap();
        let other = start(&other_dir, 2, backend, &rig.server);
        let others = other.add("other");
        for n in 0..64_u64 {
            let answer = rig.ask(volume, RequestKind::Write, n * 4096, filled(4096, n as u8 + 1));
            assert_eq!(answer.result, Ok(()));
        }
        let write = |offset, buf: Buf| {
            let len = buf.len() as u64;
            let kind = RequestKind::Write;
            rig.shard.submit(Request { volume, kind, offset, len, fua: false, buf })
        };
        // Some of it is under way when the thread panics.
        let mut under_way: Vec<_> = (64..1064_u64)
            .map(|n| write(n * 4096, filled(4096, n as u8 | 1)).expect("it runs"))
            .collect();
        let mut words = Buf::zeroed(4096);
        words.bytes_mut()[..24].copy_from_slice(b"forebay: a planted panic");
        under_way.push(write(0, words).expect("it runs"));
        let answers: Vec<bool> =
            under_way.iter().map(|answer| answer.recv_timeout(SECONDS).is_ok()).collect();
        assert!(!answers[1000], "who panics answers nothing");
        assert_eq!(rig.shard.fell().as_deref(), Some("a planted panic"));
        let told = rig.shard.snapshot().unwrap_err().to_string();
        assert_eq!(told, "an internal error of the pool's thread: a planted panic");
        assert!(rig.shard.is_alive(SECONDS), "no reason to end the process");
        let end = Instant::now() + SECONDS;
        while !rig.shard.has_ended() {
            assert!(Instant::now() < end, "nothing hangs here");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(other.ask(others, RequestKind::Write, 0, filled(4096, 9)).result, Ok(()));
        assert_eq!(other.shard.fell(), None);
        let origins = vec![(volume, Origin::open(uri.to_str().unwrap()).unwrap())];
        let cache = rig.dir.path().join("cache1");
        let again = start_on(&rig.dir, cache, origins, 3, backend, &rig.server);
        let acknowledged = (0..64).chain((64..1064).filter(|n| answers[n - 64]));
        for n in acknowledged {
            let answer = again.ask(volume, RequestKind::Read, n as u64 * 4096, Buf::zeroed(4096));
            let byte = if n < 64 { n as u8 + 1 } else { n as u8 | 1 };
            assert_eq!(answer.buf.bytes(), [byte; 4096], "block {n}");
        }
    });
}
