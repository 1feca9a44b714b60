//! Cache devices that are replaced while the pool serves: by new ones, or by what they were before,
//! and old ones that turn up again.

use super::copies::{Copied, copies_in_blocks};
use super::{Due, Flow, Step, World};
use crate::disk::{Blank, Disk};
use crate::model::Violation;
use crate::rng::{Rng, mix};
use forebay_engine::{Command, DeviceId, NewDevice, State, Time};
use forebay_format::SECTOR_SIZE;
use forebay_format::standing::standings;
use std::collections::BTreeSet;
use std::ops::Range;

const REPLACE: u64 = 0x2f91_ab66_07d3_5ce8;
/// Time within which all that is dirty has two copies again, where nobody asks for anything.
const TWICE_NS: Time = 1_000_000_000_000;
/// Disks that are kept when they are taken out.
const OUT_MAX: usize = 2;

/// What is known of replacements.
pub(super) struct Replaced {
    /// Apart, so that older seeds keep their worlds.
    rng: Rng,
    /// Disks that were taken out, with their place.
    out: Vec<(usize, Disk)>,
    /// Devices that work and may be let go in this life.
    lets_go: u64,
    /// Of the last identity that was given.
    uuid: u64,
    /// The device of which a command was asked that is not answered, or that has none yet.
    pub(super) under_way: Option<usize>,
    /// Devices that came since the world began: what they held before does not count.
    came: BTreeSet<usize>,
}

impl Replaced {
    pub(super) fn new(seed: u64) -> Replaced {
        Replaced {
            rng: Rng::new(mix(seed ^ REPLACE)),
            out: Vec::new(),
            lets_go: 0,
            uuid: 1000,
            under_way: None,
            came: BTreeSet::new(),
        }
    }
}

impl World {
    /// A life begins: somebody will replace a device, perhaps.
    pub(super) fn replace_begins(&mut self) {
        self.replaced.under_way = None;
        self.replaced.lets_go = self.replaced.rng.below(5);
        let pause = self.params.admin.replace_ns;
        if pause > 0 && !self.calm && self.caches.len() > 1 {
            let after = self.replaced.rng.log_range(pause / 4 + 1, 4 * pause);
            self.schedule(after, Due::Replace);
        }
    }

    /// Somebody looks for a device to replace.
    pub(super) fn replace_turn(&mut self) -> Step {
        if self.life.quiet || self.life.stopping {
            return Ok(Flow::Go);
        }
        let pause = self.params.admin.replace_ns;
        let after = self.replaced.rng.log_range(pause / 4 + 1, 4 * pause);
        self.schedule(after, Due::Replace);
        let idle = !self.life.serving || self.no_device_works();
        if idle || self.replaced.under_way.is_some() {
            return Ok(Flow::Go);
        }
        let fails = |device: &usize| !self.is_used(*device);
        let failed: Vec<usize> = (0..self.caches.len()).filter(fails).collect();
        let device = match failed.is_empty() {
            false => self.replaced.rng.pick(&failed),
            true if self.replaced.rng.one_in(8) && self.replaced.lets_go > 0 => {
                self.replaced.lets_go -= 1;
                self.replaced.rng.below(self.caches.len() as u64) as usize
            }
            true => return Ok(Flow::Go),
        };
        self.replaced.under_way = Some(device);
        self.crash_soon();
        self.ask(0, Command::LetGo(DeviceId(device as u8)))
    }

    /// Half of the replacements are cut short, where this life ends in a crash.
    fn crash_soon(&mut self) {
        if let Some(left) = self.life.crash_in
            && self.replaced.rng.one_in(3)
        {
            let soon = self.replaced.rng.log_range(1, 400);
            self.life.crash_in = Some(left.min(soon));
        }
    }

    fn is_used(&self, device: usize) -> bool {
        self.life.devices.contains(&device) && !self.life.devices_failed.contains(&device)
    }

