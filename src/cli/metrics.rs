//! `ztier metrics`: metrics of all volumes for Prometheus, served or printed once.

use super::output;
use crate::config::Paths;
use crate::config::export::Address;
use crate::daemon::survey::Survey;
use crate::error::{Context, Result};
use crate::metrics::{self, PATIENCE, Scrape, Server};
use crate::private;
use clap::{Args, ValueHint};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Serve metrics of all volumes to Prometheus, or print them
#[derive(Args)]
pub struct Metrics {
    /// Address of the server of /metrics; a port alone means 127.0.0.1
    #[arg(long, alias = "metrics", value_name = "ADDR", default_value = "127.0.0.1:10810")]
    listen: Address,
    /// Print them once, and exit
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    /// Write them to a file in one step instead, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", requires = "once", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Print what every metric means, as docs/metrics.md has it
    #[arg(long, hide = true, conflicts_with_all = ["listen", "once"])]
    describe: bool,
}

impl Metrics {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if self.describe {
            return output::print(&metrics::describe());
        }
        let paths = Paths::of_this_user()?;
        if !self.once {
            let server = Server::bind(self.listen.0, paths)?;
            output::print(&format!("http://{}/metrics\n", server.address()?))?;
            server.run();
        }
        let mut survey = Survey::new(paths);
        let begun = Instant::now();
        survey.look_around(PATIENCE)?;
        let text = metrics::text(&Scrape { volumes: survey.known(), took: begun.elapsed() });
        match self.output {
            Some(file) => replace(&file, &text),
            None => output::print(&text),
        }
    }
}

/// Replaces a file in one step, so that a reader never sees a part of it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let what = || format!("cannot write {}", file.display());
    let mut name = file.file_name().unwrap_or_default().to_owned();
    // The collector reads every file that ends with .prom.
    name.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(name);
    // The collector mostly runs as another user.
    let dress = |to: &File| to.set_permissions(Permissions::from_mode(0o644));
    private::replace_dressed(file, &new, text.as_bytes(), false, dress).context(what())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn all_users_can_read_it_and_a_link_in_its_way_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [file, other] = ["ztier.prom", "other"].map(|name| dir.path().join(name));
        replace(&file, "old").unwrap();
        let mode = fs::metadata(&file).unwrap().mode() & 0o7777;
        assert_eq!((mode, fs::read_to_string(&file).unwrap().as_str()), (0o644, "old"));
        fs::write(&other, "mine").unwrap();
        let new = dir.path().join(format!("ztier.prom.{}.new", std::process::id()));
        symlink(&other, &new).unwrap();
        assert!(replace(&file, "new").is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        replace(&file, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }
}
