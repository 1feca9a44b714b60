//! `cargo xtask tidy`: house rules that neither the compiler nor clippy knows.

mod coupling;
mod documents;
mod edges;
mod ratchet;
mod source;
mod syntax;
mod variants;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Directories that hold nothing of ours.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// A file of the tree.
pub struct File {
    /// Path from the root, with `/`.
    pub path: String,
    /// The content; empty if it is no text.
    pub text: String,
}

/// Checks the tree at `root`. With `shrink`, lowers the numbers in the list of exceptions first.
///
/// # Errors
/// All that was found, one line each.
pub fn run(root: &Path, shrink: bool) -> Result<()> {
    let files = read_tree(root)?;
    let mut found = Vec::new();
    edges::check(root, &mut found)?;
    source::check(&files, &mut found);
    documents::check(&files, &mut found);
    let sources = syntax::parse(&files, &mut found);
    variants::check(&sources, &mut found);
    let excesses = coupling::measure(&sources, &mut found);
    ratchet::check(root, &files, &excesses, shrink, &mut found)?;
    if found.is_empty() {
        println!("tidy: {} files, nothing to complain about", files.len());
        return Ok(());
    }
    for line in &found {
        eprintln!("tidy: {line}");
    }
    bail!("{} house rules broken", found.len())
}

/// Reads all files below `root`.
fn read_tree(root: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut directories: Vec<PathBuf> = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(&directory)
            .with_context(|| format!("read directory {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                let bytes = std::fs::read(entry.path())
                    .with_context(|| format!("read {}", entry.path().display()))?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                let path = entry.path();
                let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
