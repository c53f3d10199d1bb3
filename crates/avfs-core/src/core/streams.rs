//! Open files as streams of the scheduler, and how requests of a file are ranked.

use super::state::file::{Declared, FileState};
use super::state::{Core, Handle, Player, Sequence, SequenceCursor};
use crate::format::{BLOCK, UNIT};
use crate::types::*;
use avfs_io::Evidence;
use avfs_streams::due::{BEGINS_WITH, OWN_BUFFER, START};
use avfs_streams::name::spellings;
use avfs_streams::pattern::{NEAR, RateEstimator, VirtualClock};
use avfs_streams::player::Client;
use avfs_streams::sequence::{Pattern, SequenceId};
use avfs_streams::window::ReadaheadWindow;
use avfs_streams::{REQUEST, Ranking, RequestQos};
use rtsched::{Account, Class, Direction, StreamId, StreamSpec, Terms};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant, Now};

/// Clients that are a stream, should the file have a rate: whoever writes and does not copy; whoever reads on and on and
/// does not copy, or whoever opens it to read, where the policy is to turn away whom there is no room for. Those of a frame
/// are their sequence's.
fn clients(file: &FileState, direction: Direction) -> u64 {
    let count = match direction {
        _ if file.sequence(direction).is_some() => file.declared(direction).count() as u32,
        Direction::Write => file.writers.saturating_sub(file.copying.len() as u32),
        _ if file.policy().refuses_when_full() => file.readers,
        _ => file.playing.iter().map(|playing| playing.streams).sum(),
    };
    u64::from(count)
}

/// Those of them who did not declare anything.
fn undeclared(file: &FileState, direction: Direction) -> u64 {
    if file.sequence(direction).is_some() {
        return 0;
    }
    let is_counted = |handle: HandleId| match direction {
        Direction::Write => !file.copying.contains(&handle),
        _ => file.policy().refuses_when_full() || file.streams_of(handle) > 0,
    };
    let declared = file.declared(direction).filter(|declared| is_counted(declared.handle)).count() as u64;
    clients(file, direction) - declared
}

/// How well it is known that a file's clients are a stream: somebody says so, or one of them is seen to have a clock.
fn evidence(file: &FileState, direction: Direction) -> Evidence {
    let is_said = file.declared(direction).next().is_some() || file.policy().refuses_when_full();
    let is_seen = direction == Direction::Write || file.playing.iter().any(|playing| playing.rests);
    if is_said || is_seen { Evidence::Known } else { Evidence::Guessed }
}

/// On whose account the stream of a file's clients is: an application's user that declares more than the administrator
/// has granted the file, or else the user who named its rate. `None`: the administrator's word, or what was found out.
fn account(file: &FileState, direction: Direction) -> Option<Account> {
    let policy = file.policy();
    let granted = if policy.account().is_some() { None } else { policy.bitrate() };
    let exceeds = |declared: &&Declared| {
        declared.declaration.rate.is_some_and(|rate| granted.is_none_or(|granted| rate > granted))
    };
    file.declared(direction).filter(exceeds).find_map(|declared| declared.account).or(policy.account())
}

/// The shortest time that any client leaves its requests.
fn window_of_all(file: &FileState, direction: Direction) -> Duration {
    let of_policy = file.policy().deadline_window();
    let declared = file.declared(direction).map(|one| one.declaration.period.unwrap_or(of_policy));
    declared.chain((undeclared(file, direction) > 0).then_some(of_policy)).min().unwrap_or(of_policy)
}

/// Who may write records; what such a client reads is not what it plays.
pub(super) fn direction_of(flags: OpenFlags) -> Direction {
    if flags.contains(OpenFlags::WRITE) { Direction::Write } else { Direction::Read }
}

/// The name of the stream that a file's readers are, or its writers.
pub(super) fn stream_of(ino: Ino, direction: Direction) -> StreamId {
    StreamId(ino.0 << 1 | u64::from(direction == Direction::Write))
}

