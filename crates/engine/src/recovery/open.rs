//! A start begins with what the superblock says, and ends in a pool that serves, or in one that
//! cannot be opened. Requests and commands that came meanwhile wait for that.

use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Key;
use crate::open_error::OpenError;
use crate::pool::{Source, Stage, Then};
use crate::recovery::Opening;
use crate::requests::Queue;
use crate::settings::{Presence, Settings, Witness};
use crate::volume::Volume;
use std::collections::VecDeque;

impl Engine {
    pub(crate) fn recover(&mut self, settings: &Settings) {
        let mut entries = settings.superblock.volumes.clone();
        entries.sort_by_key(|entry| entry.id.get());
        for entry in entries {
            let id = entry.id.get();
            let Some(base) = self.base_for(entry.bytes.get().div_ceil(4096)) else {
                return self.open_failed("the volumes are too large for the index".into());
            };
            let origin = settings.origins.iter().find(|origin| origin.volume.0 == id);
            let Some(volume) = Volume::of_entry(&entry, base, origin) else {
                let why = format!("volume {id} has an unknown mode; use a newer Forebay");
                return self.open_failed(why.into());
            };
            self.writeback.volume_comes(volume.id(), volume.stripe_blocks());
            self.volumes.insert(volume);
        }
        if self.segments.devices().iter().all(|device| !device.healthy) {
            return self.open_failed("no device of the pool is there; attach one".into());
        }
        let sources = self.checkpoint_sources();
        let devices_with = |presence: Presence| {
            let devices = (0..).zip(&settings.devices);
            devices.filter(move |(_, it)| it.presence == presence).map(|(n, _)| n)
        };
        self.pool.enter(Stage::Opening(Box::new(Opening {
            sources,
            failed: vec![0; settings.devices.len()],
            behind: devices_with(Presence::Behind).map(usize::from).collect(),
            given_up: devices_with(Presence::GivenUp).map(DeviceId).collect(),
            witness: witness(settings),
            checkpoints: 1,
            ..Opening::default()
        })));
        self.recovering(Opening::recover_checkpoint);
    }

    /// The checkpoints that may be used, newest first, each from every device.
    fn checkpoint_sources(&self) -> VecDeque<Source> {
        let header = self.pool.header();
        let devices: Vec<DeviceId> = self.segments.working().collect();
        let from_each = |source: Source| {
            let has = |it: &&DeviceId| {
                let since = self.segments.devices()[usize::from(it.0)].since;
                since.is_none_or(|since| source.generation > since.checkpoint)
            };
            let devices = devices.iter().filter(has);
            devices.map(move |it| Source { device: it.0, ..source }).collect::<Vec<_>>()
        };
        let newest = Source::newest(header).into_iter();
        newest.chain(Source::previous(header)).flat_map(from_each).collect()
    }

    pub(crate) fn open_failed(&mut self, why: OpenError) {
        let early = match self.pool.enter(Stage::Failed(why.clone())) {
            Stage::Opening(opening) => opening.early,
            _ => Vec::new(),
        };
        self.io.notify(Notice::OpenFailed(why));
        for (id, command) in early {
            self.command(id, command);
        }
        for name in self.reqs.take_all(Queue::Recovery) {
            self.reqs.fail(name, IoError::Gone);
            self.reply(name);
        }
    }

    /// Takes a step of recovery, if that is under way; it may end in a pool that cannot be opened.
    pub(crate) fn recovering<T>(
        &mut self,
        step: impl FnOnce(&mut Opening, &mut Engine) -> Result<T, OpenError>,
    ) -> Option<T> {
        match self.pool.enter(Stage::Recovering) {
            Stage::Opening(mut opening) => {
                let result = step(&mut opening, self);
                self.pool.enter(Stage::Opening(opening));
                result.map_err(|why| self.open_failed(why)).ok()
            }
            Stage::Recovering => unreachable!("a step does not take another"),
            other => {
                self.pool.enter(other);
                None
            }
        }
    }

    /// Part of `settle` while recovery runs.
    pub(crate) fn recover_more(&mut self) {
        if self.recovering(Opening::recover_more) != Some(true) {
            return;
        }
        // The one that is the last resort is of the life before: the next replaces it soon.
        self.pool.want_checkpoint();
        let Stage::Opening(opening) = self.pool.enter(Stage::Serving) else {
            unreachable!("it has just ended well")
        };
        self.io.put(Effect::Notice(Notice::Opened {
            records: opening.summary.records,
            blocks: self.map.len() as u64,
            dirty: self.volumes.iter().map(|v| v.dirty().len()).sum(),
        }));
        if self.away_untold() {
            self.superblock_write(Then::Away);
        }
        if self.segments.has_halves() {
            self.sweep(Sweep::Unreachable);
        }
        for (id, command) in opening.early {
            self.command(id, command);
        }
        for name in self.reqs.take_all(Queue::Recovery) {
            let req = self.reqs.get(name);
            let volume = self.vol(req.volume);
            let (span, served) = (volume.span(req.offset, req.len), volume.service().is_on());
            // The volume's keys may have become others when the checkpoint was read.
            self.reqs.rebase(name, span);
            if served {
                self.accept(name);
            } else {
                self.reqs.fail(name, IoError::Gone);
                self.reply(name);
            }
        }
    }

    /// Forgets all clean blocks that were found so far.
    pub(crate) fn drop_all_clean(&mut self) {
        self.forget_clean_of(Key::FIRST..Key::MAX);
    }
}

/// What is known of the log. Whoever gives devices up may give its end up with them.
fn witness(settings: &Settings) -> Witness {
    let gives_up = settings.devices.iter().any(|it| it.presence == Presence::GivenUp);
    match settings.witness {
        Witness::Seen(_) if gives_up => Witness::default(),
        witness => witness,
    }
}
