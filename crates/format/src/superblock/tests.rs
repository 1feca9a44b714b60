use super::*;

const MIB: u64 = 1 << 20;

fn spec(devices_mib: &[u64], segment_blocks: Option<u32>) -> PoolSpec {
    let device = |(index, mib): (usize, &u64)| (mib * MIB, [index as u8 + 1; 16]);
    PoolSpec {
        name: "pool".into(),
        uuid: [7; 16],
        devices: devices_mib.iter().enumerate().map(device).collect(),
        segment_blocks,
    }
}

fn bytes_of(superblock: &Superblock) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    superblock.encode(&mut bytes);
    bytes
}

fn one(generation: u64) -> Superblock {
    let mut superblock = new_pool(&spec(&[64], None)).unwrap().remove(0);
    superblock.header.generation = U64::new(generation);
    superblock.header.volume_id_next = U32::new(100);
    superblock
}

fn volume(id: u32) -> VolumeEntry {
    let mut volume = VolumeEntry::new_zeroed();
    volume.id = U32::new(id);
    volume.bytes = U64::new(MIB);
    volume.name = text_field(&format!("v{id}"));
    volume
}

#[test]
fn a_new_pool_reads_back_on_every_device() {
    let made = new_pool(&spec(&[64, 128, 40], None)).unwrap();
    assert_eq!(made.len(), 3);
    for (index, superblock) in made.iter().enumerate() {
        let read = Superblock::decode(&bytes_of(superblock)).unwrap();
        assert_eq!(read.header.device_index.get() as usize, index);
        let count = read.header.devices[index].segment_count.get();
        assert_eq!(count, read.layout().segment_count);
        assert_eq!(read.layout(), superblock.layout());
        assert_eq!(read.header.checkpoint_area, CHECKPOINT_NONE);
        assert!(read.volumes.is_empty());
    }
}

#[test]
fn what_cannot_be_a_pool_is_refused() {
    let error = |spec: &PoolSpec| new_pool(spec).unwrap_err();
    let invalid = |field| FormatError::Invalid { what: "pool", field };
    assert_eq!(error(&spec(&[], None)), invalid("number of devices"));
    assert_eq!(error(&spec(&[64; 17], None)), invalid("number of devices"));
    assert_eq!(error(&spec(&[16 << 20], None)), invalid("size (more than 16 TiB)"));
    assert_eq!(error(&spec(&[64], Some(0))), invalid("segment size"));
    assert_eq!(error(&spec(&[64], Some(1 << 17))), invalid("segment size"));
    let many = spec(&[1 << 20], Some(2));
    assert_eq!(error(&many), invalid("segment size (too small for so many bytes)"));
    let mut overflow = spec(&[1, 1], None);
    overflow.devices.iter_mut().for_each(|device| device.0 = u64::MAX);
    assert_eq!(error(&overflow), invalid("size (more than 16 TiB)"));
    let small = error(&spec(&[4], None));
    let FormatError::TooSmall { needed, have } = small else { panic!("{small:?}") };
    assert_eq!(have, 4 * MIB);
    assert!(Layout::plan(needed, have, 256).is_ok());
    assert!(Layout::plan(needed - 1, have, 256).is_err());
}

#[test]
fn the_greater_valid_copy_is_the_true_one() {
    let damaged = || Err(FormatError::Damaged { what: "superblock" });
    let absent = || Err(FormatError::NotOurs { what: "superblock" });
    let generation =
        |copies| Superblock::choose(copies).map(|(copy, why)| (copy.header.generation.get(), why));
    assert_eq!(generation([Ok(one(4)), Ok(one(5))]), Ok((5, None)));
    assert_eq!(generation([Ok(one(6)), Ok(one(5))]), Ok((6, None)));
    assert_eq!(generation([damaged(), Ok(one(5))]), Ok((5, damaged().err())));
    assert_eq!(generation([Ok(one(6)), absent()]), Ok((6, absent().err())));
    assert_eq!(generation([absent(), damaged()]), Err(FormatError::Damaged { what: "superblock" }));
    assert_eq!(generation([absent(), absent()]), Err(FormatError::NotOurs { what: "superblock" }));
}

