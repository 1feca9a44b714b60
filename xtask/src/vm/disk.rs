//! Disks of the guest with a volatile cache, served to QEMU over NBD.
//!
//! What QEMU itself offers loses nothing when it is killed: its writes are in the host's page
//! cache. So the disks are kept here. A write is acknowledged when it is in the disk's volatile
//! cache; a FLUSH makes all writes that were acknowledged before it durable; FUA is not offered,
//! so that the guest's kernel sends a FLUSH for it. When the power is cut, of the writes since the
//! last FLUSH each 512-byte sector keeps its durable content, or that of any one of these writes,
//! by a seed.

mod protocol;

use anyhow::{Context, Result};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// What a write to the medium never tears.
const SECTOR: usize = 512;

/// How much of the volatile cache outlives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// Nothing: all that was not flushed is gone.
    None,
    /// Each sector keeps any of its versions.
    Sectors,
    /// Each write survives as a whole or not at all, in order.
    Writes,
    /// Everything.
    All,
}

/// The way a cut goes, from a seed.
impl Survivors {
    fn choose(seed: u64) -> Survivors {
        match seed % 4 {
            0 => Survivors::None,
            1 => Survivors::Sectors,
            2 => Survivors::Writes,
            _ => Survivors::All,
        }
    }
}

/// The content of a disk.
struct Medium {
    /// What outlives a power cut.
    durable: Vec<u8>,
    /// What the guest reads.
    current: Vec<u8>,
    /// Writes since the last flush, in order.
    pending: Vec<(usize, Vec<u8>)>,
    flushes: u64,
    /// Whether the disk has power. Without it, nothing is taken any more.
    on: bool,
}

impl Medium {
    fn write(&mut self, offset: usize, data: Vec<u8>) {
        self.current[offset..offset + data.len()].copy_from_slice(&data);
        self.pending.push((offset, data));
    }

    fn flush(&mut self) {
        for (offset, data) in self.pending.drain(..) {
            self.durable[offset..offset + data.len()].copy_from_slice(&data);
        }
        self.flushes += 1;
    }

    /// Returns how many writes were not flushed.
    fn cut(&mut self, survivors: Survivors, random: &mut Random) -> usize {
        let pending = std::mem::take(&mut self.pending);
        for (offset, data) in &pending {
            let whole = random.next().is_multiple_of(2);
            for (number, sector) in data.chunks(SECTOR).enumerate() {
                let keeps = match survivors {
                    Survivors::None => false,
                    Survivors::Sectors => random.next().is_multiple_of(2),
                    Survivors::Writes => whole,
                    Survivors::All => true,
                };
                if keeps {
                    let at = offset + number * SECTOR;
                    self.durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.current.clone_from(&self.durable);
        pending.len()
    }
}

/// A small generator of numbers (xorshift), so that a seed tells the whole cut.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// A disk of the guest.
#[derive(Clone)]
pub struct Disk {
    /// The name that the guest sees as the serial number.
    pub name: &'static str,
    socket: PathBuf,
    medium: Arc<Mutex<Medium>>,
}

impl Disk {
    /// Makes an empty disk of `bytes` and serves it on a socket in `directory`.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn serve(name: &'static str, bytes: usize, directory: &Path) -> Result<Disk> {
        let socket = directory.join(format!("{name}.sock"));
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
        let (durable, current) = (vec![0; bytes], vec![0; bytes]);
        let medium = Medium { durable, current, pending: Vec::new(), flushes: 0, on: true };
        let disk = Disk { name, socket, medium: Arc::new(Mutex::new(medium)) };
        let served = disk.clone();
        // The thread ends with the process: QEMU comes back to the same socket after a cut.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let disk = served.clone();
                thread::spawn(move || {
                    // A client that goes away, as a killed QEMU does, ends its connection.
                    let _ = protocol::serve(stream, &disk);
                });
            }
        });
        Ok(disk)
    }

    /// Where QEMU reaches it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How many flushes the guest has sent.
    pub fn flushes(&self) -> u64 {
        self.medium().flushes
    }

    /// From now on the disk takes nothing and answers nothing, so that the guest learns of no
    /// success on another disk that came after this one's end.
    pub fn power_off(&self) {
        self.medium().on = false;
    }

    /// Loses what was not flushed, and has power again. Nobody is connected. Says what happened.
    pub fn power_on(&self, seed: u64) -> String {
        let survivors = Survivors::choose(seed);
        let mut medium = self.medium();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let lost = medium.cut(survivors, &mut random);
        medium.on = true;
        format!("{}: {lost} writes not flushed, kept: {survivors:?}", self.name)
    }

    fn bytes(&self) -> u64 {
        self.medium().current.len() as u64
    }

    /// Does something with the medium, unless there is no power.
    fn with<T>(&self, deed: impl FnOnce(&mut Medium) -> T) -> Option<T> {
        let mut medium = self.medium();
        medium.on.then(|| deed(&mut medium))
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium() -> Medium {
        let (durable, current) = (vec![0; 4096], vec![0; 4096]);
        let mut medium = Medium { durable, current, pending: Vec::new(), flushes: 0, on: true };
        medium.write(0, vec![1; 1024]);
        medium.flush();
        medium.write(512, vec![2; 1024]);
        medium
    }

    #[test]
    fn a_cut_keeps_what_was_flushed_and_of_the_rest_what_it_wants() {
        for (survivors, third) in [(Survivors::None, 0), (Survivors::All, 2)] {
            let mut medium = medium();
            assert_eq!(medium.current[1024], 2);
            assert_eq!(medium.cut(survivors, &mut Random(1)), 1);
            assert_eq!(medium.durable[..512], [1; 512], "flushed and not written since");
            assert_eq!(medium.durable[1024], third);
            assert_eq!(medium.current, medium.durable);
        }
    }

    #[test]
    fn sectors_are_torn_from_each_other_but_not_in_themselves() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 1..200_u64 {
            let mut medium = medium();
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            medium.cut(Survivors::Sectors, &mut random);
            let sectors = [&medium.durable[512..1024], &medium.durable[1024..1536]];
            seen.insert(sectors.map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
                sector[0]
            }));
        }
        assert_eq!(seen.len(), 4, "both, either, none");
    }

    #[test]
    fn without_power_nothing_is_taken() {
        let directory = std::env::temp_dir().join(format!("forebay-disk-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let disk = Disk::serve("pool", 4096, &directory).unwrap();
        assert!(disk.with(|medium| medium.write(0, vec![1; 512])).is_some());
        disk.power_off();
        assert!(disk.with(Medium::flush).is_none());
        disk.power_on(0);
        assert_eq!(disk.with(|medium| medium.current[0]), Some(0));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
