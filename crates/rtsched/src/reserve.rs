//! Reservations: which stream has one, which loses it, which gets it back.
//!
//! **For:** the life of a stream, and what happens to all of them when the device changes. **Excludes:** the test,
//! which is [`admission`](crate::admission)'s. **State:** none of its own. **Invariants:** the active streams pass the
//! test together whenever a call returns; the demoted ones are those of the lowest priority and, among these, the
//! newest.

use crate::admission::{Others, Sizing};
use crate::event::Event;
use crate::policing::INTERACTIVE_PART;
use crate::queue::{Budget, StreamSlot, Waiting};
use crate::request::{Direction, StreamId};
use crate::state::Scheduler;
use crate::stream::{Rejected, Reservation, StreamSpec, StreamState, StreamStatus, Terms, Why};
use crate::streams::{Held, SHARE_SHIFT};
use crate::unpromised::BackgroundLoad;
use units::{Bitrate, Bytes, Duration, Instant};

impl Scheduler {
    /// Admits a stream if all of its requests, those of the streams admitted before it, and the floors can be
    /// served in time by what is known of the device. Where the length of requests was left to the admission, they may
    /// become longer for it, also those of others ([`Event::Resized`]). O(streams) for each instant and each length
    /// that has to be looked at, and O(n) in what is queued.
    ///
    /// # Errors
    /// [`Rejected`] says what is lacking. Nothing changes then.
    pub fn admit(
        &mut self,
        now: Instant,
        stream: StreamId,
        spec: &StreamSpec,
    ) -> Result<Reservation, Rejected> {
        self.review_now(now);
        let slot = self.streams.find(stream);
        if slot.is_some_and(|slot| self.streams.held_of(slot).is_some()) {
            return Err(self.rejected(now, stream, Why::AlreadyAdmitted, None));
        }
        if let Some(why) = self.health.congestion() {
            return Err(self.rejected(now, stream, why, None));
        }
        let background = self.background_load(now);
        let sizing = match self.try_with(Some(spec), None, background) {
            Ok(sizing) => sizing,
            Err(why) => {
                let fits = self.rate_that_fits(spec, None, background);
                return Err(self.rejected(now, stream, why, fits));
            }
        };
        self.resize(now, sizing);
        let Some(terms) = sizing.terms(spec, &self.config) else {
            return Err(self.rejected(now, stream, Why::NoStream, None));
        };
        let slot = self.streams.open(stream);
        let number = self.streams.next_number();
        let mut held = Held::new(*spec, Terms { since: now, ..terms }, number, now);
        held.cost = self.service.nanos_of_stream(spec, terms.request);
        let entry = self.streams.get_mut(slot);
        (entry.held, entry.last_used) = (Some(held), now);
        let since = self.since(now, slot);
        self.adopt(now, slot);
        self.journal.counters.admitted += 1;
        let terms = Terms { since, ..terms };
        self.journal.record(Event::Admitted { at: now, stream, terms });
        Ok(Reservation { stream, terms })
    }

    /// What a stream asked for in real time before it was admitted draws on its reservation from then on: a player that
    /// begins asks first. Otherwise it would be served apart from what follows it, in commands of its own.
    fn adopt(&mut self, now: Instant, slot: StreamSlot) {
        let mut next = self.queue.oldest_of(slot, Budget::Unreserved);
        while let Some(queued) = next {
            next = self.queue.younger(queued);
            if self.queue.get(queued).is_wanted_in_time {
                let waiting = self.queue.remove(queued);
                self.police(now, slot, waiting);
            }
        }
    }

