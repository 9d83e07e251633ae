//! Traces of real work: the requests of ext4 to a device while programs with little page cache use
//! it.
//!
//! Invariant: programs run in a control group with limited memory, page cache included, so that a
//! trace has the requests that a page cache of a known size lets through. Where a program bypasses
//! the page cache, the trace has its own requests.

use super::note::Noting;
use super::synth::Zipf;
use super::trace::Trace;
use crate::data::Rng;
use crate::report::{say, warn};
use crate::rival::ext4::Ext4;
use crate::rival::served::Served;
use crate::sys::command::{exists, run};
use crate::workload::scan::limit::Limit;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ztier::daemon::evicted::News;
use ztier::device::PassthroughVolume;
use ztier::error::{Context, Error, Result};
use ztier::media::{Access, FileDrive};

/// Directory of a recording's backing store.
const DIR: &str = "/var/tmp";
const SIZE: u64 = 1 << 30;
const LIMIT: Duration = Duration::from_secs(600);
/// Candidates for a tree of small files on machines with compilers; the first that exists is used.
const TREES: [&str; 2] = ["/usr/lib/python3", "/usr/share/perl"];
const HEADERS: &str = "/usr/include";
const SEED: u64 = 7;
/// Bytes of the ring for dropped pages: room for a file that is dropped at once.
const RING: u32 = 128 << 20;
/// Longest wait for a dropped page, and how long the last ones may take.
const WAIT: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_millis(200);

/// Work in a directory, as lines of shell.
struct Work {
    name: &'static str,
    about: String,
    /// Memory of the group, page cache included, in MiB.
    memory_mib: u64,
    /// Programs that the work needs.
    needs: &'static [&'static str],
    /// Preparation, which is not recorded.
    before: String,
    /// The recorded part.
    noted: String,
}

/// Records all work that this machine can do, into a directory.
///
/// # Errors
/// No root, no FUSE, or a started program fails.
pub fn all(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).context(format!("cannot make {}", dir.display()))?;
    let scripts = Scripts::new()?;
    say("dropping the caches of this machine before each recording (echo 3 > drop_caches)");
    for work in works(&scripts) {
        if let Some(missing) = work.needs.iter().find(|program| !exists(program)) {
            warn(&format!("{}: {missing} is not installed", work.name));
            continue;
        }
        let trace = work.record().context(work.name)?;
        let bytes = trace.save(dir)?;
        let replay = trace.replay();
        say(&format!(
            "{}: {} requests, {} blocks read of {} in all, {bytes} bytes",
            work.name,
            trace.steps.len(),
            replay.reads(),
            replay.blocks
        ));
    }
    Ok(())
}

impl Work {
    fn record(&self) -> Result<Trace> {
        let backing = Backing::new()?;
        let drive = FileDrive::open(&backing.0, Access::Exclusive)?;
        let noting = Noting::new(PassthroughVolume::over(Arc::new(drive)));
        let served = Served::new(noting.clone(), "note")?;
        let fs = Ext4::new(served.path())?;
        if !self.before.is_empty() {
            shell(fs.path(), &self.before, None)?;
            sync(fs.path())?;
            std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")?;
        }
        let group = Limit::new(self.memory_mib << 20)?;
        let news = News::begin(served.path(), RING, &|| false);
        let news = news.inspect_err(|e| warn(&format!("{}: no dropped pages: {e}", self.name)));
        let mut about = format!("{}; memory limited to {} MiB", self.about, self.memory_mib);
        following(news.ok(), &noting, &mut about, || {
            noting.start();
            shell(fs.path(), &self.noted, Some(&group.join()))?;
            sync(fs.path())
        })?;
        let mut trace = Trace::new(self.name, about);
        trace.steps = noting.stop();
        Ok(trace)
    }
}

/// Does `work` while a thread notes the pages that the page cache drops; adds to `about` how many
/// were lost.
fn following(
    news: Option<News>,
    noting: &Noting,
    about: &mut String,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(mut news) = news else { return work() };
    let stop = AtomicBool::new(false);
    let follow = || {
        while !stop.load(Ordering::Relaxed) {
            news.wait(WAIT);
            news.take(|page| noting.dropped(page));
        }
        news.counts()
    };
    let (done, counts) = std::thread::scope(|scope| {
        let follower = scope.spawn(follow);
        let done = work();
        std::thread::sleep(LAST);
        stop.store(true, Ordering::Relaxed);
        (done, follower.join())
    });
    let (dropped, lost) =
        counts.map_err(|_| Error::failure("the thread that follows the page cache panicked"))?;
    *about += &format!("; {dropped} pages dropped, {lost} of them not seen");
    done
}

fn sync(at: &Path) -> Result<()> {
    let at = std::fs::File::open(at).context("cannot open the file system")?;
    rustix::fs::syncfs(at).context("cannot bring the file system to its device")
}

