//! An engine among clients, an administrator and devices that end their I/Os in any order, some of
//! the origin's with an error; and kills.
//!
//! Each request is answered once, in the end all are; a read gives the version of the newest write
//! that was acknowledged before it, or of one behind that; the numbered invariants
//! hold after each batch; no I/O leaves its device.

use crate::disks::{Disks, Executor, VOLUME};
use crate::input::Input;
use crate::model::{Model, SECTOR, SECTORS, Version, fill, first};
use forebay_engine::{
    Buf, Command, Effect, IoError, Mode, Request, RequestId, RequestKind, Target,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Requests under way at once.
const REQUESTS_MAX: usize = 24;

/// What a request that is not answered asked.
struct Asked {
    sectors: Range<usize>,
    kind: RequestKind,
    /// Versions of its sectors that were certain.
    certain: Vec<usize>,
}

struct World {
    executor: Executor,
    /// The origin is lost: whatever goes there fails.
    lost: bool,
    model: Model,
    asked: BTreeMap<u64, Asked>,
    commands: usize,
    number: u64,
}

fn of_origin(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Read { target: Target::Origin(_), .. }
            | Effect::Write { target: Target::Origin(_), .. }
            | Effect::Zero { target: Target::Origin(_), .. }
            | Effect::Flush { target: Target::Origin(_), .. }
    )
}

fn opened(disks: Disks) -> Executor {
    let mut executor = Executor::open(disks).expect("nobody harmed it");
    assert!(executor.open_up(), "nobody harmed it: {:?}", executor.engine.state());
    executor
}

impl World {
    fn submit(&mut self, input: &mut Input) {
        let choice = input.byte();
        let at = input.below(SECTORS);
        let (at, len) = match choice & 0x80 {
            0 => (at & !7, 8 * (1 + input.below(8))),
            _ => (at, 1 + input.below(20)),
        };
        let sectors = at..(at + len).min(SECTORS);
        self.number += 1;
        let (kind, version) = match choice & 7 {
            0..=2 => (RequestKind::Write, Some(Version::Of(self.number))),
            3 | 4 => (RequestKind::Read, None),
            5 => (RequestKind::Flush, None),
            6 if choice & 8 != 0 => (RequestKind::Discard, Some(Version::Zeros)),
            6 => (RequestKind::WriteZeroes { unmap: choice & 16 != 0 }, Some(Version::Zeros)),
            _ => (RequestKind::Prefetch, None),
        };
        let sectors = if kind == RequestKind::Flush { 0..0 } else { sectors };
        let bytes = sectors.len() * SECTOR;
        let has_data = matches!(kind, RequestKind::Read | RequestKind::Write);
        let mut buf = if has_data { Buf::zeroed(bytes) } else { Buf::empty() };
        if let (RequestKind::Write, Some(version)) = (kind, version) {
            for (sector, into) in sectors.clone().zip(buf.bytes_mut().chunks_exact_mut(SECTOR)) {
                fill(version, sector, into);
            }
        }
        let certain = self.model.certain(sectors.clone());
        if let Some(version) = version {
            self.model.begin(self.number, sectors.clone(), version);
        }
        let (offset, len) = ((sectors.start * SECTOR) as u64, bytes as u64);
        let fua = version.is_some() && choice & 32 != 0;
        self.asked.insert(self.number, Asked { sectors, kind, certain });
        let request = Request { volume: VOLUME, kind, offset, len, fua, buf };
        self.executor.submit(self.number, request);
    }

    fn command(&mut self, input: &mut Input) {
        let choice = input.byte();
        let command = match choice & 7 {
            0 => Command::Drain(VOLUME),
            1 => Command::Cancel(VOLUME),
            2 => {
                self.lost = true;
                Command::OriginLost(VOLUME)
            }
            3 => return self.bring_back(),
            _ => Command::SetMode(VOLUME, Mode::ALL[usize::from(choice >> 3) % Mode::ALL.len()]),
        };
        self.commands += 1;
        self.executor.command(self.commands as u64, command);
    }

