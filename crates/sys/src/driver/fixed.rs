//! Registered buffers: memory that the kernel has pinned and mapped once instead of at each I/O.

use super::Loans;
use io_uring::Submitter;
use std::sync::Arc;

/// Buffers that are registered at most.
const SLOTS_MAX: u32 = 1024;
/// Bytes that are registered at most: they are pinned, and count as locked memory for those who are
/// not root.
const BYTES_MAX: usize = 64 << 20;
/// Slots that are looked at for one whose buffer is gone.
const LOOKS_MAX: usize = 32;

/// One slot of the kernel's table.
#[derive(Default)]
struct Slot {
    /// The buffer has the other reference, and drops it with its memory.
    mark: Option<Arc<u32>>,
    bytes: usize,
}

/// The table of one ring.
pub(super) struct Fixed {
    /// Empty where the kernel has no such table.
    slots: Vec<Slot>,
    bytes: usize,
    next: usize,
}

impl Fixed {
    /// Makes the table, if this kernel can (from 5.19 on).
    pub fn new(submitter: &Submitter<'_>) -> Fixed {
        let able = submitter.register_buffers_sparse(SLOTS_MAX).is_ok();
        let slots = (0..if able { SLOTS_MAX } else { 0 }).map(|_| Slot::default()).collect();
        Fixed { slots, bytes: 0, next: 0 }
    }

    /// The place of this buffer's memory in the table. It gets one if there is room.
    pub fn place<L: Loans>(&mut self, submitter: &Submitter<'_>, buf: &mut L::Buf) -> Option<u16> {
        if let Some(mark) = L::mark(buf) {
            // Another ring may have given the mark.
            let own = self.slots.get(**mark as usize).and_then(|slot| slot.mark.as_ref());
            return own.filter(|own| Arc::ptr_eq(own, mark)).map(|mark| **mark as u16);
        }
        let capacity = L::capacity(buf);
        if self.slots.is_empty() || capacity == 0 {
            return None;
        }
        let at = self.vacant(capacity)?;
        let memory = L::bytes_mut(buf).as_mut_ptr();
        let vector = libc::iovec { iov_base: memory.cast(), iov_len: capacity };
        // SAFETY: the memory stays where it is until the buffer is dropped, and the slot is used
        // for this buffer only: whoever holds its mark holds the buffer. The kernel keeps the pages
        // for itself.
        let registered = unsafe { submitter.register_buffers_update(at as u32, &[vector], None) };
        if registered.is_err() {
            // No more locked memory is allowed: what is registered goes on, nothing is added.
            self.bytes = BYTES_MAX;
            return None;
        }
        let mark = Arc::new(at as u32);
        *L::mark(buf) = Some(Arc::clone(&mark));
        self.bytes += capacity;
        self.slots[at] = Slot { mark: Some(mark), bytes: capacity };
        Some(at as u16)
    }

    /// A slot that is free, or whose buffer is gone.
    fn vacant(&mut self, bytes: usize) -> Option<usize> {
        for _ in 0..LOOKS_MAX {
            let at = self.next;
            self.next = (at + 1) % self.slots.len();
            let slot = &self.slots[at];
            let used = slot.mark.as_ref().is_some_and(|mark| Arc::strong_count(mark) > 1);
            if !used && self.bytes - slot.bytes + bytes <= BYTES_MAX {
                self.bytes -= slot.bytes;
                self.slots[at] = Slot::default();
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::{Buf, Plain};
    use io_uring::IoUring;

    #[test]
    fn a_buffer_keeps_its_place_and_leaves_it_to_others() {
        let ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(e) => return eprintln!("skipped: no io_uring here: {e}"),
        };
        let mut fixed = Fixed::new(&ring.submitter());
        if fixed.slots.is_empty() {
            return eprintln!("skipped: this kernel cannot register buffers one by one");
        }
        let mut place = |buf: &mut Buf| fixed.place::<Plain>(&ring.submitter(), buf);
        let mut first = Buf::zeroed(4096);
        let at = place(&mut first).expect("the first buffer finds a place");
        assert_eq!(place(&mut first), Some(at));
        let mut kept: Vec<Buf> = Vec::new();
        while kept.len() < SLOTS_MAX as usize - 1 {
            kept.push(Buf::zeroed(4096));
            assert!(place(kept.last_mut().expect("pushed")).is_some());
        }
        let mut late = Buf::zeroed(8192);
        assert_eq!(place(&mut late), None, "the table is full");
        drop(first);
        let found = (0..SLOTS_MAX).find_map(|_| place(&mut late));
        assert_eq!(found, Some(at), "a place is free when its buffer is gone");
        let other = IoUring::new(8).expect("a second ring");
        let mut others = Fixed::new(&other.submitter());
        assert_eq!(others.place::<Plain>(&other.submitter(), &mut late), None, "of the first ring");
        assert_eq!(others.place::<Plain>(&other.submitter(), &mut Buf::zeroed(0)), None);
    }
}
