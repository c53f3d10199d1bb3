//! What is wished for on account of clients, and done.
//!
//! **For:** asking a file its rate, believing what was observed, taking requests back. **Excludes:** deciding. **State:** none of its own.

use super::policies::RateSource;
use super::state::Core;
use super::state::outbox::Cancellation;
use crate::config::quantity::is_bitrate;
use crate::config::{Rate, Settings};
use avfs_streams::Wish;

impl Core {
    /// Does what is wished for, in turn.
    pub(super) fn grant_wishes(&mut self) {
        while let Some(wish) = self.clients.streams.next_wish() {
            match wish {
                Wish::Probe(ino) => self.probe(ino),
                Wish::Observed(ino, rate) if is_bitrate(rate) => {
                    tracing::debug!(%ino, kilobits = rate.0 / 1000, "a client has a rate of its own");
                    let settings = Settings { rate: Some(Rate::Bitrate(rate)), ..Settings::default() };
                    // It is open, so it is there.
                    let _ = self.record_rate(ino, RateSource::Observation, settings);
                }
                Wish::Observed(..) => {}
                Wish::Cancel(stream) => {
                    self.requests.outbox.cancellations.push(Cancellation::Stream(stream));
                }
            }
        }
    }
}
