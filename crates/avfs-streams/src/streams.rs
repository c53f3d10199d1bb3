//! Open files as streams, and how their requests are ranked.
//!
//! **For:** which clients are streams, at which rates, by when they need what they ask for; what the scheduler is to be told of it.
//! **Excludes:** reading ahead and writing, which the host does. **State:** [`Streams`] owns everything that is known of clients.
//! **Invariants:** a function of the calls and of what [`Facts`] answers; what holds for a client is kept once.

use crate::consumed::ConsumedFraction;
use crate::cursor::SequenceCursor;
use crate::due::start_of;
use crate::file::{FileStreams, account, clients, confidence, undeclared, window_of_all};
use crate::name::spellings;
use crate::pattern::{NEAR, RateEstimator, VirtualClock};
use crate::player::{Client, Player};
use crate::policy::DEADLINE_WINDOW;
use crate::sequence::{Pattern, Sequence, SequenceId, Sequences};
use crate::window::ReadaheadWindow;
use crate::writers::{Writers, opener_of};
use crate::{Advice, Facts, HandleId, Opener, PAGE, REQUEST, Ranking, RequestQos, Wish};
use hashbrown::HashMap;
use rtsched::{Class, Confidence, Direction, StreamId, StreamSpec, Terms};
use std::collections::{BTreeSet, VecDeque};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant};

/// The name of the stream that a file's readers are, or its writers.
pub fn stream_of(ino: Ino, direction: Direction) -> StreamId {
    StreamId(ino.0 << 1 | u64::from(direction == Direction::Write))
}

/// What a stream is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKey {
    /// The readers of a file, or its writers.
    File(Ino, Direction),
    /// The clients of a sequence.
    Sequence(SequenceId),
    /// All that one opener writes without a promise.
    Opener(Opener),
}

impl StreamKey {
    /// Of this name.
    pub fn of(stream: StreamId) -> Self {
        if let Some(id) = SequenceId::of_stream(stream) {
            return Self::Sequence(id);
        }
        let direction = if stream.0 & 1 == 1 { Direction::Write } else { Direction::Read };
        opener_of(stream).map_or(Self::File(Ino(stream.0 >> 1), direction), Self::Opener)
    }
}

/// So many numbers may be missing between two frames. An estimator's window.
const LONGEST_GAP: usize = 256;
/// No such request is longer than this, in whole extents of 8 MiB. It bounds the length of a request. An operator's target.
pub const LONGEST_REQUEST: u64 = 64 << 20;
/// Frames in shorter pieces than this are read in requests as long as the pieces are on average. It is the longest request. An
/// operator's target.
pub const LONG_PIECE: u64 = 64 << 20;
/// Pieces count for no shorter than this. It is the shortest request. An operator's target.
pub const SHORT_PIECE: u64 = 256 << 10;

/// What is known of the client that has opened a file.
#[derive(Debug)]
pub struct ClientState<K> {
    /// The file.
    pub ino: Ino,
    /// The process may write records; what such a client reads is not what it plays.
    pub direction: Direction,
    /// The process that has opened it.
    pub opener: Opener,
    /// The user as whom that was.
    pub uid: u32,
    /// By when the next read must be complete, if its client said.
    pub read_deadline: Option<Instant>,
    /// What its reads and writes look like; none while there were none.
    pub player: Option<Box<Player<K>>>,
    /// What it has taken of the file or given, until that is enough to say that it takes all.
    pub taken: Option<ConsumedFraction>,
}

/// What the scheduler is to be told of a stream: it began or changed, and how well it is known to be one, or it ended.
pub type Declare = (StreamId, Option<(StreamSpec, Confidence)>);

