//! `ztier udev`: what a block device is to the volumes of this machine, for the rules of udev.
//!
//! Invariants: this asks no daemon, and looks at nothing that could hang (only at our own files,
//! `/sys`, and nodes below `/dev`); what can't be read is skipped without an error, and the device
//! may then seem to belong to no volume.

use super::output;
use crate::config::{Paths, Settings};
use crate::daemon::{self, state::State};
use crate::error::Result;
use crate::export::{Leftover, ublk};
use crate::media::sysfs;
use clap::{Args, ValueHint};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Print what a block device is to the volumes, as properties for udev
#[derive(Args)]
#[command(hide = true)]
pub struct Udev {
    /// The device [default: that of the event, as udev puts it into the environment]
    #[arg(value_hint = ValueHint::FilePath)]
    device: Option<PathBuf>,
}

impl Udev {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let given = self.device.or_else(|| std::env::var_os("DEVNAME").map(PathBuf::from));
        let Some(device) = given else { return Ok(()) };
        let links = std::env::var("DEVLINKS").unwrap_or_default();
        let device = Device::of(&device, &links);
        let paths = Paths::of_this_user()?;
        if let Some(name) = device.volume(&paths) {
            return output::print(&format!("ZTIER_VOLUME={name}\n"));
        }
        match device.below(&paths) {
            Some((name, role)) => {
                output::print(&format!("ZTIER_BELOW={name}\nZTIER_ROLE={role}\n"))
            }
            None => Ok(()),
        }
    }
}

/// A block device, by all its names.
struct Device {
    /// As the kernel calls it: `loop0`, `sda1`.
    kernel: PathBuf,
    /// Its paths, and those of the disk that it is a partition of.
    names: BTreeSet<PathBuf>,
    /// The device numbers of these names.
    numbers: BTreeSet<u64>,
}

impl Device {
    /// The device at `path`, with the further names `links`.
    fn of(path: &Path, links: &str) -> Self {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let kernel = PathBuf::from(path.file_name().unwrap_or_default());
        let mut names: BTreeSet<PathBuf> = links.split_whitespace().map(PathBuf::from).collect();
        names.extend(disk_of(&kernel).map(|disk| Path::new("/dev").join(disk)));
        names.insert(path);
        let numbers = names.iter().filter_map(|name| number(name)).collect();
        Self { kernel, names, numbers }
    }

    fn is(&self, path: &Path) -> bool {
        self.names.contains(path) || number(path).is_some_and(|n| self.numbers.contains(&n))
    }

    /// The volume that is served as this device. The file behind a loop device, or the mark that
    /// the ublk driver keeps, tells from the device's first event on.
    fn volume(&self, paths: &Paths) -> Option<String> {
        if let Some(number) = self.kernel.to_str()?.strip_prefix("ublkb") {
            let number = number.parse().ok()?;
            return daemon::names(paths).into_iter().find(|name| has_ublk(paths, name, number));
        }
        let run = fs::canonicalize(&paths.run).ok()?;
        let file = sysfs::loop_file(&Path::new("/sys/block").join(&self.kernel))?;
        let name = served(&file, &run)?;
        Some(name.to_owned())
    }

    /// The volume that uses this device as a drive, and the drive's role, among volumes that are up
    /// and those that may come up.
    fn below(&self, paths: &Paths) -> Option<(String, &'static str)> {
        let role = |log: Option<&PathBuf>, backing: Option<&PathBuf>, spill: Option<&PathBuf>| {
            let drives = [(log, "log"), (backing, "backing"), (spill, "spill")];
            let mut drives =
                drives.iter().filter_map(|(path, role)| path.map(|path| (path, *role)));
            drives.find(|(path, _)| self.is(path)).map(|(_, role)| role)
        };
        for name in daemon::names(paths) {
            if let Some(state) = state_of(paths, &name)
                && let plan = &state.plan
                && let backing = plan.log.as_ref().map(|log| &log.backing).or(plan.backing.as_ref())
                && let spill = plan.spill.as_ref().map(|spill| &spill.device)
                && let Some(role) = role(plan.log.as_ref().map(|log| &log.log), backing, spill)
            {
                return Some((name, role));
            }
        }
        for name in Paths::names_in(&paths.config, &["toml"]) {
            if let Ok(Some(kept)) = Settings::load(&paths.settings(&name))
                && let Some(role) =
                    role(kept.log.as_ref(), kept.backing.as_ref(), kept.spill.as_ref())
            {
                return Some((name, role));
            }
        }
        None
    }
}

/// The state file of a daemon. The daemon's lock is not tried: at boot many processes would try it
/// at once and keep the daemon from starting.
fn state_of(paths: &Paths, name: &str) -> Option<State> {
    State::read(&paths.volume(name)).ok().flatten()
}

/// Whether the device of the volume `name` is the ublk device `number`.
fn has_ublk(paths: &Paths, name: &str, number: u32) -> bool {
    let Some(state) = state_of(paths, name) else { return false };
    state.leftovers.iter().any(|left| match left {
        Leftover::Ublk { mark, .. } => ublk::find(*mark) == Some(number),
        _ => false,
    })
}

/// The disk of a partition.
fn disk_of(kernel: &Path) -> Option<String> {
    let place = fs::canonicalize(Path::new("/sys/class/block").join(kernel)).ok()?;
    sysfs::is_partition(&place).then(|| sysfs::name(sysfs::disk_of(&place)))
}

/// The number of a block device below `/dev`.
fn number(path: &Path) -> Option<u64> {
    let meta = path.starts_with("/dev").then(|| fs::metadata(path).ok())??;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// The volume whose file this is: `RUN/NAME.fuse/NAME`.
fn served<'a>(file: &'a Path, run: &Path) -> Option<&'a str> {
    let name = file.file_name()?.to_str()?;
    let point = file.strip_prefix(run).ok()?.parent()?;
    (point.to_str()? == format!("{name}.fuse")).then_some(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_of_a_volume_names_it() {
        let run = Path::new("/run/ztier");
        assert_eq!(served(Path::new("/run/ztier/a.b.fuse/a.b"), run), Some("a.b"));
        for other in ["/run/ztier/a.fuse/b", "/run/ztier/a.fuse/x/a", "/run/a.fuse/a", "/a", "/"] {
            assert_eq!(served(Path::new(other), run), None, "{other}");
        }
    }

    #[test]
    fn drives_are_known_by_any_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { run: dir.path().into(), config: dir.path().into(), state: "/x".into() };
        let settings = "log = \"/dev/disk/by-id/fast\"\nbacking = \"/dev/slow\"\n";
        fs::write(dir.path().join("vol.toml"), settings).unwrap();
        fs::write(dir.path().join("swap.toml"), "size = \"1G\"\nspill = \"/dev/cold\"\n").unwrap();
        fs::write(dir.path().join("bad.toml"), "size = ").unwrap();
        let below = |path: &str, links| Device::of(Path::new(path), links).below(&paths);
        assert_eq!(below("/dev/slow", ""), Some(("vol".into(), "backing")));
        assert_eq!(below("/dev/x", "/dev/a /dev/disk/by-id/fast"), Some(("vol".into(), "log")));
        assert_eq!(below("/dev/cold", ""), Some(("swap".into(), "spill")));
        assert_eq!(below("/dev/x", ""), None);
        assert_eq!(Device::of(Path::new("/dev/x"), "").volume(&paths), None);
    }
}
