//! Boxes: a length that counts its own head, a kind, a payload.

use crate::finding::Refusal;
use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

/// Length and kind.
const HEAD: u64 = 8;

#[derive(FromBytes)]
#[repr(C)]
struct Head {
    /// 0: to the end of the file; 1: a length of 64 bits follows.
    length: U32,
    kind: [u8; 4],
}

/// A box of a file; nothing says yet that the file is long enough for it.
pub(super) struct FileBox {
    pub(super) kind: [u8; 4],
    /// Where its payload begins.
    pub(super) payload: u64,
    /// Where the next box begins.
    pub(super) end: u64,
}

impl FileBox {
    /// The box at `offset`; `None`: the file ends there.
    pub(super) fn at(source: &Source, offset: u64) -> Parsed<Option<Self>> {
        source.step()?;
        if offset.saturating_add(HEAD) > source.length() {
            return Ok(None);
        }
        let head: Head = source.read(offset, "next box")?;
        let (head_length, length) = match head.length.get() {
            0 => (HEAD, source.length() - offset),
            1 => (HEAD + 8, source.read::<U64>(offset + HEAD, "next box")?.get()),
            length => (HEAD, u64::from(length)),
        };
        if length < head_length {
            return Err(Refusal::Absurd("a box is shorter than its head").into());
        }
        let end = offset.saturating_add(length);
        Ok(Some(Self { kind: head.kind, payload: offset + head_length, end }))
    }

    /// Bytes of payload.
    pub(super) fn length(&self) -> u64 {
        self.end - self.payload
    }

    /// # Errors
    /// [`Refusal::Truncated`] with what it contains, if the file ends before it.
    pub(super) fn lies_within(&self, source: &Source, what: &'static str) -> Result<(), Refusal> {
        if self.end <= source.length() { Ok(()) } else { Err(Refusal::Truncated(what)) }
    }
}

/// The boxes in a payload that is in memory, in turn; the last may be cut off.
pub(super) fn boxes(mut payload: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = Head::read_from_prefix(payload).ok()?;
        // Lengths of 64 bits and to the end of the file are for media.
        let length = (head.length.get() as usize).checked_sub(HEAD as usize)?;
        payload = rest.get(length..).unwrap_or_default();
        Some((head.kind, &rest[..length.min(rest.len())]))
    })
}

/// The first box of a kind at the end of a path of kinds.
pub(super) fn descend<'a>(payload: &'a [u8], path: &[&[u8; 4]]) -> Option<&'a [u8]> {
    path.iter()
        .try_fold(payload, |payload, kind| boxes(payload).find(|(found, _)| found == *kind).map(|(_, p)| p))
}

/// Version and flags, with which many boxes begin, and what follows.
pub(super) fn versioned(payload: &[u8]) -> Option<(u8, u32, &[u8])> {
    let (word, rest) = U32::read_from_prefix(payload).ok()?;
    Some(((word.get() >> 24) as u8, word.get() & 0xff_ffff, rest))
}

/// A number of 32 or 64 bits, taken from the front of `rest`.
pub(super) fn take(rest: &mut &[u8], wide: bool) -> Option<u64> {
    if wide {
        let (value, after) = U64::read_from_prefix(rest).ok()?;
        *rest = after;
        Some(value.get())
    } else {
        let (value, after) = U32::read_from_prefix(rest).ok()?;
        *rest = after;
        Some(u64::from(value.get()))
    }
}

/// A number of 32 bits, taken from the front of `rest`.
pub(super) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take(rest, false).map(|value| value as u32)
}
