//! Options: each with what it answers, and each way to get it wrong.

use super::*;
use crate::frontend::nbd::core::{Core, Policy};

const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;
/// Read-write: flags, flush, FUA, trim, zeroes, multi-conn, cache, fast zero.
const FLAGS: u16 = 0b1101_0110_1101;

/// The type of the one reply that `driven` has queued.
fn refusal(driven: &mut Driven) -> u32 {
    let out = driven.output();
    assert_eq!(u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize + 20, out.len());
    u32::from_be_bytes(out[12..16].try_into().unwrap())
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let mut driven = Driven::plain();
    driven.send(bytes().u32(4));
    assert!(driven.session.wants_close());
    assert_eq!(driven.output(), b"");
}

#[test]
fn export_name_answers_old_clients_with_zeroes() {
    for (flags, zeroes) in [(0, 124), (1, 124), (3, 0)] {
        let mut driven = Driven::plain();
        driven.send(bytes().u32(flags).option(1, bytes().raw(b"disk")));
        let wanted = bytes().u64(64 * MIB).u16(FLAGS).raw(&vec![0; zeroes]);
        assert_eq!(driven.output(), wanted.0);
        assert!(matches!(&driven.events[..], [SessionEvent::Opened(e)] if e.name == "disk"));
    }
}

#[test]
fn export_name_knows_no_error_but_to_hang_up() {
    for (options, name) in [(vec![], &b"absent"[..]), (vec![], b"\xff"), (vec![11], b"disk")] {
        let mut driven = Driven::greeted();
        for option in options {
            driven.send(bytes().option(option, bytes()));
            driven.output();
        }
        driven.send(bytes().option(1, bytes().raw(name)));
        assert!(driven.session.wants_close());
        assert_eq!(driven.output(), b"");
    }
    let mut driven = Driven::greeted();
    driven.send(bytes().option(1, bytes().raw(&[b'x'; 4097])));
    assert!(driven.session.wants_close());
}

#[test]
fn the_empty_name_is_the_only_export() {
    let exports = table();
    let open = |exports: &Arc<ExportTable>| {
        let budget = Arc::new(Budget::new(256 * MIB, 512));
        let mut driven = Driven::new(Arc::clone(exports), Limits::default(), budget);
        driven.send(bytes().u32(3).option(7, bytes().string("").u16(0)));
        driven.session.export().map(|export| export.name.clone())
    };
    assert_eq!(open(&exports), None);
    exports.remove("locked");
    assert_eq!(open(&exports).as_deref(), Some("disk"));
}

#[test]
fn list_names_every_export() {
    let mut driven = Driven::greeted();
    driven.send(bytes().option(3, bytes()));
    let wanted = bytes()
        .raw(&reply(3, 2, bytes().string("disk").raw(b"about disk")).0)
        .raw(&reply(3, 2, bytes().string("locked").raw(b"about locked")).0)
        .raw(&reply(3, ACK, bytes()).0);
    assert_eq!(driven.output(), wanted.0);
    driven.send(bytes().option(3, bytes().raw(b"x")));
    assert_eq!(refusal(&mut driven), INVALID);
}

#[test]
fn info_and_go_tell_size_names_and_block_sizes() {
    for option in [6, 7] {
        let mut driven = Driven::greeted();
        driven.send(bytes().option(option, bytes().string("disk").u16(2).u16(1).u16(2)));
        let wanted = bytes()
            .raw(&reply(option, 3, bytes().u16(0).u64(64 * MIB).u16(FLAGS)).0)
            .raw(&reply(option, 3, bytes().u16(1).raw(b"disk")).0)
            .raw(&reply(option, 3, bytes().u16(2).raw(b"about disk")).0)
            .raw(&reply(option, 3, bytes().u16(3).u32(512).u32(4096).u32(64 << 20)).0)
            .raw(&reply(option, ACK, bytes()).0);
        assert_eq!(driven.output(), wanted.0);
        assert_eq!(driven.session.in_handshake(), option == 6);
    }
}

