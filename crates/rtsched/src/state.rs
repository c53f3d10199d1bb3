//! What a scheduler knows, and the steps that more than one of its rooms takes.
//!
//! **For:** the one struct, and what keeps it whole: a request enters the queue, prices and shares follow what the device takes. **Excludes:**
//! decisions: what is reserved is [`policing`](crate::policing)'s, what is promised [`reserve`](crate::reserve)'s, what goes next
//! [`scheduler`](crate::scheduler)'s. **State:** all of it. **Invariants:** it calls none of these rooms.

use crate::admission::Admission;
use crate::config::Config;
use crate::device::Device;
use crate::event::{Event, Journal};
use crate::floors::Floors;
use crate::health::Health;
use crate::lateness::History;
use crate::merge::Run;
use crate::queue::{Budget, Queue, StreamSlot, Waiting};
use crate::request::{Class, DispatchId, Request};
use crate::service::ServiceModel;
use crate::slack::{Expected, Usable};
use crate::stream::StreamSpec;
use crate::streams::Streams;
use crate::unpromised::Unpromised;
use alloc::vec::Vec;
use units::{DeviceOffset, Duration, Instant, nanos};

/// The state machine: one for each device. See the crate's documentation.
///
/// Calls take `now`, which must not go back from one call to the next. None of them waits for anything.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) queue: Queue,
    pub(crate) floors: Floors,
    pub(crate) service: ServiceModel,
    pub(crate) device: Device,
    pub(crate) admission: Admission,
    pub(crate) streams: Streams,
    pub(crate) health: Health,
    pub(crate) unpromised: Unpromised,
    /// The shortest deadline of the active streams.
    pub(crate) shortest: Option<Duration>,
    /// Some stream reads further ahead than before, so that pieces are not always kept together.
    pub(crate) is_resizing: bool,
    pub(crate) journal: Journal,
    /// What explains why something was late.
    pub(crate) history: History,
    /// Where the last command ended.
    pub(crate) arm: DeviceOffset,
    /// Where the last long write ended.
    pub(crate) written_to: DeviceOffset,
    /// When pictures would have had what they had, had they had no more than their part.
    pub(crate) interactive_clock: Instant,
    /// The next turn of best effort that belongs to no stream.
    pub(crate) turn: Instant,
    /// The shortest time a real-time request had until its deadline, and until when that counts.
    pub(crate) tightest: Option<(Duration, Instant)>,
    /// The last command that was preferred to an earlier deadline, and when.
    pub(crate) preferred: Option<(DispatchId, Instant)>,
    pub(crate) next_sequence: u64,
    pub(crate) next_dispatch: u64,
    /// The command that is being made; kept for its memory.
    pub(crate) run: Run,
    /// Kept for their memory.
    pub(crate) specs: Vec<StreamSpec>,
}

impl Scheduler {
    /// An idle scheduler, which knows of the device what `config` says.
    pub fn new(config: Config) -> Self {
        let floors = Floors::new(&config);
        let usable = Usable::holding_back(floors.total());
        Self {
            queue: Queue::new(usable, usable),
            floors,
            service: ServiceModel::of(&config),
            device: Device::default(),
            admission: Admission::new(&config),
            streams: Streams::new(),
            health: Health::default(),
            unpromised: Unpromised::default(),
            shortest: None,
            is_resizing: false,
            journal: Journal::new(config.event_capacity),
            history: History::new(),
            arm: DeviceOffset(0),
            written_to: DeviceOffset(0),
            interactive_clock: Instant::ZERO,
            turn: Instant::ZERO,
            tightest: None,
            preferred: None,
            next_sequence: 0,
            next_dispatch: 0,
            run: Run::new(),
            specs: Vec::new(),
            config,
        }
    }

