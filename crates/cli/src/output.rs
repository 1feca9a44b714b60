//! Printing: one description of the columns feeds tables and CSV; JSON comes from the model itself.

use crate::args::Format;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};

/// One column of rows of type `T`.
pub struct Column<T> {
    /// Heading in tables.
    pub title: &'static str,
    /// Heading in CSV, with the unit.
    pub key: &'static str,
    /// Only in `wide` and `csv`.
    pub wide: bool,
    /// Numbers stand at the right.
    pub right: bool,
    /// For people.
    pub text: fn(&T) -> String,
    /// For programs; `None` if the text is as good.
    pub raw: Option<fn(&T) -> String>,
}

impl<T> Column<T> {
    /// A column of words.
    pub const fn words(title: &'static str, key: &'static str, text: fn(&T) -> String) -> Self {
        Column { title, key, wide: false, right: false, text, raw: None }
    }

    /// A column of numbers, for people and for programs.
    pub const fn numbers(
        title: &'static str,
        key: &'static str,
        text: fn(&T) -> String,
        raw: fn(&T) -> String,
    ) -> Self {
        Column { title, key, wide: false, right: true, text, raw: Some(raw) }
    }

    /// The column, only in `wide` and `csv`.
    pub const fn wide(mut self) -> Self {
        self.wide = true;
        self
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
        rows.iter().map(|row| columns.iter().map(|column| (column.text)(row)).collect()).collect();
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
            let (before, after) = if column.right { (&pad[..], "") } else { ("", &pad[..]) };
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
    let heading: Vec<&str> = columns.iter().map(|column| column.key).collect();
    let line = |row: &T| {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| quote(&column.raw.map_or_else(|| (column.text)(row), |raw| raw(row))))
            .collect();
        cells.join(",")
    };
    std::iter::once(heading.join(",")).chain(rows.iter().map(line)).collect()
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

/// Prints lines to standard output.
///
/// # Errors
/// Standard output is closed.
pub fn lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

fn json(document: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(document).map_err(io::Error::other)?;
    lines(&[text])
}

/// One object on one line, with the schema in it.
fn json_line(item: &impl Serialize) -> io::Result<()> {
    let mut value = serde_json::to_value(item).map_err(io::Error::other)?;
    if let Value::Object(fields) = &mut value {
        fields.entry("schema").or_insert(forebay_api::SCHEMA.into());
    }
    lines(&[value.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column<(String, u64)>] = &[
        Column::words("NAME", "name", |row| row.0.clone()),
        Column::numbers(
            "SIZE",
            "size_bytes",
            |row| format!("{}K", row.1 / 1024),
            |row| row.1.to_string(),
        ),
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
            ["NAME    SIZE", "é         1K", "  why: é", "longer  100K", "  why: longer"]
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
    fn nested_values_become_fields() {
        let mut out = Vec::new();
        flatten(&mut out, "", &serde_json::json!({"a": [1, {"b": "x,y"}], "c": null}));
        assert_eq!(out, ["a.0,1", "a.1.b,\"x,y\"", "c,"]);
    }
}
