//! The fields that look otherwise as JSON.

use super::Written;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Blocks are sent as bytes.
pub(super) mod blocks {
    use crate::BLOCK_SIZE;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(blocks: &u64, to: S) -> Result<S::Ok, S::Error> {
        (blocks * BLOCK_SIZE as u64).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        Ok(u64::deserialize(from)? / BLOCK_SIZE as u64)
    }
}

/// Of a pool that has written nothing there is nothing to send.
pub(super) fn written<S: Serializer>(written: &Written, to: S) -> Result<S::Ok, S::Error> {
    match *written == Written::default() {
        true => to.serialize_map(Some(0))?.end(),
        false => written.serialize(to),
    }
}

/// Counts of a histogram are sent without the zeros at the end.
pub(super) mod counts {
    use crate::stats::Histogram;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Counts = [u64; Histogram::BUCKETS];

    pub fn serialize<S: Serializer>(counts: &Counts, to: S) -> Result<S::Ok, S::Error> {
        let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        counts[..used].serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Counts, D::Error> {
        let sent = Vec::<u64>::deserialize(from)?;
        Ok(std::array::from_fn(|index| sent.get(index).copied().unwrap_or(0)))
    }
}

/// Counts by reason are sent with its name. One that is not known here is left out.
pub(super) mod reasons {
    use crate::stats::{REASONS, by_name};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    type Counts = [u64; REASONS.len()];

    pub fn serialize<S: Serializer>(counts: &Counts, to: S) -> Result<S::Ok, S::Error> {
        by_name(*counts).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Counts, D::Error> {
        let sent = BTreeMap::<String, u64>::deserialize(from)?;
        Ok(REASONS.map(|reason| sent.get(reason).copied().unwrap_or(0)))
    }
}
