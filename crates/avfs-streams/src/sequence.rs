//! Directories of numbered frames: many files that are one stream.
//!
//! **For:** recognising that clients take files of neighbouring numbers one after the other, where each is, and what
//! rate that needs. **Excludes:** what is done about it by its host. **State:** one [`Sequences`] in each
//! host: at most [`MOST_SEQUENCES`] of them, each with at most [`MOST_HEADS`] clients. **Invariants:** a function of the
//! calls; bounded memory; what clients are given never depends on what is here, only when it is in memory.
//!
//! A file counts when half of it has been taken: a client that looks at headers plays nothing. The second file of a neighbouring
//! number makes a sequence, the third one a player, if they come within a second of each other.

use crate::cursor::{PrefetchedFrame, SequenceCursor};

use crate::name::{number_between, numbers};
use crate::policy::Policy;
use rtsched::{StreamId, StreamSpec, Terms};
use std::collections::{BTreeMap, VecDeque};
use units::{Bitrate, Bytes, Duration, Ino, Instant};

/// Sequences that are known at once. It bounds memory. An operator's target.
const MOST_SEQUENCES: usize = 64;
/// Clients of one of them, and places where it was looked at of late. It bounds memory. An operator's target.
const MOST_HEADS: usize = 8;
/// Files that are remembered because they may be the first of a sequence. It bounds memory. An operator's target.
const MOST_RECENT: usize = 64;
/// A file whose number is further from the one before is none of its neighbours. An estimator's window.
const NEIGHBOURS: u64 = 32;
/// A client that takes no frame for so long has stopped. An estimator's window.
const IDLE: Duration = Duration::from_secs(5);
/// A client that takes no frame for so long may have gone to where frames are taken now. It counts where no rate says how long a
/// frame takes. An estimator's window.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a frame is shown where no rate is known: films have 24 a second. A protocol fact.
const USUAL_PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 24);
/// What sequences are called among streams and owners of space: inodes have no such numbers. Representation.
const NAMES: u64 = 1 << 63;

/// Names a sequence; not used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u32);

impl SequenceId {
    /// The stream that its clients are together.
    pub fn stream(self) -> StreamId {
        StreamId(NAMES | u64::from(self.0))
    }

    /// The sequence that a stream is, if it is one.
    pub fn of_stream(stream: StreamId) -> Option<Self> {
        let number = stream.0.checked_sub(NAMES)?;
        Some(Self(u32::try_from(number).ok()?))
    }
}

/// What the files of a sequence have in common.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The directory.
    pub directory: Ino,
    /// Its files are recorded; else they are played.
    pub writes: bool,
    /// What stands before the number.
    pub prefix: Box<[u8]>,
    /// What stands behind it.
    pub suffix: Box<[u8]>,
}

impl Pattern {
    fn number_of(&self, directory: Ino, writes: bool, name: &[u8]) -> Option<(u64, usize)> {
        let is_here = self.directory == directory && self.writes == writes;
        is_here.then(|| number_between(name, &self.prefix, &self.suffix))?
    }
}

/// Files of neighbouring numbers that clients take one after the other.
#[derive(Debug)]
pub struct Sequence<K> {
    /// Their names.
    pub pattern: Pattern,
    /// Its clients.
    pub heads: Vec<SequenceCursor<K>>,
    /// Its frames followed one another at least once.
    has_run: bool,
    /// Its files are films, each of which plays for itself.
    pub is_of_films: bool,
    last_used: Instant,
    /// What holds for its last file.
    pub policy: Policy,
    /// Time of a frame, as a file's header has it.
    pub header_period: Option<Duration>,
    /// The rate at which a client with a clock of its own takes it.
    pub observed: Option<Bitrate>,
    /// What it is declared with, and for how many clients.
    pub declared: Option<(StreamSpec, usize)>,
    /// What its clients are promised.
    pub terms: Option<Terms>,
}

impl<K> Sequence<K> {
    /// The client does more than to look at a frame.
    pub fn is_run(&self, head: &SequenceCursor<K>) -> bool {
        !self.is_of_films && head.continued() >= if self.has_run { 1 } else { 2 }
    }

