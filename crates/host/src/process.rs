//! What a process that serves block devices of its own machine must not share with it.

use forebay_sys::{mounts, process};
use std::io;

/// Where the kernel lists mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// A file that reached its limit answers an error, and does not end the process; and as many files
/// may be open as the process may have.
pub fn stand_limits() {
    process::survive_full_files();
    process::open_most_files();
}

/// Gives the process mounts of its own, which follow those of the machine: so it is never the last
/// that holds a mount of a device that it serves, which would end in waiting for itself. To be
/// called before there are threads. Says whether it was done: mounts that are not shared could not
/// be followed, and a service manager may have done it already.
///
/// # Errors
/// The system refuses; it takes root.
pub fn own_mounts() -> io::Result<bool> {
    let listed = std::fs::read_to_string(MOUNTS)?;
    if !root_is_shared(&listed) || (root_has(&listed, "master:") && !is_as_first()) {
        return Ok(false);
    }
    mounts::own_mounts()?;
    mounts::follow().map(|()| true)
}

/// Whether this process has the mounts of the machine's first one, as far as it may look.
fn is_as_first() -> bool {
    let [own, first] = ["self", "1"].map(|of| std::fs::read_link(format!("/proc/{of}/ns/mnt")));
    matches!((own, first), (Ok(own), Ok(first)) if own == first)
}

/// Whether mounts below the root come to those who follow it.
fn root_is_shared(mounts: &str) -> bool {
    root_has(mounts, "shared:")
}

/// Whether the mount at the root has an optional field that starts so: systemd's PrivateMounts=
/// makes it one that follows the machine's and is shared itself.
fn root_has(mounts: &str, field: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split(' ');
        let is_root = words.nth(4) == Some("/");
        // Optional fields follow the options, up to a dash.
        let mut optional = words.skip(1).take_while(|word| *word != "-");
        is_root && optional.any(|word| word.starts_with(field))
    })
}

/// Tells the kernel that memory which it asks for on this thread, and on those that it starts, must
/// not come from writing pages to the devices that they serve.
///
/// # Errors
/// It takes the capability CAP_SYS_RESOURCE.
pub fn io_flusher() -> io::Result<()> {
    process::io_flusher()
}

/// The capabilities that [`forget_rights`] leaves.
pub use process::RIGHTS_KEPT;

/// Gives up for good, for this process and those that it starts, what serving volumes does not
/// take: capabilities, and to get more by starting a program. To be called before there are
/// threads.
///
/// # Errors
/// The system refuses.
pub fn forget_rights() -> io::Result<()> {
    process::forget_rights()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_root_is_told_from_others() {
        let other = "23 29 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n";
        let shared = "29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
        let follows = "29 1 8:1 / / rw,relatime master:1 - ext4 /dev/sda1 rw\n";
        let private = "1 1 0:2 / / rw - rootfs rootfs rw\n";
        assert!(root_is_shared(&format!("{other}{shared}")));
        assert!(!root_is_shared(&format!("{other}{follows}")));
        assert!(!root_is_shared(private));
        let both = "29 1 8:1 / / rw,relatime shared:9 master:1 - ext4 /dev/sda1 rw\n";
        assert!(root_is_shared(both) && root_has(both, "master:"));
        assert!(!root_has(shared, "master:"));
    }
}
