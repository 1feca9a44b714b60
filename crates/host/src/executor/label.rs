//! What messages tell of an I/O.

use super::job::Job;
use crate::device::Device;
use crate::notice::HostNotice;
use forebay_engine::{IoError, Time};
use std::sync::Arc;

/// Enough of an I/O to tell of it.
pub(super) struct Label {
    verb: &'static str,
    device: Option<Arc<Device>>,
    offset: u64,
    len: u64,
    pub started: Time,
    pub told: bool,
}

impl Label {
    pub fn of(job: &Job) -> Label {
        let device = job.device.clone();
        let (verb, len) = (job.verb(), job.len);
        Label { verb, device, offset: job.offset, len, started: job.started, told: job.told }
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
        HostNotice::IoFailed { what, offset: self.offset, len: self.len, reason, no_space }
    }
}
