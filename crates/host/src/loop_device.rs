//! Loop devices of the kernel: a file made a block device.

use crate::limit::within;
use forebay_sys::loops::{self, LoopInfo};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take for each step.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a device may be held by others for a moment, such as udev, when it is to end.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait before looking again whether the kernel has seen another size.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Free devices that are tried: others take them too.
const TRIES_MAX: u32 = 16;
/// Where free devices are asked for.
pub const CONTROL: &str = "/dev/loop-control";
/// What the label of each of our devices starts with, before the name of its volume.
const LABEL: &str = "forebay:";
/// Most bytes of a label.
const LABEL_BYTES: usize = 63;

/// A loop device, and how to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopDevice {
    /// Its number: `/dev/loopN`.
    pub number: u32,
    /// The file system that its file is on.
    pub file_system: u64,
}

/// How an end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The loop device is free.
    Free,
    /// Somebody uses it; it is as it was.
    Busy,
}

/// The path of a loop device.
pub fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn open(number: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(path(number))
}

/// What tells people that a device, or the file behind it, is of the volume with this name.
pub(crate) fn label(name: &str) -> String {
    format!("{LABEL}{name}")
}

impl LoopDevice {
    /// Puts a file behind a free loop device, with direct I/O. `name` tells people whose it is.
    ///
    /// # Errors
    /// There is no free device, or the kernel refuses the file.
    pub fn attach(file: File, block_bytes: u32, name: &str) -> io::Result<LoopDevice> {
        let mut info = LoopInfo::empty();
        info.flags = loops::LOOP_DIRECT_IO;
        let label = label(name);
        let len = label.len().min(LABEL_BYTES);
        info.file_name[..len].copy_from_slice(&label.as_bytes()[..len]);
        within(LIMIT, "make a loop device", move || {
            let control = File::options().read(true).write(true).open(CONTROL)?;
            for _ in 0..TRIES_MAX {
                let number = loops::loop_free(&control)?;
                let device = open(number)?;
                match loops::loop_configure(&device, &file, block_bytes, info) {
                    Ok(()) => {
                        let status = loops::loop_status(&device)?;
                        return Ok(LoopDevice { number, file_system: status.device });
                    }
                    // Somebody else took it since.
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
                    Err(e) => return Err(e),
                }
            }
            Err(io::Error::other("others take every free device at once; try again"))
        })
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Whether the device with this number is still this one. Its file has to be served.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn is_there(self) -> io::Result<bool> {
        within(LIMIT, "look at the loop device", move || {
            let status = open(self.number).and_then(|device| loops::loop_status(&device));
            Ok(status.is_ok_and(|status| self.is(&status)))
        })
    }

    /// Ends the device, unless it is in use. Its file has to be served until then.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn end(self) -> io::Result<Ended> {
        within(LIMIT, "end the loop device", move || {
            let end = Instant::now() + PATIENCE;
            loop {
                match self.try_end()? {
                    Ended::Busy if Instant::now() < end && !self.is_mounted() => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    ended => return Ok(ended),
                }
            }
        })
    }

    /// Ends the device after its file can no longer be read, because nobody serves it and nobody
    /// will; or has it end with its last user.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn end_dead(self) -> io::Result<()> {
        within(LIMIT, "end the loop device", move || {
            let Ok(device) = open(self.number) else { return Ok(()) };
            match loops::loop_status(&device) {
                // The file system that it was on has ended.
                Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => loops::loop_clear(&device),
                // The kernel remembers for a moment what was behind it.
                Ok(status) if self.is(&status) => loops::loop_clear(&device),
                _ => Ok(()),
            }
        })
    }

    fn is(self, status: &LoopInfo) -> bool {
        status.device == self.file_system && status.file_name.starts_with(LABEL.as_bytes())
    }

    /// Whether somebody has it for himself, as a mount does.
    pub fn is_mounted(self) -> bool {
        use std::os::unix::fs::OpenOptionsExt;
        let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(self.path());
        opened.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
    }

    fn try_end(self) -> io::Result<Ended> {
        if self.is_mounted() {
            return Ok(Ended::Busy);
        }
        let device = open(self.number)?;
        match loops::loop_status(&device) {
            Ok(status) if self.is(&status) => loops::loop_clear(&device)?,
            // Free, or a device of somebody else: ours has ended.
            Ok(_) => return Ok(Ended::Free),
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Ok(Ended::Free),
            Err(e) => return Err(e),
        }
        // It ends when we close it, unless there are others: then with the last of them.
        drop(device);
        let device = open(self.number)?;
        match loops::loop_status(&device) {
            Ok(mut status) if self.is(&status) => {
                status.flags &= !loops::LOOP_AUTOCLEAR;
                loops::loop_set_status(&device, &status)?;
                Ok(Ended::Busy)
            }
            _ => Ok(Ended::Free),
        }
    }

    /// Has the device end by itself, when whoever uses it has closed it.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn end_with_last_user(self) -> io::Result<()> {
        within(LIMIT, "end the loop device", move || {
            let device = open(self.number)?;
            match loops::loop_status(&device) {
                Ok(status) if self.is(&status) => loops::loop_clear(&device),
                _ => Ok(()),
            }
        })
    }

    /// Has the device look how large its file is now, until it sees `bytes`.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub fn resize(self, bytes: u64) -> io::Result<()> {
        within(LIMIT, "resize the loop device", move || {
            let device = open(self.number)?;
            let end = Instant::now() + PATIENCE;
            loop {
                // The first command has the kernel ask how large the file is, if it was told that
                // this has changed; the second takes over what it heard.
                loops::loop_status(&device)?;
                loops::loop_set_capacity(&device)?;
                if self.bytes()? == bytes / 512 * 512 {
                    return Ok(());
                }
                if Instant::now() >= end {
                    return Err(io::Error::other("the kernel does not ask for the size"));
                }
                std::thread::sleep(LOOK_AGAIN);
            }
        })
    }

    /// Its size in bytes.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn bytes(self) -> io::Result<u64> {
        self.attribute("size").map(|sectors| sectors * 512)
    }

    /// Refuses discards, because what the file cannot give back would be written with zeros.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forbid_discard(self) -> io::Result<()> {
        std::fs::write(self.sys("queue/discard_max_bytes"), "0")
    }

    fn sys(self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("loop{}", self.number)).join(name)
    }

    fn attribute(self, name: &str) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.sys(name))?;
        text.trim().parse().map_err(io::Error::other)
    }
}
