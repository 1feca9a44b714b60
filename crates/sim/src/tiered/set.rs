//! The executor's part of a set: making it, and finding its members again.

use super::Tiered;
use super::plan::Plan;
use crate::checker::Checker;
use crate::disk::{Blank, Disk};
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, SECTORS_PER_BLOCK};
use forebay_tier::{
    Assembled, MemberSettings, NewMember, NewSet, Settings, Tuning, assemble, create,
};

/// What a fresh member holds is named as that of this origin and the following: nobody's.
const FOREIGN: usize = 100;

/// A fresh disk for a member.
pub fn disk(plan: &Plan, member: usize) -> Disk {
    let sectors = plan.bytes_of(member) / SECTOR_SIZE as u64;
    Disk::new(sectors, Blank::Origin(FOREIGN + member), plan.members[member].has_cache)
}

impl Tiered {
    /// A set on these disks, whatever they hold.
    pub(super) fn make_set(&mut self) {
        self.sets += 1;
        for (number, plan) in self.plan.members.iter_mut().enumerate() {
            let sets = self.sets;
            plan.uuid = std::array::from_fn(|at| if at < 8 { sets } else { number as u8 + 1 });
            plan.is_in = true;
        }
        self.doubt = Default::default();
        let member = |(number, plan): (usize, &super::plan::MemberPlan)| NewMember {
            uuid: plan.uuid,
            bytes: self.plan.bytes_of(number),
            tier: plan.tier,
            is_volatile: plan.is_ram,
        };
        let spec = NewSet {
            name: "tiered".into(),
            set: [self.sets; 16],
            bytes: self.plan.bytes,
            journal_blocks: self.plan.layout().journal_blocks,
            bytes_max: self.plan.bytes_max,
            overcommit: self.plan.overcommit,
            members: self.plan.members.iter().enumerate().map(member).collect(),
        };
        let superblocks = create(&spec).expect("the set can be made");
        for (disk, superblock) in self.disks.iter_mut().zip(&superblocks) {
            let mut bytes = [0; BLOCK_SIZE];
            superblock.encode(&mut bytes);
            // What an earlier set left in the cache does not come over it.
            let image = disk.image();
            disk.restore(image);
            for offset in SUPERBLOCK_OFFSETS {
                disk.poke(offset / SECTOR_SIZE as u64, &bytes);
            }
        }
        let sectors = self.space.extents_max() * super::space::EXTENT_SECTORS;
        let sectors_read = self.checker.sectors_read;
        self.checker = Checker::new(&[sectors]);
        self.checker.sectors_read = sectors_read;
        self.known.fill(false);
        self.bytes = self.plan.bytes;
        self.bytes_asked.clear();
        // It may be smaller than the one before had become.
        self.clients.iter_mut().for_each(|client| client.look = None);
        self.trouble = Default::default();
        // Until it is open nobody has seen anything of it.
        self.life.after_cut = true;
        self.say(|world| format!("set {} is made", world.sets));
    }

    /// The newest superblock of a member, as anybody could read it.
    pub(super) fn superblock_of(&self, member: usize) -> Option<Superblock> {
        let disk = &self.disks[member];
        let copy = |offset: u64| {
            let first = offset / SECTOR_SIZE as u64;
            let mut bytes = [0; BLOCK_SIZE];
            if !disk.has_unreadable(first..first + SECTORS_PER_BLOCK as u64) {
                disk.peek(first, &mut bytes);
            }
            bytes
        };
        let [a, b] = SUPERBLOCK_OFFSETS.map(copy);
        Superblock::newest_of([&a, &b]).ok()
    }

    /// Finds the set on all members but the missing one. For each member whether it is there.
    pub(super) fn find_set(&self, missing: Option<usize>) -> Option<(Assembled, Vec<bool>)> {
        let is_found = |&it: &usize| Some(it) != missing && !self.doubt.hides(it);
        let here = (0..self.disks.len()).filter(is_found);
        let found: Vec<Superblock> = here.filter_map(|member| self.superblock_of(member)).collect();
        let assembled = assemble(&found)?;
        self.say(|_| {
            let of = |it: &Superblock| {
                let block = &it.block;
                let (epoch, generation) = (block.epoch.get(), block.generation.get());
                format!("{}: {epoch}.{generation} {:?}", block.member, block.holders)
            };
            format!("superblocks {:?}", found.iter().map(of).collect::<Vec<_>>())
        });
        let is_here = assembled.found.iter().map(Option::is_some).collect();
        Some((assembled, is_here))
    }

    /// What a machine is opened with.
    pub(super) fn settings(
        &self,
        superblock: Superblock,
        is_here: &[bool],
        tuning: Tuning,
    ) -> Settings {
        let member = |(plan, &is_here): (&super::plan::MemberPlan, &bool)| MemberSettings {
            is_here,
            volatile_cache: plan.has_cache,
            discards: plan.discards,
            piece_blocks: plan.piece_blocks,
            stripe_blocks: plan.stripe_blocks,
        };
        Settings {
            superblock,
            members: self.plan.members.iter().zip(is_here).map(member).collect(),
            boot: [self.boot; 16],
            tuning,
            is_paused: false,
            #[cfg(feature = "mutants")]
            mutant: self.options.tier_mutant,
            #[cfg(not(feature = "mutants"))]
            mutant: None,
        }
    }
}
