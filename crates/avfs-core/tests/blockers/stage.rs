//! A volume whose device does as it is told, and players.

use avfs_core::config::Config;
use avfs_core::core::{Operation, Ticket};
use avfs_core::events::EventReport;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::Geometry;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, Timing};
use rtsched::Direction;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant};

const MIB: u64 = 1 << 20;
const RATE: Bitrate = Bitrate::from_megabits(100);
/// What the device is measured at: 20 ms, and then 160 MB/s.
const ACCESS: Duration = Duration::from_millis(20);
const TRANSFER: Bitrate = Bitrate(160 * 8_000_000);
const CONFIG: &str = "[scheduler]\nqueue_depth = 2\n\
    [device]\nread_access = \"20 ms\"\nread_rate = \"160 MB/s\"\nwrite_access = \"20 ms\"\nwrite_rate = \"160 MB/s\"\nflush = \"1 ms\"\n\
    [[stream]]\npath = \"*.mov\"\nbitrate = \"100 Mbit/s\"\n";

/// How the device is just now.
#[derive(Debug)]
pub(crate) struct Knobs {
    /// Everything takes so many times as long.
    pub(crate) factor: f64,
    /// A flush takes this long.
    pub(crate) flush: Duration,
    /// Reads there take so many times as long.
    places: Vec<(Range<u64>, f64)>,
}

/// Does one command after the other.
#[derive(Debug)]
struct Arm {
    knobs: Arc<Mutex<Knobs>>,
    commands: VecDeque<(Instant, u64)>,
    free: Instant,
    end: DeviceOffset,
}

impl Timing for Arm {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let knobs = self.knobs.lock().unwrap();
        let place = knobs
            .places
            .iter()
            .find(|(place, _)| command.direction == Direction::Read && place.contains(&command.offset.0));
        let factor = knobs.factor * place.map_or(1.0, |(_, factor)| *factor);
        let time = match command.direction {
            Direction::Flush => knobs.flush,
            _ if command.offset == self.end => TRANSFER.time_for(command.length),
            _ => ACCESS + TRANSFER.time_for(command.length),
        };
        self.end = DeviceOffset(command.offset.0 + command.length.0);
        self.free = self.free.max(now) + time.mul_f64(factor);
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

/// A player: holds a second in its own memory, and asks for 1 MiB at a time as soon as there is room in it.
pub(crate) struct Player {
    handle: HandleId,
    piece: u64,
    pieces: u64,
    /// When it shows its first piece.
    began: Option<Instant>,
    waits: Option<Ticket>,
    /// It asks for nothing before.
    hangs_until: Instant,
    hangs: Duration,
}

impl Player {
    /// From now on it asks for nothing for so long.
    pub(crate) fn hangs(&mut self, time: Duration) {
        self.hangs = time;
    }

    fn asks_at(&self, now: Instant) -> Instant {
        let began = self.began.unwrap_or(now);
        (began + RATE.time_for(Bytes(self.piece * MIB)))
            .saturating_before(Duration::from_secs(1))
            .max(self.hangs_until)
    }

    fn step(&mut self, volume: &mut SimVolume) {
        if let Some(ticket) = self.waits {
            if !volume.has_ended(ticket) {
                return;
            }
            volume.ended(ticket);
            (self.waits, self.piece) = (None, self.piece + 1);
        }
        let hangs = std::mem::take(&mut self.hangs);
        if !hangs.is_zero() {
            // What it had in its memory it shows later.
            self.hangs_until = volume.clock() + hangs;
            self.began = self.began.map(|began| began + hangs);
        }
        while self.piece < self.pieces && self.asks_at(volume.clock()) <= volume.clock() {
            self.began.get_or_insert(volume.clock());
            let (handle, offset) = (self.handle, self.piece * MIB);
            if volume.with(|core, now| core.read(now, handle, offset, MIB as usize)).is_none() {
                self.waits = Some(volume.begin(Operation::Read { handle, offset, length: MIB as usize }));
                return;
            }
            self.piece += 1;
        }
    }
}

pub(crate) struct Stage {
    pub(crate) volume: SimVolume,
    knobs: Arc<Mutex<Knobs>>,
    clips: Vec<(Ino, u64)>,
}

fn write(volume: &mut SimVolume, handle: HandleId, mebibytes: Range<u64>) {
    mebibytes.for_each(|mebibyte| _ = volume.write(handle, mebibyte * MIB, &[1; MIB as usize]).unwrap());
}

fn unmounted(volume: SimVolume) -> Arc<SimDisk> {
    volume.unmount().unwrap()
}

fn laying(size: Bytes) -> SimVolume {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    SimVolume::mount(formatted(size), &pool, Config::parse("").unwrap(), 5).unwrap()
}

impl Stage {
    /// With clips `0.mov`, `1.mov`… of so many MiB, each in one piece, of which nothing is in memory.
    pub(crate) fn new(clips: &[u64]) -> Self {
        let mut volume = laying(Bytes::from_mib(4096));
        let mut inos = Vec::new();
        for (number, &length) in clips.iter().enumerate() {
            let (ino, handle) = volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap();
            write(&mut volume, handle, 0..length);
            volume.fsync(ino).unwrap();
            volume.with(|core, now| core.release(now, handle));
            inos.push((ino, length));
        }
        Self::mounted(unmounted(volume), inos)
    }

