//! A device of which nothing is known but what was measured of it.
//!
//! **For:** serving one command after another, each as long as the line through the measurements says. **Excludes:** what no measurement
//! tells: caches, queues, channels. A line that was measured with many commands at once says what each holds the device for, so sums
//! are right, and a command that is alone is too short. **State:** the commands it holds, and where the last one ended.
//! **Invariants:** as they come; a command's completion is certain when it is submitted.

use super::command::{Command, Completion, OWNERS, Phases, Usage, millis, transfer_ms};
use super::spec::LineSpec;
use rtsched::Direction;
use std::collections::VecDeque;
use units::{Bytes, DeviceOffset, Duration, Instant};

#[derive(Clone, Debug)]
pub(super) struct Line {
    spec: LineSpec,
    capacity: Bytes,
    phases: Phases,
    /// In the order of their ends.
    certain: VecDeque<(Completion, usize, Duration)>,
    free_at: Instant,
    arm: DeviceOffset,
    usage: Usage,
}

impl Line {
    pub(super) fn new(spec: &LineSpec, capacity: Bytes, phases: Phases) -> Self {
        let (certain, usage) = (VecDeque::new(), Usage::default());
        Self {
            spec: spec.clone(),
            capacity,
            phases,
            certain,
            free_at: Instant::ZERO,
            arm: DeviceOffset(0),
            usage,
        }
    }

    pub(super) fn submit(&mut self, now: Instant, command: Command) {
        let begins = self.free_at.max(now);
        let (access_factor, transfer_factor) = self.phases.factors(begins);
        let place = (command.offset.as_u64() as f64 / self.capacity.as_u64().max(1) as f64).min(1.0);
        let [outer, inner] = self.spec.read_mb_per_s;
        // A disk that goes on where it was has nothing to seek.
        let goes_on = self.spec.turns && command.offset == self.arm && command.direction != Direction::Flush;
        let (access_ms, mb_per_s) = match command.direction {
            Direction::Read => (self.spec.read_ms, outer + (inner - outer) * place),
            Direction::Write => (self.spec.write_ms, self.spec.write_mb_per_s),
            Direction::Flush => (self.spec.flush_ms, outer),
        };
        let access_ms = match command.direction {
            Direction::Flush => access_ms,
            _ if goes_on => 0.0,
            _ => access_ms * self.part_of_access(command.offset),
        };
        let takes =
            millis(access_ms * access_factor + transfer_ms(command.length, mb_per_s) * transfer_factor)
                .max(Duration::from_nanos(1));
        if command.direction != Direction::Flush {
            self.usage.seeks += u64::from(self.spec.turns && !goes_on);
            self.arm = DeviceOffset(command.offset.as_u64().saturating_add(command.length.as_u64()));
        }
        match command.direction {
            Direction::Read => self.usage.read += command.length,
            Direction::Write => self.usage.written += command.length,
            Direction::Flush => {}
        }
        self.free_at = begins + takes;
        let completion = Completion { tag: command.tag, at: self.free_at };
        self.certain.push_back((completion, command.owner % OWNERS, takes));
    }

    /// What was measured are places all over the device. Half of it is the disk's turn; the other half, the arm's way, grows with the root of
    /// the distance, of which the mean over such places is 8/15.
    fn part_of_access(&self, to: DeviceOffset) -> f64 {
        const MEAN_ROOT: f64 = 8.0 / 15.0;
        if !self.spec.turns {
            return 1.0;
        }
        let distance = self.arm.as_u64().abs_diff(to.as_u64()) as f64 / self.capacity.as_u64().max(1) as f64;
        0.5 + 0.5 * distance.min(1.0).sqrt() / MEAN_ROOT
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.certain.front().map(|(completion, ..)| completion.at)
    }

    pub(super) fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        while let Some((completion, owner, takes)) = self.certain.pop_front_if(|(one, ..)| one.at <= now) {
            self.usage.busy[owner] += takes;
            completions.push(completion);
        }
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use crate::calibration::start_values;
    use crate::device::{DeviceSpec, LineSpec, ModelSpec};
    use units::Duration;

    /// What is measured of it is what it was made from.
    #[test]
    fn a_line_is_found_where_it_was_declared() {
        for turns in [true, false] {
            let line = LineSpec {
                turns,
                read_ms: 12.0,
                read_mb_per_s: [170.0, 170.0],
                write_ms: 8.0,
                write_mb_per_s: 150.0,
                flush_ms: 3.0,
            };
            let (name, source) = ("line".to_owned(), String::new());
            let spec = DeviceSpec {
                name,
                source,
                capacity_gb: 1000,
                model: ModelSpec::Line(line),
                phases: Vec::new(),
            };
            let [read, write, flush] = start_values(&spec);
            for (found, millis, rate) in [(read, 12.0, 170.0), (write, 8.0, 150.0)] {
                let off = found.access.as_secs_f64() * 1e3 / millis - 1.0;
                assert!(off.abs() < 0.03, "{turns}: {found:?}");
                assert!((found.bytes_per_second.0 as f64 / 1e6 / rate - 1.0).abs() < 0.01, "{found:?}");
            }
            assert_eq!(flush.access, Duration::from_millis(3));
        }
    }
}
