//! The queue of one device.
//!
//! **For:** the surface of the crate: it takes requests and completions, asks the policy, keeps the books.
//! **Excludes:** the policy, which is [`dispatch`](crate::dispatch). **State:** all of it. **Invariants:** the
//! crate's.

use crate::admission::{Admission, Others, Rejected, Reservation, StreamSpec};
use crate::budget::Floors;
use crate::device::{Device, Flight, Member};
use crate::dispatch::{View, choose};
use crate::event::{Counters, Event, Journal};
use crate::merge::{Limits, Run, gather};
use crate::queue::{Queue, Slot, Waiting};
use crate::request::{Class, Direction, Dispatch, DispatchId, Reason, Request, RequestId};
use crate::service::{ServiceModel, ServiceTime};
use crate::tree::{Expected, Usable};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// What an administrator may set. Values out of range count as the nearest one in range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Commands at the device at once, 1..=1024.
    pub queue_depth: u32,
    /// Deadline of a metadata request that names none, counted from its arrival; also of a real-time one.
    pub metadata_latency: Duration,
    /// Deadline of a best-effort request that names none.
    pub best_effort_latency: Duration,
    /// Deadline of an idle request that names none: after that, it is served although other requests wait.
    pub idle_latency: Duration,
    /// Percent of the device's time that metadata gets before real time if it needs it, 0..=30; 0: none.
    pub metadata_floor_percent: u32,
    /// The same for best effort: what a copy gets while streams take all they can. With 0 it may starve.
    pub best_effort_floor_percent: u32,
    /// The same for idle work that is older than its deadline.
    pub idle_floor_percent: u32,
    /// Neighbouring requests are merged into commands of at most this length; 0: never.
    pub max_merge: Bytes,
    /// While there is real time, the commands at the device together take at most this percentage of the
    /// shortest time that a real-time request had until its deadline, 1..=100; one command is always allowed.
    pub blocking_percent: u32,
    /// The longest single request that the classes without guarantees make: what a stream's request may find at
    /// the device, for admission.
    pub largest_request: Bytes,
    /// How long after the last tight real-time request the device is kept that shallow.
    pub real_time_memory: Duration,
    /// What the device is reckoned to take for a read until it has shown.
    pub read: ServiceTime,
    /// The same for a write.
    pub write: ServiceTime,
    /// The same for a flush, whose length is zero.
    pub flush: ServiceTime,
    /// Learn service times from completions. Without, the values above hold for good: for a device whose worst
    /// case is known.
    pub learning: bool,
    /// Events kept for the reader; the oldest give way.
    pub event_capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        let disk_array =
            ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };
        Self {
            queue_depth: 32,
            metadata_latency: Duration::from_millis(50),
            best_effort_latency: Duration::from_secs(2),
            idle_latency: Duration::from_secs(60),
            metadata_floor_percent: 10,
            best_effort_floor_percent: 5,
            idle_floor_percent: 1,
            max_merge: Bytes::from_mib(16),
            blocking_percent: 12,
            largest_request: Bytes::from_mib(8),
            real_time_memory: Duration::from_secs(2),
            read: disk_array,
            write: disk_array,
            flush: disk_array,
            learning: true,
            event_capacity: 1024,
        }
    }
}

/// The state machine. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: Config,
    queue: Queue,
    floors: Floors,
    service: ServiceModel,
    device: Device,
    admission: Admission,
    /// The shortest deadline of the admitted streams, and their burst, see [`Expected`].
    promised: Option<(Duration, i64)>,
    journal: Journal,
    /// Where the last command ended.
    arm: DeviceOffset,
    /// The shortest time a real-time request had until its deadline, and until when that counts.
    tightest: Option<(Duration, Instant)>,
    /// The last command that was preferred to an earlier deadline, and when.
    preferred: Option<(DispatchId, Instant)>,
    next_sequence: u64,
    next_dispatch: u64,
}

impl Scheduler {
    /// An idle scheduler.
    pub fn new(config: Config) -> Self {
        let floors = Floors::new(
            config.metadata_floor_percent,
            config.best_effort_floor_percent,
            config.idle_floor_percent,
        );
        let usable = Usable::holding_back(floors.total_permille());
        Self {
            queue: Queue::new(usable, usable),
            floors,
            service: ServiceModel::new(config.read, config.write, config.flush, config.learning),
            device: Device::default(),
            admission: Admission::default(),
            promised: None,
            journal: Journal::new(config.event_capacity),
            arm: DeviceOffset(0),
            tightest: None,
            preferred: None,
            next_sequence: 0,
            next_dispatch: 0,
            config,
        }
    }