    /// Enters a stream among those that have to be expected: from now on if every deadline then holds, else when what
    /// others asked for before they were resized is done. Returns that instant.
    fn since(&mut self, now: Instant, slot: StreamSlot) -> Instant {
        let busy_since = self.device.busy_since(now);
        let longest =
            self.streams.held().map(|(_, held)| held.terms.deadline).max().unwrap_or(Duration::ZERO);
        // What others read further ahead takes the time that streams leave.
        let backlog = |held: &Held| {
            let credit = held.wanted.map_or(0, |_| now.saturating_since(held.next_release).as_nanos());
            (credit * u128::from(held.share())) >> SHARE_SHIFT
        };
        let backlog: u128 = self.streams.held().map(|(_, held)| backlog(held)).sum();
        let left = u128::from(1_000_u32.saturating_sub(self.utilisation_permille()).max(10));
        let backlog = Duration::from_nanos(u64::try_from(backlog * 1000 / left).unwrap_or(u64::MAX));
        let mut since = now;
        for start in [now, now + backlog + longest] {
            since = start;
            if let Some(held) = self.streams.held_of_mut(slot) {
                held.next_release = held.next_release.max(start);
                held.terms.since = start;
            }
            self.streams.place(slot, busy_since);
            self.reprice();
            let expected = self.expected(now);
            if self.queue.slack(None, self.device.free_at(now), expected.as_ref()) >= 0 {
                break;
            }
        }
        since
    }

    fn rejected(&mut self, now: Instant, stream: StreamId, why: Why, fits: Option<Bitrate>) -> Rejected {
        self.journal.counters.rejected += 1;
        self.journal.record(Event::Rejected { at: now, stream, why });
        Rejected { why, fits }
    }

    /// What uses the device without a guarantee. What was promised beside fewer stays promised.
    pub fn background_load(&self, now: Instant) -> BackgroundLoad {
        self.unpromised.background_load(now, self.queue.has_unpromised())
    }

    /// The sizing with which the active streams fit, without the one in `but`, and with `new`. The demoted ones come
    /// before a new one.
    pub(crate) fn try_with(
        &mut self,
        new: Option<&StreamSpec>,
        but: Option<StreamSlot>,
        background: BackgroundLoad,
    ) -> Result<Sizing, Why> {
        self.collect(new, but);
        let others = self.others(0, background);
        let may_grow = new.is_some() && self.may_grow();
        self.admission.choose(&self.specs, new.is_some(), may_grow, &self.service, &self.config, others)
    }

    /// Requests become longer only while a quarter of the time is left for those that play to read further ahead.
    fn may_grow(&self) -> bool {
        !self.is_resizing && self.utilisation_permille() <= 750
    }

    fn collect(&mut self, new: Option<&StreamSpec>, but: Option<StreamSlot>) {
        self.specs.clear();
        let wanted = |held: &Held| match held.state {
            StreamState::Active => true,
            StreamState::Paused => false,
            StreamState::Demoted => new.is_some_and(|new| new.priority <= held.spec.priority),
        };
        let held = self.streams.held().filter(|(slot, held)| Some(*slot) != but && wanted(held));
        self.specs.extend(held.map(|(_, held)| held.spec).chain(new.copied()));
    }

    /// A rate at which a stream that was rejected would be admitted, if any is worth asking for: within a hundredth
    /// of what it asked for.
    fn rate_that_fits(
        &mut self,
        spec: &StreamSpec,
        but: Option<StreamSlot>,
        background: BackgroundLoad,
    ) -> Option<Bitrate> {
        let (mut low, mut high) = (0, 128);
        while high - low > 1 {
            let middle = (low + high) / 2;
            let rate = Bitrate(u64::try_from(u128::from(spec.rate.0) * middle / 128).unwrap_or(u64::MAX));
            match self.try_with(Some(&StreamSpec { rate, ..*spec }), but, background) {
                Ok(_) => low = middle,
                Err(_) => high = middle,
            }
        }
        let rate = Bitrate(u64::try_from(u128::from(spec.rate.0) * low / 128).unwrap_or(u64::MAX));
        (rate.0 > 0).then_some(rate)
    }

