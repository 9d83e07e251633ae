//! The manual pages: what the parser knows of a command, and examples, files, variables and exit
//! statuses after it.
//!
//! Invariants: each command that is shown has a page with examples, which the parser takes.

use super::Cli;
use crate::config::settings::KEYS;
use crate::error::{Context, Result, Status};
use clap::{Command, CommandFactory};
use clap_mangen::roff::{Roff, bold, roman};
use std::io::{self, Write};
use std::path::Path;

/// A term and what is said of it.
pub(super) type Pair = (&'static str, &'static str);

/// What a page has besides what the parser knows.
struct Page {
    /// The words after `ztier`.
    command: &'static str,
    /// What for, and what to type.
    examples: &'static [Pair],
    files: &'static [Pair],
    environment: &'static [&'static [Pair]],
}

const SETTINGS: Pair = (
    "/etc/ztier/NAME.toml",
    "Settings of a volume; of users other than root ~/.config/ztier/NAME.toml. See ztier.toml(5).",
);
const RUN: Pair = (
    "/run/ztier",
    "Sockets, locks and state of volumes that are up; of users other than root \
     $XDG_RUNTIME_DIR/ztier, else /tmp/ztier-UID.",
);
const STATE: Pair = (
    "/var/lib/ztier",
    "Which log each backing store has; of users other than root ~/.local/state/ztier.",
);
const FSTAB: Pair = ("/etc/fstab", "Gets the volume in place of the disk.");
const DEVICE: Pair = ("/dev/ztier/NAME", "The block device of a volume.");

const RUN_VARIABLE: &[Pair] = &[("ZTIER_RUN_DIR", "A directory in place of /run/ztier.")];
const STATE_VARIABLE: &[Pair] = &[("ZTIER_STATE_DIR", "A directory in place of /var/lib/ztier.")];
const ALL_VARIABLES: &[Pair] = &[
    ("ZTIER_RUN_DIR", "A directory in place of /run/ztier."),
    ("ZTIER_CONFIG_DIR", "A directory in place of /etc/ztier."),
    ("ZTIER_STATE_DIR", "A directory in place of /var/lib/ztier."),
];
const BUCKETS: &[Pair] = &[
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
        "Credentials of a store at s3://.",
    ),
    ("AWS_REGION, AWS_ENDPOINT_URL", "Where its bucket is."),
];
const ZONE: &[Pair] = &[("TZ", "The time zone of times that are shown.")];
const SCREEN: &[Pair] = &[
    ("NO_COLOR", "If it is set, the screen has no colours."),
    ("COLUMNS", "The width of a look that is printed."),
];

