//! Requests that were made before it was known how soon they are needed, or that are not needed any more.
//!
//! **For:** promoting and cancelling what is on its way. **Excludes:** by when it is needed. **State:** none of its own.

use super::state::blocks::BlockId;
use super::state::cache::Cache;
use super::state::outbox::Purpose;
use super::state::{Core, WRITTEN_WITHIN};
use avfs_io::{IoTag, Promotion};
use avfs_streams::RequestQos;
use rtsched::Class;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Ino, Now};

/// What becomes of a request that turns out to be needed so, if that is by some time.
fn promotion(need: RequestQos, tag: IoTag) -> Option<Promotion> {
    let RequestQos { class, stream, deadline } = need;
    deadline.map(|deadline| Promotion { tag, class, stream, deadline })
}

/// Of what a client waits for that wants it written.
fn to_be_written(now: Now, class: Class) -> RequestQos {
    RequestQos { class, stream: None, deadline: Some(now.monotonic + WRITTEN_WITHIN) }
}

impl Core {
    /// A client waits for these bytes, which may have been asked for before with less need.
    pub(super) fn expedite(&mut self, ino: Ino, range: Range<u64>, need: RequestQos) {
        let tags = self.requests.in_flight.of_file(ino).collect();
        self.expedite_those(tags, |cache, purpose| {
            let &Purpose::Load { block, start, length, .. } = purpose else { return None };
            let from = cache.get(block)?.start + start;
            (from < range.end && range.start < from + length).then_some(need)
        });
    }

    /// Blocks that were asked for are needed sooner than was known then.
    pub(super) fn expedite_blocks(&mut self, needs: &BTreeMap<BlockId, RequestQos>) {
        let files = needs.keys().filter_map(|&id| Some(self.data.cache.get(id)?.ino)).collect();
        let tags = self.requests.in_flight.of_all(&files).into_iter().collect();
        self.expedite_those(tags, |_, purpose| match purpose {
            Purpose::Load { block, .. } => needs.get(block).copied(),
            _ => None,
        });
    }

    /// A client waits until nothing of the file is on its way any more.
    pub(super) fn expedite_all(&mut self, now: Now, ino: Ino) {
        let need = to_be_written(now, Class::RealTime);
        let tags = self.requests.in_flight.of_file(ino).collect();
        self.expedite_those(tags, |_, _| Some(need));
    }

    /// A client waits until what it has written is on the device. What is on its way there already is as urgent as what is sent
    /// only now, and no more. A client that flushes its file does not go before what others were promised.
    pub(super) fn expedite_writes(&mut self, now: Now, ino: Ino) {
        let need = to_be_written(now, Class::BestEffort);
        let tags = self.requests.in_flight.of_file(ino).collect();
        self.expedite_those(tags, |cache, purpose| match purpose {
            // It completes a page, which is written when that has ended.
            Purpose::Load { block, .. } => {
                let completes = cache.get(*block).is_some_and(|block| !block.dirty.is_empty());
                completes.then_some(need)
            }
            _ => Some(need),
        });
    }

    /// These requests are needed as is found now, if it is found.
    pub(super) fn expedite_those(
        &mut self,
        tags: Vec<IoTag>,
        need: impl Fn(&Cache, &Purpose) -> Option<RequestQos>,
    ) {
        for tag in tags {
            let Some(purpose) = self.requests.in_flight.get(tag) else { continue };
            let promotion = need(&self.data.cache, purpose).and_then(|need| promotion(need, tag));
            promotion.into_iter().for_each(|promotion| self.requests.outbox.promote(promotion));
        }
    }

    /// Takes back what the device was asked for and no client wants any more, unless it is there already, or a client waits for the
    /// file and so may wait for some of it.
    pub(super) fn cancel_unwanted(&mut self, given_up: &[BlockId]) {
        if given_up.is_empty() {
            return;
        }
        let files = given_up.iter().filter_map(|&id| Some(self.data.cache.get(id)?.ino)).collect();
        for tag in self.requests.in_flight.of_all(&files) {
            if let Some(Purpose::Load { ino, block, .. }) = self.requests.in_flight.get(tag)
                && given_up.contains(block)
                && self.is_unwanted(tag)
                && self.data.files.get(ino).is_none_or(|file| file.waiting.is_empty())
            {
                self.requests.outbox.cancellations.push(super::Cancellation::Request(tag));
            }
        }
    }

    /// No client is read ahead of what a request brings.
    pub(super) fn is_unwanted(&self, tag: IoTag) -> bool {
        let Some(Purpose::Load { block, bounce: None, .. }) = self.requests.in_flight.get(tag) else {
            return false;
        };
        self.data.cache.get(*block).is_some_and(|block| block.wanted == 0 && block.held == 0)
    }
}
