//! The steps that put a volume before a disk, and how they are undone.
//!
//! Invariant: what was done is undone in the opposite order when a step fails, also what the failed
//! step itself did, and an error says what could not be.

use crate::cli::{output, service};
use crate::error::{Context, Error, Result};
use crate::escape::join_lines;
use crate::system::fstab::{Entry, Fstab};
use crate::system::mounts::{MountEntry, mounts, number_of};
use crate::system::within;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The table of file systems.
pub(super) const FSTAB: &str = "/etc/fstab";
/// How long a program may take: a disk with much to write is slow to unmount.
const PATIENCE: Duration = Duration::from_secs(300);

/// A step.
pub(super) enum Step {
    Unmount(MountEntry),
    /// The arguments of this program.
    Up(Vec<String>),
    Fstab,
    Mount(MountEntry),
}

/// What the steps have in common.
pub(super) struct Way {
    pub name: String,
    pub fstab: PathBuf,
    /// The lines of fstab to change.
    pub lines: Vec<Entry>,
}

impl Step {
    /// In one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unmount(_) => "unmount",
            Self::Up(_) => "up",
            Self::Fstab => "fstab",
            Self::Mount(_) => "mount",
        }
    }

    /// What to type, or to write.
    pub fn text(&self, way: &Way) -> String {
        match self {
            Self::Unmount(mount) => format!("umount {}", mount.point.display()),
            Self::Up(args) => format!("ztier {}", args.join(" ")),
            Self::Fstab => {
                let each = way
                    .lines
                    .iter()
                    .map(|line| format!("\n   - {}\n   + {}", line.line, line.on(&way.device())));
                format!("in {}{}", way.fstab.display(), each.collect::<String>())
            }
            Self::Mount(mount) => format!("mount {}", way.mount_args(mount).join(" ")),
        }
    }
}

impl Way {
    fn device(&self) -> String {
        format!("/dev/ztier/{}", self.name)
    }

    /// Does the steps.
    ///
    /// # Errors
    /// The first failure, after it and the steps before it were undone.
    pub fn go(&self, steps: &[Step]) -> Result<()> {
        let mut fstab = Fstab::read(&self.fstab)?;
        for (n, step) in steps.iter().enumerate() {
            if let Err(e) = self.step(step, &mut fstab) {
                let failed = self.has_acted(step).then_some(step);
                let left = self.undo(failed.into_iter().chain(steps[..n].iter().rev()), &mut fstab);
                return Err(match left.is_empty() {
                    true => e.after("undone, because "),
                    false => e.after(format!("{}; this because ", left.join("; "))),
                });
            }
        }
        Ok(())
    }

    fn step(&self, step: &Step, fstab: &mut Fstab) -> Result<()> {
        match step {
            Step::Unmount(mount) => call("umount", &[mount.point.display().to_string()]),
            Step::Up(args) => this_program(args),
            Step::Fstab => {
                let new = |line: &Entry| (line.line.clone(), line.on(&self.device()));
                let backup = fstab.replace(&self.lines.iter().map(new).collect::<Vec<_>>())?;
                output::remark(&format!(
                    "{} is changed; {} is what it was",
                    self.fstab.display(),
                    backup.display()
                ));
                self.reload();
                Ok(())
            }
            Step::Mount(mount) => call("mount", &self.mount_args(mount)),
        }
    }

    /// Whether a step that failed may have changed something all the same.
    fn has_acted(&self, step: &Step) -> bool {
        match step {
            // The volume is up, and its service did not take it over, for example.
            Step::Up(_) => true,
            // The kernel takes a mount away first, and writes what the disk lacks after that.
            Step::Unmount(mount) => !is_mounted(mount, |now| now.device == mount.device),
            Step::Mount(mount) => {
                let volume = number_of(Path::new(&self.device()));
                volume.is_some_and(|volume| is_mounted(mount, |now| now.is_of(volume)))
            }
            Step::Fstab => false,
        }
    }

    /// Undoes what was done, the last first. Returns what could not be.
    fn undo<'a>(&self, done: impl Iterator<Item = &'a Step>, fstab: &mut Fstab) -> Vec<String> {
        let mut left = Vec::new();
        for step in done {
            let undone = match step {
                Step::Unmount(mount) => call("mount", &self.mount_back(mount)),
                Step::Up(_) => self.forget(),
                Step::Fstab => fstab.restore().inspect(|()| self.reload()),
                Step::Mount(mount) => call("umount", &[mount.point.display().to_string()]),
            };
            left.extend(undone.err().map(|e| format!("{} is not undone: {e}", step.kind())));
        }
        left
    }

    /// Ends the volume, if it was made.
    fn forget(&self) -> Result<()> {
        let args = ["forget".to_owned(), self.name.clone()];
        match this_program(&args) {
            Err(e) if e.to_string().contains("no volume") => Ok(()),
            done => done,
        }
    }

    fn reload(&self) {
        if self.fstab != Path::new(FSTAB) {
            return;
        }
        if let Err(e) = service::reload() {
            output::remark(&e.to_string());
        }
    }

    /// How the volume is mounted: as fstab says then, else as the disk was.
    fn mount_args(&self, mount: &MountEntry) -> Vec<String> {
        let point = mount.point.display().to_string();
        match self.lines.iter().any(|line| line.point == mount.point) {
            true if self.fstab == Path::new(FSTAB) => vec![point],
            true => vec!["--fstab".into(), self.fstab.display().to_string(), point],
            false => as_before(mount, self.device(), point),
        }
    }

    /// How the disk is mounted again.
    fn mount_back(&self, mount: &MountEntry) -> Vec<String> {
        let point = mount.point.display().to_string();
        as_before(mount, mount.source.display().to_string(), point)
    }
}

/// Whether there is a mount that is `such`, where `mount` is or was.
fn is_mounted(mount: &MountEntry, such: impl Fn(&MountEntry) -> bool) -> bool {
    mounts().iter().any(|now| now.point == mount.point && such(now))
}

fn as_before(mount: &MountEntry, device: String, point: String) -> Vec<String> {
    vec!["-t".into(), mount.kind.clone(), "-o".into(), mount.options.clone(), device, point]
}

/// Calls this program with other arguments; it has to succeed.
fn this_program(args: &[String]) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    call(&program.display().to_string(), args)
}

/// Calls a program, which has to succeed.
fn call(program: &str, args: &[String]) -> Result<()> {
    let short = program.rsplit('/').next().unwrap_or(program);
    let shown = format!("`{short} {}`", args.join(" "));
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C");
    let done = within::output(&mut command, &shown, PATIENCE, |_| {})?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Error::failure(format!("{shown} failed: {}", join_lines(done.err.trim())))),
    }
}
