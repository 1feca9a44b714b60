//! Debian's packages in a folder of our own: fetched by apt with a state of its own, checked
//! against Debian's archive key, unpacked without being installed. Nothing of the system is
//! changed, and no right of root is needed.

use super::missing::{Missing, need};
use crate::command::{output, run};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release whose kernel is the oldest that is tested.
pub const SUITE: &str = "trixie";
/// Where its newest kernels and a current QEMU are.
const BACKPORTS: &str = "trixie-backports";
/// What the host runs and what the guest runs, with all that it needs.
const TOOLS: [&str; 9] = [
    "qemu-system-x86",
    "qemu-utils",
    "qemu-block-extra",
    "busybox-static",
    "e2fsprogs",
    "xfsprogs",
    "mount",
    "util-linux",
    "fio",
];
/// The package that always depends on the newest kernel image.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Packages that a kernel consists of, by the start of their names.
const KERNEL_PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];
/// Programs of this machine that fetch and unpack, and their packages.
const FETCHERS: [(&str, &str); 3] =
    [("apt-get", "apt"), ("apt-cache", "apt"), ("dpkg-deb", "dpkg")];
/// Debian's own keys, as the package debian-archive-keyring installs them.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// As `--kernel` names it.
    pub name: &'static str,
    /// As `uname -r` says.
    pub release: String,
    /// Below it: the image and the modules.
    pub root: PathBuf,
}

/// What was fetched.
pub struct Packages {
    /// Below it: the unpacked tools and their libraries.
    pub tools: PathBuf,
    /// The kernels, the oldest first.
    pub kernels: Vec<Kernel>,
}

impl Packages {
    /// What the cache folder holds, or, if it is not complete or `refresh` is set, what the
    /// system's mirror has now.
    ///
    /// # Errors
    /// Says what is missing when it cannot be fetched.
    pub fn find_or_fetch(cache: &Path, refresh: bool) -> Result<Packages> {
        let wanted = format!("{SUITE} {BACKPORTS} {KERNEL} {}\n", TOOLS.join(" "));
        let mark = cache.join("complete");
        let complete = fs::read_to_string(&mark).is_ok_and(|found| found == wanted);
        if refresh || !complete {
            let _ = fs::remove_file(&mark);
            fetch(cache).with_context(|| {
                format!(
                    "fetch Debian's packages into {}: they are not all there yet, and a machine \
                     without a network needs a folder that was filled before",
                    cache.display()
                )
            })?;
            fs::write(&mark, wanted)?;
        }
        Packages::open(cache)
    }

    fn open(cache: &Path) -> Result<Packages> {
        let kernels = [("6.12", SUITE), ("newest", BACKPORTS)];
        let kernels = kernels.map(|(name, suite)| {
            let root = cache.join(format!("kernel-{suite}"));
            let release = release_of(&root)
                .with_context(|| format!("no kernel in {}: use --refresh", root.display()))?;
            Ok(Kernel { name, release, root })
        });
        let kernels = kernels.into_iter().collect::<Result<_>>()?;
        Ok(Packages { tools: cache.join("tools"), kernels })
    }

    /// A program of the unpacked tools with its own loader and libraries, ready for arguments.
    pub fn program(&self, path: &str) -> Command {
        self.program_with(path, &self.tools)
    }

    /// As [`Packages::program`], with libraries below another place too.
    pub fn program_with(&self, path: &str, more: &Path) -> Command {
        let libraries = "usr/lib/x86_64-linux-gnu";
        let (own, more) = (self.tools.join(libraries), more.join(libraries));
        let mut command = Command::new(self.tools.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(format!("{}:{}", own.display(), more.display()));
        command.arg(self.tools.join(path));
        command
    }
}

impl Kernel {
    /// The kernel's image.
    ///
    /// # Errors
    /// If there is none.
    pub fn image(&self) -> Result<PathBuf> {
        let places = [
            self.root.join("boot").join(format!("vmlinuz-{}", self.release)),
            self.modules().join("vmlinuz"),
        ];
        let found = places.into_iter().find(|path| path.is_file());
        found.with_context(|| format!("no vmlinuz below {}", self.root.display()))
    }

