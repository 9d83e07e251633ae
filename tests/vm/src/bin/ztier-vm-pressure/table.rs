//! The results under pressure as a table, and the violated conditions.

use crate::kernel::{Counters, Said};
use serde_json::Value;
use std::fmt::Write;
use ztier::config::size::human;

/// Observations while the load ran.
#[derive(Debug, Default)]
pub struct Seen {
    /// Description of the load.
    pub load: String,
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// Lines that the load printed.
    pub lines: Vec<String>,
    /// Error of the load, if any.
    pub failed: Option<String>,
    /// Maximum of the swap in use, in bytes.
    pub swap_most: u64,
    /// Minimum of the available memory, in bytes.
    pub available_least: u64,
    /// Counters of the machine during the load.
    pub counters: Counters,
    /// Counters of the volume.
    pub stats: Value,
    /// The longest waits of the probe, in ms: for 1 MiB of memory, for 4 KiB of a file.
    pub longest: [Option<u64>; 2],
    /// Rounds of the probe.
    pub rounds: Option<u64>,
    /// The kernel's messages.
    pub said: Said,
    /// Other errors.
    pub wrong: Vec<String>,
}

impl Seen {
    /// Takes a line of the probe.
    pub fn hear(&mut self, line: &str) {
        let Some((what, number)) = line.split_once(' ') else { return };
        let number = number.parse().ok();
        match what {
            "memory" => self.longest[0] = number,
            "file" => self.longest[1] = number,
            "rounds" => self.rounds = number,
            _ => {}
        }
    }

    /// All violated conditions.
    pub fn wrongs(&self) -> Vec<String> {
        let mut wrongs = self.wrong.clone();
        wrongs.extend(self.failed.iter().map(|why| format!("the load: {why}")));
        wrongs.extend(self.said.wrong.iter().map(|line| format!("the kernel: {line}")));
        let bad = self.lines.iter().filter(|line| line.contains("fail:"));
        wrongs.extend(bad.cloned());
        if self.compared().unwrap_or(0) == 0 {
            wrongs.push("our own load has compared nothing".into());
        }
        if self.counters.swapped_in == 0 {
            wrongs.push("nothing came back from swap".into());
        }
        if self.rounds.is_none_or(|rounds| rounds < 2) {
            wrongs.push("the probe beside the load did not get on".into());
        }
        wrongs
    }

    /// Whether the load ran long enough: it has compared pages and swapped some in.
    pub fn pressed(&self) -> bool {
        self.compared().unwrap_or(0) > 0 && self.counters.swapped_in > 0
    }

    /// Pages that this program's own load has compared, in all its runs.
    fn compared(&self) -> Option<u64> {
        let lines = self.lines.iter().filter_map(|line| line.strip_prefix("compared "));
        lines.map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let stat = |key: &str| self.stats[key].as_u64().unwrap_or(0);
        let ms = |ms: Option<u64>| ms.map_or("unknown".to_owned(), |ms| format!("{ms} ms"));
        let pressure = |pair: Option<(u64, u64)>| match pair {
            None => "not told by this kernel".to_owned(),
            Some((some, full)) => {
                format!("some {:.1} s, all {:.1} s", some as f64 / 1e6, full as f64 / 1e6)
            }
        };
        let rows = [
            ("load", format!("{} for {:.0} s", self.load, self.seconds)),
            ("compared", format!("{} pages of our own load", self.compared().unwrap_or(0))),
            (
                "swapped",
                format!(
                    "{} out, {} in; at most {} at once",
                    human(self.counters.swapped_out),
                    human(self.counters.swapped_in),
                    human(self.swap_most)
                ),
            ),
            (
                "store",
                format!(
                    "at most {} of memory; {} spilled, {} requests refused",
                    human(stat("mem_used_max_bytes")),
                    human(stat("spill_written_bytes")),
                    stat("no_space")
                ),
            ),
            ("available", format!("{} of memory, at least", human(self.available_least))),
            (
                "longest wait",
                format!(
                    "{} for 1 MiB of memory, {} for 4 KiB of a file, in {} rounds of another process",
                    ms(self.longest[0]),
                    ms(self.longest[1]),
                    self.rounds.unwrap_or(0)
                ),
            ),
            ("short of memory", pressure(self.counters.memory)),
            ("short of I/O", pressure(self.counters.io)),
            ("swap refused", format!("{} pages, which stayed in memory", self.said.refused)),
            ("out of memory", format!("{} processes of the load ended", self.said.loads_ended)),
            ("kernel's log", format!("{} lines that must not be", self.said.wrong.len())),
        ];
        let mut text = String::new();
        for (key, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key:<16} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn good() -> Seen {
        let mut seen =
            Seen { lines: vec!["compared 90 pages in 2 passes".into()], ..Seen::default() };
        seen.counters.swapped_in = 4096;
        for line in ["memory 3", "file 1", "memory 12", "rounds 77"] {
            seen.hear(line);
        }
        seen
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(good().wrongs(), Vec::<String>::new());
        assert!(good().table().contains("12 ms for 1 MiB of memory, 1 ms for 4 KiB of a file"));
        let wrong = |change: fn(&mut Seen)| {
            let mut seen = good();
            change(&mut seen);
            seen.wrongs().remove(0)
        };
        assert!(good().pressed());
        let mut again = good();
        again.lines.insert(0, "compared 0 pages in 0 passes".into());
        assert!(again.pressed() && again.table().contains("90 pages of our own load"));
        again.counters.swapped_in = 0;
        assert!(!again.pressed());
        assert!(wrong(|seen| seen.lines[0] = "compared 0 pages".into()).contains("nothing"));
        assert!(wrong(|seen| seen.failed = Some("late".into())).contains("the load: late"));
        assert!(wrong(|seen| seen.lines.push("stress-ng: fail: x".into())).contains("fail: x"));
        assert!(wrong(|seen| seen.said.wrong.push("BUG: x".into())).contains("BUG: x"));
        assert!(wrong(|seen| seen.counters.swapped_in = 0).contains("nothing came back"));
        assert!(wrong(|seen| seen.rounds = None).contains("did not get on"));
        assert!(wrong(|seen| seen.wrong.push("swap is left".into())).contains("swap is left"));
    }
}
