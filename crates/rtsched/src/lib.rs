//! Which request goes to the device next, and which streams may be promised anything at all?
//!
//! **For:** the order of every request to one block device: earliest deadline first, with sweeps where slack
//! permits, best effort inside the slack. **Excludes:** clocks, threads, files, system calls and data: `now` is
//! an argument, a request is a description, and the caller moves the bytes. **State:** one [`Scheduler`] per
//! device, owned by the owner of the device's queue. **Invariants:** a request that was enqueued is dispatched
//! exactly once or cancelled, never both; two schedulers given the same calls make the same decisions.
//!
//! `now` must not go back from one call to the next.
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
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
mod lateness;
mod length_correction;
mod lists;
mod merge;
mod node;
mod policing;
mod queue;
mod reconfigure;
mod request;
mod reserve;
mod room;
mod scheduler;
mod service;
mod slack;
mod state;
mod stream;
mod streams;
mod tree;
mod unpromised;
mod writeback_debt;
mod zones;

pub use config::{Calibrated, Config, FloorBase};
pub use cost_model::ServiceTime;
pub use event::{Counters, Event};
pub use lateness::{Blocker, Lateness, Work};
pub use length_correction::WRITE_LENGTHS;
pub use queue::PLAYER_HOLDS;
pub use request::{Class, Direction, Dispatch, DispatchId, Reason, Request, RequestId, StreamId};
pub use state::Scheduler;
pub use stream::{
    Account, Confidence, Rejected, Reservation, StreamSpec, StreamState, StreamStatus, Terms, Why,
    flush_deadline,
};
pub use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};
pub use unpromised::BackgroundLoad;
