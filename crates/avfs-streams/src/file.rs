//! What is known of the clients of one file together.
//!
//! **For:** which clients play it and record it, what they declared, what they are promised, and the stream that they are.
//! **Excludes:** the file itself. **State:** one [`FileStreams`] for each file that is open. **Invariants:** a function of the
//! calls.

use crate::policy::Policy;
use crate::sequence::SequenceId;
use crate::{HandleId, OpenFiles, Opener};
use rtsched::{Account, Confidence, Direction, Terms};
use smallvec::SmallVec;
use units::{Bitrate, Duration};

/// What an application says of a file that it has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// The rate at which it reads or writes, 1 kbit/s to 1 Tbit/s; `None`: that of the file's policy.
    pub rate: Option<Bitrate>,
    /// How long after it asks each request must be complete, 1 ms to 60 s; `None`: that of the file's policy.
    pub period: Option<Duration>,
}

/// A client that reads on and on, and does not copy, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Playing {
    /// The client.
    pub handle: HandleId,
    /// How many streams it is: a client that plays two places of a file at once is two.
    pub streams: u32,
    /// It was seen to rest, as no copy does.
    pub rests: bool,
}

/// What one client said.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// The client.
    pub handle: HandleId,
    /// Whether it reads or writes.
    pub direction: Direction,
    /// What it said.
    pub declaration: Declaration,
    /// Of the user whose application said it.
    pub account: Option<Account>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct FileStreams {
    /// What holds for it.
    pub policy: Policy,
    /// Its rate is known from observation alone.
    pub is_observed: bool,
    /// It was asked itself how fast it plays.
    pub is_probed: bool,
    /// The writer that wrote it last.
    pub last_writer: Option<Opener>,
    /// Clients that read on and on, and do not copy.
    pub playing: SmallVec<[Playing; 1]>,
    /// Clients that write faster than the file is ever played.
    pub copying: SmallVec<[HandleId; 1]>,
    /// What clients that have it open said of their reading or writing.
    pub declarations: Vec<Declared>,
    /// The sequences that it was part of when it was opened last to be read, and to be written.
    sequences: [Option<SequenceId>; 2],
    /// What its readers are promised, and its writers.
    promised: [Option<Terms>; 2],
}

impl FileStreams {
    /// What its readers or its writers are promised, as the stream that they are together.
    pub fn terms(&self, direction: Direction) -> Option<Terms> {
        self.promised[usize::from(direction == Direction::Write)]
    }

    /// The sequence as part of which it is read, or written.
    pub fn sequence(&self, direction: Direction) -> Option<SequenceId> {
        self.sequences[usize::from(direction == Direction::Write)]
    }

    /// The sequence as part of which it is read from now on, or written.
    pub fn set_sequence(&mut self, direction: Direction, sequence: Option<SequenceId>) {
        self.sequences[usize::from(direction == Direction::Write)] = sequence;
    }

    /// What its readers or its writers are promised from now on.
    pub fn set_terms(&mut self, direction: Direction, terms: Option<Terms>) {
        self.promised[usize::from(direction == Direction::Write)] = terms;
    }

    /// A client plays the file from now on, or does not.
    pub fn set_playing(&mut self, handle: HandleId, playing: Option<Playing>) {
        self.playing.retain(|before| before.handle != handle);
        self.playing.extend(playing);
    }

    /// How a client plays the file, if it does.
    pub fn playing_of(&self, handle: HandleId) -> Option<Playing> {
        self.playing.iter().find(|playing| playing.handle == handle).copied()
    }

    /// How many streams a client is.
    pub fn streams_of(&self, handle: HandleId) -> u32 {
        self.playing_of(handle).map_or(0, |playing| playing.streams)
    }

    /// Clients that play it.
    pub fn players(&self) -> impl Iterator<Item = HandleId> {
        self.playing.iter().map(|playing| playing.handle)
    }

    /// True when no other client plays it.
    pub fn is_played_only_by(&self, handle: HandleId) -> bool {
        matches!(self.playing.as_slice(), [only] if only.handle == handle)
    }

    /// A client that writes copies the file from now on, or does not.
    pub fn set_copying(&mut self, handle: HandleId, copies: bool) {
        self.copying.retain(|copying| *copying != handle);
        self.copying.extend(copies.then_some(handle));
    }

    /// What its players said, or its recorders.
    pub fn declared(&self, direction: Direction) -> impl Iterator<Item = &Declared> {
        self.declarations.iter().filter(move |declared| declared.direction == direction)
    }

    /// True when its rate is known only from watching its clients.
    pub fn observes_rate(&self) -> bool {
        let is_unsaid = self.policy.bitrate().is_none() || self.is_observed;
        is_unsaid && !self.policy.forbids_streams() && self.declarations.is_empty()
    }

    /// True when its clients or an administrator say how it is read or written.
    pub fn is_media(&self) -> bool {
        self.policy.is_media() || !self.declarations.is_empty()
    }
}

/// Clients that are a stream, should the file have a rate: a writer that does not copy, and a reader that reads on and on and does
/// not copy. Where the policy turns away clients without room, any client that opens it to read is one, too. Those of a frame are
/// their sequence's.
pub(crate) fn clients(file: &FileStreams, open: OpenFiles, direction: Direction) -> u64 {
    let count = match direction {
        _ if file.sequence(direction).is_some() => file.declared(direction).count() as u32,
        Direction::Write => open.writers.saturating_sub(file.copying.len() as u32),
        _ if file.policy.refuses_when_full() => open.readers,
        _ => file.playing.iter().map(|playing| playing.streams).sum(),
    };
    u64::from(count)
}

/// Those of them that did not declare anything.
pub(crate) fn undeclared(file: &FileStreams, open: OpenFiles, direction: Direction) -> u64 {
    if file.sequence(direction).is_some() {
        return 0;
    }
    let is_counted = |handle: HandleId| match direction {
        Direction::Write => !file.copying.contains(&handle),
        _ => file.policy.refuses_when_full() || file.streams_of(handle) > 0,
    };
    let declared = file.declared(direction).filter(|declared| is_counted(declared.handle)).count() as u64;
    clients(file, open, direction) - declared
}

/// How well it is known that a file's clients are a stream: one of them says so, or is seen to have a clock.
pub(crate) fn confidence(file: &FileStreams, direction: Direction) -> Confidence {
    let is_said = file.declared(direction).next().is_some() || file.policy.refuses_when_full();
    let is_seen = direction == Direction::Write || file.playing.iter().any(|playing| playing.rests);
    if is_said || is_seen { Confidence::Known } else { Confidence::Guessed }
}

/// On whose account the stream of a file's clients is: an application's user that declares more than the administrator
/// has granted the file, or else the user who named its rate. `None`: the administrator's word, or what was found out.
pub(crate) fn account(file: &FileStreams, direction: Direction) -> Option<Account> {
    let policy = file.policy;
    let granted = if policy.account().is_some() { None } else { policy.bitrate() };
    let exceeds = |declared: &&Declared| {
        declared.declaration.rate.is_some_and(|rate| granted.is_none_or(|granted| rate > granted))
    };
    file.declared(direction).filter(exceeds).find_map(|declared| declared.account).or(policy.account())
}

/// The shortest time that any client leaves its requests.
pub(crate) fn window_of_all(file: &FileStreams, open: OpenFiles, direction: Direction) -> Duration {
    let of_policy = file.policy.deadline_window();
    let declared = file.declared(direction).map(|one| one.declaration.period.unwrap_or(of_policy));
    declared.chain((undeclared(file, open, direction) > 0).then_some(of_policy)).min().unwrap_or(of_policy)
}