/// See the module's documentation. `K` is what a host keeps where a client reads on, `F` what it keeps of a frame.
#[derive(Debug)]
pub struct Streams<K, F> {
    clients: HashMap<HandleId, ClientState<K>>,
    files: HashMap<Ino, FileStreams>,
    /// The processes that give data, in all files together.
    pub writers: Writers,
    /// Directories of numbered frames.
    pub sequences: Sequences<F>,
    /// Streams that were declared, and of which the scheduler has not said yet what they are promised.
    undecided: BTreeSet<StreamId>,
    /// When a client of a sequence will have stopped.
    pub next_stop: Instant,
    /// When a client that begins with a sequence will have asked for what it begins with.
    pub next_ahead: Instant,
    declared: Vec<Declare>,
    wishes: VecDeque<Wish>,
    /// What the host has for all of them.
    memory: Bytes,
    longest_start: Duration,
    advice: Advice,
}

impl<K: Default, F> Streams<K, F> {
    /// Of a host with so much memory, where a player may wait for its first picture for `longest_start` on a full device.
    pub fn new(memory: Bytes, longest_start: Duration, advice: Advice) -> Self {
        Self {
            clients: HashMap::new(),
            files: HashMap::new(),
            writers: Writers::default(),
            sequences: Sequences::default(),
            undecided: BTreeSet::new(),
            next_stop: Instant::FAR_FUTURE,
            next_ahead: Instant::FAR_FUTURE,
            declared: Vec::new(),
            wishes: VecDeque::new(),
            memory,
            longest_start,
            advice,
        }
    }

    /// The host has so much memory from now on.
    pub fn set_memory(&mut self, memory: Bytes) {
        self.memory = memory;
    }

    /// From now on a player may wait so long for its first picture. One that has begun keeps its time.
    pub fn set_longest_start(&mut self, longest_start: Duration) {
        self.longest_start = longest_start;
    }

    /// A player that begins is to have its picture within this.
    pub(crate) fn start(&self) -> Duration {
        start_of(self.longest_start)
    }

    /// From now on nothing is wished for. To be called before anything is open.
    pub fn silence(&mut self) {
        self.advice = Advice::NullStreams;
    }

    /// Nothing is known of clients, and nothing wished for them.
    pub fn is_silent(&self) -> bool {
        self.advice == Advice::NullStreams
    }

    /// A client has opened a file.
    pub fn opened(&mut self, handle: HandleId, ino: Ino, direction: Direction) {
        let client = ClientState {
            ino,
            direction,
            opener: Opener::of(handle),
            uid: 0,
            read_deadline: None,
            player: None,
            taken: Some(ConsumedFraction::default()),
        };
        self.clients.insert(handle, client);
    }

    /// It has closed it; what was known of it.
    pub fn closed(&mut self, handle: HandleId) -> Option<ClientState<K>> {
        self.clients.remove(&handle)
    }

    /// What is known of a client.
    pub fn client_state(&self, handle: HandleId) -> Option<&ClientState<K>> {
        self.clients.get(&handle)
    }

    /// What is known of a client, to change.
    pub fn client_state_mut(&mut self, handle: HandleId) -> Option<&mut ClientState<K>> {
        self.clients.get_mut(&handle)
    }

    /// All clients.
    pub fn clients(&self) -> impl Iterator<Item = (HandleId, &ClientState<K>)> {
        self.clients.iter().map(|(&handle, client)| (handle, client))
    }

    /// The player that a client is, if it has read or written.
    pub fn player_mut(&mut self, handle: HandleId) -> Option<&mut Player<K>> {
        self.clients.get_mut(&handle)?.player.as_deref_mut()
    }

    /// The same, from now on.
    pub fn player_or_new(&mut self, handle: HandleId) -> Option<&mut Player<K>> {
        Some(self.clients.get_mut(&handle)?.player.get_or_insert_default())
    }

    /// What is known of a file.
    pub fn file(&self, ino: Ino) -> Option<&FileStreams> {
        self.files.get(&ino)
    }

    /// What is known of a file, to change; nothing yet, if there was nothing.
    pub fn file_mut(&mut self, ino: Ino) -> &mut FileStreams {
        self.files.entry(ino).or_default()
    }

    /// No client uses the file any more.
    pub fn forget_file(&mut self, ino: Ino) {
        self.files.remove(&ino);
    }

