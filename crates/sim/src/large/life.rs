//! Lives: a start, what is there after it, and that all goes home.

use super::Disk;
use super::plan::Trouble;
use super::{
    Check, Client, Due, Io, LOOKS, Large, MILLISECOND, OPEN_NS_MAX, Role, SECOND, volume_id,
};
use crate::large::FACTOR;
use crate::model::Violation;
use forebay_engine::{
    Command, CommandId, CommandReply, DeviceSettings, Distrust, Engine, Event, OriginSettings,
    Presence, Settings, State, Witness,
};
use forebay_format::BLOCK_SIZE;
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{SUPERBLOCK_SIZE, Superblock};

impl Large {
    /// The process is killed; what it acknowledged is there after the next start.
    pub(super) fn second_life(&mut self) -> Check {
        self.totals.crashes += 1;
        self.engine = None;
        // What is under way to a disk happens or not.
        let ops = std::mem::take(&mut self.ops);
        for under_way in ops.into_values() {
            if let Io::Write(buf) = under_way.io
                && self.rng.coin()
            {
                let disk = self.disk(under_way.target);
                if !disk.dead && !disk.refuses {
                    disk.store.write(under_way.offset / BLOCK_SIZE as u64, buf.bytes());
                }
            }
        }
        self.requests.clear();
        self.queue.clear();
        self.now += SECOND;
        let dies = self.plan.trouble == Trouble::DeviceMissing && self.caches.len() > 1;
        if dies {
            let device = self.rng.below(self.caches.len() as u64) as usize;
            self.caches[device].dead = true;
            self.troubled = true;
        }
        for origin in &mut self.origins {
            (origin.refuses, origin.hangs) = (false, false);
            origin.hung.clear();
        }
        if self.caches.iter().all(|disk| disk.dead) {
            return Ok(()); // What no device holds, no start can bring back.
        }
        self.open()?;
        self.quiet = true;
        self.look()?;
        self.engine().check();
        let drained = self.drain()?;
        self.coverage.add("worlds drained", u64::from(drained));
        self.engine().check();
        Ok(())
    }

    /// Reads here and there.
    pub(super) fn look(&mut self) -> Check {
        self.looked = 0;
        let first = self.clients.len();
        for _ in 0..8 {
            let volume = self.rng.below(self.origins.len() as u64) as usize;
            self.clients.push(Client { volume, role: Role::Looker });
        }
        for client in first..self.clients.len() {
            self.schedule(0, Due::Client(client));
        }
        while self.looked < LOOKS || !self.requests.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    /// All goes home. Whether it could.
    pub(super) fn drain(&mut self) -> Result<bool, Violation> {
        let mut asked = Vec::new();
        for volume in 0..self.origins.len() {
            self.next_id += 1;
            let id = CommandId(self.next_id);
            asked.push(id);
            self.feed(Event::Command(id, Command::Drain(volume_id(volume))))?;
        }
        while asked.iter().any(|id| !self.answered.contains_key(id)) {
            self.step()?;
        }
        let good = asked.iter().all(|id| !matches!(self.answered[id], CommandReply::Failed(_)));
        if !good {
            return Ok(false);
        }
        for volume in 0..self.origins.len() {
            for block in 0..self.plan.volumes[volume].blocks {
                let sent = self.known[volume].sent[block as usize];
                if sent > 0 {
                    self.check_home(volume, block)?;
                }
            }
        }
        Ok(true)
    }

    pub(super) fn check_home(&self, volume: usize, block: u64) -> Check {
        let mut bytes = [0; BLOCK_SIZE];
        self.origins[volume].store.read(block, &mut bytes);
        self.check_block(volume, block, &bytes, u64::from(self.known[volume].acked[block as usize]))
            .map_err(|mut violation| {
                violation.text = format!("after a drain: {}", violation.text);
                violation
            })
    }

    pub(super) fn superblocks(&self) -> Vec<Option<Superblock>> {
        let of = |disk: &Disk| {
            if disk.dead {
                return None;
            }
            let copy = |offset: u64| {
                let mut bytes = vec![0; SUPERBLOCK_SIZE];
                disk.store.read(offset / BLOCK_SIZE as u64, &mut bytes);
                Superblock::decode(&bytes)
            };
            Superblock::choose(SUPERBLOCK_OFFSETS.map(copy)).ok().map(|(superblock, _)| superblock)
        };
        self.caches.iter().map(of).collect()
    }

    /// Opens the pool as the host does.
    pub(super) fn open(&mut self) -> Check {
        let all = self.superblocks();
        let generation = |superblock: &Superblock| superblock.header.generation.get();
        let newest = all.iter().flatten().map(generation).max().unwrap_or(0);
        let superblock = all.iter().flatten().find(|it| generation(it) == newest).cloned();
        let Some(superblock) = superblock else {
            return Err(Violation::new("R", "no superblock can be read".into()));
        };
        let device = |(n, own): (usize, &Option<Superblock>)| {
            let own = own.as_ref().map_or(0, generation);
            DeviceSettings {
                bytes: self.caches[n].store.blocks() * BLOCK_SIZE as u64,
                volatile_cache: self.plan.volatile[n],
                discards: true,
                presence: match newest - own {
                    0 if own > 0 => Presence::InStep,
                    1 if own > 0 => Presence::Behind,
                    _ => Presence::Absent,
                },
            }
        };
        let devices: Vec<DeviceSettings> = all.iter().enumerate().map(device).collect();
        let origins = (0..self.origins.len())
            .map(|n| OriginSettings {
                volume: volume_id(n),
                present: true,
                volatile_cache: true,
                stripe_blocks: 0,
            })
            .collect();
        let settings = Settings {
            superblock,
            devices,
            origins,
            distrust: Distrust::default(),
            witness: Witness::default(),
            ram_bytes: 0,
            tuning: self.plan.tuning.clone(),
            #[cfg(feature = "mutants")]
            mutant: self.options.mutant,
        };
        let mut out = Vec::new();
        let since = self.now;
        self.engine = Some(Engine::open(settings, self.now, &mut out));
        self.out = out;
        self.unsettled = 1;
        self.perform()?;
        while self.engine().state() == State::Opening {
            self.step()?;
        }
        if let State::Failed(why) = self.engine().state() {
            return Err(Violation::new("R", format!("the pool cannot be opened: {why}")));
        }
        self.opened_in = self.now - since;
        self.check_open()?;
        self.say(|world| format!("opened in {} ms", world.opened_in / MILLISECOND));
        self.wrote_at.fill(self.now);
        Ok(())
    }

    /// A start reads the checkpoint and the log behind it, writes a checkpoint, and flushes the
    /// origins.
    pub(super) fn check_open(&self) -> Check {
        let origins = self.origins.iter().map(|disk| disk.clock.worst_ns(1)).max().unwrap_or(0);
        let slots = self.plan.segments.iter().sum::<u64>() * u64::from(self.plan.segment_blocks);
        let blocks_ns = slots * SECOND / self.plan.cache_rate;
        let bound = FACTOR * (origins + blocks_ns / 4) + OPEN_NS_MAX;
        if self.opened_in <= bound {
            return Ok(());
        }
        let (took, bound) = (self.opened_in / MILLISECOND, bound / MILLISECOND);
        Err(Violation::new("T", format!("a start took {took} ms; its disks explain {bound} ms")))
    }
}
