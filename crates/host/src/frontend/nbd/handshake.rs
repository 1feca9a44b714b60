//! Fixed newstyle negotiation: the options before requests.

use super::core::{Closing, Core, Phase, Policy};
use super::status::{Contexts, NAMES};
use super::{Export, SessionEvent};
use forebay_nbd::wire::{self, Head, OptionHeader, flag, info, option, rep};
use std::sync::Arc;

/// What client and server have agreed on.
#[derive(Default)]
pub(super) struct Negotiated {
    no_zeroes: bool,
    /// Reads are answered by chunks.
    pub(super) structured: bool,
    /// Requests and replies have 32-byte headers.
    pub(super) extended: bool,
    /// Metadata contexts, and the export that they were chosen for.
    pub(super) contexts: Contexts,
    contexts_of: String,
}

/// An option that is refused: the reply's type, and a text for people.
type Refusal = (u32, &'static str);

const MALFORMED: Refusal = (rep::ERR_INVALID, "the option's data is malformed");
const UNKNOWN: Refusal = (rep::ERR_UNKNOWN, "no export has this name");
const TLS_FIRST: Refusal = (rep::ERR_TLS_REQD, "this server wants TLS first");
const STOPPING: Refusal = (rep::ERR_SHUTDOWN, "the server stops");
const TOO_MANY: Refusal = (
    rep::ERR_POLICY,
    "the volume has as many clients as it may: close a connection that is not used, or wait until \
     requests of clients that left have ended",
);
const NO_DATA: Refusal = (rep::ERR_INVALID, "this option has no data");
const CHUNKS_FIRST: Refusal =
    (rep::ERR_INVALID, "negotiate structured replies or extended headers first");

/// Reads an option's data from the front.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        if len > self.0.len() {
            return Err(MALFORMED);
        }
        let (front, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(front)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        Ok(wire::u16_at(self.bytes(2)?, 0))
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        Ok(wire::u32_at(self.bytes(4)?, 0))
    }

    /// A string with its length before it, at most `len_max` bytes.
    fn string(&mut self, len_max: usize) -> Result<&'a str, Refusal> {
        let len = self.u32()? as usize;
        if len > len_max {
            return Err((rep::ERR_TOO_BIG, "the string is longer than 4096 bytes"));
        }
        text(self.bytes(len)?)
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(MALFORMED) }
    }
}

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err((rep::ERR_INVALID, "the string is not UTF-8, or contains NUL")),
    }
}

impl Core {
    /// The client's answer to the greeting.
    pub(super) fn client_flags(&mut self, item: &[u8]) {
        let flags = wire::u32_at(item, 0);
        if flags & !(wire::CLIENT_FIXED_NEWSTYLE | wire::CLIENT_NO_ZEROES) != 0 {
            return self.hang_up();
        }
        self.negotiated.no_zeroes = flags & wire::CLIENT_NO_ZEROES != 0;
        self.phase = Phase::OptionHeader;
    }

    /// The fixed part of an option.
    pub(super) fn option_header(&mut self, item: &[u8]) {
        self.options += 1;
        let header = OptionHeader::decode(item).filter(|_| self.options <= self.limits.options_max);
        let Some(OptionHeader { option, len }) = header else { return self.hang_up() };
        let len = len as usize;
        let len_max = match option {
            option::EXPORT_NAME => self.limits.name_bytes_max,
            _ => self.limits.option_bytes_max,
        };
        self.phase = if len > len_max {
            Phase::OptionSkip { option, left: len as u64 }
        } else {
            Phase::OptionData { option, len }
        };
    }

    /// An option whose data was thrown away.
    pub(super) fn option_too_long(&mut self, option: u32) {
        if option == option::EXPORT_NAME {
            return self.hang_up();
        }
        self.phase = Phase::OptionHeader;
        self.refuse(option, (rep::ERR_TOO_BIG, "the option's data is too long"));
    }

