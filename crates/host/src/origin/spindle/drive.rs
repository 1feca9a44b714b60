//! What distinguishes one hard disk from another, and the presets with the figures of real drives.

/// Nanoseconds of one millisecond.
const MS: u64 = 1_000_000;
/// Nanoseconds of one microsecond.
const US: u64 = 1_000;
/// One megabyte as data sheets mean it.
const MB: u64 = 1_000_000;

/// A preset: its name, and what makes the drive.
pub type Preset = (&'static str, fn() -> Drive);

/// How much of the disk the backing file stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stroke {
    /// The file is stretched over this share of the stroke (0 to 1), counted from the outer edge.
    /// `1.0` is the whole stroke.
    Share(f64),
    /// The file takes the room on the outer tracks that it would take on the real drive.
    Real,
}

/// The figures of a hard disk. All times are nanoseconds, rates are bytes a second, sizes are
/// bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Drive {
    /// Revolutions a minute.
    pub rpm: u32,
    /// Seek to the next track, reading, with settling.
    pub seek_track_ns: u64,
    /// Mean seek between two random blocks, reading.
    pub seek_average_ns: u64,
    /// Seek over the whole stroke, reading.
    pub seek_full_ns: u64,
    /// What a seek to write takes longer than one to read: the head must be centred better.
    pub settle_write_ns: u64,
    /// Switch to another head, which is what separates neighbouring tracks of one cylinder.
    pub head_switch_ns: u64,
    /// Surfaces.
    pub heads: u32,
    /// Sustained rate on the outermost zone.
    pub rate_outer: u64,
    /// Sustained rate on the innermost zone.
    pub rate_inner: u64,
    /// Zones of equal width; the rate falls in equal steps from the outermost to the innermost.
    pub zones: u32,
    /// Capacity of the real drive; matters for [`Stroke::Real`] only.
    pub capacity_bytes: u64,
    /// How much of the disk the backing file stands for.
    pub stroke: Stroke,
    /// Commands that the drive takes at once (native command queueing).
    pub queue_depth: usize,
    /// A command that has waited so long is served next, however far away it is.
    pub age_max_ns: u64,
    /// Time of the drive's electronics for each command.
    pub overhead_ns: u64,
    /// Rate of the cable.
    pub rate_interface: u64,
    /// Room for write data in the volatile write cache; 0 turns it off.
    pub cache_bytes: u64,
    /// Separate ranges that the write cache can hold: the firmware's table is small, whatever its
    /// memory.
    pub cache_ranges: usize,
    /// How far the drive reads ahead into its track buffer; 0 turns it off.
    pub read_ahead_bytes: u64,
    /// Ranges of the track buffer that are kept for later reads.
    pub read_ranges: usize,
}

impl Drive {
    /// A 5400 rpm NAS drive of 4 TB, in the class of WD Red Plus WD40EFPX.
    ///
    /// Published: 5400 rpm, 180 MB/s, 256 MB cache, SATA 6 Gb/s (WD Red Plus data sheet; its
    /// predecessor WD40EFRX: 150 MB/s, 64 MB). WD publishes no seek times; 12 ms is the usual
    /// figure of low-power 3.5 inch drives. Assumed: 1.0 ms to the next track, 21 ms full stroke,
    /// inner rate 0.47 of the outer (the ratio that Seagate publishes for Constellation ES.3, 83 to
    /// 175 MB/s), half of the memory for write data.
    pub fn nas_5400() -> Drive {
        Drive {
            rpm: 5400,
            seek_track_ns: MS,
            seek_average_ns: 12 * MS,
            seek_full_ns: 21 * MS,
            settle_write_ns: MS,
            head_switch_ns: MS,
            heads: 4,
            rate_outer: 180 * MB,
            rate_inner: 85 * MB,
            capacity_bytes: 4_000_000 * MB,
            cache_bytes: 128 << 20,
            cache_ranges: 256,
            ..Drive::common()
        }
    }

