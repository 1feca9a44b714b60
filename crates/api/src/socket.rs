//! Where the daemon's sockets and state are.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of the control socket in its directory.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Name of the NBD socket beside it.
pub const NBD_SOCKET: &str = "nbd.sock";
/// Longest path of a unix socket, in bytes, that Linux accepts.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Whether this process runs as root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// The places where a client looks for the control socket, in order.
pub fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::var_os("FOREBAY_SOCKET").filter(|path| !path.is_empty()) {
        return vec![control_socket_of(Path::new(&path))];
    }
    let mut paths = vec![PathBuf::from("/run/forebay").join(CONTROL_SOCKET)];
    paths.extend(user_runtime_dir().map(|dir| dir.join(CONTROL_SOCKET)));
    // A daemon of one's own has it there where the system gives no directory for such.
    paths.extend((!is_root()).then(|| default_state_dir().join(CONTROL_SOCKET)));
    paths
}

/// The control socket that `path` means: itself, or the one in it when it is a directory.
pub fn control_socket_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(CONTROL_SOCKET) } else { path.to_path_buf() }
}

/// The state directory of a daemon without root whose control socket was named so; `None` where the
/// daemon of the machine, or of a user, has its socket.
pub fn state_dir_of(socket: &Path) -> Option<PathBuf> {
    let dir = match socket.file_name().is_some_and(|name| name == CONTROL_SOCKET) {
        true => socket.parent()?,
        false => socket,
    };
    let is_public = dir == Path::new("/run/forebay") || user_runtime_dir().as_deref() == Some(dir);
    (!is_public).then(|| dir.to_path_buf())
}

/// `$XDG_RUNTIME_DIR/forebay`, if there is one.
pub fn user_runtime_dir() -> Option<PathBuf> {
    let dir = env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(PathBuf::from(dir).join("forebay"))
}

/// The directory in which a daemon without `--state-dir` announces its control socket.
pub fn public_dir() -> Option<PathBuf> {
    if is_root() { Some(PathBuf::from("/run/forebay")) } else { user_runtime_dir() }
}

/// The state directory of a daemon that was given none.
pub fn default_state_dir() -> PathBuf {
    if is_root() {
        return PathBuf::from("/var/lib/forebay");
    }
    let base = env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/".into()));
    base.unwrap_or_else(|| home().join(".local/state")).join("forebay")
}
