//! Windows: the counters of the last hour, so that "hit ratio of the last 5 minutes" has a before.

use forebay_api::stats::VolumeCounters;
use forebay_format::stats::{Hits, REASONS};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Samples that are kept: a little more than an hour.
const SAMPLES_MAX: usize = 362;

/// What windows need of a volume's counters. Histograms are most of the bytes of those.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    name: String,
    pool: String,
    pub hits: Hits,
    pub not_cached: [u64; REASONS.len()],
}

impl From<VolumeCounters> for Sample {
    fn from(VolumeCounters { name, pool, stats, .. }: VolumeCounters) -> Sample {
        Sample { name, pool, hits: stats.hits(), not_cached: stats.not_cached }
    }
}

/// The last hour.
#[derive(Debug, Default)]
pub struct Samples {
    samples: VecDeque<(Instant, Vec<Sample>)>,
}

impl Samples {
    /// Adds the counters of this moment.
    pub fn push(&mut self, volumes: Vec<VolumeCounters>) {
        let volumes = volumes.into_iter().map(Sample::from).collect();
        self.samples.push_back((Instant::now(), volumes));
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// The counters of a volume when `window` began: zeros if it was not there yet.
    pub fn before(&self, name: &str, pool: &str, window: Duration) -> Sample {
        let Some(begin) = Instant::now().checked_sub(window) else {
            return Sample::default();
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
    use forebay_api::stats::VolumeStats;

    fn counters(misses: u64) -> Vec<VolumeCounters> {
        let stats = VolumeStats { read_misses: misses, ..VolumeStats::default() };
        vec![VolumeCounters {
            name: "v".to_string(),
            pool: "p".to_string(),
            stats,
            ..VolumeCounters::default()
        }]
    }

    #[test]
    fn a_window_begins_at_the_newest_sample_that_is_old_enough() {
        let mut samples = Samples::default();
        let now = Instant::now();
        for (seconds, misses) in [(100, 1), (50, 2), (0, 3)] {
            let Some(at) = now.checked_sub(Duration::from_secs(seconds)) else { return };
            let volumes = counters(misses).into_iter().map(Sample::from).collect();
            samples.samples.push_back((at, volumes));
        }
        let before = |seconds| samples.before("v", "p", Duration::from_secs(seconds)).hits.misses;
        assert_eq!(before(40), 2);
        assert_eq!(before(60), 1);
        assert_eq!(before(200), 0);
        assert_eq!(samples.before("w", "p", Duration::from_secs(60)).hits.misses, 0);
        for _ in 0..2 * SAMPLES_MAX {
            samples.push(counters(9));
        }
        assert_eq!(samples.samples.len(), SAMPLES_MAX);
    }
}
