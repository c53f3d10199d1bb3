//! What is at the device.
//!
//! **For:** when the device will be through, how long each command held it, and whether one more may join.
//! **Excludes:** the queue. **State:** the commands in flight. **Invariants:** the device is reckoned with as
//! serving one command after another; where it serves several at once, the time between completions is what a
//! command costs, and that is what the service model learns. What a cache takes faster than it writes is its debt, and paid
//! while the device has nothing else to do. Steady state allocates nothing.

use crate::queue::StreamSlot;
use crate::request::{Class, Direction, DispatchId, RequestId, StreamId};
use crate::writeback_debt::DEBT_MAX;
use crate::zones::Distance;
use alloc::vec::Vec;
use units::{Bytes, DeviceOffset, Duration, Instant, nanos};

/// What no client waits for may leave a cache with so much to write, at most: a jump waits for it. An operator's
/// target.
const DEBT_MAX_UNWAITED: Duration = Duration::from_millis(200);

/// One request of a command in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) id: RequestId,
    pub(crate) class: Class,
    pub(crate) deadline: Instant,
    pub(crate) length: Bytes,
    pub(crate) stream: Option<StreamId>,
    pub(crate) owner: Option<StreamSlot>,
    /// It drew on its stream's reservation.
    pub(crate) is_reserved: bool,
    /// It was asked for as real time, whatever it was served as.
    pub(crate) is_wanted_in_time: bool,
    pub(crate) arrived: Instant,
    pub(crate) blocker: Option<DispatchId>,
}

/// One command in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) members: Vec<Member>,
    pub(crate) direction: Direction,
    pub(crate) offset: DeviceOffset,
    pub(crate) length: Bytes,
    pub(crate) distance: Distance,
    /// Nanoseconds, by the service model.
    pub(crate) cost: u64,
    /// The same from where the device was when it was given, and of it before the first byte.
    pub(crate) estimate: u64,
    pub(crate) access: u64,
    pub(crate) dispatched: Instant,
    /// Nanoseconds for which the device served others that came later.
    pub(crate) overtaken: u64,
    /// Nanoseconds it takes to write, of a write that a cache may take and write later; else 0.
    pub(crate) deferred: u64,
}

impl Flight {
    pub(crate) fn new() -> Self {
        Self {
            members: Vec::new(),
            direction: Direction::Flush,
            offset: DeviceOffset(0),
            length: Bytes::ZERO,
            distance: Distance::Far,
            cost: 0,
            estimate: 0,
            access: 0,
            dispatched: Instant::ZERO,
            overtaken: 0,
            deferred: 0,
        }
    }

    /// The earliest deadline it promised to keep.
    fn guaranteed(&self) -> Option<Instant> {
        let promised = self.members.iter().filter(|member| member.class == Class::RealTime);
        promised.map(|member| member.deadline).min()
    }

    /// The device prefers others to it: it served them for longer than this one takes.
    fn is_starving(&self) -> bool {
        self.overtaken > self.cost
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    /// In order of dispatch, which is that of the names.
    flights: Vec<(DispatchId, Flight)>,
    /// What is to be used again, with its memory.
    spare: Vec<Flight>,
    /// In order.
    guaranteed: Vec<(Instant, DispatchId)>,
    /// The last completion, or the dispatch that ended idleness.
    busy_since: Instant,
    /// Nanoseconds of all commands in flight together.
    outstanding: u64,
    /// Of these, those for which it is known to have worked before the last completion: that was of one that came later.
    worked: u64,
    /// The earliest guaranteed deadline among the commands to which the device prefers others.
    starving: Option<Instant>,
    /// Nanoseconds by which writes were taken faster than the device writes: it has them still to do.
    debt: i64,
    /// The same after the last write, less what the device was idle for since.
    debt_peak: i64,
    /// It has been seen to take writes in this way.
    defers_writes: bool,
    /// Writes in flight that a cache may take.
    deferred_flights: u32,
}

impl Device {
    pub(crate) fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    pub(crate) fn newest(&self) -> Option<DispatchId> {
        self.flights.last().map(|(id, _)| *id)
    }

    /// When all that is in flight will have completed, at the earliest `now`.
    pub(crate) fn free_at(&self, now: Instant) -> Instant {
        if self.flights.is_empty() { now } else { now.max(self.planned()) }
    }

