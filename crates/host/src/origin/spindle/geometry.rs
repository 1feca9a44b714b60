//! Where a byte is on the disk, and how long the arm takes to get there.
//!
//! Tracks are numbered from the outer edge. Neighbouring tracks are skewed by the time that the
//! change of track takes, so that a sequential transfer finds the first sector of the next track
//! under the head. One function says it all: [`Geometry::stream_ns`] is the time at which a
//! transfer that began at byte 0 passes a byte. Its remainder by the revolution is the byte's
//! angle.

use super::drive::{Drive, Stroke};

/// Tracks with the same number of bytes.
#[derive(Debug)]
struct Zone {
    first_byte: u64,
    first_track: u64,
    track_bytes: u64,
    /// Stream time of the zone's first byte.
    first_ns: u64,
}

/// The layout and the seek curve of one disk. Pure functions of the figures.
#[derive(Debug)]
pub struct Geometry {
    zones: Vec<Zone>,
    tracks: u64,
    heads: u64,
    revolution_ns: u64,
    skew_ns: u64,
    head_switch_ns: u64,
    seek_track_ns: f64,
    /// Time of a seek over [`Geometry::KNEE`] of the stroke.
    seek_knee_ns: f64,
    /// Factor of the square root below the knee.
    seek_root_ns: f64,
    seek_full_ns: f64,
    /// Share of the stroke that the tracks span.
    share: f64,
}

impl Geometry {
    /// Share of the stroke up to which the arm accelerates and brakes; beyond, it coasts.
    const KNEE: f64 = 1.0 / 3.0;
    /// Below this many tracks a cylinder has fewer of them, so that short files still have
    /// cylinders.
    const CYLINDERS_MIN: u64 = 256;

    /// Lays `bytes` out on the disk.
    pub fn new(drive: &Drive, bytes: u64) -> Geometry {
        assert!(drive.problems().is_empty());
        let revolution_ns = drive.revolution_ns();
        let skew_ns = drive.head_switch_ns.max(drive.seek_track_ns);
        let share = match drive.stroke {
            Stroke::Share(share) => share,
            Stroke::Real => (bytes as f64 / drive.capacity_bytes as f64).clamp(1e-6, 1.0),
        };
        let mut geometry = Geometry {
            zones: Vec::new(),
            tracks: 0,
            heads: 1,
            revolution_ns,
            skew_ns,
            head_switch_ns: drive.head_switch_ns,
            seek_track_ns: drive.seek_track_ns as f64,
            seek_knee_ns: 0.0,
            seek_root_ns: 0.0,
            seek_full_ns: drive.seek_full_ns as f64,
            share,
        };
        geometry.lay_out(drive, bytes);
        geometry.heads =
            (geometry.tracks / Geometry::CYLINDERS_MIN).clamp(1, u64::from(drive.heads));
        geometry.fit_seek_curve(drive.seek_average_ns as f64);
        geometry
    }

    /// Cuts `bytes` into zones whose widths are equal, over the share of the stroke that is used.
    fn lay_out(&mut self, drive: &Drive, bytes: u64) {
        let count = u64::from(drive.zones.max(1));
        let used = ((self.share * count as f64).ceil() as u64).clamp(1, count);
        let steps = (count - 1).max(1);
        let track_bytes = |zone: u64| {
            let rate = drive.rate_outer - (drive.rate_outer - drive.rate_inner) * zone / steps;
            let bytes = u128::from(rate) * u128::from(self.revolution_ns + self.skew_ns);
            // Whole sectors of 4 KiB.
            ((bytes / 1_000_000_000) as u64 / 4096 * 4096).max(4096)
        };
        // The last zone may be used in part.
        let width = |zone: u64| (self.share * count as f64 - zone as f64).clamp(0.0, 1.0).max(1e-9);
        let total: f64 = (0..used).map(|z| width(z) * track_bytes(z) as f64).sum();
        let (mut byte, mut track, mut ns) = (0, 0, 0);
        let mut zones = Vec::new();
        for zone in 0..used {
            if byte >= bytes {
                break;
            }
            let size = track_bytes(zone);
            let wanted = width(zone) * bytes as f64 / total;
            let tracks = (wanted.round() as u64).max(1);
            zones.push(Zone {
                first_byte: byte,
                first_track: track,
                track_bytes: size,
                first_ns: ns,
            });
            byte += tracks * size;
            track += tracks;
            ns += tracks * (self.revolution_ns + self.skew_ns);
        }
        if let Some(last) = zones.last() {
            let rest = bytes.saturating_sub(last.first_byte).div_ceil(last.track_bytes);
            self.tracks = last.first_track + rest.max(1);
        }
        self.zones = zones;
    }