    /// The origin is back. Nothing that went to it before is under way any more.
    fn bring_back(&mut self) {
        for at in (0..self.executor.pending.len()).rev() {
            if of_origin(&self.executor.pending[at]) {
                self.executor.end(at, Some(IoError::Io));
            }
        }
        self.lost = false;
        self.commands += 1;
        let back = Command::OriginBack { volume: VOLUME, changed: false };
        self.executor.command(self.commands as u64, back);
    }

    /// Ends an I/O under way. Those of the origin may fail.
    fn end(&mut self, input: &mut Input) {
        let pending = self.executor.pending.len();
        let (at, fails) = (input.below(pending.max(1)), input.byte() > 0xf0);
        if pending == 0 {
            return;
        }
        self.end_at(at, fails);
    }

    fn end_at(&mut self, at: usize, fails: bool) {
        let fails = (fails || self.lost) && of_origin(&self.executor.pending[at]);
        self.executor.end(at, fails.then_some(IoError::Io));
    }

    fn take_answers(&mut self) {
        for (RequestId(id), result, buf) in std::mem::take(&mut self.executor.replies) {
            let asked = self.asked.remove(&id).expect("each request is answered once");
            let Asked { sectors, kind, certain } = asked;
            match kind {
                RequestKind::Read if result.is_ok() => {
                    self.model.check(sectors.start, &certain, buf.bytes());
                }
                RequestKind::Write | RequestKind::WriteZeroes { .. } if result.is_ok() => {
                    self.model.succeed(id, sectors);
                }
                _ => {}
            }
        }
        let answered = self.executor.commands.len();
        assert!(answered <= self.commands, "each command is answered once");
    }

    fn settle(&mut self) {
        self.executor.settle();
        self.take_answers();
        self.executor.engine.check();
    }

    fn kill(self, input: &mut Input) -> World {
        let World { executor, model, number, .. } = self;
        let mut survives = u64::from(input.long()) << 16 | 0xffff;
        let disks = executor.kill(|| {
            survives = survives.rotate_right(1);
            survives & 1 != 0
        });
        let (executor, asked) = (opened(disks), BTreeMap::new());
        World { executor, lost: false, model, asked, commands: 0, number }
    }

    /// Lets all end, and reads everything.
    fn finish(&mut self) {
        self.bring_back();
        let (requests, commands) = (self.asked.len(), self.commands);
        self.executor.run(|it| it.replies.len() == requests && it.commands.len() == commands);
        self.take_answers();
        assert!(self.asked.is_empty());
        for at in (0..SECTORS).step_by(64) {
            let sectors = at..(at + 64).min(SECTORS);
            self.number += 1;
            let certain = self.model.certain(sectors.clone());
            let (offset, len) = ((at * SECTOR) as u64, (sectors.len() * SECTOR) as u64);
            let (kind, buf) = (RequestKind::Read, Buf::zeroed(len as usize));
            self.asked.insert(self.number, Asked { sectors, kind, certain });
            let request = Request { volume: VOLUME, kind, offset, len, fua: false, buf };
            self.executor.submit(self.number, request);
        }
        let requests = self.asked.len();
        self.executor.run(|it| it.replies.len() == requests);
        let good = self.executor.replies.iter().all(|reply| reply.1.is_ok());
        assert!(good, "reads fail with devices that work");
        self.take_answers();
        self.executor.engine.check();
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let devices = 1 + input.byte() % 2;
    let executor = opened(Disks::new(devices, first()));
    let (model, asked) = (Model::new(), BTreeMap::new());
    let mut world = World { executor, lost: false, model, asked, commands: 0, number: 0 };
    let mut kills = 0;
    while !input.is_empty() {
        match input.byte() {
            0..=89 if world.asked.len() < REQUESTS_MAX => world.submit(input),
            0..=179 => world.end(input),
            180..=199 => world.settle(),
            200..=219 => {
                let ns = 1 << input.below(36);
                world.executor.pass(ns);
            }
            220..=234 => world.command(input),
            235..=250 => {
                for _ in 0..world.executor.pending.len() {
                    world.end_at(0, false);
                }
                world.settle();
            }
            _ if kills < 4 => {
                kills += 1;
                world = world.kill(input);
            }
            _ => {}
        }
    }
    world.settle();
    world.finish();
}
