//! What only the cache holds of a volume, on its way to somebody who keeps it: a part at a time, by
//! a daemon that serves the pool, or by `forebayd rescue`, which reads the devices of one that
//! nobody serves.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The next part of what is dirty of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRescue {
    /// Its name.
    pub name: String,
    /// The offset to look from; at first 0, then what the part before says.
    #[serde(default)]
    pub from: u64,
    /// Only read, and leave the bytes out.
    #[serde(default)]
    pub dry_run: bool,
}

/// A part of what is dirty of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RescuePart {
    /// What it is a part of; with the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<RescueAbout>,
    /// What could be read, in the order of its addresses.
    pub pieces: Vec<RescueSpan>,
    /// The bytes of the pieces, one after the other; nothing of a dry run.
    pub data: Base64,
    /// What could not be read.
    pub unread: Vec<Unread>,
    /// Where to look on; `None` at the end of the volume.
    pub next: Option<u64>,
}

/// The volume, and where its data is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescueAbout {
    /// The pool.
    pub pool: String,
    /// URI of the origin.
    pub origin: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes of the blocks that are dirty, be it in part.
    pub dirty_bytes: u64,
    /// The life of the pool's log that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_epoch: Option<u64>,
    /// The last of its records that is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_end: Option<u64>,
    /// The record up to which the log was seen to be durable by a daemon, where one remembers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_seen: Option<u64>,
    /// A newer state was seen, and this is gone on with: what was written since is not here.
    #[serde(default)]
    pub is_older: bool,
    /// What somebody who uses the data should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Bytes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescueSpan {
    /// The first.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Dirty bytes that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Which.
    #[serde(flatten)]
    pub span: RescueSpan,
    /// Why.
    pub why: WhyUnread,
}

/// Why dirty bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyUnread {
    /// No device has a good copy of them.
    Lost,
    /// Requests that wait for the origin use them. Without a daemon they can be read.
    InUse,
}

impl fmt::Display for WhyUnread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyUnread::Lost => "no device has a good copy",
            WhyUnread::InUse => "in use by requests that wait for the origin",
        })
    }
}

/// Bytes, as JSON carries them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Base64).map_err(serde::de::Error::custom)
    }
}

impl RescuePart {
    /// The pieces with their bytes, of which there are none in a dry run; `None` if they do not fit
    /// together.
    pub fn content(&self) -> Option<Vec<(RescueSpan, &[u8])>> {
        let mut rest = &self.data.0[..];
        let is_dry = rest.is_empty();
        let mut content = Vec::new();
        for &piece in &self.pieces {
            let bytes = usize::try_from(piece.bytes).ok().filter(|_| !is_dry).unwrap_or(0);
            let (own, others) = rest.split_at_checked(bytes)?;
            content.push((piece, own));
            rest = others;
        }
        rest.is_empty().then_some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_travels_with_its_bytes() {
        let span = |offset, bytes| RescueSpan { offset, bytes };
        let part = RescuePart {
            about: None,
            pieces: vec![span(512, 512), span(8192, 1024)],
            data: Base64((0..1536).map(|n| (n % 251) as u8).collect()),
            unread: vec![Unread { span: span(4096, 512), why: WhyUnread::Lost }],
            next: Some(1 << 20),
        };
        let text = serde_json::to_string(&part).unwrap();
        let came: RescuePart = serde_json::from_str(&text).unwrap();
        assert_eq!(came, part);
        let content = came.content().unwrap();
        assert_eq!(content[1], (span(8192, 1024), &part.data.0[512..]));
        let short = RescuePart { data: Base64(vec![0; 1535]), ..part.clone() };
        assert_eq!(short.content(), None);
        let long = RescuePart { data: Base64(vec![0; 1537]), ..part.clone() };
        assert_eq!(long.content(), None);
        let dry = RescuePart { data: Base64::default(), ..part };
        assert_eq!(dry.content().unwrap()[0], (span(512, 512), &[][..]));
    }
}
