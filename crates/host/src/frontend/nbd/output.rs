//! Bytes on their way to the client.

use forebay_engine::{Buf, BufPool};
use std::collections::VecDeque;

/// Room of one head chunk: some hundred replies without data,.
const HEAD_BYTES: usize = 2 << 10;

/// Head chunks kept for use again.
const SPARE_HEADS_MAX: usize = 64;

enum Chunk {
    /// Headers and other small things.
    Head(Vec<u8>),
    /// Data, with the bytes that it is charged for.
    Data(Buf, u64),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Head(bytes) => bytes,
            Chunk::Data(buf, _) => buf.bytes(),
        }
    }
}

/// A queue of chunks. A chunk that was shown by [`Output::slices`] stays where it is in memory,
/// unchanged, until all of its bytes were sent: the kernel may read from it meanwhile.
#[derive(Default)]
pub(super) struct Output {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were sent.
    sent: usize,
    /// Chunks that were shown.
    shown: usize,
    /// Bytes queued.
    queued: usize,
    /// Bytes queued in heads.
    queued_heads: usize,
    spare: Vec<Vec<u8>>,
}

impl Output {
    /// Queues a copy of small `bytes`.
    pub(super) fn head(&mut self, bytes: &[u8]) {
        let fits = match self.chunks.back() {
            Some(Chunk::Head(head)) if self.shown < self.chunks.len() => {
                head.len() + bytes.len() <= head.capacity()
            }
            _ => false,
        };
        if !fits {
            let mut head = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(HEAD_BYTES));
            head.clear();
            self.chunks.push_back(Chunk::Head(head));
        }
        let Some(Chunk::Head(head)) = self.chunks.back_mut() else { unreachable!("pushed above") };
        head.extend_from_slice(bytes);
        self.queued += bytes.len();
        self.queued_heads += bytes.len();
    }

    /// Queues the bytes in use of `buf`. `charge` is handed back by [`Output::sent`].
    pub(super) fn data(&mut self, buf: Buf, charge: u64) {
        self.queued += buf.len();
        self.chunks.push_back(Chunk::Data(buf, charge));
    }

    /// Bytes queued.
    pub(super) fn len(&self) -> usize {
        self.queued
    }

    /// Bytes queued that are not data.
    pub(super) fn heads_len(&self) -> usize {
        self.queued_heads
    }

    /// Shows at most `chunks_max` slices, in order.
    pub(super) fn slices(&mut self, chunks_max: usize) -> impl Iterator<Item = &[u8]> {
        let count = chunks_max.min(self.chunks.len());
        self.shown = self.shown.max(count);
        let sent = self.sent;
        self.chunks.iter().take(count).enumerate().map(move |(index, chunk)| {
            let bytes = chunk.bytes();
            if index == 0 { &bytes[sent..] } else { bytes }
        })
    }

    /// Takes `len` bytes off the front. Returns the charges of the data chunks that are through.
    pub(super) fn sent(&mut self, len: usize, bufs: &mut BufPool) -> u64 {
        assert!(len <= self.queued);
        self.queued -= len;
        let mut left = len;
        let mut charges = 0;
        while let Some(chunk) = self.chunks.front() {
            let rest = chunk.bytes().len() - self.sent;
            if left < rest {
                self.sent += left;
                if matches!(chunk, Chunk::Head(_)) {
                    self.queued_heads -= left;
                }
                return charges;
            }
            left -= rest;
            self.sent = 0;
            self.shown = self.shown.saturating_sub(1);
            match self.chunks.pop_front() {
                Some(Chunk::Head(head)) => {
                    self.queued_heads -= rest;
                    if self.spare.len() < SPARE_HEADS_MAX && head.capacity() <= HEAD_BYTES {
                        self.spare.push(head);
                    }
                }
                Some(Chunk::Data(buf, charge)) => {
                    charges += charge;
                    bufs.give(buf);
                }
                None => {}
            }
        }
        assert_eq!(left, 0);
        charges
    }

    /// Forgets what is queued. Returns the charges.
    pub(super) fn clear(&mut self, bufs: &mut BufPool) -> u64 {
        self.sent(self.queued, bufs)
    }
}
