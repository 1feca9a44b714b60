//! Sequential streams: what is read or written from one end to the other is worth no place.

/// Requests of a deep queue arrive slightly out of order: so many bytes.
const TOLERANCE: u64 = 256 << 10;
/// Many smaller requests that happen to be neighbours are not a stream.
const STREAM_REQUEST_MIN: u64 = 32 << 10;
/// Streams that are remembered.
const STREAMS: usize = 8;

/// One stream that clients of a volume seem to read or write.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// The byte behind the last request.
    next: u64,
    /// Bytes so far.
    bytes: u64,
    /// When it was last seen, as a count of requests.
    seen: u64,
}

/// The streams of one volume.
#[derive(Debug, Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    /// Requests seen.
    requests: u64,
}

impl Streams {
    /// A request came, whatever it asks.
    #[inline]
    pub fn request_came(&mut self) {
        self.requests += 1;
    }

    /// Whether a request belongs to a stream of at least `bytes_min` bytes; remembers it.
    pub fn goes_on(&mut self, offset: u64, len: u64, bytes_min: u64) -> bool {
        let follows = |stream: &Stream| {
            stream.bytes > 0 && offset.abs_diff(stream.next) <= TOLERANCE.min(stream.bytes)
        };
        if let Some(stream) = self.streams.iter_mut().find(|stream| follows(stream)) {
            stream.next = stream.next.max(offset + len);
            stream.bytes += len;
            stream.seen = self.requests;
            return stream.bytes >= bytes_min && len >= STREAM_REQUEST_MIN;
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.seen);
        let new = Stream { next: offset + len, bytes: len, seen: self.requests };
        *oldest.expect("there are streams") = new;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_from_random_requests() {
        let mut streams = Streams::default();
        let big = 64 << 10;
        let goes_on = |streams: &mut Streams, offset, len| {
            streams.request_came();
            streams.goes_on(offset, len, 1 << 20)
        };
        let found: Vec<_> = (0..100).map(|n| goes_on(&mut streams, n * big, big)).collect();
        assert_eq!(found.iter().position(|&f| f), Some(15));
        let mut streams = Streams::default();
        for n in 0..1000_u64 {
            let offset = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 12;
            assert!(!goes_on(&mut streams, offset, 4096));
        }
    }
}
