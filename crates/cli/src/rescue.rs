//! `volume rescue`: keeps what only the cache holds of a volume, in a sparse file as large as the
//! volume, with a map of what is in it.

mod map;
mod source;
mod target;

use crate::args::{Format, RescueArgs};
use crate::watch::{Interrupts, rescue_bar};
use crate::{Cli, EXIT_DEGRADED, output, printed};
use forebay_api::rescue::{RescueSpan, Unread};
use forebay_api::size::human;
use forebay_api::{ApiError, ErrorKind, RescueAbout, RescuePart, SCHEMA};
use forebay_format::name::escaped;
use map::{Kind, Map};
use serde::Serialize;
use source::Source;
use target::{Begun, Target};

/// Ranges that are shown one by one; the map has all.
const SHOWN_MAX: usize = 16;

/// What came of it.
#[derive(Debug, Serialize)]
struct Rescued {
    schema: u32,
    kind: &'static str,
    volume: String,
    #[serde(flatten)]
    about: RescueAbout,
    /// `daemon`, or `devices`.
    source: &'static str,
    dry_run: bool,
    /// Where it is kept, and the map of it; in a dry run where it would be.
    image: Option<String>,
    map: Option<String>,
    rescued_bytes: u64,
    rescued: Vec<RescueSpan>,
    lost_bytes: u64,
    lost: Vec<Unread>,
    /// How it is written onto a disk in the place of the origin.
    apply: Option<String>,
}

/// Keeps what only the cache holds.
///
/// # Errors
/// Nobody has it, or it cannot be kept.
pub fn run(cli: &Cli, args: &RescueArgs) -> Result<u8, ApiError> {
    let planned = args.to.as_deref().map(|to| Target::plan(to, args)).transpose()?;
    let files = planned.as_ref().map(|it| (it.image(), it.map()));
    let interrupts = Interrupts::catch()?;
    let mut source = Source::open(cli, args)?;
    let incomplete = || ApiError::failed("it was not told of what volume this is");
    let mut part = source.next()?.ok_or_else(incomplete)?;
    let about = part.about.take().ok_or_else(incomplete)?;
    let target = planned.filter(|_| !args.dry_run).map(|it| it.begin(&about)).transpose()?;
    let mut keeper = Keeper { target, map: Map::default(), lost: Vec::new() };
    let bar = rescue_bar(&args.name, about.dirty_bytes);
    let mut take_all = || -> Result<(), ApiError> {
        loop {
            keeper.keep(&part)?;
            bar.set_position(keeper.map.bytes(Kind::Rescued) + keeper.map.bytes(Kind::Unread));
            if interrupts.came() {
                return Err(ApiError::new(ErrorKind::Cancelled, "the rescue was cancelled"));
            }
            match source.next()? {
                Some(next) => part = next,
                None => return Ok(()),
            }
        }
    };
    let taken = take_all();
    bar.finish_and_clear();
    let Keeper { target, map, lost } = keeper;
    if let Some(target) = target {
        let comments = comments(args, &about, taken.is_ok());
        let written = target.finish((&map, &comments), about.volume_bytes, taken.is_err());
        match (&taken, written) {
            (Ok(()), written) => written?,
            (Err(_), Err(_)) => {}
            (Err(error), Ok(())) => return Err(with_what_is_there(error, &map, files.as_ref())),
        }
    }
    taken?;
    let from = source.name();
    report(cli.output, args, Rescued::new(args, (about, from), files, (&map, lost)))
}

/// What was got so far.
struct Keeper {
    target: Option<Begun>,
    map: Map,
    lost: Vec<Unread>,
}

impl Keeper {
    fn keep(&mut self, part: &RescuePart) -> Result<(), ApiError> {
        let torn = || ApiError::failed("the bytes that came are not as many as was said");
        let mut unread = part.unread.iter().peekable();
        for (span, bytes) in part.content().ok_or_else(torn)? {
            while let Some(lost) = unread.next_if(|it| it.span.offset < span.offset) {
                self.lose(*lost);
            }
            if let Some(target) = &mut self.target {
                target.keep(span, bytes)?;
            }
            self.map.push(span, Kind::Rescued);
        }
        unread.for_each(|lost| self.lose(*lost));
        Ok(())
    }

    fn lose(&mut self, unread: Unread) {
        self.map.push(unread.span, Kind::Unread);
        match self.lost.last_mut() {
            Some(last)
                if last.why == unread.why
                    && last.span.offset + last.span.bytes == unread.span.offset =>
            {
                last.span.bytes += unread.span.bytes;
            }
            _ => self.lost.push(unread),
        }
    }
}