    /// What holds for a file.
    pub fn policy(&self, ino: Ino) -> crate::Policy {
        self.files.get(&ino).map(|file| file.policy).unwrap_or_default()
    }

    /// The sequence as part of which a file is read, or written.
    pub fn sequence_of(&self, ino: Ino, direction: Direction) -> Option<SequenceId> {
        self.files.get(&ino)?.sequence(direction)
    }

    /// What the scheduler is to be told since this was asked last, in this order.
    pub fn take_declared(&mut self) -> Vec<Declare> {
        std::mem::take(&mut self.declared)
    }

    pub(crate) fn memory(&self) -> Bytes {
        self.memory
    }

    /// What the host is to do next.
    pub fn next_wish(&mut self) -> Option<Wish> {
        self.wishes.pop_front()
    }

    pub(crate) fn wish(&mut self, wish: Wish) {
        if !self.is_silent() {
            self.wishes.push_back(wish);
        }
    }

    /// The scheduler has answered. True if it had been asked.
    pub fn decided(&mut self, stream: StreamId) -> bool {
        self.undecided.remove(&stream)
    }

    /// The streams of a file before something changes on which they depend.
    pub fn before_change(&self, facts: &dyn Facts, ino: Ino) -> [Option<(StreamSpec, Confidence)>; 2] {
        [Direction::Read, Direction::Write].map(|direction| self.wanted_stream(facts, ino, direction))
    }

    /// Something has changed on which a file's streams depend: the scheduler is to be told what became of them.
    pub fn after_change(
        &mut self,
        facts: &dyn Facts,
        ino: Ino,
        before: [Option<(StreamSpec, Confidence)>; 2],
    ) {
        for (direction, before) in [Direction::Read, Direction::Write].into_iter().zip(before) {
            let after = self.wanted_stream(facts, ino, direction);
            if after.is_none()
                && let Some(file) = self.files.get_mut(&ino)
            {
                file.set_terms(direction, None);
            }
            self.tell_stream(stream_of(ino, direction), before, after);
        }
    }

    /// Class, stream and window of a file's requests, from its policy and from what `client` declared, or what all did.
    pub fn ranking(
        &self,
        facts: &dyn Facts,
        ino: Ino,
        direction: Direction,
        client: Option<HandleId>,
    ) -> Ranking {
        let background = |class| Ranking { class, stream: None, window: None, rate: None };
        let file = self.files.get(&ino).filter(|_| !self.is_silent());
        let Some(file) = file else { return background(Class::BestEffort) };
        let policy = file.policy;
        let declared =
            || file.declared(direction).filter(|one| client.is_none_or(|client| client == one.handle));
        let is_declared = !policy.forbids_streams() && declared().next().is_some();
        if !is_declared && let Some(ranking) = self.frame_ranking(facts, ino, direction, client) {
            return ranking;
        }
        if policy.class() != Class::RealTime && !is_declared {
            return background(policy.class());
        }
        let copies = match client {
            Some(client) => self.copies(client),
            None => facts.open_files(ino).writers > 0 && clients(file, facts.open_files(ino), direction) == 0,
        };
        if copies && !is_declared {
            return background(Class::BestEffort);
        }
        let window = match client {
            Some(client) => {
                declared().find_map(|one| one.declaration.period).unwrap_or_else(|| match direction {
                    Direction::Read => self.window_of_reader(file, client),
                    _ => policy.deadline_window(),
                })
            }
            None => window_of_all(file, facts.open_files(ino), direction),
        };
        let rate = declared().filter_map(|one| one.declaration.rate).max();
        Ranking {
            class: Class::RealTime,
            stream: Some(stream_of(ino, direction)),
            window: Some(window),
            rate: rate.or(policy.bitrate()),
        }
    }