    /// Since when it works without a completion; `now` when it does not work.
    pub(crate) fn busy_since(&self, now: Instant) -> Instant {
        if self.flights.is_empty() { now } else { self.busy_since }
    }

    /// When it will also have written what it has taken before it was written.
    pub(crate) fn settled_at(&self, now: Instant) -> Instant {
        let debt = Duration::from_nanos(u64::try_from(self.debt).unwrap_or(0));
        if self.flights.is_empty() { now.max(self.busy_since + debt) } else { self.free_at(now) + debt }
    }

    /// When it has so little left to write of what it has taken that it may take more that no client waits for.
    pub(crate) fn may_defer_at(&self, now: Instant) -> Instant {
        self.settled_at(now).saturating_before(DEBT_MAX_UNWAITED)
    }

    /// Whether it takes writes before it has written them.
    pub(crate) fn defers_writes(&self) -> bool {
        self.defers_writes
    }

    /// Whether it has something to write that it has taken, or is taking it.
    pub(crate) fn is_settling(&self, now: Instant) -> bool {
        self.deferred_flights > 0 || self.settled_at(now) > self.free_at(now)
    }

    /// Whether it has something else to do than to take writes.
    pub(crate) fn has_others_than_deferred(&self) -> bool {
        self.in_flight() > self.deferred_flights
    }

    fn planned(&self) -> Instant {
        self.busy_since + Duration::from_nanos(self.outstanding - self.worked)
    }

    /// May a command that takes `cost` join? A command at the device cannot be called back, so a request that comes
    /// next waits for all of them: together they stay within `blocking` nanoseconds. And since a device serves what it
    /// has in the order it likes, a deadline in flight must bear the newcomer before it, unless it is lost anyway.
    /// Behind a command to which the device has preferred others (an array's writes wait in this way for reads to end)
    /// no command joins that leaves it less than a `cushion` of nanoseconds.
    pub(crate) fn has_room(&self, cost: u64, blocking: u64, cushion: u64) -> bool {
        if self.flights.is_empty() {
            return true;
        }
        let planned = self.planned();
        let end = planned + Duration::from_nanos(cost);
        let tightest = self.guaranteed.partition_point(|(due, _)| *due < planned);
        self.outstanding.saturating_add(cost) <= blocking
            && self.starving.is_none_or(|due| end + Duration::from_nanos(cushion) <= due)
            && self.guaranteed.get(tightest).is_none_or(|(due, _)| end <= *due)
    }

    /// A flight without members, to be filled and [started](Self::start).
    pub(crate) fn prepare(&mut self) -> Flight {
        self.spare.pop().unwrap_or_else(Flight::new)
    }

    pub(crate) fn start(&mut self, now: Instant, id: DispatchId, flight: Flight) {
        if self.flights.is_empty() {
            let idle = now.saturating_since(self.busy_since);
            let idle = i64::try_from(idle.as_nanos()).unwrap_or(i64::MAX);
            self.debt = self.debt.saturating_sub(idle).max(self.debt.min(0));
            self.debt_peak = self.debt_peak.saturating_sub(idle).max(0);
            (self.busy_since, self.outstanding) = (now, 0);
        }
        self.outstanding += flight.cost;
        self.deferred_flights += u32::from(flight.deferred > 0);
        if let Some(due) = flight.guaranteed() {
            let place = self.guaranteed.partition_point(|other| *other < (due, id));
            self.guaranteed.insert(place, (due, id));
        }
        self.flights.push((id, flight));
        // Room to put every flight aside without allocating.
        self.spare.reserve(self.flights.len());
    }

