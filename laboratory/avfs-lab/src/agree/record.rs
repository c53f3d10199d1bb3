//! The simulated side, and what its clients called.

use super::side::{AgreeError, Side};
use rtsched::{Class, Config, Dispatch, DispatchId, Request, RequestId, StreamId, StreamSpec};
use rtsched_sim::device::DeviceSpec;
use rtsched_sim::policy::{Ask, Grant, Notice, Policy, Scheduled};
use rtsched_sim::simulation;
use rtsched_sim::workload::Scenario;
use std::collections::{BTreeSet, HashMap};
use units::{Duration, Instant};

/// What a client called.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// A stream asked to be admitted; whether it was.
    Admit(StreamId, StreamSpec, bool),
    Release(StreamId),
    Enqueue(Request),
    Cancel(RequestId),
}

/// All calls in turn, and what the scheduler was configured with.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) config: Config,
    pub(super) calls: Vec<(Instant, Call)>,
    /// Until when the device's work is counted.
    pub(super) end: Instant,
}

/// Runs a workload before the modelled device.
pub(super) fn simulate(
    scenario: &Scenario,
    device: &DeviceSpec,
    duration: Duration,
    seed: u64,
) -> Result<(Script, Side), AgreeError> {
    let config = simulation::config(scenario, device);
    let mut recorder = Recorder::new(config.clone());
    let outcome =
        simulation::run_with(scenario, device, &mut recorder, "rtsched", seed, duration, &mut |_, _| ());
    if let Some(violation) = outcome.violations.first() {
        let (scenario, violation) = (scenario.name().to_owned(), violation.clone());
        return Err(AgreeError::Simulation { scenario, violation });
    }
    let busy = Duration::from_secs_f64(outcome.utilisation * outcome.duration_s);
    let side = Side { busy, seeks: outcome.seeks, ..recorder.side };
    Ok((Script { config, calls: recorder.calls, end: Instant::ZERO + duration }, side))
}

/// The scheduler of production, with a record of what it is asked.
struct Recorder {
    scheduler: Scheduled,
    config: Config,
    calls: Vec<(Instant, Call)>,
    requests: HashMap<RequestId, Request>,
    flights: HashMap<DispatchId, Dispatch>,
    /// Admitted streams that have not left.
    present: BTreeSet<StreamId>,
    side: Side,
}

impl Recorder {
    fn new(config: Config) -> Self {
        Self {
            scheduler: Scheduled::new(config.clone()),
            config,
            calls: Vec::new(),
            requests: HashMap::new(),
            flights: HashMap::new(),
            present: BTreeSet::new(),
            side: Side { nearest_s: f64::INFINITY, ..Side::default() },
        }
    }

    fn call(&mut self, now: Instant, call: Call) {
        self.calls.push((now, call));
    }
}

impl Policy for Recorder {
    fn enqueue(&mut self, now: Instant, request: Request) {
        self.requests.insert(request.id, request);
        self.call(now, Call::Enqueue(request));
        self.scheduler.enqueue(now, request);
    }

    fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        let dispatch = self.scheduler.dispatch(now)?;
        self.side.commands += 1;
        self.flights.insert(dispatch.id, dispatch.clone());
        Some(dispatch)
    }

    fn complete(&mut self, now: Instant, dispatch: DispatchId) {
        let requests = self.flights.remove(&dispatch).map(|flight| flight.requests).unwrap_or_default();
        for request in requests.iter().filter_map(|id| self.requests.remove(id)) {
            self.side.completed(now, &request);
        }
        self.scheduler.complete(now, dispatch);
    }

    fn cancel(&mut self, now: Instant, id: RequestId) -> bool {
        self.call(now, Call::Cancel(id));
        self.scheduler.cancel(now, id)
    }

    fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.scheduler.next_wakeup(now)
    }

    fn admit(&mut self, now: Instant, ask: &Ask) -> Result<Grant, String> {
        let granted = self.scheduler.admit(now, ask);
        let spec = ask.spec(self.config.request_max);
        self.call(now, Call::Admit(ask.stream, spec, granted.is_ok()));
        self.side.granted(ask.stream, granted.as_ref().ok().copied());
        if granted.is_ok() {
            self.present.insert(ask.stream);
        }
        granted
    }

    fn release(&mut self, now: Instant, stream: StreamId) {
        self.present.remove(&stream);
        self.call(now, Call::Release(stream));
        self.scheduler.release(now, stream);
    }

    fn notices(&mut self, now: Instant) -> Vec<Notice> {
        let notices = self.scheduler.notices(now);
        for notice in &notices {
            if let Notice::Granted(stream, grant)
            | Notice::Restored(stream, grant)
            | Notice::Resumed(stream, grant) = notice
                && self.present.contains(stream)
            {
                self.side.granted(*stream, Some(*grant));
            }
        }
        notices
    }
}

impl Side {
    /// What a stream holds now; not admitted: only if it never was.
    pub(super) fn granted(&mut self, stream: StreamId, grant: Option<Grant>) {
        let held = self.streams.entry(stream).or_default();
        *held = grant.or(*held);
    }

    /// A request is there, whose deadline is by the same clock.
    pub(super) fn completed(&mut self, now: Instant, request: &Request) {
        self.bytes += request.length;
        let Some(deadline) = request.deadline.filter(|_| request.class == Class::RealTime) else { return };
        self.promised += 1;
        self.late += u64::from(now > deadline);
        let left =
            deadline.saturating_since(now).as_secs_f64() - now.saturating_since(deadline).as_secs_f64();
        self.nearest_s = self.nearest_s.min(left);
    }
}
