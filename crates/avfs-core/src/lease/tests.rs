//! Hosts on one device, with a pause at any step: each has a lease, and writes data while it holds.

use super::*;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};

const UUID: [u8; 16] = [7; 16];

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn name(number: u8) -> MmpBlock {
    MmpBlock {
        uuid: UUID,
        boot_id: [number; 16],
        host: format!("nas-{number}"),
        holder: [number; 16],
        process: number.into(),
        ..MmpBlock::default()
    }
}

fn lease(number: u8) -> Lease {
    Lease::new(Watch::new(name(number), Some(UUID)))
}

/// Reads `found` and takes what stands there as free.
fn taken(lease: &mut Lease, from: Instant) -> Instant {
    let free = MmpBlock { uuid: UUID, ..MmpBlock::default() };
    lease.read(from, from + ms(1), Some(&free));
    assert_eq!(lease.step(from), Step::Reserve { against: None });
    lease.reserved(false);
    let Step::Write { block, until } = lease.step(from) else { panic!("{lease:?}") };
    assert_eq!(until, from + PROMPT);
    lease.written(from + ms(1), from + ms(2));
    assert_eq!(lease.holds_until(), Instant::ZERO, "the name has only just been written");
    let settled = from + ms(2) + SETTLING;
    assert_eq!(lease.step(from + ms(2)), Step::Wait(settled));
    lease.read(settled, settled + ms(1), Some(&block));
    assert_eq!(lease.holds_until(), from + ms(1) + HELD);
    settled + ms(1)
}

#[test]
fn a_holder_renews_and_reads_back() {
    let mut lease = lease(1);
    let mut now = taken(&mut lease, at(1000));
    for round in 2..100 {
        let Step::Wait(until) = lease.step(now) else { panic!("{lease:?}") };
        let mut ours = name(1);
        ours.sequence = round - 1;
        lease.read(until, until + ms(1), Some(&ours));
        let Step::Write { block, until: limit } = lease.step(until + ms(1)) else { panic!("{lease:?}") };
        assert_eq!(block.sequence, round);
        assert_eq!(limit, lease.holds_until());
        lease.written(until + ms(2), until + ms(3));
        now = until + ms(3);
        assert!(lease.holds_until() > now + ms(3000), "not read back yet, but the one before holds");
    }
}

/// Its writes went to the device, its fsyncs and its unmount succeeded, and what the successor had written was written over.
#[test]
fn a_holder_that_finds_another_name_stops_for_good() {
    for found in [
        Some(MmpBlock { sequence: 1, ..name(2) }),
        None,
        Some(MmpBlock { uuid: UUID, ..MmpBlock::default() }),
    ] {
        let mut lease = lease(1);
        let now = taken(&mut lease, at(1000)) + ms(12_000);
        assert!(lease.holds_until() < now, "the time has run out before anything is read");
        lease.read(now, now + ms(1), found.as_ref());
        assert!(matches!(lease.over(), Some(Over::Taken(_) | Over::Overwritten)));
        assert_eq!((lease.step(now), lease.holds_until()), (Step::Over, Instant::ZERO));
        lease.read(now, now + ms(1), Some(&MmpBlock { sequence: 1, ..name(1) }));
        assert_eq!(lease.release(now, now + ms(1), found.as_ref()), None, "it writes nothing, not even this");
    }
}

/// A device that answers nothing for a minute is no reason to give up what nobody else has taken.
#[test]
fn a_holder_that_halted_and_finds_its_own_name_takes_the_volume_again() {
    let mut lease = lease(1);
    let now = taken(&mut lease, at(1000)) + ms(60_000);
    let ours = MmpBlock { sequence: 1, ..name(1) };
    lease.read(now, now + ms(1), Some(&ours));
    assert_eq!((lease.step(now), lease.holds_until()), (Step::Read, Instant::ZERO));
    lease.read(now + ms(1), now + ms(2), Some(&ours));
    let Step::Write { until, .. } = lease.step(now) else { panic!("{lease:?}") };
    assert_eq!(until, now + ms(1) + PROMPT);
    let ours = MmpBlock { sequence: 2, ..ours };
    lease.written(now + ms(3), now + ms(4));
    let settled = now + ms(4) + SETTLING;
    lease.read(settled, settled + ms(1), Some(&ours));
    assert_eq!(lease.holds_until(), now + ms(3) + HELD);
}

