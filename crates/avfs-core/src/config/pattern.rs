//! Patterns for paths: `*` within a name, `**` for any number of directories, `?` for one character.

use crate::casing::upper;
use serde::Deserialize;
use std::fmt;

/// Why a text is not a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It names nothing.
    #[error("empty path pattern; \"**\" matches every path")]
    Empty,
    /// `**` beside other characters.
    #[error("** must stand alone between slashes, as in \"Projects/**/*.mov\"")]
    StarStar,
    /// A part `.` or `..`, which no path has.
    #[error("\".\" and \"..\" match nothing: patterns are relative to the root of the volume")]
    Dots,
    /// A backslash at the end.
    #[error("\\ at the end of the path pattern: it makes the character behind it stand for itself")]
    Escape,
}

/// A pattern for paths relative to the root of a volume.
///
/// `*` stands for any characters except a slash, also none; `?` for one character except a slash; `**`, alone
/// between slashes, for any number of directories, also none, and at the end for everything below. A backslash makes
/// the next character stand for itself. Slashes at either end mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: Box<str>,
    parts: Box<[Part]>,
}

/// As it was written.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What lies between two slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Directories,
    Name(Box<[Piece]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Any,
    One,
    Char(char),
}

/// A character of a path; paths are bytes, and not all bytes are characters.
#[derive(Clone, Copy)]
enum Symbol {
    Char(char),
    Byte,
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;
    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::new(&text)
    }
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let parts: Result<Box<[Part]>, PatternError> =
            text.split('/').filter(|part| !part.is_empty()).map(Part::new).collect();
        match parts? {
            parts if parts.is_empty() => Err(PatternError::Empty),
            parts => Ok(Self { text: text.into(), parts }),
        }
    }

    /// What is left of the pattern below the directory `mounted_on`, an absolute path, if the pattern begins with it: written
    /// with the host's path it matches nothing, because patterns are relative to the root of the volume.
    pub fn below(&self, mounted_on: &str) -> Option<&str> {
        let inside = self.text.strip_prefix(mounted_on.trim_end_matches('/'))?;
        let is_absolute = mounted_on.starts_with('/') && mounted_on.len() > 1;
        (is_absolute && (inside.is_empty() || inside.starts_with('/')))
            .then(|| inside.trim_start_matches('/'))
    }

    /// True when the whole path matches. `case_insensitive`: upper and lower case are the same letter where
    /// they are to Samba; composed and decomposed accents stay different.
    pub fn matches(&self, path: &[u8], case_insensitive: bool) -> bool {
        let names: Vec<Vec<Symbol>> =
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(symbols).collect();
        wildcard(
            &self.parts,
            &names,
            |part| *part == Part::Directories,
            |part, name| match part {
                Part::Directories => true,
                Part::Name(pieces) => name_matches(pieces, name, case_insensitive),
            },
        )
    }
}

impl Part {
    fn new(text: &str) -> Result<Self, PatternError> {
        match text {
            "**" => return Ok(Self::Directories),
            "." | ".." => return Err(PatternError::Dots),
            _ => {}
        }
        let mut pieces = Vec::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            pieces.push(match char {
                '*' if pieces.last() == Some(&Piece::Any) => return Err(PatternError::StarStar),
                '*' => Piece::Any,
                '?' => Piece::One,
                '\\' => Piece::Char(chars.next().ok_or(PatternError::Escape)?),
                char => Piece::Char(char),
            });
        }
        Ok(Self::Name(pieces.into()))
    }
}

fn symbols(name: &[u8]) -> Vec<Symbol> {
    name.utf8_chunks()
        .flat_map(|chunk| {
            chunk.valid().chars().map(Symbol::Char).chain(chunk.invalid().iter().map(|_| Symbol::Byte))
        })
        .collect()
}

fn name_matches(pieces: &[Piece], name: &[Symbol], case_insensitive: bool) -> bool {
    wildcard(
        pieces,
        name,
        |piece| *piece == Piece::Any,
        |piece, symbol| match (piece, symbol) {
            (Piece::Char(wanted), Symbol::Char(found)) => {
                wanted == found || (case_insensitive && upper(*wanted) == upper(*found))
            }
            (Piece::Char(_), Symbol::Byte) => false,
            (Piece::One | Piece::Any, _) => true,
        },
    )
}

/// Matches a list with stars, each of which stands for any number of items, against a list of items.
///
/// Only the last star seen is ever tried again with one item more: whatever an earlier one could take instead, the
/// last one can take, too. So the time is at most the product of the lengths.
fn wildcard<P, T>(
    pattern: &[P],
    items: &[T],
    is_star: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut item) = (0, 0);
    // Behind the last star, and the first item that the star does not take.
    let mut retry: Option<(usize, usize)> = None;
    while item < items.len() {
        match pattern.get(at) {
            Some(part) if is_star(part) => {
                at += 1;
                retry = Some((at, item));
            }
            Some(part) if fits(part, &items[item]) => {
                at += 1;
                item += 1;
            }
            _ => {
                let Some((behind_star, not_taken)) = retry else { return false };
                (at, item) = (behind_star, not_taken + 1);
                retry = Some((at, item));
            }
        }
    }
    pattern[at..].iter().all(is_star)
}
