//! What a driver was lent, until the kernel is through with it.

use super::{Loan, Loans, Parts};
use crate::part;
use crate::pass::empty_message;

/// Something in several parts that the kernel reads, and what it takes to name them. In its box it
/// stays where it is until it is taken out.
pub(super) struct Sending<M> {
    message: Option<M>,
    parts: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl<M: Parts> Sending<M> {
    pub fn new() -> Box<Sending<M>> {
        Box::new(Sending { message: None, parts: Vec::new(), header: empty_message() })
    }

    /// Takes a message in. Only one at a time.
    pub fn lend(&mut self, message: M) {
        assert!(self.message.is_none(), "one at a time for each");
        self.parts.clear();
        let parts = &mut self.parts;
        self.message.insert(message).each_part(|bytes| parts.push(part(bytes)));
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
    }

    pub fn is_lent(&self) -> bool {
        self.message.is_some()
    }

    /// Gives the message back. The kernel is through with it.
    pub fn take(&mut self) -> Option<M> {
        self.message.take()
    }

    /// What `sendmsg` takes.
    pub fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// What `writev` takes.
    pub fn parts(&self) -> (*const libc::iovec, u32) {
        (self.parts.as_ptr(), u32::try_from(self.parts.len()).expect("parts are few"))
    }
}

/// What is lent under one key of a connection.
struct Connection<L: Loans> {
    input: Option<Box<[u8]>>,
    sending: Box<Sending<L::Message>>,
}

/// What is lent under one tag of a port.
struct Port<L: Loans> {
    buf: Option<L::Buf>,
    answer: Option<Box<Sending<L::Answer>>>,
}

/// A buffer of device I/O.
struct Io<L: Loans> {
    buf: L::Buf,
    /// The kernel only reads it.
    is_written: bool,
}

/// What a ring was lent. Where a value is free, its place is kept.
pub(super) struct Lent<L: Loans> {
    ios: Vec<Option<Io<L>>>,
    connections: Vec<Connection<L>>,
    ports: Vec<Vec<Port<L>>>,
}

/// The place at `at` of a list that grows.
fn place<T>(list: &mut Vec<T>, at: u32, fresh: impl FnMut() -> T) -> &mut T {
    let at = at as usize;
    if list.len() <= at {
        list.resize_with(at + 1, fresh);
    }
    &mut list[at]
}

impl<L: Loans> Lent<L> {
    pub fn new() -> Lent<L> {
        Lent { ios: Vec::new(), connections: Vec::new(), ports: Vec::new() }
    }

    pub fn lend_io(&mut self, slot: u32, buf: L::Buf, is_written: bool) {
        let before = place(&mut self.ios, slot, || None).replace(Io { buf, is_written });
        assert!(before.is_none(), "one I/O at a time in each slot");
    }

    pub fn take_io(&mut self, slot: u32) -> Option<L::Buf> {
        self.ios.get_mut(slot as usize)?.take().map(|io| io.buf)
    }

    /// The buffer of a slot, if the kernel only reads it.
    pub fn written(&self, slot: u32) -> Option<&L::Buf> {
        let io = self.ios.get(slot as usize)?.as_ref()?;
        io.is_written.then_some(&io.buf)
    }

    fn connection(&mut self, key: u32) -> &mut Connection<L> {
        place(&mut self.connections, key, || Connection { input: None, sending: Sending::new() })
    }

    /// Where the input lies, and how long it is.
    pub fn lend_input(&mut self, key: u32, input: Box<[u8]>) -> (*mut u8, u32) {
        let place = &mut self.connection(key).input;
        assert!(place.is_none(), "one receive at a time on each connection");
        let input = place.insert(input);
        (input.as_mut_ptr(), u32::try_from(input.len()).expect("inputs are small"))
    }

    pub fn take_input(&mut self, key: u32) -> Box<[u8]> {
        let input = self.connections.get_mut(key as usize).and_then(|it| it.input.take());
        input.expect("lent for the receive")
    }

    pub fn lend_message(&mut self, key: u32, message: L::Message) -> *const libc::msghdr {
        let sending = &mut self.connection(key).sending;
        sending.lend(message);
        sending.header()
    }

    pub fn take_message(&mut self, key: u32) -> L::Message {
        let message = self.connections.get_mut(key as usize).and_then(|it| it.sending.take());
        message.expect("lent for the send")
    }

    /// The place of a tag, under which nothing is lent.
    fn port(&mut self, key: u32, tag: u32) -> &mut Port<L> {
        let tags = place(&mut self.ports, key, Vec::new);
        let port = place(tags, tag, || Port { buf: None, answer: None });
        let answers = port.answer.as_ref().is_some_and(|sending| sending.is_lent());
        assert!(port.buf.is_none() && !answers, "one loan at a time under each tag");
        port
    }

    pub fn lend_port_buf(&mut self, (key, tag): (u32, u32), buf: L::Buf) {
        self.port(key, tag).buf = Some(buf);
    }

    pub fn lend_answer(
        &mut self,
        (key, tag): (u32, u32),
        answer: L::Answer,
    ) -> (*const libc::iovec, u32) {
        let sending = self.port(key, tag).answer.get_or_insert_with(Sending::new);
        sending.lend(answer);
        sending.parts()
    }

    pub fn take_loan(&mut self, key: u32, tag: u32) -> Loan<L> {
        let port = self.ports.get_mut(key as usize).and_then(|tags| tags.get_mut(tag as usize));
        let Some(port) = port else { return Loan::Nothing };
        if let Some(buf) = port.buf.take() {
            return Loan::Buf(buf);
        }
        let answer = port.answer.as_mut().and_then(|sending| sending.take());
        answer.map_or(Loan::Nothing, Loan::Answer)
    }
}

impl<L: Loans> Drop for Lent<L> {
    /// What did not come back may still be in use: the memory is left where it is.
    fn drop(&mut self) {
        self.ios.drain(..).flatten().for_each(std::mem::forget);
        for connection in self.connections.drain(..) {
            std::mem::forget(connection.input);
            if connection.sending.is_lent() {
                std::mem::forget(connection.sending);
            }
        }
        for port in self.ports.drain(..).flatten() {
            std::mem::forget(port.buf);
            std::mem::forget(port.answer.filter(|sending| sending.is_lent()));
        }
    }
}