    /// The directory of its modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/modules").join(&self.release)
    }
}

/// The release that was unpacked into `root`.
fn release_of(root: &Path) -> Result<String> {
    let entry = fs::read_dir(root.join("usr/lib/modules"))?.next().context("no modules")??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

fn fetch(cache: &Path) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "only x86_64 has the packages that are used here");
    let apt = Apt::set_up(cache)?;
    let archives = apt.state.join("cache/archives");
    let tools = ["install", "--quiet", "--yes", "--download-only", "--no-install-recommends"];
    run(apt.command("apt-get").args(tools).args(["-t", BACKPORTS]).args(TOOLS))?;
    unpack(&archives, &cache.join("tools"))?;
    for suite in [SUITE, BACKPORTS] {
        let packages = apt.kernel_packages(suite)?;
        let directory = apt.state.join(format!("kernel-{suite}"));
        remake(&directory)?;
        run(apt
            .command("apt-get")
            .args(["download", "--quiet"])
            .args(packages)
            .current_dir(&directory))?;
        unpack(&directory, &cache.join(format!("kernel-{suite}")))?;
    }
    // The lists and the packages are not needed any more; what is left can be copied as it is.
    fs::remove_dir_all(&apt.state).with_context(|| format!("remove {}", apt.state.display()))
}

/// Unpacks all packages of a directory into a fresh `target`.
///
/// # Errors
/// There are none, or one cannot be unpacked.
pub fn unpack(archives: &Path, target: &Path) -> Result<()> {
    remake(target)?;
    let mut count = 0;
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        let mut command = Command::new("dpkg-deb");
        output(command.arg("-x").arg(&path).arg(target))?;
        count += 1;
    }
    ensure!(count > 0, "apt fetched nothing into {}", archives.display());
    eprintln!("unpacked {count} packages into {}", target.display());
    Ok(())
}

/// Makes a directory, or empties it.
///
/// # Errors
/// The system refuses.
pub fn remake(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("empty {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))
}

/// apt with a state of its own: no package counts as installed.
pub struct Apt {
    state: PathBuf,
    config: PathBuf,
}

impl Apt {
    /// Prepares it in a folder of the cache, and fetches the lists of packages.
    ///
    /// # Errors
    /// apt, Debian's keys or a mirror are missing.
    pub fn set_up(cache: &Path) -> Result<Apt> {
        need(&FETCHERS)?;
        let state = cache.join("apt");
        remake(&state)?;
        for directory in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(directory))?;
        }
        fs::write(state.join("status"), "")?;
        let keyring = keyring()?;
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {SUITE} {BACKPORTS}\nComponents: main\n\
             Signed-By: {keyring}\n",
            mirror()?
        );
        fs::write(state.join("debian.sources"), sources)?;
        let config = state.join("apt.conf");
        let place = state.display();
        let text = format!(
            "Dir::State \"{place}\";\n\
             Dir::State::lists \"{place}/lists\";\n\
             Dir::State::status \"{place}/status\";\n\
             Dir::Cache \"{place}/cache\";\n\
             Dir::Cache::archives \"{place}/cache/archives\";\n\
             Dir::Log \"{place}\";\n\
             Dir::Etc::sourcelist \"{place}/debian.sources\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferences \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\n\
             APT::Architecture \"amd64\";\n\
             APT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\n\
             Acquire::Retries \"3\";\n\
             Acquire::http::Timeout \"20\";\n\
             Acquire::https::Timeout \"20\";\n\
             #clear APT::Architectures;\n\
             #clear APT::Update::Pre-Invoke;\n\
             #clear APT::Update::Post-Invoke;\n\
             #clear APT::Update::Post-Invoke-Success;\n\
             #clear DPkg::Pre-Invoke;\n\
             #clear DPkg::Post-Invoke;\n"
        );
        fs::write(&config, text)?;
        let apt = Apt { state, config };
        // By itself apt goes on with what lists it has: with none.
        let update = ["update", "--quiet", "--error-on=any"];
        run(apt.command("apt-get").args(update)).map_err(|error| {
            Missing::Network(format!("the mirror of Debian cannot be reached: {error:#}"))
        })?;
        Ok(apt)
    }

    /// Its folder, for files that go with it.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The line of a source list for one suite.
    ///
    /// # Errors
    /// Debian's keys or a mirror are missing.
    pub fn source(&self, suite: &str) -> Result<String> {
        Ok(format!("deb [signed-by={}] {} {suite} main", keyring()?, mirror()?))
    }

    /// The configuration comes last, so that it wins over the system's; proxies stay in force.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config).env_remove("APT_CONFIG").env("LC_ALL", "C");
        command
    }

    /// The packages that make up the newest kernel of a suite, each with its version.
    fn kernel_packages(&self, suite: &str) -> Result<Vec<String>> {
        let mut wanted = vec![format!("{KERNEL}/{suite}")];
        let mut found: Vec<String> = Vec::new();
        while let Some(package) = wanted.pop() {
            let text = output(self.command("apt-cache").args(["show", &package]))?;
            let field =
                |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let version = field("Version:").with_context(|| format!("{package} has no version"))?;
            let name = field("Package:").with_context(|| format!("{package} has no name"))?;
            let exact = format!("{name}={version}");
            if found.contains(&exact) {
                continue;
            }
            found.push(exact);
            wanted.extend(kernel_parts(field("Depends:").unwrap_or_default()));
        }
        Ok(found)
    }
}

