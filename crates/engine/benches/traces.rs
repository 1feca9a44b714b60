//! Block traces through the engine, and through an ARC of the same size.
//!
//! `cargo bench -p forebay-engine --bench traces -- FILE…` prints one JSON line for each trace,
//! size and depth. A trace is a flat sequence of records of 9 bytes: the number of a block of 4 KiB
//! (8 bytes, little-endian), then 0 for a read or 1 for a write. `cargo xtask bench traces FOLDER`
//! unpacks them, keeps the lines and sums them up.
#![forbid(unsafe_code)]

mod arc;
#[allow(dead_code, reason = "the other benches and the tests use the rest")]
mod instant;

use arc::Arc;
use forebay_engine::RequestKind;
use instant::{Devices, World, WorldSpec};
use std::collections::BTreeSet;
use std::path::Path;

const BLOCK: u64 = 4096;
/// Sizes of the cache, in percent of the blocks that a trace touches.
const SIZES: [u64; 4] = [5, 10, 20, 40];
/// Requests at once.
const DEPTHS: [u64; 2] = [8, 1];
/// RAM before the cache: one part in so many.
const RAM_SHARE: u64 = 20;
/// Blocks of a request: neighbours that follow one another, at most so many.
const REQUEST_BLOCKS: u64 = 32;
/// Blocks between two stretches that a trace touches: larger gaps shrink to this.
const GAP_BLOCKS: u64 = 64;

/// One request.
#[derive(Clone, Copy)]
struct Access {
    write: bool,
    block: u64,
    blocks: u64,
}

/// A trace: its requests, the blocks that it touches, and those of the volume it takes.
struct Trace {
    requests: Vec<Access>,
    footprint: u64,
    volume_blocks: u64,
}

fn main() {
    let arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    for file in arguments {
        let trace = Trace::read(Path::new(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let name = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy();
        for size in SIZES {
            let blocks = trace.footprint * size / 100;
            let (misses, ios) = trace.through_arc(blocks);
            for depth in DEPTHS {
                let (ours, our_ios) = trace.through_engine(blocks, depth);
                println!(
                    "{{\"bench\": \"traces\", \"trace\": \"{name}\", \
                     \"size_percent\": {size}, \
                     \"cache_blocks\": {blocks}, \"depth\": {depth}, \"reads\": {}, \
                     \"misses\": {ours}, \"arc_misses\": {misses}, \"origin_reads\": {our_ios}, \
                     \"arc_origin_reads\": {ios}}}",
                    trace.reads()
                );
            }
        }
    }
}

impl Trace {
    fn read(file: &Path) -> std::io::Result<Trace> {
        let bytes = std::fs::read(file)?;
        let records: Vec<(u64, bool)> = bytes
            .chunks_exact(9)
            .map(|record| {
                (u64::from_le_bytes(record[..8].try_into().expect("8 bytes")), record[8] != 0)
            })
            .collect();
        let touched: Vec<u64> = records
            .iter()
            .map(|&(block, _)| block)
            .collect::<BTreeSet<u64>>()
            .into_iter()
            .collect();
        // Where each block lies when gaps have shrunk.
        let mut places = Vec::with_capacity(touched.len());
        let (mut next, mut last) = (0, None);
        for &block in &touched {
            next += last.map_or(0, |last: u64| (block - last).min(GAP_BLOCKS));
            places.push(next);
            last = Some(block);
        }
        let place = |block| places[touched.binary_search(&block).expect("it is touched")];
        let mut requests: Vec<Access> = Vec::new();
        let mut before = None;
        for &(block, write) in &records {
            match requests.last_mut() {
                Some(request)
                    if before == block.checked_sub(1)
                        && request.write == write
                        && request.blocks < REQUEST_BLOCKS =>
                {
                    request.blocks += 1;
                }
                _ => requests.push(Access { write, block: place(block), blocks: 1 }),
            }
            before = Some(block);
        }
        Ok(Trace { requests, footprint: touched.len() as u64, volume_blocks: next + 1 })
    }

    /// Blocks that are read.
    fn reads(&self) -> u64 {
        self.requests.iter().filter(|request| !request.write).map(|request| request.blocks).sum()
    }

    /// Blocks that an ARC of this size reads from the origin, and in how many reads: one for each
    /// stretch of a request.
    fn through_arc(&self, blocks: u64) -> (u64, u64) {
        let mut arc = Arc::new(blocks as usize, (blocks / RAM_SHARE) as usize);
        let (mut misses, mut reads) = (0, 0);
        for request in &self.requests {
            let mut hit = true;
            for block in request.block..request.block + request.blocks {
                let before = std::mem::replace(&mut hit, arc.access(block, request.write));
                if !hit && !request.write {
                    misses += 1;
                    reads += u64::from(before);
                }
            }
        }
        (misses, reads)
    }

    /// The same for the engine: on a cache device with segments for so many blocks.
    fn through_engine(&self, blocks: u64, depth: u64) -> (u64, u64) {
        let mut spec = WorldSpec::new(pool_bytes(blocks), self.volume_blocks * BLOCK);
        spec.ram_bytes = blocks / RAM_SHARE * BLOCK;
        let mut world = World::with_devices(&spec, Devices::of(&spec, true));
        let mut requests = self.requests.iter();
        let count = self.requests.len() as u64;
        while world.replies() < count {
            while world.under_way() < depth {
                let Some(request) = requests.next() else { break };
                let kind = if request.write { RequestKind::Write } else { RequestKind::Read };
                world.submit(kind, request.block * BLOCK, request.blocks * BLOCK);
            }
            world.step();
        }
        let (reads, bytes) = world.origin_reads();
        (bytes / BLOCK, reads)
    }
}

/// Bytes of the cache device whose segments hold so many blocks.
fn pool_bytes(blocks: u64) -> u64 {
    let mut bytes = blocks * BLOCK;
    loop {
        let devices = Devices::of(&WorldSpec::new(bytes, BLOCK), true);
        let superblock = devices.superblock(forebay_engine::Mode::WriteBack);
        let header = &superblock.header;
        let slots = u64::from(header.devices[0].segment_count.get())
            * u64::from(header.segment_blocks.get());
        if slots >= blocks {
            return bytes;
        }
        bytes += (blocks - slots).max(64) * BLOCK;
    }
}
