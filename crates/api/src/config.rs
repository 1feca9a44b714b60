//! The configuration: `/etc/forebay/forebay.toml` and `conf.d/*.toml` beside it, or what `--config`
//! names.
//!
//! Reading it reports every problem with file and line, and changes nothing. An unknown key is a
//! problem, with the nearest known one beside it: a misspelt key that is ignored is a setting that
//! silently fails.

use crate::request::{Export, ORIGIN_BYTES_MAX, check_name};
use crate::tiers::Placement;
use crate::{Mode, Size};
use forebay_sys::file::read_plain;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod keys;

pub use keys::KEYS;

/// Where the configuration is unless `--config` names another file.
pub const CONFIG_PATH: &str = "/etc/forebay/forebay.toml";
/// Most bytes of one file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Pools and volumes to open at the start, and limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Most memory that all pools together may take.
    pub ram: Option<Size>,
    /// `address:port` for NBD over TCP.
    pub nbd_listen: Option<String>,
    /// NBD over TCP goes beyond this machine without TLS.
    pub nbd_plain: bool,
    /// PEM file of the certificate for NBD over TCP. Its key is set too.
    pub nbd_certificate: Option<String>,
    /// PEM file of the key.
    pub nbd_key: Option<String>,
    /// PEM file of the authorities that sign clients' certificates.
    pub nbd_client_ca: Option<String>,
    /// Pools to open. The daemon never makes one unasked.
    pub pools: Vec<PoolConfig>,
    /// Volumes that should be there. One that its pool does not know yet is made.
    pub volumes: Vec<VolumeConfig>,
}

/// A pool to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Name.
    pub name: String,
    /// Absolute paths of its devices.
    pub devices: Vec<String>,
    /// Most memory that it may take.
    pub ram: Option<Size>,
}

/// A volume that should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Name.
    pub name: String,
    /// What its data is on.
    pub on: VolumeOn,
    /// Its pool.
    pub pool: Option<String>,
    /// The mode when it is made.
    pub mode: Option<Mode>,
    /// How it is made visible.
    pub export: Export,
}

/// What the data of a volume is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeOn {
    /// URI of an origin.
    Origin(String),
    /// Tiers.
    Tiers {
        /// The devices of each, the fastest tier first: absolute paths, `ram:SIZE`, `spindle:…`.
        tiers: Vec<Vec<String>>,
        /// How large the volume is made.
        size: Option<Size>,
        /// How data is placed.
        placement: Option<Placement>,
    },
}

/// One thing that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 when it concerns the file as a whole.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.message),
        }
    }
}

/// The files that make up the configuration whose main file is `main`: itself if it is there, and
/// `conf.d/*.toml` beside it, by name.
pub fn files_of(main: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = match main.parent().map(|dir| dir.join("conf.d").read_dir()) {
        Some(Ok(entries)) => entries.flatten().map(|entry| entry.path()).collect(),
        _ => Vec::new(),
    };
    parts.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    parts.sort();
    let main = main.exists().then(|| main.to_path_buf());
    main.into_iter().chain(parts).collect()
}

impl Config {
    /// Reads and checks `files` together.
    ///
    /// # Errors
    /// Every problem in them.
    pub fn read(files: &[PathBuf]) -> Result<Config, Vec<Problem>> {
        let mut reader = Reader::default();
        for file in files {
            let text = read_plain(file, FILE_BYTES_MAX)
                .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
            match text {
                Ok(text) => reader.file(file, &text),
                Err(error) => reader.problems.push(Problem {
                    file: file.clone(),
                    line: 0,
                    message: format!("read it: {error}"),
                }),
            }
        }
        reader.finish()
    }

    /// Checks that NBD over TCP shows the data to nobody who was not meant to see it: at the
    /// address of the configuration, or at `instead`.
    ///
    /// # Errors
    /// The address can be reached from elsewhere, without TLS, and that was not asked for.
    pub fn check_listen(&self, instead: Option<SocketAddr>) -> Result<(), String> {
        let own = self.nbd_listen.as_deref().and_then(|text| text.parse().ok());
        let Some(address) = instead.or(own) else { return Ok(()) };
        if address.ip().to_canonical().is_loopback() || self.nbd_key.is_some() || self.nbd_plain {
            return Ok(());
        }
        Err(format!(
            "nbd-listen {address} lets in everybody who reaches it, and sends data unencrypted: \
             set \"nbd-certificate\" and \"nbd-key\" for TLS, listen at 127.0.0.1, or write \
             \"nbd-plain = true\" if the network is to be trusted"
        ))
    }

