//! Which request goes to the device next, and which streams may be promised anything at all?
//!
//! **For:** the order of every request to one block device: earliest deadline first, with sweeps where slack
//! permits, best effort inside the slack. **Excludes:** clocks, threads, files, system calls and data: `now` is
//! an argument, a request is a description, and the caller moves the bytes. **State:** one [`Scheduler`] per
//! device, owned by whoever owns the device's queue. **Invariants:** a request that was enqueued is dispatched
//! exactly once or cancelled, never both; two schedulers given the same calls make the same decisions.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod request;
mod scheduler;

pub use request::{Class, Direction, Dispatch, DispatchId, Reason, Request, RequestId, StreamId};
pub use scheduler::{Config, Scheduler};
