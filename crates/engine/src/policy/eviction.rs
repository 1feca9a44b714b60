//! Which segment reclaim empties next, and what it keeps of it.

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
}

/// What reclaim does with a victim's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Keep all that live: the segment is at most half live.
    Clean,
    /// Keep the dirty ones and those with their reference bit; drop the others.
    Evict,
}

/// Picks a victim among `candidates`: a dead segment, else one at most half live (the emptiest), else the
/// oldest. Segments with more than `dirty_max` dirty blocks are passed over: writeback must clean them first.
pub fn choose<I: Iterator<Item = (u32, Candidate)>>(
    candidates: I,
    dirty_max: u32,
) -> Option<(u32, Choice)> {
    let mut emptiest: Option<(u32, Candidate)> = None;
    let mut oldest: Option<(u32, Candidate)> = None;
    for (id, candidate) in candidates {
        if candidate.dirty > dirty_max {
            continue;
        }
        let half = candidate.live * 2 <= candidate.blocks;
        if half
            && emptiest
                .is_none_or(|(_, best)| (candidate.live, candidate.order) < (best.live, best.order))
        {
            emptiest = Some((id, candidate));
        }
        if oldest.is_none_or(|(_, best)| candidate.order < best.order) {
            oldest = Some((id, candidate));
        }
    }
    match (emptiest, oldest) {
        (Some((id, _)), _) => Some((id, Choice::Clean)),
        (None, Some((id, _))) => Some((id, Choice::Evict)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(live: u32, dirty: u32, order: u64) -> Candidate {
        Candidate { live, dirty, blocks: 100, order }
    }

    #[test]
    fn dead_then_half_live_then_oldest() {
        let all = [(0, candidate(90, 0, 1)), (1, candidate(40, 0, 5)), (2, candidate(0, 0, 9))];
        assert_eq!(choose(all.into_iter(), 10), Some((2, Choice::Clean)));
        assert_eq!(choose(all[..2].iter().copied(), 10), Some((1, Choice::Clean)));
        assert_eq!(choose(all[..1].iter().copied(), 10), Some((0, Choice::Evict)));
    }

    #[test]
    fn segments_full_of_dirty_blocks_wait_for_writeback() {
        let all = [(0, candidate(90, 50, 1)), (1, candidate(95, 3, 5))];
        assert_eq!(choose(all.into_iter(), 10), Some((1, Choice::Evict)));
        assert_eq!(choose(all[..1].iter().copied(), 10), None);
    }
}
