//! Reading ahead of a client that goes on where it was.
//!
//! **For:** what is to be read next, and by when. **Excludes:** reading it, and whether there is memory: the host asks for one request after
//! the other, and says how far it has come. **State:** an [`Ahead`] while the host does so. **Invariants:** a client never has more ahead of
//! it, at all its places together, than its terms' buffer, or the policy's depth and one request.

use crate::pattern::ScanDirection;
use crate::streams::{Streams, stream_of};
use crate::window::{ReadaheadWindow, next_request};
use crate::{Facts, HandleId, REQUEST, RequestQos};
use rtsched::{Class, Direction};
use std::ops::Range;
use units::{Bitrate, Bytes, Instant};

/// How far ahead of a client is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Which way it goes.
    pub way: ScanDirection,
    front: u64,
    /// How far it was read ahead, so far.
    asked: u64,
    lead: ReadaheadWindow,
    most: u64,
    rate: Option<Bitrate>,
    size: u64,
    /// It comes to what was asked for so much sooner than was reckoned that the host should say so.
    pub is_sooner: bool,
}

/// What is to be read next.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// How the request is ranked.
    pub need: RequestQos,
    /// The admission has set memory aside for it.
    pub is_promised: bool,
}

impl<K: Default, F> Streams<K, F> {
    /// Where a client is to be read ahead of. `None`: nowhere, or not yet.
    pub fn ahead_of(&self, facts: &dyn Facts, now: Instant, handle: HandleId) -> Option<Ahead> {
        let ino = self.client_state(handle)?.ino;
        let player = self.player(handle)?;
        let size = facts.size_of(ino);
        if !player.is_run()
            || size <= REQUEST
            || self.policy(ino).prefetch_depth() == Bytes::ZERO
            || self.is_undecided(stream_of(ino, Direction::Read))
        {
            return None;
        }
        let (pattern, asked) = (player.here.pattern, player.here.asked);
        let (way, front) = (pattern.way(), pattern.front());
        let asked = match way {
            ScanDirection::Forward => asked.unwrap_or(front).max(front),
            ScanDirection::Backward => asked.unwrap_or(front).min(front),
        };
        let (lead, most) = player.share(self.lead(ino, handle));
        let rate = self.rate_of(ino, handle);
        // A client that fills a buffer of its own asks for a second of it at once, or two, and comes so much sooner to what is ahead.
        let is_sooner = rate.is_some_and(|rate| player.here.is_sooner(now, rate));
        Some(Ahead { way, front, asked, lead, most, rate, size, is_sooner })
    }

    /// What is to be read next, if anything.
    pub fn next_ahead(
        &self,
        facts: &dyn Facts,
        now: Instant,
        handle: HandleId,
        ahead: &Ahead,
    ) -> Option<ReadAhead> {
        let &Ahead { way, front, asked, lead, most, size, .. } = ahead;
        if asked.abs_diff(front) > lead.bytes {
            return None;
        }
        let ino = self.client_state(handle)?.ino;
        // A client that has little ahead needs something soon, not much of it.
        let least = if lead.is_promised { lead.request / 2 } else { 0 };
        let request = lead.request.min(asked.abs_diff(front).max(REQUEST).max(least));
        let run_end = if way == ScanDirection::Forward { facts.piece_end(ino, asked, size) } else { size };
        // What is left at the end of a file may wait: a client that goes on goes on elsewhere.
        let with_the_rest = if run_end < size { lead.request } else { request };
        let range = next_request(way, asked, request, with_the_rest, run_end, size)?;
        if end_of(way, &range).abs_diff(front) > most {
            return None;
        }
        let need = self.need_ahead(facts, now, handle, front, asked);
        Some(ReadAhead { range, need, is_promised: lead.is_promised })
    }

    /// The host reads it.
    pub fn asked_ahead(&mut self, now: Instant, handle: HandleId, ahead: &mut Ahead, range: &Range<u64>) {
        let is_promised = ahead.lead.is_promised;
        if let Some((rate, player)) = ahead.rate.filter(|_| is_promised).zip(self.player_mut(handle)) {
            player.here.reckon(now, rate);
        }
        ahead.asked = end_of(ahead.way, range);
    }

    /// It reads no more, for now.
    pub fn ended_ahead(&mut self, handle: HandleId, ahead: &Ahead) {
        if let Some(player) = self.player_mut(handle) {
            player.here.asked = Some(ahead.asked);
        }
    }

    /// How what lies ahead of a client is ranked, at `at`, while it is at `front`.
    pub fn need_ahead(
        &self,
        facts: &dyn Facts,
        now: Instant,
        handle: HandleId,
        front: u64,
        at: u64,
    ) -> RequestQos {
        let ino = self.client_state(handle).map_or(units::Ino(0), |client| client.ino);
        let ahead = Bytes(at.abs_diff(front));
        let need = self.need(facts, now, ino, handle, at, ahead);
        let Some(file) = self.file(ino) else { return need };
        let is_promised = file.terms(Direction::Read).is_some() && need.class == Class::RealTime;
        let Some(rate) = self.rate_of(ino, handle).filter(|_| is_promised) else { return need };
        // By when the client comes to it. The scheduler makes it later where the terms do.
        let needed = now + rate.time_for(ahead).max(self.window_of_reader(file, handle));
        RequestQos { deadline: self.earliest_need(facts, ino, handle, at).max(Some(needed)), ..need }
    }
}

fn end_of(way: ScanDirection, range: &Range<u64>) -> u64 {
    if way == ScanDirection::Forward { range.end } else { range.start }
}
