//! What NBD clients are offered, and where they are let in.

use super::device::{Again, Choice, NoDevice, Way};
use super::{Opened, Supervisor};
use crate::place::bind;
use forebay_api::request::Export as ExportKind;
use forebay_api::{ApiError, Mode};
use forebay_engine::VolumeId;
use forebay_host::frontend::VolumeBytes;
use forebay_host::frontend::nbd::{Export, Share, Tls};
use forebay_host::origin::Origin;
use forebay_host::shard::{ListenerSocket, ShardHandle};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TCP_TRIES: u32 = 25;
const TCP_PAUSE: Duration = Duration::from_millis(20);

/// The pool whose thread lets clients in, and its listeners.
pub(super) struct Listening {
    pool: String,
    handle: ShardHandle,
    unix: u32,
    tcp: Option<u32>,
}

/// A volume as it is offered to clients.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub volume: VolumeId,
    pub bytes: VolumeBytes,
    pub space: Space,
    pub mode: Mode,
}

/// What an origin can do with space.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Space {
    /// It tells where it has none.
    pub sparse: bool,
    /// It gives it back at little cost.
    pub punches: bool,
}

impl Space {
    /// Of this origin.
    pub fn of(origin: &Origin) -> Space {
        Space { sparse: origin.sparse(), punches: origin.punches() }
    }
}

