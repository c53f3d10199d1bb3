//! Partitions: where metadata, index tables and essence lie.

use super::index::Index;
use super::klv::{Key, Klv};
use super::metadata::Metadata;
use crate::finding::Refusal;
use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

/// The key of a header partition begins so, but for its version (ST 377-1, 7.1).
const HEADER: [u8; 14] = [0x06, 0x0e, 0x2b, 0x34, 2, 5, 1, 1, 0x0d, 1, 2, 1, 1, 2];
/// Which of these bytes is the version of the registry.
const VERSION: usize = 7;
/// A run-in is shorter than this.
const RUN_IN: u64 = 64 << 10;

/// A partition pack, as far as it is needed.
#[derive(FromBytes)]
#[repr(C)]
struct Pack {
    _version: [U16; 2],
    _grid: U32,
    _this: U64,
    _previous: U64,
    footer: U64,
}

/// The end of the random index pack, and so of the file.
#[derive(FromBytes)]
#[repr(C)]
struct RandomIndexEnd {
    /// Offset of the last partition, from the header partition.
    partition: U64,
    /// Of the whole pack.
    length: U32,
}

/// A partition.
pub(super) struct Partition {
    /// Offset of the footer partition, from the header partition; 0: not known when this was written.
    footer: u64,
    /// Where the pack ends.
    pub(super) end: u64,
}

impl Partition {
    /// The partition whose pack is at `offset` of the file.
    pub(super) fn at(source: &Source, offset: u64) -> Parsed<Self> {
        let pack = Klv::at(source, offset)?.ok_or(Refusal::Truncated("partition"))?;
        if pack.key != Key::Partition {
            return Err(Refusal::Absurd("a partition is not where it is said to be").into());
        }
        let value: Pack = source.read(pack.value, "partition")?;
        Ok(Self { footer: value.footer.get(), end: pack.end })
    }
}

/// Where the header partition begins, behind a run-in if there is one; `None`: this is no MXF.
pub(crate) fn begin(source: &Source) -> Parsed<Option<u64>> {
    let head = source.up_to(0, RUN_IN)?;
    let is_header =
        |bytes: &[u8]| bytes[..VERSION] == HEADER[..VERSION] && bytes[VERSION + 1..] == HEADER[VERSION + 1..];
    Ok(head.windows(HEADER.len()).position(is_header).map(|start| start as u64))
}

/// Where the footer partition begins in the file: the header says it, or the random index pack. `None`: there is none.
pub(super) fn footer(source: &Source, start: u64, header: &Partition) -> Parsed<Option<u64>> {
    let offset = match header.footer {
        0 => last_partition(source)?,
        footer => Some(footer),
    };
    match offset.map(|offset| start.saturating_add(offset)) {
        Some(footer) if footer >= source.length() => Err(Refusal::Truncated("footer").into()),
        footer => Ok(footer),
    }
}

/// The last entry of the random index pack: the offset of the footer, from the header partition.
fn last_partition(source: &Source) -> Parsed<Option<u64>> {
    let Some(at) = source.length().checked_sub(size_of::<RandomIndexEnd>() as u64) else { return Ok(None) };
    let end: RandomIndexEnd = source.read(at, "random index")?;
    let Some(pack) = source.length().checked_sub(u64::from(end.length.get())) else { return Ok(None) };
    // What is there while a file is still written can be anything.
    let key = source.up_to(pack, 16)?;
    let is_random_index = key.first_chunk().is_some_and(|key| Key::new(key) == Ok(Key::RandomIndex));
    Ok(is_random_index.then_some(end.partition.get()))
}

/// What a partition holds before its essence.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) metadata: Metadata,
    pub(super) index: Index,
    /// Where the essence, the next partition or the random index pack begins, or the file ends.
    pub(super) end: u64,
}

impl Contents {
    /// Adds what is found from the end of a `partition`'s pack on. What that says about lengths is not needed. When
    /// reading ends early, what was found until then is here.
    pub(super) fn read(&mut self, source: &Source, partition: &Partition) -> Parsed<()> {
        self.end = partition.end.min(source.length());
        while let Some(klv) = Klv::at(source, self.end)? {
            match klv.key {
                Key::Set(kind) if Metadata::reads(kind) => {
                    self.metadata.add(kind, klv.bytes(source, "metadata")?);
                }
                Key::Index if self.index.is_long() => break,
                Key::Index => self.index.add(klv.bytes(source, "index")?),
                Key::Partition | Key::RandomIndex | Key::Essence(_) => break,
                Key::Set(_) | Key::Other => {}
            }
            self.end = klv.end.min(source.length());
        }
        Ok(())
    }
}
