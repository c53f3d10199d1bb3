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

use super::cache::BlockId;
use super::reads::page_ceil;
use super::streams::{LONG_PIECE, Need, Ranking, SHORT_PIECE, direction_of};
use super::{Core, Purpose};
use crate::allocator::Owner;
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::pool::MAX_BUFFER;
use avfs_io::{Evidence, IoTag};
use avfs_streams::cursor::{self, SLOWEST};
use avfs_streams::due::HASTE;
use avfs_streams::name::spellings;
use avfs_streams::player::Client;
use avfs_streams::sequence::{self, Pattern, SequenceId, Taken};
use avfs_streams::window::ReadaheadWindow;
use rtsched::{Class, Direction, StreamSpec};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Bytes, DeviceOffset, Duration, Ino, Instant, Now};

/// A file that is shorter is no frame: 24 of them a second are less than 13 Mbit/s.
const SHORTEST_FRAME: u64 = 64 << 10;
/// A file that is longer is no frame: one of 8192 by 4320 pixels with four channels of 16 bits has 270 MiB.
const LONGEST_FRAME: u64 = 512 << 20;
/// A file that is recorded and becomes longer than this has a place of its own, whatever its name: clips have numbers, too, and several
/// at once in one place would take turns in it. A frame of 4096 by 3112 pixels with three channels of 10 bits has 50 MiB.
const LONGEST_RECORDED: u64 = 64 << 20;
/// So many numbers may be missing between two frames.
const LONGEST_GAP: usize = 256;
/// However short they are, no more frames are read ahead.
const MOST_AHEAD: usize = 512;
/// What is asked for ahead of who plays is wanted by when he asks for it, which is when he shows what is a second before; half of
/// that second others may need more, who begin.
const GRACE: Duration = Duration::from_millis(500);
/// Windows of who records frames: 512 MiB, some seconds of them.
const WINDOW_UNITS: u64 = 64;
/// What is gathered of recorded frames before it is written, where nothing is promised.
const GATHERED: u64 = MAX_BUFFER as u64;

/// The blocks that are kept of a frame.
pub(super) type Frames = SmallVec<[BlockId; 2]>;
type PrefetchedFrame = cursor::PrefetchedFrame<Frames>;
type SequenceCursor = cursor::SequenceCursor<Frames>;
type Sequence = sequence::Sequence<Frames>;
type Noted = sequence::Noted<Frames>;

/// How much a client has taken of a file, or given.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    bytes: u64,
    /// When it began.
    since: Option<Instant>,
}

impl Share {
    fn add(&mut self, now: Instant, length: u64) {
        self.bytes = self.bytes.saturating_add(length);
        self.since.get_or_insert(now);
    }

    /// It took no longer than a frame may take.
    fn is_quick(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_since(since) <= SLOWEST)
    }

    /// It is half of a file of this length, and took no longer than a frame may take.
    fn is_frame(&self, now: Instant, size: u64) -> bool {
        (SHORTEST_FRAME..=LONGEST_FRAME).contains(&size) && self.bytes >= size / 2 && self.is_quick(now)
    }
}

/// What a request of a client says of sequences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Followed {
    /// The file is a frame that others of its sequence go before and behind, and is read as such.
    pub(super) is_frame: bool,
    /// The client has come to another frame of this sequence: what comes next is to be read ahead.
    pub(super) next: Option<SequenceId>,
}

