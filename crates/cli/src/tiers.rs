//! Tiers: what is on them, and where parts of a volume live.

use crate::args::{Cli, ExplainArgs, Format, TierAddArgs, TierArgs, TierCommand};
use crate::change::{ask, confirm, finish};
use crate::output::{self, Column};
use crate::show::{document, field, unexpected};
use crate::{path, printed, watch};
use forebay_api::request::{
    ExplainTiers, Named, TierAdd, TierChange, TierPin, TierRemove, TierSet,
};
use forebay_api::size::human;
use forebay_api::tiers::{
    DeviceState, ExtentInfo, TierAt, TierDevice, TierPart, TiersInfo, TiersShown,
};
use forebay_api::{ApiError, Body, Client, Done, Hint, Outcome, Request, Told};
use std::path::Path;

const SECTOR: u64 = 512;

const DEVICES: &[Column<TierDevice>] = &[
    Column::count("TIER", "tier", |it| it.tier.into()),
    Column::words("DEVICE", "device", |it| it.device.clone()),
    Column::words("STATE", "state", |it| it.state.name().to_string()),
    Column::bytes("SIZE", "size_bytes", |it| it.bytes),
    Column::bytes("USED", "used_bytes", |it| it.used_bytes),
    Column::bytes("FREE", "free_bytes", |it: &TierDevice| it.bytes.saturating_sub(it.used_bytes)),
    Column::count("READS", "reads", |it| it.reads),
    Column::bytes("READ", "read_bytes", |it| it.read_bytes),
    Column::count("WRITES", "writes", |it| it.writes),
    Column::bytes("WRITTEN", "written_bytes", |it| it.written_bytes),
    Column::bytes("MOVED IN", "moved_in_bytes", |it| it.moved_in_bytes),
    Column::bytes("MOVED OUT", "moved_out_bytes", |it| it.moved_out_bytes),
    Column::words("LEAVING", "leaving", |it: &TierDevice| yes_or_no(it.leaving)).wide(),
    Column::words("MAP", "holds_map", |it: &TierDevice| yes_or_no(it.holds_map)).wide(),
    Column::words("FAILING", "failing", |it: &TierDevice| yes_or_no(it.failing)).wide(),
    Column::count("READ ERRORS", "read_errors", |it: &TierDevice| it.read_errors).wide(),
    Column::count("WRITE ERRORS", "write_errors", |it: &TierDevice| it.write_errors).wide(),
    Column::words("FULL", "full", |it: &TierDevice| yes_or_no(it.full)).wide(),
    Column::count("WAITS", "waits_s", |it: &TierDevice| it.waits_s).wide(),
];

fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_string()
}

/// What is said below a device.
fn below(it: &TierDevice) -> Vec<String> {
    let is_silent = it.state == DeviceState::NoAnswer;
    let silent = is_silent.then(|| format!("has not answered for {} s", it.waits_s));
    silent.into_iter().collect()
}

const EXTENTS: &[Column<ExtentInfo>] = &[
    Column::number("LBA", "lba", |it| (it.offset / SECTOR) as f64, |lba| format!("{lba:.0}")),
    Column::words("TIER", "tier", |it| it.tier.map_or("-".to_string(), |tier| tier.to_string())),
    Column::words("DEVICE", "device", |it| it.device.clone().unwrap_or_else(|| "-".to_string())),
    Column::numbers(
        "AT",
        "device_offset",
        |it| it.device_offset.map_or("-".to_string(), human),
        |it| it.device_offset.map_or(String::new(), |at| at.to_string()),
    ),
    Column::bytes("WRITTEN", "written_bytes", |it| it.written_bytes),
    Column::numbers(
        "SINCE",
        "since_s",
        |it| it.since_s.map_or("-".to_string(), |seconds| format!("{seconds} s")),
        |it| it.since_s.map_or(String::new(), |seconds| seconds.to_string()),
    ),
    Column::number("HEAT", "heat", |it| it.heat, |heat| format!("{heat:.1}")),
    Column::words("WHY NOT HIGHER", "why", |it| it.why.clone()),
];

