//! `ztier swapon` and `swapoff`: a volume's device as swap space, and no more.

use super::progress_line::ProgressLine;
use super::{client, output};
use crate::config::settings::word;
use crate::config::size::human;
use crate::config::tunable::{OF_PAGE_CLUSTER, OF_SWAPPINESS};
use crate::config::usage::{DEFAULT_PRIORITY, HIGHEST_PRIORITY, on_full};
use crate::config::{Ballast, Paths, SlotNews, Tunable, name};
use crate::control::{Request, Swapon, Swapping};
use crate::error::{Error, Result};
use crate::system::usage::{END_ALONE, Tuned, swapped};
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long making swap may take.
const PATIENCE_TO_BEGIN: Duration = Duration::from_secs(300);
/// How long ending it may take: a little longer than the daemon's own bound.
const PATIENCE_TO_END: Duration = Duration::from_secs(END_ALONE.as_secs() + 60);
/// How often progress is shown.
const GLANCE: Duration = Duration::from_millis(100);

/// Make the device of a volume swap space, and use it
///
/// Sets vm.page-cluster and vm.swappiness to suit the device, until `ztier swapoff`. Refuses a
/// volume that holds data. Swap serves the whole machine.
#[derive(Args)]
pub struct On {
    /// Name of the volume
    name: String,
    /// Priority, 0 to 32767; the highest is used first
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PRIORITY,
          value_parser = clap::value_parser!(i32).range(0..=HIGHEST_PRIORITY as i64))]
    priority: i32,
    /// vm.page-cluster meanwhile: log2 of the pages read at once, 0 to 31 [default: 5]
    #[arg(long, value_name = "N|keep")]
    page_cluster: Option<Tunable>,
    /// vm.swappiness meanwhile, 0 to 200 [default: 100]
    #[arg(long, value_name = "N|keep")]
    swappiness: Option<Tunable>,
    /// Whether the kernel is made to free the swap slots of pages that are read back; `auto`: while
    /// there is no other swap
    #[arg(long, value_name = "WHEN", default_value = "auto",
          value_parser = word::<Ballast>(&["auto", "on", "off"]))]
    ballast: Ballast,
    /// Whether blocks of freed swap slots are dropped; `auto`: where the kernel tells which
    #[arg(long, value_name = "WHEN", default_value = "auto",
          value_parser = word::<SlotNews>(&["auto", "off"]))]
    freed_slots: SlotNews,
    /// Run PROGRAM when memory and swap are nearly full, and when that is over
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    on_full: Option<PathBuf>,
    /// Overwrite what is on the device, and go on without what makes the daemon safe for swap
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl On {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let client = client(&Paths::of_this_user()?, &self.name)?;
        let request = Request::Swapon(Swapon {
            priority: self.priority,
            page_cluster: OF_PAGE_CLUSTER.resolve(self.page_cluster)?,
            swappiness: OF_SWAPPINESS.resolve(self.swappiness)?,
            ballast: self.ballast,
            freed_slots: self.freed_slots,
            on_full: on_full(self.on_full.as_deref())?,
            force: self.force,
        });
        let done: Swapping = client.ask(&request, PATIENCE_TO_BEGIN)?;
        if self.json {
            return output::json(&done);
        }
        let (size, settings) =
            (human(done.size_bytes), changed(&done.settings, |t| (t.before, t.set)));
        let name = &self.name;
        output::remark(&format!("{name}: {size} of swap, priority {}{settings}", done.priority));
        remarks(name, &done);
        output::list(&[done.device.display().to_string()])
    }
}

/// Take a volume out of use as swap
///
/// Pages that are swapped out come back to memory; refused if memory has no room for them. The
/// volume stays up.
#[derive(Args)]
pub struct Off {
    /// Name of the volume
    name: String,
    /// Also when memory seems to have no room; the kernel may have to end programs
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Off {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let client = client(&Paths::of_this_user()?, &self.name)?;
        let device = Path::new("/dev/ztier").join(&self.name);
        let request = Request::Swapoff { force: self.force };
        let done: Swapping = std::thread::scope(|scope| {
            let asked = scope.spawn(|| client.ask(&request, PATIENCE_TO_END));
            let progress_line = ProgressLine::new();
            while !asked.is_finished() {
                if let Some(area) = swapped(&device) {
                    progress_line.show(&format_args!(
                        "{}: {} to come back",
                        self.name,
                        human(area.used)
                    ));
                }
                std::thread::sleep(GLANCE);
            }
            progress_line.end();
            asked.join().unwrap_or_else(|_| Err(Error::failure("cannot ask the daemon")))
        })?;
        if self.json {
            return output::json(&done);
        }
        remarks(&self.name, &done);
        let (back, settings) =
            (human(done.used_bytes), changed(&done.settings, |t| (t.set, t.before)));
        output::print(&format!("{} is no swap any more; {back} came back{settings}\n", self.name))
    }
}

fn remarks(name: &str, done: &Swapping) {
    for note in &done.notes {
        output::remark(&format!("{name}: {note}"));
    }
}

/// The settings that changed, with their values before and after.
pub(super) fn changed(settings: &[Tuned], way: impl Fn(&Tuned) -> (u64, u64)) -> String {
    let one = |tuned: &Tuned| {
        let (from, to) = way(tuned);
        format!("; {} from {from} to {to}", tuned.key)
    };
    settings.iter().map(one).collect()
}