/// Whose stream it is that is no sequence's, and whether its readers are it or its writers.
pub(super) fn file_of(stream: StreamId) -> (Ino, Direction) {
    (Ino(stream.0 >> 1), if stream.0 & 1 == 1 { Direction::Write } else { Direction::Read })
}

/// So many numbers may be missing between two frames.
const LONGEST_GAP: usize = 256;
/// What is asked for ahead of who plays is wanted by when he asks for it, which is when he shows what is a second before; half of
/// that second others may need more, who begin.
const GRACE: Duration = Duration::from_millis(500);
/// So long plays what a request brings on a device full of streams: 32 MiB at 100 Mbit/s,...
const LONG_REQUEST: Duration = Duration::from_millis(2684);
/// ...in whole extents of 8 MiB, no more than this.
const LONGEST_REQUEST: u64 = 64 << 20;
/// Frames in shorter pieces than this are read in requests as long as they are on average.
pub(super) const LONG_PIECE: u64 = 64 << 20;
/// Pieces count for no shorter than this.
pub(super) const SHORT_PIECE: u64 = 256 << 10;

impl Core {
    /// Class, stream and window of a file's requests, from its policy and from what `client` declared, or what all did.
    pub(super) fn ranking(&self, ino: Ino, direction: Direction, client: Option<HandleId>) -> Ranking {
        let background = |class| Ranking { class, stream: None, window: None, rate: None };
        let file = self.data.files.get(&ino).filter(|_| !self.is_unadvised());
        let Some(file) = file else { return background(Class::BestEffort) };
        let policy = file.policy();
        let declared =
            || file.declared(direction).filter(|one| client.is_none_or(|client| client == one.handle));
        let is_declared = !policy.forbids_streams() && declared().next().is_some();
        if !is_declared && let Some(ranking) = self.frame_ranking(ino, direction, client) {
            return ranking;
        }
        if policy.class() != Class::RealTime && !is_declared {
            return background(policy.class());
        }
        let copies = match client {
            Some(client) => self.copies(client),
            None => file.writers > 0 && clients(file, direction) == 0,
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
            None => window_of_all(file, direction),
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
    fn stream_spec(&self, ino: Ino, direction: Direction) -> Option<StreamSpec> {
        let is_advised = !self.is_unadvised();
        let file = self.data.files.get(&ino).filter(|file| is_advised && !file.policy().forbids_streams())?;
        let of_policy = file.policy().bitrate().map_or(0, |rate| rate.0);
        let declared =
            || file.declared(direction).map(|one| one.declaration.rate.map_or(of_policy, |rate| rate.0));
        let undeclared = of_policy.saturating_mul(undeclared(file, direction));
        let rate = declared().fold(undeclared, u64::saturating_add);
        if rate == 0 {
            return None;
        }
        // What nobody says, the admission chooses; players and writeback follow it.
        let is_timed = file.policy().says_deadline_window()
            || file.declared(direction).any(|one| one.declaration.period.is_some());
        Some(StreamSpec {
            direction,
            rate: Bitrate(rate),
            // As long as somebody wants it may be too long for the time that somebody wants.
            request: if direction == Direction::Read && !is_timed {
                file.policy().stated_prefetch_depth().map(|depth| depth.max(Bytes(BLOCK)))
            } else {
                None
            },
            // By the rate of one of its clients: when another one comes, the reservation can change its rate and nothing else.
            piece: if direction == Direction::Read {
                self.piece_of_reader(ino, Bitrate(declared().fold(of_policy, u64::max)))
            } else {
                None
            },
            deadline: is_timed.then(|| window_of_all(file, direction)),
            grace: Duration::ZERO,
            place: if direction == Direction::Read { self.place_of(ino) } else { None },
            priority: StreamSpec::DEFAULT_PRIORITY,
            account: account(file, direction),
        })
    }

    /// Where reading a file takes longest, as disks are: where it lies nearest to the device's end.
    pub(super) fn place_of(&self, ino: Ino) -> Option<DeviceOffset> {
        let extents = self.metadata.get(ino)?.extents()?;
        let last = extents.iter().map(|extent| extent.start + extent.count).max()?;
        Some(self.address(last))
    }

    /// What one access brings on average of a file that lies in pieces, each of which ends a request; `None` where that costs
    /// no access more than a file in one piece takes: the tail of a clip lies apart, and is read with the last of its requests.
    fn piece_of_reader(&self, ino: Ino, rate: Bitrate) -> Option<Bytes> {
        let request = rate.bytes_in(LONG_REQUEST).0.clamp(1, LONGEST_REQUEST).next_multiple_of(UNIT);
        let extents = self.metadata.get(ino)?.extents()?;
        let (mut bytes, mut accesses, mut piece, mut end) = (0_u64, 0, 0_u64, None);
        for extent in extents.iter() {
            let length = extent.count * BLOCK;
            if end != Some(extent.start) {
                accesses += piece.div_ceil(request);
                piece = 0;
            }
            (piece, bytes) = (piece + length, bytes + length);
            end = Some(extent.start + extent.count);
        }
        accesses += piece.div_ceil(request);
        let more = accesses.saturating_sub(bytes.div_ceil(request));
        if more == 0 {
            return None;
        }
        // The last access of a file in one piece brings what is left, which is no piece: it counts as the part of one it is.
        let (bytes, request) = (u128::from(bytes), u128::from(request));
        let mean = bytes * request / (bytes + u128::from(more) * request);
        Some(Bytes(u64::try_from(mean).ok()?.max(SHORT_PIECE) / BLOCK * BLOCK))
    }

    /// What a client needs at `at`, which lies `ahead` of what it asks for.
    pub(super) fn need(&self, now: Now, ino: Ino, handle: HandleId, at: u64, ahead: Bytes) -> RequestQos {
        let mut need = RequestQos::of(self.ranking(ino, Direction::Read, Some(handle)), now.monotonic, ahead);
        if self.is_unadvised() {
            return need;
        }
        let wish = self.clients.handles.get(&handle.0).and_then(|open| open.read_deadline);
        if let Some(wish) = wish.filter(|_| ahead == Bytes::ZERO) {
            need = RequestQos { class: Class::RealTime, deadline: Some(wish), ..need };
        } else if need.class == Class::RealTime
            && self.is_refused(ino, Direction::Read)
            && (ahead > Bytes::ZERO || self.goes_on(handle, at))
        {
            // In time for its rate it would go before what those want sooner than they were promised who have a reservation:
            // of thirteen players two lost a unit to the fourteenth. Only the picture of who jumps does not wait.
            need.class = Class::BestEffort;
            need.deadline = self.client(now, handle).due(now.monotonic, ahead);
        } else if need.deadline.is_some() {
            need.deadline = need.deadline.max(self.earliest_need(ino, handle, at));
        } else if need.class == Class::BestEffort && !self.copies(handle) {
            let client = self.client(now, handle);
            need.deadline = client.due(now.monotonic, ahead);
            // Who takes what he gets has his turn among others. Who may play is nobody's, and goes before what streams want later.
            let gives_way = self.data.files.get(&ino).is_none_or(|file| file.policy().forbids_streams());
            if gives_way || !client.may_play(now.monotonic) {
                need.stream = Some(self.stream_of_client(ino, Direction::Read));
            }
        }
        need
    }

    /// What there must be room for if a client is not to be turned away, in a file whose policy wants that.
    pub(super) fn needed_admission(&self, ino: Ino, direction: Direction) -> Option<WantedStream> {
        let refuses = self.data.files.get(&ino).is_some_and(|file| file.policy().refuses_when_full());
        let sequence =
            self.data.files.get(&ino)?.sequence(direction).and_then(|id| self.clients.sequences.get(id));
        let of_sequence = sequence.and_then(|sequence| sequence.declared).map(|(spec, _)| spec);
        let spec = self.stream_spec(ino, direction).or(of_sequence).filter(|_| refuses)?;
        Some(WantedStream { stream: self.stream_of_client(ino, direction), rate: spec.rate })
    }

    /// Changes something on which the file's streams depend, and tells the scheduler what became of them.
    pub(super) fn change_streams<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Self) -> R) -> R {
        const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
        let before = BOTH.map(|direction| self.wanted_stream(ino, direction));
        let result = change(self);
        for (direction, before) in BOTH.into_iter().zip(before) {
            let after = self.wanted_stream(ino, direction);
            if after.is_none()
                && let Some(file) = self.data.files.get_mut(&ino)
            {
                file.set_terms(direction, None);
            }
            self.tell_stream(stream_of(ino, direction), before, after);
        }
        result
    }

