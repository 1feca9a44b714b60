//! `forebayd rescue`: what only the cache devices of a pool hold of a volume, printed for `forebay
//! volume rescue`, which keeps it. Nobody serves the pool meanwhile, and nothing is written:
//! neither to the devices nor to the state directory.

use crate::convert::{hex, pool_error};
use crate::parts::Parts;
use crate::state::{State, Store};
use anyhow::Context;
use forebay_api::hint::{Care, Flag};
use forebay_api::rescue::{Base64, RescueSpan, Unread, WhyUnread};
use forebay_api::socket::default_state_dir;
use forebay_api::{ApiError, Body, Hint, Reply, RescueAbout, RescuePart};
use forebay_engine::{VolumeId, WhyClosed, Witness};
use forebay_format::BLOCK_SIZE;
use forebay_format::superblock::{VolumeEntry, field_text};
use forebay_host::device::{Access, DeviceError};
use forebay_host::pool::{PoolError, PoolOnDisk, read_pool};
use forebay_host::rescue::offline::{Known, Rescue};
use forebay_host::rescue::{self, Part};
use forebay_host::shard::VolumeSnapshot;
use forebay_host::{read_distrust, witness};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is to be rescued.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The volume
    name: String,
    /// The cache devices of its pool
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Also when a newer state of them was seen
    #[arg(long)]
    force: bool,
    /// Only read, and leave the bytes out
    #[arg(long)]
    dry_run: bool,
}

/// Prints each part on a line of its own, as the daemon would answer it; or an error as the last.
///
/// # Errors
/// Nobody reads what is printed.
pub fn run(args: &Args, state_dir: Option<&Path>) -> anyhow::Result<()> {
    let dir = state_dir.map_or_else(default_state_dir, Path::to_path_buf);
    let mut pipe = Ok(());
    let done = rescue(args, &dir, |part| {
        pipe = say(Body::Rescued(Box::new(part)));
        pipe.is_ok()
    });
    pipe?;
    done.or_else(|error| say(Body::Error { error }))
}

fn say(body: Body) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(&Reply::from(body))?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).context("print what was read")
}

fn rescue(
    args: &Args,
    dir: &Path,
    mut tell: impl FnMut(RescuePart) -> bool,
) -> Result<(), ApiError> {
    let pool = read(args)?;
    let mut about = About::of(&pool, dir)?;
    let entry = find(&pool, args)?;
    about.check_life(&pool, args)?;
    let mut rescue = about.open(&pool, VolumeId(entry.id.get()), args)?;
    let block = BLOCK_SIZE as u64;
    let (bytes, mut from) = (rescue.bytes(), 0);
    let mut first = Some(about.told(&pool, &entry, &rescue));
    loop {
        let dirty = rescue.dirty(from);
        from = dirty.next;
        let is_end = from * block >= bytes;
        if dirty.blocks.is_empty() && !is_end && first.is_none() {
            continue;
        }
        let read = rescue.read(&dirty).map_err(|why| ApiError::failed(why.to_string()))?;
        let next = (!is_end).then_some(from * block);
        let part = RescuePart { about: first.take(), next, ..answer(read, args.dry_run) };
        if !tell(part) || is_end {
            return Ok(());
        }
    }
}

fn read(args: &Args) -> Result<PoolOnDisk, ApiError> {
    let pool = read_pool(&args.devices, Access::ReadAlone).map_err(|error| match error {
        PoolError::Device(DeviceError::InUse { .. }) => {
            pool_error(&error).hint(Hint::RescueByDaemon { volume: args.name.clone() })
        }
        error => pool_error(&error),
    })?;
    match pool.devices.iter().any(|slot| slot.device.is_ok()) {
        true => Ok(pool),
        false => Err(ApiError::failed(pool.findings.join("; "))),
    }
}

fn find(pool: &PoolOnDisk, args: &Args) -> Result<VolumeEntry, ApiError> {
    let volumes = &pool.superblock.volumes;
    let own = volumes.iter().find(|entry| field_text(&entry.name) == args.name);
    own.copied().ok_or_else(|| {
        let names: Vec<String> = volumes.iter().map(|it| field_text(&it.name)).collect();
        let (pool, name) = (pool.name(), &args.name);
        ApiError::not_found(match names.is_empty() {
            true => format!("pool {pool}, which is on the devices, has no volumes"),
            false => {
                let names = names.join(", ");
                format!("pool {pool}, which is on the devices, has no volume {name:?}, but {names}")
            }
        })
    })
}

/// What is known of a pool.
struct About {
    state: Option<Arc<State>>,
    known: Known,
    log_seen: Option<u64>,
    is_older: bool,
    notes: Vec<String>,
}

impl About {
    /// What a daemon has remembered in `dir`, if this pool was ever open there.
    fn of(pool: &PoolOnDisk, dir: &Path) -> Result<About, ApiError> {
        let (name, uuid) = (pool.name(), pool.uuid());
        let failed = |what: &str, error: String| {
            ApiError::failed(format!("read {what} of pool {name} in {}: {error}", dir.display()))
        };
        let store =
            Store::open(dir).map_err(|error| failed("what is remembered", error.to_string()))?;
        let state = store.get();
        let distrust = read_distrust(dir, &uuid);
        let distrust = distrust.map_err(|error| failed("the note", error.to_string()))?;
        let seen = state.seen(&name).filter(|seen| seen.uuid == hex(&uuid));
        let mut notes = pool.findings.clone();
        let (mut witness, mut log_seen) = (Witness::default(), None);
        match (seen, witness::read(dir, &uuid)) {
            (_, Err(error)) => return Err(failed("the witness", error.to_string())),
            (Some(_), Ok(Witness::Seen(last))) => {
                (witness, log_seen) = (Witness::Seen(last), Some(last));
            }
            (Some(_), Ok(Witness::Accepted)) => {
                witness = Witness::Accepted;
                notes.push("an administrator has accepted an older state of it".to_string());
            }
            (Some(seen), Ok(Witness::Missing)) if seen.witnessed => {
                let dir = dir.display();
                notes.push(format!(
                    "the witness of its log is gone from {dir}: nothing tells whether this is its \
                     newest state"
                ));
            }
            (Some(_) | None, _) => {
                let dir = dir.display();
                notes.push(format!(
                    "nothing in {dir} tells whether this is the newest state of the pool; if its \
                     daemon had its state elsewhere, say where: --state-dir DIR"
                ));
            }
        }
        let state = seen.is_some().then(|| Arc::clone(&state));
        Ok(About {
            state,
            known: Known { distrust, witness, absent_given_up: false },
            log_seen,
            is_older: false,
            notes,
        })
    }

