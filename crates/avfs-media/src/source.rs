//! The parts of a file that a probe has been given, and the limits of what it may ask for.
//!
//! **For:** parsers that are plain functions: they ask for bytes, and end with [`Stop::Read`] when these are not here
//! yet. Once they are, the parser begins anew; what it saw before is held, so it comes further.
//! **Invariants:** a probe causes at most [`MAX_READS`] reads of at most [`MAX_READ`] bytes, [`MAX_BYTES`] together,
//! and that is all the memory it holds; all parsing together takes at most [`MAX_STEPS`] steps.

use crate::finding::Refusal;
use std::cell::Cell;
use zerocopy::FromBytes;

/// Most reads of a probe.
pub const MAX_READS: usize = 16;
/// Longest read of a probe, in bytes.
pub const MAX_READ: u64 = 256 << 10;
/// Most bytes that a probe reads together.
pub const MAX_BYTES: u64 = 1 << 20;
/// Most boxes, chunks, packets or sets that are looked at, all attempts together.
///
/// Media need some thousands; so many take milliseconds.
const MAX_STEPS: u32 = 1 << 15;
/// Shortest read: less is not cheaper.
const SHORTEST_READ: u64 = 64 << 10;
/// Reads begin at a multiple of this, as the blocks of the filesystem do.
const ALIGNMENT: u64 = 4096;

/// Why a parser ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// These bytes must be read first.
    Read(Range),
    /// There is no rate to be found.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a parser has: a value, or the reason why it ended.
pub(crate) type Parsed<T> = Result<T, Stop>;

/// Whatever makes the value unknown, except bytes that can still be read, makes it `None`.
pub(crate) fn optional<T>(parsed: Parsed<T>) -> Parsed<Option<T>> {
    match parsed {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Refused(_)) => Ok(None),
        Err(read @ Stop::Read(_)) => Err(read),
    }
}

/// A range of a file: `offset` and `length` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A part of the file that is here.
struct Piece {
    offset: u64,
    bytes: Vec<u8>,
}

/// The file as far as it is known.
pub(crate) struct Source {
    length: u64,
    pieces: Vec<Piece>,
    bytes_read: u64,
    steps_left: Cell<u32>,
}

impl Source {
    pub(crate) fn new(length: u64) -> Self {
        Self { length, pieces: Vec::new(), bytes_read: 0, steps_left: Cell::new(MAX_STEPS) }
    }

    /// Length of the file in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Takes what was read of `range`. Less than that means that the file ends there by now.
    pub(crate) fn insert(&mut self, range: Range, bytes: &[u8]) {
        let length = range.length.min(bytes.len() as u64);
        if length < range.length {
            self.length = range.offset + length;
        }
        self.bytes_read += range.length;
        self.pieces.push(Piece { offset: range.offset, bytes: bytes[..length as usize].to_vec() });
    }

    /// One step of a loop over something in the file.
    ///
    /// # Errors
    /// [`Refusal::TooCostly`] after too many.
    pub(crate) fn step(&self) -> Result<(), Refusal> {
        let left = self.steps_left.get().checked_sub(1).ok_or(Refusal::TooCostly)?;
        self.steps_left.set(left);
        Ok(())
    }

