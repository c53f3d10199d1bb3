//! Key, length, value: what everything in MXF consists of; and local sets, what metadata consist of.

use crate::finding::Refusal;
use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::big_endian::{I32, U16, U32};

/// Bytes of a key.
const KEY: usize = 16;
/// A key and the longest length.
const HEAD: u64 = KEY as u64 + 9;

/// Every key of SMPTE's begins so; others are of whoever made them up.
const LABEL: [u8; 4] = [0x06, 0x0e, 0x2b, 0x34];

/// What a key says that is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A partition pack.
    Partition,
    /// The random index pack, which ends the file.
    RandomIndex,
    /// A segment of an index table.
    Index,
    /// A set of metadata, of this kind.
    Set(u8),
    /// A part of a content package: which one.
    Essence([u8; 8]),
    /// Fill, the primer, what is not known.
    Other,
}

impl Key {
    /// # Errors
    /// [`Refusal::Absurd`] if it is all zeros: nothing has been written there.
    pub(super) fn new(bytes: &[u8; 16]) -> Result<Self, Refusal> {
        let [a, b, c, d, kind, registry, _, _, item @ ..] = *bytes;
        if *bytes == [0; 16] {
            return Err(Refusal::Absurd("a key is missing"));
        }
        if [a, b, c, d] != LABEL {
            return Ok(Self::Other);
        }
        Ok(match (kind, registry, item) {
            (2, 0x05, [0x0d, 1, 2, 1, 1, 2..=4, ..]) => Self::Partition,
            (2, 0x05, [0x0d, 1, 2, 1, 1, 0x11, ..]) => Self::RandomIndex,
            (2, 0x53, [0x0d, 1, 2, 1, 1, 0x10, ..]) => Self::Index,
            (2, 0x53, [0x0d, 1, 1, 1, 1, 1, set, _]) => Self::Set(set),
            (1 | 2, _, [0x0d, 1, 3, 1, ..]) => Self::Essence(item),
            _ => Self::Other,
        })
    }
}

/// A key and where its value lies; nothing says yet that the file is long enough for it.
pub(super) struct Klv {
    pub(super) key: Key,
    /// Where the value begins.
    pub(super) value: u64,
    /// Where the next key begins.
    pub(super) end: u64,
}

impl Klv {
    /// What is at `offset`; `None`: the file ends there.
    pub(super) fn at(source: &Source, offset: u64) -> Parsed<Option<Self>> {
        source.step()?;
        let head = source.up_to(offset, HEAD)?;
        let Some((key, [first, rest @ ..])) = head.split_first_chunk::<KEY>() else { return Ok(None) };
        let key = Key::new(key)?;
        let (length, width) = match first {
            0..=0x7f => (u64::from(*first), 0),
            0x81..=0x88 => {
                let width = usize::from(first & 0x7f);
                let bytes = rest.get(..width).ok_or(Refusal::Truncated("next length"))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)), width)
            }
            _ => return Err(Refusal::Absurd("a length has more than 8 bytes").into()),
        };
        let value = offset + (KEY + 1 + width) as u64;
        Ok(Some(Self { key, value, end: value.saturating_add(length) }))
    }

    /// The value; `what` it is, in case that the file ends before.
    pub(super) fn bytes<'a>(&self, source: &'a Source, what: &'static str) -> Parsed<&'a [u8]> {
        source.bytes(self.value, self.end - self.value, what)
    }
}

/// The items of a local set: tag and value.
pub(super) fn items(mut set: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let ([tag, length], rest) = <[U16; 2]>::read_from_prefix(set).ok()?;
        let (value, rest) = rest.split_at_checked(usize::from(length.get()))?;
        set = rest;
        Some((tag.get(), value))
    })
}

/// Number and length of the elements of a batch or an array, and the elements.
pub(super) fn elements(batch: &[u8]) -> impl Iterator<Item = &[u8]> {
    let head = <[U32; 2]>::read_from_prefix(batch).ok();
    let (count, length, rest) = head.map_or((0, 1, &[][..]), |([count, length], rest)| {
        (count.get() as usize, (length.get() as usize).max(1), rest)
    });
    rest.chunks_exact(length).take(count)
}

/// Edit units in a second: numerator and denominator, both above 0.
pub(super) type EditRate = (u32, u32);

/// An edit rate, if it is one.
pub(super) fn edit_rate(value: &[u8]) -> Option<EditRate> {
    let [numerator, denominator] = <[I32; 2]>::read_from_bytes(value).ok()?;
    let positive = |number: I32| u32::try_from(number.get()).ok().filter(|number| *number > 0);
    Some((positive(numerator)?, positive(denominator)?))
}