/// The renewal may have been written over the name of another that has come and gone meanwhile.
#[test]
fn a_holder_that_halted_in_a_renewal_does_not_go_on() {
    let mut lease = lease(1);
    let now = taken(&mut lease, at(1000)) + RENEWAL;
    lease.read(now, now + ms(1), Some(&MmpBlock { sequence: 1, ..name(1) }));
    lease.written(now + ms(2), now + ms(12_000));
    assert_eq!(lease.over(), Some(&Over::Halted));
}

/// A host that halted between finding the volume free and writing its name was not seen by the one that had taken it meanwhile.
#[test]
fn a_name_that_is_written_late_is_watched_before_it_counts() {
    let mut lease = lease(1);
    let free = MmpBlock { uuid: UUID, ..MmpBlock::default() };
    lease.read(at(0), at(1), Some(&free));
    lease.reserved(false);
    lease.written(at(2), at(500));
    let ours = MmpBlock { sequence: 1, ..name(1) };
    for look in (1000..11_000).step_by(500) {
        lease.read(at(look), at(look + 1), Some(&ours));
        assert!(matches!(lease.step(at(look)), Step::Wait(_)), "{lease:?}");
        assert_eq!(lease.holds_until(), Instant::ZERO);
    }
    let mut other = lease.clone();
    other.read(at(11_000), at(11_001), Some(&MmpBlock { sequence: 9, ..name(2) }));
    assert!(matches!(other.over(), Some(Over::InUse(_))));
    lease.read(at(11_500), at(11_501), Some(&ours));
    assert!(matches!(lease.step(at(11_501)), Step::Write { .. }));
}

/// Asks a device that answers at once, from `time` on; gives back when the lease holds the volume. Milliseconds; its clock is fast by so
/// many tenths.
fn holds_at(lease: &mut Lease, found: &mut MmpBlock, mut time: u64, tenths: u64) -> u64 {
    loop {
        let now = Instant::from_nanos(time * 100_000 * (10 + tenths));
        match lease.step(now) {
            Step::Read => lease.read(now, now, Some(found)),
            Step::Reserve { .. } => lease.reserved(false),
            Step::Write { block, .. } => {
                *found = *block;
                lease.written(now, now);
            }
            Step::Wait(_) => time += 1,
            Step::Exclude | Step::Over => panic!("{lease:?}"),
        }
        if lease.holds_until() > now {
            return time;
        }
    }
}

/// The worst that the format allows: the last command takes the whole margin, the holder renews no more, and the clock of the next one,
/// which has looked right after the last renewal, is fast by a tenth.
#[test]
pub(super) fn the_last_command_of_a_holder_arrives_before_another_has_the_volume() {
    let mut found = MmpBlock { uuid: UUID, ..MmpBlock::default() };
    let mut holder = lease(1);
    holds_at(&mut holder, &mut found, 1000, 0);
    let arrives = holder.holds_until() + MARGIN;
    let taken = holds_at(&mut lease(2), &mut found, 1000, 1);
    assert!(arrives <= at(taken), "it arrives at {arrives:?}, and another has the volume at {taken} ms");
}

/// Its host was switched off in the moment after it had given the device a command, and the cluster said so at once.
#[test]
pub(super) fn the_last_command_of_a_holder_that_was_fenced_arrives_before_another_has_the_volume() {
    let mut found = MmpBlock { uuid: UUID, ..MmpBlock::default() };
    let off = holds_at(&mut lease(1), &mut found, 1000, 0);
    let arrives = at(off) + MARGIN;
    let mut next = Lease::new(Watch::new(name(2), Some(UUID)).fenced(Some(name(1).holder)));
    // Its clock is fast by a tenth.
    let taken = holds_at(&mut next, &mut found, off, 1);
    assert!(arrives <= at(taken), "it arrives at {arrives:?}, and another has the volume at {taken} ms");
    assert!(taken - off < 3000, "it was watched for {} ms", taken - off);
}