    /// The stream that the file's readers or writers are together, if it is one: what the scheduler is to know. Each
    /// client adds the rate that it declared, or else that of the policy.
    fn stream_spec(&self, facts: &dyn Facts, ino: Ino, direction: Direction) -> Option<StreamSpec> {
        let is_advised = !self.is_silent();
        let file = self.files.get(&ino).filter(|file| is_advised && !file.policy.forbids_streams())?;
        let of_policy = file.policy.bitrate().map_or(0, |rate| rate.0);
        let declared =
            || file.declared(direction).map(|one| one.declaration.rate.map_or(of_policy, |rate| rate.0));
        let undeclared = of_policy.saturating_mul(undeclared(file, facts.open_files(ino), direction));
        let rate = declared().fold(undeclared, u64::saturating_add);
        if rate == 0 {
            return None;
        }
        // What no policy says, the admission chooses; players and writeback follow it.
        let is_timed = file.policy.says_deadline_window()
            || file.declared(direction).any(|one| one.declaration.period.is_some());
        Some(StreamSpec {
            direction,
            rate: Bitrate(rate),
            // Requests as long as one policy wants may be too long for the time that another wants.
            request: if direction == Direction::Read && !is_timed {
                file.policy.stated_prefetch_depth().map(|depth| depth.max(Bytes(PAGE)))
            } else {
                None
            },
            // By the rate of one of its clients: when another one comes, the reservation can change its rate and nothing else.
            piece: if direction == Direction::Read {
                self.piece_of_reader(facts, ino, Bitrate(declared().fold(of_policy, u64::max)))
            } else {
                None
            },
            deadline: is_timed.then(|| window_of_all(file, facts.open_files(ino), direction)),
            grace: Duration::ZERO,
            place: if direction == Direction::Read { facts.place_of(ino) } else { None },
            priority: StreamSpec::DEFAULT_PRIORITY,
            account: account(file, direction),
        })
    }

    /// What one access brings on average of a file that lies in pieces, each of which ends a request. `None` where that costs no
    /// access more than a file in one piece takes. The tail of a clip lies apart, and is read with the last of its requests.
    fn piece_of_reader(&self, facts: &dyn Facts, ino: Ino, rate: Bitrate) -> Option<Bytes> {
        // On a device full of streams a request plays for as long as a player may wait.
        let request = rate.bytes_in(self.longest_start).0.clamp(1, LONGEST_REQUEST).next_multiple_of(REQUEST);
        let (mut bytes, mut accesses, mut piece, mut end) = (0_u64, 0, 0_u64, None);
        facts.pieces_of(ino, &mut |run| {
            let length = run.end - run.start;
            if end != Some(run.start) {
                accesses += piece.div_ceil(request);
                piece = 0;
            }
            (piece, bytes) = (piece + length, bytes + length);
            end = Some(run.end);
        });
        accesses += piece.div_ceil(request);
        let more = accesses.saturating_sub(bytes.div_ceil(request));
        if more == 0 {
            return None;
        }
        // The last access of a file in one piece brings what is left, which is no piece: it counts as the part of one it is.
        let (bytes, request) = (u128::from(bytes), u128::from(request));
        let mean = bytes * request / (bytes + u128::from(more) * request);
        Some(Bytes(u64::try_from(mean).ok()?.max(SHORT_PIECE) / PAGE * PAGE))
    }

    /// What a client needs at `at`, which lies `ahead` of what it asks for.
    pub fn need(
        &self,
        facts: &dyn Facts,
        now: Instant,
        ino: Ino,
        handle: HandleId,
        at: u64,
        ahead: Bytes,
    ) -> RequestQos {
        let mut need = RequestQos::of(self.ranking(facts, ino, Direction::Read, Some(handle)), now, ahead);
        if self.is_silent() {
            return need;
        }
        let wish = self.clients.get(&handle).and_then(|open| open.read_deadline);
        if let Some(wish) = wish.filter(|_| ahead == Bytes::ZERO) {
            need = RequestQos { class: Class::RealTime, deadline: Some(wish), ..need };
        } else if need.class == Class::RealTime
            && self.is_refused(facts, ino, Direction::Read)
            && (ahead > Bytes::ZERO || self.goes_on(facts, handle, at))
        {
            // In time for its rate it would go before what reserved streams want sooner than they were promised: of thirteen
            // players two lost a unit to the fourteenth. Only the picture of a client that jumps does not wait.
            need.class = Class::BestEffort;
            need.deadline = self.client(facts, now, handle).due(now, ahead);
        } else if need.deadline.is_some() {
            need.deadline = need.deadline.max(self.earliest_need(facts, ino, handle, at));
        } else if need.class == Class::BestEffort && !self.copies(handle) {
            let client = self.client(facts, now, handle);
            need.deadline = client.due(now, ahead);
            // A client that takes what it gets has its turn among others. A possible player has no turn, and goes before what
            // streams want later.
            let gives_way = self.files.get(&ino).is_none_or(|file| file.policy.forbids_streams());
            if !gives_way && ahead == Bytes::ZERO && client.beat.rests(now) {
                // A client with a clock waits now: that is an interactive read, if it is short, whatever is known of the file.
                need.class = Class::RealTime;
            }
            if gives_way || !client.may_play(now) {
                need.stream = Some(self.stream_of_client(ino, Direction::Read));
            }
        }
        need
    }