    /// Reads and checks one text, as if it were in `file`.
    ///
    /// # Errors
    /// Every problem in it.
    pub fn parse(file: &Path, text: &str) -> Result<Config, Vec<Problem>> {
        let mut reader = Reader::default();
        reader.file(file, text);
        reader.finish()
    }
}

#[derive(Default)]
struct Reader {
    config: Config,
    problems: Vec<Problem>,
    /// Names with their places, for the checks across files.
    pool_places: Vec<(PathBuf, usize)>,
    volume_places: Vec<(PathBuf, usize)>,
    file: PathBuf,
    text: String,
}

type Section<'t, 'i> = &'t Spanned<DeValue<'i>>;

impl Reader {
    fn file(&mut self, file: &Path, text: &str) {
        self.file = file.to_path_buf();
        self.text = text.to_string();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.problem(at, error.message().to_string());
        }
        let before = self.problems.len();
        for (key, value) in table.get_ref() {
            match key.get_ref().as_ref() {
                "ram" => self.config.ram = self.size(value),
                "nbd-listen" => self.config.nbd_listen = self.listen(value),
                "nbd-plain" => self.config.nbd_plain = self.is_true(value),
                "nbd-certificate" => self.config.nbd_certificate = self.path(value),
                "nbd-key" => self.config.nbd_key = self.path(value),
                "nbd-client-ca" => self.config.nbd_client_ca = self.path(value),
                "pool" => self.sections(value, "pool", Reader::pool),
                "volume" => self.sections(value, "volume", Reader::volume),
                other => self.unknown_key(key.span().start, "", other),
            }
        }
        // A table yields its keys by name; people read from the top.
        self.problems[before..].sort_by_key(|problem| problem.line);
    }

    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|&&b| b == b'\n').count() + 1
    }

    fn problem(&mut self, at: usize, message: String) {
        let line = self.line(at);
        self.problems.push(Problem { file: self.file.clone(), line, message });
    }

    fn unknown_key(&mut self, at: usize, section: &str, key: &str) {
        let mut known: Vec<&str> =
            KEYS.iter().filter(|row| row.0 == section).map(|row| row.1).collect();
        if section.is_empty() {
            known.extend(["pool", "volume"]);
        }
        let place = match section {
            "" => "at the top".to_string(),
            section => format!("in [[{section}]]"),
        };
        let message = match nearest(key, &known) {
            Some(near) => format!("unknown key {key:?} {place}; did you mean {near:?}?"),
            None => format!("unknown key {key:?} {place}; known are {}", known.join(", ")),
        };
        self.problem(at, message);
    }

    fn sections(&mut self, value: Section, name: &str, one: fn(&mut Reader, Section)) {
        match value.get_ref() {
            DeValue::Array(sections) if sections.iter().all(|s| s.get_ref().is_table()) => {
                sections.iter().for_each(|section| one(self, section));
            }
            _ => self.problem(value.span().start, format!("write [[{name}]], once for each")),
        }
    }

    fn pool(&mut self, section: Section) {
        let (mut name, mut devices, mut ram) = (None, None, None);
        for (key, value) in section.get_ref().as_table().into_iter().flatten() {
            match key.get_ref().as_ref() {
                "name" => name = self.name(value),
                "devices" => devices = self.devices(value),
                "ram" => ram = self.size(value),
                other => self.unknown_key(key.span().start, "pool", other),
            }
        }
        let at = section.span().start;
        let missing = self.missing(section, "pool", &["name", "devices"]);
        if let (false, Some(name), Some(devices)) = (missing, name, devices) {
            self.pool_places.push((self.file.clone(), self.line(at)));
            self.config.pools.push(PoolConfig { name, devices, ram });
        }
    }

    fn volume(&mut self, section: Section) {
        let (mut name, mut origin, mut pool) = (None, None, None);
        let (mut tiers, mut size, mut placement) = (None, None, None);
        let (mut mode, mut export) = (None, Export::default());
        for (key, value) in section.get_ref().as_table().into_iter().flatten() {
            match key.get_ref().as_ref() {
                "name" => name = self.name(value),
                "origin" => origin = self.origin(value),
                "tiers" => tiers = self.tiers(value),
                "size" => size = self.size(value),
                "placement" => placement = self.parsed(value),
                "pool" => pool = self.name(value),
                "mode" => mode = self.parsed(value),
                "export" => export = self.parsed(value).unwrap_or_default(),
                other => self.unknown_key(key.span().start, "volume", other),
            }
        }
        let at = section.span().start;
        if self.missing(section, "volume", &["name"]) || !self.fits(section) {
            return;
        }
        let tiers = tiers.map(|tiers| VolumeOn::Tiers { tiers, size, placement });
        if let (Some(name), Some(on)) = (name, origin.map(VolumeOn::Origin).or(tiers)) {
            self.volume_places.push((self.file.clone(), self.line(at)));
            self.config.volumes.push(VolumeConfig { name, on, pool, mode, export });
        }
    }

    /// Whether the keys of a volume go together; what does not is a problem.
    fn fits(&mut self, volume: Section) -> bool {
        let table = volume.get_ref().as_table();
        let has = |key: &str| table.is_some_and(|t| t.keys().any(|k| k.get_ref() == key));
        let why = match (has("origin"), has("tiers")) {
            (false, false) => "this [[volume]] has no \"origin\" and no \"tiers\"",
            (true, true) => "this [[volume]] has \"origin\" and \"tiers\": it is on either",
            (true, false) if has("size") || has("placement") => {
                "\"size\" and \"placement\" are for volumes with \"tiers\""
            }
            (false, true) if has("mode") && !has("pool") => {
                "a volume without a cache has no \"mode\"; name its \"pool\", too"
            }
            _ => return true,
        };
        self.problem(volume.span().start, why.to_string());
        false
    }

    fn missing(&mut self, section: Section, kind: &str, keys: &[&str]) -> bool {
        let table = section.get_ref().as_table();
        let has = |key: &str| table.is_some_and(|t| t.keys().any(|k| k.get_ref() == key));
        let missing: Vec<&&str> = keys.iter().filter(|key| !has(key)).collect();
        for key in &missing {
            self.problem(section.span().start, format!("this [[{kind}]] has no {key:?}"));
        }
        !missing.is_empty()
    }

    fn string(&mut self, value: Section) -> Option<String> {
        if let Some(text) = value.get_ref().as_str() {
            return Some(text.to_string());
        }
        let found = value.get_ref().type_str();
        self.problem(value.span().start, format!("write this in quotes (it is of type {found})"));
        None
    }

    fn parsed<T: std::str::FromStr<Err = String>>(&mut self, value: Section) -> Option<T> {
        let text = self.string(value)?;
        text.parse().map_err(|why| self.problem(value.span().start, why)).ok()
    }

    /// A size, in quotes or as a bare number of bytes.
    fn size(&mut self, value: Section) -> Option<Size> {
        let bare = value.get_ref().as_integer().filter(|number| number.radix() == 10);
        match bare.and_then(|number| number.as_str().parse().ok()) {
            Some(bytes) => Some(Size::Bytes(bytes)),
            None => self.parsed(value),
        }
    }

    fn is_true(&mut self, value: Section) -> bool {
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.problem(value.span().start, "write true or false here".to_string());
            false
        })
    }

    fn name(&mut self, value: Section) -> Option<String> {
        let text = self.string(value)?;
        check_name(&text).map_err(|why| self.problem(value.span().start, why)).ok()?;
        Some(text)
    }

    fn origin(&mut self, value: Section) -> Option<String> {
        let text = self.string(value)?;
        if text.is_empty() || text.len() > ORIGIN_BYTES_MAX {
            let why = format!("the URI of an origin has 1 to {ORIGIN_BYTES_MAX} bytes");
            self.problem(value.span().start, why);
            return None;
        }
        if !text.contains(':') && !text.starts_with('/') {
            let why = format!("write the origin {text:?} as an absolute path or a URI");
            self.problem(value.span().start, why);
            return None;
        }
        Some(text)
    }

    fn path(&mut self, value: Section) -> Option<String> {
        let text = self.string(value)?;
        if !text.starts_with('/') {
            let why = format!("write {text:?} as an absolute path");
            self.problem(value.span().start, why);
            return None;
        }
        Some(text)
    }

    /// Tiers as the command line has them: each a text with commas between its devices.
    fn tiers(&mut self, value: Section) -> Option<Vec<Vec<String>>> {
        let items = value.get_ref().as_array().filter(|items| items.iter().count() > 0);
        let Some(items) = items else {
            let why = "write a list of tiers, as [\"ram:4G\", \"/dev/disk/by-id/nvme-…\"]";
            self.problem(value.span().start, why.to_string());
            return None;
        };
        let mut tiers = Vec::new();
        for item in items.iter() {
            let devices: Vec<String> = self.string(item)?.split(',').map(str::to_string).collect();
            let is_one = |it: &String| it.starts_with('/') || it.contains(':');
            if let Some(bad) = devices.iter().find(|it| !is_one(it)) {
                let why = format!("write {bad:?} as an absolute path or as ram:SIZE");
                self.problem(item.span().start, why);
                return None;
            }
            tiers.push(devices);
        }
        Some(tiers)
    }

    fn devices(&mut self, value: Section) -> Option<Vec<String>> {
        let items = value.get_ref().as_array().filter(|items| items.iter().count() > 0);
        let Some(items) = items else {
            let why = "write a list of paths, as [\"/dev/disk/by-id/nvme-…\"]";
            self.problem(value.span().start, why.to_string());
            return None;
        };
        let mut paths = Vec::new();
        for item in items.iter() {
            paths.push(self.path(item)?);
        }
        Some(paths)
    }

    fn listen(&mut self, value: Section) -> Option<String> {
        let text = self.string(value)?;
        if text.parse::<SocketAddr>().is_err() {
            let why = format!("{text:?} is not an address and a port, as \"127.0.0.1:10809\"");
            self.problem(value.span().start, why);
            return None;
        }
        Some(text)
    }

    /// The checks across sections and files.
    fn finish(mut self) -> Result<Config, Vec<Problem>> {
        let mut more = Vec::new();
        let Config { nbd_certificate, nbd_key, nbd_client_ca, .. } = &self.config;
        let together = nbd_certificate.is_some() == nbd_key.is_some();
        if !together || (nbd_client_ca.is_some() && nbd_key.is_none()) {
            let message = "\"nbd-certificate\" and \"nbd-key\" are needed together".to_string();
            more.push(Problem { file: self.file.clone(), line: 0, message });
        }
        if let Err(message) = self.config.check_listen(None) {
            more.push(Problem { file: self.file.clone(), line: 0, message });
        }
        let mut say = |place: &(PathBuf, usize), message: String| {
            more.push(Problem { file: place.0.clone(), line: place.1, message });
        };
        let pools = &self.config.pools;
        for (index, pool) in pools.iter().enumerate() {
            let place = &self.pool_places[index];
            if pools[..index].iter().any(|other| other.name == pool.name) {
                say(place, format!("a second pool {:?}", pool.name));
            }
            for device in &pool.devices {
                let users = pools.iter().flat_map(|pool| &pool.devices);
                if users.filter(|other| *other == device).count() > 1 {
                    say(place, format!("the device {device} is named more than once"));
                }
            }
        }
        for (index, volume) in self.config.volumes.iter().enumerate() {
            let place = &self.volume_places[index];
            if self.config.volumes[..index].iter().any(|other| other.name == volume.name) {
                say(place, format!("a second volume {:?}", volume.name));
            }
            let needs_pool = matches!(volume.on, VolumeOn::Origin(_)) && pools.len() > 1;
            if volume.pool.is_none() && needs_pool {
                say(place, format!("there are several pools: name one for {:?}", volume.name));
            }
        }
        self.problems.append(&mut more);
        if self.problems.is_empty() { Ok(self.config) } else { Err(self.problems) }
    }
}

/// The word of `known` that `word` is most likely a misspelling of, if any is near.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let limit = 1 + word.len() / 3;
    let plain = word.to_ascii_lowercase().replace('_', "-");
    let near = known.iter().map(|candidate| (distance(&plain, candidate), *candidate)).min()?;
    (near.0 <= limit).then_some(near.1)
}

/// Edits (insert, delete, replace a byte) between two words.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
