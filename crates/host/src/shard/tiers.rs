//! What other threads ask of the tiers below a volume.

use super::mailbox::Message;
use super::{ShardError, ShardHandle, receive};
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
