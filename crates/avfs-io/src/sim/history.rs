//! What was durable when, and what a loss of power could have left at each moment.

use super::{Page, SECTORS_PER_PAGE, blend, prefix_mask};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use units::{Bytes, DeviceOffset};

/// Images nest (a crash during the recovery from a crash); beyond this depth they are merged into one map so that
/// reading a page stays cheap.
const MAX_DEPTH: usize = 16;

/// One thing that happened to a disk's contents. The moments before and after each event are the cuts at which
/// [`CrashImages`] can lose power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The device began to write: from here on any part of it may be on the disk.
    WriteStarted {
        /// Counts the disk's writes from 0.
        write: u64,
        /// First byte.
        offset: DeviceOffset,
        /// Number of bytes.
        length: Bytes,
    },
    /// The write is what readers see; if `durable`, it is what every image holds.
    WriteCompleted {
        /// Which.
        write: u64,
        /// Persisted by itself.
        durable: bool,
        /// False when a fault was injected: part of it may have been written.
        ok: bool,
    },
    /// Every write that completed at or before cut `covers` is durable.
    Flushed {
        /// The cut at which the flush was submitted.
        covers: usize,
    },
}

/// A disk's past. A position (cut) counts events: position `n` lies after the first `n` of them.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    base: Option<Arc<Image>>,
    position: usize,
    /// The position at which recording began; `None` while only the present is kept.
    recorded_from: Option<usize>,
    events: Vec<TraceEvent>,
    writes: u64,
    /// Per page, the versions that were durable, oldest first.
    durable: BTreeMap<u64, Vec<Version>>,
    /// Writes in flight or in the volatile cache, by number.
    open: BTreeMap<u64, Write>,
    /// Writes that were open during the recording and are durable now, in the order in which they became so.
    settled: Vec<Write>,
}

#[derive(Clone, Debug)]
struct Version {
    /// Position at which it became durable.
    durable: usize,
    /// Position at which the write completed: among durable versions of a page the latest write wins.
    completed: usize,
    page: Page,
}

#[derive(Clone, Debug)]
struct Write {
    number: u64,
    first_page: u64,
    started: usize,
    /// What it carried when it started.
    pages: Arc<[Page]>,
    /// Position of the completion, and what was written by then.
    completed: Option<(usize, Arc<[Page]>)>,
    /// Position at which it became durable.
    settled: Option<usize>,
}

/// What a disk held when power returned: the durable state of `history` at `cut`, and over it the parts of open
/// writes that made it.
#[derive(Debug)]
pub(super) struct Image {
    history: Arc<History>,
    cut: usize,
    pages: BTreeMap<u64, Page>,
    depth: usize,
}

