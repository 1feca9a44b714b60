//! What is the pool's and has one writer, however many shards it may have: the superblock and its
//! updates, when a checkpoint is made, what must not come back from a device that was lost, and how
//! the pool is closed. The volume table in the superblock follows `volumes.rs`.
//!
//! One update of the superblock follows the other, and what is to happen when one is durable goes
//! with it as a [`Then`]. A checkpoint counts when a superblock that names it is durable.

use crate::event::{Command, CommandId};
use crate::settings::Distrust;
use forebay_format::superblock::Superblock;

mod checkpoint;
mod closing;
mod distrust;
mod replace;
mod source;
mod stage;
mod superblock;

use replace::Phase;
pub(crate) use source::Source;
pub(crate) use stage::Stage;
pub(crate) use superblock::Then;

/// See the top of the file.
pub(crate) struct Pool {
    stage: Stage,
    sb: superblock::Superblocks,
    checkpoint: checkpoint::Checkpoint,
    distrust: distrust::Distrusting,
    replacing: Option<Phase>,
}

impl Pool {
    /// A pool as its superblock has it, and what the executor noted that must not be used.
    pub(crate) fn new(block: Superblock, noted: Distrust) -> Pool {
        Pool {
            stage: Stage::Recovering,
            sb: superblock::Superblocks::new(block),
            checkpoint: checkpoint::Checkpoint::default(),
            distrust: distrust::Distrusting::new(noted),
            replacing: None,
        }
    }

    /// Where the engine stands.
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// It stands elsewhere from now on. Where it stood.
    pub(crate) fn enter(&mut self, stage: Stage) -> Stage {
        std::mem::replace(&mut self.stage, stage)
    }

    /// How far the replacement of a device is that is under way.
    fn replacing(&self) -> Option<&Phase> {
        self.replacing.as_ref()
    }

    /// It is as far as this, or over. How far it was.
    fn replaces(&mut self, phase: Option<Phase>) -> Option<Phase> {
        std::mem::replace(&mut self.replacing, phase)
    }

    /// A command waits until the pool is open.
    pub(crate) fn keep(&mut self, id: CommandId, command: Command) {
        let Stage::Opening(opening) = &mut self.stage else {
            unreachable!("no step of recovery brings a command")
        };
        opening.keep(id, command);
    }
}
