//! Why a pool cannot be opened.

use std::fmt;

/// What an administrator may go on without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyClosed {
    /// Dirty data is only on devices that are absent, and may come back. Whoever gives these up
    /// opens the rest ([`crate::Presence::GivenUp`]).
    DirtyIsAway,
    /// The log ends before what a witness has seen. Whoever accepts that opens what is there
    /// ([`crate::Witness::Accepted`]).
    OlderState,
    /// There is dirty data, and no witness that would tell whether it is of the newest state.
    /// Whoever accepts it opens what is there ([`crate::Witness::Accepted`]).
    UnknownAge,
    /// Something that nobody may go on without.
    Other,
}

/// A pool cannot be opened; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// What an administrator may go on without.
    pub why: WhyClosed,
    /// What is wrong, and what to do.
    pub text: String,
}

impl From<String> for OpenError {
    fn from(text: String) -> OpenError {
        OpenError { why: WhyClosed::Other, text }
    }
}

impl From<&str> for OpenError {
    fn from(text: &str) -> OpenError {
        text.to_owned().into()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
