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
use crate::queue::{Queue, Waiting};
use crate::request::{Class, Direction};
use crate::service::ServiceModel;
use smallvec::{SmallVec, smallvec};
use units::{Bytes, DeviceOffset, Duration};

/// What a command is made of, in ascending order of offset.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) members: SmallVec<[Waiting; 4]>,
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
}

/// Makes a command of `first`, which was taken from the queue, and of its neighbours there. `view` is the one on
/// which it was chosen.
pub(crate) fn gather(
    first: Waiting,
    queue: &mut Queue,
    service: &ServiceModel,
    limits: Limits,
    view: &View<'_>,
) -> Run {
    let (direction, stream) = (first.request.direction, first.request.stream);
    let mut run = Run {
        class: first.request.class,
        offset: first.request.offset,
        length: first.request.length,
        cost: first.cost,
        members: smallvec![first],
    };
    if direction == Direction::Flush {
        return run;
    }
    let (mut behind, mut before) = (SmallVec::<[Waiting; 4]>::new(), SmallVec::<[Waiting; 4]>::new());
    for ending in [false, true] {
        loop {
            let place =
                if ending { run.offset } else { DeviceOffset(run.offset.0.saturating_add(run.length.0)) };
            let Some(slot) = queue.neighbour(direction, stream, place, ending) else { break };
            let neighbour = queue.get(slot);
            let length = Bytes(run.length.0.saturating_add(neighbour.request.length.0));
            let cost = service.nanos(direction, length);
            if length > limits.length || cost > limits.cost {
                break;
            }
            let extra = signed(cost.saturating_sub(run.cost));
            let after = View { start: view.start + Duration::from_nanos(run.cost), ..*view };
            let slack = after.slack(queue, run.class, neighbour);
            // Its own promises end with the command, too.
            let promised =
                run.members.iter().chain(&behind).chain(&before).filter_map(Waiting::guaranteed_key);
            let own = promised.map(|(due, _)| between(after.start, due)).min();
            let slack = own.map_or(slack, |own| own.min(slack));
            // Where a deadline is lost whatever is done, a merge that takes less time than it saves shortens the
            // overload.
            let saves = slack < 0 && extra <= signed(service.access_nanos(direction));
            if extra > slack && !saves {
                break;
            }
            let neighbour = queue.remove(slot);
            run.class = run.class.min(neighbour.request.class);
            (run.length, run.cost) = (length, cost);
            if ending {
                run.offset = neighbour.request.offset;
                before.push(neighbour);
            } else {
                behind.push(neighbour);
            }
        }
    }
    before.reverse();
    before.append(&mut run.members);
    before.append(&mut behind);
    run.members = before;
    run
}
