//! The engine's I/O on its way to the disks and back, and what goes wrong with them.

use super::clock::Kind;
use super::plan::{HANGS_NS, Trouble};
use super::{Check, Due, Io, Large, MILLISECOND, UnderWay, volume_id};
use crate::model::Violation;
use crate::rng::mix;
use forebay_engine::{Buf, Completion, Effect, Event, IoError, Notice, OpId, Target};
use forebay_format::BLOCK_SIZE;

impl Large {
    pub(super) fn perform_one(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::Read { op, target, offset, buf } => {
                let blocks = (buf.len() / BLOCK_SIZE) as u64;
                self.start(op, target, Kind::Read, offset, blocks, Io::Read(buf))
            }
            Effect::Write { op, target, offset, buf } => {
                let blocks = (buf.len() / BLOCK_SIZE) as u64;
                self.start(op, target, Kind::Write, offset, blocks, Io::Write(buf))
            }
            Effect::Flush { op, target } => self.start(op, target, Kind::Flush, 0, 0, Io::Nothing),
            Effect::Zero { op, target, offset, len, .. } => {
                let blocks = len / BLOCK_SIZE as u64;
                self.start(op, target, Kind::Write, offset, blocks, Io::Zero(blocks))
            }
            Effect::Discard { op, target, offset, len } => {
                let blocks = len / BLOCK_SIZE as u64;
                self.start(op, target, Kind::Write, offset, 1, Io::Zero(blocks))
            }
            Effect::Distrust { op, .. } => {
                let under_way =
                    UnderWay { target: Target::Origin(volume_id(0)), offset: 0, io: Io::Nothing };
                self.ops.insert(op, under_way);
                self.schedule(MILLISECOND, Due::Io(op));
                Ok(())
            }
            Effect::Reply { id, result, buf } => self.reply(id, result, buf),
            Effect::CommandDone { id, reply } => {
                self.answered_at = self.totals.steps;
                self.say(|_| format!("{id:?} {reply:?}"));
                self.answered.insert(id, reply);
                Ok(())
            }
            Effect::Notice(notice) => {
                self.say(|_| format!("{notice:?}"));
                match notice {
                    Notice::OpenFailed(why) => Err(Violation::new("R", why.text)),
                    Notice::BadBlock { .. } if !self.troubled => {
                        Err(Violation::new("E", format!("{notice:?} in a world without faults")))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    pub(super) fn start(
        &mut self,
        op: OpId,
        target: Target,
        kind: Kind,
        offset: u64,
        blocks: u64,
        io: Io,
    ) -> Check {
        self.totals.ios += 1;
        self.hash = mix(self.hash ^ op.0 ^ offset.rotate_left(20) ^ blocks.rotate_left(50));
        let now = self.now;
        let disk = self.disk(target);
        let ends = disk.clock.ends(now, kind, offset / BLOCK_SIZE as u64, blocks);
        self.ops.insert(op, UnderWay { target, offset, io });
        self.schedule(ends - now, Due::Io(op));
        Ok(())
    }

    pub(super) fn finish_io(&mut self, op: OpId) -> Check {
        let UnderWay { target, offset, io } = self.ops.remove(&op).expect("under way");
        let first = offset / BLOCK_SIZE as u64;
        let disk = self.disk(target);
        if disk.hangs && !matches!(io, Io::Read(_)) {
            disk.hung.push(op);
            self.ops.insert(op, UnderWay { target, offset, io });
            return Ok(());
        }
        let failed = disk.dead || (disk.refuses && !matches!(io, Io::Read(_)));
        let mut buf = Buf::empty();
        match io {
            Io::Read(mut into) => {
                if !failed {
                    disk.store.read(first, into.bytes_mut());
                }
                buf = into;
            }
            Io::Write(data) => {
                if !failed {
                    disk.store.write(first, data.bytes());
                }
                buf = data;
            }
            Io::Zero(blocks) => {
                if !failed {
                    disk.store.write(first, &vec![0; blocks as usize * BLOCK_SIZE]);
                }
            }
            Io::Nothing => {}
        }
        let result = if failed { Err(IoError::Io) } else { Ok(()) };
        self.feed(Event::Done(op, Completion { result, buf }))
    }

    pub(super) fn trouble(&mut self) -> Check {
        let began = std::mem::replace(&mut self.troubled, true);
        match self.plan.trouble {
            Trouble::OriginFails => self.origins[0].refuses = true,
            Trouble::OriginHangs => {
                self.origins[0].hangs = !began;
                for op in std::mem::take(&mut self.origins[0].hung) {
                    self.schedule(0, Due::Io(op));
                }
                if !began {
                    self.schedule(HANGS_NS, Due::Trouble);
                }
            }
            Trouble::DeviceDies => {
                let device = self.rng.below(self.caches.len() as u64) as usize;
                self.say(|_| format!("cache {device} dies"));
                self.caches[device].dead = true;
            }
            Trouble::Nothing | Trouble::DeviceMissing => {}
        }
        Ok(())
    }
}
