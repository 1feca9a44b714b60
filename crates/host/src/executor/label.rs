//! What messages tell of an I/O.

use super::goal::Goal;
use super::job::Job;
use crate::device::Device;
use crate::notice::HostNotice;
use forebay_engine::{IoError, Target, Time, VolumeId};
use std::sync::Arc;

/// Enough of an I/O to tell of it.
pub(super) struct Label {
    verb: &'static str,
    device: Option<Arc<Device>>,
    origin: Option<VolumeId>,
    is_tier: bool,
    offset: u64,
    len: u64,
    pub started: Time,
    pub told: bool,
}

impl Label {
    pub fn of(job: &Job) -> Label {
        let device = job.device.clone();
        let (verb, len) = (job.verb(), job.len);
        let origin = match job.goal.target() {
            Target::Origin(volume) => Some(volume),
            Target::Cache(_) => None,
        };
        let (offset, started, told) = (job.offset, job.started, job.told);
        let is_tier = matches!(job.goal, Goal::Member(..));
        Label { verb, device, origin, is_tier, offset, len, started, told }
    }

    /// Which I/O on which device.
    fn what(&self) -> String {
        match &self.device {
            Some(device) => format!("{} {}", self.verb, device.path().display()),
            None => self.verb.to_owned(),
        }
    }

    pub fn slow(&self, now: Time) -> HostNotice {
        let (what, seconds) = (self.what(), (now - self.started) / 1_000_000_000);
        HostNotice::IoSlow { what, offset: self.offset, len: self.len, seconds }
    }

    pub fn failed(&self, reason: String, error: IoError) -> HostNotice {
        let (what, no_space) = (self.what(), error == IoError::NoSpace);
        let (offset, len, origin, is_tier) = (self.offset, self.len, self.origin, self.is_tier);
        HostNotice::IoFailed { what, offset, len, reason, no_space, origin, is_tier }
    }
}
