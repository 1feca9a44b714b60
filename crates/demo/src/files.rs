//! The disk "full of data": a FAT file system with files on it, made without any tool, and read
//! back through the export to see that every byte is still there.

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use forebay_host::origin::spindle::Buf;
use std::fs::File;
use std::io::{Error, Read, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::device::{Device, Kind};

/// Bytes of a cluster of the file system.
const CLUSTER: usize = 32 << 10;
/// Bytes of a page of the sparse image.
const PAGE: u64 = 4096;
/// Bytes at the start of the image that are kept in memory while it is made: the file system writes
/// its tables four bytes at a time.
const HEAD: usize = 4 << 20;
static ZEROS: [u8; CLUSTER] = [0; CLUSTER];
/// Bytes that one read of the checker takes from the export.
const WINDOW: usize = 256 << 10;
/// Folders and files in each.
const FOLDERS: usize = 8;
const FILES: usize = 30;
/// The file that the workload works on.
const DATABASE: &str = "database.dat";

/// What is on the disk.
pub struct Content {
    /// Files with their checksums.
    pub files: Vec<FileSum>,
    /// Where the workload's file begins on the disk.
    pub database_offset: u64,
    /// Its size in bytes.
    pub database_bytes: u64,
}

/// One file and what it should be.
pub struct FileSum {
    name: String,
    bytes: u64,
    crc: u32,
}

impl Content {
    /// Bytes in the files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Makes `path`, a disk of `bytes` bytes with a file system full of files, and in it one large file
/// of zeros for the workload. The disk takes room for the files only.
///
/// # Errors
/// When the file cannot be written.
pub fn make(path: &Path, bytes: u64, database_bytes: u64) -> Result<Content> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(bytes)?;
    let mut image = Sparse::new(file, bytes);
    let options = FormatVolumeOptions::new()
        .fat_type(fatfs::FatType::Fat32)
        .bytes_per_cluster(CLUSTER as u32)
        .volume_label(*b"FOREBAY    ");
    fatfs::format_volume(&mut image, options)?;
    let places = image.places.clone();
    let system = FileSystem::new(image, FsOptions::new())?;
    let root = system.root_dir();
    let mut database = root.create_file(DATABASE)?;
    let mut offset = None;
    for cluster in 0..database_bytes / CLUSTER as u64 {
        database.write_all(&ZEROS)?;
        let at = places.get();
        let first = *offset.get_or_insert(at);
        if at != first + cluster * CLUSTER as u64 {
            return Err(Error::other("the file system did not lay the large file out in a row"));
        }
    }
    drop(database);
    let mut files = Vec::new();
    let mut content = Vec::new();
    for folder in 0..FOLDERS {
        let dir = root.create_dir(&format!("folder {folder}"))?;
        for number in 0..FILES {
            let index = folder * FILES + number;
            write_content(index, &mut content);
            let name = format!("letter {number}.txt");
            let mut file = dir.create_file(&name)?;
            file.write_all(&content)?;
            files.push(FileSum {
                name: format!("folder {folder}/{name}"),
                bytes: content.len() as u64,
                crc: crc32c::crc32c(&content),
            });
        }
    }
    drop(root);
    system.unmount()?;
    Ok(Content { files, database_offset: offset.unwrap_or(0), database_bytes })
}

/// The content of a file: no two alike, 1 byte to some 600 KiB.
fn write_content(index: usize, content: &mut Vec<u8>) {
    let mut state = index as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let bytes = 1 + next() as usize % (100 << (index % 14));
    content.clear();
    while content.len() < bytes {
        content.extend(next().to_le_bytes());
    }
    content.truncate(bytes);
}

/// Mounts the file system behind `device` and reads every file. Answers the names of those that are
/// not what they were.
///
/// # Errors
/// When the file system cannot be read at all.
pub fn check(device: &mut Device, bytes: u64, content: &Content) -> Result<Vec<String>> {
    let disk = Window { device, bytes, position: 0, at: u64::MAX, data: Buf::zeroed(WINDOW) };
    let options = FsOptions::new().update_accessed_date(false);
    let system = FileSystem::new(disk, options)?;
    let root = system.root_dir();
    let mut broken = Vec::new();
    let mut data = Vec::new();
    for file in &content.files {
        data.clear();
        let read = root.open_file(&file.name).and_then(|mut f| f.read_to_end(&mut data));
        let same = data.len() as u64 == file.bytes && crc32c::crc32c(&data) == file.crc;
        if read.is_err() || !same {
            broken.push(file.name.clone());
        }
    }
    Ok(broken)
}

/// An image whose pages of zeros are never written, and that tells where the last write went.
struct Sparse {
    /// The start of the image, and what of it is not in the file yet.
    head: Vec<u8>,
    unsaved: std::ops::Range<usize>,
    file: File,
    bytes: u64,
    position: u64,
    written: Vec<bool>,
    places: std::rc::Rc<std::cell::Cell<u64>>,
}

impl Sparse {
    fn new(file: File, bytes: u64) -> Sparse {
        let written = vec![false; bytes.div_ceil(PAGE) as usize];
        let (head, unsaved, places) = (vec![0; HEAD], 0..0, Default::default());
        Sparse { head, unsaved, file, bytes, position: 0, written, places }
    }
}

impl Read for Sparse {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut len = (buf.len() as u64).min(self.bytes.saturating_sub(self.position)) as usize;
        let at = self.position as usize;
        if at < HEAD {
            len = len.min(HEAD - at);
            buf[..len].copy_from_slice(&self.head[at..at + len]);
        } else {
            self.file.read_exact_at(&mut buf[..len], self.position)?;
        }
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for Sparse {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        let at = self.position as usize;
        if at < HEAD {
            let len = buf.len().min(HEAD - at);
            if buf.len() >= CLUSTER {
                self.places.set(self.position);
            }
            self.head[at..at + len].copy_from_slice(&buf[..len]);
            self.unsaved = match self.unsaved.is_empty() {
                true => at..at + len,
                false => self.unsaved.start.min(at)..self.unsaved.end.max(at + len),
            };
            self.position += len as u64;
            return Ok(len);
        }
        let len = (buf.len() as u64).min(self.bytes.saturating_sub(self.position));
        let pages = self.position / PAGE..(self.position + len).div_ceil(PAGE);
        let pages = pages.start as usize..pages.end as usize;
        let buf = &buf[..len as usize];
        if buf.len() >= CLUSTER {
            self.places.set(self.position);
        }
        if self.written[pages.clone()].contains(&true) || !is_zero(buf) {
            self.written[pages].fill(true);
            self.file.write_all_at(buf, self.position)?;
        }
        self.position += len;
        Ok(len as usize)
    }

    fn flush(&mut self) -> Result<()> {
        let unsaved = std::mem::take(&mut self.unsaved);
        self.file.write_all_at(&self.head[unsaved.clone()], unsaved.start as u64)
    }
}

impl Drop for Sparse {
    /// The file system does not flush what it writes last. A failure shows when the files are read.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

fn is_zero(buf: &[u8]) -> bool {
    buf.chunks(CLUSTER).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

impl Seek for Sparse {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.position = moved(self.position, self.bytes, to)?;
        Ok(self.position)
    }
}

fn moved(position: u64, bytes: u64, to: SeekFrom) -> Result<u64> {
    let target = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::Current(delta) => position.checked_add_signed(delta),
        SeekFrom::End(delta) => bytes.checked_add_signed(delta),
    };
    target.ok_or_else(|| Error::other("a seek before the start"))
}

/// A device read through a window, so that a file system can be mounted on it.
struct Window<'d> {
    device: &'d mut Device,
    bytes: u64,
    position: u64,
    at: u64,
    data: Buf,
}

