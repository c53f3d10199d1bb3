//! Clients that read on and on: what they will want next is in memory before they ask for it.
//!
//! **For:** prefetching, and which clients are the streams of a file. **Excludes:** what a client's requests look like
//! ([`avfs_streams::pattern`]), and what the device does first (the scheduler). **State:** a [`Player`] for each
//! handle that has read, with each [`ReadCursor`] where it reads on. **Invariants:** what was prefetched is not evicted before
//! its player has passed it, as long as there is other memory; what nobody will want any more is cancelled and given up; a
//! player never has more ahead of it, at all its places together, than its terms' buffer, or the policy's depth and one
//! request.
//!
//! A stream that was admitted asks for what its terms say, when they say it: a request's length, as soon as no more than
//! the terms' deadline is ahead of it. The admission reckoned with exactly that. Until the admission has answered, nothing is
//! read ahead: it may be less than everybody else gets. At the start it asks for half a request at a time, and for as much more as
//! has come; then for as much as it has ahead, until it is there.

use super::policies::Informant;
use super::state::blocks::BlockId;
use super::state::cache::CacheBlock;
use super::state::outbox::Cancellation;
use super::state::{Core, Player, ReadCursor, STREAM_SIZE};
use crate::config::quantity::is_bitrate;
use crate::config::{Rate, Settings};
use crate::format::BLOCK;
use crate::types::*;
use avfs_streams::due::{BEGINNING, START};
use avfs_streams::file::Playing;
use avfs_streams::pattern::{Access, NEAR, ScanDirection, ThinkTime};
use avfs_streams::sequence::SequenceId;
use avfs_streams::streams::{ClientState, SHORT_PIECE, stream_of};
use avfs_streams::window::next_request;
use avfs_streams::{REQUEST, RequestQos};
use rtsched::{Class, Direction};
use smallvec::SmallVec;
use std::ops::Range;
use units::{Bitrate, Bytes, Duration, Ino, Now};

/// A rate that was observed is taken to be this part higher: it varies, and what is reserved and not used is not lost.
const OBSERVED_MARGIN: u64 = 20;
/// What is written more slowly is no recording: sound in two channels is more.
const LEAST_RECORDED: Bitrate = Bitrate::from_megabits(1);
// What the crate of streams takes for the host's page and its longest buffer.
const _: () = assert!(avfs_streams::PAGE == BLOCK && REQUEST == avfs_io::pool::MAX_BUFFER as u64);

impl Core {
    /// A client has read `offset..end`: finds out what it does, and reads ahead of it. If it had to wait, where it asked is
    /// known already.
    pub(super) fn follow(
        &mut self,
        now: Now,
        ino: Ino,
        handle: HandleId,
        read: Range<u64>,
        has_waited: bool,
    ) {
        if self.clients.streams.is_silent() {
            return;
        }
        let Range { start: offset, end } = read;
        let followed = self.follow_frame(now, ino, handle, end - offset, has_waited);
        self.give_frame(now, ino, has_waited);
        if let Some(sequence) = followed.next {
            self.read_sequence_ahead(now, sequence);
        }
        if followed.is_frame {
            return;
        }
        let length = Bytes(end - offset);
        if let Some((player, rate)) = self.note_pace(now, ino, handle, length) {
            if !has_waited {
                player.rest.asks(now.monotonic);
            }
            player.rest.note(now.monotonic, length, rate, Direction::Read);
        } else if let Some(player) = self.clients.streams.player_mut(handle) {
            player.rest.answered(now.monotonic);
        }
        if let Some(player) = self.clients.streams.player_mut(handle) {
            player.allowance.note(now.monotonic, length, has_waited);
        }
        if !has_waited {
            self.note_request(now, ino, handle, offset, end);
            self.observe(now, ino, handle, length);
        } else if let Some(player) = self.clients.streams.player_mut(handle) {
            player.beat.answered(now.monotonic);
        }
        self.pass_played(handle);
        self.read_ahead(now, ino, handle);
    }