    /// `length` bytes at `offset`; `what` they are, in case that the file is shorter.
    pub(crate) fn bytes(&self, offset: u64, length: u64, what: &'static str) -> Parsed<&[u8]> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => self.held(offset, length),
            _ => Err(Refusal::Truncated(what).into()),
        }
    }

    /// At most `length` bytes at `offset`, fewer where the file ends, or more than one read would be needed.
    pub(crate) fn up_to(&self, offset: u64, length: u64) -> Parsed<&[u8]> {
        match length.min(self.length.saturating_sub(offset)).min(MAX_READ - ALIGNMENT) {
            0 => Ok(&[]),
            length => self.held(offset, length),
        }
    }

    /// A structure of fixed layout at `offset`.
    pub(crate) fn read<T: FromBytes>(&self, offset: u64, what: &'static str) -> Parsed<T> {
        let bytes = self.bytes(offset, size_of::<T>() as u64, what)?;
        T::read_from_bytes(bytes).map_err(|_| Refusal::Truncated(what).into())
    }

    /// What lies inside of the file, from the pieces or to be read.
    fn held(&self, offset: u64, length: u64) -> Parsed<&[u8]> {
        // What is looked for was nearly always read last.
        for piece in self.pieces.iter().rev() {
            let start = offset.checked_sub(piece.offset).and_then(|start| usize::try_from(start).ok());
            if let Some(bytes) = start.and_then(|start| piece.bytes.get(start..)?.get(..length as usize)) {
                return Ok(bytes);
            }
        }
        Err(self.plan(offset, length))
    }

    /// The read that brings `length` bytes at `offset` and their neighbours, if the limits allow it.
    fn plan(&self, offset: u64, length: u64) -> Stop {
        let start = offset - offset % ALIGNMENT;
        let shortest = (offset - start + length).next_multiple_of(ALIGNMENT);
        let length = shortest.max(SHORTEST_READ).min(self.length - start);
        let allowed =
            length <= MAX_READ && self.pieces.len() < MAX_READS && self.bytes_read + length <= MAX_BYTES;
        if allowed { Stop::Read(Range { offset: start, length }) } else { Refusal::TooCostly.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(source: &Source, offset: u64, length: u64) -> Range {
        match source.bytes(offset, length, "test") {
            Err(Stop::Read(range)) => range,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_read_is_held_and_the_rest_is_asked_for_with_its_neighbours() {
        let mut source = Source::new(1 << 20);
        let range = wanted(&source, 5_000, 10);
        assert_eq!(range, Range { offset: 4096, length: 64 << 10 });
        source.insert(range, &vec![7; 64 << 10]);
        assert_eq!(source.bytes(5_000, 10, "test"), Ok(&[7; 10][..]));
        let last = 4096 + (64 << 10);
        assert_eq!(source.bytes(last - 2, 2, "test"), Ok(&[7; 2][..]));
        assert_eq!(wanted(&source, last - 2, 3), Range { offset: last - 4096, length: 64 << 10 });
    }

    #[test]
    fn the_end_of_the_file_is_the_end() {
        let mut source = Source::new(100);
        assert_eq!(wanted(&source, 90, 10), Range { offset: 0, length: 100 });
        assert_eq!(source.bytes(90, 11, "test"), Err(Refusal::Truncated("test").into()));
        assert_eq!(source.bytes(u64::MAX, 11, "test"), Err(Refusal::Truncated("test").into()));
        source.insert(Range { offset: 0, length: 100 }, &[0; 100]);
        assert_eq!(source.up_to(90, 50).map(<[u8]>::len), Ok(10));
        assert_eq!(source.up_to(100, 50).map(<[u8]>::len), Ok(0));
        assert_eq!(source.up_to(5_000, 50).map(<[u8]>::len), Ok(0));
    }

    #[test]
    fn a_file_that_became_shorter_ends_there() {
        let mut source = Source::new(1 << 20);
        let range = wanted(&source, 0, 10);
        source.insert(range, &[0; 9]);
        assert_eq!(source.length(), 9);
        assert_eq!(source.bytes(0, 10, "test"), Err(Refusal::Truncated("test").into()));
    }

    #[test]
    fn a_read_has_a_longest_length() {
        let source = Source::new(1 << 30);
        assert_eq!(wanted(&source, 0, MAX_READ).length, MAX_READ);
        assert_eq!(source.bytes(0, MAX_READ + 1, "test"), Err(Refusal::TooCostly.into()));
        assert_eq!(source.bytes(4095, MAX_READ, "test"), Err(Refusal::TooCostly.into()));
    }

    #[test]
    fn reads_and_their_bytes_are_limited() {
        let mut short = Source::new(1 << 30);
        let mut long = Source::new(1 << 30);
        let feed = |source: &mut Source, number: u64, length| {
            let range = wanted(source, number << 20, length);
            source.insert(range, &vec![0; range.length as usize]);
        };
        (0..16).for_each(|number| feed(&mut short, number, 1));
        assert_eq!(short.bytes(16 << 20, 1, "test"), Err(Refusal::TooCostly.into()));
        let mut last = Source::new(1 << 30);
        (1..=16).for_each(|blocks| {
            let range = wanted(&last, (1 << 30) - blocks * ALIGNMENT, 1);
            assert_eq!(range.length, blocks * ALIGNMENT, "the file ends there");
            last.insert(range, &vec![0; range.length as usize]);
        });
        assert_eq!(last.bytes(0, 1, "test"), Err(Refusal::TooCostly.into()));
        (0..4).for_each(|number| feed(&mut long, number, MAX_READ));
        assert_eq!(long.bytes(4 << 20, 1, "test"), Err(Refusal::TooCostly.into()));
        assert!(long.bytes(3 << 20, MAX_READ, "test").is_ok(), "what is here costs nothing");
    }

    #[test]
    fn steps_are_limited() {
        let source = Source::new(0);
        assert!((0..MAX_STEPS).all(|_| source.step().is_ok()));
        assert_eq!(source.step(), Err(Refusal::TooCostly));
    }
}
