use super::*;

const BLOCK: u64 = BLOCK_SIZE as u64;
const SECTOR: u64 = SECTOR_SIZE as u64;

fn span(offset: u64, bytes: u64) -> Span {
    Span { offset, bytes }
}

#[test]
fn what_hangs_together_is_one_span_up_to_the_most_and_ends_with_the_volume() {
    let blocks = [(1, 0b0000_0110), (2, 0b1000_0001), (3, 0xff), (4, 0xff), (6, 0xff)];
    let volume = 6 * BLOCK + SECTOR;
    let wanted = [
        span(BLOCK + SECTOR, 2 * SECTOR),
        span(2 * BLOCK, SECTOR),
        span(3 * BLOCK - SECTOR, SECTOR + 2 * BLOCK),
        span(6 * BLOCK, SECTOR),
    ];
    assert_eq!(spans(&blocks, volume, SPAN_BYTES_MAX), wanted);
    let cut = spans(&blocks[2..4], volume, BLOCK + SECTOR);
    assert_eq!(cut, [span(3 * BLOCK, BLOCK + SECTOR), span(4 * BLOCK + SECTOR, BLOCK - SECTOR)]);
}

/// A disk on which one block is bad, and one in use: each sector says where it is.
fn answer(span: &Span) -> Result<Buf, Unread> {
    let has =
        |block: u64| span.offset < (block + 1) * BLOCK && span.offset + span.bytes > block * BLOCK;
    if has(70) {
        return Err(Unread::InUse);
    }
    if has(5) {
        return Err(Unread::Lost);
    }
    let sectors = span.offset / SECTOR..(span.offset + span.bytes) / SECTOR;
    let bytes: Vec<u8> = sectors.flat_map(|at| [at as u8; SECTOR_SIZE]).collect();
    Ok(Buf::copy_of(&bytes))
}

#[test]
fn of_what_cannot_be_read_at_once_all_is_read_but_the_bad_blocks() {
    let blocks: Vec<(u64, u8)> = (3..9).chain([70]).map(|block| (block, 0xff)).collect();
    let mut asked = Vec::new();
    let part = read(&Dirty { blocks, next: 71 }, 1 << 20, |spans| {
        asked.push(spans.len());
        spans.iter().map(answer).collect()
    });
    assert_eq!(asked, [2, 6], "each block of the bad span alone");
    let lost = [(span(5 * BLOCK, BLOCK), Unread::Lost), (span(70 * BLOCK, BLOCK), Unread::InUse)];
    assert_eq!(part.unread, lost);
    let at: Vec<u64> = part.pieces.iter().map(|(offset, _)| offset / BLOCK).collect();
    assert_eq!(at, [3, 4, 6, 7, 8]);
    for (offset, buf) in &part.pieces {
        assert_eq!(buf.len(), BLOCK_SIZE);
        assert_eq!(buf.bytes()[0], (offset / SECTOR) as u8);
    }
}
