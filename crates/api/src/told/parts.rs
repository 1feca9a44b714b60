//! What is told in more words than a field has.

use crate::lines::words;
use crate::size::human;
use crate::tiers::{Placement, TierPart, Window};
use serde::{Deserialize, Serialize};
use std::fmt;

words! {
    /// What is done with a volume whose dirty data is at home.
    Then {
        Detach = " and take it out of service",
        Remove = " and take it out of service and forget it",
        RemoveReadable = ", but for what cannot be read, which is given up, and forget it",
    }
}

words! {
    /// What may be lost with a volume that is forgotten.
    MayBeLost {
        Nothing = "",
        DirtyData = ", and its dirty data",
    }
}

words! {
    /// When a virtual machine sees the new size of its disk.
    GuestSees {
        Now = "the machine that is connected was told",
        Connecting = "a machine sees it when it connects",
        Deaf =
            "the machine that is connected sees another size when it starts again, not before",
    }
}

words! {
    /// What is wrong with a device that is given up and is here.
    IsHere {
        Missing = "",
        Cut = ", which is here and was cut",
        Failing = ", which is here and fails",
        NoAnswer = ", which is here and does not answer",
    }
}

/// Paths, as a command names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths(pub Vec<String>);

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// Names in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// A time that something took, shown in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Milliseconds(pub u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0 as f64 / 1000.0)
    }
}

/// Two sizes, to the byte where they would look the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromTo {
    /// Before.
    pub from_bytes: u64,
    /// After.
    pub to_bytes: u64,
}

impl FromTo {
    /// Both for people.
    pub fn texts(self) -> (String, String) {
        let (from, to) = (self.from_bytes, self.to_bytes);
        match human(from) == human(to) && from != to {
            true => (format!("{from} bytes"), format!("{to} bytes")),
            false => (human(from), human(to)),
        }
    }
}

impl fmt::Display for FromTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.texts();
        write!(f, "from {from} to {to}")
    }
}

/// Who holds the content of a volume when it is not served any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keeper {
    /// Its origin.
    Origin,
    /// Its tiers.
    Tiers {
        /// What they lack.
        lack: Lack,
        /// They end with the machine.
        ephemeral: bool,
        /// What was chosen for them, if that is kept apart.
        chosen: Option<KeptHere>,
    },
    /// Nobody: it was on tiers of which one was memory.
    Nobody {
        /// The others, which still say whose they were.
        devices: Vec<String>,
    },
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lack, ephemeral, chosen) = match self {
            Keeper::Origin => return f.write_str("its origin holds everything"),
            Keeper::Nobody { devices } if devices.is_empty() => {
                return f.write_str("what it held is gone with its memory");
            }
            Keeper::Nobody { devices } => {
                let devices = devices.join(" and ");
                return write!(
                    f,
                    "what it held is gone with its memory; {devices} may be used anew, with --force"
                );
            }
            Keeper::Tiers { lack, ephemeral, chosen } => (lack, *ephemeral, chosen),
        };
        write!(f, "its tiers hold everything{lack}")?;
        if ephemeral {
            let comma = if *lack == Lack::Nothing { "" } else { "," };
            write!(f, "{comma} until the machine is started anew")?;
        }
        chosen.iter().try_for_each(|kept| write!(f, "; {kept}"))
    }
}

