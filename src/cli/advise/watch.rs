//! Looks at the kernel's counters, twice, and makes figures of the difference.
//!
//! Invariants: it only reads, below `/proc` and `/sys` or directories like them; what cannot be
//! read is missing in the figures, and never an error. It asks no server.

use super::disks::{self, Counters};
use super::figures::{Figures, Memory, Paging, Pressure, Swap, SwapKind};
use crate::kernel_text::kernel_text;
use crate::limit::pressure;
use crate::media::mounts::{MountEntry, mounts_in};
use crate::media::swap_areas::parse_swaps;
use crate::system::footprint::{self, field, stalled_us};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// File systems of servers, which are no block devices.
const OF_SERVERS: [&str; 11] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "ceph",
    "9p",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
];

/// Where the kernel tells.
pub struct Watch {
    proc: PathBuf,
    sys: PathBuf,
}

/// Counters at one time.
pub struct Look {
    at: Instant,
    vmstat: String,
    /// Microseconds of waiting for memory, disks and processors.
    stalled_us: [Option<u64>; 3],
    disks: Vec<Counters>,
}

impl Watch {
    /// Of this machine.
    pub fn of_this_machine() -> Self {
        Self::open(Path::new("/proc"), Path::new("/sys"))
    }

    /// Of directories such as `/proc` and `/sys`.
    pub fn open(proc: &Path, sys: &Path) -> Self {
        Self { proc: proc.to_owned(), sys: sys.to_owned() }
    }

    fn text(&self, name: &str) -> String {
        kernel_text(self.proc.join(name)).unwrap_or_default()
    }

    /// The mounts that this process sees.
    pub fn mounts(&self) -> Vec<MountEntry> {
        mounts_in(&self.proc.join("self/mountinfo"))
    }

    /// The counters now.
    pub fn look(&self) -> Look {
        let stalled = |name: &str| stalled_us(&self.text(&format!("pressure/{name}")));
        Look {
            at: Instant::now(),
            vmstat: self.text("vmstat"),
            stalled_us: ["memory", "io", "cpu"].map(stalled),
            disks: disks::counters(&self.text("diskstats")),
        }
    }

    /// What the time between two looks shows, and what there is now.
    pub fn figures(&self, before: &Look, after: &Look) -> Figures {
        let seconds = (after.at - before.at).as_secs_f64().max(0.001);
        let [memory, io, cpu] = [0, 1, 2].map(|which| {
            let (first, last) = (before.stalled_us[which]?, after.stalled_us[which]?);
            Some((last.saturating_sub(first) as f64 / 1e6 / seconds).min(1.0))
        });
        let mounts = self.mounts();
        let of_server = |mount: &&MountEntry| OF_SERVERS.contains(&mount.kind.as_str());
        Figures {
            seconds,
            memory: self.memory(),
            pressure: Pressure { memory, io, cpu },
            paging: paging(&before.vmstat, &after.vmstat, seconds),
            swaps: self.swaps(),
            zswap: self.line("module/zswap/parameters/enabled").is_some_and(|text| text == "Y"),
            zram: self.has_zram(),
            disks: disks::figures(&before.disks, &after.disks, seconds, &mounts, &self.sys),
            network: mounts.iter().filter(of_server).map(|mount| mount.point.clone()).collect(),
            ..Figures::default()
        }
    }

    fn line(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.sys.join(name)).ok()?.trim().to_owned())
    }

    fn memory(&self) -> Memory {
        let text = self.text("meminfo");
        let bytes = |key| field(&text, key).unwrap_or(0);
        Memory {
            total_bytes: bytes("MemTotal"),
            available_bytes: bytes("MemAvailable"),
            anonymous_bytes: bytes("AnonPages"),
            file_bytes: bytes("Active(file)") + bytes("Inactive(file)"),
            shared_bytes: bytes("Shmem"),
        }
    }

    fn swaps(&self) -> Vec<Swap> {
        let ours: Vec<PathBuf> = fs::read_dir("/dev/ztier")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::canonicalize(entry.path()).ok())
            .collect();
        let kind = |path: &Path| match path {
            _ if ours.iter().any(|volume| volume == path) => SwapKind::Ztier,
            _ if path.to_string_lossy().starts_with("/dev/zram") => SwapKind::Zram,
            _ if path.starts_with("/dev") => SwapKind::Partition,
            _ => SwapKind::File,
        };
        let areas = parse_swaps(&self.text("swaps")).into_iter();
        areas
            .map(|(path, area)| Swap {
                kind: kind(&path),
                path,
                size_bytes: area.size,
                used_bytes: area.used,
            })
            .collect()
    }

    /// Whether zram is there, or can be loaded.
    fn has_zram(&self) -> bool {
        let release = self.text("sys/kernel/osrelease");
        let modules = Path::new("/lib/modules").join(release.trim()).join("modules.dep");
        self.sys.join("class/zram-control").exists()
            || fs::read_to_string(modules).is_ok_and(|text| text.contains("/zram.ko"))
    }
}

