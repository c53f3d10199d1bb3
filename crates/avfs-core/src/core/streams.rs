//! Open files as streams of the scheduler, and how requests of a file are ranked.

use super::Core;
use crate::types::*;
use avfs_io::DeclaredStream;
use avfs_io::pool::MAX_BUFFER;
use rtsched::{Class, Direction, StreamId, StreamSpec, StreamState};
use units::{Bitrate, Bytes, Duration, Ino, Instant};

/// How requests of a file are ranked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranking {
    pub(super) class: Class,
    pub(super) stream: Option<StreamId>,
    /// From when a client needs the bytes to when they must be there.
    pub(super) window: Option<Duration>,
    /// The stream's rate, if it is known.
    pub(super) rate: Option<Bitrate>,
}

impl Ranking {
    /// Deadline of a request whose bytes are needed `ahead` bytes after those that are needed now.
    pub(super) fn deadline(&self, now: Instant, ahead: Bytes) -> Option<Instant> {
        let lead = self.rate.map_or(Duration::ZERO, |rate| rate.time_for(ahead));
        self.window.map(|window| now + window + lead)
    }
}

/// Who may write records; what such a client reads is not what it plays.
pub(super) fn direction_of(flags: OpenFlags) -> Direction {
    if flags.contains(OpenFlags::WRITE) { Direction::Write } else { Direction::Read }
}

/// The name of the stream that a file's readers are, or its writers.
pub(super) fn stream_of(ino: Ino, direction: Direction) -> StreamId {
    StreamId(ino.0 << 1 | u64::from(direction == Direction::Write))
}

impl From<DeclaredStream> for StreamReport {
    fn from(declared: DeclaredStream) -> Self {
        let status = declared.admitted;
        let microseconds = |time: Duration| u64::try_from(time.as_nanos() / 1000).unwrap_or(u64::MAX);
        Self {
            ino: declared.stream.0 >> 1,
            writes: declared.spec.direction == Direction::Write,
            bits_per_second: declared.spec.rate.0,
            state: match status.map(|status| status.state) {
                Some(StreamState::Active) => StreamService::Admitted,
                Some(StreamState::Paused) => StreamService::Paused,
                Some(StreamState::Demoted) => StreamService::Demoted,
                None => StreamService::Waiting,
            },
            request_bytes: status.map_or(0, |status| status.terms.request.0),
            completed: status.map_or(0, |status| status.completed),
            bytes: status.map_or(0, |status| status.bytes.0),
            missed: status.map_or(0, |status| status.missed),
            tardiness_microseconds: status.map_or(0, |status| microseconds(status.tardiness)),
        }
    }
}

impl Core {
    /// Class, stream and window of a file's requests, from its policy.
    pub(super) fn ranking(&self, ino: Ino, direction: Direction) -> Ranking {
        let policy = self.files.get(&ino).map(|file| file.policy()).unwrap_or_default();
        match policy.class() {
            Class::RealTime => Ranking {
                class: Class::RealTime,
                stream: Some(stream_of(ino, direction)),
                window: Some(policy.deadline_window()),
                rate: policy.bitrate(),
            },
            class => Ranking { class, stream: None, window: None, rate: None },
        }
    }

    /// The stream that the file's readers or writers are together, if it is one: what the scheduler is to know.
    fn stream_spec(&self, ino: Ino, direction: Direction) -> Option<StreamSpec> {
        let file = self.files.get(&ino)?;
        let policy = file.policy();
        let rate = policy.bitrate().filter(|_| policy.class() == Class::RealTime)?;
        let clients = if direction == Direction::Write { file.writers } else { file.readers };
        (clients > 0).then(|| StreamSpec {
            direction,
            rate: Bitrate(rate.0.saturating_mul(u64::from(clients))),
            // What is asked for and by when, see `load` and `ranking`.
            request: Some(Bytes(MAX_BUFFER as u64)),
            deadline: Some(policy.deadline_window()),
            place: None,
            priority: StreamSpec::DEFAULT_PRIORITY,
        })
    }

    /// What there must be room for if a client is not to be turned away, in a file whose policy wants that.
    pub(super) fn needed_admission(&self, ino: Ino, direction: Direction) -> Option<WantedStream> {
        let refuses = self.files.get(&ino).is_some_and(|file| file.policy().refuses_when_full());
        let spec = self.stream_spec(ino, direction).filter(|_| refuses)?;
        Some(WantedStream { stream: stream_of(ino, direction), rate: spec.rate })
    }

    /// Changes something on which the file's streams depend, and tells the scheduler what became of them.
    pub(super) fn change_streams<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Self) -> R) -> R {
        const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
        let before = BOTH.map(|direction| self.stream_spec(ino, direction));
        let result = change(self);
        for (direction, before) in BOTH.into_iter().zip(before) {
            let after = self.stream_spec(ino, direction);
            if before == after {
                continue;
            }
            let stream = stream_of(ino, direction);
            if let (Some(before), Some(after)) = (before, after)
                && (StreamSpec { rate: after.rate, ..before }) != after
            {
                // A reservation can change its rate and nothing else.
                self.outbox.streams.push((stream, None));
            }
            self.outbox.streams.push((stream, after));
        }
        result
    }
}