    /// What there must be room for if a client is not to be turned away, in a file whose policy wants that.
    pub fn needed_admission(
        &self,
        facts: &dyn Facts,
        ino: Ino,
        direction: Direction,
    ) -> Option<(StreamId, Bitrate)> {
        let refuses = self.files.get(&ino).is_some_and(|file| file.policy.refuses_when_full());
        let sequence = self.files.get(&ino)?.sequence(direction).and_then(|id| self.sequences.get(id));
        let of_sequence = sequence.and_then(|sequence| sequence.declared).map(|(spec, _)| spec);
        let spec = self.stream_spec(facts, ino, direction).or(of_sequence).filter(|_| refuses)?;
        Some((self.stream_of_client(ino, direction), spec.rate))
    }

    /// The stream that the file's readers or writers are together, if it is one, and how well that is known.
    pub fn wanted_stream(
        &self,
        facts: &dyn Facts,
        ino: Ino,
        direction: Direction,
    ) -> Option<(StreamSpec, Confidence)> {
        let spec = self.stream_spec(facts, ino, direction)?;
        Some((spec, confidence(self.files.get(&ino)?, direction)))
    }

    /// Tells the scheduler what has become of a stream.
    pub fn tell_stream(
        &mut self,
        stream: StreamId,
        before: Option<(StreamSpec, Confidence)>,
        after: Option<(StreamSpec, Confidence)>,
    ) {
        if before == after {
            return;
        }
        match (before, after) {
            (None, Some(_)) => _ = self.undecided.insert(stream),
            (_, None) => _ = self.undecided.remove(&stream),
            (Some(_), Some(_)) => {}
        }
        if let (Some((before, _)), Some((after, _))) = (before, after)
            && (StreamSpec { rate: after.rate, ..before }) != after
        {
            // A reservation can change its rate and nothing else.
            self.declared.push((stream, None));
        }
        self.declared.push((stream, after));
    }

    /// The scheduler was asked whether it has room for the stream, and has not answered. In a moment it is known how far ahead may
    /// be read. What was read until then, of many that begin at once, was more than there is memory for.
    pub fn is_undecided(&self, stream: StreamId) -> bool {
        self.undecided.contains(&stream)
    }

    /// There is no room for the file's clients, or for those of the sequence of which it is a frame.
    pub fn is_refused(&self, facts: &dyn Facts, ino: Ino, direction: Direction) -> bool {
        let stream = self.stream_of_client(ino, direction);
        if let Some(id) = SequenceId::of_stream(stream) {
            return self.is_refused_sequence(id);
        }
        self.terms(ino, direction).is_none()
            && self.stream_spec(facts, ino, direction).is_some()
            && !self.is_undecided(stream)
    }

    /// There is no room for the clients of a sequence.
    pub fn is_refused_sequence(&self, id: SequenceId) -> bool {
        let waits = |sequence: &Sequence<F>| sequence.declared.is_some() && sequence.terms.is_none();
        self.sequences.get(id).is_some_and(waits) && !self.is_undecided(id.stream())
    }

