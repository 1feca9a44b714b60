//! The mode table: what each mode does with reads and writes. Rules live here, not in the
//! operations.

/// How a volume uses its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Writes go to the origin and into the cache; reads are cached.
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

/// Every mode, by its number.
pub const MODES: [Mode; 5] =
    [Mode::WriteThrough, Mode::WriteBack, Mode::WriteAround, Mode::WriteOnly, Mode::PassThrough];

impl Mode {
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
        MODES.get(usize::from(raw)).copied()
    }

    /// The name, as the command line spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::WriteThrough => "writethrough",
            Mode::WriteBack => "writeback",
            Mode::WriteAround => "writearound",
            Mode::WriteOnly => "writeonly",
            Mode::PassThrough => "passthrough",
        }
    }

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<Mode> {
        MODES.into_iter().find(|mode| mode.name() == name)
    }
}
