//! What a file should hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) const PAGE: u64 = 4096;

/// A statement about a page that may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tri {
    No,
    /// Whether a page keeps its space after everything that was written in it was cut off depends on whether it was
    /// on the device by then. Both are right.
    Maybe,
    Yes,
}

/// What is known of a page's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) allocated: Tri,
    /// SEEK_DATA finds it.
    pub(crate) data: Tri,
}

const NOTHING: Space = Space { allocated: Tri::No, data: Tri::No };
const WRITTEN: Space = Space { allocated: Tri::Yes, data: Tri::Yes };

/// A file: sparse pages, and which of them have space. Cloning is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) size: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
    space: BTreeMap<u64, Space>,
    /// Pages that may lie where another file's do: a write needs space for them.
    shared: BTreeSet<u64>,
}

fn pages_touching(from: u64, end: u64) -> std::ops::Range<u64> {
    from / PAGE..end.div_ceil(PAGE)
}

impl Contents {
    fn put(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let (now, later) = rest.split_at(rest.len().min(PAGE as usize - within));
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
    }

    fn zero(&mut self, from: u64, end: u64) {
        let whole = from.div_ceil(PAGE)..end / PAGE;
        if whole.start < whole.end {
            let mut tail = self.pages.split_off(&whole.start);
            self.pages.append(&mut tail.split_off(&whole.end));
        }
        for page in [from / PAGE, end / PAGE] {
            if let Some(held) = self.pages.get_mut(&page) {
                let start = from.max(page * PAGE) - page * PAGE;
                let stop = end.min((page + 1) * PAGE).saturating_sub(page * PAGE);
                if start < stop {
                    Arc::make_mut(held)[start as usize..stop as usize].fill(0);
                }
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        self.put(offset, data);
        self.size = self.size.max(end);
        for page in pages_touching(offset, end) {
            self.space.insert(page, WRITTEN);
            self.shared.remove(&page);
        }
    }

    /// A copy of `length` bytes of `source`. Whole blocks at the same place in a block are shared: their space is that of the source's.
    /// Of a copy that was ended early for want of space it is not known which were.
    pub(crate) fn copy(&mut self, source: &mut Self, from: u64, to: u64, length: u64, is_whole: bool) {
        let bytes = source.read(from, length as usize);
        let (before, end) = (self.size, to + length);
        let old: BTreeMap<u64, Space> =
            pages_touching(to, end).map(|page| (page, self.space_at(page))).collect();
        self.write(to, &bytes);
        if from % PAGE != to % PAGE {
            return;
        }
        let with_tail = is_whole && from + length == source.size && end >= before;
        let pages = to.div_ceil(PAGE)..if with_tail { end.div_ceil(PAGE) } else { end / PAGE };
        for page in pages {
            let other = page + from / PAGE - to / PAGE;
            let data = source.space_at(other).data;
            let mut space = Space { allocated: data, data };
            if !is_whole && old[&page] != space {
                space = Space { allocated: Tri::Maybe, data: Tri::Maybe };
            }
            self.space.insert(page, space);
            self.shared.insert(page);
            source.shared.insert(other);
        }
    }

    /// Another file, or another place in this one, has what lies here, too.
    pub(crate) fn share(&mut self, offset: u64, length: u64) {
        self.shared.extend(pages_touching(offset, offset + length));
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        if size <= self.size {
            self.zero(size, u64::MAX / PAGE * PAGE);
            self.space.split_off(&size.div_ceil(PAGE));
            let page = size / PAGE;
            let left_of_page = self.read(page * PAGE, (size % PAGE) as usize);
            if !size.is_multiple_of(PAGE)
                && left_of_page.iter().all(|&byte| byte == 0)
                && let Some(space) = self.space.get_mut(&page)
                && space.data != Tri::No
            {
                *space = Space { allocated: Tri::Maybe, data: Tri::Maybe };
            }
        }
        self.size = size;
    }

    /// Pages of `offset..end` that have no space for certain.
    pub(crate) fn missing(&self, offset: u64, end: u64) -> u64 {
        let pages = pages_touching(offset, end);
        let held = self
            .space
            .range(pages.clone())
            .filter(|(page, space)| space.allocated == Tri::Yes && !self.shared.contains(page));
        pages.end.saturating_sub(pages.start) - held.count() as u64
    }

    pub(crate) fn preallocate(&mut self, offset: u64, end: u64) {
        for page in pages_touching(offset, end) {
            let space = self.space.entry(page).or_insert(NOTHING);
            space.allocated = Tri::Yes;
        }
    }

    /// The range reads as zeros. Its whole pages are holes.
    pub(crate) fn clear(&mut self, offset: u64, end: u64) {
        self.zero(offset, end);
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        if whole.start < whole.end {
            let mut tail = self.space.split_off(&whole.start);
            self.space.append(&mut tail.split_off(&whole.end));
        }
        // As with truncation: what is left of a page may never have been on the device.
        for page in [offset / PAGE, end / PAGE] {
            let zeros = self.pages.get(&page).is_none_or(|held| held.iter().all(|&byte| byte == 0));
            if zeros
                && let Some(space) = self.space.get_mut(&page)
                && space.data == Tri::Yes
            {
                space.data = Tri::Maybe;
            }
        }
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length as u64));
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        for (&page, held) in self.pages.range(pages_touching(offset, end.max(offset))) {
            let from = offset.max(page * PAGE);
            let stop = end.min((page + 1) * PAGE);
            if from < stop {
                bytes[(from - offset) as usize..(stop - offset) as usize]
                    .copy_from_slice(&held[(from - page * PAGE) as usize..(stop - page * PAGE) as usize]);
            }
        }
        bytes
    }

