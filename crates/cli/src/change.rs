//! The verbs that change something.

use crate::EXIT_DEGRADED;
use crate::args::{
    AttachArgs, CacheArgs, ChangeFlags, Cli, Format, JobArgs, PoolCreateArgs, PoolReplaceArgs,
    RemoveArgs, ResizeArgs, TieredArgs, VolumeCommand, VolumeCreateArgs,
};
use crate::show::{job_done, plan_lines, unexpected};
use crate::watch::{self, Interrupts};
use crate::{output, path, printed, start};
use forebay_api::hint::Flag;
use forebay_api::reply::{Done, Reply};
use forebay_api::request::{
    CacheRequest, Change, ChangedOrigin, Named, PoolCreate, PoolReplace, VolumeAttach,
    VolumeCreate, VolumeCreateTiered, VolumeMode, VolumeResize, name_from_origin,
};
use forebay_api::{ApiError, Body, Client, ErrorKind, Hint, Outcome, Request};
use forebay_format::name::escaped;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

pub fn ask(client: &Client, request: &Request) -> Result<Done, ApiError> {
    match client.ask(request)? {
        Body::Done(done) => Ok(*done),
        body => Err(unexpected(&body)),
    }
}

pub fn for_people(format: Format) -> bool {
    matches!(format, Format::Table | Format::Wide)
}

/// Prints an answer; the plan only when it is all there is.
pub fn finish(format: Format, done: Done) -> Result<u8, ApiError> {
    let mut text = Vec::new();
    if let (Some(plan), Outcome::Planned) = (&done.plan, done.outcome) {
        text.extend(plan_lines(plan));
    }
    text.extend(done.told.texts());
    if done.outcome == Outcome::Planned {
        let asks = done.asks.texts();
        text.extend(asks.iter().map(|what| format!("would ask first: {what}")));
        text.push("nothing was changed (--dry-run)".to_string());
    }
    let code = if done.degraded { EXIT_DEGRADED } else { 0 };
    printed(output::one(format, &Reply::from(Body::Done(Box::new(done))), &text))?;
    Ok(code)
}

/// Asks before data is lost. Without a terminal, only `--yes` is an answer.
pub fn confirm(yes: bool, what: &str) -> Result<(), ApiError> {
    if yes {
        return Ok(());
    }
    let refused = |text: String| ApiError::refused(text).hint(Hint::Again { with: Flag::Yes });
    if !std::io::stdin().is_terminal() {
        return Err(refused(format!("{what}, and nobody can be asked here")));
    }
    eprint!("{what}. Go on? Type yes: ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    match read {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => Err(refused("nothing was changed".to_string())),
    }
}

/// Asks for the plan first, shows it, and asks the user when devices hold something.
fn plan_then(
    cli: &Cli,
    client: &Client,
    (flags, force): (&ChangeFlags, bool),
    request: impl Fn(bool) -> Request,
) -> Result<u8, ApiError> {
    let planned = ask(client, &request(true))?;
    let devices = planned.plan.iter().flat_map(|plan| &plan.devices);
    let refused = !force && devices.into_iter().any(|device| !device.holds.is_empty());
    if flags.dry_run {
        finish(cli.output, planned)?;
        return Ok(if refused { ErrorKind::Refused.exit_code() } else { 0 });
    }
    if let Some(plan) = &planned.plan {
        if for_people(cli.output) {
            plan_lines(plan).iter().for_each(|line| eprintln!("{}", escaped(line)));
        }
        let full: Vec<String> = plan
            .devices
            .iter()
            .filter(|device| !device.holds.is_empty())
            .map(|device| format!("{} on {}", device.holds.join(", "), device.path))
            .collect();
        // Without --force the daemon refuses, and nobody has to be asked.
        if !full.is_empty() && force {
            confirm(flags.yes, &format!("this destroys {}", full.join("; ")))?;
        }
    }
    finish(cli.output, ask(client, &request(false))?)
}

fn devices(paths: &[PathBuf]) -> Result<Vec<String>, ApiError> {
    paths.iter().map(|device| path::device(device)).collect()
}

