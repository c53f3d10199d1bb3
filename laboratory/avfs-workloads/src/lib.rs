//! Clients of an editing facility, and those that disturb them: the same for simulator, rehearsal and laboratory.
//!
//! **For:** when a client asks for what, and whether what it needs is there in time: players and recorders at a bitrate
//! with a buffer, players of what is being recorded, sequences of frames, greedy copies, random readers, an office; how they are
//! declared ([`Declaration`]); and the loop that runs them ([`run`]). **Excludes:** how a request gets to the files, which is a
//! [`Transport`]'s, and what a device or a contender is. **State:** each client owns its own. **Invariants:** clients know no clock
//! and do no I/O: `now` and outcomes come in, operations go out; so the same run can be made in virtual time.
//!
//! # What is late
//!
//! - **A player's unit** is late when it is not there at its turn. Playing waits for it, and all later turns move, so that one
//!   delay counts once. A player's first turn comes when its buffer is full.
//! - **A recorder's unit** is late when it is not acknowledged within the buffer, counted from when it was recorded, or when it is
//!   dropped because twice the buffer waits.
//! - **The first picture** takes from the open, the jump or the end of a pause to the first unit that is shown.
//! - **A begin** takes from there to the full buffer. A player that has not begun within [`BEGINS_WITHIN`] does not play.
//! - What is still on its way at the end counts as if it came then. A player that never began is one late unit.

#![forbid(unsafe_code)]

mod cast;
mod chasing;
mod client;
mod contender;
pub mod content;
mod declaration;
mod desk;
mod drive;
mod editing;
mod experiment;
mod files;
pub mod histogram;
mod operation;
mod pattern;
mod report;
mod simulated;
mod span;
mod spec;
mod stream;
#[cfg(test)]
mod tests;
mod words;

pub use cast::{Member, clients, clients_alone, members, needs, ramp};
pub use client::Client;
pub use contender::Contender;
pub use declaration::{Declaration, DeclarationError};
pub use drive::{Ask, Outcome, Transport, TransportError, run};
pub use experiment::{Access, Experiment, Group};
pub use operation::{Answer, Operation};
pub use pattern::{ChaseSpec, CopySpec, EditorSpec, Pattern, ScrubSpec, StreamSpec, Then, Thens};
pub use report::{BEGINS_WITHIN, ClientReport};
pub use simulated::{Expect, Refused, Simulated, Told};
pub use span::Span;
pub use spec::{ClientSpec, Visits};
