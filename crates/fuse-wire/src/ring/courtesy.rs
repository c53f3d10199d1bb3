//! Stepping back for the client that is answered, so that it goes on where it asked.
//!
//! **For:** answers that wake no second processor. The kernel lets a woken process go on on its own processor if that is idle; but the
//! ring's thread runs there just then, so another, idle one is chosen, which takes longer to wake than the request took
//! (doc/decisions/small-files.md). A processor on which nothing but SCHED_IDLE runs counts as idle, so the thread is SCHED_IDLE while
//! it hands over an answer, and only then: while it serves, it goes before clients. That costs two system calls, so it is done for a
//! client that was seen to move, and tried without now and then: where all processors are busy, or it is bound to one, it stays by
//! itself. **Excludes:** which answers are handed over so. **State:** the client of each ring; which threads are stepping back.
//! **Invariants:** a thread makes itself SCHED_IDLE and never sleeps so; if a process that does not rest keeps its processor meanwhile,
//! [`Guard`] brings it back within two [`PATIENCE`].

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// A third of what the kernel lets a process run before another of its rank has its turn: a client that asks meanwhile waits for
/// less than it would wait behind one other client. An operator's target.
const PATIENCE: Duration = Duration::from_millis(1);
/// Of a processor that others use it is not tried again for so long: what was waited for in vain is a fiftieth of it at most.
/// An operator's target.
const BUSY: Duration = Duration::from_millis(100);
/// A client that has moved is kept for so many answers; then one is given as if it stayed by itself. If it does not, that one has
/// cost a sixty-fourth of what they all would. An estimator's window.
const KEPT: u32 = 64;
/// Nothing stepped back for so many looks: the guard sleeps. An estimator's window.
const QUIET_LOOKS: u32 = 20;

/// Sets the policy of a thread; 0 is the caller. Keeps its nice value. False if that is not allowed.
fn set_policy(thread: i32, policy: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call, which only reads it.
    unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) == 0 }
}

/// How one ring's thread steps back.
#[derive(Debug)]
pub(crate) struct Courtesy {
    thread: i32,
    /// Odd while it steps back; grows with each change.
    turn: AtomicU64,
    /// The guard had to bring it back.
    was_kept: AtomicBool,
    /// The process whose request came to this ring last; 0 if it has gone on elsewhere.
    client: AtomicU32,
    guard: Arc<Shared>,
}

/// What a thread keeps of its own courtesy.
#[derive(Debug)]
pub(crate) struct Stepping {
    courtesy: Arc<Courtesy>,
    /// So many answers keep the client.
    left: u32,
    /// Not before.
    from: Option<Instant>,
    is_possible: bool,
}

