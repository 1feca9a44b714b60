//! The modes of a volume, as people spell them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a volume uses its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Writes go to the origin and into the cache; reads are cached. The default.
    #[default]
    WriteThrough,
    /// Writes go to the cache and home later; reads are cached.
    WriteBack,
    /// Writes go to the origin; reads are cached.
    WriteAround,
    /// Writes go to the cache and home later; reads are not cached.
    WriteOnly,
    /// Everything goes to the origin.
    PassThrough,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 5] = [
        Mode::WriteThrough,
        Mode::WriteBack,
        Mode::WriteAround,
        Mode::WriteOnly,
        Mode::PassThrough,
    ];

    /// The name, as the command line and the JSON spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::WriteThrough => "writethrough",
            Mode::WriteBack => "writeback",
            Mode::WriteAround => "writearound",
            Mode::WriteOnly => "writeonly",
            Mode::PassThrough => "passthrough",
        }
    }

    /// Whether the cache may hold data that the origin does not have.
    pub const fn may_be_dirty(self) -> bool {
        matches!(self, Mode::WriteBack | Mode::WriteOnly)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let plain: String = text.chars().filter(|c| *c != '-' && *c != '_').collect();
        let plain = plain.to_ascii_lowercase();
        Mode::ALL.into_iter().find(|mode| mode.name() == plain).ok_or_else(|| {
            let names: Vec<&str> = Mode::ALL.iter().map(|mode| mode.name()).collect();
            format!("no mode {text:?}; the modes are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert_eq!("write-back".parse(), Ok(Mode::WriteBack));
        let message = "writebakc".parse::<Mode>().unwrap_err();
        assert!(message.contains("writeback, writearound"), "{message}");
    }
}
