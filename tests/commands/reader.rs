//! `tests/golden/reader.py`, a reader of logs written from `docs/format.md` alone, agrees with
//! ztier about each block: in golden images, in logs with every kind of record, and in damaged
//! ones.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::pair::{BLOCK, BLOCKS, Pair, drain};
use crate::support::ram_drive::RamDrive;
use crate::support::sandbox::eventually;
use crate::support::shell::{missing, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Algorithm, Channel, Device, IoError, LogOptions, LogVolume, Request};
use ztier::log::disk::format::{Data, Entry, Header, Kind, SUPER, SUPER_AT, Superblock};
use ztier::log::{self, Options, Policy};
use ztier::media::Drive;

/// The log's content for each of its blocks: the kind of its record, and its bytes, unless the
/// block is lost or no program here decodes it.
type Blocks = BTreeMap<u64, (String, Option<Vec<u8>>)>;

/// The backing store's content of each block, which no test writes.
const BELOW: u8 = 0xee;
const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/reader.py");
const GOLDEN: [&str; 4] =
    ["log-v3.img", "log-v3-checkpoint.img", "log-v3-increment.img", "log-v3-clusters.img"];

fn golden(name: &str) -> Vec<u8> {
    fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The reader's result for an image, and its notes; or the line with which it refuses the image.
fn seen(image: &[u8], options: &[&str]) -> Result<(Blocks, String), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (log, contents) = (path("log"), path("contents"));
    fs::write(&log, image).unwrap();
    let out = run(60, "python3", &[&[READER, "--contents", &contents, &log], options].concat());
    let notes = String::from_utf8(out.stderr).unwrap();
    if !out.status.success() {
        assert!(out.status.code() == Some(1) && notes.lines().count() == 1, "{notes}");
        return Err(notes);
    }
    let contents = fs::read(contents).unwrap();
    let mut contents = contents.chunks_exact(BLOCK as usize);
    let mut blocks = Blocks::new();
    let mut put = |block, kind: &str, content| {
        assert!(blocks.insert(block, (kind.to_owned(), content)).is_none(), "block {block} twice");
    };
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["block", block, kind, sum] => {
                let content = contents.next().unwrap().to_vec();
                if sum == "skipped" {
                    println!("skipped: the content of block {block}: no zstd");
                }
                put(block.parse().unwrap(), kind, (sum != "skipped").then_some(content));
            }
            ["range", first, count, kind] => {
                let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
                let content = (kind == "zeros").then(|| vec![0; BLOCK as usize]);
                (first..first + count).for_each(|block| put(block, kind, content.clone()));
            }
            _ => panic!("{line}"),
        }
    }
    assert!(contents.next().is_none());
    Ok((blocks, notes))
}

fn drive(image: &[u8]) -> Arc<RamDrive> {
    let drive = Arc::new(RamDrive::new(image.len() as u64));
    drive.write(0, image).unwrap();
    drive
}

/// The kind of each block's last record, as ztier reads the chunks of an image.
fn kinds(image: &[u8]) -> BTreeMap<u64, String> {
    let found = log::inspect(&*drive(image), false, true).unwrap();
    let lost = |&(block, count)| Entry::Range { kind: Kind::Lost, block, count };
    let lost: Vec<_> = found.superblock.lost.iter().map(lost).collect();
    let entries = found.chunks.iter().flat_map(|(_, entries)| entries);
    let mut kinds = BTreeMap::new();
    for entry in lost.iter().chain(entries) {
        let (blocks, kind) = match *entry {
            Entry::Data(Data { kind: Kind::Summary, .. } | Data { copy: true, .. }) => continue,
            Entry::Data(Data { block, kind, .. }) => (block..block + 1, kind),
            Entry::Range { kind, block, count } => (block..block + count, kind),
        };
        blocks.for_each(|block| drop(kinds.insert(block, format!("{kind:?}").to_lowercase())));
    }
    kinds
}

fn read(from: &mut dyn Channel, block: u64) -> Result<Vec<u8>, IoError> {
    let mut buf = vec![0xa5; BLOCK as usize];
    from.submit(Request::Read { offset: block * BLOCK, buf: &mut buf }, Instant::now())?;
    Ok(buf)
}

