//! What the scheduler is compared with.
//!
//! **For:** the orders everybody knows: first come first served, C-SCAN, plain non-preemptive EDF, and one like Linux'
//! mq-deadline. They admit everybody, know no class but best effort's lack of a deadline, merge nothing, and keep one
//! command at the device. **Excludes:** use in production. **State:** one queue.

use super::{Ask, Grant, Notice, Policy, PolicyName};
use rtsched::{Direction, Dispatch, DispatchId, Reason, Request, RequestId, StreamId};
use std::collections::BTreeMap;
use units::{Bytes, DeviceOffset, Duration, Instant};

/// One of the known orders.
#[derive(Debug)]
pub struct Baseline {
    order: Order,
    /// Of every request that it grants.
    request: Bytes,
    waiting: BTreeMap<Key, Request>,
    keys: BTreeMap<RequestId, Key>,
    at_device: Option<DispatchId>,
    arm: DeviceOffset,
    sequence: u64,
    dispatches: u64,
}

/// What the order sorts by, and the arrival.
type Key = (u64, u64);

#[derive(Debug)]
enum Order {
    Fifo,
    CScan,
    Edf,
    MqDeadline(MqDeadline),
}

/// The rules of Linux' block/mq-deadline.c with its default settings.
#[derive(Debug, Default)]
struct MqDeadline {
    /// By direction (reads, the others) and arrival: when it arrived, and its key.
    arrivals: [BTreeMap<u64, (Instant, Key)>; 2],
    /// The direction of the batch and how much of it went.
    batch: (usize, u32),
    /// How often reads went although writes waited.
    starved: u32,
}

const EXPIRE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];
const FIFO_BATCH: u32 = 16;
const WRITES_STARVED: u32 = 2;

impl Baseline {
    /// An empty queue; streams are told to make requests of `request` bytes. `None` for the scheduler of production,
    /// which is no baseline.
    pub fn new(name: PolicyName, request: Bytes) -> Option<Self> {
        let order = match name {
            PolicyName::Rtsched => return None,
            PolicyName::Fifo => Order::Fifo,
            PolicyName::CScan => Order::CScan,
            PolicyName::Edf => Order::Edf,
            PolicyName::MqDeadline => Order::MqDeadline(MqDeadline::default()),
        };
        Some(Self {
            order,
            request,
            waiting: BTreeMap::new(),
            keys: BTreeMap::new(),
            at_device: None,
            arm: DeviceOffset(0),
            sequence: 0,
            dispatches: 0,
        })
    }

    fn take(&mut self, key: Key) -> Option<Request> {
        let request = self.waiting.remove(&key)?;
        self.keys.remove(&request.id);
        if let Order::MqDeadline(state) = &mut self.order {
            state.arrivals[lane(request.direction)].remove(&key.1);
        }
        Some(request)
    }

    /// The next at or above the arm, else the lowest.
    fn next_by_offset(&self, wanted: impl Fn(&Request) -> bool) -> Option<Key> {
        let ahead = self.waiting.range((self.arm.as_u64(), 0)..).find(|(_, request)| wanted(request));
        let next = ahead.or_else(|| self.waiting.iter().find(|(_, request)| wanted(request)));
        next.map(|(key, _)| *key)
    }

    fn choose(&mut self, now: Instant) -> Option<Key> {
        match &self.order {
            Order::Fifo | Order::Edf => self.waiting.first_key_value().map(|(key, _)| *key),
            Order::CScan => self.next_by_offset(|_| true),
            Order::MqDeadline(state) => {
                let waits = |lane: usize| !state.arrivals[lane].is_empty();
                let (current, sent) = state.batch;
                let starved = state.starved;
                let onward = self.waiting.range((self.arm.as_u64(), 0)..);
                let mut onward = onward.filter(|(_, request)| lane(request.direction) == current);
                if let Some((key, _)) = onward.next().filter(|_| sent < FIFO_BATCH) {
                    let key = *key;
                    self.batch(current, sent + 1, starved);
                    return Some(key);
                }
                let (reads, writes) = (waits(0), waits(1));
                if !reads && !writes {
                    return None;
                }
                let chosen = usize::from(!reads || (writes && starved >= WRITES_STARVED));
                let starved = if chosen == 0 && writes { starved + 1 } else { 0 };
                let (_, (arrived, oldest)) = state.arrivals[chosen].first_key_value()?;
                let expired = now.saturating_since(*arrived) >= EXPIRE[chosen];
                let oldest = *oldest;
                let same = chosen == current;
                let next = self.next_by_offset(|request| lane(request.direction) == chosen);
                self.batch(chosen, 1, starved);
                if expired || !same { Some(oldest) } else { next }
            }
        }
    }

    fn batch(&mut self, lane: usize, sent: u32, starved: u32) {
        if let Order::MqDeadline(state) = &mut self.order {
            (state.batch, state.starved) = ((lane, sent), starved);
        }
    }
}

/// Reads apart from all others.
fn lane(direction: Direction) -> usize {
    usize::from(direction != Direction::Read)
}