/// What was chosen for tiers, where that is not what is chosen where nobody does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Choices {
    /// How much is pinned to a tier.
    pub pinned_bytes: u64,
    /// Most bytes a second that moves copy.
    pub rate_bytes: Option<u64>,
    /// When moves may run.
    pub window: Option<Window>,
    /// Whether moves are paused.
    pub paused: bool,
    /// How data is placed.
    pub placement: Placement,
    /// Whether the volume may be larger than its tiers.
    pub overcommit: bool,
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pins = Some(self.pinned_bytes).filter(|&bytes| bytes > 0);
        let placement = Some(self.placement).filter(|&it| it != Placement::default());
        let each = [
            pins.map(|bytes| format!("pins of {}", human(bytes))),
            self.rate_bytes.map(|rate| format!("the rate of {}/s", human(rate))),
            self.window.map(|window| format!("the window {window}")),
            self.paused.then(|| "the pause".to_string()),
            placement.map(|placement| format!("the placement {placement}")),
            self.overcommit.then(|| "overcommit".to_string()),
        ];
        f.write_str(&each.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// What was chosen for the tiers of a volume that is removed: its devices do not know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptHere(pub Choices);

impl fmt::Display for KeptHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "what was chosen for it ({}) is kept here for the next volume create with the same \
             tiers, and is lost on another machine",
            self.0
        )
    }
}

/// What of a volume its tiers do not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Nothing.
    Nothing,
    /// So many bytes, which are lost.
    LostBytes(u64),
    /// What is on these devices, which are missing.
    Devices(Vec<String>),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Nothing => Ok(()),
            Lack::LostBytes(bytes) => write!(f, " but {} of it, which is lost", human(*bytes)),
            Lack::Devices(devices) => {
                write!(f, " but what is on {}, which is missing", devices.join(", "))
            }
        }
    }
}

/// Whether what a volume holds ends with the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ephemeral(pub bool);

impl fmt::Display for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { ", ephemeral" } else { "" })
    }
}

/// Whether a volume may be larger than its tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overcommit(pub bool);

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { ", overcommit" } else { "" })
    }
}

/// How much of a device is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsePercent(pub u8);

impl fmt::Display for UsePercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            100 => Ok(()),
            percent => write!(f, " ({percent}% of it)"),
        }
    }
}

/// When moves may run, if not always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times(pub Option<Window>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|window| write!(f, ", but only in the time {window}"))
    }
}

/// A tier, or a part of one, with its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartInFull(pub TierPart);

impl fmt::Display for PartInFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TierPart { tier, devices, whole_tier } = &self.0;
        let devices = devices.join(", ");
        match whole_tier {
            true => write!(f, "tier {tier} ({devices})"),
            false => write!(f, "{devices} (of tier {tier})"),
        }
    }
}

/// How long it takes to empty a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// For ever: moves are paused.
    Paused {
        /// The volume.
        volume: String,
    },
    /// As long as moves take.
    Moves {
        /// Most bytes a second.
        rate_bytes: u64,
        /// Seconds at least.
        seconds: u64,
        /// When moves may run.
        window: Times,
    },
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pace::Paused { volume } => {
                write!(f, "moves are paused, until forebay tier resume {volume}")
            }
            Pace::Moves { rate_bytes, seconds, window } => {
                let takes = how_long(*seconds);
                let rate = human(*rate_bytes);
                write!(f, "at most {rate}/s, that takes at least {takes}{window}")
            }
        }
    }
}

/// A time as one says it, a word or two.
pub fn how_long(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// A device of tiers that was not named, and is not known to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingDevice {
    /// Its tier.
    pub tier: u8,
    /// Its identity, as hexadecimal digits.
    pub identity: String,
    /// Where it was, if that is known.
    pub was: Option<String>,
}

impl fmt::Display for MissingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingDevice { tier, identity, was } = self;
        write!(f, "a device of tier {tier} is missing, with the identity {identity}")?;
        was.iter().try_for_each(|name| write!(f, ", last known as {name}"))
    }
}

/// Tiers that have other numbers now, each with the one that it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renumbered(pub Vec<(u8, u8)>);

impl fmt::Display for Renumbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|(was, is)| format!("tier {was} is tier {is} now"));
        f.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

/// What devices hold and is overwritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destroyed(pub Vec<OnDevice>);

/// What one device holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnDevice {
    /// What it is.
    pub content: String,
    /// Path of the device.
    pub device: String,
}

impl fmt::Display for Destroyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|it| format!("{} on {}", it.content, it.device));
        f.write_str(&each.collect::<Vec<_>>().join("; "))
    }
}
