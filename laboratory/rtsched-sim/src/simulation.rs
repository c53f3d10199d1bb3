//! Virtual time.
//!
//! **For:** running one scenario under one policy: a way to the files for its clients, behind which are the scheduler and a
//! modelled device. **Excludes:** what clients want and whether they are late, what devices take, who goes first. **State:**
//! device, streams and stage of one run. **Invariants:** time goes on only to the next event; a policy that keeps requests from
//! an idle device says until when.

use crate::calibration::{read_ends, start_values, write_times};
use crate::loose::Loose;
use crate::oracle::{Load, Oracle};
use crate::policy::baseline::Baseline;
use crate::policy::{Ask, Notice, Policy, PolicyName, Scheduled};
use crate::report::{Outcome as RunOutcome, Refusal, StreamOutcome};
use crate::stage::{BEST_EFFORT, Client as Requester, METADATA, STREAMS, Stage, UNADMITTED, seconds};
pub use crate::stage::{Happening, Observer};
use crate::stream::{Stream, file_of};
use crate::workload::{Scenario, ScenarioError};
use avfs_model::device::{Command, Completion, Device, DeviceSpec};
use avfs_workloads as workloads;
use avfs_workloads::{
    Answer, Client, ClientReport, ClientSpec, Member, Operation, Outcome, Refused, Transport, TransportError,
};
use rtsched::{Calibrated, Class, Config, DispatchId, StreamId};
use thiserror::Error;
use units::{Bytes, Duration, Instant};

/// What a client asks for at once, bytes, at most.
const LARGEST: u32 = 64 << 20;

/// Runs a scenario.
///
/// # Errors
/// When its device is not declared.
pub fn run(
    scenario: &Scenario,
    policy: PolicyName,
    seed: u64,
    duration: Duration,
) -> Result<RunOutcome, ScenarioError> {
    run_observed(scenario, policy, seed, duration, &mut |_, _| ())
}

/// Runs a scenario and tells everything that happens.
///
/// # Errors
/// When its device is not declared.
pub fn run_observed<'a>(
    scenario: &'a Scenario,
    policy: PolicyName,
    seed: u64,
    duration: Duration,
    observer: &'a mut Observer<'a>,
) -> Result<RunOutcome, ScenarioError> {
    let device = scenario.device()?;
    let request = Bytes::from_kib(scenario.simulated().baseline_request_kib);
    let mut policy_box: Box<dyn Policy> = match Baseline::new(policy, request) {
        Some(baseline) => Box::new(baseline),
        None => Box::new(Scheduled::new(config(scenario, &device))),
    };
    Ok(run_with(scenario, &device, policy_box.as_mut(), policy.as_str(), seed, duration, observer))
}

/// The configuration of production, but for what the scenario says and what was measured on the device.
pub fn config(scenario: &Scenario, device: &DeviceSpec) -> Config {
    let spec = scenario.simulated();
    let [read, write, flush] = start_values(device);
    let mut config = Config {
        read,
        read_ends: Some(read_ends(device)),
        write,
        write_times: Some(write_times(device)),
        flush,
        calibrated: Calibrated::All,
        buffer_memory: Bytes::from_mib(spec.memory_mib),
        request_max: Bytes::from_kib(spec.largest_request_kib),
        device_size: device.capacity(),
        ..Config::default()
    };
    if spec.queue_depth > 0 {
        config.queue_depth = spec.queue_depth;
    }
    if let Some([metadata, best_effort, idle]) = spec.floors_percent {
        config.metadata_floor_percent = metadata;
        config.best_effort_floor_percent = best_effort;
        config.idle_floor_percent = idle;
    }
    config
}

/// Runs a scenario on any device under any policy.
pub fn run_with<'a>(
    scenario: &'a Scenario,
    device: &DeviceSpec,
    policy: &'a mut dyn Policy,
    name: &str,
    seed: u64,
    duration: Duration,
    observer: &'a mut Observer<'a>,
) -> RunOutcome {
    let memory = Bytes::from_mib(scenario.simulated().memory_mib);
    let longest = Bytes::from_kib(scenario.simulated().largest_request_kib);
    let specs = specs(scenario, seed, device.capacity());
    let stage = Stage::new(policy, device.capacity(), observer);
    let mut simulation = Simulation {
        scenario,
        device: Device::new(device, seed),
        oracle: Oracle::new(device, memory, longest),
        members: Vec::new(),
        streams: Vec::new(),
        zones: Vec::new(),
        loose: Loose::new(seed),
        stage,
        outcomes: Vec::new(),
        completions: Vec::new(),
        refusals: Vec::new(),
        latencies: Default::default(),
        bytes: [Bytes::ZERO; 4],
        most_in_flight: 0,
        idle: Duration::ZERO,
    };
    simulation.prepare(device, &specs, seed);
    let mut clients: Vec<Client> = specs.iter().map(|(_, spec)| Client::new(spec)).collect();
    // A run that went wrong ends at once, and its violations say why.
    if let Ok(reports) = avfs_workloads::run(&mut simulation, &mut clients, duration, |_, _| ()) {
        simulation.settle(&reports);
    }
    simulation.finish(name, device, seed, duration)
}

