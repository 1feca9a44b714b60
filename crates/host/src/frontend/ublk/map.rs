//! The descriptors of a queue's requests, in memory that the kernel writes.

use super::uapi::{self, IoDescriptor};
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// A mapping of one queue.
#[derive(Debug)]
pub struct Descriptors {
    memory: NonNull<IoDescriptor>,
    bytes: usize,
    depth: u16,
}

// SAFETY: the mapping belongs to this value alone, and threads may share what is only read.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps the descriptors of a queue of the character device `fd`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn map(fd: RawFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let bytes = (depth as usize * size_of::<IoDescriptor>()).next_multiple_of(4096);
        let offset = uapi::descriptors_at(queue) as libc::off_t;
        let (read, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at a place that the kernel chooses touches no other memory.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read, flags, fd, offset) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("the kernel maps nothing at zero");
        Ok(Descriptors { memory, bytes, depth })
    }

    /// The request of a tag that the kernel has just handed over.
    pub fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth);
        // SAFETY: within the mapping, which lives as long as this; any bytes are a descriptor. The
        // kernel does not write it again before the request is answered.
        unsafe { self.memory.add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` and nobody has a reference into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
