//! The write points of the log.

use forebay_format::record::RecordClass;

/// Where a block is appended: lifetimes differ, so segments of one kind are cheap to reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Dirty data, and everything that must be remembered in order.
    Dirty = 0,
    /// Read fills and written-through data.
    Fill = 1,
    /// Clean blocks that reclaim keeps.
    Reinsert = 2,
}

/// All write points.
pub const POINTS: [Point; 3] = [Point::Dirty, Point::Fill, Point::Reinsert];

impl Point {
    /// The class of its records.
    pub fn class(self) -> RecordClass {
        match self {
            Point::Dirty => RecordClass::Dirty,
            Point::Fill | Point::Reinsert => RecordClass::Clean,
        }
    }
}
