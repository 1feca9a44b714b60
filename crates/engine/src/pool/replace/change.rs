//! The steps of a replacement.

use crate::Mutant;
use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::*;
use crate::op::Op;
use crate::pool::replace::Phase;
use crate::segment::Since;
use forebay_format::BLOCK_SIZE;
use forebay_format::layout::CHECKPOINT_OFFSET;
use forebay_format::superblock::DeviceEntry;
use zerocopy::little_endian::{U32, U64};

impl Engine {
    /// Why no device of the pool can be replaced now.
    fn no_replacing(&self, device: DeviceId) -> Option<String> {
        let devices = self.segments.devices();
        let why = match devices.get(usize::from(device.0)) {
            None => "the pool has no such device",
            Some(_) if devices.len() == 1 => {
                "the pool has one device, and nothing could serve meanwhile. Take the volumes away \
                 (`forebay volume remove`, which sends home what is dirty), `forebay pool \
                 destroy` the pool, and create it anew on the new device"
            }
            Some(_) if self.log.is_dead() => {
                "no device of the pool works, and what is dirty is only there. Bring them back, \
                 and restart the daemon; then replace the one that is broken"
            }
            Some(_) if self.pool.replacing().is_some() => {
                "a device of the pool is being replaced; wait until that is done"
            }
            Some(_) => return None,
        };
        Some(why.to_owned())
    }

    /// A device is not used any more.
    pub(crate) fn let_go(&mut self, id: CommandId, device: DeviceId) {
        if let Some(why) = self.no_replacing(device) {
            return self.refuse(id, &why);
        }
        if self.segments.devices()[usize::from(device.0)].healthy {
            if !self.can_spare(device, |_| true) {
                let one = self.segments.dirty_copies(0).one * (BLOCK_SIZE as u64 >> 10);
                let why = format!(
                    "the device has the only copy of dirty data ({one} KiB of the pool's have one \
                     copy), or no other works. Wait until `forebay pool show` says that all has \
                     two, or `forebay volume drain` the volumes; if another device of the pool has \
                     failed, replace that one first"
                );
                return self.refuse(id, &why);
            }
            self.io.notify(Notice::DeviceLeft(device));
            if !self.is(Mutant::LeftCounts) {
                self.copies_leave(device);
                self.segments.leaves_pool(device);
            }
            self.device_ends(device);
        }
        self.pool.replaces(Some(Phase::Leaves(device, id)));
    }

    /// An empty device is to take the place of one that is not used any more.
    pub(crate) fn take_in(&mut self, id: CommandId, new: NewDevice) {
        if let Some(why) = self.no_replacing(new.device) {
            return self.refuse(id, &why);
        }
        let index = usize::from(new.device.0);
        let header = self.pool.header();
        let needed = header.segments_offset.get()
            + u64::from(header.devices[index].segment_count.get())
                * u64::from(self.segments.blocks())
                * BLOCK_SIZE as u64;
        let known = header.devices.iter().any(|entry| entry.uuid == new.uuid);
        let why = match new.bytes {
            _ if self.segments.devices()[index].healthy || self.is_leaving(new.device) => {
                "the device is in use; let it go first".to_owned()
            }
            _ if known => "the new device has the identity of another one of the pool".to_owned(),
            have if have < needed => {
                format!("the new device has {have} bytes, and its place needs {needed}")
            }
            _ => {
                let buf = self.io.take(CHECKPOINT_OFFSET as usize);
                let op = Op::Blank { device: new.device, flush: false };
                let target = Target::Cache(new.device);
                self.pool.replaces(Some(Phase::Blank(new, id)));
                return self.io.write(op, target, 0, zeroed(buf));
            }
        };
        self.refuse(id, &why);
    }

    /// Whether a device that is not used any more may still change, or does not durably count as
    /// away.
    fn is_leaving(&self, device: DeviceId) -> bool {
        self.io.awaits(device) || self.pool.tells_away() || self.away_untold()
    }

    /// See `parts.rs`.
    pub(crate) fn replace_more(&mut self) {
        if let Some(Phase::Comes(..)) = self.pool.replacing()
            && !self.pool.checkpoint_runs()
        {
            // The last one failed, or a volume that left has spoilt it.
            self.pool.want_checkpoint();
        }
        let Some(&Phase::Leaves(device, id)) = self.pool.replacing() else { return };
        if self.log.is_dead() {
            return self.replacing_ends("no device of the pool works any more");
        }
        if !self.is_leaving(device) {
            self.pool.replaces(None);
            self.answer(id, CommandReply::Changed);
        }
    }

