//! Whether the table of file systems mounts an origin itself: at the next start of the machine it
//! would be mounted past its cache, and what is dirty would be missing.

use forebay_api::Told;
use forebay_api::fstab::{Line, lines, path};
use std::fs;
use std::path::{Path, PathBuf};

/// How a line names a device by what is on it, and where udev keeps links of such names.
const TAGS: [(&str, &str); 5] = [
    ("UUID=", "/dev/disk/by-uuid"),
    ("LABEL=", "/dev/disk/by-label"),
    ("PARTUUID=", "/dev/disk/by-partuuid"),
    ("PARTLABEL=", "/dev/disk/by-partlabel"),
    ("ID=", "/dev/disk/by-id"),
];

/// What a user has to know of a new volume on this origin.
pub(super) fn warnings(origin: &str, volume: &str) -> Vec<Told> {
    let Ok(bytes) = fs::read(path()) else { return Vec::new() };
    let Some(origin) = super::late::real_path(origin) else { return Vec::new() };
    let text = String::from_utf8_lossy(&bytes);
    let found = lines(&text).filter(|line| {
        let device = fs::canonicalize(device_of(&line.what));
        device.is_ok_and(|device| device == origin || is_part(&device, &origin))
    });
    found.flat_map(|line| warning(line, volume)).collect()
}

fn warning(line: Line, volume: &str) -> [Told; 2] {
    let Line { number, what, place, .. } = line;
    let table = path().display().to_string();
    [
        Told::OriginIsMounted { line: number, table, what, place },
        Told::MountVolume { volume: volume.to_string() },
    ]
}

/// Path of what a line mounts.
fn device_of(what: &str) -> PathBuf {
    for (tag, links) in TAGS {
        if let Some(value) = what.strip_prefix(tag) {
            return Path::new(links).join(encoded(value.trim_matches('"')));
        }
    }
    PathBuf::from(what)
}

/// A value as udev writes it in the name of a link.
fn encoded(value: &str) -> String {
    let mut name = String::new();
    for char in value.chars() {
        let plain = char.is_ascii_alphanumeric() || "#+-.:=@_".contains(char) || !char.is_ascii();
        match plain {
            true => name.push(char),
            false => name.push_str(&format!("\\x{:02x}", u32::from(char))),
        }
    }
    name
}

/// Whether a device is a partition of another one.
fn is_part(device: &Path, whole: &Path) -> bool {
    let (Some(device), Some(whole)) = (device.file_name(), whole.file_name()) else { return false };
    let Ok(device) = fs::canonicalize(Path::new("/sys/class/block").join(device)) else {
        return false;
    };
    device.join("partition").exists()
        && device.parent().and_then(Path::file_name).is_some_and(|name| name == whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_tags() {
        let path = |what: &str| device_of(what).to_str().unwrap().to_string();
        assert_eq!(path("/dev/sda1"), "/dev/sda1");
        assert_eq!(path("UUID=\"12-ab\""), "/dev/disk/by-uuid/12-ab");
        assert_eq!(path("LABEL=my data/1"), "/dev/disk/by-label/my\\x20data\\x2f1");
        assert_eq!(path("PARTUUID=a-01"), "/dev/disk/by-partuuid/a-01");
    }

    #[test]
    fn a_partition_is_told_from_other_devices() {
        // Nothing is known of devices that are not there, and a disk is not part of itself.
        assert!(!is_part(Path::new("/dev/nosuchdisk1"), Path::new("/dev/nosuchdisk")));
        for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let path = Path::new("/dev").join(disk.file_name());
            assert!(!is_part(&path, &path));
            for part in fs::read_dir(disk.path()).into_iter().flatten().flatten() {
                if part.path().join("partition").exists() {
                    assert!(is_part(&Path::new("/dev").join(part.file_name()), &path));
                }
            }
        }
    }
}