/// A cluster that takes a living holder for dead, or means another one, takes no volume away.
#[test]
fn that_a_holder_was_fenced_says_nothing_of_another_nor_of_one_that_renews() {
    let holder = |sequence| MmpBlock { sequence, ..name(1) };
    let watch = |fenced: u8| Watch::new(name(2), Some(UUID)).fenced(Some([fenced; 16]));
    let mut lives = watch(1);
    assert_eq!(lives.saw(at(0), at(1), Some(&holder(3))), Verdict::Wait(at(501)));
    assert_eq!(lives.clone().saw(at(2202), at(2203), Some(&holder(4))), Verdict::InUse(holder(4)));
    assert_eq!(lives.saw(at(2201), at(2203), Some(&holder(3))), Verdict::Free);
    let mut another = watch(3);
    another.saw(at(0), at(1), Some(&holder(3)));
    assert_eq!(another.saw(at(10_900), at(10_901), Some(&holder(3))), Verdict::Wait(at(11_001)));
    // Blocks that were written before holders had a name.
    let old = MmpBlock { holder: [0; 16], ..holder(3) };
    let mut nameless = watch(0);
    nameless.saw(at(0), at(1), Some(&old));
    assert_eq!(nameless.saw(at(10_900), at(10_901), Some(&old)), Verdict::Wait(at(11_001)));
}

/// The same host and boot were taken for the dead predecessor, whatever name the device had: both mounted the volume.
#[test]
fn only_the_same_lock_of_the_same_boot_shows_that_a_holder_is_dead() {
    let lock = |device| LockId { device, inode: 0 };
    let holder = MmpBlock { sequence: 5, lock: lock(1), ..name(1) };
    let sees = |me: MmpBlock, found: &MmpBlock| {
        Watch::new(me, Some(UUID)).saw(at(0), at(1), Some(found)) == Verdict::Free
    };
    let here = MmpBlock { boot_id: [1; 16], ..name(2) };
    assert!(sees(MmpBlock { lock: lock(1), ..here.clone() }, &holder));
    assert!(!sees(MmpBlock { lock: lock(2), ..here.clone() }, &holder), "through another device node");
    assert!(!sees(MmpBlock { lock: lock(1), boot_id: [3; 16], ..here.clone() }, &holder), "another boot");
    assert!(!sees(here.clone(), &MmpBlock { lock: lock(0), ..holder.clone() }), "no lock");
    // Blocks that were written before holders had a name.
    let old =
        MmpBlock { uuid: UUID, sequence: 5, boot_id: [1; 16], host: "nas-1".into(), ..MmpBlock::default() };
    assert!(!sees(MmpBlock { lock: lock(1), ..here.clone() }, &old));
    assert!(sees(here.clone(), &MmpBlock { sequence: 0, ..old }));
    let nowhere = MmpBlock { boot_id: [0; 16], ..holder.clone() };
    assert!(
        !sees(MmpBlock { lock: lock(1), boot_id: [0; 16], ..here }, &nowhere),
        "the kernel does not tell the boot"
    );
}

#[test]
fn who_renews_is_found_out_by_the_next_renewal_and_who_does_not_after_a_watch() {
    let mut watch = Watch::new(name(2), Some(UUID));
    let holder = |sequence| MmpBlock { sequence, ..name(1) };
    assert_eq!(watch.saw(at(0), at(1), Some(&holder(3))), Verdict::Wait(at(501)));
    assert_eq!(watch.clone().saw(at(500), at(501), Some(&holder(4))), Verdict::InUse(holder(4)));
    let given_back = MmpBlock { uuid: UUID, ..MmpBlock::default() };
    assert_eq!(watch.clone().saw(at(500), at(501), Some(&given_back)), Verdict::Free);
    assert_eq!(watch.saw(at(11_000), at(11_002), Some(&holder(3))), Verdict::Wait(at(11_001)));
    assert_eq!(watch.saw(at(11_001), at(11_002), Some(&holder(3))), Verdict::Free);
    // A damaged block says nothing: it is watched, too.
    let mut watch = Watch::new(name(2), Some(UUID));
    assert_eq!(watch.saw(at(0), at(1), None), Verdict::Wait(at(501)));
    assert_eq!(watch.saw(at(11_001), at(11_002), None), Verdict::Free);
    assert_eq!(Watch::new(name(2), None).saw(at(0), at(1), None), Verdict::Free);
}

