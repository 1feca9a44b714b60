//! What worlds do, as a list of hashes: a change that only moves code leaves it as it was.

use crate::Options;
use crate::run_seed;
use crate::swarm::bend::{BENDS, Bend};
use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

const HEAD: &str = "\
# Hashes over all events of the worlds of these seeds. A change that only moves code leaves them as
# they are; one that changes what the engine or a world does writes them anew, and its commit says
# why: forebay-sim --hashes crates/sim/seeds/hashes.txt --write
";

/// Seeds of one line.
const GROUP: u64 = 50;

/// The worlds of the list: a bend, or none, and seeds.
fn groups() -> impl Iterator<Item = (Option<Bend>, Range<u64>)> {
    let bends = BENDS.iter().map(|&(_, bend)| Some(bend));
    std::iter::once(None).chain(bends).flat_map(|bend| {
        let (end, group) = match bend {
            None => (2_000, GROUP),
            Some(bend) if bend.is_large() => (20, 5),
            Some(_) => (500, GROUP),
        };
        (0..end / group).map(move |n| (bend, n * group..(n + 1) * group))
    })
}

fn line_of(bend: Option<Bend>, seeds: Range<u64>) -> String {
    let name = bend.map_or("swarm", Bend::name);
    let options = Options { bend, ..Options::default() };
    // FNV-1a over the hashes of the worlds.
    let hash = seeds.clone().fold(0xcbf2_9ce4_8422_2325_u64, |hash, seed| {
        (hash ^ run_seed(seed, options).hash).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{name} {}..{} {hash:016x}", seeds.start, seeds.end)
}

/// The list as the engine makes it today, with so many threads; `first`: of each kind of worlds
/// only the first line.
pub fn list(jobs: u64, first: bool) -> String {
    let groups: Vec<_> = groups().filter(|(_, seeds)| !first || seeds.start == 0).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut lines = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((bend, seeds)) = groups.get(at).cloned() else { return lines };
            lines.push((at, line_of(bend, seeds)));
        }
    };
    let mut lines: Vec<(usize, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    lines.sort();
    let mut text = HEAD.to_owned();
    for (_, line) in lines {
        writeln!(text, "{line}").expect("memory");
    }
    text
}

/// The lines of `found` that `listed` does not have.
pub fn differ<'a>(listed: &str, found: &'a str) -> Vec<&'a str> {
    found.lines().filter(|line| !listed.lines().any(|it| it == *line)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_that_is_not_listed_differs() {
        assert_eq!(super::differ("swarm 0..50 1\nbrief 0..50 2\n", "swarm 0..50 1\n"), [""; 0]);
        assert_eq!(super::differ("swarm 0..50 1\n", "swarm 0..50 3\n"), ["swarm 0..50 3"]);
    }
}
