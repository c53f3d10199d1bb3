//! Frames of sequences: what clients take of them, and by when they need the next.
//!
//! **For:** what follows for a sequence from what a client does with one of its files. **Excludes:** recognition
//! ([`sequence`](crate::sequence)), and what is kept of frames. **State:** that of [`Streams`]. **Invariants:** a function of the calls and of
//! what [`Facts`] answers.

use crate::cursor::PrefetchedFrame;
use crate::due::HASTE;
use crate::sequence::{Sequence, SequenceId, Taken};
use crate::streams::{Streams, sequence_ranking};
use crate::window::ReadaheadWindow;
use crate::{Facts, HandleId, RequestQos, Wish};
use rtsched::{Class, Direction};
use units::{Bytes, Ino, Instant};

/// A frame that a client has taken, or recorded.
#[derive(Clone, Copy, Debug)]
pub struct FrameTaken {
    /// Its sequence.
    pub id: SequenceId,
    /// Index of the client.
    head: usize,
    /// The file before it, if this one has made them a sequence.
    pub first: Option<Ino>,
    /// The client plays from now on, if it did not before.
    begins: bool,
}

impl<K: Default, F> Streams<K, F> {
    /// Notes what a client has taken of a file, for which it did not have to wait; true when that has become half of it, as of a
    /// frame.
    pub fn takes_frame(&mut self, now: Instant, handle: HandleId, length: u64, size: u64) -> bool {
        let Some(client) = self.client_state_mut(handle) else { return false };
        let reads_only = client.direction == Direction::Read;
        let Some(taken) = client.taken.as_mut().filter(|_| reads_only) else { return false };
        taken.add(now, length);
        let is_frame = taken.is_frame(now, size);
        if is_frame {
            client.taken = None;
        }
        is_frame
    }

    /// The client waits for the device: the time until now says nothing of its clock.
    pub fn interrupt_frame(&mut self, facts: &dyn Facts, ino: Ino) {
        let Some((id, number)) = self.place_in_sequence(facts, ino, Direction::Read) else { return };
        if let Some(sequence) = self.sequences.get_mut(id)
            && let Some(head) = sequence.head_at(number)
        {
            sequence.heads[head].beat.interrupt();
        }
    }

    /// The client is given a frame. Its first ones were open before it was known that they are frames: it is found by their names.
    pub fn give_frame(&mut self, facts: &dyn Facts, now: Instant, ino: Ino, has_waited: bool) {
        let Some((parent, name)) = facts.name_of(ino) else { return };
        let Some((id, ..)) = self.sequences.find(parent, false, name) else { return };
        if let Some(sequence) = self.sequences.get_mut(id) {
            // A client that comes to the end and begins again waits at two places.
            sequence.heads.iter_mut().for_each(|head| head.give(now, has_waited));
        }
    }

    /// A client has taken a frame, or recorded one; and frames to which no client comes any more. [`settle_frame`](Self::settle_frame)
    /// ends it, when what is wished for has been done.
    pub fn note_frame(
        &mut self,
        facts: &dyn Facts,
        now: Instant,
        ino: Ino,
        length: u64,
        writes: bool,
    ) -> Option<(FrameTaken, Vec<PrefetchedFrame<F>>)> {
        let (directory, name) = facts.name_of(ino)?;
        let taken = Taken { directory, writes, name, ino, length };
        let mut noted = self.sequences.note(now, self.start(), taken)?;
        let mut given_up = std::mem::take(&mut noted.given_up);
        let policy = self.policy(ino);
        let (id, index) = (noted.id, noted.head);
        let (_, number, _) = self.sequences.find(directory, writes, name)?;
        let sequence = self.sequences.get_mut(id)?;
        sequence.policy = policy;
        let rate = sequence.rate();
        let head = sequence.heads.get_mut(index)?;
        if let Some(rate) = rate {
            head.pace.note(now, Bytes(length), rate);
        }
        head.allowance.note(now, Bytes(length), false);
        let observed = head.beat.note(now, Bytes(length));
        given_up.extend(head.pass(number));
        sequence.observed = observed.or(sequence.observed);
        let begins = !writes && sequence.heads.get(index).is_some_and(|head| sequence.is_run(head));
        if begins && policy.frame_period().is_none() {
            self.wish(Wish::Probe(ino));
        }
        Some((FrameTaken { id, head: index, first: noted.first, begins }, given_up))
    }

