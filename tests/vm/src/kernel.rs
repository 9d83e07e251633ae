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

/// A series of Debian's kernels.
#[derive(Debug, PartialEq, Eq)]
struct Series {
    /// What `ZTIER_VM_SERIES` calls it.
    name: &'static str,
    suite: &'static str,
    /// Beginning and end of the names of its packages.
    begin: &'static str,
    end: &'static str,
    /// Beginning of the names of the packages with its modules, if these are other ones.
    modules: Option<&'static str>,
}

/// The default series comes first.
const SERIES: [Series; 2] = [
    Series {
        name: "6.12",
        suite: "bookworm-backports",
        begin: "linux-image-6.12.",
        end: "-unsigned",
        modules: None,
    },
    Series {
        name: "7.3",
        suite: "trixie-backports",
        begin: "linux-binary-unsigned-7.3.",
        end: "",
        modules: Some("linux-modules-7.3."),
    },
];
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
    /// Its part of the names of its packages.
    fn part(self) -> &'static str {
        match self {
            Self::Cloud => "-cloud-amd64",
            Self::Full => "-amd64",
        }
    }
}

impl Series {
    fn chosen() -> Result<&'static Self> {
        let Ok(name) = std::env::var("ZTIER_VM_SERIES") else { return Ok(&SERIES[0]) };
        SERIES.iter().find(|series| series.name == name).ok_or_else(|| {
            let known = SERIES.map(|series| series.name).join(", ");
            Error::usage(format!("ZTIER_VM_SERIES={name}: no such series"))
                .hint(format!("give one of {known}"))
        })
    }

    /// The version of a package of this series and flavour, as numbers. The first is the patch
    /// level; Debian's own revisions follow it.
    fn version(&self, name: &str, flavour: Flavour) -> Option<Vec<u32>> {
        let rest = name.strip_prefix(self.begin)?.strip_suffix(self.end)?;
        let rest = rest.strip_suffix(flavour.part())?;
        if rest.contains('-') {
            return None; // of another flavour
        }
        let numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        numbers.map(|n| n.parse().ok()).collect()
    }

    /// The newest kernel package of this flavour.
    fn newest(&self, names: impl IntoIterator<Item = String>, flavour: Flavour) -> Option<String> {
        let known = names.into_iter();
        let known = known.filter_map(|name| Some((Reverse(self.version(&name, flavour)?), name)));
        known.min().map(|(_, name)| name)
    }

    /// The package with the modules of a kernel package.
    fn modules_of(&self, package: &str) -> Option<String> {
        Some(format!("{}{}", self.modules?, package.strip_prefix(self.begin)?))
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
    /// archive; of the series that `ZTIER_VM_SERIES` names.
    ///
    /// # Errors
    /// No kernel is unpacked, and none can be downloaded.
    pub fn open(cache: &Cache, flavour: Flavour, renew: bool) -> Result<Self> {
        let series = Series::chosen()?;
        if !renew && let Some(name) = series.newest(cache.names(series.begin), flavour) {
            return Self::unpacked(cache.path(&name));
        }
        let apt = Apt::new(cache, series)?;
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
        // The packages of the newer series lack this list: what is no module there is built in.
        let builtin = fs::read_to_string(self.modules().join("modules.builtin"));
        if builtin.is_ok_and(|all| all.lines().all(|line| named(line) != wanted)) {
            return Err(Error::failure(format!(
                "the kernel {} has no module {module}",
                self.release
            )));
        }
        Ok(Vec::new())
    }
}

/// The mirror of Debian's packages.
pub(crate) fn mirror() -> String {
    std::env::var("ZTIER_VM_MIRROR").unwrap_or_else(|_| "http://deb.debian.org/debian".to_owned())
}

