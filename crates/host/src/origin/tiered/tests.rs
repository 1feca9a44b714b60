use super::*;
use crate::device::create_file;
use crate::driver::{Arrival, Backend, Driver};
use crate::executor::Executor;
use crate::notice::Notices;
use crate::origin::Origin;
use forebay_engine::{Buf, Completion, Effect as Wanted, IoError, Target, VolumeId};
use forebay_sys::waker::Waker;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const VOLUME: VolumeId = VolumeId(1);
const MIB: u64 = 1 << 20;

/// An executor with one tiered origin.
struct Rig {
    driver: Driver,
    executor: Executor,
    notices: Notices,
    start: Instant,
    next: u64,
}

fn files(dir: &TempDir, mebibytes: &[u64]) -> Vec<String> {
    let make = |(number, size): (usize, &u64)| {
        let path = dir.path().join(format!("member{number}"));
        create_file(&path, size * MIB).unwrap();
        path.to_str().unwrap().to_owned()
    };
    mebibytes.iter().enumerate().map(make).collect()
}

fn tiers(uris: &[String]) -> Vec<NewTier> {
    let member = |uri: &String| match uri.as_str() {
        "memory" => Member::of_memory(Member::memory(12 * MIB).unwrap().as_fd()).unwrap(),
        path => Member::open(path).unwrap(),
    };
    let tier = |uri: &String| NewTier { members: vec![(member(uri), 100)] };
    uris.iter().map(tier).collect()
}

fn spec(bytes: Option<u64>) -> NewTiered {
    NewTiered { name: "scratch".into(), bytes, overcommit: false }
}

fn made(spec: &NewTiered, uris: &[String], tuning: Tuning) -> Tiered {
    let mut made = Planned::of(spec, tiers(uris)).unwrap().make(tuning).unwrap();
    made.move_on();
    made
}

fn again(uris: &[String]) -> Tiered {
    let members = uris.iter().map(|uri| Member::open(uri).unwrap()).collect();
    let mut opened = Tiered::open(members, None, Tuning::default()).unwrap();
    opened.move_on();
    opened
}

/// What `--use` leaves of a device is trimmed once, when the set is made, and not what is used.
#[test]
fn what_of_a_device_is_not_used_is_given_back() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[40]);
    let path = Path::new(&uris[0]);
    std::fs::write(path, vec![7; 40 << 20]).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
    let allocated = || std::fs::metadata(path).unwrap().blocks() * 512;
    assert!(allocated() >= 40 * MIB, "{}", allocated());
    let member = Member::open(&uris[0]).unwrap();
    assert!(member.unused(100).is_none());
    let set = vec![NewTier { members: vec![(member, 50)] }];
    let planned = Planned::of(&spec(None), set).unwrap();
    let unused = planned.unused();
    assert!(allocated() >= 40 * MIB, "a plan changes nothing");
    drop(planned.make(Tuning::default()).unwrap());
    let texts: Vec<String> = unused.iter().map(Unused::to_string).collect();
    assert_eq!(texts, [format!("the end of {} (20M)", path.display())]);
    unused.into_iter().for_each(|it| it.give_back().unwrap());
    assert!((20 * MIB..21 * MIB).contains(&allocated()), "{}", allocated());
    let content = std::fs::read(path).unwrap();
    assert!(content[20 << 20..].iter().all(|&byte| byte == 0));
    assert_eq!(content[(20 << 20) - 1], 7);
}

/// One bad sector in a superblock refused the device, and with it the volume, though the other copy
/// was there.
#[test]
fn a_member_of_which_one_superblock_cannot_be_read_is_known() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[12, 12]);
    drop(made(&spec(None), &uris, Tuning::default()));
    let member = Member::open(&uris[0]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&uris[0]).unwrap();
    // What is behind the end cannot be read.
    file.set_len(64 << 10).unwrap();
    assert!(member.superblock().unwrap().is_some());
    file.set_len(0).unwrap();
    assert!(matches!(member.superblock(), Err(TieredError::Read { .. })));
}

