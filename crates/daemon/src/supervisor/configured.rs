//! The volumes of the configuration.

use super::Supervisor;
use forebay_api::config::{VolumeConfig, VolumeOn};
use forebay_api::reply::Done;
use forebay_api::request::{VolumeCreate, VolumeCreateTiered};
use forebay_api::{ApiError, Size};
use std::sync::Arc;

impl Supervisor {
    /// Makes the volumes that the configuration names and nobody knows.
    pub(super) fn config_volumes(self: &Arc<Self>) {
        for volume in &self.config.volumes {
            let known = self.store.get().volume(&volume.name).is_some();
            if known || self.find_volume(&volume.name).is_ok() {
                continue;
            }
            if let Err(error) = self.config_volume(volume) {
                let name = volume.name.as_str();
                tracing::error!(volume = name, "the configured volume: {}", error.message);
            }
        }
    }

    fn config_volume(self: &Arc<Self>, volume: &VolumeConfig) -> Result<Done, ApiError> {
        let VolumeConfig { name, pool, export, .. } = volume.clone();
        match volume.on.clone() {
            VolumeOn::Origin(origin) => {
                let mode = Some(volume.mode.unwrap_or_default());
                let dry_run = false;
                self.volume_create(&VolumeCreate { name, origin, pool, mode, export, dry_run })
            }
            VolumeOn::Tiers { tiers, size, placement } => {
                self.tiered_create(&VolumeCreateTiered {
                    name,
                    tiers,
                    size: size.map(|size| match size {
                        Size::Bytes(bytes) => bytes.to_string(),
                        share @ Size::PerMille(_) => share.to_string(),
                    }),
                    placement,
                    mode: volume.mode,
                    pool,
                    export,
                    // Who writes memory into a configuration knows that it ends with the machine.
                    accept_ephemeral: true,
                    ..VolumeCreateTiered::default()
                })
            }
        }
    }
}
