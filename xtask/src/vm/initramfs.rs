//! What the guest boots from: busybox, the tools with their libraries, modules, our programs.

use super::cpio::Archive;
use super::modules;
use super::packages::{Kernel, Packages, remake};
use crate::command::{cargo_command, output};
use crate::root;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages whose programs and tests run in the guest.
const PACKAGES: [&str; 3] = ["forebay-daemon", "forebay-cli", "forebay-host"];
/// Programs that are built and run in the guest; this one is what scenarios are made of.
const OURS: [&str; 2] = ["forebayd", "forebay"];
/// The unit tests of the crate with the system calls: some need what only the guest has.
pub const HOST_TESTS: &str = "forebay-host-tests";
/// Debian's tools, below the place where the packages were unpacked.
const TOOLS: [&str; 13] = [
    "usr/sbin/mke2fs",
    "usr/sbin/e2fsck",
    "usr/sbin/resize2fs",
    "usr/sbin/mkfs.xfs",
    "usr/sbin/xfs_repair",
    "usr/bin/fio",
    "usr/sbin/blkdiscard",
    "usr/sbin/blockdev",
    "usr/sbin/fstrim",
    "usr/sbin/losetup",
    "usr/bin/mount",
    "usr/bin/umount",
    "usr/bin/setpriv",
];
/// Where libraries lie, below the same place.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
/// Programs of busybox that no package above brings.
const APPLETS: [&str; 46] = [
    "[", "awk", "cat", "chmod", "chown", "cmp", "cp", "cttyhack", "cut", "date", "dd", "df",
    "dmesg", "echo", "env", "false", "find", "free", "grep", "head", "id", "insmod", "kill",
    "less", "ln", "ls", "lsmod", "mkdir", "mknod", "mv", "poweroff", "ps", "rm", "rmmod", "sed",
    "seq", "setsid", "sh", "sleep", "sync", "tail", "timeout", "touch", "true", "truncate", "vi",
];

/// Builds the programs that run in the guest, and returns their paths below `directory`.
///
/// They are those of `cargo nextest run --workspace`, with the assertions of debug builds, so that
/// who has run the tests builds nothing here. Debug information is taken out: it is most of them.
/// They need no more of the guest than the two libraries that every program of Rust needs.
///
/// # Errors
/// If the build fails.
pub fn build_programs(directory: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut build = cargo_command(&["test", "--no-run", "--message-format"]);
    build.arg("json-render-diagnostics");
    for package in PACKAGES {
        build.args(["-p", package]);
    }
    let messages = output(&mut build)?;
    let built: Vec<serde_json::Value> =
        messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let path = |name: &str, is_test: bool| -> Result<PathBuf> {
        let is_it = |message: &&serde_json::Value| {
            message["target"]["name"] == name && message["profile"]["test"] == is_test
        };
        let found = built.iter().filter(is_it).find_map(|message| message["executable"].as_str());
        found.map(PathBuf::from).with_context(|| format!("cargo built no {name}"))
    };
    let mut programs = vec![
        ("xtask", std::env::current_exe().context("find this program")?),
        (HOST_TESTS, path("forebay_host", true)?),
    ];
    for name in OURS {
        programs.push((name, path(name, false)?));
    }
    remake(directory)?;
    for (name, path) in &mut programs {
        let lean = directory.join(&name);
        let mut strip = Command::new("strip");
        output(strip.arg("--strip-debug").arg("-o").arg(&lean).arg(&path))?;
        *path = lean;
    }
    Ok(programs)
}

