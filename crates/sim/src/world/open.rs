//! Making the pool, and opening it as the host would.

use super::{Due, Flow, Life, Origin, Step, World, metadata};
use crate::disk::{Blank, Disk};
use crate::model::Violation;
use crate::swarm::{Faults, Params};

use forebay_engine::{
    DeviceSettings, Engine, Mode, OriginSettings, Presence, Settings, State, Tuning, VolumeId,
};
use forebay_format::layout::{CHECKPOINT_OFFSET, SUPERBLOCK_OFFSETS};
use forebay_format::standing::{Standing, standings};
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use forebay_format::{BLOCK_SIZE, FormatError, Layout, SECTOR_SIZE};
use zerocopy::little_endian::{U32, U64};

/// About the bytes of one checkpoint area of the tiny pools here.
const AREA_BYTES: u64 = 600 << 10;

fn pool_spec(params: &Params) -> PoolSpec {
    let segment = u64::from(params.segment_blocks) * BLOCK_SIZE as u64;
    let area = if params.devices > 2 { 2 * AREA_BYTES } else { AREA_BYTES };
    let offset = (CHECKPOINT_OFFSET + 2 * area).next_multiple_of(segment);
    let more = |index: usize| params.segments_more.get(index).copied().unwrap_or(0);
    let bytes = |index| offset + (params.segments + more(index)) * segment;
    PoolSpec {
        name: "sim".into(),
        uuid: [0xf0; 16],
        devices: (0..params.devices).map(|index| (bytes(index), [index as u8 + 1; 16])).collect(),
        segment_blocks: Some(params.segment_blocks),
    }
}

/// The cache devices, still blank, and how they will be laid out.
pub fn make_caches(params: &Params) -> (Vec<Disk>, Layout) {
    let spec = pool_spec(params);
    let superblocks = new_pool(&spec).expect("the pool is large enough");
    let disk = |(index, &(bytes, _)): (usize, &(u64, _))| {
        let turned = params.turned.get(index) == Some(&true);
        Disk::new(bytes / SECTOR_SIZE as u64, Blank::Zero, params.cache_volatile != turned)
    };
    (spec.devices.iter().enumerate().map(disk).collect(), superblocks[0].layout())
}

/// The origins, full of version 0.
pub fn make_origins(params: &Params) -> Vec<Origin> {
    let origin = |(index, &sectors): (usize, &u64)| Origin {
        disk: Disk::new(sectors, Blank::Origin(index), params.origin_volatile),
        volume: None,
        present: true,
        came_late: false,
        sectors: params.shown[index],
        durable_sectors: params.shown[index],
        asked_sectors: Vec::new(),
        noted: None,
        noted_perhaps: Vec::new(),
        noted_found: None,
        noted_before: 0,
        resting: false,
    };
    params.volumes.iter().enumerate().map(origin).collect()
}

impl World {
    /// Writes the first superblocks. Some volumes are in them, the others are added later.
    pub(super) fn format_pool(&mut self) {
        let mut superblocks = new_pool(&pool_spec(&self.params)).expect("the pool is large enough");
        let added_later = self.rng.below(self.origins.len() as u64 + 1) as usize;
        let at_once = self.params.admin.pause_ns == 0 || self.rng.coin();
        let in_use = if at_once { self.origins.len() } else { added_later };
        for (origin, &mode) in self.origins[..in_use].iter_mut().zip(&self.params.modes) {
            origin.noted = Some(mode);
        }
        for superblock in &mut superblocks {
            for index in 0..in_use {
                superblock.volumes.push(VolumeEntry {
                    id: U32::new(index as u32 + 1),
                    used: 1,
                    mode: self.params.modes[index] as u8,
                    reserved: [0; 2],
                    bytes: U64::new(self.params.shown[index] * SECTOR_SIZE as u64),
                    uuid: [index as u8 + 1; 16],
                    name: text_field(&format!("v{index}")),
                    fingerprint: [index as u8 + 1; 32],
                    origin: text_field(&format!("sim:{index}")),
                });
            }
            superblock.header.volume_id_next = U32::new(in_use as u32 + 1);
        }
        for (disk, superblock) in self.caches.iter_mut().zip(&superblocks) {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            superblock.encode(&mut bytes);
            for offset in SUPERBLOCK_OFFSETS {
                disk.poke(offset / SECTOR_SIZE as u64, &bytes);
            }
        }
    }