/// Asserts that a volume over the log's image and over a backing store with known content agrees
/// with the reader.
fn assert_volume(image: &[u8], blocks: &Blocks) {
    let backing = Arc::new(RamDrive::new(BLOCKS * BLOCK));
    backing.write(0, &vec![BELOW; (BLOCKS * BLOCK) as usize]).unwrap();
    let policy = Policy { enabled: false, ..Policy::default() };
    let options = LogOptions { policy, ..LogOptions::default() };
    let volume = LogVolume::open(drive(image), backing, options, 99).unwrap();
    volume.start(None).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..BLOCKS {
        let is = read(&mut *channel, block);
        match blocks.get(&block) {
            None => assert!(is.unwrap() == [BELOW; BLOCK as usize], "block {block}"),
            Some((kind, None)) if kind == "lost" => assert_eq!(is, Err(IoError::Corrupt(block))),
            Some((_, None)) => drop(is.unwrap()),
            Some((kind, Some(content))) => assert!(is.unwrap() == *content, "block {block} {kind}"),
        }
    }
    drop(channel);
    volume.close().unwrap();
}

/// Asserts that reader and ztier agree on an image, with and without its checkpoint. Returns the
/// common result, and the reader's notes.
#[track_caller]
fn agree(image: &[u8]) -> (Blocks, String) {
    let (blocks, notes) = seen(image, &[]).unwrap();
    let (again, _) = seen(image, &["--no-checkpoint"]).unwrap();
    assert!(blocks == again, "the checkpoint says something else than the chunks");
    let named = blocks.iter().map(|(block, (kind, _))| (*block, kind.clone()));
    assert_eq!(named.collect::<BTreeMap<_, _>>(), kinds(image));
    assert_volume(image, &blocks);
    (blocks, notes)
}

#[test]
fn the_golden_images_are_read_as_the_page_says() {
    if missing(&["python3"]) {
        return;
    }
    for name in GOLDEN {
        let (blocks, notes) = agree(&golden(name));
        let has_checkpoint = name != "log-v3.img";
        assert_eq!(notes.contains("pages, "), has_checkpoint, "{name}: {notes}");
        assert!(blocks.len() >= 14, "{name}: {notes}");
    }
}

fn write(to: &mut dyn Channel, block: u64, data: &[u8]) {
    to.submit(Request::Write { offset: block * BLOCK, data, fua: false }, Instant::now()).unwrap();
}

fn discard(to: &mut dyn Channel, block: u64, blocks: u64) {
    let (offset, len) = (block * BLOCK, blocks * BLOCK);
    to.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
}

fn flush(to: &mut dyn Channel) {
    to.submit(Request::Flush, Instant::now()).unwrap();
}

/// A block of incompressible bytes.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed << 8 | 0xb5;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..BLOCK).map(|_| next()).collect()
}

/// Text in which all lines are different, but similar.
fn text(seed: u64, blocks: u64) -> Vec<u8> {
    let line = |n: u64| format!("line {} of the text, sum {:x}\n", n, n.wrapping_mul(seed | 1));
    (0..).flat_map(|n| line(n).into_bytes()).take((blocks * BLOCK) as usize).collect()
}

fn open(pair: &mut Pair, algorithm: Algorithm, keep_percent: u64) -> Arc<LogVolume> {
    let policy = Policy { enabled: false, ..Policy::default() };
    let log = Options { checkpoint: 1, keep_percent, ..Options::default() };
    pair.open_with(LogOptions { algorithm, policy, log, ..LogOptions::default() })
}

/// Writes and drains so that the log reuses all of its slots.
fn use_all_slots(pair: &mut Pair) {
    let volume = open(pair, Algorithm::None, 0);
    let mut channel = Arc::clone(&volume).channel();
    for round in 0..3 {
        (300..700).for_each(|block| write(&mut *channel, block, &noise(block + round)));
        drain(&volume);
    }
    drop(channel);
    volume.close().unwrap();
    let (superblock, ..) = log::read_superblock(&*pair.log).unwrap();
    assert!(superblock.written.segment > superblock.segments, "{superblock:?}");
}

