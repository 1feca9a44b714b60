//! Requests: what reaches the engine, and what the client is told.

use super::*;
use crate::frontend::nbd::BlockState;
use forebay_engine::{BlockStatus, RequestKind};
use forebay_nbd::wire::u32_at;

const STRUCTURED: u32 = 8;
const EXTENDED: u32 = 11;

fn simple(error: u32, cookie: u64) -> Bytes {
    bytes().u32(0x6744_6698).u32(error).u64(cookie)
}

fn structured(kind: u16, cookie: u64, data: Bytes) -> Bytes {
    let head = bytes().u32(0x668e_33ef).u16(1).u16(kind).u64(cookie);
    head.u32(data.0.len() as u32).raw(&data.0)
}

fn extended(kind: u16, cookie: u64, offset: u64, data: Bytes) -> Bytes {
    let head = bytes().u32(0x6e8a_278c).u16(1).u16(kind).u64(cookie).u64(offset);
    head.u64(data.0.len() as u64).raw(&data.0)
}

/// The error number of a structured or extended error chunk, with its text.
fn fault(out: &[u8]) -> (u32, String) {
    let at = if out[..4] == 0x6e8a_278cu32.to_be_bytes() { 32 } else { 20 };
    assert_eq!(out[6], 0x80);
    let len = usize::from(u16::from_be_bytes([out[at + 4], out[at + 5]]));
    let errno = u32::from_be_bytes(out[at..at + 4].try_into().unwrap());
    (errno, String::from_utf8(out[at + 6..at + 6 + len].to_vec()).unwrap())
}

#[test]
fn reads_in_three_forms() {
    let data = bytes().raw(&[0xaa; 1024]);
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 0, 9, 512, 1024));
    driven.carry_out(Ok(()), 0xaa);
    assert_eq!(driven.output(), simple(0, 9).raw(&data.0).0);

    let mut driven = Driven::open(&[STRUCTURED]);
    driven.send(bytes().request(4, 0, 9, 512, 1024));
    driven.carry_out(Ok(()), 0xaa);
    assert_eq!(driven.output(), structured(1, 9, bytes().u64(512).raw(&data.0)).0);

    let mut driven = Driven::open(&[EXTENDED]);
    driven.send(bytes().extended(0, 0, 9, 512, 1024));
    driven.carry_out(Ok(()), 0xaa);
    assert_eq!(driven.output(), extended(1, 9, 512, bytes().u64(512).raw(&data.0)).0);
    // Nothing to read is no data chunk.
    driven.send(bytes().extended(0, 0, 9, 512, 0));
    assert_eq!(driven.output(), extended(0, 9, 512, bytes()).0);
}

#[test]
fn commands_reach_the_engine_as_they_are_meant() {
    let zeroes = |unmap| RequestKind::WriteZeroes { unmap };
    let cases = [
        (0, 3, 0, 0, RequestKind::Flush, false),
        (1, 3, 0, 0, RequestKind::Flush, false),
        (0, 4, 4096, 512, RequestKind::Discard, false),
        (1, 4, 4096, 512, RequestKind::Discard, true),
        (0, 5, 4096, 512, RequestKind::Prefetch, false),
        (1, 5, 4096, 512, RequestKind::Prefetch, false),
        (0, 6, 4096, 512, zeroes(true), false),
        (2, 6, 4096, 512, zeroes(false), false),
        (0x13, 6, 4096, 512, zeroes(false), true),
    ];
    for (flags, command, offset, len, kind, fua) in cases {
        let mut driven = Driven::open(&[]);
        driven.send(bytes().request(flags, command, 3, offset, len));
        let (ticket, request) = driven.asked();
        assert_eq!((request.kind, request.fua), (kind, fua));
        assert_eq!((request.offset, request.len), (offset, u64::from(len)));
        assert_eq!(request.volume, VolumeId(7));
        assert_eq!(driven.output(), b"");
        driven.answer(ticket, Ok(()), request.buf);
        assert_eq!(driven.output(), simple(0, 3).0);
    }
}