    /// A client asks for what it will have to wait for. Who plays is to be known before that is there: on a full device it
    /// comes the sooner for it; and if the client is elsewhere now, the device is not to be busy for where it was. Gives back the
    /// sequence of which the next frames are to be read ahead.
    pub(super) fn notice_request(
        &mut self,
        now: Now,
        handle: HandleId,
        offset: u64,
        length: usize,
    ) -> Option<SequenceId> {
        if self.clients.streams.is_silent() {
            return None;
        }
        let (ino, _) = self.handle(handle).ok()?;
        let file = self.data.files.get(&ino)?;
        let end = file.size.min(offset.saturating_add(length as u64));
        let followed = self.follow_frame(now, ino, handle, end.saturating_sub(offset), false);
        if followed.is_frame {
            return followed.next;
        }
        if let Some(player) = self.clients.streams.player_mut(handle) {
            player.rest.asks(now.monotonic);
        }
        if end > offset {
            self.note_request(now, ino, handle, offset, end);
            self.observe(now, ino, handle, Bytes(end - offset));
        }
        followed.next
    }

    /// Learns the rate of a file from how a client plays it, where nobody says one and the file itself does not.
    fn observe(&mut self, now: Now, ino: Ino, handle: HandleId, length: Bytes) {
        if !self.clients.streams.file(ino).is_some_and(|file| file.observes_rate()) {
            return;
        }
        let player = self.clients.streams.player_mut(handle).filter(|player| player.has_played);
        if let Some(seen) = player.and_then(|player| player.beat.note(now.monotonic, length)) {
            self.note_observed(ino, seen);
        }
    }

    /// Learns the rate of a file from how a client records it, in the same way. `gap` and `idling` are those of who opened it, in all
    /// that he writes: each file of a folder that is copied rests while the others have their turn.
    fn observe_writer(
        &mut self,
        now: Now,
        ino: Ino,
        handle: HandleId,
        length: Bytes,
        gap: Duration,
        idling: ThinkTime,
    ) {
        let is_long = self.data.files.get(&ino).is_some_and(|file| file.size >= STREAM_SIZE);
        let is_unknown = is_long && self.clients.streams.file(ino).is_some_and(|file| file.observes_rate());
        if self.is_recorded_frame(ino) || !is_unknown {
            return;
        }
        let Some(player) = self.clients.streams.player_or_new(handle) else { return };
        let beat = &mut player.beat;
        let seen = beat.measure(now.monotonic, length, gap, idling);
        if let Some(seen) = seen.filter(|seen| *seen >= LEAST_RECORDED) {
            self.note_observed(ino, seen);
        }
    }

    /// A client was seen to take a file at this rate, or to give it.
    fn note_observed(&mut self, ino: Ino, seen: Bitrate) {
        let known = self.clients.streams.policy(ino).bitrate();
        let rate = Bitrate(seen.0.saturating_add(seen.0 / OBSERVED_MARGIN));
        let is_news = known.is_none_or(|known| known < seen || rate.0 < known.0 / 2);
        if is_news && is_bitrate(rate) {
            tracing::debug!(%ino, kilobits = rate.0 / 1000, "a client has a rate of its own");
            let settings = Settings { rate: Some(Rate::Bitrate(rate)), ..Settings::default() };
            // It is open, so it is there.
            let _ = self.inform(ino, Informant::Observation, settings);
        }
    }

