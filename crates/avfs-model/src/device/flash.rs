//! Parallel channels without a place.
//!
//! **For:** SSD and NVMe: a command is striped over channels, each of which serves its pieces in their order, and all
//! share one link. **Excludes:** the translation layer beyond the erase that one piece in many meets. **State:** until
//! when each channel and the link are taken. **Invariants:** a command's completion is certain when it is submitted.

use super::command::{Command, Completion, OWNERS, Phases, Usage, millis, transfer_ms};
use super::spec::FlashSpec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::Direction;
use std::collections::BTreeMap;
use units::{Bytes, Duration, Instant};

#[derive(Clone, Debug)]
pub(super) struct Flash {
    spec: FlashSpec,
    phases: Phases,
    rng: SmallRng,
    channels: Vec<Instant>,
    link: Instant,
    certain: BTreeMap<(Instant, u64), (Completion, usize, Duration)>,
    sequence: u64,
    usage: Usage,
}

impl Flash {
    pub(super) fn new(spec: &FlashSpec, phases: Phases, seed: u64) -> Self {
        Self {
            phases,
            rng: SmallRng::seed_from_u64(seed),
            channels: vec![Instant::ZERO; spec.channels as usize],
            link: Instant::ZERO,
            certain: BTreeMap::new(),
            sequence: 0,
            usage: Usage::default(),
            spec: spec.clone(),
        }
    }

    pub(super) fn submit(&mut self, now: Instant, command: Command) {
        let (access_factor, transfer_factor) = self.phases.factors(now);
        let (access_us, rate) = match command.direction {
            Direction::Read => (self.spec.read_us, self.spec.read_channel_mb_per_s),
            Direction::Write => (self.spec.write_us, self.spec.write_channel_mb_per_s),
            Direction::Flush => (self.spec.flush_us, 1.0),
        };
        match command.direction {
            Direction::Read => self.usage.read += command.length,
            Direction::Write => self.usage.written += command.length,
            Direction::Flush => {}
        }
        let stripe = self.spec.stripe_kib << 10;
        let stripes = command.length.as_u64().div_ceil(stripe).max(1);
        let count = stripes.min(u64::from(self.spec.channels));
        let first = command.offset.as_u64() / stripe;
        let share = Bytes(command.length.as_u64().div_ceil(count));
        let mut taken = Duration::ZERO;
        let mut done = now;
        for piece in 0..count {
            let erase = self.spec.erase_one_in > 0 && self.rng.random_ratio(1, self.spec.erase_one_in);
            let access_ms = (access_us + if erase { self.spec.erase_us } else { 0.0 }) / 1e3;
            let time = millis(access_ms * access_factor + transfer_ms(share, rate) * transfer_factor);
            let channels = self.channels.len() as u64;
            let channel = &mut self.channels[((first + piece) % channels) as usize];
            *channel = (*channel).max(now) + time;
            taken += time;
            done = done.max(*channel);
        }
        // The link is taken for what it carries, and has carried all when the last channel is through, at the earliest.
        let carried = millis(transfer_ms(command.length, self.spec.link_mb_per_s) * transfer_factor);
        self.link = self.link.max(now) + carried;
        let at = done.max(self.link).max(now + Duration::from_nanos(1));
        let busy = (taken / self.spec.channels).max(carried);
        self.sequence += 1;
        let completion = Completion { tag: command.tag, at };
        self.certain.insert((at, self.sequence), (completion, command.owner % OWNERS, busy));
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.certain.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        while let Some(entry) = self.certain.first_entry().filter(|entry| entry.key().0 <= now) {
            let (completion, owner, busy) = entry.remove();
            self.usage.busy[owner] += busy;
            completions.push(completion);
        }
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }
}
