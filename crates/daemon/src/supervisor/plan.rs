//! What a pool would be made of: checked and shown before anything is written.

use super::Supervisor;
use super::late::{in_time, real_path};
use crate::convert::{device_error, pool_error};
use crate::memory::Memory;
use crate::state::{PoolState, Standing, TieredState, VolumeState};
use forebay_api::hint::{Bytes, Choice, Fact, Mib, When};
use forebay_api::reply::{DevicePlan, PoolPlan};
use forebay_api::request::check_name;
use forebay_api::size::human;
use forebay_api::{ApiError, Hint, RamNeed, Size};
use forebay_format::{BLOCK_SIZE, POOL_DEVICES_MAX};
use forebay_host::device::{Access, Content, Device, identify};
use forebay_host::pool::{FormatOptions, plan_pool};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is wanted, checked as far as it can be without the devices.
pub(super) struct Wanted<'r> {
    pub name: &'r str,
    pub devices: &'r [String],
    pub ram: Option<&'r str>,
    pub force: bool,
    pub keep_dirty: bool,
}

impl Wanted<'_> {
    /// Checks names and numbers.
    pub fn check(&self) -> Result<(), ApiError> {
        check_name(self.name).map_err(ApiError::usage)?;
        let count = self.devices.len();
        if count == 0 || count > POOL_DEVICES_MAX {
            let text = format!("a pool has 1 to {POOL_DEVICES_MAX} devices, and here are {count}");
            return Err(ApiError::usage(text));
        }
        for (index, device) in self.devices.iter().enumerate() {
            if !device.starts_with('/') {
                return Err(ApiError::usage(format!("the path {device:?} is not absolute")));
            }
            if self.devices[..index].iter().any(|other| same_file(other, device)) {
                return Err(ApiError::usage(format!("the device {device} is named twice")));
            }
        }
        Ok(())
    }

    /// Most memory that was allowed for it, if something was said.
    pub fn ram_bytes(&self) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.ram else { return Ok(None) };
        let size: Size = text.parse().map_err(ApiError::usage)?;
        Ok(Some(size.of(Memory::find(None).there_bytes)))
    }

    pub fn options(&self, force: bool) -> FormatOptions {
        FormatOptions { name: self.name.to_string(), force, ..FormatOptions::default() }
    }
}

/// Whether two paths lead to the same file or device, or to what a loop device makes of it.
pub(super) fn same_file(a: &str, b: &str) -> bool {
    a == b || matches!((Below::of(a), Below::of(b)), (Some(a), Some(b)) if a.is(&b))
}

/// What a path leads to: of a loop device the file below, and from where on.
#[derive(Debug)]
struct Below {
    path: PathBuf,
    /// In bytes; `None` if it is no loop device.
    offset: Option<u64>,
}

impl Below {
    fn of(path: &str) -> Option<Below> {
        let path = real_path(path)?;
        let told = |of: &str| {
            let name = path.strip_prefix("/dev").ok()?;
            let told = Path::new("/sys/class/block").join(name).join("loop").join(of);
            Some(fs::read_to_string(told).ok()?.trim_end().to_string())
        };
        match told("backing_file") {
            Some(file) => Some(Below {
                path: real_path(&file)?,
                offset: Some(told("offset").and_then(|it| it.parse().ok()).unwrap_or(0)),
            }),
            None => Some(Below { path, offset: None }),
        }
    }

    /// Two parts of one file are two devices.
    fn is(&self, other: &Below) -> bool {
        let is_apart = self.offset.is_some() && other.offset.is_some();
        self.path == other.path && (!is_apart || self.offset == other.offset)
    }
}

/// The file or device that an origin's URI names.
pub(super) fn file_of(origin: &str) -> &str {
    let path = origin.strip_prefix("spindle:").unwrap_or(origin);
    path.split_once('?').filter(|_| path != origin).map_or(path, |(path, _)| path)
}

/// What a device holds. One that hangs is an error, and nobody else waits for it.
pub(super) fn content_of(device: &Path) -> Result<Content, ApiError> {
    let path = device.to_path_buf();
    let what = format!("look at {}", path.display());
    in_time(&what, move || identify(&path).map_err(|error| device_error(&error)))
}

