//! What each member was asked: counted where I/O ends, and nowhere else.

use crate::event::MemberId;
use crate::io::{Purpose, UnderWay};
use forebay_format::io::Time;

/// What a member has done since the set was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Reads for clients.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Nanoseconds that they took, all together.
    pub read_ns: u64,
    /// Writes for clients; those of an extent that moves go to two members.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Nanoseconds that they took, all together.
    pub write_ns: u64,
    /// Bytes that moves have copied here.
    pub moved_in_bytes: u64,
    /// Bytes that moves have copied from here.
    pub moved_out_bytes: u64,
}

impl Traffic {
    /// Reads and writes for clients.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }
}

/// The owner of these counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    members: Vec<Traffic>,
}

impl Counters {
    /// An I/O has ended well.
    pub fn ended(&mut self, what: &UnderWay, now: Time) {
        let number = usize::from(what.member.0);
        if number >= self.members.len() {
            self.members.resize(number + 1, Traffic::default());
        }
        let (own, took) = (&mut self.members[number], now - what.began);
        match (what.purpose, what.is_write) {
            (Purpose::Part(_), false) => {
                own.reads += 1;
                own.read_bytes += what.bytes;
                own.read_ns += took;
            }
            (Purpose::Part(_), true) => {
                own.writes += 1;
                own.written_bytes += what.bytes;
                own.write_ns += took;
            }
            (Purpose::Piece(..), false) => own.moved_out_bytes += what.bytes,
            (Purpose::Piece(..), true) => own.moved_in_bytes += what.bytes,
            _ => {}
        }
    }

    pub fn of(&self, member: MemberId) -> Traffic {
        self.members.get(usize::from(member.0)).copied().unwrap_or_default()
    }

    /// Another member has this number from now on.
    pub fn forget(&mut self, member: MemberId) {
        if let Some(own) = self.members.get_mut(usize::from(member.0)) {
            *own = Traffic::default();
        }
    }
}