    /// A whole option.
    pub(super) fn option(&mut self, option: u32, data: &[u8], events: &mut Vec<SessionEvent>) {
        self.phase = Phase::OptionHeader;
        let outcome = match option {
            option::ABORT => {
                self.phase = Phase::Ended;
                self.closing = Closing::Finish;
                Ok(())
            }
            option::EXPORT_NAME => return self.export_name(data, events),
            _ if self.stopping => Err(STOPPING),
            option::STARTTLS => self.start_tls(data),
            _ if self.policy == Policy::Require && !self.secure => Err(TLS_FIRST),
            option::LIST => self.list(data),
            option::INFO | option::GO => self.info(option, data, events),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::EXTENDED_HEADERS => self.extended_headers(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            _ => Err((rep::ERR_UNSUP, "this server does not know the option")),
        };
        match outcome {
            Ok(()) => self.option_reply(option, rep::ACK, &Head::new(), &[]),
            Err(refusal) => self.refuse(option, refusal),
        }
    }

    fn refuse(&mut self, option: u32, (reply, text): Refusal) {
        self.option_reply(option, reply, &Head::new(), &[text.as_bytes()]);
    }

    /// The old way to choose an export, which knows no error but to hang up.
    fn export_name(&mut self, data: &[u8], events: &mut Vec<SessionEvent>) {
        let needs_tls = self.policy == Policy::Require && !self.secure;
        let export = match text(data) {
            Ok(name) if !needs_tls && !self.stopping && !self.negotiated.extended => {
                self.exports.find(name)
            }
            _ => None,
        };
        let export = export.filter(|export| self.budget.choose(&export.share));
        let Some(export) = export else { return self.hang_up() };
        // Contexts that were chosen for another name do not count.
        if self.negotiated.contexts_of.as_bytes() != data {
            self.negotiated.contexts = Contexts::default();
        }
        let flags = self.transmission_flags(&export);
        self.out.head(Head::new().u64(export.bytes.get()).u16(flags).bytes());
        if !self.negotiated.no_zeroes {
            self.out.head(&[0; 124]);
        }
        self.open(export, events);
    }

    /// Requests of this export follow, whose budget counts the client already.
    fn open(&mut self, export: Arc<Export>, events: &mut Vec<SessionEvent>) {
        self.phase = Phase::Header;
        events.push(SessionEvent::Opened(Arc::clone(&export)));
        self.export = Some(export);
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        if self.secure {
            return Err((rep::ERR_INVALID, "TLS is on already"));
        }
        if self.policy == Policy::Off {
            return Err((rep::ERR_POLICY, "this server has no certificate"));
        }
        // What was agreed in the open, an attacker may have agreed.
        let no_zeroes = self.negotiated.no_zeroes;
        self.negotiated = Negotiated { no_zeroes, ..Negotiated::default() };
        self.start_tls = true;
        Ok(())
    }

    fn list(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        for export in self.exports.list() {
            let name = export.name.as_bytes();
            let head = Head::new().u32(name.len() as u32);
            let text = [name, export.description.as_bytes()];
            self.option_reply(option::LIST, rep::SERVER, &head, &text);
        }
        Ok(())
    }

    fn info(
        &mut self,
        option: u32,
        data: &[u8],
        events: &mut Vec<SessionEvent>,
    ) -> Result<(), Refusal> {
        let mut data = Data(data);
        let name = data.string(self.limits.name_bytes_max)?;
        let count = data.u16()?;
        let (mut wants_name, mut wants_description) = (false, false);
        for _ in 0..count {
            match data.u16()? {
                info::NAME => wants_name = true,
                info::DESCRIPTION => wants_description = true,
                _ => {}
            }
        }
        data.end()?;
        let export = self.exports.find(name).ok_or(UNKNOWN)?;
        if option == option::GO && !self.budget.choose(&export.share) {
            return Err(TOO_MANY);
        }
        if option == option::GO && self.negotiated.contexts_of != name {
            self.negotiated.contexts = Contexts::default();
        }
        let head = Head::new().u16(info::EXPORT).u64(export.bytes.get());
        let head = head.u16(self.transmission_flags(&export));
        self.option_reply(option, rep::INFO, &head, &[]);
        if wants_name {
            let head = Head::new().u16(info::NAME);
            self.option_reply(option, rep::INFO, &head, &[export.name.as_bytes()]);
        }
        if wants_description && !export.description.is_empty() {
            let head = Head::new().u16(info::DESCRIPTION);
            self.option_reply(option, rep::INFO, &head, &[export.description.as_bytes()]);
        }
        let payload_max = self.limits.payload_bytes_max as u32;
        let head = Head::new().u16(info::BLOCK_SIZE).u32(512).u32(4096).u32(payload_max);
        self.option_reply(option, rep::INFO, &head, &[]);
        if option == option::GO {
            self.open(export, events);
        }
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        if self.negotiated.extended {
            return Err((rep::ERR_EXT_HEADER_REQD, "extended headers are on already"));
        }
        self.negotiated.structured = true;
        Ok(())
    }

    fn extended_headers(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        if self.negotiated.extended {
            return Err((rep::ERR_INVALID, "extended headers are on already"));
        }
        self.negotiated.extended = true;
        self.negotiated.structured = true;
        Ok(())
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) -> Result<(), Refusal> {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.negotiated.contexts = Contexts::default();
        }
        if !self.negotiated.structured {
            return Err(CHUNKS_FIRST);
        }
        let mut data = Data(data);
        let name = data.string(self.limits.name_bytes_max)?;
        let count = data.u32()? as usize;
        if count > self.limits.queries_max {
            return Err((rep::ERR_TOO_BIG, "too many queries"));
        }
        let mut chosen = Contexts::default();
        for _ in 0..count {
            chosen.query(data.string(self.limits.name_bytes_max)?, set);
        }
        data.end()?;
        if self.exports.find(name).is_none() {
            return Err(UNKNOWN);
        }
        if count == 0 && !set {
            chosen = Contexts::all();
        }
        for (id, name) in NAMES {
            if chosen.has(id) {
                let head = Head::new().u32(if set { id } else { 0 });
                self.option_reply(option, rep::META_CONTEXT, &head, &[name.as_bytes()]);
            }
        }
        if set {
            self.negotiated.contexts = chosen;
            self.negotiated.contexts_of = name.to_owned();
        }
        Ok(())
    }

    fn transmission_flags(&self, export: &Export) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        // One engine serves all connections, so a FLUSH covers what any of them wrote.
        flags |= flag::CAN_MULTI_CONN;
        if export.read_only {
            flags |= flag::READ_ONLY;
        } else {
            // Whether zeroing is fast may change with the mode; where it is not, the request is
            // refused.
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.negotiated.structured {
            flags |= flag::SEND_DF;
        }
        if self.negotiated.extended && !self.negotiated.contexts.is_empty() {
            flags |= flag::BLOCK_STATUS_PAYLOAD;
        }
        flags
    }
}