    /// Chooses the curve `track + root * sqrt(x)` up to the knee and a straight line to the full
    /// stroke, so that its mean over random pairs of positions is the published average.
    fn fit_seek_curve(&mut self, average_ns: f64) {
        let (knee, rest) = (Geometry::KNEE, 1.0 - Geometry::KNEE);
        // Distances of random pairs have the density 2 (1 - x).
        let below = 2.0 * knee - knee * knee;
        let above = rest * rest;
        let root_mean = 2.0 * (2.0 / 3.0 * knee.powf(1.5) - 2.0 / 5.0 * knee.powf(2.5));
        let line_mean = rest * rest / 3.0;
        let fixed =
            self.seek_track_ns * (below + above - line_mean) + self.seek_full_ns * line_mean;
        let root = (average_ns - fixed) / (root_mean + knee.sqrt() * (above - line_mean));
        self.seek_root_ns = root.max(0.0);
        self.seek_knee_ns =
            (self.seek_track_ns + self.seek_root_ns * knee.sqrt()).min(self.seek_full_ns);
    }

    fn zone(&self, byte: u64) -> &Zone {
        let index = self.zones.partition_point(|z| z.first_byte <= byte);
        &self.zones[index.max(1) - 1]
    }

    /// Tracks in use.
    pub fn tracks(&self) -> u64 {
        self.tracks
    }

    /// The track of a byte.
    pub fn track(&self, byte: u64) -> u64 {
        let zone = self.zone(byte);
        zone.first_track + (byte - zone.first_byte) / zone.track_bytes
    }

    /// When a transfer that began at byte 0 reaches `byte`, in nanoseconds.
    pub fn stream_ns(&self, byte: u64) -> u64 {
        let zone = self.zone(byte);
        let offset = byte - zone.first_byte;
        let (tracks, rest) = (offset / zone.track_bytes, offset % zone.track_bytes);
        let part = u128::from(rest) * u128::from(self.revolution_ns) / u128::from(zone.track_bytes);
        zone.first_ns + tracks * (self.revolution_ns + self.skew_ns) + part as u64
    }

    /// When that transfer has passed the last byte before `end`: without the change of track that
    /// would follow. `end` is at least 512.
    pub fn stream_end_ns(&self, end: u64) -> u64 {
        let sector_ns = self.revolution_ns * 512 / self.zone(end - 512).track_bytes;
        self.stream_ns(end - 512) + sector_ns
    }

    /// Bytes that pass the head in `ns` of a transfer that starts at `byte`, at the zone's
    /// sustained rate.
    pub fn bytes_in(&self, byte: u64, ns: u64) -> u64 {
        let track_ns = u128::from(self.revolution_ns + self.skew_ns);
        (u128::from(self.zone(byte).track_bytes) * u128::from(ns) / track_ns) as u64
    }

    /// Nanoseconds from now until the sector of `byte` comes under the head.
    pub fn rotation_ns(&self, now: u64, byte: u64) -> u64 {
        let (angle, at) = (self.stream_ns(byte) % self.revolution_ns, now % self.revolution_ns);
        (angle + self.revolution_ns - at) % self.revolution_ns
    }

    /// Nanoseconds that the arm takes from one track to another, reading.
    pub fn seek_ns(&self, from: u64, to: u64) -> u64 {
        if from == to {
            return 0;
        }
        if from / self.heads == to / self.heads {
            return self.head_switch_ns;
        }
        if from.abs_diff(to) == 1 {
            return self.seek_track_ns as u64;
        }
        self.curve_ns(from.abs_diff(to) as f64 / self.tracks as f64 * self.share) as u64
    }

    /// The seek curve: nanoseconds for a share `x` of the whole stroke.
    pub fn curve_ns(&self, x: f64) -> f64 {
        if x <= Geometry::KNEE {
            self.seek_track_ns + self.seek_root_ns * x.sqrt()
        } else {
            let along = (x - Geometry::KNEE) / (1.0 - Geometry::KNEE);
            self.seek_knee_ns + (self.seek_full_ns - self.seek_knee_ns) * along
        }
    }
}
