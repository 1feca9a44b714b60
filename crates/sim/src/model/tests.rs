//! Histories that must be caught, and histories that must pass.

use super::*;

/// One step of a history of one sector. Stamps count up by themselves.
#[derive(Clone, Copy)]
enum Did {
    /// Write `id` begins.
    Begin(u64),
    /// Write `id` with FUA begins.
    BeginFua(u64),
    /// Zeros, write `id`, begin.
    BeginZero(u64),
    /// A discard, write `id`, begins.
    BeginDiscard(u64),
    /// Write `id` is acknowledged.
    Ack(u64),
    /// Write `id` is answered with an error.
    Fail(u64),
    /// A read begins and ends.
    Read(Value),
    /// Read number `n` begins.
    ReadBegin(usize),
    /// Read number `n` ends.
    ReadEnd(usize, Value),
    /// A flush begins and succeeds.
    Flush,
    /// Flush number `n` begins.
    FlushBegin(usize),
    /// Flush number `n` succeeds.
    FlushEnd(usize),
    Cut,
    Kill,
}

use Did::*;
const OLD: Value = Value::Data(0);
const A: Value = Value::Data(1);
const B: Value = Value::Data(2);
const ZERO: Value = Value::Zero;

/// Plays a history; every step before the last must pass.
fn play(steps: &[Did]) -> Result<(), Violation> {
    let mut sector = Sector::default();
    let (mut flushed, mut reflushed) = (0, false);
    let mut begun = [0; 4];
    for (index, step) in steps.iter().enumerate() {
        let now = index as Stamp + 1;
        let write = |id, zero, optional, fua| WriteSpec { id, zero, optional, fua };
        let mut begin = |spec| sector.begin(spec, now, 0, flushed);
        let result = match *step {
            Begin(id) => {
                begin(write(id, false, false, false));
                Ok(())
            }
            BeginFua(id) => {
                begin(write(id, false, false, true));
                Ok(())
            }
            BeginZero(id) => {
                begin(write(id, true, false, false));
                Ok(())
            }
            BeginDiscard(id) => {
                begin(write(id, true, true, false));
                Ok(())
            }
            Ack(id) => {
                sector.end(id, now, true);
                Ok(())
            }
            Fail(id) => {
                sector.end(id, now, false);
                Ok(())
            }
            Read(value) => sector.read(value, now, now),
            ReadBegin(read) | FlushBegin(read) => {
                begun[read] = now;
                Ok(())
            }
            ReadEnd(read, value) => sector.read(value, begun[read], now),
            Flush => {
                (flushed, reflushed) = (now, true);
                Ok(())
            }
            FlushEnd(flush) => {
                (flushed, reflushed) = (flushed.max(begun[flush]), true);
                Ok(())
            }
            Cut | Kill => {
                let crash = if matches!(step, Kill) { Crash::Kill } else { Crash::Cut };
                sector.crash(crash, flushed, reflushed);
                reflushed = false;
                Ok(())
            }
        };
        if index + 1 == steps.len() {
            return result;
        }
        result.unwrap_or_else(|violation| panic!("step {index}: {violation:?}"));
    }
    Ok(())
}

#[test]
fn legal_histories_pass() {
    let legal: &[(&str, &[Did])] = &[
        ("the old content", &[Read(OLD)]),
        ("read what was written", &[Begin(1), Ack(1), Read(A)]),
        ("a write under way is seen", &[Begin(1), Read(A), Read(A)]),
        ("a write under way is not seen yet", &[Begin(1), Read(OLD), Ack(1), Read(A)]),
        ("a slow read sees the old", &[ReadBegin(0), Begin(1), Ack(1), ReadEnd(0, OLD), Read(A)]),
        ("two at once, either order", &[Begin(1), Begin(2), Ack(2), Ack(1), Read(B), Read(B)]),
        ("two at once, other order", &[Begin(1), Begin(2), Ack(1), Ack(2), Read(A), Read(A)]),
        ("an unflushed write is lost", &[Begin(1), Ack(1), Cut, Read(OLD), Read(OLD)]),
        ("an unflushed write is kept", &[Begin(1), Ack(1), Cut, Read(A), Cut, Read(A)]),
        ("a flushed write is kept", &[Begin(1), Ack(1), Flush, Cut, Read(A)]),
        ("newer than flushed", &[Begin(1), Ack(1), Flush, Begin(2), Ack(2), Cut, Read(B)]),
        ("back to the flushed", &[Begin(1), Ack(1), Flush, Begin(2), Ack(2), Cut, Read(A)]),
        ("in flight at the cut", &[Begin(1), Cut, Read(A)]),
        ("in flight at the kill", &[Begin(1), Kill, Read(OLD)]),
        (
            "a flush too early covers nothing",
            &[Begin(1), FlushBegin(0), Ack(1), FlushEnd(0), Cut, Read(OLD)],
        ),
        ("a failed write is seen", &[Begin(1), Fail(1), Read(A), Read(A)]),
        ("a failed write is not seen", &[Begin(1), Fail(1), Read(OLD), Read(OLD)]),
        ("zeros", &[BeginZero(1), Ack(1), Read(ZERO)]),
        ("a discard does nothing", &[BeginDiscard(1), Ack(1), Read(OLD), Read(OLD)]),
        ("a discard zeroes", &[BeginDiscard(1), Ack(1), Read(ZERO), Read(ZERO)]),
        ("an unseen discard reverts", &[BeginDiscard(1), Ack(1), Flush, Cut, Read(OLD)]),
        ("a kill, unread, then a cut", &[Begin(1), Ack(1), Kill, Cut, Read(OLD)]),
        ("two crashes", &[Begin(1), Ack(1), Cut, Begin(2), Cut, Read(OLD)]),
    ];
    for (name, steps) in legal {
        assert_eq!(play(steps), Ok(()), "{name}");
    }
}