/// What was shown of a device that did not answer stood still while nothing else happened.
#[test]
fn how_long_a_member_has_not_answered_grows() {
    const SECOND: Time = 1_000_000_000;
    let dir = TempDir::new().unwrap();
    let mut tiered = made(&spec(None), &files(&dir, &[12, 12]), Tuning::default());
    let mut wanted = Vec::new();
    tiered.settle(0, &mut wanted);
    wanted.clear();
    tiered.submit(OpId(1), OriginIo::Write { offset: 0, buf: Buf::zeroed(4096) }, SECOND);
    tiered.settle(SECOND, &mut wanted);
    assert!(wanted.iter().any(|it| matches!(it, Effect::Write { .. })), "{wanted:?}");
    // Nothing ends any more.
    let waits = |tiered: &Tiered, now| {
        let view = tiered.snapshot(now).view;
        view.members.iter().map(|it| it.waits_ns).max().unwrap()
    };
    for second in 2..20 {
        let now = second * SECOND;
        assert!(tiered.next_due().is_some_and(|due| due <= now), "{second}");
        tiered.poll(now);
        tiered.settle(now, &mut wanted);
        assert!(waits(&tiered, now) >= (second - 1) * SECOND, "{second}");
        let later = waits(&tiered, now + SECOND / 2);
        assert_eq!(later, waits(&tiered, now) + SECOND / 2);
    }
}

impl Rig {
    fn new(dir: &TempDir, tiered: Tiered, backend: Backend) -> Rig {
        let waker = Waker::new().unwrap();
        let (mut driver, _) = Driver::new(backend, &waker).unwrap();
        let origins = BTreeMap::from([(VOLUME, Origin::Tiered(Box::new(tiered)))]);
        let state = (dir.path(), &[1; 16]);
        let executor = Executor::new(Vec::new(), origins, state, &mut driver, waker);
        let notices = Notices::new(Box::new(|_| {}));
        Rig { driver, executor, notices, start: Instant::now(), next: 0 }
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }

    fn op(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// Starts effects and waits for all. Completions are sorted by op.
    fn run(&mut self, effects: Vec<Wanted>) -> Vec<Completion> {
        let wanted = effects.len();
        for effect in effects {
            let now = self.now();
            self.executor.start(&mut self.driver, now, effect);
        }
        let mut done = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while done.len() < wanted {
            assert!(Instant::now() < end, "only {} of {wanted} ended", done.len());
            self.pass(&mut done);
        }
        done.sort_by_key(|(op, _)| *op);
        done.into_iter().map(|(_, completion)| completion).collect()
    }

    fn pass(&mut self, done: &mut Vec<(OpId, Completion)>) {
        let mut arrivals = Vec::new();
        self.driver.wait(Some(Duration::from_millis(1)), &mut arrivals).unwrap();
        let now = self.now();
        for arrival in arrivals {
            if let Arrival::Io(slot, result, buf) = arrival {
                let (executor, driver) = (&mut self.executor, &mut self.driver);
                executor.arrived(driver, now, (slot, result, buf), &mut self.notices);
            }
        }
        self.executor.collect(&mut self.driver, now, done, &mut self.notices);
    }

    fn write(&mut self, offset: u64, len: usize, byte: u8) -> Wanted {
        let mut buf = Buf::zeroed(len);
        buf.bytes_mut().fill(byte);
        Wanted::Write { op: self.op(), target: Target::Origin(VOLUME), offset, buf }
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let (op, buf) = (self.op(), Buf::zeroed(len));
        let read = Wanted::Read { op, target: Target::Origin(VOLUME), offset, buf };
        let done = self.run(vec![read]).remove(0);
        done.result.unwrap();
        done.buf.bytes().to_vec()
    }

    fn flush(&mut self) {
        let op = self.op();
        let done = self.run(vec![Wanted::Flush { op, target: Target::Origin(VOLUME) }]).remove(0);
        done.result.unwrap();
    }

    fn tiered(&mut self) -> &Tiered {
        self.executor.tiered(VOLUME).unwrap()
    }
}

fn fill_and_look(backend: Backend) {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[16, 48]);
    let tiered = made(&spec(None), &uris, Tuning::default());
    let mebibytes = tiered.bytes() / MIB;
    assert!((40..64).contains(&mebibytes), "{mebibytes}");
    let mut rig = Rig::new(&dir, tiered, backend);
    let used = 30;
    let writes = (0..used * 4).map(|n| rig.write(n * MIB / 4, 256 << 10, (n % 251) as u8 + 1));
    let writes = writes.collect::<Vec<_>>();
    for done in rig.run(writes) {
        done.result.unwrap();
    }
    rig.flush();
    for n in [0, 1, 4 * used - 1] {
        assert_eq!(rig.read(n * MIB / 4 + 512, 4096), vec![(n % 251) as u8 + 1; 4096]);
    }
    assert_eq!(rig.read(used * MIB, 8192), vec![0; 8192]);
    // The fast tier was full, and is given room again by what moves.
    let end = Instant::now() + Duration::from_secs(20);
    while rig.tiered().tiers().free_slots(MemberId(0)) == 0 {
        assert!(Instant::now() < end, "nothing moves");
        rig.pass(&mut Vec::new());
    }
    drop(rig);
    let mut rig = Rig::new(&dir, again(&uris), backend);
    for n in 0..used * 4 {
        assert_eq!(rig.read(n * MIB / 4, 512), vec![(n % 251) as u8 + 1; 512]);
    }
}

