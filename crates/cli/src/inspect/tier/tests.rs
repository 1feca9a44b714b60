//! The golden images of a set, as files, as they are and changed.

use super::*;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

const FAST: &[u8] = include_bytes!("../../../../format/tests/golden/tier-fast.bin");
const SLOW: &[u8] = include_bytes!("../../../../format/tests/golden/tier-slow.bin");
const NEW: &[u8] = include_bytes!("../../../../format/tests/golden/tier-new-1.bin");
const MIB: u64 = 1 << 20;

struct Files {
    folder: TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn new() -> Files {
        let mut files = Files { folder: TempDir::new().unwrap(), paths: Vec::new() };
        files.add("fast.img", FAST, 4 * MIB);
        files.add("slow.img", SLOW, 5 * MIB);
        files
    }

    fn add(&mut self, name: &str, image: &[u8], bytes: u64) {
        let path = self.folder.path().join(name);
        let file = File::create(&path).unwrap();
        for block in image.chunks_exact(8 + BLOCK_SIZE) {
            let offset = u64::from_le_bytes(block[..8].try_into().unwrap());
            file.write_all_at(&block[8..], offset).unwrap();
        }
        file.set_len(bytes).unwrap();
        self.paths.push(path);
    }

    fn write(&self, number: usize, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.paths[number]).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn look(&self) -> SetInspection {
        look(&self.paths).unwrap().expect("members")
    }

    /// What is printed, without where the files are.
    fn text(&self) -> String {
        self.look().lines().join("\n").replace(&format!("{}/", self.folder.path().display()), "")
    }
}

#[test]
fn a_sound_set_is_told_as_it_is() {
    let files = Files::new();
    assert_eq!(files.look().code(), 0);
    assert_eq!(
        files.text(),
        "fast.img: 4194304 bytes (4.0M), member 0\n  \
           superblock at 0: generation 12, life 5\n  \
           superblock at 64.0K: generation 11, life 5\n\
         slow.img: 5242880 bytes (5.0M), member 2\n  \
           superblock at 0: generation 12, life 5\n  \
           superblock at 64.0K: generation 11, life 5\n\
         tiered volume goldtier (746965722d7365742d757569642d3136): 4.0M, up to 600M, \
         generation 12, life 5\n  \
           member 0 (a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0): tier 0, 3 slots, 3.0M, in, holds the map, \
           3 extents: fast.img\n  \
           member 1: gone\n  \
           member 2 (a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2): tier 3, 4 slots, 4.0M, leaving, holds the \
           map, 2 extents: slow.img\n\
         map on member 0: records up to 25; 1 pages, none is bad\n\
         map on member 2: records up to 24; 1 pages, none is bad\n\
         journal of life 5: 5 records, 21 to 25, confirmed up to 23, the next one is torn\n\
         extents: 5 of 5 live somewhere, 2 partly written, 1 not confirmed, 1 lost in part \
         (2 blocks)\n\
         what is here fits together"
    );
    let json = serde_json::to_value(files.look()).unwrap();
    assert_eq!(json["kind"], "tier-inspection");
    assert_eq!(json["set"]["name"], "goldtier");
    assert_eq!(json["set"]["members"][2]["extents"], 2);
    assert_eq!(json["set"]["ephemeral"], false);
    assert_eq!((&json["map"]["last_record"], &json["map"]["torn"]), (&25.into(), &true.into()));
    assert_eq!(json["devices"][1]["is_used"], true);
}

#[test]
fn one_member_alone_tells_what_is_missing() {
    let mut files = Files::new();
    files.paths.pop();
    let text = files.text();
    assert!(text.contains("2 extents: not here, last there in life 5"), "{text}");
    let mut files = Files::new();
    files.paths.clear();
    files.add("new.img", NEW, 3 * MIB);
    let (text, found) = (files.text(), files.look());
    assert!(text.contains("tiered volume new ("), "{text}");
    assert!(text.contains("3.0M, up to 12.0M, ephemeral, generation 0, life 0"), "{text}");
    assert!(text.contains("tier 0, 1 slots, 1.0M, RAM, in, holds the map: not here"), "{text}");
    assert!(text.contains("no map yet: it was made, and never opened"), "{text}");
    assert_eq!(found.code(), 0);
}

#[test]
fn what_is_wrong_is_told_and_makes_the_exit_code() {
    let is_told = |files: &Files, what: &str| {
        let text = files.text();
        assert!(text.contains(what), "{text}");
        assert_eq!(files.look().code(), 1, "{text}");
    };
    // Pages and doubles of both.
    let files = Files::new();
    for number in 0..2 {
        files.write(number, 0x4_0200, &[0xff; 512]);
        files.write(number, 0xc_0200, &[0xff; 512]);
    }
    is_told(&files, "PROBLEM: the map is damaged in all copies that are here, from extent 0 on");
    // Both superblocks, but not their marks.
    let files = Files::new();
    for number in 0..2 {
        files.write(number, 512, &[0xff; 512]);
        files.write(number, 0x1_0200, &[0xff; 512]);
    }
    is_told(&files, "both superblocks are lost");
    let mut files = Files::new();
    files.add("new.img", NEW, 3 * MIB);
    is_told(&files, "PROBLEM: new.img is a member of another tiered volume, new");
    let mut files = Files::new();
    files.add("copy.img", FAST, 4 * MIB);
    is_told(&files, "PROBLEM: copy.img and fast.img are both member 0");
    let mut files = Files::new();
    files.add("zeros.img", &[], MIB);
    is_told(&files, "PROBLEM: zeros.img is no member of a tiered volume");
    let mut files = Files::new();
    files.paths.clear();
    files.add("short.img", FAST, 3 * MIB);
    is_told(&files, "PROBLEM: short.img has room for 2 slots, and should have 3");
}

#[test]
fn a_torn_copy_of_something_is_no_problem() {
    let files = Files::new();
    files.write(0, 0x1_0200, &[0xff; 512]);
    files.write(0, 0xc_0200, &[0xff; 512]);
    files.write(1, 0x2_0200, &[0xff; 512]);
    let (text, found) = (files.text(), files.look());
    assert!(text.contains("superblock at 64.0K: the superblock of a tier is damaged"), "{text}");
    assert!(text.contains("1 pages, 1 bad, 1 of those with a double"), "{text}");
    assert!(text.contains("its head is of an earlier life, so it does not count"), "{text}");
    assert_eq!(found.code(), 0, "{text}");
}

#[test]
fn what_is_no_member_is_left_to_others() {
    let mut files = Files::new();
    files.paths.clear();
    files.add("zeros.img", &[], MIB);
    assert!(look(&files.paths).unwrap().is_none());
    files.paths.push(files.folder.path().join("none.img"));
    assert!(look(&files.paths).unwrap_err().to_string().contains("open"));
}
