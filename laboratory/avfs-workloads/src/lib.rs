//! Clients of an editing facility, and those who disturb them.
//!
//! **For:** when a client asks for what, and whether what it needs is there in time: players and recorders at a bitrate
//! with a buffer, who plays what is being recorded, sequences of frames, greedy copies, random readers, an office. **Excludes:** how a request gets to
//! the files, which is a [`Transport`]'s. **State:** each client owns its own. **Invariants:** clients know no clock
//! and do no I/O: `now` and outcomes come in, operations go out; so the same run can be made in virtual time.

#![forbid(unsafe_code)]

mod chasing;
mod client;
pub mod content;
mod desk;
mod drive;
mod editing;
mod files;
pub mod histogram;
mod operation;
mod pattern;
mod report;
mod span;
mod spec;
mod stream;
#[cfg(test)]
mod tests;
mod words;

pub use client::Client;
pub use drive::{Ask, Outcome, Transport, TransportError, run};
pub use operation::{Answer, Operation};
pub use pattern::{ChaseSpec, CopySpec, EditorSpec, Pattern, ScrubSpec, StreamSpec, Then, Thens};
pub use report::ClientReport;
pub use span::Span;
pub use spec::{ClientSpec, Visits};
