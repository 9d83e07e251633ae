//! Changes of a volume's state, as `ztier events` and the program of `on-event` get them.
//!
//! Invariant: docs/events.md describes the JSON of [`VolumeEvent`]. Later versions add fields and
//! kinds; none changes its meaning.

use crate::stats::Health;
use crate::stats::time::rfc3339;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of an event's text; the rest is cut off.
const LONGEST_TEXT: usize = 1024;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The daemon serves the volume.
    Up,
    /// A trouble of this health began, or became one of it.
    Filling,
    /// Writes are refused: memory is full.
    Full,
    /// As [`EventKind::Filling`].
    Degraded,
    /// As [`EventKind::Filling`].
    Failed,
    /// As [`EventKind::Filling`].
    Lost,
    /// A trouble is over.
    Recovered,
    /// The memory limit is another one.
    LimitChanged,
    /// The volume has grown.
    SizeChanged,
    /// The volume goes on with this log.
    LogAttached,
    /// The volume goes on without this log, which is empty.
    LogDetached,
    /// The volume goes on with this spill device.
    SpillAttached,
    /// The volume goes on without this spill device, which holds nothing of it.
    SpillDetached,
    /// The daemon ends in order.
    Ended,
    /// The daemon is gone without an end in order. Told by `ztier events`.
    Dead,
    /// The daemon does not answer. Told by `ztier events`.
    Silent,
    /// Events were lost: the reader was slow.
    Dropped,
}

impl EventKind {
    /// All there are.
    pub const ALL: [Self; 17] = [
        Self::Up,
        Self::Filling,
        Self::Full,
        Self::Degraded,
        Self::Failed,
        Self::Lost,
        Self::Recovered,
        Self::LimitChanged,
        Self::SizeChanged,
        Self::LogAttached,
        Self::LogDetached,
        Self::SpillAttached,
        Self::SpillDetached,
        Self::Ended,
        Self::Dead,
        Self::Silent,
        Self::Dropped,
    ];

    /// The kind of a trouble of this health.
    pub fn of(health: Health) -> Self {
        match health {
            Health::Ok => Self::Recovered,
            Health::Filling => Self::Filling,
            Health::Degraded => Self::Degraded,
            Health::Failed => Self::Failed,
            Health::Lost => Self::Lost,
        }
    }

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Filling => "filling",
            Self::Full => "full",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Recovered => "recovered",
            Self::LimitChanged => "limit-changed",
            Self::SizeChanged => "size-changed",
            Self::LogAttached => "log-attached",
            Self::LogDetached => "log-detached",
            Self::SpillAttached => "spill-attached",
            Self::SpillDetached => "spill-detached",
            Self::Ended => "ended",
            Self::Dead => "dead",
            Self::Silent => "silent",
            Self::Dropped => "dropped",
        }
    }
}

/// A change of a volume's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEvent {
    /// When it was noticed, RFC 3339 in UTC.
    pub time: String,
    /// The same in milliseconds since 1970.
    pub unix_ms: u64,
    /// The volume.
    pub volume: String,
    /// What has happened.
    pub kind: EventKind,
    /// The part that it is about, if one is.
    pub about: Option<String>,
    /// One line for a reader.
    pub text: String,
    /// The daemon that tells it; a later daemon of the volume has another one.
    pub session: Option<String>,
    /// Its number among the events of that daemon, from 1.
    pub seq: Option<u64>,
    /// How many events were lost before this one.
    pub dropped: u64,
}

impl VolumeEvent {
    /// An event of this moment.
    pub fn now(volume: &str, kind: EventKind, about: Option<&str>, text: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let end = text.floor_char_boundary(LONGEST_TEXT);
        Self {
            time: rfc3339(now.as_secs()),
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            volume: volume.to_owned(),
            kind,
            about: about.map(str::to_owned),
            text: text[..end].to_owned(),
            session: None,
            seq: None,
            dropped: 0,
        }
    }

    /// What a reader gets in place of `count` events that it was too slow for.
    pub fn dropped(volume: &str, count: u64) -> Self {
        let text = format!("{count} events were lost: the reader was slow");
        Self { dropped: count, ..Self::now(volume, EventKind::Dropped, None, &text) }
    }
}

/// Which events a caller has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Since {
    /// The daemon that told them; of another one, the caller has seen none.
    pub session: Option<String>,
    /// The number of the last one.
    pub after: u64,
    /// How long to wait for one if there is none, in milliseconds.
    pub wait_ms: u64,
}

/// Events of one daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// The daemon.
    pub session: String,
    /// The events, oldest first.
    pub events: Vec<VolumeEvent>,
    /// How many were lost before the first of them.
    pub dropped: u64,
    /// The number of the last one that the caller has seen now.
    pub last: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The documented JSON.
    #[test]
    fn names_and_keys_are_stable() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        let event = VolumeEvent {
            time: "2026-11-29T10:00:00Z".into(),
            unix_ms: 1,
            session: Some("s".into()),
            seq: Some(7),
            ..VolumeEvent::now("v", EventKind::LimitChanged, Some("memory"), "x")
        };
        let golden = "{\"time\":\"2026-11-29T10:00:00Z\",\"unix_ms\":1,\"volume\":\"v\",\
                      \"kind\":\"limit-changed\",\"about\":\"memory\",\"text\":\"x\",\
                      \"session\":\"s\",\"seq\":7,\"dropped\":0}";
        assert_eq!(serde_json::to_string(&event).unwrap(), golden);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = "ä".repeat(2000);
        let event = VolumeEvent::now("v", EventKind::Degraded, None, &format!("x{long}"));
        assert_eq!(event.text.len(), LONGEST_TEXT - 1);
    }
}