#[test]
fn illegal_histories_are_caught() {
    let illegal: &[(&str, &[Did])] = &[
        ("a lost write", &[Begin(1), Ack(1), Read(OLD)]),
        ("a value that was never written", &[Begin(1), Ack(1), Read(B)]),
        ("zeros from nowhere", &[Begin(1), Read(ZERO)]),
        ("flip-flop under way", &[Begin(1), Read(A), Read(OLD)]),
        ("flip-flop of two", &[Begin(1), Begin(2), Ack(1), Ack(2), Read(A), Read(B)]),
        ("the overwritten returns", &[Begin(1), Ack(1), Begin(2), Ack(2), Read(A)]),
        ("a flushed write is lost", &[Begin(1), Ack(1), Flush, Cut, Read(OLD)]),
        ("a FUA write is lost", &[BeginFua(1), Ack(1), Cut, Read(OLD)]),
        ("older than the flushed", &[Begin(1), Ack(1), Begin(2), Ack(2), Flush, Cut, Read(A)]),
        ("flip after a crash", &[Begin(1), Ack(1), Cut, Read(OLD), Read(A)]),
        ("flop after a crash", &[Begin(1), Ack(1), Cut, Read(A), Read(OLD)]),
        ("reverts at the next crash", &[Begin(1), Ack(1), Cut, Read(A), Cut, Read(OLD)]),
        ("a kill loses an acknowledged write", &[Begin(1), Ack(1), Kill, Read(OLD)]),
        ("a kill, a flush, a cut", &[Begin(1), Ack(1), Kill, Flush, Cut, Read(OLD)]),
        ("a zombie of a failed write", &[Begin(1), Fail(1), Read(OLD), Read(A)]),
        ("a zombie over a newer write", &[Begin(1), Fail(1), Begin(2), Ack(2), Read(A)]),
        (
            "a failed one after a flushed one",
            &[Begin(1), Fail(1), Begin(2), Ack(2), Flush, Cut, Read(A)],
        ),
        ("zeros that did not happen", &[BeginZero(1), Ack(1), Read(OLD)]),
        ("a discard that comes late", &[BeginDiscard(1), Ack(1), Read(OLD), Read(ZERO)]),
        ("a discard that is taken back", &[BeginDiscard(1), Ack(1), Read(ZERO), Read(OLD)]),
        ("a seen discard reverts", &[BeginDiscard(1), Ack(1), Read(ZERO), Flush, Cut, Read(OLD)]),
        ("zeros of an old discard", &[BeginDiscard(1), Ack(1), Begin(2), Ack(2), Read(ZERO)]),
        ("a late write of the life before", &[Begin(1), Cut, Begin(2), Ack(2), Read(A)]),
        (
            "a slow read of the overwritten",
            &[Begin(1), Ack(1), ReadBegin(0), Begin(2), ReadEnd(0, OLD)],
        ),
    ];
    for (name, steps) in illegal {
        assert!(play(steps).is_err(), "{name}");
    }
}

