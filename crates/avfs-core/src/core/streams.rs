//! Open files as streams of the scheduler, and how requests of a file are ranked.

use super::cache::{BlockId, Cache};
use super::file::{Declared, FileState};
use super::frames::Frames;
use super::writeback::WRITTEN_WITHIN;
use super::{Core, Purpose};
use crate::config::quantity::{is_bitrate, is_deadline_window};
use crate::error::{Error, Result};
use crate::format::{BLOCK, UNIT};
use crate::policy::{ADMINISTRATOR, account_of_user};
use crate::types::*;
use avfs_io::{DeclaredStream, Evidence, IoTag, Promise, Promotion};
use avfs_streams::sequence::{Sequence, SequenceId};
use rtsched::{Account, Class, Direction, StreamId, StreamSpec, StreamState, Terms, Why};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant, Now};

/// How requests of a file are ranked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranking {
    pub(super) class: Class,
    pub(super) stream: Option<StreamId>,
    /// From when a client needs the bytes to when they must be there.
    pub(super) window: Option<Duration>,
    /// The stream's rate, if it is known.
    pub(super) rate: Option<Bitrate>,
}

impl Ranking {
    /// Deadline of a request whose bytes are needed `ahead` bytes after those that are needed now.
    pub(super) fn deadline(&self, now: Instant, ahead: Bytes) -> Option<Instant> {
        let lead = self.rate.map_or(Duration::ZERO, |rate| rate.time_for(ahead));
        self.window.map(|window| now + window + lead)
    }
}

/// How one request is ranked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) class: Class,
    pub(super) stream: Option<StreamId>,
    pub(super) deadline: Option<Instant>,
}

impl Need {
    /// What becomes of a request that turns out to be needed so, if that is by some time.
    fn promotion(self, tag: IoTag) -> Option<Promotion> {
        let Self { class, stream, deadline } = self;
        deadline.map(|deadline| Promotion { tag, class, stream, deadline })
    }

    /// Of what somebody waits for who wants it written.
    fn to_be_written(now: Now, class: Class) -> Self {
        Self { class, stream: None, deadline: Some(now.monotonic + WRITTEN_WITHIN) }
    }

    /// For bytes that are needed `ahead` bytes after those that are needed now.
    pub(super) fn of(ranking: Ranking, now: Instant, ahead: Bytes) -> Self {
        Self { class: ranking.class, stream: ranking.stream, deadline: ranking.deadline(now, ahead) }
    }
}

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
fn file_of(stream: StreamId) -> (Ino, Direction) {
    (Ino(stream.0 >> 1), if stream.0 & 1 == 1 { Direction::Write } else { Direction::Read })
}

/// So long plays what a request brings on a device full of streams: 32 MiB at 100 Mbit/s,...
const LONG_REQUEST: Duration = Duration::from_millis(2684);
/// ...in whole extents of 8 MiB, no more than this.
const LONGEST_REQUEST: u64 = 64 << 20;
/// Frames in shorter pieces than this are read in requests as long as they are on average.
pub(super) const LONG_PIECE: u64 = 64 << 20;
/// Pieces count for no shorter than this.
pub(super) const SHORT_PIECE: u64 = 256 << 10;

