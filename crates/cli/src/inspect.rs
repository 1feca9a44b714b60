//! `inspect`: what is on a cache device, or on members of a tiered volume, read from their bytes
//! alone. Needs no daemon and never writes.

mod tier;

use crate::args::{Format, InspectArgs};
use crate::{output, printed};
use forebay_api::size::human;
use forebay_api::{ApiError, SCHEMA};
use forebay_format::checkpoint::{self, Chunk, TableItem};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::record::{self, EntryKind, RecordClass};
use forebay_format::superblock::{CHECKPOINT_NONE, SUPERBLOCK_SIZE, Superblock, field_text};
use forebay_format::{BLOCK_SIZE, FormatError, Layout, Pairing};
use forebay_sys::file::open_to_look;
use serde::Serialize;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most segments of a pool of which it is told which are partners: far more than a pool has,
/// unless a superblock lies.
const PAIRED_SEGMENTS_MAX: u64 = 1 << 22;

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Inspection {
    schema: u32,
    kind: &'static str,
    device: String,
    bytes: u64,
    superblocks: Vec<Copy>,
    pool: Option<Pool>,
    checkpoints: Vec<Checkpoint>,
    segments: Vec<Segment>,
}

/// One superblock copy.
#[derive(Debug, Serialize)]
struct Copy {
    offset: u64,
    /// What is wrong with it, if anything.
    error: Option<String>,
    generation: Option<u64>,
    epoch: Option<u64>,
    clean: Option<bool>,
}

/// What the newer valid copy says.
#[derive(Debug, Serialize)]
struct Pool {
    name: String,
    uuid: String,
    device_index: u16,
    devices: Vec<PoolDevice>,
    segment_bytes: u64,
    checkpoint_area_bytes: u64,
    segments_offset: u64,
    volumes: Vec<Volume>,
}

#[derive(Debug, Serialize)]
struct PoolDevice {
    uuid: String,
    bytes: u64,
    segments: u32,
}

#[derive(Debug, Serialize)]
struct Volume {
    id: u32,
    name: String,
    origin: String,
    bytes: u64,
    mode: u8,
}

/// One checkpoint, as far as it could be read.
#[derive(Debug, Default, Serialize)]
struct Checkpoint {
    area: usize,
    offset: u64,
    generation: u64,
    bytes: u64,
    last_seq: u64,
    epoch: u64,
    segments: u64,
    blocks: u64,
    dirty_blocks: u64,
    partial_blocks: u64,
    marked_regions: u64,
    error: Option<String>,
}

/// The first records of one segment.
#[derive(Debug, Serialize)]
struct Segment {
    /// Index on this device.
    segment: u32,
    /// Number in the pool, as records name it.
    number: Option<u32>,
    partner: Option<Partner>,
    offset: u64,
    records: Vec<Record>,
    /// Why the first record, or the one after the last shown, is none.
    end: Option<String>,
}

/// The segment in which dirty data of this one lies a second time.
#[derive(Debug, Clone, Copy, Serialize)]
struct Partner {
    /// Index of the device in the pool.
    device: u8,
    /// Index on that device.
    segment: u32,
    /// Number in the pool.
    number: u32,
}

