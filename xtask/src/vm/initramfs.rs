//! What the guest boots from: busybox, the tools with their libraries, modules, our programs.

use super::cpio::Archive;
use super::modules;
use super::packages::{Kernel, Packages};
use crate::command::{cargo_command, output, run};
use crate::root;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target that is built for: naming it keeps the static flag off build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Packages whose programs run in the guest. The last one is what scenarios are made of.
const OURS: [(&str, &str); 3] =
    [("forebay-daemon", "forebayd"), ("forebay-cli", "forebay"), ("xtask", "xtask")];
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

/// Builds the programs that run in the guest: linked statically, so that the guest's libraries do
/// not matter; with assertions of debug builds; without debug information. Returns their paths.
///
/// # Errors
/// If the build fails.
pub fn build_programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut build = cargo_command(&["build", "--target", TARGET]);
    for (package, _) in OURS {
        build.args(["-p", package]);
    }
    run(with_static_flags(&mut build))?;
    let mut tests = cargo_command(&["test", "--target", TARGET, "--no-run", "--lib"]);
    tests.args(["-p", "forebay-host", "--message-format", "json"]);
    let messages = output(with_static_flags(&mut tests))?;
    let mut messages =
        messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let tests = messages
        .find(|message| message["profile"]["test"] == true && message["executable"].is_string())
        .context("cargo built no tests of the host")?;
    let tests = PathBuf::from(tests["executable"].as_str().expect("seen to be a string"));
    let metadata = output(&mut cargo_command(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let target = metadata["target_directory"].as_str().context("cargo names no directory")?;
    let directory = Path::new(target).join(TARGET).join("debug");
    let mut programs: Vec<_> = OURS.map(|(_, program)| (program, directory.join(program))).into();
    programs.push((HOST_TESTS, tests));
    Ok(programs)
}

fn with_static_flags(command: &mut Command) -> &mut Command {
    command
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
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
    for (name, from) in libraries(packages)? {
        archive.copy(&format!("usr/lib/x86_64-linux-gnu/{name}"), &from)?;
    }
    let loader = "ld-linux-x86-64.so.2";
    archive.link(&format!("usr/lib/{loader}"), &format!("x86_64-linux-gnu/{loader}"))?;
    for (name, from) in programs {
        archive.copy(&format!("usr/bin/{name}"), from)?;
    }
    add_modules(&mut archive, kernel, modules)?;
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
    add_modules(&mut archive, kernel, modules)?;
    archive.tree("payload", payload)?;
    archive.copy("init", &root().join("xtask/vm/init-root.sh"))?;
    archive.finish()
}

/// Adds modules and the order in which they are loaded.
fn add_modules(archive: &mut Archive, kernel: &Kernel, modules: &Path) -> Result<()> {
    let mut order = String::new();
    for module in modules::prepare(kernel, modules)? {
        let name = module.file_name().context("modules are files")?.to_string_lossy().into_owned();
        archive.copy(&format!("modules/{name}"), &module)?;
        order.push_str(&name);
        order.push('\n');
    }
    archive.bytes("modules/order", order.as_bytes())
}

/// All libraries that the tools need, by name, as their own loader finds them.
fn libraries(packages: &Packages) -> Result<BTreeMap<String, PathBuf>> {
    let places = LIBRARIES.map(|place| packages.tools.join(place));
    let path = places.each_ref().map(|place| place.display().to_string()).join(":");
    let loader = packages.tools.join("usr/lib64/ld-linux-x86-64.so.2");
    let mut found = BTreeMap::new();
    for tool in TOOLS {
        let mut list = Command::new(&loader);
        list.args(["--library-path", &path, "--list"]).arg(packages.tools.join(tool));
        for line in output(&mut list)?.lines() {
            let Some(name) = line.split_whitespace().next() else { continue };
            let Some(name) = Path::new(name).file_name() else { continue };
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("linux-vdso") {
                continue;
            }
            // A library that names its own place is looked for in the same place of the package.
            let from = places.iter().map(|place| place.join(&name)).find(|path| path.exists());
            let from =
                from.with_context(|| format!("{tool} needs {name}, which was not fetched"))?;
            found.insert(name, from);
        }
    }
    ensure!(found.contains_key("libc.so.6"), "the tools name no libraries");
    Ok(found)
}
