//! The marks that other owners leave on a device. Offsets are bytes from the start unless said otherwise.

use forebay_format::superblock::field_text;

/// A mark of fixed bytes at a fixed place.
struct Mark {
    offset: usize,
    bytes: &'static [u8],
    what: &'static str,
    /// Where the label lies and how long it is.
    label: Option<(usize, usize)>,
}

const fn mark(
    offset: usize,
    bytes: &'static [u8],
    what: &'static str,
    label: Option<(usize, usize)>,
) -> Mark {
    Mark { offset, bytes, what, label }
}

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// Volume managers before file systems: a file system inside one may show through.
const MARKS: &[Mark] = &[
    mark(0, b"LUKS\xba\xbe\x00\x02", "LUKS encrypted volume (version 2)", Some((24, 48))),
    mark(0, b"LUKS\xba\xbe", "LUKS encrypted volume", None),
    mark(4096 + 24, BCACHE, "bcache device", Some((4096 + 72, 32))),
    mark(4096 + 24, BCACHEFS, "bcachefs file system", None),
    mark(0, b"bluestore block device", "Ceph BlueStore device", None),
    mark(0, b"XFSB", "xfs file system", Some((0x6c, 12))),
    mark(0x1_0040, b"_BHRfS_M", "btrfs file system", Some((0x1_012b, 256))),
    mark(3, b"NTFS    ", "ntfs file system", None),
    mark(3, b"EXFAT   ", "exfat file system", None),
    mark(0x52, b"FAT32   ", "vfat file system", Some((0x47, 11))),
    mark(0x36, b"FAT16   ", "vfat file system", Some((0x2b, 11))),
    mark(0x36, b"FAT12   ", "vfat file system", Some((0x2b, 11))),
    mark(4086, b"SWAPSPACE2", "swap space", Some((0x41c, 16))),
    mark(4086, b"SWAP-SPACE", "swap space", None),
    mark(1024, b"\x10\x20\xf5\xf2", "f2fs file system", None),
    mark(1024, b"\xe2\xe1\xf5\xe0", "erofs file system", None),
    mark(32769, b"CD001", "iso9660 file system", Some((32808, 32))),
    mark(32768, b"JFS1", "jfs file system", None),
    mark(65588, b"ReIsEr", "reiserfs file system", None),
    mark(0, b"hsqs", "squashfs file system", None),
    mark(0, b"QFI\xfb", "qcow2 disk image", None),
];

const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
const ZFS_UBERBLOCK: u64 = 0x00ba_b10c;

/// Names what is on a device from its first and last bytes. `size` is the device's, in bytes.
pub(super) fn find(head: &[u8], tail: &[u8], size: u64) -> Option<String> {
    lvm(head)
        .or_else(|| md(head, tail, size))
        .or_else(|| zfs(head))
        .or_else(|| fixed(head))
        .or_else(|| ext(head))
        .or_else(|| partitions(head, tail))
}

fn at(bytes: &[u8], offset: usize, len: usize) -> Option<&[u8]> {
    bytes.get(offset..offset.checked_add(len)?)
}

fn with_label(what: &str, label: Option<&[u8]>) -> String {
    let label = label.map(field_text).unwrap_or_default();
    match label.trim() {
        "" | "NO NAME" => what.to_owned(),
        label => format!("{what}, label {label}"),
    }
}

fn fixed(head: &[u8]) -> Option<String> {
    let is_here = |mark: &&Mark| at(head, mark.offset, mark.bytes.len()) == Some(mark.bytes);
    let mark = MARKS.iter().find(is_here)?;
    Some(with_label(mark.what, mark.label.and_then(|(offset, len)| at(head, offset, len))))
}

fn ext(head: &[u8]) -> Option<String> {
    let superblock = at(head, 1024, 1024)?;
    if superblock[0x38..0x3a] != [0x53, 0xef] {
        return None;
    }
    let word = |offset: usize| {
        u32::from_le_bytes(superblock[offset..offset + 4].try_into().expect("four bytes"))
    };
    let (compat, incompat, ro_compat) = (word(0x5c), word(0x60), word(0x64));
    // Extents, 64 bit, flexible groups; huge files, group checksums, large inodes, metadata checksums.
    let what = if incompat & 0x2c0 != 0 || ro_compat & 0x478 != 0 {
        "ext4 file system"
    } else if compat & 0x4 != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    };
    Some(with_label(what, Some(&superblock[0x78..0x88])))
}

fn lvm(head: &[u8]) -> Option<String> {
    let label = (0..4).filter_map(|sector| at(head, sector * 512, 32));
    let mut found = label.filter(|label| label.starts_with(b"LABELONE"));
    found.next().map(|_| "LVM2 physical volume".to_owned())
}

/// Linux software RAID: version 1.1 at the start, 1.2 at 4 KiB, 1.0 and 0.90 near the end.
fn md(head: &[u8], tail: &[u8], size: u64) -> Option<String> {
    let tail_start = size - tail.len() as u64;
    let in_tail = |offset: u64| at(tail, offset.checked_sub(tail_start)? as usize, 128);
    let version_1_0 = (size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    let version_0_90 = (size & !0xffff).checked_sub(0x1_0000);
    let places = [
        at(head, 4096, 128),
        at(head, 0, 128),
        version_1_0.and_then(in_tail),
        version_0_90.and_then(in_tail),
    ];
    let found = places.into_iter().flatten().find(|place| place.starts_with(&MD_MAGIC))?;
    let named = found[4..8] == [1, 0, 0, 0];
    Some(with_label("Linux software RAID member", named.then_some(&found[32..64])))
}

fn zfs(head: &[u8]) -> Option<String> {
    let mut uberblocks = (128..256).filter_map(|kib| at(head, kib << 10, 8));
    let found = uberblocks.any(|bytes| {
        let bytes = bytes.try_into().expect("eight bytes");
        u64::from_le_bytes(bytes) == ZFS_UBERBLOCK || u64::from_be_bytes(bytes) == ZFS_UBERBLOCK
    });
    found.then(|| "zfs pool member".to_owned())
}

fn partitions(head: &[u8], tail: &[u8]) -> Option<String> {
    const GPT: &[u8] = b"EFI PART";
    let main = [512, 4096].into_iter().any(|sector| at(head, sector, 8) == Some(GPT));
    let backup = [512, 4096].into_iter().any(|sector| {
        tail.len().checked_sub(sector).and_then(|start| at(tail, start, 8)) == Some(GPT)
    });
    if main || backup {
        return Some("GPT partition table".to_owned());
    }
    let boot = at(head, 0, 512)?;
    if boot[510..] != [0x55, 0xaa] {
        return None;
    }
    let entries: Vec<&[u8]> = boot[446..510].chunks_exact(16).collect();
    let sane = entries.iter().all(|entry| entry[0] & 0x7f == 0);
    let used = entries.iter().any(|entry| entry[4] != 0);
    (sane && used).then(|| "MBR partition table".to_owned())
}
