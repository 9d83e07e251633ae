//! The marks of a volume's drives in its saved settings. Another drive under the same name is
//! refused.
//!
//! Invariant: this module writes nothing. A drive that cannot be read passes the check: opening it
//! reports the failure.

use crate::error::{Error, Result};
use crate::log::{self, OpenError};
use crate::media::{Access, FileDrive, StableId};
use std::path::Path;

/// The marks of a volume's drives, in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The UUID in the log's superblock: 32 digits.
    pub log: Option<String>,
    /// The number of the [`StableId`] of a backing store without a log: 16 digits. A log identifies
    /// its backing store itself.
    pub backing: Option<String>,
}

impl Marks {
    /// The marks of these drives; `None` for a drive that has none.
    pub fn of(log: Option<&Path>, backing: Option<&Path>) -> Self {
        match (log, backing) {
            (Some(log), _) => Self { log: uuid_of(log).ok().flatten(), backing: None },
            (None, Some(backing)) => Self { log: None, backing: id_of(backing) },
            (None, None) => Self::default(),
        }
    }

    /// Refuses drives that have other marks.
    ///
    /// # Errors
    /// A drive has another mark: names the found and the expected one.
    pub fn check(&self, log: Option<&Path>, backing: Option<&Path>) -> Result<()> {
        if let (Some(wanted), Some(log)) = (&self.log, log) {
            match uuid_of(log) {
                Ok(Some(found)) if found != *wanted => {
                    return Err(Error::would_lose(format!(
                        "{} holds the log {found}, not the log {wanted} of this volume",
                        log.display()
                    )));
                }
                Ok(None) => {
                    return Err(Error::would_lose(format!(
                        "{} holds no log, and not the log {wanted} of this volume",
                        log.display()
                    )));
                }
                Ok(Some(_)) | Err(_) => {}
            }
        }
        if let (Some(wanted), Some(backing)) = (&self.backing, backing)
            && id_of(backing).is_some_and(|found| found != *wanted)
        {
            return Err(Error::would_lose(format!(
                "{} is another drive than this volume had under that name",
                backing.display()
            )));
        }
        Ok(())
    }
}

/// The UUID of the log on a drive; `None` if there is no log.
fn uuid_of(log: &Path) -> std::result::Result<Option<String>, ()> {
    let drive = FileDrive::open(log, Access::ReadOnly).map_err(drop)?;
    match log::read_superblock(&drive) {
        Ok((sb, ..)) => Ok(Some(format!("{:032x}", u128::from_be_bytes(sb.uuid)))),
        Err(OpenError::NoLog) => Ok(None),
        Err(_) => Err(()),
    }
}

/// The id of a drive, if it has one.
fn id_of(backing: &Path) -> Option<String> {
    let drive = FileDrive::open(backing, Access::ReadOnly).ok()?;
    let number = StableId::of(&drive).number();
    (number != 0).then(|| format!("{number:016x}"))
}