    /// The end of [`note_frame`](Self::note_frame): the scheduler is told what became of the sequence. Gives back files that were open
    /// before it was known that they are frames, and are the sequence's from now on, with the need of what was asked for of them.
    pub fn settle_frame(
        &mut self,
        facts: &dyn Facts,
        now: Instant,
        ino: Ino,
        taken: FrameTaken,
    ) -> Option<(Vec<Ino>, RequestQos)> {
        self.next_stop = self.next_stop.min(self.sequences.next_idle());
        self.declare_sequence(facts, taken.id);
        // Those that are opened from now on join when they are opened.
        let is_outside = |streams: &Self, ino: Ino| {
            facts.is_used(ino) && streams.sequence_of(ino, Direction::Read).is_none()
        };
        if !taken.begins || !is_outside(self, ino) {
            return None;
        }
        let sequence = self.sequences.get(taken.id)?;
        let head = sequence.heads.get(taken.head)?;
        let mut joining: Vec<Ino> =
            head.numbers().filter_map(|number| self.frame(facts, sequence, head, number)).collect();
        joining.retain(|&ino| is_outside(self, ino));
        for &ino in &joining {
            let streams = self.before_change(facts, ino);
            self.file_mut(ino).set_sequence(Direction::Read, Some(taken.id));
            self.after_change(facts, ino, streams);
        }
        let sequence = self.sequences.get(taken.id).filter(|sequence| sequence.declared.is_some())?;
        let need = self.need_of_frames(now, taken.id, sequence, taken.head, Bytes::ZERO);
        Some((joining, need))
    }

    /// How far ahead of a client of a sequence is asked for, and in what pieces.
    pub fn lead_of_sequence(&self, sequence: &Sequence<F>, index: usize) -> ReadaheadWindow {
        let copies = sequence.heads.get(index).is_none_or(|head| head.pace.copies());
        if let (Some(terms), Some(rate), false) = (sequence.terms, sequence.rate(), copies) {
            return ReadaheadWindow::promised(terms, rate);
        }
        ReadaheadWindow::unpromised(&sequence.policy, self.memory().0)
    }

    /// Of what is ahead of a client, by their places there, the frames that are needed much sooner than they were asked for.
    pub fn frames_needed_sooner(
        &self,
        now: Instant,
        id: SequenceId,
        index: usize,
    ) -> Vec<(usize, RequestQos)> {
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

    /// How what lies `ahead` of a client is ranked: it is there when the client comes to it, the scheduler makes that later
    /// where the terms do. A client for which there is no room gives way, as players do.
    pub fn need_of_frames(
        &self,
        now: Instant,
        id: SequenceId,
        sequence: &Sequence<F>,
        index: usize,
        ahead: Bytes,
    ) -> RequestQos {
        let head = sequence.heads.get(index);
        let ranking = sequence_ranking(id, sequence, head.is_none_or(|head| head.pace.copies()));
        let need = RequestQos::of(ranking, now, Bytes::ZERO);
        let (Some(rate), Some(window)) = (ranking.rate, ranking.window) else { return need };
        if self.is_refused_sequence(id) {
            let deadline = head.and_then(|head| head.allowance.due(now, ahead));
            return RequestQos { class: Class::BestEffort, deadline, ..need };
        }
        let needed = now + rate.time_for(ahead).max(window);
        let earliest = head
            .zip(sequence.period())
            .map(|(head, period)| head.earliest_need(head.front(), period) + rate.time_for(ahead));
        RequestQos { deadline: earliest.max(Some(needed)), ..need }
    }
}
