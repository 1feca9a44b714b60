//! A window: how many bytes of large I/O are best under way at once to one device.
//!
//! A device takes what it is given in about that order, and so does the system before it: what is
//! under way beyond that which keeps the device busy only makes others wait. How much keeps it busy
//! differs by a factor of thousands, from a disk beside to a store far away, so it is found by
//! trial, as a sender finds it for a network (Vegas, Brakmo et al. 1994; FAST, Jin et al. 2004):
//!
//! - With the least under way nothing of ours waits for more of ours: what an I/O takes then is
//!   what the device takes, its *base*.
//! - The window grows while it is what holds I/O back, and I/O takes no longer than the base and
//!   as much again, or 5 ms more where that is longer. A device that only works one off after the
//!   other takes twice as long for twice as much: there the window stays small. One that is far
//!   away, or works on many at once, takes no longer for more.
//! - It shrinks when I/O takes longer. When it is down to the least, the base is found anew: a
//!   device that has become slower has another.

use crate::event::Time;

/// Reads and writes up to this size are small, in bytes: they wait for no window.
pub const SMALL_BYTES_MAX: u64 = 64 << 10;
/// The least window. One I/O may always be under way, however large.
const BYTES_MIN: u64 = 1 << 20;
/// The largest: what is far away takes 3 GB/s with it over 40 ms.
const BYTES_MAX: u64 = 128 << 20;
/// Time that an I/O may wait for others of a window on a device that is fast.
const WAIT_NS: Time = 5_000_000;
/// I/Os that ended by which a window is judged, at least.
const ROUND_IOS: u64 = 8;

/// What was seen since the window last changed.
#[derive(Debug, Default)]
struct Round {
    since: Time,
    ended: u64,
    bytes: u64,
    took_ns: Time,
    /// An I/O was held back.
    was_full: bool,
}

/// The window of one device, and what is under way in it.
#[derive(Debug)]
pub struct Window {
    bytes_max: u64,
    under_way: u64,
    /// What an I/O takes that waits for no other of ours: not known before the first round.
    base_ns: Option<Time>,
    round: Round,
}

impl Default for Window {
    fn default() -> Window {
        Window { bytes_max: BYTES_MIN, under_way: 0, base_ns: None, round: Round::default() }
    }
}

impl Window {
    /// Whether so many bytes more may be under way. If not, they are held back by that.
    pub fn admits(&mut self, bytes: u64) -> bool {
        let admits = self.under_way == 0 || self.under_way + bytes <= self.bytes_max;
        self.round.was_full |= !admits;
        admits
    }

    /// An I/O begins.
    pub fn begin(&mut self, bytes: u64) {
        self.under_way += bytes;
    }

    /// An I/O has ended that began at `begun`.
    pub fn end(&mut self, now: Time, begun: Time, bytes: u64) {
        assert!(self.under_way >= bytes, "it began");
        self.under_way -= bytes;
        if begun < self.round.since {
            // It tells of the window before.
            return;
        }
        self.round.ended += 1;
        self.round.bytes += bytes;
        self.round.took_ns += now.saturating_sub(begun);
        if self.round.ended >= ROUND_IOS && self.round.bytes >= self.bytes_max {
            self.judge(now);
        }
    }

