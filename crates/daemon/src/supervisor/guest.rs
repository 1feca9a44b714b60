//! Disks of virtual machines: a vhost-user socket for each volume that is exported so. The machine
//! reconnects when the daemon has been replaced, and has done what it still waits for.

use super::listen::Offer;
use super::{Inner, Supervisor};
use crate::place::bind;
use forebay_api::ApiError;
use forebay_host::frontend::vhost::{VhostServer, VhostVolume};
use forebay_host::shard::ShardHandle;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it may take to be seen that a machine has ended.
const FAREWELL: Duration = Duration::from_millis(500);
/// What is told of a machine that does not listen.
const DEAF: &str =
    "the machine that is connected sees another size when it starts again, not before";

/// The socket of a volume.
pub(super) struct GuestDisk {
    server: Arc<VhostServer>,
    path: PathBuf,
    offer: Offer,
    /// Number of the pool's shard.
    shard: u32,
}

/// A volume's socket, as others than its owner know it.
pub(super) struct GuestServer(Arc<VhostServer>);

impl GuestServer {
    /// Has the machine that is connected look at the size. Returns what is to be known of it.
    pub fn tell_size(&self) -> &'static str {
        self.0.announce();
        match (self.0.is_connected(), self.0.is_deaf()) {
            (_, true) => DEAF,
            (true, false) => "the machine that is connected was told",
            (false, _) => "a machine sees it when it connects",
        }
    }
}

impl GuestDisk {
    /// What tells the machine of another size.
    pub(super) fn shown(&self) -> (GuestServer, Offer) {
        (GuestServer(Arc::clone(&self.server)), self.offer.clone())
    }
}

impl Inner {
    /// The socket of a volume, if it has one.
    pub(super) fn shown_guest(&self, volume: &str) -> Option<String> {
        let guest = self.guests.get(volume)?;
        Some(format!("vhost-user:{}", guest.path.display()))
    }

    /// Why a volume is exported as it is, and what is to be known of the machine that uses it.
    pub(super) fn shown_why(&self, volume: &str) -> Option<String> {
        let why = self.choices.get(volume)?.why.clone();
        let deaf = self.guests.get(volume).is_some_and(|guest| guest.server.is_deaf());
        Some(if deaf { format!("{why}; {DEAF}") } else { why })
    }
}

impl Supervisor {
    /// Makes a volume's socket.
    pub(super) fn guest_up(
        &self,
        shard: &ShardHandle,
        name: &str,
        offer: &Offer,
    ) -> Result<(), ApiError> {
        let failed = |error: String| {
            ApiError::failed(format!("the vhost-user socket of volume {name}: {error}"))
                .action("or reach the volume by NBD: --export nbd")
        };
        let dir = self.beside_sockets("vhost");
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
        let server = Arc::new(server);
        tracing::info!(volume = name, "vhost-user socket {}", path.display());
        let guest = GuestDisk { server, path, offer: offer.clone(), shard: shard.number() };
        let before = self.inner().guests.insert(name.to_string(), guest);
        assert!(before.is_none(), "a volume is exported once");
        Ok(())
    }

    /// Ends a volume's socket, unless a machine is connected. With `force` it loses its disk.
    /// Returns how the volume was offered.
    pub(super) fn guest_down(&self, name: &str, force: bool) -> Result<Option<Offer>, ApiError> {
        let is_used = || self.inner().guests.get(name).map(|guest| guest.server.is_connected());
        let end = Instant::now() + FAREWELL;
        while !force && is_used() == Some(true) {
            if Instant::now() < end {
                std::thread::sleep(FAREWELL / 50);
                continue;
            }
            let text = format!("a virtual machine uses volume {name}");
            return Err(ApiError::refused(text)
                .action("stop the machine, or take the disk out of it")
                .action("or let it have errors: --force"));
        }
        Ok(self.guest_close(name))
    }

    /// Ends a volume's socket. A machine reconnects when it is there again. Returns how the volume
    /// was offered.
    pub(super) fn guest_close(&self, name: &str) -> Option<Offer> {
        // The server's end waits for its thread, which may wait for the shard: not under the lock.
        let guest = self.inner().guests.remove(name)?;
        let _ = fs::remove_file(&guest.path);
        Some(guest.offer)
    }

    /// Ends the sockets of a pool, or all.
    pub(super) fn guests_park(&self, shard: Option<&ShardHandle>) {
        let inner = self.inner();
        let own = inner.guests.iter();
        let own = own.filter(|(_, guest)| shard.is_none_or(|it| it.number() == guest.shard));
        let names: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        drop(inner);
        // Beside each other: one that has requests at an origin that hangs takes its time.
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| self.guest_close(name));
            }
        });
    }
}