#[test]
fn a_device_that_fails_ends_the_lease_when_it_has_run_out() {
    let mut lease = lease(1);
    let now = taken(&mut lease, at(1000)) + RENEWAL;
    lease.failed(now, now + ms(1), IoError::PastEnd);
    lease.failed(now + RETRY, now + RETRY, IoError::PastEnd);
    assert!(lease.over().is_none() && lease.holds_until() > now);
    let late = now + HELD;
    lease.failed(late, late, IoError::PastEnd);
    assert_eq!(lease.over(), Some(&Over::Device(IoError::PastEnd)));
}

// The simulation.

/// What a world is like.
#[derive(Clone, Debug)]
struct Weather {
    seed: u64,
    hosts: usize,
    /// Of a thousand steps, how many are followed by a pause...
    pauses: u32,
    /// ...of at most so many milliseconds.
    pause: u64,
    /// Of a thousand steps, at how many the process is killed, and another one started.
    deaths: u32,
    /// A command reaches the device at most so many milliseconds after its submission.
    latency: u64,
    /// The device has reservations.
    reserves: bool,
}

/// A register and whose data came last, with commands on their way.
struct World {
    random: SmallRng,
    weather: Weather,
    block: Option<MmpBlock>,
    /// By when they arrive.
    arriving: BTreeMap<(u64, u64), Arrival>,
    next: u64,
    /// Keys that are registered, and whether only they may write.
    registered: Vec<u64>,
    /// Who was the last to hold it, and how often it changed.
    holder: Option<[u8; 16]>,
    changes: u32,
    data: u64,
    refused: u64,
}

struct Arrival {
    host: usize,
    holder: [u8; 16],
    what: Command,
}

enum Command {
    Read,
    Write(MmpBlock),
    Data,
}

enum Answer {
    Read(Option<MmpBlock>),
    Written,
    Refused,
}

struct Host {
    lease: Lease,
    me: MmpBlock,
    /// Runs again then.
    awake: u64,
    /// Asked of the device then.
    asked: Option<u64>,
    answer: Option<Answer>,
    /// Thousandths by which its clock is fast.
    drift: i64,
    held: bool,
    /// It knows what the volume was like then.
    has_held: bool,
    lives: u64,
    next_data: u64,
}

impl Host {
    fn clock(&self, time: u64) -> Instant {
        let drift = time as i64 * self.drift / 1000;
        at((time as i64 + drift) as u64)
    }
}

fn key(holder: [u8; 16]) -> u64 {
    u64::from_le_bytes(holder[..8].try_into().expect("eight bytes"))
}

impl World {
    fn new(weather: Weather) -> Self {
        Self {
            random: SmallRng::seed_from_u64(weather.seed),
            block: Some(MmpBlock { uuid: UUID, ..MmpBlock::default() }),
            weather,
            arriving: BTreeMap::new(),
            next: 0,
            registered: Vec::new(),
            holder: None,
            changes: 0,
            data: 0,
            refused: 0,
        }
    }

    fn send(&mut self, time: u64, arrival: Arrival) {
        let longest = if self.random.random_ratio(1, 20) { self.weather.latency } else { 20 };
        let arrives = time + self.random.random_range(0..=longest.min(self.weather.latency));
        self.next += 1;
        self.arriving.insert((arrives, self.next), arrival);
    }

    fn pause(&mut self) -> u64 {
        match self.random.random_ratio(self.weather.pauses, 1000) {
            true => self.random.random_range(0..=self.weather.pause),
            false => 0,
        }
    }

    /// A command arrives at the device.
    fn arrive(&mut self, time: u64, arrival: Arrival, hosts: &mut [Host]) -> Result<(), String> {
        let allowed = self.registered.is_empty() || self.registered.contains(&key(arrival.holder));
        let answer = match arrival.what {
            Command::Read => Answer::Read(self.block.clone()),
            Command::Write(_) if !allowed => {
                self.refused += 1;
                Answer::Refused
            }
            Command::Data if !allowed => {
                self.refused += 1;
                return Ok(());
            }
            Command::Write(block) => {
                self.block = Some(block);
                Answer::Written
            }
            Command::Data => {
                self.data += 1;
                if self.holder != Some(arrival.holder) {
                    return Err(format!(
                        "at {time} ms {:?} writes, and {:?} has it",
                        arrival.holder, self.holder
                    ));
                }
                return Ok(());
            }
        };
        let host = &mut hosts[arrival.host];
        if host.me.holder == arrival.holder {
            host.answer = Some(answer);
            host.awake = host.awake.max(time + self.random.random_range(0..2)) + self.pause();
        }
        Ok(())
    }

