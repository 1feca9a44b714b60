//! Modules of a kernel, each after those that it needs.

use super::packages::Kernel;
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the scenarios use. One that is built into a kernel has no file there.
const WANTED: [&str; 8] =
    ["virtio_blk", "ext4", "xfs", "crc32c_generic", "loop", "fuse", "nbd", "ublk_drv"];

/// Unpacks the wanted modules into `directory`, unless they are there, and returns them in the
/// order in which they are to be loaded.
///
/// # Errors
/// If a module cannot be read or unpacked.
pub fn prepare(kernel: &Kernel, directory: &Path) -> Result<Vec<PathBuf>> {
    let files = find(&kernel.modules())?;
    fs::create_dir_all(directory)?;
    let mut order = Vec::new();
    for name in WANTED {
        add(name, &files, directory, &mut order)?;
    }
    ensure!(!order.is_empty(), "no modules below {}", kernel.modules().display());
    Ok(order)
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
