//! Fetch: the reads of recovery.

use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::*;
use crate::op::Op;
use crate::segment::SegmentId;
use forebay_format::BLOCK_SIZE;

/// A read of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoverRead {
    /// Blocks of the checkpoint, from this one on.
    Checkpoint(u64),
    /// The first block of a segment.
    Head(SegmentId),
    /// The header of a record in a segment.
    Header(SegmentId, u32),
    /// The payload of the record found with this number.
    Payload(u32),
    /// Blocks of a segment, from this one on.
    Segment(SegmentId, u32),
    /// One block of a segment, after a read of several has failed.
    Block(SegmentId, u32),
}

impl Engine {
    /// Issues the reads that are due, a bounded number at once.
    pub(crate) fn recover_reads(&mut self) {
        loop {
            let opening = self.open_mut();
            let busy = opening.under_way >= RECOVERY_READS_MAX
                || opening.blocks_under_way >= RECOVERY_BLOCKS_MAX;
            let Some(read) = opening.reads.pop_front_if(|_| !busy) else { break };
            self.recover_read(read);
        }
        if self.open_mut().under_way == 0 {
            self.recover_next();
        }
    }

    /// Device, first byte and blocks of a read.
    fn recover_place(&mut self, read: RecoverRead) -> (DeviceId, u64, u64) {
        let step = RECOVERY_READ_BLOCKS as u64;
        match read {
            RecoverRead::Checkpoint(from) => {
                let source = self.open_mut().source.expect("a checkpoint is being read");
                let area = self.sb.block.layout().checkpoint_offset(source.area);
                let blocks = step.min(self.open_mut().load.end - from);
                (source.device, area + from * BLOCK_SIZE as u64, blocks)
            }
            RecoverRead::Head(segment) => {
                let (device, offset) = self.segments.locate(self.segments.slot(segment, 0));
                (device, offset, 1)
            }
            RecoverRead::Header(segment, at) | RecoverRead::Block(segment, at) => {
                let (device, offset) = self.segments.locate(self.segments.slot(segment, at));
                (device, offset, 1)
            }
            RecoverRead::Payload(number) => {
                let (slot, blocks) = self.payload_of(number);
                let (device, offset) = self.segments.locate(slot);
                (device, offset, blocks)
            }
            RecoverRead::Segment(segment, from) => {
                let (device, offset) = self.segments.locate(self.segments.slot(segment, from));
                (device, offset, step.min(u64::from(self.segments.blocks() - from)))
            }
        }
    }

    fn recover_read(&mut self, read: RecoverRead) {
        let (device, offset, blocks) = self.recover_place(read);
        if self.is_deaf(device) {
            return self.recover_seen(read, Err(IoError::Io), Buf::empty());
        }
        let opening = self.open_mut();
        opening.under_way += 1;
        opening.blocks_under_way += blocks;
        let buf = self.pool.take(blocks as usize * BLOCK_SIZE);
        let op = self.op(Op::Recover(read));
        self.out.push(Effect::Read { op, target: Target::Cache(device), offset, buf });
    }

    pub(crate) fn recover_read_done(
        &mut self,
        read: RecoverRead,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        if self.opening.is_none() {
            return self.pool.give(buf);
        }
        let opening = self.open_mut();
        opening.under_way -= 1;
        opening.blocks_under_way -= (buf.len() / BLOCK_SIZE) as u64;
        if result.is_err() && self.recover_retry(read) {
            self.pool.give(buf);
            return self.recover_reads();
        }
        let device = usize::from(self.recover_place(read).0.0);
        let failed = &mut self.open_mut().failed[device];
        *failed = if result.is_ok() { 0 } else { *failed + 1 };
        self.recover_seen(read, result, buf);
        self.recover_reads();
    }

    /// Whether so many reads of a device failed that it does not answer: what else is on it counts
    /// as unreadable, unread.
    pub(crate) fn is_deaf(&self, device: DeviceId) -> bool {
        let opening = self.opening.as_ref().expect("recovery is under way");
        opening.failed[usize::from(device.0)] >= START_READS_FAILED_MAX
    }

    /// A read has ended for good.
    fn recover_seen(&mut self, read: RecoverRead, result: Result<(), IoError>, buf: Buf) {
        match read {
            RecoverRead::Checkpoint(from) => {
                let buf = if result.is_ok() { buf } else { Buf::empty() };
                self.open_mut().load.arrive(from, buf);
                if !self.checkpoint_decode() {
                    self.open_mut().reads.clear();
                }
            }
            RecoverRead::Head(segment) => self.head_seen(segment, result, buf),
            RecoverRead::Header(segment, at) => self.header_seen(segment, at, result, buf),
            RecoverRead::Payload(number) => self.payload_seen(number, result, buf),
            RecoverRead::Segment(segment, from) => {
                if result.is_ok() || buf.is_empty() {
                    self.segment_piece(segment, from, buf);
                } else {
                    self.segment_split(segment, from, buf);
                }
            }
            RecoverRead::Block(segment, at) => self.segment_block(segment, at, result, buf),
        }
    }

    /// A read that failed is tried again a few times.
    fn recover_retry(&mut self, read: RecoverRead) -> bool {
        let key = match read {
            RecoverRead::Checkpoint(from) => (0, from),
            RecoverRead::Head(segment) => (1, u64::from(segment)),
            RecoverRead::Segment(segment, from) => (2, u64::from(segment) << 32 | u64::from(from)),
            RecoverRead::Header(segment, at) => (4, u64::from(segment) << 32 | u64::from(at)),
            RecoverRead::Payload(number) => (5, u64::from(number)),
            RecoverRead::Block(segment, at) => (3, u64::from(segment) << 32 | u64::from(at)),
        };
        let tries = self.open_mut().tries.entry(key).or_insert(0);
        *tries += 1;
        if *tries >= CACHE_WRITE_TRIES {
            return false;
        }
        self.open_mut().reads.push_back(read);
        true
    }
}
