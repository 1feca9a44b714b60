//! Members that do not answer. Who needs what is there waits for them; who does not, does not:
//!
//! - Nothing new comes to live there as long as others have room, and nothing moves there or from
//!   there. Moves under way end.
//! - What has just moved there goes back, if the old place has all of it; what is being read is
//!   read there.
//! - A barrier goes on without their flush, if they have nothing that lives there and is not kept.
//! - Who holds the map is waited for: a FLUSH that was answered without it would be unknown to a
//!   start that finds it alone.
//!
//! An I/O that is not waited for any more keeps its place in use until it ends.

use crate::barrier::Step;
use crate::event::MemberId;
use crate::io::{Purpose, UnderWay};
use crate::requests::What;
use crate::tiers::Tiers;
use forebay_format::io::{Buf, Completion, IoError, OpId};

impl Tiers {
    /// Looks whether members take too long, if it is time.
    pub(crate) fn step_hangs(&mut self) {
        if self.io.look_due().is_none_or(|due| due > self.io.now()) {
            return;
        }
        let overdue = self.io.look();
        let hanging: Vec<MemberId> = self.io.hanging().collect();
        for member in hanging {
            self.moves_hang(member);
        }
        for (op, what) in overdue {
            self.give_up_io(op, what);
        }
    }

    /// Who need not wait for an I/O that takes too long goes on without it.
    fn give_up_io(&mut self, op: OpId, what: UnderWay) {
        match what.purpose {
            Purpose::Part(part) => self.give_up_part(op, part, &what),
            // One of a holder, behind the record that confirms, is none of data.
            Purpose::Barrier(member)
                if *self.barrier.step() == Step::Data && self.is_kept_without(member) =>
            {
                self.io.give_up(op);
                self.barrier.go_without(member);
                self.set.ask_again(member);
            }
            _ => {}
        }
    }

    /// The same for a client's: of another place of an extent than that where it lives now.
    fn give_up_part(&mut self, op: OpId, number: u64, what: &UnderWay) {
        let part = self.requests.part(number);
        let (extent, is_read) = (part.extent, part.what == What::Read);
        let is_main = part.place == what.place;
        let Some(place) = self.map.place(extent).filter(|it| Some(*it) != what.place) else {
            return;
        };
        if is_read {
            self.io.give_up(op);
            let buf = self.io.buf(what.bytes as usize);
            return self.read_from(number, place, buf);
        }
        // The data of the one that counts are with the device.
        if !is_main {
            self.io.give_up(op);
            let (result, buf) = (Err(IoError::Io), Buf::empty());
            self.part_done(number, what.place, Completion { result, buf });
        }
    }

    /// Whether a flush of data may do without a member that does not answer.
    pub(crate) fn is_kept_without(&self, member: MemberId) -> bool {
        self.io.hangs(member) && !self.set.has_own(member) && !self.moves.has_come(member)
    }
}
