//! Files made by hand: every container, its limits, and what nobody should write.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/spoil.rs"]
mod spoil;

mod frames;
mod hostile;
mod iso;
mod make;
mod mpegts;
mod mxf;
mod riff;
