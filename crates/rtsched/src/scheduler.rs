//! The queue of one device.
//!
//! **For:** the surface of the crate: it takes requests and completions, asks the policy, keeps the books.
//! **Excludes:** the policy, which is [`dispatch`](crate::dispatch), and reservations, which are
//! [`reserve`](crate::reserve)'s. **State:** none of its own: it is in [`state`](crate::state). **Invariants:** the crate's.

use crate::config::Calibrated;
use crate::cost_model::ServiceTime;
use crate::device::{Flight, Member};
use crate::dispatch::{View, choose};
use crate::event::{Counters, Event};
use crate::lateness::{Kind, Late, Lateness, Served};
use crate::merge::Limits;
use crate::queue::{Budget, Slot, Waiting};
use crate::request::{Class, Direction, Dispatch, DispatchId, Reason, Request, RequestId, StreamId};
use crate::state::{Scheduler, percent_of};
use crate::streams::signed;
use crate::zones::{Distance, may_be_deferred};
use units::{Bytes, DeviceOffset, Duration, Instant};

impl Scheduler {
    /// Accepts a request. O(log n).
    ///
    /// Requests that overlap are not kept in order: a caller that needs one to see the other's bytes enqueues it when
    /// the other has completed.
    ///
    /// While some stream holds a reservation, a real-time request without one is served as best effort unless it fits
    /// into the slack there is. So is what a stream asks for beyond its rate.
    ///
    /// # Panics
    /// When a request of the same name is queued already. One that is in flight is not noticed.
    pub fn enqueue(&mut self, now: Instant, request: Request) {
        let deadline = request.deadline.unwrap_or(now + self.latency(request.class));
        let mut waiting = Waiting::new(request, deadline, self.next_sequence, now, self.device.newest());
        waiting.owner = request.stream.map(|stream| self.streams.open(stream));
        self.next_sequence += 1;
        self.journal.counters.enqueued += 1;
        if let Some(owner) = waiting.owner {
            self.streams.get_mut(owner).last_used = now;
            if request.class == Class::RealTime && self.is_reserved(now, owner) {
                return self.police(now, owner, waiting);
            }
        }
        self.price(&mut waiting);
        if request.class == Class::BestEffort && request.deadline.is_none() {
            self.take_turn(now, &mut waiting);
        }
        if waiting.is_unpromised() {
            self.unpromised.asked(now, waiting.cost, self.queue.has_unpromised());
        }
        if request.class == Class::RealTime && self.shortest.is_some() {
            let mut demoted = self.demoted(waiting);
            self.interactive(now, &mut demoted, deadline);
            waiting.is_at_once = demoted.is_at_once;
            if !self.has_room_for(now, waiting, !demoted.is_interactive) {
                self.journal.counters.excess += 1;
                if !demoted.is_interactive {
                    self.take_turn(now, &mut demoted);
                }
                self.insert(now, demoted);
            }
        } else {
            self.insert(now, waiting);
        }
    }

    /// A client without a promise has handed over `bytes` that are in memory, and will be written later in about so
    /// many `requests`. Until they are enqueued they take none of the device's time, but a stream that is admitted
    /// meanwhile will have to share it. O(1).
    pub fn note_accepted(&mut self, now: Instant, requests: u32, bytes: Bytes) {
        let each = Bytes(bytes.0.checked_div(requests.into()).unwrap_or(0));
        let cost = self.service.nanos_anywhere(Direction::Write, each).saturating_mul(requests.into());
        self.unpromised.accepted(now, cost);
    }

    /// Queues a request of real time that was not promised, if there is room for it. What `gives_way` is not given its
    /// deadline while a stream wants something before that which it is promised later: a player that began sooner than
    /// it was promised lives on what streams leave until it has read as far ahead as it is promised. Writes of refused
    /// recorders were given half a second of that, and seven of twelve players were late.
    fn has_room_for(&mut self, now: Instant, wanted: Waiting, gives_way: bool) -> bool {
        let is_behind = gives_way && self.queue.is_wanted_before(wanted.deadline);
        !is_behind && self.fits(now, wanted, self.cushion() / 2)
    }

