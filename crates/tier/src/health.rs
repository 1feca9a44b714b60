//! How the members are: who says that it has no room, and who fails to read or write. Counted where
//! I/O ends, and nowhere else.

use crate::event::MemberId;
use crate::io::UnderWay;
use crate::limits::{FULL_REST_NS, SICK_NS};
use forebay_format::io::{IoError, Time};

/// What a member has failed to do since the set was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Errors {
    /// Reads.
    pub reads: u64,
    /// Writes, but those that found no room, and flushes.
    pub writes: u64,
    /// Writes that found no room where there should be some.
    pub no_room: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Own {
    errors: Errors,
    /// Nothing new goes there until then.
    full_until: Time,
    /// A read or write failed so lately that it counts until then.
    sick_until: Time,
}

/// The owner of what is known of that.
#[derive(Debug, Default)]
pub(crate) struct Health {
    members: Vec<Own>,
}

impl Health {
    /// An I/O has failed.
    pub fn failed(&mut self, what: &UnderWay, error: IoError, now: Time) {
        let number = usize::from(what.member.0);
        if number >= self.members.len() {
            self.members.resize(number + 1, Own::default());
        }
        let own = &mut self.members[number];
        match (what.is_write || what.is_flush, error) {
            (true, IoError::NoSpace) => {
                own.errors.no_room += 1;
                own.full_until = now + FULL_REST_NS;
                return;
            }
            (true, _) => own.errors.writes += 1,
            (false, _) => own.errors.reads += 1,
        }
        own.sick_until = now + SICK_NS;
    }

    fn of(&self, member: MemberId) -> Own {
        self.members.get(usize::from(member.0)).copied().unwrap_or_default()
    }

    /// Whether a member said lately that it has no room, whatever is free of it: it gets nothing
    /// new for a while.
    pub fn is_full(&self, member: MemberId, now: Time) -> bool {
        self.of(member).full_until > now
    }

    /// Whether it failed to read or write lately.
    pub fn is_sick(&self, member: MemberId, now: Time) -> bool {
        self.of(member).sick_until > now
    }

    /// Whether it has failed to read or write.
    pub fn is_failing(&self, member: MemberId) -> bool {
        let Errors { reads, writes, .. } = self.errors(member);
        reads + writes > 0
    }

    pub fn errors(&self, member: MemberId) -> Errors {
        self.of(member).errors
    }

    /// Another member has this number from now on.
    pub fn forget(&mut self, member: MemberId) {
        if let Some(own) = self.members.get_mut(usize::from(member.0)) {
            *own = Own::default();
        }
    }
}
