//! The measured systems: ztier and its rivals, each a guard that takes down what it brought up.
//!
//! Invariant: this module only touches devices, mounts and processes made here; dropping a guard
//! undoes its work, in reverse order, with limits on the time.

pub mod bcache;
pub mod brd;
pub mod ext4;
pub mod fio;
pub mod nbd;
pub mod nbdkit;
pub mod plain;
pub mod ramdisk;
pub mod raw;
pub mod s3backer;
pub mod served;
pub mod stored;
pub mod writecache;
pub mod zram;
pub mod zswap;
pub mod ztier;

use ::ztier::error::Result;
use std::path::Path;

/// A block device, up until it is dropped.
pub trait Disk: Send {
    /// Path of the device.
    fn path(&self) -> &Path;

    /// The note about the device beside its figures.
    fn about(&self) -> String;
}

/// The systems whose block devices are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// ztier, by `ztier up … --export auto`.
    Ztier,
    /// A hot-added zram device with lz4.
    KernelZram,
    /// A hot-added zram device with zstd.
    KernelZramZstd,
    /// A loop device on a file in tmpfs.
    RamDisk,
    /// The kernel's RAM disk.
    Brd,
}

impl System {
    /// On a machine with other work; in the order in which they take turns.
    pub const USUAL: [Self; 3] = [Self::Ztier, Self::KernelZram, Self::RamDisk];
    /// In a virtual machine.
    pub const INSIDE: [Self; 4] = [Self::Ztier, Self::KernelZram, Self::KernelZramZstd, Self::Brd];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ztier => "ztier",
            Self::KernelZram => zram::NAME,
            Self::KernelZramZstd => zram::ZSTD_NAME,
            Self::RamDisk => "RAM disk (loop on tmpfs)",
            Self::Brd => "RAM disk (brd)",
        }
    }

    /// Name in the names of ratios.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ztier => "ztier",
            Self::KernelZram => "kernel_zram",
            Self::KernelZramZstd => "kernel_zram_zstd",
            Self::RamDisk | Self::Brd => "ramdisk",
        }
    }

    /// A new, empty device of `size` bytes.
    pub fn up(self, size: u64) -> Result<Box<dyn Disk>> {
        Ok(match self {
            Self::Ztier => Box::new(ztier::Up::new(size, "auto")?),
            Self::KernelZram => Box::new(zram::Zram::new(size)?),
            Self::KernelZramZstd => Box::new(zram::Zram::with(size, "zstd")?),
            Self::Brd => Box::new(brd::Brd::new(size)?),
            Self::RamDisk => Box::new(ramdisk::RamDisk::new(size)?),
        })
    }
}