impl Supervisor {
    /// URI by which clients reach an exported volume.
    pub(super) fn export_uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.nbd_socket.display())
    }

    /// Offers a volume to clients, unless it shall not be.
    pub(super) fn export(&self, open: &mut Opened, name: &str, offer: &Offer) {
        let kind = self.inner().store.get().volume(name).map(|known| known.export);
        let choice = self.choose(kind.unwrap_or_default());
        let up = match choice.way {
            Way::Ublk => self.ublk_up(&open.handle, name, offer),
            Way::Loop => self.device_up(&open.handle, name, offer),
            Way::VhostUser => self.guest_up(&open.handle, name, offer),
            Way::NbdKernel | Way::Nbd | Way::None => Ok(()),
        };
        self.inner().no_device.remove(name);
        let choice = up.map(|()| choice).unwrap_or_else(|error| {
            tracing::error!(volume = name, "its block device: {}", error.message);
            let why = format!("no block device: {}", error.message);
            if kind.unwrap_or_default() == ExportKind::Auto {
                return Choice { way: Way::Nbd, why };
            }
            let missing = NoDevice { error, again: Again::Asked(offer.clone()) };
            self.inner().no_device.insert(name.to_string(), missing);
            Choice { way: Way::None, why }
        });
        let nbd = matches!(choice.way, Way::Nbd | Way::NbdKernel);
        self.inner().choices.insert(name.to_string(), choice);
        if nbd {
            self.export_nbd(open, name, offer);
        }
    }

    fn export_nbd(&self, open: &mut Opened, name: &str, offer: &Offer) {
        let export = self.server.exports.insert(Export {
            name: name.to_string(),
            description: format!("Forebay volume {name}, {}", offer.mode),
            pool: open.handle.number(),
            volume: offer.volume,
            bytes: offer.bytes.clone(),
            read_only: false,
            sparse: offer.space.sparse,
            fast_zero: AtomicBool::new(offer.mode.may_be_dirty()),
            share: Share::default(),
        });
        open.exports.insert(name.to_string(), export);
    }

    /// Offers a volume of an open pool to clients.
    pub(super) fn export_volume(
        &self,
        pool: &str,
        name: &str,
        offer: &Offer,
    ) -> Result<(), ApiError> {
        let mut open = self.open_pool(pool)?;
        self.export(&mut open, name, offer);
        let mut inner = self.inner();
        if let Some(Ok(now)) = inner.pools.get_mut(pool).map(|pool| pool.open.as_mut()) {
            now.exports = open.exports;
        }
        Ok(())
    }

    /// Tells sessions what a new mode means for them.
    pub(super) fn export_mode(&self, pool: &str, name: &str, mode: Mode) {
        let inner = self.inner();
        let open = inner.pools.get(pool).and_then(|pool| pool.open.as_ref().ok());
        if let Some(export) = open.and_then(|open| open.exports.get(name)) {
            export.fast_zero.store(mode.may_be_dirty(), Ordering::Relaxed);
        }
    }

    /// Offers a volume no longer. Returns what was offered, to offer it again.
    pub(super) fn unexport(&self, pool: &str, name: &str) -> Option<Arc<Export>> {
        let mut inner = self.inner();
        let open = inner.pools.get_mut(pool).and_then(|pool| pool.open.as_mut().ok())?;
        let export = open.exports.remove(name)?;
        self.server.exports.remove(name);
        Some(export)
    }

    /// Offers again what [`Supervisor::unexport`] took away.
    pub(super) fn export_again(&self, pool: &str, export: &Export) {
        let mut inner = self.inner();
        let open = inner.pools.get_mut(pool).and_then(|pool| pool.open.as_mut().ok());
        let Some(open) = open else { return };
        let again = self.server.exports.insert(Export {
            name: export.name.clone(),
            description: export.description.clone(),
            pool: export.pool,
            volume: export.volume,
            bytes: export.bytes.clone(),
            read_only: export.read_only,
            sparse: export.sparse,
            fast_zero: AtomicBool::new(export.fast_zero.load(Ordering::Relaxed)),
            share: Share::default(),
        });
        open.exports.insert(export.name.clone(), again);
    }

    /// Lets clients in, on the thread of any open pool, if there is one and nobody does yet. What
    /// hinders that is told, and tried again now and then: volumes are served without it.
    pub(super) fn listen_or_tell(&self) {
        self.listen_with(TCP_TRIES);
    }

    /// Tries again where clients could not be let in.
    pub fn watch_listening(&self) {
        if !self.inner().unheard.is_empty() {
            self.listen_with(0);
        }
    }

    fn listen_with(&self, tcp_tries: u32) {
        let unheard: Vec<ApiError> = [self.listen_unix(), self.listen_tcp(tcp_tries)]
            .into_iter()
            .filter_map(Result::err)
            .collect();
        let mut inner = self.inner();
        for error in &unheard {
            if !inner.unheard.iter().any(|known| known.message == error.message) {
                tracing::error!("{}; it is tried again", error.message);
            }
        }
        if unheard.is_empty() && !inner.unheard.is_empty() {
            tracing::info!("NBD clients are let in now");
        }
        inner.unheard = unheard;
    }

    /// What keeps NBD clients out.
    pub(super) fn unheard(&self) -> Vec<ApiError> {
        self.inner().unheard.clone()
    }

    fn listen_unix(&self) -> Result<(), ApiError> {
        if self.inner().listening.is_some() {
            return Ok(());
        }
        let Some((pool, open)) = self.open_pools().into_iter().next() else { return Ok(()) };
        let socket =
            bind(&self.nbd_socket).map_err(|error| ApiError::failed(format!("{error:#}")))?;
        let listener = open
            .handle
            .listen(ListenerSocket::Unix(socket), Tls::Off)
            .map_err(|error| super::shard_error(&pool, &error))?;
        let listening = Listening { pool, handle: open.handle, unix: listener, tcp: None };
        self.inner().listening = Some(listening);
        Ok(())
    }

    fn listen_tcp(&self, tries: u32) -> Result<(), ApiError> {
        let Some(address) = self.listen else { return Ok(()) };
        let (pool, handle) = match &self.inner().listening {
            Some(Listening { pool, handle, tcp: None, .. }) => (pool.clone(), handle.clone()),
            _ => return Ok(()),
        };
        let socket = bind_tcp(address, tries).map_err(|error| {
            ApiError::failed(format!("no NBD at {address}: {error}"))
                .action("choose another nbd-listen, or stop who listens there")
        })?;
        let listener = handle
            .listen(ListenerSocket::Tcp(socket), self.tls.clone())
            .map_err(|error| super::shard_error(&pool, &error))?;
        if let Some(listening) = &mut self.inner().listening {
            listening.tcp = Some(listener);
        }
        Ok(())
    }

    /// Lets clients in elsewhere than on this pool's thread, because it ends.
    pub(super) fn move_listeners(&self, pool: &str) {
        if self.inner().listening.as_ref().is_some_and(|listening| listening.pool == pool) {
            self.stop_listening();
            self.listen_or_tell();
        }
    }

    /// Lets no more clients in.
    pub(super) fn stop_listening(&self) {
        let Some(listening) = self.inner().listening.take() else { return };
        for listener in [Some(listening.unix), listening.tcp].into_iter().flatten() {
            listening.handle.unlisten(listener);
        }
        let _ = std::fs::remove_file(&self.nbd_socket);
    }
}

/// Listens on an address. The pool that listened there before may need a moment to let go of it.
fn bind_tcp(address: SocketAddr, mut tries: u32) -> std::io::Result<TcpListener> {
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries > 0 => {
                tries -= 1;
                std::thread::sleep(TCP_PAUSE);
            }
            bound => return bound,
        }
    }
}