    /// The engine does without a device: another one gets its place, soon.
    fn let_go(&mut self, device: usize) {
        self.coverage.mark("devices let go");
        let after = self.replaced.rng.log_range(1, self.params.admin.replace_ns.max(2));
        self.schedule(after, Due::Swap(device));
    }

    /// Another disk gets the place of one that is not used any more, or the same one again.
    pub(super) fn swap(&mut self, device: usize) -> Step {
        let there = self.life.serving && !self.life.stopping && !self.life.log_broken;
        if !there || self.engine().state() != State::Serving {
            self.replaced.under_way = None;
            return Ok(Flow::Go);
        }
        if self.ops.values().any(|&(_, place)| place == super::Place::Cache(device)) {
            self.schedule(1_000_000, Due::Swap(device));
            return Ok(Flow::Go);
        }
        let same = self.replaced.rng.one_in(3);
        if same {
            self.caches[device].dead_from = Time::MAX;
            self.coverage.mark("devices replaced by themselves");
        } else {
            let old = &self.caches[device];
            let more = self.replaced.rng.pick(&[0, 0, 8, 1000]);
            let volatile = old.volatile != self.replaced.rng.one_in(4);
            let new = Disk::new(old.sectors() + more, Blank::Zero, volatile);
            let old = std::mem::replace(&mut self.caches[device], new);
            self.takes_out(device, old);
        }
        // What it held before does not count, and nothing does before it is of the pool.
        self.life.devices_failed.insert(device);
        self.written.retain(|&(of, _), _| of != device);
        self.replaced.came.insert(device);
        self.older_forgets();
        self.replaced.uuid += 1;
        let mut uuid = [0xab; 16];
        uuid[..8].copy_from_slice(&self.replaced.uuid.to_le_bytes());
        let new = NewDevice {
            device: DeviceId(device as u8),
            uuid,
            bytes: self.caches[device].sectors() * SECTOR_SIZE as u64,
            volatile_cache: self.caches[device].volatile,
            discards: self.params.cache_discards,
        };
        self.say(|_| format!("cache {device} is another one (the same: {same})"));
        self.crash_soon();
        self.ask(0, Command::TakeIn(Box::new(new)))
    }

    fn takes_out(&mut self, device: usize, mut old: Disk) {
        old.dead_from = Time::MAX;
        old.faults.clear();
        self.replaced.out.push((device, old));
        if self.replaced.out.len() > OUT_MAX {
            self.replaced.out.remove(0);
        }
    }

    /// Client data on a device, written since it came: what it held before does not count.
    pub(super) fn copies_on(&self, device: usize, sectors: Range<u64>) -> Vec<Copied> {
        let mut found = copies_in_blocks(&self.caches[device], sectors);
        if self.replaced.came.contains(&device) {
            found.retain(|copy| self.written.contains_key(&(device, *copy)));
        }
        found
    }

    /// The cache devices that count, if they work.
    pub(super) fn without_strangers(&self) -> impl Iterator<Item = (usize, &Disk)> {
        let all = self.caches.iter().enumerate();
        all.filter(|(index, _)| !self.is_stranger(*index))
    }

    /// Whether any device was replaced.
    pub(super) fn has_replaced(&self) -> bool {
        !self.replaced.came.is_empty()
    }

    /// A block is lost: what was under way when the log broke replaced what was there. Or a device
    /// failed while the pool was opened, when nobody knew yet that a block was not called home.
    pub(super) fn lost_with_the_log(&mut self, disk: usize, sector: u64, lost: bool) {
        let at_home = !self.life.devices_failed.is_empty() && self.origin_has(disk, sector);
        // Or the copy is of a move that a power cut took back, as can happen among several.
        let moved = self.caches.len() > 2;
        if lost && self.has_replaced() && (self.life.log_broken || at_home || moved) {
            self.checker.lose_block(disk, sector, self.stamp);
        }
    }

