//! What clients do.
//!
//! **For:** requests that are asked and answered, and what is learned from each. **Excludes:** reading ahead and giving up, which the host
//! does. **State:** that of [`Streams`]. **Invariants:** a function of the calls and of what [`Facts`] answers; what the host is to do is a
//! [`Wish`].

use crate::due::PlayoutClock;
use crate::file::Playing;
use crate::pattern::{Access, Pattern, ThinkTime};
use crate::player::{Player, ReadCursor};
use crate::streams::{ClientState, Streams, stream_of};
use crate::{Facts, HandleId, Wish};
use rtsched::Direction;
use units::{Bitrate, Bytes, Duration, Ino, Instant};

/// An observed rate is taken to be this part higher. It varies, and what is reserved and not used is not lost. An estimator's
/// window.
const OBSERVED_MARGIN: u64 = 20;
/// What is written more slowly is no recording: sound in two channels is more. A protocol fact.
const LEAST_RECORDED: Bitrate = Bitrate::from_megabits(1);
/// A recorded file that becomes longer than this has a place of its own, whatever its name. Clips have numbers, too, and several at
/// once in one place would take turns in it. A frame of 4096 by 3112 pixels with three channels of 10 bits has 50 MiB. A protocol
/// fact.
pub const LONGEST_RECORDED: u64 = 64 << 20;

/// A request that was noted: where the client was before, and whether it is elsewhere now.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    before: Pattern,
    origin: PlayoutClock,
    access: Access,
    /// It does not go on where the client was.
    pub is_elsewhere: bool,
}

impl<K: Default, F> Streams<K, F> {
    /// A client asks for what it will have to wait for.
    pub fn read_asked(&mut self, now: Instant, handle: HandleId) {
        if let Some(player) = self.player_mut(handle) {
            player.rest.asks(now);
        }
    }

    /// A client has `length` of a file, for which it had to wait or not.
    pub fn read_answered(
        &mut self,
        now: Instant,
        ino: Ino,
        handle: HandleId,
        length: Bytes,
        has_waited: bool,
    ) {
        if let Some((player, rate)) = self.note_pace(now, ino, handle, length) {
            if !has_waited {
                player.rest.asks(now);
            }
            player.rest.note(now, length, rate, Direction::Read);
        } else if let Some(player) = self.player_mut(handle) {
            player.rest.answered(now);
        }
        if let Some(player) = self.player_mut(handle) {
            player.allowance.note(now, length, has_waited);
            if has_waited {
                player.beat.answered(now);
            }
        }
    }

    /// A client asks for `offset..end`, for the first time that this is told. `None`: it only looks at a header, or is gone.
    pub fn note_request(
        &mut self,
        facts: &dyn Facts,
        now: Instant,
        handle: HandleId,
        offset: u64,
        end: u64,
    ) -> Option<Requested> {
        let ino = self.client_state(handle)?.ino;
        let rate = self.rate_of(ino, handle);
        let (size, start) = (facts.size_of(ino), self.start());
        let client = self.client_state_mut(handle)?;
        let reads_only = client.direction == Direction::Read;
        let player = client.player.get_or_insert_default();
        player.came.get_or_insert(now);
        if player.probes_header(offset, end, size) {
            return None;
        }
        player.return_to(offset, end);
        let (before, origin) = (player.here.pattern, player.here.origin);
        let access = player.here.pattern.note(offset, end);
        let is_elsewhere = access == Access::Seek || before.way() != player.here.pattern.way();
        if is_elsewhere {
            player.beat.seek();
        }
        if is_elsewhere || access == Access::First {
            player.here.origin = PlayoutClock::begins(now, start, offset);
            player.here.reckoned = None;
            // One that comes to the end of its file before it has begun goes on at the start of it, and still begins.
            if !player.has_played {
                player.starts_by = Some(now + start);
            }
        }
        player.has_played |= player.is_run();
        rate.into_iter().for_each(|rate| player.here.take(now, end - offset, rate));
        let (streams, rests) = (player.streams(), player.rest.has_rested());
        let playing = (streams > 0).then_some(Playing { handle, streams, rests });
        let before_playing = self.file(ino).and_then(|file| file.playing_of(handle));
        if before_playing != playing && reads_only {
            let streams = self.before_change(facts, ino);
            self.file_mut(ino).set_playing(handle, playing);
            self.after_change(facts, ino, streams);
            if before_playing.is_none() {
                self.wish(Wish::Probe(ino));
            } else if self.file(ino).is_some_and(|file| file.playing.is_empty()) {
                // It copies: what it was read ahead of as a player's goes before what players want. What waits for it is asked again.
                self.wish(Wish::Cancel(stream_of(ino, Direction::Read)));
            }
        }
        Some(Requested { before, origin, access, is_elsewhere })
    }

    /// The end of [`note_request`](Self::note_request): the client jumped within what is kept for it, or not. Gives back what is kept
    /// for it no longer.
    pub fn settle_request(
        &mut self,
        now: Instant,
        handle: HandleId,
        requested: Requested,
        is_ahead: bool,
    ) -> Vec<K> {
        let Requested { before, origin, access, is_elsewhere } = requested;
        let Some(player) = self.player_mut(handle) else { return Vec::new() };
        let mut given_up = Vec::new();
        if is_elsewhere && !is_ahead {
            player.here.asked = None;
            given_up.push(std::mem::take(&mut player.here.kept));
        }
        if access == Access::Seek && !is_ahead {
            player.elsewhere.insert(0, ReadCursor::left(before, origin));
        }
        given_up.extend(player.leave_old_places(now));
        given_up
    }

