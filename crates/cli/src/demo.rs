//! `forebay demo`: the whole product on simulated disks, without root.
//!
//! A simulated hard disk full of files, a fast file as the cache device, a real `forebayd` between
//! them, and one workload on the bare disk, on the cache in each mode, and on the bare fast file.
//! Then the daemon is killed in the middle of a write-back run, and everything that it had
//! acknowledged is looked for.

mod daemon;
mod device;
mod files;
mod ledger;
mod load;
mod nbd;
mod page;
mod report;
mod stage;
mod svg;

use crate::args::{DemoArgs, Format};
use crate::{output, printed};
use forebay_api::ApiError;
use serde_json::json;
use stage::{Demo, Show};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Plays the demo, prints one table and writes one page.
///
/// # Errors
/// When a step could not be carried out. That something was lost is no error but exit code 1.
pub fn run(format: Format, args: &DemoArgs) -> Result<u8, ApiError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| ApiError::failed(format!("watch for Ctrl-C: {error}")))?;
    }
    let folder = Folder::new(args.keep)?;
    let played = Demo::new(&folder.path, stop).and_then(Demo::play);
    if args.keep {
        how_to_use(&folder.path);
    }
    let show = played?;
    print(format, &show)?;
    let page = page::page(&show);
    std::fs::write(&args.html, page)
        .map_err(|error| ApiError::failed(format!("write {}: {error}", args.html.display())))?;
    eprintln!("the same with plots: {}", args.html.display());
    Ok(u8::from(!show.is_good()))
}

fn print(format: Format, show: &Show) -> Result<(), ApiError> {
    let lines = report::lines(show);
    let document = json!({
        "schema": forebay_api::SCHEMA,
        "kind": "demo",
        "rows": lines,
        "verdicts": report::verdicts(show),
    });
    printed(output::rows(format, &document, report::COLUMNS, &lines, |_| Vec::new()))?;
    if matches!(format, Format::Table | Format::Wide) {
        let mut text = vec![String::new()];
        text.extend(report::verdicts(show).into_iter().map(|verdict| verdict.text));
        printed(output::lines(&text))?;
    }
    Ok(())
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
                .action("choose another place: export TMPDIR=DIR")
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
