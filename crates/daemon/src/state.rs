//! What the daemon remembers between two lives: which pools are where, and what the pools cannot
//! know of their volumes. One JSON file, written beside and moved over, durable before a change is
//! answered.

mod tiered;

use crate::lock::lock;
use anyhow::{Context, bail};
use forebay_api::hint::{NoRoom, Writing};
use forebay_api::request::{Export, check_name};
use forebay_api::{ApiError, Hint, Mode};
use forebay_host::file::{read_plain, replace_private};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
pub use tiered::{Age, Chosen, LeftState, MemberState, PinState, TieredState, WitnessState};

const FILE: &str = "state.json";
const SCHEMA: u32 = 1;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Removed volumes whose tiers are remembered.
const LEFT_MAX: usize = 64;

/// Everything that is remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    schema: u32,
    /// Pools to open.
    pub pools: Vec<PoolState>,
    /// Volumes, also the detached ones: those that their pool's superblock does not list.
    pub volumes: Vec<VolumeState>,
    /// Of which devices the tiers of volumes are, also of detached ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiered: Vec<TieredState>,
    /// What was last seen of the pools, by name.
    #[serde(default)]
    pub seen: Vec<PoolSeen>,
    /// Block devices of the kernel that were made for volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceState>,
    /// Block devices of ublk that were made for volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ublk: Vec<UblkState>,
    /// NBD devices of the kernel that were made for volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbd: Vec<NbdState>,
    /// Where the devices of tiers were whose volumes were removed, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<LeftState>,
    /// What was removed while the devices that hold it were missing. Old when they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<GivenUp>,
}

/// What was seen of a pool when it was opened last: all there is to go by when its devices are
/// missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSeen {
    /// Name.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Identity, as hexadecimal digits.
    pub uuid: String,
    /// The life of its log that began then.
    pub epoch: u64,
    /// The newest life that is known to have begun: its devices cannot be older.
    #[serde(default)]
    pub begun: u64,
    /// Whether a witness of its log is kept since it was seen first. Older versions kept none: that
    /// there is none tells nothing then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub witnessed: bool,
    /// Identities of devices without which it went on: what they hold is old.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// How an administrator can tell its devices: path, identity, serial number.
    pub devices: Vec<String>,
}

/// A volume of a pool, or all of a pool, that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUp {
    /// Identity of the pool, as hexadecimal digits.
    pub pool: String,
    /// The volume; `None` for all of the pool.
    #[serde(deserialize_with = "name_if_any")]
    pub volume: Option<String>,
}

/// Whether a volume is served, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Through its pool.
    #[default]
    Served,
    /// From its origin alone since its pool's devices were missing. What the pool holds of it may
    /// be old. Set before the first request.
    Bypassed,
    /// Not: an administrator took it out of service.
    Detached,
}

/// A pool to open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolState {
    /// Name.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Absolute paths of its devices.
    pub devices: Vec<String>,
    /// Most memory that it may take, in bytes; `None` for what suits its size.
    #[serde(default)]
    pub ram_bytes: Option<u64>,
}

/// What a pool's superblock does not say about a volume, or would lose with its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeState {
    /// Name.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Its pool, or what stands for one, see [`own_pool`].
    #[serde(deserialize_with = "pool_name")]
    pub pool: String,
    /// URI of the origin.
    pub origin: String,
    /// The mode that it had last.
    pub mode: Mode,
    /// How it is made visible.
    pub export: Export,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the cache may hold dirty data for it. Set before the first dirty write is possible,
    /// cleared after the last one is home.
    pub may_be_dirty: bool,
    /// Whether it is served.
    #[serde(default)]
    pub standing: Standing,
    /// Fingerprint, as hexadecimal digits, of an origin that an administrator accepted in place of
    /// the one that the superblock remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_origin: Option<String>,
    /// What its origin looked like when the daemon ended in order, as
    /// [`forebay_host::rest::Rest`] says it. Removed before anything is written to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rested: Option<String>,
    /// Its block device has sectors of 512 bytes: the origin had, or what was on it needed them,
    /// when the volume was made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub small_sectors: bool,
}

/// A loop device over a file on FUSE, and what its next owner must know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    /// The volume.
    #[serde(deserialize_with = "name")]
    pub volume: String,
    /// The life of the machine in which it was made.
    pub boot: String,
    /// Its number: `/dev/loopN`.
    pub number: u32,
    /// The file system that its file is on.
    pub file_system: u64,
    /// Minor number of the kernel's FUSE protocol.
    pub fuse_minor: u32,
    /// What kernel and daemon agreed on.
    pub fuse_flags: u64,
    /// Bytes of the largest request.
    pub fuse_bytes_max: u32,
}

/// A block device of ublk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UblkState {
    /// The volume.
    #[serde(deserialize_with = "name")]
    pub volume: String,
    /// The life of the machine in which it was made.
    pub boot: String,
    /// Its number: `/dev/ublkbN`.
    pub number: u32,
    /// The number that the kernel keeps with it, by which it is known again.
    pub mark: u64,
}

/// An NBD device of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdState {
    /// The volume.
    #[serde(deserialize_with = "name")]
    pub volume: String,
    /// The life of the machine in which it was made.
    pub boot: String,
    /// Its number: `/dev/nbdN`.
    pub index: u32,
    /// The name that the kernel keeps with it, by which it is known again.
    pub backend: String,
}

/// Stands for the pool of a volume that has none: a pool in memory, of its own, whose name nobody
/// can type.
pub fn own_pool(volume: &str) -> String {
    format!(".{volume}")
}

/// The volume of a pool that stands for none.
pub fn owner_of(pool: &str) -> Option<&str> {
    pool.strip_prefix('.')
}

