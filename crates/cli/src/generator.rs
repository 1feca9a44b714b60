//! A generator of systemd: what systemd runs under the name `forebay-generator` before it starts
//! anything, to add to the mounts of volumes that `/etc/fstab` names.
//!
//! Such a mount waits until `forebayd` serves, then for a short time for its device, and when it
//! fails, it fails alone: systemd's own rule, that a local file system which cannot be mounted
//! stops the machine with an emergency shell, is taken off it.

use forebay_api::fstab::{self, Line};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name by which systemd runs this program.
const NAME: &str = "forebay-generator";
/// Paths of volumes start with one of these.
const VOLUMES: [&str; 2] = ["/dev/forebay/", "/dev/disk/by-id/forebay-"];
/// A link to this takes a unit or a dependency away.
const NOTHING: &str = "/dev/null";
/// How long after `forebayd` is ready a device may take to appear.
const DEVICE_SECONDS: u32 = 30;

/// Where systemd wants units.
struct Targets {
    /// Beside those of its own generators.
    normal: PathBuf,
    /// Before everything else, also before an administrator's.
    early: PathBuf,
}

/// A mount of a volume.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Path of the device.
    what: String,
    /// Where it is mounted.
    place: PathBuf,
    /// systemd does not mount it by itself, or does not mind whether it is there.
    optional: bool,
    /// It is one of the file systems that need the network.
    remote: bool,
}

/// Does the generator's work, if this process was started as one. Returns whether that went well.
pub fn run_if_asked() -> Option<bool> {
    let mut arguments = std::env::args_os();
    let name = PathBuf::from(arguments.next()?);
    if name.file_name()? != NAME {
        return None;
    }
    let mut next = || arguments.next().map(PathBuf::from);
    let (Some(normal), Some(early)) = (next(), next()) else {
        eprintln!("{NAME}: systemd runs this with three directories");
        return Some(false);
    };
    if Path::new("/etc/initrd-release").exists() {
        return Some(true);
    }
    let fstab = fstab::path();
    let text = match fs::read(&fstab) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(true),
        Err(error) => {
            eprintln!("{NAME}: read {}: {error}", fstab.display());
            return Some(false);
        }
    };
    let targets = Targets { normal, early };
    let mut good = true;
    for mount in fstab::lines(&text).filter_map(mount) {
        if let Err(error) = targets.write(&mount) {
            eprintln!("{NAME}: the mount at {}: {error}", mount.place.display());
            good = false;
        }
    }
    Some(good)
}

/// The mount that a line of the table describes, if it is one of a volume.
fn mount(line: Line) -> Option<Mount> {
    let Line { what, place, kind, options, .. } = line;
    let is_volume = VOLUMES.iter().any(|start| what.strip_prefix(start).is_some_and(is_name));
    if !is_volume || kind == "swap" || !place.starts_with('/') {
        return None;
    }
    let has = |option: &str| options.iter().any(|own| own == option);
    let optional = has("noauto") || has("nofail") || has("x-systemd.automount");
    Some(Mount { what, place: PathBuf::from(place), optional, remote: has("_netdev") })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

/// The name of the unit for a path, as `systemd-escape --path` makes it.
fn unit(path: &Path, suffix: &str) -> String {
    let parts: Vec<&[u8]> =
        path.as_os_str().as_bytes().split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    let mut name = String::new();
    for (number, byte) in parts.join(&b'/').into_iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if number == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => {
                name.push(char::from(byte));
            }
            other => name.push_str(&format!("\\x{other:02x}")),
        }
    }
    if name.is_empty() {
        name.push('-');
    }
    name + suffix
}