    /// The client is a stream, should there be a rate.
    fn plays(&self, head: &SequenceCursor<K>) -> bool {
        self.is_run(head) && !head.pace.copies()
    }

    /// How many clients are streams, should there be a rate. One that comes to the end and begins again while it fills its buffer
    /// is at two places for a moment. So beside another client, a new one counts when the other has had time to go on.
    pub fn players(&self) -> usize {
        let patience = self.patience();
        let players = || self.heads.iter().filter(|head| self.plays(head));
        let lasting = players().filter(|head| head.lasts() > patience).count();
        lasting.max(players().count().min(1))
    }

    /// The client that is nearest to a frame, if one is near.
    pub fn head_at(&self, number: u64) -> Option<usize> {
        let near = self.heads.iter().enumerate().filter(|(_, head)| head.is_near(number));
        near.min_by_key(|(_, head)| head.distance(number)).map(|(index, _)| index)
    }

    /// The longest of the frames that were taken last.
    pub fn frame_bytes(&self) -> Bytes {
        self.heads.iter().map(SequenceCursor::frame_bytes).max().unwrap_or(Bytes::ZERO)
    }

    /// The rate of one client. What recorders need is not guessed: they may copy.
    pub fn rate(&self) -> Option<Bitrate> {
        let by_period = |period: Duration| {
            let bits = u128::from(self.frame_bytes().0) * 8_000_000_000 / period.as_nanos().max(1);
            Bitrate(u64::try_from(bits).unwrap_or(u64::MAX).max(1))
        };
        let stated = self.policy.bitrate().or_else(|| self.policy.frame_period().map(by_period));
        if stated.is_some() || self.pattern.writes {
            return stated;
        }
        let found = self.header_period.map(by_period).or(self.observed);
        Some(found.unwrap_or_else(|| by_period(USUAL_PERIOD)))
    }

    /// What a frame plays for.
    pub fn period(&self) -> Option<Duration> {
        self.rate().map(|rate| rate.time_for(self.frame_bytes()))
    }

    /// So long after it asks a client must have what it asks for, or have given what it gives.
    pub fn window(&self) -> Duration {
        let plays_on =
            !self.pattern.writes && self.terms.is_some() && !self.heads.iter().any(SequenceCursor::begins);
        self.policy.window_of_reader(plays_on)
    }

    fn patience(&self) -> Duration {
        self.period().map_or(PATIENCE, |period| period * 2)
    }

    /// A client is at this frame: the client, and what others, or it itself, will not come to any more.
    fn note(
        &mut self,
        now: Instant,
        start: Duration,
        number: u64,
        digits: usize,
        length: u64,
    ) -> (usize, Vec<PrefetchedFrame<K>>) {
        self.last_used = now;
        let mut given_up = Vec::new();
        let Some(index) = self.head_at(number) else {
            if self.heads.len() == MOST_HEADS {
                let oldest = (0..MOST_HEADS).min_by_key(|&index| self.heads[index].last_used).unwrap_or(0);
                given_up.extend(self.heads.remove(oldest).into_frames());
            }
            let mut head = SequenceCursor::new(now, start, number, digits, length);
            if self.heads.is_empty() {
                head.begin(start);
            }
            self.heads.push(head);
            return (self.heads.len() - 1, given_up);
        };
        if self.heads[index].note(now, start, number, digits, length) {
            given_up.extend(self.heads[index].leave_out());
        }
        self.has_run |= self.is_run(&self.heads[index]);
        let patience = self.patience();
        let has_gone = |other: &SequenceCursor<K>| now.saturating_since(other.last_used) > patience;
        let mut place = 0;
        for (at, head) in std::mem::take(&mut self.heads).into_iter().enumerate() {
            if at != index && has_gone(&head) {
                given_up.extend(head.into_frames());
            } else {
                if at == index {
                    place = self.heads.len();
                }
                self.heads.push(head);
            }
        }
        (place, given_up)
    }
}

