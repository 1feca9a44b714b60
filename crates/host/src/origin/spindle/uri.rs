//! `spindle:PATH?preset=nas-5400&cache=0`: which file, and which disk.

use std::path::PathBuf;

use super::drive::{Drive, Stroke};
use crate::origin::units::{nearest, parse_bytes};

/// Why a `spindle:` URI or its file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpindleError {
    /// No path before the `?`.
    #[error("spindle: no path; write spindle:PATH?preset=nas-5400")]
    NoPath,
    /// A parameter without `=`.
    #[error("spindle: {0:?} has no value; write KEY=VALUE, joined by &")]
    NoValue(String),
    /// A preset that does not exist.
    #[error("spindle: no preset {given:?}; the presets are {known}")]
    UnknownPreset {
        /// What was given.
        given: String,
        /// The presets.
        known: String,
    },
    /// A key that does not exist.
    #[error("spindle: no parameter {given:?}; the nearest is {nearest:?}; all are {known}")]
    UnknownKey {
        /// What was given.
        given: String,
        /// The nearest known key.
        nearest: &'static str,
        /// All keys.
        known: String,
    },
    /// A value that cannot be read.
    #[error("spindle: {key}={value:?}: write {wanted}")]
    BadValue {
        /// The parameter.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it should look like.
        wanted: &'static str,
    },
    /// Figures that make no disk.
    #[error("spindle: these figures make no disk: {0}")]
    NoDisk(String),
    /// The backing file cannot be used.
    #[error("spindle: {path}: {what}")]
    File {
        /// The backing file.
        path: String,
        /// What is wrong and what to do.
        what: String,
        /// Where it comes from.
        source: Option<std::io::Error>,
    },
}

/// What a key's value looks like.
#[derive(Debug, Clone, Copy)]
enum Form {
    Preset,
    Count,
    Millis,
    Rate,
    Bytes,
    Stroke,
}

impl Form {
    fn wanted(self) -> &'static str {
        match self {
            Form::Preset => "the name of a preset",
            Form::Count => "a whole number, as in rpm=7200",
            Form::Millis => "milliseconds, as in seek=8.5",
            Form::Rate => "megabytes a second, as in rate=180",
            Form::Bytes => "a size, as in cache=64M, or 0",
            Form::Stroke => "full, real, or a share of the stroke, as in stroke=10%",
        }
    }
}

/// The parameters, in the order in which errors list them.
const KEYS: [(&str, Form); 13] = [
    ("preset", Form::Preset),
    ("stroke", Form::Stroke),
    ("cache", Form::Bytes),
    ("read-ahead", Form::Bytes),
    ("ncq", Form::Count),
    ("rpm", Form::Count),
    ("seek", Form::Millis),
    ("seek-track", Form::Millis),
    ("seek-full", Form::Millis),
    ("settle", Form::Millis),
    ("rate", Form::Rate),
    ("rate-inner", Form::Rate),
    ("capacity", Form::Bytes),
];

/// A parameter's value.
enum Value {
    Preset(Drive),
    Number(u64),
    Stroke(Stroke),
}

/// Reads what follows `spindle:`. Without a preset the drive is `nas-5400`. A preset counts first,
/// wherever it stands; the other parameters change it.
pub fn parse(text: &str) -> Result<(PathBuf, Drive), SpindleError> {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    if path.is_empty() {
        return Err(SpindleError::NoPath);
    }
    let mut drive = Drive::nas_5400();
    let mut changes = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| SpindleError::NoValue(pair.to_string()))?;
        let (key, form) = known(key)?;
        match read(key, form, value)? {
            Value::Preset(preset) => drive = preset,
            value => changes.push((key, value)),
        }
    }
    for (key, value) in changes {
        change(&mut drive, key, value);
    }
    let problems = drive.problems();
    if problems.is_empty() {
        Ok((PathBuf::from(path), drive))
    } else {
        Err(SpindleError::NoDisk(problems.join("; ")))
    }
}

fn known(key: &str) -> Result<(&'static str, Form), SpindleError> {
    let names = || KEYS.iter().map(|(name, _)| *name);
    KEYS.iter().copied().find(|(name, _)| *name == key).ok_or_else(|| SpindleError::UnknownKey {
        given: key.to_string(),
        nearest: nearest(key, names()).unwrap_or(KEYS[0].0),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

fn read(key: &'static str, form: Form, value: &str) -> Result<Value, SpindleError> {
    let decimal = |suffixes: &[&str], unit: f64| {
        let bare = suffixes.iter().find_map(|s| value.strip_suffix(s)).unwrap_or(value);
        let number = bare.trim().parse::<f64>().ok()? * unit;
        (0.0..1e15).contains(&number).then_some(Value::Number(number as u64))
    };
    let parsed = match form {
        Form::Preset => return preset(value).map(Value::Preset),
        Form::Count => value.parse().ok().map(Value::Number),
        Form::Millis => decimal(&["ms"], 1e6),
        Form::Rate => decimal(&["MB/s", "M"], 1e6),
        Form::Bytes => parse_bytes(value).map(Value::Number),
        Form::Stroke => stroke(value).map(Value::Stroke),
    };
    let bad = || SpindleError::BadValue { key, value: value.to_string(), wanted: form.wanted() };
    parsed.ok_or_else(bad)
}

fn preset(name: &str) -> Result<Drive, SpindleError> {
    let found = Drive::PRESETS.iter().find(|(preset, _)| *preset == name);
    found.map(|(_, make)| make()).ok_or_else(|| SpindleError::UnknownPreset {
        given: name.to_string(),
        known: Drive::PRESETS.map(|(preset, _)| preset).join(", "),
    })
}

fn stroke(value: &str) -> Option<Stroke> {
    match value {
        "full" => Some(Stroke::Share(1.0)),
        "real" => Some(Stroke::Real),
        _ => {
            let percent = value.strip_suffix('%')?.trim().parse::<f64>().ok()?;
            percent.is_finite().then_some(Stroke::Share(percent / 100.0))
        }
    }
}

fn change(drive: &mut Drive, key: &str, value: Value) {
    let number = match value {
        Value::Preset(_) => unreachable!("presets count before changes"),
        Value::Stroke(stroke) => {
            drive.stroke = stroke;
            return;
        }
        Value::Number(number) => number,
    };
    match key {
        "cache" => drive.cache_bytes = number,
        "read-ahead" => drive.read_ahead_bytes = number,
        "ncq" => drive.queue_depth = number as usize,
        "rpm" => drive.rpm = u32::try_from(number).unwrap_or(u32::MAX),
        "seek" => drive.seek_average_ns = number,
        "seek-track" => {
            drive.seek_track_ns = number;
            drive.head_switch_ns = number;
        }
        "seek-full" => drive.seek_full_ns = number,
        "settle" => drive.settle_write_ns = number,
        "rate" => {
            // The inner zones keep their share unless they are given too.
            let share = drive.rate_inner as f64 / drive.rate_outer.max(1) as f64;
            drive.rate_outer = number;
            drive.rate_inner = (number as f64 * share) as u64;
        }
        "rate-inner" => drive.rate_inner = number,
        "capacity" => drive.capacity_bytes = number,
        _ => unreachable!("{key} is a known key with a number"),
    }
}