fn paging(before: &str, after: &str, seconds: f64) -> Paging {
    let rate = |of: &dyn Fn(&str) -> Option<u64>| {
        Some(of(after)?.saturating_sub(of(before)?) as f64 / seconds)
    };
    let number = |key: &'static str| rate(&move |text| footprint::number(text, key));
    Paging {
        swapped_in: number("pswpin").unwrap_or(0.0),
        swapped_out: number("pswpout").unwrap_or(0.0),
        refaults_file: rate(&pressure::refaults),
        refaults_anon: number("workingset_refault_anon"),
        scanned: rate(&pressure::scanned),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::advise::figures::DiskKind;
    use crate::cli::advise::rules::{Verdict, advise, missing};

    const MEMINFO: &str = "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nAnonPages: 1000 kB\n\
        Active(file): 20 kB\nInactive(file): 22 kB\nShmem: 7 kB\n";
    const MOUNTS: &str = "24 1 8:2 / / rw - ext4 /dev/sda2 rw\n\
        25 24 8:1 / /data rw - ext4 /dev/sda1 rw\n26 24 0:50 / /far rw - nfs4 host:/x rw\n";

    struct Recorded(tempfile::TempDir);

    impl Recorded {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let put = |name: &str, text: &str| {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            put("proc/meminfo", MEMINFO);
            put("proc/self/mountinfo", MOUNTS);
            put("sys/block/sda/queue/rotational", "1\n");
            put(
                "proc/swaps",
                "Filename Type Size Used Priority\n/dev/sda3 partition 1024 512 -2\n",
            );
            Self(dir)
        }

        fn look(&self, vmstat: &str, disks: &str) -> Look {
            let proc = self.0.path().join("proc");
            fs::write(proc.join("vmstat"), vmstat).unwrap();
            fs::write(proc.join("diskstats"), disks).unwrap();
            self.watch().look()
        }

        fn watch(&self) -> Watch {
            Watch::open(&self.0.path().join("proc"), &self.0.path().join("sys"))
        }

        fn figures(&self, before: &Look, after: &mut Look) -> Figures {
            after.at = before.at + std::time::Duration::from_secs(10);
            self.watch().figures(before, after)
        }
    }

    #[test]
    fn counters_become_rates() {
        let recorded = Recorded::new();
        let vmstat = "pswpin 5\npswpout 6\nworkingset_refault_file 100\npgscan_kswapd 0\n";
        let before = recorded.look(
            vmstat,
            "8 0 sda 100 0 800 50 10 0 80 20 0 60 0 0 0 0 0 5 50\n\
             8 1 sda1 90 0 720 40 0 0 0 0 0 0 0\n8 2 sda2 10 0 80 10 10 0 80 20 0 0 0\n",
        );
        let vmstat = "pswpin 105\npswpout 6\nworkingset_refault_file 32100\npgscan_kswapd 40\n";
        let mut after = recorded.look(
            vmstat,
            "8 0 sda 1100 500 256800 8050 30 60 400 60 0 9060 0 0 0 0 0 25 250\n\
             8 1 sda1 1090 500 256720 8040 0 0 0 0 0 0 0\n8 2 sda2 10 0 80 10 30 60 400 60 0 0 0\n",
        );
        let figures = recorded.figures(&before, &mut after);
        let memory = &figures.memory;
        assert_eq!((memory.total_bytes, memory.file_bytes), (16_000_000 << 10, 42 << 10));
        assert_eq!(figures.paging.refaults_file, Some(3200.0));
        assert_eq!((figures.paging.swapped_in, figures.paging.scanned), (10.0, Some(4.0)));
        assert_eq!(figures.pressure.memory, None);
        assert_eq!(figures.swaps[0].used_bytes, 512 << 10);
        assert_eq!(figures.network, [PathBuf::from("/far")]);
        let [sda] = &figures.disks[..] else { panic!("{:?}", figures.disks) };
        assert_eq!(sda.kind, DiskKind::Platters);
        assert_eq!((sda.reads.count, sda.reads.per_second, sda.reads.mean_ms), (1000, 100.0, 8.0));
        assert_eq!((sda.reads.mean_bytes, sda.reads.merged), (131_072.0, 0.5));
        assert_eq!((sda.writes.mean_ms, sda.writes.merged, sda.busy), (2.0, 3.0, 0.9));
        assert_eq!((sda.flushes.count, sda.flushes.mean_ms), (20, 10.0));
        let target = sda.target.as_ref().unwrap();
        assert_eq!(
            (target.device.as_path(), target.point.as_path()),
            ("/dev/sda1".as_ref(), "/data".as_ref())
        );
        assert!(missing(&figures)[0].contains("/proc/pressure"), "{:?}", missing(&figures));
    }

    /// A machine at rest, from its files to the advice.
    #[test]
    fn nothing_is_advised_at_rest() {
        let recorded = Recorded::new();
        let vmstat = "pswpin 5\npswpout 6\nworkingset_refault_file 100\n";
        let disks = "8 0 sda 100 0 800 50 10 0 80 20 0 60 0\n8 1 sda1 90 0 720 40 0 0 0 0 0 0 0\n";
        let before = recorded.look(vmstat, disks);
        let mut after = recorded.look(vmstat, disks);
        let advice = advise(&recorded.figures(&before, &mut after));
        assert_eq!(advice.len(), 5);
        assert!(advice.iter().all(|advice| advice.verdict == Verdict::No), "{advice:?}");
    }

    /// A kernel that tells nothing at all.
    #[test]
    fn nothing_is_advised_without_figures() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::open(dir.path(), dir.path());
        let figures = watch.figures(&watch.look(), &watch.look());
        assert!(advise(&figures).iter().all(|advice| advice.verdict != Verdict::Helps));
        assert_eq!(missing(&figures).len(), 3, "{:?}", missing(&figures));
    }
}