/// An error, with what was kept before it.
fn with_what_is_there(error: &ApiError, map: &Map, files: Option<&(String, String)>) -> ApiError {
    let kept = map.bytes(Kind::Rescued);
    let Some((image, of)) = files.filter(|_| kept > 0) else { return error.clone() };
    let text = format!(
        "{}; {} that came before are in {image}, and {of} says which",
        error.message,
        human(kept)
    );
    ApiError { message: text, ..error.clone() }
}

fn comments(args: &RescueArgs, about: &RescueAbout, is_whole: bool) -> Vec<String> {
    let (name, bytes) = (&args.name, about.volume_bytes);
    let mut comments = vec![
        format!("volume {name} of pool {}, {bytes} bytes", about.pool),
        format!("its origin: {}", about.origin),
    ];
    if let (Some(epoch), Some(end)) = (about.log_epoch, about.log_end) {
        comments.push(format!("as of record {end} in life {epoch} of the pool's log"));
    }
    if !is_whole {
        comments.push("INCOMPLETE: the rescue ended before the end of the volume".to_string());
    }
    comments.extend(about.notes.iter().cloned());
    comments.iter().map(|comment| escaped(comment)).collect()
}

impl Rescued {
    fn new(
        args: &RescueArgs,
        (about, source): (RescueAbout, &'static str),
        files: Option<(String, String)>,
        (map, lost): (&Map, Vec<Unread>),
    ) -> Rescued {
        let rescued_bytes = map.bytes(Kind::Rescued);
        let (image, of) = files.unzip();
        let apply = image.as_ref().zip(of.as_ref()).filter(|_| rescued_bytes > 0);
        let apply = apply.map(|(image, map)| {
            let [image, map] = [image, map].map(|it| quoted(it));
            format!("ddrescue --force --domain-mapfile={map} {image} DISK applied.map")
        });
        Rescued {
            schema: SCHEMA,
            kind: "rescue",
            volume: args.name.clone(),
            about,
            source,
            dry_run: args.dry_run,
            image,
            map: of,
            rescued_bytes,
            rescued: map.of(Kind::Rescued).collect(),
            lost_bytes: map.bytes(Kind::Unread),
            lost,
            apply,
        }
    }

    fn lines(&self) -> Vec<String> {
        let (name, bytes, ranges) = (&self.volume, human(self.rescued_bytes), self.rescued.len());
        let (verb, kept) = match (self.dry_run, &self.image) {
            (false, Some(image)) => ("is", format!(" in {image}")),
            (_, Some(image)) => ("would be", format!(" in {image}")),
            (_, None) => ("would be", " rescued".to_string()),
        };
        let mut lines = vec![match (self.rescued_bytes, self.lost_bytes) {
            (0, 0) => format!("volume {name}: nothing is dirty; the origin has all of it"),
            _ => format!("volume {name}: {bytes} in {ranges} range(s) {verb}{kept}"),
        }];
        if self.lost_bytes > 0 {
            let (bytes, ranges) = (human(self.lost_bytes), self.lost.len());
            lines.push(format!("LOST: {bytes} in {ranges} range(s) could not be read"));
            let shown = self.lost.iter().take(SHOWN_MAX);
            lines.extend(shown.map(|lost| {
                let RescueSpan { offset, bytes } = lost.span;
                format!("  {bytes} bytes at {offset}: {}", lost.why)
            }));
            if ranges > SHOWN_MAX {
                lines.push(format!("  and {} more; -o json has all", ranges - SHOWN_MAX));
            }
        }
        if let (Some(epoch), Some(end)) = (self.about.log_epoch, self.about.log_end) {
            let pool = &self.about.pool;
            let seen = match self.about.log_seen {
                Some(seen) => format!("; its daemon had seen record {seen}"),
                None => String::new(),
            };
            lines.push(format!("as of record {end} in life {epoch} of the log of {pool}{seen}"));
        }
        lines.extend(self.about.notes.iter().map(|note| format!("note: {note}")));
        if let Some(map) = self.map.as_ref().filter(|_| !self.dry_run) {
            lines.push(format!("which bytes these are: {map} (a mapfile of GNU ddrescue)"));
        }
        if let Some(apply) = self.apply.as_ref().filter(|_| !self.dry_run) {
            lines.push(format!(
                "to write them onto the disk that takes the origin's place: {apply}"
            ));
        }
        lines
    }
}

fn report(format: Format, args: &RescueArgs, rescued: Rescued) -> Result<u8, ApiError> {
    let mut lines = rescued.lines();
    if args.dry_run {
        lines.push("nothing was written (--dry-run)".to_string());
    }
    printed(output::one(format, &rescued, &lines))?;
    let is_less = rescued.lost_bytes > 0 || rescued.about.is_older;
    Ok(if is_less { EXIT_DEGRADED } else { 0 })
}

/// A path, as a shell takes it.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,".contains(c);
    match path.chars().all(is_plain) {
        true => path.to_string(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}