#[test]
fn options_that_are_wrong_are_refused_and_the_next_is_heard() {
    let long_name = bytes().string(&"x".repeat(4097)).u16(0);
    let long_query = bytes().string("disk").u32(1).string(&"x".repeat(4097));
    let cases = [
        (6, bytes(), INVALID),
        (6, bytes().string("disk"), INVALID),
        (6, bytes().string("disk").u16(1), INVALID),
        (6, bytes().string("disk").u16(0).u16(0), INVALID),
        (6, bytes().u32(5).raw(b"disk").u16(0), INVALID),
        (6, bytes().u32(u32::MAX).raw(b"disk").u16(0), TOO_BIG),
        (6, bytes().string("di\0sk").u16(0), INVALID),
        (6, bytes().u32(1).raw(&[0xff]).u16(0), INVALID),
        (6, long_name, TOO_BIG),
        (7, bytes().string("absent").u16(0), UNKNOWN),
        (8, bytes().raw(b"x"), INVALID),
        (11, bytes().raw(b"x"), INVALID),
        (5, bytes(), (1 << 31) + 2),
        (5, bytes().raw(b"x"), INVALID),
        (4, bytes(), (1 << 31) + 1),
        (12345, bytes().raw(b"whatever"), (1 << 31) + 1),
        (99, bytes().raw(&vec![0; 65537]), TOO_BIG),
        // Before structured replies.
        (9, bytes().string("disk").u32(0), INVALID),
        (10, bytes().string("disk").u32(0), INVALID),
    ];
    for (option, data, wanted) in cases {
        let mut driven = Driven::greeted();
        driven.send(bytes().option(option, data));
        assert_eq!(refusal(&mut driven), wanted, "option {option}");
        driven.send(bytes().option(8, bytes()));
        assert_eq!(driven.output(), reply(8, ACK, bytes()).0);
        assert!(!driven.session.wants_close());
    }
    let after_structured = [
        (9, bytes().string("absent").u32(0), UNKNOWN),
        (10, bytes().string("disk").u32(65), TOO_BIG),
        (10, bytes().string("disk").u32(u32::MAX), TOO_BIG),
        (10, bytes().string("disk").u32(2).string("base:allocation"), INVALID),
        (10, bytes().string("disk").u32(0).u32(0), INVALID),
        (9, long_query, TOO_BIG),
    ];
    for (option, data, wanted) in after_structured {
        let mut driven = Driven::greeted();
        driven.send(bytes().option(8, bytes()).option(option, data));
        driven.output_after(20);
        assert_eq!(refusal(&mut driven), wanted, "option {option}");
    }
}

impl Driven {
    /// Takes `len` bytes of output and leaves the rest.
    fn output_after(&mut self, len: usize) {
        let parcel = self.session.output(64, &mut self.bufs);
        assert!(parcel.slices().map(<[u8]>::len).sum::<usize>() >= len);
        self.session.sent(parcel, len, &mut self.bufs);
    }
}

#[test]
fn structured_replies_are_no_step_back_from_extended_headers() {
    let mut driven = Driven::greeted();
    driven.send(bytes().option(11, bytes()));
    assert_eq!(driven.output(), reply(11, ACK, bytes()).0);
    driven.send(bytes().option(8, bytes()));
    assert_eq!(refusal(&mut driven), (1 << 31) + 10);
    driven.send(bytes().option(11, bytes()));
    assert_eq!(refusal(&mut driven), INVALID);
}

#[test]
fn contexts_are_listed_and_chosen() {
    let context = |option, id, name: &str| reply(option, 4, bytes().u32(id).raw(name.as_bytes()));
    let ask = |option, queries: &[&str]| {
        let data = bytes().string("disk").u32(queries.len() as u32);
        let data = queries.iter().fold(data, |data, query| data.string(query));
        let mut driven = Driven::greeted();
        driven.send(bytes().option(8, bytes()).option(option, data));
        driven.output_after(20);
        driven.output()
    };
    let done = |option| reply(option, ACK, bytes()).0;
    let both = [context(9, 0, "base:allocation").0, context(9, 0, "forebay:cache").0, done(9)];
    assert_eq!(ask(9, &[]), both.concat());
    assert_eq!(ask(9, &["forebay:"]), [context(9, 0, "forebay:cache").0, done(9)].concat());
    assert_eq!(ask(9, &["forebay:cach", "qemu:", "base"]), done(9));
    assert_eq!(ask(10, &[]), done(10));
    assert_eq!(ask(10, &["base:"]), done(10));
    let chosen = [context(10, 2, "forebay:cache").0, done(10)];
    assert_eq!(ask(10, &["forebay:cache", "x:y", "forebay:cache"]), chosen.concat());
}

