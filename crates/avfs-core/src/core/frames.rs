//! Files of a sequence while they are read and written: the next ones are in memory before they are opened, all together
//! are one stream, and those that are recorded lie one behind the other.
//!
//! **For:** what follows from what [`avfs_streams::sequence`] knows. **Excludes:** recognition. **State:** none of its own.
//! **Invariants:** as for players. What was read ahead is not evicted before it has been passed, as long as there is other memory.
//! What no client will come to is cancelled. A client never has more ahead of it than its terms' buffer, or the policy's depth and
//! one request, and a frame.
//!
//! Attributes, names and where files lie are in memory anyway; it is their bytes that are read ahead. Frames that are
//! neighbours on the device are asked for at once, so that the scheduler makes one command of them.

use super::placing::pieces;
use super::state::blocks::BlockId;
use super::state::{Core, PrefetchedFrame, Sequence};
use super::streams::Known;
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::pool::MAX_BUFFER;
use avfs_streams::RequestQos;
use avfs_streams::consumed::LONGEST_FRAME;
use avfs_streams::frames::FrameTaken;
use avfs_streams::sequence::SequenceId;
use avfs_streams::window::ReadaheadWindow;
use rtsched::Direction;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use units::{Bytes, Ino, Instant, Now};

/// No more frames are read ahead, however short they are. It bounds memory. An operator's target.
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
        let takes = !has_waited && self.clients.streams.takes_frame(now.monotonic, handle, length, size);
        let noted = if takes { self.take_frame(now, ino, size, false) } else { None };
        Followed { is_frame, next: noted.map(|noted| noted.id) }
    }

    /// A client has taken a frame, or recorded one.
    pub(super) fn take_frame(&mut self, now: Now, ino: Ino, length: u64, writes: bool) -> Option<FrameTaken> {
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        let noted = self.clients.streams.note_frame(&facts, now.monotonic, ino, length, writes);
        let (taken, given_up) = noted?;
        self.give_up_frames(given_up);
        self.grant_wishes();
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        let joined = self.clients.streams.settle_frame(&facts, now.monotonic, ino, taken);
        if let Some((joining, need)) = joined {
            joining.into_iter().for_each(|ino| self.expedite(ino, 0..LONGEST_FRAME, need));
        }
        Some(taken)
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

    // Reading ahead.

    /// Asks for the frames that the clients of a sequence come to next.
    pub(super) fn read_sequence_ahead(&mut self, now: Now, id: SequenceId) {
        let heads = self.clients.streams.sequences.get(id).map_or(0, |sequence| sequence.heads.len());
        for index in 0..heads {
            self.expedite_frames(now, id, index);
            self.read_frames_ahead(now, id, index);
        }
    }

    /// Frames are wanted by when they are needed now. A client that fills a buffer asks for a second of them at once. It comes
    /// so much sooner to those behind.
    fn expedite_frames(&mut self, now: Now, id: SequenceId, index: usize) {
        let sooner = self.clients.streams.frames_needed_sooner(now.monotonic, id, index);
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
        self.expedite_blocks(&needs);
    }

    /// Asks for what comes behind what clients began with, once all of that has been asked for.
    pub(super) fn read_ahead_after_first_burst(&mut self, now: Now) {
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
        let lead = self.clients.streams.lead_of_sequence(sequence, index);
        let ahead_of = |core: &Self| {
            core.clients.streams.sequences.get(id).and_then(|held| Some(held.heads.get(index)?.ahead_bytes()))
        };
        while let Some(ahead) = ahead_of(self).filter(|&ahead| ahead <= lead.bytes) {
            // A client that has little ahead needs something soon, not much of it.
            let request = lead.request.min(ahead.max(MAX_BUFFER as u64));
            let mut asked = 0;
            while asked < request {
                let Some(sequence) = self.clients.streams.sequences.get(id) else { return };
                // Half a request by when its first frame is needed: frames that are wanted one by one make short commands.
                let half = asked / (lead.request / 2).max(1) * (lead.request / 2);
                let need = self.clients.streams.need_of_frames(
                    now.monotonic,
                    id,
                    sequence,
                    index,
                    Bytes(ahead + half),
                );
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

    /// How many references clients of sequences hold to each block, for the audit.
    pub(super) fn blocks_of_sequences(&self) -> impl Iterator<Item = BlockId> {
        let heads = self.clients.streams.sequences.iter().flat_map(|(_, sequence)| &sequence.heads);
        heads.flat_map(|head| head.frames()).flat_map(|frame| frame.kept.iter().copied())
    }
}