/// A log that was opened three times with writeback in between, with every kind of record, before
/// and behind its checkpoint: while a volume uses it, and after it was closed.
fn every_kind() -> [Vec<u8>; 2] {
    let mut pair = Pair::new(4 << 20);
    use_all_slots(&mut pair);
    let volume = open(&mut pair, Algorithm::Lz4, 0);
    let mut channel = Arc::clone(&volume).channel();
    // A record that is damaged at its writeback is lost.
    write(&mut *channel, 0, &noise(1));
    write(&mut *channel, 1, &noise(2));
    flush(&mut *channel);
    let (at, _) = place_of(&pair.log.content(), |_, data| data.block == 0);
    pair.log.damage(at as u64 + 200);
    drain(&volume);
    for block in (10..50).step_by(2) {
        write(&mut *channel, block, &noise(block));
        write(&mut *channel, block + 1, &text(block, 1));
        flush(&mut *channel);
    }
    write(&mut *channel, 60, &noise(60)[..8].repeat(512));
    write(&mut *channel, 61, &[7; BLOCK as usize]);
    write(&mut *channel, 62, &[0; BLOCK as usize]);
    discard(&mut *channel, 14, 3);
    discard(&mut *channel, 1000, 48);
    drop(channel);
    volume.close().unwrap();
    drop(volume);

    let volume = open(&mut pair, Algorithm::Zstd, 0);
    let mut channel = Arc::clone(&volume).channel();
    for block in (100..160).step_by(8) {
        write(&mut *channel, block, &text(block, 8));
        flush(&mut *channel);
    }
    // More blocks than those outside of clusters.
    eventually("a checkpoint with clusters", || {
        let found = log::inspect(&*drive(&pair.log.content()), false, false).unwrap();
        found.report.known > 50
    });
    write(&mut *channel, 101, &text(1, 1));
    write(&mut *channel, 102, &noise(102));
    discard(&mut *channel, 111, 2);
    write(&mut *channel, 1010, &text(2, 1));
    write(&mut *channel, 200, &text(3, 4));
    write(&mut *channel, 20, &noise(3));
    flush(&mut *channel);
    let at_work = pair.log.content();
    drop(channel);
    volume.close().unwrap();
    [at_work, pair.log.content()]
}

#[test]
fn logs_with_every_kind_of_record_are_read_as_the_page_says() {
    if missing(&["python3"]) {
        return;
    }
    let [at_work, closed] = every_kind();
    for (image, how) in [(&at_work, "at work"), (&closed, "closed")] {
        let (blocks, notes) = agree(image);
        let kinds: BTreeSet<_> = blocks.values().map(|(kind, _)| kind.as_str()).collect();
        let all = ["cluster", "lost", "lz4", "raw", "same", "zeros", "zstd"];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all, "{how}");
        assert!(notes.contains("pages, "), "{how}: {notes}");
        assert!(!blocks.contains_key(&1), "{how}: written back");
    }
    let (_, notes) = seen(&closed, &["--no-checkpoint"]).unwrap();
    assert!(!notes.contains(" 0 summaries"), "{notes}");

    // Chunks that no header calls durable count only if they are complete.
    let mut torn = at_work;
    let (at, of) = place_of(&torn, |header, _| header.durable <= header.chunk);
    torn[at] ^= 1;
    let (_, notes) = agree(&torn);
    assert!(notes.contains(&format!("chunk {of} is torn")), "{notes}");
}

/// Offset of the payload of the last record that `fits`, and the number of its chunk.
fn place_of(image: &[u8], fits: impl Fn(&Header, &Data) -> bool) -> (usize, u64) {
    let found = log::inspect(&*drive(image), false, true).unwrap();
    let mut all = found
        .chunks
        .iter()
        .rev()
        .flat_map(|(header, entries)| entries.iter().rev().map(move |entry| (header, entry)));
    let place = all.find_map(|(header, entry)| match entry {
        Entry::Data(data) if fits(header, data) => {
            let at = found.superblock.place(header.segment) + u64::from(data.offset);
            Some((at as usize, header.chunk))
        }
        _ => None,
    });
    place.unwrap()
}

/// Blocks of which the log has copies.
const HOT: u64 = 64;

/// A log with copies of read blocks, and with written-back records: while there are copies behind
/// the last changes, and after it was closed, with a checkpoint that includes more than what the
/// backing store lacks. Also the backing store at that time.
fn copies() -> ([Vec<u8>; 2], Vec<u8>) {
    let mut pair = Pair::new(4 << 20);
    for block in 0..HOT {
        let data = if block % 2 == 0 { noise(block) } else { text(block, 1) };
        pair.backing.write(block * BLOCK, &data).unwrap();
    }
    let volume = open(&mut pair, Algorithm::Lz4, 50);
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 100, &text(100, 1));
    write(&mut *channel, 101, &noise(101));
    drain(&volume);
    for _ in 0..3 {
        (0..HOT).for_each(|block| drop(read(&mut *channel, block).unwrap()));
    }
    let log = || volume.stats().log.unwrap();
    eventually("copies", || log().copies_kept >= HOT * 9 / 10);
    flush(&mut *channel);
    let at_work = pair.log.content();
    eventually("all is in the backing store", || log().clean);
    eventually("a checkpoint behind what is written", || {
        write(&mut *channel, 102, &text(102, 1));
        flush(&mut *channel);
        let found = log::inspect(&*drive(&pair.log.content()), false, false).unwrap();
        found.report.known > 0
    });
    drop(channel);
    volume.close().unwrap();
    ([at_work, pair.log.content()], pair.backing.content())
}

