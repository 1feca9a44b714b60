//! Starts that are cut short, at each step, and what the next one finds.

mod rig;

use forebay_format::io::IoError;
use forebay_format::tier::{
    DOUBLES_OFFSET, HEAD_OFFSETS, PAGE_ENTRIES, SUPERBLOCK_OFFSETS, TierLayout,
};
use forebay_tier::Placement;
use rig::{Cut, Op, Rig};

const BLANK: u8 = rig::BLANK;

/// A life with everything that a kill leaves: what is flushed, what is not, partly written extents,
/// and a place that was left.
fn lived() -> Rig {
    let mut rig = Rig::new();
    rig.open(1);
    rig.run_to_open();
    rig.write(0, 0, 10);
    rig.write(1, 3, 11);
    assert_eq!(rig.flush(), Ok(()));
    rig.write(2, 5, 12);
    rig.discard(0);
    rig.kill();
    rig
}

/// What was flushed is there, and nothing is there that nobody wrote.
fn has_what_was_flushed(rig: &mut Rig, what: &str) {
    let discarded = rig.read(0, 0);
    assert!(matches!(discarded, Ok(0 | 10)), "{what}: extent 0 is {discarded:?}");
    assert_eq!(rig.read(1, 3), Ok(11), "{what}: extent 1");
    assert_eq!(rig.read(1, 4), Ok(0), "{what}: nobody wrote it");
    let unflushed = rig.read(2, 5);
    assert!(matches!(unflushed, Ok(0 | 12)), "{what}: extent 2 is {unflushed:?}");
    assert_eq!(rig.read(2, 6), Ok(0), "{what}: nobody wrote it");
}

/// What was answered is there.
fn has_what_was_answered(rig: &mut Rig, what: &str) {
    assert_eq!(rig.read(0, 0), Ok(0), "{what}: it was discarded");
    assert_eq!(rig.read(2, 5), Ok(12), "{what}: extent 2");
    has_what_was_flushed(rig, what);
}

/// Events of a whole start.
fn length(rig: &Rig) -> usize {
    let mut rig = rig.clone();
    rig.open(1);
    rig.run_to_open();
    rig.log.len()
}

/// Of two copies of a superblock one is torn: whatever its number is, the next goes over that one,
/// and the one after it over the other.
#[test]
fn a_superblock_never_goes_over_the_only_valid_copy() {
    for lives in 1..4 {
        for (torn, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            let mut rig = Rig::new();
            for _ in 0..lives {
                rig.open(1);
                rig.run_to_open();
                rig.kill();
            }
            rig.spoil(1, offset);
            rig.open(1);
            rig.run_to_open();
            let is_own =
                |op: &&Op| matches!(op, Op::Write(1, at) if SUPERBLOCK_OFFSETS.contains(at));
            let own: Vec<Op> = rig.log.iter().filter(is_own).copied().collect();
            let expected = [torn, 1 - torn].map(|copy| Op::Write(1, SUPERBLOCK_OFFSETS[copy]));
            assert_eq!(own, expected, "after {lives} lives, copy {torn} is torn");
        }
    }
}

/// A start flushes all members before it writes anything: what it has read may be in caches.
#[test]
fn a_start_flushes_all_members_before_it_writes() {
    let mut rig = lived();
    rig.open(1);
    rig.run_to_open();
    let first = rig.log.iter().position(|op| matches!(op, Op::Write(..))).unwrap();
    for member in 0..2 {
        assert!(rig.log[..first].contains(&Op::Flush(member, true)), "{:?}", &rig.log[..=first]);
    }
}

/// The superblocks name a life, durably, before any record, page or head of it is written: however
/// long that takes. A place that a killed life had left was to become free soon.
#[test]
fn no_record_is_written_before_the_superblocks_name_its_life() {
    for late in [None, Some(0), Some(1)] {
        let mut rig = lived();
        rig.late = late;
        rig.open(1);
        rig.run_to_open();
        let log = &rig.log;
        let is_map = |op: &Op| matches!(op, Op::Write(_, at) if *at >= HEAD_OFFSETS[0]);
        let first = log.iter().position(is_map).unwrap();
        for member in 0..2 {
            let names =
                |op: &Op| matches!(op, Op::Write(it, at) if *it == member && *at < HEAD_OFFSETS[0]);
            let named = log.iter().position(names).unwrap();
            assert!(named < first, "{late:?}: {:?}", &log[..=first]);
            assert!(log[named..first].contains(&Op::Flush(member, true)), "{late:?}: {log:?}");
        }
    }
}