/// Runs lines of shell in a directory, in a group if there is one.
fn shell(at: &Path, lines: &str, group: Option<&Path>) -> Result<()> {
    let join = group.map_or(String::new(), |procs| format!("echo $$ > {}\n", procs.display()));
    let script = format!("set -e\n{join}cd {}\n{lines}", at.display());
    run("sh", &["-c", &script], LIMIT).map(drop)
}

/// The file of the volume, removed when dropped.
struct Backing(PathBuf);

impl Backing {
    fn new() -> Result<Self> {
        let backing = Self(Path::new(DIR).join(format!("ztier-bench-{}.bin", std::process::id())));
        let file = std::fs::File::create_new(&backing.0);
        file.and_then(|file| file.set_len(SIZE))
            .context(format!("cannot make {}", backing.0.display()))?;
        Ok(backing)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            warn(&format!("left {}: {e}", self.0.display()));
        }
    }
}

/// Files with the programs' input, outside of the recorded file system.
struct Scripts {
    make: PathBuf,
    ask: PathBuf,
    fio: PathBuf,
}

impl Scripts {
    fn new() -> Result<Self> {
        let file = |name: &str, text: String| {
            let path =
                std::env::temp_dir().join(format!("ztier-bench-{}-{name}", std::process::id()));
            std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
            Ok::<_, Error>(path)
        };
        let (make, ask) = sqlite();
        Ok(Self { make: file("make", make)?, ask: file("ask", ask)?, fio: file("fio", fio())? })
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        for path in [&self.make, &self.ask, &self.fio] {
            if let Err(e) = std::fs::remove_file(path) {
                warn(&format!("left {}: {e}", path.display()));
            }
        }
    }
}

/// Rows of the database.
const ROWS: u64 = 60_000;

/// A database and its queries: by Zipf's law, every tenth transaction a commit.
fn sqlite() -> (String, String) {
    let make = format!(
        "CREATE TABLE t(n INTEGER PRIMARY KEY, k INTEGER, text TEXT);\nCREATE INDEX i ON t(k);\n\
         WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS}) INSERT \
         INTO t SELECT n, (n * 7919) % {ROWS}, hex(randomblob(300)) FROM c;\n"
    );
    let mut rng = Rng::new(SEED);
    let zipf = Zipf::new(ROWS, 0.9, &mut rng);
    let mut ask = String::new();
    for n in 0..40_000 {
        let key = zipf.draw(&mut rng);
        let _ = match n % 10 {
            0 => writeln!(ask, "UPDATE t SET text = hex(randomblob(300)) WHERE n = {key};"),
            1 => writeln!(ask, "SELECT count(*) FROM t WHERE k = {key};"),
            _ => writeln!(ask, "SELECT length(text) FROM t WHERE n = {key};"),
        };
        // A report query now and then.
        if n % 10_000 == 9_999 {
            ask += "SELECT sum(length(text)) FROM t;\n";
        }
    }
    (make, ask)
}

/// Two concurrent jobs: random access to a hot part, and a sequential scan of everything.
fn fio() -> String {
    "[global]\nfilename=file\nsize=160m\nbs=4k\nioengine=psync\nrandrepeat=1\nthread=1\n\
     fadvise_hint=0\n[hot]\nrw=randread\nrandom_distribution=zipf:1.1\nnumber_ios=40000\n\
     norandommap=1\n[scan]\nrw=read\nbs=64k\nloops=2\nthinktime=400\n"
        .into()
}

fn works(scripts: &Scripts) -> Vec<Work> {
    let mut works = vec![sqlite_work(scripts)];
    works.extend(compile());
    works.extend(untar());
    works.extend(iozone());
    for (direct, zipf, mix) in
        [(0, "zipf-cached", "mixed-cached"), (1, "zipf-direct", "mixed-direct")]
    {
        let way = if direct == 0 { "through the page cache" } else { "past the page cache" };
        let before = "fio --name=file --filename=file --size=160m --rw=write --bs=1m \
                      --end_fsync=1 --thread=1"
            .to_owned();
        works.push(Work {
            name: zipf,
            about: format!(
                "fio on a file of 160 MiB {way}: 4 KiB by Zipf's law (0.9), a fifth of it writes"
            ),
            memory_mib: 32,
            needs: &["fio"],
            before: before.clone(),
            noted: format!(
                "fio --name=zipf --filename=file --size=160m --rw=randrw --rwmixread=80 --bs=4k \
                 --random_distribution=zipf:0.9 --norandommap=1 --number_ios=80000 \
                 --fadvise_hint=0 --direct={direct} --ioengine=psync --thread=1"
            ),
        });
        works.push(Work {
            name: mix,
            about: format!(
                "fio on a file of 160 MiB {way}: 4 KiB by Zipf's law (1.1), and beside it the \
                 whole file read twice from first to last, 64 KiB at a time"
            ),
            memory_mib: 32,
            needs: &["fio"],
            before,
            noted: format!("fio --direct={direct} {}", scripts.fio.display()),
        });
    }
    works
}