    /// Accepts a request. O(log n).
    ///
    /// Requests that overlap are not kept in order: whoever needs one to see the other's bytes enqueues it when
    /// the other has completed.
    ///
    /// # Panics
    /// When a request of the same name is queued already.
    pub fn enqueue(&mut self, now: Instant, request: Request) {
        let deadline = request.deadline.unwrap_or(
            now + match request.class {
                Class::RealTime | Class::Metadata => self.config.metadata_latency,
                Class::BestEffort => self.config.best_effort_latency,
                Class::Idle => self.config.idle_latency,
            },
        );
        let waiting = Waiting {
            deadline,
            sequence: self.next_sequence,
            arrived: now,
            cost: self.service.nanos(request.direction, request.length),
            found_at_device: self.device.newest(),
            request,
        };
        self.next_sequence += 1;
        self.journal.counters.enqueued += 1;
        self.insert(now, waiting);
    }

    fn insert(&mut self, now: Instant, waiting: Waiting) {
        let class = waiting.request.class;
        if class == Class::RealTime {
            self.note_tightness(now, waiting.deadline, waiting.cost);
        } else if self.queue.count(class) == 0 {
            self.floors.begins(class, self.device.free_at(now));
        }
        self.queue.insert(waiting);
    }

    /// Remembers how much time real-time requests come with. One that comes too late to be served in time says
    /// nothing about what comes next.
    fn note_tightness(&mut self, now: Instant, deadline: Instant, cost: u64) {
        let time = deadline.saturating_since(now);
        let tighter = self.tightest.is_none_or(|(tightest, until)| time <= tightest || now >= until);
        if tighter && time >= Duration::from_nanos(cost) {
            self.tightest = Some((time, now + self.config.real_time_memory));
        }
    }

