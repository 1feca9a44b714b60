//! What a shard lends its [driver](forebay_sys::driver): the engine's buffers, and what front ends
//! send.
#![expect(unsafe_code, reason = "the buffers' promise: where their memory stays, and for how long")]

use crate::frontend::fuse::Answer;
use crate::frontend::nbd::Parcel;
use forebay_engine::Buf;
use forebay_sys::driver::Loans;
use std::sync::Arc;

pub(crate) use forebay_sys::driver::{Backend, PORT_KEYS};

/// The shard's only wait.
pub(crate) type Driver = forebay_sys::driver::Driver<Lent>;
/// The ring of a driver that has one.
pub(crate) type Ring = forebay_sys::driver::Ring<Lent>;
/// What ended.
pub(crate) type Arrival = forebay_sys::driver::Arrival<Lent>;
/// What a port gets back.
pub(crate) type Loan = forebay_sys::driver::Loan<Lent>;

/// Names what is lent.
pub(crate) struct Lent;

// SAFETY: a buffer owns its pages, which stay where they are until it is dropped, and are never
// exchanged for others. Its mark is dropped with it, and nobody but the driver touches that.
unsafe impl Loans for Lent {
    type Buf = Buf;
    type Message = Parcel;
    type Answer = Answer;

    fn bytes(buf: &Buf) -> &[u8] {
        buf.bytes()
    }

    fn bytes_mut(buf: &mut Buf) -> &mut [u8] {
        buf.bytes_mut()
    }

    fn capacity(buf: &Buf) -> usize {
        buf.capacity()
    }

    fn mark(buf: &mut Buf) -> &mut Option<Arc<u32>> {
        &mut buf.mark
    }
}
