//! An update of the superblock goes to one copy of it on each device, and is durable after a FLUSH
//! of each; then what waited for it happens.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::log::FlushFor;
use crate::op::Op;
use crate::pool::Then;
use crate::pool::replace::Phase;
use crate::pool::superblock::older;
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::SUPERBLOCK_SIZE;
use zerocopy::little_endian::{U16, U32, U64};

impl Engine {
    /// Asks for an update; `then` happens when it is durable.
    pub(crate) fn superblock_write(&mut self, then: Then) {
        self.pool.sb.wanted.push(then);
        if self.log.is_dead() {
            return self.superblock_give_up();
        }
        self.superblock_more();
    }

    pub(crate) fn superblock_more(&mut self) {
        if !self.pool.sb.under_way.is_empty()
            || self.pool.sb.wanted.is_empty()
            || self.log.is_dead()
        {
            return;
        }
        if self.log.is_under_way(self.pool.sb.awaits_seq) || self.pool.needs_checkpoint() {
            return;
        }
        self.pool.sb.under_way = std::mem::take(&mut self.pool.sb.wanted);
        for at in 0..self.pool.sb.under_way.len() {
            if let Then::Checkpointed(new) = self.pool.sb.under_way[at] {
                let base = self.pool.checkpoint.base.take();
                new.name(&mut self.pool.sb.block.header, base);
            }
        }
        self.sync_volume_table();
        for (entry, device) in
            self.pool.sb.block.header.devices.iter_mut().zip(self.segments.devices())
        {
            entry.away = U32::new(u32::from(!device.healthy || device.stranger));
        }
        self.newcomer_named();
        let generation = self.pool.sb.block.header.generation.get() + 1;
        self.pool.sb.block.header.generation = U64::new(generation);
        self.pool.sb.sent_older = older(&self.pool.sb.block);
        self.pool.sb.first = self.pool.replacing().and_then(Phase::first);
        match self.pool.sb.first {
            Some(first) => self.superblock_to(|it| it == first, Mutant::OthersFirst),
            None => self.superblock_to(|_| true, Mutant::OthersFirst),
        }
    }

    /// Sends it to these devices, as far as they are of the pool. A planted bug: to the others.
    fn superblock_to(&mut self, wanted: impl Fn(DeviceId) -> bool, bug: Mutant) {
        let first = self.pool.sb.first;
        let wanted = |it| wanted(it) != (first.is_some() && self.is(bug));
        let devices: Vec<DeviceId> = self
            .segments
            .working()
            .filter(|&it| wanted(it) && (first == Some(it) || self.segments.counts(it)))
            .collect();
        let copy = (self.pool.sb.block.header.generation.get() % 2) as usize;
        let copies: &[usize] = if self.is(Mutant::SuperblockInPlace) { &[0, 1] } else { &[copy] };
        for device in devices {
            for &copy in copies {
                self.superblock_send(usize::from(device.0), copy);
            }
        }
    }

    fn superblock_send(&mut self, index: usize, copy: usize) {
        let mut block = self.pool.sb.block.clone();
        block.header.device_index = U16::new(index as u16);
        let mut buf = self.io.take(SUPERBLOCK_SIZE);
        block.encode(buf.bytes_mut());
        let device = DeviceId(index as u8);
        self.pool.sb.pending += 1;
        self.pool.checkpoint.bytes += SUPERBLOCK_SIZE as u64;
        let offset = SUPERBLOCK_OFFSETS[copy];
        self.io.write(Op::Superblock { device }, Target::Cache(device), offset, buf);
    }

    /// Whether a device does not work and the last superblock says that it does.
    pub(crate) fn away_untold(&self) -> bool {
        let entries = &self.pool.sb.block.header.devices;
        let mut both = entries.iter().zip(self.segments.devices());
        both.any(|(entry, device)| !device.healthy && entry.away.get() == 0)
    }

    /// Brings these devices to the generation of the pool before it begins the next: one that is
    /// two behind counts as away. Over the copy that is older than what they have.
    pub(crate) fn superblock_catch_up(&mut self, behind: &[usize]) {
        self.pool.sb.under_way.push(Then::CaughtUp);
        let copy = (self.pool.sb.block.header.generation.get() % 2) as usize;
        for &index in behind {
            self.superblock_send(index, copy);
        }
    }

    /// The volume table follows the volumes.
    fn sync_volume_table(&mut self) {
        let volumes = self.volumes.iter().filter(|v| !v.is_leaving());
        self.pool.sb.block.volumes = volumes.map(|v| v.entry()).collect();
    }

    pub(crate) fn superblock_written(&mut self, device: DeviceId, end: Completion) {
        let Completion { result, buf } = end;
        self.io.give(buf);
        if result.is_err() {
            self.device_failed(device, "a superblock could not be written");
            return self.superblock_end();
        }
        self.device_flush(device, FlushFor::Superblock);
    }

    /// One device has it, or will not have it.
    pub(crate) fn superblock_end(&mut self) {
        self.pool.sb.pending -= 1;
        if self.pool.sb.pending > 0 {
            return;
        }
        if let Some(first) = self.pool.sb.first.filter(|_| !self.log.is_dead()) {
            self.newcomer_written();
            self.superblock_to(|it| it != first, Mutant::OthersFirst);
            self.pool.sb.first = None;
            if self.pool.sb.pending > 0 {
                return;
            }
        }
        let under_way = std::mem::take(&mut self.pool.sb.under_way);
        if self.log.is_dead() {
            return self.superblock_failed(under_way);
        }
        self.newcomer_belongs();
        self.pool.sb.durable_older = self.pool.sb.sent_older;
        for then in under_way {
            match then {
                Then::CaughtUp => self.recover_caught_up(),
                Then::Checkpointed(_) => self.checkpoint_counts(),
                Then::Added(volume, command) => self.volume_added(volume, command),
                Then::Removed(volume, command) => self.volume_removed(volume, command),
                Then::Switched(_, id) | Then::Called(id) => {
                    self.io.put(Effect::CommandDone { id, reply: CommandReply::Changed });
                }
                Then::Resized(volume, command) => self.volume_resized(volume, command),
                Then::Closed => self.closed(),
                Then::Away => {}
            }
        }
    }

    /// No device is left to write to: updates that have not begun never will.
    pub(crate) fn superblock_give_up(&mut self) {
        let wanted = std::mem::take(&mut self.pool.sb.wanted);
        self.superblock_failed(wanted);
    }

    fn superblock_failed(&mut self, updates: Vec<Then>) {
        for then in updates {
            match then {
                Then::CaughtUp => {
                    self.open_failed("the superblock could not be written".into());
                }
                Then::Added(volume, id) => {
                    self.volumes.remove(volume);
                    self.writeback.volume_leaves(volume);
                    self.reqs.forget_volume(volume);
                    self.superblock_failed_answer(id);
                }
                Then::Removed(volume, id) => {
                    self.volumes.removal_failed(volume);
                    self.superblock_failed_answer(id);
                }
                Then::Switched(_, id) | Then::Called(id) => self.superblock_failed_answer(id),
                Then::Resized(volume, id) => {
                    self.volumes.growth_failed(volume);
                    self.superblock_failed_answer(id);
                }
                Then::Closed => self.closed(),
                Then::Checkpointed(_) | Then::Away => {}
            }
        }
    }

    fn superblock_failed_answer(&mut self, id: CommandId) {
        let why = "the cache device failed; replace it and start again".to_owned();
        self.answer(id, CommandReply::Failed(why));
    }
}
