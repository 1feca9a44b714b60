//! What an origin looks like while nobody is to write to it, to see later whether somebody did: its
//! first part, where partition tables and the superblocks of file systems lie, which a mount for
//! writing changes, and the time of a file's last change. A write elsewhere on a disk is not
//! seen.

use crate::fingerprint::hash;
use crate::origin::Origin;
use forebay_engine::Buf;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Bytes that are looked at: those before the usual place of the first partition or logical volume,
/// and the first of what is there.
const HEAD_BYTES: u64 = (1 << 20) + (128 << 10);

/// What an origin looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    head: [u8; 16],
    /// Of a file: seconds and nanoseconds.
    changed: Option<(i64, i64)>,
}

/// What happened since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Nothing that can be seen.
    Nothing,
    /// The file was touched; what was looked at is as it was.
    Touched,
    /// What was looked at is another.
    Written,
}

impl Rest {
    /// What an origin looks like now; `None` for a model of a disk, or one in memory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(origin: &Origin) -> io::Result<Option<Rest>> {
        let Origin::File(device) = origin else { return Ok(None) };
        let len = HEAD_BYTES.min(origin.bytes());
        let mut buf = Buf::zeroed(len as usize);
        device.file_for(0, len).read_exact_at(buf.bytes_mut(), 0)?;
        let head = hash(&[buf.bytes()]);
        let changed = match device.info().is_block {
            true => None,
            false => {
                let metadata = device.file().metadata()?;
                Some((metadata.mtime(), metadata.mtime_nsec()))
            }
        };
        Ok(Some(Rest { head, changed }))
    }

    /// As text, to keep.
    pub fn encode(&self) -> String {
        let head = format!("{:032x}", u128::from_be_bytes(self.head));
        match self.changed {
            Some((seconds, nanoseconds)) => format!("1 {head} {seconds}.{nanoseconds:09}"),
            None => format!("1 {head}"),
        }
    }

    /// What happened since it looked as this text says. Nothing is held against it if another
    /// version wrote the text.
    pub fn since(&self, text: &str) -> Since {
        let now = self.encode();
        let head = |text: &str| text.split(' ').nth(1).map(str::to_owned);
        match text.starts_with("1 ") {
            true if head(text) != head(&now) => Since::Written,
            true if text != now => Since::Touched,
            _ => Since::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::create_file;
    use std::fs::File;
    use tempfile::TempDir;

    fn look(path: &std::path::Path) -> Rest {
        Rest::of(&Origin::open(path.to_str().unwrap()).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_write_is_seen_at_the_beginning_and_a_touch_everywhere() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("disk");
        create_file(&path, 4 << 20).unwrap();
        let was = look(&path).encode();
        assert_eq!(look(&path).since(&was), Since::Nothing, "looking changes nothing");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"new", 3 << 20).unwrap();
        assert_eq!(look(&path).since(&was), Since::Touched);
        file.write_all_at(b"new", (1 << 20) + 1024).unwrap();
        assert_eq!(look(&path).since(&was), Since::Written);
        for unknown in ["", "2 abc", "1", "nonsense"] {
            assert_eq!(look(&path).since(unknown), Since::Nothing, "{unknown:?}");
        }
        let ram = Origin::open("ram:1M").unwrap();
        assert_eq!(Rest::of(&ram).unwrap(), None);
    }

    #[test]
    fn a_small_origin_is_looked_at_as_a_whole() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("disk");
        create_file(&path, 8192 + 100).unwrap();
        let was = look(&path).encode();
        assert_eq!(look(&path).since(&was), Since::Nothing);
        File::options().write(true).open(&path).unwrap().write_all_at(b"new", 8000).unwrap();
        assert_eq!(look(&path).since(&was), Since::Written);
    }
}