const PAGES: &[Page] = &[
    Page {
        command: "",
        examples: &[
            ("A compressed RAM disk of 3 GiB:", "ztier up scratch --size 3G"),
            ("What it holds, and whether it is well:", "ztier status scratch"),
            ("End it, and give up its data:", "ztier down scratch --discard"),
            ("What works on this machine:", "ztier doctor"),
        ],
        files: &[DEVICE, SETTINGS, RUN, STATE],
        environment: &[ALL_VARIABLES],
    },
    Page {
        command: "up",
        examples: &[
            ("A compressed RAM disk:", "ztier up scratch --size 3G"),
            (
                "Swap, whose coldest pages go to a partition that is overwritten:",
                "ztier up swap --size 4G --spill /dev/sdb2 --use swap",
            ),
            ("A read cache of a slow disk, in memory:", "ztier up data --backing /dev/sdb"),
            (
                "A write log on an SSD before a slow disk, with the settings saved:",
                "ztier up data --backing /dev/sdb --log /dev/nvme0n1p3 --save",
            ),
            (
                "A volume in a directory that hosts share:",
                "ztier up vol --backing file:///srv/vol --size 1T --log none",
            ),
            ("In a script that may run again:", "ztier up scratch --size 3G --ensure"),
            (
                "Swap of half the memory, now and at each boot:",
                "ztier up swap --size 50% --use swap --enable",
            ),
            ("All that come up with the machine:", "ztier up --all"),
        ],
        files: &[DEVICE, SETTINGS, RUN, STATE],
        environment: &[ALL_VARIABLES, BUCKETS],
    },
    Page {
        command: "down",
        examples: &[
            ("A volume whose data is on drives:", "ztier down data"),
            ("The same; the backing store is used alone after it:", "ztier down data --drain"),
            ("A RAM disk, with its data:", "ztier down scratch --discard"),
            ("In a script that may run again:", "ztier down data --if-exists"),
            ("All of them:", "ztier down --all"),
        ],
        files: &[RUN, STATE],
        environment: &[RUN_VARIABLE, STATE_VARIABLE],
    },
    Page {
        command: "drain",
        examples: &[("Before a snapshot of the backing store:", "ztier drain data")],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "adopt",
        examples: &[
            ("What would be done, and whether it can be:", "ztier adopt /dev/sdb1"),
            (
                "A write log on an SSD before a disk in use, now and at each boot:",
                "ztier adopt /dev/sdb1 --log /dev/nvme0n1p3 --apply",
            ),
        ],
        files: &[SETTINGS, FSTAB],
        environment: &[ALL_VARIABLES],
    },
    Page {
        command: "disable",
        examples: &[("From the next boot on, until it is enabled again:", "ztier disable data")],
        files: &[SETTINGS],
        environment: &[ALL_VARIABLES],
    },
    Page {
        command: "forget",
        examples: &[
            ("A log is drained; the disk is used alone after it:", "ztier forget data"),
            ("A RAM disk, with its data:", "ztier forget scratch --discard"),
        ],
        files: &[SETTINGS, RUN, STATE],
        environment: &[ALL_VARIABLES],
    },
    Page {
        command: "restart",
        examples: &[
            ("After an upgrade, or when a daemon died:", "ztier restart data"),
            ("Move the log to another drive:", "ztier restart data --log /dev/nvme1n1p3"),
        ],
        files: &[RUN, STATE],
        environment: &[RUN_VARIABLE, STATE_VARIABLE, BUCKETS],
    },
    Page {
        command: "list",
        examples: &[
            ("All volumes:", "ztier list"),
            ("The largest first:", "ztier list -o name,memory --sort memory"),
            ("Names, for a script:", "ztier list -o name --no-headings"),
            ("All that is known, for a program:", "ztier list --json"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "status",
        examples: &[
            ("One volume:", "ztier status data"),
            ("For scripts, with all counters:", "ztier status data --json"),
            ("For cron, nothing while all is well:", "ztier status --check"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "stats",
        examples: &[
            ("A table:", "ztier stats data"),
            ("As Prometheus reads it:", "ztier stats data --format prometheus"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "top",
        examples: &[
            ("Twice a second:", "ztier top --interval 0.5"),
            ("One sample, for scripts:", "ztier top --once --json"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE, SCREEN, ZONE],
    },
    Page {
        command: "events",
        examples: &[
            ("All volumes, until interrupted:", "ztier events"),
            ("What has happened to one in the last day:", "ztier events data --once --since 1d"),
            ("For a program, a line of JSON each:", "ztier events --json"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE, ZONE],
    },
    Page {
        command: "metrics",
        examples: &[
            ("Serve them on this machine, port 10810:", "ztier metrics --listen 10810"),
            ("Print them:", "ztier metrics --once"),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "set",
        examples: &[
            ("A larger device:", "ztier set scratch size=8G"),
            ("A limit that adapts:", "ztier set scratch ram-limit=auto ram-max=2G"),
            ("Also after the next boot:", "ztier set scratch ram-limit=2G --save"),
        ],
        files: &[SETTINGS, RUN],
        environment: &[ALL_VARIABLES],
    },
    Page {
        command: "swapon",
        examples: &[
            ("An empty volume becomes swap:", "ztier swapon swap"),
            ("Before other swap areas:", "ztier swapon swap --priority 200"),
        ],
        files: &[DEVICE, RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "swapoff",
        examples: &[("Pages come back to memory:", "ztier swapoff swap")],
        files: &[DEVICE, RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "accept-loss",
        examples: &[("After the lost blocks were looked at:", "ztier accept-loss data")],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "run",
        examples: &[
            ("A build with 512 MiB of memory:", "ztier run --mem 512M -- make -j4"),
            (
                "The same, with cold pages in a file and a report:",
                "ztier run --mem 512M --spill /var/tmp/cold --json report.json -- make -j4",
            ),
        ],
        files: &[RUN],
        environment: &[RUN_VARIABLE],
    },
    Page {
        command: "log",
        examples: &[("Verify a log:", "ztier log check /dev/nvme0n1p3")],
        files: &[],
        environment: &[],
    },
    Page {
        command: "log format",
        examples: &[("A log for a disk:", "ztier log format /dev/nvme0n1p3 --backing /dev/sdb")],
        files: &[STATE],
        environment: &[STATE_VARIABLE],
    },
    Page {
        command: "log check",
        examples: &[("Read all of a log:", "ztier log check /dev/nvme0n1p3")],
        files: &[],
        environment: &[],
    },
    Page {
        command: "log dump",
        examples: &[("The chunks of a log:", "ztier log dump /dev/nvme0n1p3")],
        files: &[],
        environment: &[],
    },
    Page {
        command: "log branch",
        examples: &[(
            "A copy that fits a log which another host has overtaken:",
            "ztier log branch /srv/vol.log --backing file:///srv/vol --to file:///srv/vol-branch",
        )],
        files: &[],
        environment: &[BUCKETS],
    },
    Page {
        command: "doctor",
        examples: &[
            ("What works on this machine:", "ztier doctor"),
            ("Whether a volume would be safe in a directory:", "ztier doctor file:///srv/vol"),
        ],
        files: &[],
        environment: &[BUCKETS],
    },
    Page {
        command: "advise",
        examples: &[
            ("What would help, while the machine is slow:", "ztier advise"),
            ("The same with the files of a disk, over a minute:", "ztier advise --seconds 60 /srv"),
        ],
        files: &[],
        environment: &[],
    },
    Page {
        command: "estimate",
        examples: &[
            ("What two directories would take:", "ztier estimate /etc /usr/share"),
            ("The same, of every block:", "ztier estimate --all /etc /usr/share"),
        ],
        files: &[],
        environment: &[],
    },
];

/// The examples of the command of these words: what for, and what to type.
pub(super) fn examples(words: &str) -> Option<&'static [Pair]> {
    PAGES.iter().find(|page| page.command == words).map(|page| page.examples)
}

/// Writes a page for each command that is shown, and that of the settings' file.
pub(super) fn write(directory: &Path) -> Result<()> {
    let what = format!("cannot write to {}", directory.display());
    std::fs::create_dir_all(directory).context(&what)?;
    for (name, text) in pages().context("cannot make the manual pages")? {
        std::fs::write(directory.join(name), text).context(&what)?;
    }
    std::fs::write(directory.join("ztier.toml.5"), of_the_file()).context(&what)
}

/// The page of `ztier` itself.
pub(super) fn main_page() -> Result<String> {
    let text = page(&command(), "").context("cannot make the manual page")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn command() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

/// The files of all pages of section 1, with their names.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let all = command();
    let mut found = vec![("ztier.1".to_owned(), page(&all, "")?)];
    for first in all.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = first.get_name();
        found.push((format!("ztier-{name}.1"), page(first, name)?));
        for second in first.get_subcommands().filter(|c| c.get_name() != "help") {
            let words = format!("{name} {}", second.get_name());
            found.push((format!("ztier-{}.1", words.replace(' ', "-")), page(second, &words)?));
        }
    }
    Ok(found)
}

/// The page of the command of these words.
fn page(command: &Command, words: &str) -> io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone());
    let mut out = Vec::new();
    // Roff leaves an empty date out, and what follows would take its place.
    let title = command.get_display_name().unwrap_or("ztier");
    writeln!(out, ".TH {title} 1 \"\" \"ztier {}\" ztier", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut rest = Roff::new();
    if let Some(help) = command.get_after_help() {
        rest.control("SH", ["NOTES"]).text([roman(help.to_string())]);
    }
    if let Some(page) = PAGES.iter().find(|page| page.command == words) {
        page.add_to(&mut rest);
    }
    see_also(&mut rest, words);
    rest.to_writer(&mut out)?;
    Ok(out)
}

impl Page {
    fn add_to(&self, page: &mut Roff) {
        page.control("SH", ["EXAMPLES"]);
        for (i, (purpose, typed)) in self.examples.iter().enumerate() {
            if i > 0 {
                page.control("PP", []);
            }
            page.text([roman(*purpose)]);
            page.control("PP", []).control("RS", ["4"]);
            page.text([bold(*typed)]).control("RE", []);
        }
        terms(page, "FILES", self.files.iter().copied());
        terms(page, "ENVIRONMENT", self.environment.iter().flat_map(|all| all.iter().copied()));
        page.control("SH", ["EXIT STATUS"]);
        if self.command == "run" {
            term(page, "any", "that of the program; 128 and the signal that ended it");
            term(page, "126, 127", "the program can't be run; there is none");
        }
        term(page, "0", "done");
        for (status, meaning) in Status::MEANINGS {
            term(page, &(status as u8).to_string(), meaning);
        }
    }
}

/// A section of terms, unless it is empty.
fn terms(page: &mut Roff, heading: &str, pairs: impl Iterator<Item = Pair>) {
    let mut pairs = pairs.peekable();
    if pairs.peek().is_some() {
        page.control("SH", [heading]);
    }
    pairs.for_each(|(name, meaning)| term(page, name, meaning));
}

fn term(page: &mut Roff, name: &str, meaning: &str) {
    page.control("TP", []).text([bold(name)]).text([roman(meaning)]);
}

fn see_also(page: &mut Roff, words: &str) {
    page.control("SH", ["SEE ALSO"]);
    let others: &[(&str, &str)] = match words {
        "" => &[("ztier-up", "(1), "), ("ztier-down", "(1), "), ("ztier.toml", "(5)")],
        "up" | "set" => &[("ztier", "(1), "), ("ztier.toml", "(5)")],
        _ => &[("ztier", "(1)")],
    };
    page.text(
        others.iter().flat_map(|(name, rest)| [bold(*name), roman(*rest)]).collect::<Vec<_>>(),
    );
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[test]
    fn each_page_has_what_it_should() {
        let pages = pages().unwrap();
        assert_eq!(pages.len(), PAGES.len(), "a command has no page, or a page no command");
        let (mut files, mut environment) = (0, 0);
        for (name, text) in &pages {
            let text = String::from_utf8(text.clone()).unwrap();
            let headings: Vec<_> = text.lines().filter_map(|l| l.strip_prefix(".SH ")).collect();
            let wanted = [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "EXAMPLES",
                "EXIT STATUS",
                "SEE ALSO",
            ];
            for heading in wanted {
                let is_it = |h: &&str| h.trim_matches('"') == heading;
                assert_eq!(headings.iter().filter(|h| is_it(h)).count(), 1, "{name}: {heading}");
            }
            files += usize::from(headings.contains(&"FILES"));
            environment += usize::from(headings.contains(&"ENVIRONMENT"));
            let title = format!(".TH {} 1 \"\" \"ztier ", name.trim_end_matches(".1"));
            assert!(text.starts_with(&title) || text.contains(&format!("\n{title}")), "{text}");
        }
        assert_eq!(files, PAGES.iter().filter(|page| !page.files.is_empty()).count());
        assert_eq!(environment, PAGES.iter().filter(|page| !page.environment.is_empty()).count());
    }

    #[test]
    fn examples_can_be_typed() {
        for page in PAGES {
            let begin = format!("ztier {}", page.command);
            for (_, typed) in page.examples {
                assert!(typed.starts_with(begin.trim_end()), "{typed}");
                let parsed = Cli::try_parse_from(typed.split(' '));
                assert!(parsed.is_ok(), "`{typed}`: {:?}", parsed.err());
            }
        }
    }
}
