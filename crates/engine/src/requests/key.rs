//! The name of a request under way.

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReqKey(pub(super) u64);

impl ReqKey {
    /// Its place among all that are under way: no two of them have the same.
    pub(super) fn place(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
impl ReqKey {
    /// A name for tests of what only keeps names.
    pub fn nth(number: u64) -> ReqKey {
        ReqKey(number)
    }
}