impl Core {
    /// The sequence as part of which a file is about to be used, if it is one.
    pub(super) fn joined_sequence(&self, ino: Ino, direction: Direction) -> Option<SequenceId> {
        let name = self.metadata.get(ino)?.names.first()?;
        self.sequences.joined(name.parent, direction == Direction::Write, &name.name)
    }

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
        let Some(file) = self.files.get(&ino) else { return Followed::default() };
        let (size, is_frame) = (file.size, file.sequence(Direction::Read).is_some());
        let reads_only =
            self.handles.get(&handle.0).is_some_and(|open| direction_of(open.flags) == Direction::Read);
        let takes = reads_only && !has_waited && self.takes(now, handle, length, size);
        let noted = if takes { self.take_frame(now, ino, size, false) } else { None };
        Followed { is_frame, next: noted.map(|noted| noted.id) }
    }

    /// Notes what a client has taken of a file, or given; true when that has become half of it.
    fn takes(&mut self, now: Now, handle: HandleId, length: u64, size: u64) -> bool {
        let Some(open) = self.handles.get_mut(&handle.0) else { return false };
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
        if let Some(sequence) = self.sequences.get_mut(id)
            && let Some(head) = sequence.head_at(number)
        {
            sequence.heads[head].beat.interrupt();
        }
    }

    /// The client is given a frame. Its first ones were open before anybody knew that they are frames: it is found by their names.
    pub(super) fn give_frame(&mut self, now: Now, ino: Ino, has_waited: bool) {
        let Some(name) = self.metadata.get(ino).and_then(|inode| inode.names.first()) else { return };
        let Some((id, ..)) = self.sequences.find(name.parent, false, &name.name) else { return };
        if let Some(sequence) = self.sequences.get_mut(id) {
            // Who comes to the end and begins again waits at two places.
            sequence.heads.iter_mut().for_each(|head| head.give(now.monotonic, has_waited));
        }
    }

    /// The sequence that an open file is a frame of, its number there, and the client that is there.
    fn client_of_frame(&self, handle: HandleId) -> Option<(&Sequence, u64, &SequenceCursor)> {
        let (id, number) = self.place_in_sequence(self.handle(handle).ok()?.0, Direction::Read)?;
        let sequence = self.sequences.get(id)?;
        Some((sequence, number, sequence.heads.get(sequence.head_at(number)?)?))
    }

    /// True when a client of a sequence came to this frame from another one.
    pub(super) fn follows_a_frame(&self, handle: HandleId) -> bool {
        self.client_of_frame(handle).is_some_and(|(sequence, _, head)| sequence.is_run(head))
    }

    /// What is known of the client of a sequence whose frame this is.
    pub(super) fn client_of_frames(&self, handle: HandleId) -> Option<Client> {
        self.client_of_frame(handle).map(|(.., head)| head.client())
    }

    /// The sequence that an open file is part of, and its number there.
    fn place_in_sequence(&self, ino: Ino, direction: Direction) -> Option<(SequenceId, u64)> {
        let id = self.files.get(&ino)?.sequence(direction)?;
        let name = self.metadata.get(ino)?.names.first()?;
        let (found, number, _) =
            self.sequences.find(name.parent, direction == Direction::Write, &name.name)?;
        (found == id).then_some((id, number))
    }

    /// A client has taken a frame, or recorded one.
    fn take_frame(&mut self, now: Now, ino: Ino, length: u64, writes: bool) -> Option<Noted> {
        let name = self.metadata.get(ino)?.names.first()?.clone();
        let taken = Taken { directory: name.parent, writes, name: &name.name, ino, length };
        let mut noted = self.sequences.note(now.monotonic, taken)?;
        self.give_up_frames(std::mem::take(&mut noted.given_up));
        let policy = self.files.get(&ino).map(|file| file.policy()).unwrap_or_default();
        let (id, index) = (noted.id, noted.head);
        let (_, number, _) = self.sequences.find(name.parent, writes, &name.name)?;
        let sequence = self.sequences.get_mut(id)?;
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
            self.probe(now, ino);
        }
        self.next_stop = self.next_stop.min(self.sequences.next_idle());
        self.declare_sequence(id);
        // Those that are opened from now on join when they are opened.
        let is_outside = || self.files.get(&ino).is_some_and(|file| file.sequence(Direction::Read).is_none());
        if begins && !writes && is_outside() {
            self.join_frames(now, id, index);
        }
        Some(noted)
    }

    /// A client has closed a frame that it read.
    pub(super) fn close_frame(&mut self, ino: Ino) {
        let Some((id, number)) = self.place_in_sequence(ino, Direction::Read) else { return };
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let closed: Vec<_> = sequence.heads.iter_mut().filter_map(|head| head.close(number)).collect();
        self.unwant(closed.iter().flat_map(|frame| &frame.kept));
    }

    fn unwant<'a>(&mut self, blocks: impl Iterator<Item = &'a BlockId>) {
        blocks.for_each(|&id| self.cache.unwant(id));
    }

    fn give_up_frames(&mut self, frames: Vec<PrefetchedFrame>) {
        let blocks: Vec<BlockId> = frames.into_iter().flat_map(|frame| frame.kept).collect();
        self.unwant(blocks.iter());
        self.cancel_unwanted(&blocks);
    }

    /// Ends what nobody has gone on with for some time: its memory and its reservation are others'.
    pub(super) fn stop_idle_sequences(&mut self, now: Now) {
        for (id, frames) in self.sequences.take_idle(now.monotonic) {
            self.give_up_frames(frames);
            self.write_gathered(now, id);
            self.declare_sequence(id);
            let is_over = self.sequences.get(id).is_none_or(|sequence| sequence.heads.is_empty());
            if is_over {
                self.allocator.release_window(owner_of(id));
            }
        }
        self.next_stop = self.sequences.next_idle();
    }

    // Rate and rank.

    /// What a file's header says of the sequence that it is a frame of: how long one is shown, or that it is a film.
    pub(super) fn note_container(&mut self, ino: Ino, period: Option<Duration>, is_frame: bool) {
        let Some(name) = self.metadata.get(ino).and_then(|inode| inode.names.first()) else { return };
        let Some((id, ..)) = self.sequences.find(name.parent, false, &name.name) else { return };
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.header_period = period.or(sequence.header_period);
            sequence.is_of_films = !is_frame;
            tracing::info!(%ino, ?period, "a file of a numbered sequence says how long it is shown");
        }
    }

    /// How a frame's requests are ranked; `None`: as those of any other file.
    pub(super) fn frame_ranking(
        &self,
        ino: Ino,
        direction: Direction,
        client: Option<HandleId>,
    ) -> Option<Ranking> {
        let id = self.files.get(&ino)?.sequence(direction)?;
        let sequence = self.sequences.get(id)?;
        let head = match client {
            Some(_) => {
                self.place_in_sequence(ino, direction).and_then(|(_, number)| sequence.head_at(number))
            }
            None => None,
        };
        let copies = match head {
            Some(head) => sequence.heads[head].pace.copies(),
            None => sequence.heads.iter().any(|head| head.pace.copies()) && sequence.declared.is_none(),
        };
        if copies || sequence.declared.is_some() {
            return Some(sequence_ranking(id, sequence, copies));
        }
        None
    }

    /// What the scheduler is to know of a sequence: its clients are one stream.
    fn sequence_spec(&self, sequence: &Sequence) -> Option<(StreamSpec, usize)> {
        let players = sequence.players();
        if players == 0 || sequence.policy.forbids_streams() {
            return None;
        }
        let rate = units::Bitrate(sequence.rate()?.0.saturating_mul(players as u64));
        if let Some((held, count)) = sequence.declared {
            // Frames differ in length. What is held fits, if it is neither too little nor a third too much.
            if count == players && held.rate >= rate && held.rate.0 - held.rate.0 / 4 <= rate.0 {
                return Some((held, count));
            }
            return Some((StreamSpec { rate, ..held }, players));
        }
        let is_timed = sequence.policy.says_deadline_window();
        let reads = !sequence.pattern.writes;
        let request = if reads && !is_timed { self.request_of_frames(sequence) } else { None };
        let spec = StreamSpec {
            direction: if reads { Direction::Read } else { Direction::Write },
            rate,
            request,
            piece: None,
            deadline: is_timed.then(|| sequence.policy.deadline_window()),
            grace: if reads && !is_timed { GRACE } else { Duration::ZERO },
            place: if reads { self.place_of_frames(sequence) } else { None },
            priority: StreamSpec::DEFAULT_PRIORITY,
            account: sequence.policy.account(),
        };
        Some((spec, players))
    }

    /// Where the frames lie that are read next, about.
    fn place_of_frames(&self, sequence: &Sequence) -> Option<DeviceOffset> {
        let head = sequence.heads.first()?;
        let (_, ino) = self.next_frame(sequence, head, head.front())?;
        self.place_of(ino)
    }

    /// Length of requests where there is a reason for it: what a policy wants ahead, or the pieces in which the next
    /// frames lie.
    fn request_of_frames(&self, sequence: &Sequence) -> Option<Bytes> {
        if let Some(depth) = sequence.policy.stated_prefetch_depth() {
            return Some(depth.max(Bytes(BLOCK)));
        }
        let head = sequence.heads.first()?;
        let (mut at, mut end, mut bytes, mut runs) = (head.front(), None, 0, 0);
        while bytes < LONG_PIECE && runs < LONG_PIECE / SHORT_PIECE {
            let Some((number, ino)) = self.next_frame(sequence, head, at) else { break };
            at = number;
            for extent in self.metadata.get(ino)?.extents()?.iter() {
                runs += u64::from(end != Some(extent.start));
                end = Some(extent.start + extent.count);
                bytes += extent.count * BLOCK;
            }
        }
        let piece = bytes.checked_div(runs)?;
        (runs > 1 && piece < LONG_PIECE).then(|| Bytes(piece.max(SHORT_PIECE) / BLOCK * BLOCK))
    }

    /// Tells the scheduler what has become of a sequence.
    fn declare_sequence(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let spec = self.sequence_spec(sequence);
        let before = sequence.declared.map(|(spec, _)| spec);
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.declared = spec;
        if spec.is_none() {
            sequence.terms = None;
        }
        let known = |spec: StreamSpec| (spec, Evidence::Known);
        self.tell_stream(id.stream(), before.map(known), spec.map(|(spec, _)| known(spec)));
    }

    /// The streams of sequences are named by what their files have in common: directory, and `#` for each digit.
    pub(super) fn shown_sequence(&self, id: SequenceId) -> Option<(Ino, String)> {
        let sequence = self.sequences.get(id)?;
        let pattern = &sequence.pattern;
        let directory = self.shown_path(pattern.directory)?;
        let digits = sequence.heads.first().map_or(1, |head| head.digits());
        let (prefix, suffix) =
            (String::from_utf8_lossy(&pattern.prefix), String::from_utf8_lossy(&pattern.suffix));
        let separator = if directory.ends_with('/') { "" } else { "/" };
        Some((pattern.directory, format!("{directory}{separator}{prefix}{}{suffix}", "#".repeat(digits))))
    }

    // Reading ahead.

    /// The frame behind `from`, in the client's direction and step.
    fn next_frame(&self, sequence: &Sequence, head: &SequenceCursor, from: u64) -> Option<(u64, Ino)> {
        let frame = |number| Some((number, self.frame(sequence, head, number)?));
        head.behind(from).take(LONGEST_GAP).find_map(frame)
    }

    /// The file that is this frame, if there is one.
    fn frame(&self, sequence: &Sequence, head: &SequenceCursor, number: u64) -> Option<Ino> {
        let Pattern { directory, prefix, suffix, .. } = &sequence.pattern;
        let parent = self.metadata.get(*directory)?;
        let mut names = spellings(prefix, number, head.digits(), suffix);
        let ino = names.find_map(|name| self.metadata.child(parent, *directory, &name))?;
        (self.metadata.get(ino)?.kind == FileKind::Regular).then_some(ino)
    }

    /// The files of the frames that a client took last.
    fn frames_taken(&self, id: SequenceId, index: usize) -> Vec<Ino> {
        let head = self.sequences.get(id).and_then(|sequence| Some((sequence, sequence.heads.get(index)?)));
        let taken = head.into_iter().flat_map(|(sequence, head)| {
            head.numbers().filter_map(move |number| self.frame(sequence, head, number))
        });
        taken.collect()
    }

    /// Frames that were open before anybody knew that they are frames are the sequence's, and so is what was asked for of them.
    fn join_frames(&mut self, now: Now, id: SequenceId, index: usize) {
        let mut joining = self.frames_taken(id, index);
        joining
            .retain(|ino| self.files.get(ino).is_some_and(|file| file.sequence(Direction::Read).is_none()));
        for &ino in &joining {
            self.change_streams(ino, |core| core.file_mut(ino).set_sequence(Direction::Read, Some(id)));
        }
        let Some(sequence) = self.sequences.get(id).filter(|sequence| sequence.declared.is_some()) else {
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
        ReadaheadWindow::unpromised(&sequence.policy, self.cache.capacity())
    }

    /// Asks for the frames that the clients of a sequence come to next.
    pub(super) fn read_sequence_ahead(&mut self, now: Now, id: SequenceId) {
        let heads = self.sequences.get(id).map_or(0, |sequence| sequence.heads.len());
        for index in 0..heads {
            self.hasten_frames(now, id, index);
            self.read_frames_ahead(now, id, index);
        }
    }

    /// Frames are wanted by when they are needed now: who fills a buffer asks for a second of them at once, and comes so much
    /// sooner to those behind.
    fn hasten_frames(&mut self, now: Now, id: SequenceId, index: usize) {
        let sooner = self.frames_needed_sooner(now, id, index);
        let head = self.sequences.get_mut(id).and_then(|sequence| sequence.heads.get_mut(index));
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
    fn frames_needed_sooner(&self, now: Now, id: SequenceId, index: usize) -> Vec<(usize, Need)> {
        let sequence = self.sequences.get(id);
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
        self.next_ahead = Instant::FAR_FUTURE;
        let has_begun = |sequence: &Sequence| sequence.heads.iter().any(|head| head.asks_until().is_some());
        let begun = self.sequences.iter().filter(|(_, sequence)| has_begun(sequence));
        let begun: Vec<SequenceId> = begun.map(|(id, _)| id).collect();
        begun.into_iter().for_each(|id| self.read_sequence_ahead(now, id));
    }

    /// Asks for the frames that a client comes to next. What it begins with comes in the network's order, and before what is behind
    /// it: the scheduler promises first what is asked for first.
    fn read_frames_ahead(&mut self, now: Now, id: SequenceId, index: usize) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let Some(head) = sequence.heads.get(index).filter(|head| sequence.is_run(head)) else { return };
        if sequence.policy.prefetch_depth() == Bytes::ZERO || self.is_undecided(id.stream()) {
            return;
        }
        if let Some(until) = head.asks_until().filter(|until| now.monotonic < *until) {
            self.next_ahead = self.next_ahead.min(until);
            return;
        }
        let lead = self.lead_of_sequence(sequence, index);
        let ahead_of =
            |core: &Self| core.sequences.get(id).and_then(|held| Some(held.heads.get(index)?.ahead_bytes()));
        while let Some(ahead) = ahead_of(self).filter(|&ahead| ahead <= lead.bytes) {
            // Who has little ahead needs something soon, not much of it.
            let request = lead.request.min(ahead.max(MAX_BUFFER as u64));
            let mut asked = 0;
            while asked < request {
                let Some(sequence) = self.sequences.get(id) else { return };
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
    ) -> Need {
        let head = sequence.heads.get(index);
        let ranking = sequence_ranking(id, sequence, head.is_none_or(|head| head.pace.copies()));
        let need = Need::of(ranking, now.monotonic, Bytes::ZERO);
        let (Some(rate), Some(window)) = (ranking.rate, ranking.window) else { return need };
        if self.is_refused_sequence(id) {
            let deadline = head.and_then(|head| head.allowance.due(now.monotonic, ahead));
            return Need { class: Class::BestEffort, deadline, ..need };
        }
        let needed = now.monotonic + rate.time_for(ahead).max(window);
        let earliest = head
            .zip(sequence.period())
            .map(|(head, period)| head.earliest_need(head.front(), period) + rate.time_for(ahead));
        Need { deadline: earliest.max(Some(needed)), ..need }
    }

    /// A client that plays on does not need this frame before.
    pub(super) fn earliest_need_of_frame(&self, handle: HandleId) -> Option<Instant> {
        let (sequence, number, head) = self.client_of_frame(handle)?;
        Some(head.earliest_need(number, sequence.period()?))
    }

    /// Asks for one frame, if it fits into `room`, should there be little: its length, 0 if it does not fit. `None` when there
    /// is none, or no memory.
    fn read_frame_ahead(
        &mut self,
        id: SequenceId,
        index: usize,
        lead: ReadaheadWindow,
        need: Need,
        room: Option<u64>,
    ) -> Option<u64> {
        let sequence = self.sequences.get(id)?;
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
        if !lead.is_promised && self.cache.wanted_bytes() + bytes > self.cache.capacity() / 2 {
            return None;
        }
        let kept = self.load_frame(ino, size, need)?;
        kept.iter().for_each(|&block| self.cache.want(block));
        let frame = PrefetchedFrame { number, bytes, kept, needed: need.deadline };
        self.sequences.get_mut(id)?.heads.get_mut(index)?.ahead.push_back(frame);
        Some(bytes)
    }

    /// Asks for what is not in memory of a file: its blocks. `None` when there is no memory.
    fn load_frame(&mut self, ino: Ino, size: u64, need: Need) -> Option<SmallVec<[BlockId; 2]>> {
        let is_held_back = self.file_mut(ino).exclusive > 0;
        let is_loaded =
            is_held_back || pieces(size).into_iter().all(|piece| self.load(ino, piece, false, need));
        let blocks = self.files.get(&ino).map(|file| file.blocks.ids().collect());
        self.rest(ino);
        if is_loaded { blocks } else { None }
    }

    // Recording.

    /// A writer has closed a file, of which it has `given` so much. True: it is a frame, and is written together with its neighbours.
    pub(super) fn gather_frame(&mut self, now: Now, ino: Ino, given: Option<Share>) -> bool {
        let Some(file) = self.files.get(&ino) else { return false };
        let (size, is_last) = (file.size, file.writers == 0);
        let is_frame =
            size <= LONGEST_RECORDED && given.is_some_and(|given| given.is_frame(now.monotonic, size));
        if !is_last || !is_frame {
            return false;
        }
        let Some(Noted { id, first, .. }) = self.take_frame(now, ino, size, true) else { return false };
        self.change_streams(ino, |core| core.file_mut(ino).set_sequence(Direction::Write, Some(id)));
        if let Some(first) = first {
            self.go_on_behind(id, first);
        }
        let longest = self.cache.capacity() / 8;
        self.gather(id, ino, size);
        let Some(sequence) = self.sequences.get(id) else { return false };
        // Who was promised long requests has memory of his own for that: a copy that fills the rest does not make them short.
        let is_overfull = self.is_overfull(sequence.terms.is_some());
        let gathered: u64 = sequence.gathered.iter().map(|(.., length)| length).sum();
        let wanted = sequence.terms.map_or(GATHERED, |terms| terms.request.0).min(longest);
        if gathered >= wanted || is_overfull {
            self.write_gathered(now, id);
        }
        true
    }

    fn gather(&mut self, id: SequenceId, ino: Ino, size: u64) {
        if let Some((_, number)) = self.place_in_sequence(ino, Direction::Write)
            && let Some(sequence) = self.sequences.get_mut(id)
        {
            sequence.gathered.push((number, ino, size));
        }
    }

    /// The first frame of a sequence was recorded before there was one: it goes with the others, or the others behind it.
    fn go_on_behind(&mut self, id: SequenceId, first: Ino) {
        let waits = |file: &super::file::FileState| file.claimed > 0 && file.writers == 0;
        if let Some(file) = self.files.get_mut(&first).filter(|file| waits(file)) {
            file.set_sequence(Direction::Write, Some(id));
            let size = file.size;
            return self.gather(id, first, size);
        }
        let Some(extents) = self.metadata.get(first).and_then(|inode| inode.extents()) else { return };
        let recorded = extents.iter().last().map(|extent| extent.start + extent.count);
        let file = self.files.get(&first);
        let placed = file.and_then(|file| file.last_placed).map(|(_, block)| block).or(recorded);
        if file.is_none_or(|file| file.writers == 0) {
            self.allocator.release_window(Owner(first.0));
        }
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.placed = placed;
        }
    }

    fn write_gathered(&mut self, now: Now, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let mut gathered = std::mem::take(&mut sequence.gathered);
        gathered.sort_unstable();
        for (_, ino, _) in gathered {
            let has_name = self.metadata.get(ino).is_some_and(|inode| !inode.names.is_empty());
            if has_name {
                self.write_back_all(now, ino);
            }
        }
    }

    /// Where a file goes that is about to be placed, if it is a frame.
    pub(super) fn space_of_frame(&self, ino: Ino) -> Option<SpaceOfFrame> {
        let id = self.files.get(&ino)?.sequence(Direction::Write)?;
        let behind = self.sequences.get(id)?.placed;
        // Of a small volume others want something, too.
        let window_units = WINDOW_UNITS.min(self.allocator.free_units() / 8).max(1) as usize;
        Some(SpaceOfFrame { owner: owner_of(id), behind, window_units })
    }

    /// A part of a file was placed: the next frame goes behind it.
    pub(super) fn placed_frame(&mut self, ino: Ino, end: u64) {
        let id = self.files.get(&ino).and_then(|file| file.sequence(Direction::Write));
        if let Some(sequence) = id.and_then(|id| self.sequences.get_mut(id)) {
            sequence.placed = Some(end);
        }
    }

    /// True when a handle's file is written as a frame.
    pub(super) fn is_recorded_frame(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.sequence(Direction::Write).is_some())
    }

    /// How much memory a frame should have that is being recorded, from `at` on, of which a write ends at `end`: as much as it takes if it is as
    /// long as the one before. `None`: the file is none.
    pub(super) fn memory_of_frame(&self, ino: Ino, at: u64, end: u64) -> Option<u64> {
        let id = self.files.get(&ino)?.sequence(Direction::Write)?;
        let length = self.sequences.get(id)?.frame_bytes().0;
        let piece = pieces(length).into_iter().find(|piece| piece.contains(&at));
        Some(piece.map_or(end - at, |piece| (piece.end - at).max(end - at)))
    }

    /// How many references clients of sequences hold to each block, for the audit.
    pub(super) fn blocks_of_sequences(&self) -> impl Iterator<Item = BlockId> {
        let heads = self.sequences.iter().flat_map(|(_, sequence)| &sequence.heads);
        heads.flat_map(|head| head.frames()).flat_map(|frame| frame.kept.iter().copied())
    }

    /// Takes back what the device was asked for and nobody wants any more, unless it is there already, or somebody waits for
    /// the file and so may wait for some of it.
    pub(super) fn cancel_unwanted(&mut self, given_up: &[BlockId]) {
        if given_up.is_empty() {
            return;
        }
        let files = given_up.iter().filter_map(|&id| Some(self.cache.get(id)?.ino)).collect();
        for tag in self.in_flight.of_all(&files) {
            if let Some(Purpose::Load { ino, block, .. }) = self.in_flight.get(tag)
                && given_up.contains(block)
                && self.is_unwanted(tag)
                && self.files.get(ino).is_none_or(|file| file.waiting.is_empty())
            {
                self.outbox.cancellations.push(super::Cancellation::Request(tag));
            }
        }
    }

    /// Nobody is read ahead of what a request brings.
    pub(super) fn is_unwanted(&self, tag: IoTag) -> bool {
        let Some(Purpose::Load { block, bounce: None, .. }) = self.in_flight.get(tag) else {
            return false;
        };
        self.cache.get(*block).is_some_and(|block| block.wanted == 0 && block.held == 0)
    }

    /// Notes what a client that writes has given, for [`gather_frame`](Self::gather_frame).
    pub(super) fn note_written(&mut self, now: Now, handle: HandleId, length: u64) {
        let taken = self.handles.get_mut(&handle.0).and_then(|open| open.taken.as_mut());
        if let Some(taken) = taken {
            taken.add(now.monotonic, length);
        }
    }

    /// A file whose name made it the next frame of a sequence is none when it takes longer, or becomes longer, than frames do.
    pub(super) fn outgrow_sequence(&mut self, now: Now, ino: Ino, handle: HandleId) {
        let Some(given) = self.handles.get(&handle.0).and_then(|open| open.taken) else { return };
        let is_frame = given.bytes <= LONGEST_RECORDED && given.is_quick(now.monotonic);
        if !is_frame && self.is_recorded_frame(ino) {
            self.change_streams(ino, |core| core.file_mut(ino).set_sequence(Direction::Write, None));
        }
    }
}