/// Writes the initramfs of a kernel to `path`. `modules` keeps unpacked modules.
///
/// # Errors
/// If a part is missing.
pub fn write(
    packages: &Packages,
    kernel: &Kernel,
    programs: &[(&str, PathBuf)],
    modules: &Path,
    path: &Path,
) -> Result<()> {
    let mut archive = Archive::create(path)?;
    for directory in ["dev", "proc", "sys", "run", "tmp", "mnt", "etc", "var/lib", "usr/bin"] {
        archive.directory(directory)?;
    }
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib")]
    {
        archive.link(link, target)?;
    }
    archive.link("usr/sbin", "bin")?;
    archive.bytes("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")?;
    archive.bytes("etc/group", b"root:x:0:\nuser:x:1000:\n")?;
    archive.link("etc/mtab", "../proc/self/mounts")?;
    archive.copy("usr/bin/busybox", &packages.tools.join("usr/bin/busybox"))?;
    for applet in APPLETS {
        archive.link(&format!("usr/bin/{applet}"), "busybox")?;
    }
    for tool in TOOLS {
        let from = packages.tools.join(tool);
        let name = from.file_name().context("tools are files")?.to_string_lossy().into_owned();
        archive.copy(&format!("usr/bin/{name}"), &from)?;
    }
    for (name, from) in libraries(packages, programs)? {
        archive.copy(&format!("usr/lib/x86_64-linux-gnu/{name}"), &from)?;
    }
    let loader = "ld-linux-x86-64.so.2";
    archive.link(&format!("usr/lib/{loader}"), &format!("x86_64-linux-gnu/{loader}"))?;
    for (name, from) in programs {
        archive.copy(&format!("usr/bin/{name}"), from)?;
    }
    let wanted = [&modules::DISKS[..], &modules::USED].concat();
    let first = modules::prepare(kernel, &wanted, modules)?;
    add_modules(&mut archive, "order", &first)?;
    for name in modules::LATER {
        let mut more = modules::prepare(kernel, &[name], modules)?;
        more.retain(|module| !first.contains(module));
        add_modules(&mut archive, name, &more)?;
    }
    archive.copy("init", &root().join("xtask/vm/init.sh"))?;
    archive.finish()
}

/// Writes the initramfs that mounts the image of a whole system, copies `payload` into it, and goes
/// on with its first process.
///
/// # Errors
/// If a part is missing.
pub fn write_for_root(
    packages: &Packages,
    kernel: &Kernel,
    payload: &Path,
    modules: &Path,
    path: &Path,
) -> Result<()> {
    let mut archive = Archive::create(path)?;
    for directory in ["dev", "proc", "sys", "usr/bin", "sysroot"] {
        archive.directory(directory)?;
    }
    archive.link("bin", "usr/bin")?;
    archive.copy("usr/bin/busybox", &packages.tools.join("usr/bin/busybox"))?;
    let disks = modules::prepare(kernel, &modules::DISKS, modules)?;
    add_modules(&mut archive, "order", &disks)?;
    archive.tree("payload", payload)?;
    archive.copy("init", &root().join("xtask/vm/init-root.sh"))?;
    archive.finish()
}

/// Adds modules, and under `list` the order in which they are loaded.
fn add_modules(archive: &mut Archive, list: &str, modules: &[PathBuf]) -> Result<()> {
    let mut order = String::new();
    for module in modules {
        let name = module.file_name().context("modules are files")?.to_string_lossy().into_owned();
        archive.copy(&format!("modules/{name}"), module)?;
        order.push_str(&name);
        order.push('\n');
    }
    archive.bytes(&format!("modules/{list}"), order.as_bytes())
}

/// All libraries that the tools and our programs need, by name, as the tools' loader finds them.
fn libraries(
    packages: &Packages,
    programs: &[(&str, PathBuf)],
) -> Result<BTreeMap<String, PathBuf>> {
    let places = LIBRARIES.map(|place| packages.tools.join(place));
    let path = places.each_ref().map(|place| place.display().to_string()).join(":");
    let loader = packages.tools.join("usr/lib64/ld-linux-x86-64.so.2");
    let mut found = BTreeMap::new();
    let tools = TOOLS.iter().map(|tool| packages.tools.join(tool));
    for tool in tools.chain(programs.iter().map(|(_, path)| path.clone())) {
        let mut list = Command::new(&loader);
        list.args(["--library-path", &path, "--list"]).arg(&tool);
        for line in output(&mut list)?.lines() {
            let Some(name) = line.split_whitespace().next() else { continue };
            let Some(name) = Path::new(name).file_name() else { continue };
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("linux-vdso") {
                continue;
            }
            // A library that names its own place is looked for in the same place of the package.
            let from = places.iter().map(|place| place.join(&name)).find(|path| path.exists());
            let from = from.with_context(|| {
                format!("{} needs {name}, which was not fetched", tool.display())
            })?;
            found.insert(name, from);
        }
    }
    ensure!(found.contains_key("libc.so.6"), "the tools name no libraries");
    Ok(found)
}