/// Flushed data was lost: a start after a kill confirmed at once what the killed life had not, gave
/// places back, and said it in pages; then the power went, and the old journal counted.
#[test]
fn a_start_that_the_power_cuts_short_anywhere_loses_nothing() {
    let rig = lived();
    let steps = length(&rig);
    for step in 0..=steps {
        for cut in [Cut::All, Cut::None, Cut::Some(1), Cut::Some(2), Cut::Some(3)] {
            let what = format!("power cut after step {step} of {steps}, {cut:?}");
            let mut rig = rig.clone();
            rig.open(1);
            rig.steps(step);
            rig.cut(cut);
            rig.open(2);
            rig.run_to_open();
            has_what_was_flushed(&mut rig, &what);
            rig.write(3, 0, 13);
            rig.write(4, 0, 14);
            has_what_was_flushed(&mut rig, &what);
        }
    }
}

/// And what a kill cuts short loses nothing that was answered, whatever cuts the next start short.
#[test]
fn a_start_that_is_killed_anywhere_loses_nothing() {
    let rig = lived();
    let steps = length(&rig);
    for step in 0..=steps {
        let mut rig = rig.clone();
        rig.open(1);
        rig.steps(step);
        rig.kill();
        for again in (step % 3..=steps).step_by(3) {
            let what = format!("killed after step {step}, and {again} of the next start");
            let mut rig = rig.clone();
            rig.open(1);
            rig.steps(again);
            let mut cut = rig.clone();
            rig.kill();
            rig.open(1);
            rig.run_to_open();
            has_what_was_answered(&mut rig, &what);
            cut.cut(Cut::Some(again as u64));
            cut.open(2);
            cut.run_to_open();
            has_what_was_flushed(&mut cut, &format!("{what}, then the power went"));
        }
    }
}

/// A flush that fails at a start may have lost what nobody can tell: the next start, whose flush is
/// well, does not believe what was not confirmed, and the first FLUSH of a client fails, once.
#[test]
fn a_flush_that_fails_at_a_start_is_remembered_by_the_next() {
    for member in 0..2 {
        let mut rig = lived();
        rig.fail_flushes(member, 1);
        rig.open(1);
        rig.run_until_named();
        rig.kill();
        rig.open(1);
        rig.run_to_open();
        has_what_was_flushed(&mut rig, "a flush failed at the start before");
        assert_ne!(rig.read(2, 5), Ok(BLANK), "what was there before is not taken for data");
        assert_eq!(rig.flush(), Err(IoError::Io), "somebody hears of it");
        assert_eq!(rig.flush(), Ok(()), "once");
        rig.kill();
        rig.open(1);
        rig.run_to_open();
        assert_eq!(rig.flush(), Ok(()), "and not in the next life again");
    }
}

/// The same start goes on: as after a power loss, and its first FLUSH fails.
#[test]
fn a_start_goes_on_after_a_flush_that_failed() {
    for member in 0..2 {
        let mut rig = lived();
        rig.fail_flushes(member, 1);
        rig.open(1);
        rig.run_to_open();
        has_what_was_flushed(&mut rig, "a flush failed");
        assert_eq!(rig.flush(), Err(IoError::Io), "member {member}");
        assert_eq!(rig.flush(), Ok(()));
    }
}

/// Who is killed before a client heard of a flush that failed leaves it to the next life to say so.
#[test]
fn a_failed_flush_of_which_nobody_heard_is_told_by_the_next_life() {
    let mut rig = Rig::new();
    rig.open(1);
    rig.run_to_open();
    rig.write(0, 0, 10);
    rig.discard(0);
    rig.fail_flushes(0, 1);
    rig.run_background();
    assert!(rig.log.contains(&Op::Flush(0, false)), "{:?}", rig.log);
    rig.kill();
    rig.open(1);
    rig.run_to_open();
    assert_eq!(rig.flush(), Err(IoError::Io));
    assert_eq!(rig.flush(), Ok(()));
}

/// The whole set was refused: a start had been cut short when one holder had its new head, and then
/// a page went bad there. The other holder has the life before, which is the same.
#[test]
fn a_page_that_is_bad_beside_a_new_head_is_taken_from_the_holder_without_one() {
    let rig = lived();
    let mut met = 0;
    for step in 0..=length(&rig) {
        for new in 0..2 {
            let mut rig = rig.clone();
            rig.late_heads = Some(1 - new);
            rig.open(1);
            rig.steps(step);
            let heads = |it: u8| {
                let goes_to = |at: &u64| HEAD_OFFSETS.contains(at);
                let is_head =
                    |op: &&Op| matches!(op, Op::Write(by, at) if *by == it && goes_to(at));
                rig.log.iter().filter(is_head).count()
            };
            let is_between = heads(new) == 1 && heads(1 - new) == 0;
            rig.kill();
            // Its double, too.
            rig.spoil(usize::from(new), rig::PAGES_OFFSET);
            rig.spoil(usize::from(new), DOUBLES_OFFSET);
            for is_cut in [false, true] {
                let what = format!("killed after step {step}, page of {new} bad, {is_cut}");
                let mut rig = rig.clone();
                if is_cut {
                    rig.cut(Cut::None);
                }
                rig.open(if is_cut { 2 } else { 1 });
                rig.run_to_open();
                match is_cut {
                    true => has_what_was_flushed(&mut rig, &what),
                    false => has_what_was_answered(&mut rig, &what),
                }
            }
            met += usize::from(is_between);
        }
    }
    assert!(met > 0, "no start was between two heads");
}

