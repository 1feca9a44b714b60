//! What of a tier is meant.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A tier, or some of its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierPart {
    /// The tier; 0 is the fastest.
    pub tier: u8,
    /// Its devices that are meant.
    #[serde(default)]
    pub devices: Vec<String>,
    /// These are all that it has.
    #[serde(default = "yes")]
    pub whole_tier: bool,
}

fn yes() -> bool {
    true
}

/// In a sentence; with `#` as a command names it.
impl fmt::Display for TierPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (f.alternate(), self.whole_tier, &self.devices[..]) {
            (true, true, _) => write!(f, "{}", self.tier),
            (true, false, devices) => f.write_str(&devices.join(",")),
            (false, true, _) => write!(f, "tier {}", self.tier),
            (false, false, [device]) => f.write_str(device),
            (false, false, devices) => write!(f, "all of {}", devices.join(" and ")),
        }
    }
}
