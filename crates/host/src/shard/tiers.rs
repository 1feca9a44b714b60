//! What other threads ask of the tiers below a volume.

use super::mailbox::Message;
use super::{ShardError, ShardHandle, receive};
use crate::origin::Origin;
use crate::origin::tiered::{Member, NewDevice, Tiered};
use forebay_engine::{Time, VolumeId};
use forebay_tier as tier;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

impl ShardHandle {
    /// Asks something of the tiers of a volume's origin. What takes long answers late: an
    /// evacuation does when the tier is empty. Where there are no tiers, or not any more, the
    /// receiver is closed.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn tiers_start(
        &self,
        volume: VolumeId,
        command: tier::Command,
    ) -> Result<Receiver<tier::CommandReply>, ShardError> {
        self.ask(|reply| Message::Tiers(volume, command, reply))
    }

    /// Adds a device to the tiers of a volume's origin. The answer comes when it takes part.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck.
    pub fn add_member(
        &self,
        volume: VolumeId,
        (member, new): (Member, NewDevice),
    ) -> Result<Receiver<tier::CommandReply>, ShardError> {
        let new = Box::new((member, new));
        self.ask(|reply| Message::AddMember(volume, new, reply))
    }

    /// Brings the tiers of a volume's origin to rest and closes their devices, while what is asked
    /// of them waits: until [`ShardHandle::replace_tiers`], or [`ShardHandle::origin_lost`]. Where
    /// I/O does not end in time they go on. Whether they rest.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck; or the tiers do not come to their end.
    pub fn rest_tiers(&self, volume: VolumeId, limit: Duration) -> Result<bool, ShardError> {
        let rests = self.ask(|reply| Message::RestTiers(volume, reply))?;
        match receive(&rests, limit) {
            Ok(()) => return Ok(true),
            Err(ShardError::Timeout(_)) => {}
            // There are none, or somebody else has them rest.
            Err(error) => return Err(error),
        }
        let goes_on = receive(&self.ask(|reply| Message::RouseTiers(volume, reply))?, limit)?;
        if goes_on {
            return Ok(false);
        }
        receive(&rests, limit)?;
        Ok(true)
    }

    /// Gives a volume its tiers again, which rest: what has waited goes on. Whether they did.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck.
    pub fn replace_tiers(
        &self,
        volume: VolumeId,
        origin: Origin,
        limit: Duration,
    ) -> Result<bool, ShardError> {
        let origin = Box::new(origin);
        receive(&self.ask(|reply| Message::ReplaceTiers(volume, origin, reply))?, limit)
    }

    /// Asks the tiers of a volume's origin a question, which is answered on the pool's thread;
    /// `None` if there are none.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck.
    pub fn look_at_tiers<T: Send + 'static>(
        &self,
        volume: VolumeId,
        look: impl FnOnce(&Tiered, Time) -> T + Send + 'static,
    ) -> Result<Option<T>, ShardError> {
        let (reply, answer) = sync_channel(1);
        let look = move |tiered: Option<&Tiered>, now: Time| {
            // Who asked may have gone.
            let _ = reply.send(tiered.map(|tiered| look(tiered, now)));
        };
        self.0.mailbox.send(Message::LookAtTiers(volume, Box::new(look)))?;
        receive(&answer, Duration::from_secs(30))
    }
}
