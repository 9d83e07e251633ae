//! The initramfs of a machine: an archive in the kernel's own format (cpio, «newc»). The archive of
//! the base and that of the machine follow each other.
//!
//! Uncompressed, as an emulated CPU takes longer to decompress it than to copy it.

use crate::command::find;
use crate::kernel::Kernel;
use std::fs;
use std::path::Path;
use ztier::error::{Context, Error, Result};

/// Modules with which the machine finds its disks, and mounts the disk with the programs.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];

/// A cpio archive in the making.
#[derive(Clone, Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory; its parents must have been added.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Adds a program.
    pub fn program(&mut self, name: &str, content: &[u8]) {
        self.entry(name, 0o100_755, content);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, 0o100_644, content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, to: &str) {
        self.entry(name, 0o120_777, to.as_bytes());
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (name_len, len) = (name.len() + 1, content.len());
        let inode = self.entries;
        // Owner, group, links, time; then the size, devices, and the length of the name.
        let head = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{len:08x}{:08x}{:08x}{:08x}{:08x}\
             {name_len:08x}{:08x}",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend(head.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The archive's bytes. Another archive may follow.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// The archive of every machine with this kernel: it finds the disks, mounts the disk with the
/// programs, and starts the agent, or the system on another disk.
///
/// # Errors
/// A module or busybox is missing.
pub fn base(kernel: &Kernel) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).context(format_args!("cannot read {}", path.display()));
    let busybox = find("busybox").ok_or_else(|| Error::failure("there is no busybox"))?;
    let mut archive = Archive::default();
    for directory in ["boot", "boot/modules", "proc", "sys", "dev", "image", "root", "run", "tmp"] {
        archive.directory(directory);
    }
    for directory in ["disk", "mnt", "etc", "usr", "usr/local", "usr/local/bin", "var", "var/lib"] {
        archive.directory(directory);
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        archive.link(name, &format!("image/{name}"));
        archive.link(&format!("usr/{name}"), &format!("/image/{name}"));
    }
    archive.link("var/run", "/run");
    archive.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n");
    archive.file("etc/group", b"root:x:0:\n");
    archive.program("boot/busybox", &read(&busybox)?);
    archive.program("init", include_bytes!("init.sh"));
    let mut number = 0;
    for module in MODULES {
        for file in kernel.needed_by(module)? {
            number += 1;
            archive.file(
                &format!("boot/modules/{number:02}.ko"),
                &read(&kernel.modules().join(file))?,
            );
        }
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_archive_is_padded_and_ends() {
        let mut archive = Archive::default();
        archive.program("a", b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // 110 bytes of header, the name, a byte of padding.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..117], b"hello");
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
    }
}
