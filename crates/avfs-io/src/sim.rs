//! A device that forgets, and an engine that is stepped.
//!
//! **For:** crash tests and deterministic simulation: [`SimDisk`] is a sparse device in memory with a volatile write cache,
//! [`SimEngine`] serves requests to it in an order drawn from a seed, [`CrashImages`] are the disks that a loss of power could
//! leave behind. **Excludes:** threads, clocks, and how long a device takes: a test that wants that brings a [`Timing`]. **State:**
//! the disk owns what is visible and the history of what was durable when. **Invariants:** the same calls with the same seeds give
//! the same bytes; what was flushed is in every image; an image differs from the durable state only where a write was in flight or
//! unflushed.
//!
//! The model of the device is the one the block layer promises and no more (Linux,
//! `Documentation/block/writeback_cache_control.rst`). A completed write may be lost, reordered and torn until a flush that was
//! submitted after its completion has completed. A durable write (FUA) persists itself alone. A sector of 512 bytes is atomic.

mod disk;
mod engine;
mod history;

pub use disk::{CrashImages, Fault, SimDisk};
pub use engine::{SimCommand, SimEngine, Timing};
pub use history::TraceEvent;

/// Unit of the disk's memory and of its addresses, in bytes.
const PAGE: usize = crate::request::ALIGNMENT;
/// What is written whole or not at all, in bytes.
const SECTOR: usize = 512;
const SECTORS_PER_PAGE: usize = PAGE / SECTOR;

type Page = std::sync::Arc<[u8; PAGE]>;

/// `new` in the sectors of `mask`, `old` (zeros when there is none) in the others. Bit 0 is the first sector.
fn blend(old: Option<&Page>, new: &Page, mask: u8) -> Page {
    if mask == u8::MAX {
        return Page::clone(new);
    }
    let mut blended = old.map_or([0; PAGE], |page| **page);
    for sector in (0..SECTORS_PER_PAGE).filter(|sector| mask & (1 << sector) != 0) {
        let range = sector * SECTOR..(sector + 1) * SECTOR;
        blended[range.clone()].copy_from_slice(&new[range]);
    }
    Page::new(blended)
}

/// The masks that cover the first `sectors` sectors of successive pages.
fn prefix_mask(sectors: usize, page: usize) -> u8 {
    let covered = sectors.saturating_sub(page * SECTORS_PER_PAGE).min(SECTORS_PER_PAGE);
    ((1u16 << covered) - 1) as u8
}
