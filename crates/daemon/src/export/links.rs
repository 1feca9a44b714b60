//! The names of block devices: links in a directory of ours, and what udev is told, from which it
//! makes the links below `/dev/disk` and what systemd knows the device by.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The links of this daemon.
pub(super) struct Links {
    /// Where they are.
    dir: PathBuf,
    /// Where there is a file for each device, which a rule of udev reads. Only the daemon of the
    /// machine tells udev.
    notes: Option<PathBuf>,
}

impl Links {
    pub fn new(dir: PathBuf, notes: Option<PathBuf>) -> Links {
        Links { dir, notes }
    }

    /// Leaves a link of the volume's name to its device, and tells udev, also whether its content
    /// ends with the machine.
    pub fn put(&self, name: &str, device: &Path, is_ephemeral: bool) {
        if let Err(error) = put_link(&self.dir, name, device) {
            tracing::warn!(volume = name, "the link in {}: {error}", self.dir.display());
        }
        let tell = |note: PathBuf| tell_udev(&note, &properties(name, is_ephemeral), device);
        if let Err(error) = self.note(device).map_or(Ok(()), tell) {
            tracing::debug!(volume = name, "tell udev: {error}");
        }
    }

    /// Removes the link of a volume's name to a device that is gone.
    pub fn remove(&self, name: &str, device: &Path) {
        let link = self.dir.join(name);
        if leads_to(&link, device) {
            let _ = fs::remove_file(link);
        }
        if let Some(note) = self.note(device) {
            let _ = fs::remove_file(note);
        }
    }

    /// The path by which people know a device: its link, if that leads there.
    pub fn shown(&self, name: &str, device: PathBuf) -> String {
        let link = self.dir.join(name);
        let path = if leads_to(&link, &device) { link } else { device };
        path.display().to_string()
    }

    /// Removes what was written down for other devices than these: others may get their numbers.
    pub fn prune(&self, known: &[PathBuf]) {
        let notes = self.notes.as_ref().and_then(|notes| fs::read_dir(notes).ok());
        for note in notes.into_iter().flatten().flatten() {
            let is_known = |path: &PathBuf| path.file_name() == Some(&note.file_name());
            if !known.iter().any(is_known) {
                let _ = fs::remove_file(note.path());
            }
        }
    }

    fn note(&self, device: &Path) -> Option<PathBuf> {
        Some(self.notes.as_ref()?.join(device.file_name().unwrap_or_default()))
    }
}

/// Whether a link leads to a device. Both lie where only devices do, so that their names decide.
fn leads_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.file_name() == device.file_name())
}

/// Writes down what udev is to know of a device, and has it look. The rule reads a file, so that
/// it never waits for this daemon.
fn tell_udev(note: &Path, text: &str, device: &Path) -> std::io::Result<()> {
    if fs::read_to_string(note).is_ok_and(|known| known == text) {
        // It was told by an earlier daemon.
        return Ok(());
    }
    fs::create_dir_all(note.parent().unwrap_or(Path::new("/")))?;
    fs::write(note, text)?;
    let kernel_name = device.file_name().unwrap_or_default();
    fs::write(Path::new("/sys/class/block").join(kernel_name).join("uevent"), "change")
}

/// The properties of a volume's device. Names of volumes need no quoting.
fn properties(name: &str, is_ephemeral: bool) -> String {
    let (model, more) = match is_ephemeral {
        true => ("Forebay_ephemeral_volume", "FOREBAY_EPHEMERAL=1\n"),
        false => ("Forebay_volume", ""),
    };
    format!(
        "FOREBAY_VOLUME={name}\nID_VENDOR=Forebay\nID_MODEL={model}\n\
         ID_SERIAL=forebay-{name}\nID_SERIAL_SHORT={name}\n{more}"
    )
}

fn put_link(dir: &Path, name: &str, device: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    // In `/dev/forebay` exactly as udev makes it, so that both agree.
    let target = match (dir.parent(), device.parent(), device.file_name()) {
        (Some(above), Some(home), Some(file)) if above == home => Path::new("..").join(file),
        _ => device.to_path_buf(),
    };
    let beside: PathBuf = dir.join(format!(".{name}"));
    let _ = fs::remove_file(&beside);
    symlink(target, &beside)?;
    fs::rename(&beside, dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udev_is_told_of_content_that_ends_with_the_machine() {
        let [stays, ends] = [false, true].map(|is_ephemeral| properties("data", is_ephemeral));
        assert!(stays.contains("ID_MODEL=Forebay_volume\n") && !stays.contains("EPHEMERAL"));
        assert!(ends.contains("ID_MODEL=Forebay_ephemeral_volume\n"));
        assert!(ends.ends_with("ID_SERIAL_SHORT=data\nFOREBAY_EPHEMERAL=1\n"));
    }

    #[test]
    fn a_link_beside_the_devices_is_relative_as_udev_makes_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let device = dir.path().join("ublkb7");
        let links = dir.path().join("forebay");
        put_link(&links, "data", &device).unwrap();
        let link = links.join("data");
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("../ublkb7"));
        assert!(leads_to(&link, &device));
        assert!(!leads_to(&link, &dir.path().join("ublkb8")));
        let far = dir.path().join("state/dev");
        put_link(&far, "data", &device).unwrap();
        assert_eq!(fs::read_link(far.join("data")).unwrap(), device);
    }
}