/// `tier`.
pub fn run(cli: &Cli, command: &TierCommand) -> Result<u8, ApiError> {
    let named = |name: &str| Named { name: name.to_string() };
    let client = cli.client()?;
    let done = |request: Request| finish(cli.output, ask(&client, &request)?);
    match command {
        TierCommand::Show { name, lost } => {
            let body = client.ask(&Request::TierShow(named(name)))?;
            let Body::Tiers(shown) = &body else { return Err(unexpected(&body)) };
            show(cli.output, shown, *lost)
        }
        TierCommand::Evacuate { tier, overcommit, no_wait } => {
            let interrupts = watch::Interrupts::catch()?;
            let wanted = TierChange { overcommit: *overcommit, ..change(tier)? };
            let mut answer = ask(&client, &Request::TierEvacuate(wanted.clone()))?;
            if answer.outcome == Outcome::Started && !no_wait {
                let on = format!("; how far it is: forebay tier show {}", tier.name);
                let (volume, part) = (tier.name.clone(), leaving(&answer, &wanted));
                watch::evacuation(&client, (&volume, &part), (&interrupts, &on))?;
                answer.outcome = Outcome::Changed;
                let pins = answer.told.typed().filter(|it| matches!(it, Told::PinsWait { .. }));
                let pins = pins.cloned().collect::<Vec<Told>>();
                answer.told = vec![Told::Evacuated { part, volume }].into();
                answer.told.extend(pins);
            }
            finish(cli.output, answer)
        }
        TierCommand::Add(args) => add(cli, &client, args),
        TierCommand::Remove { tier, drop_lost, overcommit, yes } => {
            let tier = TierChange { overcommit: *overcommit, ..change(tier)? };
            remove(cli, &client, (tier, *drop_lost, *yes))
        }
        TierCommand::Pin { what, tier, dry_run } => {
            pin(cli, &client, (what, *dry_run), Some(named_tier(tier)?))
        }
        TierCommand::Unpin { what, dry_run } => pin(cli, &client, (what, *dry_run), None),
        TierCommand::Set { name, placement, rate, window, overcommit } => {
            done(Request::TierSet(TierSet {
                name: name.clone(),
                placement: *placement,
                rate: rate.clone(),
                window: window.clone(),
                overcommit: *overcommit,
            }))
        }
        TierCommand::Cancel(tier) => done(Request::TierCancel(change(tier)?)),
        TierCommand::Pause { name } => done(Request::TierPause(named(name))),
        TierCommand::Resume { name } => done(Request::TierResume(named(name))),
    }
}

/// Path or URI of a device, as the daemon needs it.
pub fn device(uri: &str) -> Result<String, ApiError> {
    match uri.contains(':') && !uri.starts_with('/') {
        true => path::origin(uri),
        false => path::device(Path::new(uri)),
    }
}

/// `tier add`: what is overwritten is told, and asked for.
fn add(cli: &Cli, client: &Client, args: &TierAddArgs) -> Result<u8, ApiError> {
    let wanted = TierAdd {
        name: args.name.clone(),
        device: device(&args.device)?,
        at: match (args.tier, args.before) {
            (Some(tier), _) => TierAt::Tier(tier),
            (None, Some(tier)) => TierAt::Before(tier),
            (None, None) => TierAt::Slowest,
        },
        use_percent: args.use_percent,
        dry_run: args.dry_run,
        force: args.force,
    };
    if args.force && !args.dry_run {
        let planned = ask(client, &Request::TierAdd(TierAdd { dry_run: true, ..wanted.clone() }))?;
        planned.asks.texts().iter().try_for_each(|what| confirm(args.yes, what))?;
    }
    finish(cli.output, ask(client, &Request::TierAdd(wanted))?)
}

