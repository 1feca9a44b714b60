//! From what clients ask to what is carried out next: by turns, as far as there is memory.

use super::{Clients, MS};
use crate::frontend::nbd::{SessionEvent, Ticket};
use forebay_engine::{Buf, RequestKind, Time};

impl Clients {
    /// What a client asks waits for its turn.
    pub(super) fn wait(&mut self, key: u32, asked: impl IntoIterator<Item = SessionEvent>) {
        let client = self.clients.get_mut(key).expect("known to the caller");
        for event in asked {
            self.turns.wait(key, &mut client.line, event);
        }
    }

    /// The next pass of [turns](Clients::next) begins.
    pub fn begin_pass(&mut self) {
        self.turns.begin_pass();
    }

    /// What is to be carried out next, and who asks, if there is more in this pass.
    pub fn next(&mut self, now: Time) -> Option<(u32, SessionEvent)> {
        loop {
            let key = self.turns.next()?;
            let client = self.clients.get_mut(key).expect("who is let go of waits no more");
            let first = client.line.first().expect("only lines with something in them wait");
            let data = read_bytes(first);
            let more = client.session.in_flight() > client.line.len();
            // What of it is under way, or not sent, frees memory.
            let waits = more || client.session.has_output();
            let buf = match data {
                Some(len) if waits => self.bufs.try_take(len),
                Some(len) => self.bufs.take_spared(len),
                None => Some(Buf::empty()),
            };
            if buf.is_none() && waits {
                self.rest(now, key);
                continue;
            }
            let mut event = self.turns.take(key, &mut client.line);
            match (&mut event, buf) {
                (SessionEvent::Submit { request, .. }, Some(buf)) if data.is_some() => {
                    request.buf = buf;
                }
                (SessionEvent::Submit { ticket, .. }, None) => {
                    self.refuse(key, *ticket);
                    continue;
                }
                _ => {}
            }
            return Some((key, event));
        }
    }

    /// There is no memory for the first of a line, and its client waits for some.
    fn rest(&mut self, now: Time, key: u32) {
        self.retry_soon(now);
        let client = self.clients.get_mut(key).expect("known to the caller");
        self.turns.rest(key, &client.line);
    }

    /// There is no memory for a read, and its client cannot wait for any.
    fn refuse(&mut self, key: u32, ticket: Ticket) {
        let client = self.clients.get_mut(key).expect("known to the caller");
        let mut asked = std::mem::take(&mut client.kept);
        client.session.refuse(ticket, &mut self.bufs, &mut asked);
        self.pass_on(key, asked);
    }

    /// Somebody waits for memory. Those who wait already do not wait longer for it.
    pub(super) fn retry_soon(&mut self, now: Time) {
        if self.paused.is_empty() && !self.turns.are_resting() {
            self.retry_at = now + self.server.limits.retry_ms * MS;
        }
    }

    /// Whether there is more in this pass.
    pub fn pass_goes_on(&self) -> bool {
        self.turns.goes_on()
    }

    /// Whether clients wait for their turn.
    pub fn are_waiting(&self) -> bool {
        self.turns.is_waiting()
    }
}

/// Bytes of the buffer that a read needs.
fn read_bytes(event: &SessionEvent) -> Option<usize> {
    match event {
        SessionEvent::Submit { request, .. } if request.kind == RequestKind::Read => {
            Some(request.len as usize)
        }
        _ => None,
    }
}
