use super::*;
use crate::device::create_file;
use tempfile::TempDir;
use zerocopy::little_endian::U64;

struct Rig {
    dir: TempDir,
    paths: Vec<PathBuf>,
}

fn options(name: &str) -> FormatOptions {
    FormatOptions { name: name.to_owned(), ..FormatOptions::default() }
}

fn open(paths: &[PathBuf]) -> Vec<Device> {
    paths.iter().map(|path| Device::open(path, Access::Exclusive).unwrap()).collect()
}

fn rig(devices: usize) -> Rig {
    let dir = TempDir::new().unwrap();
    let paths: Vec<_> = (0..devices).map(|n| dir.path().join(format!("cache{n}"))).collect();
    for path in &paths {
        create_file(path, 32 << 20).unwrap();
    }
    format_pool(&open(&paths), &options("fast")).unwrap();
    Rig { dir, paths }
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Writes a changed superblock over one copy, as the engine would.
fn rewrite(path: &Path, copy: usize, change: impl FnOnce(&mut Superblock)) {
    let pool = read_pool(&[path.to_owned()], Access::ReadOnly).unwrap();
    let mut superblock = pool.superblock;
    change(&mut superblock);
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    superblock.encode(&mut bytes);
    overwrite(path, SUPERBLOCK_OFFSETS[copy], &bytes);
}

fn read(rig: &Rig) -> PoolOnDisk {
    read_pool(&rig.paths, Access::Exclusive).unwrap()
}

#[test]
fn a_new_pool_reads_back_without_a_finding() {
    let rig = rig(2);
    let pool = read(&rig);
    assert_eq!(pool.name(), "fast");
    assert_eq!(pool.findings, Vec::<String>::new());
    assert_eq!(pool.devices.len(), 2);
    let opened: Vec<_> = pool.devices.iter().map(|d| d.device.as_ref().unwrap().path()).collect();
    assert_eq!(opened, [&rig.paths[0], &rig.paths[1]]);
    drop(pool);
    let content = crate::device::identify(&rig.paths[1]).unwrap().to_string();
    assert!(content.starts_with("Forebay pool \"fast\""), "{content}");
    assert!(content.ends_with("device 2 of 2)"), "{content}");
}

#[test]
fn devices_are_found_in_any_order() {
    let mut rig = rig(2);
    rig.paths.reverse();
    let pool = read(&rig);
    let first = pool.devices[0].device.as_ref().unwrap();
    assert_eq!(first.path(), rig.paths[1]);
}

#[test]
fn a_device_that_holds_something_is_refused_by_name_unless_forced() {
    let rig = rig(1);
    let error = format_pool(&open(&rig.paths), &options("new")).unwrap_err().to_string();
    assert!(error.contains("holds Forebay pool \"fast\""), "{error}");
    assert!(error.contains("--force"), "{error}");
    overwrite(&rig.paths[0], 0, &[0; 128 << 10]);
    overwrite(&rig.paths[0], 1024 + 0x38, b"\x53\xef");
    let error = format_pool(&open(&rig.paths), &options("new")).unwrap_err().to_string();
    assert!(error.contains("holds ext2 file system"), "{error}");
    let forced = FormatOptions { force: true, ..options("new") };
    format_pool(&open(&rig.paths), &forced).unwrap();
    assert_eq!(read(&rig).name(), "new");
}

#[test]
fn a_device_that_is_too_small_or_needs_too_much_ram_is_refused_with_the_numbers() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("small");
    create_file(&path, 1 << 20).unwrap();
    let error = format_pool(&open(&[path]), &options("p")).unwrap_err().to_string();
    assert!(error.contains("needs at least") && error.contains("1048576"), "{error}");
    let path = dir.path().join("large");
    create_file(&path, 32 << 20).unwrap();
    let capped = FormatOptions { ram_bytes_max: Some(10_000), ..options("p") };
    let error = plan_pool(&open(&[path]), &capped).unwrap_err().to_string();
    assert!(error.contains("bytes of RAM for its index, and 10000 are allowed"), "{error}");
}

#[test]
fn one_damaged_copy_is_replaced_by_the_other() {
    for (copy, bad, used) in [(0, "first", "second"), (1, "second", "first")] {
        let rig = rig(1);
        overwrite(&rig.paths[0], SUPERBLOCK_OFFSETS[copy] + 5000, b"rot");
        let pool = read(&rig);
        assert_eq!(pool.findings.len(), 1);
        let finding = &pool.findings[0];
        assert!(finding.contains(&format!("the {bad} superblock copy was passed over")));
        assert!(finding.contains("checksum mismatch"), "{finding}");
        assert!(finding.contains(&format!("the {used} one (generation 1) is used")));
        assert!(pool.devices[0].device.is_ok());
    }
}

#[test]
fn a_zeroed_copy_is_replaced_by_the_other() {
    let rig = rig(1);
    overwrite(&rig.paths[0], 0, &[0; SUPERBLOCK_SIZE]);
    let pool = read(&rig);
    assert!(pool.findings[0].contains("no Forebay superblock here"), "{:?}", pool.findings);
    assert_eq!(pool.name(), "fast");
}

