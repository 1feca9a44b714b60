//! What the kernel and a ublk server say to each other, as `linux/ublk_cmd.h` lays it out.
#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "the names say what the header of the kernel says of them")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a device or a driver can do, or is asked to.
pub mod flag {
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that a dead server had are sent to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Made by a user without rights.
    pub const UNPRIVILEGED: u64 = 1 << 5;
    /// Commands are encoded as ioctls are.
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// The server copies data by reading and writing the character device.
    pub const USER_COPY: u64 = 1 << 7;
    /// The size can change.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// The server can be asked to rest.
    pub const QUIESCE: u64 = 1 << 12;
}

/// States of a device.
pub mod state {
    /// Its server is gone; requests wait for the next.
    pub const QUIESCED: u16 = 2;
    /// Its server is gone; requests fail until the next.
    pub const FAIL_IO: u16 = 3;
}

/// A command of the control device, by its number and by whether it is declared to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verb {
    number: u32,
    writes: bool,
    /// For messages.
    pub name: &'static str,
}

const fn verb(number: u32, writes: bool, name: &'static str) -> Verb {
    Verb { number, writes, name }
}

pub const ADD_DEV: Verb = verb(0x04, true, "add a device");
pub const DEL_DEV: Verb = verb(0x05, true, "delete the device");
pub const START_DEV: Verb = verb(0x06, true, "start the device");
pub const STOP_DEV: Verb = verb(0x07, true, "stop the device");
pub const SET_PARAMS: Verb = verb(0x08, true, "set the device's parameters");
pub const START_USER_RECOVERY: Verb = verb(0x10, true, "take the device over");
pub const END_USER_RECOVERY: Verb = verb(0x11, true, "finish taking the device over");
pub const GET_DEV_INFO2: Verb = verb(0x12, false, "look at the device");
pub const GET_FEATURES: Verb = verb(0x13, false, "ask what the driver can do");
pub const UPDATE_SIZE: Verb = verb(0x15, true, "change the device's size");
pub const QUIESCE_DEV: Verb = verb(0x16, true, "let the device rest");

/// As `_IOR('u', number, size)` and `_IOWR` encode.
const fn encode(number: u32, writes: bool, size: usize) -> u32 {
    let direction = if writes { 3 } else { 2 };
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

impl Verb {
    /// The operation of the ring's entry.
    pub const fn operation(self) -> u32 {
        encode(self.number, self.writes, size_of::<ControlCommand>())
    }
}

/// Asks for the first request of a tag.
pub const FETCH: u32 = encode(0x20, true, size_of::<IoCommand>());
/// Answers a tag's request and asks for the next.
pub const COMMIT_AND_FETCH: u32 = encode(0x21, true, size_of::<IoCommand>());

/// `struct ublksrv_ctrl_cmd`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlCommand {
    pub device: u32,
    /// All ones where no queue is meant.
    pub queue: u16,
    /// Bytes at `address`.
    pub len: u16,
    pub address: u64,
    pub data: u64,
    /// Bytes of the path of the character device that come first at `address`, of unprivileged
    /// devices.
    pub path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}
const _: () = assert!(size_of::<ControlCommand>() == 32);

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub request_bytes_max: u32,
    pub device: u32,
    /// Process that serves it, or -1.
    pub server: i32,
    pub pad1: u32,
    pub flags: u64,
    /// Ours to use; the kernel only keeps it.
    pub mark: u64,
    pub owner_user: u32,
    pub owner_group: u32,
    pub reserved: [u64; 2],
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// Kinds of parameters that are given.
pub const PARAM_BASIC: u32 = 1;
/// Discards and write-zeroes.
pub const PARAM_DISCARD: u32 = 2;
/// The device has a volatile cache, so FLUSH matters.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// The device takes FUA.
pub const ATTR_FUA: u32 = 1 << 3;

/// `struct ublk_params`, as far as it is used here.
#[derive(Debug, Clone, Copy, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Params {
    pub len: u32,
    pub kinds: u32,
    pub attributes: u32,
    pub logical_block_shift: u8,
    pub physical_block_shift: u8,
    pub optimal_io_shift: u8,
    pub minimal_io_shift: u8,
    pub request_sectors_max: u32,
    pub chunk_sectors: u32,
    pub sectors: u64,
    pub virtual_boundary_mask: u64,
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub discard_sectors_max: u32,
    pub zeroes_sectors_max: u32,
    pub discard_segments_max: u16,
    pub reserved: u16,
    /// To the end of the largest alignment, a part of the device numbers, which only the kernel
    /// writes.
    pub pad: u32,
}
const _: () = assert!(size_of::<Params>() == 64);
const _: () = assert!(std::mem::offset_of!(Params, discard_alignment) == 40);

/// `struct ublksrv_io_desc`: a request.
#[derive(Debug, Clone, Copy, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoDescriptor {
    pub operation: u32,
    pub sectors: u32,
    pub start_sector: u64,
    pub address: u64,
}
const _: () = assert!(size_of::<IoDescriptor>() == 24);

/// The part of [`IoDescriptor::operation`] that says what is asked.
pub const OP_MASK: u32 = 0xff;
pub const OP_READ: u32 = 0;
pub const OP_WRITE: u32 = 1;
pub const OP_FLUSH: u32 = 2;
pub const OP_DISCARD: u32 = 3;
pub const OP_WRITE_ZEROES: u32 = 5;
/// The write is to be durable when it is answered.
pub const OP_FUA: u32 = 1 << 13;
/// Zeroed space must not be given back.
pub const OP_NO_UNMAP: u32 = 1 << 15;

/// `struct ublksrv_io_cmd`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    pub result: i32,
    pub address: u64,
}
const _: () = assert!(size_of::<IoCommand>() == 16);

/// Most requests of a queue that the kernel can do.
pub const DEPTH_MAX: u16 = 4096;

/// Where the descriptors of a queue are in the character device. Each queue has room for the
/// deepest one.
pub const fn descriptors_at(queue: u16) -> u64 {
    let room = (DEPTH_MAX as usize * size_of::<IoDescriptor>()).next_multiple_of(4096);
    queue as u64 * room as u64
}

/// Where the data of a request is in the character device, with user copy.
pub const fn data_at(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41 | (tag as u64) << 25)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        // Taken from a C program with linux/ublk_cmd.h.
        assert_eq!(ADD_DEV.operation(), 0xc020_7504);
        assert_eq!(GET_DEV_INFO2.operation(), 0x8020_7512);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
        assert_eq!(descriptors_at(1), 24 * 4096);
        assert_eq!(data_at(0, 0), 1 << 31);
        assert_eq!(data_at(2, 3) - data_at(0, 0), 2 << 41 | 3 << 25);
    }
}
