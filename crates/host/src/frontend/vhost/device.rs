//! The vhost-user protocol of one connection: what the other side says of its memory and queues,
//! and queues handed to the shard and taken back.

use super::channel::Channel;
use super::inflight::{self, Region};
use super::memory::{Memory, PIECES_MAX};
use super::queue::{QUEUE_SIZE_MAX, QueueSetup};
use super::request;
use super::rings::Rings;
use super::server::VhostVolume;
use crate::shard::{PortSetup, ShardError};
use forebay_sys as sys;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};

/// Queues of one disk.
pub const QUEUES_MAX: u16 = 16;
/// How long a queue may take to come to rest.
const REST: Duration = Duration::from_secs(60);

/// Feature bits of virtio and virtio-blk.
const BLK_SEG_MAX: u64 = 1 << 2;
const BLK_BLK_SIZE: u64 = 1 << 6;
const BLK_FLUSH: u64 = 1 << 9;
const BLK_TOPOLOGY: u64 = 1 << 10;
const BLK_MQ: u64 = 1 << 12;
const BLK_DISCARD: u64 = 1 << 13;
const BLK_WRITE_ZEROES: u64 = 1 << 14;
const RING_INDIRECT: u64 = 1 << 28;
const RING_EVENT_IDX: u64 = 1 << 29;
const PROTOCOL: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;

const FEATURES: u64 = BLK_SEG_MAX
    | BLK_BLK_SIZE
    | BLK_FLUSH
    | BLK_TOPOLOGY
    | BLK_MQ
    | BLK_DISCARD
    | BLK_WRITE_ZEROES
    | RING_INDIRECT
    | RING_EVENT_IDX
    | PROTOCOL
    | VERSION_1;

/// What is known of a queue.
#[derive(Debug, Default)]
struct Ring {
    size: u16,
    /// Descriptors, available and used ring, as addresses of the other side's process.
    addresses: Option<[u64; 3]>,
    base: u16,
    kick: Option<File>,
    call: Option<File>,
    enabled: bool,
    /// On the shard: its key there, and where it says how far it came.
    served: Option<(u32, Arc<AtomicU16>)>,
}

/// The disk of one connection.
pub(super) struct Device {
    volume: VhostVolume,
    features: u64,
    memory: Arc<Memory>,
    rings: Vec<Ring>,
    inflight: Option<Region>,
    channel: Option<Channel>,
    /// A queue was handed to the shard since the other side was last told of the configuration.
    started: bool,
}

impl Device {
    pub fn new(volume: VhostVolume) -> Device {
        let rings = (0..QUEUES_MAX).map(|_| Ring::default()).collect();
        Device {
            volume,
            features: 0,
            memory: Arc::new(Memory::new()),
            rings,
            inflight: None,
            channel: None,
            started: false,
        }
    }

