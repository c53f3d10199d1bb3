//! Which clients are streams, what they need next, and by when.
//!
//! **For:** telling players, recorders and copies apart by what they ask for and when; their rates; how far ahead of them is
//! read, and when that must be there. **Excludes:** blocks, extents and buffers, the device, clocks (`now` is an argument), and
//! which command goes next, which is rtsched's. **State:** what is known of each client and of each numbered sequence of files.
//! **Invariants:** the same calls give the same answers; memory is bounded by clients and sequences; the correctness of a
//! filesystem depends on nothing here.
//!
//! The host keeps in memory what it has read ahead. What that is, this crate does not know: it is a type parameter `K`, which the
//! host gives, and gets back when no client will come to it any more.

pub mod ahead;
pub mod consumed;
pub mod cursor;
pub mod due;
pub mod events;
pub mod file;
pub mod frames;
pub mod host;
pub mod name;
pub mod pattern;
pub mod player;
pub mod policy;
pub mod qos;
pub mod sequence;
pub mod streams;
pub mod window;
pub mod writers;

pub use file::Declaration;
pub use host::{Advice, Facts, HandleId, OpenFiles, Opener, PAGE, REQUEST, Wish};
pub use policy::{Policy, Rate};
pub use qos::{Ranking, RequestQos};
pub use streams::Streams;
