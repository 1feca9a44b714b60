//! What happens to a request under way: its parts begin and end, blocks of it come and go, and its
//! buffer travels.

use crate::event::*;
use crate::ids::{Dseq, Key};
use crate::requests::{Req, ReqKey, Requests, Wait};
use forebay_format::io::Buf;

/// What a write kept of the old content of its first and last block.
pub type Merge = [Option<(u8, Buf)>; 2];

impl Requests {
    /// It is answered with this error, if none came before.
    pub fn fail(&mut self, name: ReqKey, error: IoError) {
        self.at(name).error.get_or_insert(error);
    }

    /// The origin refused it, and it is tried in another way: that error does not count.
    pub fn tries_again(&mut self, name: ReqKey) {
        self.at(name).error = None;
    }

    /// It is part of a sequential stream.
    pub fn is_of_stream(&mut self, name: ReqKey) {
        self.at(name).sequential = true;
    }

    /// A start has given its volume other keys: its first and last block.
    pub fn rebase(&mut self, name: ReqKey, (first, last): (Key, Key)) {
        let req = self.at(name);
        (req.first, req.last) = (first, last);
    }

    /// It gives back less than it asked for, in whole blocks.
    pub fn shrink(&mut self, name: ReqKey, offset: u64, len: u64, (first, last): (Key, Key)) {
        let req = self.at(name);
        (req.offset, req.len) = (offset, len);
        (req.first, req.last) = (first, last);
    }

    /// Its parts are being started, and count as one until all are. The request.
    #[inline]
    pub fn starts(&mut self, name: ReqKey) -> &Req {
        let req = self.at(name);
        req.pending = 1;
        req
    }

    /// It waits for one more part.
    #[inline]
    pub fn waits_for_part(&mut self, name: ReqKey) {
        self.at(name).pending += 1;
    }

    /// A part has ended. What the request asks, if that was the last.
    #[inline]
    pub fn part_ended(&mut self, name: ReqKey) -> Option<RequestKind> {
        let req = self.at(name);
        req.pending -= 1;
        (req.pending == 0).then_some(req.kind)
    }

    /// A planted bug: it does not wait for the parts that are under way.
    pub fn leaves_parts(&mut self, name: ReqKey) {
        self.at(name).pending = 0;
    }

    /// A block is in RAM: it is here at once. How many bytes of it are asked for.
    #[inline]
    pub fn hits_ram(&mut self, name: ReqKey, key: Key, base: Key, block: &[u8]) -> usize {
        let req = self.at(name);
        req.hits += 1;
        put(req, key, base, block)
    }

    /// So many blocks are read from the cache as one more part. The request.
    #[inline]
    pub fn hits(&mut self, name: ReqKey, blocks: u64) -> &Req {
        let req = self.at(name);
        req.pending += 1;
        req.hits += blocks as u32;
        req
    }

    /// So many blocks are read from the origin as one more part.
    pub fn misses(&mut self, name: ReqKey, blocks: u64) {
        let req = self.at(name);
        req.pending += 1;
        req.misses += blocks as u32;
    }

    /// A block of a read is here. How many bytes of it are asked for.
    #[inline]
    pub fn brings(&mut self, name: ReqKey, key: Key, base: Key, block: &[u8]) -> usize {
        put(self.at(name), key, base, block)
    }

    /// The request's buffer is lent, to an I/O or to who works on its content.
    #[inline]
    pub fn lend(&mut self, name: ReqKey) -> Buf {
        std::mem::take(&mut self.at(name).buf)
    }

    /// It is back.
    #[inline]
    pub fn give_back(&mut self, name: ReqKey, buf: Buf) {
        self.at(name).buf = buf;
    }

    /// It is a write into the cache from now on. Its volume.
    pub fn enters_cache(&mut self, name: ReqKey) -> VolumeId {
        let req = self.at(name);
        assert!(!req.cached);
        req.cached = true;
        req.volume
    }

    /// The old content of its first (0) or last (1) block is here, with its valid sectors.
    pub fn keeps(&mut self, name: ReqKey, side: usize, mask: u8, block: Buf) {
        self.at(name).merge[side] = Some((mask, block));
    }

    /// What it kept of old blocks is not needed any more.
    #[inline]
    pub fn take_kept(&mut self, name: ReqKey) -> Merge {
        std::mem::take(&mut self.at(name).merge)
    }

    /// The next block of a write is in the log; whether it waits for that record, and did not yet.
    #[inline]
    pub fn appends(&mut self, name: ReqKey, joins: bool) {
        let req = self.at(name);
        req.pending += u32::from(joins);
        req.written += 1;
    }

    /// All of a write is in the log, and durable with it up to here: it waits for its records only,
    /// and others may have its blocks.
    #[inline]
    pub fn appended(&mut self, name: ReqKey, dseq: Dseq) {
        self.at(name).written_dseq = dseq;
        self.wait(name, Wait::Parts);
        self.release(name);
    }

    /// A write found no room in the cache: it begins anew, as one to the origin. What it kept of
    /// old blocks.
    pub fn goes_around(&mut self, name: ReqKey) -> Merge {
        self.release(name);
        let req = self.at(name);
        (req.cached, req.around, req.error) = (false, true, None);
        (req.written, req.written_dseq) = (0, Dseq::NONE);
        std::mem::take(&mut req.merge)
    }

    /// The origin has zeroed its range.
    pub fn zeroed(&mut self, name: ReqKey) {
        self.at(name).zeroed = true;
    }

    /// The origin cannot give the space back: it only zeroes.
    pub fn keeps_space(&mut self, name: ReqKey) {
        self.at(name).kind = RequestKind::WriteZeroes { unmap: false };
    }
}

/// Puts the request's part of a block into its buffer, if it has one. How many bytes that is.
#[inline]
fn put(req: &mut Req, key: Key, base: Key, block: &[u8]) -> usize {
    let (part, at) = req.part_of(key, base);
    let len = part.len();
    if req.kind == RequestKind::Read {
        req.buf.bytes_mut()[at..at + len].copy_from_slice(&block[part]);
    }
    len
}