    /// The same on a device that takes twice as long, and is known to.
    pub(crate) fn half_as_fast(clips: &[u64]) -> Self {
        let Self { volume, clips, .. } = Self::new(clips);
        let config = CONFIG.replace("20 ms", "40 ms").replace("160 MB/s", "80 MB/s");
        let stage = Self::mounted_with(unmounted(volume), clips, &config);
        stage.knobs().factor = 2.0;
        stage
    }

    /// With one clip, of which so many MiB lie in one piece and so many behind them in pieces of 128 KiB.
    pub(crate) fn with_scattered_end(whole: u64, scattered: u64) -> Self {
        let mut volume = laying(Bytes::from_mib(whole + 2 * scattered + 96));
        let (ino, handle) = volume.create(Ino::ROOT, b"0.mov").unwrap();
        write(&mut volume, handle, 0..whole);
        volume.fsync(ino).unwrap();
        let mut fill = |number: u32| {
            let Ok((other, handle)) = volume.create(Ino::ROOT, number.to_string().as_bytes()) else {
                return false;
            };
            let fits = volume.write(handle, 0, &[1; 128 << 10]).is_ok() && volume.fsync(other).is_ok();
            volume.with(|core, now| core.release(now, handle));
            volume.with(|core, now| core.forget(now, other, u64::MAX));
            fits
        };
        let count = (0..).take_while(|number| fill(*number)).count();
        for number in (0..count).step_by(2) {
            volume.with(|core, now| core.unlink(now, Ino::ROOT, number.to_string().as_bytes())).unwrap();
        }
        volume.sync().unwrap();
        write(&mut volume, handle, whole..whole + scattered);
        volume.fsync(ino).unwrap();
        volume.with(|core, now| core.release(now, handle));
        let pieces = volume.core().extents(ino).unwrap().len() as u64;
        assert!(pieces > scattered, "{pieces}");
        Self::mounted(unmounted(volume), vec![(ino, whole + scattered)])
    }

    fn mounted(disk: Arc<SimDisk>, clips: Vec<(Ino, u64)>) -> Self {
        Self::mounted_with(disk, clips, CONFIG)
    }

    fn mounted_with(disk: Arc<SimDisk>, clips: Vec<(Ino, u64)>, config: &str) -> Self {
        let block = Bytes(4096);
        let geometry = Geometry {
            logical_block: block,
            physical_block: block,
            optimal_io: Bytes::ZERO,
            rotational: false,
        };
        let knobs = Knobs { factor: 1.0, flush: Duration::from_millis(1), places: Vec::new() };
        let knobs = Arc::new(Mutex::new(knobs));
        let arm = Arm {
            knobs: Arc::clone(&knobs),
            commands: VecDeque::new(),
            free: Instant::ZERO,
            end: DeviceOffset(0),
        };
        let pool = Pool::new(Bytes::from_mib(768), false).unwrap();
        let config = Config::parse(config).unwrap();
        let volume = SimVolume::mount_timed(disk, &pool, config, geometry, Box::new(arm)).unwrap();
        Self { volume, knobs, clips }
    }

    pub(crate) fn knobs(&self) -> MutexGuard<'_, Knobs> {
        self.knobs.lock().unwrap()
    }

    /// Reads of this clip take so many times as long from now on.
    pub(crate) fn slow_place(&self, clip: usize, factor: f64) {
        let extents = self.volume.core().layout(self.clips[clip].0).unwrap().extents;
        let places = extents.iter().map(|extent| extent.device_offset..extent.device_offset + extent.length);
        let places: Vec<_> = places.map(|place| (place, factor)).collect();
        self.knobs().places.extend(places);
    }

    pub(crate) fn player(&mut self, clip: usize) -> Player {
        let (ino, pieces) = self.clips[clip];
        let handle = self.volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle;
        let (piece, hangs_until, hangs) = (0, Instant::ZERO, Duration::ZERO);
        Player { handle, piece, pieces, began: None, waits: None, hangs_until, hangs }
    }

    /// Somebody writes a file of so many MiB, and flushes it.
    pub(crate) fn copy(&mut self, name: &str, mebibytes: u64) -> Ticket {
        let (ino, handle) = self.volume.create(Ino::ROOT, name.as_bytes()).unwrap();
        write(&mut self.volume, handle, 0..mebibytes);
        self.volume.begin(Operation::Fsync { ino })
    }

    pub(crate) fn play(&mut self, players: &mut [Player], time: Duration) {
        const STEP: Duration = Duration::from_millis(2);
        let end = self.volume.clock() + time;
        while self.volume.clock() < end {
            players.iter_mut().for_each(|player| player.step(&mut self.volume));
            self.volume.pass(STEP);
        }
    }

    pub(crate) fn happened(&mut self) -> Vec<EventReport> {
        self.volume.happened()
    }

    pub(crate) fn room(&self, rate: Bitrate) -> u32 {
        self.volume.room_for(rate)
    }
}
