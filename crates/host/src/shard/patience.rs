//! How long a shard looks for work before it sleeps.
//!
//! To be woken costs a thread and whoever wakes it several microseconds; to look costs nanoseconds,
//! and a processor. So a shard looks for about as long as a wake costs, as long as that is often
//! rewarded, and else sleeps at once, as self-tuning pollers of hypervisors do (halt polling of
//! KVM, AioContext of QEMU). It counts looks and not time: where time stands still while a program
//! computes, as in simulated machines, it must come to its sleep too.

use std::time::Duration;

/// Looks before a sleep, at most: some ten microseconds.
const LOOKS_MAX: u32 = 512;
/// Looks to begin with.
const LOOKS_MIN: u32 = 32;
/// A sleep shorter than this would have been better spent looking.
const SHORT: Duration = Duration::from_micros(20);

/// How patient the shard is.
#[derive(Debug)]
pub(super) struct Patience {
    /// Looking can be rewarded at all.
    able: bool,
    looks: u32,
}

impl Patience {
    /// Of a shard that sees by looking what would wake it (`sees`). Where there is one processor,
    /// whoever is waited for needs it.
    pub fn new(sees: bool) -> Patience {
        let alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        Patience { able: sees && !alone, looks: 0 }
    }

    /// Looks to spend before the next sleep.
    pub fn looks(&self) -> u32 {
        self.looks
    }

    /// Something came while it looked.
    pub fn rewarded(&mut self) {
        if self.able {
            self.looks = (self.looks * 2).clamp(LOOKS_MIN, LOOKS_MAX);
        }
    }

    /// The shard looked for work in vain, or not at all, and then slept for so long.
    pub fn slept(&mut self, time: Duration) {
        if time < SHORT {
            return self.rewarded();
        }
        self.looks = if self.looks <= LOOKS_MIN { 0 } else { self.looks / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_shard_sleeps_at_once_and_a_busy_one_looks() {
        let mut patience = Patience { able: true, looks: 0 };
        assert_eq!(patience.looks(), 0);
        patience.slept(Duration::from_millis(5));
        assert_eq!(patience.looks(), 0);
        (0..20).for_each(|_| patience.slept(Duration::from_micros(3)));
        assert_eq!(patience.looks(), LOOKS_MAX);
        patience.rewarded();
        assert_eq!(patience.looks(), LOOKS_MAX);
        (0..5).for_each(|_| patience.slept(Duration::from_millis(1)));
        assert_eq!(patience.looks(), 0);
        let mut blind = Patience::new(false);
        (0..20).for_each(|_| blind.slept(Duration::from_micros(3)));
        blind.rewarded();
        assert_eq!(blind.looks(), 0, "what would wake it cannot be seen");
    }
}
