//! Index tables (ST 377-1, 11): bytes of each edit unit.

use super::klv::{EditRate, edit_rate, elements, items};
use crate::finding::Span;
use units::Bitrate;
use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

/// Tags of items, all of which are static.
mod tag {
    pub(super) const EDIT_UNIT_BYTES: u16 = 0x3f05;
    pub(super) const ENTRIES: u16 = 0x3f0a;
    pub(super) const EDIT_RATE: u16 = 0x3f0b;
}

/// So many bytes of an index table say enough of how the rate varies: some ten minutes of frames.
const ENOUGH: usize = 192 << 10;

/// An entry begins with two offsets in time and flags; then comes the place in the essence.
const PLACE: usize = 3;

/// The segments of an index table that were seen.
#[derive(Clone, Default)]
pub(super) struct Index {
    /// Edit rate of the first.
    edit_rate: Option<EditRate>,
    /// Bytes that each edit unit has; `None`: they vary, or there was no segment.
    unit_bytes: Option<u32>,
    /// The most bytes of a second.
    heaviest_second: u64,
    /// Bytes of the segments.
    length: usize,
}

impl Index {
    /// No segment was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.edit_rate.is_none()
    }

    /// To read more of it is not worth the time.
    pub(super) fn is_long(&self) -> bool {
        self.length >= ENOUGH
    }

    /// This, or the other one if this is empty.
    pub(super) fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    /// Takes a segment over. What is not in order in it is left out.
    pub(super) fn add(&mut self, segment: &[u8]) {
        let item = |wanted| items(segment).find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
        let Some(edit_rate) = item(tag::EDIT_RATE).and_then(edit_rate) else { return };
        self.edit_rate.get_or_insert(edit_rate);
        self.length += segment.len();
        let bytes = item(tag::EDIT_UNIT_BYTES).and_then(|value| U32::read_from_bytes(value).ok());
        if let Some(bytes) = bytes.filter(|bytes| bytes.get() > 0) {
            self.unit_bytes.get_or_insert(bytes.get());
        }
        if let Some(entries) = item(tag::ENTRIES) {
            self.heaviest_second = self.heaviest_second.max(heaviest_second(entries, edit_rate));
        }
    }

    /// The rate, if each edit unit has the same bytes.
    pub(super) fn constant_rate(&self) -> Option<Bitrate> {
        let (numerator, denominator) = self.edit_rate?;
        Span::new(1, numerator, denominator).ok()?.rate_of(u64::from(self.unit_bytes?)).ok()
    }

    /// The rate of the heaviest second that was seen, if edit units vary.
    pub(super) fn peak(&self) -> Option<Bitrate> {
        let (numerator, denominator) = self.edit_rate?;
        let second = Span::new(units_in_second(self.edit_rate?), numerator, denominator);
        second.ok()?.rate_of(self.heaviest_second).ok()
    }
}

/// Edit units that take a second, or a little more.
fn units_in_second((numerator, denominator): EditRate) -> u64 {
    u64::from(numerator.div_ceil(denominator))
}

/// The most bytes that so many edit units have as are a second.
fn heaviest_second(entries: &[u8], edit_rate: EditRate) -> u64 {
    let places = || elements(entries).map(place);
    let seconds = places().zip(places().skip(units_in_second(edit_rate) as usize));
    seconds.map(|(begin, end)| end.saturating_sub(begin)).max().unwrap_or(0)
}

/// Where an edit unit begins in the essence; 0 if the entry is too short.
fn place(entry: &[u8]) -> u64 {
    entry.get(PLACE..).and_then(|rest| U64::read_from_prefix(rest).ok()).map_or(0, |(place, _)| place.get())
}
