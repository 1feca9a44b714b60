use super::*;
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn file(dir: &TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join("device");
    create_file(&path, bytes).unwrap();
    path
}

#[test]
fn a_second_exclusive_open_is_refused_until_the_first_ends() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    let first = Device::open(&path, Access::Exclusive).unwrap();
    let error = Device::open(&path, Access::Exclusive).unwrap_err().to_string();
    assert!(error.ends_with("already in use by this process; stop that first"), "{error}");
    Device::open(&path, Access::ReadOnly).unwrap();
    drop(first);
    Device::open(&path, Access::Exclusive).unwrap();
}

#[test]
fn who_reads_alone_keeps_others_out_and_cannot_write() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    let alone = Device::open(&path, Access::ReadAlone).unwrap();
    for access in [Access::Exclusive, Access::ReadAlone] {
        assert!(matches!(Device::open(&path, access), Err(DeviceError::InUse { .. })));
    }
    assert!(alone.file().write_at(&[1; 512], 0).is_err());
    drop(alone);
    let _used = Device::open(&path, Access::Exclusive).unwrap();
    assert!(matches!(Device::open(&path, Access::ReadAlone), Err(DeviceError::InUse { .. })));
}

/// As a worker of the kernel does for a ring that has ended.
#[test]
fn what_this_process_lets_go_in_a_moment_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    let first = Device::open(&path, Access::Exclusive).unwrap();
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
    });
    Device::open(&path, Access::Exclusive).unwrap();
    letting_go.join().unwrap();
}

#[test]
fn the_process_that_holds_a_file_is_named() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(&path)
        .args(["sh", "-c", "echo held; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock of util-linux");
    let mut told = [0; 4];
    io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut told).unwrap();
    let error = Device::open(&path, Access::Exclusive).unwrap_err().to_string();
    let expected = format!("in use by another process (pid {})", holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(error.contains(&expected), "{error}");
}

/// A daemon that was killed and started again at once found its own files in use: the kernel lets go of a
/// dead process's rings, and of the files in them, a little later.
#[test]
fn what_a_dead_process_left_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    // The lock belongs to the open file, which outlives the process that took it.
    let open = std::fs::File::open(&path).unwrap();
    let status = Command::new("flock")
        .arg("0")
        .stdin(open.try_clone().unwrap())
        .status()
        .expect("flock of util-linux");
    assert!(status.success());
    let cleared = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(open);
        Instant::now()
    });
    Device::open(&path, Access::Exclusive).unwrap();
    assert!(cleared.join().unwrap() <= Instant::now());
}

#[test]
fn what_is_not_a_device_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let error = |path: &Path| Device::open(path, Access::Exclusive).unwrap_err().to_string();
    assert!(error(dir.path()).contains("is a directory; give a file or a block device"));
    assert!(error(Path::new("/dev/null")).contains("is a special file"));
    assert!(error(&dir.path().join("none")).contains("cannot find"));
}

/// Between a look at a path and its opening somebody may put something else there.
#[test]
fn what_was_looked_at_is_what_is_opened() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 1 << 20);
    let found = sys::file::find(&path).unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let device = Device::open_found(&path, &found, Access::Exclusive).unwrap();
    let moved = std::fs::metadata(dir.path().join("moved")).unwrap();
    assert_eq!(device.instance, Instance::of(&moved));
    assert_eq!(device.file().metadata().unwrap().ino(), moved.ino());
    assert_eq!(device.info().bytes, 1 << 20);
    let error = Device::open(&path, Access::ReadOnly).unwrap_err().to_string();
    assert!(error.contains("is a special file"), "{error}");
}

#[test]
fn a_file_is_described_and_takes_direct_and_unaligned_io() {
    use std::os::unix::fs::FileExt;
    let dir = TempDir::new().unwrap();
    let path = file(&dir, 3 << 20);
    let device = Device::open(&path, Access::Exclusive).unwrap();
    let info = device.info();
    assert_eq!(info.bytes, 3 << 20);
    assert!(info.volatile_cache && !info.is_block);
    assert!(info.logical_block_bytes.is_power_of_two());
    let mut buf = forebay_engine::Buf::zeroed(4096);
    buf.bytes_mut().fill(7);
    device.file_for(8192, 4096).write_all_at(buf.bytes(), 8192).unwrap();
    buf.set_len(512);
    buf.bytes_mut().fill(9);
    device.file_for(8704, 512).write_all_at(buf.bytes(), 8704).unwrap();
    buf.set_len(4096);
    device.file_for(8192, 4096).read_exact_at(buf.bytes_mut(), 8192).unwrap();
    let sectors: Vec<u8> = buf.bytes().chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(sectors, [7, 9, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn a_file_for_which_there_is_no_space_is_refused_and_not_left_behind() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("huge");
    assert!(create_file(&path, 1 << 60).unwrap_err().to_string().contains("reserve space"));
    assert!(!path.exists());
}
