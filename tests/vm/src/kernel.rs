//! A Debian kernel for virtual machines: found by pattern, downloaded and unpacked, but not
//! installed.
//!
//! apt-get uses private lists and a private cache, so that the sources of this machine stay as they
//! are. An unpacked kernel is used from then on without the network; `renew` asks again.

use crate::cache::Cache;
use crate::command::{find, run, run_in};
use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Error, Result};

const PREFIX: &str = "linux-image-6.12.";
const SUITE: &str = "bookworm-backports";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A flavour of Debian's kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    /// The kernel for virtual machines: a fifth of the size, and faster to boot.
    #[default]
    Cloud,
    /// The kernel for all machines, with zswap, which the other lacks.
    Full,
}

impl Flavour {
    /// Suffix of the names of its packages.
    fn suffix(self) -> &'static str {
        match self {
            Self::Cloud => "-cloud-amd64-unsigned",
            Self::Full => "-amd64-unsigned",
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    directory: PathBuf,
    release: String,
}

impl Kernel {
    /// The newest unpacked kernel; if there is none, or with `renew`, the newest in Debian's
    /// archive.
    ///
    /// # Errors
    /// No kernel is unpacked, and none can be downloaded.
    pub fn open(cache: &Cache, flavour: Flavour, renew: bool) -> Result<Self> {
        if !renew && let Some(name) = newest(cache.names(PREFIX), flavour) {
            return Self::unpacked(cache.path(&name));
        }
        let apt = Apt::new(cache)?;
        let name = apt.newest(flavour)?;
        Self::unpacked(cache.get(&name, |path| apt.unpack(&name, path))?)
    }

    fn unpacked(directory: PathBuf) -> Result<Self> {
        let modules = directory.join("lib/modules");
        let release = fs::read_dir(&modules).ok().and_then(|mut entries| entries.next()?.ok());
        let release = release
            .ok_or_else(|| Error::failure(format!("there is nothing in {}", modules.display())))?;
        let release = release.file_name().to_string_lossy().into_owned();
        Ok(Self { directory, release })
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The path of the compressed kernel.
    pub fn vmlinuz(&self) -> PathBuf {
        self.directory.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The directory of its modules, with their dependencies in `modules.dep`.
    pub fn modules(&self) -> PathBuf {
        self.directory.join("lib/modules").join(&self.release)
    }

    /// Files of a module and of its dependencies, in load order, below [`Self::modules`]. Empty if
    /// the module is built in.
    ///
    /// # Errors
    /// The kernel has no such module.
    pub fn needed_by(&self, module: &str) -> Result<Vec<String>> {
        let read = |name: &str| {
            let path = self.modules().join(name);
            fs::read_to_string(&path).context(format_args!("cannot read {}", path.display()))
        };
        let named = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.split('.').next().unwrap_or_default().replace('-', "_")
        };
        let wanted = module.replace('-', "_");
        for line in read("modules.dep")?.lines() {
            let Some((file, needs)) = line.split_once(':') else { continue };
            if named(file) == wanted {
                let needs = needs.split_whitespace().rev().map(str::to_owned);
                return Ok(needs.chain([file.to_owned()]).collect());
            }
        }
        if read("modules.builtin")?.lines().any(|line| named(line) == wanted) {
            return Ok(Vec::new());
        }
        Err(Error::failure(format!("the kernel {} has no module {module}", self.release)))
    }
}

/// The mirror of Debian's packages.
pub(crate) fn mirror() -> String {
    std::env::var("ZTIER_VM_MIRROR").unwrap_or_else(|_| "http://deb.debian.org/debian".to_owned())
}

/// apt-get with private lists and packages.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Cache) -> Result<Self> {
        for program in ["apt-get", "apt-cache", "dpkg-deb", "xz", "depmod"] {
            if find(program).is_none() {
                return Err(Error::failure(format!("no {program}, and no kernel unpacked")));
            }
        }
        let home = cache.path("apt");
        fs::create_dir_all(home.join("lists/partial")).context("cannot make apt's directory")?;
        fs::create_dir_all(home.join("cache/archives/partial")).context("cannot make another")?;
        let mirror = mirror();
        let keys =
            if Path::new(KEYS).exists() { format!(" signed-by={KEYS}") } else { String::new() };
        let source = home.join("sources.list");
        fs::write(&source, format!("deb [arch=amd64{keys}] {mirror} {SUITE} main\n"))
            .context("cannot write apt's sources")?;
        let option = |key: &str, value: &Path| format!("-o{key}={}", value.display());
        let options = vec![
            option("Dir::Etc::sourcelist", &source),
            option("Dir::Etc::sourceparts", Path::new("/nonexistent")),
            option("Dir::State::lists", &home.join("lists")),
            option("Dir::Cache", &home.join("cache")),
            // Another user could not access this directory.
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oAcquire::Retries=2".to_owned(),
        ];
        Ok(Self { options })
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.options.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    fn newest(&self, flavour: Flavour) -> Result<String> {
        run(180, "apt-get", &self.args(&["-qq", "update"]))?;
        let names = run(60, "apt-cache", &self.args(&["pkgnames", PREFIX]))?;
        newest(names.lines().map(str::to_owned), flavour).ok_or_else(|| {
            let suffix = flavour.suffix();
            Error::failure(format!("{SUITE} has no package {PREFIX}*{suffix} any more"))
        })
    }

