//! What is looked after again and again, as long as the daemon lives.

use super::Supervisor;
use crate::export::Offer;
use crate::sampler::INTERVAL;
use forebay_api::ApiError;
use forebay_host::shard::ShardHandle;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

impl Supervisor {
    /// Looks after everything until the daemon stops.
    pub fn keep_watch(self: &Arc<Self>) {
        let mut last = Instant::now();
        while !self.is_stopping() {
            std::thread::sleep(PAUSE);
            self.watch_falls();
            self.memories.watch(&self.exports);
            match self.changes.try_lock() {
                // Who changes something looks after it.
                Err(TryLockError::WouldBlock) => {}
                _changes => self.mend_exports(),
            }
            self.watch_origins();
            if last.elapsed() >= INTERVAL {
                last = Instant::now();
                self.sample();
                self.watch_sizes();
                self.watch_windows();
                self.watch_room();
                if !self.listeners.unheard().is_empty() {
                    self.listeners.listen(self.any_pool(), false);
                }
            }
        }
    }

    /// Looks after the devices that are clients of our own server, if that listens.
    fn mend_exports(&self) {
        if self.listeners.are_on() {
            self.exports.mend();
        }
    }

    /// Offers a volume of an open pool to clients.
    pub(super) fn export_volume(
        &self,
        pool: &str,
        name: &str,
        offer: &Offer,
    ) -> Result<(), ApiError> {
        self.exports.up(&self.open_pool(pool)?.handle, name, offer);
        self.mend_exports();
        Ok(())
    }

    /// Lets NBD clients in, if there is an open pool and nobody does yet.
    pub(super) fn listen(&self) {
        self.listeners.listen(self.any_pool(), true);
    }

    fn any_pool(&self) -> Option<(String, ShardHandle)> {
        self.open_pools().into_iter().next().map(|(name, open)| (name, open.handle))
    }
}
