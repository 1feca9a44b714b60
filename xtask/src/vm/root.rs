//! A Debian system with systemd, as a disk image: made once by mmdebstrap, which is fetched and not
//! installed, and kept in the cache folder. A guest works on a layer over it.

use super::missing::{need, need_mounts};
use super::packages::{Apt, Packages, remake, unpack};
use crate::command::run;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes the system, and what its archive is read with.
const MAKERS: [&str; 2] = ["mmdebstrap", "libarchive13t64"];
/// What the system has beside the least.
const INCLUDED: &str = "systemd,systemd-sysv,udev,dbus,kmod,e2fsprogs,mount,util-linux,fio,procps";
/// What nobody reads in there.
const LEFT_OUT: [&str; 4] =
    ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"];
const IMAGE_MIB: u32 = 640;

/// Where the image of a release is in the cache folder.
pub fn image(cache: &Path, suite: &str) -> PathBuf {
    cache.join(format!("root-{suite}.ext4"))
}

/// The image of a release in the cache folder, made if it is not there.
///
/// # Errors
/// It cannot be made: what is missing on this machine is named.
pub fn find_or_make(cache: &Path, packages: &Packages, suite: &str, refresh: bool) -> Result<()> {
    let wanted = format!("{suite} {INCLUDED} {} {IMAGE_MIB}\n", LEFT_OUT.join(" "));
    let (image, mark) = (image(cache, suite), cache.join(format!("root-{suite}-complete")));
    let complete = fs::read_to_string(&mark).is_ok_and(|found| found == wanted) && image.exists();
    if refresh || !complete {
        let _ = fs::remove_file(&mark);
        make(cache, packages, suite, &image).with_context(|| {
            format!(
                "make a Debian system in {}: it takes perl, python3, apt and dpkg of this \
                 machine, a network, and root or user namespaces",
                cache.display()
            )
        })?;
        fs::write(&mark, wanted)?;
    }
    Ok(())
}

fn make(cache: &Path, packages: &Packages, suite: &str, image: &Path) -> Result<()> {
    need(&[("perl", "perl"), ("python3", "python3")])?;
    need_mounts()?;
    let apt = Apt::set_up(cache)?;
    let directory = apt.state().join("makers");
    remake(&directory)?;
    run(apt.command("apt-get").args(["download", "--quiet"]).args(MAKERS).current_dir(&directory))?;
    let makers = cache.join("root-makers");
    unpack(&directory, &makers)?;
    let archive = apt.state().join("root.tar");
    let mut debian = Command::new("perl");
    debian.arg(makers.join("usr/bin/mmdebstrap"));
    debian.args(["--quiet", "--variant=minbase", "--architectures=amd64"]);
    debian.arg(format!("--include={INCLUDED}")).args(["--aptopt", "Acquire::Languages \"none\""]);
    for path in LEFT_OUT {
        debian.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    debian.arg(suite).arg(&archive).arg(apt.source(suite)?);
    // It starts its own filter of paths, which is beside it, by name.
    let path = std::env::var("PATH").unwrap_or_default();
    debian.env("PATH", format!("{}:{path}", makers.join("usr/bin").display()));
    run(debian.env_remove("APT_CONFIG").env("LC_ALL", "C"))?;
    let partial = image.with_extension("partial");
    let mut format = packages.program_with("usr/sbin/mke2fs", &makers);
    format.args(["-q", "-F", "-t", "ext4", "-L", "root", "-d"]).arg(&archive).arg(&partial);
    run(format.arg(format!("{IMAGE_MIB}M")))?;
    fs::rename(&partial, image)?;
    fs::remove_dir_all(apt.state()).context("remove apt's state")
}

/// A layer over the image in which one scenario's writes go.
///
/// # Errors
/// `qemu-img` fails.
pub fn layer(packages: &Packages, image: &Path, directory: &Path) -> Result<PathBuf> {
    let layer = directory.join("root.qcow2");
    let mut make = packages.program("usr/bin/qemu-img");
    make.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(image).arg(&layer);
    let status = make.status().context("start qemu-img")?;
    ensure!(status.success(), "qemu-img cannot make {}: {status}", layer.display());
    Ok(layer)
}
