//! The configuration: any text, and texts of its own words.
//!
//! It is refused with problems that each name a line that is there, and stay on their own line; or
//! what it says, written down again, says the same.

use crate::input::Input;
use forebay_api::Size;
use forebay_api::config::{Config, KEYS, VolumeOn};
use std::fmt::Write;
use std::path::Path;

/// Texts that stand for values.
const VALUES: [&str; 16] = [
    "\"fast\"",
    "\"vz\"",
    "[\"/dev/sdb\"]",
    "[\"/dev/sdb\", \"/dev/sdc\"]",
    "\"/dev/sda\"",
    "\"ram:4G\"",
    "\"10%\"",
    "\"1.5TiB\"",
    "4096",
    "true",
    "\"127.0.0.1:10809\"",
    "\"[::]:1\"",
    "\"writeback\"",
    "\"ublk\"",
    "\"\\u001b[2J\\n\"",
    "[1, {a = \"\"}]",
];

/// Lines of keys and values, with raw bytes in between.
fn text(input: &mut Input) -> String {
    if input.byte() & 1 == 0 {
        return String::from_utf8_lossy(input.0).into_owned();
    }
    let mut text = String::new();
    while !input.is_empty() {
        match input.byte() {
            0..=31 => text.push_str("[[pool]]\n"),
            32..=63 => text.push_str("[[volume]]\n"),
            64..=223 => {
                let (_, key, ..) = KEYS[input.below(KEYS.len())];
                let value = VALUES[input.below(VALUES.len())];
                let _ = writeln!(text, "{key} = {value}");
            }
            _ => {
                let len = usize::from(input.byte() & 31);
                text.push_str(&String::from_utf8_lossy(input.bytes(len)));
            }
        }
    }
    text
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    // JSON's, but for one character.
    let json = serde_json::to_string(text).expect("text");
    json.replace('\u{7f}', "\\u007f")
}

fn size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => quoted(&bytes.to_string()),
        Size::PerMille(share) => quoted(&format!("{}.{}%", share / 10, share % 10)),
    }
}

/// Writes a configuration down.
fn written(config: &Config) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {value}");
        }
    };
    line("ram", config.ram.map(size));
    line("nbd-listen", config.nbd_listen.as_deref().map(quoted));
    line("nbd-plain", Some(config.nbd_plain.to_string()));
    line("nbd-certificate", config.nbd_certificate.as_deref().map(quoted));
    line("nbd-key", config.nbd_key.as_deref().map(quoted));
    line("nbd-client-ca", config.nbd_client_ca.as_deref().map(quoted));
    for pool in &config.pools {
        let devices: Vec<_> = pool.devices.iter().map(|device| quoted(device)).collect();
        line("[[pool]]\nname", Some(quoted(&pool.name)));
        line("devices", Some(format!("[{}]", devices.join(", "))));
        line("ram", pool.ram.map(size));
    }
    for volume in &config.volumes {
        line("[[volume]]\nname", Some(quoted(&volume.name)));
        match &volume.on {
            VolumeOn::Origin(origin) => line("origin", Some(quoted(origin))),
            VolumeOn::Tiers { tiers, size: own, placement } => {
                let tiers: Vec<_> = tiers.iter().map(|it| quoted(&it.join(","))).collect();
                line("tiers", Some(format!("[{}]", tiers.join(", "))));
                line("size", own.map(size));
                line("placement", placement.map(|it| quoted(it.name())));
            }
        }
        line("pool", volume.pool.as_deref().map(quoted));
        line("mode", volume.mode.map(|mode| quoted(mode.name())));
        line("export", Some(quoted(volume.export.name())));
    }
    text
}

/// The target.
pub fn run(bytes: &[u8]) {
    let text = text(&mut Input(bytes));
    let file = Path::new("/etc/forebay/forebay.toml");
    match Config::parse(file, &text) {
        Ok(config) => {
            let again = written(&config);
            let read = Config::parse(file, &again);
            assert_eq!(read.as_ref(), Ok(&config), "{again}");
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            for problem in problems {
                assert!(problem.file == file && problem.line <= lines, "{problem:?}");
                assert!(!problem.message.is_empty());
                let shown = problem.to_string();
                assert!(!shown.contains(char::is_control), "{shown:?}");
            }
        }
    }
}
