//! A volume with a log whose daemon is killed again and again while fio writes; fio's own verifier
//! then checks that all data reported durable is there.
//!
//! fio has a trigger for this, but it stops its jobs before the kill. Here the daemon dies during
//! writes; each job ends with the error and then saves its state, which includes its acknowledged
//! writes. That is exact for jobs with one request in flight, so there are several jobs: with more
//! requests, fio mistakes an old write in flight for a finished one. Acknowledged data is durable,
//! because the volume syncs each write (`--sync`) or fio does (`O_DSYNC`). Each round has different
//! data, so that data of an earlier round does not pass.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Guard, Sandbox, eventually, finish, wait};
use crate::support::shell::missing;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of jobs, each with its own part of the volume.
const JOBS: u64 = 4;
/// Bytes of such a part: more than is ever written between two kills.
const PART: u64 = 256 << 20;
/// No round begins after this time, unless `ZTIER_KILLS` sets the number of rounds.
const TIME: Duration = Duration::from_secs(45);

/// Bytes of a request in a round.
fn request(round: u64) -> u64 {
    if round % 5 == 4 { 32 << 10 } else { 4 << 10 }
}

/// The export of the volume, and whether the volume or fio makes writes durable.
#[derive(Clone, Copy, Debug)]
enum Way {
    NbdSync,
    Fuse,
    FuseSync,
}

impl Way {
    fn fuse(self) -> bool {
        !matches!(self, Self::NbdSync)
    }

    fn sync(self) -> bool {
        !matches!(self, Self::Fuse)
    }
}

struct Place {
    sandbox: Sandbox,
    name: String,
    log: String,
    backing: String,
}

impl Place {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let file = |name: &str, size| {
            let path = sandbox.path().join(name);
            File::create(&path).unwrap().set_len(size).unwrap();
            path.to_str().unwrap().to_owned()
        };
        // Full after a few rounds, so that kills also hit writeback and new laps.
        let (log, backing) = (file("fast", 64 << 20), file("slow", JOBS * PART));
        let name = sandbox.device_name("kills");
        Self { sandbox, name, log, backing }
    }

    fn up(&self, way: Way) {
        let export = if way.fuse() { "fuse" } else { "nbd" };
        let mut args = vec!["up", &self.name, "--export", export, "--segment", "64K"];
        args.extend(["--backing", &self.backing, "--log", &self.log]);
        args.extend(way.sync().then_some("--sync"));
        self.sandbox.ztier(&args).ok();
    }

    fn down(&self) {
        self.sandbox.ztier(&["down", &self.name]).ok();
    }

    fn socket(&self) -> PathBuf {
        self.sandbox.run_dir().join(format!("{}.nbd", self.name))
    }

    /// fio's jobs of a round, for a run or for verification.
    fn fio(&self, way: Way, round: u64, more: &[&str]) -> Command {
        let mut fio = Command::new("fio");
        fio.current_dir(self.sandbox.path()).stdin(Stdio::null());
        fio.args(["--name=kills", "--rw=randwrite", "--iodepth=1", "--verify=crc32c"]);
        fio.args(["--group_reporting", "--output-format=json", "--output=result"]);
        fio.arg(format!("--numjobs={JOBS}")).arg(format!("--randseed={}", 1000 + round));
        fio.arg(format!("--size={PART}")).arg(format!("--offset_increment={PART}"));
        fio.arg(format!("--bs={}", request(round)));
        if way.fuse() {
            fio.args(["--ioengine=psync", "--direct=1"]);
            fio.arg(format!("--filename=/dev/ztier/{}", self.name));
        } else {
            fio.arg("--ioengine=nbd");
            let socket = self.socket();
            fio.arg(format!("--uri=nbd+unix:///{}?socket={}", self.name, socket.display()));
        }
        if !way.sync() {
            fio.arg("--sync=dsync");
        }
        fio.args(more);
        fio
    }

    /// Blocks that fio's last run has written or read without an error.
    fn done(&self, direction: &str) -> u64 {
        let text = fs::read_to_string(self.sandbox.path().join("result")).unwrap();
        // Errors of the jobs precede the JSON.
        let json: Value = serde_json::from_str(&text[text.find("\n{").map_or(0, |at| at + 1)..])
            .unwrap_or_else(|e| panic!("{e}: {text}"));
        json["jobs"][0][direction]["io_bytes"].as_u64().unwrap() / 4096
    }

    /// Lets fio write, and kills the daemon. Returns the number of blocks that fio considers
    /// durable; `None` if the kill came before the first write of a job, which then saves no state.
    fn write_until_killed(&self, way: Way, round: u64) -> Option<u64> {
        // fio would load the state of an earlier round.
        self.states().iter().for_each(|path| fs::remove_file(path).unwrap());
        let mut fio = self.fio(way, round, &["--do_verify=0", "--verify_state_save=1"]);
        let mut fio = Guard(fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let asked = || self.sandbox.status(&self.name)["stats"]["log"]["asked_bytes"].as_u64();
        // One request more than can be in flight: the first has been acknowledged.
        eventually("fio writes", || asked() > Some(JOBS * request(round)));
        std::thread::sleep(Duration::from_millis(round * 79 % 300));
        self.sandbox.kill(&self.name);
        assert_ne!(wait(&mut fio.0), 0, "fio ended in peace");
        (self.states().len() as u64 == JOBS).then(|| self.done("write"))
    }

    /// Runs a round, and leaves the volume up. Returns the number of durable blocks, which are
    /// all there; `None` for a round that does not count. Such a round is not repeated: its writes
    /// would pass for those of the second attempt.
    fn round(&self, way: Way, round: u64) -> Option<u64> {
        self.up(way);
        let durable = self.write_until_killed(way, round);
        self.up(way);
        let Some(durable) = durable else {
            println!("round {round}: killed before the first write of a job");
            return None;
        };
        assert!(durable > 0, "round {round}: {way:?}");
        let verified = self.verify(way, round).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(verified, durable, "round {round}: {way:?}");
        Some(durable)
    }

    /// The states that fio's jobs have saved.
    fn states(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.sandbox.path()).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.to_string_lossy().ends_with("-verify.state")).collect()
    }

    /// The errors that fio finds, or the number of verified blocks.
    fn verify(&self, way: Way, round: u64) -> Result<u64, String> {
        let verify = ["--verify_only", "--verify_state_load=1", "--verify_fatal=1"];
        let done = finish(self.fio(way, round, &verify));
        if done.status == 0 { Ok(self.done("read")) } else { Err(done.out + &done.err) }
    }
}

