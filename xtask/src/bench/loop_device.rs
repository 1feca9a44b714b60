//! A loop device of our own on a file.

use crate::command::output;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, detached when dropped.
pub struct Loop(PathBuf);

impl Loop {
    /// Attaches the file, with options of `losetup`.
    ///
    /// # Errors
    /// If the system has none, or refuses.
    pub fn attach(file: &Path, options: &[&str]) -> Result<Loop> {
        let mut losetup = Command::new("losetup");
        let name = output(losetup.args(["--find", "--show"]).args(options).arg(file))?;
        Ok(Loop(PathBuf::from(name.trim())))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What the system tells of it under this name in its folder in `/sys/block`.
    ///
    /// # Errors
    /// If it does not.
    pub fn told(&self, name: &str) -> Result<String> {
        let path = self.sysfs()?.join(name);
        Ok(std::fs::read_to_string(path)?.trim().to_string())
    }

    fn sysfs(&self) -> Result<PathBuf> {
        let name = self.0.file_name().context("a device has a name")?;
        Ok(Path::new("/sys/block").join(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