#[test]
fn what_is_written_stays_where_the_ring_does_it() {
    fill_and_look(Backend::Auto);
}

#[test]
fn what_is_written_stays_where_threads_do_it() {
    fill_and_look(Backend::Threads);
}

#[test]
fn ram_and_a_modelled_disk_are_tiers_too() {
    let dir = TempDir::new().unwrap();
    let disk = files(&dir, &[32]).remove(0);
    let uris = ["memory".to_owned(), format!("spindle:{disk}?preset=nas-5400")];
    let tiered = made(&spec(Some(24 * MIB)), &uris, Tuning::default());
    assert!(tiered.is_ephemeral());
    let mut rig = Rig::new(&dir, tiered, Backend::Auto);
    for n in 0..20 {
        let write = rig.write(n * MIB, 64 << 10, n as u8 + 1);
        rig.run(vec![write]).remove(0).result.unwrap();
    }
    rig.flush();
    for n in 0..20 {
        assert_eq!(rig.read(n * MIB, 4096), vec![n as u8 + 1; 4096]);
    }
    let living = |rig: &mut Rig, n| rig.tiered().tiers().place_of(n).map(|it| it.0);
    assert_eq!(living(&mut rig, 19), Some(MemberId(1)));
}

#[test]
fn a_missing_device_takes_only_its_own_with_it() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[16, 48]);
    let still = Tuning { placement: forebay_tier::Placement::Spill, ..Tuning::default() };
    let tiered = made(&spec(None), &uris, still);
    let mut rig = Rig::new(&dir, tiered, Backend::Auto);
    let writes: Vec<Wanted> = (0..30).map(|n| rig.write(n * MIB, 4096, n as u8 + 1)).collect();
    rig.run(writes);
    rig.flush();
    drop(rig);
    let members = vec![Member::open(&uris[1]).unwrap()];
    let mut rig = Rig::new(&dir, Tiered::open(members, None, still).unwrap(), Backend::Auto);
    let (mut lost, mut kept) = (0, 0);
    for n in 0..30 {
        let (op, buf) = (rig.op(), Buf::zeroed(4096));
        let target = Target::Origin(VOLUME);
        let read = Wanted::Read { op, target, offset: n * MIB, buf };
        let done = rig.run(vec![read]).remove(0);
        match done.result {
            Ok(()) => {
                assert_eq!(done.buf.bytes(), vec![n as u8 + 1; 4096]);
                kept += 1;
            }
            Err(error) => {
                assert_eq!(error, IoError::Io);
                lost += 1;
            }
        }
    }
    assert!(lost >= 5 && kept >= 10, "{lost} {kept}");
    drop(rig);
    let mut rig = Rig::new(&dir, again(&uris), Backend::Auto);
    for n in 0..30 {
        assert_eq!(rig.read(n * MIB, 4096), vec![n as u8 + 1; 4096]);
    }
}

