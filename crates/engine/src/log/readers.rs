//! Readers: reads of blocks whose record is not on its device yet.
//!
//! The write's own buffer serves them when it comes back. Nobody sees a write before it is
//! answered: if its record fails, the next read finds what was there before.

use crate::engine::Engine;
use crate::event::OpId;
use crate::ids::{Key, Seq};
use crate::index::Located;
use crate::op::Op;
use crate::op::run::{CacheRun, Reader};
use crate::requests::ReqKey;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;

impl Engine {
    /// Whether the read waits for the record that the block is in: the write that brought it is not
    /// answered.
    pub(crate) fn read_untold(&mut self, name: ReqKey, key: Key, located: Located) -> bool {
        if self.log.readers_of_untold(located.slot).is_none() {
            return false;
        }
        let mask = self.map.mask(located.slot);
        let by = Reader::Request { req: name, direct: false };
        let op = self.io.op(Op::ReadSent(CacheRun::one(by, key, located, mask)));
        self.log.readers_of_untold(located.slot).expect("just seen").push(op);
        true
    }

    /// The read waits for the record on its way that holds its block.
    pub(crate) fn read_sent(&mut self, run: CacheRun) {
        let slot = run.slot;
        let op = self.io.op(Op::ReadSent(run));
        let sent = self.log.sent_with(slot).expect("the caller looked");
        sent.record.readers.push(op);
    }

    /// Answers the reads of a record that has ended. Where an older one has not, the writers wait
    /// for that and may still fail, and so the readers wait too (`complete_dirty`).
    pub(crate) fn serve_readers(&mut self, seq: Seq, buf: &Buf) {
        let oldest = self.log.is_oldest(seq) && !self.log.is_broken();
        let sent = self.log.sent(seq).expect("under way");
        if sent.copies == 0 || !(oldest || sent.record.waiters.is_empty()) {
            return;
        }
        let (first, readers) = (sent.record.payload_slot, std::mem::take(&mut sent.record.readers));
        for run in self.runs_of(readers) {
            let at = (1 + run.slot.since(first)) as usize * BLOCK_SIZE;
            self.cached_here(run, &buf.bytes()[at..at + BLOCK_SIZE]);
        }
    }

    /// Reads that waited for a record look again for what is there now.
    pub(crate) fn readers_again(&mut self, readers: Vec<OpId>) {
        for run in self.runs_of(readers) {
            let buf = self.io.take(BLOCK_SIZE);
            self.read_cached(run, buf);
        }
    }

    fn runs_of(&mut self, readers: Vec<OpId>) -> Vec<CacheRun> {
        let run = |reader| match self.io.ended(reader) {
            Op::ReadSent(run) => run,
            _ => panic!("only reads wait for a record"),
        };
        readers.into_iter().map(run).collect()
    }
}
