//! A disk that seeks takes a piece into its cache at once, and brings it to the platter later.
//! Given one after the other, a dozen of them are there when a client's read comes, which waits for
//! all. So each has the time that it takes on the platter, whatever the disk says.

use crate::event::MemberId;
use forebay_format::io::Time;
use std::collections::BTreeMap;

/// What a piece takes of a hard disk's time besides its bytes, and how many bytes it writes in a
/// microsecond.
const SEEK_NS: Time = 8_000_000;
const BYTES_PER_US: u64 = 150;

/// What a member that seeks was given last.
#[derive(Debug, Clone, Copy)]
struct Given {
    /// Until when it has to do with that.
    until: Time,
    /// Requests of clients that it had carried out before.
    requests: u64,
}

/// What each member that seeks was given last.
#[derive(Debug, Default)]
pub(super) struct Pace(BTreeMap<u8, Given>);

impl Pace {
    /// A member that seeks is given a piece.
    pub fn given(&mut self, member: MemberId, now: Time, bytes: usize, requests: u64) {
        let until = now + SEEK_NS + bytes as u64 * 1000 / BYTES_PER_US;
        self.0.insert(member.0, Given { until, requests });
    }

    /// Until when a member has to do with a piece, if it has.
    pub fn rests_until(&self, member: MemberId, now: Time) -> Option<Time> {
        self.0.get(&member.0).map(|it| it.until).filter(|&until| until > now)
    }

    /// Whether clients have used a member since it was given a piece, by the requests that it has
    /// carried out for them.
    pub fn is_shared(&self, member: MemberId, requests: u64) -> bool {
        self.0.get(&member.0).is_some_and(|it| it.requests != requests)
    }
}
