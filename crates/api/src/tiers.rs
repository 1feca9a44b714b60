//! Tiers: what is asked of them, and what is told.

mod part;

use crate::Mode;
use crate::request::Export;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use part::TierPart;

/// What the origin of a volume is called that has tiers: this, and the volume's name.
pub const SCHEME: &str = "tiers:";

/// How data is placed on tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// What is hot moves up, what is cold moves down, and room for new data is kept free on top.
    #[default]
    Heat,
    /// The fastest tier is filled, then the next; nothing moves but what must.
    Spill,
}

impl Placement {
    /// The name, as the command line and the JSON spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Heat => "heat",
            Placement::Spill => "spill",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        match text {
            "heat" => Ok(Placement::Heat),
            "spill" => Ok(Placement::Spill),
            _ => Err(format!("no placement {text:?}; choose heat or spill")),
        }
    }
}

/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// A part of each day: from one minute to another, which is not in it. It may go past midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    from: u16,
    to: u16,
}

impl Window {
    /// Whether this minute of the day is in it.
    pub fn has(self, minute: u16) -> bool {
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl std::str::FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Window, String> {
        let wrong = || format!("no part of a day {text:?}; give one as 22:00-06:00, or always");
        let minute = |text: &str| {
            let (hours, minutes) = text.split_once(':')?;
            let is_number = |it: &str| it.len() == 2 && it.bytes().all(|it| it.is_ascii_digit());
            if !is_number(hours) || !is_number(minutes) {
                return None;
            }
            let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
            (minutes < 60 && hours * 60 + minutes <= DAY_MINUTES).then_some(hours * 60 + minutes)
        };
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let (from, to) = (minute(from).ok_or_else(wrong)?, minute(to).ok_or_else(wrong)?);
        let window = Window { from: from % DAY_MINUTES, to: to % DAY_MINUTES };
        match window.from == window.to {
            true => Err(wrong()),
            false => Ok(window),
        }
    }
}

impl TryFrom<String> for Window {
    type Error = String;

    fn try_from(text: String) -> Result<Window, String> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> String {
        window.to_string()
    }
}

/// A volume over tiers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreateTiered {
    /// Its name.
    pub name: String,
    /// The devices of each tier, the fastest tier first: absolute paths, `ram:SIZE`, or
    /// `spindle:PATH?preset=NAME`. Several in one tier share what it holds.
    pub tiers: Vec<Vec<String>>,
    /// The size, as `Size` reads it; a share is one of all that the tiers hold, which is what it
    /// is where nothing is given.
    #[serde(default)]
    pub size: Option<String>,
    /// How much of each device is used, in percent; what is left of an SSD makes it faster.
    #[serde(default)]
    pub use_percent: Option<u8>,
    /// It may be larger than its tiers together.
    #[serde(default)]
    pub overcommit: bool,
    /// How data is placed; where nothing is given as before, if it was there, and by heat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// It shall outlive the machine: memory among the tiers is refused.
    #[serde(default)]
    pub durable: bool,
    /// A pool that caches it; by default none does.
    #[serde(default)]
    pub pool: Option<String>,
    /// The mode, if there is a pool.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// How it is made visible.
    #[serde(default)]
    pub export: Export,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Overwrite what the devices hold.
    #[serde(default)]
    pub force: bool,
    /// Its content may end with the machine.
    #[serde(default)]
    pub accept_ephemeral: bool,
    /// Serve what is on the devices already, though others that belong to it are missing.
    #[serde(default)]
    pub allow_missing: bool,
}

