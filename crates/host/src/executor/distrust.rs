//! The note that a pool's clean content must not be used again, kept on another medium than the pool.

use forebay_engine::Distrust;
use forebay_sys::file::{read_plain, replace_private};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

/// Most bytes of a note: a line for each number that a volume of the pool ever had.
const NOTE_BYTES_MAX: u64 = 1 << 30;

/// The file of the note for a pool, in the state directory.
pub(super) fn file(state_dir: &Path, pool: &[u8; 16]) -> PathBuf {
    let uuid = crate::device::content::uuid_text(pool);
    state_dir.join(format!("distrust-{uuid}"))
}

/// Reads what of a pool must not be used; nothing where there is no note. The first line has the
/// last life whose clean content is meant, each further line a volume and the last life whose dirty
/// content was given up.
///
/// # Errors
/// The note is there and cannot be read: whoever goes on without it may serve old data.
pub fn read(state_dir: &Path, pool: &[u8; 16]) -> io::Result<Distrust> {
    let file = file(state_dir, pool);
    let invalid = || {
        let text = format!(
            "{} does not hold a number; if in doubt write 18446744073709551615 there: the cache then \
             starts cold",
            file.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    match read_plain(&file, NOTE_BYTES_MAX) {
        Ok(bytes) => str::from_utf8(&bytes).ok().and_then(parse).ok_or_else(invalid),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Distrust::default()),
        Err(e) => Err(e),
    }
}

fn parse(text: &str) -> Option<Distrust> {
    let mut lines = text.lines();
    let epoch = lines.next()?.trim().parse().ok()?;
    let drop = |line: &str| {
        let (volume, epoch) = line.split_once(' ')?;
        Some((volume.parse().ok()?, epoch.trim().parse().ok()?))
    };
    Some(Distrust { epoch, dropped: lines.map(drop).collect::<Option<_>>()? })
}

/// Notes that the clean content of a pool's lives up to `epoch` must not be used again. Durable
/// when it returns.
///
/// # Errors
/// As [`read`], or the note cannot be written.
pub fn note(state_dir: &Path, pool: &[u8; 16], epoch: u64) -> io::Result<()> {
    match read(state_dir, pool)? {
        before if before.epoch >= epoch => Ok(()),
        before => write(&file(state_dir, pool), &Distrust { epoch, ..before }),
    }
}

/// Writes the note: after this returns it survives a power failure; a crash leaves the old or the new one.
pub(super) fn write(file: &Path, note: &Distrust) -> io::Result<()> {
    let dropped = note.dropped.iter().map(|(volume, epoch)| format!("{volume} {epoch}\n"));
    let lines: String = iter::once(format!("{}\n", note.epoch)).chain(dropped).collect();
    replace_private(file, lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_a_damaged_one_is_an_error() {
        let dir = tempfile::TempDir::new().unwrap();
        let pool = [7; 16];
        assert_eq!(read(dir.path(), &pool).unwrap(), Distrust::default());
        let dropped: std::collections::BTreeMap<u32, u64> = [(1, 12), (9, 3)].into();
        for (epoch, dropped) in [(3, [].into()), (12, dropped.clone())] {
            let note = Distrust { epoch, dropped };
            write(&file(dir.path(), &pool), &note).unwrap();
            assert_eq!(read(dir.path(), &pool).unwrap(), note);
        }
        assert_eq!(read(dir.path(), &[8; 16]).unwrap(), Distrust::default());
        for (epoch, noted) in [(11, 12), (13, 13)] {
            note(dir.path(), &pool, epoch).unwrap();
            let dropped = dropped.clone();
            assert_eq!(read(dir.path(), &pool).unwrap(), Distrust { epoch: noted, dropped });
        }
        for text in ["", "many", "3\n1", "3\n1 2 3"] {
            std::fs::write(file(dir.path(), &pool), text).unwrap();
            assert!(read(dir.path(), &pool).unwrap_err().to_string().contains("starts cold"));
        }
    }
}
