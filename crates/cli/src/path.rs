//! Paths as the daemon needs them: absolute, because it works in another directory.

use forebay_api::hint::Choice;
use forebay_api::{ApiError, Hint};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a look at a path may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Where udev keeps names of disks by their serial numbers.
const NAMES: &str = "/dev/disk/by-id";

/// Path or URI of a device of tiers, which may be gone.
pub fn absolute(uri: &str) -> Result<String, ApiError> {
    if scheme(uri).is_some() {
        return origin(uri);
    }
    let path = std::path::absolute(uri);
    let path = path.map_err(|error| ApiError::usage(format!("the path {uri:?}: {error}")))?;
    text(lasting(path))
}

/// Absolute path of a device that must exist.
pub fn device(path: &Path) -> Result<String, ApiError> {
    let absolute = std::path::absolute(path)
        .map_err(|error| ApiError::usage(format!("the path {path:?}: {error}")))?;
    if !is_there(&absolute) {
        let shown = absolute.display();
        return Err(ApiError::failed(format!("{shown}: no such file or device"))
            .hint(Hint::MakeFile { path: shown.to_string() }));
    }
    text(lasting(absolute))
}

/// URI of an origin with absolute paths in it.
pub fn origin(origin: &str) -> Result<String, ApiError> {
    let Some((scheme, rest)) = scheme(origin) else {
        let absolute = std::path::absolute(origin)
            .map_err(|error| ApiError::usage(format!("the origin {origin:?}: {error}")))?;
        if !is_there(&absolute) {
            let shown = absolute.display();
            return Err(ApiError::failed(format!("the origin {shown}: no such file or device"))
                .hint(Hint::Choose { what: Choice::Origin }));
        }
        return text(lasting(absolute));
    };
    match scheme {
        "spindle" => {
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            let absolute = std::path::absolute(path)
                .map_err(|error| ApiError::usage(format!("the origin {origin:?}: {error}")))?;
            let mark = if query.is_empty() { "" } else { "?" };
            Ok(format!("spindle:{}{mark}{query}", text(absolute)?))
        }
        _ => Ok(origin.to_string()),
    }
}

/// Splits `scheme:rest`. A single letter or a slash before the colon is no scheme.
fn scheme(origin: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = origin.split_once(':')?;
    let word = scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+');
    (word && scheme.len() > 1 && !is_there(Path::new(origin))).then_some((scheme, rest))
}

/// Whether there is something at a path. What does not tell in time may be: the daemon has limits
/// of its own for what hangs.
fn is_there(path: &Path) -> bool {
    let (send, told) = mpsc::channel();
    let path = path.to_path_buf();
    std::thread::spawn(move || send.send(path.exists()));
    told.recv_timeout(LOOK_LIMIT).unwrap_or(true)
}

/// Whether both paths lead to the same file. What does not tell in time is another one than what
/// does.
pub fn is_same(there: &Metadata, other: &Path) -> bool {
    let (send, told) = mpsc::channel();
    let other = other.to_path_buf();
    std::thread::spawn(move || send.send(other.metadata().ok().map(|it| (it.dev(), it.ino()))));
    told.recv_timeout(LOOK_LIMIT) == Ok(Some((there.dev(), there.ino())))
}

/// The path of the file or disk behind an origin, if it has one.
pub fn of_origin(uri: &str) -> &Path {
    let file = uri.strip_prefix("spindle:").map(|rest| rest.split('?').next().unwrap_or(rest));
    Path::new(file.unwrap_or(uri))
}

/// A name of a disk that it keeps when the machine starts again and finds its disks in another
/// order; the path as it is, if udev knows none or the path is such a name already.
fn lasting(path: PathBuf) -> PathBuf {
    let is_plain = path.parent() == Some(Path::new("/dev"));
    let is_disk = || path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    if !is_plain || !is_disk() {
        return path;
    }
    best_name(&path, Path::new(NAMES)).unwrap_or(path)
}

/// The best link to `disk` among those in a directory.
fn best_name(disk: &Path, names: &Path) -> Option<PathBuf> {
    let disk = disk.canonicalize().ok()?;
    let leads = |link: &PathBuf| link.canonicalize().is_ok_and(|target| target == disk);
    let links = names.read_dir().ok()?.flatten().map(|entry| entry.path()).filter(leads);
    links.filter_map(|link| Some((rank(link.file_name()?.to_str()?)?, link))).min().map(|it| it.1)
}

/// How well a name tells people which disk it is, the best first; `None` for names that tell of
/// what a disk holds.
fn rank(name: &str) -> Option<u8> {
    let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    match () {
        () if starts(&["lvm-pv-uuid-", "forebay-"]) => None,
        () if starts(&["wwn-", "nvme-eui.", "nvme-uuid.", "nvme-nvme.", "dm-uuid-"]) => Some(2),
        () if starts(&["scsi-"]) => Some(1),
        () => Some(0),
    }
}

fn text(path: PathBuf) -> Result<String, ApiError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| ApiError::usage(format!("the path {path:?} is not UTF-8: rename it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_behind_an_origin_however_it_is_named() {
        for uri in ["spindle:Cargo.toml?preset=nas-5400", "spindle:./Cargo.toml", "Cargo.toml"] {
            let there = Path::new("Cargo.toml").metadata().unwrap();
            assert!(is_same(&there, of_origin(uri)), "{uri}");
            assert!(!is_same(&Path::new("src").metadata().unwrap(), of_origin(uri)), "{uri}");
        }
        assert!(!is_same(&Path::new("src").metadata().unwrap(), Path::new("none.img")));
    }

    #[test]
    fn paths_in_uris_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let spindle = origin("spindle:disk.img?preset=nas-5400").unwrap();
        let wanted = format!("spindle:{}?preset=nas-5400", here.join("disk.img").display());
        assert_eq!(spindle, wanted);
        assert_eq!(origin("spindle:/a").unwrap(), "spindle:/a");
        assert_eq!(origin("ram:40G").unwrap(), "ram:40G");
        assert_eq!(origin("Cargo.toml").unwrap(), here.join("Cargo.toml").display().to_string());
        let error = origin("none.img").unwrap_err();
        assert!(error.message.ends_with("none.img: no such file or device"), "{error}");
        assert!(device(Path::new("ssd.img")).unwrap_err().hints.texts()[0].contains("truncate"));
    }

    #[test]
    fn a_disk_gets_the_name_that_it_keeps_and_that_tells_most() {
        let dir = tempfile::TempDir::new().unwrap();
        let disk = dir.path().join("sdx");
        std::fs::write(&disk, "").unwrap();
        let names = dir.path().join("names");
        std::fs::create_dir(&names).unwrap();
        assert_eq!(best_name(&disk, &names), None);
        for (name, best) in [
            ("lvm-pv-uuid-1", None),
            ("wwn-0x5000", Some("wwn-0x5000")),
            ("scsi-0ATA", Some("scsi-0ATA")),
            ("ata-DISK_S1", Some("ata-DISK_S1")),
            ("forebay-data", Some("ata-DISK_S1")),
        ] {
            std::os::unix::fs::symlink("../sdx", names.join(name)).unwrap();
            assert_eq!(best_name(&disk, &names), best.map(|best| names.join(best)), "{name}");
        }
        std::os::unix::fs::symlink("../other", names.join("ata-A")).unwrap();
        assert_eq!(best_name(&disk, &names), Some(names.join("ata-DISK_S1")));
    }
}