#[test]
fn a_write_is_submitted_part_by_part_at_fixed_boundaries() {
    let mut driven = Driven::open(&[]);
    let (offset, len) = (MIB - 512, 2 * MIB + 1024);
    driven.send(bytes().request(1, 1, 3, offset, len as u32));
    driven.send(bytes().raw(&[1; 512]));
    let (first, request) = driven.asked();
    assert_eq!((request.offset, request.len), (MIB - 512, 512));
    assert!(request.fua);
    assert_eq!(request.buf.bytes(), [1; 512]);
    driven.answer(first, Ok(()), request.buf);
    driven.send(bytes().raw(&vec![2; MIB as usize]).raw(&vec![3; MIB as usize]));
    let (second, request2) = driven.asked();
    assert_eq!((request2.offset, request2.len), (MIB, MIB));
    let (third, request3) = driven.asked();
    assert_eq!((request3.offset, request3.len), (2 * MIB, MIB));
    driven.send(bytes().raw(&[4; 512]));
    let (fourth, request4) = driven.asked();
    assert_eq!((request4.offset, request4.len), (3 * MIB, 512));
    driven.answer(fourth, Ok(()), request4.buf);
    driven.answer(second, Ok(()), request2.buf);
    assert_eq!(driven.output(), b"");
    driven.answer(third, Ok(()), request3.buf);
    assert_eq!(driven.output(), simple(0, 3).0);
}

#[test]
fn a_write_that_fails_in_the_middle_is_answered_once_after_its_data() {
    let mut driven = Driven::open(&[STRUCTURED]);
    driven.send(bytes().request(0, 1, 3, 0, 3 << 20).raw(&vec![1; MIB as usize]));
    driven.carry_out(Err(IoError::Io), 0);
    assert_eq!(driven.output(), b"");
    driven.send(bytes().raw(&vec![1; 2 << 20]));
    assert!(driven.events.is_empty());
    let text = "the device failed";
    let data = bytes().u32(5).u16(text.len() as u16).raw(text.as_bytes()).u64(0);
    assert_eq!(driven.output(), structured(0x8002, 3, data).0);
    // The next request is understood.
    driven.send(bytes().request(0, 3, 4, 0, 0));
    driven.carry_out(Ok(()), 0);
    assert_eq!(driven.output(), simple(0, 4).0);
}

#[test]
fn a_read_that_fails_in_part_tells_where() {
    for options in [&[][..], &[STRUCTURED], &[EXTENDED]] {
        let mut driven = Driven::open(options);
        match options {
            [EXTENDED] => driven.send(bytes().extended(0, 0, 3, 0, 3 << 20)),
            _ => driven.send(bytes().request(0, 0, 3, 0, 3 << 20)),
        }
        driven.carry_out(Ok(()), 1);
        driven.carry_out(Err(IoError::Io), 1);
        assert_eq!(driven.output(), b"");
        driven.carry_out(Ok(()), 1);
        let text = "the device failed";
        let data = bytes().u32(5).u16(text.len() as u16).raw(text.as_bytes()).u64(MIB);
        let wanted = match options {
            [] => simple(5, 3),
            [STRUCTURED] => structured(0x8002, 3, data),
            _ => extended(0x8002, 3, 0, data),
        };
        assert_eq!(driven.output(), wanted.0);
    }
}

#[test]
fn errors_of_the_engine_become_errors_of_the_protocol() {
    let cases = [
        (IoError::Io, 5),
        (IoError::Invalid, 22),
        (IoError::NoSpace, 28),
        (IoError::Unsupported, 95),
        (IoError::Gone, 5),
        (IoError::Shutdown, 108),
    ];
    for (error, errno) in cases {
        let mut driven = Driven::open(&[]);
        driven.send(bytes().request(0, 4, 3, 0, 512));
        driven.carry_out(Err(error), 0);
        assert_eq!(driven.output(), simple(errno, 3).0);
    }
}

