//! The kernel's type information (BTF): numbers that programs attach by, and where members of its
//! structures are.
//!
//! Format: the kernel's `Documentation/bpf/btf.rst`. The file has several MiB, which are read at
//! once and given back with this.

use crate::error::{Context, Error, Result};
use std::path::Path;

/// The kernel's type information.
pub const FILE: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
/// Bytes of a header, and of a type without what follows it.
const HEADER: usize = 24;
const TYPE: usize = 12;

/// The kind of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A structure.
    Structure = 4,
    /// A union.
    Union = 5,
    /// An enumeration.
    Enumeration = 6,
    /// A name for another type.
    Typedef = 8,
    /// A function.
    Function = 12,
}

/// See the module.
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// Where each type begins, the first is number 1.
    types: Vec<u32>,
}

impl Btf {
    /// That of this kernel.
    ///
    /// # Errors
    /// There is none, or it is of an unknown form.
    pub fn of_kernel() -> Result<Self> {
        let bytes = std::fs::read(Path::new(FILE));
        Self::read(bytes.context(format!("no type information ({FILE})"))?)
    }

    fn read(bytes: Vec<u8>) -> Result<Self> {
        let strange = || Error::failure(format!("{FILE} is not of a known form"));
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()[..]) || bytes.len() < HEADER {
            return Err(strange());
        }
        let mut btf = Self { bytes, strings: 0, types: Vec::new() };
        let header = |at| btf.word(at).map(|word| word as usize);
        let (begin, strings) = header(4).zip(header(16)).ok_or_else(strange)?;
        let (from, len) = header(8).zip(header(12)).ok_or_else(strange)?;
        let (mut at, end) = (begin + from, begin + from + len);
        btf.strings = begin + strings;
        while at < end {
            btf.types.push(at as u32);
            at += TYPE + btf.rest(at).ok_or_else(strange)?;
        }
        Ok(btf)
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at + 4)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Kind and number of members of the type at `at`.
    fn shape(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.word(at + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    /// Bytes that follow the type at `at`; `None`: its kind is unknown.
    fn rest(&self, at: usize) -> Option<usize> {
        let (kind, members) = self.shape(at)?;
        match kind {
            1 | 14 | 17 => Some(4),
            3 => Some(12),
            4 | 5 | 15 | 19 => Some(12 * members),
            6 | 13 => Some(8 * members),
            2 | 7..=12 | 16 | 18 => Some(0),
            _ => None,
        }
    }

    /// Whether the name at `at` is `name`.
    fn is_named(&self, at: usize, name: &str) -> bool {
        let Some(offset) = self.word(at) else { return false };
        let from = self.strings + offset as usize;
        let end = from + name.len();
        self.bytes.get(from..end) == Some(name.as_bytes()) && self.bytes.get(end) == Some(&0)
    }

    fn start(&self, number: u32) -> Option<usize> {
        self.types.get(number.checked_sub(1)? as usize).map(|at| *at as usize)
    }

    /// The number of a type.
    ///
    /// # Errors
    /// There is none of that kind and name.
    pub fn number(&self, kind: Kind, name: &str) -> Result<u32> {
        let is_it = |at: &u32| {
            let at = *at as usize;
            self.shape(at).is_some_and(|(found, _)| found == kind as u32) && self.is_named(at, name)
        };
        let found = self.types.iter().position(is_it);
        let missing = || Error::failure(format!("this kernel has no {name}"));
        found.map(|number| number as u32 + 1).ok_or_else(missing)
    }

    /// Where a member is in a structure, in bytes; also one of an unnamed structure in it.
    ///
    /// # Errors
    /// There is no such member.
    pub fn offset(&self, structure: &str, member: &str) -> Result<u32> {
        let number = self.number(Kind::Structure, structure)?;
        let missing = || Error::failure(format!("this kernel has no {structure}.{member}"));
        self.member(number, member).ok_or_else(missing)
    }

    fn member(&self, number: u32, name: &str) -> Option<u32> {
        let start = self.start(number)?;
        let (_, members) = self.shape(start)?;
        let is_packed = self.word(start + 4)? >> 31 == 1;
        (0..members).find_map(|n| {
            let at = start + TYPE + 12 * n;
            let offset = self.word(at + 8)?;
            let bytes = if is_packed { offset & 0xff_ffff } else { offset } / 8;
            if self.is_named(at, name) {
                return Some(bytes);
            }
            let inner = self.word(at + 4)?;
            let (kind, _) = self.shape(self.start(inner)?)?;
            let is_unnamed = self.word(at)? == 0;
            let is_either = kind == Kind::Structure as u32 || kind == Kind::Union as u32;
            if !is_unnamed || !is_either {
                return None;
            }
            self.member(inner, name).map(|within| bytes + within)
        })
    }

    /// Bytes of a structure.
    ///
    /// # Errors
    /// There is no such structure.
    pub fn size(&self, structure: &str) -> Result<u32> {
        let number = self.number(Kind::Structure, structure)?;
        Ok(self.start(number).and_then(|at| self.word(at + 8)).unwrap_or_default())
    }

    /// The value of a name in an enumeration.
    ///
    /// # Errors
    /// There is no such name.
    pub fn value(&self, enumeration: &str, name: &str) -> Result<u32> {
        let start = self.start(self.number(Kind::Enumeration, enumeration)?).unwrap_or_default();
        let members = self.shape(start).map_or(0, |(_, members)| members);
        let found = (0..members).map(|n| start + TYPE + 8 * n).find(|at| self.is_named(*at, name));
        let missing = || Error::failure(format!("this kernel has no {name}"));
        found.and_then(|at| self.word(at + 4)).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
    fn types_are_found_by_name_and_kind() {
        // "" at 0, "one" at 1, "two" at 5, "in" at 9: a structure of `two` and an unnamed union with
        // `in`, that union, a prototype of two parameters, functions, an enumeration.
        let kinds = [4 << 24 | 2, 5 << 24 | 1, 13 << 24 | 2, 12 << 24, 12 << 24, 6 << 24 | 1];
        let names = [5, 0, 0, 5, 1, 1];
        let types: Vec<_> = names.iter().zip(kinds).map(|(name, info)| [*name, info, 40]).collect();
        let rest: [&[u32]; 6] = [&[5, 9, 64, 0, 2, 128], &[9, 3, 32], &[9; 4], &[], &[], &[9, 7]];
        let btf = Btf::read(file(&types, &rest, "\0one\0two\0in\0")).unwrap();
        assert_eq!(btf.number(Kind::Function, "one").unwrap(), 5);
        assert_eq!(btf.number(Kind::Function, "two").unwrap(), 4);
        assert_eq!(btf.offset("two", "two").unwrap(), 8);
        assert_eq!(btf.offset("two", "in").unwrap(), 20);
        assert_eq!((btf.size("two").unwrap(), btf.value("one", "in").unwrap()), (40, 7));
        for (error, text) in [
            (btf.number(Kind::Function, "three"), "this kernel has no three"),
            (btf.offset("two", "one"), "this kernel has no two.one"),
            (btf.value("one", "two"), "this kernel has no two"),
        ] {
            assert_eq!(error.unwrap_err().to_string(), text);
        }
        let whole = file(&types, &rest, "\0one\0two\0in\0");
        for cut in 0..whole.len() {
            // Whatever is missing, nothing is found where it is not.
            if let Ok(btf) = Btf::read(whole[..cut].to_vec()) {
                let _ = (btf.offset("two", "in"), btf.value("one", "in"), btf.size("one"));
            }
        }
        assert!(Btf::read(b"something else that is long".to_vec()).is_err());
    }

    #[test]
    fn this_kernel_s_information_is_understood() {
        let Ok(btf) = Btf::of_kernel() else {
            eprintln!("skipped: no {FILE}");
            return;
        };
        assert!(btf.number(Kind::Function, "do_swap_page").unwrap() > 0);
        assert!(btf.offset("super_block", "s_dev").unwrap() > 0);
        assert!(btf.size("page").unwrap() >= 56);
    }
}
