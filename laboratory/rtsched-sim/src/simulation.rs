//! Virtual time.
//!
//! **For:** running one scenario under one policy: the next thing that happens, happens. **Excludes:** what clients want,
//! what devices take, who goes first. **State:** device, streams, background and stage of one run. **Invariants:** time
//! goes on only to the next event; a policy that keeps requests from an idle device says until when.

use crate::background::Background;
use crate::calibration::{read_ends, start_values, write_times};
use crate::device::{Command, Completion, Device, DeviceSpec};
use crate::oracle::{Load, Oracle};
use crate::policy::baseline::Baseline;
use crate::policy::{Ask, Notice, Policy, PolicyName, Scheduled};
use crate::report::{Outcome, Refusal, StreamOutcome};
use crate::stage::{Alarm, BEST_EFFORT, Client, METADATA, STREAMS, Stage, UNADMITTED, seconds};
pub use crate::stage::{Happening, Observer};
use crate::stream::Stream;
use crate::workload::{Layout, Refused, Scenario, ScenarioError};
use rtsched::{Calibrated, Class, Config, DispatchId, StreamId};
use units::{Bytes, Duration, Instant};

/// Runs a scenario.
///
/// # Errors
/// When its device is not declared.
pub fn run(
    scenario: &Scenario,
    policy: PolicyName,
    seed: u64,
    duration: Duration,
) -> Result<Outcome, ScenarioError> {
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
) -> Result<Outcome, ScenarioError> {
    let device = scenario.device()?;
    let request = Bytes::from_kib(scenario.scheduler.baseline_request_kib);
    let mut policy_box: Box<dyn Policy> = match Baseline::new(policy, request) {
        Some(baseline) => Box::new(baseline),
        None => Box::new(Scheduled::new(config(scenario, &device))),
    };
    Ok(run_with(scenario, &device, policy_box.as_mut(), policy.as_str(), seed, duration, observer))
}

/// The configuration of production, but for what the scenario says and what was measured on the device.
pub fn config(scenario: &Scenario, device: &DeviceSpec) -> Config {
    let spec = &scenario.scheduler;
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
) -> Outcome {
    let memory = Bytes::from_mib(scenario.scheduler.memory_mib);
    let longest = Bytes::from_kib(scenario.scheduler.largest_request_kib);
    let mut simulation = Simulation {
        device: Device::new(device, seed),
        oracle: Oracle::new(device, memory, longest),
        streams: Vec::new(),
        zones: Vec::new(),
        background: Vec::new(),
        stage: Stage::new(scenario, policy, device.capacity(), observer),
        completions: Vec::new(),
        refusals: Vec::new(),
        latencies: Default::default(),
        bytes: [Bytes::ZERO; 4],
        most_in_flight: 0,
        idle: Duration::ZERO,
    };
    simulation.prepare(device, seed);
    simulation.go_on_until(Instant::ZERO + duration);
    simulation.finish(name, device, seed, duration)
}

struct Simulation<'a> {
    device: Device,
    oracle: Oracle,
    streams: Vec<Stream>,
    /// What the place of each one's file adds to a byte that is read, seconds.
    zones: Vec<f64>,
    background: Vec<Background>,
    stage: Stage<'a>,
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

