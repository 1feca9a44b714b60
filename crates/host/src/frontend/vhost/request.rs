//! virtio-blk requests as bytes, and the disk's configuration (Virtual I/O Device 1.2, section
//! 5.2).

use crate::frontend::SECTOR_BYTES;
use forebay_engine::IoError;

/// Bytes of the head of a request.
pub const HEAD_BYTES: usize = 16;
/// Bytes of what names a range to discard or to zero.
pub const RANGE_BYTES: usize = 16;
/// Bytes of the disk's name in a reply.
pub const ID_BYTES: usize = 20;
/// Bytes of the configuration.
pub const CONFIG_BYTES: usize = 60;
/// Sectors of one discard or write-zeroes.
pub const RANGE_SECTORS_MAX: u32 = 65_536;
/// Segments of one request.
const SEGMENTS_MAX: u32 = 254;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// A request's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    Error = 1,
    Unsupported = 2,
}

impl Status {
    pub fn of(error: Option<IoError>) -> Status {
        match error {
            None => Status::Ok,
            Some(IoError::Unsupported) => Status::Unsupported,
            Some(_) => Status::Error,
        }
    }
}

/// What a request's head asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Read from this byte.
    Read(u64),
    /// Write from this byte.
    Write(u64),
    Flush,
    Name,
    Discard,
    WriteZeroes,
    Unknown,
}

/// Reads the head of a request. `None`: its sector cannot be.
pub fn parse_head(head: &[u8; HEAD_BYTES]) -> Option<Call> {
    let kind = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
    Some(match kind {
        IN => Call::Read(sector.checked_mul(SECTOR_BYTES)?),
        OUT => Call::Write(sector.checked_mul(SECTOR_BYTES)?),
        FLUSH => Call::Flush,
        GET_ID => Call::Name,
        DISCARD => Call::Discard,
        WRITE_ZEROES => Call::WriteZeroes,
        _ => Call::Unknown,
    })
}

/// A range: first byte, bytes, and whether its space may be given back. `Err` is the answer.
pub fn parse_range(range: &[u8; RANGE_BYTES], zeroes: bool) -> Result<(u64, u64, bool), Status> {
    let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes"));
    let sectors = u32::from_le_bytes(range[8..12].try_into().expect("four bytes"));
    let flags = u32::from_le_bytes(range[12..].try_into().expect("four bytes"));
    // Only write-zeroes knows a flag: the space may be given back.
    if flags & !u32::from(zeroes) != 0 {
        return Err(Status::Unsupported);
    }
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::Error)?;
    if sectors > RANGE_SECTORS_MAX {
        return Err(Status::Error);
    }
    Ok((offset, u64::from(sectors) * SECTOR_BYTES, flags & 1 == 1))
}

/// The disk's configuration space.
pub fn config(bytes: u64, queues: u16) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    let mut put = |at: usize, field: &[u8]| config[at..at + field.len()].copy_from_slice(field);
    put(0, &(bytes / SECTOR_BYTES).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &(SECTOR_BYTES as u32).to_le_bytes());
    // Eight sectors are a block of ours: less than that is a partial block.
    put(24, &[3]);
    put(26, &8_u16.to_le_bytes());
    put(34, &queues.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &1_u32.to_le_bytes());
    put(44, &8_u32.to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &1_u32.to_le_bytes());
    put(56, &[1]);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_ranges() {
        let head = |kind: u32, sector: u64| {
            let mut head = [0; HEAD_BYTES];
            head[..4].copy_from_slice(&kind.to_le_bytes());
            head[8..].copy_from_slice(&sector.to_le_bytes());
            parse_head(&head)
        };
        assert_eq!(head(0, 3), Some(Call::Read(1536)));
        assert_eq!(head(1, 0), Some(Call::Write(0)));
        assert_eq!(head(4, u64::MAX), Some(Call::Flush));
        assert_eq!(head(77, 0), Some(Call::Unknown));
        assert_eq!(head(0, u64::MAX / 2), None);
        let range = |sector: u64, sectors: u32, flags: u32, zeroes| {
            let mut range = [0; RANGE_BYTES];
            range[..8].copy_from_slice(&sector.to_le_bytes());
            range[8..12].copy_from_slice(&sectors.to_le_bytes());
            range[12..].copy_from_slice(&flags.to_le_bytes());
            parse_range(&range, zeroes)
        };
        assert_eq!(range(2, 8, 1, true), Ok((1024, 4096, true)));
        assert_eq!(range(2, 8, 0, false), Ok((1024, 4096, false)));
        assert_eq!(range(2, 8, 1, false), Err(Status::Unsupported));
        assert_eq!(range(2, 8, 2, true), Err(Status::Unsupported));
        assert_eq!(range(u64::MAX, 8, 0, true), Err(Status::Error));
        assert_eq!(range(0, RANGE_SECTORS_MAX + 1, 0, true), Err(Status::Error));
    }

    #[test]
    fn the_configuration_tells_the_size_in_sectors() {
        let config = config(1 << 30, 4);
        assert_eq!(config[..8], (2_u64 << 20).to_le_bytes());
        assert_eq!(config[20..24], 512_u32.to_le_bytes());
        assert_eq!(config[34..36], 4_u16.to_le_bytes());
    }
}
