//! Printing: one description of the columns feeds tables and CSV; JSON comes from the model itself.

use crate::args::Format;
use forebay_api::size::human;
use forebay_format::name::escaped;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};

/// One column of rows of type `T`.
#[derive(Clone, Copy)]
pub struct Column<T> {
    /// Heading in tables.
    pub title: &'static str,
    /// Heading in CSV, with the unit.
    pub key: &'static str,
    /// Only in `wide` and `csv`.
    wide: bool,
    cell: Cell<T>,
}

/// What stands in a column, for people and for programs.
#[derive(Clone, Copy)]
enum Cell<T> {
    Words(fn(&T) -> String),
    Bytes(fn(&T) -> u64),
    Count(fn(&T) -> u64),
    Ratio(fn(&T) -> Option<f64>),
    Number(fn(&T) -> f64, fn(f64) -> String),
    Numbers(fn(&T) -> String, fn(&T) -> String),
}

impl<T> Column<T> {
    const fn new(title: &'static str, key: &'static str, cell: Cell<T>) -> Self {
        Column { title, key, wide: false, cell }
    }

    /// Words.
    pub const fn words(title: &'static str, key: &'static str, text: fn(&T) -> String) -> Self {
        Column::new(title, key, Cell::Words(text))
    }

    /// A size in bytes.
    pub const fn bytes(title: &'static str, key: &'static str, bytes: fn(&T) -> u64) -> Self {
        Column::new(title, key, Cell::Bytes(bytes))
    }

    /// How many.
    pub const fn count(title: &'static str, key: &'static str, count: fn(&T) -> u64) -> Self {
        Column::new(title, key, Cell::Count(count))
    }

    /// A share, 0 to 1.
    pub const fn ratio(
        title: &'static str,
        key: &'static str,
        ratio: fn(&T) -> Option<f64>,
    ) -> Self {
        Column::new(title, key, Cell::Ratio(ratio))
    }

    /// A number, and how people read it.
    pub const fn number(
        title: &'static str,
        key: &'static str,
        number: fn(&T) -> f64,
        text: fn(f64) -> String,
    ) -> Self {
        Column::new(title, key, Cell::Number(number, text))
    }

    /// What is a number in its own way, for people and for programs.
    pub const fn numbers(
        title: &'static str,
        key: &'static str,
        text: fn(&T) -> String,
        raw: fn(&T) -> String,
    ) -> Self {
        Column::new(title, key, Cell::Numbers(text, raw))
    }

    /// The column, only in `wide` and `csv`.
    pub const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// Numbers stand at the right.
    fn is_right(&self) -> bool {
        !matches!(self.cell, Cell::Words(_))
    }

    /// For people.
    pub fn text(&self, row: &T) -> String {
        match self.cell {
            // As it is printed: what is escaped is longer.
            Cell::Words(text) => escaped(&text(row)),
            Cell::Numbers(text, _) => text(row),
            Cell::Bytes(bytes) => human(bytes(row)),
            Cell::Count(count) => count(row).to_string(),
            Cell::Ratio(ratio) => {
                ratio(row).map_or_else(|| "-".to_string(), |r| format!("{:.1}%", r * 100.0))
            }
            Cell::Number(number, text) => text(number(row)),
        }
    }

    /// For programs.
    pub fn raw(&self, row: &T) -> String {
        match self.cell {
            Cell::Words(text) | Cell::Numbers(_, text) => text(row),
            Cell::Bytes(number) | Cell::Count(number) => number(row).to_string(),
            Cell::Ratio(ratio) => ratio(row).map_or_else(String::new, |r| format!("{r:.4}")),
            Cell::Number(number, _) => number(row).to_string(),
        }
    }
}

/// Lines of a table: headings, rows, each with the lines that belong below it.
pub fn table<T>(
    columns: &[Column<T>],
    rows: &[T],
    wide: bool,
    below: impl Fn(&T) -> Vec<String>,
) -> Vec<String> {
    let columns: Vec<&Column<T>> = columns.iter().filter(|column| wide || !column.wide).collect();
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| column.text(row)).collect()).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = cells.iter().map(|row| row[index].chars().count());
            cells.chain([column.title.len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let mut text = String::new();
        for ((cell, column), width) in cells.iter().zip(&columns).zip(&widths) {
            let pad = " ".repeat(width - cell.chars().count());
            let (before, after) = if column.is_right() { (&pad[..], "") } else { ("", &pad[..]) };
            text.push_str(before);
            text.push_str(cell);
            text.push_str(after);
            text.push_str("  ");
        }
        text.trim_end().to_string()
    };
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_string()).collect();
    let mut lines = vec![line(&titles)];
    for (row, cells) in rows.iter().zip(&cells) {
        lines.push(line(cells));
        lines.extend(below(row));
    }
    lines
}

/// Lines of comma separated values, all columns, with a heading.
pub fn csv<T>(columns: &[Column<T>], rows: &[T]) -> Vec<String> {
    let heading: Vec<String> = columns.iter().map(|column| column.key.to_string()).collect();
    let cells = |row: &T| columns.iter().map(|column| column.raw(row)).collect();
    csv_lines(&heading, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Lines of comma separated values, of these cells.
pub fn csv_lines(heading: &[String], rows: &[Vec<String>]) -> Vec<String> {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| quote(cell)).collect();
        cells.join(",")
    };
    std::iter::once(line(heading)).chain(rows.iter().map(|cells| line(cells))).collect()
}

fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_string()
    }
}

/// Prints rows in any format. `document` is what `json` prints.
///
/// # Errors
/// Standard output is closed.
pub fn rows<T: Serialize>(
    format: Format,
    document: &impl Serialize,
    columns: &[Column<T>],
    rows: &[T],
    below: impl Fn(&T) -> Vec<String>,
) -> io::Result<()> {
    match format {
        Format::Table => lines(&table(columns, rows, false, below)),
        Format::Wide => lines(&table(columns, rows, true, below)),
        Format::Csv => lines(&csv(columns, rows)),
        Format::Json => json(document),
        Format::Jsonl => rows.iter().try_for_each(|row| json_line(row)),
    }
}

/// Prints one thing: lines for people, or the model. CSV has two columns, `field` and `value`.
///
/// # Errors
/// Standard output is closed.
pub fn one(format: Format, document: &impl Serialize, text: &[String]) -> io::Result<()> {
    match format {
        Format::Table | Format::Wide => lines(text),
        Format::Json => json(document),
        Format::Jsonl => json_line(document),
        Format::Csv => {
            let value = serde_json::to_value(document).map_err(io::Error::other)?;
            let mut out = vec!["field,value".to_string()];
            flatten(&mut out, "", &value);
            lines(&out)
        }
    }
}

fn flatten(out: &mut Vec<String>, path: &str, value: &Value) {
    let join = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| flatten(out, &join(key), value));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| flatten(out, &join(&index.to_string()), value)),
        Value::String(text) => out.push(format!("{},{}", quote(path), quote(text))),
        Value::Null => out.push(format!("{},", quote(path))),
        other => out.push(format!("{},{other}", quote(path))),
    }
}

/// Prints lines to standard output. What of them comes from devices and clients cannot end a line
/// or speak to the terminal.
///
/// # Errors
/// Standard output is closed.
pub fn lines(lines: &[String]) -> io::Result<()> {
    print(lines.iter().map(|line| escaped(line)))
}

fn print(lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

fn json(document: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(document).map_err(io::Error::other)?;
    print([json_escaped(&text)])
}

/// JSON, with escapes also for the characters that it need not escape and a terminal might obey.
pub fn json_escaped(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        match c == '\n' || escaped(c.encode_utf8(&mut [0; 4])).starts_with(c) {
            true => plain.push(c),
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    plain.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    plain
}

/// One object on one line, with the schema in it.
///
/// # Errors
/// Standard output is closed.
pub fn json_line(item: &impl Serialize) -> io::Result<()> {
    let mut value = serde_json::to_value(item).map_err(io::Error::other)?;
    if let Value::Object(fields) = &mut value {
        fields.entry("schema").or_insert(forebay_api::SCHEMA.into());
    }
    print([json_escaped(&value.to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column<(String, u64)>] = &[
        Column::words("NAME", "name", |row| row.0.clone()),
        Column::bytes("SIZE", "size_bytes", |row| row.1),
        Column::words("NOTE", "note", |_| "a, \"b\"".to_string()).wide(),
    ];

    fn data() -> Vec<(String, u64)> {
        vec![("é".to_string(), 1024), ("longer".to_string(), 102_400)]
    }

    #[test]
    fn columns_are_aligned_and_never_touch() {
        let lines = table(COLUMNS, &data(), false, |row| vec![format!("  why: {}", row.0)]);
        assert_eq!(
            lines,
            ["NAME    SIZE", "é       1.0K", "  why: é", "longer  100K", "  why: longer"]
        );
        assert_eq!(table(COLUMNS, &data(), true, |_| Vec::new())[0], "NAME    SIZE  NOTE");
    }

    #[test]
    fn csv_has_raw_values_and_quotes() {
        let lines = csv(COLUMNS, &data());
        assert_eq!(lines[0], "name,size_bytes,note");
        assert_eq!(lines[2], "longer,102400,\"a, \"\"b\"\"\"");
    }

    #[test]
    fn what_a_terminal_might_obey_is_escaped_in_json_too() {
        let text = serde_json::to_string_pretty(&["a\nb\u{1b}\u{7f}\u{9b}é\u{e0001}\\"]).unwrap();
        let plain = json_escaped(&text);
        assert_eq!(plain, "[\n  \"a\\nb\\u001b\\u007f\\u009bé\\udb40\\udc01\\\\\"\n]");
        assert_eq!(
            serde_json::from_str::<Value>(&plain).unwrap(),
            serde_json::from_str::<Value>(&text).unwrap()
        );
    }

    #[test]
    fn nested_values_become_fields() {
        let mut out = Vec::new();
        flatten(&mut out, "", &serde_json::json!({"a": [1, {"b": "x,y"}], "c": null}));
        assert_eq!(out, ["a.0,1", "a.1.b,\"x,y\"", "c,"]);
    }
}