    fn unpack(&self, name: &str, path: &Path) -> Result<()> {
        let work = path.parent().unwrap_or(path);
        run_in(work, 600, "apt-get", &self.args(&["-qq", "download", name]))?;
        let package = fs::read_dir(work)
            .context("cannot look for the package")?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| Error::failure(format!("apt-get downloaded no {name}")))?;
        let (package, path) = (package.to_string_lossy(), path.to_string_lossy());
        run(120, "dpkg-deb", &["-x", &package, &path])?;
        make_loadable(Path::new(path.as_ref()))
    }
}

/// Decompresses modules, and lists their dependencies.
fn make_loadable(directory: &Path) -> Result<()> {
    let kernel = Kernel::unpacked(directory.to_owned())?;
    let modules = kernel.modules().to_string_lossy().into_owned();
    run(300, "find", &[&modules, "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"])?;
    let base = directory.to_string_lossy();
    run(120, "depmod", &["-b", &base, kernel.release()]).map(drop)
}

/// The newest kernel package of this flavour.
fn newest(names: impl IntoIterator<Item = String>, flavour: Flavour) -> Option<String> {
    // The first number is the patch level; Debian's own revisions follow it.
    let version = |name: &str| {
        let rest = name.strip_prefix(PREFIX)?.strip_suffix(flavour.suffix())?;
        if rest.contains('-') {
            return None; // of another flavour
        }
        let numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        numbers.map(|n| n.parse::<u32>().ok()).collect::<Option<Vec<_>>>()
    };
    let known = names.into_iter().filter_map(|name| Some((Reverse(version(&name)?), name)));
    known.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_found_by_its_numbers() {
        let names = ["6.12.9+deb12", "6.12.95+deb12", "6.12.100+deb12", "6.12.30+bpo"];
        let names = names.map(|version| format!("linux-image-{version}-cloud-amd64-unsigned"));
        let full = "linux-image-6.12.98+deb12-amd64-unsigned";
        let others = [
            "linux-image-6.12.99+deb12-amd64",
            "linux-image-6.12.99+deb12-rt-amd64-unsigned",
            "linux-image-6.13.1-cloud-amd64-unsigned",
        ];
        let others = || others.map(str::to_owned).into_iter();
        let all = || names.iter().cloned().chain(others()).chain([full.to_owned()]);
        assert_eq!(newest(all(), Flavour::Cloud), Some(names[2].clone()));
        assert_eq!(newest(all(), Flavour::Full).as_deref(), Some(full));
        assert_eq!(newest(others(), Flavour::Cloud), None);
        assert_eq!(newest(others(), Flavour::Full), None);
    }
}
