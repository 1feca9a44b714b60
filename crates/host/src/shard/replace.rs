//! A cache device is replaced: asked of a shard from other threads.

use super::mailbox::Message;
use super::{ShardError, ShardHandle, receive};
use crate::device::Device;
use forebay_engine::{CommandReply, DeviceId, NewDevice};
use std::time::{Duration, Instant};

/// Between two looks at a device that is to be closed.
const LOOK: Duration = Duration::from_millis(20);

impl ShardHandle {
    /// Closes a cache device that the engine was told to let go. Whether it is closed in time: else
    /// I/O is under way there that does not end.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn close_cache(&self, device: DeviceId, timeout: Duration) -> Result<bool, ShardError> {
        let until = Instant::now() + timeout;
        loop {
            let asked = self.ask(|reply| Message::CloseCache(device, reply))?;
            if receive(&asked, timeout)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Gives a cache device the place of one that was closed. What it holds is overwritten.
    ///
    /// # Errors
    /// No answer in time.
    pub fn take_in(
        &self,
        (place, uuid): (DeviceId, [u8; 16]),
        device: Device,
        timeout: Duration,
    ) -> Result<CommandReply, ShardError> {
        let info = device.info();
        let new = NewDevice {
            device: place,
            uuid,
            bytes: info.bytes,
            volatile_cache: device.needs_flush(),
            discards: info.is_block && info.discard,
        };
        let new = Box::new((device, new));
        receive(&self.ask(|reply| Message::TakeIn(new, reply))?, timeout)
    }
}
