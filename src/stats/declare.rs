//! The declaration of what is counted: each number of a snapshot has one, from which come its field
//! in JSON, its row in `ztier stats`, its metric for Prometheus and that one's line in
//! `docs/metrics.md`, and, where threads count it for themselves, its field there.
//!
//! A declaration is a field with up to three parts more, as in
//!
//! ```text
//! /// Blocks that the cleaner moved.
//! [thread] blocks_moved: u64 = count "blocks moved"
//!     => counter "ztier_cleaner_moved_blocks_total" "Blocks the cleaner moved.";
//! ```
//!
//! - `[thread]`: threads count it, each for itself, in the structure after `sums`;
//! - `= count` or `= bytes`: a row of the table for people;
//! - `=> counter` or `=> gauge`, with a unit if the metric has another one (`ns` and `ms` in
//!   seconds, `blocks` in bytes, `unless_0` absent when 0): a metric, its name and its meaning.

/// A number as it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Counts and bytes.
    Whole(u64),
    /// Seconds and ratios.
    Real(f64),
    /// No value.
    Absent,
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::Whole(n)
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        Self::Real(n)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Self {
        Self::Whole(is.into())
    }
}

impl<T: Into<Self>> From<Option<T>> for Number {
    fn from(n: Option<T>) -> Self {
        n.map_or(Self::Absent, Into::into)
    }
}

/// The volumes that have a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Every volume that is up.
    Any,
    /// Volumes in memory.
    Memory,
    /// Volumes with a spill device.
    Spill,
    /// Volumes with copies of a backing store's blocks.
    Cache,
    /// Volumes with a log.
    Log,
    /// Volumes in a store of objects.
    Object,
}

/// How a row shows its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// As it is.
    Count,
    /// As bytes for people.
    Bytes,
}

/// A row of the table for people.
pub struct Row<T> {
    /// Which volumes have it.
    pub subject: Subject,
    /// What it is, in a few words; indented below the row that it is a part of.
    pub label: &'static str,
    /// How it is shown.
    pub shown: Shown,
    /// The number.
    pub value: fn(&T) -> Number,
}

/// A metric without labels.
pub struct Exported<T> {
    /// Which volumes have it.
    pub subject: Subject,
    /// The name in JSON.
    pub key: &'static str,
    /// Whether it only grows.
    pub grows: bool,
    /// The name for Prometheus.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// The number, in the unit of the metric's name.
    pub value: fn(&T) -> Number,
}

/// Makes a snapshot's structure, its `ROWS` and `METRICS`, and, after `sums`, the structure of what
/// each thread counts; see the module.
macro_rules! declare {
    (
        $(#[$about:meta])*
        pub struct $name:ident, sums $sums:ident: $number:ident { $($body:tt)* }
    ) => {
        declare! { $(#[$about])* pub struct $name { $($body)* } }
        declare! { @sums $name $sums $number $($body)* }
    };
    (
        $(#[$about:meta])*
        pub struct $name:ident { $($subject:ident { $(
            $(#[$attribute:meta])*
            $([$each:ident])? $field:ident: $type:ty
            $(= $shown:ident $label:literal)?
            $(=> $kind:ident $($unit:ident)? $metric:literal $help:literal)?;
        )* })* }
    ) => {
        $(#[$about])*
        #[serde(default)]
        pub struct $name { $($($(#[$attribute])* pub $field: $type,)*)* }

        impl $name {
            /// Rows of the table for people.
            pub const ROWS: &'static [Row<Self>] = &[$($($(Row {
                subject: Subject::$subject,
                label: $label,
                shown: declare!(@$shown),
                value: |all| all.$field.into(),
            },)?)*)*];

            /// Metrics for Prometheus.
            pub const METRICS: &'static [Exported<Self>] = &[$($($(Exported {
                subject: Subject::$subject,
                key: stringify!($field),
                grows: declare!(@$kind),
                name: $metric,
                help: $help,
                value: |all| declare!(@in $($unit)? all.$field),
            },)?)*)*];
        }
    };
    (
        @sums $name:ident $sums:ident $number:ident $($subject:ident { $(
            $(#[$attribute:meta])*
            $([$each:ident])? $field:ident: $type:ty
            $(= $shown:ident $label:literal)?
            $(=> $kind:ident $($unit:ident)? $metric:literal $help:literal)?;
        )* })*
    ) => {
        #[doc = concat!("What one part counts for itself of [`", stringify!($name), "`], or a sum.")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $sums { $($($(
            #[doc = concat!(
                "What one ", stringify!($each), " adds to [`", stringify!($name), "::",
                stringify!($field), "`].",
            )]
            pub $field: $number,
        )?)*)* }

        impl $sums {
            /// How many numbers these are.
            pub const LEN: usize = [$($($(stringify!($each),)?)*)*].len();

            /// Calls `with` for each number with its place in the order of declarations.
            #[inline(always)]
            #[allow(unused_assignments)]
            pub fn each(&self, mut with: impl FnMut(usize, $number)) {
                let mut at = 0;
                $($($(
                    with(at, declare!(@of $each self.$field));
                    at += 1;
                )?)*)*
            }

            /// These numbers, in the order of their declarations.
            pub fn of(numbers: [$number; Self::LEN]) -> Self {
                let mut rest = numbers.into_iter();
                Self { $($($($field: declare!(@of $each rest.next().unwrap_or_default()),)?)*)* }
            }
        }

        impl std::ops::AddAssign<&Self> for $sums {
            fn add_assign(&mut self, other: &Self) {
                $($($(declare!(@of $each self.$field += other.$field);)?)*)*
            }
        }

        impl $name {
            /// These numbers with the sums over all parts; a sum below zero counts as none.
            #[must_use]
            pub fn with_sums(self, sums: &$sums) -> Self {
                Self {
                    $($($($field: declare!(@of $each sums.$field.max(0) as u64),)?)*)*
                    ..self
                }
            }
        }
    };
    (@count) => { Shown::Count };
    (@bytes) => { Shown::Bytes };
    (@counter) => { true };
    (@gauge) => { false };
    (@of $each:ident $what:expr) => { $what };
    (@in ns $ns:expr) => { Number::Real($ns as f64 / 1e9) };
    (@in ms $ms:expr) => { Number::Real($ms as f64 / 1e3) };
    (@in blocks $blocks:expr) => { Number::Whole($blocks * crate::BLOCK_SIZE as u64) };
    (@in unless_0 $n:expr) => { Some($n).filter(|n| *n > 0).into() };
    (@in $n:expr) => { $n.into() };
}
pub(super) use declare;
