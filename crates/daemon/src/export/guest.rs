//! Disks of virtual machines: a vhost-user socket for each volume that is exported so. The machine
//! reconnects when the daemon has been replaced, and has done what it still waits for.

use super::machine::Machine;
use super::offer::Volume;
use crate::place::bind;
use forebay_api::hint::{Care, Flag, Reach};
use forebay_api::request::Export as Kind;
use forebay_api::told::GuestSees;
use forebay_api::{ApiError, Hint};
use forebay_host::frontend::vhost::{VhostServer, VhostVolume};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directory beside our other sockets.
const DIR: &str = "vhost";
/// How long it may take to be seen that a machine has ended.
const FAREWELL: Duration = Duration::from_millis(500);
/// The socket of a volume. It ends with this, which may wait for the shard.
pub(super) struct Guest {
    server: VhostServer,
    path: PathBuf,
}

impl Guest {
    pub fn make(
        machine: &Machine,
        &Volume { shard, name, offer }: &Volume,
    ) -> Result<Guest, ApiError> {
        let failed = |error: String| {
            ApiError::failed(format!("the vhost-user socket of volume {name}: {error}"))
                .hint(Hint::use_export(&[Kind::Nbd], Reach::ByNbd))
        };
        let dir = machine.nbd_socket.with_file_name(DIR);
        fs::create_dir_all(&dir).map_err(|error| failed(error.to_string()))?;
        let path = dir.join(format!("{name}.sock"));
        let listener = bind(&path).map_err(|error| failed(format!("{error:#}")))?;
        let volume = VhostVolume {
            shard: shard.clone(),
            volume: offer.volume,
            bytes: offer.bytes.clone(),
            name: name.to_string(),
        };
        let server = VhostServer::start(listener, volume).map_err(|e| failed(e.to_string()))?;
        tracing::info!(volume = name, "vhost-user socket {}", path.display());
        Ok(Guest { server, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a machine is connected that cannot be told of another size.
    pub fn is_deaf(&self) -> bool {
        self.server.is_deaf()
    }

    /// Has the machine that is connected look at the size. Returns what is to be known of it.
    pub fn tell_size(&self) -> GuestSees {
        self.server.announce();
        match (self.server.is_connected(), self.server.is_deaf()) {
            (_, true) => GuestSees::Deaf,
            (true, false) => GuestSees::Now,
            (false, _) => GuestSees::Connecting,
        }
    }

    /// Refuses to end while a machine is connected, unless it is to lose its disk.
    pub fn release(&self, name: &str, force: bool) -> Result<(), ApiError> {
        let end = Instant::now() + FAREWELL;
        while !force && self.server.is_connected() {
            if Instant::now() < end {
                std::thread::sleep(FAREWELL / 50);
                continue;
            }
            let text = format!("a virtual machine uses volume {name}");
            return Err(ApiError::refused(text)
                .hint(Hint::SeeTo { what: Care::Machine })
                .hint(Hint::Again { with: Flag::ForceMachine }));
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
