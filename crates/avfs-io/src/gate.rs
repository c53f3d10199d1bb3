//! Until when the device may be given commands.
//!
//! **For:** a lease on the volume. Its holder says how long it lasts; the engine asks immediately before it hands commands to the
//! kernel. **Excludes:** whose lease it is, and how it is renewed. **State:** one moment, and whether it is over for good.
//! **Invariants:** what was revoked never opens again.

use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use units::Instant;

/// See the module's documentation. Instants are those of [`engine::now`](crate::engine::now).
#[derive(Debug)]
pub struct Gate {
    until: AtomicU64,
    is_revoked: AtomicBool,
    /// The engine that waits before it.
    waker: Mutex<Option<Arc<OwnedFd>>>,
}

impl Gate {
    /// Open for ever, for a device that is not shared, or is only read.
    pub fn open() -> Self {
        Self::until_then(Instant::FAR_FUTURE)
    }

    /// Closed until there is a lease.
    pub fn closed() -> Self {
        Self::until_then(Instant::ZERO)
    }

    fn until_then(until: Instant) -> Self {
        Self {
            until: AtomicU64::new(until.as_nanos()),
            is_revoked: AtomicBool::new(false),
            waker: Mutex::new(None),
        }
    }

    /// From now on it is open until then.
    pub fn permit(&self, until: Instant) {
        self.until.store(until.as_nanos(), Ordering::Release);
        self.wake();
    }

    /// Closed for good.
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Release);
        self.wake();
    }

    /// Closed at once, and for good when `tell` has returned: what waits before the gate ends then, and has to be known for what it is,
    /// not as an error of the device.
    pub fn revoke_after(&self, tell: impl FnOnce()) {
        self.permit(Instant::ZERO);
        tell();
        self.revoke();
    }

    /// When it closes, unless it is told something else before.
    pub fn until(&self) -> Instant {
        if self.is_revoked() {
            return Instant::ZERO;
        }
        Instant::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// Whether commands may be given to the device `now`.
    pub fn is_open(&self, now: Instant) -> bool {
        now < self.until()
    }

    /// Whether it never opens again.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Acquire)
    }

    pub(crate) fn wakes(&self, waker: Arc<OwnedFd>) {
        *self.waker.lock() = Some(waker);
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            // It fails only when the counter is at its end, and then the engine is awake.
            let _ = rustix::io::write(&**waker, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_revoked_stays_closed() {
        let (early, late) = (Instant::from_nanos(5), Instant::from_nanos(10));
        let gate = Gate::closed();
        assert!(!gate.is_open(Instant::ZERO));
        gate.permit(late);
        assert!(gate.is_open(early) && !gate.is_open(late));
        gate.revoke();
        gate.permit(Instant::FAR_FUTURE);
        assert!(!gate.is_open(early) && gate.is_revoked());
        assert!(Gate::open().is_open(late));
    }
}
