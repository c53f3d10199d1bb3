//! What an administrator changes while the scheduler runs.
//!
//! **For:** other latencies, floors, limits and memory. **Excludes:** what is known of the device, and how much it is given at once:
//! that was measured, or learned since. **State:** none of its own. **Invariants:** what streams are promised stays promised; what
//! cannot be changed without breaking a promise is not changed at all.

use crate::admission::Admission;
use crate::config::Config;
use crate::floors::Floors;
use crate::state::Scheduler;
use crate::stream::Why;
use crate::unpromised::BackgroundLoad;
use units::{Bytes, Instant};

impl Scheduler {
    /// From now on what `config` says of latencies, floors, shares of accounts, the longest request time and memory holds. All else
    /// that it says is passed over. What waits keeps its deadline.
    ///
    /// # Errors
    /// The memory that streams cannot do without, if they are promised more than there would be; nothing has changed then.
    pub fn reconfigure(&mut self, now: Instant, config: &Config) -> Result<(), Bytes> {
        let wanted = Config {
            metadata_latency: config.metadata_latency,
            best_effort_latency: config.best_effort_latency,
            idle_latency: config.idle_latency,
            metadata_floor_percent: config.metadata_floor_percent,
            best_effort_floor_percent: config.best_effort_floor_percent,
            idle_floor_percent: config.idle_floor_percent,
            account_max_permille: config.account_max_permille,
            accounts_max_permille: config.accounts_max_permille,
            buffer_memory: config.buffer_memory,
            request_time_max: config.request_time_max,
            ..self.config.clone()
        };
        let is_less = wanted.buffer_memory < self.config.buffer_memory;
        let before = core::mem::replace(&mut self.config, wanted);
        if is_less && self.streams.held().next().is_some() {
            // Shorter requests may do with less.
            match self.try_with(None, None, BackgroundLoad::Nothing) {
                Ok(sizing) => self.resize(now, sizing),
                Err(Why::NoMemory { .. }) => {
                    let promised = self.promised_memory();
                    self.config = before;
                    return Err(promised);
                }
                // What else they lack they have lacked before.
                Err(_) => {}
            }
        }
        self.admission.take_candidates(Admission::new(&self.config));
        self.floors.take_percents(&Floors::new(&self.config));
        for class in Floors::CLASSES {
            self.floors.begins(class, self.device.free_at(now));
        }
        self.reprice();
        Ok(())
    }

    /// Memory that active streams may take together.
    pub fn promised_memory(&self) -> Bytes {
        let active = self.streams.held().filter(|(_, held)| held.state == crate::StreamState::Active);
        active.fold(Bytes::ZERO, |sum, (_, held)| sum + held.terms.buffer() + self.config.buffer_piece)
    }
}
