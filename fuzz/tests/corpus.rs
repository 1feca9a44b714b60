//! Every run of the tests replays the corpus, and tries some mutations of it that are the same in
//! every run. A finding of a guided run becomes a file of the corpus.

use forebay_fuzz::{Random, find};
use std::path::Path;

/// The corpus of a target, by file name.
fn files(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = folder.read_dir().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// Says which input it was if the test fails within.
struct Told<'a>(&'a str, &'a [u8]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{}: {hex}", self.0);
        }
    }
}

fn replay(name: &str) {
    let target = find(name).unwrap();
    let corpus = files(name);
    for (file, bytes) in &corpus {
        let _told = Told(file, bytes);
        (target.run)(bytes);
    }
    let mut random = Random(1);
    for number in 0..target.mutations {
        let (_, start) = &corpus[random.below(corpus.len())];
        let (_, other) = &corpus[random.below(corpus.len())];
        let mut bytes = start.clone();
        random.mutate(&mut bytes, other, target.bytes_max);
        let told = format!("mutation {number}");
        let _told = Told(&told, &bytes);
        (target.run)(&bytes);
    }
}

#[test]
fn formats() {
    replay("formats");
}

#[test]
fn image() {
    replay("image");
}

#[test]
fn tiers() {
    replay("tiers");
}

#[test]
fn handshake() {
    replay("handshake");
}

#[test]
fn transmission() {
    replay("transmission");
}

#[test]
fn guest() {
    replay("guest");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn control() {
    replay("control");
}

#[test]
fn events() {
    replay("events");
}
