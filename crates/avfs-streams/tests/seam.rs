//! The seam, from outside: events go in, questions are answered, wishes and declarations come out.

use avfs_streams::host::Wish;
use avfs_streams::{Advice, Facts, HandleId, OpenFiles, Policy, Rate, Streams};
use proptest::prelude::*;
use rtsched::{Class, Confidence, Direction, StreamId, StreamSpec, Terms};
use std::ops::Range;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant};

const MIB: u64 = 1 << 20;
const FILE: Ino = Ino(7);
const CLIENT: HandleId = HandleId(1);
const RATE: Bitrate = Bitrate::from_megabits(100);

/// A host with one long file, in one piece, that one client reads.
struct Host;

impl Facts for Host {
    fn size_of(&self, _: Ino) -> u64 {
        1 << 34
    }

    fn is_used(&self, ino: Ino) -> bool {
        ino == FILE
    }

    fn open_files(&self, _: Ino) -> OpenFiles {
        OpenFiles { readers: 1, writers: 0 }
    }

    fn place_of(&self, _: Ino) -> Option<DeviceOffset> {
        Some(DeviceOffset(1 << 40))
    }

    fn pieces_of(&self, _: Ino, each: &mut dyn FnMut(Range<u64>)) {
        each(0..1 << 34);
    }

    fn piece_end(&self, _: Ino, _: u64, size: u64) -> u64 {
        size
    }

    fn name_of(&self, _: Ino) -> Option<(Ino, &[u8])> {
        Some((Ino::ROOT, b"clip.mov"))
    }

    fn file_named(&self, _: Ino, _: &[u8]) -> Option<Option<Ino>> {
        None
    }
}

type Told = (Vec<(StreamId, Option<(StreamSpec, Confidence)>)>, Vec<Wish>);

/// One client, and what it has made the crate say so far.
struct Client {
    streams: Streams<Vec<u64>, ()>,
    now: Instant,
    told: Told,
}

impl Client {
    fn new(advice: Advice, rate: Option<Bitrate>) -> Self {
        let mut streams = Streams::new(Bytes::from_mib(1024), Duration::from_millis(2500), advice);
        streams.opened(CLIENT, FILE, Direction::Read);
        streams.file_mut(FILE).policy = Policy { rate: rate.map(Rate::Bitrate), ..Policy::default() };
        Self { streams, now: Instant::ZERO + Duration::from_secs(1), told: Told::default() }
    }

    /// Asks for a MiB, has it, and asks for nothing for so long.
    fn read(&mut self, mebibyte: u64, rest: Duration) {
        let (begin, end) = (mebibyte * MIB, (mebibyte + 1) * MIB);
        self.streams.read_answered(self.now, FILE, CLIENT, Bytes(MIB), false);
        if let Some(requested) = self.streams.note_request(&Host, self.now, CLIENT, begin, end) {
            self.streams.settle_request(self.now, CLIENT, requested, false);
        }
        self.streams.observe(self.now, FILE, CLIENT, Bytes(MIB));
        self.told.0.extend(self.streams.take_declared());
        self.told.1.extend(std::iter::from_fn(|| self.streams.next_wish()));
        self.now += rest;
    }

    fn need(&self, mebibyte: u64) -> avfs_streams::RequestQos {
        self.streams.need(&Host, self.now, FILE, CLIENT, mebibyte * MIB, Bytes::ZERO)
    }
}

/// The third request that goes on makes a player: its container is asked, and its stream is declared with the rate that is known.
#[test]
fn a_player_is_asked_for_its_rate_and_declared() {
    let frame = RATE.time_for(Bytes(MIB));
    let mut client = Client::new(Advice::Streams, Some(RATE));
    client.read(0, frame);
    client.read(1, frame);
    assert_eq!(client.told, Told::default(), "two requests are no player");
    client.read(2, frame);
    let (declared, wishes) = &client.told;
    let [(stream, Some((spec, Confidence::Guessed | Confidence::Known)))] = declared[..] else {
        panic!("{declared:?}")
    };
    assert_eq!(
        (spec.rate, spec.direction, wishes.as_slice()),
        (RATE, Direction::Read, &[Wish::Probe(FILE)][..])
    );
    let need = client.need(3);
    assert_eq!((need.class, need.stream), (Class::RealTime, Some(stream)));
}

