//! The act of tiers: scratch space in memory that goes on, on a disk, where the memory is full.
//! Once as a linear array of both would do it (`spill`: nothing moves), and once with data that
//! move (`heat`).

use forebay_api::ApiError;
use forebay_api::request::Export;
use forebay_api::tiers::{Placement, VolumeCreateTiered};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use super::daemon::Daemon;
use super::device::Device;
use super::ledger::Ledger;
use super::load::{self, Area, BIN, Job, Seen, Until};
use super::stage::PRESET;

const MIB: u64 = 1 << 20;
/// The fast tier: memory.
pub const RAM_MIB: u64 = 256;
/// The slow tier, a simulated disk.
const DISK_MIB: u64 = 1024;
/// What is written in a row, through the moment in which the memory is full.
pub const FILL_MIB: u64 = 448;
/// What is used then: the first that found no room in memory.
pub const HOT_MIB: u64 = 24;
/// New data after a rest: half of what is kept free in memory for that.
pub const BURST_MIB: u64 = 6;
/// Bytes a second that moves may copy: the demo has not the time for the careful default.
const MOVE_RATE: &str = "100M";
/// Requests under way.
pub const DEPTH: usize = 4;
const DEPTH_ROW: usize = 8;
const REST: Duration = Duration::from_secs(2);
const ROW_MAX: Duration = Duration::from_secs(30);

/// What one way to place data has shown.
pub struct Placed {
    /// The way.
    pub placement: &'static str,
    /// Writing in a row.
    pub fill: Seen,
    /// The mixed workload on what found no room in memory.
    pub mixed: Seen,
    /// New data after a rest.
    pub burst: Seen,
    /// The tier of each mebibyte when it was written, and after the workload and the burst; none
    /// of one that was never written.
    pub places: [Vec<Option<u8>>; 2],
}

impl Placed {
    /// Requests a second of the mixed workload, in its last two seconds.
    pub fn iops_at_last(&self) -> f64 {
        let whole = (self.mixed.elapsed.as_secs_f64() / BIN.as_secs_f64()) as usize;
        let bins = &self.mixed.timeline[..whole.min(self.mixed.timeline.len())];
        let last = &bins[bins.len().saturating_sub(20)..];
        last.iter().sum::<u64>() as f64 / (last.len().max(1) as f64 * BIN.as_secs_f64())
    }

    /// Each run of it.
    pub fn runs(&self) -> [&Seen; 3] {
        [&self.fill, &self.mixed, &self.burst]
    }
}

/// Plays one way, with a volume that is made for it and removed again.
///
/// # Errors
/// The daemon's.
pub fn play(
    daemon: &Daemon,
    dir: &Path,
    placement: Placement,
    stop: &AtomicBool,
) -> Result<Placed, ApiError> {
    let way = placement.name();
    let name = &format!("scratch-{way}");
    let disk = dir.join(format!("{name}.img"));
    let made = std::fs::File::create_new(&disk).and_then(|it| it.set_len(DISK_MIB * MIB));
    made.map_err(|error| ApiError::failed(format!("make {}: {error}", disk.display())))?;
    let ram = format!("ram:{RAM_MIB}M");
    let spindle = format!("spindle:{}?preset={PRESET}", disk.display());
    daemon.make_tiered(VolumeCreateTiered {
        name: name.to_string(),
        tiers: vec![vec![ram], vec![spindle]],
        placement: Some(placement),
        export: Export::Nbd,
        accept_ephemeral: true,
        ..VolumeCreateTiered::default()
    })?;
    daemon.move_at(name, MOVE_RATE)?;
    let mut device = Device::Nbd(Box::new(daemon.connect_to(name)?));
    let row = |device: &mut Device, first: u64, mib: u64| {
        let job = Job::Fill { offset: first * MIB, bytes: mib * MIB };
        load::run(device, job, DEPTH_ROW, &Until { time: ROW_MAX, stop })
    };
    let fill = row(&mut device, 0, FILL_MIB);
    let filled = daemon.places(name, (FILL_MIB + BURST_MIB) * MIB)?;
    let area = Area { offset: (RAM_MIB + 16) * MIB, spots: HOT_MIB / 4, stride: 4 * MIB };
    let mut ledger = Ledger::new(area.blocks() as usize);
    // Without moves nothing changes, however long one looks.
    let seconds = if placement == Placement::Heat { 10 } else { 3 };
    let until = Until { time: Duration::from_secs(seconds), stop };
    let mixed = load::run(&mut device, Job::Mixed(area, &mut ledger), DEPTH, &until);
    thread::sleep(REST);
    let burst = row(&mut device, FILL_MIB, BURST_MIB);
    eprintln!(
        "{way} {:?}",
        mixed.timeline.chunks(10).map(|c| c.iter().sum::<u64>()).collect::<Vec<_>>()
    );
    let used = daemon.places(name, (FILL_MIB + BURST_MIB) * MIB)?;
    drop(device);
    daemon.remove(name)?;
    let placed = Placed { placement: way, fill, mixed, burst, places: [filled, used] };
    match placed.runs().iter().find_map(|seen| seen.broken.as_ref()) {
        Some(why) => Err(ApiError::failed(format!("tiers, placed by {way}: {why}"))),
        None => Ok(placed),
    }
}
