//! `forebay demo`: plays it, prints one table and writes one page.

use crate::args::{DemoArgs, Format};
use crate::output::{self, Column};
use crate::printed;
use forebay_api::hint::Choice;
use forebay_api::{ApiError, Hint};
use forebay_demo::report::{self, Line};
use forebay_demo::{Show, page, play};
use serde_json::json;
use std::fs::File;
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
    let failed = |error| ApiError::failed(format!("write {}: {error}", args.html.display()));
    // Told before it is played, which takes two minutes.
    let page_file = File::options().create(true).append(true).open(&args.html);
    page_file.map_err(|error| failed(error).hint(Hint::Choose { what: Choice::HtmlFile }))?;
    let show = play(args.keep, stop)?;
    print(format, &show)?;
    std::fs::write(&args.html, page(&show)).map_err(failed)?;
    eprintln!("the same with plots: {}", args.html.display());
    Ok(u8::from(!show.is_good()))
}

fn print(format: Format, show: &Show) -> Result<(), ApiError> {
    let lines = report::lines(show);
    let document = json!({
        "schema": forebay_api::SCHEMA,
        "kind": "demo",
        "rows": lines,
        "tiers": report::tiers(show),
        "verdicts": report::verdicts(show),
    });
    let columns = report::COLUMNS.iter().map(|column| match column.raw {
        Some(raw) => Column::numbers(column.title, column.key, column.text, raw),
        None => Column::words(column.title, column.key, column.text),
    });
    let columns: Vec<Column<Line>> = columns.collect();
    printed(output::rows(format, &document, &columns, &lines, |_| Vec::new()))?;
    if matches!(format, Format::Table | Format::Wide) {
        let mut text = vec![String::new()];
        text.extend(report::verdicts(show).into_iter().map(|verdict| verdict.text));
        printed(output::lines(&text))?;
    }
    Ok(())
}
