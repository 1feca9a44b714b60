//! The `ram:SIZE` origin: a disk in the daemon's memory. Its content ends with the daemon.

use std::collections::VecDeque;

use forebay_engine::{Buf, Completion, IoError, OpId, Time};

use super::OriginIo;
use super::units::parse_bytes;

/// Memory is taken and given back in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;

/// Why a `ram:` origin cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// The text after `ram:` is not a size.
    #[error("ram:{0}: not a size; write for example ram:512M or ram:40G")]
    NotASize(String),
    /// Too small, or no whole number of sectors.
    #[error("ram:{0}: the size must be at least 4k and a multiple of 512 bytes")]
    BadSize(String),
    /// The machine has less.
    #[error("ram:{text}: asks for {wanted} bytes and {free} are available; use a smaller size")]
    TooLarge {
        /// The text after `ram:`.
        text: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that the kernel says are available.
        free: u64,
    },
}

/// A disk in memory. Pieces that were never written, or were discarded, take none.
#[derive(Debug)]
pub struct Ram {
    pieces: Vec<Option<Box<[u8]>>>,
    bytes: u64,
    done: VecDeque<(OpId, Completion)>,
    now: Time,
}

impl Ram {
    /// Makes the disk that `text` (what follows `ram:`) asks for, full of zeros.
    pub fn open(text: &str) -> Result<Ram, RamError> {
        let bytes = parse_bytes(text).ok_or_else(|| RamError::NotASize(text.to_string()))?;
        if bytes < 4096 || !bytes.is_multiple_of(512) {
            return Err(RamError::BadSize(text.to_string()));
        }
        if let Some(free) = available_bytes()
            && bytes > free
        {
            return Err(RamError::TooLarge { text: text.to_string(), wanted: bytes, free });
        }
        Ok(Ram::new(bytes))
    }

    /// A disk of `bytes` zeros.
    pub fn new(bytes: u64) -> Ram {
        let count = bytes.div_ceil(PIECE_BYTES as u64) as usize;
        Ram { pieces: vec![None; count], bytes, done: VecDeque::new(), now: 0 }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory in use for content.
    pub fn resident_bytes(&self) -> u64 {
        self.pieces.iter().flatten().count() as u64 * PIECE_BYTES as u64
    }

    /// Carries out one I/O; its completion is ready at once.
    pub fn submit(&mut self, op: OpId, io: OriginIo, now: Time) {
        self.now = now;
        let (result, buf) = self.carry_out(io);
        self.done.push_back((op, Completion { result, buf }));
    }

    /// Appends the completions.
    pub fn poll(&mut self, _now: Time, out: &mut Vec<(OpId, Completion)>) {
        out.extend(self.done.drain(..));
    }

    /// When [`Ram::poll`] will have something: now, where completions wait.
    pub fn next_due(&self) -> Option<Time> {
        (!self.done.is_empty()).then_some(self.now)
    }

    fn carry_out(&mut self, io: OriginIo) -> (Result<(), IoError>, Buf) {
        match io {
            OriginIo::Read { offset, mut buf } => {
                let fits = self.fits(offset, buf.len() as u64);
                if fits {
                    self.read(offset, buf.bytes_mut());
                }
                (fits.then_some(()).ok_or(IoError::Invalid), buf)
            }
            OriginIo::Write { offset, buf } => {
                let fits = self.fits(offset, buf.len() as u64);
                if fits {
                    self.write(offset, buf.bytes());
                }
                (fits.then_some(()).ok_or(IoError::Invalid), buf)
            }
            OriginIo::Flush => (Ok(()), Buf::empty()),
            OriginIo::Zero { offset, len, .. } | OriginIo::Discard { offset, len } => {
                let fits = self.fits(offset, len);
                if fits {
                    self.zero(offset, len);
                }
                (fits.then_some(()).ok_or(IoError::Invalid), Buf::empty())
            }
        }
    }

    fn fits(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }

    fn read(&self, offset: u64, mut to: &mut [u8]) {
        let mut at = offset as usize;
        while !to.is_empty() {
            let (piece, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let len = to.len().min(PIECE_BYTES - start);
            let (part, rest) = to.split_at_mut(len);
            match &self.pieces[piece] {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + len]),
                None => part.fill(0),
            }
            to = rest;
            at += len;
        }
    }

