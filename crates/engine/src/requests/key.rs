//! The name of a request under way.

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReqKey(pub(super) u64);

#[cfg(test)]
impl ReqKey {
    /// A name for tests of what only keeps names.
    pub fn nth(number: u64) -> ReqKey {
        ReqKey(number)
    }
}
