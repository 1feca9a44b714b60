//! Where a file has no space: there it reads as zeros.

use forebay_format::BLOCK_SIZE;
use forebay_sys as sys;
use std::fs::File;

/// Looks for holes, in ascending order. Asks the file system once for each stretch: it answers from
/// memory, or reads the file's map.
#[derive(Debug, Default)]
pub(crate) struct Holes<'f> {
    file: Option<&'f File>,
    /// The stretch that was looked at last: whether it is a hole, and its end in bytes.
    stretch: (bool, u64),
}

impl Holes<'_> {
    /// The holes of `file`.
    pub fn of(file: &File) -> Holes<'_> {
        Holes { file: Some(file), stretch: (false, 0) }
    }

    /// Whether all of a block lies in a hole.
    pub fn has(&mut self, block: u64) -> bool {
        let Some(file) = self.file else { return false };
        let start = block * BLOCK_SIZE as u64;
        if start >= self.stretch.1 {
            self.stretch = stretch(file, start);
        }
        self.stretch.0 && start + BLOCK_SIZE as u64 <= self.stretch.1
    }
}

/// Whether `file` has a hole at `start`, and where that changes. What it does not tell is data.
fn stretch(file: &File, start: u64) -> (bool, u64) {
    match sys::file::seek_data(file, start) {
        Ok(Some(data)) if data > start => (true, data),
        Ok(None) => (true, u64::MAX),
        Ok(Some(_)) => (false, sys::file::seek_hole(file, start).unwrap_or(u64::MAX)),
        Err(_) => (false, u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn blocks_without_any_data_are_holes() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = File::create_new(dir.path().join("sparse")).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 8192], 64 << 10).unwrap();
        let mut holes = Holes::of(&file);
        let found: Vec<u64> = (0..256).filter(|block| !holes.has(*block)).collect();
        assert_eq!(found, [16, 17]);
        assert!(!Holes::default().has(0), "who does not tell has data everywhere");
    }
}
