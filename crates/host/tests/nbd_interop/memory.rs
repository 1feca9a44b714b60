//! What a session takes from the heap, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count for each thread.
pub struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static HELD_MAX: Cell<i64> = const { Cell::new(0) };
}

fn count(calls: u64, bytes: i64) {
    CALLS.set(CALLS.get() + calls);
    HELD.set(HELD.get() + bytes);
    HELD_MAX.set(HELD_MAX.get().max(HELD.get()));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
pub fn calls() -> u64 {
    CALLS.get()
}

/// The most bytes that this thread held above what it holds now, while `work` ran.
pub fn peak_bytes(work: impl FnOnce()) -> u64 {
    let before = HELD.get();
    HELD_MAX.set(before);
    work();
    (HELD_MAX.get() - before) as u64
}
