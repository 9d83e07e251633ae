//! Programs of this system for other machines: with the libraries that they load.

use crate::command::{find, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use ztier::error::{Context, Error, Result};

/// The libraries of a program, its loader included; empty for a static program.
///
/// # Errors
/// A library is missing here, too.
pub fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    // `ldd` fails for a static program, and reports that on either output.
    let out = Command::new("ldd").arg(program).env("LC_ALL", "C").output();
    let out = out.context("cannot run ldd")?;
    let mut found = BTreeSet::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        if line.contains("not found") {
            let missing = line.trim();
            return Err(Error::failure(format!("{} lacks {missing}", program.display())));
        }
        let path = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// Set while all programs are as new as their sources.
const BUILT: &str = "ZTIER_VM_BUILT";

/// A program of this workspace, from the same build as this one. When cargo runs this program,
/// cargo builds the other one first, so that it is never older than its sources; unless
/// `ZTIER_VM_BUILT` says that it is there. A build of programs alone has other features of some
/// libraries than one of tests, and takes as long again.
///
/// # Errors
/// The program is missing, or cannot be built.
pub fn ours(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    // Tests are one directory deeper.
    let places: Vec<_> = own.ancestors().skip(1).take(2).map(|place| place.join(name)).collect();
    let cargo = std::env::var_os("CARGO").filter(|_| std::env::var_os(BUILT).is_none());
    if let Some(cargo) = cargo {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        // Without the features of the tests beside it, it would replace the program that they run.
        let features = std::env::var("ZTIER_FEATURES").unwrap_or_default();
        let built = Command::new(&cargo)
            .args(["build", "--quiet", "--locked", "--workspace", "--profile", profile])
            .args(["--features", &features, "--bin", name, "--manifest-path"])
            .arg(manifest)
            .status()
            .context("cannot run cargo")?;
        if !built.success() {
            return Err(Error::failure(format!("{name} does not build")));
        }
    }
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Error::failure(format!("there is no {name} beside {}", own.display()))
            .hint("build the workspace")
    })
}

/// Copies a program to `to`, without debug information.
///
/// # Errors
/// It cannot be copied.
pub fn copy_stripped(program: &Path, to: &Path) -> Result<()> {
    let (from, at) = (program.to_string_lossy(), to.to_string_lossy());
    if find("strip").is_some() && run(60, "strip", &["-o", &at, &from]).is_ok() {
        return Ok(());
    }
    std::fs::copy(program, to).context(format_args!("cannot copy {from}")).map(drop)
}