#[test]
fn contexts_are_forgotten_for_another_export_or_after_a_failed_choice() {
    let queries = || bytes().string("disk").u32(1).string("base:allocation");
    let worse = || bytes().string("absent").u32(1).string("base:allocation");
    let open = |options: Vec<(u32, Bytes)>, name: &str| {
        let mut driven = Driven::greeted();
        driven.send(bytes().option(8, bytes()));
        for (option, data) in options {
            driven.send(bytes().option(option, data));
        }
        driven.send(bytes().option(7, bytes().string(name).u16(0)));
        driven.output();
        driven.send(bytes().request(0, 7, 1, 0, 4096));
        let out = driven.output();
        // A status chunk (5), or an error (2^15 + 1).
        u16::from_be_bytes([out[6], out[7]])
    };
    assert_eq!(open(vec![(10, queries())], "disk"), 5);
    assert_eq!(open(vec![(10, queries())], "locked"), 0x8001);
    assert_eq!(open(vec![(10, queries()), (10, worse())], "disk"), 0x8001);
    assert_eq!(open(vec![(10, worse()), (10, queries())], "disk"), 5);
}

/// What was agreed in the open, somebody in between may have agreed.
#[test]
fn what_was_agreed_before_tls_counts_no_more() {
    let budget = Arc::new(Budget::new(256 * MIB, 512));
    let mut core = Core::new(table(), Arc::new(Limits::default()), budget, Policy::On);
    let (mut bufs, mut events) = (BufPool::new(MIB as usize), Vec::new());
    let mut parse = |core: &mut Core, input: Bytes| {
        assert_eq!(core.parse(&input.0, &mut bufs, &mut events), input.0.len());
    };
    let contexts = bytes().string("disk").u32(1).string("base:allocation");
    parse(&mut core, bytes().u32(3).option(8, bytes()).option(11, bytes()).option(10, contexts));
    let agreed = |core: &Core| {
        let it = &core.negotiated;
        [it.structured, it.extended, !it.contexts.is_empty()]
    };
    assert_eq!(agreed(&core), [true; 3]);
    parse(&mut core, bytes().option(5, bytes()));
    assert!(core.start_tls);
    assert_eq!(agreed(&core), [false; 3]);
}

#[test]
fn abort_is_acknowledged_and_ends() {
    let mut driven = Driven::greeted();
    driven.send(bytes().option(2, bytes()));
    assert!(!driven.session.wants_close());
    assert_eq!(driven.output(), reply(2, ACK, bytes()).0);
    assert!(driven.session.wants_close());
}

#[test]
fn a_client_that_never_stops_asking_is_hung_up_on() {
    let mut driven = Driven::greeted();
    for _ in 0..32 {
        driven.send(bytes().option(6, bytes().string("disk").u16(0)));
        driven.output();
        assert!(!driven.session.wants_close());
    }
    driven.send(bytes().option(6, bytes().string("disk").u16(0)));
    assert!(driven.session.wants_close());
}

#[test]
fn a_wrong_option_magic_ends_the_connection() {
    let mut driven = Driven::greeted();
    driven.send(bytes().raw(b"IHAVEOPU").u64(0));
    assert!(driven.session.wants_close());
}

#[test]
fn a_stopping_server_refuses_options() {
    let mut driven = Driven::greeted();
    driven.session.shutdown();
    driven.send(bytes().option(7, bytes().string("disk").u16(0)));
    assert_eq!(refusal(&mut driven), (1 << 31) + 7);
    assert!(driven.session.wants_close());
}

#[test]
fn clients_of_one_volume_leave_places_to_those_of_others() {
    let exports = table();
    exports.insert(export("other", 64 * MIB));
    let budget = Arc::new(Budget::new(256 * MIB, 16));
    let connect = |name: &str| {
        let mut driven = Driven::new(Arc::clone(&exports), Limits::default(), Arc::clone(&budget));
        driven.send(bytes().u32(3).option(7, bytes().string(name).u16(0)));
        (driven.session.export().is_some(), driven)
    };
    let mut clients = Vec::new();
    let refused = loop {
        match connect("disk") {
            (true, client) => clients.push(client),
            (false, client) => break client,
        }
    };
    assert_eq!(clients.len(), 8, "half of the places");
    drop(refused);
    // Those who went away count as long as something that they asked has not ended.
    clients[0].send(bytes().request(0, 0, 1, 0, 4096));
    for client in &mut clients {
        client.session.disconnected(&mut client.bufs);
    }
    assert!(!connect("disk").0);
    assert!(connect("other").0);
    drop(clients);
    assert!(connect("disk").0);
}
