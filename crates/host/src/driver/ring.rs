//! io_uring: one system call for a batch of everything.

use super::Arrival;
use crate::device::Device;
use crate::waker::Waker;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Entries of the submission queue. More are submitted in several calls.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; beyond it the kernel keeps them and the batch ends early.
const COMPLETIONS: u32 = 8192;

/// What a completion is for, in the upper half of its user data; the slot or key is in the lower.
const IO: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;
const SEND: u64 = 3 << 32;
const ACCEPT: u64 = 4 << 32;
const WAKE: u64 = 5 << 32;
const CANCEL: u64 = 6 << 32;

pub(crate) struct Ring {
    ring: IoUring,
    waker: Waker,
    /// Whether a wait for the waker is under way.
    waking: bool,
}

impl Ring {
    /// Sets up a ring for the calling thread, the only one that may use it.
    pub fn new(waker: &Waker) -> io::Result<Ring> {
        let ring = Ring::build()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Fsync::CODE,
            opcode::Recv::CODE,
            opcode::SendMsg::CODE,
            opcode::Accept::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
        ];
        let params = ring.params();
        let able = needed.iter().all(|&code| probe.is_supported(code));
        if !able || !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::other("this kernel's io_uring is too old"));
        }
        Ok(Ring { ring, waker: waker.clone(), waking: false })
    }

    /// The kernel's newest ways of running completions only when we wait, else older ones.
    fn build() -> io::Result<IoUring> {
        let build = |set: fn(&mut io_uring::Builder)| {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS);
            set(&mut builder);
            builder.build(ENTRIES)
        };
        build(|builder| {
            builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        })
        .or_else(|_| {
            build(|builder| {
                builder.setup_coop_taskrun();
            })
        })
        .or_else(|_| build(|_| {}))
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion.
    unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: as the caller promises.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Full: what is queued goes first. EBUSY and EAGAIN pass when completions were taken.
            if let Err(e) = self.ring.submit() {
                assert!(passes(&e), "io_uring refuses entries: {e}");
            }
        }
    }

    /// # Safety
    /// As [`super::Driver::read`].
    pub unsafe fn read(
        &mut self,
        slot: u32,
        file: &Device,
        offset: u64,
        memory: *mut u8,
        len: u32,
    ) {
        let fd = types::Fd(file.file_for(offset, u64::from(len)).as_raw_fd());
        let entry = opcode::Read::new(fd, memory, len).offset(offset).build();
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.user_data(IO | u64::from(slot))) }
    }

    /// # Safety
    /// As [`super::Driver::write`].
    pub unsafe fn write(
        &mut self,
        slot: u32,
        file: &Device,
        offset: u64,
        memory: *const u8,
        len: u32,
    ) {
        let fd = types::Fd(file.file_for(offset, u64::from(len)).as_raw_fd());
        let entry = opcode::Write::new(fd, memory, len).offset(offset).build();
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.user_data(IO | u64::from(slot))) }
    }

    pub fn flush(&mut self, slot: u32, file: &Device) {
        let fd = types::Fd(file.file().as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(IO | u64::from(slot))) }
    }

    /// # Safety
    /// As [`super::Driver::receive`].
    pub unsafe fn receive(&mut self, key: u32, fd: RawFd, memory: *mut u8, len: u32) {
        let entry = opcode::Recv::new(types::Fd(fd), memory, len).build();
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.user_data(RECEIVE | u64::from(key))) }
    }

    /// # Safety
    /// As [`super::Driver::send`].
    pub unsafe fn send(&mut self, key: u32, fd: RawFd, message: *const libc::msghdr) {
        let flags = libc::MSG_NOSIGNAL as u32;
        let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(flags).build();
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.user_data(SEND | u64::from(key))) }
    }

    pub fn accept(&mut self, key: u32, fd: RawFd) {
        let none = std::ptr::null_mut();
        let entry = opcode::Accept::new(types::Fd(fd), none, none.cast())
            // Blocking: on others the ring would not wait but say EAGAIN.
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(ACCEPT | u64::from(key))) }
    }

    pub fn cancel_accept(&mut self, key: u32) {
        let entry = opcode::AsyncCancel::new(ACCEPT | u64::from(key)).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(CANCEL)) }
    }

    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival>) -> io::Result<()> {
        if !self.waking {
            let fd = types::Fd(self.waker.fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            // SAFETY: the entry points to nothing.
            unsafe { self.push(entry.user_data(WAKE)) }
            self.waking = true;
        }
        let entered = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let time = types::Timespec::from(timeout);
                let arguments = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        match entered {
            Ok(_) => {}
            Err(e) if passes(&e) => {}
            Err(e) => return Err(e),
        }
        let mut woken = false;
        for completion in self.ring.completion() {
            let (data, result) = (completion.user_data(), completion.result());
            let key = data as u32;
            out.push(match data & !0xffff_ffff {
                IO => Arrival::Io(key, result),
                RECEIVE => Arrival::Received(key, result),
                SEND => Arrival::Sent(key, result),
                ACCEPT => Arrival::Accepted(key, result),
                // What it cancels tells by itself.
                CANCEL => continue,
                _ => {
                    assert_eq!(data, WAKE, "completions are of our own entries");
                    woken = true;
                    Arrival::Woken
                }
            });
        }
        if woken {
            self.waking = false;
            self.waker.clear();
        }
        Ok(())
    }
}

/// Whether the call may simply be made again: time was up, a signal, or completions wait to be taken.
fn passes(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}