/// Forgetting dead versions changes no verdict: many writes, then reads of all values.
#[test]
fn pruning_changes_nothing() {
    for flushed in [true, false] {
        let mut sector = Sector::default();
        let mut now = 0;
        for id in 1..=100 {
            now += 2;
            let write = WriteSpec { id, zero: false, optional: false, fua: flushed };
            sector.begin(write, now, NEVER, 0);
            sector.end(id, now + 1, true);
        }
        assert_eq!(sector.versions.len() < 20, flushed);
        for id in 0..100 {
            assert!(sector.clone().read(Value::Data(id), now + 5, now + 6).is_err());
        }
        assert_eq!(sector.clone().read(Value::Data(100), now + 5, now + 6), Ok(()));
        sector.crash(Crash::Cut, 0, false);
        assert_eq!(sector.clone().read(Value::Data(50), now + 7, now + 8).is_err(), flushed);
    }
}

#[test]
fn errors_are_allowed_only_until_the_next_write() {
    let mut sector = Sector::default();
    let write = |id| WriteSpec { id, zero: false, optional: false, fua: false };
    sector.begin(write(1), 1, 0, 0);
    sector.lose(2);
    sector.end(1, 3, true);
    assert!(sector.is_lost(NEVER), "the harm came after the write began");
    sector.begin(write(2), 4, 0, 0);
    sector.end(2, 5, true);
    assert!(!sector.is_lost(NEVER));
    sector.crash(Crash::Cut, 0, false);
    assert!(sector.is_lost(NEVER), "the write that healed it may be gone");
    assert_eq!(sector.clone().read(Value::Data(1), 7, 8), Ok(()));
}

#[test]
fn a_write_that_a_killed_process_leaves_may_be_gone_after_a_power_cut() {
    let mut sector = Sector::default();
    sector.lose(1);
    sector.begin(WriteSpec { id: 2, zero: false, optional: false, fua: false }, 2, 0, 0);
    sector.end(2, 3, true);
    sector.crash(Crash::Kill, 0, false);
    assert!(!sector.is_lost(NEVER), "a killed process loses nothing");
    let mut flushed = sector.clone();
    sector.crash(Crash::Kill, 0, false);
    sector.crash(Crash::Cut, 0, false);
    assert!(sector.is_lost(NEVER), "what was harmed is what counts again");
    flushed.crash(Crash::Cut, 4, true);
    assert!(!flushed.is_lost(NEVER), "a FLUSH keeps the write");
}

#[test]
fn damage_in_a_life_voids_its_flushes_but_not_those_before() {
    let mut sector = Sector::default();
    for (id, at) in [(1, 1), (2, 5)] {
        let write = WriteSpec { id, zero: false, optional: false, fua: true };
        sector.begin(write, at, 0, 0);
        sector.end(id, at + 1, true);
        if id == 1 {
            sector.crash(Crash::Cut, 0, false);
        }
    }
    sector.crash(Crash::Damaged, 0, false);
    assert!(sector.clone().read(Value::Data(0), 9, 9).is_err());
    assert_eq!(sector.clone().read(Value::Data(1), 9, 9), Ok(()));
    assert_eq!(sector.clone().read(Value::Data(2), 9, 9), Ok(()));
}

#[test]
fn what_is_read_on_an_origin_that_nobody_flushed_is_not_settled() {
    let write = WriteSpec { id: 1, zero: false, optional: false, fua: false };
    let mut killed = Sector::default();
    killed.begin(write, 1, 0, 0);
    killed.crash(Crash::Kill, 0, false);
    let mut settled = killed.clone();
    assert_eq!(settled.read(Value::Data(1), 2, 3), Ok(()));
    settled.crash(Crash::Cut, 0, false);
    assert!(settled.read(Value::Data(0), 4, 5).is_err());
    assert_eq!(killed.read_unflushed(Value::Data(1), 2, 3), Ok(()));
    assert!(killed.clone().read(Value::Data(0), 4, 5).is_err(), "not without a power cut");
    killed.crash(Crash::Cut, 0, false);
    assert_eq!(killed.read(Value::Data(0), 4, 5), Ok(()));
}

#[test]
fn what_is_read_of_a_given_up_sector_is_not_settled_before_a_flush() {
    let write = |id| WriteSpec { id, zero: false, optional: false, fua: false };
    let mut given_up = Sector::default();
    given_up.begin(write(1), 1, 0, 0);
    given_up.also_allow(Value::Data(2), 5);
    assert!(given_up.is_chosen(4) && !given_up.is_chosen(6));
    assert_eq!(given_up.read_unflushed(Value::Data(1), 6, 7), Ok(()));
    let mut flushed = given_up.clone();
    given_up.crash(Crash::Cut, 4, true);
    assert_eq!(given_up.read(Value::Data(2), 8, 9), Ok(()));
    flushed.crash(Crash::Cut, 8, true);
    assert!(flushed.read(Value::Data(2), 9, 10).is_err());
}
