//! The device in memory.

use super::history::{History, Image, TraceEvent};
use super::{PAGE, Page, SECTORS_PER_PAGE, blend, prefix_mask};
use crate::device::{Device, Geometry};
use crate::request::IoError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use units::{Bytes, DeviceOffset};

/// A sparse disk of zeros with a volatile write cache. Used directly through [`Device`], or through
/// [`SimEngine`](super::SimEngine).
#[derive(Debug)]
pub struct SimDisk {
    size: AtomicU64,
    /// A write that is to be durable is durable when it completes.
    forces_writes: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What a reader sees, where it differs from the history's base.
    visible: BTreeMap<u64, Page>,
    /// Shared with the crash images taken from it; copied when the disk goes on while they live.
    history: Arc<History>,
    faults: Vec<Fault>,
}

/// A failure to inject: by default every operation fails with EIO, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    after: u64,
    place: Option<(DeviceOffset, Bytes)>,
    writes_only: bool,
    reads_only: bool,
    error: IoError,
}

impl Fault {
    /// Every operation fails after `operations` more that the fault would have met.
    pub fn after(operations: u64) -> Self {
        Self {
            after: operations,
            place: None,
            writes_only: false,
            reads_only: false,
            error: IoError::Device(libc::EIO),
        }
    }

    /// Only operations that touch `length` bytes at `offset`; no flush does.
    pub fn within(self, offset: DeviceOffset, length: Bytes) -> Self {
        Self { place: Some((offset, length)), ..self }
    }

    /// Only writes and flushes.
    pub fn writes_only(self) -> Self {
        Self { writes_only: true, ..self }
    }

    /// Only reads.
    pub fn reads_only(self) -> Self {
        Self { reads_only: true, ..self }
    }

    /// The operating system's error number to fail with.
    pub fn with_errno(self, errno: i32) -> Self {
        Self { error: IoError::Device(errno), ..self }
    }

    /// The disk ends at `offset`, as one does that was made shorter.
    pub fn cut_at(offset: DeviceOffset) -> Self {
        let behind = Bytes(u64::MAX - offset.as_u64());
        Self { error: IoError::PastEnd, ..Self::after(0).within(offset, behind) }
    }

    fn meets(&self, operation: Operation) -> bool {
        match operation {
            Operation::Read(..) if self.writes_only => false,
            Operation::Write(..) | Operation::Flush if self.reads_only => false,
            Operation::Flush => self.place.is_none(),
            Operation::Read(first, count) | Operation::Write(first, count) => {
                self.place.is_none_or(|(offset, length)| {
                    let (start, end) = (first * PAGE as u64, (first + count as u64) * PAGE as u64);
                    start < offset.as_u64() + length.as_u64() && offset.as_u64() < end
                })
            }
        }
    }
}

/// First page and number of pages.
#[derive(Clone, Copy)]
enum Operation {
    Read(u64, usize),
    Write(u64, usize),
    Flush,
}

impl SimDisk {
    /// A disk of zeros, `size` rounded down to whole 4 KiB. It holds in memory only what is written to it.
    pub fn new(size: Bytes) -> Self {
        let size = Bytes(size.as_u64() / PAGE as u64 * PAGE as u64);
        Self { size: AtomicU64::new(size.0), forces_writes: true, state: Mutex::default() }
    }

    /// The same, but it ignores that a write is to be durable, as a file on FUSE does: only a flush makes it so.
    pub fn forcing_nothing(self) -> Self {
        Self { forces_writes: false, ..self }
    }

    /// See [`FileDevice::forces_writes`](crate::FileDevice::forces_writes).
    pub fn forces_writes(&self) -> bool {
        self.forces_writes
    }

    /// The disk has `size` bytes from now on, rounded as [`new`](Self::new) does; it never becomes smaller. What is added is zeros.
    pub fn enlarge(&self, size: Bytes) {
        self.size.fetch_max(size.as_u64() / PAGE as u64 * PAGE as u64, Ordering::AcqRel);
    }