/// What is confirmed when a start is over frees places, of which their devices are told: the thread
/// that opened the volume panicked at that.
#[test]
fn a_start_that_frees_places_has_devices_told_of_them() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[16, 48]);
    let still = Tuning { placement: forebay_tier::Placement::Spill, ..Tuning::default() };
    let mut rig = Rig::new(&dir, made(&spec(None), &uris, still), Backend::Auto);
    let writes: Vec<Wanted> = (0..4).map(|n| rig.write(n * MIB, MIB as usize, 7)).collect();
    rig.run(writes);
    rig.flush();
    let op = rig.op();
    let gone = Wanted::Discard { op, target: Target::Origin(VOLUME), offset: 0, len: 3 * MIB };
    rig.run(vec![gone]).remove(0).result.unwrap();
    let free = rig.tiered().tiers().free_slots(MemberId(0));
    // Killed, before that is confirmed.
    drop(rig);
    let mut rig = Rig::new(&dir, again(&uris), Backend::Auto);
    let end = Instant::now() + Duration::from_secs(20);
    while rig.tiered().tiers().free_slots(MemberId(0)) < free + 3 {
        assert!(Instant::now() < end, "no place is free again");
        rig.pass(&mut Vec::new());
    }
    assert_eq!(rig.read(0, 4096), vec![0; 4096]);
    assert_eq!(rig.read(3 * MIB, 4096), vec![7; 4096]);
}

#[test]
fn what_cannot_be_made_is_told() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[2, 48]);
    let error = Planned::of(&spec(None), tiers(&uris)).unwrap_err();
    assert!(error.to_string().contains("too small for a tier"), "{error}");
    let error = Planned::of(&spec(Some(1 << 40)), tiers(&uris[1..]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("less than the volume has") || error.contains("too small"), "{error}");
    let error =
        Tiered::open(vec![Member::open(&uris[0]).unwrap()], None, Tuning::default()).unwrap_err();
    assert!(error.to_string().contains("none of these devices"), "{error}");
}

/// What is cut off may have been all there was of something.
#[test]
fn a_device_that_was_cut_is_refused() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[16, 16]);
    drop(made(&spec(None), &uris, Tuning::default()));
    drop(again(&uris));
    let file = std::fs::OpenOptions::new().write(true).open(&uris[1]).unwrap();
    file.set_len(14 * MIB).unwrap();
    let open = |uris: &[String]| {
        let members = uris.iter().map(|uri| Member::open(uri).unwrap()).collect();
        Tiered::open(members, None, Tuning::default())
    };
    let error = open(&uris).unwrap_err();
    let cut = |bytes: u64| matches!(&error, TieredError::Cut { bytes: it, .. } if *it == bytes);
    assert!(cut(14 * MIB), "{error}");
    assert!(open(&uris[..1]).is_ok(), "without it the rest is served");
}

/// The room to grow is cut where the map ends: a set that is made can be opened.
#[test]
fn a_volume_is_as_large_as_its_map_at_most() {
    let dir = TempDir::new().unwrap();
    let uris = files(&dir, &[20 << 10]);
    let large = |tebibytes: u64| {
        let spec = NewTiered { overcommit: true, ..spec(Some(tebibytes << 40)) };
        Planned::of(&spec, tiers(&uris))
    };
    assert!(large(2049).unwrap_err().to_string().contains("2048 TiB at most"));
    let block = &large(300).unwrap().superblocks[0];
    let mut bytes = vec![0; 4096];
    block.encode(&mut bytes);
    let decoded = forebay_format::tier::Superblock::decode(&bytes).unwrap();
    assert_eq!(decoded.layout(), block.layout());
}
