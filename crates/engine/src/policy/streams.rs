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
    /// Requests that begin here, or less than so many bytes behind it, go on with it: around the
    /// byte behind the last one. With what is no stream none does.
    from: u64,
    width: u64,
    /// The byte behind the last request.
    next: u64,
    /// Bytes so far.
    bytes: u64,
    /// When it was last seen, as a count of requests.
    seen: u64,
}

impl Stream {
    /// A request has come that ends before `next`, and brings so many bytes.
    fn came(&mut self, next: u64, len: u64, seen: u64) {
        (self.next, self.bytes, self.seen) = (next, self.bytes + len, seen);
        let near = TOLERANCE.min(self.bytes);
        self.from = next.saturating_sub(near);
        self.width = next + near + 1 - self.from;
    }

    /// Whether a request that begins here goes on with it.
    #[inline]
    fn reaches(&self, offset: u64) -> bool {
        offset.wrapping_sub(self.from) < self.width
    }
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
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.reaches(offset)) {
            stream.came(stream.next.max(offset + len), len, self.requests);
            return stream.bytes >= bytes_min && len >= STREAM_REQUEST_MIN;
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.seen);
        let oldest = oldest.expect("there are streams");
        *oldest = Stream::default();
        oldest.came(offset + len, len, self.requests);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request goes on with a stream whose end is near, and nearer than the stream is long.
    #[test]
    fn what_goes_on_with_a_stream_is_what_begins_near_its_end() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut stream = Stream::default();
            assert!(!stream.reaches(0) && !stream.reaches(random(1 << 30)));
            for _ in 0..100 {
                let (next, len) = (random(1 << 20) * 512, (1 + random(128)) * 512);
                stream.came(next, len, 0);
                let offset = random(1 << 20) * 512;
                for at in [offset, next, next.saturating_sub(offset % TOLERANCE), next + TOLERANCE]
                {
                    let near = at.abs_diff(next) <= TOLERANCE.min(stream.bytes);
                    assert_eq!(stream.reaches(at), near, "{at} of {stream:?}");
                }
            }
        }
    }

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