    /// The superblock of a cache device, if it can be reached.
    pub(super) fn superblock_of(&self, disk: &Disk) -> Option<Superblock> {
        let copy = |offset: u64| {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            let sectors = metadata::sectors(offset, SUPERBLOCK_SIZE as u64);
            if disk.has_unreadable(sectors.clone()) {
                return Err(FormatError::Damaged { what: "superblock" });
            }
            disk.peek(sectors.start, &mut bytes);
            Superblock::decode(&bytes)
        };
        let there = disk.dead_from > self.now;
        let choice = there.then(|| Superblock::choose(SUPERBLOCK_OFFSETS.map(copy)).ok());
        choice.flatten().map(|(superblock, _)| superblock)
    }

    /// The newest superblock of all devices that can be reached, and how each device stands to it,
    /// where one was found.
    pub(super) fn read_superblock(&self) -> Option<(Superblock, Vec<Option<Standing>>)> {
        let all: Vec<Option<Superblock>> =
            self.caches.iter().map(|disk| self.superblock_of(disk)).collect();
        let found: Vec<&Superblock> = all.iter().flatten().collect();
        let headers: Vec<_> = found.iter().map(|superblock| &superblock.header).collect();
        let stand = standings(&headers)?;
        let newest = found[stand.newest].clone();
        let mut of = stand.of.into_iter();
        Some((newest, all.iter().map(|one| one.as_ref().and_then(|_| of.next())).collect()))
    }

    /// Opens the pool. The volumes' origins are found by their identity, as the host does.
    pub(super) fn open(&mut self, superblock: Superblock, stand: &[Option<Standing>]) -> Step {
        for origin in &mut self.origins {
            origin.volume = None;
            origin.resting = false;
        }
        for index in 0..self.origins.len() {
            self.check_noted(index, &superblock)?;
        }
        let mut origins = Vec::new();
        for volume in &superblock.volumes {
            let index = usize::from(volume.uuid[0]) - 1;
            self.check_size(index, volume.bytes.get() / SECTOR_SIZE as u64)?;
            let origin = &mut self.origins[index];
            let missing = self.rng.chance(self.params.faults.origin_missing) && !self.calm;
            origin.volume = Some(VolumeId(volume.id.get()));
            (origin.present, origin.came_late) = (!missing, false);
            origins.push(OriginSettings {
                volume: VolumeId(volume.id.get()),
                present: origin.present,
                volatile_cache: origin.disk.volatile,
                stripe_blocks: self.params.stripe_blocks,
            });
            self.coverage.add("origin missing at open", u64::from(missing));
        }
        let now = self.now;
        let devices: Vec<DeviceSettings> = self
            .caches
            .iter()
            .zip(stand)
            .map(|(disk, standing)| DeviceSettings {
                bytes: disk.sectors() * SECTOR_SIZE as u64,
                volatile_cache: disk.volatile,
                discards: self.params.cache_discards,
                presence: standing.map_or(Presence::Absent, Presence::from),
            })
            .collect();
        let there = (0..).zip(&devices).filter(|(_, device)| device.presence.is_here());
        self.life.devices = there.map(|(index, _)| index).collect();
        for (index, (disk, device)) in self.caches.iter_mut().zip(&devices).enumerate() {
            if !device.presence.is_here() {
                self.troubled.insert(index);
                disk.dead_from = disk.dead_from.min(now);
                self.coverage.mark("devices away at open");
            }
        }
        // A checkpoint holds the whole table, with room to spare.
        let entries = superblock.header.checkpoint_area_bytes.get() / 20;
        let slots = devices.iter().map(|device| device.bytes / BLOCK_SIZE as u64).sum::<u64>();
        let index_times = self.params.index_times.min(entries / slots.max(1)).max(1);
        let settings = Settings {
            superblock,
            devices,
            origins,
            distrust: self.distrust.clone(),
            witness: self.older.witness(),
            ram_bytes: self.params.ram_bytes,
            tuning: Tuning {
                index_share: self.index_share() * index_times as f64,
                ..self.params.tuning.clone()
            },
            #[cfg(feature = "mutants")]
            mutant: self.options.mutant,
        };
        self.say(|_| "open".to_string());
        let mut effects = Vec::new();
        self.engine = Some(Engine::open(settings, now, &mut effects));
        self.unsettled = 1;
        self.perform(effects)
    }

