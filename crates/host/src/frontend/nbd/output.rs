//! Bytes on their way to the client.

use forebay_engine::{Buf, BufPool};
use forebay_sys::driver::Parts;
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

/// Chunks on their way to the client, in order. Who sends has them meanwhile, so that they stay
/// where they are in memory, unchanged.
#[derive(Default)]
pub struct Parcel {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were sent.
    sent: usize,
}

impl Parcel {
    /// What is to be sent.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().enumerate().map(|(index, chunk)| {
            let bytes = chunk.bytes();
            if index == 0 { &bytes[self.sent..] } else { bytes }
        })
    }
}

impl Parts for Parcel {
    fn each_part<'a>(&'a self, add: impl FnMut(&'a [u8])) {
        self.slices().for_each(add);
    }
}

/// A queue of chunks, of which the first are in a parcel.
#[derive(Default)]
pub(super) struct Output {
    parcel: Parcel,
    /// Whoever sends has the parcel.
    lent: bool,
    chunks: VecDeque<Chunk>,
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
            Some(Chunk::Head(head)) => head.len() + bytes.len() <= head.capacity(),
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

    /// Hands out the parcel with at most `chunks_max` chunks, until [`Output::sent`].
    pub(super) fn take(&mut self, chunks_max: usize) -> Parcel {
        assert!(!self.lent, "one send at a time");
        self.lent = true;
        let mut parcel = std::mem::take(&mut self.parcel);
        let room = chunks_max.saturating_sub(parcel.chunks.len());
        parcel.chunks.extend(self.chunks.drain(..room.min(self.chunks.len())));
        parcel
    }

    /// Takes the parcel back, of which `len` bytes were sent. Returns the charges of the data
    /// chunks that are through.
    pub(super) fn sent(&mut self, parcel: Parcel, len: usize, bufs: &mut BufPool) -> u64 {
        assert!(self.lent && len <= self.queued);
        self.lent = false;
        self.parcel = parcel;
        self.queued -= len;
        let parcel = &mut self.parcel;
        let mut left = len;
        let mut charges = 0;
        while let Some(chunk) = parcel.chunks.front() {
            let rest = chunk.bytes().len() - parcel.sent;
            if left < rest {
                parcel.sent += left;
                if matches!(chunk, Chunk::Head(_)) {
                    self.queued_heads -= left;
                }
                return charges;
            }
            left -= rest;
            parcel.sent = 0;
            match parcel.chunks.pop_front() {
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
        let parcel = self.take(usize::MAX);
        self.sent(parcel, self.queued, bufs)
    }
}