    /// The next command for the device, or `None` when the device has enough or nothing waits. O(log n) for each
    /// request it serves.
    pub fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        if self.device.in_flight() >= self.config.queue_depth.clamp(1, 1024) {
            return None;
        }
        let view = self.view(now);
        let (slot, reason) = choose(&self.queue, &view)?;
        let blocking = self.blocking(now);
        if !self.device.has_room(self.queue.get(slot).cost, blocking) {
            return None;
        }
        let start = view.start;
        let run = self.take(now, slot, blocking);
        self.next_dispatch += 1;
        let id = DispatchId(self.next_dispatch);
        Some(self.send(now, start, id, run, reason))
    }

    fn view(&self, now: Instant) -> View<'_> {
        let start = self.device.free_at(now);
        View { floors: &self.floors, now, start, arm: self.arm, expected: self.expected(now) }
    }

    /// What admitted streams will ask for. Counted from the last completion, not from `now`, so that the answer
    /// to who may go next does not improve by waiting.
    fn expected(&self, now: Instant) -> Option<Expected> {
        let since = self.device.busy_since(now);
        let (shortest, burst) = self.promised?;
        Some(Expected { since, horizon: since + shortest, burst })
    }

    /// Nanoseconds of commands at the device that the next real-time request bears to find there.
    fn blocking(&self, now: Instant) -> u64 {
        let seen = self
            .tightest
            .filter(|(_, until)| now < *until || self.queue.count(Class::RealTime) > 0)
            .map(|(time, _)| time);
        let tightest = seen.into_iter().chain(self.promised.map(|(shortest, _)| shortest)).min();
        tightest.map_or(u64::MAX, |time| {
            let percent = u128::from(self.blocking_percent());
            u64::try_from(time.as_nanos() * percent / 100).unwrap_or(u64::MAX)
        })
    }

    fn blocking_percent(&self) -> u32 {
        self.config.blocking_percent.clamp(1, 100)
    }

    /// Takes the chosen request out of the queue, and its neighbours.
    fn take(&mut self, now: Instant, slot: Slot, blocking: u64) -> Run {
        let start = self.device.free_at(now);
        let first = self.queue.remove(slot);
        let worthwhile = self.service.access_nanos(first.request.direction).saturating_mul(2);
        let mut limits = Limits { length: self.config.max_merge, cost: blocking.max(worthwhile) };
        // What has room as one request must have it as a command. A command that moves bytes for as long as it
        // seeks is never too long for an idle device: without it, tight deadlines of small requests would have
        // the device seek all the time.
        while limits.cost > first.cost && !self.device.has_room(limits.cost, blocking) {
            limits.cost = first.cost.max(limits.cost / 2);
        }
        let expected = self.expected(now);
        let view = View { floors: &self.floors, now, start, arm: self.arm, expected };
        gather(first, &mut self.queue, &self.service, limits, &view)
    }

    /// Keeps the books of a command that goes to the device.
    fn send(&mut self, now: Instant, start: Instant, id: DispatchId, run: Run, reason: Reason) -> Dispatch {
        let end = start + Duration::from_nanos(run.cost);
        let latest = run.members.iter().filter_map(Waiting::guaranteed_key).max();
        let next = self.queue.first(Class::RealTime).map(|slot| self.queue.get(slot).key());
        let direction = run.members[0].request.direction;
        let members = run.members.iter().map(|waiting| Member {
            id: waiting.request.id,
            class: waiting.request.class,
            deadline: waiting.deadline,
            length: waiting.request.length,
            blocker: match self.preferred {
                Some((preferred, at)) if at >= waiting.arrived => Some(preferred),
                _ => waiting.found_at_device,
            },
        });
        let flight = Flight {
            members: members.collect(),
            direction,
            length: run.length,
            cost: run.cost,
            dispatched: now,
        };
        for waiting in &run.members {
            if waiting.request.class != Class::RealTime {
                match reason {
                    Reason::Floor => self.floors.served_in_turn(waiting.request.class, start, waiting.cost),
                    _ => self.floors.served_in_slack(waiting.request.class, end),
                }
            }
        }
        if next.is_some_and(|next| latest.is_none_or(|latest| latest > next)) {
            self.preferred = Some((id, now));
        }
        if direction != Direction::Flush {
            self.arm = DeviceOffset(run.offset.0.saturating_add(run.length.0));
        }
        self.journal.counters.dispatched[reason as usize] += 1;
        self.journal.counters.merged += run.members.len() as u64 - 1;
        self.journal.record(Event::Dispatched {
            at: now,
            dispatch: id,
            class: run.class,
            reason,
            requests: run.members.len() as u32,
            estimate: Duration::from_nanos(run.cost),
        });
        self.device.start(now, id, flight);
        Dispatch {
            id,
            requests: run.members.iter().map(|waiting| waiting.request.id).collect(),
            direction,
            offset: run.offset,
            length: run.length,
            reason,
        }
    }

    /// The device finished a command, well or not. A name that is not in flight is ignored. O(log n), but O(n)
    /// in the rare case that the service model moved and everything queued is priced anew.
    pub fn complete(&mut self, now: Instant, dispatch: DispatchId) {
        let Some((flight, service)) = self.device.finish(now, dispatch) else { return };
        let mut latest = Duration::ZERO;
        for member in &flight.members {
            let tardiness = now.saturating_since(member.deadline);
            let class = member.class as usize;
            let counters = &mut self.journal.counters;
            counters.completed[class] += 1;
            counters.completed_bytes[class] += member.length;
            latest = latest.max(tardiness);
            if tardiness > Duration::ZERO {
                counters.late[class] += 1;
                if member.class == Class::RealTime {
                    self.journal.record(Event::Missed {
                        at: now,
                        request: member.id,
                        dispatch,
                        tardiness,
                        blocker: member.blocker,
                    });
                }
            }
        }
        self.journal.record(Event::Completed { at: now, dispatch, service, tardiness: latest });
        if self.service.observe(flight.direction, flight.length, service) {
            self.reprice();
        }
    }

    /// Gives everything queued the costs and shares that hold now.
    fn reprice(&mut self) {
        let floors = self.floors.total_permille();
        let streams = self.admission.permille(&self.service);
        let near = Usable::holding_back(floors);
        let far = Usable::holding_back(floors.saturating_add(streams));
        let service = &self.service;
        self.promised = self.admission.shortest_deadline().map(|shortest| {
            let burst = self.admission.burst(service);
            (shortest, i64::try_from(burst).unwrap_or(i64::MAX >> 2).min(i64::MAX >> 2))
        });
        self.queue.revise(near, far, |request| service.nanos(request.direction, request.length));
    }

    /// Admits a stream if all of its requests, those of the streams admitted before it, and the floors can be
    /// served in time by what is known of the device. O(streams) for each instant that has to be looked at, and
    /// O(n) in what is queued.
    ///
    /// # Errors
    /// [`Rejected`] says what is lacking. Nothing changes then.
    pub fn admit(&mut self, _now: Instant, spec: &StreamSpec) -> Result<Reservation, Rejected> {
        let reservation = self.admission.admit(spec, &self.service, self.others())?;
        self.reprice();
        Ok(reservation)
    }

    /// Gives a stream's disk time back to the scheduler that admitted it.
    pub fn release(&mut self, _now: Instant, reservation: Reservation) {
        self.admission.release(reservation);
        self.reprice();
    }

    /// Whether the admitted streams still fit: the device may have become slower.
    ///
    /// # Errors
    /// [`Rejected`] says what is lacking now. Whoever admitted the streams decides which one gives way.
    pub fn admitted_fit(&self) -> Result<(), Rejected> {
        self.admission.holds(&self.service, self.others())
    }

    fn others(&self) -> Others {
        let longest = [Direction::Read, Direction::Write]
            .map(|direction| self.service.nanos(direction, self.config.largest_request))
            .into_iter()
            .fold(self.service.nanos(Direction::Flush, Bytes::ZERO), u64::max);
        Others {
            floors_permille: self.floors.total_permille(),
            longest,
            blocking_percent: self.blocking_percent(),
        }
    }

    /// Somebody now waits for a queued request: it gets `class` and completes by `deadline`, if that is better or
    /// earlier than what it has. Returns false when the request is not queued (any more). O(log n).
    pub fn promote(&mut self, now: Instant, id: RequestId, class: Class, deadline: Instant) -> bool {
        let Some(slot) = self.queue.slot_of(id) else { return false };
        let mut waiting = self.queue.remove(slot);
        waiting.request.class = waiting.request.class.min(class);
        waiting.deadline = waiting.deadline.min(deadline);
        self.journal.counters.promoted += 1;
        self.insert(now, waiting);
        true
    }

    /// Takes back a request that was not dispatched yet. Returns false when it was, or never existed. O(log n).
    pub fn cancel(&mut self, _now: Instant, id: RequestId) -> bool {
        let Some(slot) = self.queue.slot_of(id) else { return false };
        self.queue.remove(slot);
        self.journal.counters.cancelled += 1;
        true
    }

    /// The instant at which [`dispatch`](Self::dispatch) may answer otherwise without any other call, possibly
    /// too early and never too late: `None` while only calls can change it.
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let depth = self.config.queue_depth.clamp(1, 1024);
        if self.device.in_flight() == 0 || self.device.in_flight() >= depth {
            return None;
        }
        // The chosen request waits because the commands in flight are as many as real time bears. That ends when
        // real time is no longer remembered, or when another request is chosen: because this one has lost its
        // slack, or comes late enough for a floor's claim or turn to go first, or an overdue one goes before it.
        const MOMENT: Duration = Duration::from_nanos(1);
        let view = self.view(now);
        let (slot, _) = choose(&self.queue, &view)?;
        let forgotten = self.tightest.map(|(_, until)| until);
        let slack = u64::try_from(view.slack_after(&self.queue, slot)).ok();
        let no_slack = slack.map(|slack| now + Duration::from_nanos(slack) + MOMENT);
        let cost = Duration::from_nanos(self.queue.get(slot).cost);
        let turns = Floors::CLASSES.into_iter().filter_map(|class| self.floors.turn(class, &self.queue));
        let turns = turns.map(|(due, _)| due.saturating_before(cost) + MOMENT);
        let claims = Floors::CLASSES.into_iter().filter_map(|class| self.floors.claim(class, &self.queue));
        let claims = claims.map(|(since, _)| since);
        let overdue = [Class::BestEffort, Class::Idle]
            .into_iter()
            .filter_map(|class| self.queue.first(class).map(|slot| self.queue.get(slot).deadline));
        forgotten
            .into_iter()
            .chain(no_slack)
            .chain(turns)
            .chain(claims)
            .chain(overdue)
            .filter(|at| *at > now)
            .min()
    }

    /// Requests accepted and not dispatched.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Requests of one class accepted and not dispatched.
    pub fn queued_of(&self, class: Class) -> usize {
        self.queue.count(class)
    }

    /// Commands at the device.
    pub fn in_flight(&self) -> u32 {
        self.device.in_flight()
    }

    /// What a command is reckoned to hold the device for, as learned by now.
    pub fn service_time(&self, direction: Direction) -> ServiceTime {
        self.service.service_time(direction)
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.journal.counters
    }

    /// The oldest event that was not read or dropped yet.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.journal.pop()
    }
}
