use super::*;

fn data(byte: u8, sectors: usize) -> Buf {
    let mut buf = Buf::zeroed(sectors * SECTOR_SIZE);
    buf.bytes_mut().fill(byte);
    buf
}

fn byte_at(disk: &Disk, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR_SIZE];
    disk.peek(sector, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "sector {sector} is torn inside");
    bytes[0]
}

fn write(disk: &mut Disk, op: u64, first: u64, byte: u8, sectors: usize, rng: &mut Rng) {
    disk.submit(OpId(op), first, Io::Write(data(byte, sectors)));
    let finished = disk.complete(OpId(op), 0, rng).expect("in flight");
    assert_eq!(finished.completion.result, Ok(()));
}

#[test]
fn flush_covers_what_completed_before_it_was_submitted() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, true);
    write(&mut disk, 1, 0, 1, 1, &mut rng);
    disk.submit(OpId(2), 1, Io::Write(data(2, 1)));
    disk.submit(OpId(3), 0, Io::Flush);
    disk.complete(OpId(2), 0, &mut rng);
    write(&mut disk, 4, 2, 3, 1, &mut rng);
    disk.complete(OpId(3), 0, &mut rng);
    assert_eq!(disk.pending(), 2);
    disk.power_cut(CutMode::DropAll, |_| false, &mut rng);
    assert_eq!([0, 1, 2].map(|sector| byte_at(&disk, sector)), [1, 0, 0]);
}

#[test]
fn a_disk_without_a_cache_loses_nothing_that_completed() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, false);
    write(&mut disk, 1, 0, 1, 8, &mut rng);
    disk.power_cut(CutMode::DropAll, |_| false, &mut rng);
    assert_eq!(byte_at(&disk, 7), 1);
}

#[test]
fn every_mode_keeps_what_it_says() {
    for mode in CUT_MODES {
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(64, Blank::Zero, true);
            for (op, first, byte) in [(1, 0, 1), (2, 1, 2), (3, 0, 3)] {
                write(&mut disk, op, first, byte, 2, &mut rng);
            }
            disk.power_cut(mode, |_| false, &mut rng);
            seen.insert([0, 1, 2].map(|sector| byte_at(&disk, sector)));
        }
        let expect = |states: &[[u8; 3]]| {
            assert_eq!(seen, states.iter().copied().collect(), "{mode:?}");
        };
        match mode {
            CutMode::DropAll => expect(&[[0, 0, 0]]),
            CutMode::KeepAll => expect(&[[3, 3, 2]]),
            CutMode::GlobalPrefix => expect(&[[0, 0, 0], [1, 1, 0], [1, 2, 2], [3, 3, 2]]),
            CutMode::NewestFirst => expect(&[[0, 0, 0], [3, 3, 0], [3, 3, 2]]),
            CutMode::PerWrite => assert!(seen.contains(&[3, 3, 0]) && seen.contains(&[0, 2, 2])),
            CutMode::Independent => assert!(seen.contains(&[0, 1, 2]) && seen.len() > 12),
            CutMode::OneSectorOnly => assert!(seen.contains(&[1, 0, 0]) && seen.len() > 6),
        }
    }
}

#[test]
fn writes_in_flight_are_torn_at_sectors_by_a_cut_but_not_by_a_kill() {
    let (mut torn, mut spoilt) = (false, 0);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut disk = Disk::new(64, Blank::Zero, true);
        disk.submit(OpId(1), 0, Io::Write(data(1, 8)));
        let mut killed = Disk::new(64, Blank::Zero, true);
        killed.submit(OpId(1), 0, Io::Write(data(1, 8)));
        disk.power_cut(CutMode::KeepAll, |_| false, &mut rng);
        let bytes: Vec<u8> = (0..8).map(|sector| byte_at(&disk, sector)).collect();
        torn |= bytes.contains(&0) && bytes.contains(&1);
        killed.kill(&mut rng);
        let bytes: Vec<u8> = (0..8).map(|sector| byte_at(&killed, sector)).collect();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a kill tears nothing");
        let mut third = Disk::new(64, Blank::Zero, true);
        third.submit(OpId(1), 0, Io::Write(data(1, 8)));
        spoilt += third.power_cut(CutMode::DropAll, |sector| sector == 3, &mut rng).spoilt;
    }
    assert!(torn);
    assert!(spoilt > 0 && spoilt < 50, "{spoilt} spoilt sectors");
}

