//! Errors that travel: few kinds, a message that says what is wrong, hints that say what to do
//! next.

use crate::{Hint, Hints};
use serde::{Deserialize, Serialize};

/// What went wrong, in kinds that a script can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Tried and failed: a device, a file, a connection.
    Failed,
    /// The request makes no sense as it stands.
    Usage,
    /// There is no such pool or volume.
    NotFound,
    /// Something else of that name exists, or another operation is under way.
    Conflict,
    /// Possible, but it would destroy data or is likely a mistake. `--force` may allow it.
    Refused,
    /// An administrator cancelled it.
    Cancelled,
}

impl ErrorKind {
    /// The exit code of the command line.
    pub const fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Failed
            | ErrorKind::NotFound
            | ErrorKind::Conflict
            | ErrorKind::Cancelled => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Refused => 4,
        }
    }

    /// The status of the HTTP reply.
    pub const fn http_status(self) -> u16 {
        match self {
            ErrorKind::Failed => 500,
            ErrorKind::Usage => 400,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict | ErrorKind::Cancelled => 409,
            ErrorKind::Refused => 403,
        }
    }
}

/// What keeps a pool closed until an administrator says to go on (`--keep-dirty`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// Dirty data is only on devices that are missing.
    DirtyIsAway,
    /// The devices hold an older state than they once did.
    OlderState,
    /// Nobody can tell whether the dirty data on them is of the newest state.
    UnknownAge,
}

/// An error as it is sent and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind.
    pub kind: ErrorKind,
    /// What is wrong, with the names of what it is about.
    pub message: String,
    /// What to do next: `hints`, and in `actions` a line each; commands stand alone after a colon.
    #[serde(flatten, with = "crate::lines::actions")]
    pub hints: Hints,
    /// What keeps the pool closed that it is about, if an administrator may go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

impl ApiError {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), hints: Hints::default(), hold: None }
    }

    /// [`ErrorKind::Failed`].
    pub fn failed(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Failed, message)
    }

    /// [`ErrorKind::Usage`].
    pub fn usage(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Usage, message)
    }

    /// [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::NotFound, message)
    }

    /// [`ErrorKind::Conflict`].
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Conflict, message)
    }

    /// [`ErrorKind::Refused`].
    pub fn refused(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Refused, message)
    }

    /// Adds one thing to do next.
    #[must_use]
    pub fn hint(mut self, hint: Hint) -> ApiError {
        self.hints.push(hint);
        self
    }
}
