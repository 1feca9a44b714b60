//! Writes that say of themselves which they are, and the check of what is there after a power cut.
//!
//! Write `n` of life `l` has the number `l << 32 | n`. Its block follows from the number, and so
//! does every byte of its content. What each block held when it was last checked is kept in a
//! ledger, a file that is synced on the disk with the state.

use super::say;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Unit of the load, in bytes.
pub const BLOCK: usize = 4096;
/// Writes that are under way at once.
const BATCH: u64 = 24;
/// Batches for one flush, so that a power cut finds writes that are acknowledged and not flushed.
const BATCHES_A_FLUSH: u64 = 4;
/// Blocks in one read of the check.
const READ_BLOCKS: u64 = 64;

/// Where blocks are written to and read from.
pub trait Blocks {
    /// Writes some whole blocks, all of them under way at once: no two have the same number.
    fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> Result<()>;
    /// A FLUSH.
    fn flush(&mut self) -> Result<()>;
    /// Reads some blocks in a row.
    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>>;
}

/// The block of a write. A quarter of them go to a small hot range.
fn block_of(number: u64, blocks: u64) -> u64 {
    let mixed = mix(number);
    if mixed.is_multiple_of(4) { (mixed >> 8) % (blocks / 64) } else { (mixed >> 8) % blocks }
}

fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The content of a write: its number and its block in each sector, and noise that follows from
/// them.
fn content(number: u64, block: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    for word in 0..BLOCK as u64 / 8 {
        bytes.extend(match word % 64 {
            0 => number.to_le_bytes(),
            1 => block.to_le_bytes(),
            _ => mix(number ^ (word << 48) ^ block).to_le_bytes(),
        });
    }
    bytes
}

/// Which write this content is of; 0 for a block that was never written.
fn number_of(bytes: &[u8], block: u64) -> Result<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let expected = content(number, block);
    let sectors = bytes.chunks(512).zip(expected.chunks(512));
    for (sector, (found, wanted)) in sectors.enumerate() {
        ensure!(
            found == wanted,
            "block {block}: sector {sector} is not of write {number:#x}, which sector 0 is of"
        );
    }
    Ok(number)
}

/// Checks every block after the power cut that ended the life before `life`, and keeps what was
/// found. `flushed` is the last write of that life that a completed FLUSH covered.
///
/// # Errors
/// The first block that holds something else than it may.
pub fn verify(
    target: &mut impl Blocks,
    blocks: u64,
    life: u64,
    flushed: u64,
    ledger: &Path,
) -> Result<()> {
    ensure!(life == 0 || flushed >> 32 == life - 1, "write {flushed:#x} is of another life");
    let before = read_ledger(ledger, blocks, life)?;
    // The oldest write that each block may hold.
    let mut oldest = before;
    if life > 0 {
        for number in (life - 1) << 32..=flushed {
            oldest[block_of(number, blocks) as usize] = number;
        }
    }
    let found = numbers(target, blocks)?;
    let mut newer = 0;
    for (block, (&number, &least)) in (0..).zip(found.iter().zip(&oldest)) {
        let own = number == 0 || block_of(number, blocks) == block;
        ensure!(own, "block {block} holds write {number:#x}, which was never sent there");
        ensure!(number >= least, "block {block} holds write {number:#x}, older than {least:#x}");
        ensure!(number >> 32 < life || number == 0, "write {number:#x} is of no life yet");
        newer += u64::from(number > least);
    }
    for (block, (again, once)) in numbers(target, blocks)?.iter().zip(&found).enumerate() {
        ensure!(again == once, "block {block} held write {once:#x}, and now {again:#x}");
    }
    println!("{blocks} blocks checked twice; {newer} hold a write that was not flushed");
    write_ledger(ledger, &found, life)
}

/// Which write each block holds.
fn numbers(target: &mut impl Blocks, blocks: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    while (found.len() as u64) < blocks {
        let start = found.len() as u64;
        let bytes = target.read(start, READ_BLOCKS.min(blocks - start))?;
        for (block, bytes) in (start..).zip(bytes.chunks(BLOCK)) {
            found.push(number_of(bytes, block)?);
        }
    }
    Ok(found)
}

/// Writes for ever, with flushes, which the host is told of.
///
/// # Errors
/// When a write fails.
pub fn write_for_ever(target: &mut impl Blocks, blocks: u64, life: u64) -> Result<()> {
    let mut next = life << 32;
    for round in 1_u64.. {
        let mut batch: Vec<(u64, Vec<u8>)> = Vec::new();
        let start = next;
        while next < start + BATCH {
            let block = block_of(next, blocks);
            if batch.iter().any(|(other, _)| *other == block) {
                break;
            }
            batch.push((block, content(next, block)));
            next += 1;
        }
        target.write(&batch)?;
        if round % BATCHES_A_FLUSH == 0 {
            target.flush()?;
            // The dot says that the line is whole.
            say("flushed", &format!("{}.", next - 1));
        }
    }
    unreachable!("the power goes before the numbers do")
}

/// What each block held when the life before began: the numbers of writes.
fn read_ledger(path: &Path, blocks: u64, life: u64) -> Result<Vec<u64>> {
    if life == 0 {
        return Ok(vec![0; blocks as usize]);
    }
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    match words.split_last() {
        Some((of, numbers)) if *of == life - 1 && numbers.len() as u64 == blocks => {
            Ok(numbers.to_vec())
        }
        _ => bail!("the ledger is not of the life before: the disk with the state lost it"),
    }
}

fn write_ledger(path: &Path, numbers: &[u64], life: u64) -> Result<()> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.extend(life.to_le_bytes());
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(path.parent().context("a file lies in a directory")?)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests;