    /// Notes whether the host holds the volume now.
    fn holds(&mut self, time: u64, host: &mut Host) -> Result<(), String> {
        let holds = host.lease.holds_until() > host.clock(time);
        if holds && !host.held {
            // What it knows of the volume must be what the last one left.
            if host.has_held && self.holder != Some(host.me.holder) {
                return Err(format!("at {time} ms {:?} goes on after {:?}", host.me.holder, self.holder));
            }
            if self.holder != Some(host.me.holder) {
                self.changes += 1;
            }
            self.holder = Some(host.me.holder);
            host.has_held = true;
        }
        host.held = holds;
        Ok(())
    }

    fn run(&mut self, time: u64, index: usize, hosts: &mut [Host]) -> Result<(), String> {
        let (pause, dies) = (self.pause(), self.random.random_ratio(self.weather.deaths, 1000));
        let host = &mut hosts[index];
        host.awake = time + 1 + pause;
        if dies || host.lease.over().is_some() && self.random.random_ratio(1, 2000) {
            let lives = host.lives + 1;
            *host = process(index, lives, host.drift, time + 1);
            return Ok(());
        }
        let now = host.clock(time);
        if let (Some(asked), Some(answer)) = (host.asked, host.answer.take()) {
            host.asked = None;
            let asked = host.clock(asked);
            match answer {
                Answer::Read(block) => host.lease.read(asked, now, block.as_ref()),
                Answer::Written => host.lease.written(asked, now),
                Answer::Refused => host.lease.failed(asked, now, IoError::Fenced),
            }
            self.holds(time, host)?;
        }
        // The engine, which asks its gate before each command.
        if host.lease.holds_until() > now && time >= host.next_data {
            let holder = host.me.holder;
            host.next_data = time + 40;
            self.send(time, Arrival { host: index, holder, what: Command::Data });
        }
        let host = &mut hosts[index];
        if host.asked.is_some() {
            return Ok(());
        }
        let holder = host.me.holder;
        match host.lease.step(now) {
            Step::Read => {
                host.asked = Some(time);
                self.send(time, Arrival { host: index, holder, what: Command::Read });
            }
            Step::Reserve { against } => {
                host.lease.reserved(self.weather.reserves);
                if self.weather.reserves {
                    let mine = key(holder);
                    self.registered.retain(|&registered| {
                        Some(registered) != against.as_ref().map(|block| key(block.holder))
                    });
                    if !self.registered.contains(&mine) {
                        self.registered.push(mine);
                    }
                }
            }
            Step::Exclude => {
                let mine = key(holder);
                if self.registered.contains(&mine) {
                    self.registered.retain(|&registered| registered == mine);
                    host.lease.excluded();
                    self.holds(time, host)?;
                } else {
                    host.lease.failed(now, now, IoError::Fenced);
                }
            }
            Step::Write { block, until } if now < until => {
                host.asked = Some(time);
                self.send(time, Arrival { host: index, holder, what: Command::Write(*block) });
            }
            Step::Write { .. } => host.lease.not_written(),
            Step::Wait(_) | Step::Over => {}
        }
        Ok(())
    }
}

fn process(index: usize, lives: u64, drift: i64, time: u64) -> Host {
    let mut holder = [index as u8 + 1; 16];
    holder[..8].copy_from_slice(&(lives * 16 + index as u64 + 1).to_le_bytes());
    let me = MmpBlock { holder, ..name(index as u8 + 1) };
    Host {
        lease: Lease::new(Watch::new(me.clone(), Some(UUID))),
        me,
        awake: time,
        asked: None,
        answer: None,
        drift,
        held: false,
        has_held: false,
        lives: lives + 1,
        next_data: 0,
    }
}

/// Simulates so many milliseconds; gives back how often the holder changed, how much data was written, and how many writes the device
/// refused.
fn simulate(weather: Weather, length: u64) -> Result<(u32, u64, u64), String> {
    let mut world = World::new(weather.clone());
    let mut hosts: Vec<Host> = (0..weather.hosts)
        .map(|index| {
            let (drift, start) = (world.random.random_range(-20..=20), world.random.random_range(0..500));
            process(index, 0, drift, start)
        })
        .collect();
    for time in 0..length {
        let mut due = VecDeque::new();
        while let Some(entry) = world.arriving.first_entry().filter(|entry| entry.key().0 <= time) {
            due.push_back(entry.remove());
        }
        for arrival in due {
            world.arrive(time, arrival, &mut hosts)?;
        }
        for index in 0..hosts.len() {
            if hosts[index].awake <= time {
                world.run(time, index, &mut hosts)?;
            }
        }
    }
    Ok((world.changes, world.data, world.refused))
}