    /// Refuses devices that the pool went on without, or that are from before a life that is known.
    fn check_life(&mut self, pool: &PoolOnDisk, args: &Args) -> Result<(), ApiError> {
        let name = pool.name();
        let Some(seen) = self.state.as_ref().and_then(|state| state.seen(&name)) else {
            return Ok(());
        };
        let parts = Parts::of(pool);
        let left = parts.used().all(|uuid| seen.left.contains(uuid));
        let epoch = pool.superblock.header.epoch.get();
        let text = match left {
            true => "the pool was in use since, without them".to_string(),
            false if epoch < seen.begun => {
                format!("they are from life {epoch} of its log, and life {} has begun", seen.begun)
            }
            false => return Ok(()),
        };
        self.older(format!("these devices of pool {name} hold an OLDER state: {text}"), args)
    }

    /// Goes on with an older state only where that is wanted.
    fn older(&mut self, text: String, args: &Args) -> Result<(), ApiError> {
        if !args.force {
            let text =
                format!("{text}: what they hold of {} is not what was written last", args.name);
            return Err(ApiError::refused(text)
                .hint(Hint::SeeTo { what: Care::Newest })
                .hint(Hint::Again { with: Flag::ForceOlder }));
        }
        self.notes.push(text);
        (self.known.witness, self.is_older) = (Witness::Accepted, true);
        Ok(())
    }

    /// Opens the pool, with what of it is here.
    fn open<'a>(
        &mut self,
        pool: &'a PoolOnDisk,
        volume: VolumeId,
        args: &Args,
    ) -> Result<Rescue<'a>, ApiError> {
        loop {
            let error = match Rescue::open(pool, volume, &self.known) {
                Ok(rescue) => return Ok(rescue),
                Err(error) => error,
            };
            let (was_accepted, gave_up) =
                (self.known.witness == Witness::Accepted, self.known.absent_given_up);
            match error.why {
                WhyClosed::DirtyIsAway if !gave_up => {
                    let text = error.text.split(". ").next().unwrap_or_default();
                    self.notes.push(format!("{text}. What of it is of this volume is lost"));
                    self.known.absent_given_up = true;
                }
                WhyClosed::OlderState if !was_accepted => {
                    let (pool, seen) = (pool.name(), self.log_seen.unwrap_or_default());
                    let text = format!(
                        "these devices of pool {pool} hold an OLDER state, or are damaged: its log \
                         was seen up to record {seen}, and ends before that here"
                    );
                    self.older(text, args)?;
                }
                WhyClosed::UnknownAge if !was_accepted => {
                    self.known.witness = Witness::Accepted;
                }
                _ => {
                    return Err(ApiError::failed(format!("pool {}: {error}", pool.name())));
                }
            }
        }
    }

    fn told(self, pool: &PoolOnDisk, entry: &VolumeEntry, rescue: &Rescue<'_>) -> RescueAbout {
        RescueAbout {
            pool: pool.name(),
            origin: field_text(&entry.origin),
            volume_bytes: rescue.bytes(),
            dirty_bytes: rescue.dirty_blocks() * BLOCK_SIZE as u64,
            log_epoch: Some(pool.superblock.header.epoch.get()),
            log_end: Some(rescue.log_end()),
            log_seen: self.log_seen,
            is_older: self.is_older,
            notes: [&self.notes[..], rescue.notes()].concat(),
        }
    }
}

/// The same, of a volume whose pool is served: nothing of it is older than it should be.
pub fn of_daemon(pool: &str, volume: &VolumeSnapshot) -> RescueAbout {
    RescueAbout {
        pool: pool.to_string(),
        origin: volume.view.origin.clone(),
        volume_bytes: volume.view.bytes,
        dirty_bytes: volume.stats.dirty_bytes(),
        log_epoch: None,
        log_end: None,
        log_seen: None,
        is_older: false,
        notes: Vec::new(),
    }
}

/// What was read, as it is answered.
pub fn answer(part: Part, dry_run: bool) -> RescuePart {
    let span = |offset, bytes| RescueSpan { offset, bytes };
    let pieces = part.pieces.iter().map(|(at, buf)| span(*at, buf.len() as u64)).collect();
    let content = part.pieces.iter().filter(|_| !dry_run).flat_map(|(_, buf)| buf.bytes());
    let data = Base64(content.copied().collect());
    let unread = part.unread.iter().map(|(at, why)| Unread {
        span: span(at.offset, at.bytes),
        why: match why {
            rescue::Unread::Lost => WhyUnread::Lost,
            rescue::Unread::InUse | rescue::Unread::NotServed => WhyUnread::InUse,
        },
    });
    RescuePart { about: None, pieces, data, unread: unread.collect(), next: None }
}
