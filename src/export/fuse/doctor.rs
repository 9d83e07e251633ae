//! What this machine has for the FUSE export, and how to get what is missing.

use crate::kernel_text::kernel_text;
use crate::system::{Check, loopdev};
use rustix::fs::{Access, Mode, OFlags};
use std::fs;
use std::path::Path;

/// Looks at everything that the FUSE + loop export uses. Changes nothing, apart from what the
/// kernel loads when `/dev/fuse` and `/dev/loop-control` are opened.
pub fn probe() -> Vec<Check> {
    vec![
        Check::new(
            "/dev/fuse",
            open("/dev/fuse"),
            "modprobe fuse; in a container, pass /dev/fuse in",
        ),
        Check::new(
            "mounting FUSE",
            mounting(),
            "run as root, or install the package fuse3 (for fusermount3)",
        ),
        Check::new(
            "/dev/loop-control",
            loopdev::open_control().map(|_| "opens".to_owned()).map_err(reason),
            "run as root; modprobe loop; in a container, pass /dev/loop-control in",
        ),
        Check::new("block devices", privilege(), "run as root (CAP_SYS_ADMIN)"),
        Check::new("kernel for LOOP_CONFIGURE", kernel(), "use Linux 5.8 or newer"),
        Check::new(
            "fs.fuse.max_pages_limit",
            max_pages(),
            "sysctl fs.fuse.max_pages_limit=256 (requests of 1 MiB)",
        ),
    ]
}

/// Whether the export can work here: with a block device, or only as a file.
///
/// # Errors
/// One line that says why not.
pub fn available(block_device: bool) -> Result<(), String> {
    let fuse = open("/dev/fuse").map_err(|why| format!("/dev/fuse: {why}"));
    fuse.and_then(|_| mounting())?;
    if block_device {
        privilege()?;
        kernel()?;
        loopdev::open_control().map_err(|e| format!("/dev/loop-control: {}", reason(e)))?;
    }
    Ok(())
}

fn open(path: &str) -> Result<String, String> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map(|_| "opens".to_owned())
        .map_err(reason)
}

fn reason(e: rustix::io::Errno) -> String {
    match e {
        rustix::io::Errno::NOENT => "missing".to_owned(),
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => "no permission".to_owned(),
        rustix::io::Errno::NODEV | rustix::io::Errno::NXIO => "the kernel has no driver".to_owned(),
        e => e.to_string(),
    }
}

fn mounting() -> Result<String, String> {
    if may_administer() {
        return Ok("as root".to_owned());
    }
    match fusermount() {
        Some(path) => Ok(format!("through {path}")),
        None => Err("not root, and no fusermount3".to_owned()),
    }
}

fn fusermount() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("fusermount3"))
        .find(|p| rustix::fs::access(p, Access::EXEC_OK).is_ok())
        .map(|p| p.display().to_string())
}

fn privilege() -> Result<String, String> {
    if may_administer() { Ok("as root".to_owned()) } else { Err("not root".to_owned()) }
}

/// Whether this process has `CAP_SYS_ADMIN` in effect.
fn may_administer() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    kernel_text("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .is_some_and(|caps| caps >> CAP_SYS_ADMIN & 1 == 1)
}

fn kernel() -> Result<String, String> {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    if version(&release).is_none_or(|v| v >= (5, 8)) {
        Ok(release) // an unreadable release is tried
    } else {
        Err(format!("Linux {release} is older than 5.8"))
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn max_pages() -> Result<String, String> {
    let file = Path::new("/proc/sys/fs/fuse/max_pages_limit");
    match fs::read_to_string(file).map(|t| t.trim().parse::<u64>()) {
        Ok(Ok(pages)) if pages < 256 => {
            Err(format!("{pages}: requests are cut to {} KiB", pages * 4))
        }
        Ok(Ok(pages)) => Ok(pages.to_string()),
        _ => Ok("256 (fixed in this kernel)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("5.10-rc1"), Some((5, 10)));
        assert!(version("5.10").unwrap() > (5, 8));
        assert_eq!(version("x"), None);
    }

    #[test]
    fn probe_and_available_agree() {
        let checks = probe();
        let works = |what| checks.iter().find(|c| c.what == what).unwrap().works;
        assert_eq!(available(false).is_ok(), works("/dev/fuse") && works("mounting FUSE"));
        if available(true).is_ok() {
            assert!(works("/dev/loop-control") && works("block devices"));
        }
        for c in checks {
            assert_eq!(c.works, c.hint.is_empty(), "{}", c.what);
        }
    }
}
