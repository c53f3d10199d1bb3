//! Bytes between memory and the device.
//!
//! **For:** the pool of pinned buffers, the device (block device, image file, or simulated), and the engine that
//! is the sole owner of the ring and of the scheduler. **Excludes:** what the bytes mean; nothing here knows a
//! file. **State:** one `EngineCore` under each engine owns the scheduler and every request that waits; the engine thread owns the
//! ring and the commands at the device, a simulated engine its disk and those; the pool owns all buffer memory.
//! **Invariants:** every device request passes the scheduler, and the gate of the lease on the volume. A buffer cannot be freed
//! while a request or a reader holds it. Each submitted request completes exactly once, also when it fails or the engine stops.

pub mod calibration;
pub mod device;
pub mod engine;
mod engine_core;
pub mod gate;
pub mod measure;
pub mod pool;
pub mod replay;
pub mod request;
pub mod sim;
pub mod trace;

pub use device::{Device, FileDevice, Geometry, LockId, OpenError, OpenMode};
pub use engine::{Engine, StartError};
pub use engine_core::{DeclaredStream, Incident, Inquiry, Promise, Statistics, tally};
pub use gate::Gate;
pub use request::{
    Accepted, Completion, CompletionSink, IoError, IoOperation, IoRequest, IoTag, Promotion, Segment,
};
