//! The note that a pool's clean content must not be used again, kept on another medium than the pool.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file of the note for a pool, in the state directory.
pub(super) fn file(state_dir: &Path, pool: &[u8; 16]) -> PathBuf {
    let uuid = crate::device::content::uuid_text(pool);
    state_dir.join(format!("distrust-{uuid}"))
}

/// Reads which epoch of a pool, and all before it, must not be trusted; 0 for none.
///
/// # Errors
/// The note is there and cannot be read: whoever goes on without it may serve old data.
pub fn read(state_dir: &Path, pool: &[u8; 16]) -> io::Result<u64> {
    let file = file(state_dir, pool);
    let invalid = || {
        let text = format!(
            "{} does not hold a number; if in doubt write 18446744073709551615 there: the cache then \
             starts cold",
            file.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    match fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().map_err(|_| invalid()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Notes that the clean content of a pool's lives up to `epoch` must not be used again. Durable
/// when it returns.
///
/// # Errors
/// As [`read`], or the note cannot be written.
pub fn note(state_dir: &Path, pool: &[u8; 16], epoch: u64) -> io::Result<()> {
    match read(state_dir, pool)? {
        before if before >= epoch => Ok(()),
        _ => write(&file(state_dir, pool), epoch),
    }
}

/// Writes the note: after this returns it survives a power failure; a crash leaves the old or the new one.
pub(super) fn write(file: &Path, epoch: u64) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let temporary = file.with_extension("new");
    let mut new = File::create(&temporary)?;
    writeln!(new, "{epoch}")?;
    new.sync_all()?;
    fs::rename(&temporary, file)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_a_damaged_one_is_an_error() {
        let dir = tempfile::TempDir::new().unwrap();
        let pool = [7; 16];
        assert_eq!(read(dir.path(), &pool).unwrap(), 0);
        for epoch in [3, 12] {
            write(&file(dir.path(), &pool), epoch).unwrap();
            assert_eq!(read(dir.path(), &pool).unwrap(), epoch);
        }
        assert_eq!(read(dir.path(), &[8; 16]).unwrap(), 0);
        for (epoch, noted) in [(11, 12), (13, 13)] {
            note(dir.path(), &pool, epoch).unwrap();
            assert_eq!(read(dir.path(), &pool).unwrap(), noted);
        }
        fs::write(file(dir.path(), &pool), "many").unwrap();
        assert!(read(dir.path(), &pool).unwrap_err().to_string().contains("starts cold"));
    }
}