/// `tier remove`: first it is emptied.
fn remove(
    cli: &Cli,
    client: &Client,
    (wanted, drop_lost, yes): (TierChange, bool, bool),
) -> Result<u8, ApiError> {
    let TierChange { dry_run, overcommit, .. } = wanted;
    let remove = |dry_run| {
        let (name, tier) = (wanted.name.clone(), wanted.tier.clone());
        Request::TierRemove(TierRemove { name, tier, drop_lost, dry_run, overcommit })
    };
    let planned = ask(client, &remove(true))?;
    if planned.outcome == Outcome::Changed {
        // It was no device any more, and only remembered as one.
        return finish(cli.output, planned);
    }
    if drop_lost {
        if dry_run {
            return finish(cli.output, planned);
        }
        confirm(yes, &planned.told.texts().join("; "))?;
        return finish(cli.output, ask(client, &remove(false))?);
    }
    let interrupts = watch::Interrupts::catch()?;
    let mut answer = ask(client, &Request::TierEvacuate(wanted.clone()))?;
    if dry_run {
        // Both tell what they are about to do, and the same of what is left.
        answer.told.take_out(&planned.told);
        answer.told.append(planned.told);
        return finish(cli.output, answer);
    }
    if answer.outcome == Outcome::Started {
        let TierChange { name, tier, .. } = &wanted;
        let on = format!(
            " and then uses it no more; to take it out when it is empty, ask again: forebay tier \
             remove {name} {tier}"
        );
        watch::evacuation(client, (name, &leaving(&answer, &wanted)), (&interrupts, &on))?;
    }
    finish(cli.output, ask(client, &remove(false))?)
}

/// What the daemon has begun to empty, or, of one of another version, what it was asked to.
fn leaving(answer: &Done, TierChange { tier, .. }: &TierChange) -> TierPart {
    let part = answer.told.typed().find_map(|it| match it {
        Told::Evacuates { part, .. } | Told::EvacuatesAlready { part, .. } => Some(part.clone()),
        _ => None,
    });
    part.unwrap_or_else(|| TierPart {
        tier: tier.parse().unwrap_or(0),
        devices: tier.split(',').map(str::to_string).collect(),
        whole_tier: tier.parse::<u8>().is_ok(),
    })
}

/// A tier, or devices, as they were named.
fn named_tier(tier: &str) -> Result<String, ApiError> {
    if let Ok(number) = tier.parse::<u8>() {
        return Ok(number.to_string());
    }
    // It may be missing; and several are named with commas between, unless that is its name.
    match tier.contains(',') && !Path::new(tier).exists() {
        true => Ok(tier.split(',').map(path::absolute).collect::<Result<Vec<_>, _>>()?.join(",")),
        false => path::absolute(tier),
    }
}

fn change(args: &TierArgs) -> Result<TierChange, ApiError> {
    let tier = named_tier(&args.tier)?;
    let (name, dry_run) = (args.name.clone(), args.dry_run);
    Ok(TierChange { name, tier, dry_run, overcommit: false })
}

/// `tier pin` and `unpin`.
fn pin(
    cli: &Cli,
    client: &Client,
    (what, dry_run): (&ExplainArgs, bool),
    tier: Option<String>,
) -> Result<u8, ApiError> {
    let (name, ranges) = (what.name.clone(), ranges_of(client, what)?);
    let pin = Request::TierPin(TierPin { name, ranges, tier, dry_run });
    finish(cli.output, ask(client, &pin)?)
}

/// The byte ranges of a volume that were named by their sectors, or by a file.
fn ranges_of(client: &Client, args: &ExplainArgs) -> Result<Vec<(u64, u64)>, ApiError> {
    match sectors(&args.what) {
        Some(ranges) => ranges,
        None => crate::fiemap::ranges(client, &args.name, &args.what),
    }
}

fn show(format: Format, shown: &TiersShown, lost: bool) -> Result<u8, ApiError> {
    if matches!(format, Format::Csv) {
        let rows = &shown.tiers.devices;
        printed(output::rows(format, &document(format, "tiers", shown), DEVICES, rows, |_| {
            Vec::new()
        }))?;
        return Ok(0);
    }
    let mut text = lines(&shown.tiers);
    let empty = shown.tiers.evacuations.iter().filter(|it| it.left_bytes == 0);
    text.extend(empty.map(|it| {
        let (volume, part) = (shown.volume.clone(), it.part.clone());
        format!("action: {}", Hint::RemoveTier { volume, part })
    }));
    if lost {
        let range = |(offset, len): &(u64, u64)| {
            let (first, last) = (offset / SECTOR, (offset + len) / SECTOR - 1);
            format!("lost: sectors {first}-{last} ({})", human(*len))
        };
        match shown.lost.is_empty() {
            true => text.push("nothing is lost".to_string()),
            false => text.extend(shown.lost.iter().map(range)),
        }
    }
    printed(output::one(format, &document(format, "tiers", shown), &text))?;
    Ok(0)
}