    /// Gives an admitted stream another rate, above zero. The terms of the reservation follow; they hold for what is asked for
    /// from now on.
    ///
    /// # Errors
    /// [`Rejected`] says what is lacking; the stream keeps what it has.
    pub fn change(
        &mut self,
        now: Instant,
        reservation: &mut Reservation,
        rate: Bitrate,
    ) -> Result<(), Rejected> {
        self.review_now(now);
        let stream = reservation.stream;
        let found = self.streams.find(stream).and_then(|slot| Some((slot, *self.streams.held_of(slot)?)));
        let Some((slot, held)) = found else {
            return Err(self.rejected(now, stream, Why::NoStream, None));
        };
        let spec = StreamSpec { rate, ..held.spec };
        let more = rate > held.spec.rate || held.state != StreamState::Active;
        if let Some(why) = self.health.congestion().filter(|_| more) {
            return Err(self.rejected(now, stream, why, None));
        }
        let background = if more { self.background_load(now) } else { BackgroundLoad::Nothing };
        let sizing = match self.try_with(Some(&spec), Some(slot), background) {
            Ok(sizing) => sizing,
            Err(why) => {
                let fits = self.rate_that_fits(&spec, Some(slot), self.background_load(now));
                return Err(self.rejected(now, stream, why, fits));
            }
        };
        self.resize(now, sizing);
        let Some(terms) = sizing.terms(&spec, &self.config) else {
            return Err(self.rejected(now, stream, Why::NoStream, None));
        };
        let cost = self.service.nanos_of_stream(&spec, terms.request);
        let before = held.state;
        if let Some(held) = self.streams.held_of_mut(slot) {
            (held.spec, held.terms, held.wanted, held.cost) = (spec, terms, None, cost);
            (held.state, held.since) = (StreamState::Active, now);
        }
        let since = self.since(now, slot);
        reservation.terms = Terms { since, ..terms };
        self.journal.record(Event::Admitted { at: now, stream, terms: reservation.terms });
        if before == StreamState::Demoted {
            self.journal.counters.restored += 1;
            self.journal.record(Event::Restored { at: now, stream });
        }
        self.replenish(now, slot);
        self.note_resizing();
        Ok(())
    }

    /// Gives a stream's disk time back to the scheduler that admitted it. What it has queued becomes best effort;
    /// [`cancel_stream`](Self::cancel_stream) it first if it is not wanted any more.
    pub fn release(&mut self, now: Instant, reservation: Reservation) {
        let stream = reservation.stream;
        let Some(slot) = self.streams.find(stream) else { return };
        self.streams.forget(slot);
        self.demote_requests(now, slot);
        self.streams.close(slot, self.queue.has_any_of(slot));
        self.journal.record(Event::Released { at: now, stream });
        if self.streams.held().next().is_none() {
            self.admission.reset();
        }
        self.note_resizing();
        self.reprice();
        self.restore(now);
    }

    /// What an admitted stream is promised now; `None`: there is no such stream.
    pub fn terms(&self, stream: StreamId) -> Option<Terms> {
        let held = self.streams.held_of(self.streams.find(stream)?)?;
        Some(held.terms)
    }

    /// What is known of an admitted stream; `None`: there is no such stream.
    pub fn stream(&self, stream: StreamId) -> Option<StreamStatus> {
        let slot = self.streams.find(stream)?;
        let held = self.streams.held_of(slot)?;
        let stream = self.streams.get(slot);
        let count = |budget| self.queue.count_of(slot, budget);
        Some(StreamStatus {
            state: held.state,
            spec: held.spec,
            terms: held.terms,
            share_permille: u32::try_from((u128::from(held.share()) * 1000).div_ceil(1 << SHARE_SHIFT))
                .unwrap_or(u32::MAX),
            queued: count(Budget::Reserved) + count(Budget::OverLimit) + count(Budget::Unreserved),
            excess: count(Budget::OverLimit),
            completed: stream.completed,
            bytes: stream.bytes,
            missed: stream.missed,
            tardiness: stream.tardiness,
            slack_nanoseconds: stream.slack_nanoseconds,
        })
    }

    /// Whether the active streams would be admitted, were they all to ask only now, beside `background`. O(streams) for each instant and
    /// each length that has to be looked at.
    ///
    /// # Errors
    /// [`Why`] says what is lacking: not even requests of other lengths would do.
    pub fn admitted_fit(&mut self, background: BackgroundLoad) -> Result<(), Why> {
        self.try_with(None, None, background).map(|_| ())
    }