    /// The size of the index in this life. A small one is always full and moves its entries about;
    /// one of another size than before cannot take the checkpoint's buckets as they are.
    fn index_share(&mut self) -> f64 {
        match self.index_rng.below(4) {
            0 => self.index_rng.log_range(2, 100) as f64 / 100.0,
            1 => 0.3,
            _ => 1.0,
        }
    }

    /// Starts a life: opens the pool and wakes clients, administrator and faults.
    pub(super) fn start_life(&mut self, number: u64) -> Step {
        self.life =
            Life { number, requests_left: self.params.requests, crash_in: None, ..Life::default() };
        if self.wide_rng.chance(self.params.retuned) {
            self.params.retune(&mut self.wide_rng);
            self.coverage.mark("lives with a tuning of their own");
        }
        self.older_begins(number);
        self.stay_away(number);
        self.come_late(number);
        self.spoil_metadata(number);
        self.old_turns_up()?;
        let Some((superblock, stand)) = self.read_superblock() else {
            return Err(Violation::new("R", "no superblock can be read".into()));
        };
        let flow = self.open(superblock, &stand)?;
        self.check_detached()?;
        for client in 0..self.clients.len() {
            let pause = self.rng.below(self.params.think_ns + 1);
            self.schedule(pause, Due::Client(client));
        }
        if self.params.admin.pause_ns > 0 && !self.calm {
            self.schedule_admin();
        }
        self.replace_begins();
        Ok(flow)
    }

    /// Sometimes a device is absent at a start, though the pool has not gone on without it.
    fn stay_away(&mut self, number: u64) {
        let Faults { absent, bad_device, .. } = self.params.faults;
        if number > self.params.lives || !self.wide_rng.chance(absent) {
            return;
        }
        let others = (0..self.caches.len()).filter(|&device| device != bad_device);
        if self.mirror_is_whole() && others.count() > 0 {
            self.say(|_| format!("cache {bad_device} is absent"));
            self.coverage.mark("devices absent at open");
            self.caches[bad_device].dead_from = self.now;
            self.troubled.insert(bad_device);
        }
    }

    /// Sometimes devices come after the start, though the pool has not gone on without them.
    /// Nothing that they hold is lost by that: what no other device has keeps the pool closed.
    fn come_late(&mut self, number: u64) {
        let share = self.params.faults.late;
        if share == 0.0 || number > self.params.lives || !self.wide_rng.chance(share) {
            return;
        }
        let Some((_, stand)) = self.read_superblock() else { return };
        let in_step = |&device: &usize| stand[device].is_some_and(Standing::in_step);
        let devices: Vec<usize> = (0..self.caches.len()).filter(in_step).collect();
        let there = self.wide_rng.pick(&devices);
        for device in devices.into_iter().filter(|&device| device != there) {
            if self.wide_rng.coin() {
                self.say(|_| format!("cache {device} is late"));
                self.coverage.mark("devices late at open");
                self.caches[device].dead_from = self.now;
                self.troubled.insert(device);
            }
        }
    }