    /// A command about a device was answered.
    pub(super) fn replace_answered(&mut self, command: &Command) {
        match command {
            Command::LetGo(device) => self.let_go(usize::from(device.0)),
            _ => self.replaced.under_way = None,
        }
    }

    /// Whether a device came in this life, and is not durably of the pool.
    pub(super) fn is_stranger(&self, device: usize) -> bool {
        self.replaced.came.contains(&device) && self.life.devices_failed.contains(&device)
    }

    /// A new device is durably of the pool.
    pub(super) fn device_came(&mut self, device: usize) {
        self.coverage.mark("devices taken in");
        self.life.devices_failed.remove(&device);
        self.life.vanished.remove(&device);
        self.life.devices.insert(device);
    }

    /// Before a start: a device that was replaced turns up again. It is none of the pool's.
    pub(super) fn old_turns_up(&mut self) -> Result<(), Violation> {
        self.names_who_is_there()?;
        for (device, old) in &self.replaced.out {
            let Some(old) = self.superblock_of(old) else { continue };
            let all: Vec<_> = self.caches.iter().map(|disk| self.superblock_of(disk)).collect();
            let mut headers: Vec<_> = all.iter().flatten().map(|it| &it.header).collect();
            if headers.is_empty() {
                continue;
            }
            headers.push(&old.header);
            let stand = standings(&headers).expect("there are some");
            let of_pool =
                headers[stand.newest].devices[*device].uuid == old.header.devices[*device].uuid;
            let counts = stand.of.last().expect("it is one of them").in_step();
            if counts && !of_pool {
                let text = format!("the device that was replaced as {device} counts again");
                return Err(Violation::new("R", text));
            }
        }
        Ok(())
    }

    /// A pool names no device that does not say itself that it is of the pool: it says so first.
    fn names_who_is_there(&self) -> Result<(), Violation> {
        let faults = &self.params.faults;
        if self.params.admin.replace_ns == 0 || faults.metadata + faults.metadata_errors > 0.0 {
            return Ok(());
        }
        let Some((newest, stand)) = self.read_superblock() else { return Ok(()) };
        for (device, standing) in stand.iter().enumerate() {
            let entry = newest.header.devices[device];
            let away = entry.away.get() != 0 || self.caches[device].dead_from <= self.now;
            if standing.is_none() && !away {
                let text = format!("device {device} is named, and has no superblock");
                return Err(Violation::new("R", text));
            }
        }
        Ok(())
    }

    /// What is dirty gets its second copy back, though nothing of it goes home.
    pub(super) fn halves_end(&mut self) -> Result<(), Violation> {
        let limit = self.now + TWICE_NS;
        loop {
            let stats = self.engine().pool_stats();
            let serves = self.engine().state() == State::Serving && !stats.degraded;
            let lost = (0..self.origins.len()).any(|disk| self.checker.has_lost(disk));
            let several = self.caches.len() > 1 && self.params.admin.replace_ns > 0;
            if !several || !serves || lost || stats.dirty_one_copy_blocks == 0 {
                return Ok(());
            }
            self.coverage.mark("waits for second copies");
            let flow = self.step()?;
            if flow == Flow::Idle || self.now > limit {
                let text = format!(
                    "{} dirty blocks have one copy, and stay so; {}",
                    stats.dirty_one_copy_blocks,
                    self.waiting()
                );
                return Err(Violation::new("H", text));
            }
            self.answered_at = self.totals.steps;
        }
    }

    /// Whether the engine may refuse to let a device go, or to take one in.
    pub(super) fn may_refuse(&mut self) -> bool {
        let stats = self.engine().pool_stats();
        let used = (0..self.caches.len()).filter(|&device| self.is_used(device)).count();
        stats.degraded
            || stats.dirty_one_copy_blocks > 0
            || used < self.caches.len()
            || self.caches.iter().any(|disk| disk.dead_from <= self.now)
            || self.met_errors()
    }
}
