//! The stages of a pool's service, each with what counts in that stage only.

use crate::event::CommandId;
use crate::open_error::OpenError;
use crate::recovery::Opening;

/// Where the engine stands.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Recovery runs, and so far it is.
    Opening(Box<Opening>),
    /// The same, while a step of it runs, which has all of that in hand.
    Recovering,
    /// Requests are served.
    Serving,
    /// The pool is closed, and so far it is.
    Stopping(Closing),
    /// It could not be opened: why.
    Failed(OpenError),
}

/// How far the pool is closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Closing(pub(super) Step);

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// What is under way ends.
    Ends(Asked),
    /// A checkpoint more than these is waited for.
    Checkpoint(Asked, u64),
    /// The clean mark is written.
    Marking(CommandId),
    /// The command is answered.
    Closed,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) command: CommandId,
    /// FLUSHes of origins that had failed.
    pub(super) failures: u64,
}