    /// Takes a command out; with it, the time for which the device worked since the completion before, or since it was
    /// idle. Not since this command's dispatch: what the device did before it for another one, which is still there,
    /// would be charged to none. To be [put aside](Self::put_aside).
    pub(crate) fn finish(&mut self, now: Instant, id: DispatchId) -> Option<(Flight, Duration)> {
        let place = self.flights.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        let (_, flight) = self.flights.remove(place);
        if let Some(due) = flight.guaranteed() {
            self.guaranteed.retain(|other| *other != (due, id));
        }
        let service = now.saturating_since(self.busy_since);
        // What it did for this one it did after it came.
        let overtook = nanos(now.saturating_since(flight.dispatched.max(self.busy_since)));
        for (_, earlier) in &mut self.flights[..place] {
            earlier.overtaken = earlier.overtaken.saturating_add(overtook);
        }
        let starving = self.flights.iter().filter(|(_, flight)| flight.is_starving());
        self.starving = starving.filter_map(|(_, flight)| flight.guaranteed()).min();
        self.keep_account(&flight, service);
        self.worked = self.worked_without(&flight, place);
        self.outstanding -= flight.cost;
        self.busy_since = now.max(self.busy_since);
        Some((flight, service))
    }

    /// What the device has worked, at `place` in whose line a command was, for those that are left. A controller
    /// answers a small write while it reads for another command: that one was begun when the write came, and is not to
    /// be done once more. The first in line ends what was begun.
    fn worked_without(&self, flight: &Flight, place: usize) -> u64 {
        let Some((_, first)) = self.flights.first().filter(|_| place > 0) else { return 0 };
        // What it did before this one came was for others, and what it did since may have been for this one.
        let for_others = nanos(flight.dispatched.saturating_since(self.busy_since));
        let shared = nanos(self.busy_since.saturating_since(flight.dispatched));
        let for_this = self.worked.min(flight.cost).min(shared);
        (self.worked - for_this).saturating_add(for_others).min(first.cost)
    }

    /// What a write took less than it should is still to be done, and what others take more is for that.
    fn keep_account(&mut self, flight: &Flight, service: Duration) {
        let signed = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
        let service = i64::try_from(service.as_nanos()).unwrap_or(i64::MAX);
        let none = self.debt.min(0);
        self.deferred_flights -= u32::from(flight.deferred > 0);
        if flight.deferred > 0 {
            let left = signed(flight.deferred).saturating_sub(service);
            // Of commands on which it works at once, the first shows what all took.
            let least = none.min(-signed(self.outstanding));
            self.debt = self.debt.saturating_add(left).clamp(least, i64::from(DEBT_MAX));
            self.debt_peak = self.debt;
            self.defers_writes |= self.debt > signed(flight.deferred) / 4;
        } else if flight.direction == Direction::Flush {
            // One that had to wait for the cache has emptied it. With a battery it waits for nothing, and says nothing.
            let has_waited = service >= self.debt / 5;
            self.debt = if has_waited { none } else { self.debt.saturating_sub(service) };
            self.debt_peak = self.debt.max(0);
        } else {
            let left = signed(flight.cost).saturating_sub(service);
            // What is written between others takes twice as long as in one piece. They make no debt themselves.
            self.debt = self.debt.saturating_add(left / 2).clamp(none, self.debt_peak.max(none));
        }
    }

