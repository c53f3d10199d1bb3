//! Files of a sequence while they are read and written: the next ones are in memory before they are opened, all together
//! are one stream, and those that are recorded lie one behind the other.
//!
//! **For:** what follows from what [`avfs_streams::sequence`] knows. **Excludes:** recognition. **State:** none of its
//! own. **Invariants:** as for players: what was read ahead is not evicted before it has been passed, as long as there is
//! other memory; what nobody will come to is cancelled; a client never has more ahead of it than its terms' buffer, or
//! the policy's depth and one request, and a frame.
//!
//! Attributes, names and where files lie are in memory anyway; it is their bytes that are read ahead. Frames that are
//! neighbours on the device are asked for at once, so that the scheduler makes one command of them.

use super::placing::pieces;
use super::state::blocks::BlockId;
use super::state::{Core, Noted, PrefetchedFrame, Sequence};
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::pool::MAX_BUFFER;
use avfs_streams::RequestQos;
use avfs_streams::consumed::LONGEST_FRAME;
use avfs_streams::due::HASTE;
use avfs_streams::sequence::{SequenceId, Taken};
use avfs_streams::streams::sequence_ranking;
use avfs_streams::window::ReadaheadWindow;
use rtsched::{Class, Direction};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use units::{Bytes, Ino, Instant, Now};

/// A file that is recorded and becomes longer than this has a place of its own, whatever its name: clips have numbers, too, and several
/// at once in one place would take turns in it. A frame of 4096 by 3112 pixels with three channels of 10 bits has 50 MiB.
pub(super) const LONGEST_RECORDED: u64 = 64 << 20;
/// However short they are, no more frames are read ahead.
const MOST_AHEAD: usize = 512;

/// What a request of a client says of sequences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Followed {
    /// The file is a frame that others of its sequence go before and behind, and is read as such.
    pub(super) is_frame: bool,
    /// The client has come to another frame of this sequence: what comes next is to be read ahead.
    pub(super) next: Option<SequenceId>,
}

impl Core {
    /// A client asks for so much of a file, or has it; if it had to wait, it was noted when it asked: what comes first from the
    /// device says nothing of where the client is.
    pub(super) fn follow_frame(
        &mut self,
        now: Now,
        ino: Ino,
        handle: HandleId,
        length: u64,
        has_waited: bool,
    ) -> Followed {
        let Some(file) = self.data.files.get(&ino) else { return Followed::default() };
        let size = file.size;
        let is_frame = self.clients.streams.sequence_of(ino, Direction::Read).is_some();
        let client = self.clients.streams.client_state(handle);
        let reads_only = client.is_some_and(|client| client.direction == Direction::Read);
        let takes = reads_only && !has_waited && self.takes(now, handle, length, size);
        let noted = if takes { self.take_frame(now, ino, size, false) } else { None };
        Followed { is_frame, next: noted.map(|noted| noted.id) }
    }

    /// Notes what a client has taken of a file, or given; true when that has become half of it.
    fn takes(&mut self, now: Now, handle: HandleId, length: u64, size: u64) -> bool {
        let Some(open) = self.clients.streams.client_state_mut(handle) else { return false };
        let Some(taken) = &mut open.taken else { return false };
        taken.add(now.monotonic, length);
        let is_frame = taken.is_frame(now.monotonic, size);
        if is_frame {
            open.taken = None;
        }
        is_frame
    }

    /// The client waits for the device: the time until now says nothing of its clock.
    pub(super) fn interrupt_frame(&mut self, ino: Ino) {
        let Some((id, number)) = self.place_in_sequence(ino, Direction::Read) else { return };
        if let Some(sequence) = self.clients.streams.sequences.get_mut(id)
            && let Some(head) = sequence.head_at(number)
        {
            sequence.heads[head].beat.interrupt();
        }
    }

    /// The client is given a frame. Its first ones were open before anybody knew that they are frames: it is found by their names.
    pub(super) fn give_frame(&mut self, now: Now, ino: Ino, has_waited: bool) {
        let Some(name) = self.metadata.get(ino).and_then(|inode| inode.names.first()) else { return };
        let Some((id, ..)) = self.clients.streams.sequences.find(name.parent, false, &name.name) else {
            return;
        };
        if let Some(sequence) = self.clients.streams.sequences.get_mut(id) {
            // Who comes to the end and begins again waits at two places.
            sequence.heads.iter_mut().for_each(|head| head.give(now.monotonic, has_waited));
        }
    }

