//! What is dirty of a volume, for one who copies it: by the engine that serves the pool, beside its
//! clients. No origin is asked.

use super::mailbox::{Answer, Message};
use super::{ShardError, ShardHandle, receive};
use crate::rescue::{Dirty, Part, Span, Unread, read};
use forebay_engine::{Buf, IoError, Request, RequestKind, VolumeId};
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long a pool may take to say what is dirty.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a read of dirty data may take: it may wait for a request that waits for the origin.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

impl ShardHandle {
    /// Which of these blocks of a volume are dirty: the first of them, if they are many.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck.
    pub fn dirty(&self, volume: VolumeId, blocks: Range<u64>) -> Result<Dirty, ShardError> {
        receive(&self.ask(|reply| Message::Dirty(volume, blocks, reply))?, LOOK_TIMEOUT)
    }

    /// Reads what is dirty of a volume that has so many bytes. What has gone home meanwhile may be
    /// among it, or among what could not be read.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn read_dirty(
        &self,
        (volume, bytes): (VolumeId, u64),
        dirty: &Dirty,
    ) -> Result<Part, ShardError> {
        let mut failed = Ok(());
        let part = read(dirty, bytes, |spans| {
            let asked: Vec<_> = spans.iter().map(|span| self.ask_for(volume, *span)).collect();
            let end = Instant::now() + READ_TIMEOUT;
            let answers = asked.into_iter().map(|asked| match asked {
                Ok(asked) => take(&asked, end, &mut failed),
                Err(error) => {
                    failed = Err(error);
                    Err(Unread::InUse)
                }
            });
            answers.collect()
        });
        failed.map(|()| part)
    }

    fn ask_for(&self, volume: VolumeId, span: Span) -> Result<Receiver<Answer>, ShardError> {
        self.submit(Request {
            volume,
            kind: RequestKind::Read,
            offset: span.offset,
            len: span.bytes,
            fua: false,
            buf: Buf::zeroed(span.bytes as usize),
        })
    }
}

fn take(
    asked: &Receiver<Answer>,
    end: Instant,
    failed: &mut Result<(), ShardError>,
) -> Result<Buf, Unread> {
    match receive(asked, end.saturating_duration_since(Instant::now())) {
        Ok(Answer { result: Ok(()), buf }) => Ok(buf),
        Ok(Answer { result: Err(IoError::Shutdown), .. }) => {
            *failed = Err(ShardError::Stopped);
            Err(Unread::InUse)
        }
        Ok(Answer { result: Err(IoError::Gone), .. }) => Err(Unread::NotServed),
        Ok(Answer { result: Err(_), .. }) => Err(Unread::Lost),
        Err(ShardError::Timeout(_)) => Err(Unread::InUse),
        Err(error) => {
            *failed = Err(error);
            Err(Unread::InUse)
        }
    }
}
