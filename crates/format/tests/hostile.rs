//! Hostile bytes: whatever a device holds, decoding neither panics nor allocates more than its
//! input justifies. Arbitrary bytes are stopped by magic and checksum, so most mutations here are
//! of valid images, with the checksum put right afterwards.

use forebay_format::superblock::{SUPERBLOCK_SIZE, Superblock, field_text};
use forebay_format::{BLOCK_SIZE, FormatError, Pairing, checkpoint, checksum, record};
use std::path::Path;

/// Bytes that decoding may hold at once for each byte of input, and in any case.
const HELD_BYTES_PER_BYTE: u64 = 3;
const HELD_BYTES_FIXED: u64 = 4096;
const POOL: u64 = 0x1122_3344_5566_7788;

/// splitmix64: good enough to flip bytes, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Changes one to eight bytes among the first `reach`, often to an extreme value.
    fn mutate(&mut self, bytes: &mut [u8], reach: usize) {
        for _ in 0..=self.below(8) {
            let at = self.below(reach);
            bytes[at] = match self.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ 1 << self.below(8),
                _ => self.next() as u8,
            };
        }
    }
}

fn image(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

/// Puts right the checksum at `field` over the first `used` bytes.
fn fix_checksum(bytes: &mut [u8], field: usize, used: usize) {
    bytes[field..field + 4].fill(0);
    let crc = checksum(&bytes[..used]);
    bytes[field..field + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Runs `decode` on `input` and checks what it held.
fn measured<T>(input: &[u8], decode: impl Fn(&[u8]) -> T) -> T {
    let mut result = None;
    let info = allocation_counter::measure(|| result = Some(decode(input)));
    let limit = HELD_BYTES_FIXED + HELD_BYTES_PER_BYTE * input.len() as u64;
    assert!(info.bytes_max <= limit, "held {} bytes of {limit}", info.bytes_max);
    result.unwrap()
}

/// Reads a superblock as an executor does, and does the arithmetic that an engine does on it.
fn superblock(bytes: &[u8]) -> Result<Superblock, FormatError> {
    let superblock = Superblock::decode(bytes)?;
    let layout = superblock.layout();
    let segment_bytes = u64::from(layout.segment_blocks) * BLOCK_SIZE as u64;
    let end = layout.segments_offset + u64::from(layout.segment_count) * segment_bytes;
    let own = usize::from(superblock.header.device_index.get());
    assert!(end <= superblock.header.devices[own].bytes.get());
    assert!(layout.checkpoint_offset(1) + layout.checkpoint_area_bytes <= layout.segments_offset);
    let blocks =
        [superblock.header.checkpoint_blocks.get(), superblock.header.previous_blocks.get()];
    let header = &superblock.header;
    let index = [header.checkpoint_index_blocks.get(), header.previous_index_blocks.get()];
    for (blocks, index) in blocks.into_iter().zip(index) {
        assert!(index <= blocks && blocks * BLOCK_SIZE as u64 <= layout.checkpoint_area_bytes);
    }
    let count = usize::from(superblock.header.device_count.get());
    let segments: u32 =
        superblock.header.devices[..count].iter().map(|device| device.segment_count.get()).sum();
    assert!(segments.checked_mul(layout.segment_blocks).is_some());
    for volume in &superblock.volumes {
        field_text(&volume.name);
        assert!(volume.bytes.get() / BLOCK_SIZE as u64 <= 1 << 40);
    }
    let _ = superblock.writable();
    Ok(superblock)
}

/// Pairs the segments, where that many may be there: the table is as large as the pool's claim, and
/// who makes it has compared the claim with the devices.
fn paired(superblock: &Superblock) {
    let header = &superblock.header;
    let devices = &header.devices[..usize::from(header.device_count.get())];
    let segments: u32 = devices.iter().map(|device| device.segment_count.get()).sum();
    if segments > 1000 {
        return;
    }
    let pairing = Pairing::of(header);
    assert_eq!(pairing.segments(), segments);
    for segment in 0..segments {
        let (device, index) = pairing.place(segment);
        assert!(index < devices[usize::from(device)].segment_count.get());
        assert!(pairing.partner(segment).is_none_or(|partner| partner < segments));
    }
}

#[test]
fn arbitrary_bytes() {
    let mut random = Random(1);
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    for _ in 0..300 {
        bytes.fill_with(|| random.next() as u8);
        assert!(measured(&bytes, superblock).is_err());
        bytes[..8].copy_from_slice(b"Forebay1");
        assert!(measured(&bytes, superblock).is_err());
        assert!(measured(&bytes[..BLOCK_SIZE], record::decode).is_err());
        bytes[..8].copy_from_slice(b"FbRecord");
        assert!(measured(&bytes[..BLOCK_SIZE], record::decode).is_err());
        bytes[..8].copy_from_slice(b"FbCheckp");
        let len = random.below(bytes.len());
        let chunk = |bytes: &[u8]| checkpoint::decode(bytes, POOL, 33, 0);
        assert!(measured(&bytes[..len], chunk).is_err());
    }
}

#[test]
fn any_flipped_byte_is_noticed() {
    let good = image("superblock.bin");
    let mut random = Random(2);
    for _ in 0..3000 {
        let mut bytes = good.clone();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        assert!(superblock(&bytes).is_err(), "byte {at}");
    }
    let good = image("record-dirty.bin");
    for at in 0..96 + 10 * 24 {
        let mut bytes = good[..BLOCK_SIZE].to_vec();
        bytes[at] ^= 1 << random.below(8);
        assert!(record::decode(&bytes).is_err(), "byte {at}");
    }
    let good = image("checkpoint.bin");
    for at in 0..48 + 2 * 24 {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.below(8);
        assert!(checkpoint::decode(&bytes, POOL, 33, 0).is_err(), "byte {at}");
    }
}

#[test]
fn mutated_superblocks_with_a_valid_checksum() {
    let good = image("superblock.bin");
    let mut random = Random(3);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        let reach = [248, 760, BLOCK_SIZE + 1024][random.below(3)];
        random.mutate(&mut bytes, reach);
        fix_checksum(&mut bytes, 12, SUPERBLOCK_SIZE);
        if let Ok(superblock) = measured(&bytes, superblock) {
            accepted += 1;
            paired(&superblock);
        }
    }
    assert!(accepted > 1000, "the mutations got behind the checksum {accepted} times");
}

#[test]
fn mutated_records_with_a_valid_checksum() {
    let good = image("record-dirty.bin");
    let mut random = Random(4);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = good[..BLOCK_SIZE].to_vec();
        random.mutate(&mut bytes, 96 + 10 * 24);
        let count = usize::from(u16::from_le_bytes([bytes[68], bytes[69]]));
        let used = (96 + count * 24).min(BLOCK_SIZE);
        fix_checksum(&mut bytes, 8, used);
        let decoded = measured(&bytes, record::decode);
        if let Ok((header, entries)) = decoded {
            accepted += 1;
            assert_eq!(entries.len(), usize::from(header.entry_count.get()));
            let payload = entries.iter().filter(|entry| entry.kind().has_payload()).count();
            assert_eq!(payload, usize::from(header.payload_blocks.get()));
            assert!(payload <= record::PAYLOAD_BLOCKS_MAX);
        }
    }
    assert!(accepted > 1000, "the mutations got behind the checksum {accepted} times");
}

#[test]
fn mutated_chunks_with_a_valid_checksum() {
    let good = image("checkpoint.bin");
    let starts = [(0, 24), (1, 20), (3, 24), (4, 8), (5, 65), (6, 8)];
    let mut random = Random(5);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let (block, item_bytes) = starts[random.below(starts.len())];
        let mut bytes = good[block * BLOCK_SIZE..].to_vec();
        let reach = [24, 48 + 2 * item_bytes][random.below(2)];
        random.mutate(&mut bytes, reach);
        let count = u32::from_le_bytes(bytes[40..44].try_into().unwrap()) as usize;
        let used = count.saturating_mul(item_bytes).saturating_add(48).min(bytes.len());
        fix_checksum(&mut bytes, 8, used);
        let chunk = |bytes: &[u8]| checkpoint::decode(bytes, POOL, 33, block as u64);
        if let Ok((_, blocks)) = measured(&bytes, chunk) {
            accepted += 1;
            assert!(blocks * BLOCK_SIZE <= bytes.len());
        }
    }
    assert!(accepted > 1000, "the mutations got behind the checksum {accepted} times");
}

#[test]
fn short_chunks() {
    let good = image("checkpoint.bin");
    for len in 0..=BLOCK_SIZE {
        let decoded = checkpoint::decode(&good[..len], POOL, 33, 0);
        assert_eq!(decoded.is_ok(), len == BLOCK_SIZE, "{len} bytes");
    }
}
