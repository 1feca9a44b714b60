//! Fetch: the reads of recovery.

use crate::engine::Engine;
use crate::event::*;
use crate::ids::SegmentId;
use crate::limits::*;
use crate::op::Op;
use crate::open_error::OpenError;
use crate::recovery::Opening;
use crate::recovery::io::RecoverRead;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;

impl Opening {
    /// Issues the reads that are due, a bounded number at once.
    pub(super) fn recover_reads(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        loop {
            let full = self.under_way >= RECOVERY_READS_MAX
                || self.blocks_under_way + self.load.waiting() >= RECOVERY_BLOCKS_MAX;
            // What the others wait for may be a read that is tried again.
            let busy = full && self.under_way > 0;
            let Some(read) = self.reads.pop_front_if(|_| !busy) else { break };
            self.recover_read(engine, read);
        }
        if self.under_way == 0 {
            return self.recover_next(engine);
        }
        Ok(())
    }

    /// Device, first byte and blocks of a read.
    fn recover_place(&mut self, engine: &mut Engine, read: RecoverRead) -> (DeviceId, u64, u64) {
        let step = RECOVERY_READ_BLOCKS as u64;
        match read {
            RecoverRead::Checkpoint(from) => {
                let source = self.source.expect("a checkpoint is being read");
                let area = engine.pool.layout().checkpoint_offset(source.area);
                let blocks = step.min(self.load.end() - from);
                (DeviceId(source.device), area + from * BLOCK_SIZE as u64, blocks)
            }
            RecoverRead::Head(segment) => {
                let (device, offset) = engine.segments.locate(engine.segments.slot(segment, 0));
                (device, offset, 1)
            }
            RecoverRead::Header(segment, at) | RecoverRead::Block(segment, at) => {
                let (device, offset) = engine.segments.locate(engine.segments.slot(segment, at));
                (device, offset, 1)
            }
            RecoverRead::Payload(number) => {
                let (slot, blocks) = self.payload_of(engine, number);
                let (device, offset) = engine.segments.locate(slot);
                (device, offset, blocks)
            }
            RecoverRead::Segment(segment, from) => {
                let (device, offset) = engine.segments.locate(engine.segments.slot(segment, from));
                (device, offset, step.min(u64::from(engine.segments.blocks() - from)))
            }
        }
    }

    fn recover_read(&mut self, engine: &mut Engine, read: RecoverRead) {
        let (device, offset, blocks) = self.recover_place(engine, read);
        if self.is_deaf(device) {
            let end = Completion { result: Err(IoError::Io), buf: Buf::empty() };
            return self.recover_seen(engine, read, end);
        }
        self.under_way += 1;
        self.blocks_under_way += blocks;
        let buf = engine.io.take(blocks as usize * BLOCK_SIZE);
        engine.io.read(Op::Recover(read), Target::Cache(device), offset, buf);
    }

    pub(crate) fn recover_read_done(
        &mut self,
        engine: &mut Engine,
        read: RecoverRead,
        end: Completion,
    ) -> Result<(), OpenError> {
        let Completion { result, buf } = end;
        self.under_way -= 1;
        self.blocks_under_way -= (buf.len() / BLOCK_SIZE) as u64;
        if result.is_err() && self.recover_retry(read) {
            engine.io.give(buf);
            return self.recover_reads(engine);
        }
        let device = usize::from(self.recover_place(engine, read).0.0);
        let failed = &mut self.failed[device];
        *failed = if result.is_ok() { 0 } else { *failed + 1 };
        self.recover_seen(engine, read, Completion { result, buf });
        self.recover_reads(engine)
    }

    /// Whether so many reads of a device failed that it does not answer: what else is on it counts
    /// as unreadable, unread.
    pub(super) fn is_deaf(&self, device: DeviceId) -> bool {
        self.failed[usize::from(device.0)] >= START_READS_FAILED_MAX
    }

    /// A read has ended for good.
    fn recover_seen(&mut self, engine: &mut Engine, read: RecoverRead, end: Completion) {
        match read {
            RecoverRead::Checkpoint(from) => {
                let buf = if end.result.is_ok() { end.buf } else { Buf::empty() };
                self.load.arrive(from, buf);
                if !self.checkpoint_decode(engine) {
                    self.reads.clear();
                }
            }
            RecoverRead::Head(segment) => self.head_seen(engine, segment, end),
            RecoverRead::Header(segment, at) => self.header_seen(engine, segment, at, end),
            RecoverRead::Payload(number) => self.payload_seen(engine, number, end),
            RecoverRead::Segment(segment, from) => {
                if end.result.is_ok() || end.buf.is_empty() {
                    self.segment_piece(engine, segment, from, end.buf);
                } else {
                    self.segment_split(segment, from, end.buf);
                }
            }
            RecoverRead::Block(segment, at) => self.segment_block(engine, segment, at, end),
        }
    }

    /// A read that failed is tried again a few times.
    fn recover_retry(&mut self, read: RecoverRead) -> bool {
        let place = |segment: SegmentId, at| u64::from(segment.raw()) << 32 | u64::from(at);
        let key = match read {
            RecoverRead::Checkpoint(from) => (0, from),
            RecoverRead::Head(segment) => (1, u64::from(segment.raw())),
            RecoverRead::Segment(segment, from) => (2, place(segment, from)),
            RecoverRead::Header(segment, at) => (4, place(segment, at)),
            RecoverRead::Payload(number) => (5, u64::from(number)),
            RecoverRead::Block(segment, at) => (3, place(segment, at)),
        };
        let tries = self.tries.entry(key).or_insert(0);
        *tries += 1;
        if *tries >= CACHE_WRITE_TRIES {
            return false;
        }
        self.reads.push_back(read);
        true
    }
}
