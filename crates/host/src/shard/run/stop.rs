//! How a shard stops.

use super::Shard;
use crate::notice::HostNotice;
use forebay_engine::{Command, CommandId, CommandReply, VolumeId};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How long clients may take their last answers when the shard stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long I/O under way may take to end when the shard stops.
const REST: Duration = Duration::from_secs(10);

/// Where an orderly stop stands.
pub(super) struct Stopping {
    pub replies: Vec<SyncSender<CommandReply>>,
    pub command: CommandId,
    pub answer: Option<(CommandReply, Instant)>,
}

/// A volume that is removed when its tiers rest, and who waits for it.
pub(super) struct Leaving {
    volume: VolumeId,
    answer: (CommandReply, Option<SyncSender<CommandReply>>),
    since: Instant,
}

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

    /// Whether something is looked for again and again: whether all is at rest.
    pub(super) fn waits_for_rest(&self) -> bool {
        let is_over = self.stopping.as_ref().is_some_and(|stopping| stopping.answer.is_some());
        is_over || !self.leaving.is_empty()
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
        let tiers_rest = self.executor.all_rest() || waited > REST;
        io_rests && tiers_rest && (served || waited > FAREWELL)
    }

    /// A volume is removed: its tiers stop in order first, if they can.
    pub(super) fn remove_when_at_rest(
        &mut self,
        volume: VolumeId,
        answer: (CommandReply, Option<SyncSender<CommandReply>>),
    ) {
        self.executor.rest_tiers(volume, None);
        self.leaving.push(Leaving { volume, answer, since: Instant::now() });
    }

    /// Removes volumes whose tiers rest by now, or do not come to rest.
    pub(super) fn end_leaving(&mut self) {
        let executor = &self.executor;
        let is_over =
            |it: &mut Leaving| executor.is_at_rest(it.volume) || it.since.elapsed() > REST;
        for Leaving { volume, answer: (answer, reply), .. } in
            self.leaving.extract_if(.., is_over).collect::<Vec<Leaving>>()
        {
            self.executor.remove_origin(volume);
            if let Some(reply) = reply {
                // Who asked may have gone.
                let _ = reply.send(answer);
            }
        }
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