    /// The origins without a volume were removed before the crash: they hold all data themselves.
    fn check_detached(&mut self) -> Result<(), Violation> {
        for index in 0..self.origins.len() {
            if self.origins[index].volume.is_none() {
                self.check_origin(index, "is detached")?;
            }
        }
        Ok(())
    }

    /// A volume is there, in its mode, or is not, as it was acknowledged last, or as it was to be
    /// since.
    fn check_noted(&mut self, index: usize, superblock: &Superblock) -> Result<(), Violation> {
        let mut entries = superblock.volumes.iter();
        let entry = entries.find(|entry| usize::from(entry.uuid[0]) == index + 1);
        let mode = |entry: &VolumeEntry| Mode::from_raw(entry.mode);
        let found = entry.and_then(mode);
        let origin = &mut self.origins[index];
        let was = origin.noted;
        if found == was || origin.noted_perhaps.contains(&found) {
            self.coverage.add("commands that a crash left done", u64::from(found != was));
            // Until the pool serves, a power cut may take it back.
            self.origins[index].noted_perhaps.push(found);
            let origin = &mut self.origins[index];
            (origin.noted_found, origin.noted_before) = (Some(found), origin.noted_perhaps.len());
            return Ok(());
        }
        let text = format!("the volume of disk {index} was noted as {was:?} and is {found:?}");
        Err(Violation::new("R", text))
    }

    /// The pool serves: what its superblock says of volumes stays.
    fn settle_noted(&mut self) {
        for origin in &mut self.origins {
            if let Some(found) = origin.noted_found.take() {
                origin.noted = found;
                let asked = origin.noted_perhaps.split_off(origin.noted_before);
                origin.noted_perhaps = asked;
            }
        }
    }

    /// A volume has the size that was acknowledged, or the one that it was about to have.
    fn check_size(&mut self, disk: usize, sectors: u64) -> Result<(), Violation> {
        let origin = &mut self.origins[disk];
        let was = origin.durable_sectors;
        let due = sectors > was && origin.asked_sectors.contains(&sectors);
        origin.sectors = sectors;
        if was == sectors || due || self.params.faults.any_cache_fault() {
            return Ok(());
        }
        let text = format!("the volume of disk {disk} had {was} sectors and has {sectors}");
        Err(Violation::new("R", text))
    }

    /// Notices that the engine begins to serve, or will not.
    pub(super) fn look_at_state(&mut self) {
        if self.engine().state() == State::Serving {
            if !std::mem::replace(&mut self.life.serving, true) {
                let checkpoints = self.engine().pool_stats().checkpoints;
                self.coverage.add("checkpoints for a start", checkpoints);
                self.settle_noted();
            }
            for origin in &mut self.origins {
                origin.durable_sectors = origin.sectors;
            }
            let faults = std::mem::take(&mut self.life.read_faults);
            let bad = self.params.faults.bad_device;
            self.caches[bad].faults.extend(faults);
            self.caches[bad].reads_fail_first = 0;
            self.say(|_| "serving".to_string());
            self.coverage.mark("opened");
        }
    }

    /// Runs until the engine serves or refuses to.
    pub(super) fn run_until_open(&mut self) -> Step {
        loop {
            match self.engine().state() {
                State::Opening => {}
                State::Failed(text) => {
                    self.life.open_failed.get_or_insert(text);
                    return Ok(Flow::Go);
                }
                State::Serving | State::Stopping => {
                    self.look_at_state();
                    return Ok(Flow::Go);
                }
            }
            match self.step()? {
                Flow::Go => {}
                Flow::Crash => return Ok(Flow::Crash),
                Flow::Idle => {
                    return Err(Violation::new("H", "recovery stopped half way".into()));
                }
            }
        }
    }
}
