//! How long does a device take that is not here?
//!
//! **For:** modelled devices, by declaration or by what was measured of one, and what a scheduler would be told of them. The product plans
//! with them, and the laboratory stands on them. **Excludes:** data, schedulers, clients, clocks. **State:** one [`device::Device`],
//! owned by its driver. **Invariants:** a run is a function of declaration, seed and calls. The profiles in `devices/` are data; they are
//! compiled in, so that they are wherever the commands are.
#![forbid(unsafe_code)]

pub mod calibration;
pub mod device;
