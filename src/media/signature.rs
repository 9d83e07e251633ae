//! Recognizes known content on a drive before it is overwritten: file systems, swap, RAID, LVM,
//! LUKS, partition tables.
//!
//! Invariants: the drive is only read; a probe without an answer is an error and never counts as
//! «empty»; a probe takes at most [`PATIENCE`].
//!
//! `libblkid` knows more than a hundred kinds, with their versions, checksums and look-alikes, and
//! `mkfs` and `wipefs` go by it. ztier asks it through its program, `blkid`, which every
//! distribution has in its base. The bindings (`libblkid-rs`, `rsblkid`) need a C library and clang
//! to build and link the library hard, and the probes in Rust (`am-partitions`, `libblockid`) know
//! a dozen kinds. With a program, a crash or hang on a damaged file system also stays in a process
//! of its own.

use super::buffer::Buffer;
use super::drive::{ALIGN, Drive};
use super::file_drive::FileDrive;
use crate::error::{Context, Error, Result};
use crate::escape::join_lines;
use crate::patience::readable;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest that a probe may take; a disk may have to spin up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where to look for the program: `PATH` often lacks these directories for users other than root.
const PROGRAMS: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];

/// The exit statuses of `blkid -p`.
const NOTHING: i32 = 2;
const SEVERAL: i32 = 8;

/// Bytes at each end of a drive that hold all known signatures.
const HEAD: u64 = 4 << 20;
const TAIL: u64 = 1 << 20;

/// Known content of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// `ext4`, `swap`, `crypto_LUKS`, `gpt partition table`, `several signatures`.
    pub kind: String,
    /// The name that its owner gave it.
    pub label: Option<String>,
    /// Its unique id.
    pub uuid: Option<String>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        match (&self.label, &self.uuid) {
            (Some(label), _) => write!(f, " \"{label}\""),
            (None, Some(uuid)) => write!(f, " {uuid}"),
            (None, None) => Ok(()),
        }
    }
}

impl Signature {
    /// Looks for known content on `drive`; `None` when there is none. Does not recognize content of
    /// ztier itself.
    ///
    /// # Errors
    /// The content cannot be determined: the drive cannot be read, or there is no `blkid` and the
    /// drive is not empty.
    pub fn of(drive: &FileDrive) -> Result<Option<Self>> {
        // `blkid` does not tell a drive that can't be read from an empty one.
        let head = drive.size().min(128 << 10) as usize;
        drive.read(0, &mut Buffer::new(head)[..head]).context(unknown(drive))?;
        let Some(child) = start(drive)? else {
            return match ends_are_zero(drive)? {
                true => Ok(None),
                false => Err(Error::failure(format!("{}: there is no blkid", unknown(drive)))
                    .hint("install util-linux")),
            };
        };
        let out = finish(child).context(unknown(drive))?;
        let text = String::from_utf8_lossy(&out.stdout);
        match out.status.code() {
            Some(0) => Ok(parse(&text)),
            Some(NOTHING) if out.stderr.is_empty() => Ok(None),
            Some(SEVERAL) => {
                Ok(Some(Self { kind: "several signatures".into(), ..Self::default() }))
            }
            _ => {
                let said = join_lines(&String::from_utf8_lossy(&out.stderr));
                Err(Error::failure(format!("{}: {}: {said}", unknown(drive), out.status)))
            }
        }
    }
}

fn unknown(drive: &FileDrive) -> String {
    format!("cannot tell what is on {}", drive.path().display())
}

/// Starts the program on the drive; `None` when there is none.
fn start(drive: &FileDrive) -> Result<Option<Child>> {
    for program in PROGRAMS {
        // Not the drive's own descriptor: its lock would go along.
        let input = drive.reopen().context(unknown(drive))?;
        let started = Command::new(program)
            .args(["-p", "-o", "export", "/proc/self/fd/0"])
            .env("LC_ALL", "C")
            .env_remove("LIBBLKID_DEBUG")
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(child) => return Ok(Some(child)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).context(format!("cannot run {program}")),
        }
    }
    Ok(None)
}

