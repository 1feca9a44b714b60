//! `cargo xtask install`: the files of an installation, below a directory that a package is made
//! of, or on this machine.

use crate::command::{cargo, release_binary};
use crate::root;
use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs, below the target directory.
pub const PROGRAMS: [&str; 2] = ["forebay", "forebayd"];
/// What comes from `packaging/`, and where it goes.
const FILES: [(&str, &str); 2] = [
    ("forebayd.service", "usr/lib/systemd/system/forebayd.service"),
    ("61-forebay.rules", "usr/lib/udev/rules.d/61-forebay.rules"),
];
/// An administrator's file: one that is there stays.
const CONFIG: (&str, &str) = ("forebay.toml", "etc/forebay/forebay.toml");
/// The generator is the command line by another name, because both have to read little and start
/// fast, and one program less is one less to keep in step.
const GENERATOR: (&str, &str) =
    ("usr/lib/systemd/system-generators/forebay-generator", "../../../bin/forebay");
/// Shells, and where their completions go.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/forebay"),
    ("zsh", "usr/share/zsh/site-functions/_forebay"),
    ("fish", "usr/share/fish/vendor_completions.d/forebay.fish"),
];

/// Builds and installs.
///
/// # Errors
/// If the build fails or a file cannot be written.
pub fn run(destdir: &Path) -> Result<()> {
    cargo(&["build", "--release", "-p", "forebay-daemon", "-p", "forebay-cli"])?;
    let programs = PROGRAMS.map(|name| release_binary(name).map(|path| (name, path)));
    let programs: Vec<(&str, PathBuf)> = programs.into_iter().collect::<Result<_>>()?;
    put(&programs, destdir)?;
    println!("installed below {}", destdir.display());
    if destdir == Path::new("/") {
        println!("next: systemctl daemon-reload && udevadm control --reload");
        println!("      systemctl enable --now forebayd");
    }
    Ok(())
}

/// Puts the files below `destdir`.
///
/// # Errors
/// If a file cannot be written.
pub fn put(programs: &[(&str, PathBuf)], destdir: &Path) -> Result<()> {
    for name in PROGRAMS {
        let found = programs.iter().find(|(program, _)| *program == name);
        let (_, from) = found.with_context(|| format!("{name} was not built"))?;
        copy(from, &destdir.join("usr/bin").join(name), 0o755)?;
    }
    let packaging = root().join("packaging");
    for (from, to) in FILES {
        copy(&packaging.join(from), &destdir.join(to), 0o644)?;
    }
    let config = destdir.join(CONFIG.1);
    if !config.exists() {
        copy(&packaging.join(CONFIG.0), &config, 0o644)?;
    }
    let more = config.with_file_name("conf.d");
    fs::create_dir_all(&more).with_context(|| format!("make {}", more.display()))?;
    let generator = destdir.join(GENERATOR.0);
    above(&generator)?;
    let _ = fs::remove_file(&generator);
    symlink(GENERATOR.1, &generator).with_context(|| format!("make {}", generator.display()))?;
    for (shell, to) in COMPLETIONS {
        let mut forebay = Command::new(destdir.join("usr/bin/forebay"));
        let script = forebay.args(["completions", shell]).stdin(Stdio::null()).output()?;
        ensure!(script.status.success(), "forebay completions {shell}: {}", script.status);
        let to = destdir.join(to);
        above(&to)?;
        fs::write(&to, script.stdout).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}

fn above(path: &Path) -> Result<()> {
    let parent = path.parent().context("a file lies in a directory")?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))
}

/// A running program is replaced, not written into.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    above(to)?;
    let beside = to.with_extension("new");
    fs::copy(from, &beside)
        .and_then(|_| fs::set_permissions(&beside, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&beside, to))
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}
