//! Limits, and how they fit together.

use forebay_format::io::Time;
use forebay_format::tier::{Blocks, DOUBLES_MAX, ENTRIES_MAX};

/// Extents whose last change is not confirmed, after which a flush of our own is due.
pub(crate) const UNCONFIRMED_MAX: usize = 4096;
/// Records that go to a holder in one write.
pub(crate) const RECORDS_PER_WRITE: u64 = 64;
/// Records that are never given to requests: for confirmations and heads.
pub(crate) const RECORDS_SPARE: u64 = 8;
/// Records that a change may need: one that says it and one that confirms it.
pub(crate) const RECORDS_PER_CHANGE: u64 = 2;
/// How long what waits for a confirmation, and for which no client waits, gathers: at least, at
/// most, and where a tier is short of places.
pub(crate) const GATHER_NS: Time = 20_000_000;
pub(crate) const GATHER_MAX_NS: Time = 60_000_000_000;
pub(crate) const GATHER_SHORT_NS: Time = 5_000_000_000;
/// Confirmations of our own take one part in so many of the time, so that one request in a hundred
/// does not wait for one; and where a tier is short of places.
pub(crate) const QUIET_SHARE: u64 = 200;
pub(crate) const SHORT_SHARE: u64 = 50;
/// How long a record stays open that nobody waits for.
pub(crate) const LEISURE_NS: Time = 1_000_000_000;
/// Moves that have only to be confirmed, after which they are.
pub(crate) const SAID_MAX: usize = 2048;
/// Pages that changed, after which a checkpoint is due: a start writes so many at most, and a few
/// more, before it serves. Of a large volume the journal has room for changes of all of them.
pub(crate) const DIRTY_PAGES_MAX: usize = 256;
/// Pages of the map that one read of a start brings.
pub(crate) const PAGES_PER_READ: u32 = 256;
/// Extents that a plan looks at in one call.
pub(crate) const PLAN_STEP: u32 = 4096;
/// What passes between two of them, while the last plan found something to do, and while not: a
/// walk over a map of 10 TiB took half of a core for as long as the volume was open.
pub(crate) const WALK_BUSY_NS: Time = 1_000_000;
pub(crate) const WALK_IDLE_NS: Time = 10_000_000;
/// Extents of each kind that a plan remembers.
pub(crate) const PLAN_EXTENTS: usize = 256;
/// How long what a plan proposed may wait to be begun: other extents are hotter by then. And how
/// many times as long as its walk took, if that is more.
pub(crate) const STALE_NS: Time = 1_000_000_000;
pub(crate) const STALE_WALKS: Time = 8;
/// How long an extent rests of which a move has failed.
pub(crate) const MOVE_RETRY_NS: Time = 1_000_000_000;
/// How long moves rest after new data had to go to a slower tier.
pub(crate) const SPILL_REST_NS: Time = 250_000_000;
/// How long a member gets nothing new after it said that it has no room.
pub(crate) const FULL_REST_NS: Time = 10_000_000_000;
/// How long a member counts as sick after a read or write of it has failed.
pub(crate) const SICK_NS: Time = 300_000_000_000;
/// How long an I/O may take before what need not wait for it does not, and how often that is looked
/// at while one takes longer.
pub(crate) const HANG_NS: Time = 5_000_000_000;
pub(crate) const HANG_LOOK_NS: Time = 1_000_000_000;

const _: () = assert!(DOUBLES_MAX * 16 >= ENTRIES_MAX);
const _: () = assert!(Blocks::PIECE == 16);
