//! The files in which a rescue keeps what it gets: an image of the volume, and a map of it. Nothing
//! is overwritten but what an earlier rescue wrote, if that is wanted.

use super::map::{FIRST_LINE, Map};
use crate::args::RescueArgs;
use crate::path::{is_same, of_origin};
use forebay_api::hint::{Choice, Flag, NoRoom};
use forebay_api::rescue::RescueSpan;
use forebay_api::{ApiError, Hint, RescueAbout};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The two files, before there is anything in them.
pub struct Target {
    image: PathBuf,
    map: PathBuf,
    force: bool,
}

/// The two files, while they are written.
pub struct Begun {
    target: Target,
    file: File,
    kept_bytes: u64,
}

impl Target {
    /// The files at `to`, of which none may be there; or in it, if it is a directory.
    ///
    /// # Errors
    /// What is there is not overwritten.
    pub fn plan(to: &Path, args: &RescueArgs) -> Result<Target, ApiError> {
        let image = match to.is_dir() {
            true => to.join(format!("{}.img", args.name)),
            false => to.to_path_buf(),
        };
        let map = match image.extension().is_some_and(|it| it == "img") {
            true => image.with_extension("map"),
            false => PathBuf::from(format!("{}.map", image.display())),
        };
        let target = Target { image, map, force: args.force };
        for path in [&target.image, &target.map] {
            target.check(path, &args.from)?;
        }
        Ok(target)
    }

    /// The image's path.
    pub fn image(&self) -> String {
        self.image.display().to_string()
    }

    /// The map's path.
    pub fn map(&self) -> String {
        self.map.display().to_string()
    }

    fn check(&self, path: &Path, sources: &[PathBuf]) -> Result<(), ApiError> {
        let shown = path.display();
        let elsewhere = Hint::Choose { what: Choice::RescueFile };
        let there = match fs::symlink_metadata(path) {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
                return match parent.is_none_or(Path::is_dir) {
                    true => Ok(()),
                    false => Err(ApiError::failed(format!("{shown}: there is no such directory"))
                        .hint(elsewhere)),
                };
            }
            Err(error) => return Err(ApiError::failed(format!("{shown}: {error}")).hint(elsewhere)),
        };
        if !there.is_file() {
            let text = format!("{shown} is no file, and nothing else is written to");
            return Err(ApiError::refused(text).hint(elsewhere));
        }
        if sources.iter().any(|source| is_same(&there, source)) {
            let text = format!("{shown} is what is to be read: it is not overwritten");
            return Err(ApiError::refused(text).hint(elsewhere));
        }
        match self.force {
            true if there.nlink() == 1 && self.is_earlier() => Ok(()),
            true => {
                let text = format!(
                    "{shown} is there, and is nothing that a rescue has written: it is not \
                     overwritten, --force or not"
                );
                Err(ApiError::refused(text).hint(elsewhere))
            }
            false => Err(ApiError::refused(format!("{shown} is there already"))
                .hint(elsewhere)
                .hint(Hint::Again { with: Flag::ForceReplace })),
        }
    }

    /// Whether the map that is there is one of a rescue, and so is what it is a map of.
    fn is_earlier(&self) -> bool {
        let mut first = vec![0; FIRST_LINE.len()];
        let read = File::open(&self.map).and_then(|mut map| map.read_exact(&mut first));
        read.is_ok() && first == FIRST_LINE.as_bytes()
    }

    /// Makes the image, with nothing in it. A map that was there is gone before: it would vouch for
    /// what is not in the image yet.
    ///
    /// # Errors
    /// It is the volume's origin, or cannot be made.
    pub fn begin(self, about: &RescueAbout) -> Result<Begun, ApiError> {
        let origin = [of_origin(&about.origin).to_path_buf()];
        for path in [&self.image, &self.map] {
            self.check(path, &origin)?;
        }
        for path in [&self.map, &self.image] {
            remove(path).map_err(|error| failed("remove", path, &error))?;
        }
        let file = File::create_new(&self.image);
        let file = file.map_err(|error| failed("make", &self.image, &error))?;
        let large = about.volume_bytes;
        file.set_len(large).map_err(|error| failed("make as large", &self.image, &error))?;
        Ok(Begun { target: self, file, kept_bytes: 0 })
    }
}

impl Begun {
    /// Keeps bytes of the volume.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep(&mut self, span: RescueSpan, bytes: &[u8]) -> Result<(), ApiError> {
        self.file
            .write_all_at(bytes, span.offset)
            .map_err(|error| failed("write to", &self.target.image, &error))?;
        self.kept_bytes += span.bytes;
        Ok(())
    }

    /// Writes the map; both files are durable then. Where nothing was kept after a failure there
    /// is nothing to keep the files for.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(
        self,
        (map, comments): (&Map, &[String]),
        volume_bytes: u64,
        failed_early: bool,
    ) -> Result<(), ApiError> {
        let Target { image, map: path, .. } = &self.target;
        if failed_early && self.kept_bytes == 0 {
            return fs::remove_file(image).map_err(|error| failed("remove", image, &error));
        }
        self.file.sync_all().map_err(|error| failed("write to", image, &error))?;
        let write = || -> io::Result<()> {
            let mut file = File::create_new(path)?;
            file.write_all(map.text(comments, volume_bytes).as_bytes())?;
            file.sync_all()?;
            sync_directory(path)
        };
        write().map_err(|error| failed("write", path, &error))
    }
}

/// Removes a file that may be there, durably.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_directory(of: &Path) -> io::Result<()> {
    let dir = of.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> ApiError {
    let failed = ApiError::failed(format!("{what} {}: {error}", path.display()));
    let failed = match error.kind() {
        ErrorKind::StorageFull => failed.hint(Hint::FreeSpace { at: NoRoom::StateDirectory }),
        _ => failed,
    };
    failed.hint(Hint::Choose { what: Choice::RescueFile })
}
