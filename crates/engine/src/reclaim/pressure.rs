//! Pressure: how fast room comes back, and how far writers are slowed down because of it. Smoothly:
//! a writer that waits a little each time never meets a pool that has no room at all.

use crate::event::Time;
use crate::limits::{ROOM_BLOCK_NS, ROOM_WINDOW_NS, WAVE_NS_MAX};

/// How fast room comes back.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Time that a block of room needs, averaged.
    block_ns: Time,
    /// Blocks that came back, less those that making them took, since then.
    gained: i64,
    since: Time,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure { block_ns: ROOM_BLOCK_NS, gained: 0, since: 0 }
    }
}

impl Pressure {
    /// Blocks became free.
    pub(crate) fn gained(&mut self, now: Time, blocks: u64) {
        self.gained += blocks as i64;
        let passed = now - self.since;
        if passed >= ROOM_WINDOW_NS && self.gained > 0 {
            // After a rest nothing is known of how fast it could have been.
            let each = passed.min(10 * ROOM_WINDOW_NS) / self.gained as u64;
            self.block_ns = (self.block_ns * 3 + each) / 4;
            (self.gained, self.since) = (0, now);
        }
    }

    /// Blocks were moved.
    pub(crate) fn spent(&mut self, blocks: u64) {
        self.gained -= blocks as i64;
    }

    /// How long the next writes have to wait after these, which took so many blocks of the log,
    /// where `left` of `comfort` blocks of room are left. Nothing with half of it; then ever more.
    pub(crate) fn pause_ns(&self, blocks: u64, left: u64, comfort: u64) -> Time {
        let half = comfort / 2;
        if left >= half || half == 0 {
            return 0;
        }
        let short = (half - left) as f64 / half as f64;
        let slower = short / (1.0 - short).max(0.05);
        ((self.block_ns * blocks) as f64 * slower).min(WAVE_NS_MAX as f64) as Time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_slowed_smoothly_to_the_rate_at_which_room_comes_back() {
        let mut pressure = Pressure::default();
        for second in 1..=20 {
            pressure.gained(second * 1_000_000_000, 6_000);
            pressure.spent(1_000);
        }
        let pause = |left| pressure.pause_ns(1, left, 1_000);
        assert_eq!((pause(1_000), pause(500)), (0, 0));
        let at_rate = pause(250);
        assert!((150_000..=250_000).contains(&at_rate), "a block in 200 us: {at_rate}");
        let pauses: Vec<Time> = (0..=500).rev().map(pause).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
        assert!(pauses[500] <= 20 * at_rate, "but never for ever");
    }
}