impl Stepping {
    /// A process waits for an answer of this ring. True if it is to be kept here: it has come from another ring, and is the only one
    /// that has asked since.
    pub(crate) fn keeps(&mut self, process: u32) -> bool {
        let own = &self.courtesy.client;
        if own.load(Ordering::Relaxed) == process {
            self.left = self.left.saturating_sub(1);
            return self.left > 0;
        }
        own.store(process, Ordering::Relaxed);
        let rings = self.courtesy.guard.threads.lock();
        let others = rings.iter().filter(|ring| !Arc::ptr_eq(ring, &self.courtesy));
        let leave = |ring: &Arc<Courtesy>| {
            ring.client.compare_exchange(process, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let has_moved = others.filter(|ring| leave(ring)).count() > 0;
        self.left = if has_moved { KEPT } else { 0 };
        has_moved
    }

    /// Calls `hand_over` with the thread behind all others of its processor, where that is possible and its processor is free.
    pub(crate) fn back<R>(&mut self, hand_over: impl FnOnce() -> R) -> R {
        if !self.may() {
            return hand_over();
        }
        let courtesy = &*self.courtesy;
        // In this order: either the guard sees this turn before it sleeps, or this sees that it sleeps.
        courtesy.turn.fetch_add(1, Ordering::SeqCst);
        courtesy.guard.wake();
        self.is_possible = set_policy(0, libc::SCHED_IDLE);
        let result = hand_over();
        self.is_possible &= set_policy(0, libc::SCHED_OTHER);
        courtesy.turn.fetch_add(1, Ordering::AcqRel);
        if courtesy.was_kept.swap(false, Ordering::AcqRel) {
            self.from = Some(Instant::now() + BUSY);
        }
        result
    }

    fn may(&mut self) -> bool {
        if self.from.is_some_and(|from| Instant::now() < from) {
            return false;
        }
        self.from = None;
        self.is_possible
    }
}

#[derive(Debug, Default)]
struct Shared {
    threads: Mutex<Vec<Arc<Courtesy>>>,
    is_awake: AtomicBool,
    guard: Mutex<Option<Thread>>,
    ended: AtomicBool,
}

impl Shared {
    fn wake(&self) {
        if !self.is_awake.load(Ordering::SeqCst) && !self.is_awake.swap(true, Ordering::SeqCst) {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(guard) = &*self.guard.lock() {
            guard.unpark();
        }
    }

    /// Looks at all threads until the end; sleeps while none steps back.
    fn watch(&self) {
        let mut seen: Vec<u64> = Vec::new();
        let mut quiet = 0;
        while !self.ended.load(Ordering::Acquire) {
            if quiet > QUIET_LOOKS {
                quiet = 0;
                self.is_awake.store(false, Ordering::SeqCst);
                if !self.look(&mut seen) {
                    thread::park();
                }
                self.is_awake.store(true, Ordering::SeqCst);
            }
            thread::park_timeout(PATIENCE);
            quiet = if self.look(&mut seen) { 0 } else { quiet + 1 };
        }
    }

    /// Brings back the threads that step back since the last look. True if any has stepped back since then.
    fn look(&self, seen: &mut Vec<u64>) -> bool {
        let threads = self.threads.lock();
        seen.resize(threads.len(), 0);
        let mut has_changed = false;
        for (courtesy, before) in threads.iter().zip(seen) {
            let turn = courtesy.turn.load(Ordering::SeqCst);
            if turn % 2 == 1 && turn == *before {
                courtesy.was_kept.store(true, Ordering::Release);
                // At worst it has come back meanwhile and steps back again: then it does so in vain.
                set_policy(courtesy.thread, libc::SCHED_OTHER);
            }
            has_changed |= turn != *before;
            *before = turn;
        }
        has_changed
    }
}

/// Brings threads back that others keep from their processor.
#[derive(Debug)]
pub(crate) struct Guard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts its thread.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let watching = Arc::clone(&shared);
        let thread = thread::Builder::new().name("fuse-guard".into()).spawn(move || watching.watch())?;
        *shared.guard.lock() = Some(thread.thread().clone());
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Takes the calling thread into its care.
    pub(crate) fn join(&self) -> Stepping {
        Self::enter(&self.shared)
    }

    fn enter(shared: &Arc<Shared>) -> Stepping {
        let courtesy = Arc::new(Courtesy {
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            turn: AtomicU64::new(0),
            was_kept: AtomicBool::new(false),
            client: AtomicU32::new(0),
            guard: Arc::clone(shared),
        });
        shared.threads.lock().push(Arc::clone(&courtesy));
        Stepping { courtesy, left: 0, from: None, is_possible: true }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.unpark();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: it takes no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// The guard's looks are made here, so that nothing depends on how busy the machine is.
    #[test]
    fn a_thread_that_is_kept_away_is_brought_back_and_then_stays_for_a_while() {
        let shared = Arc::<Shared>::default();
        let mut stepping = Guard::enter(&shared);
        let mut seen = Vec::new();
        assert!(!shared.look(&mut seen), "nothing has stepped back");
        let within = stepping.back(|| {
            let at_first = policy();
            assert!(shared.look(&mut seen));
            let seen_once = policy();
            assert!(!shared.look(&mut seen));
            (at_first, seen_once, policy())
        });
        assert_eq!(within, (libc::SCHED_IDLE, libc::SCHED_IDLE, libc::SCHED_OTHER));
        assert_eq!(policy(), libc::SCHED_OTHER);
        assert_eq!(stepping.back(policy), libc::SCHED_OTHER, "its processor is in use");
        stepping.from = Some(Instant::now() - Duration::from_millis(1));
        assert_eq!(stepping.back(policy), libc::SCHED_IDLE);
        assert_eq!(policy(), libc::SCHED_OTHER);
        // Two short ones are not one long one.
        assert!(shared.look(&mut seen));
        stepping.back(|| {
            shared.look(&mut seen);
        });
        stepping.back(|| {
            shared.look(&mut seen);
            assert_eq!(policy(), libc::SCHED_IDLE);
        });
    }

    #[test]
    fn a_client_is_kept_where_it_has_moved_to_and_let_go_now_and_then() {
        let shared = Arc::<Shared>::default();
        let mut rings = [Guard::enter(&shared), Guard::enter(&shared)];
        assert!(!rings[0].keeps(7) && !rings[0].keeps(7), "it stays by itself");
        assert!(rings[1].keeps(7), "it has moved");
        let kept = (0..1000).take_while(|_| rings[1].keeps(7)).count();
        assert_eq!(kept as u32, KEPT - 1);
        assert!(!rings[1].keeps(7), "it stayed without");
        assert!(rings[0].keeps(7), "it has moved again");
        assert!(rings[0].keeps(7));
        assert!(!rings[0].keeps(8), "another one has the ring, too");
        assert!(!rings[0].keeps(7) && !rings[0].keeps(8), "and so it is for both");
        assert!(!rings[1].keeps(9));
        assert!(rings[1].keeps(8), "which goes where there is room");
    }

    #[test]
    fn the_guard_itself_brings_back_and_ends() {
        let guard = Guard::start().unwrap();
        let mut stepping = guard.join();
        let was_idle = stepping.back(|| {
            let was_idle = policy() == libc::SCHED_IDLE;
            while policy() == libc::SCHED_IDLE {
                thread::yield_now();
            }
            was_idle
        });
        assert!(was_idle && stepping.from.is_some());
        drop(guard);
    }
}
