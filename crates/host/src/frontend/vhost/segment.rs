//! Requests and their data in the guest's memory, in as many pieces as the guest likes.

use super::head::Head;
use std::ops::Range;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Segments of a request.
const SEGMENTS_MAX: usize = 1024;
/// Descriptor flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: u64 = size_of::<Descriptor>() as u64;

/// A stretch of the guest's memory.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    pub address: GuestAddress,
    pub len: u32,
}

/// Finds the segments of the request that begins at descriptor `head`: those for us to read, and
/// those for the guest. `table` is where the queue's descriptors lie, and how many there are.
///
/// # Errors
/// What rule of the queue the other side broke.
pub fn walk(
    memory: &GuestMemoryMmap,
    (mut table, size): (GuestAddress, u16),
    head: Head,
    (readable, writable): (&mut Vec<Segment>, &mut Vec<Segment>),
) -> Result<(), &'static str> {
    readable.clear();
    writable.clear();
    let mut count = u32::from(size);
    let (mut index, mut left, mut indirect) = (u32::from(head.number()), count, false);
    loop {
        if index >= count || left == 0 {
            return Err("a chain of descriptors leaves its table");
        }
        left -= 1;
        let at = table.checked_add(u64::from(index) * DESCRIPTOR_BYTES);
        let read = at.and_then(|at| memory.read_obj::<Descriptor>(at).ok());
        let descriptor = read.ok_or("a descriptor is not in memory")?;
        if descriptor.flags() & INDIRECT != 0 {
            let entries = u64::from(descriptor.len()) / DESCRIPTOR_BYTES;
            if indirect || entries == 0 || entries > SEGMENTS_MAX as u64 {
                return Err("an indirect table is not valid");
            }
            indirect = true;
            (table, count) = (descriptor.addr(), entries as u32);
            (index, left) = (0, count);
            continue;
        }
        let segment = Segment { address: descriptor.addr(), len: descriptor.len() };
        match (descriptor.flags() & WRITE != 0, writable.is_empty()) {
            (true, _) => writable.push(segment),
            (false, true) => readable.push(segment),
            (false, false) => return Err("its parts are in the wrong order"),
        }
        if readable.len() + writable.len() > SEGMENTS_MAX {
            return Err("a request has too many segments");
        }
        if descriptor.flags() & NEXT == 0 {
            return Ok(());
        }
        index = u32::from(descriptor.next());
    }
}

/// Goes through the `len` bytes behind the first `skip` of these segments, piece by piece: `copy`
/// is told where a piece lies in the memory and which of the bytes it is. Whether all was there.
fn each(
    segments: &[Segment],
    mut skip: u64,
    len: usize,
    mut copy: impl FnMut(GuestAddress, Range<usize>) -> bool,
) -> bool {
    let mut done = 0;
    for segment in segments {
        let there = u64::from(segment.len);
        if skip >= there {
            skip -= there;
            continue;
        }
        let piece = done..done + ((there - skip) as usize).min(len - done);
        done = piece.end;
        let at = segment.address.checked_add(skip);
        if at.is_none_or(|at| !copy(at, piece)) {
            return false;
        }
        if done == len {
            break;
        }
        skip = 0;
    }
    done == len
}

/// Copies from these segments, without their first `skip` bytes. Whether all was there.
pub fn copy_in(memory: &GuestMemoryMmap, segments: &[Segment], skip: u64, out: &mut [u8]) -> bool {
    let len = out.len();
    each(segments, skip, len, |at, piece| match memory.get_slice(at, piece.len()) {
        Ok(whole) => whole.copy_to(&mut out[piece.clone()]) == piece.len(),
        // It may lie in several regions.
        Err(_) => memory.read_slice(&mut out[piece], at).is_ok(),
    })
}

/// Copies to these segments, behind their first `skip` bytes. Whether all found room.
pub fn copy_out(memory: &GuestMemoryMmap, segments: &[Segment], skip: u64, data: &[u8]) -> bool {
    each(segments, skip, data.len(), |at, piece| match memory.get_slice(at, piece.len()) {
        Ok(whole) => {
            whole.copy_from(&data[piece]);
            true
        }
        Err(_) => memory.write_slice(&data[piece], at).is_ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_and_go_in_as_many_pieces_as_the_guest_likes() {
        let memory: GuestMemoryMmap =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4096)]).unwrap();
        let segment = |at, len| Segment { address: GuestAddress(at), len };
        let parts = [segment(100, 3), segment(0, 0), segment(50, 4), segment(200, 9)];
        assert!(copy_out(&memory, &parts, 2, b"abcdefgh"));
        let mut out = [0; 8];
        assert!(copy_in(&memory, &parts, 2, &mut out));
        assert_eq!(&out, b"abcdefgh");
        let mut one = [0; 4];
        memory.read_slice(&mut one, GuestAddress(50)).unwrap();
        assert_eq!(&one, b"bcde");
        assert!(copy_in(&memory, &parts, 0, &mut [0; 16]));
        assert!(!copy_in(&memory, &parts, 0, &mut [0; 17]), "there are 16 bytes");
        assert!(!copy_out(&memory, &parts, 9, &[0; 8]));
        assert!(!copy_out(&memory, &[segment(4094, 8)], 0, &[0; 8]), "behind the end of memory");
        assert!(!copy_in(&memory, &[segment(u64::MAX, 8)], 1, &mut [0; 4]), "no such address");
        assert!(copy_in(&memory, &[], 0, &mut []));
        let two = [(GuestAddress(0), 4096), (GuestAddress(4096), 4096)];
        let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&two).unwrap();
        let across = [segment(4090, 12)];
        assert!(copy_out(&memory, &across, 0, b"two regions."));
        let mut out = [0; 12];
        assert!(copy_in(&memory, &across, 0, &mut out));
        assert_eq!(&out, b"two regions.");
    }
}
