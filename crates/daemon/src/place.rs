//! Where a daemon lives: its state directory with the lock that keeps a second daemon out, its
//! sockets, and the link by which clients find it.

use anyhow::{Context, bail};
use forebay_api::socket::{
    CONTROL_SOCKET, NBD_SOCKET, SOCKET_PATH_BYTES_MAX, default_state_dir, public_dir,
};
use forebay_host::file::create_private;
use forebay_host::is_root;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOCK: &str = "lock";
const PATIENCE: Duration = Duration::from_secs(1);
const DYING_PATIENCE: Duration = Duration::from_secs(10);

/// The directories of this daemon, and the lock on them.
#[derive(Debug)]
pub struct Place {
    state_dir: PathBuf,
    socket_dir: PathBuf,
    is_system: bool,
    /// Held as long as this value lives.
    _lock: File,
}

impl Place {
    /// Takes the state directory for this process; makes it if it is not there.
    ///
    /// # Errors
    /// Another daemon uses it, or it cannot be made or written.
    pub fn take(state_dir: Option<&Path>) -> anyhow::Result<Place> {
        let wanted = state_dir.map_or_else(default_state_dir, Path::to_path_buf);
        make_dir(&wanted)?;
        let dir = fs::canonicalize(&wanted)
            .with_context(|| format!("find the state directory {}", wanted.display()))?;
        let lock = lock(&dir)?;
        let socket_dir = match (state_dir, public_dir()) {
            (None, Some(public)) => {
                make_dir(&public)?;
                public
            }
            _ => dir.clone(),
        };
        let place = Place {
            state_dir: dir,
            socket_dir,
            is_system: state_dir.is_none() && is_root(),
            _lock: lock,
        };
        let bytes = place.control_socket().as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            bail!(
                "the path {} has {bytes} bytes, and a socket's may have {SOCKET_PATH_BYTES_MAX}; \
                 choose a shorter --state-dir",
                place.control_socket().display()
            );
        }
        Ok(place)
    }

    /// The state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.socket_dir.join(CONTROL_SOCKET)
    }

    /// Whether this is the daemon of the machine: root's, in the place that is meant for it.
    pub fn is_system(&self) -> bool {
        self.is_system
    }

    /// Directory of the links to block devices.
    pub fn device_dir(&self) -> PathBuf {
        if self.is_system { PathBuf::from("/dev/forebay") } else { self.state_dir.join("dev") }
    }

    /// Path of the NBD socket.
    pub fn nbd_socket(&self) -> PathBuf {
        self.socket_dir.join(NBD_SOCKET)
    }

    /// Makes the control socket, for this user alone.
    ///
    /// # Errors
    /// It cannot be made, or another daemon listens there.
    pub fn bind_control(&self) -> anyhow::Result<UnixListener> {
        let path = self.control_socket();
        if UnixStream::connect(&path).is_ok() {
            bail!("another forebayd listens on {}; stop it first", path.display());
        }
        bind(&path)
    }

    /// Leaves a link to the control socket where clients look by themselves, unless another daemon
    /// is there or `$FOREBAY_SOCKET` tells them. `None` when it was not possible or not necessary.
    pub fn announce(&self) -> Option<Announced> {
        if std::env::var_os("FOREBAY_SOCKET").is_some_and(|path| !path.is_empty()) {
            return None;
        }
        let link = public_dir()?.join(CONTROL_SOCKET);
        let socket = self.control_socket();
        if link == socket || is_anothers(&link, &socket) {
            return None;
        }
        make_dir(link.parent()?).ok()?;
        let temporary = link.with_extension(format!("{}", std::process::id()));
        symlink(&socket, &temporary).ok()?;
        if fs::rename(&temporary, &link).is_err() {
            let _ = fs::remove_file(&temporary);
            return None;
        }
        Some(Announced { link, socket })
    }
}

/// Whether a daemon answers at a link that is not the one of this socket. One that this daemon left
/// there before it was killed is its own again.
fn is_anothers(link: &Path, socket: &Path) -> bool {
    let is_own = fs::read_link(link).is_ok_and(|target| target == socket);
    !is_own && UnixStream::connect(link).is_ok()
}

/// The link to the control socket; dropping it removes it.
#[derive(Debug)]
pub struct Announced {
    link: PathBuf,
    socket: PathBuf,
}