/// First half a request, then as much as is ahead already, from where the client is, each with a deadline; no more than its terms allow.
#[test]
fn what_is_ahead_of_a_promised_player_comes_in_requests_with_deadlines() {
    let frame = RATE.time_for(Bytes(MIB));
    let mut client = Client::new(Advice::Streams, Some(RATE));
    (0..3).for_each(|mebibyte| client.read(mebibyte, frame));
    let ahead_of = |client: &Client| client.streams.ahead_of(&Host, client.now, CLIENT);
    assert!(ahead_of(&client).is_none(), "the admission has not answered");
    let (stream, spec) = client.told.0[0];
    client.streams.decided(stream);
    let terms = Terms {
        request: Bytes::from_mib(32),
        period: RATE.time_for(Bytes::from_mib(32)),
        deadline: RATE.time_for(Bytes::from_mib(32)),
        since: Instant::ZERO,
    };
    assert!(spec.is_some());
    client.streams.file_mut(FILE).set_terms(Direction::Read, Some(terms));
    let mut ahead = ahead_of(&client).unwrap();
    let (mut at, mut deadline) = (3 * MIB, None);
    while let Some(next) = client.streams.next_ahead(&Host, client.now, CLIENT, &ahead) {
        assert_eq!((next.range.start, next.is_promised, next.need.class), (at, true, Class::RealTime));
        assert!(
            next.range.end - at <= if deadline.is_none() { 16 * MIB } else { 32 * MIB }
                && next.need.deadline > deadline
        );
        client.streams.asked_ahead(client.now, CLIENT, &mut ahead, &next.range);
        (at, deadline) = (next.range.end, next.need.deadline);
    }
    client.streams.ended_ahead(CLIENT, &ahead);
    let buffer = terms.buffer().0;
    assert!((35 * MIB..=3 * MIB + buffer).contains(&at), "{}", at / MIB);
}

/// A client that takes 8 times the rate, and never rests, copies: its stream ends, and what was asked for on its account is taken back.
#[test]
fn a_copy_ends_its_stream() {
    let quick = RATE.time_for(Bytes(MIB)) / 8;
    let mut client = Client::new(Advice::Streams, Some(RATE));
    (0..400).for_each(|mebibyte| client.read(mebibyte, quick));
    let (declared, wishes) = &client.told;
    let (stream, last) = declared.last().unwrap();
    assert!(last.is_none(), "{declared:?}");
    assert_eq!(wishes.as_slice(), [Wish::Probe(FILE), Wish::Cancel(*stream)]);
    assert_eq!((client.need(400).class, client.need(400).stream), (Class::BestEffort, None));
}

/// Where no rate is said, the client's own clock tells it, a twentieth higher than it was seen.
#[test]
fn a_rate_is_observed() {
    let frame = RATE.time_for(Bytes(MIB));
    let mut client = Client::new(Advice::Streams, None);
    (0..120).for_each(|mebibyte| client.read(mebibyte, frame));
    let observed = client.told.1.iter().find_map(|wish| match wish {
        Wish::Observed(FILE, rate) => Some(rate.0),
        _ => None,
    });
    let (low, high) = (RATE.0 / 100 * 103, RATE.0 / 100 * 107);
    assert!(observed.is_some_and(|rate| (low..high).contains(&rate)), "{:?}", client.told.1);
}

fn history() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![8 => Just(None), 1 => (0u64..16_000).prop_map(Some)];
    let rest = prop_oneof![Just(1), Just(20), Just(84), 0u64..3000];
    prop::collection::vec((step, rest), 1..200).prop_map(|all| {
        let mut at = 0;
        let place = |(jump, rest): (Option<u64>, u64)| {
            at = jump.unwrap_or(at + 1);
            (at, rest)
        };
        all.into_iter().map(place).collect()
    })
}

proptest! {
    /// Whatever a client does: the same events make the same wishes, and without streams there are none.
    #[test]
    fn the_same_events_make_the_same_wishes_and_null_streams_none(events in history(), is_known: bool) {
        let after = |advice| {
            let mut client = Client::new(advice, is_known.then_some(RATE));
            events.iter().for_each(|&(mebibyte, rest)| client.read(mebibyte, Duration::from_millis(rest)));
            let need = client.need(3);
            (client.told, need.class, need.stream, need.deadline)
        };
        prop_assert_eq!(after(Advice::Streams), after(Advice::Streams));
        let (told, class, stream, deadline) = after(Advice::NullStreams);
        prop_assert_eq!(told, Told::default());
        prop_assert_eq!((class, stream, deadline), (Class::BestEffort, None, None));
    }
}