    /// The stream of a file's clients: their own, or that of the sequence of which the file is a frame.
    pub fn stream_of_client(&self, ino: Ino, direction: Direction) -> StreamId {
        let file = self.files.get(&ino).filter(|file| file.declared(direction).next().is_none());
        let sequence = file.and_then(|file| file.sequence(direction));
        sequence.map_or(stream_of(ino, direction), SequenceId::stream)
    }

    /// What readers or writers of a file are promised, for themselves or as those of a sequence.
    pub fn terms(&self, ino: Ino, direction: Direction) -> Option<Terms> {
        let file = self.files.get(&ino)?;
        match file.sequence(direction) {
            Some(id) => self.sequences.get(id)?.terms,
            None => file.terms(direction),
        }
    }

    /// The player that a client is, if it has read or written.
    pub fn player(&self, handle: HandleId) -> Option<&Player<K>> {
        self.clients.get(&handle)?.player.as_deref()
    }

    /// True when the client copies the file, as far as can be told.
    pub fn copies(&self, handle: HandleId) -> bool {
        self.player(handle).is_some_and(Player::copies)
    }

    /// True when this is a header or an index, at which a client only looks that plays elsewhere.
    pub fn is_header_probe(&self, handle: HandleId, at: u64) -> bool {
        self.player(handle).is_some_and(|player| player.looks_at(at))
    }

    /// True when a request there goes on where the client was: then more than it asks for is worth reading.
    pub fn goes_on(&self, facts: &dyn Facts, handle: HandleId, offset: u64) -> bool {
        self.follows_a_frame(facts, handle)
            || self.player(handle).is_some_and(|player| {
                let pattern = player.place_of(offset).pattern;
                pattern.is_run() && offset.abs_diff(pattern.front()) <= NEAR
            })
    }

    /// What is known of the client that reads through a handle, in one file or from frame to frame; at first nothing: it comes now.
    pub fn client(&self, facts: &dyn Facts, now: Instant, handle: HandleId) -> Client {
        let of_file = || {
            let Player { allowance, beat, came, .. } = self.player(handle)?;
            Some(Client { allowance: *allowance, beat: *beat, came: (*came)? })
        };
        let unknown =
            || Client { allowance: VirtualClock::default(), beat: RateEstimator::default(), came: now };
        self.client_of_frames(facts, handle).or_else(of_file).unwrap_or_else(unknown)
    }

    /// The rate at which this client needs the file, if it is known.
    pub fn rate_of(&self, ino: Ino, handle: HandleId) -> Option<Bitrate> {
        let file = self.files.get(&ino)?;
        let declared = file.declarations.iter().find(|one| one.handle == handle);
        declared.and_then(|one| one.declaration.rate).or(file.policy.bitrate())
    }

    /// A client that plays on does not need what is at `at` before.
    pub fn earliest_need(&self, facts: &dyn Facts, ino: Ino, handle: HandleId, at: u64) -> Option<Instant> {
        if let Some(need) = self.earliest_need_of_frame(facts, handle) {
            return Some(need);
        }
        if self.is_header_probe(handle, at) {
            return None;
        }
        let player = self.player(handle)?;
        let place = Some(player.place_of(at)).filter(|place| place.pattern.is_run())?;
        let played = self.rate_of(ino, handle)?.time_for(Bytes(at.abs_diff(place.origin.from())));
        Some(place.origin.due(played, player.starts_by.is_some())).max(player.starts_by)
    }

    /// So long after it asks a client must have what it asks for, where it declares nothing.
    pub fn window_of_reader(&self, file: &FileStreams, handle: HandleId) -> Duration {
        let has_begun = |player: &Player<K>| player.has_played && player.starts_by.is_none();
        let is_promised = file.terms(Direction::Read).is_some();
        file.policy.window_of_reader(is_promised && self.player(handle).is_some_and(has_begun))
    }

