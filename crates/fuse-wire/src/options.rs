//! How a connection is to be served.
//!
//! **For:** what a host chooses. **Excludes:** what is agreed with the kernel. **State:** none.

use crate::abi::InitFlags;
use crate::refusals::Refusals;
use std::fmt::{Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Through `/dev/fuse`: large reads and writes cost one copy less.
    Device,
    /// Through io_uring: a request is served on its client's processor.
    Ring,
}

impl Display for Transport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Ring => "ring",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ring" => Ok(Self::Ring),
            "device" => Ok(Self::Device),
            _ => Err(format!("`{text}` is none of device, ring")),
        }
    }
}

/// What is asked of the kernel, and with what it is served.
#[derive(Debug)]
pub struct Options<B> {
    /// How requests are to come.
    pub transport: Transport,
    /// What the kernel is asked for, where it has it. Rings are asked for by [`transport`](Self::transport).
    pub wanted: InitFlags,
    /// What of it the filesystem cannot do without.
    pub required: InitFlags,
    /// Requests that the kernel keeps in flight on its own account: readahead, writeback, asynchronous direct I/O.
    pub max_background: u16,
    /// A request that is not answered in this time is logged, once, and named: it would be an error that is not seen.
    pub overdue: Duration,
    /// Where replies are counted that the kernel does not take.
    pub refusals: Arc<Refusals>,
    /// One for each of the [`reading_threads`](crate::reading_threads) of the device, or fewer. Rings use none.
    pub buffers: Vec<B>,
}