/// `ZTIER_KILLS` sets the number of kills; by default 20, or as many as fit into the time.
#[test]
fn what_fio_was_told_to_be_durable_survives_kills() {
    if missing(&["fio"]) {
        return;
    }
    let place = Place::new();
    let asked = std::env::var("ZTIER_KILLS").ok().map(|text| text.parse::<u64>().unwrap());
    let mut ways = vec![Way::NbdSync];
    if place.sandbox.ztier(&["doctor", "--json"]).json()["export"] == "fuse" {
        ways.extend([Way::Fuse, Way::FuseSync]);
    } else {
        println!("skipped: block devices don't work here, see `ztier doctor`");
    }
    let began = Instant::now();
    let enough = |round: u64| match asked {
        Some(asked) => round >= asked,
        None => round >= 20 || began.elapsed() > TIME,
    };
    let (mut round, mut kills, mut blocks, mut counts) = (0, 0, 0, false);
    // The last round counts: its states are checked once more below.
    while !(counts && enough(round)) {
        if round > 0 {
            place.down();
        }
        let durable = place.round(ways[(round % ways.len() as u64) as usize], round);
        (round, counts) = (round + 1, durable.is_some());
        (kills, blocks) = (kills + u64::from(counts), blocks + durable.unwrap_or(0));
        assert!(kills * 2 + 4 > round, "only {kills} of {round} rounds count");
    }
    println!("{blocks} blocks of {kills} of {round} rounds were durable");
    // Counter-check: fio detects lost data.
    let last = round - 1;
    let way = ways[(last % ways.len() as u64) as usize];
    let other = place.verify(way, round).unwrap_err();
    assert!(other.contains("verify"), "data of another round: {other}");
    place.down();
    place.up(Way::NbdSync);
    let mut disk = Disk::open(&place.socket(), &place.name);
    for at in (0..PART).step_by(1 << 20) {
        disk.write(at, &vec![0; 1 << 20]);
    }
    drop(disk);
    let lost = place.verify(Way::NbdSync, last).unwrap_err();
    assert!(lost.contains("verify"), "lost data: {lost}");
    place.down();
    place.sandbox.ztier(&["log", "check", &place.log]).ok();
}