    /// How far ahead of a client is asked for, and in what pieces.
    pub fn lead(&self, ino: Ino, handle: HandleId) -> ReadaheadWindow {
        let Some(file) = self.files.get(&ino) else {
            return ReadaheadWindow { bytes: 0, request: REQUEST, is_promised: false };
        };
        let plays = !self.copies(handle);
        if let Some(terms) = file.terms(Direction::Read).filter(|_| plays)
            && let Some(rate) = self.rate_of(ino, handle)
        {
            return ReadaheadWindow::promised(terms, rate);
        }
        ReadaheadWindow::unpromised(&file.policy, self.memory.0)
    }

    /// A client may record, though its rate is unknown; a copy gives way.
    pub fn may_record(&self, now: Instant, handle: HandleId) -> bool {
        let Some(&ClientState { ino, opener, .. }) = self.clients.get(&handle) else { return false };
        let gives_way = self.files.get(&ino).is_none_or(|file| file.policy.forbids_streams());
        let memory = self.memory;
        !gives_way && !self.copies(handle) && self.writers.may_record(now, opener, memory)
    }

    /// The sequence that an open file is a frame of, its number there, and the client that is there.
    pub fn client_of_frame(
        &self,
        facts: &dyn Facts,
        handle: HandleId,
    ) -> Option<(&Sequence<F>, u64, &SequenceCursor<F>)> {
        let (id, number) = self.place_in_sequence(facts, self.clients.get(&handle)?.ino, Direction::Read)?;
        let sequence = self.sequences.get(id)?;
        Some((sequence, number, sequence.heads.get(sequence.head_at(number)?)?))
    }

    /// True when a client of a sequence came to this frame from another one.
    pub fn follows_a_frame(&self, facts: &dyn Facts, handle: HandleId) -> bool {
        self.client_of_frame(facts, handle).is_some_and(|(sequence, _, head)| sequence.is_run(head))
    }

    /// What is known of the client of a sequence whose frame this is.
    pub fn client_of_frames(&self, facts: &dyn Facts, handle: HandleId) -> Option<Client> {
        self.client_of_frame(facts, handle).map(|(.., head)| head.client())
    }

