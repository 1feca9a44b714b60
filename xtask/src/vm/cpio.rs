//! An initramfs: a cpio archive in the "newc" form, uncompressed, because that loads fastest.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An archive that is being written.
pub struct Archive {
    file: BufWriter<File>,
    directories: BTreeSet<String>,
    inode: u32,
}

/// Bits of a mode that say what an entry is.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

impl Archive {
    /// Starts an archive at `path`.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path) -> Result<Archive> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Archive { file, directories: BTreeSet::new(), inode: 0 })
    }

    /// Adds a directory, and those above it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn directory(&mut self, name: &str) -> Result<()> {
        let mut end = 0;
        while end < name.len() {
            end = name[end..].find('/').map_or(name.len(), |at| end + at);
            if self.directories.insert(name[..end].to_string()) {
                self.entry(&name[..end], DIRECTORY | 0o755, b"")?;
            }
            end += 1;
        }
        Ok(())
    }

    /// Adds an executable file with these bytes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.parents(name)?;
        self.entry(name, REGULAR | 0o755, bytes)
    }

    /// Adds a copy of a file of the host.
    ///
    /// # Errors
    /// If it cannot be read, or the archive cannot be written.
    pub fn copy(&mut self, name: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.bytes(name, &bytes)
    }

    /// Adds what is below a directory of the host, with the modes and links that it has there.
    ///
    /// # Errors
    /// If it cannot be read, or the archive cannot be written.
    pub fn tree(&mut self, name: &str, from: &Path) -> Result<()> {
        self.directory(name)?;
        let entries = fs::read_dir(from).with_context(|| format!("read {}", from.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            if kind.is_dir() {
                self.tree(&name, &path)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path)?;
                self.link(&name, &target.to_string_lossy())?;
            } else {
                let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                let mode = entry.metadata()?.permissions().mode() & 0o777;
                self.entry(&name, REGULAR | mode, &bytes)?;
            }
        }
        Ok(())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn link(&mut self, name: &str, target: &str) -> Result<()> {
        self.parents(name)?;
        self.entry(name, LINK | 0o777, target.as_bytes())
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.entry("TRAILER!!!", 0, b"")?;
        Ok(self.file.flush()?)
    }

    fn parents(&mut self, name: &str) -> Result<()> {
        name.rsplit_once('/').map_or(Ok(()), |(parent, _)| self.directory(parent))
    }

    /// Header, name and content, each padded to 4 bytes.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        assert!(!name.starts_with('/'), "names are relative to the root");
        self.inode += 1;
        let size = u32::try_from(content.len()).context("a file of an initramfs is below 4 GiB")?;
        let name_size = name.len() as u32 + 1;
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.file.write_all(header.as_bytes())?;
        self.file.write_all(name.as_bytes())?;
        let padding = |len: usize| &[0_u8; 4][..(4 - len % 4) % 4];
        self.file.write_all(b"\0")?;
        self.file.write_all(padding(header.len() + name_size as usize))?;
        self.file.write_all(content)?;
        self.file.write_all(padding(content.len()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_directories_come_first_and_once() {
        let path = std::env::temp_dir().join(format!("forebay-cpio-{}", std::process::id()));
        let mut archive = Archive::create(&path).unwrap();
        archive.bytes("bin/a", b"12345").unwrap();
        archive.link("bin/b", "a").unwrap();
        archive.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut names = Vec::new();
        let mut at = 0;
        let number = |at: usize| {
            usize::from_str_radix(std::str::from_utf8(&bytes[at..at + 8]).unwrap(), 16).unwrap()
        };
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (size, name_size) = (number(at + 6 + 6 * 8), number(at + 6 + 11 * 8));
            names.push(String::from_utf8(bytes[at + 110..at + 109 + name_size].to_vec()).unwrap());
            at = (at + 110 + name_size).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        assert_eq!(names, ["bin", "bin/a", "bin/b", "TRAILER!!!"]);
    }
}
