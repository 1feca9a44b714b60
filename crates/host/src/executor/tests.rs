use super::*;
use crate::device::{Access, create_file};
use crate::driver::Backend;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Rig {
    dir: TempDir,
    driver: Driver,
    executor: Executor,
    notices: Notices,
    seen: Arc<Mutex<Vec<String>>>,
    op: u64,
}

const CACHE: Target = Target::Cache(DeviceId(0));
const BYTES: u64 = 8 << 20;

fn rig(backend: Backend) -> Rig {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("device");
    create_file(&path, BYTES).unwrap();
    let device = Device::open(&path, Access::Exclusive).unwrap();
    rig_on(dir, vec![Some(device), None], backend)
}

fn rig_on(dir: TempDir, devices: Vec<Option<Device>>, backend: Backend) -> Rig {
    let waker = Waker::new().unwrap();
    let (mut driver, notice) = Driver::new(backend, &waker).unwrap();
    assert_eq!(driver.has_ring(), backend == Backend::Auto, "{notice:?}");
    let (origins, state) = (BTreeMap::new(), (dir.path(), &[1; 16]));
    let executor = Executor::new(devices, origins, state, &mut driver, waker);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let notices = Notices::new(Box::new(move |n| sink.lock().unwrap().push(n.to_string())));
    Rig { dir, driver, executor, notices, seen, op: 0 }
}

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.bytes_mut().fill(byte);
    buf
}

impl Rig {
    /// Starts effects, in this order, and waits for all, and for what is under way. Completions are
    /// sorted by op.
    fn run(&mut self, effects: impl IntoIterator<Item = Effect>) -> Vec<Completion> {
        let mut wanted = self.executor.under_way();
        for effect in effects {
            self.executor.start(&mut self.driver, 0, effect);
            wanted += 1;
        }
        let (mut done, mut arrivals) = (Vec::new(), Vec::new());
        let end = Instant::now() + Duration::from_secs(10);
        while done.len() < wanted {
            assert!(Instant::now() < end, "only {} of {wanted} ended", done.len());
            self.driver.wait(Some(Duration::from_millis(5)), &mut arrivals).unwrap();
            for arrival in arrivals.drain(..) {
                if let crate::driver::Arrival::Io(slot, result, buf) = arrival {
                    let (executor, driver) = (&mut self.executor, &mut self.driver);
                    executor.arrived(driver, 0, (slot, result, buf), &mut self.notices);
                }
            }
            self.executor.collect(&mut self.driver, 0, &mut done, &mut self.notices);
        }
        assert_eq!(self.executor.under_way(), 0);
        done.sort_by_key(|(op, _)| *op);
        done.into_iter().map(|(_, completion)| completion).collect()
    }

    /// Takes what has ended, but for the ring's slot `stuck`, until nothing else is under way.
    fn end_all_but(&mut self, stuck: u32) {
        let (mut done, mut arrivals) = (Vec::new(), Vec::new());
        let end = Instant::now() + Duration::from_secs(10);
        while self.executor.under_way() > usize::from(stuck != u32::MAX) {
            assert!(Instant::now() < end, "{} never end", self.executor.under_way());
            self.driver.wait(Some(Duration::from_millis(5)), &mut arrivals).unwrap();
            for arrival in arrivals.drain(..) {
                if let crate::driver::Arrival::Io(slot, result, buf) = arrival
                    && slot != stuck
                {
                    let (executor, driver) = (&mut self.executor, &mut self.driver);
                    executor.arrived(driver, 0, (slot, result, buf), &mut self.notices);
                }
            }
            self.executor.collect(&mut self.driver, 0, &mut done, &mut self.notices);
        }
    }

    fn collect_all(&mut self) {
        self.end_all_but(u32::MAX);
    }

    fn op(&mut self) -> OpId {
        self.op += 1;
        OpId(self.op)
    }

    fn write(&mut self, offset: u64, buf: Buf) -> Effect {
        Effect::Write { op: self.op(), target: CACHE, offset, buf }
    }