    /// A step of making a device blank has ended.
    pub(crate) fn blanked(&mut self, device: DeviceId, flush: bool, end: Completion) {
        let Completion { result, buf } = end;
        self.io.give(buf);
        let Some(Phase::Blank(new, id)) = self.pool.replacing() else { return };
        let (new, id) = (new.clone(), *id);
        if self.log.is_dead() {
            return self.replacing_ends("no device of the pool works any more");
        }
        if result.is_err() {
            return self.replacing_ends(
                "the new device cannot be written to: it is not taken in, and the pool is as it \
                 was. Try another one",
            );
        }
        if !flush {
            return self.io.flush(Op::Blank { device, flush: true }, Target::Cache(device));
        }
        if !self.is(Mutant::OpenGoesOn) {
            self.close_on(device);
        }
        let since = Since {
            epoch: self.pool.epoch(),
            seq: self.log.seq(),
            checkpoint: self.pool.header().checkpoint_generation.get(),
        };
        self.segments.comes(device, (new.volatile_cache, new.discards), since);
        self.pool.replaces(Some(Phase::Comes(new, since, id)));
        // The next superblock names a checkpoint from behind here.
        self.checkpoint_anew();
        self.pool.want_checkpoint();
    }

    /// A superblock is about to be written: the one that names a device which came.
    pub(in crate::pool) fn newcomer_named(&mut self) {
        let Some(Phase::Comes(new, since, id)) = self.pool.replacing() else { return };
        let (new, since, id) = (new.clone(), *since, *id);
        let index = usize::from(new.device.0);
        let header = self.pool.header();
        if header.checkpoint_generation.get() <= since.checkpoint {
            return; // It is not on the new device.
        }
        assert!(header.checkpoint_seq.get() >= since.seq.raw(), "what is older is in it");
        let before = (header.devices[index], header.joined[index]);
        let (uuid, bytes) = (new.uuid, U64::new(new.bytes));
        let entry = DeviceEntry { uuid, bytes, away: U32::new(0), ..before.0 };
        self.pool.name_device(new.device, (entry, since.entry()));
        self.pool.replaces(Some(Phase::First(new, before, id)));
    }

    /// The superblock is on the device that came, or that has failed: those of the others follow.
    pub(in crate::pool) fn newcomer_written(&mut self) {
        if let Some(Phase::First(new, _, id)) = self.pool.replacing() {
            let (device, id) = (new.device, *id);
            self.segments.belongs(device);
            self.io.notify(Notice::DeviceCame(device));
            self.pool.replaces(Some(Phase::Others(id)));
        }
    }

    /// All have it.
    pub(in crate::pool) fn newcomer_belongs(&mut self) {
        if let Some(&Phase::Others(id)) = self.pool.replacing() {
            self.pool.replaces(None);
            self.answer(id, CommandReply::Changed);
        }
    }

    /// A device has failed, while another may be coming: what that has does not count, and beside
    /// the one that failed it has nobody to take the rest from.
    pub(crate) fn newcomer_fails(&mut self, failed: DeviceId, why: &str) {
        let (device, before) = match self.pool.replacing() {
            Some(Phase::Comes(new, ..)) => (new.device, None),
            Some(Phase::First(new, before, _)) => (new.device, Some(*before)),
            _ => return,
        };
        if let Some((entry, joined)) = before {
            self.pool.name_device(device, (entry, joined));
        }
        let text = match failed == device {
            true => format!(
                "the new device failed ({why}): it is not taken in, and the pool goes on as \
                 before. Try another one"
            ),
            false => "another device of the pool failed meanwhile: the new one is not taken in. \
                      Look at `forebay pool show`"
                .to_owned(),
        };
        self.replacing_ends(&text);
        self.segments.device_failed(device);
        self.leave_open();
        self.sweep(Sweep::Unreachable);
    }

    /// It is over: why.
    pub(crate) fn replacing_ends(&mut self, why: &str) {
        if let Some(phase) = self.pool.replaces(None) {
            self.refuse(phase.command(), why);
        }
    }

    /// The pool is being closed. What waits for no more than the next superblock goes on.
    pub(crate) fn replacing_stops(&mut self) {
        let early = matches!(self.pool.replacing(), Some(Phase::Leaves(..) | Phase::Blank(..)));
        if early {
            self.replacing_ends("the pool is being closed");
        }
    }
}

fn zeroed(mut buf: forebay_format::io::Buf) -> forebay_format::io::Buf {
    buf.bytes_mut().fill(0);
    buf
}
