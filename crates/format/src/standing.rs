//! How the devices that were found stand to one another: which superblock is the pool's, and which
//! devices have gone on with it. The host and the simulator ask the same question here.

use crate::superblock::Header;

/// How a device stands to the newest superblock of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has the newest superblock.
    Newest,
    /// It missed the last superblock before a crash; nothing that was promised is missing on it.
    Behind,
    /// The pool has gone on without it: what it holds may be old.
    Stale,
    /// It belongs to another pool.
    OtherPool,
    /// It was replaced: the pool has another device in its place.
    Replaced,
}

impl Standing {
    /// Whether what the device holds may be used.
    pub fn in_step(self) -> bool {
        matches!(self, Standing::Newest | Standing::Behind)
    }
}

/// What the superblocks of some devices say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standings {
    /// Which of them has the pool's newest superblock.
    pub newest: usize,
    /// How each stands to that.
    pub of: Vec<Standing>,
}

/// Compares the newest superblocks of some devices, one of each. The pool is that of the first.
/// `None` when there are none.
///
/// A generation is written to all devices that work before the next one begins, so a crash leaves a
/// device at most one behind. Further behind, or named as away by a superblock that it does not
/// have, and the pool went on without it. A crash may also leave one device with a generation of
/// its own, and a start that does not see it writes another of the same number to the others: that
/// one calls the first device away, which itself takes the others for its equals.
///
/// A later life of the log is newer whatever the generations are: where an administrator went on
/// with an older state, its life is two and more after what was abandoned.
pub fn standings(headers: &[&Header]) -> Option<Standings> {
    let uuid = headers.first()?.pool_uuid;
    let own: Vec<&Header> = headers.iter().copied().filter(|it| it.pool_uuid == uuid).collect();
    let newest = (0..headers.len()).filter(|&index| headers[index].pool_uuid == uuid).max_by_key(
        |&index| {
            let it = headers[index];
            (it.epoch.get(), it.generation.get(), !left_behind(it, &own))
        },
    )?;
    let of = headers.iter().map(|own| standing(own, headers[newest])).collect();
    Some(Standings { newest, of })
}

/// Whether one of the same generation says that the pool goes on without this one, and this one
/// does not say so of it.
fn left_behind(own: &Header, pool: &[&Header]) -> bool {
    let is_away = |one: &Header, of: &Header| {
        let entry = of.devices.get(usize::from(one.device_index.get()));
        entry.is_some_and(|entry| entry.away.get() != 0)
    };
    pool.iter()
        .filter(|other| other.generation == own.generation)
        .any(|other| is_away(own, other) && !is_away(other, own))
}

fn standing(own: &Header, pool: &Header) -> Standing {
    let (index, count) = (usize::from(own.device_index.get()), pool.device_count.get().into());
    if own.pool_uuid != pool.pool_uuid {
        return Standing::OtherPool;
    }
    if index >= count || pool.devices[index].uuid != own.devices[index].uuid {
        return Standing::Replaced;
    }
    let behind = pool.generation.get().checked_sub(own.generation.get());
    match (behind, pool.epoch.get() - own.epoch.get()) {
        _ if pool.devices[index].away.get() != 0 => Standing::Stale,
        (Some(0), 0) => Standing::Newest,
        (Some(1), 0 | 1) => Standing::Behind,
        _ => Standing::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{PoolSpec, new_pool};
    use zerocopy::little_endian::{U16, U32, U64};

    fn headers(generations: &[u64]) -> Vec<Header> {
        let devices = (1..).zip(generations).map(|(index, _)| (64 << 20, [index; 16]));
        let spec = PoolSpec {
            name: "pool".into(),
            uuid: [7; 16],
            devices: devices.collect(),
            segment_blocks: None,
        };
        let with = |(mut superblock, &generation): (crate::superblock::Superblock, &u64)| {
            superblock.header.generation = U64::new(generation);
            superblock.header
        };
        new_pool(&spec).expect("large enough").into_iter().zip(generations).map(with).collect()
    }

    fn of(headers: &[Header]) -> Standings {
        standings(&headers.iter().collect::<Vec<_>>()).expect("some")
    }

    #[test]
    fn one_generation_behind_is_in_step_and_two_are_not() {
        use Standing::{Behind, Newest, Stale};
        let found = of(&headers(&[8, 9, 7]));
        assert_eq!(found, Standings { newest: 1, of: vec![Behind, Newest, Stale] });
        let in_step: Vec<bool> = found.of.iter().map(|standing| standing.in_step()).collect();
        assert_eq!(in_step, [true, true, false]);
        assert_eq!(of(&headers(&[3, 3])).of, [Newest, Newest]);
        assert_eq!(of(&headers(&[5])).of, [Newest]);
        assert_eq!(standings(&[]), None);
    }

    #[test]
    fn a_device_that_the_newest_superblock_calls_away_is_stale() {
        use Standing::{Newest, Stale};
        let mut found = headers(&[8, 9]);
        found[1].devices[0].away = U32::new(1);
        assert_eq!(of(&found).of, [Stale, Newest]);
    }

    #[test]
    fn of_two_lives_with_one_number_that_which_went_on_without_the_other_counts() {
        use Standing::{Newest, Stale};
        // A power cut left a generation on the last device only. The next start did not see it.
        let mut found = headers(&[9, 9, 9]);
        found[0].devices[2].away = U32::new(1);
        found[1].devices[2].away = U32::new(1);
        assert_eq!(of(&found), Standings { newest: 1, of: vec![Newest, Newest, Stale] });
        found.swap(0, 2);
        assert_eq!(of(&found), Standings { newest: 2, of: vec![Stale, Newest, Newest] });
    }

    /// An administrator went on with an older state: what was abandoned had written more.
    #[test]
    fn a_later_life_counts_whatever_the_generations_are() {
        use Standing::{Newest, Stale};
        let mut found = headers(&[12, 9]);
        for (header, epoch) in found.iter_mut().zip([3, 5]) {
            header.epoch = U64::new(epoch);
        }
        assert_eq!(of(&found), Standings { newest: 1, of: vec![Stale, Newest] });
        found.swap(0, 1);
        assert_eq!(of(&found), Standings { newest: 0, of: vec![Newest, Stale] });
    }

    #[test]
    fn devices_of_other_pools_and_replaced_ones_are_not_used() {
        use Standing::{Newest, OtherPool, Replaced};
        let mut found = headers(&[4, 9, 4, 4]);
        found[1].pool_uuid = [8; 16];
        found[2].devices[2].uuid = [99; 16];
        found[3].device_index = U16::new(15);
        let of = of(&found);
        assert_eq!(of, Standings { newest: 3, of: vec![Newest, OtherPool, Replaced, Replaced] });
        // The pool of the first is meant, though another is further.
        assert_eq!(standings(&[&found[1], &found[0]]).expect("two").of, [Newest, OtherPool]);
    }
}
