//! How much moves may copy.

use forebay_format::io::Time;

/// How much may be copied: it fills with time, and what is begun may overdraw it, so that it is
/// never too small for a piece.
#[derive(Debug)]
pub(crate) struct Budget {
    rate: u64,
    bytes: i64,
    at: Time,
}

impl Budget {
    pub fn new(now: Time, rate: u64) -> Budget {
        Budget { rate, bytes: 0, at: now }
    }

    pub fn fill(&mut self, now: Time) {
        let passed = u128::from(now - self.at) * u128::from(self.rate) / 1_000_000_000;
        if passed > 0 {
            let most = (self.rate / 10).max(1 << 20) as i64;
            self.bytes = self.bytes.saturating_add(passed.min(1 << 40) as i64).min(most);
            self.at = now;
        }
    }

    /// It fills otherwise from now on.
    pub fn set_rate(&mut self, now: Time, rate: u64) {
        self.fill(now);
        (self.rate, self.at) = (rate, now);
    }

    /// When something may be begun.
    pub fn due(&self) -> Time {
        if self.bytes > 0 || self.rate == 0 {
            return self.at;
        }
        let missing = (1 - self.bytes) as u128 * 1_000_000_000 / u128::from(self.rate);
        self.at + missing.min(u64::MAX as u128 / 4) as u64 + 1
    }

    /// It never fills.
    pub fn is_nothing(&self) -> bool {
        self.rate == 0
    }

    /// Nothing may be begun before its time.
    pub fn is_spent(&self) -> bool {
        self.bytes <= 0
    }

    /// Whether so many bytes are left.
    pub fn has(&self, least: i64) -> bool {
        self.bytes >= least && self.rate > 0
    }

    pub fn spend(&mut self, bytes: usize) {
        self.bytes -= bytes as i64;
    }
}
