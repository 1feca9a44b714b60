//! The guest's memory: pieces of files that the other side maps too, and may cut, punch or replace
//! while it is used here.

use forebay_sys::shared::Shared;
use std::fs::File;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Pieces of the memory of one guest.
pub const PIECES_MAX: usize = 32;
/// Bytes of all of them. A file with holes costs whoever made it nothing, and all guests together
/// have to find addresses in this process.
const BYTES_MAX: u64 = 8 << 40;

/// A piece of it.
#[derive(Debug, Clone)]
struct Piece {
    guest: u64,
    user: u64,
    bytes: u64,
    shared: Arc<Shared>,
}

/// The memory of a guest.
#[derive(Debug, Clone)]
pub struct Memory {
    map: GuestMemoryMmap,
    pieces: Vec<Piece>,
}

impl Memory {
    /// None yet.
    pub fn new() -> Memory {
        Memory { map: GuestMemoryMmap::new(), pieces: Vec::new() }
    }

    /// It, and a piece more.
    ///
    /// # Errors
    /// The piece cannot be mapped or overlaps another, or there would be too much.
    pub fn with(&self, piece: &VhostUserMemoryRegion, file: File) -> io::Result<Memory> {
        let refuse = || io::Error::from(io::ErrorKind::InvalidInput);
        let (bytes, user, guest) = (piece.memory_size, piece.user_addr, piece.guest_phys_addr);
        let held: u64 = self.pieces.iter().map(|piece| piece.bytes).sum();
        let sane = bytes <= BYTES_MAX - held && user.checked_add(bytes).is_some();
        if !sane || self.pieces.len() >= PIECES_MAX {
            return Err(refuse());
        }
        let shared = Arc::new(Shared::map(file, piece.mmap_offset, bytes as usize)?);
        let region = GuestRegionMmap::with_arc(Arc::clone(shared.region()), GuestAddress(guest));
        let region = Arc::new(region.ok_or_else(refuse)?);
        let map = self.map.insert_region(region).map_err(io::Error::other)?;
        let mut pieces = self.pieces.clone();
        pieces.push(Piece { guest, user, bytes, shared });
        Ok(Memory { map, pieces })
    }

    /// It, without the piece that begins at this address of the guest and is so long. `None`: there
    /// is no such piece.
    pub fn without(&self, guest: u64, bytes: u64) -> Option<Memory> {
        let (map, _) = self.map.remove_region(GuestAddress(guest), bytes).ok()?;
        let mut pieces = self.pieces.clone();
        pieces.retain(|piece| piece.guest != guest);
        Some(Memory { map, pieces })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The guest's address of an address of the other side's process.
    pub fn guest(&self, user: u64) -> Option<GuestAddress> {
        let within = |piece: &&Piece| (piece.user..piece.user + piece.bytes).contains(&user);
        let piece = self.pieces.iter().find(within)?;
        Some(GuestAddress(user - piece.user + piece.guest))
    }

    /// What is to be read and written. Nothing that was read is to be believed before
    /// [`Memory::is_lost`] was asked.
    pub fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// Whether the other side took a piece away before now.
    pub fn is_lost(&self) -> bool {
        self.pieces.iter().any(|piece| piece.shared.is_lost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sys::file::memory_file;

    #[test]
    fn all_pieces_of_a_guest_together_have_a_limit() {
        const PAGE: u64 = 4096;
        const FIRST: u64 = BYTES_MAX / 2 + PAGE;
        let with = |memory: &Memory, at: u64, bytes: u64| {
            let piece = VhostUserMemoryRegion::new(at, bytes, at, 0);
            memory.with(&piece, memory_file(bytes).unwrap())
        };
        let memory = with(&Memory::new(), 0, FIRST).unwrap();
        assert!(with(&memory, FIRST, BYTES_MAX - FIRST + PAGE).is_err());
        assert!(with(&memory, FIRST, BYTES_MAX - FIRST).is_ok());
    }
}