#[test]
fn requests_that_break_a_rule_get_the_error_for_it() {
    let size = 64 * MIB;
    let cases = [
        (0, 0, size, 512, 22),
        (0, 0, size - 512, 1024, 22),
        (0, 0, u64::MAX, 512, 22),
        (0, 0, 0, (64 << 20) + 512, 75),
        (0, 0, 7, 512, 22),
        (0, 0, 0, 100, 22),
        (0, 4, size, 512, 22),
        (0, 4, u64::MAX - 511, u32::MAX, 22),
        (0, 5, size, 512, 22),
        (0, 6, size, 512, 28),
        (0, 3, 0, 512, 22),
        (0, 3, 512, 0, 22),
        (0, 7, 0, 4096, 22),
        (0, 8, 0, 0, 22),
        (0, 999, 0, 512, 22),
        (1 << 2, 4, 0, 512, 22),
        (1 << 5, 0, 0, 512, 22),
        (1 << 15, 0, 0, 512, 22),
        (1 << 4, 4, 0, 512, 22),
        (1 << 3, 0, 0, 512, 22),
    ];
    for (flags, command, offset, len, errno) in cases {
        let mut driven = Driven::open(&[STRUCTURED]);
        driven.send(bytes().request(flags, command, 3, offset, len));
        assert!(driven.events.is_empty());
        let (got, text) = fault(&driven.output());
        assert_eq!(got, errno, "command {command}: {text}");
        assert!(text.len() > 10);
    }
    // Writes that are refused bring their data, which must not be taken for requests.
    let writes = [(size, 512, 28), (7, 512, 22), (0, 513, 22), (0, (64 << 20) + 512, 22)];
    for (offset, len, errno) in writes {
        let mut driven = Driven::open(&[]);
        driven.send(bytes().request(0, 1, 3, offset, len).raw(&vec![0x25; len as usize]));
        assert!(driven.events.is_empty());
        assert_eq!(driven.output(), simple(errno, 3).0);
        driven.send(bytes().request(0, 3, 4, 0, 0));
        assert_eq!(driven.asked().1.kind, RequestKind::Flush);
    }
    // Without chunks there is no EOVERFLOW, and no flag to keep chunks together.
    for (flags, len) in [(0, (64 << 20) + 512), (1 << 2, 512)] {
        let mut driven = Driven::open(&[]);
        driven.send(bytes().request(flags, 0, 3, 0, len));
        assert_eq!(driven.output(), simple(22, 3).0);
    }
}

#[test]
fn payloads_follow_the_rules_of_extended_headers() {
    let mut driven = Driven::open(&[EXTENDED]);
    driven.send(bytes().extended(1 << 5, 1, 3, 512, 512).raw(&[7; 512]));
    driven.carry_out(Ok(()), 0);
    assert_eq!(driven.output(), extended(0, 3, 512, bytes()).0);
    // A payload that the command does not take is thrown away.
    driven.send(bytes().extended(1 << 5, 4, 3, 512, 512).raw(&[7; 512]));
    assert_eq!(fault(&driven.output()).0, 22);
    driven.send(bytes().extended(0, 3, 4, 0, 0));
    driven.carry_out(Ok(()), 0);
    assert_eq!(driven.output(), extended(0, 4, 0, bytes()).0);
    // 64-bit lengths need no payload.
    driven.send(bytes().extended(0, 6, 3, 0, 1 << 40));
    assert_eq!(fault(&driven.output()).0, 28);
    driven.send(bytes().extended(1 << 5, 1, 3, 0, (64 << 20) + 512));
    assert!(driven.session.wants_close());
    // A compact header is a foreign word here.
    let mut driven = Driven::open(&[EXTENDED]);
    driven.send(bytes().request(0, 3, 4, 0, 0).u32(0));
    assert!(driven.session.wants_close());
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let mut driven = Driven::greeted();
    driven.send(bytes().option(7, bytes().string("locked").u16(0)));
    let out = driven.output();
    assert_eq!(u16::from_be_bytes([out[30], out[31]]), 0b101_0000_1111, "{out:?}");
    driven.events.clear();
    driven.send(bytes().request(0, 1, 3, 0, 512).raw(&[0; 512]));
    driven.send(bytes().request(0, 4, 4, 0, 512).request(0, 6, 5, 0, 512));
    let wanted = simple(1, 3).raw(&simple(1, 4).0).raw(&simple(1, 5).0);
    assert_eq!(driven.output(), wanted.0);
    assert!(driven.events.is_empty());
}

