//! The laboratory: how many editors does a volume carry, on which filesystem?
//!
//! **For:** the experiment of the paper on rt-Samba and AVFS, repeatable on a machine without a RAID: a modelled LUN as a
//! real block device ([`lun`]), players, recorders and disturbers ([`avfs_workloads`]) over SMB ([`smb`]) or on local files,
//! declared experiments ([`experiment`]) on any filesystem ([`rig`]), and the report about them ([`report`],
//! [`figure`]), and whether a plan is right ([`planning`]).
//! **Excludes:** the model of the device, which is `rtsched_sim::device`, and AVFS: to the laboratory it is one
//! filesystem among others, but for its engine, which is compared with the simulator ([`agree`]),
//! and for experiments in virtual time ([`rehearsal`]), of which a fixed set says what a change changes ([`golden`]). **State:** each room owns its own. **Invariants:** what waits, when it is late and which
//! point is measured next are decided by code without clock or I/O; time comes in from outside.
#![forbid(unsafe_code)]

pub mod ageing;
pub mod agree;
pub mod avfs;
pub mod calibrate;
pub mod clock;
pub mod experiment;
pub mod facts;
pub mod figure;
pub mod golden;
pub mod local;
pub mod loop_device;
pub mod lun;
pub mod memory;
pub mod planning;
pub mod point;
pub mod processor;
pub mod rehearsal;
pub mod report;
pub mod results;
pub mod rig;
pub mod run;
pub mod search;
pub mod smb;
pub mod steal;
