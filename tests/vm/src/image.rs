//! The disk with a machine's programs: busybox, programs of this system for tests, libraries,
//! modules.
//!
//! On a disk, not in the initramfs, so that it takes no memory that cannot be reclaimed. An image
//! is named after its content, and made once.

use crate::cache::Cache;
use crate::command::{find, run};
use crate::kernel::Kernel;
use crate::programs::libraries;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use ztier::error::{Context, Error, Result};

/// Programs that machines get if this system has them.
const PROGRAMS: &str = "\
    bcache-super-show blkdiscard blkid blockdev btrfs cryptsetup dd dmsetup dumpe2fs e2fsck fio \
    flock fsck.ext4 fstrim fusermount3 losetup lsblk lvm make-bcache mkfs.btrfs mkfs.ext4 \
    mkfs.xfs mkswap mount nbd-client prlimit resize2fs sha256sum split stress-ng swapoff swapon \
    tar tune2fs umount unshare wipefs xfs_repair";
/// Modules that machines can load; their dependencies are included.
const MODULES: &str = "\
    bcache brd btrfs dm-crypt dm-delay dm-flakey dm-log-writes dm-mod dm-writecache fuse loop \
    lz4 nbd ublk_drv virtio_balloon xfs xts zram";
/// Number of images that the cache keeps.
const KEPT: usize = 4;

/// A disk with programs.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
    programs: BTreeSet<String>,
}

impl Image {
    /// The image for `kernel`, with the libraries that the programs `also` need.
    ///
    /// # Errors
    /// Something that every machine needs is missing here, or the image cannot be made.
    pub fn open(cache: &Cache, kernel: &Kernel, also: &[PathBuf]) -> Result<Self> {
        let content = Content::collect(kernel, also)?;
        let name = format!("programs-{:016x}.ext4", content.fingerprint()?);
        let path = cache.get(&name, |path| content.make(path))?;
        cache.trim("programs-", KEPT);
        Ok(Self { path, programs: content.programs.keys().cloned().collect() })
    }

    /// The disk, to be used read-only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether machines have this program of the system; busybox has many more.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(program)
    }
}

/// The content of an image.
struct Content {
    busybox: PathBuf,
    programs: BTreeMap<String, PathBuf>,
    libraries: BTreeSet<PathBuf>,
    /// Module files below `modules`.
    loadable: BTreeSet<String>,
    modules: PathBuf,
    release: String,
}

impl Content {
    fn collect(kernel: &Kernel, also: &[PathBuf]) -> Result<Self> {
        let busybox = find("busybox").ok_or_else(|| Error::failure("there is no busybox"))?;
        let known = PROGRAMS.split(' ').filter_map(|name| Some((name.to_owned(), find(name)?)));
        let programs: BTreeMap<_, _> = known.collect();
        let mut needed = BTreeSet::new();
        for program in programs.values().chain(also) {
            needed.extend(libraries(program)?);
        }
        let mut loadable = BTreeSet::new();
        for module in MODULES.split(' ') {
            loadable.extend(kernel.needed_by(module)?);
        }
        let (modules, release) = (kernel.modules(), kernel.release().to_owned());
        Ok(Self { busybox, programs, libraries: needed, loadable, modules, release })
    }

    /// A hash of the content.
    fn fingerprint(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        (include_str!("image.rs"), &self.release, &self.loadable).hash(&mut hasher);
        let files = self.programs.values().chain(&self.libraries).chain([&self.busybox]);
        for path in files {
            let about = fs::metadata(path);
            let about = about.context(format_args!("cannot look at {}", path.display()))?;
            (path, about.len(), about.mtime(), about.mtime_nsec()).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    fn make(&self, image: &Path) -> Result<()> {
        let stage = image.with_extension("stage");
        self.stage(&stage)?;
        let (image, stage) = (image.to_string_lossy(), stage.to_string_lossy());
        let used = run(60, "du", &["-sm", "--apparent-size", &stage])?;
        let used = used.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let size = format!("{}M", used.unwrap_or(512) * 5 / 4 + 16);
        let options = ["-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal"];
        let more = ["-d", &stage, &image, &size];
        run(120, "mkfs.ext4", &[&options[..], &more].concat()).map(drop)
    }

    fn stage(&self, stage: &Path) -> Result<()> {
        let what = "cannot fill a directory for the programs";
        let copy = |from: &Path, to: &Path| fs::copy(from, to).context(what).map(drop);
        for directory in ["bin", "lib64", "lib/modules"] {
            fs::create_dir_all(stage.join(directory)).context(what)?;
        }
        symlink("bin", stage.join("sbin")).context(what)?;
        let bin = stage.join("bin");
        copy(&self.busybox, &bin.join("busybox"))?;
        for (name, path) in &self.programs {
            copy(path, &bin.join(name))?;
        }
        let busybox = self.busybox.to_string_lossy();
        for applet in run(10, &busybox, &["--list"])?.lines() {
            if !bin.join(applet).exists() {
                symlink("busybox", bin.join(applet)).context(what)?;
            }
        }
        for library in &self.libraries {
            // With a merged /usr both paths are the same.
            let place = library.strip_prefix("/usr").or_else(|_| library.strip_prefix("/"));
            let place = stage.join(place.unwrap_or(library));
            fs::create_dir_all(place.parent().unwrap_or(stage)).context(what)?;
            copy(library, &place)?;
        }
        let modules = stage.join("lib/modules").join(&self.release);
        for file in &self.loadable {
            let place = modules.join(file);
            fs::create_dir_all(place.parent().unwrap_or(&modules)).context(what)?;
            copy(&self.modules.join(file), &place)?;
        }
        // Not all kernels have these.
        for file in ["modules.builtin", "modules.order"] {
            if self.modules.join(file).exists() {
                copy(&self.modules.join(file), &modules.join(file))?;
            }
        }
        run(60, "depmod", &["-b", &stage.to_string_lossy(), &self.release]).map(drop)
    }
}