/// A start panicked: it says all again that was not confirmed, and there was no room for so much
/// in the journal. A large volume had been discarded, and more was written, while a device was
/// slow to flush.
#[test]
fn a_start_has_room_to_say_again_what_was_not_confirmed() {
    const EXTENTS: u64 = 5400;
    let mut rig = Rig::large(EXTENTS as u32);
    rig.open(1);
    rig.run_to_open();
    for extent in 0..EXTENTS {
        rig.write(extent, 0, 1);
    }
    assert_eq!(rig.flush(), Ok(()));
    rig.holds_flushes = true;
    rig.discard_all(EXTENTS);
    // Until there is no room; what is written is not confirmed either.
    let written = (0..EXTENTS).take_while(|&extent| rig.write_in_vain(extent)).count() as u64;
    assert!((10..EXTENTS).contains(&written), "{written}");
    rig.kill();
    for is_cut in [false, true] {
        let mut rig = rig.clone();
        if is_cut {
            rig.cut(Cut::All);
        }
        rig.open(if is_cut { 2 } else { 1 });
        rig.run_to_open();
        let last = if is_cut { Ok(BLANK) } else { Ok(0) };
        assert_eq!(rig.read(EXTENTS - 1, 0), last, "the last one was discarded");
        rig.write(0, 0, 1);
        assert_eq!(rig.flush(), Ok(()));
    }
}

/// A start that cannot read the map writes nothing at all.
#[test]
fn a_start_that_fails_to_read_writes_nothing() {
    let mut rig = lived();
    for member in 0..2 {
        HEAD_OFFSETS.iter().for_each(|&offset| rig.spoil(member, offset));
    }
    rig.open(1);
    rig.steps(1000);
    assert!(!rig.log.iter().any(|op| matches!(op, Op::Write(..))), "{:?}", rig.log);
}

/// Of a volume of 10 TiB it wrote each page of the map before it served: 6 s.
#[test]
fn a_start_of_a_large_volume_writes_a_bounded_part_of_its_map() {
    const PAGES: u64 = 600;
    const EXTENTS: u64 = 2 * PAGES * PAGE_ENTRIES as u64;
    let mut rig = Rig::large(EXTENTS as u32);
    rig.fine_max = 4096;
    rig.open(1);
    rig.run_to_open();
    // Every second page, so that each is written by itself.
    let extents: Vec<u64> = (0..PAGES).map(|it| 2 * it * u64::from(PAGE_ENTRIES)).collect();
    for (number, &extent) in extents.iter().enumerate() {
        rig.write(extent, 0, 1);
        if number % 50 == 49 {
            assert_eq!(rig.flush(), Ok(()));
        }
    }
    let journal_blocks = TierLayout::journal_blocks_min(EXTENTS as u32);
    let layout = TierLayout { journal_blocks, extents_max: EXTENTS as u32 };
    let pages = layout.page_offset(0)..layout.slots_offset();
    let is_page = |op: &&Op| matches!(op, Op::Write(0, offset) if pages.contains(offset));
    // What the journal says again of extents that are partly written is no news.
    for most in [320, 0] {
        rig.kill();
        rig.open(1);
        rig.run_to_open();
        let written = rig.log.iter().filter(is_page).count();
        assert!(written <= most, "{written}");
    }
    for extent in extents {
        assert_eq!(rig.read(extent, 0), Ok(BLANK), "its place, of which nothing is kept");
    }
}

/// A volume of 10 TiB that nobody used took half of a core for plans.
#[test]
fn plans_of_a_large_volume_take_a_small_part_of_the_time() {
    let mut rig = Rig::large(10 << 20);
    rig.placement = Placement::Heat;
    rig.open(1);
    rig.run_to_open();
    let ticks = rig.ticks_in(1_000_000_000);
    assert!((50..=150).contains(&ticks), "{ticks} slices of a walk in a second");
}
