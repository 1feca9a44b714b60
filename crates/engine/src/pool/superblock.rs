//! Superblock updates: one after the other, each to one of the two copies of every device, then a
//! FLUSH.

use crate::event::{CommandId, DeviceId, VolumeId};
use crate::ids::Seq;
use crate::pool::{Pool, Source};
use crate::segment::Older;
use forebay_format::Layout;
use forebay_format::superblock::{DeviceEntry, Header, JoinedEntry, Superblock};
use zerocopy::little_endian::{U32, U64};

mod update;

/// What to do when an update is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Devices whose superblock was one generation behind have the one of the pool.
    CaughtUp,
    /// The checkpoint counts, which this update names.
    Checkpointed(Source),
    /// The volume is there.
    Added(VolumeId, CommandId),
    /// The volume is gone.
    Removed(VolumeId, CommandId),
    /// The mode is the new one.
    Switched(VolumeId, CommandId),
    /// The volume has its new size.
    Resized(VolumeId, CommandId),
    /// Its origin is called otherwise.
    Called(CommandId),
    /// The pool is closed.
    Closed,
    /// It says which devices are away: that tells them from one that only missed the last update
    /// before a crash.
    Away,
}

/// The superblock in memory, and the update under way.
#[derive(Debug)]
pub(super) struct Superblocks {
    /// As the next update will write it.
    block: Superblock,
    /// As it is on the devices, and as the update under way will make it.
    durable_older: Older,
    sent_older: Older,
    wanted: Vec<Then>,
    under_way: Vec<Then>,
    pending: u32,
    /// Only this device has it so far, which comes with it.
    first: Option<DeviceId>,
    /// Records up to here were on their way when a device failed.
    awaits_seq: Seq,
    /// The next update names a checkpoint that began behind this record, or one counts.
    checkpoint_from: Seq,
}

impl Superblocks {
    pub(super) fn new(block: Superblock) -> Superblocks {
        let durable_older = older(&block);
        Superblocks {
            block,
            durable_older,
            sent_older: durable_older,
            wanted: Vec::new(),
            under_way: Vec::new(),
            pending: 0,
            first: None,
            awaits_seq: Seq::default(),
            checkpoint_from: Seq::default(),
        }
    }
}

impl Pool {
    /// As the next update will write it.
    pub(crate) fn header(&self) -> &Header {
        &self.sb.block.header
    }

    /// Where what lies on a device.
    pub(crate) fn layout(&self) -> Layout {
        self.sb.block.layout()
    }

    /// A volume has the next number: no other will.
    pub(crate) fn number_volume(&mut self) {
        let next = &mut self.sb.block.header.volume_id_next;
        *next = U32::new(next.get() + 1);
    }

    /// A new life of the log begins with the next update.
    pub(crate) fn begin_epoch(&mut self) {
        let header = &mut self.sb.block.header;
        header.epoch = U64::new(header.epoch.get() + 1);
        header.clean = 0;
    }

    /// The pool is closed, with the next update.
    pub(crate) fn mark_clean(&mut self) {
        self.sb.block.header.clean = 1;
    }

    /// A device has this place with the next update.
    pub(super) fn name_device(&mut self, device: DeviceId, of: (DeviceEntry, JoinedEntry)) {
        self.sb.block.header.join(usize::from(device.0), of.0, of.1);
    }

    /// First half of the pool's uuid.
    pub(crate) fn id(&self) -> u64 {
        let uuid = self.sb.block.header.pool_uuid;
        u64::from_le_bytes(uuid[..8].try_into().expect("eight bytes"))
    }

    /// Life of the log.
    pub(crate) fn epoch(&self) -> u64 {
        self.sb.block.header.epoch.get()
    }

    /// The older of the two checkpoints.
    pub(crate) fn older(&self) -> Older {
        self.sb.durable_older
    }

    /// Whether a device failed and the others do not say so durably yet.
    pub(crate) fn tells_away(&self) -> bool {
        let mut updates = self.sb.wanted.iter().chain(&self.sb.under_way);
        updates.any(|then| matches!(then, Then::Away))
    }

    /// A device failed: that it is away is not said before records up to `seq` have ended. If no
    /// other device has one of them, the log cannot do without it.
    pub(crate) fn await_records(&mut self, seq: Seq) {
        self.sb.awaits_seq = seq;
    }

    /// A device failed while another was away: what only those two had of the log up to `seq` is
    /// in a checkpoint when they are both called away. A start that knows neither would take the
    /// end of what it finds for the end of the log (I5). Whether a checkpoint that is complete
    /// is too old for that: it never counts.
    pub(crate) fn await_checkpoint(&mut self, seq: Seq) -> bool {
        self.sb.checkpoint_from = seq;
        let wanted = self.sb.wanted.len();
        self.sb.wanted.retain(|then| !matches!(then, Then::Checkpointed(_)));
        self.sb.wanted.len() < wanted
    }

    /// Whether no update can go before another checkpoint.
    pub(crate) fn needs_checkpoint(&self) -> bool {
        let named = self.sb.wanted.iter().filter_map(|then| match then {
            Then::Checkpointed(new) => Some(new.seq),
            _ => None,
        });
        let known = Seq::of(self.sb.block.header.checkpoint_seq.get());
        named.fold(known, Seq::max) < self.sb.checkpoint_from && self.sb.under_way.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sb.wanted.is_empty() && self.sb.under_way.is_empty()
    }
}

fn older(block: &Superblock) -> Older {
    let header = &block.header;
    match header.previous_generation.get() {
        0 => Older::default(),
        generation => Older { seq: Seq::of(header.previous_seq.get()), generation },
    }
}