/// The clients, with files as long as the device has room for.
fn specs(scenario: &Scenario, seed: u64, capacity: Bytes) -> Vec<(Member, ClientSpec)> {
    let experiment = scenario.experiment();
    let members = avfs_workloads::members(experiment, experiment.most);
    // Places are spread by small numbers.
    let seed = (seed % 1024) as u32;
    let (specs, _) = avfs_workloads::clients_alone(scenario.declaration(), experiment, experiment.most, seed);
    let with_file = |((member, _), spec): ((Member, u32), ClientSpec)| {
        let clip = file_of(&spec.pattern, scenario.group(member).1, capacity);
        (member, ClientSpec { clip, ..spec })
    };
    std::iter::zip(members, specs).map(with_file).collect()
}

/// Something is wrong with the policy.
#[derive(Debug, Error)]
#[error("the policy does what must not happen")]
struct Violated;

struct Simulation<'a> {
    scenario: &'a Scenario,
    device: Device,
    oracle: Oracle,
    /// Of each client, whether it is a stream.
    members: Vec<Of>,
    streams: Vec<Stream>,
    /// What the place of each one's file adds to a byte that is read, seconds.
    zones: Vec<f64>,
    loose: Loose,
    stage: Stage<'a>,
    /// Not yet told to the clients.
    outcomes: Vec<Outcome>,
    completions: Vec<Completion>,
    refusals: Vec<Refusal>,
    /// Nanoseconds from enqueueing to completion, of requests without a guarantee, by owner.
    latencies: [Latencies; 4],
    /// Completed, by owner.
    bytes: [Bytes; 4],
    most_in_flight: usize,
    /// The device had nothing to do, although requests waited.
    idle: Duration,
}

/// What the simulator knows a client as.
#[derive(Clone, Copy, Debug)]
enum Of {
    Stream(usize),
    /// With files so long.
    Loose(Bytes),
}

/// How long requests of one kind took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    /// The longest, and what one in a hundred exceeds, milliseconds.
    pub(crate) fn max_and_p99_ms(&mut self) -> Option<(f64, f64)> {
        self.0.sort_unstable();
        let at = |part: usize| self.0.get(part).map(|nanos| *nanos as f64 / 1e6);
        let count = self.0.len();
        Some((at(count.checked_sub(1)?)?, at((count * 99 / 100).min(count - 1))?))
    }
}

impl Transport for Simulation<'_> {
    fn now(&self) -> Instant {
        self.stage.now
    }

    fn largest(&self) -> u32 {
        LARGEST
    }

    fn submit(&mut self, ask: workloads::Ask) -> Result<(), TransportError> {
        let workloads::Ask { client, tag, operation } = ask;
        match self.members[client] {
            Of::Stream(index) => self.stream_asks(index, tag, &operation),
            Of::Loose(longest) => {
                let answered = self.loose.begin(&mut self.stage, (client, tag), operation, longest);
                self.outcomes.extend(answered);
            }
        }
        Ok(())
    }

    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
        while self.outcomes.is_empty() && self.stage.now < until {
            self.step(until);
            if !self.stage.violations.is_empty() {
                return Err(TransportError::new(Violated));
            }
        }
        outcomes.append(&mut self.outcomes);
        Ok(())
    }

    fn counted(&mut self, client: usize, report: &ClientReport) {
        let Of::Stream(index) = self.members[client] else { return };
        let units = self.streams[index].counted(report);
        if units > 0 {
            self.stage.tell(&Happening::Late { stream: StreamId(index as u64), units });
        }
    }
}