#[test]
fn fast_zero_is_refused_where_zeroing_is_slow() {
    let mut driven = Driven::open(&[]);
    let export = Arc::clone(driven.session.export().unwrap());
    export.fast_zero.store(false, std::sync::atomic::Ordering::Relaxed);
    driven.send(bytes().request(1 << 4, 6, 3, 0, 512));
    assert_eq!(driven.output(), simple(95, 3).0);
    driven.send(bytes().request(0, 6, 3, 0, 512));
    driven.carry_out(Ok(()), 0);
    assert_eq!(driven.output(), simple(0, 3).0);
}

#[test]
fn a_long_trim_has_few_parts_under_way_and_stops_at_an_error() {
    let Limits { dataless_bytes_max, zeroes_bytes_max, .. } = Limits::default();
    let parts_max = (4 * dataless_bytes_max / zeroes_bytes_max) as usize;
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 4, 3, 0, 40 << 20));
    assert_eq!(driven.events.len(), parts_max);
    for done in 0..10 {
        let (ticket, request) = driven.asked();
        assert_eq!((request.offset, request.len), (done * 4 * MIB, 4 * MIB));
        driven.answer(ticket, Ok(()), request.buf);
        assert!(driven.events.len() <= parts_max);
    }
    assert_eq!(driven.output(), simple(0, 3).0);
    driven.send(bytes().request(0, 4, 4, 0, 40 << 20));
    driven.carry_out(Err(IoError::Gone), 0);
    assert_eq!(driven.events.len(), parts_max - 1);
    while !driven.events.is_empty() {
        driven.carry_out(Ok(()), 0);
    }
    assert_eq!(driven.output(), simple(5, 4).0);
}

/// A client queued 1,024 requests to zero 4 GiB in 28 KiB: sixteen parts of each went to the
/// engine, and it carried them out for minutes after the client had left.
#[test]
fn requests_without_data_have_few_parts_under_way_together_and_turns() {
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 6, 0, 0, 60 << 20));
    for cookie in 1..100 {
        driven.send(bytes().request(0, 4, cookie, 0, 2 << 20).request(0, 5, cookie, 0, 4096));
    }
    let bytes_max = Limits::default().dataless_bytes_max;
    let mut zeroed = 0;
    // It is the first, and the others have their turns before its end.
    while zeroed < 15 {
        let asked = driven.events.iter().map(|event| match event {
            SessionEvent::Submit { request, .. } => match request.kind {
                RequestKind::Prefetch => request.len,
                _ => request.len / 4,
            },
            other => panic!("{other:?}"),
        });
        assert!(asked.sum::<u64>() < bytes_max + MIB);
        let (ticket, request) = driven.asked();
        zeroed += u64::from(request.kind == RequestKind::WriteZeroes { unmap: true });
        driven.answer(ticket, Ok(()), request.buf);
    }
    assert_eq!(driven.output().len(), 16 * 199, "all others");
    // What has not begun when the client leaves does not begin.
    for cookie in 0..100 {
        driven.send(bytes().request(0, 6, cookie, 0, 60 << 20));
    }
    driven.session.disconnected(&mut driven.bufs);
    for left in (0..driven.events.len()).rev() {
        driven.carry_out(Ok(()), 0);
        assert_eq!((driven.events.len(), driven.session.in_flight()), (left, left));
    }
}

#[test]
fn a_prefetch_for_which_there_is_no_memory_is_left_out() {
    let limits = Limits { payload_bytes_max: 4 << 20, ..Limits::default() };
    let budget = Arc::new(Budget::new(16 << 20, 512));
    let mut driven = Driven::new(table(), limits, Arc::clone(&budget)).open_with(&[]);
    driven.send(bytes().request(0, 5, 1, 0, 8 << 20));
    assert_eq!(budget.used_bytes(), 4 << 20, "it is counted");
    while !driven.events.is_empty() {
        driven.carry_out(Ok(()), 0);
    }
    assert_eq!((budget.used_bytes(), driven.output()), (0, simple(0, 1).0));
    (0..2).for_each(|cookie| driven.send(bytes().request(0, 0, cookie, 0, 4 << 20)));
    assert_eq!(driven.events.len(), 8);
    driven.send(bytes().request(0, 5, 3, 0, 8 << 20));
    assert_eq!((driven.events.len(), driven.output()), (8, simple(0, 3).0));
}