    /// The stream that the file's readers or writers are together, if it is one, and how well that is known.
    fn wanted_stream(&self, ino: Ino, direction: Direction) -> Option<(StreamSpec, Evidence)> {
        let spec = self.stream_spec(ino, direction)?;
        Some((spec, evidence(self.data.files.get(&ino)?, direction)))
    }

    /// Tells the scheduler what has become of a stream.
    pub(super) fn tell_stream(
        &mut self,
        stream: StreamId,
        before: Option<(StreamSpec, Evidence)>,
        after: Option<(StreamSpec, Evidence)>,
    ) {
        if before == after {
            return;
        }
        match (before, after) {
            (None, Some(_)) => _ = self.clients.undecided.insert(stream),
            (_, None) => _ = self.clients.undecided.remove(&stream),
            (Some(_), Some(_)) => {}
        }
        if let (Some((before, _)), Some((after, _))) = (before, after)
            && (StreamSpec { rate: after.rate, ..before }) != after
        {
            // A reservation can change its rate and nothing else.
            self.requests.outbox.streams.push((stream, None));
        }
        self.requests.outbox.streams.push((stream, after));
    }

    /// The scheduler was asked whether it has room for the stream, and has not answered: in a moment it is known how far ahead
    /// may be read. What was read until then, of many who begin at once, was more than there is memory for.
    pub(super) fn is_undecided(&self, stream: StreamId) -> bool {
        self.clients.undecided.contains(&stream)
    }