    pub(super) fn over(image: Arc<Image>, size: Bytes, forces_writes: bool) -> Self {
        let history = Arc::new(History::on(image));
        Self {
            size: AtomicU64::new(size.0),
            forces_writes,
            state: Mutex::new(State { history, ..State::default() }),
        }
    }

    /// Forgets the past and keeps it from here on, so that [`crash_images`](Self::crash_images) reach back to this
    /// moment. A recording holds the data of every write.
    pub fn record(&self) {
        Arc::make_mut(&mut self.state.lock().history).record();
    }

    /// The cut that lies now: after everything that has happened to the contents so far.
    pub fn position(&self) -> usize {
        self.state.lock().history.position()
    }

    /// The disks that a loss of power could have left, at any moment since [`record`](Self::record), or now.
    pub fn crash_images(&self) -> CrashImages {
        let history = Arc::clone(&self.state.lock().history);
        CrashImages { history, size: self.size(), forces_writes: self.forces_writes }
    }

    /// A disk that a loss of power now could leave. This one is as it was.
    pub fn crash(&self, seed: u64) -> Self {
        let images = self.crash_images();
        images.image(*images.cuts().end(), seed)
    }

    /// From now on operations fail as `fault` says; `None` heals the disk. A write that fails has written its first
    /// half.
    pub fn inject(&self, fault: Option<Fault>) {
        self.state.lock().faults = fault.into_iter().collect();
    }

    /// As [`inject`](Self::inject), beside the faults that there are; of those that an operation meets the first counts.
    pub fn inject_too(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// The pages `first..first + count` as they are read; `None` stands for zeros.
    pub(super) fn read_pages(&self, first: u64, count: usize) -> Result<Vec<Option<Page>>, IoError> {
        let mut state = self.state.lock();
        state.meet_fault(Operation::Read(first, count))?;
        Ok((first..).take(count).map(|number| state.page(number).cloned()).collect())
    }

    pub(super) fn start_write(&self, first: u64, pages: Arc<[Page]>) -> u64 {
        Arc::make_mut(&mut self.state.lock().history).start_write(first, pages)
    }

    pub(super) fn complete_write(
        &self,
        write: u64,
        first: u64,
        pages: Arc<[Page]>,
        durable: bool,
    ) -> Result<(), IoError> {
        let mut state = self.state.lock();
        let outcome = state.meet_fault(Operation::Write(first, pages.len()));
        let pages = if outcome.is_ok() { pages } else { state.first_half(first, &pages) };
        for (number, page) in (first..).zip(pages.iter()) {
            state.visible.insert(number, Page::clone(page));
        }
        let durable = durable && self.forces_writes;
        Arc::make_mut(&mut state.history).complete_write(write, pages, durable, outcome.is_ok());
        outcome
    }

    pub(super) fn flush_up_to(&self, covers: usize) -> Result<(), IoError> {
        let mut state = self.state.lock();
        state.meet_fault(Operation::Flush)?;
        Arc::make_mut(&mut state.history).flush(covers);
        Ok(())
    }

    /// First page of a place that lies on the disk and on page boundaries.
    fn locate(&self, offset: DeviceOffset, length: usize) -> Result<u64, IoError> {
        if !offset.as_u64().is_multiple_of(PAGE as u64) || !length.is_multiple_of(PAGE) {
            return Err(IoError::Device(libc::EINVAL));
        }
        match offset.as_u64().checked_add(length as u64) {
            Some(end) if end <= self.size().as_u64() => Ok(offset.as_u64() / PAGE as u64),
            _ => Err(IoError::PastEnd),
        }
    }
}

/// The disks that a loss of power could have left, at every moment of a recording.
///
/// Images share everything with the recording except the pages of the writes that were open at the cut, so
/// thousands are cheap.
#[derive(Clone, Debug)]
pub struct CrashImages {
    history: Arc<History>,
    size: Bytes,
    forces_writes: bool,
}

impl CrashImages {
    /// The cuts there are, from the begin of the recording to the moment at which these images were taken from
    /// the disk; without a recording only the latter.
    pub fn cuts(&self) -> RangeInclusive<usize> {
        self.history.cuts()
    }

