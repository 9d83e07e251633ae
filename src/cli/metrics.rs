//! `ztier metrics`: metrics of all volumes for Prometheus, served or printed once.

use super::output;
use crate::config::Paths;
use crate::config::export::Address;
use crate::daemon::survey::Survey;
use crate::error::{Context, Result};
use crate::metrics::{self, PATIENCE, Scrape, Server};
use clap::{Args, ValueHint};
use std::fs::{self, File};
use std::io::Write;
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
    let write = || {
        let mut to = File::create(&new)?;
        to.write_all(text.as_bytes())?;
        // The collector mostly runs as another user.
        to.set_permissions(fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, file)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new))).context(what())
}