    fn read(&mut self, offset: u64, len: usize) -> Effect {
        Effect::Read { op: self.op(), target: CACHE, offset, buf: Buf::zeroed(len) }
    }

    fn result(&mut self, effect: Effect) -> Result<(), IoError> {
        self.run([effect]).remove(0).result
    }

    fn bytes_at(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let read = self.read(offset, len);
        let done = self.run([read]).remove(0);
        assert_eq!(done.result, Ok(()));
        done.buf.bytes().to_vec()
    }
}

fn on_both(test: impl Fn(Backend)) {
    test(Backend::Auto);
    test(Backend::Threads);
}

#[test]
fn a_batch_beyond_the_rings_size_is_written_flushed_and_read_back() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let writes: Vec<_> =
            (0..2000_u64).map(|n| rig.write(n * 4096, filled(4096, n as u8))).collect();
        assert!(rig.run(writes).iter().all(|done| done.result.is_ok() && done.buf.len() == 4096));
        let flush = Effect::Flush { op: rig.op(), target: CACHE };
        assert_eq!(rig.result(flush), Ok(()));
        let reads: Vec<_> = (0..2000_u64).map(|n| rig.read(n * 4096, 4096)).collect();
        for (n, done) in rig.run(reads).iter().enumerate() {
            assert_eq!(done.result, Ok(()));
            assert!(done.buf.bytes().iter().all(|&byte| byte == n as u8), "block {n}");
        }
        assert_eq!(rig.bytes_at(512, 1024), [0; 1024]);
    });
}

/// Up to 128 large reads were in the ring: a block waited for 128 MiB.
#[test]
fn a_small_read_waits_for_few_large_ones() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let given = |rig: &Rig| rig.executor.jobs.len() + rig.executor.with_workers.len();
        for _ in 0..40 {
            let read = rig.read(0, 1 << 20);
            rig.executor.start(&mut rig.driver, 0, read);
        }
        assert_eq!(given(&rig), 1, "large ones that the device was given");
        let read = rig.read(0, 4096);
        rig.executor.start(&mut rig.driver, 0, read);
        assert_eq!((given(&rig), rig.executor.under_way()), (2, 41), "a small one at once");
        let huge = rig.read(0, BYTES as usize);
        let done = rig.run([huge]);
        assert!(done.len() == 42 && done.iter().all(|it| it.result.is_ok()));
    });
}

#[test]
fn zeroes_and_discards_leave_their_neighbours_alone() {
    on_both(|backend| {
        let mut rig = rig(backend);
        for unmap in [true, false] {
            let write = rig.write(0, filled(1 << 20, 7));
            assert_eq!(rig.result(write), Ok(()));
            let (offset, len) = (4096 + 512, 300 << 10);
            let zero = Effect::Zero { op: rig.op(), target: CACHE, offset, len, unmap };
            assert_eq!(rig.result(zero), Ok(()));
            let bytes = rig.bytes_at(0, 1 << 20);
            let (start, end) = (offset as usize, (offset + len) as usize);
            assert!(bytes[start..end].iter().all(|&byte| byte == 0));
            assert!(bytes[..start].iter().chain(&bytes[end..]).all(|&byte| byte == 7));
        }
        let offset = 512 << 10;
        let discard = Effect::Discard { op: rig.op(), target: CACHE, offset, len: 8192 };
        assert_eq!(rig.result(discard), Ok(()));
        assert_eq!(rig.bytes_at(offset + 8192, 512), [7; 512]);
    });
}

#[test]
fn missing_devices_and_ends_of_files_are_errors_with_a_notice() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let target = Target::Cache(DeviceId(1));
        let flush = Effect::Flush { op: rig.op(), target };
        assert_eq!(rig.result(flush), Err(IoError::Io));
        let target = Target::Origin(VolumeId(9));
        let flush = Effect::Flush { op: rig.op(), target };
        assert_eq!(rig.result(flush), Err(IoError::Gone));
        let behind = rig.read(BYTES - 4096, 8192);
        assert_eq!(rig.result(behind), Err(IoError::Io));
        let seen = rig.seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains("device failed at 8384512 (8192 bytes): "), "{seen:?}");
    });
}