    fn note_request(&mut self, now: Now, ino: Ino, handle: HandleId, offset: u64, end: u64) {
        let rate = self.clients.streams.rate_of(ino, handle);
        let size = self.data.files.get(&ino).map_or(0, |file| file.size);
        let Some(client) = self.clients.streams.client_state_mut(handle) else { return };
        let reads_only = client.direction == Direction::Read;
        let player = client.player.get_or_insert_default();
        player.came.get_or_insert(now.monotonic);
        if player.only_looks(offset, end, size) {
            return;
        }
        player.return_to(offset, end);
        let (before, origin) = (player.here.pattern, player.here.origin);
        let step = player.here.pattern.note(offset, end);
        let is_elsewhere = step == Access::Seek || before.way() != player.here.pattern.way();
        if is_elsewhere {
            player.beat.interrupt();
        }
        if is_elsewhere || step == Access::First {
            player.here.origin = (now.monotonic, offset);
            player.here.reckoned = None;
            // One that comes to the end of its file before it has begun goes on at the start of it, and still begins.
            if !player.has_played {
                player.starts_by = Some(now.monotonic + START);
            }
        }
        player.has_played |= player.is_run();
        rate.into_iter().for_each(|rate| player.here.take(now.monotonic, end - offset, rate));
        let (streams, rests) = (player.streams(), player.rest.has_rested());
        let playing = (streams > 0).then_some(Playing { handle, streams, rests });
        let before_playing = self.clients.streams.file(ino).and_then(|file| file.playing_of(handle));
        if before_playing != playing && reads_only {
            self.change_streams(ino, |core| core.clients.streams.file_mut(ino).set_playing(handle, playing));
            if before_playing.is_none() {
                self.probe(ino);
            } else if self.clients.streams.file(ino).is_some_and(|file| file.playing.is_empty()) {
                // It copies: what it was read ahead of as a player's goes before what players want. Whoever waits for it asks again.
                self.requests
                    .outbox
                    .cancellations
                    .push(Cancellation::Stream(stream_of(ino, Direction::Read)));
            }
        }
        let is_ahead = is_elsewhere && self.jumps_ahead(now, ino, handle);
        let Some(player) = self.clients.streams.player_mut(handle) else { return };
        let mut given_up = Vec::new();
        if is_elsewhere && !is_ahead {
            player.here.asked = None;
            given_up.extend(player.here.kept.drain(..));
        }
        if step == Access::Seek && !is_ahead {
            player.elsewhere.insert(0, ReadCursor::left(before, origin));
        }
        given_up.extend(player.leave_old_places(now.monotonic).into_iter().flatten());
        self.give_up(ino, handle, &given_up);
    }

    /// A client wants to write so much.
    pub(super) fn notice_writer(&mut self, now: Now, handle: HandleId, length: usize) {
        if self.clients.streams.is_silent() {
            return;
        }
        let Some(&ClientState { ino, opener, .. }) = self.clients.streams.client_state(handle) else {
            return;
        };
        let length = Bytes(length as u64);
        let idled = self.clients.streams.writers.gives(now.monotonic, opener, length);
        self.clients.streams.file_mut(ino).last_writer = Some(opener);
        if let Some(player) = self.clients.streams.player_mut(handle) {
            player.rest.asks(now.monotonic);
        }
        if let Some((gap, idling)) = idled {
            self.observe_writer(now, ino, handle, length, gap, idling);
        }
    }

    /// A client is not answered before less is dirty, though it was accepted: it does not rest meanwhile.
    pub(super) fn hold_writer_back(&mut self, handle: HandleId) {
        if let Some(player) = self.clients.streams.player_mut(handle) {
            player.rest.interrupt();
        }
    }

    /// A client that had to wait until it may go on writing goes on.
    pub(super) fn let_writer_go(&mut self, now: Now, handle: HandleId) {
        if let Some(&ClientState { opener, .. }) = self.clients.streams.client_state(handle) {
            self.clients.streams.writers.answered(now.monotonic, opener);
        }
    }

    /// A client has written so much: a recorder, or a copy.
    pub(super) fn follow_writer(&mut self, now: Now, ino: Ino, handle: HandleId, length: u64) {
        if self.clients.streams.is_silent() {
            return;
        }
        self.note_written(now, handle, length);
        self.outgrow_sequence(now, ino, handle);
        let copied = self.copies(handle);
        if let Some((player, rate)) = self.note_pace(now, ino, handle, Bytes(length)) {
            player.rest.note(now.monotonic, Bytes(length), rate, Direction::Write);
        }
        let copies = self.copies(handle);
        if copied != copies {
            self.change_streams(ino, |core| core.clients.streams.file_mut(ino).set_copying(handle, copies));
        }
    }