/// A session that has both contexts, in one of the two forms.
fn with_contexts(option: u32) -> Driven {
    let exports = table();
    exports.insert(export("disk", 1 << 43));
    let budget = Arc::new(Budget::new(256 * MIB, 512));
    let mut driven = Driven::new(exports, Limits::default(), budget);
    let queries = bytes().string("disk").u32(2).string("base:allocation").string("forebay:cache");
    let options = bytes().u32(3).option(option, bytes()).option(10, queries);
    driven.send(options.option(7, bytes().string("disk").u16(0)));
    driven.output();
    driven.events.clear();
    driven
}

impl Driven {
    /// Answers the status request, slice by slice: blocks 0 to 9 are dirty, up to 19 clean, others
    /// not cached. The first block, and how many.
    fn tell_status(&mut self) -> (u64, u64) {
        let (first, mut blocks) = self.tell_slice().expect("a status is asked");
        while let Some((block, count)) = self.tell_slice() {
            assert_eq!(block, first + blocks);
            blocks += count;
        }
        (first, blocks)
    }

    fn tell_slice(&mut self) -> Option<(u64, u64)> {
        let event = self.events.pop()?;
        let SessionEvent::Status { ticket, volume, block, count } = event else {
            panic!("no status was asked")
        };
        assert_eq!(volume, VolumeId(7));
        assert!(count <= Limits::default().status_slice_blocks);
        let mut last = None;
        let lookup = |at| {
            assert!(last.is_none_or(|last| last < at) && at >= block && at < block + count);
            last = Some(at);
            match at {
                0..10 => BlockStatus::Dirty,
                10..20 => BlockStatus::Clean,
                _ => BlockStatus::NotCached,
            }
        };
        self.session.status(ticket, lookup, &mut self.bufs, &mut self.events);
        Some((block, count))
    }
}

#[test]
fn block_status_has_a_chunk_for_each_context() {
    let chunk = |flags: u16, data: Bytes| {
        let head = bytes().u32(0x668e_33ef).u16(flags).u16(5).u64(3);
        head.u32(data.0.len() as u32).raw(&data.0)
    };
    let mut driven = with_contexts(STRUCTURED);
    driven.send(bytes().request(0, 7, 3, 4608, 100 << 10));
    assert_eq!(driven.tell_status(), (1, 26));
    let cache = bytes().u32(2).u32(9 * 4096 - 512).u32(3).u32(40960).u32(1);
    let wanted = chunk(0, bytes().u32(1).u32(100 << 10).u32(0))
        .raw(&chunk(1, cache.u32((100 << 10) - 19 * 4096 + 512).u32(0)).0);
    assert_eq!(driven.output(), wanted.0);
    // One extent only.
    driven.send(bytes().request(1 << 3, 7, 3, 0, 100 << 10));
    driven.tell_status();
    let wanted = chunk(0, bytes().u32(1).u32(100 << 10).u32(0))
        .raw(&chunk(1, bytes().u32(2).u32(40960).u32(3)).0);
    assert_eq!(driven.output(), wanted.0);
    driven.send(bytes().request(0, 7, 3, 0, 0));
    assert_eq!(fault(&driven.output()).0, 22);
}

#[test]
fn block_status_of_terabytes_has_64_bit_extents() {
    let chunk = |flags: u16, data: Bytes| {
        let head = bytes().u32(0x6e8a_278c).u16(flags).u16(6).u64(3).u64(0);
        head.u64(data.0.len() as u64).raw(&data.0)
    };
    let mut driven = with_contexts(EXTENDED);
    driven.send(bytes().extended(0, 7, 3, 0, 1 << 43));
    assert_eq!(driven.tell_status(), (0, 1 << 16));
    let cache = bytes().u32(2).u32(3).u64(40960).u32(0).u32(3).u64(40960).u32(0).u32(1);
    let wanted = chunk(0, bytes().u32(1).u32(1).u64(1 << 43).u32(0).u32(0))
        .raw(&chunk(1, cache.u64((65536 - 20) * 4096).u32(0).u32(0)).0);
    assert_eq!(driven.output(), wanted.0);
    // Of one context that the payload names; the other is not asked.
    let ask = |ids: &[u32], len: u64| {
        let payload = ids.iter().fold(bytes().u64(len), |payload, id| payload.u32(*id));
        bytes().extended(1 << 5, 7, 3, 0, payload.0.len() as u64).raw(&payload.0)
    };
    driven.send(ask(&[1], 1 << 42));
    let wanted = chunk(1, bytes().u32(1).u32(1).u64(1 << 42).u32(0).u32(0));
    assert_eq!(driven.output(), wanted.0);
    for ids in [&[3][..], &[1, 1], &[], &[u32::MAX]] {
        driven.send(ask(ids, 4096));
        assert_eq!(fault(&driven.output()).0, 22, "{ids:?}");
    }
    driven.send(ask(&[1, 2], 1 << 44));
    assert_eq!(fault(&driven.output()).0, 22);
}

