//! Superblocks that are written: those of all members together, and first that of one that joins.

use crate::event::{CommandReply, MemberId, OpenError, Refusal};
use crate::io::{Purpose, UnderWay};
use crate::set::{After, Next};
use crate::tiers::{Phase, Tiers};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion};
use std::collections::BTreeSet;

impl Tiers {
    /// Writes superblocks that have changed.
    pub(crate) fn write_superblocks(&mut self) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        if let Some(members) = self.set.begin_write() {
            self.superblock_step(Next::Write(members));
        }
    }

    fn superblock_step(&mut self, mut next: Next) {
        loop {
            match &next {
                Next::Write(members) => {
                    members.iter().for_each(|&member| self.write_superblock(member));
                }
                Next::Flush(members) => {
                    for &member in members {
                        self.set.writing();
                        self.io.flush(member, Purpose::Superblock(member));
                    }
                }
                Next::End => {
                    let (after, failed) = self.set.end_write();
                    return self.superblocks_written(after, &failed);
                }
            }
            if next != Next::Write(Vec::new()) && next != Next::Flush(Vec::new()) {
                return;
            }
            next = self.set.go_on();
        }
    }

    fn write_superblock(&mut self, member: MemberId) {
        let buf = self.io.buf(BLOCK_SIZE);
        let (offsets, buf) = self.set.encode(member, buf);
        for offset in offsets {
            self.set.writing();
            let what = UnderWay::meta(member, Purpose::Superblock(member));
            self.io.write(what, offset, Buf::copy_of(buf.bytes()));
        }
        self.io.give(buf);
    }

    /// A member has its superblock, or not.
    pub(crate) fn superblock_done(&mut self, member: MemberId, done: Completion) {
        self.io.give(done.buf);
        let Some(next) = self.set.wrote(member, done.result.is_ok()) else { return };
        if let Some(from) = self.set.take_grown() {
            self.tiers_have_grown(from);
        }
        self.superblock_step(next);
    }

    fn superblocks_written(&mut self, after: Vec<After>, failed: &BTreeSet<MemberId>) {
        let holders: Vec<(usize, MemberId)> = self.journal.holders().collect();
        for (index, _) in holders.iter().filter(|(_, member)| failed.contains(member)) {
            self.holder_failed(*index);
        }
        let is_held = self.journal.is_held();
        if !is_held && matches!(self.phase, Phase::Naming | Phase::Beginning) {
            return self.open_failed(OpenError::CannotWrite);
        }
        for after in after {
            match after {
                After::Command(id) if !is_held => {
                    self.reply(id, CommandReply::Refused(Refusal::Failed));
                }
                After::Life => self.life_has_begun(),
                After::Opened => self.has_opened(),
                After::Nobody => {}
                After::Command(id) => self.reply(id, CommandReply::Changed),
                After::Change(id) => self.change_is_known(id),
            }
        }
    }
}
