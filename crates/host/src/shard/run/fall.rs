//! How a shard falls: its thread panicked, and its pool ends as if its process had been killed.
//! Other pools go on.
//!
//! - What was acknowledged is safe: it is in the log, as before any `kill -9`.
//! - Nothing of the engine is used any more. It is only dropped, and what it wanted to do next is
//!   not done.
//! - The kernel writes to no memory that somebody else has: what it uses is lent to the driver,
//!   which frees only what came back (see [`forebay_sys::driver`]). Unwinding drops nothing of the
//!   shard: the shard is owned outside of what is caught.
//! - No I/O of this life reaches a device in the next one: the thread ends when what is under way
//!   has ended, however long that takes, as a killed process does, and who opens the pool again
//!   waits for that ([`ShardHandle::has_ended`](crate::shard::ShardHandle::has_ended)). All that
//!   I/O uses stays open until then. Where not even waiting works, the kernel still holds the open
//!   file of each I/O in its ring, and with it the lock or the claim without which nobody opens the
//!   device.

use super::Shard;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How often to look whether threads have ended their I/O.
const PAUSE: Duration = Duration::from_millis(5);

impl Shard {
    /// Ends after a panic.
    pub(super) fn fall(self, panic: Box<dyn Any + Send>) {
        self.links.server.remove_shard(self.links.number);
        self.links.mailbox.close(Some(words_of(panic.as_ref())));
        // What is broken may break again, in each step: then the next one comes.
        let step = |act: &mut dyn FnMut()| drop(catch_unwind(AssertUnwindSafe(act)));
        let Shard { engine, mut driver, mut executor, mut clients, ports, .. } = self;
        // Who waits for an answer knows at once that none comes.
        let mut askers = Some((self.requests, self.commands, self.adds, self.stopping, self.mail));
        step(&mut || drop(askers.take()));
        step(&mut || clients.cut_off(&mut driver));
        step(&mut || drop(driver.rest()));
        step(&mut || {
            while !executor.threads_rest() {
                std::thread::sleep(PAUSE);
            }
        });
        let (mut engine, mut clients, mut ports) = (Some(engine), Some(clients), Some(ports));
        step(&mut || drop(engine.take()));
        // The ring goes before the descriptors that it may still use.
        let (mut driver, mut executor) = (Some(driver), Some(executor));
        step(&mut || drop(driver.take()));
        step(&mut || drop(clients.take()));
        step(&mut || drop(ports.take()));
        step(&mut || drop(executor.take()));
    }
}

/// What a panic says.
pub(in crate::shard) fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it says nothing".to_owned())
}