    /// Sees whether a client has a clock. Learns the rate of a file from how it is played, where neither a policy nor the file
    /// itself says one.
    pub fn observe(&mut self, now: Instant, ino: Ino, handle: HandleId, length: Bytes) {
        let is_unknown = self.file(ino).is_some_and(|file| file.observes_rate());
        let Some(player) = self.player_mut(handle) else { return };
        if !is_unknown || !player.has_played {
            player.beat.asks(now);
        } else if let Some(seen) = player.beat.note(now, length) {
            self.note_observed(ino, seen);
        }
    }

    /// Learns the rate of a file from how a client records it, in the same way. `gap` and `idling` are those of its opener, in all
    /// that it writes: each file of a folder that is copied rests while the others have their turn.
    fn observe_writer(
        &mut self,
        now: Instant,
        ino: Ino,
        handle: HandleId,
        length: Bytes,
        gap: Duration,
        idling: ThinkTime,
    ) {
        let is_unknown = self.file(ino).is_some_and(|file| file.observes_rate());
        if self.sequence_of(ino, Direction::Write).is_some() || !is_unknown {
            return;
        }
        let Some(player) = self.player_or_new(handle) else { return };
        let seen = player.beat.measure(now, length, gap, idling);
        if let Some(seen) = seen.filter(|seen| *seen >= LEAST_RECORDED) {
            self.note_observed(ino, seen);
        }
    }

    /// A client was seen to take a file at this rate, or to give it.
    fn note_observed(&mut self, ino: Ino, seen: Bitrate) {
        let known = self.policy(ino).bitrate();
        let rate = Bitrate(seen.0.saturating_add(seen.0 / OBSERVED_MARGIN));
        let is_news = known.is_none_or(|known| known < seen || rate.0 < known.0 / 2);
        if is_news {
            self.wish(Wish::Observed(ino, rate));
        }
    }

    /// A client wants to write so much of a file, which is long enough to be a recording or not.
    pub fn write_asked(&mut self, now: Instant, handle: HandleId, length: Bytes, is_long: bool) {
        if self.is_silent() {
            return;
        }
        let Some(&ClientState { ino, opener, .. }) = self.client_state(handle) else { return };
        let idled = self.writers.gives(now, opener, length);
        self.file_mut(ino).last_writer = Some(opener);
        if let Some(player) = self.player_mut(handle) {
            player.rest.asks(now);
        }
        if let Some((gap, idling)) = idled.filter(|_| is_long) {
            self.observe_writer(now, ino, handle, length, gap, idling);
        }
    }

    /// A client is not answered before less is dirty, though its write was accepted: it does not rest meanwhile.
    pub fn write_held_back(&mut self, handle: HandleId) {
        if let Some(player) = self.player_mut(handle) {
            player.rest.interrupt();
        }
    }

    /// A client that had to wait until it may go on writing goes on.
    pub fn write_resumed(&mut self, now: Instant, handle: HandleId) {
        if let Some(&ClientState { opener, .. }) = self.client_state(handle) {
            self.writers.answered(now, opener);
        }
    }

    /// A client has written so much: a recorder, or a copy.
    pub fn write_accepted(
        &mut self,
        facts: &dyn Facts,
        now: Instant,
        ino: Ino,
        handle: HandleId,
        length: u64,
    ) {
        if self.is_silent() {
            return;
        }
        let taken = self.client_state_mut(handle).and_then(|client| client.taken.as_mut());
        if let Some(taken) = taken {
            taken.add(now, length);
        }
        self.outgrow_sequence(facts, now, ino, handle);
        let copied = self.copies(handle);
        if let Some((player, rate)) = self.note_pace(now, ino, handle, Bytes(length)) {
            player.rest.note(now, Bytes(length), rate, Direction::Write);
        }
        let copies = self.copies(handle);
        if copied != copies {
            let streams = self.before_change(facts, ino);
            self.file_mut(ino).set_copying(handle, copies);
            self.after_change(facts, ino, streams);
        }
    }

    /// A file whose name made it the next frame of a sequence is none when it takes longer, or becomes longer, than frames do.
    fn outgrow_sequence(&mut self, facts: &dyn Facts, now: Instant, ino: Ino, handle: HandleId) {
        let Some(given) = self.client_state(handle).and_then(|client| client.taken) else { return };
        let is_frame = given.bytes <= LONGEST_RECORDED && given.is_quick(now);
        if !is_frame && self.sequence_of(ino, Direction::Write).is_some() {
            let streams = self.before_change(facts, ino);
            self.file_mut(ino).set_sequence(Direction::Write, None);
            self.after_change(facts, ino, streams);
        }
    }

    /// The client has taken so much. Gives it back with the rate of all that it plays, if one is known.
    fn note_pace(
        &mut self,
        now: Instant,
        ino: Ino,
        handle: HandleId,
        length: Bytes,
    ) -> Option<(&mut Player<K>, Bitrate)> {
        let streams = self.file(ino).map_or(0, |file| file.streams_of(handle)).max(1);
        let rate = Bitrate(self.rate_of(ino, handle)?.0.saturating_mul(streams.into()));
        let player = self.player_or_new(handle)?;
        player.pace.note(now, length, rate);
        Some((player, rate))
    }
}