    /// A client has taken a frame, or recorded one.
    pub(super) fn take_frame(&mut self, now: Now, ino: Ino, length: u64, writes: bool) -> Option<Noted> {
        let name = self.metadata.get(ino)?.names.first()?.clone();
        let taken = Taken { directory: name.parent, writes, name: &name.name, ino, length };
        let mut noted = self.clients.streams.sequences.note(now.monotonic, taken)?;
        self.give_up_frames(std::mem::take(&mut noted.given_up));
        let policy = self.clients.streams.policy(ino);
        let (id, index) = (noted.id, noted.head);
        let (_, number, _) = self.clients.streams.sequences.find(name.parent, writes, &name.name)?;
        let sequence = self.clients.streams.sequences.get_mut(id)?;
        sequence.policy = policy;
        let rate = sequence.rate();
        let head = sequence.heads.get_mut(index)?;
        if let Some(rate) = rate {
            head.pace.note(now.monotonic, Bytes(length), rate);
        }
        head.allowance.note(now.monotonic, Bytes(length), false);
        let observed = head.beat.note(now.monotonic, Bytes(length));
        let passed = head.pass(number);
        sequence.observed = observed.or(sequence.observed);
        let begins = sequence.heads.get(index).is_some_and(|head| sequence.is_run(head));
        self.give_up_frames(passed);
        if begins && !writes && policy.frame_period().is_none() {
            self.probe(ino);
        }
        self.clients.streams.next_stop =
            self.clients.streams.next_stop.min(self.clients.streams.sequences.next_idle());
        self.declare_sequence(id);
        // Those that are opened from now on join when they are opened.
        let is_outside = || {
            self.data.files.contains_key(&ino)
                && self.clients.streams.sequence_of(ino, Direction::Read).is_none()
        };
        if begins && !writes && is_outside() {
            self.join_frames(now, id, index);
        }
        Some(noted)
    }

    /// A client has closed a frame that it read.
    pub(super) fn close_frame(&mut self, ino: Ino) {
        let Some((id, number)) = self.place_in_sequence(ino, Direction::Read) else { return };
        let Some(sequence) = self.clients.streams.sequences.get_mut(id) else { return };
        let closed: Vec<_> = sequence.heads.iter_mut().filter_map(|head| head.close(number)).collect();
        self.unwant(closed.iter().flat_map(|frame| &frame.kept));
    }

