//! io_uring: one system call for a batch of everything.

use super::fixed::Fixed;
use super::lent::Lent;
use super::{Arrival, Loan, Loans, PORT_KEYS};
use crate::ublk::{IoCommand, Node};
use crate::waker::Waker;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Entries of the submission queue. More are submitted in several calls.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; beyond it the kernel keeps them and the batch ends early.
const COMPLETIONS: u32 = 8192;

/// What a completion is for, in the upper 8 bits of its user data. The slot or key is in the lower
/// 32; of a port, the key is in the 24 between and the tag in the lower 32. What lends memory has a
/// kind of its own, so that nothing else's end gives it back.
const IO: u64 = 1 << 56;
const RECEIVE: u64 = 2 << 56;
const SEND: u64 = 3 << 56;
const ACCEPT: u64 = 4 << 56;
const WAKE: u64 = 5 << 56;
const CANCEL: u64 = 6 << 56;
const POLL: u64 = 7 << 56;
const PORT: u64 = 8 << 56;
const FLUSH: u64 = 9 << 56;
/// The bits that say what a completion is for.
const KIND: u64 = 0xff << 56;
/// How long a thread whose ring is to be closed may take to end.
const THREAD_END: Duration = Duration::from_secs(10);

fn of_port(kind: u64, key: u32, tag: u32) -> u64 {
    assert!(key < PORT_KEYS);
    kind | u64::from(key) << 32 | u64::from(tag)
}

/// A ring of the calling thread.
pub struct Ring<L: Loans> {
    ring: ManuallyDrop<IoUring>,
    /// A port sent commands to a driver of the kernel.
    commanded: bool,
    fixed: Fixed,
    lent: Lent<L>,
    /// Device I/O that was started and has not ended.
    ios: usize,
    waker: Waker,
    /// Whether a wait for the waker is under way.
    waking: bool,
}

impl<L: Loans> Drop for Ring<L> {
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

impl<L: Loans> Ring<L> {
    /// Sets up a ring for the calling thread, the only one that may use it.
    pub(super) fn new(waker: &Waker) -> io::Result<Ring<L>> {
        let ring = build()?;
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
        let (waker, lent) = (waker.clone(), Lent::new());
        Ok(Ring { ring, commanded: false, fixed, lent, ios: 0, waker, waking: false })
    }

    /// Has the kernel use up to so many threads of its own for I/O on files and block devices that
    /// it cannot start at once.
    pub(super) fn allow_threads(&mut self, count: usize) {
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

    /// Starts to read from `offset` of a file into a buffer, all but its first `done` bytes. The
    /// file stays open until the [`Arrival::Io`] of `slot`.
    pub fn read(&mut self, slot: u32, fd: RawFd, offset: u64, (mut buf, done): (L::Buf, usize)) {
        let place = self.fixed.place::<L>(&self.ring.submitter(), &mut buf);
        let memory = &mut L::bytes_mut(&mut buf)[done..];
        let (memory, len) = (memory.as_mut_ptr(), memory.len() as u32);
        let fd = types::Fd(fd);
        let entry = match place {
            Some(place) => opcode::ReadFixed::new(fd, memory, len, place).offset(offset).build(),
            None => opcode::Read::new(fd, memory, len).offset(offset).build(),
        };
        self.lent.lend_io(slot, buf, false);
        // SAFETY: the buffer is lent until the completion; its memory stays where it is.
        unsafe { self.push(entry.user_data(IO | u64::from(slot))) }
        self.ios += 1;
    }

    /// Starts to write a buffer, all but its first `done` bytes, to `offset` of a file, which stays
    /// open until the [`Arrival::Io`] of `slot`.
    pub fn write(&mut self, slot: u32, fd: RawFd, offset: u64, (mut buf, done): (L::Buf, usize)) {
        let place = self.fixed.place::<L>(&self.ring.submitter(), &mut buf);
        let memory = &L::bytes(&buf)[done..];
        let (memory, len) = (memory.as_ptr(), memory.len() as u32);
        let fd = types::Fd(fd);
        let entry = match place {
            Some(place) => opcode::WriteFixed::new(fd, memory, len, place).offset(offset).build(),
            None => opcode::Write::new(fd, memory, len).offset(offset).build(),
        };
        self.lent.lend_io(slot, buf, true);
        // SAFETY: the buffer is lent until the completion; its memory stays where it is.
        unsafe { self.push(entry.user_data(IO | u64::from(slot))) }
        self.ios += 1;
    }

    /// The buffer of a write under way.
    pub fn written(&self, slot: u32) -> Option<&L::Buf> {
        self.lent.written(slot)
    }

    /// Starts to flush a file, which stays open until the [`Arrival::Io`] of `slot`.
    pub fn flush(&mut self, slot: u32, fd: RawFd) {
        let entry = opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(FLUSH | u64::from(slot))) }
        self.ios += 1;
    }

