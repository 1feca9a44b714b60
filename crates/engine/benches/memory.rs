//! What a world is made of: its devices are memory. Pages of zeros take none where it is sparse.

use super::VOLUME;
use forebay_engine::{Buf, Distrust, Mode, Target, Tuning, Witness};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use zerocopy::FromZeros;

const PAGE: usize = 4096;
const SECOND: u64 = 1_000_000_000;

/// What a world is made of.
#[derive(Clone)]
pub struct WorldSpec {
    /// Bytes of the cache devices together.
    pub pool_bytes: u64,
    /// How many there are, of equal size.
    pub devices: u64,
    /// Whether they are told of what is free.
    pub discards: bool,
    /// Bytes of the one volume.
    pub volume_bytes: u64,
    /// Its mode.
    pub mode: Mode,
    /// What is known of how far the log went.
    pub witness: Witness,
    /// Bytes of the RAM tier.
    pub ram_bytes: u64,
    /// The engine's tuning.
    pub tuning: Tuning,
    /// Whether the origin can be used.
    pub origin_present: bool,
    /// What an older life noted about the pool.
    pub distrust: Distrust,
    /// Blocks of a stripe of the origin; 0 where it has none.
    pub stripe_blocks: u32,
}

impl WorldSpec {
    /// Write-back before an origin that is there; no read is taken for a stream.
    pub fn new(pool_bytes: u64, volume_bytes: u64) -> WorldSpec {
        WorldSpec {
            pool_bytes,
            devices: 1,
            discards: false,
            volume_bytes,
            mode: Mode::WriteBack,
            witness: Witness::default(),
            ram_bytes: 0,
            tuning: Tuning { sequential_bytes: u64::MAX, ..Tuning::default() },
            origin_present: true,
            distrust: Distrust::default(),
            stripe_blocks: 0,
        }
    }

    /// The same; each miss is admitted and nothing goes home by itself.
    pub fn quiet(pool_bytes: u64, volume_bytes: u64) -> WorldSpec {
        let mut spec = WorldSpec::new(pool_bytes, volume_bytes);
        (spec.tuning.idle_ns, spec.tuning.admit_second_miss) = (1000 * SECOND, false);
        spec
    }
}

/// The bytes.
#[derive(Clone)]
pub enum Memory {
    Flat(Vec<u8>),
    Sparse(Vec<Option<Box<[u8; PAGE]>>>),
}

impl Memory {
    /// Zeros.
    pub fn new(bytes: u64, sparse: bool) -> Memory {
        match sparse {
            false => Memory::Flat(vec![0; bytes as usize]),
            true => Memory::Sparse(vec![None; bytes.div_ceil(PAGE as u64) as usize]),
        }
    }

    /// Fills `into`.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        match self {
            Memory::Flat(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Memory::Sparse(pages) => {
                for (page, part) in pages[at / PAGE..].iter().zip(into.chunks_mut(PAGE)) {
                    match page {
                        Some(page) => part.copy_from_slice(&page[..part.len()]),
                        None => part.fill(0),
                    }
                }
            }
        }
    }

    /// Takes `bytes`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        match self {
            Memory::Flat(room) => room[at..at + bytes.len()].copy_from_slice(bytes),
            Memory::Sparse(pages) => {
                for (page, new) in pages[at / PAGE..].iter_mut().zip(bytes.chunks(PAGE)) {
                    match page {
                        None if new.iter().all(|&byte| byte == 0) => {}
                        None => page.insert(Box::new([0; PAGE]))[..new.len()].copy_from_slice(new),
                        Some(page) => page[..new.len()].copy_from_slice(new),
                    }
                }
            }
        }
    }

    /// Zeros of a range.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let range = offset as usize..(offset + len) as usize;
        match self {
            Memory::Flat(bytes) => bytes[range].fill(0),
            Memory::Sparse(pages) => pages[range.start / PAGE..range.end / PAGE].fill(None),
        }
    }
}

/// The memory of all devices.
#[derive(Clone)]
pub struct Devices {
    pub cache: Vec<Memory>,
    pub origin: Memory,
    pub sparse: bool,
    pub cache_bytes_written: u64,
    pub cache_bytes_read: u64,
    pub origin_reads: u64,
    pub origin_bytes_read: u64,
}

