//! Errors that a simulated disk returns: which I/O, where, when, how often.

use forebay_engine::Time;

/// Which I/O a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoKind {
    /// Reads.
    Read,
    /// Writes, zeroes and discards.
    Write,
    /// Flushes.
    Flush,
}

/// A reason to answer with an error.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The I/O that it hits.
    pub kind: IoKind,
    /// First sector (not for flushes).
    pub first: u64,
    /// Sector behind the last (not for flushes).
    pub end: u64,
    /// From when on.
    pub from: Time,
    /// Until when.
    pub until: Time,
    /// Hits one I/O in so many.
    pub one_in: u64,
}

impl Fault {
    /// Whether an I/O on these sectors may be hit now.
    pub fn covers(&self, kind: IoKind, first: u64, end: u64, now: Time) -> bool {
        let place = kind == IoKind::Flush || (first < self.end && self.first < end);
        self.kind == kind && place && (self.from..self.until).contains(&now)
    }
}

/// What a power cut does to the completed writes that no flush covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutMode {
    /// All are lost.
    DropAll,
    /// All are kept.
    KeepAll,
    /// Each sector keeps any of its versions.
    Independent,
    /// Each write is kept or lost as a whole.
    PerWrite,
    /// Late writes are kept, early ones lost: what a log fears most.
    NewestFirst,
    /// Early writes are kept, late ones lost.
    GlobalPrefix,
    /// One sector is kept, or one is lost.
    OneSectorOnly,
}

/// Every way to cut.
pub const CUT_MODES: [CutMode; 7] = [
    CutMode::DropAll,
    CutMode::KeepAll,
    CutMode::Independent,
    CutMode::PerWrite,
    CutMode::NewestFirst,
    CutMode::GlobalPrefix,
    CutMode::OneSectorOnly,
];

/// What a failed flush does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushLoss {
    /// Nothing becomes durable; the writes wait for the next flush.
    Nothing,
    /// Some writes become durable; the others wait.
    Some,
    /// The disk forgets the writes that it could not make durable.
    Forget,
}
