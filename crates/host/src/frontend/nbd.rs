//! The NBD server, as one state machine for each connection: bytes in, events and bytes out.
//!
//! A [`Session`] owns no socket, clock, thread or lock, so that the shard's loop, a test and a
//! fuzzer drive the same code. The loop
//!
//! 1. gives what it received to [`Session::receive`], which returns how many bytes it took. It
//!    takes all, unless it is [paused](Session::paused): then the loop keeps the rest, stops
//!    reading from the socket, and calls again (also with nothing to add) after a completion, after
//!    bytes were sent, and at least every [`Limits::retry_ms`];
//! 2. carries out the [`SessionEvent`]s and answers each [`Ticket`] once, in any order, by
//!    [`Session::complete`] or [`Session::status`];
//! 3. writes [`Session::output`] with vectored sends and reports the bytes by [`Session::sent`];
//! 4. closes the connection when [`Session::wants_close`] says so, or after
//!    [`Session::disconnected`] when the client went away, and keeps the session until
//!    [`Session::in_flight`] is zero.
//!
//! What a client can make the server hold is bounded by [`Limits`] for each connection and by one
//! [`Budget`] for all of them.

mod budget;
mod core;
mod export;
mod fault;
mod handshake;
mod output;
mod reply;
mod request;
mod session;
mod slots;
mod status;
#[cfg(test)]
mod tests;
mod tls;

pub use budget::{Budget, Limits, Share};
pub use export::{Export, ExportTable};
pub use output::Parcel;
pub use session::{Session, SessionEvent, Ticket};
pub use status::{BlockState, STATE_CACHED, STATE_DIRTY};
pub use tls::{Tls, TlsConfig, TlsError};