impl Window<'_> {
    fn load(&mut self, at: u64) -> Result<()> {
        let mut buf = std::mem::take(&mut self.data);
        buf.set_len((WINDOW as u64).min(self.bytes - at) as usize);
        let len = buf.len();
        self.at = u64::MAX;
        self.device.submit(0, Kind::Read, at, len, buf);
        let mut ended = Vec::new();
        self.device.wait(&mut ended)?;
        let end = ended.pop().ok_or_else(|| Error::other("a read without an end"))?;
        self.data = end.buf;
        if end.error != 0 {
            return Err(Error::from_raw_os_error(end.error));
        }
        self.at = at;
        Ok(())
    }
}

impl Read for Window<'_> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let window = WINDOW as u64;
        let at = self.position / window * window;
        if self.position >= self.bytes || buf.is_empty() {
            return Ok(0);
        }
        if self.at != at {
            self.load(at)?;
        }
        let data = &self.data.bytes()[(self.position - at) as usize..];
        let len = data.len().min(buf.len());
        buf[..len].copy_from_slice(&data[..len]);
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for Window<'_> {
    /// The checker only reads. What the file system would note in passing stays unwritten.
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.position += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for Window<'_> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.position = moved(self.position, self.bytes, to)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::BareFile;

    #[test]
    fn files_are_found_again_and_a_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("disk");
        // FAT32 needs 65,525 clusters.
        let bytes = 65_700 * CLUSTER as u64 + (4 << 20);
        let content = make(&path, bytes, 64 << 20).expect("an image");
        assert_eq!(content.files.len(), FOLDERS * FILES);
        assert_eq!(content.database_bytes, 64 << 20);
        let open = || Device::File(BareFile::open(&path, 1).expect("the image"));
        let broken = check(&mut open(), bytes, &content).expect("a file system");
        assert_eq!(broken, Vec::<String>::new());

        let file = File::options().read(true).write(true).open(&path).expect("the image");
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, content.database_offset).expect("a page");
        assert_eq!(page, [0; 4096]);
        // The last file lies at the end of what was written.
        let end = content.database_offset + content.database_bytes + content.bytes();
        let mut at = end / 4096 * 4096;
        while page == [0; 4096] {
            at -= 4096;
            file.read_exact_at(&mut page, at).expect("a page");
        }
        page[0] ^= 1;
        file.write_all_at(&page, at).expect("a page");
        let broken = check(&mut open(), bytes, &content).expect("a file system");
        assert_eq!(broken.len(), 1);
    }
}
