//! Neighbours in one command.
//!
//! **For:** saving accesses: at 170 MB/s and 16 ms each, 8 MiB in one command take 65 ms, in eight 176 ms.
//! **Excludes:** which request starts the command. **State:** none. **Invariants:** one direction, one stream (or
//! none for all), no gap, no overlap, at most the limits; a flush stays alone; a neighbour that is taken early
//! breaks no promise that was whole.
//!
//! Merged at dispatch, not at arrival: until then every request keeps its own deadline and class, may be
//! promoted or cancelled by itself, and a stream's distant future does not ride on its near deadline.

use crate::dispatch::{View, between, signed};
use crate::floors::Floors;
use crate::queue::{Budget, Queue, Waiting};
use crate::request::{Class, Direction};
use crate::service::ServiceModel;
use alloc::vec::Vec;
use units::{Bytes, DeviceOffset, Duration};

/// What a command is made of, in ascending order of offset.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) members: Vec<Waiting>,
    pub(crate) class: Class,
    pub(crate) offset: DeviceOffset,
    pub(crate) length: Bytes,
    /// Nanoseconds, by the service model.
    pub(crate) cost: u64,
}

/// How large a command may become by merging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) length: Bytes,
    /// Nanoseconds.
    pub(crate) cost: u64,
    /// Pieces of one request of an admitted stream stay together: its admission reckons with them as one.
    pub(crate) keep_pieces: bool,
}

impl Run {
    pub(crate) const fn new() -> Self {
        Self {
            members: Vec::new(),
            class: Class::Idle,
            offset: DeviceOffset(0),
            length: Bytes::ZERO,
            cost: 0,
        }
    }

    /// Becomes a command of `first`, which was taken from the queue, and of its neighbours there. `view` is the one on
    /// which it was chosen.
    pub(crate) fn gather(
        &mut self,
        first: Waiting,
        queue: &mut Queue,
        service: &ServiceModel,
        limits: Limits,
        floors: &Floors,
        view: &View,
    ) {
        let (direction, stream) = (first.request.direction, first.request.stream);
        self.members.clear();
        (self.class, self.offset) = (first.request.class, first.request.offset);
        self.length = first.request.length;
        self.cost = service.nanos(direction, first.request.offset, first.request.length);
        self.members.push(first);
        if direction == Direction::Flush || !queue.may_have_neighbours(self.offset, first.end()) {
            return;
        }
        // Its own promises end with the command, too.
        let mut own = first.guaranteed_key().map(|(due, _)| due);
        let mut before = 0;
        for ending in [false, true] {
            loop {
                let end = DeviceOffset(self.offset.0.saturating_add(self.length.0));
                let place = if ending { self.offset } else { end };
                let Some(slot) = queue.neighbour(direction, stream, place, ending) else { break };
                let neighbour = queue.get(slot);
                let length = Bytes(self.length.0.saturating_add(neighbour.request.length.0));
                let offset = self.offset.min(neighbour.request.offset);
                let cost = service.nanos(direction, offset, length);
                if length > limits.length || cost > limits.cost {
                    break;
                }
                let piece = limits.keep_pieces && !ending && neighbour.continues;
                if !(piece && neighbour.budget == Budget::Reserved) {
                    // What a client wants is not put off by what is wanted later.
                    let others = queue.first_wish().and_then(|slot| queue.get(slot).wish());
                    if neighbour.request.class == Class::RealTime
                        && others.is_some_and(|wish| wish < neighbour.wanted_by())
                    {
                        break;
                    }
                    let extra = signed(cost.saturating_sub(self.cost));
                    let start = view.start + Duration::from_nanos(self.cost);
                    let after = View { start, turns: floors.turns(queue), ..*view };
                    let own_slack = own.map_or(i64::MAX, |own| between(after.start, own));
                    if extra > own_slack.min(after.slack_at_least(queue)) {
                        let slack = own_slack.min(after.slack(queue, self.class, neighbour));
                        // Where a deadline is lost whatever is done, a merge that takes less time than it saves
                        // shortens the overload.
                        let saves = slack < 0 && extra <= signed(service.access_nanos(direction));
                        if extra > slack && !saves {
                            break;
                        }
                    }
                }
                let neighbour = queue.release(slot);
                self.class = self.class.min(neighbour.request.class);
                (self.offset, self.length, self.cost) = (offset, length, cost);
                own = own.into_iter().chain(neighbour.guaranteed_key().map(|(due, _)| due)).min();
                self.members.push(neighbour);
                before += usize::from(ending);
            }
        }
        // Those before it were found from there downwards.
        let behind = self.members.len() - before;
        self.members[behind..].reverse();
        self.members.rotate_right(before);
    }
}
