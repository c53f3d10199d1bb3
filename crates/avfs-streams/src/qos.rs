//! How requests are ranked.
//!
//! **For:** class, stream and deadline of a request, from what its client needs. **Excludes:** which goes first, which is rtsched's.
//! **State:** none.

use rtsched::{Class, StreamId};
use units::{Bitrate, Bytes, Duration, Instant};

/// How requests of a file are ranked.
#[derive(Clone, Copy, Debug)]
pub struct Ranking {
    /// Its class.
    pub class: Class,
    /// Whose it is.
    pub stream: Option<StreamId>,
    /// From when a client needs the bytes to when they must be there.
    pub window: Option<Duration>,
    /// The stream's rate, if it is known.
    pub rate: Option<Bitrate>,
}

impl Ranking {
    /// Deadline of a request whose bytes are needed `ahead` bytes after those that are needed now.
    pub fn deadline(&self, now: Instant, ahead: Bytes) -> Option<Instant> {
        let lead = self.rate.map_or(Duration::ZERO, |rate| rate.time_for(ahead));
        self.window.map(|window| now + window + lead)
    }
}

/// How one request is ranked.
#[derive(Clone, Copy, Debug)]
pub struct RequestQos {
    /// Its class.
    pub class: Class,
    /// Whose it is.
    pub stream: Option<StreamId>,
    /// By when it must be complete.
    pub deadline: Option<Instant>,
}

impl RequestQos {
    /// For bytes that are needed `ahead` bytes after those that are needed now.
    pub fn of(ranking: Ranking, now: Instant, ahead: Bytes) -> Self {
        Self { class: ranking.class, stream: ranking.stream, deadline: ranking.deadline(now, ahead) }
    }
}
