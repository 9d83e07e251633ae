//! What root types to follow the advice.
//!
//! Invariant: no command overwrites what holds data; one that needs what is not known has a word in
//! capital letters there, and a reason that names it.

use super::figures::{Disk, Figures, Swap, SwapKind};
use crate::config::name;
use crate::config::size::exact;
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The least size of new swap.
pub const NEW_SWAP: u64 = GIB;
/// The time of writing that a log takes, in seconds, and the least and most bytes of one.
const LOG_SECONDS: f64 = 600.0;
const LOG_SIZES: [u64; 2] = [GIB, 32 * GIB];

/// A cache or log to put before a disk.
pub struct Put<'a> {
    pub disk: &'a Disk,
    /// What is behind `ztier up NAME --backing DEV`.
    pub flags: &'a str,
}

/// A word that a shell takes as it is.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A volume's name for a device.
fn volume(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name::check(&name).is_ok() { name } else { "disk".to_owned() }
}

/// Adds the commands that put a volume before a disk, and what they need.
pub fn put(why: &mut Vec<String>, commands: &mut Vec<String>, put: &Put) {
    let Put { disk, flags } = put;
    let Some(target) = &disk.target else {
        let device = Path::new("/dev").join(disk.name.replace('!', "/"));
        let name = volume(&device);
        why.push(format!("no file system on it is mounted: programs then use /dev/ztier/{name}"));
        commands.push(format!("ztier up {name} --backing {} {flags}", quoted(&device)));
        return;
    };
    let name = volume(&target.device);
    let up = format!("ztier up {name} --backing {} {flags}", quoted(&target.device));
    if target.point == Path::new("/") {
        why.push("it holds /, which cannot be unmounted: from another system, or move data".into());
        commands.push(up);
        return;
    }
    let point = quoted(&target.point);
    commands.extend([format!("umount {point}"), up, format!("mount /dev/ztier/{name} {point}")]);
}

/// The flags of a log on `fast` before `disk`, with `limit` for a cache or nothing.
pub fn log_flags(disk: &Disk, fast: &Disk, limit: &str, why: &mut Vec<String>) -> String {
    let written = disk.writes.per_second * disk.writes.mean_bytes * LOG_SECONDS;
    let [least, most] = LOG_SIZES;
    let size = (written as u64).next_multiple_of(256 * MIB).clamp(least, most);
    let log = match &fast.target {
        Some(target) if target.free_bytes / 2 >= size => {
            let backing = disk.target.as_ref().map(|target| &target.device);
            let name = backing.map_or_else(|| disk.name.clone(), |device| volume(device));
            let file = target.point.join(format!("ztier-{name}.log"));
            format!("--log {} --log-size {}", quoted(&file), exact(size))
        }
        _ => {
            why.push(format!("PARTITION: an unused one of {} of some GiB", fast.name));
            "--log PARTITION".to_owned()
        }
    };
    if limit.is_empty() { log } else { format!("{log} {limit}") }
}

/// A RAM disk for `bytes` of files that take `needs` of memory.
pub fn ram_disk(bytes: u64, needs: u64) -> Vec<String> {
    // A file system takes a part of the device, and files grow.
    let size = (bytes / 4 * 5).next_multiple_of(64 * MIB);
    let limit = (needs / 4 * 5).next_multiple_of(64 * MIB);
    vec![format!(
        "ztier up scratch --size {} --ram-limit {} --use ext4 --mount /mnt",
        exact(size),
        exact(limit)
    )]
}

/// Swap in memory; other compressed swap ends first.
pub fn swap(zswap: bool) -> Vec<String> {
    let mut all = without_zswap(zswap);
    all.push("ztier up swap --size 50% --ram-limit 40% --use swap".to_owned());
    all
}

fn without_zswap(zswap: bool) -> Vec<String> {
    let off = "echo N > /sys/module/zswap/parameters/enabled".to_owned();
    if zswap { vec![off] } else { Vec::new() }
}

/// Swap of `size` that spills, in place of `before`.
pub fn spilled_swap(
    figures: &Figures,
    before: Option<&Swap>,
    size: u64,
    why: &mut Vec<String>,
) -> Vec<String> {
    let mut all = without_zswap(figures.zswap);
    all.extend(before.map(|swap| format!("swapoff {}", quoted(&swap.path))));
    let spill = match before.filter(|swap| swap.kind == SwapKind::Partition) {
        Some(swap) => {
            let path = quoted(&swap.path);
            all.push(format!("wipefs --all {path}"));
            path
        }
        None => {
            let targets = figures.disks.iter().filter_map(|disk| disk.target.as_ref());
            let roomy = targets.max_by_key(|target| target.free_bytes);
            match roomy.filter(|target| target.free_bytes / 2 >= size) {
                Some(target) => {
                    let file = target.point.join("ztier-swap.spill");
                    let bytes = size.next_multiple_of(256 * MIB);
                    format!("{} --spill-size {}", quoted(&file), exact(bytes))
                }
                None => {
                    why.push("PARTITION: an unused one, for what is cold".to_owned());
                    "PARTITION".to_owned()
                }
            }
        }
    };
    let size = exact((2 * size).next_multiple_of(256 * MIB));
    all.push(format!("ztier up swap --size {size} --ram-limit 25% --spill {spill} --use swap"));
    all
}
