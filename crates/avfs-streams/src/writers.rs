//! The processes that give data, each in all files that it has open. Behind Samba a process is a workstation.
//!
//! **For:** telling a recorder from a copy where no rate is known. A recorder rests between what it gives, because it has a clock.
//! A copy gives the next as soon as it is answered. A folder that is copied is many files at once, each of which rests while the
//! others have their turn. So the process that opened them is looked at, not each file. **Excludes:** the rates of files, and what
//! follows from them. **State:** a [`WriterState`] for each process that gave something lately. **Invariants:** a function of the
//! calls; no more of them than there were within [`REMEMBERED`], or [`FEW`].

use crate::Opener;
use crate::pattern::ThinkTime;
use hashbrown::HashMap;
use rtsched::StreamId;
use units::{Bitrate, Bytes, Duration, Instant};

/// A writer that has given nothing for so long comes anew. An estimator's window.
const REMEMBERED: Duration = Duration::from_secs(10);
/// So many writers are no burden. It bounds memory. An operator's target.
const FEW: usize = 256;
/// A writer that gives more for longer than fills a client's buffers copies. A megabyte each 25 ms, the shortest rest there is, is
/// 335 Mbit/s. An estimator's window.
pub const RECORDED: Bitrate = Bitrate::from_megabits(400);
/// What may come at once, of a memory that is large enough: a clip's first frames, or what was kept back while a network paused. It
/// bounds memory. An operator's target.
const AT_ONCE: Bytes = Bytes::from_mib(64);
/// No more than one in so many parts of the memory may come at once. Of 256 MiB eight copies left nothing in which to fill blocks.
/// It bounds memory. An operator's target.
const AT_ONCE_PART: u64 = 64;

/// A process that gives data.
#[derive(Debug)]
struct WriterState {
    came: Instant,
    idling: ThinkTime,
    /// When what was given up to now would have been given at [`RECORDED`].
    virtual_time: Instant,
}

/// What openers are called among streams: inodes and sequences have no such numbers. Representation.
const NAMES: u64 = 1 << 62;

/// The stream whose turn it is when best effort of an opener is served: an opener that writes many files at once has one.
pub fn turns_of(opener: Opener) -> StreamId {
    StreamId(NAMES | opener.number())
}

/// The other way round, if it is one of those.
pub(crate) fn opener_of(stream: StreamId) -> Option<Opener> {
    let number = stream.0.checked_sub(NAMES).filter(|number| *number < NAMES)?;
    Some(Opener::numbered(number))
}

/// See the module.
#[derive(Debug, Default)]
pub struct Writers(HashMap<Opener, WriterState>);

impl Writers {
    /// It gives `length`. Says for how long it has idled since it gave something, and was answered, and in all; `None`: it comes
    /// anew.
    pub fn gives(&mut self, now: Instant, opener: Opener, length: Bytes) -> Option<(Duration, ThinkTime)> {
        let is_lately = |giver: &WriterState| giver.idling.last().is_some_and(|last| now < last + REMEMBERED);
        if self.0.len() >= FEW && !self.0.contains_key(&opener) {
            self.0.retain(|_, giver| is_lately(giver));
        }
        let giver = self.0.entry(opener).or_insert_with(|| WriterState::new(now));
        if !is_lately(giver) {
            *giver = WriterState::new(now);
        }
        giver.virtual_time = giver.virtual_time.max(now) + RECORDED.time_for(length);
        giver.idling.asks(now).map(|gap| (gap, giver.idling))
    }

    /// It was answered after it had to wait.
    pub fn answered(&mut self, now: Instant, opener: Opener) {
        if let Some(giver) = self.0.get_mut(&opener) {
            giver.idling.answered(now);
        }
    }

    /// It may record, as far as can be told: it rests, or has only just come, and gives no more than is recorded. With so much
    /// `memory` for all.
    pub fn may_record(&self, now: Instant, opener: Opener, memory: Bytes) -> bool {
        let at_once = AT_ONCE.min(Bytes(memory.0 / AT_ONCE_PART));
        self.0.get(&opener).is_some_and(|giver| {
            giver.idling.may_rest(now, giver.came) && giver.virtual_time <= now + RECORDED.time_for(at_once)
        })
    }
}

impl WriterState {
    fn new(now: Instant) -> Self {
        Self { came: now, idling: ThinkTime::default(), virtual_time: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Bytes = Bytes::from_mib(4096);

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    /// A process that opens files and is not heard of again is forgotten when there are many.
    #[test]
    fn only_those_of_ten_seconds_are_remembered_where_there_are_many() {
        let mut openers = Writers::default();
        for number in 0..10_000 {
            openers.gives(at(u64::from(number) * 50), Opener::process(number), Bytes::from_kib(4));
            // Two hundred come in ten seconds.
            assert!(openers.0.len() <= FEW, "{}", openers.0.len());
        }
        let at_once = (0..1000).map(|number| Opener::process(20_000 + number));
        at_once.for_each(|opener| _ = openers.gives(at(600_000), opener, Bytes::from_kib(4)));
        assert!(openers.0.len() >= 1000, "those are all of now");
    }

    /// The boundary pairs: a second after it came, unless it rests; and 64 MiB at once, of 400 Mbit/s.
    #[test]
    fn a_possible_recorder_has_just_come_or_rests_and_gives_no_more_than_is_recorded() {
        let one = Opener::process(1);
        let after = |milliseconds: u64| {
            let mut openers = Writers::default();
            assert!(openers.gives(at(0), one, Bytes::ZERO).is_none());
            openers.may_record(at(milliseconds), one, LARGE)
        };
        assert_eq!([after(999), after(1000)], [true, false]);
        for (gap, rests) in [(24, false), (25, true)] {
            let mut openers = Writers::default();
            for time in (0..=2400).step_by(gap) {
                openers.gives(at(time), one, Bytes::from_kib(64));
            }
            assert_eq!(openers.may_record(at(2400), one, LARGE), rests, "{gap}");
        }
        for (memory_mib, mib, more, may_record) in [
            (4096, 64, 0, true),
            (4096, 64, 1, false),
            (256, 4, 0, true),
            (256, 4, 1, false),
            (65536, 64, 1, false),
        ] {
            let (mut openers, memory) = (Writers::default(), Bytes::from_mib(memory_mib));
            openers.gives(at(0), one, Bytes(Bytes::from_mib(mib).0 + more));
            assert_eq!(openers.may_record(at(0), one, memory), may_record, "{memory_mib}");
            let later = at(0) + RECORDED.time_for(Bytes::from_mib(1));
            assert!(openers.may_record(later, one, memory));
        }
        assert!(!Writers::default().may_record(at(0), one, LARGE), "no writer gave anything");
    }

    /// After ten seconds it is another writer, of which nothing is known.
    #[test]
    fn a_writer_that_has_given_nothing_for_long_comes_anew() {
        for (pause, is_anew) in [(9_999, false), (10_000, true)] {
            let (mut openers, one) = (Writers::default(), Opener::process(1));
            openers.gives(at(0), one, Bytes::from_kib(4));
            let idled = openers.gives(at(pause), one, Bytes::from_kib(4));
            assert_eq!(idled.is_none(), is_anew);
        }
    }
}
