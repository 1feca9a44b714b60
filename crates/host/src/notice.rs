//! What an administrator should know of the host's work.

use forebay_engine::{Notice, VolumeId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Notices passed on in one second. More are counted.
const NOTICES_PER_SECOND: u32 = 50;
/// How long notices of one kind about one device are only counted after the first of them.
const REPEATS: Duration = Duration::from_secs(60);
/// Kinds that are counted at a time.
const KINDS_MAX: usize = 256;

/// Something that an administrator should know. [`std::fmt::Display`] makes it a line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNotice {
    /// From the engine.
    Engine(Notice),
    /// From the tiers of a volume's origin.
    Tiers(VolumeId, forebay_tier::Notice),
    /// A write was refused because no device of a volume's tiers had room.
    NoRoom(VolumeId),
    /// An I/O failed; the engine was told.
    IoFailed {
        /// The I/O and the device, as in "write /dev/sdb".
        what: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What the system said.
        reason: String,
        /// The file system under the device is full.
        no_space: bool,
        /// The volume whose origin it is.
        origin: Option<VolumeId>,
        /// It is a device of that volume's tiers.
        is_tier: bool,
    },
    /// An I/O takes very long and goes on.
    IoSlow {
        /// The I/O and the device.
        what: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How long it has taken until now.
        seconds: u64,
    },
    /// A cache device is not waited for any more.
    DeviceHangs {
        /// The device.
        path: String,
        /// Looks, one a second, that saw the oldest under way.
        looks: u32,
        /// I/O that was under way.
        ios: usize,
    },
    /// A device of tiers was cut while it was in use: what lives on it fails from now on.
    Cut {
        /// The device.
        path: PathBuf,
        /// Bytes that it had.
        was: u64,
        /// Bytes that it has.
        now: u64,
    },
    /// Others of the same kind about the same device, of which this was the last.
    Repeated(Box<HostNotice>, u64),
    /// Something else, as a sentence.
    Text(String),
    /// Notices that came too fast to be passed on.
    Suppressed(u64),
}

impl std::fmt::Display for HostNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HostNotice::Engine(notice) => engine_notice(notice, f),
            HostNotice::Tiers(volume, notice) => tier_notice(*volume, notice, f),
            HostNotice::NoRoom(volume) => write!(
                f,
                "tiers of volume {}: no device has room for a write, which is refused (ENOSPC)",
                volume.0
            ),
            HostNotice::IoFailed { what, offset, len, reason, no_space, is_tier, .. } => {
                write!(f, "{what} failed at {offset} ({len} bytes): {reason}")?;
                f.write_str(match (no_space, is_tier) {
                    (false, _) => "",
                    (true, false) => {
                        "; make room on the file system that it lies on, then start again"
                    }
                    (true, true) => {
                        "; make room on what it lies on: until then others take its part"
                    }
                })
            }
            HostNotice::Repeated(last, count) => write!(f, "{last}; {count} such in a minute"),
            HostNotice::IoSlow { what, offset, len, seconds } => {
                write!(f, "{what} at {offset} ({len} bytes) has taken {seconds} s and goes on")
            }
            HostNotice::DeviceHangs { path, looks, ios } => write!(
                f,
                "{path} has not ended an I/O for {looks} s and is waited for no longer ({ios} are \
                 under way): the other cache devices have all that matters"
            ),
            HostNotice::Cut { path, was, now } => {
                let path = path.display();
                write!(
                    f,
                    "{path} was cut while it was in use, from {was} to {now} bytes or less: what \
                     lives on it fails"
                )
            }
            HostNotice::Text(text) => f.write_str(text),
            HostNotice::Suppressed(count) => write!(f, "{count} more notices in that second"),
        }
    }
}

