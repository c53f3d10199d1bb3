//! Which holes of a file its writer is about to fill.
//!
//! A stream's bytes do not arrive in the order of the file. Windows goes ahead of what it appends with writes of one byte at a
//! stride of 128 KiB, which are to make the server allocate. (Intel, "Windows client CIFS behavior can slow Linux NAS performance",
//! 2007; Flebbe, "Preventing File System Fragmentation", SambaXP 2010.) Clients have tens of requests on their way, which overtake
//! each other. Headers are written last. What lies in between will come, so it belongs where it continues its neighbours on the
//! device. The bytes themselves are ordinary data.
//!
//! **For:** telling such holes from those of a sparse file, by offsets and lengths alone. **Excludes:** what is done with
//! them; that is `reservation`'s. **State:** one [`Expectation`] for each file in use. **Invariants:** no page that was
//! written is expected; never more than [`MOST_PAGES`] are.

use crate::format::BLOCK;
use crate::ranges::RangeSet;
use std::ops::Range;

/// A byte further behind the end than this is no preallocation. It is eight times the stride of 128 KiB that Windows' client was
/// seen to have (Intel 2007, Flebbe 2010). Measured.
const LONGEST_STRIDE: u64 = 1 << 20;
/// So many such bytes mean preallocation. A single one is how programs set a length. An estimator's window.
const FEWEST_MARKS: u32 = 2;
/// A client that writes at least so much at once may write a stream. An estimator's window.
const STREAM_WRITE: u64 = 64 << 10;
/// Requests that may be on their way at once. Windows' client was seen to keep some ten on a connection, and has several; the
/// server answers them in threads. Measured.
const REQUESTS_AT_ONCE: u64 = 32;
/// A writer that leaves 64 MiB of holes means them. It is four times as far as Windows' client was seen to go ahead (Flebbe 2010).
/// Measured.
const MOST_PAGES: u64 = (64 << 20) / BLOCK;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::core) struct Expectation {
    /// End of what was written, in bytes; the file may be longer.
    written_end: u64,
    /// The longest write so far, in bytes: the last one of a stream is shorter than those that it overtakes.
    longest: u64,
    /// One-byte writes behind the end so far.
    marks: u32,
    /// What they left out while there were too few to tell.
    undecided: RangeSet,
    pages: RangeSet,
    /// The file is sparse.
    gave_up: bool,
}

impl Expectation {
    /// Of a file with `size` bytes.
    pub(in crate::core) fn new(size: u64) -> Self {
        Self { written_end: size, ..Self::default() }
    }

    /// Pages (4 KiB) that will be written, as far as is known.
    pub(in crate::core) fn pages(&self) -> &RangeSet {
        &self.pages
    }

    /// End of what was written, in bytes.
    pub(in crate::core) fn written_end(&self) -> u64 {
        self.written_end
    }

    /// True when such a write only goes ahead of what will be appended, as far as can be told of one alone.
    pub(in crate::core) fn is_mark(&self, offset: u64, length: u64) -> bool {
        length == 1 && offset > self.written_end && offset - self.written_end <= LONGEST_STRIDE
    }

    /// A write of `length` bytes, not zero, at `offset` was accepted.
    pub(in crate::core) fn written(&mut self, offset: u64, length: u64) {
        let is_mark = self.is_mark(offset, length);
        let gap = self.written_end.min(offset)..offset;
        let end = offset.saturating_add(length);
        let pages = offset / BLOCK..end.div_ceil(BLOCK);
        self.undecided.remove(pages.clone());
        self.pages.remove(pages);
        self.written_end = self.written_end.max(end);
        self.longest = self.longest.max(length);
        if gap.is_empty() || self.gave_up {
            return;
        }
        if is_mark {
            self.mark(gap);
        } else if self.longest >= STREAM_WRITE && gap.end - gap.start <= REQUESTS_AT_ONCE * self.longest {
            self.expect(gap);
        }
    }

    fn mark(&mut self, gap: Range<u64>) {
        self.marks = self.marks.saturating_add(1);
        if self.marks < FEWEST_MARKS {
            self.undecided.insert(whole_pages(gap));
            return;
        }
        for range in std::mem::take(&mut self.undecided).iter() {
            self.pages.insert(range);
        }
        self.expect(gap);
    }

    fn expect(&mut self, gap: Range<u64>) {
        self.pages.insert(whole_pages(gap));
        if self.pages.total() > MOST_PAGES {
            self.pages = RangeSet::default();
            self.gave_up = true;
        }
    }

    /// The file ends at `size` now, and what was behind is gone.
    pub(in crate::core) fn cut(&mut self, size: u64) {
        self.written_end = self.written_end.min(size);
        self.forget(size.div_ceil(BLOCK)..u64::MAX);
    }

    /// It is decided elsewhere about these pages.
    pub(in crate::core) fn forget(&mut self, pages: Range<u64>) {
        self.undecided = RangeSet::default();
        self.marks = 0;
        self.pages.remove(pages);
    }
}

