//! A device of a pool gives its place to another one, while the pool serves.
//!
//! The path of the new device is remembered before anything changes, and that of the old one is
//! forgotten when nothing needs it any more: a start in between finds the pool either way.

use super::plan::{content_of, same_file};
use super::{COMMAND_TIMEOUT, Opened, Pool, Supervisor, lock, shard_error};
use crate::convert::hex;
use forebay_api::hint::{AtLeast, Choice, Devices, Flag, When};
use forebay_api::reply::{DeviceInfo, Done};
use forebay_api::request::PoolReplace;
use forebay_api::told::Names;
use forebay_api::{ApiError, ErrorKind, Hint, Outcome, Told};
use forebay_engine::{Command, CommandReply, DeviceId, State};
use forebay_host::device::{Access, Content, Device};
use std::path::Path;
use std::time::Duration;

/// How long a checkpoint of a large pool may take.
const TAKE_IN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long what is under way on the old device may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl Opened {
    /// The devices, and whether each works now.
    pub(super) fn devices_now(&self) -> Vec<DeviceInfo> {
        let failed = lock(&self.failed);
        let devices = self.devices.iter().enumerate();
        let now = devices.map(|(index, device)| {
            let since = failed.devices.get(&index);
            DeviceInfo {
                present: device.present && since.is_none(),
                unused_s: since.map(|since| since.elapsed().as_secs()),
                ..device.clone()
            }
        });
        now.collect()
    }
}

impl Supervisor {
    /// What can be done for a pool that does without some of its devices.
    pub(super) fn how_to_mend(&self, pool: &Pool, open: &Opened) -> Hint {
        let name = pool.known.name.clone();
        let gone = open.devices_now().into_iter().find(|device| !device.present);
        match gone.filter(|_| !lock(&open.failed).log) {
            Some(device) => Hint::ReplaceDevice { pool: name, device: device.path },
            None => {
                let devices = Devices::Paths(pool.known.devices.clone());
                Hint::RemakePool { pool: name, devices }
            }
        }
    }