    /// The next command for the device, or `None` when the device has enough, is to write first what it has taken
    /// (until [`next_wakeup`](Self::next_wakeup)), or nothing waits. O(log n) for each request it serves; on average,
    /// because requests that have gone are cleared away when the one before them goes.
    pub fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        let mut dispatch = Dispatch::empty();
        self.dispatch_into(now, &mut dispatch).then_some(dispatch)
    }

    /// The same, into a value that is used again and again, so that commands of many requests allocate nothing.
    /// False, with nothing changed, when the device has enough, is to write first what it has taken, or nothing waits.
    pub fn dispatch_into(&mut self, now: Instant, dispatch: &mut Dispatch) -> bool {
        self.review(now);
        while let Some((_, owner)) = self.streams.next_eligible().filter(|(at, _)| *at <= now) {
            self.replenish(now, owner);
        }
        if self.device.in_flight() >= self.config.queue_depth.clamp(1, 1024) {
            return false;
        }
        self.streams.settle(self.device.busy_since(now));
        let view = self.view(now);
        let Some((slot, reason)) = choose(&self.queue, &view) else { return false };
        if self.is_others_turn(now, slot, reason, &view) {
            return false;
        }
        let blocking = self.blocking(now);
        let first = self.queue.get(slot);
        let least = first.whole.max(self.promised_cost(first));
        if !self.device.has_room(least, blocking, view.cushion) {
            return false;
        }
        self.take(slot, least, blocking, &view);
        self.next_dispatch += 1;
        let id = DispatchId(self.next_dispatch);
        self.send(now, view.start, id, reason);
        dispatch.id = id;
        dispatch.requests.clear();
        dispatch.requests.extend(self.run.members.iter().map(|waiting| waiting.request.id));
        dispatch.direction = self.run.members[0].request.direction;
        (dispatch.offset, dispatch.length, dispatch.reason) = (self.run.offset, self.run.length, reason);
        true
    }

    /// Whether it is the others' turn. A cache that has taken a write writes it in one piece if nothing comes between,
    /// and in pieces beside reads, with a seek to and fro for each; promises reckon with one piece. So on a device that
    /// takes writes before it has written them, a read waits until they are written, unless a deadline would be lost
    /// for it, and a write until the reads that are there have been served. Of what no client waits for a cache is not
    /// given much at once, because what is wanted earlier than it is promised waits for that, too.
    fn is_others_turn(&self, now: Instant, slot: Slot, reason: Reason, view: &View) -> bool {
        if self.shortest.is_none() || !self.device.defers_writes() {
            return false;
        }
        let request = self.queue.get(slot).request;
        match request.direction {
            Direction::Write if !may_be_deferred(request.direction, request.length) => false,
            Direction::Write => {
                let can_wait = matches!(request.class, Class::BestEffort | Class::Idle);
                self.device.has_others_than_deferred() || can_wait && now < self.device.may_defer_at(now)
            }
            Direction::Read => {
                let holds = |start| self.queue.slack(None, start, None) >= 0;
                let is_small = request.class == Class::Metadata || reason == Reason::Floor;
                let is_urgent = || !holds(view.start) && holds(self.device.free_at(now));
                self.device.is_settling(now) && !is_small && !is_urgent()
            }
            Direction::Flush => false,
        }
    }

    fn view(&self, now: Instant) -> View {
        let device = &self.device;
        let start = if self.shortest.is_some() { device.settled_at(now) } else { device.free_at(now) };
        let (arm, expected, is_tight) = (self.arm, self.expected(now), self.is_resizing);
        let turns = self.floors.turns(&self.queue);
        let soon = now + self.config.best_effort_latency;
        View { now, soon, start, arm, expected, is_tight, cushion: self.cushion(), turns }
    }

    /// Nanoseconds of commands at the device that the next real-time request bears to find there.
    fn blocking(&self, now: Instant) -> u64 {
        let seen = self
            .tightest
            .filter(|(_, until)| now < *until || self.queue.count(Class::RealTime) > 0)
            .map(|(time, _)| time);
        let tightest = seen.into_iter().chain(self.shortest).min();
        tightest.map_or(u64::MAX, |time| percent_of(time, self.blocking_percent()))
    }

    /// Nanoseconds of the longest command that was promised where this request is one of a reservation's, else zero. A
    /// command that would have to be shorter because of what is at the device waits for that instead: the rest of it
    /// would cost an access that was not reckoned with.
    fn promised_cost(&self, waiting: &Waiting) -> u64 {
        let owner = waiting.owner.filter(|_| waiting.budget == Budget::Reserved);
        owner.and_then(|owner| self.streams.held_of(owner)).map_or(0, |held| held.cost)
    }

    /// Takes the chosen request out of the queue, and its neighbours, as the next command, which may take `least`
    /// nanoseconds at any rate.
    fn take(&mut self, slot: Slot, least: u64, blocking: u64, view: &View) {
        let first = self.queue.release(slot);
        let worthwhile = self.service.access_nanos(first.request.direction).saturating_mul(2);
        let promised = first.owner.filter(|_| first.budget == Budget::Reserved);
        let promised = promised.and_then(|owner| self.streams.held_of(owner));
        let mut limits = Limits {
            length: promised.map_or(self.config.max_merge, |held| held.terms.request),
            // What was promised as one command may be one, wherever it is begun.
            cost: blocking.max(worthwhile).max(least),
            keep_pieces: !self.is_resizing,
        };
        // What has room as one request must have it as a command. A command that moves bytes for as long as it
        // seeks is never too long for an idle device: without it, tight deadlines of small requests would have
        // the device seek all the time.
        while limits.cost > least && !self.device.has_room(limits.cost, blocking, view.cushion) {
            limits.cost = least.max(limits.cost / 2);
        }
        self.run.gather(first, &mut self.queue, &self.service, limits, &self.floors, view);
    }

    /// Keeps the books of the command that goes to the device.
    fn send(&mut self, now: Instant, start: Instant, id: DispatchId, reason: Reason) {
        let run = &self.run;
        let end = start + Duration::from_nanos(run.cost);
        let latest = run.members.iter().filter_map(Waiting::guaranteed_key).max();
        let next = self.queue.first(Class::RealTime).map(|slot| self.queue.get(slot).key());
        let direction = run.members[0].request.direction;
        let distance = Distance::between(self.arm, run.offset, self.config.device_size);
        let mut flight = self.device.prepare();
        flight.members.extend(run.members.iter().map(|waiting| Member {
            id: waiting.request.id,
            class: waiting.request.class,
            deadline: waiting.deadline,
            length: waiting.request.length,
            stream: waiting.request.stream,
            owner: waiting.owner,
            is_reserved: waiting.budget == Budget::Reserved,
            is_wanted_in_time: waiting.is_wanted_in_time,
            arrived: waiting.arrived,
            blocker: match self.preferred {
                Some((preferred, at)) if at >= waiting.arrived => Some(preferred),
                _ => waiting.found_at_device(),
            },
        }));
        (flight.direction, flight.offset, flight.length) = (direction, run.offset, run.length);
        (flight.distance, flight.cost) = (distance, run.cost);
        flight.estimate = self.service.estimate(direction, run.offset, distance, run.length);
        let transfer = self.service.transfer_nanos(direction, run.offset, run.length);
        flight.access = flight.estimate.saturating_sub(transfer);
        (flight.dispatched, flight.overtaken, flight.deferred) = (now, 0, 0);
        if self.config.calibrated == Calibrated::All && may_be_deferred(direction, run.length) {
            // A cache goes on where it wrote, whatever was read meanwhile.
            let goes_on = self.written_to == run.offset;
            let distance = if goes_on { Distance::Sequential } else { Distance::Far };
            flight.deferred = self.service.estimate(direction, run.offset, distance, run.length);
            self.written_to = DeviceOffset(run.offset.0.saturating_add(run.length.0));
        }
        for waiting in &run.members {
            if let Some(owner) = waiting.owner {
                let entry = self.streams.get_mut(owner);
                entry.in_flight += 1;
            }
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
        let estimate = flight.estimate;
        if direction != Direction::Flush {
            self.arm = DeviceOffset(run.offset.0.saturating_add(run.length.0));
        }
        self.journal.counters.dispatched[reason as usize] += 1;
        self.journal.counters.merged += run.members.len() as u64 - 1;
        self.journal.record(Event::Dispatched {
            at: now,
            dispatch: id,
            stream: run.members[0].request.stream,
            class: run.class,
            reason,
            requests: run.members.len() as u32,
            length: run.length,
            estimate: Duration::from_nanos(estimate),
        });
        self.device.start(now, id, flight);
    }

    /// The device finished a command, well or not. A name that is not in flight is ignored. O(log n), but O(n)
    /// in the rare case that the service model moved and everything queued is priced anew.
    pub fn complete(&mut self, now: Instant, dispatch: DispatchId) {
        let Some((flight, service)) = self.device.finish(now, dispatch) else { return };
        let mut latest = Duration::ZERO;
        self.remember(now, &flight, service);
        for member in &flight.members {
            let tardiness = now.saturating_since(member.deadline);
            let counters = &mut self.journal.counters;
            counters.completed[member.class as usize] += 1;
            counters.completed_bytes[member.class as usize] += member.length;
            latest = latest.max(tardiness);
            if tardiness > Duration::ZERO {
                counters.late[member.class as usize] += 1;
                if member.class == Class::RealTime {
                    self.journal.record(Event::Missed {
                        at: now,
                        request: member.id,
                        stream: member.stream,
                        dispatch,
                        tardiness,
                        blocker: member.blocker,
                    });
                }
            }
            if let Some(owner) = member.owner {
                let stream = self.streams.get_mut(owner);
                stream.in_flight -= 1;
                stream.completed += 1;
                stream.bytes += member.length;
                stream.last_used = now;
                if member.is_reserved {
                    stream.missed += u64::from(tardiness > Duration::ZERO);
                    stream.tardiness = stream.tardiness.max(tardiness);
                    stream.slack_nanoseconds = Some(signed(member.deadline) - signed(now));
                    self.health.completed(tardiness);
                    if tardiness > Duration::ZERO {
                        self.explain(now, member, tardiness);
                    }
                }
                self.streams.close(owner, self.queue.has_any_of(owner));
            }
        }
        self.journal.record(Event::Completed { at: now, dispatch, service, tardiness: latest });
        let command = (flight.direction, flight.offset, flight.length);
        let is_idle = self.device.in_flight() == 0;
        let in_turn = self.shortest.is_some() || !self.device.defers_writes();
        let learned = self.service.observe(now, command, flight.distance, service, is_idle, in_turn);
        self.device.put_aside(flight);
        if learned {
            self.device_changed(now);
        }
        self.shed_load(now);
        self.streams.settle(self.device.busy_since(now));
    }

    /// Keeps what the device has done, so that it can be told later why something was late.
    fn remember(&mut self, now: Instant, flight: &Flight, service: Duration) {
        self.journal.counters.busy += service;
        self.journal.counters.reckoned += Duration::from_nanos(flight.estimate);
        let Some(first) = flight.members.first() else { return };
        let promised = flight.members.iter().find(|member| member.is_reserved);
        let kind = match promised {
            Some(_) => Kind::Promised,
            None if flight.members.iter().any(|member| member.is_wanted_in_time) => Kind::Beyond,
            None => Kind::Unpromised,
        };
        let owner = promised.unwrap_or(first).owner;
        let held = owner.and_then(|owner| self.streams.held_of(owner));
        let fair_access = held.map_or(flight.access, |held| {
            let reckoned = held.spec.piece.unwrap_or(held.terms.request).min(held.terms.request).0.max(1);
            let fair = u128::from(flight.access) * u128::from(flight.length.0) / u128::from(reckoned);
            u64::try_from(fair).unwrap_or(u64::MAX)
        });
        self.history.record(Served {
            end: now,
            service,
            estimate: flight.estimate,
            access: flight.access,
            fair_access,
            stream: promised.unwrap_or(first).stream,
            kind,
        });
    }

    /// Finds out why a promised request was late.
    fn explain(&mut self, now: Instant, member: &Member, tardiness: Duration) {
        let held = member.owner.and_then(|owner| self.streams.held_of(owner));
        let (Some(held), Some(stream)) = (held, member.stream) else { return };
        let release = member.deadline.saturating_before(held.terms.deadline);
        let late = Late { at: now, stream, since: member.arrived.max(release), tardiness };
        self.history.late(late, self.utilisation_permille());
    }

    /// What the device did from `since` on until `at`, and what of it kept a stream waiting for so long, though no promise was broken. What
    /// is asked long after that is not known any more. A step for each of the last 512 commands.
    pub fn explain_waiting(
        &self,
        stream: StreamId,
        since: Instant,
        at: Instant,
        waited: Duration,
    ) -> Lateness {
        let late = Late { at, stream, since, tardiness: waited };
        let (blocker, work) = self.history.explain(late, true);
        Lateness {
            at,
            stream,
            tardiness: waited,
            blocker,
            work,
            promised_permille: self.utilisation_permille(),
        }
    }

    /// The oldest promised request that was late, and why, that was not read or dropped yet; `None`: there is none. O(1).
    pub fn pop_lateness(&mut self) -> Option<Lateness> {
        self.history.pop()
    }

    /// A client now waits for a queued request: it gets `class` and completes by `deadline`, if that is better or
    /// earlier than what it has. Returns false when the request is not queued (any more). O(log n), and a step for each
    /// that its stream asked for later.
    ///
    /// What a stream asked for before it had a reservation, but not in real time, draws on that from now on: a player
    /// that was refused, and admitted later, waited for it for as long as it played. While some stream holds a
    /// reservation, any other real time is given only if every deadline then holds, and if what the request goes on
    /// behind is due no later. What is beyond its stream's rate is due when its stream's grace is over, not sooner than
    /// after a cushion, and is wanted by `deadline`. Otherwise the request keeps its class, and the deadline counts
    /// among its equals.
    pub fn promote(&mut self, now: Instant, id: RequestId, class: Class, deadline: Instant) -> bool {
        let Some(slot) = self.queue.slot_of(id) else { return false };
        let older = self.queue.older(slot).filter(|_| self.queue.get(slot).budget == Budget::Reserved);
        let before = self.queue.remove(slot);
        let mut waiting = Waiting { has_turn: false, ..before };
        waiting.request.class = waiting.request.class.min(class);
        waiting.is_wanted_in_time |= class == Class::RealTime;
        // By when it may not starve any longer is no promise.
        let becomes_promised =
            waiting.request.class == Class::RealTime && before.request.class != Class::RealTime;
        waiting.deadline = if becomes_promised { deadline } else { waiting.deadline.min(deadline) };
        self.journal.counters.promoted += 1;
        let sooner = before.request.deadline.map_or(deadline, |wish| wish.min(deadline));
        if waiting.request.class != Class::RealTime {
            waiting.request.deadline = Some(sooner);
            self.insert(now, Waiting { has_turn: before.has_turn, ..waiting });
            return true;
        }
        if self.shortest.is_none() {
            self.give_turn_back(&before);
            self.insert(now, waiting);
            return true;
        }
        let is_nobodys = before.budget == Budget::Unreserved && before.request.class != Class::RealTime;
        if let Some(owner) = waiting.owner.filter(|_| is_nobodys)
            && self.is_reserved(now, owner)
        {
            self.give_turn_back(&before);
            waiting.request.deadline = Some(deadline);
            (waiting.is_interactive, waiting.is_at_once) = (false, false);
            self.police(now, owner, waiting);
            return true;
        }
        let otherwise = match before.request.class {
            // It stays wanted by then.
            Class::RealTime => {
                Waiting { request: Request { deadline: Some(sooner), ..before.request }, ..before }
            }
            // It has its turn, and its part of the time, already.
            _ if before.is_interactive => before,
            _ => {
                let mut otherwise = Waiting { deadline, ..before };
                if before.budget == Budget::OverLimit {
                    // It is wanted by then when it comes within its stream's rate.
                    otherwise.request.deadline = before.request.deadline.map(|wish| wish.min(deadline));
                }
                self.interactive(now, &mut otherwise, deadline);
                otherwise.deadline = otherwise.deadline.min(before.deadline);
                waiting.is_at_once = otherwise.is_at_once;
                otherwise
            }
        };
        if self.overtakes(&waiting, older) {
            self.insert(now, otherwise);
            return true;
        }
        let is_excess = waiting.budget == Budget::OverLimit;
        if is_excess {
            waiting.budget = Budget::Unreserved;
            // At once is no time in which anything fits; it stays wanted then.
            waiting.request.deadline = Some(sooner);
            let held = waiting.owner.and_then(|owner| self.streams.held_of(owner));
            let due = waiting.deadline + held.map_or(Duration::ZERO, |held| held.spec.grace);
            waiting.deadline = due.max(now + Duration::from_nanos(self.cushion()));
        }
        let gives_way = before.budget == Budget::Unreserved && !otherwise.is_interactive;
        if !self.has_room_for(now, waiting, gives_way) {
            if otherwise.request.class != Class::RealTime {
                self.journal.counters.excess += 1;
            }
            self.insert(now, otherwise);
            return true;
        }
        self.give_turn_back(&before);
        // A stream that is given excess early has less of its rate left.
        if let Some(owner) = waiting.owner.filter(|_| is_excess) {
            if let Some(held) = self.streams.held_of_mut(owner) {
                held.next_release = held.release(now) + held.spec.rate.time_for(waiting.request.length);
            }
            self.streams.place(owner, self.device.busy_since(now));
            self.replenish(now, owner);
        }
        true
    }

    /// A stream's request would be promised sooner than what it goes on behind, or than the `older` one before it,
    /// which is wanted no later and may lie elsewhere. A player needs that first; and a piece that is reckoned without
    /// an access, or shorter, fits where the one before it did not, and then begins a command. What is beyond a
    /// stream's rate is not promised before what the stream asked for before, and wants no later. Given to the pieces
    /// behind, the rate was used up: a player waited for four seconds for 8 MiB while it was read further ahead.
    fn overtakes(&self, waiting: &Waiting, older: Option<Slot>) -> bool {
        let Request { direction, stream, offset, .. } = waiting.request;
        let goes_on = stream.is_some()
            && self.queue.neighbour(direction, stream, offset, true).is_some_and(|slot| {
                let before = self.queue.get(slot);
                before.request.class == Class::RealTime && waiting.deadline < before.deadline
            });
        let excess = waiting.owner.filter(|_| waiting.budget == Budget::OverLimit);
        let first = excess.and_then(|owner| self.queue.oldest_of(owner, Budget::OverLimit));
        let is_beyond = first.is_some_and(|first| {
            let first = self.queue.get(first);
            let is_wanted_later = first.request.deadline.is_some_and(|wish| wish > waiting.deadline);
            first.sequence < waiting.sequence && !is_wanted_later
        });
        let is_older_late = older.is_some_and(|older| {
            let older = self.queue.get(older);
            let is_wanted = older.request.deadline.is_some_and(|wish| wish <= waiting.deadline);
            is_wanted && older.deadline > waiting.deadline
        });
        goes_on || is_beyond || is_older_late
    }

    /// A queued request that belonged to no stream, or to one without a reservation, becomes one of `stream`'s, as if
    /// that asked for it now: real time, by `deadline`. What was read ahead of a player before it was known for one is
    /// not left to what its own stream leaves. Counted as taken back and asked for again. Returns false, and changes
    /// nothing, when the request is not queued (any more), or belongs to `stream` or to one with a reservation already.
    /// O(log n).
    pub fn assign(&mut self, now: Instant, id: RequestId, stream: StreamId, deadline: Instant) -> bool {
        let Some(slot) = self.queue.slot_of(id) else { return false };
        let Waiting { request, owner, .. } = *self.queue.get(slot);
        let is_held = owner.is_some_and(|owner| self.streams.held_of(owner).is_some());
        if is_held || request.stream == Some(stream) {
            return false;
        }
        self.take_back(now, slot);
        if let Some(owner) = owner {
            self.streams.close(owner, self.queue.has_any_of(owner));
        }
        let (class, stream, deadline) = (Class::RealTime, Some(stream), Some(deadline));
        self.enqueue(now, Request { class, stream, deadline, ..request });
        true
    }

    /// Takes back a request that was not dispatched yet. Returns false when it was, or never existed. O(log n).
    pub fn cancel(&mut self, now: Instant, id: RequestId) -> bool {
        let Some(slot) = self.queue.slot_of(id) else { return false };
        let owner = self.queue.get(slot).owner;
        self.take_back(now, slot);
        if let Some(owner) = owner {
            self.replenish(now, owner);
            self.streams.close(owner, self.queue.has_any_of(owner));
        }
        true
    }

    /// Takes back all requests of a stream that were not dispatched yet: it seeks, is closed or deleted. Says which,
    /// and returns how many. O(log n) for each.
    pub fn cancel_stream(
        &mut self,
        now: Instant,
        stream: StreamId,
        mut cancelled: impl FnMut(RequestId),
    ) -> usize {
        let Some(owner) = self.streams.find(stream) else { return 0 };
        let mut count = 0;
        for budget in [Budget::OverLimit, Budget::Reserved, Budget::Unreserved] {
            while let Some(slot) = self.queue.oldest_of(owner, budget) {
                cancelled(self.queue.get(slot).request.id);
                self.take_back(now, slot);
                count += 1;
            }
        }
        self.streams.set_eligible(owner, None);
        if let Some(held) = self.streams.held_of_mut(owner) {
            held.advanced = Duration::ZERO;
        }
        self.streams.close(owner, false);
        count
    }

    /// Removes a queued request and gives its stream back what it drew.
    fn take_back(&mut self, now: Instant, slot: Slot) {
        let waiting = self.queue.remove(slot);
        self.give_turn_back(&waiting);
        self.journal.counters.cancelled += 1;
        let Some(owner) = waiting.owner else { return };
        let stream = self.streams.get_mut(owner);
        if stream.run.is_some_and(|run| run.end == waiting.end()) {
            stream.run = None;
        }
        if let Some(held) = stream.held.as_mut().filter(|_| waiting.budget == Budget::Reserved) {
            held.next_release =
                held.next_release.saturating_before(held.spec.rate.time_for(waiting.request.length));
            self.streams.place(owner, self.device.busy_since(now));
        }
        self.end_run_at(&waiting);
    }

    /// The instant at which [`dispatch`](Self::dispatch) may answer otherwise without any other call, possibly
    /// too early and never too late: `None` while only calls can change it.
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let depth = self.config.queue_depth.clamp(1, 1024);
        let settled =
            [self.device.may_defer_at(now), self.device.settled_at(now)].into_iter().find(|at| *at > now);
        if self.device.in_flight() == 0 {
            // It writes first what it has taken.
            return settled.filter(|_| self.queued() > 0);
        }
        if self.device.in_flight() >= depth {
            return None;
        }
        /// The shortest step of time. Representation.
        const MOMENT: Duration = Duration::from_nanos(1);
        // The chosen request waits because the commands in flight are as many as real time bears. That ends when real
        // time is no longer remembered, or when another request is chosen. This one may have lost its slack. It may
        // come late enough for a floor's claim or turn to go first. Or an overdue one goes before it.
        let view = self.view(now);
        let (slot, _) = choose(&self.queue, &view)?;
        let forgotten = self.tightest.map(|(_, until)| until);
        let slack = u64::try_from(view.slack_after(&self.queue, slot)).ok();
        let no_slack = slack.map(|slack| now + Duration::from_nanos(slack) + MOMENT);
        let cost = Duration::from_nanos(self.queue.get(slot).whole);
        let turns = view.turns.iter().map(|turn| turn.due.saturating_before(cost) + MOMENT);
        let claims = view.turns.iter().map(|turn| turn.claim);
        let overdue = [Class::BestEffort, Class::Idle]
            .into_iter()
            .filter_map(|class| self.queue.first(class).map(|slot| self.queue.get(slot).deadline));
        let excess = self.streams.next_eligible().map(|(at, _)| at);
        let review = self.shortest.and(self.health.next_review());
        let wish = self.queue.first_wish().and_then(|slot| self.queue.get(slot).wish());
        let soon = wish.map(|wish| wish.saturating_before(self.config.best_effort_latency));
        forgotten
            .into_iter()
            .chain(excess)
            .chain(review)
            .chain(no_slack)
            .chain(turns)
            .chain(claims)
            .chain(overdue)
            .chain(soon)
            .chain(settled)
            .filter(|at| *at > now)
            .min()
    }

    /// Requests accepted and not dispatched. O(1).
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Requests of one class accepted and not dispatched, each in the class in which it is served now: real time beyond
    /// a stream's rate counts as best effort. O(1).
    pub fn queued_of(&self, class: Class) -> usize {
        self.queue.count(class)
    }

    /// Commands dispatched and not completed. O(1).
    pub fn in_flight(&self) -> u32 {
        self.device.in_flight()
    }

    /// What a command is reckoned to hold the device for, as learned by now: in the slowest zone that is known, and for a
    /// command that is not short.
    pub fn service_time(&self, direction: Direction) -> ServiceTime {
        self.service.service_time(direction)
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.journal.counters
    }

    /// The oldest event that was not read or dropped yet; `None`: there is none. O(1).
    pub fn pop_event(&mut self) -> Option<Event> {
        self.journal.pop()
    }
}