    /// The client has taken so much. Gives it back with the rate of all that it plays, if anybody knows one.
    fn note_pace(
        &mut self,
        now: Now,
        ino: Ino,
        handle: HandleId,
        length: Bytes,
    ) -> Option<(&mut Player, Bitrate)> {
        let streams = self.clients.streams.file(ino).map_or(0, |file| file.streams_of(handle)).max(1);
        let rate = Bitrate(self.clients.streams.rate_of(ino, handle)?.0.saturating_mul(streams.into()));
        let player = self.clients.streams.player_or_new(handle)?;
        player.pace.note(now.monotonic, length, rate);
        Some((player, rate))
    }

    /// The handle is closed: nobody plays through it any more.
    pub(super) fn forget_player(&mut self, ino: Ino, handle: HandleId) {
        if let Some(player) = self.clients.streams.player_mut(handle) {
            let given_up: Vec<BlockId> = player.places_mut().flat_map(ReadCursor::leave).collect();
            self.give_up(ino, handle, &given_up);
        }
        let file = self.clients.streams.file_mut(ino);
        file.set_playing(handle, None);
        file.set_copying(handle, false);
    }

    /// The blocks that are kept for clients, as often as they are.
    pub(super) fn blocks_of_players(&self) -> impl Iterator<Item = BlockId> {
        let players = self.clients.streams.clients().filter_map(|(_, client)| client.player.as_deref());
        players.flat_map(Player::places).flat_map(|place| place.kept.iter().copied())
    }