    /// Beside the streams that were [collected](Self::collect).
    fn others(&self, margin_percent: u32, background: BackgroundLoad) -> Others {
        let longest = [Direction::Read, Direction::Write]
            .map(|direction| self.service.nanos_anywhere(direction, self.config.largest_request))
            .into_iter()
            .chain(
                self.streams
                    .held()
                    .filter(|(_, held)| held.state != StreamState::Active)
                    .map(|(_, held)| held.cost),
            )
            .fold(self.service.nanos_anywhere(Direction::Flush, Bytes::ZERO), u64::max);
        let is_read_only = self.specs.iter().all(|spec| spec.direction == Direction::Read);
        Others {
            floor_base: self.config.floor_base,
            floors_percent: self.floors.total_percent(),
            streams_max_permille: match background {
                BackgroundLoad::Nothing if is_read_only => self.config.readers_max_permille,
                BackgroundLoad::Nothing | BackgroundLoad::Others => self.config.streams_max_permille,
                // What a search looks at goes before what players that begin wait for: its part is not promised as well.
                BackgroundLoad::Searches => {
                    self.config.streams_max_permille.min(1000 - 1000 / INTERACTIVE_PART)
                }
            },
            margin_percent,
            longest,
            blocking_percent: self.blocking_percent(),
        }
    }

    /// Gives all streams the lengths of another sizing.
    pub(crate) fn resize(&mut self, now: Instant, sizing: Sizing) {
        let before = self.admission.sizing(&self.service, &self.config);
        self.admission.set_sizing(sizing);
        if sizing == before {
            return;
        }
        for slot in 0..self.streams.slot_count() {
            let Some(held) = self.streams.held_of(slot).copied() else { continue };
            let Some(terms) = sizing.terms(&held.spec, &self.config) else { continue };
            let is_busy = self.queue.has_any_of(slot) || self.streams.get(slot).in_flight > 0;
            let is_fresh = !is_busy && held.wanted.is_none() && held.next_release <= now;
            self.set_terms(now, slot, held, terms, is_fresh || held.state != StreamState::Active);
        }
        self.note_resizing();
        self.reprice();
    }

    /// Gives a stream other terms. One that is playing keeps its deadlines. When it is to read further ahead, what is
    /// due at some instant may be asked for earlier than before. Only when it has done so do its requests become
    /// longer: until then they would be due too soon for their length. They become shorter at once: memory has been
    /// promised to others, and a stream that asks for nothing for a while would keep its part of it.
    fn set_terms(&mut self, now: Instant, slot: StreamSlot, held: Held, terms: Terms, is_fresh: bool) {
        if (held.terms.request, held.terms.deadline) == (terms.request, terms.deadline)
            && held.wanted.is_none()
        {
            return;
        }
        let cost = self.service.nanos_of_stream(&held.spec, terms.request);
        let mut new = held;
        new.terms = Terms { since: held.terms.since, ..terms };
        (new.wanted, new.cost) = (None, cost);
        if !is_fresh {
            let due = held.release(now) + held.terms.deadline;
            new.next_release = due.saturating_before(terms.deadline);
            if new.next_release < now {
                new.wanted = Some((terms.request, now + terms.deadline * 2));
                if terms.request > held.terms.request {
                    (new.terms.request, new.terms.period, new.cost) =
                        (held.terms.request, held.terms.period, held.cost);
                }
            }
        }
        let stream = self.streams.get_mut(slot);
        stream.held = Some(new);
        let id = stream.id;
        self.streams.place(slot, self.device.busy_since(now));
        self.journal.record(Event::Resized { at: now, stream: id, terms: new.terms });
    }

    /// Whether a stream's real-time requests draw on a reservation. Resumes it if it was paused.
    pub(crate) fn is_reserved(&mut self, now: Instant, slot: StreamSlot) -> bool {
        match self.streams.held_of(slot).map(|held| held.state) {
            None => false,
            Some(StreamState::Paused) => {
                self.resume(now, slot);
                true
            }
            Some(StreamState::Active | StreamState::Demoted) => true,
        }
    }

    fn resume(&mut self, now: Instant, slot: StreamSlot) {
        let Some(held) = self.streams.held_of(slot).copied() else { return };
        let stream = self.streams.get(slot).id;
        match self.try_with(Some(&held.spec), Some(slot), BackgroundLoad::Nothing) {
            Ok(sizing) => {
                self.resize(now, sizing);
                self.activate(now, slot);
                self.journal.record(Event::Resumed { at: now, stream });
            }
            Err(why) => self.demote(now, slot, why),
        }
    }