/// Waits for the program, and kills it when it takes too long. Its output fits into a pipe.
fn finish(mut child: Child) -> Result<Output> {
    if !ends(&child, PATIENCE)? {
        // On a dead disk even a kill may not end the program; then it is left behind.
        child.kill().context("cannot end blkid")?;
        if ends(&child, Duration::from_secs(1))? {
            child.wait().context("cannot wait for blkid")?;
        }
        let text = format!("no answer within {} seconds", PATIENCE.as_secs());
        return Err(Error::failure(text).hint("check the drive"));
    }
    child.wait_with_output().context("cannot wait for blkid")
}

/// Whether the program ends within `patience`.
fn ends(child: &Child, patience: Duration) -> Result<bool> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch blkid")?;
    readable(&handle, Instant::now() + patience).context("cannot watch blkid")
}

/// Parses `NAME=value` lines. Only content counts, not a partition's entry in its table.
fn parse(text: &str) -> Option<Signature> {
    let value = |name: &str| {
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('=')).map(unescape)
    };
    if let Some(kind) = value("TYPE") {
        let label = value("LABEL").or_else(|| value("LABEL_FATBOOT"));
        return Some(Signature { kind, label, uuid: value("UUID") });
    }
    if let Some(table) = value("PTTYPE") {
        let kind = format!("{table} partition table");
        return Some(Signature { kind, label: None, uuid: value("PTUUID") });
    }
    // Content for which `blkid` has a usage and no type: rare, but still content.
    let kind = value("USAGE")?;
    Some(Signature { kind, label: value("LABEL"), uuid: value("UUID") })
}

/// Undoes the backslashes, and drops control characters, which could act on a terminal.
fn unescape(value: &str) -> String {
    let mut out = String::new();
    let mut escaped = false;
    for c in value.chars() {
        if c == '\\' && !escaped {
            escaped = true;
        } else {
            out.extend((!c.is_control()).then_some(c));
            escaped = false;
        }
    }
    out
}

/// Whether both ends of a drive, where every signature would be, are zeros.
fn ends_are_zero(drive: &FileDrive) -> Result<bool> {
    let size = drive.size();
    let mut buffer = Buffer::new(256 << 10);
    for (from, to) in [(0, HEAD.min(size)), (size.saturating_sub(TAIL), size)] {
        let mut at = from / ALIGN as u64 * ALIGN as u64;
        while at < to {
            let piece = &mut buffer[..(to - at).min(256 << 10) as usize];
            drive.read(at, piece).context(unknown(drive))?;
            if piece.iter().any(|b| *b != 0) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
    }
    Ok(true)
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::Access;

    #[test]
    fn what_blkid_says_is_taken_apart() {
        let found = parse("DEVNAME=x\nLABEL=my\\ la\\\"bel\nUUID=12-34\nTYPE=ext4\n").unwrap();
        assert_eq!(found.kind, "ext4");
        assert_eq!(found.label.as_deref(), Some("my la\"bel"));
        assert_eq!(found.uuid.as_deref(), Some("12-34"));
        assert_eq!(found.to_string(), "ext4 \"my la\"bel\"");
        let found = parse("PTUUID=abc\nPTTYPE=gpt\nPART_ENTRY_TYPE=x\n").unwrap();
        assert_eq!(found.to_string(), "gpt partition table abc");
        assert_eq!(parse("USAGE=raid\n").unwrap().to_string(), "raid");
        assert_eq!(parse("PART_ENTRY_SCHEME=gpt\nPART_ENTRY_UUID=1\nPART_ENTRY_TYPE=2\n"), None);
        assert_eq!(parse("\n=\nTYPE\n"), None);
        assert_eq!(unescape("a\\\\b\u{1b}[31m"), "a\\b[31m");
    }

    #[test]
    fn without_blkid_only_an_empty_drive_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive");
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
        assert!(ends_are_zero(&drive).unwrap());
        for (at, zero) in
            [(0, false), (3 << 20, false), (8 << 20, true), ((16 << 20) - 4096, false)]
        {
            drive.write(at, &[1; 4096]).unwrap();
            assert_eq!(ends_are_zero(&drive).unwrap(), zero, "{at}");
            drive.zero(at, 4096).unwrap();
        }
    }

    #[test]
    fn a_program_that_hangs_is_noticed() {
        let mut child = Command::new("sleep").arg("20").spawn().unwrap();
        let ended = ends(&child, Duration::from_millis(20));
        child.kill().unwrap();
        assert!(!ended.unwrap());
        assert!(ends(&child, Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
    }
}
