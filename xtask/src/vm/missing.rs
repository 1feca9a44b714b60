//! What this machine lacks, so that scenarios cannot run though nothing is wrong with them.

use crate::command::{exists, output};
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};
use thiserror::Error;

/// Why scenarios cannot run here.
#[derive(Debug, Error)]
pub enum Missing {
    /// A package of this machine brings it.
    #[error("{0} is missing: install {1}")]
    Program(&'static str, &'static str),
    /// Nothing that could be installed would help.
    #[error("{0}")]
    Network(String),
    /// As [`Missing::Network`].
    #[error("{0}")]
    Right(String),
}

/// Whether an error says no more than that scenarios cannot run here. What could be installed is
/// an error all the same where everything is to be there.
pub fn is_skip(error: &anyhow::Error) -> bool {
    let required = std::env::var_os("FOREBAY_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    match error.downcast_ref::<Missing>() {
        Some(Missing::Program(..)) => !required,
        Some(Missing::Network(_) | Missing::Right(_)) => true,
        None => false,
    }
}

/// Looks for programs, each with the package that brings it.
///
/// # Errors
/// The first that is missing.
pub fn need(programs: &[(&'static str, &'static str)]) -> Result<()> {
    for (program, package) in programs {
        if !exists(program, &["--version"]) {
            return Err(Missing::Program(program, package).into());
        }
    }
    Ok(())
}

/// Looks whether this process may make a system in a folder: that takes mounts of its own.
///
/// # Errors
/// It may not.
pub fn need_mounts() -> Result<()> {
    let may = |arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(arguments).arg("true").stdin(Stdio::null()).stderr(Stdio::null());
        unshare.status().is_ok_and(|status| status.success())
    };
    if may(&["--mount"]) {
        return Ok(());
    }
    if may(&["--user", "--map-root-user", "--mount"]) {
        let there = Path::new("/usr/bin/newuidmap").exists();
        return if there { Ok(()) } else { Err(Missing::Program("newuidmap", "uidmap").into()) };
    }
    let text = "this user may not mount: that takes root or user namespaces";
    Err(Missing::Right(text.to_string()).into())
}

/// The glibc of this machine, if it is newer than this one: what is linked to it may not run with
/// the older. Where it cannot be asked it counts as old enough.
pub fn newer_libc(than: (u32, u32)) -> Option<String> {
    let text = output(Command::new("getconf").arg("GNU_LIBC_VERSION")).ok()?;
    is_newer(&text, than).then(|| text.trim().to_string())
}

/// Whether `glibc 2.36` is newer.
fn is_newer(version: &str, than: (u32, u32)) -> bool {
    let numbers = version.rsplit(' ').next().and_then(|word| word.trim().split_once('.'));
    let parsed =
        numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.is_some_and(|version: (u32, u32)| version > than)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn what_a_machine_lacks_is_told_from_what_went_wrong() {
        let network = anyhow::Error::from(Missing::Network("no mirror".into()));
        assert!(is_skip(&network.context("fetch").context("prepare")));
        assert!(!is_skip(&anyhow!("no mirror")));
        let program = need(&[("forebay-no-such-program", "nothing")]).unwrap_err();
        assert_eq!(program.to_string(), "forebay-no-such-program is missing: install nothing");
        assert!(need(&[("cargo", "cargo")]).is_ok());
    }

    #[test]
    fn a_newer_glibc_is_known() {
        assert!(is_newer("glibc 2.41\n", (2, 36)));
        assert!(!is_newer("glibc 2.36\n", (2, 36)));
        assert!(!is_newer("", (2, 36)));
    }
}