    pub(super) fn pool_replace(&self, wanted: &PoolReplace) -> Result<Done, ApiError> {
        let PoolReplace { name, old, new, .. } = wanted;
        let open = self.open_pool(name)?;
        let index = self.place_of(&open, wanted)?;
        let same = same_file(&open.devices[index].path, new);
        let content = self.check_newcomer(&open, wanted, same)?;
        // As for real, for a moment: what is in use is refused now as then.
        let device = match same {
            true => None,
            false => Some(self.open_newcomer(&open, index, new)?),
        };
        if wanted.dry_run {
            let (pool, old, new) = (name.clone(), old.clone(), new.clone());
            let holds = Names(vec![content.to_string()]);
            let told = Told::WouldReplaceDevice { pool, old, new, holds };
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.check_memory()?;
        self.remember_device(name, |devices| {
            if !devices.contains(new) {
                devices.push(new.clone());
            }
        })?;
        let replaced = self.replace_device(&open, wanted, index, device);
        let path = open.devices[index].path.clone();
        // What was remembered of replacements that were cut short is not needed any more.
        let now = self.open_pool(name).map(|open| open.devices_now()).unwrap_or_default();
        let is_whole = !now.is_empty() && now.iter().all(|it| it.present);
        self.remember_device(name, |devices| match &replaced {
            Ok(()) if is_whole => devices.retain(|it| now.iter().any(|own| own.path == *it)),
            Ok(()) => devices.retain(|it| *it == *new || !same_file(it, &path)),
            // What was not answered in time may still be done.
            Err(error) if error.kind == ErrorKind::Refused => {
                devices.retain(|it| *it != *new || same);
            }
            Err(_) => {}
        })?;
        replaced?;
        tracing::info!(pool = name.as_str(), old, new, "a device was replaced");
        let (pool, old, new) = (name.clone(), old.clone(), new.clone());
        let mut done = Done::new(Outcome::Changed, Told::DeviceReplaced { pool, old, new });
        done.pool = Some(self.pool(name)?);
        Ok(done)
    }

    /// Which of its devices is meant.
    fn place_of(&self, open: &Opened, wanted: &PoolReplace) -> Result<usize, ApiError> {
        let PoolReplace { name, old, new, .. } = wanted;
        if !old.starts_with('/') || !new.starts_with('/') {
            return Err(ApiError::usage("the paths of devices are absolute"));
        }
        if let Some(why) = &open.bypass {
            return Err(why.clone());
        }
        let snapshot = open.handle.snapshot().map_err(|error| shard_error(name, &error))?;
        if snapshot.state != State::Serving {
            let text = format!("pool {name} is being opened or stopped");
            return Err(ApiError::conflict(text).hint(Hint::Again { with: Flag::Later }));
        }
        let place = open.devices.iter().position(|it| it.path == *old || same_file(&it.path, old));
        // Which of those that are remembered is the one that is missing nobody knows.
        let mut missing = (0..open.devices.len()).filter(|&at| !open.devices[at].present);
        let only = missing.next().filter(|_| missing.next().is_none());
        let known = self.inner().pools.get(name).map(|pool| pool.known.devices.clone());
        let is_known = known.is_some_and(|known| known.iter().any(|path| same_file(path, old)));
        let place = place.or(only.filter(|_| is_known)).ok_or_else(|| {
            let devices: Vec<&str> = open.devices.iter().map(|it| it.path.as_str()).collect();
            let text = format!("pool {name} has no device {old}; it has {}", devices.join(" "));
            ApiError::not_found(text)
                .hint(Hint::ShowPool { pool: name.clone(), when: When::SeeWhatIsWrong })
        })?;
        if open.devices.len() == 1 {
            let text = format!(
                "{old} is the only device of pool {name}: nothing could serve what is dirty on it"
            );
            let devices = Devices::Paths(vec![new.clone()]);
            return Err(
                ApiError::refused(text).hint(Hint::RemakePool { pool: name.clone(), devices })
            );
        }
        Ok(place)
    }

    /// What the new device holds, which is refused without `--force`; and where it is in use.
    fn check_newcomer(
        &self,
        open: &Opened,
        wanted: &PoolReplace,
        same: bool,
    ) -> Result<Content, ApiError> {
        let new = &wanted.new;
        if !same {
            self.check_not_stacked(new)?;
            self.check_no_origin(new)?;
            // One that is remembered of a replacement that was cut short is not used.
            let is_used = |it: &DeviceInfo| it.present && same_file(&it.path, new);
            let is_used = open.devices_now().iter().any(is_used);
            let user = self.pool_using(std::slice::from_ref(new));
            if let Some(user) = user.filter(|user| user.name != wanted.name || is_used) {
                let text = format!("{new} is a device of the pool {} already", user.name);
                return Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::Device }));
            }
        }
        let content = content_of(Path::new(new))?;
        if wanted.force || content.is_empty() {
            return Ok(content);
        }
        let why = match open.devices.iter().any(|it| same_file(&it.path, new)) {
            true => ", and all that it holds of it is given up",
            false => "",
        };
        let text = format!("{new} holds {content}{why}; it was not touched");
        Err(ApiError::refused(text)
            .hint(Hint::LookAtFile { path: new.clone() })
            .hint(Hint::Again { with: Flag::ForceOverwrite }))
    }

    /// Opens the new device; it must be as large as its place.
    fn open_newcomer(&self, open: &Opened, index: usize, new: &str) -> Result<Device, ApiError> {
        let paths = [new.to_string()];
        let device = self.open_devices(&paths, Access::Exclusive)?;
        let device = std::sync::Arc::into_inner(device).and_then(|mut it| it.pop());
        let device = device.ok_or_else(|| ApiError::failed(format!("{new} is not open")))?;
        let (has, needed) = (device.info().bytes, open.devices[index].least_bytes);
        if has < needed {
            let old = &open.devices[index].path;
            let text = format!("{new} has {has} bytes, and the place of {old} needs {needed}");
            return Err(ApiError::refused(text).hint(Hint::LargerDevice { bytes: AtLeast(needed) }));
        }
        Ok(device)
    }

    /// Has the engine do it.
    fn replace_device(
        &self,
        open: &Opened,
        wanted: &PoolReplace,
        index: usize,
        device: Option<Device>,
    ) -> Result<(), ApiError> {
        let (name, place) = (&wanted.name, DeviceId(index as u8));
        let failed = |error| shard_error(name, &error);
        let told = |reply| match reply {
            CommandReply::Failed(why) => Err(ApiError::refused(why)
                .hint(Hint::ShowPool { pool: name.clone(), when: When::SeeWhatIsWrong })),
            _ => Ok(()),
        };
        let reply = open.handle.command(Command::LetGo(place), COMMAND_TIMEOUT);
        told(reply.map_err(failed)?)?;
        if !open.handle.close_cache(place, CLOSE_TIMEOUT).map_err(failed)? {
            let text = format!("I/O is under way on {} that does not end", wanted.old);
            return Err(ApiError::failed(text).hint(Hint::Again { with: Flag::Later }));
        }
        let device = match device {
            Some(device) => device,
            None => self.open_newcomer(open, index, &wanted.new)?,
        };
        let (bytes, uuid) = (device.info().bytes, crate::convert::random_uuid()?);
        let serial = device.info().serial.clone();
        // Whatever fails from now on, fails under its name.
        lock(&open.failed).came.insert(index, hex(&uuid));
        let reply = open.handle.take_in((place, uuid), device, TAKE_IN_TIMEOUT);
        told(reply.map_err(failed)?)?;
        let mut inner = self.inner();
        let now = inner.pools.get_mut(name).and_then(|pool| pool.open.as_mut().ok());
        if let Some(now) = now {
            let device = &mut now.devices[index];
            (device.path, device.bytes, device.present) = (wanted.new.clone(), bytes, true);
            device.serial = serial;
            now.findings.clear();
            lock(&now.notices).clear();
        }
        Ok(())
    }

    /// Remembers which paths lead to the devices of a pool.
    fn remember_device(
        &self,
        name: &str,
        change: impl Fn(&mut Vec<String>),
    ) -> Result<(), ApiError> {
        if let Some(pool) = self.inner().pools.get_mut(name) {
            change(&mut pool.known.devices);
        }
        self.remember(|all| {
            all.pools
                .iter_mut()
                .filter(|it| it.name == name)
                .for_each(|it| change(&mut it.devices));
        })
    }
}