/// The tiers of a volume, for people.
pub fn lines(tiers: &TiersInfo) -> Vec<String> {
    let (used, all) = (human(tiers.used_bytes), human(tiers.capacity_bytes));
    let ephemeral = if tiers.ephemeral { ", ephemeral" } else { "" };
    let mut lines = vec![field(
        "TIERS",
        &format!("{used} of {all} used, placement {}{ephemeral}", tiers.placement.name()),
    )];
    let moves = match (tiers.paused, tiers.window, tiers.moving) {
        (true, ..) => "paused".to_string(),
        (_, Some(window), _) if tiers.outside_window => format!("wait for their time, {window}"),
        (_, _, 0) => "nothing moves".to_string(),
        (_, _, moving) => format!("{} on the way", human(moving << 20)),
    };
    let moved = human(tiers.moved_bytes);
    let rate = human(tiers.rate_bytes);
    let moves = format!("{moves}, {moved} moved since it was opened, at most {rate}/s");
    lines.push(field("MOVES", &moves));
    if let Some(window) = tiers.window {
        lines.push(field("WINDOW", &format!("{window}, by the clock of the machine")));
    }
    if tiers.pinned_bytes > 0 {
        lines.push(field("PINNED", &human(tiers.pinned_bytes)));
    }
    for it in &tiers.evacuations {
        let left = human(it.left_bytes);
        lines.push(field("LEAVES", &format!("{}, {left} left on it", it.part)));
    }
    for it in &tiers.pending {
        lines.push(field("WAIT", &format!("{} moves: {}", it.moves, it.reason)));
    }
    if tiers.lost_bytes > 0 {
        lines.push(field("LOST", &human(tiers.lost_bytes)));
    }
    lines.extend(output::table(DEVICES, &tiers.devices, false, below));
    lines
}

/// What of tiers is under way or held up, on one line, for those who did not ask.
pub fn doings(tiers: &TiersInfo) -> Option<String> {
    let mut doings = Vec::new();
    match (tiers.paused, tiers.window) {
        (true, _) => doings.push("moves are paused".to_string()),
        (false, Some(window)) if tiers.outside_window => {
            doings.push(format!("moves wait for their time, {window}"));
        }
        _ => {}
    }
    doings.extend(tiers.evacuations.iter().map(|it| match it.left_bytes {
        0 => format!("{} is empty, and takes nothing new", it.part),
        left => format!("{} is being emptied, {} left on it", it.part, human(left)),
    }));
    (!doings.is_empty()).then(|| doings.join("; "))
}

/// `explain`.
pub fn explain(cli: &Cli, args: &ExplainArgs) -> Result<u8, ApiError> {
    let client = cli.client()?;
    let ranges = ranges_of(&client, args)?;
    let asked = ExplainTiers { name: args.name.clone(), ranges };
    let body = client.ask(&Request::Explain(asked))?;
    let Body::Extents { extents, .. } = &body else { return Err(unexpected(&body)) };
    let rows = extents.clone();
    let reply = forebay_api::Reply::from(body);
    printed(output::rows(cli.output, &reply, EXTENTS, &rows, |_| Vec::new()))?;
    Ok(0)
}

/// Byte ranges of sectors, if these are some.
fn sectors(text: &str) -> Option<Result<Vec<(u64, u64)>, ApiError>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    Some(match last.checked_sub(first).and_then(|count| (count + 1).checked_mul(SECTOR)) {
        Some(len) if first < u64::MAX / SECTOR => Ok(vec![(first * SECTOR, len)]),
        _ => Err(ApiError::usage(format!("{text}: the first sector is behind the last"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_told_from_files() {
        assert_eq!(sectors("8").unwrap().unwrap(), [(4096, 512)]);
        assert_eq!(sectors("2048-4095").unwrap().unwrap(), [(1 << 20, 1 << 20)]);
        assert!(sectors("9-8").unwrap().unwrap_err().message.contains("behind the last"));
        assert!(sectors(&format!("{}", u64::MAX)).unwrap().is_err());
        assert!(sectors("./8").is_none() && sectors("/srv/a-b").is_none());
    }
}