    fn activate(&mut self, now: Instant, slot: StreamSlot) {
        self.journal.counters.restored += 1;
        if let Some(held) = self.streams.held_of_mut(slot) {
            (held.state, held.since, held.advanced) = (StreamState::Active, now, Duration::ZERO);
            held.next_release = held.next_release.max(now);
            held.cost = self.service.nanos_of_stream(&held.spec, held.terms.request);
        }
        self.since(now, slot);
        self.replenish(now, slot);
    }

    /// Serves a stream as best effort from now on.
    fn demote(&mut self, now: Instant, slot: StreamSlot, why: Why) {
        if let Some(held) = self.streams.held_of_mut(slot) {
            (held.state, held.since, held.wanted) = (StreamState::Demoted, now, None);
        }
        self.streams.place(slot, now);
        self.streams.set_eligible(slot, None);
        self.demote_requests(now, slot);
        let stream = self.streams.get(slot).id;
        self.journal.counters.demoted += 1;
        self.journal.record(Event::Demoted { at: now, stream, why });
        self.note_resizing();
        self.reprice();
    }

    fn demote_requests(&mut self, now: Instant, slot: StreamSlot) {
        let budgets = match self.streams.held_of(slot) {
            Some(_) => [Budget::Reserved].as_slice(),
            None => &[Budget::Reserved, Budget::OverLimit],
        };
        for budget in budgets {
            while let Some(waiting) = self.queue.oldest_of(slot, *budget) {
                let waiting = self.queue.remove(waiting);
                self.insert_demoted(now, waiting);
            }
        }
        self.streams.get_mut(slot).run = None;
    }

    /// The device takes another time than before. No stream is demoted for that: an estimate moves by some percent, and
    /// what is admitted fills the device. When it was no chance, deadlines come into danger, see
    /// [`shed_load`](Self::shed_load).
    pub(crate) fn device_changed(&mut self, now: Instant) {
        for slot in 0..self.streams.slot_count() {
            let Some(held) = self.streams.held_of_mut(slot) else { continue };
            held.cost = self.service.nanos_of_stream(&held.spec, held.terms.request);
            self.streams.place(slot, self.device.busy_since(now));
        }
        self.reprice();
    }

    /// Takes advances back and demotes streams until the real-time requests that wait can be served in time: robust earliest deadline (Buttazzo
    /// and Stankovic 1993), because plain EDF under overload makes every stream late in turn. Of those whose requests
    /// stand before the deadline that is in danger (without others it would be as late) the lowest priority goes first,
    /// and of these the newest.
    pub(crate) fn shed_load(&mut self, now: Instant) {
        while self.shortest.is_some() {
            let start = self.device.free_at(now);
            let slack = self.queue.slack(None, start, None);
            if slack >= 0 {
                return;
            }
            let stands_before = |slot: StreamSlot| {
                let first =
                    self.queue.oldest_of(slot, Budget::Reserved).map(|first| self.queue.get(first).key());
                first.is_some_and(|(due, sequence)| {
                    slack < self.queue.slack(Some((due, sequence + 1)), start, None)
                })
            };
            // What was given early was to spare. It is taken back before a stream loses what was promised: of twelve players
            // that began on an aged volume, the last lost its reservation, and never began, because others were to be served early.
            let advanced =
                self.active().filter(|(slot, held)| held.advanced > Duration::ZERO && stands_before(*slot));
            if let Some((slot, _)) = advanced.max_by_key(|(_, held)| held.advanced) {
                self.revoke_advance(now, slot);
                continue;
            }
            let Some(slot) = self.least(stands_before) else { return };
            let lateness = Duration::from_nanos(slack.unsigned_abs());
            let promised_permille = self.utilisation_permille();
            self.demote(now, slot, Why::Congested { promised_permille, lateness });
        }
    }

