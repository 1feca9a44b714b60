//! Windows: the counters of the last hour, so that "hit ratio of the last 5 minutes" has a before.

use forebay_api::stats::{Latency, VolumeCounters};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Samples that are kept: a little more than an hour.
const SAMPLES_MAX: usize = 362;

/// The last hour.
#[derive(Debug, Default)]
pub struct Samples {
    samples: VecDeque<(Instant, Vec<VolumeCounters>)>,
}

impl Samples {
    /// Adds the counters of this moment.
    pub fn push(&mut self, mut volumes: Vec<VolumeCounters>) {
        for volume in &mut volumes {
            // Histograms are most of the bytes, and no window needs them.
            volume.read_latency = Latency::default();
            volume.write_latency = Latency::default();
            volume.flush_latency = Latency::default();
        }
        self.samples.push_back((Instant::now(), volumes));
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// The counters of a volume when `window` began: zeros if it was not there yet.
    pub fn before(&self, name: &str, pool: &str, window: Duration) -> VolumeCounters {
        let Some(begin) = Instant::now().checked_sub(window) else {
            return VolumeCounters::default();
        };
        // The newest sample that is old enough; a daemon younger than the window has none.
        let sample = self.samples.iter().rev().find(|(at, _)| *at <= begin);
        let volumes = sample.map(|(_, volumes)| volumes);
        let own = volumes.and_then(|all| all.iter().find(|v| v.name == name && v.pool == pool));
        own.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(reads: u64) -> Vec<VolumeCounters> {
        let volume = VolumeCounters {
            name: "v".to_string(),
            pool: "p".to_string(),
            reads,
            ..VolumeCounters::default()
        };
        vec![volume]
    }

    #[test]
    fn a_window_begins_at_the_newest_sample_that_is_old_enough() {
        let mut samples = Samples::default();
        let now = Instant::now();
        for (seconds, reads) in [(100, 1), (50, 2), (0, 3)] {
            let Some(at) = now.checked_sub(Duration::from_secs(seconds)) else { return };
            samples.samples.push_back((at, counters(reads)));
        }
        let before = |seconds| samples.before("v", "p", Duration::from_secs(seconds)).reads;
        assert_eq!(before(40), 2);
        assert_eq!(before(60), 1);
        assert_eq!(before(200), 0);
        assert_eq!(samples.before("w", "p", Duration::from_secs(60)).reads, 0);
        for _ in 0..2 * SAMPLES_MAX {
            samples.push(counters(9));
        }
        assert_eq!(samples.samples.len(), SAMPLES_MAX);
    }
}