/// `cache`.
pub fn cache(cli: &Cli, args: &CacheArgs) -> Result<u8, ApiError> {
    // After what was typed, not after the longer name that the disk keeps.
    let name = args.name.clone().unwrap_or_else(|| name_from_origin(&args.origin));
    let wanted = CacheRequest {
        export: args.export,
        origin: path::origin(&args.origin)?,
        devices: devices(&args.devices)?,
        name: Some(name),
        mode: args.mode,
        ram: args.ram.map(|size| size.to_string()),
        dry_run: false,
        force: args.force,
    };
    let client = match (args.run, cli.client()) {
        (false, Ok(client)) => client,
        (true, _) => start::find_or_start(cli, args.state_dir.as_deref())?,
        (false, Err(error)) => return Err(error.hint(Hint::Again { with: Flag::Run })),
    };
    let request = |dry_run| Request::Cache(CacheRequest { dry_run, ..wanted.clone() });
    plan_then(cli, &client, (&args.flags, args.force), request)
}

/// `pool create`.
pub fn pool_create(cli: &Cli, args: &PoolCreateArgs) -> Result<u8, ApiError> {
    let wanted = PoolCreate {
        name: args.name.clone(),
        devices: devices(&args.devices)?,
        ram: args.ram.map(|size| size.to_string()),
        dry_run: false,
        force: args.force,
        keep_dirty: args.keep_dirty,
    };
    let request = |dry_run| Request::PoolCreate(PoolCreate { dry_run, ..wanted.clone() });
    plan_then(cli, &cli.client()?, (&args.flags, args.force), request)
}

/// `pool replace`.
pub fn pool_replace(cli: &Cli, args: &PoolReplaceArgs) -> Result<u8, ApiError> {
    let wanted = PoolReplace {
        name: args.name.clone(),
        old: path::absolute(&args.old.to_string_lossy())?,
        new: path::device(&args.new)?,
        dry_run: false,
        force: args.force,
    };
    let client = cli.client()?;
    let request = |dry_run| Request::PoolReplace(PoolReplace { dry_run, ..wanted.clone() });
    let planned = ask(&client, &request(true))?;
    if args.flags.dry_run {
        return finish(cli.output, planned);
    }
    if args.force {
        confirm(args.flags.yes, &format!("this destroys what {} holds", wanted.new))?;
    }
    let done = ask(&client, &request(false))?;
    if !args.no_wait {
        watch::second_copies(&client, &args.name)?;
    }
    finish(cli.output, done)
}

/// `pool destroy`.
pub fn pool_destroy(cli: &Cli, name: &str, flags: &ChangeFlags) -> Result<u8, ApiError> {
    let client = cli.client()?;
    let request =
        |dry_run| Request::PoolDestroy(Change { name: name.into(), dry_run, ..Change::default() });
    let planned = ask(&client, &request(true))?;
    if flags.dry_run {
        return finish(cli.output, planned);
    }
    confirm(flags.yes, &format!("this takes the pool {name} off its devices for good"))?;
    finish(cli.output, ask(&client, &request(false))?)
}

/// `volume create`.
pub fn volume_create(cli: &Cli, args: &VolumeCreateArgs) -> Result<u8, ApiError> {
    let Some(origin) = &args.origin else { return volume_create_tiered(cli, args) };
    let request = Request::VolumeCreate(VolumeCreate {
        name: args.name.clone(),
        origin: path::origin(origin)?,
        pool: args.pool.clone(),
        mode: args.mode,
        export: args.export,
        dry_run: args.flags.dry_run,
    });
    finish(cli.output, ask(&cli.client()?, &request)?)
}

/// `volume create` over tiers.
fn volume_create_tiered(cli: &Cli, args: &VolumeCreateArgs) -> Result<u8, ApiError> {
    let device = crate::tiers::device;
    let tier = |devices: &String| devices.split(',').map(device).collect::<Result<Vec<_>, _>>();
    let TieredArgs { size, use_percent, overcommit, placement, durable, force, .. } = &args.tiered;
    let wanted = VolumeCreateTiered {
        name: args.name.clone(),
        tiers: args.tiers.iter().map(tier).collect::<Result<_, _>>()?,
        size: size.clone(),
        use_percent: *use_percent,
        overcommit: *overcommit,
        placement: *placement,
        durable: *durable,
        pool: args.pool.clone(),
        mode: args.mode,
        export: args.export,
        dry_run: args.flags.dry_run,
        force: *force,
        accept_ephemeral: false,
        allow_missing: args.tiered.allow_missing,
    };
    let client = cli.client()?;
    let request = |dry_run, accept_ephemeral| {
        Request::VolumeCreateTiered(VolumeCreateTiered {
            dry_run,
            accept_ephemeral,
            ..wanted.clone()
        })
    };
    let planned = ask(&client, &request(true, false))?;
    if args.flags.dry_run {
        return finish(cli.output, planned);
    }
    if for_people(cli.output) {
        planned.told.texts().iter().for_each(|line| eprintln!("{}", escaped(line)));
    }
    planned.asks.texts().iter().try_for_each(|what| confirm(args.flags.yes, what))?;
    finish(cli.output, ask(&client, &request(false, true))?)
}