/// Name and identity of the pool that all of these devices hold, if they hold one and all of it.
pub(super) fn whole_pool_on(devices: &[String]) -> Result<Option<(String, [u8; 16])>, ApiError> {
    let mut names = Vec::new();
    let mut pools = Vec::new();
    for device in devices {
        let content = content_of(Path::new(device))?;
        let Content::Pool { name, uuid, count, .. } = content else { return Ok(None) };
        if usize::from(count) != devices.len() || name.is_empty() {
            return Ok(None);
        }
        names.push(name);
        pools.push(uuid);
    }
    let whole = pools.iter().all(|pool| *pool == pools[0]);
    Ok(names.pop().filter(|_| whole).map(|name| (name, pools[0])))
}

impl Supervisor {
    /// Memory that pools may still take, in bytes.
    fn ram_left_bytes(&self) -> u64 {
        let taken = self.pools_taken_bytes();
        let beside = self.memory.beside_clients_bytes().saturating_sub(self.memories.bytes());
        self.memory.pools_bytes().min(beside).saturating_sub(taken)
    }

    fn pools_taken_bytes(&self) -> u64 {
        self.open_pools().iter().map(|(_, open)| open.ram.total_bytes).sum()
    }

    /// Memory that tiers may still take, in bytes.
    pub(super) fn tiers_left_bytes(&self) -> u64 {
        let taken = self.pools_taken_bytes() + self.memories.bytes();
        self.memory.beside_clients_bytes().saturating_sub(taken)
    }

    /// Memory of a pool with `slots` blocks.
    ///
    /// # Errors
    /// It needs more than is allowed; says how much.
    pub(super) fn ram_need(
        &self,
        name: &str,
        slots: u64,
        allowed_bytes: Option<u64>,
    ) -> Result<RamNeed, ApiError> {
        let size = human(slots * BLOCK_SIZE as u64);
        let refuse = |least: u64, allowed: u64, who: &str| {
            ApiError::refused(format!(
                "pool {name} ({size}) needs at least {} of memory ({least} bytes), and {who} \
                 allows {}",
                human(least),
                human(allowed)
            ))
        };
        let left = self.ram_left_bytes();
        let wanted = match allowed_bytes {
            Some(allowed) => RamNeed::within(slots, allowed).map_err(|least| {
                refuse(least, allowed, "--ram")
                    .hint(Hint::AllowMemory { bytes: Mib(least) })
                    .hint(Hint::Choose { what: Choice::SmallerDevice })
            })?,
            None => RamNeed::suggested(slots),
        };
        if wanted.total_bytes <= left {
            return Ok(wanted);
        }
        // There may be less than when the pool was made: the RAM tier is smaller then. Where
        // nothing but `ram` says how much there is, a pool that fits without clients is opened.
        let fits = RamNeed::within(slots, left).or_else(|least| match self.memory.is_limited {
            true => Err(least),
            false => RamNeed::within(slots, left + self.memory.clients_bytes),
        });
        fits.map_err(|least| self.too_much(least, refuse(least, left, "the daemon")))
    }

    /// Says what would have to be allowed for `bytes` of a pool, beside those that are open.
    fn too_much(&self, bytes: u64, error: ApiError) -> ApiError {
        let memory = &self.memory;
        let taken = memory.pools_bytes().saturating_sub(self.ram_left_bytes());
        let (limit, ram) = memory.least_bytes(taken + bytes);
        let mend = match memory.is_limited && limit > memory.there_bytes {
            true => {
                Hint::RaiseMemoryLimit { bytes: Mib(limit), now_bytes: Bytes(memory.there_bytes) }
            }
            false => Hint::RaiseRam { bytes: Mib(ram), now_bytes: Bytes(memory.cap_bytes) },
        };
        error.hint(mend).hint(Hint::Choose { what: Choice::SmallerDevice })
    }

