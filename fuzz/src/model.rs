//! What a volume may hold: for each sector the versions that were written, and how each write
//! ended. A sector's content names its version and its place, and all of it is compared.

use crate::disks::VOLUME_BYTES;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sectors of the volume.
pub const SECTORS: usize = VOLUME_BYTES as usize / SECTOR;

/// A content of a sector: what the origin had at first, zeros, or that of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The origin's at first.
    First,
    /// Zeros.
    Zeros,
    /// That of the write of this number.
    Of(u64),
}

/// How what makes a version ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It has not, or not well, or it was a hint: the version before may be there too.
    Perhaps,
    /// Well.
    Certain,
}

/// The volume.
pub struct Model {
    sectors: Vec<Vec<(Version, u64, Fate)>>,
}

/// Writes a version of a sector.
pub fn fill(version: Version, sector: usize, into: &mut [u8]) {
    let seed = match version {
        Version::Zeros => return into.fill(0),
        Version::First => 1 << 63,
        Version::Of(number) => number,
    };
    let word = (seed ^ (sector as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (index, part) in (0_u64..).zip(into.chunks_exact_mut(8)) {
        part.copy_from_slice(&(word ^ index).to_le_bytes());
    }
}

/// What the origin holds at first.
pub fn first() -> Vec<u8> {
    let mut origin = vec![0; VOLUME_BYTES as usize];
    for (sector, into) in origin.chunks_exact_mut(SECTOR).enumerate() {
        fill(Version::First, sector, into);
    }
    origin
}

impl Model {
    /// As the origin is at first.
    pub fn new() -> Model {
        Model { sectors: vec![vec![(Version::First, 0, Fate::Certain)]; SECTORS] }
    }

    /// Request `id` is under way, after which this version is there.
    pub fn begin(&mut self, id: u64, sectors: std::ops::Range<usize>, version: Version) {
        for sector in &mut self.sectors[sectors] {
            sector.push((version, id, Fate::Perhaps));
        }
    }

    /// It ended well.
    pub fn succeed(&mut self, id: u64, sectors: std::ops::Range<usize>) {
        for sector in &mut self.sectors[sectors] {
            sector.iter_mut().filter(|it| it.1 == id).for_each(|it| it.2 = Fate::Certain);
        }
    }

    /// Versions of a sector that a read may give: this one, or one behind it.
    fn legal(&self, sector: usize, certain: usize) -> impl Iterator<Item = Version> {
        self.sectors[sector][certain..].iter().map(|it| it.0)
    }

    /// Which version of each of these sectors is the last that is certain now. A read that is asked
    /// now gives no older one.
    pub fn certain(&self, sectors: std::ops::Range<usize>) -> Vec<usize> {
        let last = |versions: &Vec<(Version, u64, Fate)>| {
            versions.iter().rposition(|it| it.2 == Fate::Certain).expect("the first is")
        };
        self.sectors[sectors].iter().map(last).collect()
    }

    /// Asserts that a read that was asked when these versions were certain gave a legal one of each
    /// sector.
    pub fn check(&self, first: usize, certain: &[usize], data: &[u8]) {
        assert_eq!(data.len(), certain.len() * SECTOR);
        let mut expected = [0; SECTOR];
        for (index, (data, &known)) in data.chunks_exact(SECTOR).zip(certain).enumerate() {
            let sector = first + index;
            let found = self.legal(sector, known).any(|version| {
                fill(version, sector, &mut expected);
                data == expected
            });
            assert!(
                found,
                "sector {sector} is {:02x?}, and not one of {:?}",
                &data[..16],
                self.legal(sector, known).collect::<Vec<_>>()
            );
        }
    }

    /// Asserts that each sector holds some version that it ever had.
    pub fn check_any(&self, first: usize, data: &[u8]) {
        let mut expected = [0; SECTOR];
        for (index, data) in data.chunks_exact(SECTOR).enumerate() {
            let sector = first + index;
            let found = self.sectors[sector].iter().any(|&(version, ..)| {
                fill(version, sector, &mut expected);
                data == expected
            });
            assert!(found, "sector {sector} is {:02x?}, which nobody wrote", &data[..16]);
        }
    }
}
