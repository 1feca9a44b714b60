//! forebay: the command line of Forebay.
#![forbid(unsafe_code)]

mod args;
mod change;
mod demo;
mod fiemap;
mod generator;
mod inspect;
mod iostat;
mod output;
mod path;
mod rescue;
mod show;
mod start;
mod tiers;
mod watch;

use args::{Cli, Command, ConfigCommand, PoolCommand, VolumeCommand};
use clap::{CommandFactory, Parser};
use forebay_api::config::{Config, KEYS, files_of};
use forebay_api::request::Named;
use forebay_api::{ApiError, Client, ErrorKind, Request, SCHEMA, socket};
use forebay_format::name::escaped;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

/// Exit code when something needs attention.
const EXIT_DEGRADED: u8 = 3;

fn main() -> ExitCode {
    if let Some(good) = generator::run_if_asked() {
        return if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if !is_closed_pipe(&error) {
                report(cli.output, &error);
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}

/// What was typed is no command; or is one for help. That is for people, unless JSON was asked for.
fn misused(error: &clap::Error) -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match args::wanted_json(&words).filter(|_| error.use_stderr()) {
        Some(format) => {
            let text = error.to_string();
            // What follows is how it is used, in lines of its own.
            let text = text.split("\n\n").next().unwrap_or_default().trim();
            let text = text.strip_prefix("error: ").unwrap_or(text);
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            report(format, &ApiError::usage(lines.join(" ")));
            ExitCode::from(ErrorKind::Usage.exit_code())
        }
        None => error.exit(),
    }
}

/// `forebay … | head` is no failure to report.
fn is_closed_pipe(error: &ApiError) -> bool {
    error.message.starts_with(PRINT_FAILED) && error.message.contains("Broken pipe")
}

const PRINT_FAILED: &str = "print the answer: ";

/// Turns a failure to print into an error.
fn printed(result: std::io::Result<()>) -> Result<(), ApiError> {
    result.map_err(|error| ApiError::failed(format!("{PRINT_FAILED}{error}")))
}

/// Errors go to standard error: as JSON too when JSON was asked for, so that a program gets all of
/// it.
fn report(format: args::Format, error: &ApiError) {
    if matches!(format, args::Format::Json | args::Format::Jsonl) {
        let json = json!({"schema": SCHEMA, "kind": "error", "error": error}).to_string();
        eprintln!("{}", output::json_escaped(&json));
        return;
    }
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (on, off) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{on}forebay:{off} {}", escaped(&error.message));
    for action in error.hints.texts() {
        eprintln!("  action: {}", escaped(&action));
    }
}

impl Cli {
    /// The daemon that answers.
    fn client(&self) -> Result<Client, ApiError> {
        match &self.socket {
            Some(path) => Client::find(&[socket::control_socket_of(path)]),
            None => Client::find(&socket::candidates()),
        }
    }
}

fn run(cli: &Cli) -> Result<u8, ApiError> {
    let format = cli.output;
    let named = |name: &str| Named { name: name.to_string() };
    let ask = |request: Request| cli.client()?.ask(&request);
    match &cli.command {
        Command::Cache(args) => change::cache(cli, args),
        Command::Pool(PoolCommand::Create(args)) => change::pool_create(cli, args),
        Command::Pool(PoolCommand::Replace(args)) => change::pool_replace(cli, args),
        Command::Pool(PoolCommand::List) => show::pools(format, ask(Request::PoolList)?),
        Command::Pool(PoolCommand::Show { name }) => {
            show::pool(format, ask(Request::PoolShow(named(name)))?)
        }
        Command::Pool(PoolCommand::Destroy { name, flags }) => {
            change::pool_destroy(cli, name, flags)
        }
        Command::Volume(VolumeCommand::Create(args)) => change::volume_create(cli, args),
        Command::Volume(VolumeCommand::List) => show::volumes(format, ask(Request::VolumeList)?),
        Command::Volume(VolumeCommand::Show { name }) => {
            show::volume(format, ask(Request::VolumeShow(named(name)))?)
        }
        Command::Volume(VolumeCommand::Attach(args)) => change::volume_attach(cli, args),
        Command::Volume(VolumeCommand::Rescue(args)) => rescue::run(cli, args),
        Command::Volume(VolumeCommand::Resize(args)) => change::volume_resize(cli, args),
        Command::Volume(command) => change::volume_job(cli, command),
        Command::Tier(command) => tiers::run(cli, command),
        Command::Explain(args) => tiers::explain(cli, args),
        Command::Status => show::status(format, ask(Request::Status)?),
        Command::Iostat(args) => iostat::run(&cli.client()?, format, args),
        Command::Why { volume } => show::why(format, ask(Request::Why(named(volume)))?),
        Command::Config(ConfigCommand::Check { file }) => config_check(format, file),
        Command::Config(ConfigCommand::Keys) => config_keys(format),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "forebay", &mut script);
            printed(std::io::stdout().write_all(&script))?;
            Ok(0)
        }
        Command::Inspect(args) => inspect::run(format, args),
        Command::Demo(args) => demo::run(format, args),
    }
}

/// Reads the configuration as the daemon would, and says everything that is wrong with it.
fn config_check(format: args::Format, file: &Path) -> Result<u8, ApiError> {
    let files = files_of(file);
    if files.is_empty() && file != Path::new(forebay_api::config::CONFIG_PATH) {
        return Err(ApiError::failed(format!("{}: no such file", file.display())));
    }
    let checked = Config::read(&files);
    let problems: Vec<_> = checked.as_ref().err().into_iter().flatten().collect();
    let document = json!({
        "schema": SCHEMA,
        "kind": "config",
        "files": files,
        "problems": problems
            .iter()
            .map(|p| json!({"file": p.file, "line": p.line, "message": p.message}))
            .collect::<Vec<_>>(),
    });
    let mut text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if let Ok(config) = &checked {
        let (pools, volumes) = (config.pools.len(), config.volumes.len());
        let files = files.len();
        text.push(format!("no problem in {files} file(s): {pools} pool(s), {volumes} volume(s)"));
    }
    printed(output::one(format, &document, &text))?;
    Ok(u8::from(checked.is_err()))
}

fn config_keys(format: args::Format) -> Result<u8, ApiError> {
    type Row = (&'static str, &'static str, &'static str, &'static str);
    const COLUMNS: &[output::Column<Row>] = &[
        output::Column::words("KEY", "key", |row| match row.0 {
            "" => row.1.to_string(),
            section => format!("[[{section}]] {}", row.1),
        }),
        output::Column::words("VALUE", "value", |row| row.2.to_string()),
        output::Column::words("MEANING", "meaning", |row| row.3.to_string()),
    ];
    let document = json!({"schema": SCHEMA, "kind": "config-keys", "keys": KEYS});
    printed(output::rows(format, &document, COLUMNS, KEYS, |_| Vec::new()))?;
    Ok(0)
}
