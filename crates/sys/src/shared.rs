//! Memory that is shared with another process, which can take it away at any moment.
//!
//! Who touches a mapping behind the end of its file, or where the system has no memory for it, gets
//! SIGBUS, and by default the process ends. A file can be cut while it is mapped, and not every
//! file can be sealed against that. So the signal is caught: memory of ours takes the place of the
//! mapping in which the access lay, the access goes on there, and the mapping is *lost*. Whoever
//! read something asks afterwards whether it was, before the bytes are believed.

use crate::{check, file};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, OnceLock};
use vm_memory::{FileOffset, MmapRegion};

/// Mappings at one time.
const SLOTS_MAX: usize = 4096;
/// Bytes of them all: half of the addresses that a process has. Files may have holes, so whoever
/// shares one says any length at no cost.
const BYTES_MAX: usize = 64 << 40;
/// The smallest page of any machine: what is mapped in a fault if all of the mapping cannot be.
const PAGE_BYTES: usize = 4096;

/// Where a mapping lies, for the handler: it may run in any thread at any moment.
#[derive(Debug)]
struct Slot {
    begin: AtomicUsize,
    /// Zero in a slot that is free. Written last by who takes it, and first by who leaves it.
    bytes: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    const fn free() -> Slot {
        let (begin, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Slot { begin, bytes, lost: AtomicBool::new(false) }
    }

    /// Begin and length of its mapping, if this address lies there. A mapping whose access faulted
    /// is not unmapped before that access has ended, so its slot stays; another may change
    /// meanwhile, and its length is read twice for that.
    fn around(&self, at: usize) -> Option<(usize, usize)> {
        let bytes = self.bytes.load(Ordering::SeqCst);
        let begin = self.begin.load(Ordering::SeqCst);
        let same = self.bytes.load(Ordering::SeqCst) == bytes;
        (same && at >= begin && at - begin < bytes).then_some((begin, bytes))
    }
}

static SLOTS: [Slot; SLOTS_MAX] = [const { Slot::free() }; SLOTS_MAX];
/// Bytes of all mappings. Who holds it may change which slots are free.
static MAPPED: Mutex<usize> = Mutex::new(0);
/// What was done on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A part of a file, mapped for reads and writes.
#[derive(Debug)]
pub struct Shared {
    region: Arc<MmapRegion>,
    slot: &'static Slot,
}

impl Shared {
    /// Maps a part of a file of another process. Only files are taken whose pages come without
    /// anybody's help: a file on FUSE would hold up whoever touches it, for as long as it likes.
    ///
    /// # Errors
    /// It is no such file, it is too short, or it cannot be mapped; all there may be is mapped.
    pub fn map(file: File, offset: u64, bytes: usize) -> io::Result<Shared> {
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let metadata = file.metadata()?;
        if !metadata.is_file() || !file::is_memory(&file) && !file::is_local(&file) {
            return refuse("shared memory has to be a file in memory");
        }
        let end = offset.checked_add(bytes as u64);
        if bytes == 0 || end.is_none_or(|end| end > metadata.len()) {
            return refuse("the file of the shared memory is too short");
        }
        watch()?;
        // Of large pages a whole one is mapped, and only as a whole another can take its place.
        let page = file::large_page_bytes(&file).unwrap_or(PAGE_BYTES);
        let whole = bytes.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        let mut mapped = MAPPED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = SLOTS.iter().find(|slot| slot.bytes.load(Ordering::SeqCst) == 0);
        let (Some(slot), true) = (slot, whole <= BYTES_MAX - *mapped) else {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        };
        let region = MmapRegion::from_file(FileOffset::new(file, offset), bytes);
        let region = Arc::new(region.map_err(io::Error::other)?);
        *mapped += whole;
        slot.lost.store(false, Ordering::SeqCst);
        slot.begin.store(region.as_ptr() as usize, Ordering::SeqCst);
        slot.bytes.store(whole, Ordering::SeqCst);
        Ok(Shared { region, slot })
    }

    /// The mapping.
    pub fn region(&self) -> &Arc<MmapRegion> {
        &self.region
    }

