//! Modules of a kernel, each after those that it needs.

use super::packages::Kernel;
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a machine needs to find its disks. What is built into a kernel has no file there.
pub const DISKS: [&str; 3] = ["virtio_blk", "ext4", "crc32c_generic"];
/// What the scenarios use beside.
pub const USED: [&str; 5] = ["xfs", "loop", "fuse", "nbd", "ublk_drv"];
/// What one scenario loads itself, as it takes a second at each boot.
pub const LATER: [&str; 1] = ["raid456"];
/// What says which modules there are, beside the modules.
const LISTS: [&str; 3] = ["modules.order", "modules.builtin", "modules.builtin.modinfo"];

/// Unpacks modules into `directory`, unless they are there, and returns them in the order in which
/// they are to be loaded.
///
/// # Errors
/// If a module cannot be read or unpacked.
pub fn prepare(kernel: &Kernel, wanted: &[&str], directory: &Path) -> Result<Vec<PathBuf>> {
    let files = find(&kernel.modules())?;
    fs::create_dir_all(directory)?;
    let mut order = Vec::new();
    for name in wanted {
        add(name, &files, directory, &mut order)?;
    }
    ensure!(!order.is_empty(), "no modules below {}", kernel.modules().display());
    Ok(order)
}

/// Copies modules, packed as they are, to the place below `target` where modprobe looks for them.
///
/// # Errors
/// If a file cannot be copied.
pub fn install(kernel: &Kernel, wanted: &[&str], directory: &Path, target: &Path) -> Result<()> {
    let (from, files) = (kernel.modules(), find(&kernel.modules())?);
    let to = target.join("usr/lib/modules").join(&kernel.release);
    fs::create_dir_all(&to)?;
    for list in LISTS.iter().filter(|list| from.join(list).exists()) {
        fs::copy(from.join(list), to.join(list))?;
    }
    for module in prepare(kernel, wanted, directory)? {
        let name = module.file_stem().context("modules are files")?.to_string_lossy().into_owned();
        let file = files.get(&name).with_context(|| format!("no module {name}"))?;
        let place = to.join(file.strip_prefix(&from)?);
        fs::create_dir_all(place.parent().context("a file lies in a directory")?)?;
        fs::copy(file, &place).with_context(|| format!("copy {}", file.display()))?;
    }
    Ok(())
}

fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    directory: &Path,
    order: &mut Vec<PathBuf>,
) -> Result<()> {
    let path = directory.join(format!("{name}.ko"));
    let Some(file) = files.get(name).filter(|_| !order.contains(&path)) else { return Ok(()) };
    if !path.exists() {
        let partial = path.with_extension("partial");
        let target = fs::File::create(&partial)?;
        let mut unpack = Command::new("xz");
        unpack.arg("-dc").arg(file).stdout(target);
        let status = unpack.status().context("start xz; install xz-utils")?;
        ensure!(status.success(), "xz cannot unpack {}", file.display());
        fs::rename(&partial, &path)?;
    }
    for needed in needs(&fs::read(&path)?) {
        add(&needed, files, directory, order)?;
    }
    order.push(path);
    Ok(())
}

/// All module files below `root` by the names that other modules use for them.
fn find(root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let list = output(Command::new("find").arg(root).args(["-name", "*.ko.xz"]))?;
    let name = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_suffix(".ko.xz")?;
        Some(name.replace('-', "_"))
    };
    let paths = list.lines().map(PathBuf::from);
    Ok(paths.filter_map(|path| Some((name(&path)?, path))).collect())
}

/// The `depends=` line of a module's information: names with commas between them.
fn needs(module: &[u8]) -> Vec<String> {
    let mark = b"\0depends=";
    let Some(at) = module.windows(mark.len()).position(|window| window == mark) else {
        return Vec::new();
    };
    let rest = &module[at + mark.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let list = String::from_utf8_lossy(&rest[..end]).into_owned();
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::needs;

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"\x7fELF..license=GPL\0depends=libcrc32c,jbd2,crc16\0intree=Y\0";
        assert_eq!(needs(module), ["libcrc32c", "jbd2", "crc16"]);
        assert!(needs(b"..\0depends=\0intree=Y\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }
}
