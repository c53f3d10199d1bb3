//! What became of a client.

use crate::histogram::Histogram;
use serde::{Deserialize, Serialize};
use units::Duration;

/// A player that has not begun to play by then does not play: that none of its units is late says nothing.
pub const BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// What became of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientReport {
    /// Units played or recorded.
    pub units: u64,
    /// Units that were not there when their turn came, or not acknowledged within the buffer, or dropped.
    pub late: u64,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// Payload moved, bytes.
    pub bytes: u64,
    /// From asking for a unit to having it; of greedy clients, each request.
    pub latency: Histogram,
    /// Of a player: from its first request to its full buffer, once.
    #[serde(default)]
    pub start: Histogram,
    /// Of a player: from its first request, also that after a jump, to the first unit that it shows.
    #[serde(default)]
    pub first: Histogram,
    /// Of who searches: from each jump to its picture.
    #[serde(default)]
    pub jumps: Histogram,
    /// Operations that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
}