    /// Plans a pool on devices that are open: what they hold is shown, not refused.
    pub(super) fn plan(
        &self,
        wanted: &Wanted,
        devices: &Arc<Vec<Device>>,
    ) -> Result<PoolPlan, ApiError> {
        let (used, options) = (Arc::clone(devices), wanted.options(true));
        let plan = in_time(&format!("read the devices of pool {}", wanted.name), move || {
            plan_pool(&used, &options).map_err(|error| pool_error(&error))
        })?;
        let ram = self.ram_need(wanted.name, plan.slots, wanted.ram_bytes()?)?;
        let rows = devices.iter().zip(&plan.superblocks).zip(&plan.contents);
        let rows = rows.zip(wanted.devices).map(|(((device, superblock), content), path)| {
            let layout = superblock.layout();
            DevicePlan {
                path: path.clone(),
                bytes: device.info().bytes,
                holds: if content.is_empty() { Vec::new() } else { vec![content.to_string()] },
                checkpoint_area_bytes: layout.checkpoint_area_bytes,
                segments_offset: layout.segments_offset,
                segments: u64::from(layout.segment_count),
            }
        });
        let rows: Vec<DevicePlan> = rows.collect();
        let layout = plan.superblocks[0].layout();
        Ok(PoolPlan {
            name: wanted.name.to_string(),
            segments: rows.iter().map(|device| device.segments).sum(),
            devices: rows,
            segment_bytes: u64::from(layout.segment_blocks) * BLOCK_SIZE as u64,
            capacity_bytes: plan.slots * BLOCK_SIZE as u64,
            ram,
            ram_cap_bytes: wanted.ram_bytes()?.unwrap_or_else(|| self.ram_left_bytes()),
            clients_cap_bytes: self.memory.clients_bytes,
        })
    }

    /// Opens the devices of a planned pool.
    pub(super) fn open_devices(
        &self,
        paths: &[String],
        access: Access,
    ) -> Result<Arc<Vec<Device>>, ApiError> {
        let opened = paths.to_vec();
        in_time(&format!("open {}", paths.join(" ")), move || {
            let open = |path: &String| Device::open(Path::new(path), access);
            let devices = opened.iter().map(open).collect::<Result<_, _>>();
            devices.map(Arc::new).map_err(|error| device_error(&error))
        })
    }

    /// Refuses an origin or a cache device that is a block device of ours, or a file on one: at
    /// a start, one volume would wait for the other, for ever. (Of a
    /// btrfs the kernel does not tell which device it is on.)
    pub(super) fn check_not_stacked(&self, path: &str) -> Result<(), ApiError> {
        let own = path.to_string();
        let what = format!("look at {path}");
        let metadata = in_time(&what, move || Ok(fs::metadata(own).ok()))?;
        let Some(metadata) = metadata else { return Ok(()) };
        let on = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        let is_on = |device: &PathBuf| fs::metadata(device).is_ok_and(|it| it.rdev() == on);
        let own = self.exports.devices().into_iter().find(|(_, device)| is_on(device));
        let Some((volume, device)) = own else { return Ok(()) };
        let text = format!("{path} lies on {}, which is volume {volume}", device.display());
        Err(ApiError::refused(text)
            .hint(Hint::Know { that: Fact::WouldWait })
            .hint(Hint::Choose { what: Choice::Below }))
    }

    /// Refuses a cache device that is the origin of a volume.
    pub(super) fn check_no_origin(&self, device: &str) -> Result<(), ApiError> {
        let state = self.store.get();
        let mut volumes = state.volumes.iter();
        let own = volumes.find(|volume| {
            volume.standing != Standing::Detached && same_file(file_of(&volume.origin), device)
        });
        self.check_no_tier(device)?;
        let Some(VolumeState { name, .. }) = own else { return Ok(()) };
        let text = format!("{device} is the origin of volume {name}, and can be nothing else");
        Err(ApiError::refused(text)
            .hint(Hint::Choose { what: Choice::Device })
            .hint(Hint::remove(name, When::NotNeeded)))
    }

    /// Refuses a device that is a tier of a volume.
    pub(super) fn check_no_tier(&self, device: &str) -> Result<(), ApiError> {
        let state = self.store.get();
        let is_on = |tiers: &&TieredState| {
            tiers.members.iter().any(|member| same_file(file_of(&member.uri), file_of(device)))
        };
        let Some(TieredState { name, .. }) = state.tiered.iter().find(is_on) else {
            return Ok(());
        };
        Err(ApiError::refused(format!("{device} is a tier of volume {name}"))
            .hint(Hint::Choose { what: Choice::Device })
            .hint(Hint::remove(name, When::NotNeeded)))
    }

    /// The pool that is open on any of these devices.
    pub(super) fn pool_using(&self, devices: &[String]) -> Option<PoolState> {
        let inner = self.inner();
        let uses = |paths: &[String]| {
            paths.iter().any(|path| devices.iter().any(|device| same_file(path, device)))
        };
        inner.pools.values().map(|pool| &pool.known).find(|pool| uses(&pool.devices)).cloned()
    }
}
