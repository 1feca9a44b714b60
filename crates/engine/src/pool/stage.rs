//! The stages of a pool's service, each with what counts in that stage only.

use crate::engine::{Engine, State};
use crate::event::{Command, CommandId};
use crate::pool::Pool;
use crate::pool::closing::Closing;
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
    Failed(String),
}

impl Pool {
    /// Where the engine stands.
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// It stands elsewhere from now on. Where it stood.
    pub(crate) fn enter(&mut self, stage: Stage) -> Stage {
        std::mem::replace(&mut self.stage, stage)
    }

    /// A command waits until the pool is open.
    pub(crate) fn keep(&mut self, id: CommandId, command: Command) {
        let Stage::Opening(opening) = &mut self.stage else {
            unreachable!("no step of recovery brings a command")
        };
        opening.keep(id, command);
    }
}

impl Engine {
    /// Where the engine stands.
    pub fn state(&self) -> State {
        match &self.pool.stage {
            Stage::Opening(_) | Stage::Recovering => State::Opening,
            Stage::Serving => State::Serving,
            Stage::Stopping(_) => State::Stopping,
            Stage::Failed(why) => State::Failed(why.clone()),
        }
    }

    /// Whether recovery runs.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.pool.stage, Stage::Opening(_) | Stage::Recovering)
    }

    /// Whether requests are served, and nobody closes the pool.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.pool.stage, Stage::Serving)
    }

    /// Whether the pool is being closed.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.pool.stage, Stage::Stopping(_))
    }
}