impl Simulation<'_> {
    fn prepare(&mut self, device: &DeviceSpec, seed: u64) {
        let scenario = self.stage.scenario;
        for (group, spec) in scenario.streams.iter().enumerate() {
            for nth in 0..spec.count {
                let index = self.streams.len();
                let stream = Stream::new(index, group, nth, spec, self.stage.capacity, seed);
                self.zones.push(device.zone_seconds_per_byte(&stream.pieces_of_file()));
                self.streams.push(stream);
                let join = spec.join_s + spec.join_every_s * f64::from(nth);
                self.stage.alarm_in(join, Client::Stream(index), Alarm::Join);
            }
        }
        for (index, spec) in scenario.background.iter().enumerate() {
            let mut background = Background::new(index, spec, self.stage.capacity, seed);
            background.prepare(&mut self.stage);
            self.background.push(background);
        }
    }

    fn go_on_until(&mut self, end: Instant) {
        loop {
            self.dispatch();
            let wakeup = self.stage.policy.next_wakeup(self.stage.now);
            let device = self.device.next_event();
            let next = [wakeup, device, self.stage.next_alarm()].into_iter().flatten().min();
            // A device that has no command may have something to write; and a policy may wait for that, until it says.
            let is_waiting = self.stage.in_flight() == 0 && self.stage.queued() > 0;
            if is_waiting && wakeup.is_none() {
                let queued = self.stage.queued();
                self.stage.violations.push(format!("the device is idle and {queued} requests wait"));
            }
            let Some(next) = next.filter(|next| *next <= end && self.stage.violations.is_empty()) else {
                self.stage.now = if self.stage.violations.is_empty() { end } else { self.stage.now };
                return;
            };
            if is_waiting && device.is_none() {
                self.idle += next.saturating_since(self.stage.now);
            }
            self.stage.now = next.max(self.stage.now);
            self.device.advance(self.stage.now, &mut self.completions);
            for completion in std::mem::take(&mut self.completions) {
                self.complete(DispatchId(completion.tag));
            }
            while let Some((client, alarm)) = self.stage.take_alarm() {
                match client {
                    Client::Stream(index) => self.stream_wakes(index, alarm),
                    Client::Background(index) => self.background[index].wake(&mut self.stage, alarm),
                }
            }
            self.take_notices();
        }
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
                Client::Stream(index) => self.streams[index].completed(&mut self.stage, pending.mark),
                Client::Background(index) => {
                    let background = &mut self.background[index];
                    background.completed(&mut self.stage, pending.direction, pending.length);
                }
            }
        }
    }

    fn stream_wakes(&mut self, index: usize, alarm: Alarm) {
        let client = Client::Stream(index);
        let spec = &self.stage.scenario.streams[self.streams[index].group];
        match alarm {
            Alarm::Join => self.join(index),
            Alarm::Ask(jumps) => self.streams[index].wake(&mut self.stage, jumps),
            Alarm::Leave(visit) | Alarm::Seek(visit) | Alarm::Pause(visit) | Alarm::Resume(visit)
                if visit != self.streams[index].visits() || self.streams[index].is_away() => {}
            Alarm::Leave(_) => {
                let stream = &mut self.streams[index];
                stream.leave(&mut self.stage);
                self.stage.policy.release(self.stage.now, stream.id());
                if let Some(away) = spec.away_s {
                    let away = self.streams[index].draw(away);
                    self.stage.alarm_in(away, client, Alarm::Join);
                }
            }
            Alarm::Seek(_) => {
                self.streams[index].seek(&mut self.stage);
                self.alarm_within(index, spec.seek_every_s, Alarm::Seek);
            }
            Alarm::Pause(_) => {
                self.streams[index].pause(self.stage.now);
                self.alarm_within(index, Some(spec.pause_s), Alarm::Resume);
            }
            Alarm::Resume(_) => {
                self.streams[index].resume(&mut self.stage);
                self.alarm_within(index, spec.pause_every_s, Alarm::Pause);
            }
        }
    }

    fn alarm_within(&mut self, index: usize, span: Option<[f64; 2]>, alarm: fn(u64) -> Alarm) {
        if let Some(span) = span {
            let stream = &mut self.streams[index];
            let (seconds, visits) = (stream.draw(span), stream.visits());
            self.stage.alarm_in(seconds, Client::Stream(index), alarm(visits));
        }
    }

    fn join(&mut self, index: usize) {
        let spec = &self.stage.scenario.streams[self.streams[index].group];
        let stream = &self.streams[index];
        let ask = Ask {
            stream: stream.id(),
            direction: stream.kind().direction(),
            rate: stream.rate,
            contiguous: match spec.layout {
                Layout::Contiguous => None,
                Layout::Fragmented { extent_kib } => Some(Bytes::from_kib(extent_kib)),
            },
            place: stream.place(),
            priority: spec.priority,
        };
        let granted = self.stage.policy.admit(self.stage.now, &ask);
        let beside = self.loads_with(index);
        let oracle = self.oracle.utilisation(self.stage.now, &beside);
        self.stage.tell(&Happening::Asked { stream: StreamId(index as u64), answer: &granted, oracle });
        match &granted {
            Ok(_) => self.streams[index].tally.admitted += 1,
            Err(reason) => self.refuse(index, beside.len() - 1, reason, oracle),
        }
        if granted.is_err() && spec.refused == Refused::Leaves {
            if let Some(away) = spec.away_s {
                let away = self.streams[index].draw(away);
                self.stage.alarm_in(away, Client::Stream(index), Alarm::Join);
            }
            return;
        }
        // Streams that grow or shrink for its sake do so before it begins.
        self.take_notices();
        self.streams[index].join(&mut self.stage, granted.ok());
        self.alarm_within(index, spec.stay_s, Alarm::Leave);
        self.alarm_within(index, spec.seek_every_s, Alarm::Seek);
        self.alarm_within(index, spec.pause_every_s, Alarm::Pause);
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
        let contiguous = match self.stage.scenario.streams[stream.group].layout {
            Layout::Contiguous => Bytes(u64::MAX),
            Layout::Fragmented { extent_kib } => Bytes::from_kib(extent_kib),
        };
        let zone_seconds_per_byte = self.zones[index];
        Load { direction: stream.kind().direction(), rate: stream.rate, contiguous, zone_seconds_per_byte }
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
                stream.granted(&mut self.stage, grant);
            }
        }
    }

    fn finish(mut self, policy: &str, device: &DeviceSpec, seed: u64, duration: Duration) -> Outcome {
        // What the run cut off: frames that were due are counted; no request is taken back any more.
        let outstanding = self.stage.outstanding();
        let counts = self.stage.counts;
        if counts.enqueued != counts.completed + counts.cancelled + outstanding {
            self.stage.violations.push(format!("requests are lost: {counts:?}, {outstanding} outstanding"));
        }
        for stream in &mut self.streams {
            if !stream.is_away() {
                stream.leave(&mut self.stage);
            }
        }
        let usage = self.device.usage(self.stage.now);
        let elapsed = duration.as_secs_f64();
        let busy = |owner: usize| usage.busy[owner].as_secs_f64();
        let left = elapsed - busy(STREAMS) - busy(METADATA);
        let best_effort = busy(BEST_EFFORT) + busy(UNADMITTED);
        let scenario = self.stage.scenario;
        let streams = self.streams.iter().enumerate();
        let streams = streams.map(|(index, stream)| {
            let group = &scenario.streams[stream.group];
            StreamOutcome::new(index, group, stream, !device.phases.is_empty())
        });
        Outcome {
            scenario: scenario.name.clone(),
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