impl History {
    pub(super) fn on(base: Arc<Image>) -> Self {
        Self { base: Some(base), ..Self::default() }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Contents before anything this history tells of.
    pub(super) fn base_page(&self, number: u64) -> Option<&Page> {
        self.base.as_ref()?.page(number)
    }

    pub(super) fn record(&mut self) {
        self.recorded_from = Some(self.position);
        self.events.clear();
        self.settled.clear();
        for versions in self.durable.values_mut() {
            versions.drain(..versions.len() - 1);
        }
    }

    pub(super) fn start_write(&mut self, first_page: u64, pages: Arc<[Page]>) -> u64 {
        let number = self.writes;
        self.writes += 1;
        self.happened(TraceEvent::WriteStarted {
            write: number,
            offset: DeviceOffset(first_page * super::PAGE as u64),
            length: Bytes((pages.len() * super::PAGE) as u64),
        });
        let write =
            Write { number, first_page, started: self.position, pages, completed: None, settled: None };
        self.open.insert(number, write);
        number
    }

    /// The write ended having written `pages`, fewer than it set out to write when not `ok`.
    pub(super) fn complete_write(&mut self, number: u64, pages: Arc<[Page]>, durable: bool, ok: bool) {
        self.happened(TraceEvent::WriteCompleted { write: number, durable, ok });
        let write = self.open.get_mut(&number).expect("a write completes once, after it started");
        write.completed = Some((self.position, pages));
        if durable && ok {
            self.settle(number);
        }
    }

    pub(super) fn flush(&mut self, covers: usize) {
        self.happened(TraceEvent::Flushed { covers });
        let covered: Vec<u64> = self
            .open
            .values()
            .filter(|write| write.completed.as_ref().is_some_and(|(position, _)| *position <= covers))
            .map(|write| write.number)
            .collect();
        for number in covered {
            self.settle(number);
        }
    }

    fn happened(&mut self, event: TraceEvent) {
        self.position += 1;
        if self.recorded_from.is_some() {
            self.events.push(event);
        }
    }

    fn settle(&mut self, number: u64) {
        let mut write = self.open.remove(&number).expect("only an open write becomes durable");
        let (completed, pages) = write.completed.as_ref().expect("only a completed write becomes durable");
        for (page_number, page) in (write.first_page..).zip(pages.iter()) {
            let versions = self.durable.entry(page_number).or_default();
            if versions.last().is_some_and(|newest| newest.completed > *completed) {
                continue;
            }
            if self.recorded_from.is_none() {
                versions.clear();
            }
            versions.push(Version { durable: self.position, completed: *completed, page: Page::clone(page) });
        }
        if self.recorded_from.is_some() {
            write.settled = Some(self.position);
            self.settled.push(write);
        }
    }

    fn durable_version(&self, number: u64, cut: usize) -> Option<&Version> {
        let versions = self.durable.get(&number)?;
        versions
            .partition_point(|version| version.durable <= cut)
            .checked_sub(1)
            .map(|newest| &versions[newest])
    }

    fn durable_page(&self, number: u64, cut: usize) -> Option<&Page> {
        match self.durable_version(number, cut) {
            Some(version) => Some(&version.page),
            None => self.base_page(number),
        }
    }

    /// The writes that were neither durable nor yet to come at `cut`: with the position of their completion
    /// (`usize::MAX` in flight) and what they carried, in the order of completion.
    fn open_at(&self, cut: usize) -> Vec<(usize, &Write, &[Page])> {
        let since = self.settled.partition_point(|write| write.settled <= Some(cut));
        let mut open: Vec<_> = (self.settled[since..].iter().chain(self.open.values()))
            .filter(|write| write.started <= cut)
            .map(|write| match &write.completed {
                Some((completed, pages)) if *completed <= cut => (*completed, write, &pages[..]),
                _ => (usize::MAX, write, &write.pages[..]),
            })
            .collect();
        open.sort_by_key(|(completed, write, _)| (*completed, write.number));
        open
    }

    /// The cuts there are, from the begin of the recording to now; without a recording only the latter.
    pub(super) fn cuts(&self) -> RangeInclusive<usize> {
        self.recorded_from.unwrap_or(self.position)..=self.position
    }

    /// The last event before `cut`; `None` at the first cut.
    pub(super) fn event_before(&self, cut: usize) -> Option<&TraceEvent> {
        let index = cut.checked_sub(self.recorded_from? + 1)?;
        self.events.get(index)
    }
}

/// How much of one write survives.
enum Fate {
    Dropped,
    Whole,
    Prefix(usize),
    Scattered,
}

impl Image {
    /// The disk after a loss of power at `cut`, drawn from `seed`.
    pub(super) fn crash(history: &Arc<History>, cut: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ (cut as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut open = history.open_at(cut);
        // The two extremes are often the ones that matter, so they are drawn more often than chance would.
        let extreme = match rng.random_range(0..8) {
            0 => Some(Fate::Dropped),
            1 => Some(Fate::Whole),
            _ => None,
        };
        if extreme.is_none() {
            open.shuffle(&mut rng);
        }
        let mut pages = BTreeMap::new();
        for (completed, write, content) in open {
            let drawn = match rng.random_range(0..4) {
                0 => Fate::Dropped,
                1 => Fate::Whole,
                2 => Fate::Prefix(rng.random_range(0..=content.len() * SECTORS_PER_PAGE)),
                _ => Fate::Scattered,
            };
            let fate = extreme.as_ref().unwrap_or(&drawn);
            for (index, page) in content.iter().enumerate() {
                let mask = match fate {
                    Fate::Dropped => 0,
                    Fate::Whole => u8::MAX,
                    Fate::Prefix(sectors) => prefix_mask(*sectors, index),
                    Fate::Scattered => rng.random(),
                };
                let number = write.first_page + index as u64;
                let superseded =
                    history.durable_version(number, cut).is_some_and(|version| version.completed > completed);
                if mask != 0 && !superseded {
                    let old = pages.get(&number).or_else(|| history.durable_page(number, cut));
                    let blended = blend(old, page, mask);
                    pages.insert(number, blended);
                }
            }
        }
        let depth = history.base.as_ref().map_or(0, |base| base.depth) + 1;
        let image = Self { history: Arc::clone(history), cut, pages, depth };
        if depth < MAX_DEPTH { image } else { image.flattened() }
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number).or_else(|| self.history.durable_page(number, self.cut))
    }

    fn flattened(&self) -> Self {
        let mut pages = BTreeMap::new();
        self.collect_into(&mut pages);
        Self { history: Arc::default(), cut: 0, pages, depth: 0 }
    }

    fn collect_into(&self, pages: &mut BTreeMap<u64, Page>) {
        if let Some(base) = &self.history.base {
            base.collect_into(pages);
        }
        for &number in self.history.durable.keys() {
            if let Some(version) = self.history.durable_version(number, self.cut) {
                pages.insert(number, Page::clone(&version.page));
            }
        }
        pages.extend(self.pages.iter().map(|(&number, page)| (number, Page::clone(page))));
    }
}
