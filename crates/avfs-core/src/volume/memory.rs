//! The memory of a mounted volume: taken when it is needed, and given back.
//!
//! **For:** having memory ready before a client needs it; giving up what no client has used for long, what the machine lacks for others,
//! and what is beyond a size that was made smaller. **Excludes:** what clients need now, which the core makes room for. **State:** a
//! thread. **Invariants:** what players will come to stays, and so does what is not written; one turn gives up no more than other turns do.

use avfs_io::engine;
use avfs_io::pool::{Pool, READY, available, total};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use units::{Bytes, Duration, Instant};

/// How often it is looked at. An estimator's window: free memory that is needed again within it is not given back.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Of so many looks the least that was free may go: a file that is written and removed again and again keeps its memory. An
/// estimator's window.
const LOOKS: usize = 10;
/// So many points of time are told apart within the time for which unused data is kept: its resolution. An estimator's window.
const POINTS: u32 = 16;
/// So large a part of the machine's memory is left for others: an operator's target. Below, the kernel swaps out what editors need.
const PART_OF_OTHERS: u64 = 16;

/// What has the memory.
pub(super) trait Cached: Send + Sync {
    /// It ends.
    fn is_over(&self) -> bool;
    /// See [`Core::cache_stamp`](crate::core::Core::cache_stamp).
    fn stamp(&self) -> u64;
    /// See [`Core::shed`](crate::core::Core::shed).
    fn shed(&self, stamp: u64, bytes: u64) -> (u64, bool);
}

/// The thread that tends the memory.
pub(super) struct Tender {
    pool: Pool,
    /// For how long what is not used is kept.
    keep: Arc<Mutex<Duration>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tender {
    /// # Errors
    /// When no thread can be had.
    pub(super) fn start(pool: Pool, keep: Duration, shared: Weak<dyn Cached>) -> std::io::Result<Self> {
        let keep = Arc::new(Mutex::new(keep));
        let mut tending = Tending {
            pool: pool.clone(),
            keep: Arc::clone(&keep),
            shared,
            stamps: VecDeque::new(),
            least: VecDeque::new(),
        };
        let next = move || {
            let mut next = engine::now();
            loop {
                let now = engine::now();
                tending.pool.tend(next.saturating_since(now));
                if engine::now() < next && !tending.is_over() {
                    continue;
                }
                if !tending.look(engine::now()) {
                    return;
                }
                next = engine::now() + LOOK_AFTER;
            }
        };
        let thread = std::thread::Builder::new().name("avfs-memory".into()).spawn(next)?;
        Ok(Self { pool, keep, thread: Mutex::new(Some(thread)) })
    }

    /// The memory that is tended.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What is not used is kept for so long from now on.
    pub(super) fn set_keep(&self, keep: Duration) {
        *self.keep.lock() = keep;
    }

    /// When the volume stops.
    pub(super) fn end(&self) {
        self.pool.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

struct Tending {
    pool: Pool,
    keep: Arc<Mutex<Duration>>,
    shared: Weak<dyn Cached>,
    /// The stamps that the cache had, the oldest first.
    stamps: VecDeque<(Instant, u64)>,
    /// What was free at least at the last looks.
    least: VecDeque<Bytes>,
}

impl Tending {
    fn is_over(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| shared.is_over())
    }

    /// False: the volume stops.
    fn look(&mut self, now: Instant) -> bool {
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_over()) else {
            return false;
        };
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let target = usable(self.pool.capacity(), self.pool.taken(), available(&meminfo), total(&meminfo));
        let unused = self.unused_since(now, &*shared);
        shed(&*shared, unused, u64::MAX);
        while let Some(excess) = self.pool.used().0.checked_sub(target.0).filter(|excess| *excess > 0) {
            if shed(&*shared, u64::MAX, excess) == 0 {
                // The rest is not written yet, or players come to it.
                break;
            }
        }
        // No further than what is left, so that no client has to make room for all of it at once.
        self.pool.set_usable(target.max(self.pool.used()));
        self.least.push_back(self.pool.least_free());
        if self.least.len() > LOOKS {
            self.least.pop_front();
        }
        if self.least.len() == LOOKS || self.pool.taken() > target {
            let surplus = self.least.iter().min().map_or(0, |least| least.0.saturating_sub(READY as u64));
            let free = self.pool.taken().0 - self.pool.used().0;
            self.pool.give_back(Bytes(free - surplus.min(free)));
        }
        true
    }

    /// The stamp before which no client has used what is in memory for as long as it is kept.
    fn unused_since(&mut self, now: Instant, shared: &dyn Cached) -> u64 {
        let keep = *self.keep.lock();
        let is_old = |&(at, _): &(Instant, u64)| now.saturating_since(at) >= keep;
        if self.stamps.back().is_none_or(|&(at, _)| now.saturating_since(at) >= keep / POINTS) {
            self.stamps.push_back((now, shared.stamp()));
        }
        let mut unused = 0;
        while let Some((_, stamp)) = self.stamps.front().filter(|point| is_old(point)) {
            unused = *stamp;
            if self.stamps.get(1).is_some_and(is_old) {
                self.stamps.pop_front();
            } else {
                break;
            }
        }
        unused
    }
}

/// Gives up data in turns; gives back how many bytes it was.
fn shed(shared: &dyn Cached, stamp: u64, bytes: u64) -> u64 {
    let mut shed = 0;
    loop {
        let (now, more) = shared.shed(stamp, bytes - shed);
        shed += now;
        if !more || shed >= bytes {
            return shed;
        }
    }
}

/// How much of `capacity` may be used, while the machine has so much `available` of `total`, and this has `taken`: less where others
/// would lack it, but never less than the half that streams may be promised.
fn usable(capacity: Bytes, taken: Bytes, available: Option<Bytes>, total: Option<Bytes>) -> Bytes {
    let (Some(available), Some(total)) = (available, total) else { return capacity };
    let lacking = Bytes(total.0 / PART_OF_OTHERS).saturating_sub(available);
    if lacking == Bytes::ZERO {
        capacity
    } else {
        taken.saturating_sub(lacking).max(Bytes(capacity.0 / 2)).min(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_a_sixteenth_of_the_machine_and_streams_what_they_may_be_promised() {
        let gib = |gib: u64| Bytes(gib << 30);
        let usable = |taken, available| usable(gib(8), gib(taken), Some(gib(available)), Some(gib(64)));
        assert_eq!(usable(8, 4), gib(8));
        assert_eq!(usable(8, 3), gib(7));
        assert_eq!(usable(8, 0), gib(4));
        assert_eq!(usable(5, 0), gib(4));
        assert_eq!(usable(1, 2), gib(4));
        assert_eq!(super::usable(gib(8), gib(8), None, Some(gib(64))), gib(8));
    }
}