    pub(crate) fn same_bytes(&self, other: &Self) -> bool {
        self.size == other.size
            && self.pages.keys().chain(other.pages.keys()).all(|&page| {
                match (self.pages.get(&page), other.pages.get(&page)) {
                    (Some(own), Some(others)) => Arc::ptr_eq(own, others) || own == others,
                    (one, other) => one.or(other).is_some_and(|only| only.iter().all(|&byte| byte == 0)),
                }
            })
    }

    /// What holds of the space in this and the other history alike.
    pub(crate) fn join_space(&mut self, other: &Self) {
        let pages: Vec<u64> = self.space.keys().chain(other.space.keys()).copied().collect();
        let join = |one: Tri, other: Tri| if one == other { one } else { Tri::Maybe };
        for page in pages {
            let own = self.space_at(page);
            let others = other.space_at(page);
            let joined =
                Space { allocated: join(own.allocated, others.allocated), data: join(own.data, others.data) };
            self.space.insert(page, joined);
        }
    }

    pub(crate) fn space_at(&self, page: u64) -> Space {
        self.space.get(&page).copied().unwrap_or(NOTHING)
    }

    /// Fewest and most blocks it may have.
    pub(crate) fn blocks(&self) -> std::ops::RangeInclusive<u64> {
        let count = |wanted: fn(Tri) -> bool| {
            self.space.values().filter(|space| wanted(space.allocated)).count() as u64
        };
        count(|allocated| allocated == Tri::Yes)..=count(|allocated| allocated != Tri::No)
    }

    /// True when `found` is an answer to a search for data (or a hole) from `offset` on, as lseek(2) has it.
    pub(crate) fn may_find(&self, offset: u64, data: bool, found: Option<u64>) -> bool {
        if offset >= self.size {
            return found.is_none();
        }
        let fits = |page: u64| match (self.space_at(page).data, data) {
            (Tri::Maybe, _) => Tri::Maybe,
            (Tri::Yes, true) | (Tri::No, false) => Tri::Yes,
            _ => Tri::No,
        };
        let last = self.size.div_ceil(PAGE);
        // Pages that are not in `space` are holes: only the first gap matters to a search for holes.
        let mut page = offset / PAGE;
        while page < last {
            let here = if page == offset / PAGE { offset } else { page * PAGE };
            match fits(page) {
                Tri::Yes => return found == Some(here),
                Tri::Maybe if found == Some(here) => return true,
                _ => {}
            }
            page += 1;
            if data && !self.space.contains_key(&page) {
                page = self.space.range(page..).next().map_or(last, |(&next, _)| next);
            }
        }
        if data { found.is_none() } else { found == Some(self.size) }
    }

    /// Where something worth reading may be: pages with bytes and their neighbours, and the end.
    pub(crate) fn interesting(&self) -> Vec<std::ops::Range<u64>> {
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        let pages = self.pages.keys().chain(self.space.keys()).copied();
        let mut starts: Vec<u64> =
            pages.chain([self.size / PAGE]).map(|page| page.saturating_sub(2)).collect();
        starts.sort_unstable();
        for start in starts {
            let range = start * PAGE..((start + 5) * PAGE).min(self.size);
            match ranges.last_mut() {
                Some(last) if last.end >= range.start && last.end - last.start < 2 << 20 => {
                    last.end = last.end.max(range.end);
                }
                _ if range.start < range.end => ranges.push(range),
                _ => {}
            }
        }
        ranges
    }
}