/// `volume resize`.
pub fn volume_resize(cli: &Cli, args: &ResizeArgs) -> Result<u8, ApiError> {
    let request = Request::VolumeResize(VolumeResize {
        name: args.name.clone(),
        size: args.size.clone(),
        dry_run: args.dry_run,
    });
    finish(cli.output, ask(&cli.client()?, &request)?)
}

/// `volume attach`.
pub fn volume_attach(cli: &Cli, args: &AttachArgs) -> Result<u8, ApiError> {
    let changed = match (args.drop_dirty, args.keep_dirty) {
        (true, _) => ChangedOrigin::DropDirty,
        (_, true) => ChangedOrigin::KeepDirty,
        _ => ChangedOrigin::Refuse,
    };
    if args.drop_dirty && !args.flags.dry_run {
        confirm(
            args.flags.yes,
            &format!("this loses the dirty data of {}, if it has any", args.name),
        )?;
    }
    let origin = args.origin.as_deref().map(path::origin).transpose()?;
    let attach = |dry_run| {
        let (name, origin) = (args.name.clone(), origin.clone());
        Request::VolumeAttach(VolumeAttach { name, changed, origin, dry_run })
    };
    if args.keep_dirty && !args.flags.dry_run && !args.flags.yes {
        let planned = ask(&cli.client()?, &attach(true))?;
        if planned.hold.is_some() || origin.is_some() {
            confirm(false, &planned.told.texts().join("; "))?;
        }
    }
    let request = attach(args.flags.dry_run);
    finish(cli.output, ask(&cli.client()?, &request)?)
}

/// Whether something is lost with a volume that is removed, and may be.
fn accepts_loss(cli: &Cli, args: &JobArgs, change: &Change) -> Result<bool, ApiError> {
    let plan = Request::VolumeRemove(Change { dry_run: true, ..change.clone() });
    let asks = ask(&cli.client()?, &plan)?.asks;
    asks.texts().iter().try_for_each(|what| confirm(args.flags.yes, what))?;
    Ok(!asks.is_empty())
}

/// `volume mode`, `drain`, `detach` and `remove`: jobs, when there is dirty data.
pub fn volume_job(cli: &Cli, command: &VolumeCommand) -> Result<u8, ApiError> {
    let change = |args: &JobArgs| Change {
        name: args.name.clone(),
        dry_run: args.flags.dry_run,
        force: args.force,
        ..Change::default()
    };
    let (request, name, flags) = match command {
        VolumeCommand::Mode { name, mode, flags } => {
            let wanted = VolumeMode { name: name.clone(), mode: *mode, dry_run: flags.dry_run };
            (Request::VolumeMode(wanted), name, flags)
        }
        VolumeCommand::Drain(args) => (Request::VolumeDrain(change(args)), &args.name, &args.flags),
        VolumeCommand::Detach(args) => {
            (Request::VolumeDetach(change(args)), &args.name, &args.flags)
        }
        VolumeCommand::Remove(RemoveArgs { job: args, drop_dirty }) => {
            if *drop_dirty && !args.flags.dry_run {
                let what = format!("this loses dirty data of {}, if it has any", args.name);
                confirm(args.flags.yes, &what)?;
            }
            let mut change = Change { drop_dirty: *drop_dirty, ..change(args) };
            change.accept_loss = !args.flags.dry_run && accepts_loss(cli, args, &change)?;
            (Request::VolumeRemove(change), &args.name, &args.flags)
        }
        VolumeCommand::Cancel { name } => {
            let named = Named { name: name.clone() };
            let done = ask(&cli.client()?, &Request::JobCancel(named))?;
            return finish(cli.output, done);
        }
        VolumeCommand::Create(_)
        | VolumeCommand::Attach(_)
        | VolumeCommand::Resize(_)
        | VolumeCommand::Rescue(_)
        | VolumeCommand::List
        | VolumeCommand::Show { .. } => {
            return Err(ApiError::usage("this verb runs no job"));
        }
    };
    let client = cli.client()?;
    let interrupts = Interrupts::catch()?;
    let mut done = ask(&client, &request)?;
    if done.outcome == Outcome::Started && !flags.no_wait {
        let (job, outcome) = watch::job(&client, name, &interrupts)?;
        done = Done::new(outcome, job_done(&job));
    }
    finish(cli.output, done)
}