    /// A 7200 rpm desktop drive of 1 TB: Seagate Barracuda 7200.14 ST1000DM003.
    ///
    /// Published: 7200 rpm, 210 MB/s at the outer edge and 156 MB/s on average (so 102 MB/s at the
    /// inner edge), seek below 8.5 ms to read and 9.5 ms to write, track to track 1.0 and 1.2 ms,
    /// 64 MB cache, one disc with two heads. Assumed: 16 ms full stroke, half of the memory for
    /// write data.
    pub fn desktop_7200() -> Drive {
        Drive {
            rpm: 7200,
            seek_track_ns: MS,
            seek_average_ns: 8_500 * US,
            seek_full_ns: 16 * MS,
            settle_write_ns: MS,
            head_switch_ns: MS,
            heads: 2,
            rate_outer: 210 * MB,
            rate_inner: 102 * MB,
            capacity_bytes: 1_000_000 * MB,
            cache_bytes: 32 << 20,
            cache_ranges: 256,
            ..Drive::common()
        }
    }

    /// A 7200 rpm nearline drive of 6 TB: WD Ultrastar DC HC310.
    ///
    /// Published (OEM specification and data sheet): 7200 rpm, 255 MB/s sustained, average seek 7.4
    /// ms to read and 8.2 ms to write, single track 0.23 and 0.32 ms, latency 4.16 ms, 256 MB
    /// buffer. Assumed: 15 ms full stroke, inner rate 0.47 of the outer, head switch 0.6 ms, half
    /// of the memory for write data.
    pub fn nearline_7200() -> Drive {
        Drive {
            rpm: 7200,
            seek_track_ns: 230 * US,
            seek_average_ns: 7_400 * US,
            seek_full_ns: 15 * MS,
            settle_write_ns: 800 * US,
            head_switch_ns: 600 * US,
            heads: 8,
            rate_outer: 255 * MB,
            rate_inner: 120 * MB,
            capacity_bytes: 6_000_000 * MB,
            cache_bytes: 128 << 20,
            cache_ranges: 512,
            ..Drive::common()
        }
    }

    /// What the presets share.
    fn common() -> Drive {
        Drive {
            rpm: 7200,
            seek_track_ns: MS,
            seek_average_ns: 8 * MS,
            seek_full_ns: 16 * MS,
            settle_write_ns: MS,
            head_switch_ns: MS,
            heads: 4,
            rate_outer: 200 * MB,
            rate_inner: 100 * MB,
            zones: 16,
            capacity_bytes: 4_000_000 * MB,
            stroke: Stroke::Share(1.0),
            queue_depth: 32,
            age_max_ns: 1_000 * MS,
            overhead_ns: 60 * US,
            rate_interface: 550 * MB,
            cache_bytes: 0,
            cache_ranges: 256,
            read_ahead_bytes: 2 << 20,
            read_ranges: 8,
        }
    }

    /// The presets by name, in the order in which errors list them.
    pub const PRESETS: [Preset; 3] = [
        ("nas-5400", Drive::nas_5400),
        ("desktop-7200", Drive::desktop_7200),
        ("nearline-7200", Drive::nearline_7200),
    ];

    /// Nanoseconds of one revolution.
    pub fn revolution_ns(&self) -> u64 {
        60_000 * MS / u64::from(self.rpm)
    }

    /// What keeps these figures from being a disk, one sentence each; empty when they are one.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |good: bool, text: &str| {
            if !good {
                problems.push(text.to_string());
            }
        };
        check((600..=30_000).contains(&self.rpm), "rpm must be 600 to 30000");
        check(
            self.seek_track_ns <= self.seek_average_ns && self.seek_average_ns < self.seek_full_ns,
            "seek times must grow: seek-track <= seek < seek-full",
        );
        check(self.seek_full_ns <= 1_000 * MS, "seek-full must be at most 1000 ms");
        check(
            self.rate_inner <= self.rate_outer && (MB..=10_000 * MB).contains(&self.rate_inner),
            "rates must be 1 to 10000 MB/s, and inner at most outer",
        );
        check((1..=64).contains(&self.heads), "heads must be 1 to 64");
        check((1..=256).contains(&self.queue_depth), "ncq must be 1 to 256");
        check(
            match self.stroke {
                Stroke::Share(share) => share > 0.0 && share <= 1.0,
                Stroke::Real => true,
            },
            "stroke must be full, real, or more than 0 % and at most 100 %",
        );
        check(self.cache_bytes <= 4 << 30, "cache must be at most 4 GiB");
        check(self.read_ahead_bytes <= 1 << 30, "read-ahead must be at most 1 GiB");
        problems
    }
}