#[test]
fn holes_are_told_where_the_origin_tells_them() {
    let exports = table();
    exports.insert(Export { sparse: true, ..export("disk", 1 << 30) });
    let budget = Arc::new(Budget::new(256 * MIB, 512));
    let mut driven = Driven::new(exports, Limits::default(), budget);
    let queries = bytes().string("disk").u32(1).string("base:allocation");
    let options = bytes().u32(3).option(STRUCTURED, bytes()).option(10, queries);
    driven.send(options.option(7, bytes().string("disk").u16(0)));
    driven.output();
    driven.events.clear();
    driven.send(bytes().request(0, 7, 3, 512, 10 * 4096));
    let Some(SessionEvent::Status { ticket, .. }) = driven.events.pop() else { panic!("none") };
    // Data, a hole with a dirty and a clean block in it, data.
    let lookup = |block| BlockState {
        cache: match block {
            4 => BlockStatus::Dirty,
            6 => BlockStatus::Clean,
            _ => BlockStatus::NotCached,
        },
        hole: (2..8).contains(&block),
    };
    driven.session.status(ticket, lookup, &mut driven.bufs, &mut driven.events);
    let out = driven.output();
    let extents: Vec<(u32, u32)> =
        out[24..].chunks(8).map(|pair| (u32_at(pair, 0), u32_at(pair, 4))).collect();
    let wanted = [(8192 - 512, 0), (8192, 3), (4096, 0), (3 * 4096, 3), (2 * 4096 + 512, 0)];
    assert_eq!(extents, wanted);
}

#[test]
fn disconnect_waits_for_what_is_under_way() {
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 3, 3, 0, 0).request(0, 2, 4, 0, 0).raw(b"not heard"));
    assert!(!driven.session.wants_close());
    driven.carry_out(Ok(()), 0);
    assert!(!driven.session.wants_close());
    assert_eq!(driven.output(), simple(0, 3).0);
    assert!(driven.session.wants_close());
}

#[test]
fn a_stopping_server_finishes_and_refuses() {
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 3, 3, 0, 0));
    driven.session.shutdown();
    driven.send(bytes().request(0, 0, 4, 0, 512));
    assert_eq!(driven.output(), simple(108, 4).0);
    assert!(!driven.session.wants_close());
    driven.carry_out(Ok(()), 0);
    assert_eq!(driven.output(), simple(0, 3).0);
    assert!(driven.session.wants_close());
}

