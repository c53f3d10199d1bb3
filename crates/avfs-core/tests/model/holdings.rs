//! Memory: what each stream holds is its window and one request, whoever else comes, goes or jumps.

use avfs_core::config::Config;
use avfs_core::core::Holding;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::Geometry;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, Timing};
use proptest::prelude::*;
use rtsched::StreamId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use units::{Bitrate, Bytes, Duration, Ino, Instant};

const MIB: u64 = 1 << 20;
/// What is set aside for the block that is played, beside the terms' buffer.
const BLOCK: u64 = 8 * MIB;
const LONGEST_CLIP_MIB: u64 = 64;
/// Of many clips each is as short as it can be and still be read ahead of.
const SHORTEST_CLIP_MIB: u64 = 24;
const ALL_CLIPS_MIB: u64 = 1024;

/// A device that does one command after the other: 0.2 ms, and so much.
#[derive(Debug)]
struct Line {
    rate: Bitrate,
    commands: VecDeque<(Instant, u64)>,
    free: Instant,
}

impl Timing for Line {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let time = Duration::from_micros(200) + self.rate.time_for(command.length);
        self.free = self.free.max(now) + time;
        self.commands.push_back((self.free, number));
    }

    fn next_event(&self) -> Option<Instant> {
        self.commands.front().map(|&(at, _)| at)
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        while let Some((_, number)) = self.commands.pop_front_if(|(at, _)| *at <= now) {
            completed.push(number);
        }
    }
}

/// What a client does, 1 MiB at a time.
#[derive(Clone, Debug)]
struct Client {
    records: bool,
    megabits: u64,
    /// Waits so many of its own periods before it begins.
    after: u64,
    /// After so many MiB it goes elsewhere, if it plays.
    jumps_after: u64,
}

impl Client {
    fn name(&self, number: usize) -> String {
        format!("{number}.{}.mov", self.megabits)
    }
}

fn client() -> impl Strategy<Value = Client> {
    let rates = prop::sample::select(vec![25, 100, 200]);
    (any::<bool>(), rates, 0u64..8, 5u64..60).prop_map(|(records, megabits, after, jumps_after)| Client {
        records,
        megabits,
        after,
        jumps_after,
    })
}

fn config(device: &str) -> Config {
    let rate =
        |megabits| format!("[[stream]]\npath = \"*.{megabits}.mov\"\nbitrate = \"{megabits} Mbit/s\"\n");
    Config::parse(&[device, &[25, 100, 200].map(rate).concat()].concat()).unwrap()
}

fn clip_mib(clients: usize) -> u64 {
    (ALL_CLIPS_MIB / clients as u64).clamp(SHORTEST_CLIP_MIB, LONGEST_CLIP_MIB)
}

/// A volume with the players' clips, of which nothing is in memory.
fn mounted(config: Config, memory: Bytes, clients: &[Client]) -> SimVolume {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let mut volume = SimVolume::mount(formatted(Bytes::from_mib(8192)), &pool, config.clone(), 5).unwrap();
    for (number, client) in clients.iter().enumerate().filter(|(_, client)| !client.records) {
        let (_, handle) = volume.create(Ino::ROOT, client.name(number).as_bytes()).unwrap();
        for mebibyte in 0..clip_mib(clients.len()) {
            volume.write(handle, mebibyte * MIB, &[0; MIB as usize]).unwrap();
        }
        volume.with(|core, now| core.release(now, handle));
    }
    on_line(volume.unmount().unwrap(), LINE, memory, config)
}

/// 1 GB/s.
pub(crate) const LINE: Bitrate = Bitrate(8_000_000_000);

/// What is on a disk that takes its time as a [`Line`], with so much memory.
pub(crate) fn on_line(disk: Arc<SimDisk>, rate: Bitrate, memory: Bytes, config: Config) -> SimVolume {
    let block = Bytes(4096);
    let geometry =
        Geometry { logical_block: block, physical_block: block, optimal_io: Bytes::ZERO, rotational: false };
    let pool = Pool::new(memory, false).unwrap();
    let line = Line { rate, commands: VecDeque::new(), free: Instant::ZERO };
    SimVolume::mount_timed(disk, &pool, config, geometry, Box::new(line)).unwrap()
}

