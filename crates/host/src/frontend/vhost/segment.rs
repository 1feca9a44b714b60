//! Data in the guest's memory, in as many pieces as the guest likes.

use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

/// A stretch of the guest's memory.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    pub address: GuestAddress,
    pub len: u32,
}

/// Copies from these segments, without their first `skip` bytes. Whether all was there.
pub fn copy_in(
    memory: &GuestMemoryMmap,
    segments: &[Segment],
    mut skip: u64,
    mut out: &mut [u8],
) -> bool {
    for segment in segments {
        let len = u64::from(segment.len);
        if skip >= len {
            skip -= len;
            continue;
        }
        let part = ((len - skip) as usize).min(out.len());
        let (now, rest) = out.split_at_mut(part);
        let from = segment.address.checked_add(skip);
        if from.is_none_or(|from| memory.read_slice(now, from).is_err()) {
            return false;
        }
        (out, skip) = (rest, 0);
        if out.is_empty() {
            break;
        }
    }
    out.is_empty()
}

/// Copies to these segments, behind their first `skip` bytes. Whether all found room.
pub fn copy_out(
    memory: &GuestMemoryMmap,
    segments: &[Segment],
    mut skip: u64,
    mut data: &[u8],
) -> bool {
    for segment in segments {
        let len = u64::from(segment.len);
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, rest) = data.split_at(((len - skip) as usize).min(data.len()));
        let to = segment.address.checked_add(skip);
        if to.is_none_or(|to| memory.write_slice(now, to).is_err()) {
            return false;
        }
        (data, skip) = (rest, 0);
        if data.is_empty() {
            break;
        }
    }
    data.is_empty()
}
