//! Whether a volume is served: not without its origin, but for what is cached of one whose origin
//! was lost meanwhile; and when one is tried that could not be flushed.

use crate::event::Time;
use crate::ids::Dseq;

/// Being tried: nobody knows when the answer comes.
const UNDER_WAY: Time = Time::MAX;

/// The service of one volume.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Why there is none.
    off: Option<String>,
    /// But for what is cached: the origin was lost while it was served.
    lost: bool,
    /// When to try again to begin.
    tries_at: Option<Time>,
    /// The log says durably up to here what must not come back, before it is tried.
    said: Dseq,
}

impl Service {
    /// The origin was not there at the start.
    pub(super) fn origin_is_missing(&mut self) {
        self.off = Some("its origin is missing".to_owned());
    }

    /// The origin is lost while the volume is served: what is cached of it still is.
    pub(crate) fn origin_is_lost(&mut self) {
        self.off = Some("its origin is lost".to_owned());
        self.lost = true;
    }

    /// Nor is what is cached served any more.
    pub(crate) fn ends(&mut self) {
        self.lost = false;
    }

    /// The origin is there again. Whether the volume is served at once: as one whose origin was
    /// lost meanwhile, and has not `changed`.
    pub(crate) fn goes_on(&mut self, changed: bool) -> bool {
        let at_once = std::mem::take(&mut self.lost) && !changed;
        if at_once {
            self.off = None;
        }
        at_once
    }

    /// It is not tried before the log is durable up to here.
    pub(crate) fn waits_for(&mut self, said: Dseq) {
        self.said = said;
    }

    /// It is to be tried from now on.
    pub(crate) fn retry_from(&mut self, now: Time) {
        self.tries_at = Some(now);
    }

    /// Whether it is to be tried now, with the log durable up to `durable`.
    pub(crate) fn is_due(&self, now: Time, durable: Dseq) -> bool {
        self.tries_at.is_some_and(|at| at <= now) && self.said <= durable
    }

    /// When it is to be tried, if that is known.
    pub(crate) fn due(&self) -> Option<Time> {
        self.tries_at.filter(|&at| at < UNDER_WAY)
    }

    /// It is being tried.
    pub(crate) fn is_tried(&mut self) {
        self.tries_at = Some(UNDER_WAY);
    }

    /// The origin could be flushed, and the volume is served; or not, and is tried again later.
    pub(crate) fn tried(&mut self, flushed: bool, again_at: Time) {
        let why = "the origin could not be flushed; it is tried again every second";
        self.tries_at = (!flushed).then_some(again_at);
        self.off = (!flushed).then(|| why.to_owned());
    }

    /// Whether the volume is served, with its origin.
    pub(crate) fn is_on(&self) -> bool {
        self.off.is_none()
    }

    /// Why it is not.
    pub(crate) fn why_off(&self) -> Option<&String> {
        self.off.as_ref()
    }

    /// Whether only what is cached is.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether no request is taken.
    pub(crate) fn refuses(&self) -> bool {
        !self.is_on() && !self.lost
    }

    /// Whether it is off for a moment only: its origin is tried again.
    pub(crate) fn retries(&self) -> bool {
        self.tries_at.is_some()
    }
}