fn sqlite_work(scripts: &Scripts) -> Work {
    Work {
        name: "sqlite",
        about: format!(
            "SQLite, {ROWS} rows of 600 bytes: 40000 queries and updates by Zipf's law (0.9), each \
             a transaction, and four times all rows"
        ),
        memory_mib: 16,
        needs: &["sqlite3"],
        before: format!("sqlite3 -bail db < {}", scripts.make.display()),
        noted: format!("sqlite3 -bail db < {} > /dev/null", scripts.ask.display()),
    }
}

/// C programs with many includes, with the headers on the file system.
fn compile() -> Option<Work> {
    let search = "-isystem include -isystem include/$(gcc -dumpmachine)";
    Path::new(HEADERS).join("linux").is_dir().then(|| Work {
        name: "compile",
        about: "150 C files, each with 30 of the kernel's headers, compiled one after the other, \
                twice, and linked; headers on the same file system"
            .into(),
        memory_mib: 32,
        needs: &["gcc", "awk"],
        before: format!(
            "cp -r {HEADERS} include\nmkdir src out\nfor h in include/linux/*.h; do\n\
             h=linux/${{h##*/}}\n\
             if echo \"#include <$h>\" | gcc {search} -fsyntax-only -x c - 2> out/e; then \
             echo $h; fi\ndone > all\n\
             awk '{{h[NR] = $0}} END {{srand({SEED}); for (i = 0; i < 150; i++) {{ f = \"src/\" i \
             \".c\"; for (j = 0; j < 30; j++) print \"#include <\" h[1 + int(rand() * NR)] \">\" > \
             f; print \"int f\" i \"(void) {{ return \" i \"; }}\" > f; close(f) }} }}' all"
        ),
        noted: format!(
            "for round in 1 2; do\nfor f in src/*.c; do gcc -O1 {search} -c $f -o \
             out/$(basename $f .c).o 2> out/e || true; done\n\
             gcc -shared -o out/all.so out/*.o; sync; done"
        ),
    })
}

/// A tree of small files unpacked, then read.
fn untar() -> Option<Work> {
    let tree = TREES.iter().find(|tree| Path::new(tree).is_dir())?;
    Some(Work {
        name: "untar",
        about: format!("{tree} unpacked from an archive, then all files read three times"),
        memory_mib: 24,
        needs: &["tar", "find"],
        before: format!("tar -cf tree.tar -C {tree} ."),
        noted: "mkdir tree; tar -xf tree.tar -C tree; sync\nfor i in 1 2 3; do find tree -type f \
                -exec cat {} + > /dev/null; done"
            .into(),
    })
}

/// The nine IOzone tests, by this program.
fn iozone() -> Option<Work> {
    let own = std::env::current_exe().ok()?;
    Some(Work {
        name: "iozone",
        about: "IOzone's nine tests on a file of 96 MiB, records of 64 KiB, pread and pwrite"
            .into(),
        memory_mib: 96,
        needs: &[],
        before: String::new(),
        noted: format!(
            "{} iozone-series --dir . --file-bytes {} --record-bytes 65536 --mode plain --data \
             iozone",
            own.display(),
            96 << 20
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::trace::Kind;
    use super::*;

    /// Where recording is impossible, nothing may be left.
    #[test]
    fn what_a_program_asks_of_its_disk_is_recorded_and_nothing_is_left() {
        let root = rustix::process::geteuid().is_root();
        if !root || ztier::export::fuse::available(true).is_err() || !exists("mkfs.ext4") {
            return;
        }
        let work = Work {
            name: "test",
            about: "a file read and copied".into(),
            memory_mib: 16,
            needs: &[],
            before: "head -c 2M /dev/urandom > a".into(),
            noted: "cp a b; sync; dd if=a of=/dev/null iflag=nocache count=0 status=none".into(),
        };
        let trace = work.record().unwrap();
        let blocks = |kind| -> u64 {
            trace.steps.iter().filter(|s| s.kind == kind).map(|s| u64::from(s.count)).sum()
        };
        assert!((512..1024).contains(&blocks(Kind::Read)), "{}", blocks(Kind::Read));
        assert!((512..1024).contains(&blocks(Kind::Write)), "{}", blocks(Kind::Write));
        if trace.about.contains("dropped") {
            assert!((256..1024).contains(&blocks(Kind::Drop)), "{}", blocks(Kind::Drop));
        }
        let own = format!("ztier-bench-{}.bin", std::process::id());
        assert!(!Path::new(DIR).join(own).exists());
    }
}