/// apt-get with private lists and packages.
struct Apt {
    series: &'static Series,
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Cache, series: &'static Series) -> Result<Self> {
        for program in ["apt-get", "apt-cache", "dpkg-deb", "xz", "depmod"] {
            if find(program).is_none() {
                return Err(Error::failure(format!("no {program}, and no kernel unpacked")));
            }
        }
        let home = cache.path(&format!("apt-{}", series.suite));
        fs::create_dir_all(home.join("lists/partial")).context("cannot make apt's directory")?;
        fs::create_dir_all(home.join("cache/archives/partial")).context("cannot make another")?;
        let mirror = mirror();
        let keys =
            if Path::new(KEYS).exists() { format!(" signed-by={KEYS}") } else { String::new() };
        let source = home.join("sources.list");
        fs::write(&source, format!("deb [arch=amd64{keys}] {mirror} {} main\n", series.suite))
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
        Ok(Self { series, options })
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.options.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    fn newest(&self, flavour: Flavour) -> Result<String> {
        run(180, "apt-get", &self.args(&["-qq", "update"]))?;
        let Series { suite, begin, .. } = self.series;
        let names = run(60, "apt-cache", &self.args(&["pkgnames", begin]))?;
        self.series.newest(names.lines().map(str::to_owned), flavour).ok_or_else(|| {
            let part = flavour.part();
            Error::failure(format!("{suite} has no package {begin}*{part}* any more"))
        })
    }

    fn unpack(&self, name: &str, path: &Path) -> Result<()> {
        let work = path.parent().unwrap_or(path);
        for name in [Some(name.to_owned()), self.series.modules_of(name)].into_iter().flatten() {
            run_in(work, 600, "apt-get", &self.args(&["-qq", "download", &name]))?;
            let package = fs::read_dir(work)
                .context("cannot look for the package")?
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
                .ok_or_else(|| Error::failure(format!("apt-get downloaded no {name}")))?;
            run(120, "dpkg-deb", &["-x", &package.to_string_lossy(), &path.to_string_lossy()])?;
            fs::remove_file(&package).context("cannot remove the package")?;
        }
        place(path)?;
        make_loadable(path)
    }
}

/// Puts kernel and modules where packages of the default series have them.
fn place(directory: &Path) -> Result<()> {
    if !directory.join("lib").exists() {
        fs::rename(directory.join("usr/lib"), directory.join("lib")).context("no /usr/lib")?;
    }
    let kernel = Kernel::unpacked(directory.to_owned())?;
    if !kernel.vmlinuz().exists() {
        fs::create_dir_all(directory.join("boot")).context("cannot make /boot")?;
        let there = kernel.modules().join("vmlinuz.unsigned");
        fs::rename(there, kernel.vmlinuz()).context("the package has no kernel")?;
    }
    Ok(())
}

/// Decompresses modules, and lists their dependencies.
fn make_loadable(directory: &Path) -> Result<()> {
    let kernel = Kernel::unpacked(directory.to_owned())?;
    let modules = kernel.modules().to_string_lossy().into_owned();
    run(300, "find", &[&modules, "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"])?;
    let base = directory.to_string_lossy();
    run(120, "depmod", &["-b", &base, kernel.release()]).map(drop)
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
        let [old, new] = &SERIES;
        assert_eq!(old.newest(all(), Flavour::Cloud), Some(names[2].clone()));
        assert_eq!(old.newest(all(), Flavour::Full).as_deref(), Some(full));
        assert_eq!(old.newest(others(), Flavour::Cloud), None);
        assert_eq!(old.newest(others(), Flavour::Full), None);
        assert_eq!(new.newest(all(), Flavour::Cloud), None);
        assert_eq!(old.modules_of(full), None);
        let names = ["7.3.4+deb13-cloud", "7.3.10+deb13-cloud", "7.3.11+deb13-rt", "7.3.9+deb13"];
        let names = names.map(|version| format!("linux-binary-unsigned-{version}-amd64"));
        assert_eq!(new.newest(names.clone(), Flavour::Cloud), Some(names[1].clone()));
        assert_eq!(new.newest(names.clone(), Flavour::Full), Some(names[3].clone()));
        let modules = new.modules_of(&names[1]);
        assert_eq!(modules.as_deref(), Some("linux-modules-7.3.10+deb13-cloud-amd64"));
    }
}
