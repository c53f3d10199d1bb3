//! A controller's write-back cache.
//!
//! **For:** when a write is acknowledged (when its last byte has come over the link into the cache), and what is
//! written back next. **Excludes:** how long the platters take. **State:** dirty runs in the order of their arrival,
//! writes on their way in, flushes that wait. **Invariants:** never more dirty bytes than the cache holds; a flush
//! ends when everything that had arrived before it is on the platters.

use super::command::{Command, millis, transfer_ms};
use super::spec::CacheSpec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{Bytes, DeviceOffset, Instant};

#[derive(Clone, Debug)]
pub(super) struct Cache {
    size: Bytes,
    step: Bytes,
    longest_run: Bytes,
    link_mb_per_s: f64,
    battery: bool,
    /// By arrival.
    dirty: BTreeMap<u64, Run>,
    /// Offset and arrival of each.
    places: BTreeSet<(DeviceOffset, u64)>,
    /// Dirty, or on its way in or out.
    held: Bytes,
    incoming: VecDeque<Incoming>,
    /// When the piece on the link is in, and its length.
    link: Option<(Instant, Bytes)>,
    /// A step is on its way to the platters.
    leaving: bool,
    /// Tag and the first arrival that it does not cover.
    flushes: Vec<(u64, u64)>,
    arrivals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    offset: DeviceOffset,
    length: Bytes,
    owner: usize,
}

#[derive(Clone, Copy, Debug)]
struct Incoming {
    command: Command,
    received: Bytes,
    arrival: Option<u64>,
}

/// What the arms write next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) offset: DeviceOffset,
    pub(super) length: Bytes,
    pub(super) owner: usize,
}

impl Cache {
    pub(super) fn new(spec: &CacheSpec) -> Self {
        Self {
            size: Bytes::from_mib(spec.size_mib),
            step: Bytes::from_kib(spec.step_kib),
            longest_run: Bytes::from_mib(spec.run_mib),
            link_mb_per_s: spec.link_mb_per_s,
            battery: spec.battery,
            dirty: BTreeMap::new(),
            places: BTreeSet::new(),
            held: Bytes::ZERO,
            incoming: VecDeque::new(),
            link: None,
            leaving: false,
            flushes: Vec::new(),
            arrivals: 0,
        }
    }

    pub(super) fn arrive(&mut self, command: Command) {
        self.incoming.push_back(Incoming { command, received: Bytes::ZERO, arrival: None });
    }

    /// Whether a flush has anything to wait for.
    pub(super) fn must_flush(&self) -> bool {
        !self.battery && (self.is_dirty() || self.leaving)
    }

    pub(super) fn flush(&mut self, tag: u64) {
        self.flushes.push((tag, self.arrivals));
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// More than half full, or somebody waits for it to be empty.
    pub(super) fn is_pressed(&self) -> bool {
        self.held.as_u64() > self.size.as_u64() / 2 || !self.flushes.is_empty()
    }

    /// Puts the next piece on the link if it is free and there is room.
    pub(super) fn receive(&mut self, now: Instant, command_ms: f64) {
        let (None, Some(incoming)) = (self.link, self.incoming.front()) else { return };
        let piece = self.step.min(incoming.command.length.saturating_sub(incoming.received));
        if self.held + piece > self.size {
            return;
        }
        let first = if incoming.received == Bytes::ZERO { command_ms } else { 0.0 };
        self.held += piece;
        self.link = Some((now + millis(first + transfer_ms(piece, self.link_mb_per_s)), piece));
    }

    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.link.map(|(at, _)| at)
    }

    /// The piece on the link is in; the tag of its write if that was its last.
    pub(super) fn arrived(&mut self) -> Option<u64> {
        let (_, piece) = self.link.take()?;
        let incoming = self.incoming.front_mut()?;
        let offset = incoming.command.offset + incoming.received;
        incoming.received += piece;
        let known = incoming.arrival.and_then(|arrival| self.dirty.get_mut(&arrival));
        match known {
            Some(run) => run.length += piece,
            None if piece > Bytes::ZERO => {
                self.dirty
                    .insert(self.arrivals, Run { offset, length: piece, owner: incoming.command.owner });
                self.places.insert((offset, self.arrivals));
                incoming.arrival = Some(self.arrivals);
                self.arrivals += 1;
            }
            None => {}
        }
        let whole = incoming.received == incoming.command.length;
        if whole { self.incoming.pop_front().map(|incoming| incoming.command.tag) } else { None }
    }

    /// Takes out what is written next: what continues at `arm`, where `run` bytes were written without a break, or the
    /// oldest.
    pub(super) fn next_step(&mut self, arm: DeviceOffset, run: Bytes) -> Option<Step> {
        let continued = self.places.range((arm, 0)..=(arm, u64::MAX)).next().map(|(_, arrival)| *arrival);
        let continued = continued.filter(|_| run > Bytes::ZERO && run < self.longest_run);
        let arrival = continued.or_else(|| self.dirty.first_key_value().map(|(arrival, _)| *arrival))?;
        let run = self.dirty.get_mut(&arrival)?;
        let step = Step { offset: run.offset, length: self.step.min(run.length), owner: run.owner };
        self.places.remove(&(run.offset, arrival));
        (run.offset, run.length) = (run.offset + step.length, run.length - step.length);
        if run.length == Bytes::ZERO {
            self.dirty.remove(&arrival);
        } else {
            self.places.insert((run.offset, arrival));
        }
        self.leaving = true;
        Some(step)
    }

    /// The step of `bytes` is on the platters; the flushes that this ends.
    pub(super) fn written(&mut self, bytes: Bytes) -> Vec<u64> {
        self.held -= bytes;
        self.leaving = false;
        let oldest = self.dirty.first_key_value().map_or(u64::MAX, |(arrival, _)| *arrival);
        let done = self.flushes.extract_if(.., |(_, end)| *end <= oldest);
        done.map(|(tag, _)| tag).collect()
    }
}
