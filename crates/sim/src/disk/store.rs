//! Bytes of a simulated disk, kept in pages that exist once they were written.

use crate::content;
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, SECTORS_PER_BLOCK};

/// What a disk holds where nothing was ever written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blank {
    /// Zeros.
    Zero,
    /// Version 0 of this origin.
    Origin(usize),
}

/// Sectors, by number.
#[derive(Clone)]
pub struct Store {
    pages: Vec<Option<Box<[u8; BLOCK_SIZE]>>>,
    blank: Blank,
    sectors: u64,
}

impl Store {
    /// A store of `sectors` sectors that holds what `blank` says.
    pub fn new(sectors: u64, blank: Blank) -> Store {
        let count = sectors.div_ceil(SECTORS_PER_BLOCK as u64) as usize;
        Store { pages: vec![None; count], blank, sectors }
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Copies sectors from `first` on into `out`, whose length tells how many.
    pub fn read(&self, first: u64, out: &mut [u8]) {
        for (sector, bytes) in (first..).zip(out.chunks_exact_mut(SECTOR_SIZE)) {
            self.read_one(sector, bytes);
        }
    }

    fn read_one(&self, sector: u64, out: &mut [u8]) {
        assert!(sector < self.sectors);
        let (page, at) = place(sector);
        match (&self.pages[page], self.blank) {
            (Some(page), _) => out.copy_from_slice(&page[at..at + SECTOR_SIZE]),
            (None, Blank::Zero) => out.fill(0),
            (None, Blank::Origin(disk)) => content::fill(out, disk, sector, 0),
        }
    }

    /// Replaces sectors from `first` on by `data`.
    pub fn write(&mut self, first: u64, data: &[u8]) {
        for (sector, bytes) in (first..).zip(data.chunks_exact(SECTOR_SIZE)) {
            assert!(sector < self.sectors);
            let (page, at) = place(sector);
            self.page(page)[at..at + SECTOR_SIZE].copy_from_slice(bytes);
        }
    }

    /// Whether anything was ever written to the page of this sector.
    pub fn written(&self, sector: u64) -> bool {
        self.pages[place(sector).0].is_some()
    }

    fn page(&mut self, index: usize) -> &mut [u8; BLOCK_SIZE] {
        let blank = self.blank;
        self.pages[index].get_or_insert_with(|| {
            let mut page = Box::new([0; BLOCK_SIZE]);
            if let Blank::Origin(disk) = blank {
                let first = (index * SECTORS_PER_BLOCK) as u64;
                for (sector, bytes) in (first..).zip(page.chunks_exact_mut(SECTOR_SIZE)) {
                    content::fill(bytes, disk, sector, 0);
                }
            }
            page
        })
    }
}

fn place(sector: u64) -> (usize, usize) {
    let per_page = SECTORS_PER_BLOCK as u64;
    ((sector / per_page) as usize, (sector % per_page) as usize * SECTOR_SIZE)
}