    fn unwant<'a>(&mut self, blocks: impl Iterator<Item = &'a BlockId>) {
        blocks.for_each(|&id| self.data.cache.unwant(id));
    }

    pub(super) fn give_up_frames(&mut self, frames: Vec<PrefetchedFrame>) {
        let blocks: Vec<BlockId> = frames.into_iter().flat_map(|frame| frame.kept).collect();
        self.unwant(blocks.iter());
        self.cancel_unwanted(&blocks);
    }

    // Rate and rank.

    // Reading ahead.

    /// The files of the frames that a client took last.
    fn frames_taken(&self, id: SequenceId, index: usize) -> Vec<Ino> {
        let head = self
            .clients
            .streams
            .sequences
            .get(id)
            .and_then(|sequence| Some((sequence, sequence.heads.get(index)?)));
        let taken = head.into_iter().flat_map(|(sequence, head)| {
            head.numbers().filter_map(move |number| self.frame(sequence, head, number))
        });
        taken.collect()
    }

    /// Frames that were open before anybody knew that they are frames are the sequence's, and so is what was asked for of them.
    fn join_frames(&mut self, now: Now, id: SequenceId, index: usize) {
        let mut joining = self.frames_taken(id, index);
        joining.retain(|ino| {
            self.data.files.contains_key(ino)
                && self.clients.streams.sequence_of(*ino, Direction::Read).is_none()
        });
        for &ino in &joining {
            self.change_streams(ino, |core| {
                core.clients.streams.file_mut(ino).set_sequence(Direction::Read, Some(id))
            });
        }
        let Some(sequence) =
            self.clients.streams.sequences.get(id).filter(|sequence| sequence.declared.is_some())
        else {
            return;
        };
        let need = self.need_of_frames(now, id, sequence, index, Bytes::ZERO);
        joining.into_iter().for_each(|ino| self.hasten(ino, 0..LONGEST_FRAME, need));
    }

    fn lead_of_sequence(&self, sequence: &Sequence, index: usize) -> ReadaheadWindow {
        let copies = sequence.heads.get(index).is_none_or(|head| head.pace.copies());
        if let (Some(terms), Some(rate), false) = (sequence.terms, sequence.rate(), copies) {
            return ReadaheadWindow::promised(terms, rate);
        }
        ReadaheadWindow::unpromised(&sequence.policy, self.data.cache.capacity())
    }

    /// Asks for the frames that the clients of a sequence come to next.
    pub(super) fn read_sequence_ahead(&mut self, now: Now, id: SequenceId) {
        let heads = self.clients.streams.sequences.get(id).map_or(0, |sequence| sequence.heads.len());
        for index in 0..heads {
            self.hasten_frames(now, id, index);
            self.read_frames_ahead(now, id, index);
        }
    }

    /// Frames are wanted by when they are needed now: who fills a buffer asks for a second of them at once, and comes so much
    /// sooner to those behind.
    fn hasten_frames(&mut self, now: Now, id: SequenceId, index: usize) {
        let sooner = self.frames_needed_sooner(now, id, index);
        let head =
            self.clients.streams.sequences.get_mut(id).and_then(|sequence| sequence.heads.get_mut(index));
        let Some(head) = head.filter(|_| !sooner.is_empty()) else { return };
        let mut needs = BTreeMap::new();
        for (at, need) in sooner {
            if let Some(frame) = head.ahead.get_mut(at) {
                frame.needed = need.deadline;
                needs.extend(frame.kept.iter().map(|&block| (block, need)));
            }
        }
        self.hasten_blocks(&needs);
    }

    /// Of what is ahead of a client, by their places there, the frames that are needed much sooner than they were asked for.
    fn frames_needed_sooner(&self, now: Now, id: SequenceId, index: usize) -> Vec<(usize, RequestQos)> {
        let sequence = self.clients.streams.sequences.get(id);
        let Some((sequence, head)) = sequence.and_then(|one| Some((one, one.heads.get(index)?))) else {
            return Vec::new();
        };
        let mut sooner = Vec::new();
        let (mut ahead, mut needed, mut need) = (0, None, None);
        for (at, frame) in head.ahead.iter().enumerate() {
            // What was wanted together stays so.
            if frame.needed != needed {
                needed = frame.needed;
                let now_needed = self.need_of_frames(now, id, sequence, index, Bytes(ahead));
                let is_sooner = |(now_needed, asked): (Instant, Instant)| now_needed + HASTE <= asked;
                need = now_needed.deadline.zip(needed).is_some_and(is_sooner).then_some(now_needed);
            }
            sooner.extend(need.map(|need| (at, need)));
            ahead += frame.bytes;
        }
        sooner
    }

    /// Asks for what comes behind what clients began with, once all of that has been asked for.
    pub(super) fn read_ahead_of_who_began(&mut self, now: Now) {
        if now.monotonic < self.clients.streams.next_ahead {
            return;
        }
        self.clients.streams.next_ahead = Instant::FAR_FUTURE;
        let has_begun = |sequence: &Sequence| sequence.heads.iter().any(|head| head.asks_until().is_some());
        let begun = self.clients.streams.sequences.iter().filter(|(_, sequence)| has_begun(sequence));
        let begun: Vec<SequenceId> = begun.map(|(id, _)| id).collect();
        begun.into_iter().for_each(|id| self.read_sequence_ahead(now, id));
    }

    /// Asks for the frames that a client comes to next. What it begins with comes in the network's order, and before what is behind
    /// it: the scheduler promises first what is asked for first.
    fn read_frames_ahead(&mut self, now: Now, id: SequenceId, index: usize) {
        let Some(sequence) = self.clients.streams.sequences.get(id) else { return };
        let Some(head) = sequence.heads.get(index).filter(|head| sequence.is_run(head)) else { return };
        if sequence.policy.prefetch_depth() == Bytes::ZERO || self.clients.streams.is_undecided(id.stream()) {
            return;
        }
        if let Some(until) = head.asks_until().filter(|until| now.monotonic < *until) {
            self.clients.streams.next_ahead = self.clients.streams.next_ahead.min(until);
            return;
        }
        let lead = self.lead_of_sequence(sequence, index);
        let ahead_of = |core: &Self| {
            core.clients.streams.sequences.get(id).and_then(|held| Some(held.heads.get(index)?.ahead_bytes()))
        };
        while let Some(ahead) = ahead_of(self).filter(|&ahead| ahead <= lead.bytes) {
            // Who has little ahead needs something soon, not much of it.
            let request = lead.request.min(ahead.max(MAX_BUFFER as u64));
            let mut asked = 0;
            while asked < request {
                let Some(sequence) = self.clients.streams.sequences.get(id) else { return };
                // Half a request by when its first frame is needed: frames that are wanted one by one make short commands.
                let half = asked / (lead.request / 2).max(1) * (lead.request / 2);
                let need = self.need_of_frames(now, id, sequence, index, Bytes(ahead + half));
                let room = (asked > 0).then_some(request - asked);
                let Some(length) = self.read_frame_ahead(id, index, lead, need, room) else {
                    return;
                };
                asked += length;
                if length == 0 {
                    break;
                }
            }
        }
    }

    /// How what lies `ahead` of a client is ranked: it is there when the client comes to it, the scheduler makes that later
    /// where the terms do. For whom there is no room gives way, as players do.
    fn need_of_frames(
        &self,
        now: Now,
        id: SequenceId,
        sequence: &Sequence,
        index: usize,
        ahead: Bytes,
    ) -> RequestQos {
        let head = sequence.heads.get(index);
        let ranking = sequence_ranking(id, sequence, head.is_none_or(|head| head.pace.copies()));
        let need = RequestQos::of(ranking, now.monotonic, Bytes::ZERO);
        let (Some(rate), Some(window)) = (ranking.rate, ranking.window) else { return need };
        if self.clients.streams.is_refused_sequence(id) {
            let deadline = head.and_then(|head| head.allowance.due(now.monotonic, ahead));
            return RequestQos { class: Class::BestEffort, deadline, ..need };
        }
        let needed = now.monotonic + rate.time_for(ahead).max(window);
        let earliest = head
            .zip(sequence.period())
            .map(|(head, period)| head.earliest_need(head.front(), period) + rate.time_for(ahead));
        RequestQos { deadline: earliest.max(Some(needed)), ..need }
    }

    /// Asks for one frame, if it fits into `room`, should there be little: its length, 0 if it does not fit. `None` when there
    /// is none, or no memory.
    fn read_frame_ahead(
        &mut self,
        id: SequenceId,
        index: usize,
        lead: ReadaheadWindow,
        need: RequestQos,
        room: Option<u64>,
    ) -> Option<u64> {
        let sequence = self.clients.streams.sequences.get(id)?;
        let head = sequence.heads.get(index)?;
        if head.ahead.len() >= MOST_AHEAD {
            return None;
        }
        let (number, ino) = self.next_frame(sequence, head, head.reached())?;
        let size = self.attributes(ino).ok()?.size;
        let bytes = size.max(BLOCK);
        if size > LONGEST_FRAME {
            return None;
        }
        if room.is_some_and(|room| bytes > room) {
            return Some(0);
        }
        if !lead.is_promised && self.data.cache.wanted_bytes() + bytes > self.data.cache.capacity() / 2 {
            return None;
        }
        let kept = self.load_frame(ino, size, need)?;
        kept.iter().for_each(|&block| self.data.cache.want(block));
        let frame = PrefetchedFrame { number, bytes, kept, needed: need.deadline };
        self.clients.streams.sequences.get_mut(id)?.heads.get_mut(index)?.ahead.push_back(frame);
        Some(bytes)
    }

    /// Asks for what is not in memory of a file: its blocks. `None` when there is no memory.
    fn load_frame(&mut self, ino: Ino, size: u64, need: RequestQos) -> Option<SmallVec<[BlockId; 2]>> {
        let is_held_back = self.file_mut(ino).exclusive > 0;
        let is_loaded =
            is_held_back || pieces(size).into_iter().all(|piece| self.load(ino, piece, false, need));
        let blocks = self.data.files.get(&ino).map(|file| file.blocks.ids().collect());
        self.rest(ino);
        if is_loaded { blocks } else { None }
    }

    // Recording.

    /// How many references clients of sequences hold to each block, for the audit.
    pub(super) fn blocks_of_sequences(&self) -> impl Iterator<Item = BlockId> {
        let heads = self.clients.streams.sequences.iter().flat_map(|(_, sequence)| &sequence.heads);
        heads.flat_map(|head| head.frames()).flat_map(|frame| frame.kept.iter().copied())
    }

    /// Notes what a client that writes has given, for [`gather_frame`](Self::gather_frame).
    pub(super) fn note_written(&mut self, now: Now, handle: HandleId, length: u64) {
        let taken = self.clients.streams.client_state_mut(handle).and_then(|open| open.taken.as_mut());
        if let Some(taken) = taken {
            taken.add(now.monotonic, length);
        }
    }

    /// A file whose name made it the next frame of a sequence is none when it takes longer, or becomes longer, than frames do.
    pub(super) fn outgrow_sequence(&mut self, now: Now, ino: Ino, handle: HandleId) {
        let Some(given) = self.clients.streams.client_state(handle).and_then(|open| open.taken) else {
            return;
        };
        let is_frame = given.bytes <= LONGEST_RECORDED && given.is_quick(now.monotonic);
        if !is_frame && self.is_recorded_frame(ino) {
            self.change_streams(ino, |core| {
                core.clients.streams.file_mut(ino).set_sequence(Direction::Write, None)
            });
        }
    }
}
