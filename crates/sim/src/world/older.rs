//! Older copies of the cache devices, and witnesses that are lost.

use super::World;
use crate::disk::Store;
use crate::model::Violation;
use crate::rng::{Rng, mix};
use crate::swarm::Faults;
use forebay_engine::{OpenError, WhyClosed, Witness};
use forebay_format::standing::Standing;
use forebay_format::superblock::Header;
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, SECTORS_PER_BLOCK, record};

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
    /// What this start was told.
    told: Witness,
    /// One device of several was replaced by an older copy of itself.
    half_came: bool,
    /// That shows in this start.
    half_shows: bool,
    /// A copy is made after so many calls.
    copy_in: u64,
    /// As the devices were in the life before.
    copy: Option<Vec<Store>>,
}

impl Older {
    /// Of a world, which may be bent towards older copies.
    pub(super) fn new(seed: u64, bent: bool) -> Older {
        let mut rng = Rng::new(mix(seed ^ OLDER));
        let keeps_witness = bent || !seed.is_multiple_of(4);
        let loses_witness = keeps_witness && !bent && rng.one_in(ONE_IN);
        // Of an older copy without dirty data nobody can tell what is missing, without a witness.
        let has_copies = bent || keeps_witness && !loses_witness && rng.one_in(ONE_IN);
        let (witness, told) = (Witness::default(), Witness::default());
        let (copy_in, copy) = (0, None);
        Older {
            rng,
            keeps_witness,
            loses_witness,
            has_copies,
            witness,
            told,
            half_came: false,
            half_shows: false,
            copy_in,
            copy,
        }
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
        self.told = self.witness;
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

    /// Another device has the place of one of them.
    pub(super) fn older_forgets(&mut self) {
        self.older.copy = None;
        self.older.copy_in = 0;
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
            WhyClosed::OlderState => self.log_may_be_short(),
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

    /// Whether the device that is an older copy was there at this start, and is.
    fn half_is_used(&self) -> bool {
        let device = self.params.faults.bad_device;
        self.life.devices.contains(&device) && self.caches[device].dead_from > self.now
    }

    /// Whether blocks that were sound may be others now.
    pub(super) fn half_came(&self) -> bool {
        self.older.half_came
    }

    /// A pool is open, with so many blocks. Where nobody knows how old they are, nothing clean is
    /// believed, and nothing dirty before somebody accepts it; nor what is clean beside an older
    /// half.
    pub(super) fn age_was_judged(&self, blocks: u64, dirty: u64) -> Result<(), Violation> {
        let wrong = match self.older.told {
            Witness::Seen(_) => self.older.half_shows && self.half_is_used() && blocks > dirty,
            Witness::Missing => blocks > 0,
            Witness::Accepted => blocks > dirty,
        };
        let text = || format!("{blocks} blocks, {dirty} dirty, of unknown age are believed");
        if wrong { Err(Violation::new("W", text())) } else { Ok(()) }
    }

    /// After a power cut somebody puts an older copy of all devices in their place. It is refused,
    /// or nothing has become durable since.
    pub(super) fn look_at_older(&mut self, number: u64) -> Result<(), Violation> {
        let Some(copy) = self.older.copy.take() else { return Ok(()) };
        if self.log_may_be_harmed() {
            return Ok(());
        }
        if self.caches.len() > 1 && self.older.rng.coin() {
            return self.look_at_half(number, copy);
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

    /// Somebody puts an older copy of one device of several in its place. What was promised is on
    /// the others.
    fn look_at_half(&mut self, number: u64, mut copy: Vec<Store>) -> Result<(), Violation> {
        let device = self.params.faults.bad_device;
        let newest = self.caches[device].image();
        self.caches[device].restore(copy.swap_remove(device));
        let in_step = |it: &Option<Standing>| it.is_some_and(Standing::in_step);
        let found = self.read_superblock();
        let Some((block, _)) = found.filter(|(_, stand)| stand.iter().all(in_step)) else {
            // It is not used.
            self.caches[device].restore(newest);
            return Ok(());
        };
        self.say(|_| format!("cache {device} is an older copy"));
        self.coverage.mark("older copies of one device");
        self.older.half_came = true;
        self.older.half_shows = self.lacks_what_was_seen(device, &block.header);
        let halves = u64::from(self.older.half_shows);
        self.coverage.add("older copies of one device that show", halves);
        let looked = self.look(number, false);
        self.older.half_shows = false;
        looked
    }

    /// Whether one of two devices lacks the last record that was seen durable on both, for which no
    /// checkpoint makes up.
    fn lacks_what_was_seen(&self, device: usize, newest: &Header) -> bool {
        let (disk, Witness::Seen(seen)) = (&self.caches[device], self.older.witness) else {
            return false;
        };
        let own = self.superblock_of(disk);
        let generation = own.map(|block| block.header.checkpoint_generation);
        if self.caches.len() != 2 || generation != Some(newest.checkpoint_generation) {
            return false;
        }
        let blocks = self.layout.segments_offset / SECTOR_SIZE as u64..disk.sectors();
        let mut bytes = [0; BLOCK_SIZE];
        let records = blocks.step_by(SECTORS_PER_BLOCK).filter_map(|sector| {
            disk.peek(sector, &mut bytes);
            record::decode(&bytes).ok().map(|(header, _)| header.dseq.get())
        });
        records.fold(newest.checkpoint_dseq.get(), u64::max) < seen
    }

    /// Whether faults may have taken whole records of the log: rot and astray writes spare headers.
    fn log_may_be_short(&self) -> bool {
        let payloads = Faults { rot: 0, astray_one_in: 0, ..self.params.faults.clone() };
        let Faults { absent, late, metadata, metadata_errors, .. } = payloads;
        payloads.any_cache_fault() || absent + late + metadata + metadata_errors > 0.0
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