/// The pages that lie wholly in a range of bytes.
fn whole_pages(bytes: Range<u64>) -> Range<u64> {
    let start = bytes.start.div_ceil(BLOCK);
    start..(bytes.end / BLOCK).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// After these writes, given as offset and length, to an empty file.
    fn after(writes: impl IntoIterator<Item = (u64, u64)>) -> Expectation {
        let mut expectation = Expectation::new(0);
        writes.into_iter().for_each(|(offset, length)| expectation.written(offset, length));
        expectation
    }

    fn bytes(expectation: &Expectation) -> u64 {
        expectation.pages().total() * BLOCK
    }

    fn marks(stride: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        (1..=count).map(move |number| (number * stride - 1, 1))
    }

    #[test]
    fn windows_goes_ahead_of_what_it_appends() {
        let mut expectation = after(marks(128 * KIB, 120));
        // All but the pages of the bytes themselves.
        assert_eq!(bytes(&expectation), 15 * MIB - 120 * BLOCK);
        for piece in 0..240 {
            expectation.written(piece * 64 * KIB, 64 * KIB);
        }
        assert_eq!(bytes(&expectation), 0);
        // It goes on where it was.
        expectation.written(15 * MIB + 128 * KIB - 1, 1);
        assert_eq!(bytes(&expectation), 124 * KIB);
    }

    #[test]
    fn a_single_byte_only_sets_a_length() {
        assert_eq!(bytes(&after(marks(128 * KIB, 1))), 0);
        assert_eq!(bytes(&after(marks(128 * KIB, 2))), 248 * KIB);
    }

    #[test]
    fn bytes_far_apart_are_a_sparse_file() {
        let apart = |stride| bytes(&after((1..=3).map(|number| (number * stride, 1))));
        // One byte lies between them: the hole is as long as the stride less one.
        assert!(apart(LONGEST_STRIDE + 1) > 0);
        // The first hole begins at the file's start.
        assert_eq!(apart(LONGEST_STRIDE + 2), 0);
    }

    #[test]
    fn data_that_is_not_a_single_byte_marks_nothing() {
        assert_eq!(bytes(&after((1..=100).map(|number| (number * 128 * KIB, 2)))), 0);
        assert_eq!(bytes(&after((1..=100).map(|number| (number * 128 * KIB, STREAM_WRITE - 1)))), 0);
    }

    #[test]
    fn requests_overtake_each_other_by_as_many_as_there_are_at_once() {
        let first = |number: u64| bytes(&after([(number * MIB, MIB)]));
        assert_eq!(first(0), 0);
        assert_eq!(first(REQUESTS_AT_ONCE), REQUESTS_AT_ONCE * MIB);
        assert_eq!(bytes(&after([(REQUESTS_AT_ONCE * MIB + 1, MIB)])), 0);
        assert_eq!(bytes(&after([(STREAM_WRITE, STREAM_WRITE)])), STREAM_WRITE);
        // The last of them is short.
        let last = (REQUESTS_AT_ONCE + 1) * MIB;
        assert_eq!(bytes(&after([(0, MIB), (last, 5)])), REQUESTS_AT_ONCE * MIB);
        assert_eq!(bytes(&after([(0, MIB), (last + 1, 5)])), 0);
    }

    #[test]
    fn a_writer_that_leaves_more_holes_than_windows_fills_means_them() {
        let hole = 128 * KIB - BLOCK;
        let count = MOST_PAGES * BLOCK / hole;
        assert_eq!(bytes(&after(marks(128 * KIB, count))), count * hole);
        let mut sparse = after(marks(128 * KIB, count + 1));
        assert_eq!(bytes(&sparse), 0);
        sparse.written((count + 2) * 128 * KIB, MIB);
        assert_eq!(bytes(&sparse), 0);
    }

    #[test]
    fn a_length_set_ahead_hides_nothing() {
        // Explorer sets the length first: what is behind the end of what was written is a hole as well.
        let mut expectation = Expectation::new(0);
        expectation.written(MIB, MIB);
        assert_eq!(bytes(&expectation), MIB);
        expectation.cut(MIB + 512 * KIB);
        assert_eq!(expectation.written_end(), MIB + 512 * KIB);
        expectation.cut(512 * KIB);
        assert_eq!((bytes(&expectation), expectation.written_end()), (512 * KIB, 512 * KIB));
    }

    proptest! {
        #[test]
        fn nothing_that_was_written_is_expected(
            writes in proptest::collection::vec((0u64..64, 0u64..4, 0usize..4), 0..40),
        ) {
            let mut expectation = Expectation::new(0);
            let mut written = RangeSet::default();
            for (at, more, kind) in writes {
                let (offset, length) = (at * 96 * KIB + more, [1, 3000, 64 * KIB, MIB][kind]);
                expectation.written(offset, length);
                written.insert(offset / BLOCK..(offset + length).div_ceil(BLOCK));
            }
            for pages in written.iter() {
                prop_assert!(!expectation.pages().overlaps(pages));
            }
            prop_assert!(expectation.pages().total() <= MOST_PAGES);
        }
    }
}
