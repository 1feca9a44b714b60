//! Origins that are not used any more: gone, or given up because they hang.

use super::mailbox::{Gone, Message};
use super::{ShardError, ShardHandle, receive};
use forebay_engine::{CommandReply, VolumeId};
use std::time::Duration;

impl ShardHandle {
    /// The origin of a volume is gone: I/O there fails from now on, and what is cached is served.
    ///
    /// # Errors
    /// No answer in time.
    pub fn origin_lost(
        &self,
        volume: VolumeId,
        timeout: Duration,
    ) -> Result<CommandReply, ShardError> {
        receive(&self.ask(|reply| Message::OriginLost(volume, Gone::Lost, reply))?, timeout)
    }

    /// The same of one that hangs: what is under way there has failed. It may still change the
    /// origin, which is not opened anew before that has ended.
    ///
    /// # Errors
    /// No answer in time.
    pub fn origin_given_up(
        &self,
        volume: VolumeId,
        timeout: Duration,
    ) -> Result<CommandReply, ShardError> {
        receive(&self.ask(|reply| Message::OriginLost(volume, Gone::GivenUp, reply))?, timeout)
    }
}