    /// Whether the other side took it away before now: what was read may be zeros of ours, and what
    /// was written reaches nobody.
    pub fn is_lost(&self) -> bool {
        // The signal comes in the thread that reads. Only the compiler could move a read over this.
        compiler_fence(Ordering::SeqCst);
        self.slot.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Before it is unmapped: another mapping may get its addresses.
        let mut mapped = MAPPED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *mapped -= self.slot.bytes.swap(0, Ordering::SeqCst);
    }
}

/// Catches SIGBUS from now on.
fn watch() -> io::Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros is a valid `sigaction`: integers, an empty set and no handler.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { std::mem::zeroed() };
    // SAFETY: `before` is valid for the call.
    check(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    // The handler asks for it.
    let _ = BEFORE.set(before);
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = lost;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler takes what SA_SIGINFO gives, and only does what a handler may do: atomic
    // loads and stores, mmap and sigaction.
    check(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}

/// An access found no memory behind an address.
extern "C" fn lost(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the signal's description, and SIGBUS of an
    // access has an address in it; of others (the code is not above zero) it is not asked.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let found = SLOTS.iter().find_map(|slot| Some((slot, slot.around(at)?)));
    let replaced = match found.filter(|_| code > 0) {
        Some((slot, (begin, bytes))) => {
            slot.lost.store(true, Ordering::SeqCst);
            replace(begin, bytes) || replace(at / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        }
        None => false,
    };
    if !replaced && let Some(before) = BEFORE.get() {
        // The access is tried again, and whoever was there before is asked.
        // SAFETY: it is the action that was set before.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts memory of ours into the place of a mapping. Whether it could be.
fn replace(begin: usize, bytes: usize) -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (protection, begin) = (libc::PROT_READ | libc::PROT_WRITE, begin as *mut c_void);
    // SAFETY: a `Shared` has these addresses, and it is alive, as the access to it has not ended.
    // Nothing is known of its bytes that changes of them could break: it is shared.
    unsafe { libc::mmap(begin, bytes, protection, kind, -1, 0) != libc::MAP_FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, VolatileMemory};

    fn read(shared: &Shared, at: usize) -> u8 {
        let slice = shared.region().get_slice(at, 1).unwrap();
        let byte: u8 = slice.load(0, Ordering::Relaxed).unwrap();
        byte
    }

    #[test]
    fn memory_that_is_taken_away_is_lost_and_nothing_else_is() {
        let of = |bytes: u64| file::memory_file(bytes).unwrap();
        let (cut, stays) = (of(64 << 10), of(64 << 10));
        let one = Shared::map(cut.try_clone().unwrap(), 0, 64 << 10).unwrap();
        let other = Shared::map(stays, 4096, 60 << 10).unwrap();
        for shared in [&one, &other] {
            shared.region().get_slice(0, 8).unwrap().copy_from(&[7; 8]);
            assert_eq!((read(shared, 0), shared.is_lost()), (7, false));
        }
        cut.set_len(4096).unwrap();
        assert_eq!((read(&one, 0), one.is_lost()), (7, false), "it is not touched");
        assert_eq!((read(&one, 40 << 10), one.is_lost()), (0, true));
        one.region().get_slice(0, 64 << 10).unwrap().copy_from(&vec![9; 64 << 10][..]);
        assert_eq!((read(&one, 4096), read(&other, 4), other.is_lost()), (9, 7, false));
        drop(one);
        // Whoever gets its slot begins anew.
        let again = Shared::map(of(4096), 0, 4096).unwrap();
        assert_eq!((read(&again, 0), again.is_lost()), (0, false));
    }

    #[test]
    fn what_is_no_memory_or_too_much_of_it_is_refused() {
        let refused = |file: File, offset, bytes| Shared::map(file, offset, bytes).is_err();
        assert!(refused(file::memory_file(4096).unwrap(), 0, 4097));
        assert!(refused(file::memory_file(4096).unwrap(), u64::MAX, 4096));
        assert!(refused(file::memory_file(4096).unwrap(), 0, 0));
        assert!(refused(File::open("/dev/zero").unwrap(), 0, 4096));
        assert!(refused(File::open("/proc/self/mem").unwrap(), 0, 4096));
        assert!(refused(File::open("/").unwrap(), 0, 4096));
        let large = file::memory_file(1 << 60).unwrap();
        assert!(refused(large, 0, BYTES_MAX + 1));
    }
}