    /// There is no room for the file's clients, or for those of the sequence of which it is a frame.
    fn is_refused(&self, ino: Ino, direction: Direction) -> bool {
        let stream = self.stream_of_client(ino, direction);
        if let Some(id) = SequenceId::of_stream(stream) {
            return self.is_refused_sequence(id);
        }
        self.terms(ino, direction).is_none()
            && self.stream_spec(ino, direction).is_some()
            && !self.is_undecided(stream)
    }

    /// There is no room for the clients of a sequence.
    pub(super) fn is_refused_sequence(&self, id: SequenceId) -> bool {
        let waits = |sequence: &Sequence| sequence.declared.is_some() && sequence.terms.is_none();
        self.clients.sequences.get(id).is_some_and(waits) && !self.is_undecided(id.stream())
    }

    /// The stream of a file's clients: their own, or that of the sequence of which the file is a frame.
    pub(super) fn stream_of_client(&self, ino: Ino, direction: Direction) -> StreamId {
        let file = self.data.files.get(&ino).filter(|file| file.declared(direction).next().is_none());
        let sequence = file.and_then(|file| file.sequence(direction));
        sequence.map_or(stream_of(ino, direction), SequenceId::stream)
    }

    /// What readers or writers of a file are promised, for themselves or as those of a sequence.
    pub(super) fn terms(&self, ino: Ino, direction: Direction) -> Option<Terms> {
        let file = self.data.files.get(&ino)?;
        match file.sequence(direction) {
            Some(id) => self.clients.sequences.get(id)?.terms,
            None => file.terms(direction),
        }
    }

    pub(super) fn player(&self, handle: HandleId) -> Option<&Player> {
        self.clients.handles.get(&handle.0)?.player.as_deref()
    }

    /// True when the client copies the file, as far as can be told.
    pub(super) fn copies(&self, handle: HandleId) -> bool {
        self.player(handle).is_some_and(Player::copies)
    }

    /// True when this is a header or an index, at which a client only looks that plays elsewhere.
    pub(super) fn only_looks_at(&self, handle: HandleId, at: u64) -> bool {
        self.player(handle).is_some_and(|player| player.looks_at(at))
    }