#[test]
fn a_client_that_hangs_up_leaves_nothing_behind() {
    let budget = Arc::new(Budget::new(256 * MIB, 512));
    let mut driven = Driven::new(table(), Limits::default(), Arc::clone(&budget)).open_with(&[]);
    driven.send(bytes().request(0, 0, 1, 0, 8 << 20).request(0, 0, 2, 0, 4096));
    driven.send(bytes().request(0, 4, 3, 0, 64 << 20));
    driven.send(bytes().request(0, 1, 4, 0, 2 << 20).raw(&vec![1; (1 << 20) + 5]));
    let waiting = driven.events.len();
    driven.session.disconnected(&mut driven.bufs);
    assert!(driven.session.wants_close());
    for left in (0..waiting).rev() {
        driven.carry_out(Err(IoError::Io), 0);
        assert_eq!(driven.session.in_flight(), left);
    }
    assert!(driven.events.is_empty());
    assert_eq!(driven.output(), b"");
    drop(driven);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_used_up_budget_slows_every_client_of_a_volume_and_stops_none() {
    let limits = || Limits { payload_bytes_max: 4 << 20, ..Limits::default() };
    let (budget, exports) = (Arc::new(Budget::new(16 << 20, 512)), table());
    let driven = || Driven::new(Arc::clone(&exports), limits(), Arc::clone(&budget)).open_with(&[]);
    let (mut greedy, mut modest) = (driven(), driven());
    for cookie in 0..2 {
        greedy.send(bytes().request(0, 0, cookie, 0, 4 << 20));
    }
    assert_eq!(budget.used_bytes(), 8 << 20, "half of it");
    // One part is always possible, ...
    modest.send(bytes().request(0, 0, 1, 0, 4096));
    assert!(!modest.session.paused());
    // ... the next has to wait, and so has what follows.
    let next = bytes().request(0, 0, 2, 0, 4096).request(0, 3, 3, 0, 0);
    let taken = modest.session.receive(&next.0, &mut modest.bufs, &mut modest.events);
    assert_eq!(taken, 28);
    assert!(modest.session.paused());
    modest.carry_out(Ok(()), 0);
    assert_eq!(modest.output().len(), 16 + 4096);
    let rest = &next.0[taken..];
    assert_eq!(modest.session.receive(rest, &mut modest.bufs, &mut modest.events), rest.len());
    assert!(!modest.session.paused());
    assert_eq!(modest.asked().1.kind, RequestKind::Read);
    assert_eq!(modest.asked().1.kind, RequestKind::Flush);
}

#[test]
fn volumes_whose_requests_never_end_leave_room_for_requests_of_others() {
    let budget = Arc::new(Budget::new(256 * MIB, 512));
    let driven = |exports: &Arc<ExportTable>| {
        let (exports, budget) = (Arc::clone(exports), Arc::clone(&budget));
        Driven::new(exports, Limits::default(), budget).open_with(&[])
    };
    let mut stuck: Vec<Driven> = Vec::new();
    let request = |cookie, len| bytes().request(0, 0, cookie, 0, len);
    for volume in 0..3 {
        // A table of its own: another volume.
        let exports = table();
        let mut clients: Vec<Driven> = (0..8).map(|_| driven(&exports)).collect();
        for cookie in 0..4 {
            for it in &mut clients {
                let input = request(cookie, 16 << 20).0;
                it.session.receive(&input, &mut it.bufs, &mut it.events);
            }
        }
        let left = 256 * MIB - budget.used_bytes();
        assert!(left >= (256 * MIB) >> (volume + 1), "{volume}: {left}");
        stuck.append(&mut clients);
    }
    let mut other = driven(&table());
    for cookie in 0..2 {
        other.send(request(cookie, 8 << 20));
        assert!(!other.session.paused(), "its {cookie}th");
    }
    // Who stops to wait for the answers gives back what the kernel and the engine do not hold.
    drop(stuck);
    assert_eq!(budget.used_bytes(), 16 * MIB);
}

#[test]
#[should_panic]
fn a_ticket_is_good_for_one_answer() {
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 3, 3, 0, 0));
    let (ticket, _) = driven.asked();
    driven.answer(ticket, Ok(()), Buf::empty());
    driven.answer(ticket, Ok(()), Buf::empty());
}

#[test]
fn what_is_being_sent_stays_as_it_is_and_its_rest_comes_first() {
    let mut driven = Driven::open(&[]);
    driven.send(bytes().request(0, 3, 3, 0, 0).request(0, 3, 4, 0, 0));
    driven.carry_out(Ok(()), 0);
    let parcel = driven.session.output(8, &mut driven.bufs);
    driven.carry_out(Ok(()), 0);
    assert_eq!(parcel.slices().collect::<Vec<_>>(), [simple(0, 3).0]);
    driven.session.sent(parcel, 10, &mut driven.bufs);
    let parcel = driven.session.output(8, &mut driven.bufs);
    let slices: Vec<_> = parcel.slices().collect();
    assert_eq!(slices, [&simple(0, 3).0[10..], &simple(0, 4).0[..]]);
    driven.session.sent(parcel, 10, &mut driven.bufs);
    assert_eq!(driven.output(), simple(0, 4).0[4..]);
}