/// A file that was taken, and belongs to no sequence yet.
#[derive(Debug)]
struct Recent {
    at: Instant,
    directory: Ino,
    writes: bool,
    name: Box<[u8]>,
    ino: Ino,
    length: u64,
}

/// What became of a file that was taken.
#[derive(Debug)]
pub struct Noted<K> {
    /// The sequence.
    pub id: SequenceId,
    /// Index of the client.
    pub head: usize,
    /// The file before it, if this one has made them a sequence.
    pub first: Option<Ino>,
    /// Frames to which no client comes any more.
    pub given_up: Vec<PrefetchedFrame<K>>,
}

/// A file of which a client has taken enough.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The directory.
    pub directory: Ino,
    /// It was recorded; else it was played.
    pub writes: bool,
    /// Its name there.
    pub name: &'a [u8],
    /// The file.
    pub ino: Ino,
    /// Its length.
    pub length: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Sequences<K> {
    held: BTreeMap<SequenceId, Sequence<K>>,
    /// Newest last.
    recent: VecDeque<Recent>,
    next: u32,
}

impl<K> Default for Sequences<K> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), recent: VecDeque::new(), next: 0 }
    }
}

impl<K> Sequences<K> {
    /// One of them.
    pub fn get(&self, id: SequenceId) -> Option<&Sequence<K>> {
        self.held.get(&id)
    }