    /// True when a request there goes on where the client was: then more than it asks for is worth reading.
    pub(super) fn goes_on(&self, handle: HandleId, offset: u64) -> bool {
        self.follows_a_frame(handle)
            || self.player(handle).is_some_and(|player| {
                let pattern = player.place_of(offset).pattern;
                pattern.is_run() && offset.abs_diff(pattern.front()) <= NEAR
            })
    }

    /// What is known of who reads through a handle, in one file or from frame to frame; at first nothing: it comes now.
    pub(super) fn client(&self, now: Now, handle: HandleId) -> Client {
        let of_file = || {
            let Player { allowance, beat, came, .. } = self.player(handle)?;
            Some(Client { allowance: *allowance, beat: *beat, came: (*came)? })
        };
        let unknown = || Client {
            allowance: VirtualClock::default(),
            beat: RateEstimator::default(),
            came: now.monotonic,
        };
        self.client_of_frames(handle).or_else(of_file).unwrap_or_else(unknown)
    }

    /// The rate at which this client needs the file, if anybody knows.
    pub(super) fn rate_of(&self, ino: Ino, handle: HandleId) -> Option<Bitrate> {
        let file = self.data.files.get(&ino)?;
        let declared = file.declarations.iter().find(|one| one.handle == handle);
        declared.and_then(|one| one.declaration.rate).or(file.policy().bitrate())
    }

    /// A client that plays on does not need what is at `at` before.
    pub(super) fn earliest_need(&self, ino: Ino, handle: HandleId, at: u64) -> Option<Instant> {
        if let Some(need) = self.earliest_need_of_frame(handle) {
            return Some(need);
        }
        if self.only_looks_at(handle, at) {
            return None;
        }
        let player = self.player(handle)?;
        let place = Some(player.place_of(at)).filter(|place| place.pattern.is_run())?;
        let (began, origin) = place.origin;
        let played = self.rate_of(ino, handle)?.time_for(Bytes(at.abs_diff(origin)));
        let own = if player.starts_by.is_some() { BEGINS_WITH } else { OWN_BUFFER };
        Some((began + START + played).saturating_before(own)).max(player.starts_by)
    }

    /// So long after it asks a client must have what it asks for, where it declares nothing.
    pub(super) fn window_of_reader(&self, file: &FileState, handle: HandleId) -> Duration {
        let has_begun = |player: &Player| player.has_played && player.starts_by.is_none();
        let is_promised = file.terms(Direction::Read).is_some();
        file.policy().window_of_reader(is_promised && self.player(handle).is_some_and(has_begun))
    }

    pub(super) fn lead(&self, ino: Ino, handle: HandleId) -> ReadaheadWindow {
        let Some(file) = self.data.files.get(&ino) else {
            return ReadaheadWindow { bytes: 0, request: REQUEST, is_promised: false };
        };
        let plays = !self.copies(handle);
        if let Some(terms) = file.terms(Direction::Read).filter(|_| plays)
            && let Some(rate) = self.rate_of(ino, handle)
        {
            return ReadaheadWindow::promised(terms, rate);
        }
        ReadaheadWindow::unpromised(&file.policy(), self.data.cache.capacity())
    }

    /// A client may record, though nobody knows at what rate; a copy gives way.
    pub(super) fn may_record(&self, now: Now, handle: HandleId) -> bool {
        let Some(&Handle { ino, opener, .. }) = self.clients.handles.get(&handle.0) else { return false };
        let gives_way = self.data.files.get(&ino).is_none_or(|file| file.policy().forbids_streams());
        let memory = Bytes(self.data.cache.capacity());
        !gives_way && !self.copies(handle) && self.clients.writers.may_record(now.monotonic, opener, memory)
    }

