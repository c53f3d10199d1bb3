//! The index of one directory: from a name to an inode, and from a cookie to the next name.
//!
//! **For:** lookup and reading. **State:** derived from the names the inodes keep; rebuilt at mount, never written.
//! **Invariants:** a cookie is the hash of a name, so it stays true while others come and go, and two reads of a
//! directory in which nothing else happened give the same order. Names live in the inodes; here stand 16 bytes each.
//!
//! The hash is that of the name with case folded, so that names that differ only in case are neighbours: Samba's question
//! "how is this name really spelt here?" is answered without a scan, at no cost in memory.

use crate::casing::folded;
use crate::usage::Usage;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use units::Ino;

/// First cookie a name can have; smaller ones are for `.` and `..`.
pub(crate) const FIRST_COOKIE: u64 = 1 << 12;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryIndex {
    /// 50 bits of the folded name's hash, then 12 bits that tell names of the same hash apart.
    entries: BTreeMap<u64, Ino>,
    subdirectories: u32,
    /// What lies below the directory, however deep (`metadata/sums.rs`).
    pub(crate) below: Usage,
}

/// Names of one hash in a directory: all spellings of a name in upper and lower case.
const NAMES_OF_ONE_HASH: usize = 1 << 12;

/// The cookies a name can have.
fn cookies(name: &[u8]) -> std::ops::RangeInclusive<u64> {
    let mut hasher = DefaultHasher::new();
    match std::str::from_utf8(name) {
        Ok(name) => folded(name).for_each(|character| hasher.write_u32(character.into())),
        Err(_) => name.iter().for_each(|byte| hasher.write_u8(byte.to_ascii_uppercase())),
    }
    let hash = ((hasher.finish() >> 13) | 1) << 12;
    hash..=hash | 0xfff
}

impl DirectoryIndex {
    /// Names in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it has no names.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many of the names are directories.
    pub fn subdirectories(&self) -> u32 {
        self.subdirectories
    }

    /// The inodes that `name` may stand for; the caller compares the names they keep. Nearly always one or none.
    pub fn candidates(&self, name: &[u8]) -> impl Iterator<Item = (u64, Ino)> {
        self.entries.range(cookies(name)).map(|(&cookie, &ino)| (cookie, ino))
    }

    /// The entries of a [hash](Self::hash).
    pub fn of_hash(&self, hash: u64) -> impl Iterator<Item = (u64, Ino)> {
        self.entries.range(hash..=hash | 0xfff).map(|(&cookie, &ino)| (cookie, ino))
    }

    /// Enters a name. Returns false when there is no cookie left for names of its hash.
    pub fn insert(&mut self, name: &[u8], ino: Ino, is_directory: bool) -> bool {
        let Some(cookie) = cookies(name).find(|cookie| !self.entries.contains_key(cookie)) else {
            return false;
        };
        self.entries.insert(cookie, ino);
        self.subdirectories += u32::from(is_directory);
        true
    }

    /// True when one more name of this hash can be entered.
    pub fn has_room(&self, name: &[u8]) -> bool {
        self.entries.range(cookies(name)).count() < NAMES_OF_ONE_HASH
    }

    /// Takes out the name that stands at `cookie`.
    pub fn remove(&mut self, cookie: u64, is_directory: bool) {
        if self.entries.remove(&cookie).is_some() {
            self.subdirectories -= u32::from(is_directory);
        }
    }

    /// The entries with a cookie greater than `cookie`.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, Ino)> {
        self.entries.range(cookie + 1..).map(|(&cookie, &ino)| (cookie, ino))
    }

    /// What all spellings of a name in upper and lower case have in common: the first cookie they can have.
    pub fn hash(name: &[u8]) -> u64 {
        *cookies(name).start()
    }

    /// The hash of the names that can have `cookie`.
    pub fn hash_of_cookie(cookie: u64) -> u64 {
        cookie / NAMES_OF_ONE_HASH as u64 * NAMES_OF_ONE_HASH as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_positive_as_file_offsets_and_above_the_reserved_ones() {
        for name in [&b"a"[..], b"", b"frame_000001.dpx"] {
            let range = cookies(name);
            assert!(*range.start() >= FIRST_COOKIE && *range.end() < 1 << 63);
        }
    }

    #[test]
    fn names_of_the_same_hash_get_cookies_of_their_own_until_there_are_4096() {
        let mut index = DirectoryIndex::default();
        for ino in 0..4096 {
            assert!(index.has_room(b"same") && index.insert(b"same", Ino(ino), false));
        }
        assert!(!index.has_room(b"same") && !index.insert(b"same", Ino(4096), false));
        assert_eq!(index.candidates(b"same").count(), 4096);
        let (cookie, ino) = index.candidates(b"same").nth(100).unwrap();
        index.remove(cookie, false);
        assert!(index.candidates(b"same").all(|(_, other)| other != ino));
        assert!(index.insert(b"same", Ino(999), false));
    }

    #[test]
    fn spellings_of_a_name_are_neighbours() {
        for (one, other) in [("Frame_01.DPX", "frame_01.dpx"), ("ÄRGER.mov", "ärger.MOV"), ("日本", "日本")]
        {
            assert_eq!(cookies(one.as_bytes()), cookies(other.as_bytes()), "{one}");
        }
    }
}
