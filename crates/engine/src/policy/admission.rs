//! What enters the cache. Read misses at their second miss, measured in `shared` traces to halve
//! the flash writes at ARC's hit ratio (FIFO ghost of half the cache; everything until the cache
//! has been full once).

use crate::index::Key;
use crate::volume::Stream;

const WAYS: usize = 4;

/// The ghost: fingerprints of blocks that missed once, in small FIFO sets. A byte each: one first
/// miss in 64 is taken for a second one, which does no harm.
#[derive(Debug)]
pub struct Admission {
    sets: Vec<[u8; WAYS]>,
    set_count: usize,
    /// The cache has been full once: from now on the second miss counts.
    pub full_once: bool,
}

impl Admission {
    /// A ghost for a cache of `slots` blocks: half as many fingerprints. Memory is taken when the
    /// cache has been full once.
    pub fn new(slots: u32) -> Admission {
        Admission {
            sets: Vec::new(),
            set_count: (slots as usize / 2 / WAYS).max(1),
            full_once: false,
        }
    }

    /// Whether a block that missed may enter now; remembers it if not.
    pub fn admit_miss(&mut self, key: Key) -> bool {
        if !self.full_once {
            return true;
        }
        if self.sets.is_empty() {
            self.sets = vec![[0; WAYS]; self.set_count];
        }
        let hash = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fingerprint = ((hash >> 24) as u8).max(1);
        let set = &mut self.sets[(hash >> 32) as usize % self.set_count];
        if let Some(at) = set.iter().position(|&seen| seen == fingerprint) {
            set[at] = 0;
            return true;
        }
        set.rotate_right(1);
        set[0] = fingerprint;
        false
    }
}

/// Whether a request belongs to a sequential stream of at least `bytes_min` bytes; remembers it.
pub fn sequential(
    streams: &mut [Stream],
    count: u64,
    offset: u64,
    len: u64,
    bytes_min: u64,
) -> bool {
    // Requests of a deep queue arrive slightly out of order.
    const TOLERANCE: u64 = 256 << 10;
    let follows = |stream: &Stream| {
        stream.bytes > 0 && offset.abs_diff(stream.next) <= TOLERANCE.min(stream.bytes)
    };
    if let Some(stream) = streams.iter_mut().find(|stream| follows(stream)) {
        stream.next = stream.next.max(offset + len);
        stream.bytes += len;
        stream.seen = count;
        // Many small requests that happen to be neighbours are not a stream.
        return stream.bytes >= bytes_min && len >= 32 << 10;
    }
    let oldest = streams.iter_mut().min_by_key(|stream| stream.seen).expect("there are streams");
    *oldest = Stream { next: offset + len, bytes: len, seen: count };
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_miss_is_admitted_once_the_cache_has_been_full() {
        let mut admission = Admission::new(1024);
        assert!(admission.admit_miss(7), "everything is admitted at first");
        admission.full_once = true;
        assert!(!admission.admit_miss(7));
        assert!(admission.admit_miss(7));
        assert!(!admission.admit_miss(7), "admitted blocks leave the ghost");
    }

    #[test]
    fn the_ghost_forgets_what_is_older_than_half_the_cache() {
        let mut admission = Admission::new(1024);
        admission.full_once = true;
        assert!(!admission.admit_miss(1));
        let admitted = (1000..4000).filter(|&key| admission.admit_miss(key)).count();
        assert!(admitted < 3000 / 32, "{admitted} first misses were taken for second ones");
        assert!(!admission.admit_miss(1));
    }

    #[test]
    fn streams_are_told_from_random_requests() {
        let mut streams = [Stream::default(); 8];
        let big = 64 << 10;
        let found = (0..100)
            .map(|n| sequential(&mut streams, n, n * big, big, 1 << 20))
            .collect::<Vec<_>>();
        assert_eq!(found.iter().position(|&f| f), Some(15));
        let mut streams = [Stream::default(); 8];
        for n in 0..1000_u64 {
            let offset = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 12;
            assert!(!sequential(&mut streams, n, offset, 4096, 1 << 20));
        }
    }
}