fn tier_notice(
    volume: VolumeId,
    notice: &forebay_tier::Notice,
    f: &mut std::fmt::Formatter<'_>,
) -> std::fmt::Result {
    use forebay_tier::Notice::*;
    write!(f, "tiers of volume {}: ", volume.0)?;
    match notice {
        Opened { records, extents, cut, doubt } => {
            let gone = match (cut, doubt) {
                (true, _) => "; what was not flushed before the machine went down is gone",
                (false, true) => "; what was not flushed may be gone: the next FLUSH fails",
                (false, false) => "",
            };
            write!(f, "open: {records} records replayed, {extents} MiB live somewhere{gone}")
        }
        OpenFailed(why) => write!(f, "{why}"),
        HolderLost(member) => {
            write!(f, "member {} does not keep the map any more; another copy goes on", member.0)
        }
        HolderFound(member) => write!(f, "member {} keeps a copy of the map from now on", member.0),
        BlocksLost { extent, blocks } => write!(
            f,
            "{blocks} blocks at {extent} MiB are lost: they were written since the last flush, \
             which failed; reading them fails until they are written again"
        ),
        MoveFailed { extent, member, error } => {
            let member = member.0;
            write!(f, "the MiB at {extent} MiB stays where it is for now: member {member}: {error}")
        }
    }
}

fn engine_notice(notice: &Notice, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    match notice {
        Notice::Opened { records, blocks, dirty } => write!(
            f,
            "the pool is open: {records} records rolled forward, {blocks} blocks cached, {dirty} \
             dirty"
        ),
        Notice::OpenFailed(why) => write!(f, "the pool cannot be opened: {why}"),
        Notice::DeviceFailed(device, why) => {
            write!(f, "cache device {} failed and is no longer used: {why}", device.0 + 1)
        }
        Notice::DeviceLeft(device) => {
            write!(f, "cache device {} is no longer used: it is to be replaced", device.0 + 1)
        }
        Notice::DeviceCame(device) => write!(
            f,
            "cache device {} is a new one; what is dirty gets its second copy back",
            device.0 + 1
        ),
        Notice::LogBroken => write!(
            f,
            "the cache is no longer used: a device failed with a part of the log that no other \
             has; the volumes go on with their origins, and blocks that are dirty can be read and \
             not written"
        ),
        Notice::BadBlock { volume, block, lost: false } => write!(
            f,
            "block {block} of volume {} was damaged on the cache device; the origin's copy is used",
            volume.0
        ),
        Notice::BadBlock { volume, block, lost: true } => write!(
            f,
            "block {block} of volume {} cannot be read from any cache device and was newer than at \
             the origin: its data is lost and reads of it fail until it is written again",
            volume.0
        ),
        Notice::WritebackFailed { volume, block } => write!(
            f,
            "block {block} of volume {} cannot be written to the origin; it stays dirty and is \
             tried again",
            volume.0
        ),
        Notice::DistrustFailed => write!(
            f,
            "no cache device works, and the note that its content is old cannot be written into \
             the state directory: writes fail until it can; make room there"
        ),
        Notice::Repaired(what) => f.write_str(what),
    }
}

impl HostNotice {
    /// What is told once in a while only, with a count: a tier that fails does so for each of its
    /// extents.
    fn kind(&self) -> Option<String> {
        use forebay_tier::Notice::{BlocksLost, MoveFailed};
        match self {
            HostNotice::IoFailed { what, reason, is_tier: true, .. } => {
                Some(format!("{what}: {reason}"))
            }
            HostNotice::Tiers(volume, MoveFailed { member, error, .. }) => {
                Some(format!("move {} {}: {error}", volume.0, member.0))
            }
            HostNotice::NoRoom(volume) => Some(format!("no room {}", volume.0)),
            HostNotice::Tiers(volume, BlocksLost { .. }) => Some(format!("lost {}", volume.0)),
            _ => None,
        }
    }
}

/// Takes notices. Called on the shard's thread: it must not wait.
pub type NoticeSink = Box<dyn FnMut(HostNotice) + Send>;

/// Passes notices on, a limited number in each second: a dying disk fails thousands of times.
pub(crate) struct Notices {
    sink: NoticeSink,
    second: Instant,
    sent: u32,
    suppressed: u64,
    /// Of each kind that is not told again: since when, how many, the last.
    repeats: BTreeMap<String, (Instant, u64, Option<HostNotice>)>,
}