impl Devices {
    /// Zeros, and a new pool on one cache device. With `sparse`, clients write zeros, and pages of
    /// zeros take no memory: for large pools.
    pub fn new(pool_bytes: u64, volume_bytes: u64, sparse: bool) -> Devices {
        Devices::of(&WorldSpec::new(pool_bytes, volume_bytes), sparse)
    }

    /// The same, as a world wants them.
    pub fn of(spec: &WorldSpec, sparse: bool) -> Devices {
        let each = spec.pool_bytes / spec.devices;
        let mut devices = Devices {
            cache: (0..spec.devices).map(|_| Memory::new(each, sparse)).collect(),
            origin: Memory::new(spec.volume_bytes, sparse),
            sparse,
            cache_bytes_written: 0,
            cache_bytes_read: 0,
            origin_reads: 0,
            origin_bytes_read: 0,
        };
        let pool = PoolSpec {
            name: "bench".into(),
            uuid: [1; 16],
            devices: (0..spec.devices).map(|n| (each, [2 + n as u8; 16])).collect(),
            segment_blocks: None,
        };
        let mut volume = VolumeEntry::new_zeroed();
        volume.id = VOLUME.0.into();
        volume.used = 1;
        volume.bytes = spec.volume_bytes.into();
        volume.name = text_field("bench");
        let superblocks = new_pool(&pool).expect("a pool of this size");
        for (device, mut superblock) in devices.cache.iter_mut().zip(superblocks) {
            superblock.volumes.push(volume);
            superblock.header.volume_id_next = 2.into();
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            superblock.encode(&mut bytes);
            SUPERBLOCK_OFFSETS.iter().for_each(|&offset| device.write(offset, &bytes));
        }
        devices
    }

    /// Writes what is on sparse devices to a file.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for memory in self.cache.iter().chain([&self.origin]) {
            let Memory::Sparse(pages) = memory else { panic!("flat memory is not kept") };
            for (at, page) in (0_u64..).zip(pages) {
                if let Some(page) = page {
                    file.write_all(&at.to_le_bytes())?;
                    file.write_all(&page[..])?;
                }
            }
            file.write_all(&u64::MAX.to_le_bytes())?;
        }
        file.flush()
    }

    /// The devices of a world, as `save` left them.
    pub fn load(spec: &WorldSpec, path: &Path) -> std::io::Result<Devices> {
        let mut devices = Devices::of(spec, true);
        let mut file = BufReader::new(File::open(path)?);
        for memory in devices.cache.iter_mut().chain([&mut devices.origin]) {
            loop {
                let (mut at, mut page) = ([0; 8], [0; PAGE]);
                file.read_exact(&mut at)?;
                if at == [0xff; 8] {
                    break;
                }
                file.read_exact(&mut page)?;
                memory.write(u64::from_le_bytes(at) * PAGE as u64, &page);
            }
        }
        Ok(devices)
    }

    pub fn superblock(&self, mode: Mode) -> Superblock {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            self.cache[0].read(offset, &mut bytes);
            Superblock::decode(&bytes)
        });
        let (mut superblock, _) = Superblock::choose(copies).expect("a superblock was written");
        superblock.volumes[0].mode = mode as u8;
        superblock
    }

    pub fn memory(&mut self, target: Target) -> &mut Memory {
        match target {
            Target::Cache(device) => &mut self.cache[usize::from(device.0)],
            Target::Origin(_) => &mut self.origin,
        }
    }

    pub fn read(&mut self, target: Target, offset: u64, buf: &mut Buf) {
        match target {
            Target::Cache(_) => self.cache_bytes_read += buf.len() as u64,
            Target::Origin(_) => {
                self.origin_reads += 1;
                self.origin_bytes_read += buf.len() as u64;
            }
        }
        self.memory(target).read(offset, buf.bytes_mut());
    }

    pub fn write(&mut self, target: Target, offset: u64, buf: &Buf) {
        if matches!(target, Target::Cache(_)) {
            self.cache_bytes_written += buf.len() as u64;
        }
        self.memory(target).write(offset, buf.bytes());
    }
}
