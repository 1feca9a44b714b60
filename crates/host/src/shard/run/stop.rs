//! How a shard stops.

use super::{Shard, Stopping};
use crate::notice::HostNotice;
use forebay_engine::{Command, CommandId, CommandReply};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How long clients may take their last answers when the shard stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long I/O under way may take to end when the shard stops.
const REST: Duration = Duration::from_secs(10);

impl Shard {
    pub(super) fn stop(&mut self, reply: SyncSender<CommandReply>) {
        if let Some(stopping) = &mut self.stopping {
            return stopping.replies.push(reply);
        }
        self.clients.shut_down(None);
        self.ports.shut_down();
        let command = CommandId(self.command_next);
        self.stopping = Some(Stopping { replies: vec![reply], command, answer: None });
        self.command(Command::Shutdown, None);
    }

    /// Whether the stop has come so far that the loop can end.
    pub(super) fn is_done(&mut self) -> bool {
        let stopping = self.stopping.as_ref();
        let Some((_, since)) = stopping.and_then(|stopping| stopping.answer.as_ref()) else {
            return false;
        };
        let waited = since.elapsed();
        let io_rests = self.executor.under_way() == 0 || waited > REST;
        let served = self.clients.are_quiet() && self.ports.is_empty();
        io_rests && (served || waited > FAREWELL)
    }

    /// Whether the kernel uses no memory and no descriptor of ours.
    fn rests(&self) -> bool {
        self.clients.is_empty() && self.ports.is_empty() && self.executor.under_way() == 0
    }

    /// Takes everything off the driver, so that no memory is in use by the kernel.
    pub(super) fn leave(&mut self) {
        self.links.server.remove_shard(self.links.number);
        self.links.mailbox.close(None);
        self.clients.cut_off(&mut self.driver);
        let end = Instant::now() + REST;
        while !self.rests() && Instant::now() < end {
            self.busy = true;
            self.gather();
            self.turn();
            if !self.clients.is_empty() || !self.ports.is_empty() {
                // What is left ends by itself; looking a thousand times a second is enough.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if !self.rests() {
            let text = "I/O that does not end is abandoned at the stop".to_owned();
            self.notices.send(HostNotice::Text(text));
            // The driver keeps the memory, and ports what they have open.
            self.ports.abandon();
        }
    }

    /// Says goodbye.
    pub(super) fn finish(mut self) {
        let stopping = self.stopping.take().expect("finished after a stop");
        let answer = stopping.answer.map(|(answer, _)| answer);
        drop(self);
        for reply in stopping.replies {
            let answer = answer.clone().unwrap_or(CommandReply::Unchanged);
            let _ = reply.send(answer);
        }
    }
}
