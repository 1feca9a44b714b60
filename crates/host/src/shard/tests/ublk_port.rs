//! Devices of ublk at work: where the driver is, as in `cargo xtask vm`.

use super::*;
use crate::frontend::ublk::{UblkDevice, Wanted, is_available};
use forebay_sys as sys;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

const MARK: u64 = 0x0123_4567_89ab_cdef;

/// Whether the test can run. `FOREBAY_REQUIRE_UBLK` is set where it must.
fn can_run() -> bool {
    match is_available() {
        Ok(()) => true,
        Err(error) => {
            let required = std::env::var_os("FOREBAY_REQUIRE_UBLK").is_some();
            assert!(!required, "{error}");
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// A device in service.
struct Served {
    device: UblkDevice,
    port: u32,
}

impl Served {
    fn start(rig: &Rig, volume: VolumeId, plain_copy: bool) -> Served {
        let wanted = Wanted {
            bytes: ORIGIN_BYTES,
            mark: MARK,
            discard: true,
            small_sectors: false,
            number: None,
            unprivileged: false,
            plain_copy,
        };
        let device = UblkDevice::add(&wanted).unwrap();
        let setup = device.open(volume).unwrap();
        let port = rig.shard.attach_port(PortSetup::Ublk(setup), SECONDS).unwrap();
        device.start().unwrap();
        Served { device, port }
    }

    fn end(self, rig: &Rig) {
        self.device.stop().unwrap();
        rig.shard.detach_port(self.port, SECONDS).unwrap();
        self.device.delete().unwrap();
        assert!(UblkDevice::find(self.device.number, MARK).unwrap().is_none());
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(self.device.path()).unwrap()
    }

    /// Reads past the page cache.
    fn read(&self, offset: u64, len: usize) -> Buf {
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_DIRECT).open(self.device.path());
        let mut buf = Buf::zeroed(len);
        file.unwrap().read_exact_at(buf.bytes_mut(), offset).unwrap();
        buf
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 512 % 251) as u8 + 1).collect()
}

#[test]
fn a_device_is_made_used_and_taken_away() {
    if !can_run() {
        return;
    }
    for plain_copy in [false, true] {
        let rig = rig(Backend::Auto);
        let volume = rig.add("disk");
        let served = Served::start(&rig, volume, plain_copy);
        assert_eq!(served.device.bytes().unwrap(), ORIGIN_BYTES);
        assert!(!served.device.is_in_use().unwrap());
        let file = served.open();
        let data = pattern(3 << 20);
        file.write_all_at(&data, 1 << 20).unwrap();
        file.sync_all().unwrap();
        assert!(served.read(1 << 20, data.len()).bytes() == data, "plain copy {plain_copy}");
        let direct = rig.ask(volume, RequestKind::Read, 1 << 20, Buf::zeroed(64 << 10));
        assert_eq!(direct.buf.bytes(), &data[..64 << 10]);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        sys::file::fallocate(&file, punch, 1 << 20, 1 << 20).unwrap();
        assert!(served.read(1 << 20, 1 << 20).bytes().iter().all(|byte| *byte == 0));
        sys::file::block_discard(&file, 0, ORIGIN_BYTES).unwrap();
        drop(file);
        assert!(UblkDevice::find(served.device.number, MARK).unwrap().is_some());
        assert!(UblkDevice::find(served.device.number, MARK + 1).unwrap().is_none());
        let text = rig.seen.lock().unwrap().join("; ");
        assert!(!text.contains("ublk"), "{text}");
        served.end(&rig);
        rig.shard.stop(SECONDS).unwrap();
    }
}

#[test]
fn whoever_holds_it_open_alone_is_seen() {
    if !can_run() {
        return;
    }
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let served = Served::start(&rig, volume, false);
    let alone = File::options().read(true).custom_flags(libc::O_EXCL).open(served.device.path());
    assert!(served.device.is_in_use().unwrap());
    drop(alone.unwrap());
    assert!(!served.device.is_in_use().unwrap());
    served.end(&rig);
    rig.shard.stop(SECONDS).unwrap();
}

#[test]
fn the_size_changes_where_the_kernel_can() {
    if !can_run() {
        return;
    }
    let rig = rig(Backend::Auto);
    let volume = rig.add("disk");
    let served = Served::start(&rig, volume, false);
    match served.device.resize(ORIGIN_BYTES / 2) {
        Ok(()) => assert_eq!(served.device.bytes().unwrap(), ORIGIN_BYTES / 2),
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::Unsupported, "{e}");
            assert_eq!(served.device.bytes().unwrap(), ORIGIN_BYTES);
        }
    }
    served.end(&rig);
    rig.shard.stop(SECONDS).unwrap();
}