    /// Bytes that may be under way.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn judge(&mut self, now: Time) {
        let took = (self.round.took_ns / self.round.ended).max(1);
        let is_least = self.bytes_max == BYTES_MIN;
        let base = self.base_ns.filter(|_| !is_least).map_or(took, |base| base.min(took));
        self.base_ns = Some(base);
        let wanted = base + base.max(WAIT_NS);
        let fits = (u128::from(self.bytes_max) * u128::from(wanted) / u128::from(took)) as u64;
        if took > wanted || self.round.was_full {
            let (half, double) = (self.bytes_max / 2, self.bytes_max * 2);
            self.bytes_max = fits.clamp(half, double).clamp(BYTES_MIN, BYTES_MAX);
        }
        self.round = Round { since: now, ..Round::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MIB: u64 = 1 << 20;
    const MS: Time = 1_000_000;

    /// A device that needs `block_ns` for each MiB, one after the other on each of its `arms`, and
    /// answers `far_ns` later.
    struct Device {
        mib_ns: Time,
        far_ns: Time,
        arms: Vec<Time>,
    }

    impl Device {
        fn new(mib_ns: Time, far_ns: Time, arms: usize) -> Device {
            Device { mib_ns, far_ns, arms: vec![0; arms] }
        }

        /// When an I/O of 1 MiB ends that begins now.
        fn ends(&mut self, now: Time) -> Time {
            let arm = self.arms.iter_mut().min().expect("it has one");
            *arm = now.max(*arm) + self.mib_ns;
            *arm + self.far_ns
        }
    }

    /// Keeps a window full of I/O of 1 MiB, so many of them. MiB/s of the second half.
    fn fill(window: &mut Window, device: &mut Device, from: Time, ios: u64) -> (Time, u64) {
        let (mut under_way, mut now, mut half) = (VecDeque::new(), from, from);
        for io in 0..ios {
            while !window.admits(MIB) {
                let (ends, begun) = under_way.pop_front().expect("one may always be");
                now = ends;
                window.end(now, begun, MIB);
            }
            half = if io == ios / 2 { now } else { half };
            window.begin(MIB);
            under_way.push_back((device.ends(now), now));
        }
        let rate = ios / 2 * 1_000_000_000 / (now - half).max(1);
        for (ends, begun) in under_way {
            now = ends;
            window.end(now, begun, MIB);
        }
        (now, rate)
    }

    #[test]
    fn a_disk_that_takes_one_after_the_other_has_two_and_is_busy() {
        let (mut window, mut disk) = (Window::default(), Device::new(7 * MS, 0, 1));
        let (_, rate) = fill(&mut window, &mut disk, 0, 1000);
        assert!((140..=143).contains(&rate), "{rate}");
        assert!(window.bytes_max() <= 3 * MIB, "{}", window.bytes_max());
    }

    #[test]
    fn a_fast_disk_has_five_milliseconds_of_work() {
        let (mut window, mut disk) = (Window::default(), Device::new(MS, MS / 10, 1));
        let (_, rate) = fill(&mut window, &mut disk, 0, 10_000);
        assert!((990..=1000).contains(&rate), "{rate}");
        assert!((4 * MIB..=8 * MIB).contains(&window.bytes_max()), "{}", window.bytes_max());
    }

    #[test]
    fn what_is_far_away_or_has_many_arms_has_as_much_as_it_takes_at_once() {
        // 1 GB/s over 20 ms, 20 MiB at once.
        let (mut window, mut far) = (Window::default(), Device::new(MS, 20 * MS, 1));
        let (_, rate) = fill(&mut window, &mut far, 0, 10_000);
        assert!((980..=1000).contains(&rate), "{rate}");
        assert!((21 * MIB..=48 * MIB).contains(&window.bytes_max()), "{}", window.bytes_max());
        let (mut window, mut arms) = (Window::default(), Device::new(15 * MS, 0, 12));
        let (_, rate) = fill(&mut window, &mut arms, 0, 10_000);
        assert!((780..=810).contains(&rate), "{rate}");
        assert!((12 * MIB..=30 * MIB).contains(&window.bytes_max()), "{}", window.bytes_max());
    }

    #[test]
    fn a_device_that_becomes_slower_or_goes_farther_away_is_learned_anew() {
        let (mut window, mut disk) = (Window::default(), Device::new(MS, MS / 10, 1));
        let (now, _) = fill(&mut window, &mut disk, 0, 1000);
        let mut far = Device::new(MS, 30 * MS, 1);
        let (now, rate) = fill(&mut window, &mut far, now, 10_000);
        assert!((980..=1000).contains(&rate), "{rate}");
        let mut slow = Device::new(20 * MS, 0, 1);
        let (now, rate) = fill(&mut window, &mut slow, now, 1000);
        assert!(rate >= 49 && window.bytes_max() <= 4 * MIB, "{rate} {}", window.bytes_max());
        let (_, rate) = fill(&mut window, &mut disk, now, 10_000);
        assert!((990..=1000).contains(&rate), "{rate}");
    }

    #[test]
    fn one_that_is_not_full_does_not_grow_and_one_io_may_always_begin() {
        let mut window = Window::default();
        for now in 0..1000 {
            window.begin(MIB / 2);
            window.end(now * MS, now * MS, MIB / 2);
        }
        assert_eq!(window.bytes_max(), BYTES_MIN);
        assert!(window.admits(4 * BYTES_MIN), "it is alone");
        window.begin(4 * BYTES_MIN);
        assert!(!window.admits(1));
    }
}