/// Space for a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceOfFrame {
    pub(super) owner: Owner,
    /// The block behind the frame before it.
    pub(super) behind: Option<u64>,
    pub(super) window_units: usize,
}

/// Whose space a sequence's is: inodes have no such numbers.
fn owner_of(id: SequenceId) -> Owner {
    Owner(id.stream().0)
}

fn sequence_ranking(id: SequenceId, sequence: &Sequence, copies: bool) -> Ranking {
    let spec = sequence.declared.map(|(spec, _)| spec).filter(|_| !copies);
    match spec {
        Some(_) => Ranking {
            class: Class::RealTime,
            stream: Some(id.stream()),
            window: Some(sequence.window()),
            rate: sequence.rate(),
        },
        None => Ranking {
            class: if sequence.policy.forbids_streams() {
                sequence.policy.class()
            } else {
                Class::BestEffort
            },
            stream: None,
            window: None,
            rate: None,
        },
    }
}

/// A file in at most three parts that need no block much longer than themselves, and its longest blocks.
fn pieces(size: u64) -> SmallVec<[Range<u64>; 4]> {
    const LONGEST: u64 = MAX_BUFFER as u64;
    let (mut pieces, mut at, mut cuts) = (SmallVec::new(), 0, 0);
    let whole = size / LONGEST * LONGEST;
    if whole > 0 {
        pieces.push(0..whole);
        at = whole;
    }
    while at < size {
        let rest = page_ceil(size - at);
        let block = rest.next_power_of_two();
        let length = if block - rest <= rest / 8 || cuts == 2 { rest } else { block / 2 };
        cuts += 1;
        pieces.push(at..(at + length).min(size));
        at += length;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Frames are covered without overlap, each piece as a block can lie, and little more memory than they need is
        /// taken.
        #[test]
        fn a_frame_is_in_few_blocks_that_fit(size in 1u64..64 << 20) {
            let pieces = pieces(size);
            prop_assert_eq!(pieces.first().map(|piece| piece.start), Some(0));
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(size));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(pieces.len() <= 4);
            let memory: u64 = pieces.iter().map(|piece| {
                let length = page_ceil(piece.end) - piece.start;
                if length > MAX_BUFFER as u64 { length } else { length.next_power_of_two() }
            }).sum();
            prop_assert!(memory <= page_ceil(size) + size / 4 + BLOCK, "{} for {}", memory, size);
            for piece in &pieces {
                let block = (page_ceil(piece.end) - piece.start).next_power_of_two().min(MAX_BUFFER as u64);
                prop_assert!(piece.start.is_multiple_of(block));
            }
        }
    }
}