/// Those of the dependencies that are parts of the same kernel, each with its version.
fn kernel_parts(depends: &str) -> impl Iterator<Item = String> {
    depends.split(',').filter_map(|dependency| {
        let (name, version) = dependency.trim().split_once(" (= ")?;
        let part = KERNEL_PARTS.iter().any(|start| name.starts_with(start));
        part.then(|| format!("{name}={}", version.trim_end_matches(')')))
    })
}

fn keyring() -> Result<&'static str> {
    let keyring = KEYRINGS.into_iter().find(|path| Path::new(path).is_file());
    let missing = || Missing::Program("Debian's archive key", "debian-archive-keyring").into();
    keyring.ok_or_else(missing)
}

/// The mirror of Debian in the system's own sources.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("FOREBAY_VM_MIRROR") {
        return Ok(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)"]);
    let targets = output(command.arg("Created-By: Packages"))?;
    match targets.lines().map(str::trim).find(|uri| is_debian(uri)) {
        Some(uri) => Ok(uri.to_string()),
        None => Err(Missing::Network(
            "the system's apt sources name no mirror of Debian: set FOREBAY_VM_MIRROR to the \
             address of one"
                .to_string(),
        )
        .into()),
    }
}

/// Whether this is the main archive of Debian: not the security archive, not somebody else's.
fn is_debian(uri: &str) -> bool {
    let uri = uri.trim_end_matches('/');
    uri.ends_with("/debian") || uri.ends_with("/mirrors/debian.list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_told_from_others() {
        assert!(is_debian("http://mirror.example/debian/"));
        assert!(is_debian("mirror+file:/etc/apt/mirrors/debian.list"));
        assert!(!is_debian("http://mirror.example/debian-security/"));
        assert!(!is_debian("https://apt.example/node_20.x/"));
    }

    #[test]
    fn parts_of_a_kernel_are_told_from_tools() {
        let depends = "dracut | initramfs-tools (>= 0.120), linux-binary-7.3.4-amd64 (= 7.3.4-1), \
                       linux-base-7.3.4-amd64 (= 7.3.4-1), linux-modules-7.3.4-amd64 (= 7.3.4-1)";
        let parts: Vec<String> = kernel_parts(depends).collect();
        assert_eq!(
            parts,
            ["linux-binary-7.3.4-amd64=7.3.4-1", "linux-modules-7.3.4-amd64=7.3.4-1"]
        );
    }
}