    /// The sequence that an open file is a frame of, its number there, and the client that is there.
    pub(super) fn client_of_frame(&self, handle: HandleId) -> Option<(&Sequence, u64, &SequenceCursor)> {
        let (id, number) = self.place_in_sequence(self.handle(handle).ok()?.0, Direction::Read)?;
        let sequence = self.clients.sequences.get(id)?;
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

    /// How a frame's requests are ranked; `None`: as those of any other file.
    pub(super) fn frame_ranking(
        &self,
        ino: Ino,
        direction: Direction,
        client: Option<HandleId>,
    ) -> Option<Ranking> {
        let id = self.data.files.get(&ino)?.sequence(direction)?;
        let sequence = self.clients.sequences.get(id)?;
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

    /// A client that plays on does not need this frame before.
    pub(super) fn earliest_need_of_frame(&self, handle: HandleId) -> Option<Instant> {
        let (sequence, number, head) = self.client_of_frame(handle)?;
        Some(head.earliest_need(number, sequence.period()?))
    }

    /// The sequence as part of which a file is about to be used, if it is one.
    pub(super) fn joined_sequence(&self, ino: Ino, direction: Direction) -> Option<SequenceId> {
        let name = self.metadata.get(ino)?.names.first()?;
        self.clients.sequences.joined(name.parent, direction == Direction::Write, &name.name)
    }

    /// What the scheduler is to know of a sequence: its clients are one stream.
    pub(super) fn sequence_spec(&self, sequence: &Sequence) -> Option<(StreamSpec, usize)> {
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
    pub(super) fn place_of_frames(&self, sequence: &Sequence) -> Option<DeviceOffset> {
        let head = sequence.heads.first()?;
        let (_, ino) = self.next_frame(sequence, head, head.front())?;
        self.place_of(ino)
    }

    /// Length of requests where there is a reason for it: what a policy wants ahead, or the pieces in which the next
    /// frames lie.
    pub(super) fn request_of_frames(&self, sequence: &Sequence) -> Option<Bytes> {
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
    pub(super) fn declare_sequence(&mut self, id: SequenceId) {
        let Some(sequence) = self.clients.sequences.get(id) else { return };
        let spec = self.sequence_spec(sequence);
        let before = sequence.declared.map(|(spec, _)| spec);
        let Some(sequence) = self.clients.sequences.get_mut(id) else { return };
        sequence.declared = spec;
        if spec.is_none() {
            sequence.terms = None;
        }
        let known = |spec: StreamSpec| (spec, Evidence::Known);
        self.tell_stream(id.stream(), before.map(known), spec.map(|(spec, _)| known(spec)));
    }

    /// The frame behind `from`, in the client's direction and step.
    pub(super) fn next_frame(
        &self,
        sequence: &Sequence,
        head: &SequenceCursor,
        from: u64,
    ) -> Option<(u64, Ino)> {
        let frame = |number| Some((number, self.frame(sequence, head, number)?));
        head.behind(from).take(LONGEST_GAP).find_map(frame)
    }

    /// The file that is this frame, if there is one.
    pub(super) fn frame(&self, sequence: &Sequence, head: &SequenceCursor, number: u64) -> Option<Ino> {
        let Pattern { directory, prefix, suffix, .. } = &sequence.pattern;
        let parent = self.metadata.get(*directory)?;
        let mut names = spellings(prefix, number, head.digits(), suffix);
        let ino = names.find_map(|name| self.metadata.child(parent, *directory, &name))?;
        (self.metadata.get(ino)?.kind == FileKind::Regular).then_some(ino)
    }

    /// What a file's header says of the sequence that it is a frame of: how long one is shown, or that it is a film.
    pub(super) fn note_container(&mut self, ino: Ino, period: Option<Duration>, is_frame: bool) {
        let Some(name) = self.metadata.get(ino).and_then(|inode| inode.names.first()) else { return };
        let Some((id, ..)) = self.clients.sequences.find(name.parent, false, &name.name) else { return };
        if let Some(sequence) = self.clients.sequences.get_mut(id) {
            sequence.header_period = period.or(sequence.header_period);
            sequence.is_of_films = !is_frame;
            tracing::info!(%ino, ?period, "a file of a numbered sequence says how long it is shown");
        }
    }
}

pub(super) fn sequence_ranking(id: SequenceId, sequence: &Sequence, copies: bool) -> Ranking {
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
