//! Messages from other threads to a shard.

use super::clients::Migrant;
use super::ports::PortSetup;
use super::{ShardError, ShardSnapshot};
use crate::device::Device;
use crate::frontend::nbd::Tls;
use crate::origin::tiered::{Member, NewDevice, Tiered};
use crate::origin::{Origin, OriginSize};
use crate::rescue::Dirty;
use forebay_engine::NewDevice as CacheDevice;
use forebay_engine::{Buf, Command, CommandReply, DeviceId, IoError, Request, Time, VolumeId};
use forebay_sys::waker::Waker;
use forebay_tier as tier;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard};

/// Messages that may wait.
const MESSAGES_MAX: usize = 16 << 10;

/// How a request ended.
#[derive(Debug)]
pub struct Answer {
    /// Whether it was done.
    pub result: Result<(), IoError>,
    /// The request's buffer, filled for a read that succeeded.
    pub buf: Buf,
}

/// A socket on which NBD clients arrive.
#[derive(Debug)]
pub enum ListenerSocket {
    /// A unix socket.
    Unix(UnixListener),
    /// TCP.
    Tcp(TcpListener),
}

impl From<ListenerSocket> for OwnedFd {
    fn from(socket: ListenerSocket) -> OwnedFd {
        match socket {
            ListenerSocket::Unix(socket) => socket.into(),
            ListenerSocket::Tcp(socket) => socket.into(),
        }
    }
}

/// A question to tiers, with whom to answer.
pub(crate) type LookAtTiers = Box<dyn FnOnce(Option<&Tiered>, Time) + Send>;

/// Why an origin is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// What is under way there ends by itself.
    Lost,
    /// It hangs.
    GivenUp,
}

/// What other threads ask of a shard.
pub(crate) enum Message {
    Submit(Request, SyncSender<Answer>),
    /// The origin comes with [`Command::AddVolume`].
    Command(Box<Command>, Option<Box<Origin>>, SyncSender<CommandReply>),
    /// The origin of a volume is gone; or it hangs, and is not waited for any more.
    OriginLost(VolumeId, Gone, SyncSender<CommandReply>),
    /// The origin of a volume that the pool was opened without, or whose origin is gone; and
    /// whether it is another one.
    OriginBack(VolumeId, Box<Origin>, bool, SyncSender<CommandReply>),
    /// Something for the tiers of a volume's origin. If there are none, nobody answers.
    Tiers(VolumeId, tier::Command, SyncSender<tier::CommandReply>),
    /// The tiers of a volume's origin come to rest, and their devices are closed: then it is
    /// answered. What is asked of them waits.
    RestTiers(VolumeId, SyncSender<()>),
    /// They go on instead, if that can be.
    RouseTiers(VolumeId, SyncSender<bool>),
    /// Tiers that rest were opened again.
    ReplaceTiers(VolumeId, Box<Origin>, SyncSender<bool>),
    /// A device for the tiers of a volume's origin.
    AddMember(VolumeId, Box<(Member, NewDevice)>, SyncSender<tier::CommandReply>),
    /// Shows the tiers of a volume's origin to somebody, if there are some.
    LookAtTiers(VolumeId, LookAtTiers),
    /// A cache device that the engine does not use any more is closed. Whether it is.
    CloseCache(DeviceId, SyncSender<bool>),
    /// A cache device in the place of one that was closed.
    TakeIn(Box<(Device, CacheDevice)>, SyncSender<CommandReply>),
    Snapshot(SyncSender<ShardSnapshot>),
    OriginSize(VolumeId, SyncSender<Option<OriginSize>>),
    /// Which of these blocks of a volume are dirty: the first of them, if they are many.
    Dirty(VolumeId, Range<u64>, SyncSender<Dirty>),
    Listen(ListenerSocket, Tls, SyncSender<io::Result<u32>>),
    Unlisten(u32),
    /// A client of ours that another shard accepted.
    Adopt(Box<Migrant>),
    /// The key of the new port is the answer.
    Attach(Box<PortSetup>, SyncSender<io::Result<u32>>),
    Detach(u32, SyncSender<io::Result<()>>),
    Stop(SyncSender<CommandReply>),
}

#[derive(Default)]
struct State {
    messages: VecDeque<Message>,
    closed: bool,
    /// Why, if that was not in order.
    fell: Option<String>,
}

/// Where messages wait for the shard.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    waker: Waker,
}

impl Mailbox {
    pub fn new(waker: Waker) -> Mailbox {
        Mailbox { state: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends a message, if the shard runs and not too many wait.
    pub fn send(&self, message: Message) -> Result<(), ShardError> {
        let mut state = self.lock();
        if state.closed {
            return Err(state.fell.clone().map_or(ShardError::Stopped, ShardError::Fell));
        }
        let waiting = state.messages.len();
        if waiting >= MESSAGES_MAX {
            return Err(ShardError::Full(waiting));
        }
        state.messages.push_back(message);
        drop(state);
        if waiting == 0 {
            self.waker.wake();
        }
        Ok(())
    }

    /// Sends a message that needs no answer and must not be refused.
    pub fn post(&self, message: Message) {
        let mut state = self.lock();
        if !state.closed {
            state.messages.push_back(message);
            drop(state);
            self.waker.wake();
        }
    }

    /// Takes all messages.
    pub fn take(&self, out: &mut VecDeque<Message>) {
        out.append(&mut self.lock().messages);
    }

    /// Why the shard fell, if it did.
    pub fn fell(&self) -> Option<String> {
        self.lock().fell.clone()
    }

    /// Refuses messages from now on. What waits is dropped, and with it the askers' channels.
    /// `fell`: why the shard does not end in order.
    pub fn close(&self, fell: Option<String>) {
        let mut state = self.lock();
        (state.closed, state.fell) = (true, fell);
        let dropped = std::mem::take(&mut state.messages);
        drop(state);
        drop(dropped);
    }
}
