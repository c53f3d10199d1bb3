//! What a mounted volume does, for a monitor and for a browser on the same host.
//!
//! **For:** metrics as Prometheus reads them, JSON, and a page that shows the players with what they have to spare. **Excludes:** every figure: all
//! are asked as the control socket asks them. Changing anything. **State:** a thread with a single-threaded runtime owns listener and
//! connections; the last hour in points of ten seconds. **Invariants:** listens on loopback or at a Unix socket alone; a page elsewhere in
//! the browser cannot read it; it asks no more than a few questions at a time, whatever is asked of it.

mod history;
pub mod metrics;
mod server;

pub use server::Web;