/// The tiers of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TiersInfo {
    /// How data is placed.
    pub placement: Placement,
    /// The content ends with the machine.
    pub ephemeral: bool,
    /// It may be larger than its devices together.
    #[serde(default)]
    pub overcommit: bool,
    /// Moves were paused by an administrator.
    pub paused: bool,
    /// When moves may run, as `22:00-06:00`, in the time zone of the machine; always, if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// It is not the time for moves now.
    #[serde(default)]
    pub outside_window: bool,
    /// Bytes that all of its devices together hold.
    pub capacity_bytes: u64,
    /// Bytes of them that hold data.
    pub used_bytes: u64,
    /// Bytes of the volume that lie on devices that are missing, or were lost otherwise.
    pub lost_bytes: u64,
    /// Bytes that moved since the volume was opened.
    pub moved_bytes: u64,
    /// Most bytes a second that moves copy, besides those that keep room free.
    pub rate_bytes: u64,
    /// Bytes of the volume that are pinned to a tier.
    pub pinned_bytes: u64,
    /// Pieces of a mebibyte that move now.
    pub moving: u64,
    /// Moves that wait, by the reason.
    pub pending: Vec<TierPending>,
    /// Tiers that are being emptied, or are empty, and single devices of others.
    pub evacuations: Vec<TierEvacuation>,
    /// Why what it held before is gone, if it began anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emptied: Option<String>,
    /// Its devices, the fastest tier first.
    pub devices: Vec<TierDevice>,
}

/// Moves that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierPending {
    /// For what.
    pub reason: String,
    /// How many.
    pub moves: u64,
}

/// A tier that is being emptied, or one device of a tier of which others stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierEvacuation {
    /// What of which tier.
    #[serde(flatten)]
    pub part: TierPart,
    /// Bytes that are left.
    pub left_bytes: u64,
}

/// How a device of a tier takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// As it should.
    Ok,
    /// It is not there: what lives on it cannot be read.
    Missing,
    /// It is being emptied, or is empty.
    Leaving,
    /// It is there, and failed to read or write lately.
    Failing,
    /// It is there, and has not ended an I/O for long.
    NoAnswer,
    /// Its file was cut while it was in use: nothing of it is believed any more.
    Cut,
}

impl DeviceState {
    /// The name, as tables and the JSON spell it.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceState::Ok => "ok",
            DeviceState::Missing => "missing",
            DeviceState::Leaving => "leaving",
            DeviceState::Failing => "failing",
            DeviceState::NoAnswer => "no-answer",
            DeviceState::Cut => "cut",
        }
    }
}

/// What is asked of a tier of a volume, or of some of its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierChange {
    /// The volume.
    pub name: String,
    /// The tier by its number, 0 for the fastest; or devices of one, with commas between.
    pub tier: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// The volume may be larger than what is left.
    #[serde(default)]
    pub overcommit: bool,
}

/// A device for the tiers of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierAdd {
    /// The volume.
    pub name: String,
    /// The device: an absolute path, `ram:SIZE`, or `spindle:PATH?preset=NAME`.
    pub device: String,
    /// Where it belongs.
    #[serde(default)]
    pub at: TierAt,
    /// How much of it is used, in percent.
    #[serde(default)]
    pub use_percent: Option<u8>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Overwrite what it holds.
    #[serde(default)]
    pub force: bool,
}

/// Where a new device belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierAt {
    /// To a new tier, slower than all others.
    #[default]
    Slowest,
    /// To this tier, beside the devices that it has.
    Tier(u8),
    /// To a new tier before this one: the numbers of tiers from that on grow by one.
    Before(u8),
}

/// What is empty and is to go, or a device that will never be back, or never work again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierRemove {
    /// The volume.
    pub name: String,
    /// The tier by its number, 0 for the fastest; or devices of one, with commas between.
    pub tier: String,
    /// The device is missing, fails or was cut, and what of the volume lives on it is given up.
    #[serde(default)]
    pub drop_lost: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// The volume may be larger than what is left.
    #[serde(default)]
    pub overcommit: bool,
}

/// Parts of a volume that are to live on a certain tier, or on any again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierPin {
    /// The volume.
    pub name: String,
    /// Byte ranges of it, as offset and length. Each mebibyte that they touch is meant.
    pub ranges: Vec<(u64, u64)>,
    /// The tier: its number, 0 for the fastest, or one of its devices; any, if `None`.
    #[serde(default)]
    pub tier: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// How the data of a volume is placed from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierSet {
    /// The volume.
    pub name: String,
    /// How; as before, if `None`.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// Most bytes a second that moves copy, as `Size` reads it; as before, if `None`.
    #[serde(default)]
    pub rate: Option<String>,
    /// When moves may run, as `22:00-06:00`, or `always`; as before, if `None`.
    #[serde(default)]
    pub window: Option<String>,
    /// Whether it may be larger than its tiers together; as before, if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<bool>,
}

