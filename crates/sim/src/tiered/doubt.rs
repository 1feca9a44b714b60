//! What starts may be in doubt about, and which copies of members they must not believe.

use super::io::{Area, Delivered};
use super::life::no_set;
use super::{Check, Tiered};
use crate::disk::IoKind;
use crate::model::{Crash, Violation};
use forebay_format::tier::Superblock;
use forebay_tier::{Assembled, assemble};

impl Tiered {
    /// What superblocks say of flushes that failed in lives before.
    pub(super) fn look_for_doubt(&mut self, assembled: &Assembled) {
        let superblock = &assembled.superblock;
        let said = superblock.block.boot;
        self.life.in_doubt = said == [0; 16] && !superblock.is_fresh();
        self.life.untold = self.life.in_doubt || said == [!self.boot; 16];
        self.coverage.add("starts after a start in doubt", u64::from(self.life.in_doubt));
        self.coverage.add("starts after a flush that failed", u64::from(self.life.untold));
    }

    /// A flush has failed as the set was opened, and no superblock says so yet: a killed process
    /// leaves nothing that tells of it (`docs/format.md`).
    pub(super) fn is_doubt_unsaid(&self) -> bool {
        if self.life.opened || self.life.flush_failed.is_empty() {
            return false;
        }
        let said = self.find_set(None).map(|it| it.0.superblock.block.boot);
        said.is_some_and(|said| said != [0; 16])
    }

    /// Rule R: a start that says that what was not flushed may be gone needs a reason: a flush that
    /// failed, or a holder of the map that may have had more of a killed life and does not say.
    pub(super) fn check_doubt(&mut self, doubt: bool) -> Check {
        let of_map = |error: &Delivered| error.kind == IoKind::Read && error.area != Area::Slots;
        let is_unheard = |&holder: &usize| {
            let mut errors = self.life.errors.iter().filter(|error| error.member == holder);
            !self.life.is_here[holder]
                || self.trouble.rotten.contains(&holder)
                || errors.any(of_map)
        };
        let unheard = self.life.after_kill && self.life.holders.iter().any(is_unheard);
        if doubt && !unheard && !self.life.untold && self.life.flush_failed.is_empty() {
            let text = "what was not flushed is called doubtful without a reason";
            return Err(Violation::new("R", text.into()));
        }
        if doubt {
            self.coverage.add("starts that did not hear all holders", u64::from(unheard));
            self.checker.crash(Crash::Cut);
            self.life.untold = true;
        }
        Ok(())
    }

    /// Rule R: after an orderly stop a copy that a member had before is not taken for it.
    pub(super) fn check_older(&self) -> Check {
        let is_sound = |&it: &usize| {
            self.plan.members[it].is_in && self.life.is_here[it] && !self.has_failed(it)
        };
        let sound: Vec<usize> = (0..self.disks.len()).filter(is_sound).collect();
        for &member in sound.iter().filter(|_| sound.len() > 1) {
            let Some(older) = self.life.older.get(member).cloned().flatten() else { continue };
            let others = sound.iter().filter(|&&it| it != member);
            let mut found: Vec<Superblock> =
                others.filter_map(|&it| self.superblock_of(it)).collect();
            let uuid = older.uuid();
            found.push(older);
            let place = found.len() - 1;
            let assembled = assemble(&found).ok_or_else(no_set)?;
            let is_same = assembled.superblock.block.members[member].uuid == uuid;
            if is_same && assembled.found.contains(&Some(place)) {
                let text = format!("a copy of member {member} from before the stop is believed");
                return Err(Violation::new("R", text));
            }
        }
        Ok(())
    }
}