/// A player is promised something as it begins, unless it is refused.
const BEGINS: Duration = Duration::from_secs(1);

/// What a stream may hold. When others come it may become less, and so it may when it is promised what it had been refused: what
/// was read until then counts until it has been played.
struct Allowed {
    since: Instant,
    bytes: Bytes,
    until: Instant,
    is_promised: bool,
}

impl Allowed {
    fn new(since: Instant) -> Self {
        Self { since, bytes: Bytes::ZERO, until: since, is_promised: false }
    }

    fn note(&mut self, now: Instant, bytes: Bytes, is_promised: bool, rate: Bitrate) {
        // What everybody may have is nothing to who is promised less before it has read.
        let begins = is_promised && !self.is_promised && now < self.since + BEGINS;
        self.is_promised = is_promised;
        if bytes >= self.bytes || now >= self.until || begins {
            self.bytes = bytes;
        }
        if bytes == self.bytes {
            self.until = now + rate.time_for(bytes) * 2;
        }
    }
}

struct Working {
    client: Client,
    number: usize,
    clip_mib: u64,
    open: Option<(Ino, HandleId)>,
    next: Instant,
    done: u64,
}

impl Working {
    fn step(&mut self, volume: &mut SimVolume) {
        let name = self.client.name(self.number);
        let (_, handle) = *self.open.get_or_insert_with(|| {
            if self.client.records {
                return volume.create(Ino::ROOT, name.as_bytes()).unwrap();
            }
            let ino = volume.with(|core, _| core.lookup(Ino::ROOT, name.as_bytes())).unwrap().attributes.ino;
            (ino, volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle)
        });
        if self.client.records {
            volume.write(handle, self.done * MIB, &[0; MIB as usize]).unwrap();
        } else {
            let place = (self.done + self.done / self.client.jumps_after * 33) % self.clip_mib;
            volume.read(handle, place * MIB, MIB as usize).unwrap();
        }
        self.done += 1;
        self.next += Bitrate::from_megabits(self.client.megabits).time_for(Bytes(MIB));
    }
}

fn check(
    now: Instant,
    holdings: &BTreeMap<StreamId, Holding>,
    rates: &BTreeMap<u64, Bitrate>,
    allowed: &mut BTreeMap<StreamId, Allowed>,
) -> Result<(), TestCaseError> {
    for (&stream, holding) in holdings {
        let (Some(bytes), Some(&rate)) = (holding.allowed(), rates.get(&(stream.0 >> 1))) else { continue };
        let may = allowed.entry(stream).or_insert_with(|| Allowed::new(now));
        may.note(now, bytes, holding.is_promised, rate);
        let held = holding.for_later();
        prop_assert!(held <= may.bytes, "at {now:?} {stream:?} may hold {}: {holding:?}", may.bytes);
    }
    Ok(())
}

/// Clients at work for some seconds: what each stream holds is within what it may, and all of it is in the memory. Gives back how
/// many of them were promised something at once.
fn work(config: Config, clients: Vec<Client>, memory: Bytes) -> Result<usize, TestCaseError> {
    let mut volume = mounted(config, memory, &clients);
    let clip_mib = clip_mib(clients.len());
    let begin = volume.clock();
    let period = |client: &Client| Bitrate::from_megabits(client.megabits).time_for(Bytes(MIB));
    let mut working: Vec<Working> = clients
        .into_iter()
        .enumerate()
        .map(|(number, client)| {
            let next = begin + period(&client) * client.after as u32;
            Working { client, number, clip_mib, open: None, next, done: 0 }
        })
        .collect();
    let (mut rates, mut allowed, mut most_promised) = (BTreeMap::new(), BTreeMap::new(), 0);
    while volume.clock() < begin + Duration::from_secs(5) {
        let first = working.iter_mut().min_by_key(|one| one.next).unwrap();
        volume.pass(first.next.saturating_since(volume.clock()));
        first.step(&mut volume);
        let (ino, _) = first.open.unwrap();
        rates.insert(ino.0, Bitrate::from_megabits(first.client.megabits));
        let holdings = volume.core().holdings();
        check(volume.clock(), &holdings, &rates, &mut allowed)?;
        let together: u64 = holdings.values().map(|holding| holding.held().0).sum();
        prop_assert!(together <= memory.0, "{together} of {memory}");
        let buffers = volume.streams().into_iter().map(|stream| stream.buffer_bytes);
        let promised: u64 = buffers.filter(|buffer| *buffer > 0).map(|buffer| buffer + BLOCK).sum();
        prop_assert!(promised <= memory.0 / 2, "{promised} of {memory} are promised");
        most_promised = most_promised.max(holdings.values().filter(|holding| holding.is_promised).count());
    }
    for (_, handle) in working.into_iter().filter_map(|one| one.open) {
        volume.with(|core, now| core.release(now, handle));
    }
    volume.pass(Duration::from_secs(10));
    prop_assert_eq!(volume.core().holdings(), BTreeMap::new());
    volume.core().audit().map_err(TestCaseError::fail)?;
    Ok(most_promised)
}

