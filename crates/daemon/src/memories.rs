//! The memory of tiers: files in memory that end when nobody has them open. Whoever outlives the
//! daemon holds them, so that one that is killed or replaced finds them again as they were.

use crate::export::Holding;
use crate::lock::lock;
use forebay_host::origin::OriginError;
use forebay_host::origin::tiered::Member;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// What names of memory begin with; no name of a volume holds it.
const PREFIX: &str = "ram/";

/// A piece of memory.
struct Memory {
    file: OwnedFd,
    bytes: u64,
}

/// All memory of tiers.
pub struct Memories {
    holding: Arc<Holding>,
    all: Mutex<BTreeMap<String, Memory>>,
}

/// The name of the memory of a tier of this volume.
fn name_of(volume: &str, member: &str) -> String {
    format!("{PREFIX}{volume}/{member}")
}

impl Memories {
    /// Takes what is memory out of what an earlier daemon left.
    pub fn find(holding: &Arc<Holding>, held: &mut Vec<(String, OwnedFd)>) -> Memories {
        let is_memory = |it: &mut (String, OwnedFd)| it.0.starts_with(PREFIX);
        let all = held.extract_if(.., is_memory).map(|(name, file)| {
            let bytes = std::fs::File::from(file);
            let len = bytes.metadata().map_or(0, |it| it.len());
            (name, Memory { file: bytes.into(), bytes: len })
        });
        Memories { all: Mutex::new(all.collect()), holding: Arc::clone(holding) }
    }

    /// Keeps memory for a tier of a volume, as long as the machine lives.
    pub fn keep(&self, volume: &str, member: &str, file: OwnedFd, bytes: u64) {
        let name = name_of(volume, member);
        if let Err(error) = self.holding.put(&name, file.as_fd()) {
            tracing::warn!(volume, "its memory ends with forebayd: {error:#}");
        }
        lock(&self.all).insert(name, Memory { file, bytes });
    }

    /// Opens the memory of a tier; `None` if there is none any more.
    pub fn open(&self, volume: &str, member: &str) -> Option<Result<Member, OriginError>> {
        let all = lock(&self.all);
        all.get(&name_of(volume, member)).map(|memory| Member::of_memory(memory.file.as_fd()))
    }

    /// Whether there is the memory of a tier.
    pub fn has(&self, volume: &str, member: &str) -> bool {
        lock(&self.all).contains_key(&name_of(volume, member))
    }

    /// Lets go of the memory of a volume of whose tiers `keeps` is not true.
    pub fn let_go(&self, volume: &str, keeps: impl Fn(&str) -> bool) {
        let of = name_of(volume, "");
        let mut all = lock(&self.all);
        let over = |name: &String| name.strip_prefix(&of).is_some_and(|member| !keeps(member));
        for name in all.keys().filter(|name| over(name)).cloned().collect::<Vec<_>>() {
            all.remove(&name);
            self.holding.drop_file(&name);
        }
    }

    /// Bytes of all of it, used or not.
    pub fn bytes(&self) -> u64 {
        lock(&self.all).values().map(|memory| memory.bytes).sum()
    }

    /// Has all of this held that is to outlive the daemon, if who held it has ended.
    pub fn watch(&self, exports: &crate::export::Exports) {
        let all = lock(&self.all);
        exports.watch_holder(all.iter().map(|(name, it)| (name, it.file.as_fd())).collect());
    }
}
