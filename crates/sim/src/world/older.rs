//! Older copies of the cache devices, and witnesses that are lost.

use super::World;
use crate::disk::Store;
use crate::model::Violation;
use crate::rng::{Rng, mix};
use forebay_engine::{OpenError, WhyClosed, Witness};

const OLDER: u64 = 0x51c0_77a9_1e4b_d263;
/// Of the worlds that keep a witness, one in so many loses it now and then, and in one in so many
/// older copies of the devices come back.
const ONE_IN: u64 = 8;
/// A copy is made after so many calls of `settle` at most.
const SETTLES_MAX: u64 = 1000;

/// What is kept outside of the devices: how far the log was durable, and perhaps a copy of them.
pub(super) struct Older {
    /// Apart, so that older seeds keep their worlds.
    rng: Rng,
    keeps_witness: bool,
    loses_witness: bool,
    has_copies: bool,
    witness: Witness,
    /// A copy is made after so many calls.
    copy_in: u64,
    /// As the devices were in the life before.
    copy: Option<Vec<Store>>,
}

impl Older {
    /// Of a world.
    pub(super) fn new(seed: u64) -> Older {
        let mut rng = Rng::new(mix(seed ^ OLDER));
        let keeps_witness = !seed.is_multiple_of(4);
        let loses_witness = keeps_witness && rng.one_in(ONE_IN);
        // Of an older copy without dirty data nobody can tell what is missing, without a witness.
        let has_copies = keeps_witness && !loses_witness && rng.one_in(ONE_IN);
        let (witness, copy_in, copy) = (Witness::default(), 0, None);
        Older { rng, keeps_witness, loses_witness, has_copies, witness, copy_in, copy }
    }

    /// What a start is told.
    pub(super) fn witness(&self) -> Witness {
        self.witness
    }

    /// A life begins. Before the last one somebody has accepted what is there.
    fn begin(&mut self, last: bool) {
        self.copy_in = self.rng.log_range(1, SETTLES_MAX);
        if last && self.witness == Witness::Missing {
            self.witness = Witness::Accepted;
        } else if self.loses_witness && !last && self.rng.one_in(4) {
            self.witness = Witness::Missing;
        }
    }

    /// The log is durable up to here, if the pool is open. Whether a copy is to be made.
    fn saw(&mut self, durable: Option<u64>) -> bool {
        let Some(durable) = durable else { return false };
        self.witness = match self.witness {
            before if !self.keeps_witness => before,
            Witness::Seen(before) => Witness::Seen(before.max(durable)),
            Witness::Missing | Witness::Accepted => Witness::Seen(durable),
        };
        self.copy_in = self.copy_in.saturating_sub(1);
        self.has_copies && self.copy_in == 1
    }
}

impl World {
    /// A life begins.
    pub(super) fn older_begins(&mut self, number: u64) {
        self.older.begin(number >= self.params.lives);
        if self.older.witness == Witness::Missing {
            self.coverage.mark("witnesses lost");
        }
    }

    /// The engine has settled.
    pub(super) fn older_sees(&mut self) {
        let durable = self.engine().durable();
        if self.older.saw(durable) {
            self.older.copy = Some(self.caches.iter().map(|disk| disk.image()).collect());
        }
    }

    /// A life has ended. What is not durable is older than what a killed process left.
    pub(super) fn older_ends(&mut self, kill: bool) {
        self.older.copy.take_if(|_| kill);
    }

    /// A pool is not opened because of the age of what is there. Whether that is right: then an
    /// administrator goes on with it.
    pub(super) fn age_is_doubtful(&mut self, error: &OpenError) -> bool {
        let right = match error.why {
            // The end of the log may have been lost, though it was durable.
            WhyClosed::OlderState => self.log_may_be_harmed(),
            WhyClosed::UnknownAge => self.older.witness == Witness::Missing,
            WhyClosed::DirtyIsAway | WhyClosed::Other => false,
        };
        if right {
            self.coverage.mark(match error.why {
                WhyClosed::UnknownAge => "pools refused for want of a witness",
                _ => "logs refused as short",
            });
            self.older.witness = Witness::Accepted;
        }
        right
    }

    /// After a power cut somebody puts an older copy of all devices in their place. It is refused,
    /// or nothing has become durable since.
    pub(super) fn look_at_older(&mut self, number: u64) -> Result<(), Violation> {
        let Some(copy) = self.older.copy.take() else { return Ok(()) };
        if self.log_may_be_harmed() {
            return Ok(());
        }
        let newest: Vec<Store> = self.caches.iter().map(|disk| disk.image()).collect();
        let of_newest = self.read_superblock();
        self.restore(copy);
        let of_copy = self.read_superblock();
        let [of_newest, of_copy] = [of_newest, of_copy].map(|it| {
            it.map(|(block, _)| (block.header.epoch.get(), format!("{:?}", block.volumes)))
        });
        if of_newest != of_copy {
            // A host knows the volumes, and the lives.
            self.restore(newest);
            return Ok(());
        }
        self.open_to_look(number)?;
        match self.life.open_failed.take() {
            None => {
                self.coverage.mark("older copies as good as the newest");
                self.read_back()?;
                self.crash(false)
            }
            // Whatever the reason is that it gives.
            Some(_) => {
                self.coverage.mark("older copies refused");
                self.crash(true)?;
                self.restore(newest);
                Ok(())
            }
        }
    }

    /// Whether faults may have taken something of the log.
    fn log_may_be_harmed(&self) -> bool {
        let faults = &self.params.faults;
        faults.any_cache_fault() || faults.metadata > 0.0 || !self.troubled.is_empty()
    }

    fn restore(&mut self, images: Vec<Store>) {
        self.caches.iter_mut().zip(images).for_each(|(disk, image)| disk.restore(image));
    }
}