#[test]
fn a_torn_write_never_yields_a_mixture() {
    let (old, new) = (bytes_of(&one(4)), bytes_of(&one(5)));
    for sectors in 1..SUPERBLOCK_SIZE / SECTOR_SIZE {
        let torn = [&new[..sectors * SECTOR_SIZE], &old[sectors * SECTOR_SIZE..]].concat();
        match Superblock::decode(&torn) {
            // All that differs lies in the first sector, so the write is as good as complete.
            Ok(read) => assert_eq!(read.header.generation.get(), 5),
            Err(error) => assert_eq!(error, FormatError::Damaged { what: "superblock" }),
        }
    }
    let mut with_volume = one(5);
    with_volume.volumes.push(volume(1));
    let new = bytes_of(&with_volume);
    let torn = [&new[..SECTOR_SIZE], &old[SECTOR_SIZE..]].concat();
    assert!(Superblock::decode(&torn).is_err());
}

/// Blocks of the newest checkpoint and of the one before, and those of their indexes.
fn lengths(superblock: &mut Superblock, [newest, previous]: [(u64, u64); 2]) {
    let header = &mut superblock.header;
    let [newest, previous] = [newest, previous].map(|(all, index)| (all.into(), index.into()));
    (header.checkpoint_blocks, header.checkpoint_index_blocks) = newest;
    (header.previous_blocks, header.previous_index_blocks) = previous;
}

