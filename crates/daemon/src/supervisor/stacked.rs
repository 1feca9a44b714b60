//! Volumes on volumes of the same daemon: at a start, one would wait for the other, for ever.

use super::Supervisor;
use super::late::in_time;
use forebay_api::ApiError;
use forebay_host::frontend::nbd_kernel::KernelNbd;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

impl Supervisor {
    /// Refuses an origin or a cache device that is a block device of ours, or a file on one. (Of a
    /// btrfs the kernel does not tell which device it is on.)
    pub(super) fn check_not_stacked(&self, path: &str) -> Result<(), ApiError> {
        let own = path.to_string();
        let what = format!("look at {path}");
        let metadata = in_time(&what, move || Ok(fs::metadata(own).ok()))?;
        let Some(metadata) = metadata else { return Ok(()) };
        let on = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        let is_on = |device: &PathBuf| fs::metadata(device).is_ok_and(|it| it.rdev() == on);
        let own = self.own_devices().into_iter().find(|(_, device)| is_on(device));
        let Some((volume, device)) = own else { return Ok(()) };
        let text = format!("{path} lies on {}, which is volume {volume}", device.display());
        Err(ApiError::refused(text)
            .action("forebayd could not start again: one volume would wait for the other")
            .action("run a second forebayd for it, or use what is under that volume"))
    }

    /// The block devices of all volumes.
    fn own_devices(&self) -> Vec<(String, PathBuf)> {
        let inner = self.inner();
        let looped = inner.devices.iter().map(|(name, it)| (name, it.loop_device.path()));
        let ublk = inner.ublk.iter().map(|(name, it)| (name, it.device.path()));
        let nbd = inner.nbd.iter().map(|(name, it)| (name, KernelNbd::path(it)));
        looped.chain(ublk).chain(nbd).map(|(name, path)| (name.clone(), path)).collect()
    }
}