    /// How a frame's requests are ranked; `None`: as those of any other file.
    pub fn frame_ranking(
        &self,
        facts: &dyn Facts,
        ino: Ino,
        direction: Direction,
        client: Option<HandleId>,
    ) -> Option<Ranking> {
        let id = self.files.get(&ino)?.sequence(direction)?;
        let sequence = self.sequences.get(id)?;
        let head = match client {
            Some(_) => {
                self.place_in_sequence(facts, ino, direction).and_then(|(_, number)| sequence.head_at(number))
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

    /// A client that plays on does not need this frame before.
    pub fn earliest_need_of_frame(&self, facts: &dyn Facts, handle: HandleId) -> Option<Instant> {
        let (sequence, number, head) = self.client_of_frame(facts, handle)?;
        Some(head.earliest_need(number, sequence.period()?))
    }

    /// The sequence as part of which a file is about to be used, if it is one.
    pub fn joined_sequence(&self, facts: &dyn Facts, ino: Ino, direction: Direction) -> Option<SequenceId> {
        let (parent, name) = facts.name_of(ino)?;
        self.sequences.joined(parent, direction == Direction::Write, name)
    }

    /// What the scheduler is to know of a sequence: its clients are one stream.
    pub fn sequence_spec(&self, facts: &dyn Facts, sequence: &Sequence<F>) -> Option<(StreamSpec, usize)> {
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
        let request = if reads && !is_timed { self.request_of_frames(facts, sequence) } else { None };
        let spec = StreamSpec {
            direction: if reads { Direction::Read } else { Direction::Write },
            rate,
            request,
            piece: None,
            deadline: is_timed.then(|| sequence.policy.deadline_window()),
            // A frame that is given early has the window of a request that says none: what is left of it is for players that begin.
            grace: if reads && !is_timed { DEADLINE_WINDOW } else { Duration::ZERO },
            place: if reads { self.place_of_frames(facts, sequence) } else { None },
            priority: StreamSpec::DEFAULT_PRIORITY,
            account: sequence.policy.account(),
        };
        Some((spec, players))
    }

    /// Where the frames lie that are read next, about.
    pub fn place_of_frames(&self, facts: &dyn Facts, sequence: &Sequence<F>) -> Option<DeviceOffset> {
        let head = sequence.heads.first()?;
        let (_, ino) = self.next_frame(facts, sequence, head, head.front())?;
        facts.place_of(ino)
    }

    /// Length of requests where there is a reason for it: what a policy wants ahead, or the pieces in which the next
    /// frames lie.
    pub fn request_of_frames(&self, facts: &dyn Facts, sequence: &Sequence<F>) -> Option<Bytes> {
        if let Some(depth) = sequence.policy.stated_prefetch_depth() {
            return Some(depth.max(Bytes(PAGE)));
        }
        let head = sequence.heads.first()?;
        let (mut at, mut end, mut bytes, mut runs) = (head.front(), None, 0, 0);
        while bytes < LONG_PIECE && runs < LONG_PIECE / SHORT_PIECE {
            let Some((number, ino)) = self.next_frame(facts, sequence, head, at) else { break };
            at = number;
            facts.pieces_of(ino, &mut |run| {
                runs += u64::from(end != Some(run.start));
                end = Some(run.end);
                bytes += run.end - run.start;
            });
        }
        let piece = bytes.checked_div(runs)?;
        (runs > 1 && piece < LONG_PIECE).then(|| Bytes(piece.max(SHORT_PIECE) / PAGE * PAGE))
    }

    /// Tells the scheduler what has become of a sequence.
    pub fn declare_sequence(&mut self, facts: &dyn Facts, id: SequenceId) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let spec = self.sequence_spec(facts, sequence);
        let before = sequence.declared.map(|(spec, _)| spec);
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.declared = spec;
        if spec.is_none() {
            sequence.terms = None;
        }
        let known = |spec: StreamSpec| (spec, Confidence::Known);
        self.tell_stream(id.stream(), before.map(known), spec.map(|(spec, _)| known(spec)));
    }

    /// The frame behind `from`, in the client's direction and step.
    pub fn next_frame(
        &self,
        facts: &dyn Facts,
        sequence: &Sequence<F>,
        head: &SequenceCursor<F>,
        from: u64,
    ) -> Option<(u64, Ino)> {
        let frame = |number| Some((number, self.frame(facts, sequence, head, number)?));
        head.behind(from).take(LONGEST_GAP).find_map(frame)
    }

    /// The file that is this frame, if there is one.
    pub fn frame(
        &self,
        facts: &dyn Facts,
        sequence: &Sequence<F>,
        head: &SequenceCursor<F>,
        number: u64,
    ) -> Option<Ino> {
        let Pattern { directory, prefix, suffix, .. } = &sequence.pattern;
        let mut names = spellings(prefix, number, head.digits(), suffix);
        names.find_map(|name| facts.file_named(*directory, &name)).flatten()
    }

    /// What a file's header says of the sequence that it is a frame of: how long one is shown, or that it is a film.
    pub fn note_container(
        &mut self,
        facts: &dyn Facts,
        ino: Ino,
        period: Option<Duration>,
        is_frame: bool,
    ) -> bool {
        let Some((parent, name)) = facts.name_of(ino) else { return false };
        let Some((id, ..)) = self.sequences.find(parent, false, name) else { return false };
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.header_period = period.or(sequence.header_period);
            sequence.is_of_films = !is_frame;
        }
        true
    }

    /// The sequence that an open file is part of, and its number there.
    pub fn place_in_sequence(
        &self,
        facts: &dyn Facts,
        ino: Ino,
        direction: Direction,
    ) -> Option<(SequenceId, u64)> {
        let id = self.files.get(&ino)?.sequence(direction)?;
        let (parent, name) = facts.name_of(ino)?;
        let (found, number, _) = self.sequences.find(parent, direction == Direction::Write, name)?;
        (found == id).then_some((id, number))
    }
}

/// How the requests of the clients of a sequence are ranked.
pub fn sequence_ranking<F>(id: SequenceId, sequence: &Sequence<F>, copies: bool) -> Ranking {
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
