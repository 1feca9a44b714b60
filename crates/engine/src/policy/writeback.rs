//! When dirty blocks are sent home, and how far writers are slowed down.

use crate::event::Time;
use crate::settings::Tuning;

/// What the choice looks at.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// Share of the slots that is dirty, 0 to 1.
    pub dirty_share: f64,
    /// A command waits for the drain of this volume.
    pub draining: bool,
    /// Reclaim finds no segment to empty because of dirty blocks.
    pub reclaim_starves: bool,
    /// The pool is nearly full: dirty blocks take the place of what clients read.
    pub crowded: bool,
    /// Nanoseconds since that share last grew beyond the target.
    pub over_target_ns: u64,
    /// Nanoseconds since a client last asked something of the origin.
    pub origin_idle_ns: u64,
    /// Nanoseconds since a client last wrote to the volume.
    pub write_idle_ns: u64,
}

/// Whether a slice should be short, with a rest behind it: clients use the origin.
pub fn is_short(situation: &Situation, tuning: &Tuning) -> bool {
    situation.origin_idle_ns <= tuning.idle_ns / 50
}

/// Whether to send home a slice now.
pub fn due(situation: &Situation, tuning: &Tuning) -> bool {
    situation.draining
        || situation.reclaim_starves
        || situation.dirty_share > tuning.dirty_high
        // The more is dirty, the closer together it lies, and the less each block costs a disk.
        || (situation.dirty_share > tuning.dirty_target && situation.crowded)
        || (situation.dirty_share > tuning.dirty_target
            && situation.origin_idle_ns > tuning.idle_ns / 50
            // A burst of writes is better sent home when it is over: in one sweep.
            && situation.over_target_ns > tuning.idle_ns / 4)
        || (situation.origin_idle_ns > tuning.idle_ns && situation.write_idle_ns > tuning.idle_ns)
}

/// How long the next write has to wait after the one before, in nanoseconds: nothing below the high
/// mark, then a smooth curve instead of a cliff (as ZFS's `zfs_delay` does).
pub fn write_gap_ns(dirty_share: f64, tuning: &Tuning) -> Time {
    if dirty_share <= tuning.dirty_high {
        return 0;
    }
    let span = (tuning.dirty_max - tuning.dirty_high).max(0.01);
    let x = ((dirty_share - tuning.dirty_high) / span).clamp(0.0, 0.99);
    (x / (1.0 - x) * 100_000.0) as Time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_grows_smoothly_and_without_bound_towards_the_maximum() {
        let tuning = Tuning::default();
        assert_eq!(write_gap_ns(0.1, &tuning), 0);
        let gaps: Vec<_> = (60..=75).map(|p| write_gap_ns(f64::from(p) / 100.0, &tuning)).collect();
        assert!(gaps.windows(2).all(|pair| pair[0] < pair[1] + 1), "{gaps:?}");
        assert!(gaps[15] >= 50 * gaps[3].max(1), "{gaps:?}");
    }

    /// Dirty blocks enough for an idle origin, and a client that reads there all the time.
    const CALM: Situation = Situation {
        dirty_share: 0.3,
        draining: false,
        reclaim_starves: false,
        crowded: false,
        over_target_ns: 1 << 30,
        origin_idle_ns: 0,
        write_idle_ns: 0,
    };

    #[test]
    fn foreground_reads_hold_writeback_back_until_it_is_urgent() {
        let tuning = Tuning::default();
        assert!(!due(&CALM, &tuning));
        assert!(due(&Situation { origin_idle_ns: 1 << 30, ..CALM }, &tuning));
        let burst = Situation { origin_idle_ns: 1 << 30, over_target_ns: 1 << 20, ..CALM };
        assert!(!due(&burst, &tuning));
        assert!(due(&Situation { dirty_share: 0.65, ..CALM }, &tuning));
        assert!(due(&Situation { draining: true, ..CALM }, &tuning));
        assert!(due(&Situation { crowded: true, ..CALM }, &tuning));
        assert!(!due(&Situation { crowded: true, dirty_share: 0.04, ..CALM }, &tuning));
    }

    #[test]
    fn slices_are_short_while_clients_use_the_origin() {
        let tuning = Tuning::default();
        assert!(is_short(&CALM, &tuning));
        assert!(is_short(&Situation { draining: true, ..CALM }, &tuning), "a drain is no excuse");
        assert!(!is_short(&Situation { origin_idle_ns: 1 << 30, ..CALM }, &tuning));
    }
}
