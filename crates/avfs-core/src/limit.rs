//! How much may lie below a directory: what an administrator said, as it stands in an extended attribute.
//!
//! **For:** the grammar of that attribute. **Excludes:** what lies below a directory (`metadata/usage.rs`), refusing (`core/limits.rs`).
//! **State:** none. **Invariants:** what is set through this code can be read by it; what cannot be read limits nothing, and is shown.

use crate::config::parse_size;
use crate::format::BLOCK;
use std::fmt;
use units::Bytes;

/// The attribute of a directory that says what may lie below it. Only the administrator can write it (the kernel sees to that).
pub const LIMIT_XATTR: &str = "trusted.avfs.limit";

/// True for the name of that attribute, in any spelling.
pub(crate) fn is_limit(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(LIMIT_XATTR.as_bytes())
}

/// What may lie below a directory. `None`: as much as there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Space of files, at most.
    pub size: Option<Bytes>,
    /// Files, directories and whatever else has a name, at most.
    pub files: Option<u64>,
    /// Space of files beyond which the administrator is told.
    pub soft: Option<Bytes>,
}

impl Limit {
    /// Reads `size=20T soft=18T files=2M`, of which at least one is there: sizes as everywhere, files as a number or with K, M or G
    /// for thousands, millions and thousands of millions.
    ///
    /// # Errors
    /// One line: what was found and what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut limit = Self::default();
        for word in text.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?}: expected KEY=VALUE"))?;
            let is_new = match key {
                "size" => limit.size.replace(parse_space(value)?).is_none(),
                "soft" => limit.soft.replace(parse_space(value)?).is_none(),
                "files" => limit.files.replace(parse_files(value)?).is_none(),
                _ => return Err(format!("{key:?}: a limit has size, soft and files")),
            };
            if !is_new {
                return Err(format!("{key:?} is said twice"));
            }
        }
        if limit == Self::default() {
            return Err("a limit says at least one of size, soft and files".to_owned());
        }
        match (limit.soft, limit.size) {
            (Some(soft), Some(size)) if soft > size => {
                Err("soft is more than size: it would never be crossed".to_owned())
            }
            _ => Ok(limit),
        }
    }

    /// The same of an attribute's value.
    pub(crate) fn read(value: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(value).map_err(|_| "the value is not text".to_owned())?;
        Self::parse(text.trim_end_matches('\0'))
    }

    /// Blocks of files, at most.
    pub(crate) fn blocks(&self) -> Option<u64> {
        self.size.map(|size| size.0 / BLOCK)
    }
}

/// As [`Limit::parse`] reads it, to the byte.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.map(|size| ("size", size.0));
        let soft = self.soft.map(|soft| ("soft", soft.0));
        let all = [size, soft, self.files.map(|files| ("files", files))];
        let words: Vec<String> =
            all.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

fn parse_space(text: &str) -> Result<Bytes, String> {
    match parse_size(text)? {
        size if size.0 < BLOCK => Err(format!("{text:?}: a limit is {BLOCK} bytes or more")),
        size => Ok(size),
    }
}

/// Reads a number of files, such as `2000000` or `2M`.
///
/// # Errors
/// One line: what was found and what is expected.
pub fn parse_files(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?}: expected a number of files such as 50000, 50K or 2M");
    let (digits, factor) = match text.strip_suffix(['K', 'k', 'M', 'G']) {
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) if text.ends_with('G') => (digits, 1_000_000_000),
        Some(digits) => (digits, 1_000),
        None => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let files =
        digits.parse::<u64>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(factor));
    files.filter(|&files| files > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_is_what_an_administrator_writes() {
        let limit = Limit::parse("size=20T soft=18TiB files=2M").unwrap();
        let tebibytes = |count: u64| Some(Bytes(count << 40));
        assert_eq!(limit, Limit { size: tebibytes(20), files: Some(2_000_000), soft: tebibytes(18) });
        assert_eq!(limit.to_string(), "size=21990232555520 soft=19791209299968 files=2000000");
        for wrong in [
            "",
            "size",
            "size=",
            "size=4095",
            "size=1T size=2T",
            "soft=2T size=1T",
            "files=0",
            "files=1.5",
            "space=1T",
        ] {
            assert!(Limit::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Limit::read(b"\xff").is_err() && is_limit(b"Trusted.AVFS.limit"));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(size in prop::option::of(4096u64..), files in prop::option::of(1u64..), soft in prop::option::of(4096u64..)) {
            let limit = Limit { size: size.map(Bytes), files, soft: soft.map(Bytes) };
            let read = Limit::parse(&limit.to_string());
            let is_one = limit != Limit::default() && !matches!((soft, size), (Some(soft), Some(size)) if soft > size);
            prop_assert_eq!(read.ok(), is_one.then_some(limit));
        }

        #[test]
        fn any_bytes_are_a_limit_or_a_mistake(bytes: Vec<u8>) {
            let _ = Limit::read(&bytes);
        }
    }
}