    pub(crate) fn put_aside(&mut self, mut flight: Flight) {
        flight.members.clear();
        self.spare.push(flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    #[test]
    fn what_a_cache_takes_at_once_is_lent_until_it_has_had_the_time() {
        let at = |ms: u64| Instant::from_nanos(ms * MILLI);
        let (mut device, mut id) = (Device::default(), 0);
        let mut serve = |device: &mut Device, is_deferred, start, cost, end| {
            id += 1;
            device.start(
                at(start),
                DispatchId(id),
                Flight {
                    direction: if is_deferred { Direction::Write } else { Direction::Read },
                    deferred: if is_deferred { cost * MILLI } else { 0 },
                    cost: cost * MILLI,
                    ..Flight::new()
                },
            );
            device.finish(at(end), DispatchId(id)).expect("it is at the device");
        };
        let settled = |device: &Device, now| device.settled_at(at(now)).as_nanos() / MILLI;
        // A write that takes what it should, or a read that takes less, makes no debt.
        serve(&mut device, true, 0, 100, 100);
        serve(&mut device, false, 100, 100, 140);
        assert_eq!((settled(&device, 140), device.defers_writes()), (140, false));
        // 100 ms are taken in 20, and the device has had 30 of the rest when a read comes that takes 20 more than it should.
        serve(&mut device, true, 200, 100, 220);
        assert_eq!(
            (settled(&device, 220), device.is_settling(at(299)), device.defers_writes()),
            (300, true, true)
        );
        serve(&mut device, false, 250, 50, 320);
        assert_eq!(settled(&device, 320), 360);
        // One that takes less gives that back, but no more than there was.
        serve(&mut device, false, 320, 200, 330);
        assert_eq!(settled(&device, 330), 380);
        assert!(!device.is_settling(at(380)));
    }

    #[test]
    fn a_flush_that_waited_for_the_cache_has_emptied_it() {
        // A disk without a battery was left without a command for a quarter of the time: what flushes had written long ago
        // was still reckoned as to be written.
        let after_flush_of = |ms: u64| {
            let mut device = Device::default();
            let at = |ms: u64| Instant::from_nanos(ms * MILLI);
            let write = Flight { deferred: 200 * MILLI, cost: 200 * MILLI, ..Flight::new() };
            device.start(at(0), DispatchId(1), write);
            device.finish(at(100), DispatchId(1)).expect("it is at the device");
            device.start(at(100), DispatchId(2), Flight { direction: Direction::Flush, ..Flight::new() });
            device.finish(at(100 + ms), DispatchId(2)).expect("it is at the device");
            device.settled_at(at(100 + ms)).as_nanos() / MILLI
        };
        assert_eq!(after_flush_of(20), 120);
        assert_eq!(after_flush_of(19), 200);
        // With a battery.
        assert_eq!(after_flush_of(0), 200);
    }

    /// A log write came 180 ms into a read of 400 ms and was answered at once, and the read was reckoned as 400 ms from then on:
    /// a recorder was demoted for lateness that there was not.
    #[test]
    fn what_was_worked_for_a_command_is_not_to_be_done_again_when_a_later_one_ends_first() {
        let at = |ms: u64| Instant::from_nanos(ms * MILLI);
        let (mut device, mut id) = (Device::default(), 0);
        let mut start = |device: &mut Device, ms: u64, cost: u64| {
            id += 1;
            let flight = Flight { dispatched: at(ms), cost: cost * MILLI, ..Flight::new() };
            device.start(at(ms), DispatchId(id), flight);
            DispatchId(id)
        };
        let finish = |device: &mut Device, ms: u64, id: DispatchId| {
            device.finish(at(ms), id).expect("it is at the device");
            device.free_at(at(ms)).as_nanos() / MILLI
        };
        let long = start(&mut device, 0, 400);
        let next = start(&mut device, 0, 100);
        for (ms, free) in [(180, 501), (300, 502)] {
            let small = start(&mut device, ms, 5);
            assert_eq!(finish(&mut device, ms + 1, small), free);
        }
        // It takes 50 ms longer than it should: so does what comes after it, and what was worked was for it alone.
        let late = start(&mut device, 440, 5);
        assert_eq!(finish(&mut device, 441, late), 541);
        assert_eq!(finish(&mut device, 450, long), 550);
        // A later one may be the one that was worked for: then so much is left of the first.
        let other = start(&mut device, 450, 60);
        let small = start(&mut device, 470, 5);
        assert_eq!(finish(&mut device, 470, small), 610);
        assert_eq!(finish(&mut device, 480, other), 580);
        assert_eq!(finish(&mut device, 560, next), 560);
    }

    fn flight(dispatched: Instant) -> Flight {
        Flight { dispatched, cost: 1, ..Flight::new() }
    }

    #[test]
    fn the_time_of_commands_adds_up_to_that_in_which_the_device_worked_whichever_overtakes() {
        // A read of 400 ms, a write that a cache takes meanwhile, a pause, another read.
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut device = Device::default();
        device.start(at(0), DispatchId(1), flight(at(0)));
        device.start(at(390), DispatchId(2), flight(at(390)));
        let mut took = |ms, id| {
            device.finish(at(ms), DispatchId(id)).expect("it is at the device").1.as_nanos() / 1_000_000
        };
        assert_eq!([took(395, 2), took(400, 1)], [395, 5]);
        device.start(at(600), DispatchId(3), flight(at(600)));
        assert_eq!(
            device.finish(at(650), DispatchId(3)).expect("it is at the device").1,
            Duration::from_millis(50)
        );
    }
}
