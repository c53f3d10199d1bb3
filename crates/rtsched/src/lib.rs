//! Which request goes to the device next, and which streams may be promised anything at all?
//!
//! **For:** the order of every request to one block device: earliest deadline first, with sweeps where slack
//! permits, best effort inside the slack. **Excludes:** clocks, threads, files, system calls and data: `now` is
//! an argument, a request is a description, and the caller moves the bytes. **State:** one [`Scheduler`] per
//! device, owned by the owner of the device's queue. **Invariants:** a request that was enqueued is dispatched
//! exactly once or cancelled, never both; two schedulers given the same calls make the same decisions.
//!
//! ```
//! use rtsched::{Class, Config, Direction, Request, RequestId, Scheduler};
//! use units::{Bytes, DeviceOffset, Duration, Instant};
//!
//! let mut scheduler = Scheduler::new(Config::default());
//! let now = Instant::ZERO;
//! let read = |id, class, deadline| Request {
//!     id: RequestId(id),
//!     class,
//!     stream: None,
//!     direction: Direction::Read,
//!     offset: DeviceOffset(id << 30),
//!     length: Bytes::from_mib(8),
//!     deadline,
//! };
//! scheduler.enqueue(now, read(1, Class::RealTime, Some(now + Duration::from_millis(671))));
//! scheduler.enqueue(now, read(2, Class::BestEffort, None));
//! // The frame is not due for a while, so the copy goes first; then the frame, in time.
//! for expected in [2, 1] {
//!     let command = scheduler.dispatch(now).unwrap();
//!     assert_eq!(command.requests[..], [RequestId(expected)]);
//!     scheduler.complete(now, command.id);
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod admission;
mod config;
mod cost_model;
mod device;
mod dispatch;
mod due;
mod event;
mod fit;
mod floors;
mod health;
mod index;
mod length_correction;
mod lists;
mod merge;
mod node;
mod policing;
mod queue;
mod request;
mod reserve;
mod scheduler;
mod service;
mod slack;
mod stream;
mod streams;
mod tree;
mod unpromised;
mod writeback_debt;
mod zones;

pub use config::{Calibrated, Config, FloorBase};
pub use cost_model::ServiceTime;
pub use event::{Counters, Event};
pub use length_correction::WRITE_LENGTHS;
pub use request::{Class, Direction, Dispatch, DispatchId, Reason, Request, RequestId, StreamId};
pub use scheduler::Scheduler;
pub use stream::{
    Account, Rejected, Reservation, StreamSpec, StreamState, StreamStatus, Terms, Why, flush_deadline,
};
pub use unpromised::Beside;
