//! Clients that read on and on: what they will want next is in memory before they ask for it.
//!
//! **For:** prefetching, and which clients are the streams of a file. **Excludes:** what a client's requests look like
//! ([`avfs_streams::pattern`]), and what the device does first (the scheduler). **State:** a [`Player`] for each handle that has
//! read, with each [`ReadCursor`] where it reads on. **Invariants:** what was prefetched is not evicted before its player has
//! passed it, as long as there is other memory. What no client will want any more is cancelled and given up. A player never has
//! more ahead of it, at all its places together, than its terms' buffer, or the policy's depth and one request.
//!
//! A stream that was admitted asks for what its terms say, when they say it: a request's length, as soon as no more than the terms'
//! deadline is ahead of it. The admission reckoned with exactly that. Until the admission has answered, nothing is read ahead: it
//! may be less than a reader gets without a promise. A request is as long as what is ahead, at least half of one of the terms, at
//! most a whole one.

use super::state::blocks::BlockId;
use super::state::outbox::Cancellation;
use super::state::{Core, ONE_REQUEST, Player, ReadCursor};
use super::streams::Known;
use crate::format::BLOCK;
use crate::types::*;
use avfs_streams::REQUEST;
use avfs_streams::ahead::ReadAhead;
use avfs_streams::pattern::{NEAR, ScanDirection};
use avfs_streams::sequence::SequenceId;
use avfs_streams::streams::stream_of;
use rtsched::Direction;
use smallvec::SmallVec;
use std::ops::Range;
use units::{Bytes, Ino, Now};

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
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        self.clients.streams.give_frame(&facts, now.monotonic, ino, has_waited);
        if let Some(sequence) = followed.next {
            self.read_sequence_ahead(now, sequence);
        }
        if followed.is_frame {
            return;
        }
        let length = Bytes(end - offset);
        self.clients.streams.read_answered(now.monotonic, ino, handle, length, has_waited);
        if !has_waited {
            self.note_request(now, ino, handle, offset, end);
        }
        self.pass_played(handle);
        self.read_ahead(now, ino, handle);
    }

    /// A client asks for what it will have to wait for. A player is to be known before that is there: on a full device it comes the
    /// sooner for it. If the client is elsewhere now, the device is not to be busy for where it was. Gives back the sequence of
    /// which the next frames are to be read ahead.
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
        self.clients.streams.read_asked(now.monotonic, handle);
        if end > offset {
            self.note_request(now, ino, handle, offset, end);
        }
        followed.next
    }

    /// A client asks for `offset..end`, for the first time that this is told.
    fn note_request(&mut self, now: Now, ino: Ino, handle: HandleId, offset: u64, end: u64) {
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        let requested = self.clients.streams.note_request(&facts, now.monotonic, handle, offset, end);
        self.grant_wishes();
        if let Some(requested) = requested {
            let is_ahead = requested.is_elsewhere && self.jumps_ahead(now, ino, handle);
            let left = self.clients.streams.settle_request(now.monotonic, handle, requested, is_ahead);
            let given_up: Vec<BlockId> = left.into_iter().flatten().collect();
            self.give_up(ino, handle, &given_up);
        }
        self.clients.streams.observe(now.monotonic, ino, handle, Bytes(end - offset));
        self.grant_wishes();
    }

    /// A client wants to write so much.
    pub(super) fn notice_writer(&mut self, now: Now, handle: HandleId, length: usize) {
        let ino = self.clients.streams.client_state(handle).map(|client| client.ino);
        let file = ino.and_then(|ino| self.data.files.get(&ino));
        let is_long = file.is_some_and(|file| file.size >= ONE_REQUEST);
        self.clients.streams.write_asked(now.monotonic, handle, Bytes(length as u64), is_long);
        self.grant_wishes();
    }

    /// The handle is closed: no client plays through it any more.
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
        if self.data.files.get(&ino).is_none_or(|file| file.exclusive > 0) {
            return;
        }
        let begun = self.clients.streams.ahead_of(&self.facts(), now.monotonic, handle);
        let Some(mut ahead) = begun else { return };
        if ahead.is_sooner {
            self.expedite_ahead(now, ino, handle);
        }
        while let Some(next) = self.clients.streams.next_ahead(&self.facts(), now.monotonic, handle, &ahead) {
            let ReadAhead { range, need, is_promised } = next;
            let wanted = self.data.cache.wanted_bytes() + range.end - range.start;
            let is_short = !is_promised && wanted > self.data.cache.capacity() / 2;
            if is_short || !self.load(ino, range.clone(), false, need) {
                break;
            }
            self.clients.streams.asked_ahead(now.monotonic, handle, &mut ahead, &range);
            self.want(ino, handle, range, ahead.way);
        }
        self.clients.streams.ended_ahead(handle, &ahead);
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
        let beginning: Vec<HandleId> = file.players().filter(begins).collect();
        for handle in beginning {
            let Some(player) = self.clients.streams.player_mut(handle) else { continue };
            player.starts_by = None;
            player.places_mut().for_each(|place| place.origin.plays(now.monotonic));
            self.expedite_ahead(now, ino, handle);
        }
    }

    /// What a client waits for, and what is asked for ahead of it, is needed as is known now.
    pub(super) fn expedite_ahead(&mut self, now: Now, ino: Ino, handle: HandleId) {
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
                let need = self.clients.streams.need_ahead(
                    &self.facts(),
                    now.monotonic,
                    handle,
                    front,
                    range.start.max(front),
                );
                self.expedite(ino, range, need);
            }
            let need = self.need(now, ino, handle, front, Bytes::ZERO);
            self.expedite(ino, front.saturating_sub(NEAR)..front, need);
        }
        for place in self.clients.streams.player_mut(handle).into_iter().flat_map(Player::places_mut) {
            if place.pattern.way() == ScanDirection::Forward {
                place.reckoned = Some((now.monotonic, place.pattern.front()));
            }
        }
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
            self.expedite_ahead(now, ino, handle);
        }
        is_there
    }

    /// What was prefetched for a player alone that is elsewhere, or gone, is cancelled, unless it is at the device already, and not
    /// kept any longer.
    fn give_up(&mut self, ino: Ino, handle: HandleId, given_up: &[BlockId]) {
        given_up.iter().for_each(|&id| self.data.cache.unwant(id));
        // A client that waits for the file may wait for some of it.
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