/// A name, checked as one that is typed.
fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    check_name(&name).map_err(D::Error::custom)?;
    Ok(name)
}

fn pool_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    check_name(owner_of(&name).unwrap_or(&name)).map_err(D::Error::custom)?;
    Ok(name)
}

fn name_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    name.as_deref().map_or(Ok(()), check_name).map_err(D::Error::custom)?;
    Ok(name)
}

impl State {
    /// The volume with this name.
    pub fn volume(&self, name: &str) -> Option<&VolumeState> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// The volume with this name, to change it.
    pub fn volume_mut(&mut self, name: &str) -> Option<&mut VolumeState> {
        self.volumes.iter_mut().find(|volume| volume.name == name)
    }

    /// The volumes of a pool that are to be served.
    pub fn served_by<'s>(&'s self, pool: &'s str) -> impl Iterator<Item = &'s VolumeState> {
        let own = self.volumes.iter().filter(move |volume| volume.pool == pool);
        own.filter(|volume| volume.standing != Standing::Detached)
    }

    /// The tiers of the volume with this name.
    pub fn tiers_of(&self, volume: &str) -> Option<&TieredState> {
        self.tiered.iter().find(|it| it.name == volume)
    }

    /// Whether devices of a volume's tiers, by identity, are to join or to leave.
    pub fn set_unsettled(&mut self, volume: &str, uuids: &[String], unsettled: bool) {
        let own = self.tiered.iter_mut().filter(|it| it.name == volume);
        let members = own.flat_map(|it| &mut it.members).filter(|it| uuids.contains(&it.uuid));
        members.for_each(|it| it.unsettled = unsettled);
    }

    /// What was last seen of the pool with this name.
    pub fn seen(&self, pool: &str) -> Option<&PoolSeen> {
        self.seen.iter().find(|seen| seen.name == pool)
    }

    /// Whether this volume of the pool with this identity was given up, or with `None` the pool.
    pub fn is_given_up(&self, pool: &str, volume: Option<&str>) -> bool {
        self.given_up.iter().any(|it| it.pool == pool && it.volume.as_deref() == volume)
    }

    /// Forgets a volume, and which devices its tiers are.
    pub fn forget_volume(&mut self, name: &str) {
        self.volumes.retain(|volume| volume.name != name);
        if let Some(left) = self.tiers_of(name).and_then(TieredState::left) {
            self.left.retain(|it| it.set != left.set);
            self.left.push(left);
            self.left.drain(..self.left.len().saturating_sub(LEFT_MAX));
        }
        self.tiered.retain(|tiers| tiers.name != name);
    }

    /// Puts a volume in, in place of one of its name.
    pub fn put_volume(&mut self, volume: VolumeState) {
        self.volumes.retain(|other| other.name != volume.name);
        self.volumes.push(volume);
        self.volumes.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

/// The file that holds a [`State`]. Everybody may look at any time; one change follows the other.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// Held for as long as it takes to write.
    writing: Mutex<()>,
    state: Mutex<Arc<State>>,
}

impl Store {
    /// Reads what was remembered in `dir`; nothing if there is no file yet.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn open(dir: &Path) -> anyhow::Result<Store> {
        let path = dir.join(FILE);
        let advice = || {
            format!(
                "read {}; no pool is harmed by moving it away and opening the pools again with \
                 forebay pool create NAME DEVICE…",
                path.display()
            )
        };
        let state = match read_plain(&path, FILE_BYTES_MAX) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(advice)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                State { schema: SCHEMA, ..State::default() }
            }
            Err(error) => return Err(error).with_context(advice),
        };
        if state.schema != SCHEMA {
            bail!("{} has schema {}; use a newer Forebay", path.display(), state.schema);
        }
        let state = Mutex::new(Arc::new(state));
        Ok(Store { dir: dir.to_path_buf(), writing: Mutex::new(()), state })
    }

    /// What is remembered.
    pub fn get(&self) -> Arc<State> {
        Arc::clone(&lock(&self.state))
    }

    /// Writes what is remembered once more, to see whether it can be written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rewrite(&self) -> Result<(), ApiError> {
        let _writing = lock(&self.writing);
        self.write(&self.get())
    }

    /// Changes what is remembered. Durable when it returns; nothing has changed if it fails.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ApiError> {
        let _writing = lock(&self.writing);
        let before = self.get();
        let mut state = State::clone(&before);
        change(&mut state);
        if state != *before {
            self.write(&state)?;
            *lock(&self.state) = Arc::new(state);
        }
        Ok(())
    }

    /// Changes what is remembered of a volume, if there is one of this name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn change_volume(
        &self,
        name: &str,
        change: impl FnOnce(&mut VolumeState),
    ) -> Result<(), ApiError> {
        self.change(|all| all.volume_mut(name).map_or((), change))
    }

    fn write(&self, state: &State) -> Result<(), ApiError> {
        let dir = self.dir.display();
        write(&self.dir, state).map_err(|error| match is_full(&error) {
            true => ApiError::failed(format!("the state directory {dir} is full: {error:#}"))
                .hint(Hint::FreeSpace { at: NoRoom::StateDirectory }),
            false => ApiError::failed(format!("{error:#}"))
                .hint(Hint::AllowWriting { dir: dir.to_string(), and: Writing::Rights }),
        })
    }
}

/// Whether there is no room where it was to be written.
fn is_full(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| matches!(io.kind(), StorageFull | QuotaExceeded))
}

fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    let path = dir.join(FILE);
    let mut json = serde_json::to_vec_pretty(state).context("encode the state")?;
    json.push(b'\n');
    replace_private(&path, &json).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests;
