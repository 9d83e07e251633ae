//! What this machine has for the ublk export, and how to get what is missing.

use super::abi;
use super::control::{self, Control, Failure, PATH};
use crate::error::Error;
use crate::system::Check;
use rustix::io::Errno;

const LOAD: &str = "modprobe ublk_drv (Linux 6.1 or newer, CONFIG_BLK_DEV_UBLK)";
const ROOT: &str = "run as root (CAP_SYS_ADMIN)";
const RING: &str = "sysctl kernel.io_uring_disabled=0, or a container that allows io_uring";
const RECOVERY: &str = "use Linux 6.1 or newer";

/// Names of the features that the export uses or profits from.
const FEATURES: [(u64, &str); 4] = [
    (abi::F_USER_RECOVERY, "recovery"),
    (abi::F_USER_RECOVERY_REISSUE, "reissue"),
    (abi::F_USER_COPY, "user copy"),
    (abi::F_UPDATE_SIZE, "growing"),
];

/// Looks at everything that the ublk export uses. Changes nothing.
pub fn probe() -> Vec<Check> {
    let (control, features, recovery) = match Control::open() {
        Err(e) => {
            let (why, hint) = explain(&e);
            let unknown = || Err("unknown without the driver".to_owned());
            (
                Check::new(PATH, Err(why), hint),
                Check::new("ublk features", unknown(), hint),
                Check::new("ublk recovery", unknown(), hint),
            )
        }
        Ok(control) => (
            Check::new(PATH, Ok("opens".to_owned()), ""),
            Check::new("ublk features", features(&control), "use Linux 6.5 or newer"),
            Check::new("ublk recovery", recovery(&control), RECOVERY),
        ),
    };
    vec![control, recovery, features]
}

/// Whether the export can work here.
///
/// # Errors
/// One line that says why not, and what to do.
pub fn available() -> Result<(), String> {
    match Control::open() {
        Ok(control) => recovery(&control).map(drop).map_err(|why| format!("{why} ({RECOVERY})")),
        Err(e) => {
            let (why, hint) = explain(&e);
            Err(format!("{why} ({hint})"))
        }
    }
}

/// The error when the driver, which a command needs, can't be asked.
pub(super) fn refusal(failure: &Failure) -> Error {
    let (why, hint) = explain(failure);
    Error::failure(format!("export ublk does not work here: {why}")).hint(hint)
}

/// Why the driver can't be asked, and what to do about it.
fn explain(failure: &Failure) -> (String, &'static str) {
    match failure {
        Failure::Errno(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            (format!("{PATH} is missing: the kernel has no ublk, or it is not loaded"), LOAD)
        }
        Failure::Errno(Errno::ACCESS | Errno::PERM) => (format!("{PATH}: no permission"), ROOT),
        Failure::Ring(e) => (format!("no io_uring: {e}"), RING),
        e => (format!("{PATH}: {e}"), LOAD),
    }
}

fn features(control: &Control) -> Result<String, String> {
    let Some(all) = control.features() else {
        return Err("the driver does not tell; requests are copied twice".to_owned());
    };
    let named = FEATURES.iter().filter(|(flag, _)| all & flag != 0).map(|(_, name)| *name);
    Ok(named.collect::<Vec<_>>().join(", "))
}

fn recovery(control: &Control) -> Result<String, String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let works = match control.features() {
        Some(features) => control::recovers(features),
        None => version(&release).is_none_or(|v| v >= (6, 1)), // an unreadable release is tried
    };
    if works {
        Ok("devices outlive their daemon".to_owned())
    } else {
        Err(format!("ublk of Linux {release} can't recover devices"))
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_failure_has_a_way_out() {
        for (failure, word) in [
            (Failure::Errno(Errno::NOENT), "modprobe ublk_drv"),
            (Failure::Errno(Errno::ACCESS), "root"),
            (Failure::Ring(Errno::PERM), "io_uring_disabled"),
            (Failure::Errno(Errno::IO), "modprobe"),
        ] {
            let error = refusal(&failure).to_string();
            assert!(error.contains(word) && error.contains("export ublk"), "{error}");
        }
    }

    #[test]
    fn probe_and_available_agree() {
        let checks = probe();
        let works = |what| checks.iter().find(|c| c.what == what).unwrap().works;
        assert_eq!(available().is_ok(), works(PATH) && works("ublk recovery"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("6.12.95+deb12"), Some((6, 12)));
        assert!(version("6.1-rc1").unwrap() >= (6, 1));
        assert_eq!(version("x"), None);
    }
}
