//! The kernel's zram, on a device that this process adds and removes.

use super::Disk;
use crate::report::warn;
use crate::sys::{interrupt, knob};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Name in reports, with lz4.
pub const NAME: &str = "kernel zram lz4";
/// Name in reports, with the kernel's default algorithm.
pub const DEFAULT_NAME: &str = "kernel zram default";
/// Name in reports, with zstd.
pub const ZSTD_NAME: &str = "kernel zram zstd";
/// Name in reports, with lz4, and idle pages recompressed with zstd.
pub const RECOMPRESSED_NAME: &str = "kernel zram lz4, recompressed with zstd";
const CONTROL: &str = "/sys/class/zram-control";
/// Bytes that the kernel's table takes for each page of the device's size, used or not.
const TABLE_BYTES_PER_PAGE: u64 = 16;

/// A hot-added zram device.
pub struct Zram {
    id: u32,
    device: PathBuf,
    size: u64,
    algorithm: String,
}

/// Fields of `mm_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmStat {
    /// Bytes after compression, without the allocator's losses.
    pub compr_data_size: u64,
    /// Bytes of the allocator's pages, without the table.
    pub mem_used_total: u64,
    /// Maximum of `mem_used_total` since the device was added.
    pub mem_used_max: u64,
}

impl Zram {
    /// Adds a device of `size` bytes with lz4.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn new(size: u64) -> Result<Self> {
        Self::with(size, "lz4")
    }

    /// Adds a device of `size` bytes.
    ///
    /// # Errors
    /// No root, no zram in this kernel, no such algorithm in it.
    pub fn with(size: u64, algorithm: &str) -> Result<Self> {
        Self::add(size, Some(algorithm), None)
    }

    /// Adds a device of `size` bytes with lz4 that [`Self::recompress`] recompresses with zstd.
    ///
    /// # Errors
    /// As [`Self::with`], and when this kernel's zram does not recompress.
    pub fn recompressing(size: u64) -> Result<Self> {
        Self::add(size, Some("lz4"), Some("zstd"))
    }

    /// Adds a device of `size` bytes with the kernel's default algorithm.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn with_default(size: u64) -> Result<Self> {
        Self::add(size, None, None)
    }

    fn add(size: u64, algorithm: Option<&str>, second: Option<&str>) -> Result<Self> {
        // Reading the file adds a device and gives its number.
        let text = fs::read_to_string(format!("{CONTROL}/hot_add"))
            .context("cannot add a zram device (needs root and a kernel with zram)")?;
        let id = text.trim().parse().context(format!("zram says it added {text:?}"))?;
        let device = PathBuf::from(format!("/dev/zram{id}"));
        let mut zram = Self { id, device, size, algorithm: String::new() };
        if let Some(algorithm) = algorithm {
            zram.set("comp_algorithm", algorithm)?;
        }
        if let Some(second) = second {
            if !zram.sysfs("recomp_algorithm").exists() {
                let text = "this kernel's zram does not recompress (CONFIG_ZRAM_MULTI_COMP)";
                return Err(Error::failure(text));
            }
            zram.set("recomp_algorithm", &format!("algo={second} priority=1"))?;
        }
        zram.algorithm = knob::read(&zram.sysfs("comp_algorithm"))?;
        zram.set("disksize", &size.to_string())?;
        let end = Instant::now() + Duration::from_secs(5);
        while !zram.device.exists() {
            if Instant::now() > end {
                return Err(Error::failure(format!("{} did not appear", zram.device.display())));
            }
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(zram)
    }

    /// The present values.
    pub fn mm_stat(&self) -> Result<MmStat> {
        let path = self.sysfs("mm_stat");
        let text = fs::read_to_string(&path).context(format!("cannot read {}", path.display()))?;
        parse_mm_stat(&text)
            .ok_or_else(|| Error::failure(format!("{} holds {text:?}", path.display())))
    }

    /// Recompresses everything, and has the allocator free the memory gained.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn recompress(&self) -> Result<()> {
        self.set("idle", "all")?;
        self.set("recompress", "type=idle")?;
        self.compact()
    }

    /// Makes the allocator compact its pages and free the memory gained.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn compact(&self) -> Result<()> {
        self.set("compact", "1")
    }

    /// Bytes of the table, beside `mem_used_total`.
    pub fn table_bytes(&self) -> u64 {
        self.size / 4096 * TABLE_BYTES_PER_PAGE
    }

    fn sysfs(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{file}", self.id))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.sysfs(file), value)
            .context(format!("cannot set {file} of {} to {value}", self.device.display()))
    }
}

fn parse_mm_stat(text: &str) -> Option<MmStat> {
    let mut fields = text.split_whitespace().skip(1).map(|f| f.parse().ok());
    let (compr_data_size, mem_used_total) = (fields.next()??, fields.next()??);
    // The limit is between them.
    Some(MmStat { compr_data_size, mem_used_total, mem_used_max: fields.nth(1)?? })
}

impl Disk for Zram {
    fn path(&self) -> &Path {
        &self.device
    }

    fn about(&self) -> String {
        format!("{}, hot-added, {}", self.device.display(), self.algorithm)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // udev or blkid may open a device for a moment after it was closed.
        let end = Instant::now() + Duration::from_secs(10);
        let id = self.id.to_string();
        loop {
            let done = fs::write(self.sysfs("reset"), "1")
                .and_then(|()| fs::write(format!("{CONTROL}/hot_remove"), &id));
            match done {
                Ok(()) => return,
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(100)),
                Err(e) => return warn(&format!("cannot remove {}: {e}", self.device.display())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::{Kind, Pool, RECORD_MAX};
    use crate::sys::direct;
    use std::os::unix::fs::FileExt;

    /// On a device of its own; where that is impossible, the refusal must name the requirement.
    #[test]
    fn a_device_comes_holds_data_frees_it_and_goes() {
        let zram = match Zram::new(16 << 20) {
            Ok(zram) => zram,
            Err(e) => {
                let text = e.to_string();
                let known = ["needs root", "did not appear", "cannot set comp_algorithm"];
                return assert!(known.iter().any(|part| text.contains(part)), "{text}");
            }
        };
        let (device, len) = (zram.path().to_owned(), 1u64 << 20);
        let mut pool = Pool::build(Kind::Ratio(2.0), RECORD_MAX, 1).unwrap();
        let file = direct::open(&device).unwrap();
        file.write_all_at(pool.record(0, 0, len as usize), 0).unwrap();
        let full = zram.mm_stat().unwrap();
        let ratio = len as f64 / full.compr_data_size as f64;
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert!(full.mem_used_total >= full.compr_data_size);
        direct::discard(&file, 0, len).unwrap();
        assert_eq!(zram.mm_stat().unwrap().compr_data_size, 0);
        drop(file);
        drop(zram);
        assert!(!device.exists());
    }

    #[test]
    fn mm_stat_fields_are_the_second_third_and_fifth() {
        let text = "  4096 74 12288 0 16384 0 0 0 0\n";
        let stat = MmStat { compr_data_size: 74, mem_used_total: 12288, mem_used_max: 16384 };
        assert_eq!(parse_mm_stat(text), Some(stat));
        assert_eq!(parse_mm_stat("4096 74"), None);
    }
}