/// The shard ends under a writer; another one takes the device over: a pause and no error. With
/// `graceful` the kernel is asked to let the device rest before.
fn hand_over(graceful: bool, plain_copy: bool) {
    let dir = TempDir::new().unwrap();
    let server = NbdServer::new(ServerLimits::default());
    let rig = start(&dir, 1, Backend::Auto, &server);
    let path = dir.path().join("disk");
    create_file(&path, ORIGIN_BYTES).unwrap();
    let uri = path.to_str().unwrap();
    let volume = rig.add_on("disk", uri);
    let served = Served::start(&rig, volume, plain_copy);
    let file = served.open();
    let writer = thread::spawn(move || {
        for round in 0..60_u64 {
            file.write_all_at(&[round as u8 + 1; 4096], round * 4096).unwrap();
            file.sync_data().unwrap();
        }
    });
    thread::sleep(Duration::from_millis(50));
    if graceful && served.device.quiesce().is_ok() {
        // Requests are under way: their slots come back when the device is told to rest once more.
        rig.shard.rest_port(&served.device, served.port, SECONDS).unwrap();
    }
    rig.shard.stop(SECONDS).unwrap();
    let origins = vec![(volume, Origin::open(uri).unwrap())];
    let rig = start_on(&dir, dir.path().join("cache1"), origins, 2, Backend::Auto, &server);
    let found = UblkDevice::find(served.device.number, MARK).unwrap().expect("it waits");
    assert_eq!(found, served.device);
    found.take_over().unwrap();
    let setup = found.open(volume).unwrap();
    let port = rig.shard.attach_port(PortSetup::Ublk(setup), SECONDS).unwrap();
    found.taken_over().unwrap();
    writer.join().unwrap();
    let served = Served { device: found, port };
    let read = served.read(0, 60 * 4096);
    for (round, block) in read.bytes().chunks(4096).enumerate() {
        assert!(block.iter().all(|byte| *byte == round as u8 + 1), "block {round}");
    }
    served.end(&rig);
    rig.shard.stop(SECONDS).unwrap();
}

#[test]
fn a_device_outlives_its_server() {
    if can_run() {
        hand_over(false, false);
        hand_over(false, true);
    }
}

#[test]
fn a_device_rests_between_two_servers() {
    if can_run() {
        hand_over(true, false);
        hand_over(true, true);
    }
}

#[test]
fn without_io_uring_a_device_is_refused_and_deleted() {
    if !can_run() {
        return;
    }
    let rig = rig(Backend::Threads);
    let volume = rig.add("disk");
    let wanted = Wanted {
        bytes: ORIGIN_BYTES,
        mark: MARK,
        discard: false,
        small_sectors: false,
        number: None,
        unprivileged: false,
        plain_copy: false,
    };
    let device = UblkDevice::add(&wanted).unwrap();
    let setup = device.open(volume).unwrap();
    let error = rig.shard.attach_port(PortSetup::Ublk(setup), SECONDS).unwrap_err().to_string();
    assert!(error.contains("io_uring"), "{error}");
    device.delete().unwrap();
    rig.shard.stop(SECONDS).unwrap();
}

#[test]
fn a_kernel_without_the_driver_says_what_to_do() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        return;
    }
    let error = is_available().unwrap_err().to_string();
    assert!(error.contains("modprobe ublk_drv"), "{error}");
}