/// Players that begin together asked for 24 MiB each before the scheduler had said that there is memory for a third of it.
#[test]
fn a_player_that_begins_reads_no_further_ahead_than_is_promised() {
    let client = |number: u64| player(25, number % 4, 60);
    work(config(""), (0..14).map(client).collect(), Bytes::from_mib(256)).unwrap();
}

fn player(megabits: u64, after: u64, jumps_after: u64) -> Client {
    Client { records: false, megabits, after, jumps_after }
}

/// A player without a reservation came to where he had been four seconds before, while all that he may have lay ahead of where he
/// had just been: as he might read on at both places he was read ahead of at both, and held 38 MiB of 32.
#[test]
fn a_player_that_comes_back_without_a_promise_holds_no_more_than_at_one_place() {
    let clients = vec![
        player(100, 0, 5),
        player(100, 0, 38),
        player(200, 6, 15),
        player(200, 4, 8),
        player(100, 0, 58),
    ];
    work(config(""), clients, Bytes::from_mib(96)).unwrap();
}

/// A player whose file was in memory asked for nothing any more, and kept the promise of long requests though what he would have
/// had less of was promised to others.
#[test]
fn a_client_that_asks_for_nothing_holds_no_promise_that_others_got() {
    let recorder = Client { records: true, ..player(25, 7, 5) };
    let clients =
        vec![player(200, 0, 17), player(200, 2, 47), player(100, 0, 13), player(25, 4, 6), recorder];
    work(config(""), clients, Bytes::from_mib(160)).unwrap();
}

/// As a [`Line`] is.
const DEVICE: &str = "[device]\nread_access = \"0.2 ms\"\nread_rate = \"1 GB/s\"\nwrite_access = \"0.2 ms\"\n\
                      write_rate = \"1 GB/s\"\nflush = \"0.2 ms\"\n";

/// On a device that carries all of them, with memory for all of them; and on one that is taken to carry fewer than there are, where
/// what is read ahead of those for whom there is no room has a bound of its own.
#[test]
fn one_to_two_hundred_streams_hold_their_windows_and_a_request_each() {
    let promised = |records: bool, megabits: u64, count: u64, device: &str, memory_mib: u64| {
        let client = |number: u64| Client { records, megabits, after: number % 4, jumps_after: 60 };
        work(config(device), (0..count).map(client).collect(), Bytes::from_mib(memory_mib)).unwrap() as u64
    };
    for records in [false, true] {
        for (count, megabits, memory_mib) in [(1, 100, 512), (13, 100, 1024), (50, 25, 2048), (200, 25, 6144)]
        {
            let promised = promised(records, megabits, count, DEVICE, memory_mib);
            assert_eq!(promised, count, "records: {records}");
        }
        let some = promised(records, 25, 200, "", 1024);
        assert!((10..190).contains(&some), "{some}, records: {records}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_stream_holds_its_window_and_one_request(
        clients in prop::collection::vec(client(), 1..=6),
        memory in prop::sample::select(vec![96, 160, 1024]),
    ) {
        work(config(""), clients, Bytes::from_mib(memory))?;
    }
}