/// A part of a volume, to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainTiers {
    /// The volume.
    pub name: String,
    /// Byte ranges of it, as offset and length.
    pub ranges: Vec<(u64, u64)>,
}

/// The tiers of a volume, and what is lost of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TiersShown {
    /// The volume.
    pub volume: String,
    /// Its tiers.
    pub tiers: TiersInfo,
    /// Byte ranges of the volume that cannot be read, or not all of them, as offset and length; the
    /// first of them where there are many.
    pub lost: Vec<(u64, u64)>,
}

/// Where a mebibyte of a volume lives, and why there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtentInfo {
    /// First byte.
    pub offset: u64,
    /// The tier, if it lives somewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u8>,
    /// The device there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// First byte on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_offset: Option<u64>,
    /// Seconds since it came there, or since the volume was opened, if that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<u64>,
    /// How hot it is: accesses, the recent ones counting more.
    pub heat: f64,
    /// Bytes of it that are written.
    pub written_bytes: u64,
    /// Bytes of it that are lost.
    pub lost_bytes: u64,
    /// Why it is on no faster tier.
    pub why: String,
}

/// A device of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierDevice {
    /// The tier; 0 is the fastest.
    pub tier: u8,
    /// Path or URI.
    pub device: String,
    /// How it takes part.
    pub state: DeviceState,
    /// It is being emptied, or is empty, whatever else is the matter with it.
    #[serde(default)]
    pub leaving: bool,
    /// Keeps the map of what lives where.
    pub holds_map: bool,
    /// Bytes for data.
    pub bytes: u64,
    /// Bytes of them in use.
    pub used_bytes: u64,
    /// Reads of clients since the volume was opened.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Nanoseconds that they took there, all together.
    #[serde(default)]
    pub read_ns: u64,
    /// Writes of clients since the volume was opened.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Nanoseconds that they took there, all together.
    #[serde(default)]
    pub write_ns: u64,
    /// Bytes that moved here.
    pub moved_in_bytes: u64,
    /// Bytes that moved away.
    pub moved_out_bytes: u64,
    /// Reads that failed since the volume was opened.
    #[serde(default)]
    pub read_errors: u64,
    /// Writes and flushes that failed since then.
    #[serde(default)]
    pub write_errors: u64,
    /// Writes that found no room there since then, whatever is free.
    #[serde(default)]
    pub no_room_errors: u64,
    /// It said lately that it has no room: it gets nothing new for a while.
    #[serde(default)]
    pub full: bool,
    /// It failed to read or write lately.
    #[serde(default)]
    pub failing: bool,
    /// It kept a copy of the map, which is lost, and no other has taken its place.
    #[serde(default)]
    pub map_lost: bool,
    /// Seconds that its oldest I/O has been under way.
    #[serde(default)]
    pub waits_s: u64,
    /// Bytes that its file had when somebody had cut it while it was in use: nothing of it is
    /// believed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_to_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_day_may_go_past_midnight() {
        let window = |text: &str| text.parse::<Window>();
        let night = window("22:00-06:00").unwrap();
        assert!(night.has(22 * 60) && night.has(0) && night.has(6 * 60 - 1));
        assert!(!night.has(6 * 60) && !night.has(22 * 60 - 1));
        let noon = window("11:30-24:00").unwrap();
        assert!(noon.has(11 * 60 + 30) && noon.has(DAY_MINUTES - 1));
        assert!(!noon.has(0) && !noon.has(11 * 60 + 29));
        assert_eq!(night.to_string(), "22:00-06:00");
        let json = serde_json::to_string(&night).unwrap();
        assert_eq!(serde_json::from_str::<Window>(&json).unwrap(), night);
        for bad in [
            "",
            "22:00",
            "22-06",
            "22:60-06:00",
            "25:00-06:00",
            "24:01-06:00",
            "6:00-7:00",
            "06:00-06:00",
            "00:00-24:00",
            "+1:00-06:00",
        ] {
            assert!(window(bad).unwrap_err().contains("22:00-06:00"), "{bad}");
        }
    }
}