impl From<DeclaredStream> for StreamReport {
    fn from(declared: DeclaredStream) -> Self {
        let status = declared.admitted;
        let microseconds = |time: Duration| u64::try_from(time.as_nanos() / 1000).unwrap_or(u64::MAX);
        Self {
            ino: declared.stream.0 >> 1,
            sequence: None,
            writes: declared.spec.direction == Direction::Write,
            bits_per_second: declared.spec.rate.0,
            state: match status.map(|status| status.state) {
                Some(StreamState::Active) => StreamService::Admitted,
                Some(StreamState::Paused) => StreamService::Paused,
                Some(StreamState::Demoted) => StreamService::Demoted,
                None => StreamService::Waiting,
            },
            request_bytes: status.map_or(0, |status| status.terms.request.0),
            buffer_bytes: status.map_or(0, |status| status.terms.buffer().0),
            completed: status.map_or(0, |status| status.completed),
            bytes: status.map_or(0, |status| status.bytes.0),
            missed: status.map_or(0, |status| status.missed),
            tardiness_microseconds: status.map_or(0, |status| microseconds(status.tardiness)),
            slack_microseconds: status.and_then(|status| status.slack_nanoseconds).map(|slack| slack / 1000),
            lacking: declared.rejected.map(|rejected| match rejected.why {
                Why::NoTime { .. } => StreamLack::Time,
                Why::DeadlineTooShort { .. } => StreamLack::Deadline,
                Why::NoMemory { .. } => StreamLack::Memory,
                Why::AccountFull { .. } => StreamLack::Share,
                Why::Congested { .. } => StreamLack::Congestion,
                Why::NoStream | Why::AlreadyAdmitted => StreamLack::Sense,
            }),
            fits_bits_per_second: declared.rejected.and_then(|rejected| rejected.fits).map(|rate| rate.0),
        }
    }
}

impl Core {
    /// Class, stream and window of a file's requests, from its policy and from what `client` declared, or what all did.
    pub(super) fn ranking(&self, ino: Ino, direction: Direction, client: Option<HandleId>) -> Ranking {
        let background = |class| Ranking { class, stream: None, window: None, rate: None };
        let file = self.files.get(&ino).filter(|_| !self.is_unadvised());
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
        let file = self.files.get(&ino).filter(|file| is_advised && !file.policy().forbids_streams())?;
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
        Some(self.superblock.geometry.block_address(last))
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

    /// A stream is promised something else than before, or nothing: its players have as much read ahead from now on.
    pub fn promised(&mut self, now: Now, promise: Promise) {
        let was_undecided = self.undecided.remove(&promise.stream);
        if let Some(id) = SequenceId::of_stream(promise.stream) {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.terms = promise.terms.filter(|_| sequence.declared.is_some());
            }
            if was_undecided {
                self.read_sequence_ahead(now, id);
                self.pump(now);
            }
            return;
        }
        let (ino, direction) = file_of(promise.stream);
        let Some(file) = self.files.get_mut(&ino) else { return };
        let is_first = file.terms(direction).is_none() && promise.terms.is_some();
        file.set_terms(direction, promise.terms);
        if direction == Direction::Read && (was_undecided || promise.terms.is_some()) {
            for handle in file.who_plays().collect::<SmallVec<[_; 1]>>() {
                if is_first {
                    // What it was read ahead of as nobody's is its stream's from now on.
                    self.hasten_ahead(now, ino, handle);
                }
                self.read_ahead(now, ino, handle);
            }
            self.pump(now);
        }
    }

    /// An application says how it reads or writes a file that it has open, in place of what it said before; nothing, if
    /// the declaration is empty. Gives back the stream that it is part of from then on: all who play the file, or all who
    /// record it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a rate or a period out of range. [`Error::NotPermitted`]: the policy wants the file to
    /// give way. [`Error::BadHandle`].
    pub fn declare(&mut self, handle: HandleId, declaration: Declaration) -> Result<StreamId> {
        self.declare_for(ADMINISTRATOR, handle, declaration)
    }