#[test]
fn distrust_is_written_down() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let note = forebay_engine::Distrust { epoch: 5, dropped: [(3, 5)].into() };
        let distrust = Effect::Distrust { op: rig.op(), note: note.clone() };
        assert_eq!(rig.result(distrust), Ok(()));
        assert_eq!(read_distrust(rig.dir.path(), &[1; 16]).unwrap(), note);
    });
}

/// The file-size limit of the process stands in for a full disk: the kernel refuses in the same place.
#[test]
fn a_full_disk_under_a_file_is_no_space() {
    const NAME: &str = "executor::tests::a_full_disk_under_a_file_is_no_space";
    if std::env::var_os("FOREBAY_TEST_ALONE").is_none() {
        // The limit is the whole process's: other tests must not run in it.
        let own = std::env::current_exe().expect("the test's program");
        let mut alone = std::process::Command::new("sh");
        // In units of 512 bytes: 16 MiB.
        alone.args(["-c", "ulimit -f 32768; exec \"$0\" \"$@\""]).arg(own);
        alone.args([NAME, "--exact", "--nocapture"]).env("FOREBAY_TEST_ALONE", "1");
        let output = alone.output().expect("the test's program runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    crate::process::stand_limits();
    on_both(|backend| {
        let mut rig = rig(backend);
        let beyond = rig.write(16 << 20, filled(4096, 1));
        assert_eq!(rig.result(beyond), Err(IoError::NoSpace));
        assert_eq!(rig.seen.lock().unwrap().len(), 1);
        let within = rig.write(0, filled(4096, 1));
        assert_eq!(rig.result(within), Ok(()));
    });
}

#[test]
fn small_io_on_a_file_in_memory_is_done_on_the_spot() {
    // Every Linux since 2.6 has tmpfs here; elsewhere the other tests cover the same reads and writes.
    let Ok(dir) = TempDir::new_in("/dev/shm") else { return };
    let path = dir.path().join("device");
    create_file(&path, BYTES).unwrap();
    let device = Device::open(&path, Access::Exclusive).unwrap();
    assert!(device.info().in_memory);
    let mut rig = rig_on(dir, vec![Some(device)], Backend::Auto);
    let write = rig.write(4096, filled(8192, 3));
    rig.executor.start(&mut rig.driver, 0, write);
    assert!(rig.executor.has_ended() && rig.executor.under_way() == 0);
    let mut done = Vec::new();
    rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
    assert_eq!(done[0].1.result, Ok(()));
    let bytes = rig.bytes_at(0, 1 << 20);
    assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 3) == (4096..12288).contains(&at)));
}

#[test]
fn what_a_given_up_device_still_works_on_is_neither_believed_nor_freed() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let data = |n: u64| filled(64 << 10, n as u8 + 1);
        let writes: Vec<Effect> = (0..200).map(|n| rig.write((n % 8) << 20, data(n))).collect();
        for effect in writes {
            rig.executor.start(&mut rig.driver, 0, effect);
        }
        let read = rig.read(0, 8192);
        rig.executor.start(&mut rig.driver, 0, read);
        assert_eq!(rig.executor.under_way(), 201);
        rig.executor.give_up(&mut rig.driver, DeviceId(0), &mut rig.notices);
        // Each has failed at once; what was to be written is there, others may need it.
        let mut done = Vec::new();
        rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
        done.sort_by_key(|(op, _)| *op);
        assert_eq!(done.len(), 201);
        for (n, (_, completion)) in (0..).zip(&done) {
            // A thread may have been faster; what it did counts.
            let before = completion.result.is_ok() && backend == Backend::Threads;
            assert!(completion.result == Err(IoError::Io) || before, "{:?}", completion.result);
            let expected = if n < 200 { data(n) } else { Buf::zeroed(8192) };
            assert_eq!(completion.buf.len(), expected.len());
            assert!(n == 200 || completion.buf.bytes() == expected.bytes(), "of write {n}");
        }
        // And so has all that comes.
        let flush = Effect::Flush { op: OpId(1), target: CACHE };
        rig.executor.start(&mut rig.driver, 0, flush);
        done.clear();
        rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].1.result, Err(IoError::Io));
        // What was under way ends, and nobody is told a second time.
        let (mut arrivals, end) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        done.clear();
        while rig.executor.under_way() > 0 {
            assert!(Instant::now() < end, "{} never end", rig.executor.under_way());
            rig.driver.wait(Some(Duration::from_millis(5)), &mut arrivals).unwrap();
            for arrival in arrivals.drain(..) {
                if let crate::driver::Arrival::Io(slot, result, buf) = arrival {
                    let (executor, driver) = (&mut rig.executor, &mut rig.driver);
                    executor.arrived(driver, 0, (slot, result, buf), &mut rig.notices);
                }
            }
            rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
        }
        assert!(done.is_empty(), "{} ended twice", done.len());
        assert!(rig.seen.lock().unwrap()[0].contains("is waited for no longer"));
    });
}

