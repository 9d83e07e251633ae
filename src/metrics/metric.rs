//! The definition of a metric, and how its samples come from what a scrape found.
//!
//! Invariant: a missing part of a volume has no samples, and a volume that is not up has only those
//! that say so.

use super::text::Family;
use crate::control::{Role, Sample};
use crate::daemon::survey::{Seen, Volumes};
use crate::limit::Report;
use crate::stats::declare::{Exported, Number, Subject};
use crate::stats::{CacheStats, LogStats, ObjectStats, Stats};
use std::time::Duration;

/// What a scrape found.
#[derive(Debug)]
pub struct Scrape<'a> {
    /// All volumes.
    pub volumes: &'a Volumes,
    /// How long it took to ask them.
    pub took: Duration,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until a volume's daemon begins anew.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, sum and count.
    Histogram,
    /// Quantiles, sum and count.
    Summary,
}

impl Kind {
    /// The name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// One metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
    /// Its name in the JSON of `ztier stats`, if it is one number there.
    pub key: Option<&'static str>,
    /// Its labels besides `volume`.
    pub labels: &'static [&'static str],
    /// Where its samples come from.
    pub(super) source: Source,
}

/// Metrics of one subject.
pub struct Group {
    /// Which volumes have them.
    pub title: &'static str,
    /// The metrics.
    pub metrics: Vec<Metric>,
}

/// Where samples come from; a missing part of a volume has none.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The exporter itself.
    Exporter(fn(&Scrape<'_>, &mut Family<'_>)),
    /// Every volume, up or not.
    Seen(fn(&Seen, &str, &mut Family<'_>)),
    /// A volume that is up.
    Sample(fn(&Sample, &str, &mut Family<'_>)),
    /// One number of a volume that is up.
    Number(fn(&Sample) -> Number),
    /// One number of a volume that the subject names.
    Stats(Subject, fn(&Stats) -> Number),
    /// One with copies of a backing store's blocks.
    Cache(fn(&CacheStats) -> Number),
    /// One with a log.
    Log(fn(&LogStats) -> Number),
    /// One in a store of objects.
    Object(fn(&ObjectStats) -> Number),
    /// One whose limit adapts.
    Limit(fn(&Report) -> Number),
}

impl Source {
    /// Writes all samples.
    pub fn write(&self, scrape: &Scrape<'_>, family: &mut Family<'_>) {
        if let Self::Exporter(write) = self {
            return write(scrape, family);
        }
        for (name, seen) in scrape.volumes {
            match (self, seen.sample()) {
                (Self::Seen(write), _) => write(seen, name, family),
                (Self::Sample(write), Some(sample)) => write(sample, name, family),
                (source, Some(sample)) => {
                    family.sample(&[("volume", name)], source.number(sample));
                }
                _ => {}
            }
        }
    }

    fn number(&self, sample: &Sample) -> Number {
        let stats = &sample.stats;
        let in_memory = matches!(sample.role(), Role::Ram | Role::Spill);
        match self {
            Self::Number(get) => get(sample),
            Self::Stats(Subject::Any, get) => get(stats),
            Self::Stats(Subject::Memory, get) if in_memory => get(stats),
            Self::Stats(Subject::Spill, get) if sample.role() == Role::Spill => get(stats),
            Self::Cache(get) => stats.cache.as_ref().map(get).into(),
            Self::Object(get) => stats.object.as_ref().map(get).into(),
            Self::Log(get) => stats.log.as_ref().map(get).into(),
            Self::Limit(get) => sample.adapting.as_ref().map(get).into(),
            _ => Number::Absent,
        }
    }
}

/// A counter without labels.
pub(super) const fn counter(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: Kind::Counter, help, key: None, labels: &[], source }
}

/// A gauge without labels.
pub(super) const fn gauge(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: Kind::Gauge, help, key: None, labels: &[], source }
}

impl Metric {
    /// The metric of a declared number.
    pub(super) fn of<T>(declared: &Exported<T>, source: Source) -> Self {
        let Exported { grows, name, help, key, .. } = declared;
        let kind = if *grows { Kind::Counter } else { Kind::Gauge };
        Self { name, kind, help, key: Some(key), labels: &[], source }
    }

    /// The same metric with labels.
    pub(super) const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// The same metric with another type.
    pub(super) const fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}