    /// The same in the name of a user, whose share of the device holds for what is declared beyond the file's policy.
    ///
    /// # Errors
    /// Those of [`Core::declare`].
    pub fn declare_for(&mut self, uid: u32, handle: HandleId, declaration: Declaration) -> Result<StreamId> {
        let (ino, flags) = self.handle(handle)?;
        let in_range =
            declaration.rate.is_none_or(is_bitrate) && declaration.period.is_none_or(is_deadline_window);
        if !in_range {
            return Err(Error::InvalidArgument);
        }
        let direction = direction_of(flags);
        let account = account_of_user(uid);
        let is_empty = declaration == Declaration::default();
        if !is_empty && self.file_mut(ino).policy().forbids_streams() {
            return Err(Error::NotPermitted);
        }
        self.change_streams(ino, |core| {
            let declarations = &mut core.file_mut(ino).declarations;
            declarations.retain(|declared| declared.handle != handle);
            if !is_empty {
                declarations.push(Declared { handle, direction, declaration, account });
            }
        });
        Ok(stream_of(ino, direction))
    }

    /// The stream that a client is part of, should it be one.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn stream_of_handle(&self, handle: HandleId) -> Result<StreamId> {
        self.handle(handle).map(|(ino, flags)| self.stream_of_client(ino, direction_of(flags)))
    }

    /// The next read through this handle must be complete so long after now: 1 ms to 60 s.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a time out of range. [`Error::NotPermitted`]: the policy wants the file to give way.
    /// [`Error::BadHandle`], also when it is not open for reading.
    pub fn set_read_deadline(&mut self, now: Now, handle: HandleId, within: Duration) -> Result<()> {
        let (ino, flags) = self.handle(handle)?;
        if !flags.contains(OpenFlags::READ) {
            return Err(Error::BadHandle);
        }
        if !is_deadline_window(within) {
            return Err(Error::InvalidArgument);
        }
        if self.file_mut(ino).policy().forbids_streams() {
            return Err(Error::NotPermitted);
        }
        let open = self.handles.get_mut(&handle.0).ok_or(Error::BadHandle)?;
        open.read_deadline = Some(now.monotonic + within);
        Ok(())
    }

    /// What a client needs at `at`, which lies `ahead` of what it asks for.
    pub(super) fn need(&self, now: Now, ino: Ino, handle: HandleId, at: u64, ahead: Bytes) -> Need {
        let mut need = Need::of(self.ranking(ino, Direction::Read, Some(handle)), now.monotonic, ahead);
        if self.is_unadvised() {
            return need;
        }
        let wish = self.handles.get(&handle.0).and_then(|open| open.read_deadline);
        if let Some(wish) = wish.filter(|_| ahead == Bytes::ZERO) {
            need = Need { class: Class::RealTime, deadline: Some(wish), ..need };
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
            let gives_way = self.files.get(&ino).is_none_or(|file| file.policy().forbids_streams());
            if gives_way || !client.may_play(now.monotonic) {
                need.stream = Some(self.stream_of_client(ino, Direction::Read));
            }
        }
        need
    }

    /// A client waits for these bytes, which may have been asked for before anybody did: with less need.
    pub(super) fn hasten(&mut self, ino: Ino, range: Range<u64>, need: Need) {
        let tags = self.in_flight.of_file(ino).collect();
        self.hasten_those(tags, |cache, purpose| {
            let &Purpose::Load { block, start, length, .. } = purpose else { return None };
            let from = cache.get(block)?.start + start;
            (from < range.end && range.start < from + length).then_some(need)
        });
    }

    /// Blocks that were asked for are needed sooner than was known then.
    pub(super) fn hasten_blocks(&mut self, needs: &BTreeMap<BlockId, Need>) {
        let files = needs.keys().filter_map(|&id| Some(self.cache.get(id)?.ino)).collect();
        let tags = self.in_flight.of_all(&files).into_iter().collect();
        self.hasten_those(tags, |_, purpose| match purpose {
            Purpose::Load { block, .. } => needs.get(block).copied(),
            _ => None,
        });
    }

    /// A client waits until nothing of the file is on its way any more.
    pub(super) fn hasten_all(&mut self, now: Now, ino: Ino) {
        let need = Need::to_be_written(now, Class::RealTime);
        let tags = self.in_flight.of_file(ino).collect();
        self.hasten_those(tags, |_, _| Some(need));
    }

    /// A client waits until what it has written is on the device: what is on its way there already is as urgent as what is sent only
    /// now, and no more: who flushes his file does not go before what others were promised.
    pub(super) fn hasten_writes(&mut self, now: Now, ino: Ino) {
        let need = Need::to_be_written(now, Class::BestEffort);
        let tags = self.in_flight.of_file(ino).collect();
        self.hasten_those(tags, |cache, purpose| match purpose {
            // It completes a page, which is written when that has ended.
            Purpose::Load { block, .. } => {
                let completes = cache.get(*block).is_some_and(|block| !block.dirty.is_empty());
                completes.then_some(need)
            }
            _ => Some(need),
        });
    }

    /// These requests are needed as is found now, if it is found.
    fn hasten_those(&mut self, tags: Vec<IoTag>, need: impl Fn(&Cache, &Purpose) -> Option<Need>) {
        for tag in tags {
            let Some(purpose) = self.in_flight.get(tag) else { continue };
            let promotion = need(&self.cache, purpose).and_then(|need| need.promotion(tag));
            promotion.into_iter().for_each(|promotion| self.outbox.promote(promotion));
        }
    }

    /// What there must be room for if a client is not to be turned away, in a file whose policy wants that.
    pub(super) fn needed_admission(&self, ino: Ino, direction: Direction) -> Option<WantedStream> {
        let refuses = self.files.get(&ino).is_some_and(|file| file.policy().refuses_when_full());
        let sequence = self.files.get(&ino)?.sequence(direction).and_then(|id| self.sequences.get(id));
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
                && let Some(file) = self.files.get_mut(&ino)
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
        Some((spec, evidence(self.files.get(&ino)?, direction)))
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
            (None, Some(_)) => _ = self.undecided.insert(stream),
            (_, None) => _ = self.undecided.remove(&stream),
            (Some(_), Some(_)) => {}
        }
        if let (Some((before, _)), Some((after, _))) = (before, after)
            && (StreamSpec { rate: after.rate, ..before }) != after
        {
            // A reservation can change its rate and nothing else.
            self.outbox.streams.push((stream, None));
        }
        self.outbox.streams.push((stream, after));
    }

    /// The scheduler was asked whether it has room for the stream, and has not answered: in a moment it is known how far ahead
    /// may be read. What was read until then, of many who begin at once, was more than there is memory for.
    pub(super) fn is_undecided(&self, stream: StreamId) -> bool {
        self.undecided.contains(&stream)
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
        let waits = |sequence: &Sequence<Frames>| sequence.declared.is_some() && sequence.terms.is_none();
        self.sequences.get(id).is_some_and(waits) && !self.is_undecided(id.stream())
    }

    /// The stream of a file's clients: their own, or that of the sequence of which the file is a frame.
    fn stream_of_client(&self, ino: Ino, direction: Direction) -> StreamId {
        let file = self.files.get(&ino).filter(|file| file.declared(direction).next().is_none());
        let sequence = file.and_then(|file| file.sequence(direction));
        sequence.map_or(stream_of(ino, direction), SequenceId::stream)
    }

    /// What readers or writers of a file are promised, for themselves or as those of a sequence.
    pub(super) fn terms(&self, ino: Ino, direction: Direction) -> Option<Terms> {
        let file = self.files.get(&ino)?;
        match file.sequence(direction) {
            Some(id) => self.sequences.get(id)?.terms,
            None => file.terms(direction),
        }
    }

    /// A declared stream for an administrator.
    pub fn stream_report(&self, declared: DeclaredStream) -> StreamReport {
        let sequence = SequenceId::of_stream(declared.stream);
        let mut report = StreamReport::from(declared);
        if let Some(id) = sequence {
            let (directory, pattern) = self.shown_sequence(id).unwrap_or((Ino(0), "?".to_owned()));
            report.ino = directory.0;
            report.sequence = Some(pattern);
        }
        report
    }
}
