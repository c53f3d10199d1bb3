//! How much memory a request moves through, and in which pages.
//!
//! **For:** two figures that both transports and the handshake need. **State:** none.

/// Largest write and read in one request, in bytes.
pub const MAX_REQUEST_BYTES: u32 = 16 << 20;
/// Memory that requests move through is placed in pages of this size.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
