//! Chunks of RIFF: an id, a length, data padded to an even length.

use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Bytes of the head of a file or list: id, length, and what kind of list it is.
pub(crate) const FORM: u64 = 12;
/// Bytes of the head of a chunk.
const HEAD: u64 = 8;

#[derive(FromBytes)]
#[repr(C)]
struct Head {
    id: [u8; 4],
    length: U32,
}

/// A chunk of a file; nothing says yet that the file is long enough for it.
pub(crate) struct Chunk {
    pub(crate) id: [u8; 4],
    /// Where its data begin.
    pub(crate) data: u64,
    /// Bytes of data.
    pub(crate) length: u64,
}

impl Chunk {
    /// The chunk at `offset`; `None`: the file ends there.
    pub(crate) fn at(source: &Source, offset: u64) -> Parsed<Option<Self>> {
        source.step()?;
        if offset.saturating_add(HEAD) > source.length() {
            return Ok(None);
        }
        let head: Head = source.read(offset, "next chunk")?;
        Ok(Some(Self { id: head.id, data: offset + HEAD, length: u64::from(head.length.get()) }))
    }

    /// Where the next chunk begins.
    pub(crate) fn end(&self) -> u64 {
        self.data.saturating_add(self.length).saturating_add(self.length % 2)
    }
}

/// The chunks in a list that is in memory; the last may be cut off.
pub(crate) fn chunks(mut list: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = Head::read_from_prefix(list).ok()?;
        let length = head.length.get() as usize;
        list = rest.get(length + length % 2..).unwrap_or_default();
        Some((head.id, &rest[..length.min(rest.len())]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_padded_and_the_last_may_be_cut_off() {
        let list = b"odd \x03\0\0\0abc\0long\xff\xff\xff\xffrest";
        let found: Vec<_> = chunks(list).collect();
        assert_eq!(found, [(*b"odd ", &b"abc"[..]), (*b"long", &b"rest"[..])]);
    }
}