    /// The last event before `cut`, for messages; `None` at the first cut.
    pub fn event_before(&self, cut: usize) -> Option<&TraceEvent> {
        self.history.event_before(cut)
    }

    /// The disk after power was lost at `cut`: everything durable at that moment, and of each write that was in
    /// flight or unflushed all, nothing, the first sectors or any sectors, with overlapping ones in any order.
    /// The same cut and seed give the same image.
    ///
    /// # Panics
    /// When `cut` is not one of [`cuts`](Self::cuts).
    pub fn image(&self, cut: usize, seed: u64) -> SimDisk {
        assert!(self.cuts().contains(&cut), "cut {cut} is not among {:?}", self.cuts());
        let image = Image::crash(&self.history, cut, seed);
        SimDisk::over(Arc::new(image), self.size, self.forces_writes)
    }
}

impl State {
    fn page(&self, number: u64) -> Option<&Page> {
        self.visible.get(&number).or_else(|| self.history.base_page(number))
    }

    fn meet_fault(&mut self, operation: Operation) -> Result<(), IoError> {
        for fault in self.faults.iter_mut().filter(|fault| fault.meets(operation)) {
            match fault.after.checked_sub(1) {
                Some(left) => fault.after = left,
                None => return Err(fault.error),
            }
        }
        Ok(())
    }

    fn first_half(&self, first: u64, pages: &[Page]) -> Arc<[Page]> {
        let sectors = pages.len() * SECTORS_PER_PAGE / 2;
        let reached = pages.iter().take(sectors.div_ceil(SECTORS_PER_PAGE)).enumerate();
        reached
            .map(|(index, page)| blend(self.page(first + index as u64), page, prefix_mask(sectors, index)))
            .collect()
    }
}

/// Zeros are all the same page: files of them cost next to nothing.
fn page_from(bytes: &[u8]) -> Page {
    static ZEROS: LazyLock<Page> = LazyLock::new(|| Page::new([0; PAGE]));
    if bytes == &ZEROS[..] {
        return Page::clone(&ZEROS);
    }
    Page::new(bytes.try_into().expect("a page is cut to its length"))
}

/// `bytes`, whole pages, as pages.
pub(super) fn pages_from(bytes: &[u8]) -> impl Iterator<Item = Page> {
    bytes.chunks_exact(PAGE).map(page_from)
}

impl Device for SimDisk {
    fn size(&self) -> Bytes {
        Bytes(self.size.load(Ordering::Acquire))
    }

    fn geometry(&self) -> Geometry {
        let block = Bytes(PAGE as u64);
        Geometry { logical_block: block, physical_block: block, optimal_io: Bytes::ZERO, rotational: false }
    }

    fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError> {
        let first = self.locate(offset, into.len())?;
        let pages = self.read_pages(first, into.len() / PAGE)?;
        for (page, into) in pages.iter().zip(into.chunks_exact_mut(PAGE)) {
            match page {
                Some(page) => into.copy_from_slice(&page[..]),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError> {
        let first = self.locate(offset, from.len())?;
        let pages: Arc<[Page]> = pages_from(from).collect();
        let write = self.start_write(first, Arc::clone(&pages));
        self.complete_write(write, first, pages, false)
    }

    fn flush(&self) -> Result<(), IoError> {
        let covers = self.position();
        self.flush_up_to(covers)
    }

    /// Writes zeros, without durability, over what was written to this disk there.
    fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError> {
        let bytes = usize::try_from(length.as_u64()).map_err(|_| IoError::PastEnd)?;
        let first = self.locate(offset, bytes)?;
        let end = first + (bytes / PAGE) as u64;
        let written: Vec<u64> =
            self.state.lock().visible.range(first..end).map(|(&number, _)| number).collect();
        let zeros: Arc<[Page]> = Arc::new([Page::new([0; PAGE])]);
        for number in written {
            let write = self.start_write(number, Arc::clone(&zeros));
            self.complete_write(write, number, Arc::clone(&zeros), false)?;
        }
        Ok(())
    }
}
