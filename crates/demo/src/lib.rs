//! What `forebay demo` plays: the whole product on simulated disks, without root.
//!
//! A simulated hard disk full of files, a fast file as the cache device, a real `forebayd` between
//! them, and one workload on the bare disk, on the cache in each mode, and on the bare fast file.
//! Then the daemon is killed in the middle of a write-back run, and everything that it had
//! acknowledged is looked for. At last scratch space in memory spills onto a disk, without moves
//! and with them.
#![forbid(unsafe_code)]

mod daemon;
mod device;
mod files;
mod ledger;
mod load;
mod nbd;
mod page;
pub mod report;
mod stage;
mod svg;
mod tiers;

pub use page::page;
pub use stage::Show;

use forebay_api::hint::Choice;
use forebay_api::{ApiError, Hint};
use stage::Demo;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Plays the demo in a folder of its own, until `stop` is set at the latest. With `keep` the folder
/// stays, and it is said how to go on with it.
///
/// # Errors
/// When a step could not be carried out. That something was lost is no error: see
/// [`Show::is_good`].
pub fn play(keep: bool, stop: Arc<AtomicBool>) -> Result<Show, ApiError> {
    let folder = Folder::new(keep)?;
    let played = Demo::new(&folder.path, stop).and_then(Demo::play);
    if keep {
        how_to_use(&folder.path);
    }
    played
}

/// The folder in which everything happens; removed at the end.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn new(keep: bool) -> Result<Folder, ApiError> {
        let path = std::env::temp_dir().join(format!("forebay-demo-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| {
            ApiError::failed(format!("make {}: {error}", path.display()))
                .hint(Hint::Choose { what: Choice::TemporaryDirectory })
        })?;
        Ok(Folder { path, keep })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn how_to_use(folder: &Path) {
    let state = folder.join("state");
    let (folder, state) = (folder.display(), state.display());
    eprintln!(
        "\nkept in {folder}: disk.img (the slow disk), fast.img (the cache), state/. To go on \
         with it:\n\
         \x20 forebayd --state-dir {state} &\n\
         \x20 forebay --socket {state} status\n\
         \x20 nbdinfo 'nbd+unix:///demo?socket={state}/nbd.sock'\n\
         and in the end: rm -r {folder}\n"
    );
}