/// So many looks, one a second.
fn look(rig: &mut Rig, from: u64, looks: u32) {
    for n in 0..u64::from(looks) {
        assert!(rig.executor.watch((from + n) * SCAN_NS, &mut rig.notices));
    }
}

#[test]
fn a_device_hangs_when_an_io_never_ends_and_not_when_nobody_looks() {
    on_both(|backend| {
        let mut rig = rig(backend);
        let read = rig.read(0, 4096);
        rig.executor.start(&mut rig.driver, 0, read);
        // The end of it is not collected: as good as none. A thread may need a moment to begin.
        let end = Instant::now() + Duration::from_secs(10);
        while backend == Backend::Threads && !rig.executor.has_begun() && Instant::now() < end {
            std::thread::yield_now();
        }
        // A process that did not run for an hour looks once.
        look(&mut rig, 3600, 1);
        assert_eq!(rig.executor.hanging().count(), 0);
        look(&mut rig, 3601, HANGS_LOOKS - 1);
        assert_eq!(rig.executor.hanging().collect::<Vec<_>>(), [DeviceId(0)]);
        assert!(!rig.executor.moves(DeviceId(0)));
        rig.collect_all();
        look(&mut rig, 4000, 1);
        assert_eq!(rig.executor.hanging().count(), 0);
        assert!(rig.executor.moves(DeviceId(0)));
    });
}

#[test]
fn a_device_hangs_with_one_io_although_it_ends_all_others() {
    let mut rig = rig(Backend::Auto);
    let stuck = rig.read(0, 4096);
    rig.executor.start(&mut rig.driver, 0, stuck);
    for second in 1..=u64::from(HANGS_LOOKS) {
        assert_eq!(rig.executor.hanging().count(), 0);
        let read = rig.read(4096, 4096);
        rig.executor.start(&mut rig.driver, 0, read);
        rig.end_all_but(0);
        look(&mut rig, second, 1);
    }
    assert_eq!(rig.executor.hanging().collect::<Vec<_>>(), [DeviceId(0)]);
}

#[test]
fn threads_that_rest_have_ended_what_they_began_and_begin_nothing_more() {
    let mut rig = rig(Backend::Threads);
    for n in 0..1000 {
        let read = rig.read(n * 4096, 4096);
        rig.executor.start(&mut rig.driver, 0, read);
    }
    let end = Instant::now() + Duration::from_secs(10);
    while !rig.executor.threads_rest() {
        assert!(Instant::now() < end, "no read hangs");
        std::thread::yield_now();
    }
    let mut done = Vec::new();
    rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
    let before = done.len();
    std::thread::sleep(Duration::from_millis(50));
    rig.executor.collect(&mut rig.driver, 0, &mut done, &mut rig.notices);
    assert_eq!(done.len(), before, "nothing ends after that");
}