    pub(super) fn receive(&mut self, key: u32, fd: RawFd, input: Box<[u8]>) {
        let (memory, len) = self.lent.lend_input(key, input);
        let entry = opcode::Recv::new(types::Fd(fd), memory, len).build();
        // SAFETY: the input is lent until the completion.
        unsafe { self.push(entry.user_data(RECEIVE | u64::from(key))) }
    }

    pub(super) fn send(&mut self, key: u32, fd: RawFd, message: L::Message) {
        let message = self.lent.lend_message(key, message);
        let flags = libc::MSG_NOSIGNAL as u32;
        let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(flags).build();
        // SAFETY: the message and what names its parts stay in their box until the completion.
        unsafe { self.push(entry.user_data(SEND | u64::from(key))) }
    }

    pub(super) fn accept(&mut self, key: u32, fd: RawFd) {
        let none = std::ptr::null_mut();
        let entry = opcode::Accept::new(types::Fd(fd), none, none.cast())
            // Blocking: on others the ring would not wait but say EAGAIN.
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(ACCEPT | u64::from(key))) }
    }

    pub(super) fn cancel_accept(&mut self, key: u32) {
        let entry = opcode::AsyncCancel::new(ACCEPT | u64::from(key)).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(CANCEL)) }
    }

    pub(super) fn poll_port(&mut self, key: u32, tag: u32, fd: RawFd) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(of_port(POLL, key, tag))) }
    }

    pub(super) fn cancel_port(&mut self, key: u32, tag: u32) {
        let entry = opcode::AsyncCancel::new(of_port(POLL, key, tag)).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.user_data(CANCEL)) }
    }

    /// Starts to write the parts of `answer` to a port's descriptor, in one write. It stays open
    /// until the [`Arrival::Port`] of `key` and `tag`.
    pub fn write_port(&mut self, (key, tag): (u32, u32), fd: RawFd, answer: L::Answer) {
        let (parts, count) = self.lent.lend_answer((key, tag), answer);
        let entry = opcode::Writev::new(types::Fd(fd), parts, count).build();
        // SAFETY: the answer and what names its parts stay in their box until the completion.
        unsafe { self.push(entry.user_data(of_port(PORT, key, tag))) }
    }

    /// Starts a command of a slot of ublk. Where the kernel copies data by itself, it does so from
    /// and to `buf`, which then holds the longest request of the device.
    pub fn ublk(
        &mut self,
        (key, tag): (u32, u32),
        node: &Node,
        command: IoCommand,
        mut buf: L::Buf,
    ) {
        self.commanded = true;
        let bytes = node.command(command, L::bytes_mut(&mut buf));
        let fd = types::Fd(node.file().as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, command.operation()).cmd(bytes).addr(Some(0));
        self.lent.lend_port_buf((key, tag), buf);
        // SAFETY: the buffer is lent until the completion, and as long as the kernel may think.
        unsafe { self.push(entry.build().user_data(of_port(PORT, key, tag))) }
    }

    /// Starts what was asked. Whether something ended; costs no system call where nothing is to be
    /// started.
    pub(super) fn look(&mut self) -> bool {
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

    /// Device I/O that was started and has not ended.
    pub(super) fn ios(&self) -> usize {
        self.ios
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Arrival<L>>,
    ) -> io::Result<()> {
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
            let (key, port) = (data as u32, (data >> 32) as u32 & (PORT_KEYS - 1));
            self.ios -= usize::from(matches!(data & KIND, IO | FLUSH));
            out.push(match data & KIND {
                IO => Arrival::Io(key, result, self.lent.take_io(key)),
                RECEIVE => Arrival::Received(key, result, self.lent.take_input(key)),
                SEND => Arrival::Sent(key, result, self.lent.take_message(key)),
                ACCEPT => Arrival::Accepted(key, accepted(result)),
                FLUSH => Arrival::Io(key, result, None),
                POLL => Arrival::Port(port, key, result, Loan::Nothing),
                PORT => Arrival::Port(port, key, result, self.lent.take_loan(port, key)),
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

/// What an accept brought.
fn accepted(result: i32) -> Result<OwnedFd, i32> {
    if result < 0 {
        return Err(-result);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Whether the call may simply be made again: time was up, a signal, or completions wait to be
/// taken.
fn passes(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}