#[test]
fn the_newer_copy_counts() {
    for copy in [0, 1] {
        let rig = rig(1);
        rewrite(&rig.paths[0], copy, |sb| sb.header.generation = U64::new(7));
        assert_eq!(read(&rig).superblock.header.generation.get(), 7);
    }
}

#[test]
fn two_damaged_copies_are_an_error_that_says_so() {
    let rig = rig(1);
    for offset in SUPERBLOCK_OFFSETS {
        overwrite(&rig.paths[0], offset + 5000, b"rot");
    }
    let error = read_pool(&rig.paths, Access::Exclusive).unwrap_err().to_string();
    assert!(error.contains("cache0: the superblock is damaged (checksum mismatch)"), "{error}");
}

#[test]
fn a_truncated_device_is_an_error_and_a_shrunken_one_is_not_used() {
    let rig = rig(2);
    let file = std::fs::File::options().write(true).open(&rig.paths[1]).unwrap();
    file.set_len(16 << 20).unwrap();
    let pool = read(&rig);
    assert!(pool.findings[0].contains("shrank from 33554432 to 16777216 bytes"));
    assert!(pool.devices[0].device.is_ok() && pool.devices[1].device.is_err());
    drop(pool);
    file.set_len(1000).unwrap();
    let error = read_pool(&rig.paths[1..], Access::Exclusive).unwrap_err().to_string();
    assert!(error.contains("no Forebay superblock here"), "{error}");
}

#[test]
fn a_device_of_another_pool_and_one_without_a_pool_are_named() {
    let (ours, theirs) = (rig(2), rig(1));
    let blank = ours.dir.path().join("blank");
    create_file(&blank, 1 << 20).unwrap();
    let paths = [ours.paths[0].clone(), theirs.paths[0].clone(), blank];
    let pool = read_pool(&paths, Access::Exclusive).unwrap();
    let findings = pool.findings.join("\n");
    assert!(findings.contains("belongs to another pool, \"fast\""), "{findings}");
    assert!(findings.contains("blank holds nothing: no Forebay superblock here"), "{findings}");
    assert!(findings.contains("device 2 of 2 (uuid "), "{findings}");
    assert!(pool.devices[1].device.as_ref().unwrap_err().ends_with("is missing"));
}

#[test]
fn a_device_that_was_away_is_not_used() {
    let rig = rig(2);
    rewrite(&rig.paths[0], 0, |sb| sb.header.generation = U64::new(5));
    let pool = read(&rig);
    assert!(pool.findings[0].contains("was away while the pool was in use (generation 1 of 5)"));
    assert!(pool.devices[1].device.is_err());
    drop(pool);
    // One generation behind is what a crash between two superblock writes leaves.
    rewrite(&rig.paths[1], 0, |sb| sb.header.generation = U64::new(4));
    let pool = read(&rig);
    assert!(pool.devices[1].device.is_ok());
    assert_eq!(
        [0, 1].map(|index| pool.devices[index].presence),
        [Presence::InStep, Presence::Behind]
    );
}

#[test]
fn a_superblock_of_a_newer_version_is_refused_with_advice() {
    let rig = rig(1);
    for copy in [0, 1] {
        rewrite(&rig.paths[0], copy, |sb| {
            sb.header.features_incompat = U64::new(1 << 40);
            sb.header.generation = U64::new(2);
        });
        // The other copy stays readable until it is written too.
        if copy == 0 {
            assert!(read(&rig).findings[0].contains("use a newer Forebay"));
        }
    }
    let error = read_pool(&rig.paths, Access::Exclusive).unwrap_err().to_string();
    assert!(error.contains("use a newer Forebay"), "{error}");
}

#[test]
fn a_pool_in_use_is_refused() {
    let rig = rig(1);
    let held = read(&rig);
    let error = read_pool(&rig.paths, Access::Exclusive).unwrap_err().to_string();
    assert!(error.contains("in use by this process"), "{error}");
    drop(held);
    assert_eq!(read(&rig).name(), "fast");
}

#[test]
fn a_copied_device_is_not_used_twice() {
    let mut rig = rig(1);
    let copy = rig.dir.path().join("copy");
    std::fs::copy(&rig.paths[0], &copy).unwrap();
    rig.paths.push(copy);
    let pool = read(&rig);
    assert!(pool.findings[0].contains("copy is a copy of another device"), "{:?}", pool.findings);
    assert_eq!(pool.devices.len(), 1);
}

#[test]
fn a_pool_in_memory_takes_the_place_of_one_whose_devices_are_missing() {
    let pool = stand_in("fast").unwrap();
    assert_eq!(pool.name(), "fast");
    assert!(pool.findings.is_empty() && pool.superblock.volumes.is_empty(), "{pool:?}");
    assert_ne!(pool.uuid(), stand_in("fast").unwrap().uuid());
}
