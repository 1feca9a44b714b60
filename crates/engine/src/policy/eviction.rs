//! Which segment reclaim empties next, and what it keeps of it.

use crate::ids::UnitId;

/// What the choice looks at, of one sealed segment.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Live blocks.
    pub live: u32,
    /// Dirty blocks among them.
    pub dirty: u32,
    /// Blocks of a segment.
    pub blocks: u32,
    /// Order in which it was opened.
    pub order: u64,
    /// It holds what clients wrote, not what they read.
    pub written: bool,
}

/// What reclaim does with a victim's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Keep all that live: the segment is at most half live.
    Clean,
    /// Keep the dirty ones and those with their reference bit; drop the others.
    Evict,
}

/// How far the choice may go.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Segments with more dirty blocks are passed over: writeback must clean them first.
    pub dirty_max: u32,
    /// But at most half dirty ones of written blocks may have as many, to be moved closer together:
    /// records of single blocks take twice their room.
    pub moves_max: u32,
    /// Blocks that clients wrote and that are home by now go before those that they read.
    pub written_first: bool,
    /// Room is short: what costs least for what it frees goes first, whatever it holds.
    pub cheapest: bool,
}

/// Picks a victim among `candidates`: a dead segment, else one at most half live (the emptiest),
/// else the oldest. Where written blocks go first, the oldest segment of them goes before all
/// others that live.
pub fn choose<I: Iterator<Item = (UnitId, Candidate)>>(
    candidates: I,
    bounds: Bounds,
) -> Option<(UnitId, Choice)> {
    if bounds.cheapest {
        return cheapest(candidates, bounds);
    }
    let mut emptiest: Option<(UnitId, Candidate)> = None;
    let mut oldest: Option<(UnitId, Candidate)> = None;
    let first = |candidate: &Candidate| bounds.written_first && candidate.written;
    for (id, candidate) in candidates {
        let Candidate { live, dirty, blocks, order, .. } = candidate;
        let half = live * 2 <= blocks;
        let packs = dirty * 2 <= blocks && first(&candidate) && dirty <= bounds.moves_max;
        if dirty > bounds.dirty_max && !packs {
            continue;
        }
        if half
            && (!first(&candidate) || live == 0)
            && emptiest.is_none_or(|(_, best)| (live, order) < (best.live, best.order))
        {
            emptiest = Some((id, candidate));
        }
        let rank = |it: &Candidate| {
            let moves = if it.dirty > bounds.dirty_max { it.dirty } else { 0 };
            (!first(it), moves, it.order)
        };
        if oldest.is_none_or(|(_, best)| rank(&candidate) < rank(&best)) {
            oldest = Some((id, candidate));
        }
    }
    match (emptiest, oldest) {
        (Some((id, empty)), _) if empty.live == 0 => Some((id, Choice::Clean)),
        (_, Some((id, oldest))) if first(&oldest) => Some((id, Choice::Evict)),
        (Some((id, _)), _) => Some((id, Choice::Clean)),
        (None, Some((id, _))) => Some((id, Choice::Evict)),
        (None, None) => None,
    }
}

/// The unit with the fewest dirty blocks to move for each block that it frees; of equal ones the
/// oldest (Rosenblum and Ousterhout, "The Design and Implementation of a Log-Structured File
/// System", 1992, without the age: all of it has to be cheap now).
fn cheapest<I: Iterator<Item = (UnitId, Candidate)>>(
    candidates: I,
    bounds: Bounds,
) -> Option<(UnitId, Choice)> {
    let fits =
        |it: &(UnitId, Candidate)| it.1.dirty <= bounds.dirty_max && it.1.dirty < it.1.blocks;
    let cost = |it: &Candidate| {
        let share = u64::from(it.dirty) * 64 / u64::from(it.blocks - it.dirty);
        (it.live > 0, share, !(bounds.written_first && it.written), it.order)
    };
    candidates.filter(fits).min_by_key(|(_, it)| cost(it)).map(|(id, _)| (id, Choice::Evict))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Bounds =
        Bounds { dirty_max: 10, moves_max: 100, written_first: false, cheapest: false };
    const WRITTEN: Bounds = Bounds { written_first: true, ..READ };

    fn candidate(live: u32, dirty: u32, order: u64) -> Candidate {
        Candidate { live, dirty, blocks: 100, order, written: false }
    }

    fn written(live: u32, dirty: u32, order: u64) -> Candidate {
        Candidate { written: true, ..candidate(live, dirty, order) }
    }

    /// As [`super::choose`], with plain numbers.
    fn choose(
        candidates: impl Iterator<Item = (u32, Candidate)>,
        bounds: Bounds,
    ) -> Option<(u32, Choice)> {
        let candidates: Vec<_> = candidates.map(|(n, it)| (UnitId::nth(n), it)).collect();
        let (unit, choice) = super::choose(candidates.into_iter(), bounds)?;
        Some((unit.at() as u32, choice))
    }

    #[test]
    fn dead_then_half_live_then_oldest() {
        let all = [(0, candidate(90, 0, 1)), (1, candidate(40, 0, 5)), (2, candidate(0, 0, 9))];
        assert_eq!(choose(all.into_iter(), READ), Some((2, Choice::Clean)));
        assert_eq!(choose(all[..2].iter().copied(), READ), Some((1, Choice::Clean)));
        assert_eq!(choose(all[..1].iter().copied(), READ), Some((0, Choice::Evict)));
    }

    #[test]
    fn segments_full_of_dirty_blocks_wait_for_writeback() {
        let all = [(0, candidate(90, 50, 1)), (1, candidate(95, 3, 5))];
        assert_eq!(choose(all.into_iter(), READ), Some((1, Choice::Evict)));
        assert_eq!(choose(all[..1].iter().copied(), READ), None);
    }

    #[test]
    fn where_written_blocks_go_first_they_go_before_all_that_lives() {
        let all = [
            (0, candidate(90, 0, 1)),
            (1, candidate(40, 0, 2)),
            (2, written(90, 3, 7)),
            (3, written(45, 45, 3)),
            (4, written(90, 45, 4)),
            (5, candidate(0, 0, 9)),
        ];
        assert_eq!(
            choose(all.into_iter(), WRITTEN),
            Some((5, Choice::Clean)),
            "the dead cost less"
        );
        assert_eq!(choose(all[..5].iter().copied(), WRITTEN), Some((2, Choice::Evict)));
        assert_eq!(choose(all[..5].iter().copied(), READ), Some((1, Choice::Clean)));
        let dirty = [all[0], all[1], all[3], all[4]];
        assert_eq!(
            choose(dirty.into_iter(), WRITTEN),
            Some((3, Choice::Evict)),
            "those that are at most half dirty are packed"
        );
        let fewer = [all[0], all[1], all[4], (6, written(60, 44, 9)), (7, written(60, 51, 1))];
        assert_eq!(
            choose(fewer.into_iter(), WRITTEN),
            Some((6, Choice::Evict)),
            "the one with the fewest blocks to move, however much of it lives"
        );
        let room = Bounds { moves_max: 44, ..WRITTEN };
        assert_eq!(
            choose(dirty.into_iter(), room),
            Some((1, Choice::Clean)),
            "but for lack of room"
        );
    }
}