/// Whether a log has copies behind the last changes.
fn has_late_copies(image: &[u8]) -> bool {
    let found = log::inspect(&*drive(image), false, true).unwrap();
    let mut entries = found.chunks.iter().flat_map(|(_, entries)| entries);
    entries.any(|entry| matches!(entry, Entry::Data(Data { copy: true, .. })))
}

#[test]
fn copies_are_read_as_the_page_says() {
    if missing(&["python3"]) {
        return;
    }
    let ([at_work, closed], backing) = copies();
    let (all, _) = seen(&closed, &["--all"]).unwrap();
    assert!(all == seen(&closed, &["--all", "--no-checkpoint"]).unwrap().0);
    let count = |kind| all.values().filter(|(is, _)| is == kind).count() as u64;
    let counts = [count("raw-copy"), count("lz4-copy"), count("raw"), count("lz4")];
    assert!(counts[0] + counts[1] >= HOT * 9 / 10 && counts[2..] == [1, 2], "{counts:?}");
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    for (block, (kind, content)) in all.iter().filter(|(block, _)| **block != 102) {
        let is = &backing[(block * BLOCK) as usize..][..BLOCK as usize];
        assert!(content.as_deref() == Some(is), "block {block} {kind}");
    }
    // Over a backing store that may have changed, no copy counts.
    let (blocks, notes) = agree(&closed);
    assert!(blocks.keys().eq(&[102]) && notes.contains("pages, "), "{notes}");
    assert!(has_late_copies(&at_work));
    assert!(agree(&at_work).0.is_empty());
    // One copy of the superblock is that of the newly made log.
    let mut mixed = closed;
    mixed[..SUPER].copy_from_slice(&Pair::new(4 << 20).log.content()[..SUPER]);
    assert!(agree(&mixed).0.keys().eq(&[102]));
}

#[track_caller]
fn refusal(image: &[u8], options: &[&str]) -> String {
    seen(image, options).err().unwrap()
}

#[test]
fn damage_is_refused_as_the_page_says() {
    if missing(&["python3"]) {
        return;
    }
    let image = golden("log-v3-checkpoint.img");
    let damaged = |places: &[usize]| {
        let mut image = image.clone();
        places.iter().for_each(|at| image[*at] ^= 0x10);
        image
    };
    let (whole, _) = seen(&image, &[]).unwrap();
    // A record, by the chunks and by the checkpoint.
    let (at, _) = place_of(&image, |_, data| data.block == 3);
    for options in [&[][..], &["--no-checkpoint"]] {
        let line = refusal(&damaged(&[at]), options);
        assert!(line.contains("block 3: the check word of its payload is wrong"), "{line}");
    }
    // Header and table of a chunk that a later one calls durable.
    let found = log::inspect(&*drive(&image), false, true).unwrap();
    let known = found.superblock.durable;
    assert!((6..12).contains(&known), "the superblock knows of the first, and not of the second");
    for (header, _) in [&found.chunks[5], &found.chunks[12]] {
        let begin = (found.superblock.place(header.segment) + u64::from(header.offset)) as usize;
        for at in [begin, begin + 20, begin + 124, begin + header.table_at()] {
            let line = refusal(&damaged(&[at]), &["--no-checkpoint"]);
            assert!(line.contains(&format!("chunk {} is damaged", header.chunk)), "{line}");
            assert!(log::inspect(&*drive(&damaged(&[at])), false, true).is_err());
        }
    }
    // A lost checkpoint only costs time, and a superblock has a copy.
    let page = checkpoint_at(&found.superblock, &image);
    let (blocks, notes) = seen(&damaged(&[page + 70]), &[]).unwrap();
    assert!(blocks == whole && notes.contains("the checkpoint is not used: page 0"), "{notes}");
    let supers = SUPER_AT.map(|at| at as usize + 40);
    for (at, name) in supers.into_iter().zip(["A", "B"]) {
        let (blocks, notes) = seen(&damaged(&[at]), &[]).unwrap();
        assert!(blocks == whole && notes.contains(&format!("superblock {name}: ")), "{notes}");
    }
    let line = refusal(&damaged(&supers), &[]);
    assert!(line.contains("superblock A: the CRC of a superblock is wrong"), "{line}");
}

/// Offset of the checkpoint on the drive, in bytes.
fn checkpoint_at(superblock: &Superblock, image: &[u8]) -> usize {
    let at = superblock.area_at(superblock.checkpoint.unwrap().area) as usize;
    assert_eq!(image[at..at + 4], *b"zCKP");
    at
}
