//! Who may depend on whom, as `ARCHITECTURE.md` draws it; and who may use `unsafe`.

use crate::command::{cargo_command, output};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// A crate, and the crates of the workspace that it may depend on. Development dependencies are
/// free.
const EDGES: [(&str, &[&str]); 13] = [
    ("forebay-format", &[]),
    ("forebay-engine", &["forebay-format"]),
    ("forebay-tier", &["forebay-format"]),
    ("forebay-sim", &["forebay-engine", "forebay-format", "forebay-tier"]),
    ("forebay-sys", &[]),
    ("forebay-nbd", &[]),
    (
        "forebay-host",
        &["forebay-engine", "forebay-format", "forebay-nbd", "forebay-sys", "forebay-tier"],
    ),
    ("forebay-api", &["forebay-format", "forebay-sys"]),
    (
        "forebay-daemon",
        &["forebay-host", "forebay-engine", "forebay-tier", "forebay-api", "forebay-format"],
    ),
    // Of the host, the demo uses the simulated disk alone, which it measures bare.
    ("forebay-demo", &["forebay-api", "forebay-host", "forebay-nbd"]),
    ("forebay-cli", &["forebay-api", "forebay-demo", "forebay-format", "forebay-sys"]),
    (
        "forebay-fuzz",
        &[
            "forebay-api",
            "forebay-engine",
            "forebay-format",
            "forebay-host",
            "forebay-nbd",
            "forebay-tier",
        ],
    ),
    ("xtask", &["forebay-format", "forebay-nbd"]),
];

/// The one crate that talks to the kernel.
const UNSAFE: &str = "forebay-sys";
/// The one that lends it memory: a single module of it says so, see [`super::source`].
const LENDER: &str = "forebay-host";

/// Checks dependencies and the ban on `unsafe`.
///
/// # Errors
/// If cargo does not tell the dependencies.
pub fn check(root: &Path, found: &mut Vec<String>) -> Result<()> {
    let mut command = cargo_command(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&output(command.current_dir(root))?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        let dependencies: Vec<(&str, bool)> = dependencies
            .iter()
            .filter(|dependency| dependency["path"].is_string())
            .map(|d| (d["name"].as_str().unwrap_or_default(), d["kind"] == "dev"))
            .collect();
        check_edges(name, &dependencies, found);
        match name {
            UNSAFE => {}
            LENDER => check_unsafe(name, "#![deny(unsafe_code)]", package, found)?,
            _ => check_unsafe(name, "#![forbid(unsafe_code)]", package, found)?,
        }
    }
    Ok(())
}

/// `dependencies` are names, and whether they are for development only.
fn check_edges(name: &str, dependencies: &[(&str, bool)], found: &mut Vec<String>) {
    let Some((_, allowed)) = EDGES.iter().find(|edge| edge.0 == name) else {
        found.push(format!("crate {name} is new: say in xtask/src/tidy/edges.rs what it may use"));
        return;
    };
    for (dependency, _) in dependencies.iter().filter(|dependency| !dependency.1) {
        if !allowed.contains(dependency) {
            found.push(format!(
                "{name} must not depend on {dependency}: see \"Who may depend on whom\" in \
                 ARCHITECTURE.md"
            ));
        }
    }
}

fn check_unsafe(name: &str, ban: &str, package: &Value, found: &mut Vec<String>) -> Result<()> {
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let of_kind = |target: &Value, kind: &str| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
    };
    for target in targets.iter().filter(|target| of_kind(target, "lib") || of_kind(target, "bin")) {
        let path = target["src_path"].as_str().context("a target without source")?;
        let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        if !text.contains(ban) {
            let target = target["name"].as_str().unwrap_or_default();
            found.push(format!("{name}: `{ban}` is missing from {target}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, dependencies: &[(&str, bool)]) -> Vec<String> {
        let mut found = Vec::new();
        check_edges(name, dependencies, &mut found);
        found
    }

    #[test]
    fn an_edge_that_is_not_drawn_is_found() {
        assert!(found("forebay-engine", &[("forebay-format", false)]).is_empty());
        assert!(found("forebay-engine", &[("forebay-sim", true)]).is_empty());
        assert_eq!(found("forebay-engine", &[("forebay-host", false)]).len(), 1);
        assert_eq!(found("forebay-cli", &[("forebay-engine", false)]).len(), 1);
        assert_eq!(found("forebay-new", &[]).len(), 1);
    }
}