impl Targets {
    fn write(&self, mount: &Mount) -> io::Result<()> {
        // As systemd does it: the name of the unit is that of the place behind all links.
        let place = fs::canonicalize(&mount.place).unwrap_or_else(|_| mount.place.clone());
        let name = unit(&place, ".mount");
        let after = "[Unit]\nWants=forebayd.service\nAfter=forebayd.service\n";
        drop_in(&self.normal, &name, after)?;
        // The time counts from when the daemon is ready. What the table says in
        // x-systemd.device-timeout comes later by name, and wins.
        let limit = format!("{after}JobRunningTimeoutSec={DEVICE_SECONDS}s\n");
        drop_in(&self.normal, &unit(Path::new(&mount.what), ".device"), &limit)?;
        if mount.optional {
            return Ok(());
        }
        let target = if mount.remote { "remote-fs.target" } else { "local-fs.target" };
        link(&self.early.join(format!("{target}.requires")).join(&name), Path::new(NOTHING))?;
        let wanted = self.normal.join(format!("{target}.wants")).join(&name);
        link(&wanted, &Path::new("..").join(&name))
    }
}

fn drop_in(dir: &Path, unit: &str, text: &str) -> io::Result<()> {
    let dir = dir.join(format!("{unit}.d"));
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("40-forebay.conf"), format!("# Made by {NAME}.\n{text}"))
}

fn link(link: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(link.parent().unwrap_or(Path::new("/")))?;
    match symlink(target, link) {
        // Another line of the table has the same place; systemd complains about it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Mount> {
        fstab::lines(line).find_map(mount)
    }

    #[test]
    fn volumes_are_told_from_other_lines() {
        for other in [
            "",
            "# /dev/forebay/data /mnt ext4",
            "/dev/sda1 /mnt ext4 defaults 0 2",
            "/dev/forebay/ /mnt ext4",
            "/dev/forebay/data none swap sw",
            "/dev/forebay/data",
            "UUID=1234 /mnt ext4 x-systemd.requires=forebayd.service",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let mount = parse("/dev/forebay/data /srv/my\\040data ext4 defaults,noatime 0 2").unwrap();
        let place = PathBuf::from("/srv/my data");
        let what = "/dev/forebay/data".to_string();
        assert_eq!(mount, Mount { what, place, optional: false, remote: false });
        for option in ["nofail", "noauto", "x-systemd.automount"] {
            let line = format!("/dev/disk/by-id/forebay-a\t/a\txfs\trw,{option}");
            assert!(parse(&line).unwrap().optional, "{line}");
        }
        assert!(parse("/dev/forebay/a /a xfs _netdev").unwrap().remote);
    }

    #[test]
    fn units_are_named_as_systemd_names_them() {
        let unit = |path: &str| unit(Path::new(path), ".mount");
        assert_eq!(unit("/"), "-.mount");
        assert_eq!(unit("/mnt//data/"), "mnt-data.mount");
        assert_eq!(unit("/srv/my data-1"), "srv-my\\x20data\\x2d1.mount");
        assert_eq!(unit("/.a/.b_c:d"), "\\x2ea-.b_c:d.mount");
    }

    #[test]
    fn a_mount_waits_for_the_daemon_and_fails_alone() {
        let dir = tempfile::TempDir::new().unwrap();
        let targets = Targets { normal: dir.path().join("n"), early: dir.path().join("e") };
        let line = "/dev/forebay/a-b /no/such/place ext4 defaults 0 2";
        targets.write(&parse(line).unwrap()).unwrap();
        targets.write(&parse(line).unwrap()).unwrap();
        let read = |path: &str| fs::read_to_string(targets.normal.join(path)).unwrap();
        let mount = read("no-such-place.mount.d/40-forebay.conf");
        assert!(mount.contains("\nAfter=forebayd.service\n"), "{mount}");
        let device = read("dev-forebay-a\\x2db.device.d/40-forebay.conf");
        assert!(device.contains("\nJobRunningTimeoutSec=30s\n"), "{device}");
        let mask = targets.early.join("local-fs.target.requires/no-such-place.mount");
        assert_eq!(fs::read_link(mask).unwrap(), Path::new(NOTHING));
        let wanted = targets.normal.join("local-fs.target.wants/no-such-place.mount");
        assert_eq!(fs::read_link(wanted).unwrap(), Path::new("../no-such-place.mount"));
        targets.write(&parse("/dev/forebay/c /c ext4 nofail").unwrap()).unwrap();
        assert!(!targets.early.join("local-fs.target.requires/c.mount").exists());
    }
}