#[test]
fn a_killed_process_leaves_pending_writes_alone() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, true);
    write(&mut disk, 1, 0, 1, 1, &mut rng);
    disk.kill(&mut rng);
    assert_eq!((byte_at(&disk, 0), disk.pending()), (1, 1));
    disk.power_cut(CutMode::DropAll, |_| false, &mut rng);
    assert_eq!(byte_at(&disk, 0), 0, "pending writes survive a kill, not a later cut");
}

#[test]
fn reads_see_submission_completion_or_what_is_on_its_way() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut disk = Disk::new(64, Blank::Zero, true);
        disk.submit(OpId(1), 0, Io::Read(data(9, 1)));
        write(&mut disk, 2, 0, 1, 1, &mut rng);
        disk.submit(OpId(3), 0, Io::Write(data(2, 1)));
        let finished = disk.complete(OpId(1), 0, &mut rng).expect("in flight");
        seen.insert(finished.completion.buf.bytes()[0]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2]));
}

#[test]
fn a_failed_flush_loses_what_its_kind_says() {
    let fault = Fault { kind: IoKind::Flush, first: 0, end: 0, from: 0, until: 9, one_in: 1 };
    for loss in [FlushLoss::Nothing, FlushLoss::Some, FlushLoss::Forget] {
        let mut rng = Rng::new(3);
        let mut disk = Disk::new(64, Blank::Zero, true);
        disk.flush_loss = loss;
        disk.faults.push(fault.clone());
        for sector in 0..10 {
            write(&mut disk, sector, sector, 1, 1, &mut rng);
        }
        disk.submit(OpId(99), 0, Io::Flush);
        let finished = disk.complete(OpId(99), 0, &mut rng).expect("in flight");
        assert_eq!(finished.completion.result, Err(IoError::Io));
        match loss {
            FlushLoss::Nothing => assert_eq!((disk.pending(), byte_at(&disk, 0)), (10, 1)),
            FlushLoss::Some => assert!(disk.pending() < 10),
            FlushLoss::Forget => assert_eq!((disk.pending(), byte_at(&disk, 0)), (0, 0)),
        }
    }
}

#[test]
fn unreadable_sectors_heal_when_written() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, true);
    disk.unreadable.insert(5);
    disk.submit(OpId(1), 4, Io::Read(data(0, 4)));
    let finished = disk.complete(OpId(1), 0, &mut rng).expect("in flight");
    assert_eq!(finished.completion.result, Err(IoError::Io));
    write(&mut disk, 2, 5, 7, 1, &mut rng);
    disk.submit(OpId(3), 5, Io::Read(data(0, 1)));
    let finished = disk.complete(OpId(3), 0, &mut rng).expect("in flight");
    assert_eq!((finished.completion.result, finished.completion.buf.bytes()[0]), (Ok(()), 7));
}

#[test]
fn a_page_that_goes_astray_leaves_its_place_alone() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, true);
    disk.submit(OpId(1), 0, Io::Write(data(1, 24)));
    disk.lead_astray(OpId(1), Astray { page: 8, lands: Some(40) });
    disk.complete(OpId(1), 0, &mut rng);
    let at = [0, 7, 8, 15, 16, 23, 40, 47, 48].map(|sector| byte_at(&disk, sector));
    assert_eq!(at, [1, 1, 0, 0, 1, 1, 1, 1, 0]);
}

#[test]
fn a_dead_disk_answers_nothing() {
    let mut rng = Rng::new(1);
    let mut disk = Disk::new(64, Blank::Zero, true);
    disk.dead_from = 5;
    disk.submit(OpId(1), 0, Io::Read(data(0, 1)));
    assert!(disk.complete(OpId(1), 4, &mut rng).expect("in flight").completion.result.is_ok());
    disk.submit(OpId(2), 0, Io::Read(data(0, 1)));
    assert!(disk.complete(OpId(2), 5, &mut rng).expect("in flight").completion.result.is_err());
}
