//! Files as drives: any memory, parts of blocks, failures, claims.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::threadless::is_alone;
use std::fs;

fn file(dir: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join("drive");
    fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn refusal(path: &Path, access: Access) -> String {
    FileDrive::open(path, access).unwrap_err().to_string()
}

#[test]
fn data_comes_back_from_any_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, (1 << 20) + 100);
    let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
    assert_eq!(drive.size(), 1 << 20);
    // Longer than the bounce buffer, at an odd address.
    let data: Vec<u8> = (0..600 * 1024 + 1).map(|i| (i / 3) as u8).collect();
    drive.write(8192, &data[1..]).unwrap();
    drive.flush().unwrap();
    let mut back = vec![0; data.len()];
    drive.read(8192, &mut back[1..]).unwrap();
    assert!(back[1..] == data[1..]);
    let mut aligned = Buffer::new(data.len() - 1);
    drive.read(8192, &mut aligned).unwrap();
    assert!(aligned[..] == data[1..]);

    drive.zero(8192, 4096).unwrap();
    drive.discard_hint(16384, 4096);
    drive.read(8192, &mut aligned[..8192]).unwrap();
    assert!(aligned[..4096].iter().all(|b| *b == 0));
    assert!(aligned[4096..8192] == data[4097..8193]);
    assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + 100);
}

#[test]
fn a_part_of_a_block_changes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 1 << 20);
    let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
    let mut expected = vec![1; 8192];
    drive.write(4096, &expected).unwrap();
    // Whole sectors, and any other bytes.
    for (at, len) in [(512, 512), (2048, 1536), (4096, 3584), (7, 100), (8000, 192), (1, 4095)] {
        drive.write_part(4096 + at, &vec![at as u8; len]).unwrap();
        expected[at as usize..][..len].fill(at as u8);
    }
    let mut found = vec![0; 8192];
    drive.read(4096, &mut found).unwrap();
    assert!(found == expected);
    assert_eq!(drive.write_part(1 << 20, &[1; 512]).unwrap_err().errno, 22);
}

#[test]
fn zeros_are_written_where_nothing_else_works() {
    let dir = tempfile::tempdir().unwrap();
    let drive = FileDrive::open(&file(&dir, 1 << 20), Access::Exclusive).unwrap();
    drive.write(0, &[7; 1 << 20]).unwrap();
    drive.write_zeros(4096, 700 << 10).unwrap();
    let mut back = vec![1; 1 << 20];
    drive.read(0, &mut back).unwrap();
    let end = 4096 + (700 << 10);
    assert!(back[4096..end].iter().all(|b| *b == 0));
    assert!(back[..4096].iter().chain(&back[end..]).all(|b| *b == 7));
}

#[test]
fn many_are_read_at_once_and_each_fails_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let drive = FileDrive::open(&file(&dir, 1 << 20), Access::Exclusive).unwrap();
    for at in (0..1u64 << 20).step_by(4096) {
        drive.write(at, &[(at >> 12) as u8; 4096]).unwrap();
    }
    for count in [0, 1, 5, 16, 100, 257] {
        let at = |i: u64| i * 7 % 257 * 4096;
        let all = drive.read_many((0..count).map(|i| (at(i), Buffer::new(4096))).collect());
        assert_eq!(all.len() as u64, count);
        for (i, one) in (0..).zip(all) {
            match one {
                Ok((from, bytes)) => {
                    assert_eq!(from, at(i));
                    assert!(bytes.iter().all(|b| *b == (from >> 12) as u8));
                }
                Err(e) => assert_eq!((e.at, at(i)), (1 << 20, 1 << 20)),
            }
        }
    }
}

#[test]
fn many_are_read_also_without_threads() {
    if !is_alone(module_path!(), "many_are_read_also_without_threads") {
        return;
    }
    many_are_read_at_once_and_each_fails_for_itself();
}

#[test]
fn nothing_outside_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 8192);
    let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
    for (at, len) in [(8192, 4096), (4096, 8192), (100, 4096), (0, 100)] {
        assert_eq!(drive.write(at, &vec![1; len]).unwrap_err().errno, 22);
        assert_eq!(drive.read(at, &mut vec![1; len]).unwrap_err().errno, 22);
        assert_eq!(drive.zero(at, len as u64).unwrap_err().errno, 22);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    assert!(fs::read(&path).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 1 << 20);
    let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = drive.read(8192, &mut [0; 4096]).unwrap_err();
    assert_eq!((error.action, error.errno), (Action::Read, 5));
}

#[test]
fn one_at_a_time_may_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 8192);
    let first = FileDrive::open(&path, Access::Exclusive).unwrap();
    let text = refusal(&path, Access::Exclusive);
    assert!(text.contains("is in use") && text.contains("twice"), "{text}");
    let looker = FileDrive::open(&path, Access::ReadOnly).unwrap();
    looker.read(0, &mut [0; 4096]).unwrap();
    assert_eq!(looker.write(0, &[0; 4096]).unwrap_err().errno, 30);
    assert_eq!(looker.zero(0, 4096).unwrap_err().errno, 30);
    let text = refusal(&path, Access::Still);
    assert!(text.contains("is in use"), "{text}");
    drop(first);
    let still = FileDrive::open(&path, Access::Still).unwrap();
    assert_eq!(still.write(0, &[0; 4096]).unwrap_err().errno, 30);
    FileDrive::open(&path, Access::Still).unwrap();
    refusal(&path, Access::Exclusive);
    drop(still);
    FileDrive::open(&path, Access::Exclusive).unwrap();
}

#[test]
fn what_is_no_drive_is_refused_with_the_hint() {
    let dir = tempfile::tempdir().unwrap();
    let small = file(&dir, 4095);
    for (path, parts) in [
        (dir.path().join("none"), ["does not exist", "--log-size"]),
        ("/dev/no/such".into(), ["does not exist", "lsblk"]),
        (dir.path().to_owned(), ["is a directory", "give a block device"]),
        ("/dev/null".into(), ["is a character device", "give a block device"]),
        (small.clone(), ["4095 bytes", "give a larger"]),
        (small.join("below"), ["does not exist", "check the name"]),
    ] {
        for access in [Access::Exclusive, Access::ReadOnly] {
            let text = refusal(&path, access);
            assert!(text.starts_with(path.to_str().unwrap()), "{text}");
            assert!(parts.iter().all(|p| text.contains(p)), "{text}");
        }
    }
}