    /// Takes the channel by which the other side can be told something.
    pub fn listens(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// Tells the other side to look at the configuration once a queue runs: it may know another
    /// size of the disk, from an earlier daemon, and a machine that goes on does not ask again.
    /// Whether it can be told.
    pub fn announce(&mut self) -> bool {
        match std::mem::take(&mut self.started) {
            true => self.tell(),
            false => self.channel.is_some(),
        }
    }

    /// Tells the other side to look at the configuration. Whether it can be told.
    pub fn tell(&mut self) -> bool {
        if let Some(channel) = &self.channel
            && channel.tell().is_err()
        {
            self.channel = None;
        }
        self.channel.is_some()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Hands a queue to the shard if it is complete and wanted, and takes it back if it is not.
    fn settle(&mut self, index: usize) -> Result<()> {
        let ring = &self.rings[index];
        let wanted = ring.enabled && ring.kick.is_some() && ring.addresses.is_some();
        match (wanted && !self.memory.is_empty(), ring.served.is_some()) {
            (true, false) => self.serve(index),
            (false, true) => self.take_back(index..index + 1),
            _ => Ok(()),
        }
    }

    fn serve(&mut self, index: usize) -> Result<()> {
        let ring = &self.rings[index];
        let addresses = ring.addresses.expect("seen by the caller");
        let memory = Arc::clone(&self.memory);
        let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(|_| Error::BackendInternalError)?;
        let [table, avail, used] = addresses.map(|address| memory.guest(address));
        let placed = queue.try_set_size(ring.size).and_then(|()| {
            let nowhere = virtio_queue::Error::FindMemoryRegion;
            queue.try_set_desc_table_address(table.ok_or(nowhere)?)?;
            let nowhere = virtio_queue::Error::FindMemoryRegion;
            queue.try_set_avail_ring_address(avail.ok_or(nowhere)?)?;
            let nowhere = virtio_queue::Error::FindMemoryRegion;
            queue.try_set_used_ring_address(used.ok_or(nowhere)?)
        });
        placed.map_err(|_| Error::InvalidParam)?;
        queue.set_event_idx(self.features & RING_EVENT_IDX != 0);
        queue.set_next_avail(ring.base);
        queue.set_ready(true);
        let log = self.inflight.as_ref().map(|region| (region, index));
        let (kick, call) = (ring.kick.as_ref().expect("seen by the caller"), ring.call.as_ref());
        let next_avail = Arc::new(AtomicU16::new(ring.base));
        let setup = QueueSetup {
            volume: self.volume.volume,
            name: self.volume.name_bytes(),
            rings: Rings::new(memory, queue, log),
            kick: kick.try_clone().map_err(Error::ReqHandlerError)?,
            call: call.map(File::try_clone).transpose().map_err(Error::ReqHandlerError)?,
            durable_writes: self.features & BLK_FLUSH == 0,
            next_avail: Arc::clone(&next_avail),
        };
        let attached = self.volume.shard.attach_port(PortSetup::Vhost(setup), REST);
        let key = attached.map_err(|_| Error::BackendInternalError)?;
        self.rings[index].served = Some((key, next_avail));
        self.started = true;
        Ok(())
    }

    /// Takes queues back: nothing of them is under way then. A queue whose requests do not end is
    /// let go.
    fn take_back(&mut self, indexes: Range<usize>) -> Result<()> {
        let rings = self.rings[indexes].iter_mut();
        let (rings, served): (Vec<_>, Vec<_>) =
            rings.filter_map(|ring| ring.served.take().map(|served| (ring, served))).unzip();
        let keys: Vec<u32> = served.iter().map(|&(key, _)| key).collect();
        let ended = self.volume.shard.detach_ports(&keys, REST);
        for (ring, (_, next_avail)) in rings.into_iter().zip(served) {
            ring.base = next_avail.load(Ordering::Acquire);
        }
        // A shard that is gone has let the queues go.
        match ended.iter().any(|ended| matches!(ended, Err(ShardError::Timeout(_)))) {
            true => Err(Error::BackendInternalError),
            false => Ok(()),
        }
    }

    /// Takes all queues back.
    pub fn take_all_back(&mut self) -> Result<()> {
        self.take_back(0..self.rings.len())
    }

    fn settle_all(&mut self) -> Result<()> {
        (0..self.rings.len()).try_for_each(|index| self.settle(index))
    }

    /// Maps a piece of the guest's memory. No queue is served meanwhile.
    fn map(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let memory = self.memory.with(region, file).map_err(|_| Error::InvalidParam)?;
        self.memory = Arc::new(memory);
        Ok(())
    }

    /// Changes something of a queue, which is not served meanwhile.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Ring)) -> Result<()> {
        self.ring(index)?;
        self.take_back(index as usize..index as usize + 1)?;
        change(&mut self.rings[index as usize]);
        self.settle(index as usize)
    }
}

/// What the other side sends to wake somebody. Of another kind of descriptor nobody knows whether
/// it can be waited on, and whether a write to it ends.
fn eventfd(file: Option<File>) -> Result<Option<File>> {
    match file.as_ref().is_none_or(sys::eventfd::is_one) {
        true => Ok(file),
        false => Err(Error::InvalidParam),
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.take_all_back()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.take_all_back()?;
        self.rings.iter_mut().for_each(|ring| ring.enabled = false);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        if features & !PROTOCOL != self.features & !PROTOCOL {
            self.take_all_back()?;
        }
        self.features = features;
        for index in 0..self.rings.len() {
            // Without the protocol's features nothing says when a queue may run.
            self.rings[index].enabled |= features & PROTOCOL == 0;
            self.settle(index)?;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.take_all_back()?;
        self.memory = Arc::new(Memory::new());
        for (region, file) in regions.iter().zip(files) {
            self.map(region, file)?;
        }
        self.settle_all()?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|&n| n.is_power_of_two() && n <= QUEUE_SIZE_MAX);
        let size = size.ok_or(Error::InvalidParam)?;
        self.change(index, |ring| ring.size = size)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(index, |ring| ring.addresses = Some([descriptor, available, used]))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change(index, |ring| ring.base = base)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        self.take_back(index as usize..index as usize + 1)?;
        // The queue stands until it gets a new kick.
        let ring = &mut self.rings[index as usize];
        (ring.kick, ring.call) = (None, None);
        Ok(VhostUserVringState::new(index, u32::from(ring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = eventfd(fd)?;
        self.change(index.into(), |ring| ring.kick = kick)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = eventfd(fd)?;
        self.change(index.into(), |ring| ring.call = call)
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES_MAX.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        self.settle(index as usize)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let config = request::config(self.volume.bytes.get(), QUEUES_MAX);
        let at = |n: usize| config.get(n).copied().unwrap_or(0);
        let (offset, size) = (offset as usize, size as usize);
        Ok((offset..offset.saturating_add(size)).map(at).collect())
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _buf: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        Err(Error::InvalidOperation("nothing of the disk's configuration can be changed"))
    }

    /// The channel is known already: see `channel.rs`.
    fn set_backend_req_fd(&mut self, _backend: Backend) {}

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk shares no objects"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues == 0 || queues > QUEUES_MAX || size == 0 || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let bytes = (inflight::queue_bytes(size) * usize::from(queues)) as u64;
        let file = sys::file::sealed_memory_file(bytes).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = (told.num_queues, told.queue_size);
        if queues > QUEUES_MAX || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        self.take_all_back()?;
        let region = Region::map(file, told.mmap_offset, queues, size);
        self.inflight = Some(region.map_err(Error::ReqHandlerError)?);
        self.settle_all()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(PIECES_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.take_all_back()?;
        self.map(region, file)?;
        self.settle_all()?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.take_all_back()?;
        let memory = self.memory.without(region.guest_phys_addr, region.memory_size);
        self.memory = Arc::new(memory.ok_or(Error::InvalidParam)?);
        self.settle_all()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk has no state to move"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no state to move"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("a disk shares no memory"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("live migration is not supported"))
    }
}
