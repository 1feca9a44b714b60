//! The allocator of programs that open pools. Tables over all slots of a pool are as large as its
//! superblock says, and all but empty at first: what nobody has written to must cost nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// From here on memory with an alignment of its own comes from the kernel, a mapping for each. The
/// system's allocator would do the same, and then write zeros to all of it.
const MAPPED_MIN: usize = 32 << 20;
/// Largest alignment that a mapping has anyway.
const PAGE: usize = 4096;
/// Largest alignment for which the system's allocator knows which memory is zero already.
const ALIGN_PLAIN: usize = 16;

/// The system's allocator, but for large memory that is aligned: zeros that nobody has written to
/// take no memory there.
#[derive(Debug)]
pub struct LazyZeros;

fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED_MIN && (ALIGN_PLAIN + 1..=PAGE).contains(&layout.align())
}

fn map(bytes: usize) -> *mut u8 {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses takes nothing from anybody.
    let mapped = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { null_mut() } else { mapped.cast() }
}

/// Whether the system would give so many bytes more now. Nothing of them is touched, or kept.
pub fn is_there(bytes: usize) -> bool {
    let at = map(bytes);
    if at.is_null() {
        return false;
    }
    // SAFETY: the mapping was just made with this length, and nobody else knows of it.
    unsafe { libc::munmap(at.cast(), bytes) };
    true
}

// SAFETY: memory comes from the system's allocator, or from a mapping of its own, and which of the
// two follows from its layout alone, when it is taken and when it is given back. A mapping is
// aligned to a page, and zero.
unsafe impl GlobalAlloc for LazyZeros {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_mapped(layout) {
            true => map(layout.size()),
            // SAFETY: the caller's promise is the system's allocator's, too.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_mapped(layout) {
            true => map(layout.size()),
            // SAFETY: as above.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match is_mapped(layout) {
            true => {
                // SAFETY: the mapping was made with this length, and its owner gives it back.
                unsafe { libc::munmap(at.cast(), layout.size()) };
            }
            // SAFETY: as above.
            false => unsafe { System.dealloc(at, layout) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size makes a layout.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if !is_mapped(layout) && !is_mapped(new) {
            // SAFETY: as above.
            return unsafe { System.realloc(at, layout, bytes) };
        }
        // SAFETY: the caller promises that `new` is not empty.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both are valid for that many bytes, and one is new; the old one is given back
            // by its owner.
            unsafe {
                at.copy_to_nonoverlapping(moved, layout.size().min(bytes));
                self.dealloc(at, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn aligned_zeros_take_memory_where_they_are_written_to() {
        let layout = Layout::from_size_align(1 << 30, 64).unwrap();
        let before = resident_kib();
        // SAFETY: the layout is not empty, the accesses are within it, and it is given back as it
        // was taken.
        unsafe {
            let memory = LazyZeros.alloc_zeroed(layout);
            assert!(!memory.is_null() && memory.addr().is_multiple_of(64));
            let step = 1 << 20;
            assert!((0..layout.size()).step_by(step).all(|at| memory.add(at).read() == 0));
            memory.add(step).write(7);
            let taken = resident_kib().saturating_sub(before);
            assert!(taken < 100 << 10, "{taken} KiB");
            let less = LazyZeros.realloc(memory, layout, 2 * step);
            assert_eq!(less.add(step).read(), 7);
            let small = Layout::from_size_align(2 * step, 64).unwrap();
            let more = LazyZeros.realloc(less, small, layout.size());
            assert_eq!(more.add(step).read(), 7);
            LazyZeros.dealloc(more, layout);
        }
    }
}