    /// Prefetches for a client that goes on where it was.
    pub(super) fn read_ahead(&mut self, now: Now, ino: Ino, handle: HandleId) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let Some(player) = self.clients.streams.player(handle) else { return };
        let size = file.size;
        if !player.is_run()
            || size <= REQUEST
            || file.exclusive > 0
            || self.clients.streams.policy(ino).prefetch_depth() == Bytes::ZERO
            || self.clients.streams.is_undecided(stream_of(ino, Direction::Read))
        {
            return;
        }
        let ReadCursor { pattern, asked, .. } = player.here;
        let (way, front) = (pattern.way(), pattern.front());
        let mut asked = match way {
            ScanDirection::Forward => asked.unwrap_or(front).max(front),
            ScanDirection::Backward => asked.unwrap_or(front).min(front),
        };
        let (lead, most) = player.share(self.clients.streams.lead(ino, handle));
        let rate = self.clients.streams.rate_of(ino, handle);
        // Who fills a buffer of his own asks for a second of it at once, or two, and comes so much sooner to what is asked for ahead.
        if rate.is_some_and(|rate| player.here.is_sooner(now.monotonic, rate)) {
            self.hasten_ahead(now, ino, handle);
        }
        let came = (lead.is_promised && self.begins(now, handle)).then(|| self.came_ahead(handle));
        while asked.abs_diff(front) <= lead.bytes {
            // Who has little ahead needs something soon, not much of it.
            let least = if lead.is_promised { lead.request / 2 } else { 0 };
            let has = came.map_or(asked.abs_diff(front), |came| came + least);
            let request = lead.request.min(has.max(REQUEST).max(least));
            let run_end =
                if way == ScanDirection::Forward { self.end_of_run(ino, asked, size) } else { size };
            // What is left at the end of a file may wait: whoever goes on goes on elsewhere.
            let with_the_rest = if run_end < size { lead.request } else { request };
            let next = next_request(way, asked, request, with_the_rest, run_end, size);
            let Some(range) = next else { break };
            let end = if way == ScanDirection::Forward { range.end } else { range.start };
            if end.abs_diff(front) > most {
                break;
            }
            let wanted = self.data.cache.wanted_bytes() + range.end - range.start;
            if !lead.is_promised && wanted > self.data.cache.capacity() / 2 {
                break;
            }
            let need = self.need_ahead(now, ino, handle, front, asked);
            if !self.load(ino, range.clone(), false, need) {
                break;
            }
            if let Some((rate, player)) = rate.zip(self.clients.streams.player_mut(handle))
                && lead.is_promised
            {
                player.here.reckon(now.monotonic, rate);
            }
            self.want(ino, handle, range.clone(), way);
            asked = end;
        }
        if let Some(player) = self.clients.streams.player_mut(handle) {
            player.here.asked = Some(asked);
        }
    }

    /// It has not played for long at the place at which it is.
    fn begins(&self, now: Now, handle: HandleId) -> bool {
        self.clients.streams.player(handle).is_some_and(|player| {
            player.starts_by.is_some() || now.monotonic < player.here.origin.0 + START + BEGINNING
        })
    }

    /// Bytes ahead of a player, where it is, that it can have at once.
    pub(super) fn came_ahead(&self, handle: HandleId) -> u64 {
        let Some(player) = self.clients.streams.player(handle) else { return 0 };
        let (way, front) = (player.here.pattern.way(), player.here.pattern.front());
        let blocks = player.here.kept.iter().filter_map(|id| self.data.cache.get(*id));
        let ahead = |block: &CacheBlock| match way {
            ScanDirection::Forward => block.end().saturating_sub(block.start.max(front)),
            ScanDirection::Backward => block.end().min(front).saturating_sub(block.start),
        };
        blocks.take_while(|block| block.loading.is_empty()).map(ahead).sum()
    }

    /// Where what lies on the device in one piece from `from` on ends: a request over two pieces costs two accesses, and leaves the
    /// second one shorter by its part, which is another access.
    fn end_of_run(&self, ino: Ino, from: u64, size: u64) -> u64 {
        let from = from / BLOCK * BLOCK;
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        let mut behind = None;
        for extent in extents.into_iter().flat_map(|all| all.range(from / BLOCK, size.div_ceil(BLOCK))) {
            let start = extent.logical * BLOCK;
            let is_elsewhere = behind.is_some_and(|behind| behind != extent.start);
            if is_elsewhere && start >= from + SHORT_PIECE {
                return start;
            }
            behind = Some(extent.start + extent.count);
        }
        size.next_multiple_of(BLOCK)
    }

    /// Clients that began to play and have all they asked for play from now on: they come to what was read ahead sooner
    /// than they might have.
    pub(super) fn begin_to_play(&mut self, now: Now, ino: Ino) {
        if self.data.files.get(&ino).is_none_or(|file| !file.waiting.is_empty()) {
            return;
        }
        let Some(file) = self.clients.streams.file(ino) else { return };
        let begins = |handle: &HandleId| {
            self.clients.streams.player(*handle).is_some_and(|player| player.starts_by.is_some())
        };
        let beginning: Vec<HandleId> = file.who_plays().filter(begins).collect();
        for handle in beginning {
            let Some(player) = self.clients.streams.player_mut(handle) else { continue };
            player.starts_by = None;
            // It took less time than it might have, and comes to everything so much sooner.
            for place in player.places_mut() {
                place.origin.0 = place.origin.0.min(now.monotonic.saturating_before(START));
            }
            self.hasten_ahead(now, ino, handle);
        }
    }

    /// What a client waits for, and what is asked for ahead of it, is needed as is known now.
    pub(super) fn hasten_ahead(&mut self, now: Now, ino: Ino, handle: HandleId) {
        let Some(player) = self.clients.streams.player(handle) else { return };
        let forward = player.runs().filter(|place| place.pattern.way() == ScanDirection::Forward);
        let ahead_of = |place: &ReadCursor| {
            let front = place.pattern.front();
            let blocks = place.kept.iter().filter_map(|id| self.data.cache.get(*id));
            let ahead = blocks.filter(|block| block.end() > front).map(|block| block.start..block.end());
            (front, ahead.collect::<Vec<_>>())
        };
        let places: SmallVec<[_; 1]> = forward.map(ahead_of).collect();
        for (front, ahead) in places {
            for range in ahead {
                let need = self.need_ahead(now, ino, handle, front, range.start.max(front));
                self.hasten(ino, range, need);
            }
            let need = self.need(now, ino, handle, front, Bytes::ZERO);
            self.hasten(ino, front.saturating_sub(NEAR)..front, need);
        }
        for place in self.clients.streams.player_mut(handle).into_iter().flat_map(Player::places_mut) {
            if place.pattern.way() == ScanDirection::Forward {
                place.reckoned = Some((now.monotonic, place.pattern.front()));
            }
        }
    }

    /// How what lies `ahead` of a client is ranked.
    fn need_ahead(&self, now: Now, ino: Ino, handle: HandleId, front: u64, at: u64) -> RequestQos {
        let ahead = Bytes(at.abs_diff(front));
        let need = self.need(now, ino, handle, at, ahead);
        let Some(file) = self.clients.streams.file(ino) else { return need };
        let is_promised = file.terms(Direction::Read).is_some() && need.class == Class::RealTime;
        let Some(rate) = self.clients.streams.rate_of(ino, handle).filter(|_| is_promised) else {
            return need;
        };
        // By when the client comes to it. The scheduler makes it later where the terms do.
        let needed =
            now.monotonic + rate.time_for(ahead).max(self.clients.streams.window_of_reader(file, handle));
        RequestQos { deadline: self.earliest_need(ino, handle, at).max(Some(needed)), ..need }
    }

    /// Keeps the blocks of `range` for a player.
    fn want(&mut self, ino: Ino, handle: HandleId, range: Range<u64>, way: ScanDirection) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let Some(player) = self.clients.streams.player_mut(handle) else { return };
        let first = file.block_before(range.start).map_or(range.start, |(start, _)| start);
        let mut blocks: Vec<_> = file.blocks.range(first..range.end).collect();
        if way == ScanDirection::Backward {
            blocks.reverse();
        }
        for (_, id) in blocks {
            let is_in_range = self.data.cache.get(id).is_some_and(|block| block.end() > range.start);
            if is_in_range && player.here.kept.back() != Some(&id) {
                self.data.cache.want(id);
                player.here.kept.push_back(id);
            }
        }
    }

    /// Gives up what a player has passed, and says what that was.
    fn pass_played(&mut self, handle: HandleId) -> Vec<BlockId> {
        let mut passed = Vec::new();
        let Some(player) = self.clients.streams.player_mut(handle) else { return passed };
        let (way, front) = (player.here.pattern.way(), player.here.pattern.front());
        while let Some(&id) = player.here.kept.front() {
            let is_passed = self.data.cache.get(id).is_none_or(|block| match way {
                ScanDirection::Forward => block.end() <= front,
                ScanDirection::Backward => block.start >= front,
            });
            if !is_passed {
                break;
            }
            self.data.cache.unwant(id);
            player.here.kept.pop_front();
            passed.push(id);
        }
        passed
    }

    /// True when a player has jumped to what is in memory for it, or on its way: only what it has jumped over is not wanted
    /// any more, and the rest is wanted sooner.
    fn jumps_ahead(&mut self, now: Now, ino: Ino, handle: HandleId) -> bool {
        let Some(player) = self.clients.streams.player(handle) else { return false };
        let front = player.here.pattern.front();
        let begin = player.here.kept.front().and_then(|id| self.data.cache.get(*id)).map(|block| block.start);
        let is_there = player.here.pattern.way() == ScanDirection::Forward
            && begin.is_some_and(|begin| begin <= front)
            && player.here.asked.is_some_and(|asked| front <= asked);
        if is_there {
            let jumped_over = self.pass_played(handle);
            self.cancel_unwanted(&jumped_over);
            self.hasten_ahead(now, ino, handle);
        }
        is_there
    }

    /// What was prefetched for a player alone that is elsewhere, or gone, is cancelled, unless it is at the device already, and not
    /// kept any longer.
    fn give_up(&mut self, ino: Ino, handle: HandleId, given_up: &[BlockId]) {
        given_up.iter().for_each(|&id| self.data.cache.unwant(id));
        // Somebody who waits for the file may wait for some of it.
        if given_up.is_empty() || self.data.files.get(&ino).is_none_or(|file| !file.waiting.is_empty()) {
            return;
        }
        let wants_more = self
            .clients
            .streams
            .player(handle)
            .is_some_and(|player| player.places().any(|one| !one.kept.is_empty()));
        if !wants_more && self.clients.streams.file(ino).is_some_and(|file| file.is_played_only_by(handle)) {
            let stream = stream_of(ino, Direction::Read);
            self.requests.outbox.cancellations.push(Cancellation::Stream(stream));
            return;
        }
        self.cancel_unwanted(given_up);
    }
}