    /// Takes back what a stream was given earlier than its terms say: what waits is due by these again, and remains wanted as early
    /// as it was.
    fn revoke_advance(&mut self, now: Instant, slot: StreamSlot) {
        let Some(held) = self.streams.held_of_mut(slot) else { return };
        let advance = core::mem::take(&mut held.advanced);
        held.next_release += advance;
        let (mut release, deadline, rate) = (held.next_release, held.terms.deadline, held.spec.rate);
        let oldest = self.queue.oldest_of(slot, Budget::Reserved);
        let all = core::iter::successors(oldest, |queued| self.queue.younger(*queued));
        for queued in all {
            release = release.saturating_before(rate.time_for(self.queue.get(queued).request.length));
        }
        let mut next = oldest;
        while let Some(queued) = next {
            next = self.queue.younger(queued);
            let before = self.queue.remove(queued);
            // One that came before all of the advance was given had less of it.
            let due = (before.deadline + advance).min(release + deadline).max(before.deadline);
            release += rate.time_for(before.request.length);
            self.insert(now, Waiting { deadline: due, ..before });
        }
        self.streams.place(slot, self.device.busy_since(now));
    }

    fn active(&self) -> impl Iterator<Item = (StreamSlot, &Held)> {
        self.streams.held().filter(|(_, held)| held.state == StreamState::Active)
    }

    /// Of the active streams for which it `counts`, the first to give way.
    fn least(&self, counts: impl Fn(StreamSlot) -> bool) -> Option<StreamSlot> {
        let rank = |held: &Held| (held.spec.priority, core::cmp::Reverse(held.number));
        self.active()
            .filter(|(slot, _)| counts(*slot))
            .min_by_key(|(_, held)| rank(held))
            .map(|(slot, _)| slot)
    }

    /// Gives demoted streams their guarantees back, the highest priority first and of these the oldest, when they
    /// fit with a margin and have waited for long enough.
    fn restore(&mut self, now: Instant) {
        loop {
            let demoted = self.streams.held().filter(|(_, held)| held.state == StreamState::Demoted);
            let rank = |held: &Held| (held.spec.priority, core::cmp::Reverse(held.number));
            let Some((slot, held)) = demoted.max_by_key(|(_, held)| rank(held)) else { return };
            let spec = held.spec;
            let waited = now.saturating_since(held.since) >= self.config.restore_after;
            if !waited || self.health.congestion().is_some() {
                return;
            }
            self.collect(None, None);
            self.specs.push(spec);
            let others = self.others(self.config.restore_margin_percent.min(50), self.background_load(now));
            let chosen = self.admission.choose(&self.specs, true, false, &self.service, &self.config, others);
            let Ok(sizing) = chosen else { return };
            self.resize(now, sizing);
            self.activate(now, slot);
            let stream = self.streams.get(slot).id;
            self.journal.record(Event::Restored { at: now, stream });
        }
    }

    /// Once a second: which streams are away, which are back, and how are they all?
    pub(crate) fn review(&mut self, now: Instant) {
        if self.health.next_review().is_none_or(|at| at <= now) {
            self.review_now(now);
        }
    }

    fn review_now(&mut self, now: Instant) {
        let promised = self.utilisation_permille();
        let is_new = self.health.review(now, promised);
        let mut paused = false;
        for slot in 0..self.streams.slot_count() {
            let Some(held) = self.streams.held_of(slot) else { continue };
            let stream = self.streams.get(slot);
            // A stream that asks for much at a time asks seldom. One that has taken ahead of its rate, as after a jump,
            // waits until it is its turn again. So no request for a while is silence only if one was to come.
            let turn = held.next_release.saturating_before(held.terms.period);
            let used = stream.last_used.max(held.since).max(held.terms.since).max(turn);
            let silence = self.config.reservation_timeout.max(held.terms.period * 2);
            let is_away = now.saturating_since(used) >= silence
                && stream.in_flight == 0
                && !self.queue.has_any_of(slot);
            if held.state == StreamState::Active && is_away {
                let id = stream.id;
                if let Some(held) = self.streams.held_of_mut(slot) {
                    (held.state, held.since, held.wanted) = (StreamState::Paused, now, None);
                }
                self.streams.place(slot, now);
                self.journal.record(Event::Paused { at: now, stream: id });
                paused = true;
            }
        }
        if paused {
            self.note_resizing();
            self.reprice();
        }
        if is_new {
            if let Some(why) = self.health.is_late_for_long()
                && let Some(slot) = self.least(|_| true)
            {
                self.demote(now, slot, why);
            }
            self.restore(now);
        }
    }
}
