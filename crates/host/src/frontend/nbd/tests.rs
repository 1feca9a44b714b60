//! The protocol, byte by byte.

mod handshake;
mod requests;

use super::{Budget, Export, ExportTable, Limits, Session, SessionEvent, Share, Ticket, Tls};
use crate::frontend::VolumeBytes;
use forebay_engine::{Buf, BufPool, IoError, Request, RequestKind, VolumeId};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;

fn export(name: &str, bytes: u64) -> Export {
    Export {
        name: name.to_owned(),
        description: format!("about {name}"),
        pool: 0,
        volume: VolumeId(7),
        bytes: VolumeBytes::new(bytes),
        read_only: false,
        sparse: false,
        fast_zero: AtomicBool::new(true),
        share: Share::default(),
    }
}

fn table() -> Arc<ExportTable> {
    let table = ExportTable::new();
    table.insert(export("disk", 64 * MIB));
    table.insert(Export { read_only: true, ..export("locked", MIB) });
    Arc::new(table)
}

/// A client's bytes.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn raw(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(self, value: u16) -> Bytes {
        self.raw(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Bytes {
        self.raw(&value.to_be_bytes())
    }

    fn u64(self, value: u64) -> Bytes {
        self.raw(&value.to_be_bytes())
    }

    fn string(self, text: &str) -> Bytes {
        self.u32(text.len() as u32).raw(text.as_bytes())
    }

    fn option(self, number: u32, data: Bytes) -> Bytes {
        self.raw(b"IHAVEOPT").u32(number).u32(data.0.len() as u32).raw(&data.0)
    }

    fn request(self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Bytes {
        self.u32(0x2560_9513).u16(flags).u16(command).u64(cookie).u64(offset).u32(len)
    }

    fn extended(self, flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Bytes {
        self.u32(0x21e4_1c71).u16(flags).u16(command).u64(cookie).u64(offset).u64(len)
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

/// The reply to an option.
fn reply(option: u32, kind: u32, data: Bytes) -> Bytes {
    bytes().u64(0x0003_e889_0455_65a9).u32(option).u32(kind).u32(data.0.len() as u32).raw(&data.0)
}

const ACK: u32 = 1;

/// A session with its surroundings.
struct Driven {
    session: Session,
    bufs: BufPool,
    events: Vec<SessionEvent>,
}

impl Driven {
    /// A session past the greeting.
    fn new(exports: Arc<ExportTable>, limits: Limits, budget: Arc<Budget>) -> Driven {
        let session = Session::new(exports, Arc::new(limits), budget, Tls::Off);
        let mut driven = Driven { session, bufs: BufPool::new(16 << 20), events: Vec::new() };
        assert_eq!(driven.output(), b"NBDMAGICIHAVEOPT\0\x03");
        driven
    }

    fn plain() -> Driven {
        Driven::new(table(), Limits::default(), Arc::new(Budget::new(256 * MIB, 512)))
    }

    /// A session with the client's flags taken.
    fn greeted() -> Driven {
        let mut driven = Driven::plain();
        driven.send(bytes().u32(3));
        driven
    }

    /// A session in transmission. `options` come before the choice of `disk`.
    fn open_with(mut self, options: &[u32]) -> Driven {
        let greet = if self.session.export().is_none() { bytes().u32(3) } else { bytes() };
        self.send(greet);
        for option in options {
            self.send(bytes().option(*option, bytes()));
            assert_eq!(self.output(), reply(*option, ACK, bytes()).0);
        }
        self.send(bytes().option(7, bytes().string("disk").u16(0)));
        self.output();
        assert!(matches!(self.events.pop(), Some(SessionEvent::Opened(_))));
        assert!(!self.session.in_handshake());
        self
    }

    fn open(options: &[u32]) -> Driven {
        Driven::plain().open_with(options)
    }

    fn send(&mut self, input: Bytes) {
        let taken = self.session.receive(&input.0, &mut self.bufs, &mut self.events);
        assert_eq!(taken, input.0.len());
    }

    /// Takes all output.
    fn output(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.session.has_output() {
            let before = out.len();
            let parcel = self.session.output(64, &mut self.bufs);
            parcel.slices().for_each(|s| out.extend_from_slice(s));
            self.session.sent(parcel, out.len() - before, &mut self.bufs);
        }
        out
    }

    /// The next request to the engine.
    fn asked(&mut self) -> (Ticket, Request) {
        assert!(!self.events.is_empty());
        match self.events.remove(0) {
            SessionEvent::Submit { ticket, mut request } => {
                if request.kind == RequestKind::Read {
                    request.buf = self.bufs.take(request.len as usize);
                }
                (ticket, request)
            }
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, ticket: Ticket, result: Result<(), IoError>, buf: Buf) {
        self.session.complete(ticket, result, buf, &mut self.bufs, &mut self.events);
    }

    /// Carries out the next request, filling reads with `fill`.
    fn carry_out(&mut self, result: Result<(), IoError>, fill: u8) {
        let (ticket, mut request) = self.asked();
        request.buf.bytes_mut().fill(fill);
        self.answer(ticket, result, request.buf);
    }
}
