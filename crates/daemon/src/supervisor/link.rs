//! The names of block devices: links in a directory of ours, and what udev is told, from which it
//! makes the links below `/dev/disk` and what systemd knows the device by.

use super::Supervisor;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Directory beside the sockets with a file for each device, which a rule of udev reads.
const UDEV: &str = "udev";

/// Whether a link leads to a device. Both lie where only devices do, so that their names decide.
pub(super) fn leads_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.file_name() == device.file_name())
}

impl Supervisor {
    /// Leaves a link of the volume's name to its device, and tells udev.
    pub(super) fn device_link(&self, name: &str, device: &Path) {
        let dir = self.inner().device_dir.clone();
        if let Err(error) = put_link(&dir, name, device) {
            tracing::warn!(volume = name, "the link in {}: {error}", dir.display());
        }
        if self.is_system
            && let Err(error) = self.tell_udev(name, device)
        {
            tracing::debug!(volume = name, "tell udev: {error}");
        }
    }

    /// Removes the link of a volume's name to a device that is gone.
    pub(super) fn device_unlink(&self, name: &str, device: &Path) {
        let link = self.inner().device_dir.join(name);
        if leads_to(&link, device) {
            let _ = fs::remove_file(link);
        }
        if self.is_system {
            let _ = fs::remove_file(self.udev_note(device));
        }
    }

    fn udev_note(&self, device: &Path) -> PathBuf {
        let dir = self.beside_sockets(UDEV);
        dir.join(device.file_name().unwrap_or_default())
    }

    /// Removes what was written down for devices that are gone: others may get their numbers.
    pub(super) fn udev_prune(&self) {
        let notes = fs::read_dir(self.beside_sockets(UDEV));
        let inner = self.inner();
        let looped = inner.devices.values().map(|it| it.loop_device.path());
        let ublk = inner.ublk.values().map(|it| it.device.path());
        let known: Vec<PathBuf> =
            looped.chain(ublk).chain(inner.nbd.values().map(|it| it.path())).collect();
        let is_known = |note: &Path| known.iter().any(|path| path.file_name() == note.file_name());
        for note in notes.into_iter().flatten().flatten().filter(|_| self.is_system) {
            if !is_known(&note.path()) {
                let _ = fs::remove_file(note.path());
            }
        }
    }

    /// Writes down what udev is to know of a device, and has it look. The rule reads a file, so
    /// that it never waits for this daemon.
    fn tell_udev(&self, name: &str, device: &Path) -> std::io::Result<()> {
        let note = self.udev_note(device);
        let text = properties(name);
        let known = fs::read_to_string(&note).is_ok_and(|known| known == text);
        if known {
            // It was told by an earlier daemon.
            return Ok(());
        }
        fs::create_dir_all(note.parent().unwrap_or(Path::new("/")))?;
        fs::write(&note, text)?;
        let kernel_name = device.file_name().unwrap_or_default();
        fs::write(Path::new("/sys/class/block").join(kernel_name).join("uevent"), "change")
    }
}

/// The properties of a volume's device. Names of volumes need no quoting.
fn properties(name: &str) -> String {
    format!(
        "FOREBAY_VOLUME={name}\nID_VENDOR=Forebay\nID_MODEL=Forebay_volume\n\
         ID_SERIAL=forebay-{name}\nID_SERIAL_SHORT={name}\n"
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
