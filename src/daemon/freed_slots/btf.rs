//! Numbers of the kernel's functions in its type information (BTF), which programs attach by.
//!
//! Format: the kernel's `Documentation/bpf/btf.rst`. The file has several MiB; it is read through a
//! small buffer, because a daemon that carries swap must stay small.

use crate::error::{Context, Error, Result};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

/// The kernel's type information.
pub(super) const FILE: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
/// Bytes of the buffer.
const BUFFER: usize = 64 << 10;
/// Bytes of a type without what follows it.
const TYPE: usize = 12;
/// The kind of a function.
const FUNCTION: u32 = 12;

/// The numbers of the functions `names`, in that order, in type information of this machine's byte
/// order.
///
/// # Errors
/// A function is missing, or this is no type information.
pub(super) fn functions<const N: usize>(
    file: impl Read + Seek,
    names: [&str; N],
) -> Result<[u32; N]> {
    let what = || format!("cannot read {FILE}");
    let mut file = BufReader::with_capacity(BUFFER, file);
    let mut header = [0; 24];
    file.read_exact(&mut header).context(what())?;
    let word = |at: usize| {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(u32::from_ne_bytes(bytes.unwrap_or_default()))
    };
    if header[..2] != MAGIC.to_ne_bytes() {
        return Err(Error::failure(format!("{FILE} is not of a known form")));
    }
    let (from, types, strings) =
        (word(4), word(8)..word(8) + word(12), word(16)..word(16) + word(20));
    file.seek(SeekFrom::Start(from + strings.start)).context(what())?;
    let offsets = offsets((&mut file).take(strings.end - strings.start), names).context(what())?;
    if let Some((name, _)) = names.iter().zip(&offsets).find(|(_, offset)| offset.is_none()) {
        return Err(Error::failure(format!("this kernel has no {name}")));
    }
    file.seek(SeekFrom::Start(from + types.start)).context(what())?;
    let numbers = numbers(&mut file, types.end - types.start, offsets).context(what())?;
    if let Some((name, _)) = names.iter().zip(&numbers).find(|(_, number)| number.is_none()) {
        return Err(Error::failure(format!("this kernel has no function {name}")));
    }
    Ok(numbers.map(Option::unwrap_or_default))
}

/// Where in the table of strings each name begins.
fn offsets<const N: usize>(
    mut table: impl BufRead,
    names: [&str; N],
) -> std::io::Result<[Option<u32>; N]> {
    let (mut found, mut at, mut string) = ([None; N], 0, Vec::new());
    while table.read_until(0, &mut string)? > 0 {
        let text = string.strip_suffix(&[0]).unwrap_or(&string);
        if let Some(n) = names.iter().position(|name| name.as_bytes() == text) {
            found[n] = Some(at);
        }
        at += string.len() as u32;
        string.clear();
    }
    Ok(found)
}

/// The number of the function whose name begins at each offset, among `len` bytes of types.
fn numbers<R: Read + Seek, const N: usize>(
    types: &mut BufReader<R>,
    len: u64,
    names: [Option<u32>; N],
) -> std::io::Result<[Option<u32>; N]> {
    let (mut found, mut at, mut number) = ([None; N], 0, 0);
    while at < len && found.contains(&None) {
        number += 1;
        let mut header = [0; TYPE];
        types.read_exact(&mut header)?;
        let [name, info, _] = header.as_chunks::<4>().0 else { break };
        let (name, info) = (u32::from_ne_bytes(*name), u32::from_ne_bytes(*info));
        let (kind, members) = (info >> 24 & 0x1f, i64::from(info & 0xffff));
        if kind == FUNCTION
            && let Some(n) = names.iter().position(|offset| *offset == Some(name))
        {
            found[n] = Some(number);
        }
        let rest = match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 | 15 | 19 => 12 * members,
            6 | 13 => 8 * members,
            2 | 7..=12 | 16 | 18 => 0,
            _ => return Err(std::io::Error::other(format!("a type of unknown kind {kind}"))),
        };
        types.seek_relative(rest)?;
        at += TYPE as u64 + rest as u64;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Cursor;

    /// Types with `strings` at the end of a file.
    fn file(types: &[[u32; 3]], rest: &[&[u32]], strings: &str) -> Vec<u8> {
        let mut body = Vec::new();
        for (n, words) in types.iter().enumerate() {
            let all = words.iter().chain(rest.get(n).copied().unwrap_or_default());
            body.extend(all.flat_map(|word| word.to_ne_bytes()));
        }
        let mut all = MAGIC.to_ne_bytes().to_vec();
        all.extend([1, 0]);
        let words = [24, 0, body.len() as u32, body.len() as u32, strings.len() as u32];
        all.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        all.extend(body);
        all.extend(strings.as_bytes());
        all
    }

    #[test]
    fn functions_are_found_by_name_and_kind() {
        // "" at 0, "one" at 1, "two" at 5: a structure of one member called `two`, a prototype of
        // two parameters, and the functions.
        let kinds = [4 << 24 | 1, 13 << 24 | 2, 12 << 24, 12 << 24];
        let names = [5, 0, 5, 1];
        let types: Vec<_> = names.iter().zip(kinds).map(|(name, info)| [*name, info, 0]).collect();
        let rest: [&[u32]; 2] = [&[9; 3], &[9; 4]];
        let file = file(&types, &rest, "\0one\0two\0");
        assert_eq!(functions(Cursor::new(&file), ["one", "two"]).unwrap(), [4, 3]);
        let missing = functions(Cursor::new(&file), ["three"]).unwrap_err().to_string();
        assert!(missing.contains("this kernel has no three"), "{missing}");
        let cut = functions(Cursor::new(&file[..40]), ["one"]).unwrap_err().to_string();
        assert!(cut.contains("has no one"), "{cut}");
        assert!(functions(Cursor::new(b"something else that is long"), ["one"]).is_err());
    }

    #[test]
    fn this_kernel_s_information_is_understood() {
        let Ok(kernel) = std::fs::File::open(FILE) else {
            eprintln!("skipped: no {FILE}");
            return;
        };
        let [number] = functions(kernel, ["do_swap_page"]).unwrap();
        assert!(number > 0);
    }
}