/// What is given to the kernel in time reaches the device in the margin.
fn weather() -> impl Strategy<Value = Weather> {
    (any::<u64>(), 2..4usize, 0..6u32, 0..40_000u64, 0..2u32, 0..2000u64).prop_map(
        |(seed, hosts, pauses, pause, deaths, latency)| Weather {
            seed,
            hosts,
            pauses,
            pause,
            deaths: if deaths == 0 { 0 } else { 1 },
            latency,
            reserves: false,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 50, ..ProptestConfig::default() })]

    /// Whatever halts, and wherever: after one host has the volume, no byte of another one reaches the device, and none goes on with
    /// what it knew before another had it.
    #[test]
    fn no_host_writes_over_its_successor(weather in weather()) {
        let outcome = simulate(weather, 120_000);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// Every second world is on a device with reservations, where commands are on their way for up to a minute.
pub(super) fn world(seed: u64) -> Result<(u32, u64, u64), String> {
    let mut random = SmallRng::seed_from_u64(seed);
    let reserves = seed.is_multiple_of(2);
    let weather = Weather {
        seed,
        hosts: random.random_range(2..4),
        pauses: random.random_range(0..6),
        pause: random.random_range(0..40_000),
        deaths: random.random_range(0..2),
        latency: random.random_range(0..if reserves { 60_000 } else { 2000 }),
        reserves,
    };
    simulate(weather.clone(), 240_000).map_err(|why| format!("{weather:?}: {why}"))
}

/// The worlds of the recipe `two-hosts`: `LEASE_WORLDS` of them from the seed `LEASE_SEED` on.
#[test]
fn no_byte_of_a_host_reaches_the_device_after_another_has_it() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (first, worlds) = (number("LEASE_SEED").unwrap_or(1), number("LEASE_WORLDS").unwrap_or(8));
    let (mut changes, mut data, mut refused) = (0, 0, 0);
    for seed in first..first + worlds {
        match world(seed) {
            Ok((changed, written, rejected)) => {
                (changes, data, refused) = (changes + changed, data + written, refused + rejected);
            }
            Err(why) => panic!("seed {seed}, {why}"),
        }
    }
    println!(
        "{worlds} worlds from seed {first}: {changes} changes of holder, {data} writes, {refused} refused by the device"
    );
    assert!(changes > 0 && data > 0);
}

/// Two hosts wanted a volume at the same time. The name of one came late, over that of the other, which already wrote; it watched its
/// own name, and took the volume. It knew nothing of the other, so the other's registration stayed, and its commands of half a minute
/// before reached the device.
#[test]
fn a_name_that_comes_late_over_a_holders_leaves_the_holder_no_registration() {
    let weather = Weather {
        seed: 1018110086,
        hosts: 3,
        pauses: 3,
        pause: 2307,
        deaths: 0,
        latency: 37462,
        reserves: true,
    };
    simulate(weather, 240_000).unwrap();
}

/// The simulation sees something: volumes change hands, and data are written.
#[test]
fn volumes_change_hands_in_the_simulation() {
    let (mut changes, mut data) = (0, 0);
    for seed in 0..8 {
        let weather =
            Weather { seed, hosts: 2, pauses: 1, pause: 30_000, deaths: 0, latency: 500, reserves: false };
        let (changed, written, _) = simulate(weather, 240_000).unwrap();
        changes += changed;
        data += written;
    }
    assert!(changes > 8 && data > 1000, "{changes} changes, {data} writes");
}

/// A lone host on a device that answers in a tenth of the margin never loses its lease.
#[test]
fn a_host_that_does_not_halt_holds_all_the_time() {
    let weather =
        Weather { seed: 3, hosts: 1, pauses: 0, pause: 0, deaths: 0, latency: 190, reserves: false };
    let (changes, data, _) = simulate(weather, 120_000).unwrap();
    assert_eq!(changes, 1);
    assert!(data > 2500, "{data} writes");
}
