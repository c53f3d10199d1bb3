//! Bytes between memory and the device.
//!
//! **For:** the pool of pinned buffers, the device (block device, image file, or simulated), and the engine that
//! is the sole owner of the ring and of the scheduler. **Excludes:** what the bytes mean; nothing here knows a
//! file. **State:** the engine thread owns `Scheduler`, ring and in-flight table; the pool owns all buffer memory.
//! **Invariants:** every device request passes the scheduler, and the gate of the lease on the volume; a buffer cannot be freed while a request or a reader
//! holds it; each submitted request completes exactly once, also when it fails or the engine stops.

pub mod calibration;
pub mod device;
pub mod engine;
pub mod gate;
pub mod measure;
pub mod pool;
pub mod request;
pub mod sim;
mod streams;

pub use device::{Device, FileDevice, Geometry, LockId, OpenError, OpenMode};
pub use engine::{Engine, StartError, Statistics};
pub use gate::Gate;
pub use request::{
    Accepted, Completion, CompletionSink, IoError, IoOperation, IoRequest, IoTag, Promotion, Segment,
};
pub use streams::{DeclaredStream, Evidence, Promise};