    /// What an administrator has set, as far as it holds.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn latency(&self, class: Class) -> Duration {
        match class {
            Class::RealTime | Class::Metadata => self.config.metadata_latency,
            Class::BestEffort => self.config.best_effort_latency,
            Class::Idle => self.config.idle_latency,
        }
    }

    /// Best effort is due when it has its turn. While all of it can be served in time that is what it bears to wait.
    /// When some is late, it is late for all, but no request waits behind all that another client has asked for. Each
    /// stream, and what belongs to none, has its turns at distances of what they cost (start-time fair queueing: Goyal,
    /// Vin and Cheng 1996, section 2). Half of the cost: so a client that has the device for itself is never ahead of
    /// the clock.
    pub(crate) fn take_turn(&mut self, now: Instant, waiting: &mut Waiting) {
        let first = self.queue.first(Class::BestEffort).map(|slot| self.queue.get(slot).deadline);
        let next = first.filter(|due| *due < now).unwrap_or(now + self.config.best_effort_latency);
        let turn = self.turn_after(waiting.owner);
        waiting.deadline = next.max(*turn);
        *turn = waiting.deadline + Duration::from_nanos(waiting.cost / 2);
        waiting.has_turn = true;
    }

    /// What has taken a turn and does without it leaves it to what its stream asks for later.
    pub(crate) fn give_turn_back(&mut self, waiting: &Waiting) {
        if waiting.has_turn {
            let turn = self.turn_after(waiting.owner);
            *turn = turn.saturating_before(Duration::from_nanos(waiting.cost / 2));
        }
    }

    /// The next turn of a stream, or of what belongs to none.
    fn turn_after(&mut self, owner: Option<StreamSlot>) -> &mut Instant {
        match owner {
            Some(owner) => &mut self.streams.get_mut(owner).turn,
            None => &mut self.turn,
        }
    }

    pub(crate) fn insert(&mut self, now: Instant, waiting: Waiting) {
        let class = waiting.request.class;
        if class == Class::RealTime {
            self.note_tightness(now, waiting.deadline, waiting.cost);
        } else if self.queue.count(class) == 0 {
            self.floors.begins(class, self.device.free_at(now));
        }
        self.queue.insert(waiting);
    }

    /// Queues a request of real time if every such deadline then holds, also those to come, with so many nanoseconds to
    /// spare.
    pub(crate) fn fits(&mut self, now: Instant, wanted: Waiting, spare: u64) -> bool {
        let slot = self.queue.insert(wanted);
        let expected = self.expected(now);
        let spare = i64::try_from(spare).unwrap_or(i64::MAX);
        let slack = self.queue.slack_if(None, self.device.free_at(now), expected.as_ref(), spare);
        let fits = slack >= spare;
        if fits {
            self.note_tightness(now, wanted.deadline, wanted.cost);
        } else {
            self.queue.remove(slot);
        }
        fits
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

    /// Nanoseconds that are kept between what is expected and the deadlines.
    pub(crate) fn cushion(&self) -> u64 {
        self.shortest.map_or(0, |time| percent_of(time, self.config.cushion_percent.min(50)))
    }

    /// What admitted streams will ask for. Counted from the last completion, not from `now`, so that the answer to
    /// which request may go next does not improve by waiting.
    pub(crate) fn expected(&self, now: Instant) -> Option<Expected> {
        self.shortest?;
        self.streams.expected(self.device.busy_since(now))
    }

    pub(crate) fn blocking_percent(&self) -> u32 {
        self.config.blocking_percent.clamp(1, 100)
    }

    /// Reckons a request's costs.
    pub(crate) fn price(&self, waiting: &mut Waiting) {
        (waiting.cost, waiting.whole) = price(&self.service, &self.streams, waiting);
    }

    /// Gives everything queued the costs and shares that hold now.
    pub(crate) fn reprice(&mut self) {
        let streams = self.streams.millionths();
        self.floors.set_base(match self.config.floor_base {
            crate::FloorBase::Device => 1_000_000,
            crate::FloorBase::Remainder => 1_000_000 - streams.min(1_000_000),
        });
        let floors = self.floors.total();
        self.shortest = self.streams.shortest_deadline();
        let (near, far) = (Usable::holding_back(floors), Usable::holding_back(floors + streams));
        let (service, streams) = (&self.service, &self.streams);
        self.queue.revise(near, far, |waiting| price(service, streams, waiting));
    }

    /// The share of the device's time that active streams are promised, in thousandths, rounded up.
    pub fn utilisation_permille(&self) -> u32 {
        u32::try_from(self.streams.millionths().div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// A stream has read as far ahead as it should: its requests become as long as they should.
    pub(crate) fn grow(&mut self, now: Instant, slot: StreamSlot) {
        let Some(held) = self.streams.held_of_mut(slot) else { return };
        let Some((request, _)) = held.wanted.take() else { return };
        held.next_release = held.next_release.max(now);
        if request != held.terms.request {
            held.terms.request = request;
            held.terms.period = held.spec.rate.time_for(request);
            held.cost = self.service.nanos_of_stream(&held.spec, request);
            let terms = held.terms;
            let stream = self.streams.get(slot).id;
            self.journal.record(Event::Resized { at: now, stream, terms });
        }
        self.streams.place(slot, self.device.busy_since(now));
        self.note_resizing();
        self.reprice();
    }

    pub(crate) fn note_resizing(&mut self) {
        self.is_resizing = self.streams.held().any(|(_, held)| held.wanted.is_some());
    }
}

/// Nanoseconds a request takes, and the command it starts.
pub(crate) fn price(service: &ServiceModel, streams: &Streams, waiting: &Waiting) -> (u64, u64) {
    let Request { direction, offset, length, .. } = waiting.request;
    if waiting.continues {
        let cost = service.transfer_nanos(direction, offset, length);
        return (cost, cost);
    }
    let cost = service.nanos(direction, offset, length);
    let held = waiting.owner.filter(|_| waiting.budget == Budget::Reserved);
    let held = held.and_then(|owner| streams.held_of(owner));
    // Pieces that may follow it are priced by themselves; the command has room for as much as was promised.
    (cost, held.map_or(cost, |held| cost.max(held.cost)))
}

/// So many nanoseconds are `percent`, at most 100, of `time`, which is at most 584 years. In 64 bits, because 128 have to
/// be divided by a loop.
pub(crate) fn percent_of(time: Duration, percent: u32) -> u64 {
    let (nanos, percent) = (nanos(time), u64::from(percent));
    nanos / 100 * percent + nanos % 100 * percent / 100
}
