//! Runs a table in a virtual machine, under a kernel with features that this machine's kernel
//! lacks: this program runs there, and its figures come back.
//!
//! The CPUs are emulated, which costs each system differently: only ratios mean anything, and less
//! than on real CPUs.

use crate::model::{ModelDrive, Name};
use crate::report::{Output, print, say};
use crate::rival::raw::RawDevice;
use crate::rival::served::{QUEUE, Served};
use crate::sys::interrupt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};
pub use ztier_vm::kernel::Flavour;
use ztier_vm::{Cache, Lab, Setup, Trouble};

/// Limit on the time of a table, longer than any takes there.
const LIMIT: Duration = Duration::from_secs(3600);
/// File in the machine with the figures.
const FIGURES: &str = "/tmp/figures";

/// How fast the disks of a machine are.
#[derive(Clone, Copy)]
pub enum Speed<'a> {
    /// As this system's files are.
    AsFiles,
    /// Files with limits in bytes and requests a second, one pair for each disk.
    Held(&'a [(u64, u64)]),
    /// Each the beginning of such a drive.
    Modelled(Name),
}

/// What to run, and on which machine.
pub struct Inside<'a> {
    /// Arguments of this program in the machine.
    pub args: Vec<String>,
    /// The machine's kernel.
    pub kernel: Flavour,
    /// Memory of the machine, in MiB.
    pub memory: u32,
    /// CPUs of the machine; one, if it counts instructions.
    pub cpus: u32,
    /// Names and sizes of the machine's disks, `/disk/NAME`.
    pub disks: &'a [(&'a str, u64)],
    /// How fast the disks are.
    pub speed: Speed<'a>,
    /// Modules to load before.
    pub modules: &'a str,
    /// Shell commands to run before.
    pub prepare: &'a str,
    /// Whether to count instructions: one CPU, whose clock advances by a nanosecond with each.
    pub counted: bool,
    /// Files for the figures.
    pub output: &'a Output,
    /// File for the picture of a table that makes one.
    pub svg: Option<&'a Path>,
}

impl Inside<'_> {
    /// Boots a machine, runs the table in it, and prints what it prints.
    ///
    /// # Errors
    /// This machine can't run virtual machines, or the table failed there.
    pub fn run(self) -> Result<()> {
        let lab = Lab::of(self.kernel, &["ztier", "ztier-bench"]).map_err(Trouble::into_error)?;
        let _turn = lab.turn(LIMIT)?;
        let cpus = if self.counted { 1 } else { self.cpus };
        let mut setup = Setup::new(&lab).memory(self.memory).cpus(cpus);
        if self.counted {
            setup = setup.args(&["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
        }
        // Dropped after the machine that uses them.
        let mut served = Vec::new();
        for (n, (name, size)) in self.disks.iter().enumerate() {
            setup = match self.speed {
                Speed::AsFiles => setup.disk(name, *size),
                Speed::Held(limits) => {
                    let (bytes, requests) = limits[n];
                    setup.held_disk(name, *size, bytes, requests)
                }
                Speed::Modelled(drive) => {
                    let drive = Name { size: drive.size.min(*size), ..drive };
                    served.push(modelled(drive, name)?);
                    setup.file_disk(name, served[n].path(), Cache::None)
                }
            };
        }
        let begun = Instant::now();
        let machine = setup.boot()?;
        let emulation = self.emulation(lab.kernel.release());
        say(&format!("{emulation}, up after {:.1} s", begun.elapsed().as_secs_f64()));
        print(&format!("machine: {emulation}"));
        let modules = self.modules.split_whitespace();
        let load: String = modules.map(|module| format!("modprobe {module}; ")).collect();
        let inside = quoted(&emulation);
        let counted = if self.counted { " --counted" } else { "" };
        let args: String = self.args.iter().map(|arg| format!(" {}", quoted(arg))).collect();
        let script = format!(
            "export PATH=$PATH:/usr/local/bin; {load}{}exec ztier-bench{args} --inside {inside}{counted} \
             --json {FIGURES}.json --csv {FIGURES}.csv{}",
            self.prepare,
            self.svg.map_or(String::new(), |_| format!(" --svg {FIGURES}.svg"))
        );
        let status =
            machine.begin(&script)?.follow_while(LIMIT, std::io::stdout(), interrupt::check)?;
        let (json, csv) = (self.output.json.as_deref(), self.output.csv.as_deref());
        for (path, end) in [(json, "json"), (csv, "csv"), (self.svg, "svg")] {
            let Some(path) = path else { continue };
            let figures = machine.get(&format!("{FIGURES}.{end}"), LIMIT)?;
            std::fs::write(path, figures).context(format!("cannot write {}", path.display()))?;
        }
        machine.off()?;
        if status == 0 { Ok(()) } else { Err(Error::failure("the table failed in the machine")) }
    }

    fn emulation(&self, release: &str) -> String {
        let how = match (self.counted, self.cpus) {
            (true, _) => "1 CPU whose clock counts instructions".to_owned(),
            (false, 1) => "1 emulated CPU".to_owned(),
            (false, cpus) => format!("{cpus} emulated CPUs"),
        };
        format!("Linux {release} under QEMU TCG, {how}, {} MiB", self.memory)
    }
}

/// A modelled drive in real time, as a block device of this system.
fn modelled(drive: Name, name: &str) -> Result<Served> {
    let drive = Arc::new(ModelDrive::real_time(drive));
    Served::by(Arc::new(RawDevice(drive)), &format!("vm-{name}"), QUEUE)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_quoted_text_as_one_word() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
