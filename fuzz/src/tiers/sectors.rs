//! What the sectors of a volume may hold: the versions that each had, and how what made them ended.

use crate::model::{SECTOR, Version, fill};
use std::collections::BTreeMap;
use std::ops::Range;

/// How what makes a version ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// It ended badly, or the power was lost since.
    Perhaps,
    /// Well: a killed process does not lose it.
    Answered,
    /// And a FLUSH came after it.
    Durable,
}

/// All sectors; those of which nothing is known are zeros.
#[derive(Debug, Clone, Default)]
pub struct Sectors(BTreeMap<usize, Vec<(Version, Fate)>>);

impl Sectors {
    /// What makes this version of them begins.
    pub fn begin(&mut self, sectors: Range<usize>, version: Version) {
        for sector in sectors {
            let first = || vec![(Version::Zeros, Fate::Durable)];
            self.0.entry(sector).or_insert_with(first).push((version, Fate::Perhaps));
        }
    }

    /// It ended well. Nothing else of these sectors was under way.
    pub fn answer(&mut self, sectors: Range<usize>, version: Version) {
        for (_, versions) in self.0.range_mut(sectors) {
            let last = versions.last_mut().expect("it began");
            assert_eq!(last.0, version);
            last.1 = Fate::Answered;
        }
    }

    /// All that was answered is durable.
    pub fn flush(&mut self) {
        let answered = |it: &&mut (Version, Fate)| it.1 == Fate::Answered;
        self.0.values_mut().flatten().filter(answered).for_each(|it| it.1 = Fate::Durable);
    }

    /// The power was lost: what no FLUSH covered may be gone.
    pub fn lose_power(&mut self) {
        let answered = |it: &&mut (Version, Fate)| it.1 == Fate::Answered;
        self.0.values_mut().flatten().filter(answered).for_each(|it| it.1 = Fate::Perhaps);
    }

    /// Sectors that have had another version than zeros.
    pub fn touched(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// Asserts that a sector has its last version, or one that may have replaced it; or any that it
    /// has had.
    pub fn check(&self, sector: usize, is_exact: bool, data: &[u8]) {
        let zeros = [(Version::Zeros, Fate::Durable)];
        let versions = self.0.get(&sector).map_or(&zeros[..], |versions| versions);
        let last = versions.iter().rposition(|it| it.1 >= Fate::Answered);
        let from = if is_exact { last.expect("the first is durable") } else { 0 };
        let mut expected = [0; SECTOR];
        let is_legal = versions[from..].iter().any(|&(version, _)| {
            fill(version, sector, &mut expected);
            data == expected
        });
        assert!(
            is_legal,
            "sector {sector} is {:02x?}, and not one of {:?}",
            &data[..16],
            &versions[from..]
        );
    }
}
