//! io_uring: one system call for a batch of everything.

use super::fixed::Fixed;
use super::{Arrival, PORT_KEYS};
use crate::device::Device;
use crate::waker::Waker;
use forebay_engine::Buf;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Entries of the submission queue. More are submitted in several calls.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; beyond it the kernel keeps them and the batch ends early.
const COMPLETIONS: u32 = 8192;

/// What a completion is for, in the upper 8 bits of its user data. The slot or key is in the lower
/// 32; of a port, the key is in the 24 between and the tag in the lower 32.
const IO: u64 = 1 << 56;
const RECEIVE: u64 = 2 << 56;
const SEND: u64 = 3 << 56;
const ACCEPT: u64 = 4 << 56;
const WAKE: u64 = 5 << 56;
const CANCEL: u64 = 6 << 56;
const PORT: u64 = 7 << 56;
/// The bits that say what a completion is for.
const KIND: u64 = 0xff << 56;
/// How long a thread whose ring is to be closed may take to end.
const THREAD_END: Duration = Duration::from_secs(10);

fn port(key: u32, tag: u32) -> u64 {
    PORT | u64::from(key) << 32 | u64::from(tag)
}

pub(crate) struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// A port sent commands to a driver of the kernel.
    commanded: bool,
    fixed: Fixed,
    waker: Waker,
    /// Whether a wait for the waker is under way.
    waking: bool,
}

impl Drop for Ring {
    /// A ring with commands of ublk is closed when its thread has ended: the end of the thread ends
    /// the commands, as if it were killed. When the ring was closed before that, Linux 6.12 used it
    /// after it was freed.
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if !self.commanded {
            return;
        }
        // SAFETY: has no conditions.
        let thread = unsafe { libc::gettid() };
        let left = std::thread::Builder::new().name("forebay-ring".to_owned()).spawn(move || {
            let place = format!("/proc/self/task/{thread}");
            let end = Instant::now() + THREAD_END;
            while std::path::Path::new(&place).exists() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(ring);
        });
        // Without a thread the ring was closed at once: better than never.
        drop(left);
    }
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
            opcode::Writev::CODE,
        ];
        let params = ring.params();
        let able = needed.iter().all(|&code| probe.is_supported(code));
        if !able || !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::other("this kernel's io_uring is too old"));
        }
        let fixed = Fixed::new(&ring.submitter());
        let ring = ManuallyDrop::new(ring);
        Ok(Ring { ring, commanded: false, fixed, waker: waker.clone(), waking: false })
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
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            builder.setup_submit_all();
        })
        .or_else(|_| {
            build(|builder| {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            })
        })
        .or_else(|_| build(|_| {}))
    }

    /// Has the kernel use up to so many threads of its own for I/O on files and block devices that
    /// it cannot start at once.
    pub fn allow_threads(&mut self, count: usize) {
        // None for the rest: unchanged. A kernel that is too old (before 5.15) keeps its own
        // number.
        let mut counts = [u32::try_from(count).unwrap_or(u32::MAX), 0];
        let _ = self.ring.submitter().register_iowq_max_workers(&mut counts);
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
        (buf, done): (&mut Buf, usize),
    ) {
        let place = self.fixed.place(&self.ring.submitter(), buf);
        let memory = &mut buf.bytes_mut()[done..];
        let (memory, len) = (memory.as_mut_ptr(), memory.len() as u32);
        let fd = types::Fd(file.file_for(offset, u64::from(len)).as_raw_fd());
        let entry = match place {
            Some(place) => opcode::ReadFixed::new(fd, memory, len, place).offset(offset).build(),
            None => opcode::Read::new(fd, memory, len).offset(offset).build(),
        };
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
        (buf, done): (&mut Buf, usize),
    ) {
        let place = self.fixed.place(&self.ring.submitter(), buf);
        let memory = &buf.bytes()[done..];
        let (memory, len) = (memory.as_ptr(), memory.len() as u32);
        let fd = types::Fd(file.file_for(offset, u64::from(len)).as_raw_fd());
        let entry = match place {
            Some(place) => opcode::WriteFixed::new(fd, memory, len, place).offset(offset).build(),
            None => opcode::Write::new(fd, memory, len).offset(offset).build(),
        };
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

    pub fn poll_port(&mut self, key: u32, tag: u32, fd: RawFd) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(port(key, tag))) }
    }

    pub fn cancel_port(&mut self, key: u32, tag: u32) {
        let entry = opcode::AsyncCancel::new(port(key, tag)).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(CANCEL)) }
    }

    /// Starts to write parts to a port's descriptor, one after the other, in one write.
    ///
    /// # Safety
    /// `parts` stays where it is, what it points to is valid and unchanged, and `fd` stays open,
    /// until the [`Arrival::Port`] of `key` and `tag`.
    pub unsafe fn port_writev(&mut self, (key, tag): (u32, u32), fd: RawFd, parts: &[libc::iovec]) {
        let count = u32::try_from(parts.len()).expect("parts are few");
        let entry = opcode::Writev::new(types::Fd(fd), parts.as_ptr(), count);
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.build().user_data(port(key, tag))) }
    }

    /// Starts a command of 16 bytes on a port's descriptor, with an address as the command wants
    /// it.
    ///
    /// # Safety
    /// What the command makes the kernel read or write stays valid, and `fd` open, until the
    /// [`Arrival::Port`] of `key` and `tag`.
    pub unsafe fn port_cmd16(
        &mut self,
        (key, tag): (u32, u32),
        fd: RawFd,
        command: u32,
        bytes: [u8; 16],
        addr: u64,
    ) {
        self.commanded = true;
        let entry = opcode::UringCmd16::new(types::Fd(fd), command).cmd(bytes).addr(Some(addr));
        // SAFETY: as the caller promises.
        unsafe { self.push(entry.build().user_data(port(key, tag))) }
    }

    /// Starts what was asked. Whether something ended; costs no system call where nothing is to be
    /// started.
    pub fn look(&mut self) -> bool {
        if !self.ring.submission().is_empty()
            && let Err(e) = self.ring.submit()
        {
            assert!(passes(&e), "io_uring refuses entries: {e}");
        }
        self.wants_enter() || !self.ring.completion().is_empty()
    }

    /// Whether the kernel has completions that only come when it is entered.
    fn wants_enter(&mut self) -> bool {
        let entries = self.ring.submission();
        entries.taskrun() || entries.cq_overflow()
    }

    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival>) -> io::Result<()> {
        if !self.waking {
            let fd = types::Fd(self.waker.fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            // SAFETY: the entry points to nothing.
            unsafe { self.push(entry.user_data(WAKE)) }
            self.waking = true;
        }
        let nothing = timeout == Some(Duration::ZERO) && self.ring.submission().is_empty();
        let entered = match timeout {
            Some(_) if nothing && !self.wants_enter() => Ok(0),
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
            out.push(match data & KIND {
                IO => Arrival::Io(key, result),
                RECEIVE => Arrival::Received(key, result),
                SEND => Arrival::Sent(key, result),
                ACCEPT => Arrival::Accepted(key, result),
                PORT => Arrival::Port((data >> 32) as u32 & (PORT_KEYS - 1), key, result),
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