#[derive(Debug, Serialize)]
struct Record {
    block: u32,
    class: &'static str,
    epoch: u64,
    seq: u64,
    dseq: u64,
    segment_generation: u32,
    payload_blocks: u16,
    /// Entries by kind, as `dirty 12`.
    entries: Vec<String>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads `len` bytes at `offset`; what lies behind the end of the device counts as zeros.
fn read(file: &File, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Opens a device, and says how large it is.
fn open(path: &Path) -> Result<(File, u64), ApiError> {
    let failed = |verb: &'static str| {
        move |error| ApiError::failed(format!("{verb} {}: {error}", path.display()))
    };
    let mut file = open_to_look(path).map_err(failed("open"))?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(failed("read"))?;
    Ok((file, bytes))
}

/// Looks at the device and prints what it holds.
///
/// # Errors
/// The device cannot be read, or holds no superblock of Forebay.
pub fn run(format: Format, args: &InspectArgs) -> Result<u8, ApiError> {
    if let Some(set) = tier::look(&args.devices)? {
        return set.print(format);
    }
    let [device] = args.devices.as_slice() else {
        return Err(ApiError::usage("only members of a tiered volume are looked at together"));
    };
    let shown = device.display();
    let io = |error: std::io::Error| ApiError::failed(format!("read {shown}: {error}"));
    let (file, bytes) = open(device)?;
    let mut found = Inspection {
        schema: SCHEMA,
        kind: "inspection",
        device: shown.to_string(),
        bytes,
        superblocks: Vec::new(),
        pool: None,
        checkpoints: Vec::new(),
        segments: Vec::new(),
    };
    let mut copies = Vec::new();
    for offset in SUPERBLOCK_OFFSETS {
        let copy = Superblock::decode(&read(&file, offset, SUPERBLOCK_SIZE).map_err(io)?);
        let header = copy.as_ref().ok().map(|superblock| superblock.header);
        found.superblocks.push(Copy {
            offset,
            error: copy.as_ref().err().map(ToString::to_string),
            generation: header.map(|h| h.generation.get()),
            epoch: header.map(|h| h.epoch.get()),
            clean: header.map(|h| h.clean == 1),
        });
        copies.push(copy);
    }
    let copies: [Result<Superblock, FormatError>; 2] =
        copies.try_into().expect("as many copies as offsets");
    if let Ok((superblock, _)) = Superblock::choose(copies) {
        found.pool = Some(pool(&superblock));
        found.checkpoints = checkpoints(&file, &superblock).map_err(io)?;
        found.segments = segments(&file, &superblock, args).map_err(io)?;
    }
    printed(output::one(format, &found, &lines(&found)))?;
    Ok(u8::from(found.pool.is_none()))
}

fn pool(superblock: &Superblock) -> Pool {
    let header = &superblock.header;
    let layout = superblock.layout();
    let devices = header.devices.iter().take(usize::from(header.device_count.get()));
    Pool {
        name: field_text(&header.pool_name),
        uuid: hex(&header.pool_uuid),
        device_index: header.device_index.get(),
        devices: devices
            .map(|device| PoolDevice {
                uuid: hex(&device.uuid),
                bytes: device.bytes.get(),
                segments: device.segment_count.get(),
            })
            .collect(),
        segment_bytes: u64::from(layout.segment_blocks) * BLOCK_SIZE as u64,
        checkpoint_area_bytes: layout.checkpoint_area_bytes,
        segments_offset: layout.segments_offset,
        volumes: superblock
            .volumes
            .iter()
            .map(|volume| Volume {
                id: volume.id.get(),
                name: field_text(&volume.name),
                origin: field_text(&volume.origin),
                bytes: volume.bytes.get(),
                mode: volume.mode,
            })
            .collect(),
    }
}

/// The checkpoint in use, and the one before it, if there are any.
fn checkpoints(file: &File, superblock: &Superblock) -> std::io::Result<Vec<Checkpoint>> {
    let header = &superblock.header;
    if header.checkpoint_area == CHECKPOINT_NONE {
        return Ok(Vec::new());
    }
    let area = usize::from(header.checkpoint_area);
    let current = Checkpoint {
        area,
        generation: header.checkpoint_generation.get(),
        bytes: header.checkpoint_blocks.get() * BLOCK_SIZE as u64,
        last_seq: header.checkpoint_seq.get(),
        epoch: header.checkpoint_epoch.get(),
        ..Checkpoint::default()
    };
    let previous = Checkpoint {
        area: 1 - area,
        generation: header.previous_generation.get(),
        bytes: header.previous_blocks.get() * BLOCK_SIZE as u64,
        last_seq: header.previous_seq.get(),
        epoch: header.previous_epoch.get(),
        ..Checkpoint::default()
    };
    let pool = u64::from_le_bytes(header.pool_uuid[..8].try_into().expect("8 bytes"));
    let wanted = [Some(current), (previous.generation != 0).then_some(previous)];
    let layout = superblock.layout();
    wanted.into_iter().flatten().map(|one| count_items(file, &layout, pool, one)).collect()
}

/// Reads the chunks of a checkpoint, one at a time, and counts what they hold.
fn count_items(
    file: &File,
    layout: &Layout,
    pool: u64,
    mut found: Checkpoint,
) -> std::io::Result<Checkpoint> {
    const CHUNK_BYTES: usize = checkpoint::CHUNK_BLOCKS_MAX * BLOCK_SIZE;
    found.offset = layout.checkpoint_offset(found.area);
    if found.bytes > layout.checkpoint_area_bytes {
        found.error = Some("it is larger than its area".to_string());
        return Ok(found);
    }
    let (mut position, mut table) = (0, None::<TableItem>);
    while position * (BLOCK_SIZE as u64) < found.bytes {
        let at = position * BLOCK_SIZE as u64;
        let len = CHUNK_BYTES.min((found.bytes - at) as usize);
        let bytes = read(file, found.offset + at, len)?;
        let (chunk, blocks) = match checkpoint::decode(&bytes, pool, found.generation, position) {
            Ok(decoded) => decoded,
            Err(error) => {
                found.error = Some(format!("block {position}: {error}"));
                break;
            }
        };
        match chunk {
            Chunk::Segments(items) => found.segments += items.len() as u64,
            Chunk::Table(item) => table = Some(item),
            Chunk::Buckets(_, items) => {
                let slot_bits = table.map_or(0, |table| table.slot_bits);
                let counts = items.iter().map(|item| item.entries(slot_bits));
                found.blocks += counts.map(u64::from).sum::<u64>();
                found.dirty_blocks +=
                    items.iter().map(|item| u64::from(item.dirty.count_ones())).sum::<u64>();
            }
            Chunk::Blocks(_) => {}
            Chunk::Masks(items) => found.partial_blocks += items.len() as u64,
            Chunk::Volumes(items) => {
                found.marked_regions += items.iter().filter(|i| i.kind == 1).count() as u64;
            }
        }
        position += blocks as u64;
    }
    Ok(found)
}

/// The numbers of this device's first segments in the pool, and their partners.
fn numbers(superblock: &Superblock, count: u32) -> Vec<(u32, Option<Partner>)> {
    let header = &superblock.header;
    let devices = header.devices.iter().take(usize::from(header.device_count.get()));
    let total: u64 = devices.map(|device| u64::from(device.segment_count.get())).sum();
    if total > PAIRED_SEGMENTS_MAX {
        return Vec::new();
    }
    let pairing = Pairing::of(header);
    let here = |&number: &u32| {
        let (device, index) = pairing.place(number);
        u16::from(device) == header.device_index.get() && index < count
    };
    let mut numbers: Vec<u32> = (0..pairing.segments()).filter(here).collect();
    numbers.sort_by_key(|&number| pairing.place(number).1);
    let partner = |number: u32| {
        let (device, segment) = pairing.place(number);
        Partner { device, segment, number }
    };
    numbers.into_iter().map(|number| (number, pairing.partner(number).map(partner))).collect()
}

fn segments(
    file: &File,
    superblock: &Superblock,
    args: &InspectArgs,
) -> std::io::Result<Vec<Segment>> {
    let layout = superblock.layout();
    let segment_bytes = u64::from(layout.segment_blocks) * BLOCK_SIZE as u64;
    let count = layout.segment_count.min(args.segments);
    let numbers = numbers(superblock, count);
    let mut found = Vec::new();
    for segment in 0..count {
        let offset = layout.segments_offset + u64::from(segment) * segment_bytes;
        let (number, partner) = numbers.get(segment as usize).copied().unzip();
        let partner = partner.flatten();
        let mut one = Segment { segment, number, partner, offset, records: Vec::new(), end: None };
        let mut block = 0;
        while (one.records.len() as u32) < args.records && block < layout.segment_blocks {
            let at = offset + u64::from(block) * BLOCK_SIZE as u64;
            match record::decode(&read(file, at, BLOCK_SIZE)?) {
                Ok((header, entries)) => {
                    one.records.push(describe(block, &header, &entries));
                    block += 1 + u32::from(header.payload_blocks.get());
                }
                Err(error) => {
                    one.end = Some(format!("block {block}: {error}"));
                    break;
                }
            }
        }
        found.push(one);
    }
    Ok(found)
}

fn describe(block: u32, header: &record::RecordHeader, entries: &[record::Entry]) -> Record {
    let mut counts: Vec<(EntryKind, u64)> = Vec::new();
    for entry in entries {
        match counts.iter_mut().find(|(kind, _)| *kind == entry.kind()) {
            Some((_, count)) => *count += 1,
            None => counts.push((entry.kind(), 1)),
        }
    }
    Record {
        block,
        class: if header.class == RecordClass::Dirty as u8 { "dirty" } else { "clean" },
        epoch: header.epoch.get(),
        seq: header.seq.get(),
        dseq: header.dseq.get(),
        segment_generation: header.segment_generation.get(),
        payload_blocks: header.payload_blocks.get(),
        entries: counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect(),
    }
}

fn lines(found: &Inspection) -> Vec<String> {
    let mut lines =
        vec![format!("{}: {} bytes ({})", found.device, found.bytes, human(found.bytes))];
    for copy in &found.superblocks {
        let what = match (&copy.error, copy.generation, copy.epoch, copy.clean) {
            (None, Some(generation), Some(epoch), Some(clean)) => {
                let clean = if clean { "clean" } else { "in use or not stopped in order" };
                format!("generation {generation}, epoch {epoch}, {clean}")
            }
            (error, ..) => error.clone().unwrap_or_default(),
        };
        lines.push(format!("superblock at {}: {what}", human(copy.offset)));
    }
    let Some(pool) = &found.pool else {
        lines.push(
            "this is no device of a Forebay pool of this format, or both superblocks are lost"
                .to_string(),
        );
        return lines;
    };
    pool_lines(&mut lines, pool);
    if found.checkpoints.is_empty() {
        lines.push("no checkpoint yet".to_string());
    }
    for checkpoint in &found.checkpoints {
        let error = checkpoint.error.as_ref().map(|e| format!(", DAMAGED at {e}"));
        lines.push(format!(
            "checkpoint {} in area {} at {}: {} bytes up to record {}, epoch {}: {} segments, \
             {} blocks, {} dirty, {} valid in part, {} marked regions{}",
            checkpoint.generation,
            checkpoint.area,
            human(checkpoint.offset),
            checkpoint.bytes,
            checkpoint.last_seq,
            checkpoint.epoch,
            checkpoint.segments,
            checkpoint.blocks,
            checkpoint.dirty_blocks,
            checkpoint.partial_blocks,
            checkpoint.marked_regions,
            error.unwrap_or_default()
        ));
    }
    segment_lines(&mut lines, &found.segments);
    lines
}

fn segment_lines(lines: &mut Vec<String>, segments: &[Segment]) {
    for segment in segments {
        let number = segment.number.map(|number| match segment.partner {
            None => format!(", {number} of the pool"),
            Some(it) => format!(
                ", {number} of the pool, partner of {} (segment {} of device {})",
                it.number,
                it.segment,
                it.device + 1
            ),
        });
        let (at, number) = (human(segment.offset), number.unwrap_or_default());
        lines.push(format!("segment {} at {at}{number}:", segment.segment));
        for record in &segment.records {
            lines.push(format!(
                "  block {}: {} record {} (dirty-class {}), epoch {}, segment generation {}, {} \
                 payload blocks: {}",
                record.block,
                record.class,
                record.seq,
                record.dseq,
                record.epoch,
                record.segment_generation,
                record.payload_blocks,
                record.entries.join(", ")
            ));
        }
        lines.extend(segment.end.iter().map(|end| format!("  {end}")));
    }
}

fn pool_lines(lines: &mut Vec<String>, pool: &Pool) {
    lines.push(format!(
        "pool {} ({}), device {} of {}: segments of {} from {}, checkpoint areas of {}",
        pool.name,
        pool.uuid,
        pool.device_index + 1,
        pool.devices.len(),
        human(pool.segment_bytes),
        human(pool.segments_offset),
        human(pool.checkpoint_area_bytes)
    ));
    for (index, device) in pool.devices.iter().enumerate() {
        let (bytes, segments) = (human(device.bytes), device.segments);
        lines.push(format!(
            "  device {}: {} ({bytes}, {segments} segments)",
            index + 1,
            device.uuid
        ));
    }
    for volume in &pool.volumes {
        let mode = forebay_api::Mode::ALL.get(usize::from(volume.mode));
        let mode = mode.map_or("unknown mode", |mode| mode.name());
        let bytes = human(volume.bytes);
        lines.push(format!(
            "  volume {} ({}): {bytes}, {mode}, origin {}",
            volume.id, volume.name, volume.origin
        ));
    }
}
