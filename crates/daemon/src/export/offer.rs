//! What of a volume is offered, by whatever it is; and the port by which a shard serves a device.

use forebay_api::Mode;
use forebay_engine::VolumeId;
use forebay_host::frontend::VolumeBytes;
use forebay_host::origin::Origin;
use forebay_host::shard::{PortSetup, ShardHandle};
use std::io;
use std::time::Duration;

/// How long a shard may take to begin with a port, or to end one.
pub(super) const PORT_TIMEOUT: Duration = Duration::from_secs(30);

/// A volume as it is offered to clients.
#[derive(Debug, Clone)]
pub struct Offer {
    pub volume: VolumeId,
    pub bytes: VolumeBytes,
    pub space: Space,
    pub mode: Mode,
}

/// A volume that a shard is to serve.
pub(super) struct Volume<'a> {
    pub shard: &'a ShardHandle,
    pub name: &'a str,
    pub offer: &'a Offer,
}

/// What an origin can do with space.
#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
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

/// What serves a device: a port of a shard.
pub(super) struct Port {
    pub shard: ShardHandle,
    pub key: u32,
}

impl Port {
    pub fn attach(shard: &ShardHandle, setup: PortSetup) -> io::Result<Port> {
        let key = shard.attach_port(setup, PORT_TIMEOUT).map_err(io::Error::other)?;
        Ok(Port { shard: shard.clone(), key })
    }

    pub fn detach(self, volume: &str) {
        if let Err(error) = self.shard.detach_port(self.key, PORT_TIMEOUT) {
            tracing::warn!(volume, "{error}");
        }
    }
}