impl Policy for Baseline {
    fn enqueue(&mut self, now: Instant, request: Request) {
        self.sequence += 1;
        let rank = match self.order {
            Order::Fifo => 0,
            Order::CScan | Order::MqDeadline(_) => request.offset.as_u64(),
            Order::Edf => request.deadline.unwrap_or(Instant::FAR_FUTURE).as_nanos(),
        };
        let key = (rank, self.sequence);
        if let Order::MqDeadline(state) = &mut self.order {
            state.arrivals[lane(request.direction)].insert(key.1, (now, key));
        }
        self.keys.insert(request.id, key);
        self.waiting.insert(key, request);
    }

    fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        if self.at_device.is_some() {
            return None;
        }
        let key = self.choose(now)?;
        let request = self.take(key)?;
        self.arm = request.offset + request.length;
        self.dispatches += 1;
        let id = DispatchId(self.dispatches);
        self.at_device = Some(id);
        Some(Dispatch {
            id,
            requests: [request.id].into_iter().collect(),
            direction: request.direction,
            offset: request.offset,
            length: request.length,
            reason: Reason::OnlyWork,
        })
    }

    fn complete(&mut self, _now: Instant, dispatch: DispatchId) {
        if self.at_device == Some(dispatch) {
            self.at_device = None;
        }
    }

    fn cancel(&mut self, _now: Instant, id: RequestId) -> bool {
        let key = self.keys.get(&id).copied();
        key.and_then(|key| self.take(key)).is_some()
    }

    fn next_wakeup(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Everybody, with two buffers: one plays while the other is filled.
    fn admit(&mut self, _now: Instant, ask: &Ask) -> Result<Grant, String> {
        let deadline = ask.rate.time_for(self.request);
        Ok(Grant { request: self.request, deadline, since: Instant::ZERO })
    }

    fn release(&mut self, _now: Instant, _stream: StreamId) {}

    fn notices(&mut self, _now: Instant) -> Vec<Notice> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsched::Class;

    /// Queues reads (offset in GiB, deadline in ms) and writes; returns the order in which they go.
    fn order(name: PolicyName, requests: &[(Direction, u64, Option<u64>)]) -> Vec<u64> {
        let mut policy = Baseline::new(name, Bytes::from_mib(8)).expect("a baseline");
        for (index, (direction, offset, deadline)) in requests.iter().enumerate() {
            policy.enqueue(
                Instant::ZERO,
                Request {
                    id: RequestId(index as u64),
                    class: Class::BestEffort,
                    stream: None,
                    direction: *direction,
                    offset: DeviceOffset(offset << 30),
                    length: Bytes::from_mib(8),
                    deadline: deadline.map(|millis| Instant::ZERO + Duration::from_millis(millis)),
                },
            );
        }
        let mut order = Vec::new();
        while let Some(dispatch) = policy.dispatch(Instant::ZERO) {
            assert_eq!(policy.dispatch(Instant::ZERO), None, "one at a time");
            order.push(dispatch.requests[0].0);
            policy.complete(Instant::ZERO, dispatch.id);
        }
        order
    }

    const READS: [(Direction, u64, Option<u64>); 4] = [
        (Direction::Read, 5, Some(9)),
        (Direction::Read, 3, None),
        (Direction::Read, 4, Some(7)),
        (Direction::Read, 1, Some(8)),
    ];

    #[test]
    fn each_order_is_what_its_name_says() {
        assert_eq!(order(PolicyName::Fifo, &READS), [0, 1, 2, 3]);
        assert_eq!(order(PolicyName::CScan, &READS), [3, 1, 2, 0]);
        assert_eq!(order(PolicyName::Edf, &READS), [2, 3, 0, 1]);
        assert_eq!(order(PolicyName::MqDeadline, &READS), [3, 1, 2, 0]);
    }

    #[test]
    fn mq_deadline_lets_reads_go_first_but_does_not_starve_writes() {
        let read = |offset| (Direction::Read, offset, None);
        let write = |offset| (Direction::Write, offset, None);
        // Falling offsets end each batch after one request.
        let requests = [write(20), read(9), read(8), read(7), read(6)];
        let order = order(PolicyName::MqDeadline, &requests);
        let place = order.iter().position(|id| *id == 0).expect("the write goes");
        assert!(place >= 1, "reads first: {order:?}");
        assert_eq!(order.len(), 5);
    }

    #[test]
    fn what_is_cancelled_does_not_go() {
        for name in PolicyName::ALL {
            let Some(mut policy) = Baseline::new(name, Bytes::from_mib(8)) else { continue };
            let request = |id| Request {
                id: RequestId(id),
                class: Class::RealTime,
                stream: None,
                direction: Direction::Read,
                offset: DeviceOffset(id << 30),
                length: Bytes::from_mib(8),
                deadline: None,
            };
            policy.enqueue(Instant::ZERO, request(1));
            policy.enqueue(Instant::ZERO, request(2));
            assert!(policy.cancel(Instant::ZERO, RequestId(1)));
            assert!(!policy.cancel(Instant::ZERO, RequestId(1)));
            let dispatch = policy.dispatch(Instant::ZERO).expect("the other one");
            assert_eq!(dispatch.requests[..], [RequestId(2)]);
            assert!(!policy.cancel(Instant::ZERO, RequestId(2)));
        }
    }
}