    fn write(&mut self, offset: u64, mut from: &[u8]) {
        let mut at = offset as usize;
        while !from.is_empty() {
            let (piece, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let len = from.len().min(PIECE_BYTES - start);
            let bytes = self.pieces[piece].get_or_insert_with(|| vec![0; PIECE_BYTES].into());
            bytes[start..start + len].copy_from_slice(&from[..len]);
            from = &from[len..];
            at += len;
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        while at < end {
            let (piece, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let part = (end - at).min(PIECE_BYTES - start);
            if part == PIECE_BYTES {
                self.pieces[piece] = None;
            } else if let Some(bytes) = &mut self.pieces[piece] {
                bytes[start..start + part].fill(0);
            }
            at += part;
        }
    }
}

/// Memory that the kernel would give without swapping; `None` where it does not tell.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ram: &mut Ram, io: OriginIo) -> Completion {
        ram.submit(OpId(7), io, 5);
        assert_eq!(ram.next_due(), Some(5));
        let mut out = Vec::new();
        ram.poll(5, &mut out);
        assert_eq!(ram.next_due(), None);
        assert_eq!(out.len(), 1);
        let (op, completion) = out.pop().expect("one completion");
        assert_eq!(op, OpId(7));
        completion
    }

    fn filled(len: usize, value: u8) -> Buf {
        let mut buf = Buf::zeroed(len);
        buf.bytes_mut().fill(value);
        buf
    }

    #[test]
    fn reads_back_what_was_written_across_pieces() {
        let mut ram = Ram::new(4 * PIECE_BYTES as u64);
        let offset = PIECE_BYTES as u64 - 512;
        let io = OriginIo::Write { offset, buf: filled(PIECE_BYTES + 1024, 9) };
        assert_eq!(run(&mut ram, io).result, Ok(()));
        let read = run(&mut ram, OriginIo::Read { offset: 0, buf: filled(3 * PIECE_BYTES, 1) });
        let bytes = read.buf.bytes();
        let end = 2 * PIECE_BYTES + 512;
        assert!(bytes[..offset as usize].iter().all(|&b| b == 0));
        assert!(bytes[offset as usize..end].iter().all(|&b| b == 9));
        assert!(bytes[end..].iter().all(|&b| b == 0));
        assert_eq!(ram.resident_bytes(), 3 * PIECE_BYTES as u64);
    }

    #[test]
    fn zeroes_and_gives_memory_back() {
        let mut ram = Ram::new(2 * PIECE_BYTES as u64);
        run(&mut ram, OriginIo::Write { offset: 0, buf: filled(2 * PIECE_BYTES, 9) });
        let len = PIECE_BYTES as u64 + 512;
        assert_eq!(run(&mut ram, OriginIo::Zero { offset: 0, len, unmap: true }).result, Ok(()));
        assert_eq!(ram.resident_bytes(), PIECE_BYTES as u64);
        let read = run(&mut ram, OriginIo::Read { offset: len - 512, buf: filled(1024, 1) });
        assert!(read.buf.bytes()[..512].iter().all(|&b| b == 0));
        assert!(read.buf.bytes()[512..].iter().all(|&b| b == 9));
    }

    #[test]
    fn refuses_what_lies_outside() {
        let mut ram = Ram::new(8192);
        let read = run(&mut ram, OriginIo::Read { offset: 8192, buf: filled(512, 1) });
        assert_eq!((read.result, read.buf.len()), (Err(IoError::Invalid), 512));
        let zero = run(&mut ram, OriginIo::Zero { offset: u64::MAX - 511, len: 512, unmap: false });
        assert_eq!(zero.result, Err(IoError::Invalid));
    }

    #[test]
    fn errors_say_what_to_write() {
        let text = |t: &str| Ram::open(t).expect_err("bad size").to_string();
        assert!(text("lots").contains("ram:40G"));
        assert!(text("1000").contains("multiple of 512"));
        assert!(text("900000T").contains("use a smaller size"));
        assert_eq!(Ram::open("16M").expect("a size").bytes(), 16 << 20);
    }
}
