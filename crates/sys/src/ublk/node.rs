//! The character device of one block device: the descriptors of requests, in memory that the kernel
//! writes, and the commands of their slots.

use super::control::{self, Known};
use super::uapi::{self, IoDescriptor, flag};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use zerocopy::IntoBytes;

/// An open character device.
#[derive(Debug)]
pub struct Node {
    file: File,
    known: Known,
}

/// What a slot is told.
#[derive(Debug, Clone, Copy)]
pub struct IoCommand {
    /// Which slot: the queue, and the tag in it.
    pub place: (u16, u16),
    /// The answer to the slot's request; `None` where it has none yet.
    pub answer: Option<i32>,
}

impl IoCommand {
    /// The operation of the ring's entry.
    pub(crate) fn operation(self) -> u32 {
        if self.answer.is_some() { uapi::COMMIT_AND_FETCH } else { uapi::FETCH }
    }
}

impl Node {
    /// Opens that of a device.
    ///
    /// # Errors
    /// It is not there, or may not be opened.
    pub fn open(known: Known) -> io::Result<Node> {
        let path = control::char_path(known.device);
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Node { file, known })
    }

    /// Through which data goes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether data goes through [`Node::file`], and else through buffers.
    pub fn user_copy(&self) -> bool {
        self.known.flags & flag::USER_COPY != 0
    }

    /// Maps the descriptors of a queue.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn descriptors(&self, queue: u16) -> io::Result<Descriptors> {
        Descriptors::map(self.file.as_raw_fd(), queue, self.known.depth)
    }

    /// The command as the kernel takes it. It uses `memory` until the command has ended, if it
    /// copies data by itself.
    pub(crate) fn command(&self, command: IoCommand, memory: &mut [u8]) -> [u8; 16] {
        let mut address = 0;
        if !self.user_copy() {
            assert!(memory.len() >= self.known.request_bytes_max as usize);
            address = memory.as_mut_ptr() as u64;
        }
        let (queue, tag) = command.place;
        let result = command.answer.unwrap_or(0);
        let command = uapi::IoCommand { queue, tag, result, address };
        let mut bytes = [0; 16];
        bytes.copy_from_slice(command.as_bytes());
        bytes
    }
}

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
    fn map(fd: RawFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
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