#[test]
fn impossible_values_are_named() {
    let change = |name: &str, change: fn(&mut Superblock)| {
        let mut superblock = one(1);
        change(&mut superblock);
        match Superblock::decode(&bytes_of(&superblock)) {
            Err(FormatError::Invalid { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    };
    change("device_count", |sb| sb.header.device_count = U16::new(0));
    change("device_count", |sb| sb.header.device_count = U16::new(17));
    change("device_index", |sb| sb.header.device_index = U16::new(1));
    change("segment_blocks", |sb| sb.header.segment_blocks = U32::new(1));
    change("shard_count", |sb| sb.header.shard_count = U16::new(2));
    change("volume_id_next", |sb| sb.header.volume_id_next = U32::new(0));
    change("volume_id_next", |sb| sb.volumes.push(volume(100)));
    change("clean", |sb| sb.header.clean = 2);
    change("checkpoint_area", |sb| sb.header.checkpoint_area = 2);
    change("checkpoint_area_bytes", |sb| sb.header.checkpoint_area_bytes = U64::new(4095));
    change("checkpoint_blocks", |sb| sb.header.checkpoint_blocks = U64::new(u64::MAX));
    change("previous_blocks", |sb| sb.header.previous_blocks = U64::new(1 << 52));
    change("checkpoint_index_blocks", |sb| sb.header.checkpoint_index_blocks = U64::new(1));
    change("previous_index_blocks", |sb| sb.header.previous_index_blocks = U64::new(1));
    change("checkpoint_index_blocks", |sb| lengths(sb, [(1, 2), (2, 2)]));
    change("previous_index_blocks", |sb| lengths(sb, [(2, 2), (1, 2)]));
    change("segments_offset", |sb| sb.header.segments_offset = U64::new(0));
    change("segments_offset", |sb| sb.header.checkpoint_area_bytes = U64::new(1 << 63));
    change("segment_count", |sb| sb.header.devices[0].segment_count = U32::new(7));
    change("segment_count", |sb| sb.header.devices[0].segment_count = U32::new(1 << 20));
    change("segment_count", |sb| {
        sb.header.segment_blocks = U32::new(2);
        sb.header.devices[0].segment_count = U32::new(SEGMENTS_MAX + 1);
        sb.header.devices[0].bytes = U64::new(1 << 40);
    });
    change("volume id", |sb| sb.volumes = vec![volume(0)]);
    change("volume id", |sb| sb.volumes = vec![volume(3), volume(3)]);
    change("volume bytes", |sb| {
        sb.volumes = vec![VolumeEntry { bytes: U64::new(513), ..volume(3) }];
    });
}

/// A crafted device put lines of its own into what udev reads of its loop device.
#[test]
fn names_that_nobody_could_have_given_are_refused_and_shown_escaped() {
    let of_pool = |name: &str| {
        let mut superblock = one(1);
        superblock.header.pool_name = text_field(name);
        superblock
    };
    let of_volume = |name: &str| {
        let mut superblock = one(1);
        superblock.volumes = vec![volume(2), VolumeEntry { name: text_field(name), ..volume(3) }];
        superblock
    };
    for name in
        ["", "..", "../../etc", "x\nSYSTEMD_WANTS=debug-shell.service", "\u{1b}[2J", "größe"]
    {
        for superblock in [of_pool(name), of_volume(name)] {
            let error = Superblock::decode(&bytes_of(&superblock)).unwrap_err();
            let FormatError::BadName { name: bad, .. } = error else { panic!("{error:?}") };
            assert_eq!(bad.0, text_field::<64>(name));
            let text = error.to_string();
            assert!(text.is_ascii() && !text.contains(|c: char| c.is_ascii_control()), "{text:?}");
        }
    }
    assert!(Superblock::decode(&bytes_of(&of_volume("v4"))).is_ok());
    let twice = Superblock::decode(&bytes_of(&of_volume("v2"))).unwrap_err();
    assert_eq!(twice, FormatError::Invalid { what: WHAT, field: "volume name" });
}

/// Puts the checksum of a changed copy right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = checksum_without(&bytes, CRC_FIELD);
    bytes[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn only_this_version_is_read() {
    let of_version = |version: u32| {
        let mut bytes = bytes_of(&one(1));
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        Superblock::decode(&sealed(bytes)).map(|_| ())
    };
    let what = WHAT;
    assert_eq!(of_version(0), Err(FormatError::Invalid { what, field: "version" }));
    for version in 1..FORMAT_VERSION {
        assert_eq!(of_version(version), Err(FormatError::TooOld { what, version }));
    }
    assert_eq!(of_version(FORMAT_VERSION), Ok(()));
    let version = FORMAT_VERSION + 1;
    assert_eq!(of_version(version), Err(FormatError::TooNewVersion { what, version }));
    assert_eq!(of_version(u32::MAX), Err(FormatError::TooNewVersion { what, version: u32::MAX }));
}

#[test]
fn a_damaged_copy_of_an_old_version_is_damaged_and_two_old_ones_are_too_old() {
    let old = || Err(FormatError::TooOld { what: WHAT, version: 1 });
    let damaged = || Err(FormatError::Damaged { what: WHAT });
    let mut bytes = bytes_of(&one(1));
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    assert_eq!(Superblock::decode(&bytes).map(|_| ()), damaged());
    let why = |copies| Superblock::choose(copies).map(|_| ());
    assert_eq!(why([old(), old()]), old().map(|_: Superblock| ()));
    let absent = Err(FormatError::NotOurs { what: WHAT });
    assert_eq!(why([absent, old()]), old().map(|_: Superblock| ()));
    // A pool that was made anew, of which only one copy is written yet.
    assert_eq!(why([Ok(one(1)), old()]), Ok(()));
}

#[test]
fn unused_volume_slots_are_skipped_wherever_they_are() {
    let mut superblock = one(1);
    superblock.volumes = vec![volume(1), volume(2), volume(3)];
    let mut bytes = bytes_of(&superblock);
    bytes[BLOCK_SIZE + 256 + 4] = 0;
    let bytes = sealed(bytes);
    let ids: Vec<u32> =
        Superblock::decode(&bytes).unwrap().volumes.iter().map(|volume| volume.id.get()).collect();
    assert_eq!(ids, [1, 3]);
}

#[test]
fn text_is_cut_between_characters() {
    assert_eq!(text_field::<4>("abc"), *b"abc\0");
    assert_eq!(text_field::<4>("abcde"), *b"abcd");
    assert_eq!(text_field::<4>("abcé"), *b"abc\0");
    assert_eq!(field_text(&text_field::<8>("größe")), "größe");
    assert_eq!(field_text(b"\xff\xfe\0junk"), "\u{fffd}\u{fffd}");
}
