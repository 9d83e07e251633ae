//! `ztier man` and `ztier completions`: made from the same definitions as the parser.

use super::{Cli, output};
use crate::config::settings::KEYS;
use crate::error::{Context, Result};
use clap::{Args, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::PathBuf;

/// Write the manual pages
#[derive(Args)]
#[command(hide = true)]
pub struct Man {
    /// Directory for ztier.1, a page for each command, and ztier.toml.5 [default: print ztier.1]
    #[arg(value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

impl Man {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.directory {
            Some(directory) => {
                let what = format!("cannot write to {}", directory.display());
                std::fs::create_dir_all(&directory).context(&what)?;
                clap_mangen::generate_to(Cli::command(), &directory).context(&what)?;
                std::fs::write(directory.join("ztier.toml.5"), of_the_file()).context(&what)
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(Cli::command())
                    .render(&mut page)
                    .context("cannot make the manual page")?;
                output::print(&String::from_utf8_lossy(&page))
            }
        }
    }
}

/// The page of the settings' file.
fn of_the_file() -> String {
    let mut page = Roff::new();
    page.control("TH", ["ztier.toml", "5"]);
    page.control("SH", ["NAME"]).text([roman("ztier.toml - settings of a volume of ztier")]);
    page.control("SH", ["SYNOPSIS"])
        .text([roman("/etc/ztier/NAME.toml; of users other than root ~/.config/ztier/NAME.toml")]);
    page.control("SH", ["DESCRIPTION"]).text([roman(
        "TOML, which ztier up NAME reads unless given --size, --backing or --log; other flags win \
         over it. Flags have the keys' names. An unknown key or value is refused.",
    )]);
    page.control("SH", ["KEYS"]);
    for key in KEYS {
        page.control("TP", []);
        page.text([bold(key.name)]);
        let default = match key.default() {
            none if none.is_empty() => String::new(),
            default => format!(" Default: {default}."),
        };
        page.text([roman(format!("{} Values: {}.{default}", key.meaning(), key.values()))]);
    }
    page.control("SH", ["SEE ALSO"]).text([
        bold("ztier-up"),
        roman("(1), "),
        bold("ztier-set"),
        roman("(1)"),
    ]);
    page.render()
}

/// Print completions for a shell
#[derive(Args)]
#[command(hide = true)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "ztier", &mut script);
        output::print(&String::from_utf8_lossy(&script))
    }
}
