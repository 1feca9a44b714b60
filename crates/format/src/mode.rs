//! The modes of a volume: their numbers in the superblock, how people spell them, and the table of
//! what each does with reads and writes.

use std::fmt;
use std::str::FromStr;

/// How a volume uses its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum Mode {
    /// Writes go to the origin and into the cache; reads are cached. The default.
    #[default]
    WriteThrough = 0,
    /// Writes go to the cache and home later; reads are cached.
    WriteBack = 1,
    /// Writes go to the origin; reads are cached.
    WriteAround = 2,
    /// Writes go to the cache and home later; reads are not cached.
    WriteOnly = 3,
    /// Everything goes to the origin.
    PassThrough = 4,
}

/// What a mode does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Writes are acknowledged from the cache device and are dirty.
    pub write_dirty: bool,
    /// Data written to the origin is kept in the cache too.
    pub write_fill: bool,
    /// Read misses are candidates for the cache.
    pub read_fill: bool,
}

impl Mode {
    /// Every mode, by its number.
    pub const ALL: [Mode; 5] = [
        Mode::WriteThrough,
        Mode::WriteBack,
        Mode::WriteAround,
        Mode::WriteOnly,
        Mode::PassThrough,
    ];

    /// What the mode does.
    pub const fn plan(self) -> Plan {
        const fn plan(write_dirty: bool, write_fill: bool, read_fill: bool) -> Plan {
            Plan { write_dirty, write_fill, read_fill }
        }
        match self {
            //                        write_dirty  write_fill  read_fill
            Mode::WriteThrough => plan(false, true, true),
            Mode::WriteBack => plan(true, false, true),
            Mode::WriteAround => plan(false, false, true),
            Mode::WriteOnly => plan(true, false, false),
            Mode::PassThrough => plan(false, false, false),
        }
    }

    /// The mode with number `raw`.
    pub fn from_raw(raw: u8) -> Option<Mode> {
        Mode::ALL.get(usize::from(raw)).copied()
    }

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
    fn names_and_numbers_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(Mode::from_raw(mode as u8), Some(mode));
        }
        assert_eq!("write-back".parse(), Ok(Mode::WriteBack));
        assert_eq!(Mode::from_raw(5), None);
        let message = "writebakc".parse::<Mode>().unwrap_err();
        assert!(message.contains("writeback, writearound"), "{message}");
    }
}
