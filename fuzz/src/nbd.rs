//! A session of the NBD server with a client that sends what a target says, and a loop that answers
//! it as a shard does.

use forebay_engine::{BlockStatus, BufPool, IoError, RequestKind, VolumeId};
use forebay_host::frontend::VolumeBytes;
use forebay_host::frontend::nbd::{
    BlockState, Budget, Export, ExportTable, Limits, Session, SessionEvent, Share, Ticket, Tls,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of the export `disk`.
pub const DISK_BYTES: u64 = 1 << 20;
/// Bytes that all clients may hold.
const BUDGET_BYTES: u64 = 1 << 20;

/// Limits that small inputs reach.
pub fn limits() -> Limits {
    Limits {
        option_bytes_max: 1024,
        options_max: 16,
        name_bytes_max: 256,
        queries_max: 8,
        requests_max: 8,
        in_flight_bytes_max: 256 << 10,
        payload_bytes_max: 128 << 10,
        part_bytes_max: 32 << 10,
        zeroes_bytes_max: 64 << 10,
        dataless_bytes_max: 64 << 10,
        output_bytes_max: 4 << 10,
        status_blocks_max: 128,
        status_slice_blocks: 16,
        status_extents_max: 32,
        ..Limits::default()
    }
}

fn export(name: &str, read_only: bool) -> Export {
    Export {
        name: name.to_owned(),
        description: format!("about {name}"),
        pool: 0,
        volume: VolumeId(7),
        bytes: VolumeBytes::new(DISK_BYTES),
        read_only,
        sparse: false,
        fast_zero: AtomicBool::new(true),
        share: Share::default(),
    }
}

/// A session and what is around it.
pub struct Rig {
    /// The session.
    pub session: Session,
    /// All output so far.
    pub output: Vec<u8>,
    /// What the session asks and nobody has answered.
    pub asked: Vec<SessionEvent>,
    /// The export that was opened.
    pub opened: Option<String>,
    limits: Arc<Limits>,
    budget: Arc<Budget>,
    bufs: BufPool,
    /// Tickets under way. Parts of one request without data may have the same.
    tickets: Vec<Ticket>,
    /// Bytes that came and were not taken.
    waiting: Vec<u8>,
}

impl Rig {
    /// A session that has just begun.
    pub fn new() -> Rig {
        let table = ExportTable::new();
        table.insert(export("disk", false));
        table.insert(export("locked", true));
        let (limits, budget) = (Arc::new(limits()), Arc::new(Budget::new(BUDGET_BYTES, 4)));
        let (own, shared) = (Arc::clone(&limits), Arc::clone(&budget));
        let session = Session::new(Arc::new(table), own, shared, Tls::Off);
        Rig {
            session,
            output: Vec::new(),
            asked: Vec::new(),
            opened: None,
            limits,
            budget,
            bufs: BufPool::new(1 << 20),
            tickets: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The client sends bytes. What the session does not take waits for [`Rig::go_on`].
    pub fn send(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        self.go_on();
    }

    /// Offers the session what waits.
    pub fn go_on(&mut self) {
        let mut events = Vec::new();
        let taken = self.session.receive(&self.waiting, &mut self.bufs, &mut events);
        self.waiting.drain(..taken);
        assert!(self.waiting.is_empty() || self.session.paused(), "it takes all, or says so");
        self.take(events);
    }

    fn take(&mut self, events: Vec<SessionEvent>) {
        for event in events {
            match &event {
                SessionEvent::Opened(export) => {
                    assert!(self.opened.is_none(), "it is opened once");
                    self.opened = Some(export.name.clone());
                    continue;
                }
                SessionEvent::Submit { ticket, request } => {
                    assert!(self.opened.is_some(), "requests follow the choice of an export");
                    let has_data = matches!(request.kind, RequestKind::Read | RequestKind::Write);
                    assert!(!has_data || !self.tickets.contains(ticket), "one of a kind");
                    self.tickets.push(*ticket);
                    let end = request.offset.checked_add(request.len);
                    assert!(end.is_some_and(|end| end <= DISK_BYTES), "{request:?}");
                    assert!(request.offset.is_multiple_of(512) && request.len.is_multiple_of(512));
                    let zeroes = matches!(
                        request.kind,
                        RequestKind::WriteZeroes { .. } | RequestKind::Discard
                    );
                    let Limits { part_bytes_max, zeroes_bytes_max, .. } = *self.limits;
                    let most = if zeroes { zeroes_bytes_max } else { part_bytes_max };
                    assert!(request.len <= most);
                    let read_only = self.opened.as_deref() == Some("locked");
                    let changes = !matches!(
                        request.kind,
                        RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch
                    );
                    assert!(!(read_only && changes), "{request:?}");
                }
                SessionEvent::Status { ticket, block, count, .. } => {
                    assert!(!self.tickets.contains(ticket), "one of a kind");
                    self.tickets.push(*ticket);
                    assert!(*count <= self.limits.status_slice_blocks);
                    assert!((block + count) * 4096 <= DISK_BYTES);
                }
            }
            self.asked.push(event);
        }
        assert_eq!(self.session.in_flight(), self.tickets.len());
        // One request alone may exceed what a connection may hold.
        let held = self.limits.in_flight_bytes_max + 2 * self.limits.payload_bytes_max;
        assert!(self.budget.used_bytes() <= held, "{} bytes", self.budget.used_bytes());
    }

    /// Answers what the session asked at this place. Blocks of data are told by their place.
    pub fn answer(&mut self, at: usize, result: Result<(), IoError>) {
        if self.asked.is_empty() {
            return;
        }
        let event = self.asked.swap_remove(at % self.asked.len());
        let mut events = Vec::new();
        match event {
            SessionEvent::Submit { ticket, mut request } => {
                self.forget(ticket);
                if request.kind == RequestKind::Read {
                    request.buf = self.bufs.take(request.len as usize);
                    let blocks = request.buf.bytes_mut().chunks_mut(512);
                    blocks.zip(request.offset / 512..).for_each(|(block, at)| block.fill(at as u8));
                }
                let (session, bufs) = (&mut self.session, &mut self.bufs);
                session.complete(ticket, result, request.buf, bufs, &mut events);
            }
            SessionEvent::Status { ticket, .. } => {
                self.forget(ticket);
                let state = |block: u64| {
                    let states = [BlockStatus::NotCached, BlockStatus::Clean, BlockStatus::Dirty];
                    let cache = states[(block / 2 % 3) as usize];
                    BlockState { cache, hole: block.is_multiple_of(5) }
                };
                self.session.status(ticket, state, &mut self.bufs, &mut events);
            }
            SessionEvent::Opened(_) => unreachable!("it is not kept"),
        }
        self.take(events);
    }

    fn forget(&mut self, ticket: Ticket) {
        let at = self.tickets.iter().position(|&it| it == ticket);
        self.tickets.swap_remove(at.expect("it was asked"));
    }

    /// The client reads so many bytes of the output at most.
    pub fn read(&mut self, bytes_max: usize) {
        let mut left = bytes_max;
        while left > 0 && self.session.has_output() {
            let parcel = self.session.output(8, &mut self.bufs);
            let before = self.output.len();
            for slice in parcel.slices() {
                let len = slice.len().min(left);
                self.output.extend_from_slice(&slice[..len]);
                left -= len;
            }
            self.session.sent(parcel, self.output.len() - before, &mut self.bufs);
        }
    }

    /// Answers all and reads all, until nothing more comes.
    pub fn finish(&mut self) {
        for _ in 0..100_000 {
            self.go_on();
            self.read(usize::MAX);
            let rests = self.waiting.is_empty() && !self.session.paused();
            if self.asked.is_empty() && !self.session.has_output() && rests {
                assert_eq!(self.session.in_flight(), 0);
                return;
            }
            self.answer(0, Ok(()));
        }
        panic!("it does not come to rest");
    }

    /// The client leaves; what it asked is answered, and its session ends. Nothing is held
    /// for it then.
    pub fn leave(mut self) {
        self.session.disconnected(&mut self.bufs);
        while !self.asked.is_empty() {
            self.answer(0, Err(IoError::Shutdown));
        }
        assert_eq!(self.session.in_flight(), 0);
        drop(self.session);
        assert_eq!(self.budget.used_bytes(), 0);
    }
}
