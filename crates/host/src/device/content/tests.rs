use super::*;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;

/// Bytes at an offset.
type Mark<'a> = (u64, &'a [u8]);

fn image(dir: &TempDir, marks: &[Mark]) -> std::path::PathBuf {
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (offset, bytes) in marks {
        file.write_all_at(bytes, *offset).unwrap();
    }
    path
}

fn identified(marks: &[Mark]) -> String {
    let dir = TempDir::new().unwrap();
    identify(&image(&dir, marks)).unwrap().to_string()
}

#[test]
fn zeros_are_nothing_and_other_bytes_are_named() {
    assert_eq!(identified(&[]), "nothing");
    assert_eq!(identified(&[(0, b"\x00")]), "nothing");
    assert_eq!(identified(&[(12345, b"x")]), "unknown data (not zeros)");
    assert_eq!(identified(&[(SIZE - 1, b"x")]), "unknown data (not zeros)");
    assert_eq!(identified(&[(SIZE / 2, &[7; 1 << 20])]), "unknown data (not zeros)");
}

#[test]
fn each_mark_is_recognised_where_its_owner_puts_it() {
    let md_1_0 = ((SIZE / 512 - 16) & !7) * 512;
    let md = b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00";
    let cases: &[(&[Mark], &str)] = &[
        (&[(0, b"XFSB"), (0x6c, b"scratch")], "xfs file system, label scratch"),
        (&[(0x1_0040, b"_BHRfS_M"), (0x1_012b, b"data")], "btrfs file system, label data"),
        (&[(3, b"NTFS    ")], "ntfs file system"),
        (&[(0x52, b"FAT32   "), (0x47, b"NO NAME    ")], "vfat file system"),
        (&[(4086, b"SWAPSPACE2")], "swap space"),
        (&[(0, b"LUKS\xba\xbe\x00\x01")], "LUKS encrypted volume"),
        (&[(512, b"LABELONE")], "LVM2 physical volume"),
        (&[(4096, md), (4096 + 32, b"box:0")], "Linux software RAID member, label box:0"),
        (&[(md_1_0, md)], "Linux software RAID member"),
        (&[((SIZE & !0xffff) - 0x1_0000, b"\xfc\x4e\x2b\xa9")], "Linux software RAID member"),
        (&[((128 << 10) + 3072, &0x00ba_b10c_u64.to_le_bytes())], "zfs pool member"),
        (&[(512, b"EFI PART")], "GPT partition table"),
        (&[(SIZE - 512, b"EFI PART")], "GPT partition table"),
        (&[(450, b"\x83"), (510, b"\x55\xaa")], "MBR partition table"),
        (
            &[(4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")],
            "bcache device",
        ),
    ];
    for (marks, expected) in cases {
        assert_eq!(identified(marks), *expected);
    }
}

#[test]
fn a_member_of_a_tiered_volume_is_recognised_by_either_superblock() {
    // A golden image: blocks, each behind its offset. The first is the newer superblock.
    let member = include_bytes!("../../../../format/tests/golden/tier-slow.bin");
    let [newer, older] = [&member[8..4104], &member[4112..8208]];
    let expected = "member 2 of tiered volume \"goldtier\" \
                    (uuid 74696572-2d73-6574-2d75-7569642d3136)";
    assert_eq!(identified(&[(0, newer), (0x1_0000, older)]), expected);
    assert_eq!(identified(&[(0, newer)]), expected);
    assert_eq!(identified(&[(0x1_0000, older)]), expected);
    let damaged = "a member of a tiered volume whose superblocks are damaged";
    assert_eq!(identified(&[(0, &newer[..200]), (0x1_0000, &older[..200])]), damaged);
    assert_eq!(identified(&[(0, &newer[..200]), (0x1_0000, older)]), expected);
}

/// Runs a formatting tool on an image; `false` if the tool is not there.
fn run(tool: &str, arguments: &[&str], path: &Path) -> bool {
    let found = [tool.to_owned(), format!("/usr/sbin/{tool}"), format!("/sbin/{tool}")];
    found.iter().any(|program| {
        let status = Command::new(program)
            .args(arguments)
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| {
            assert!(status.success(), "{program} failed");
            true
        })
    })
}

#[test]
fn what_the_real_tools_make_is_recognised() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("mkfs.ext4", &["-q", "-F", "-L", "home"], "ext4 file system, label home"),
        ("mkfs.ext3", &["-q", "-F"], "ext3 file system"),
        ("mkfs.ext2", &["-q", "-F"], "ext2 file system"),
        ("mkswap", &["-L", "spare"], "swap space, label spare"),
        ("mkfs.xfs", &["-q", "-L", "fast"], "xfs file system, label fast"),
        ("mkfs.btrfs", &["-q", "-L", "deep"], "btrfs file system, label deep"),
        ("mkfs.vfat", &["-F", "32", "-n", "STICK"], "vfat file system, label STICK"),
    ];
    for (tool, arguments, expected) in cases {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, &[]);
        if matches!(*tool, "mkfs.xfs" | "mkfs.btrfs") {
            File::options().write(true).open(&path).unwrap().set_len(512 << 20).unwrap();
        }
        if run(tool, arguments, &path) {
            assert_eq!(identify(&path).unwrap().to_string(), *expected, "{tool}");
        } else {
            eprintln!("{tool} is not installed; the bytes that it writes are tested above");
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_any_mark_is_read_without_error() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("short");
    for len in [0_usize, 1, 511, 512, 1500, 4097] {
        std::fs::write(&path, vec![0; len]).unwrap();
        assert_eq!(identify(&path).unwrap(), Content::Empty);
    }
}