impl Drop for Announced {
    fn drop(&mut self) {
        if fs::read_link(&self.link).is_ok_and(|target| target == self.socket) {
            let _ = fs::remove_file(&self.link);
        }
    }
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("make the directory {}", dir.display()))
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK);
    let mut file = create_private(&path).with_context(|| format!("open {}", path.display()))?;
    match lock_patiently(&mut file) {
        Ok(()) => {}
        Err((TryLockError::WouldBlock, pid)) => {
            bail!(
                "another forebayd (process {}) uses the state directory {}; stop it first, or \
                 choose another --state-dir",
                pid.trim(),
                dir.display()
            );
        }
        Err((TryLockError::Error(error), _)) => {
            return Err(error).with_context(|| format!("lock {}", path.display()));
        }
    }
    file.set_len(0).and_then(|()| file.rewind()).context("write the lock file")?;
    writeln!(file, "{}", std::process::id()).context("write the lock file")?;
    Ok(file)
}

/// Tries for a moment, because a daemon that was killed holds its locks until the kernel has taken
/// it apart: for a second, and longer while the process that holds it is dead but not gone. Says
/// which that is.
fn lock_patiently(file: &mut File) -> Result<(), (TryLockError, String)> {
    let begin = Instant::now();
    loop {
        let Err(error) = file.try_lock() else { return Ok(()) };
        let mut pid = String::new();
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
        let patience = if is_dying(pid.trim()) { DYING_PATIENCE } else { PATIENCE };
        if begin.elapsed() > patience || matches!(error, TryLockError::Error(_)) {
            return Err((error, pid));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the process is dead, or there is none.
fn is_dying(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// Binds a unix socket that only this user may use. A stale socket is replaced: it is made beside
/// and moved over, so that nobody can connect before its mode is set.
///
/// # Errors
/// The system refuses.
pub fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    let beside = path.with_extension("new");
    let _ = fs::remove_file(&beside);
    let made = (|| {
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        fs::rename(&beside, path)?;
        Ok::<_, std::io::Error>(listener)
    })();
    made.with_context(|| format!("make the socket {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_was_left_at_a_kill_is_its_own_again() {
        let dir = tempfile::tempdir().unwrap();
        let (link, own) = (dir.path().join("public"), dir.path().join("control.sock"));
        assert!(!is_anothers(&link, &own), "nothing is there");
        let _listener = UnixListener::bind(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(!is_anothers(&link, &own));
        assert!(is_anothers(&link, &dir.path().join("other.sock")));
    }

    #[test]
    fn a_second_daemon_is_refused_and_told_who_the_first_is() {
        let dir = tempfile::TempDir::new().unwrap();
        let first = Place::take(Some(dir.path())).unwrap();
        let error = Place::take(Some(dir.path())).unwrap_err().to_string();
        let wanted = format!("another forebayd (process {})", std::process::id());
        assert!(error.contains(&wanted), "{error}");
        drop(first);
        Place::take(Some(dir.path())).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::TempDir::new().unwrap();
        let place = Place::take(Some(dir.path())).unwrap();
        drop(place.bind_control().unwrap());
        let listener = place.bind_control().unwrap();
        let mode = fs::metadata(place.control_socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = place.bind_control().unwrap_err().to_string();
        assert!(error.contains("another forebayd listens"), "{error}");
        drop(listener);
    }

    /// Anybody could lock a lock file that anybody could open.
    #[test]
    fn directory_and_lock_are_their_owners_alone() {
        let dir = tempfile::TempDir::new().unwrap();
        let wanted = dir.path().join("state/deeper");
        let place = Place::take(Some(&wanted)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&wanted), mode(&wanted.join(LOCK))), (0o700, 0o600));
        drop(place);
        fs::set_permissions(wanted.join(LOCK), Permissions::from_mode(0o644)).unwrap();
        let _place = Place::take(Some(&wanted)).unwrap();
        assert_eq!(mode(&wanted.join(LOCK)), 0o600);
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused_at_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let long = dir.path().join("x".repeat(100));
        let error = Place::take(Some(&long)).unwrap_err().to_string();
        assert!(error.contains("choose a shorter --state-dir"), "{error}");
    }
}
