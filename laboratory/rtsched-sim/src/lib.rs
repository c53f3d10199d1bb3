//! How many streams does it carry?
//!
//! **For:** the scheduler before modelled devices, under declared workloads, in virtual time: an hour in seconds, the
//! same every time. **Excludes:** data, clients ([`avfs_workloads`]), and a scheduler of its own: it drives the
//! `rtsched::Scheduler` that production uses. **State:** one simulation owns its device, its scheduler and its streams. **Invariants:** what happens is a
//! function of the declarations and the seed; simulated time is the only time.
#![forbid(unsafe_code)]

pub mod calibration;
mod loose;
pub mod oracle;
pub mod policy;
pub mod report;
pub mod scenarios;
pub mod simulation;
mod stage;
mod stream;
pub mod trace;
pub mod workload;

pub use avfs_model::device;
