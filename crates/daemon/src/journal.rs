//! The log as systemd's journal wants it: a priority before each line, and no time, which the
//! journal knows. And what of a line comes from elsewhere: it cannot end the line, nor speak to a
//! terminal.

use forebay_format::name::escaped;
use std::fmt;
use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether standard error goes to the journal.
pub fn is_connected() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some_and(|stream| !stream.is_empty())
}

/// What lines say, on one line each.
pub fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let text = escaped(&format!("{value:?}"));
        match field.name() {
            "message" => writer.write_str(&text),
            name => write!(writer, "{name}={text}"),
        }
    };
    debug_fn(write).delimited(" ")
}

/// Lines for the journal.
#[derive(Debug)]
pub struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // As in syslog: error, warning, information, debugging.
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An export's name that a client asked for could write lines of its own into the log.
    #[test]
    fn a_line_of_the_log_stays_one_line() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
        let text = log.compact().fmt_fields(fields()).finish();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let journal = log.with_ansi(false).event_format(Journal).fmt_fields(fields()).finish();
        let hostile = "x\n<0>panic\u{1b}[2J";
        let say = || tracing::info!(volume = hostile, name = %hostile, "asked for {hostile}");
        tracing::subscriber::with_default(text, say);
        tracing::subscriber::with_default(journal, say);
        let log = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log:?}");
        let wanted = "asked for x\\n<0>panic\\u{1b}[2J";
        assert!(lines.iter().all(|line| line.contains(wanted) && !line.contains('\u{1b}')));
        assert!(lines[1].starts_with("<6>asked"), "{log:?}");
    }
}
