//! Buffers: owned, page aligned, handed along inside effects and completions. No lifetimes, no
//! sharing.

use crate::BLOCK_SIZE;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Memory aligned as direct I/O wants it.
#[repr(C, align(4096))]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Page([u8; BLOCK_SIZE]);

/// An owned buffer of whole pages, of which the first `len` bytes are in use.
pub struct Buf {
    pages: Box<[Page]>,
    len: usize,
    /// A number that the executor has given to this memory: its place among the kernel's registered
    /// buffers. It lives as long as the memory; the engine leaves it alone.
    pub mark: Option<Arc<u32>>,
}

impl Buf {
    /// A buffer that owns no memory.
    pub fn empty() -> Buf {
        Buf { pages: Box::new([]), len: 0, mark: None }
    }

    /// `len` bytes of zeros.
    pub fn zeroed(len: usize) -> Buf {
        Buf::try_zeroed(len).expect("the system has memory for a buffer")
    }

    /// `len` bytes of zeros, or `None` where the system refuses memory.
    pub fn try_zeroed(len: usize) -> Option<Buf> {
        let pages = <[Page]>::new_box_zeroed_with_elems(len.div_ceil(BLOCK_SIZE)).ok()?;
        Some(Buf { pages, len, mark: None })
    }

    /// A copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len());
        buf.bytes_mut().copy_from_slice(bytes);
        buf
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the buffer could hold.
    pub fn capacity(&self) -> usize {
        self.pages.len() * BLOCK_SIZE
    }

    /// Changes how many bytes are in use. The bytes keep what they held.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len;
    }

    /// The bytes in use.
    pub fn bytes(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }

    /// The bytes in use.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl Default for Buf {
    fn default() -> Self {
        Buf::empty()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// What the system must have beside what [`BufPool::try_take`] takes: for those who cannot wait.
const SPARE_BYTES: usize = 33 << 20;
/// How much is taken between two looks at that.
const LOOK_BYTES: usize = 1 << 20;
/// The largest buffer that is taken out of it.
const SPARED_LEN_MAX: usize = 64 << 10;

/// Buffers to use again, by size: after warming up, taking one allocates nothing.
#[derive(Debug, Default)]
pub struct BufPool {
    /// `free[n]` holds buffers of `2^n` pages.
    free: [Vec<Buf>; BufPool::CLASSES],
    held_bytes: usize,
    held_bytes_max: usize,
    /// What may be taken before the next look at what the system has.
    seen_bytes: usize,
    /// Tells whether the system has so many bytes, where somebody can look.
    look: Option<fn(usize) -> bool>,
}

impl BufPool {
    /// Largest class: `2^11` pages, 8 MiB.
    const CLASSES: usize = 12;

    /// A pool that keeps at most `held_bytes_max` bytes of unused buffers.
    pub fn new(held_bytes_max: usize) -> BufPool {
        BufPool { held_bytes_max, ..BufPool::default() }
    }

    /// The same pool, which asks `look` whether the system has so many bytes more, before it takes
    /// from it for who can wait.
    pub fn looking(self, look: fn(usize) -> bool) -> BufPool {
        BufPool { look: Some(look), ..self }
    }

    fn class(len: usize) -> usize {
        len.div_ceil(BLOCK_SIZE).next_power_of_two().trailing_zeros() as usize
    }

    /// A buffer of `len` bytes with unspecified content (old data of this pool, never of another
    /// process).
    pub fn take(&mut self, len: usize) -> Buf {
        let class = BufPool::class(len);
        if class >= BufPool::CLASSES {
            return Buf::zeroed(len);
        }
        let mut buf = match self.free[class].pop() {
            Some(buf) => {
                self.held_bytes -= buf.capacity();
                buf
            }
            None => Buf::zeroed(BLOCK_SIZE << class),
        };
        buf.set_len(len);
        buf
    }

    /// As [`BufPool::take`], for who can wait or be refused: `None` where the system refuses
    /// memory, or has so little that who cannot wait would be refused next.
    pub fn try_take(&mut self, len: usize) -> Option<Buf> {
        let class = BufPool::class(len);
        if self.free.get(class).is_some_and(|free| !free.is_empty()) {
            return Some(self.take(len));
        }
        let capacity = if class < BufPool::CLASSES { BLOCK_SIZE << class } else { len };
        let mut buf = self.fresh(capacity).or_else(|| {
            // Buffers of other sizes may be what is missing.
            self.trim();
            self.fresh(capacity)
        })?;
        buf.set_len(len);
        Some(buf)
    }

    /// As [`BufPool::try_take`], for who has nothing else: a small buffer may be one of the last.
    pub fn take_spared(&mut self, len: usize) -> Option<Buf> {
        if let Some(buf) = self.try_take(len) {
            return Some(buf);
        }
        if len > SPARED_LEN_MAX {
            return None;
        }
        let mut buf = Buf::try_zeroed(BLOCK_SIZE << BufPool::class(len))?;
        buf.set_len(len);
        Some(buf)
    }

    /// A new buffer, if the system has more than that.
    fn fresh(&mut self, capacity: usize) -> Option<Buf> {
        let buf = Buf::try_zeroed(capacity)?;
        if self.seen_bytes < capacity {
            if self.look.is_some_and(|look| !look(SPARE_BYTES)) {
                return None;
            }
            self.seen_bytes = LOOK_BYTES;
        }
        self.seen_bytes = self.seen_bytes.saturating_sub(capacity);
        Some(buf)
    }

    /// Frees the unused buffers.
    pub fn trim(&mut self) {
        *self = BufPool { look: self.look, ..BufPool::new(self.held_bytes_max) };
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buf: Buf) {
        let capacity = buf.capacity();
        if capacity == 0 || self.held_bytes + capacity > self.held_bytes_max {
            return;
        }
        let class = BufPool::class(capacity);
        if class < BufPool::CLASSES && capacity == BLOCK_SIZE << class {
            self.held_bytes += capacity;
            self.free[class].push(buf);
        }
    }
}
