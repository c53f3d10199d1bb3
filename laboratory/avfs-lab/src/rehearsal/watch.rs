//! What streams hold of the memory while a rehearsal goes on.
//!
//! **For:** looking at it each millisecond. **Excludes:** which clients there are. **State:** a [`Watch`].

use avfs_core::core::Core;
use rtsched::StreamId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::{Bitrate, Bytes, Duration, Instant};

const LOOK: Duration = Duration::from_millis(1);
pub(super) const RATE: Bitrate = Bitrate::from_megabits(100);

/// What was seen of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    most: u64,
    most_allowed: u64,
    /// What it may hold; what it was promised before counts until it has been played.
    allowed: Bytes,
    until: Instant,
    /// The most that it held beyond what it might.
    beyond: Option<i64>,
}

impl Seen {
    fn allow(&mut self, now: Instant, allowed: Bytes) {
        if allowed >= self.allowed || now >= self.until {
            self.allowed = allowed;
        }
        if allowed == self.allowed {
            self.until = now + RATE.time_for(allowed);
        }
    }
}

/// Looks at what streams hold.
#[derive(Debug, Default)]
pub(super) struct Watch {
    last: Instant,
    streams: BTreeMap<StreamId, Seen>,
    together: u64,
    promised: usize,
}

impl Watch {
    pub(super) fn look(&mut self, now: Instant, core: &Core) {
        if now < self.last + LOOK {
            return;
        }
        self.last = now;
        let (mut together, mut promised) = (0, 0);
        for (stream, held) in core.holdings() {
            let seen = self.streams.entry(stream).or_default();
            let bytes = held.for_later().0;
            together += held.held().0;
            promised += usize::from(held.is_promised);
            seen.most = seen.most.max(bytes);
            if let Some(allowed) = held.allowed() {
                seen.allow(now, allowed);
                let beyond = bytes as i64 - seen.allowed.0 as i64;
                seen.most_allowed = seen.most_allowed.max(seen.allowed.0);
                seen.beyond = Some(seen.beyond.map_or(beyond, |was| was.max(beyond)));
            }
        }
        self.together = self.together.max(together);
        self.promised = self.promised.max(promised);
    }

    /// What was seen, without what is known of the run.
    pub(super) fn sum(&self, memory: Bytes) -> Held {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let most = self.streams.values().max_by_key(|seen| seen.most).copied().unwrap_or_default();
        let beyond = self.streams.values().filter_map(|seen| seen.beyond).max().unwrap_or_default();
        Held {
            promised: self.promised as u32,
            most_mib: mib(most.most),
            allowed_mib: mib(most.most_allowed),
            beyond_mib: beyond as f64 / f64::from(1 << 20),
            together_mib: mib(self.together),
            memory_mib: mib(memory.0),
            ..Held::default()
        }
    }
}

/// What clients of one kind held with one number of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The device.
    pub device: String,
    /// Whether they record, else they play.
    pub records: bool,
    /// How many.
    pub clients: u32,
    /// How many had a reservation at once, at most.
    pub promised: u32,
    /// Units that were late.
    pub late: u64,
    /// The most that one stream held, MiB.
    pub most_mib: f64,
    /// Of that stream: its window and one request, MiB, at their longest.
    pub allowed_mib: f64,
    /// The most that any held beyond its window and one request, MiB; below zero: no stream ever did.
    pub beyond_mib: f64,
    /// The most that all held at once, MiB.
    pub together_mib: f64,
    /// The volume's memory, MiB.
    pub memory_mib: f64,
}
