//! Who chooses the next request.
//!
//! **For:** the seam between the simulator and what it judges: [`Policy`], which the scheduler of production
//! implements through [`Scheduled`] beside the orders it is compared with ([`baseline`]). **Excludes:** the device and
//! the clients. **State:** the scheduler, and which streams it admitted.

pub mod baseline;
mod scheduled;

pub use scheduled::Scheduled;

use rtsched::{Direction, Dispatch, DispatchId, Request, RequestId, StreamId, StreamSpec};
use serde::{Deserialize, Serialize};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

/// A stream that asks to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name.
    pub stream: StreamId,
    /// What it does.
    pub direction: Direction,
    /// Its rate.
    pub rate: Bitrate,
    /// The longest piece in which its file lies; absent: longer than any request.
    pub contiguous: Option<Bytes>,
    /// Where its file lies, about.
    pub place: DeviceOffset,
    /// Of overloaded streams, the lowest gives way first.
    pub priority: u8,
}

impl Ask {
    /// The same in the scheduler's words, if no request is longer than `request_max`.
    pub fn spec(&self, request_max: Bytes) -> StreamSpec {
        let Self { direction, rate, contiguous, place, priority, .. } = *self;
        // A request that falls into pieces at the device costs more than the admission reckons with.
        let request = contiguous.filter(|contiguous| *contiguous < request_max);
        StreamSpec { direction, priority, request, place: Some(place), ..StreamSpec::reader(rate) }
    }
}

/// What a stream is granted: requests of this length, one each time it is played, with this much time to the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Length of each request.
    pub request: Bytes,
    /// From its arrival to its deadline.
    pub deadline: Duration,
    /// Not before this instant.
    pub since: Instant,
}

/// What a policy decided about a stream by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its requests are of another length from now on.
    Granted(StreamId, Grant),
    /// It is served as best effort from now on, for this reason.
    Demoted(StreamId, String),
    /// It has its guarantee again.
    Restored(StreamId, Grant),
    /// It is back from a pause so long that others might have had its time, and has its guarantee again, from when the
    /// grant says.
    Resumed(StreamId, Grant),
}

/// One queue of one device.
pub trait Policy {
    /// Accepts a request.
    fn enqueue(&mut self, now: Instant, request: Request);
    /// The next command, or none for now.
    fn dispatch(&mut self, now: Instant) -> Option<Dispatch>;
    /// A command ended.
    fn complete(&mut self, now: Instant, dispatch: DispatchId);
    /// Takes back a request; false when it is at the device or done.
    fn cancel(&mut self, now: Instant, id: RequestId) -> bool;
    /// When [`dispatch`](Self::dispatch) may answer otherwise although nothing happens.
    fn next_wakeup(&self, now: Instant) -> Option<Instant>;
    /// Admits a stream, or says why not.
    ///
    /// # Errors
    /// The reason, in words.
    fn admit(&mut self, now: Instant, ask: &Ask) -> Result<Grant, String>;
    /// A stream ended.
    fn release(&mut self, now: Instant, stream: StreamId);
    /// What it decided since it was asked last.
    fn notices(&mut self, now: Instant) -> Vec<Notice>;
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// The scheduler of production.
    Rtsched,
    /// As they came.
    Fifo,
    /// By offset, upwards, then from the start.
    CScan,
    /// By deadline; best effort when no other waits.
    Edf,
    /// As Linux' mq-deadline: by offset in batches, the oldest when it has waited too long, reads before writes.
    MqDeadline,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rtsched, Self::Fifo, Self::CScan, Self::Edf, Self::MqDeadline];

    /// As it is written in declarations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rtsched => "rtsched",
            Self::Fifo => "fifo",
            Self::CScan => "c-scan",
            Self::Edf => "edf",
            Self::MqDeadline => "mq-deadline",
        }
    }
}

impl std::str::FromStr for PolicyName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("no policy is called {name}: it is one of {names}")
        })
    }
}