impl Simulation<'_> {
    fn prepare(&mut self, device: &DeviceSpec, specs: &[(Member, ClientSpec)], seed: u64) {
        for (client, (member, spec)) in specs.iter().enumerate() {
            if !spec.pattern.is_stream() {
                self.members.push(Of::Loose(spec.clip));
                continue;
            }
            let numbers = (self.streams.len(), client);
            self.members.push(Of::Stream(numbers.0));
            let stream = Stream::new(numbers, self.scenario.group(*member), spec, self.stage.capacity, seed);
            self.zones.push(device.zone_seconds_per_byte(&stream.pieces_of_file()));
            self.streams.push(stream);
        }
    }

    /// Time goes on to the next thing that happens.
    fn step(&mut self, until: Instant) {
        self.dispatch();
        let wakeup = self.stage.policy.next_wakeup(self.stage.now);
        let device = self.device.next_event();
        // A device that has no command may have something to write; and a policy may wait for that, until it says.
        let is_waiting = self.stage.in_flight() == 0 && self.stage.queued() > 0;
        if is_waiting && wakeup.is_none() {
            let queued = self.stage.queued();
            self.stage.violations.push(format!("the device is idle and {queued} requests wait"));
            return;
        }
        let next = [wakeup, device, self.stage.next_alarm()].into_iter().flatten().min();
        let next = next.map_or(until, |next| next.min(until)).max(self.stage.now);
        if is_waiting && device.is_none() {
            self.idle += next.saturating_since(self.stage.now);
        }
        self.stage.now = next;
        self.device.advance(next, &mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            self.complete(DispatchId(completion.tag));
        }
        while let Some((client, alarm)) = self.stage.take_alarm() {
            if let Requester::Stream(index) = client {
                self.streams[index].wake(&mut self.stage, alarm, &mut self.outcomes);
            }
        }
        self.take_notices();
    }

    fn dispatch(&mut self) {
        while let Some((dispatch, owner)) = self.stage.dispatch() {
            self.most_in_flight = self.most_in_flight.max(self.stage.in_flight());
            let command = Command {
                tag: dispatch.id.0,
                owner,
                direction: dispatch.direction,
                offset: dispatch.offset,
                length: dispatch.length,
            };
            self.device.submit(self.stage.now, command);
        }
    }

    fn complete(&mut self, id: DispatchId) {
        for pending in self.stage.complete(id) {
            self.bytes[pending.owner] += pending.length;
            if pending.class != Class::RealTime {
                let nanos = self.stage.now.saturating_since(pending.enqueued).as_nanos();
                self.latencies[pending.owner].0.push(u64::try_from(nanos).unwrap_or(u64::MAX));
            }
            match pending.client {
                Requester::Stream(index) => {
                    self.streams[index].completed(&mut self.stage, pending.mark, &mut self.outcomes);
                    if self.streams[index].has_closed() {
                        self.leave(index);
                    }
                }
                Requester::Loose => self.outcomes.extend(self.loose.completed(pending.mark)),
            }
        }
    }

    fn stream_asks(&mut self, index: usize, tag: u64, operation: &Operation) {
        let client = self.streams[index].client();
        let answer = match operation {
            Operation::Open { .. } => self.join(index),
            Operation::Read { .. } | Operation::Write { .. } => {
                return self.streams[index].transfer(&mut self.stage, tag, operation, &mut self.outcomes);
            }
            Operation::Close { .. } => {
                if self.streams[index].close(&mut self.stage, tag, &mut self.outcomes) {
                    self.leave(index);
                }
                return;
            }
            Operation::MakeDirectory { .. } => Ok(Answer::Done),
        };
        self.outcomes.push(Outcome { client, tag, answer });
    }

    fn leave(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        let closing = stream.take_closing();
        stream.leave(&mut self.stage, &mut self.outcomes);
        self.stage.policy.release(self.stage.now, stream.id());
        let answered = closing.map(|tag| Outcome { client: stream.client(), tag, answer: Ok(Answer::Done) });
        self.outcomes.extend(answered);
    }

    /// A stream's file is opened, if it may be.
    fn join(&mut self, index: usize) -> Result<Answer, String> {
        let stream = &self.streams[index];
        let ask = Ask {
            stream: stream.id(),
            direction: stream.direction(),
            rate: stream.rate,
            contiguous: stream.contiguous(),
            place: stream.place(),
            priority: stream.told.priority,
        };
        let refused = stream.told.refused;
        let granted = self.stage.policy.admit(self.stage.now, &ask);
        let beside = self.loads_with(index);
        let oracle = self.oracle.utilisation(self.stage.now, &beside);
        self.stage.tell(&Happening::Asked { stream: StreamId(index as u64), answer: &granted, oracle });
        match &granted {
            Ok(_) => self.streams[index].tally.admitted += 1,
            Err(reason) => self.refuse(index, beside.len() - 1, reason, oracle),
        }
        // Streams that grow or shrink for its sake do so before it begins.
        self.take_notices();
        match granted {
            Err(reason) if refused == Refused::Leaves => return Err(reason),
            granted => self.streams[index].join(granted.ok()),
        }
        Ok(Answer::Opened { file: index as u64, length: u64::MAX })
    }

    fn refuse(&mut self, index: usize, beside: usize, reason: &str, oracle_utilisation: Option<f64>) {
        self.streams[index].tally.refused += 1;
        let (at_s, reason) = (seconds(self.stage.now), reason.to_owned());
        self.refusals.push(Refusal { at_s, stream: index, beside, reason, oracle_utilisation });
    }

    /// All streams that were admitted, and this one.
    fn loads_with(&self, index: usize) -> Vec<Load> {
        let counts = |(other, stream): &(usize, &Stream)| *other == index || stream.holds();
        self.streams.iter().enumerate().filter(counts).map(|(other, _)| self.load(other)).collect()
    }

    fn load(&self, index: usize) -> Load {
        let stream = &self.streams[index];
        let contiguous = stream.contiguous().unwrap_or(Bytes(u64::MAX));
        let zone_seconds_per_byte = self.zones[index];
        Load { direction: stream.direction(), rate: stream.rate, contiguous, zone_seconds_per_byte }
    }

    fn take_notices(&mut self) {
        for notice in self.stage.policy.notices(self.stage.now) {
            self.stage.tell(&Happening::Noticed(&notice));
            let (stream, grant) = match notice {
                Notice::Granted(stream, grant) | Notice::Restored(stream, grant) => (stream, Some(grant)),
                Notice::Resumed(stream, grant) => {
                    if let Some(stream) = self.streams.get_mut(stream.0 as usize) {
                        stream.wait_until(self.stage.now, grant.since);
                    }
                    (stream, Some(grant))
                }
                Notice::Demoted(stream, _) => (stream, None),
            };
            if let Some(stream) = self.streams.get_mut(stream.0 as usize) {
                stream.granted(&mut self.stage, grant, &mut self.outcomes);
            }
        }
    }

    /// What clients counted at the very end: what is still on its way is late if it was due.
    fn settle(&mut self, reports: &[ClientReport]) {
        let now = self.stage.now;
        for stream in self.streams.iter_mut().filter(|stream| stream.is_due(now)) {
            stream.counted(&reports[stream.client()]);
        }
    }

    fn finish(mut self, policy: &str, device: &DeviceSpec, seed: u64, duration: Duration) -> RunOutcome {
        // What the run cut off: frames that were due are counted; no request is taken back any more.
        let outstanding = self.stage.outstanding();
        let counts = self.stage.counts;
        if counts.enqueued != counts.completed + counts.cancelled + outstanding {
            self.stage.violations.push(format!("requests are lost: {counts:?}, {outstanding} outstanding"));
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.is_present()) {
            stream.leave(&mut self.stage, &mut self.outcomes);
        }
        let usage = self.device.usage(self.stage.now);
        let elapsed = duration.as_secs_f64();
        let busy = |owner: usize| usage.busy[owner].as_secs_f64();
        let left = elapsed - busy(STREAMS) - busy(METADATA);
        let best_effort = busy(BEST_EFFORT) + busy(UNADMITTED);
        let streams = self.streams.iter().enumerate();
        let streams =
            streams.map(|(index, stream)| StreamOutcome::new(index, stream, !device.phases.is_empty()));
        RunOutcome {
            scenario: self.scenario.name().to_owned(),
            policy: policy.to_owned(),
            device: device.name.clone(),
            seed,
            duration_s: elapsed,
            streams: streams.collect(),
            refusals: std::mem::take(&mut self.refusals),
            utilisation: usage.busy.iter().map(|busy| busy.as_secs_f64()).sum::<f64>() / elapsed,
            idle_share: self.idle.as_secs_f64() / elapsed,
            streams_share: busy(STREAMS) / elapsed,
            best_effort_share_of_rest: (best_effort > 0.0).then(|| best_effort / left.max(f64::MIN_POSITIVE)),
            streams_mb_per_s: self.bytes[STREAMS].as_u64() as f64 / elapsed / 1e6,
            best_effort_mb_per_s: (self.bytes[BEST_EFFORT] + self.bytes[UNADMITTED]).as_u64() as f64
                / elapsed
                / 1e6,
            best_effort_ms: self.latencies[BEST_EFFORT].max_and_p99_ms(),
            metadata_ms: self.latencies[METADATA].max_and_p99_ms(),
            seeks: usage.seeks,
            commands: counts.commands,
            command_kib: counts.command_bytes.as_u64() as f64 / 1024.0 / counts.commands.max(1) as f64,
            command_lengths: (0..)
                .zip(counts.lengths)
                .filter(|(_, count)| *count > 0)
                .map(|(log, count)| ((1_u64 << log) >> 10, count))
                .collect(),
            most_queued: counts.most_queued,
            most_in_flight: self.most_in_flight as u64,
            violations: std::mem::take(&mut self.stage.violations),
            trace_hash: format!("{:016x}", self.stage.trace.0),
        }
    }
}
