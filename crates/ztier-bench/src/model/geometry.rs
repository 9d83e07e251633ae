//! Positions of a disk's bytes: tracks in zones, the angle of each byte, and seeks between tracks.
//!
//! Invariants: tracks are numbered from the outer edge, all heads of a cylinder one after the
//! other. Each track begins later in the turn than the one before, by the time of a head switch, so
//! that data continued on the next track comes under the head just as the head gets there.

use super::Nanos;
use super::params::DiskParams;

/// Time by which a head may be late and still get the sector: rounding, and the gap before the
/// sector.
const GRACE: Nanos = 2_000;

/// Tracks of the same length.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// First byte.
    at: u64,
    /// First track.
    track: u64,
    /// Bytes in a track.
    bytes: u64,
}

/// A place on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the track.
    pub track: u64,
    /// Bytes in the track.
    pub bytes: u64,
    /// Offset within the track.
    pub offset: u64,
}

/// The disk's layout and its seek curve.
#[derive(Debug)]
pub struct Geometry {
    zones: Vec<Zone>,
    turn: Nanos,
    heads: u64,
    single: Nanos,
    settle: Nanos,
    /// Coefficients of the seek time a + b·√d + c·d, in nanoseconds, for a distance of d cylinders.
    curve: [f64; 3],
}

impl Geometry {
    /// Lays out a disk.
    pub fn new(p: &DiskParams) -> Self {
        let blocks = |zone: u64| {
            let (outer, inner) = (p.track_outer / 4096, p.track_inner / 4096);
            (outer - (outer - inner) * zone / (p.zones - 1).max(1)) * 4096
        };
        let turn_of_all: u64 = (0..p.zones).map(blocks).sum();
        // Zones with the same number of tracks, rounded up: the end of the last stays unused.
        let tracks = (p.capacity / turn_of_all).next_multiple_of(p.heads);
        let mut zones = Vec::new();
        let mut at = 0;
        for zone in 0..p.zones {
            zones.push(Zone { at, track: zone * tracks, bytes: blocks(zone) });
            at += tracks * blocks(zone);
        }
        let cylinders = (p.zones * tracks / p.heads) as f64;
        let curve = fit(
            (1.0, p.seek_single as f64),
            (cylinders / 3.0, p.seek_average as f64),
            (cylinders, p.seek_full as f64),
        );
        let (single, settle) = (p.seek_single, p.write_settle);
        Self { zones, turn: p.turn, heads: p.heads, single, settle, curve }
    }

    /// The position of a byte.
    pub fn place(&self, at: u64) -> Place {
        let after = self.zones.partition_point(|zone| zone.at <= at);
        let zone = self.zones[after.saturating_sub(1)];
        let (track, offset) = ((at - zone.at) / zone.bytes, (at - zone.at) % zone.bytes);
        Place { track: zone.track + track, bytes: zone.bytes, offset }
    }

    /// Time to move from one track to another, to read or to write there.
    pub fn seek(&self, from: u64, to: u64, write: bool) -> Nanos {
        if from == to {
            return 0;
        }
        let distance = (from / self.heads).abs_diff(to / self.heads);
        if distance <= 1 {
            return self.single;
        }
        let [a, b, c] = self.curve;
        let d = distance as f64;
        (a + b * d.sqrt() + c * d) as Nanos + if write { self.settle } else { 0 }
    }

    /// Time from `now` until the place comes under its head.
    pub fn rotation(&self, now: Nanos, place: Place) -> Nanos {
        let start = place.track * self.single + place.offset * self.turn / place.bytes;
        let wait = (start % self.turn + self.turn - now % self.turn) % self.turn;
        if wait + GRACE >= self.turn { 0 } else { wait }
    }

    /// Time for `len` bytes from `at` on, and the track in which they end.
    pub fn transfer(&self, at: u64, len: u64) -> (Nanos, u64) {
        let mut place = self.place(at);
        let (mut at, mut left, mut time) = (at, len, 0);
        loop {
            let here = left.min(place.bytes - place.offset);
            time += here * self.turn / place.bytes;
            (at, left) = (at + here, left - here);
            if left == 0 {
                return (time, place.track);
            }
            time += self.single;
            place = self.place(at);
        }
    }
}

/// The curve a + b·√d + c·d through three points (d, time).
fn fit(one: (f64, f64), two: (f64, f64), three: (f64, f64)) -> [f64; 3] {
    let line = |from: (f64, f64), to: (f64, f64)| {
        (to.0.sqrt() - from.0.sqrt(), to.0 - from.0, to.1 - from.1)
    };
    let ((r1, d1, t1), (r2, d2, t2)) = (line(one, two), line(one, three));
    let c = (t2 - t1 * r2 / r1) / (d2 - d1 * r2 / r1);
    let b = (t1 - c * d1) / r1;
    [one.1 - b * one.0.sqrt() - c * one.0, b, c]
}

#[cfg(test)]
mod tests {
    use super::super::params::HDD_7200;
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_seek_curve_passes_through_the_manuals_figures() {
        let g = Geometry::new(&HDD_7200);
        let last = g.place(HDD_7200.capacity - 1).track;
        let near = |time: Nanos, ms: Nanos| time.abs_diff(ms * MS) < MS / 20;
        assert_eq!(g.seek(7, 7, true), 0);
        assert_eq!(g.seek(0, 1, true), MS, "another head");
        assert!(near(g.seek(0, last / 3, false), 11), "{}", g.seek(0, last / 3, false));
        assert!(near(g.seek(last / 3, 0, true), 13));
        assert!(near(g.seek(0, last, false), 20), "{}", g.seek(0, last, false));
        let times: Vec<_> = (1..last / 4).step_by(97).map(|c| g.seek(0, c * 4, false)).collect();
        assert!(times.is_sorted(), "farther never takes less");
    }

    #[test]
    fn every_byte_has_its_place_and_the_disk_is_full() {
        let g = Geometry::new(&HDD_7200);
        let mut before = g.place(0);
        assert_eq!(before, Place { track: 0, bytes: 228 * 4096, offset: 0 });
        for at in (0..HDD_7200.capacity).step_by(1_000_003 * 4096) {
            let place = g.place(at);
            assert!(place.offset < place.bytes && place.bytes <= before.bytes);
            assert!(at == 0 || place.track > before.track);
            before = place;
        }
        let last = g.place(HDD_7200.capacity - 1);
        assert!(last.bytes >= HDD_7200.track_inner, "{last:?}");
    }

    #[test]
    fn what_continues_on_the_next_track_loses_no_turn() {
        let g = Geometry::new(&HDD_7200);
        let track = g.place(0).bytes;
        let (first, end) = g.transfer(0, track);
        assert_eq!((first, end), (HDD_7200.turn, 0));
        let switch = g.seek(end, 1, true);
        assert_eq!(g.rotation(first + switch, g.place(track)), 0);
        // The same in one request.
        assert_eq!(g.transfer(0, 2 * track), (2 * first + switch, 1));
        // But a request that comes 10 us late waits for a turn.
        let late = g.rotation(first + switch + 10_000, g.place(track));
        assert_eq!(late, HDD_7200.turn - 10_000);
    }
}