impl Notices {
    pub fn new(sink: NoticeSink) -> Notices {
        let (second, repeats) = (Instant::now(), BTreeMap::new());
        Notices { sink, second, sent: 0, suppressed: 0, repeats }
    }

    /// Tells what was only counted for a while.
    pub fn tell_repeats(&mut self) {
        let is_over = |it: &(Instant, u64, Option<HostNotice>)| it.0.elapsed() >= REPEATS;
        let kinds = self.repeats.iter().filter(|(_, it)| is_over(it));
        for kind in kinds.map(|(kind, _)| kind.clone()).collect::<Vec<String>>() {
            // What has not come again is forgotten.
            if let Some((_, count, Some(last))) = self.repeats.remove(&kind) {
                (self.sink)(HostNotice::Repeated(Box::new(last), count));
                self.repeats.insert(kind, (Instant::now(), 0, None));
            }
        }
    }

    /// Whether a notice is counted only.
    fn is_repeated(&mut self, notice: &HostNotice) -> bool {
        let Some(kind) = notice.kind() else { return false };
        if let Some((_, count, last)) = self.repeats.get_mut(&kind) {
            (*count, *last) = (*count + 1, Some(notice.clone()));
            return true;
        }
        if self.repeats.len() < KINDS_MAX {
            self.repeats.insert(kind, (Instant::now(), 0, None));
        }
        false
    }

    pub fn send(&mut self, notice: HostNotice) {
        self.tell_repeats();
        if self.is_repeated(&notice) {
            return;
        }
        if self.second.elapsed().as_secs() >= 1 {
            self.second = Instant::now();
            self.sent = 0;
            if self.suppressed > 0 {
                (self.sink)(HostNotice::Suppressed(std::mem::take(&mut self.suppressed)));
            }
        }
        // What the engine says is rare and must not be lost.
        let rare = matches!(
            notice,
            HostNotice::Engine(
                Notice::Opened { .. }
                    | Notice::OpenFailed(_)
                    | Notice::DeviceFailed(..)
                    | Notice::DeviceLeft(_)
                    | Notice::DeviceCame(_)
                    | Notice::LogBroken
            )
        );
        if self.sent >= NOTICES_PER_SECOND && !rare {
            self.suppressed += 1;
            return;
        }
        self.sent += 1;
        (self.sink)(notice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A tier that could not be read wrote 400 KB into the log in 70 s: three lines for each MiB.
    #[test]
    fn of_a_tier_that_fails_one_line_is_told_and_the_others_are_counted() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let mut notices =
            Notices::new(Box::new(move |it| sink.lock().unwrap().push(it.to_string())));
        for offset in 0..1000 {
            for verb in ["read", "write"] {
                notices.send(HostNotice::IoFailed {
                    what: format!("{verb} /dev/sdb"),
                    offset,
                    len: 4096,
                    reason: "Input/output error".to_string(),
                    no_space: false,
                    origin: Some(VolumeId(1)),
                    is_tier: true,
                });
            }
            let (extent, member) = (offset as u32, forebay_tier::MemberId(1));
            let error = forebay_engine::IoError::Io;
            let notice = forebay_tier::Notice::MoveFailed { extent, member, error };
            notices.send(HostNotice::Tiers(VolumeId(1), notice));
        }
        assert_eq!(told.lock().unwrap().len(), 3);
        told.lock().unwrap().clear();
        for it in notices.repeats.values_mut() {
            it.0 -= REPEATS;
        }
        notices.tell_repeats();
        let lines = told.lock().unwrap().clone();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines.iter().all(|line| line.ends_with("; 999 such in a minute")), "{lines:?}");
        notices.repeats.values_mut().for_each(|it| it.0 -= REPEATS);
        notices.tell_repeats();
        assert_eq!(told.lock().unwrap().len(), 3, "what does not come again is forgotten");
        assert!(notices.repeats.is_empty());
    }
}