    /// One of them, to change.
    pub fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence<K>> {
        self.held.get_mut(&id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SequenceId, &Sequence<K>)> {
        self.held.iter().map(|(&id, sequence)| (id, sequence))
    }

    /// The sequence that a file belongs to by its name: one at which a client is near, else that which was used last.
    pub fn find(&self, directory: Ino, writes: bool, name: &[u8]) -> Option<(SequenceId, u64, usize)> {
        let fitting = self.iter().filter_map(|(id, sequence)| {
            let (number, digits) = sequence.pattern.number_of(directory, writes, name)?;
            Some((id, number, digits, sequence))
        });
        fitting
            .max_by_key(|(_, number, _, sequence)| (sequence.head_at(*number).is_some(), sequence.last_used))
            .map(|(id, number, digits, _)| (id, number, digits))
    }

    /// The sequence in which a file is about to be taken, by a client that plays it or records it.
    pub fn joined(&self, directory: Ino, writes: bool, name: &[u8]) -> Option<SequenceId> {
        let (id, number, _) = self.find(directory, writes, name)?;
        let sequence = self.get(id)?;
        let head = sequence.head_at(number).and_then(|index| sequence.heads.get(index));
        let goes_on = head.is_some_and(|head| sequence.is_run(head));
        // No copy is near, so a client that plays may be there now; it has no time to be found out once more.
        let jumps = || !writes && sequence.players() > 0 && head.is_none_or(|head| !head.pace.copies());
        (goes_on || jumps()).then_some(id)
    }

    /// A client has taken a file; where it begins it may have to wait for `start`. `None`: it is none of a sequence yet, or there are too
    /// many of them.
    pub fn note(&mut self, now: Instant, start: Duration, taken: Taken<'_>) -> Option<Noted<K>> {
        let Taken { directory, writes, name, length, .. } = taken;
        if let Some((id, number, digits)) = self.find(directory, writes, name) {
            let (head, given_up) = self.held.get_mut(&id)?.note(now, start, number, digits, length);
            return Some(Noted { id, head, first: None, given_up });
        }
        let made = self.make(now, start, taken);
        if made.is_none() && numbers(name).next().is_some() {
            if self.recent.len() == MOST_RECENT {
                self.recent.pop_front();
            }
            let (name, ino) = (name.into(), taken.ino);
            self.recent.push_back(Recent { at: now, directory, writes, name, ino, length });
        }
        made
    }

    /// Makes a sequence of a file and one that was taken before, if they are neighbours.
    fn make(&mut self, now: Instant, start: Duration, taken: Taken<'_>) -> Option<Noted<K>> {
        let Taken { directory, writes, name, length, .. } = taken;
        let before =
            self.recent.iter().rev().filter(|one| one.directory == directory && one.writes == writes);
        let (before, first, this) = before
            .flat_map(|before| numbers(name).map(move |this| (before, this)))
            .filter_map(|(before, this)| {
                let first = number_between(&before.name, this.prefix, this.suffix)?;
                let distance = first.0.abs_diff(this.number);
                (1..=NEIGHBOURS).contains(&distance).then_some((before, first, this))
            })
            .next()?;
        let pattern = Pattern { directory, writes, prefix: this.prefix.into(), suffix: this.suffix.into() };
        let mut head = SequenceCursor::new(before.at, start, first.0, first.1, before.length);
        head.begin(start);
        let mut sequence = Sequence {
            heads: vec![head],
            pattern,
            has_run: false,
            is_of_films: false,
            last_used: now,
            policy: Policy::default(),
            header_period: None,
            observed: None,
            declared: None,
            terms: None,
        };
        let ino = before.ino;
        if !self.make_room() {
            return None;
        }
        let (head, given_up) = sequence.note(now, start, this.number, this.digits, length);
        let pattern = &sequence.pattern;
        self.recent.retain(|one| pattern.number_of(one.directory, one.writes, &one.name).is_none());
        let id = SequenceId(self.next);
        self.next = self.next.wrapping_add(1);
        self.held.insert(id, sequence);
        Some(Noted { id, head, first: Some(ino), given_up })
    }

    /// Forgets the sequence at which no client has been for longest, if there are too many.
    fn make_room(&mut self) -> bool {
        if self.held.len() < MOST_SEQUENCES {
            return true;
        }
        let resting = self.held.iter().filter(|(_, sequence)| sequence.heads.is_empty());
        let oldest = resting.min_by_key(|(_, sequence)| sequence.last_used).map(|(&id, _)| id);
        oldest.is_some_and(|id| self.held.remove(&id).is_some())
    }

    /// When a client will have stopped, if it goes on doing nothing.
    pub fn next_idle(&self) -> Instant {
        let heads = self.held.values().flat_map(|sequence| &sequence.heads);
        heads.map(|head| head.active() + IDLE).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Takes out clients that have stopped: of each sequence that had one, what was in memory for them.
    pub fn take_idle(&mut self, now: Instant) -> Vec<(SequenceId, Vec<PrefetchedFrame<K>>)> {
        let mut stopped = Vec::new();
        for (&id, sequence) in &mut self.held {
            let is_idle = |head: &mut SequenceCursor<K>| now.saturating_since(head.active()) >= IDLE;
            let frames: Vec<_> =
                sequence.heads.extract_if(.., is_idle).map(SequenceCursor::into_frames).collect();
            if !frames.is_empty() {
                stopped.push((id, frames.into_iter().flatten().collect()));
            }
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Ino = Ino(5);

    struct Client {
        sequences: Sequences<()>,
        now: Instant,
    }

    impl Client {
        fn new() -> Self {
            Self { sequences: Sequences::default(), now: Instant::ZERO }
        }

        fn take_after(
            &mut self,
            gap: Duration,
            directory: Ino,
            writes: bool,
            name: &str,
        ) -> Option<Noted<()>> {
            self.now += gap;
            let taken = Taken { directory, writes, name: name.as_bytes(), ino: Ino(9), length: 1 << 20 };
            self.sequences.note(self.now, Duration::from_secs(1), taken)
        }

        fn take(&mut self, name: &str) -> Option<Noted<()>> {
            self.take_after(Duration::from_millis(40), HERE, false, name)
        }

        fn joins(&self, name: &str) -> bool {
            self.sequences.joined(HERE, false, name.as_bytes()).is_some()
        }
    }

    #[test]
    fn the_third_frame_in_a_row_is_played() {
        let mut client = Client::new();
        assert!(client.take("a.000007.dpx").is_none());
        assert!(client.take("readme").is_none() && client.take("b.000007.dpx").is_none());
        let noted = client.take("a.000008.dpx").unwrap();
        assert_eq!((noted.head, noted.first), (0, Some(Ino(9))));
        assert!(!client.joins("a.000009.dpx") && !client.joins("a.000900.dpx"));
        assert!(client.take("a.000009.dpx").unwrap().first.is_none());
        assert!(client.joins("a.000010.dpx"));
        assert!(!client.joins("b.000008.dpx") && !client.joins("a.dpx"));
        assert!(client.joins("a.000900.dpx"), "a player may jump");
        let sequence = client.sequences.get(noted.id).unwrap();
        assert_eq!(
            (sequence.players(), sequence.rate()),
            (1, Some(Bitrate(8_000_000_000 * (1 << 20) / 41_666_666)))
        );
    }

    /// A player that comes to the end begins again, and is at two places while it fills its buffer. It was taken for two players,
    /// and the sixth of six films was refused for the second one's sake. At one of them it waited for longer than a second for
    /// what it had asked for at the other, which was taken for rest: it was no player any more, and another one got its
    /// reservation.
    #[test]
    fn a_player_that_begins_again_at_the_end_stays_one_player() {
        let mut client = Client::new();
        let ask = |client: &mut Client, number: u32| {
            client
                .take_after(Duration::ZERO, HERE, false, &format!("f.{number:04}.dpx"))
                .map(|noted| noted.id)
        };
        let id = (50..=60).chain(1..=3).filter_map(|number| ask(&mut client, number)).last().unwrap();
        let sequence = client.sequences.get_mut(id).unwrap();
        assert_eq!((sequence.heads.len(), sequence.players()), (2, 1));
        client.now += Duration::from_millis(1500);
        sequence.heads.iter_mut().for_each(|head| head.give(client.now, true));
        for number in 4..=5 {
            ask(&mut client, number);
            let sequence = client.sequences.get(id).unwrap();
            assert_eq!((sequence.heads.len(), sequence.players()), (1, 1), "{number}");
        }
    }

    /// Beside another client, a new one counts when it has lasted: the boundary pair.
    #[test]
    fn two_clients_that_go_on_are_two_players() {
        let mut client = Client::new();
        let ask = |client: &mut Client, gap, number: u32| {
            client.take_after(gap, HERE, false, &format!("f.{number:04}.dpx")).map(|noted| noted.id)
        };
        (1..=20).for_each(|number| _ = ask(&mut client, Duration::from_millis(40), number));
        let id = ask(&mut client, Duration::ZERO, 500).unwrap();
        let players = |client: &Client| client.sequences.get(id).unwrap().players();
        // It is patient for two frames of a 24th of a second.
        let patience = Duration::from_nanos(2 * 41_666_666);
        ask(&mut client, patience / 2, 21);
        ask(&mut client, patience / 2, 501);
        assert_eq!(players(&client), 1);
        ask(&mut client, Duration::from_nanos(100), 502);
        assert_eq!(players(&client), 2);
    }

    /// Of several numbers the one that changes counts, whichever that is.
    #[test]
    fn the_number_that_changes_counts() {
        for names in [
            ["A001_C002.0001.v2", "A001_C002.0002.v2", "A001_C002.0003.v2", "A001_C002.0004.v2"],
            ["9_0001.v2", "10_0001.v2", "11_0001.v2", "12_0001.v2"],
            ["x1", "x2", "x3", "x4"],
            ["18446744073709551612", "18446744073709551613", "18446744073709551614", "18446744073709551615"],
        ] {
            let mut client = Client::new();
            for name in &names[..3] {
                assert!(!client.joins(name));
                client.take(name);
            }
            assert!(client.joins(names[3]), "{names:?}");
        }
    }

    #[test]
    fn names_without_neighbours_are_no_sequence() {
        for names in [
            ["a", "b", "c", "d"],
            ["a1", "b2", "c3", "d4"],
            ["a1b1", "a2b2", "a3b3", "a4b4"],
            ["f000", "f033", "f066", "f099"],
            [
                "99999999999999999999999999997",
                "99999999999999999999999999998",
                "99999999999999999999999999999",
                "9",
            ],
        ] {
            let mut client = Client::new();
            for name in names {
                assert!(client.take(name).is_none(), "{names:?}");
            }
        }
        // Nor are the files of two directories, or what is read and what is written.
        let mut client = Client::new();
        assert!(client.take_after(IDLE, HERE, false, "f1").is_none());
        assert!(client.take_after(IDLE, Ino(6), false, "f2").is_none());
        assert!(client.take_after(IDLE, HERE, true, "f2").is_none());
    }

    #[test]
    fn a_client_that_looks_at_frames_slowly_does_not_play_them() {
        let mut client = Client::new();
        for number in 0..20 {
            client.take_after(Duration::from_millis(1001), HERE, false, &format!("f{number}"));
        }
        assert!(!client.joins("f20"));
        assert!(client.sequences.iter().all(|(_, sequence)| sequence.players() == 0));
    }

    #[test]
    fn two_players_of_one_sequence_are_two_and_one_that_jumps_is_one() {
        let mut client = Client::new();
        let half = Duration::from_millis(20);
        for number in 0..30 {
            client.take_after(half, HERE, false, &format!("f{number:04}"));
            client.take_after(half, HERE, false, &format!("f{:04}", number + 500));
        }
        let players =
            |client: &Client| client.sequences.iter().map(|(_, sequence)| sequence.players()).sum::<usize>();
        assert_eq!(players(&client), 2);
        for number in 30..33 {
            client.take(&format!("f{number:04}"));
        }
        assert_eq!(players(&client), 1);
        for number in 2000..2004 {
            client.take(&format!("f{number:04}"));
        }
        assert_eq!(players(&client), 1);
        assert!(client.joins("f2004"));
    }

    #[test]
    fn a_client_that_stops_is_forgotten_and_known_again() {
        let mut client = Client::new();
        for number in 0..10 {
            client.take(&format!("f{number}"));
        }
        assert_eq!(client.sequences.next_idle(), client.now + IDLE);
        assert!(
            client
                .sequences
                .take_idle((client.now + IDLE).saturating_before(Duration::from_nanos(1)))
                .is_empty()
        );
        assert_eq!(client.sequences.take_idle(client.now + IDLE).len(), 1);
        assert_eq!(client.sequences.next_idle(), Instant::FAR_FUTURE);
        assert!(!client.joins("f10"));
        client.take("f10");
        client.take("f11");
        assert!(client.joins("f12"));
    }

    /// The boundary: one sequence more than there may be is none, until a client stops.
    #[test]
    fn there_are_at_most_so_many_sequences() {
        let mut client = Client::new();
        let quick = Duration::from_millis(1);
        let begin = |client: &mut Client, sequence: usize| {
            client.take_after(quick, HERE, false, &format!("s{}.1", "x".repeat(sequence)));
            client.take_after(quick, HERE, false, &format!("s{}.2", "x".repeat(sequence))).is_some()
        };
        assert!((0..MOST_SEQUENCES).all(|sequence| begin(&mut client, sequence)));
        assert!(!begin(&mut client, MOST_SEQUENCES));
        client.sequences.take_idle(client.now + IDLE);
        assert!(begin(&mut client, MOST_SEQUENCES));
        assert_eq!(client.sequences.held.len(), MOST_SEQUENCES);
    }

    proptest! {
        /// Whatever is taken: memory stays bounded.
        #[test]
        fn memory_is_bounded(names in prop::collection::vec(("[a-c]{0,2}", 0u64..200, 0usize..4), 0..400)) {
            let mut client = Client::new();
            for (prefix, number, digits) in names {
                client.take(&format!("{prefix}{number:0digits$}.x"));
            }
            let sequences = &client.sequences;
            prop_assert!(sequences.held.len() <= MOST_SEQUENCES && sequences.recent.len() <= MOST_RECENT);
            prop_assert!(sequences.held.values().all(|sequence| sequence.heads.len() <= MOST_HEADS));
        }
    }
}
