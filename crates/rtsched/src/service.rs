//! How long does the device take?
//!
//! **For:** the service model C(Q) = a + Q/R, one access and a transfer at one rate. It is what a command takes on
//! average. Reads, writes and flushes have one each, because an array's write-back cache makes writes a device of their
//! own. Random reads of 64 KiB to 16 MiB on a RAID5 of five SATA disks follow the line within a tenth with a = 16 ms
//! and R = 170 MB/s. Places are learned apart, see [`zones`](crate::zones). The average and no percentile, because what
//! is decided by it are sums over many commands; what the next few may take beyond it is the scheduler's cushion.
//! **Excludes:** queueing. **State:** [`CostModels`] for each direction, the span that is going on, the debt of a
//! cache. **Invariants:** over any time in which the device was never idle, what its completions are said to have taken
//! adds up to that time; estimates are never zero and change in steps, so what is queued is priced anew rarely.

use crate::config::{Calibrated, Config};
use crate::cost_model::{CONFIDENCE_GUESSED, CONFIDENCE_MEASURED, Figures, ServiceTime};
use crate::length_correction::LengthCorrection;
use crate::request::Direction;
use crate::stream::StreamSpec;
use crate::writeback_debt::WritebackDebt;
use crate::zones::{CostModels, Distance, Neighbours, Seen, neighbours, zone};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// Completions that are looked at together. A device that has several commands works on all of them. What it did for
/// one shows in the completion of another, so only sums tell the truth. A span ends when the device has nothing more,
/// or after so many completions. An estimator's window.
const SPAN: usize = 8;
/// The same while a write-back cache may have something to write. Beside so many, what the cache puts off and makes up
/// for is little. An estimator's window.
const SPAN_OF_CACHE: usize = 64;
/// Such a span also ends after so many nanoseconds of service. An estimator's window.
const SPAN_OF_CACHE_NANOS: f64 = 5e9;

/// The completions of one span.
#[derive(Clone, Copy, Debug)]
struct Span {
    seen: [Option<Seen>; SPAN_OF_CACHE],
    count: usize,
    /// Nanoseconds.
    took: f64,
    has_writes: bool,
    /// Meanwhile reads and writes took turns, or need not.
    in_turn: bool,
}

const NO_SPAN: Span =
    Span { seen: [None; SPAN_OF_CACHE], count: 0, took: 0.0, has_writes: false, in_turn: true };

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ServiceModel {
    models: [CostModels; 3],
    span: Span,
    debt: Option<WritebackDebt>,
    device_size: Bytes,
    learning: bool,
}

impl ServiceModel {
    pub(crate) fn of(config: &Config) -> Self {
        let &Config { read, write, write_times, flush, device_size, learning, calibrated, .. } = config;
        let confidence = |is_measured| if is_measured { CONFIDENCE_MEASURED } else { CONFIDENCE_GUESSED };
        let (reads, writes) =
            (confidence(calibrated >= Calibrated::Reads), confidence(calibrated == Calibrated::All));
        let ends = config.read_ends.filter(|_| device_size > Bytes::ZERO);
        let correction = write_times.map(|times| LengthCorrection::new(write, times));
        let models = [
            CostModels::new(read, ends, None, reads),
            CostModels::new(write, None, correction, writes),
            CostModels::new(flush, None, None, writes),
        ];
        let debt = (calibrated == Calibrated::All).then(WritebackDebt::default);
        Self { models, span: NO_SPAN, debt, device_size, learning }
    }

    fn figures(&self, direction: Direction, offset: DeviceOffset, length: Bytes) -> Figures {
        self.models[direction as usize].model(zone(self.device_size, offset), length).in_use
    }

    /// In the slowest zone that is known.
    fn worst(&self, direction: Direction, length: Bytes) -> Figures {
        self.models[direction as usize].worst_model(length).in_use
    }

    /// Nanoseconds a command holds the device on average, from wherever the one before ended.
    pub(crate) fn nanos(&self, direction: Direction, offset: DeviceOffset, length: Bytes) -> u64 {
        let models = &self.models[direction as usize];
        models.nanos(models.model(zone(self.device_size, offset), length), length)
    }

    /// The same where it is not known which place it goes to: in the slowest zone that is known.
    pub(crate) fn nanos_anywhere(&self, direction: Direction, length: Bytes) -> u64 {
        let models = &self.models[direction as usize];
        models.nanos(models.worst_model(length), length)
    }

    /// The same of what goes on at a place, where that is known. Between the middles of two zones, and beyond the last one, it
    /// changes evenly: what is promised for hours is not left to on which side of a border it lies.
    pub(crate) fn nanos_at(&self, direction: Direction, place: Option<DeviceOffset>, length: Bytes) -> u64 {
        let models = &self.models[direction as usize];
        // Where zones were not measured, one that nothing was read in yet is no better known than the slowest.
        let place = place.filter(|_| models.is_known_by_zone());
        let around = place.and_then(|offset| neighbours(self.device_size, offset));
        let Some(Neighbours { zones, part }) = around else { return self.nanos_anywhere(direction, length) };
        let [one, next] = zones.map(|zone| models.nanos(models.model(zone, length), length) as f64);
        // Neither part of a line is below zero, nor is what lies beyond two of them.
        (one + (next - one) * part).max(one.min(next) / 2.0) as u64
    }

    /// Nanoseconds of all the commands that a request of a stream is, of this length.
    pub(crate) fn nanos_of_stream(&self, spec: &StreamSpec, request: Bytes) -> u64 {
        let whole = self.nanos_at(spec.direction, spec.place, request);
        let Some(piece) = spec.piece.filter(|piece| *piece < request) else { return whole };
        let more = (request.0 - piece.0) as f64 / piece.0.max(1) as f64;
        whole.saturating_add((self.access_nanos(spec.direction) as f64 * more) as u64)
    }

    /// Nanoseconds of it behind the first byte.
    pub(crate) fn transfer_nanos(&self, direction: Direction, offset: DeviceOffset, length: Bytes) -> u64 {
        self.figures(direction, offset, length).transfer(length)
    }

    /// Nanoseconds before the first byte: what a merge saves.
    pub(crate) fn access_nanos(&self, direction: Direction) -> u64 {
        self.worst(direction, Bytes(u64::MAX)).access_nanos
    }

    /// What this command should take, given where the one before it ended.
    pub(crate) fn estimate(
        &self,
        direction: Direction,
        offset: DeviceOffset,
        distance: Distance,
        length: Bytes,
    ) -> u64 {
        let zone = zone(self.device_size, offset);
        let models = &self.models[direction as usize];
        models.nanos(models.model_after(distance, zone, length), length)
    }

    /// The line of the slowest zone.
    pub(crate) fn service_time(&self, direction: Direction) -> ServiceTime {
        let Figures { access_nanos, picos_per_byte } = self.worst(direction, Bytes(u64::MAX));
        ServiceTime {
            access: Duration::from_nanos(access_nanos),
            bytes_per_second: Bytes(1_000_000_000_000 / picos_per_byte.max(1)),
        }
    }

    /// Learns that the device worked for `took` until `now`, when it had done a command, after which it `is_idle` or has
    /// more to do, and reads and writes go to it `in_turn`, or a cache has to write between reads; true when
    /// [`nanos`](Self::nanos) answers otherwise now.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        (direction, offset, length): (Direction, DeviceOffset, Bytes),
        distance: Distance,
        took: Duration,
        is_idle: bool,
        in_turn: bool,
    ) -> bool {
        if !self.learning {
            return false;
        }
        let nanos = took.as_nanos() as f64;
        if let Some(debt) = &mut self.debt {
            debt.completed(now, nanos);
        }
        let span = &mut self.span;
        span.seen[span.count] =
            Some(Seen { direction, zone: zone(self.device_size, offset), distance, length });
        span.count += 1;
        span.took += nanos;
        span.has_writes |= direction != Direction::Read;
        span.in_turn &= in_turn;
        let has_cache = self.debt.is_some_and(|debt| span.has_writes || !debt.is_settled());
        let is_over = match has_cache {
            false => is_idle || span.count >= SPAN,
            true => span.count == SPAN_OF_CACHE || (span.count >= SPAN && span.took >= SPAN_OF_CACHE_NANOS),
        };
        is_over && self.learn()
    }

    /// Learns from the span that is over.
    fn learn(&mut self) -> bool {
        let Span { seen, took, in_turn, .. } = core::mem::replace(&mut self.span, NO_SPAN);
        let models = &mut self.models;
        let (mut expected, mut writes) = (0.0, 0.0);
        for seen in seen.iter().flatten() {
            let nanos = models[seen.direction as usize].expected(seen);
            expected += nanos;
            // A flush waits for them.
            writes += if seen.direction == Direction::Read { 0.0 } else { nanos };
        }
        let is_mixed = 0.0 < writes && writes < expected;
        let took = match &mut self.debt {
            None => took,
            // A cache writes in pieces between reads, with a seek to and fro for each: what that takes is no promise's price.
            Some(debt) if is_mixed && !in_turn => {
                debt.assume_all(took, writes);
                return false;
            }
            Some(debt) => debt.settle(took, expected, writes),
        };
        let mut ratios = [took / expected; 3];
        let mut learned = false;
        for seen in seen.iter().flatten() {
            let (moved, scale) =
                models[seen.direction as usize].observe(seen, ratios[seen.direction as usize]);
            // What is left of it when the lines were scaled.
            ratios[seen.direction as usize] /= scale;
            learned |= moved;
        }
        learned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: ServiceTime =
        ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };
    const FLASH: ServiceTime =
        ServiceTime { access: Duration::from_micros(90), bytes_per_second: Bytes(3_000_000_000) };
    const SIZES: [Bytes; 4] =
        [Bytes::from_kib(4), Bytes::from_mib(1), Bytes::from_mib(8), Bytes::from_mib(16)];

    fn config(start: ServiceTime) -> Config {
        Config { read: start, write: start, flush: start, ..Config::default() }
    }

    fn model(start: ServiceTime) -> ServiceModel {
        ServiceModel::of(&config(start))
    }

    const START: (Direction, DeviceOffset) = (Direction::Read, DeviceOffset(0));

    /// One command alone.
    fn observe(model: &mut ServiceModel, length: Bytes, took: Duration) -> bool {
        model.observe(Instant::ZERO, (START.0, START.1, length), Distance::Far, took, true, true)
    }

    fn off_by(model: &ServiceModel, truth: ServiceTime, length: Bytes) -> f64 {
        model.nanos_anywhere(Direction::Read, length) as f64 / truth.of(length).as_nanos() as f64
    }

    #[test]
    fn start_values_are_random_reads_of_a_raid5_within_a_tenth() {
        // Request size in KiB, Mbit/s: random reads of 64 KiB..16 MiB measured on a five-disk RAID5.
        for (kib, megabits) in [(64, 35.0), (512, 204.5), (2048, 569.9), (8192, 1032.4), (16384, 1216.6)] {
            let measured = kib as f64 * 8192.0 / (megabits * 1e6);
            let ratio = DISK.of(Bytes::from_kib(kib)).as_secs_f64() / measured;
            assert!((0.9..1.1).contains(&ratio), "{kib} KiB: {ratio}");
        }
    }

    #[test]
    fn a_device_that_keeps_to_the_model_leaves_it_unchanged() {
        let mut model = model(DISK);
        for round in 0..1000 {
            let length = SIZES[round % SIZES.len()];
            assert!(!observe(&mut model, length, DISK.of(length)));
        }
        assert_eq!(model.nanos_anywhere(Direction::Read, SIZES[2]), DISK.of(SIZES[2]).as_nanos() as u64);
    }

    #[test]
    fn another_device_is_learned_from_its_completions_reads_apart_from_writes() {
        for (start, truth) in [(DISK, FLASH), (FLASH, DISK)] {
            let mut model = model(start);
            for round in 0..2000 {
                let length = SIZES[round % SIZES.len()];
                observe(&mut model, length, truth.of(length));
            }
            for length in SIZES {
                let ratio = off_by(&model, truth, length);
                assert!((0.85..1.15).contains(&ratio), "{length}: {ratio}");
            }
            assert_eq!(
                model.service_time(Direction::Write),
                self::model(start).service_time(Direction::Write)
            );
        }
    }

    #[test]
    fn requests_of_one_size_teach_that_size() {
        let mut model = model(DISK);
        for _ in 0..2000 {
            observe(&mut model, SIZES[2], FLASH.of(SIZES[2]));
        }
        assert!((0.9..1.15).contains(&off_by(&model, FLASH, SIZES[2])));
    }

    #[test]
    fn one_completion_of_a_minute_moves_the_estimate_by_less_than_a_quarter() {
        let mut model = model(DISK);
        for round in 0..500 {
            let length = SIZES[round % SIZES.len()];
            observe(&mut model, length, DISK.of(length));
        }
        observe(&mut model, SIZES[2], Duration::from_secs(60));
        for length in SIZES {
            let ratio = off_by(&model, DISK, length);
            assert!((0.99..1.25).contains(&ratio), "{length}: {ratio}");
        }
    }

    #[test]
    fn the_price_is_the_average() {
        // One command in ten takes eleven times as long, which counts for four times at most: (9 + 4) / 10.
        let mut model = model(DISK);
        for round in 0..5000 {
            let length = SIZES[round % 4];
            let factor = if round % 10 == 0 { 11 } else { 1 };
            observe(&mut model, length, DISK.of(length) * factor);
        }
        let ratio = off_by(&model, DISK, SIZES[2]);
        assert!((1.2..1.4).contains(&ratio), "{ratio}");
    }

    #[test]
    fn what_a_device_does_for_one_command_and_shows_in_another_cancels_out() {
        // A RAID with a write-back cache and two commands. While one read is transferred, the other's time goes to
        // whatever the cache has to write; then it follows at once. Reads of 0.07 s and 0.72 s are two of 0.395 s.
        // Learned from each by itself, the price would go up and down with them, and with it what is admitted.
        let length = Bytes::from_mib(64);
        let mut model = model(DISK);
        let mut changes = 0;
        for round in 0..400 {
            let part = if round % 2 == 0 { 9 } else { 1 };
            let took = DISK.of(length) * 2 * part / 10;
            let command = (START.0, START.1, length);
            changes += u32::from(model.observe(Instant::ZERO, command, Distance::Far, took, false, true));
        }
        assert_eq!(changes, 0);
        assert_eq!(off_by(&model, DISK, length), 1.0);
    }

    #[test]
    fn what_goes_on_where_it_was_says_nothing_of_an_access() {
        let mut model = model(DISK);
        let transfer = |length| DISK.of(length) - DISK.access;
        for _ in 0..1000 {
            let command = (START.0, START.1, SIZES[2]);
            let took = transfer(SIZES[2]);
            assert!(!model.observe(Instant::ZERO, command, Distance::Sequential, took, true, true));
        }
        assert_eq!(model.nanos_anywhere(Direction::Read, SIZES[2]), DISK.of(SIZES[2]).as_nanos() as u64);
        let estimate = model.estimate(Direction::Read, DeviceOffset(0), Distance::Sequential, SIZES[2]);
        assert!(estimate < transfer(SIZES[2]).as_nanos() as u64 * 11 / 10);
    }

    #[test]
    fn inner_zones_are_slower_and_an_unknown_place_is_reckoned_as_one() {
        let inner = ServiceTime { bytes_per_second: Bytes(85_000_000), ..DISK };
        let size = Bytes::from_mib(1 << 20);
        let mut model = ServiceModel::of(&Config { device_size: size, ..config(DISK) });
        for round in 0..4000 {
            let length = SIZES[round % SIZES.len()];
            let is_inner = round / SIZES.len() % 2 == 1;
            let (offset, truth) = if is_inner { (size.0 - 1, inner) } else { (0, DISK) };
            let command = (Direction::Read, DeviceOffset(offset), length);
            model.observe(Instant::ZERO, command, Distance::Far, truth.of(length), true, true);
        }
        let nanos = |offset| model.nanos(Direction::Read, DeviceOffset(offset), SIZES[3]) as f64;
        assert!((0.9..1.1).contains(&(nanos(0) / DISK.of(SIZES[3]).as_nanos() as f64)));
        assert!((0.9..1.1).contains(&(nanos(size.0 - 1) / inner.of(SIZES[3]).as_nanos() as f64)));
        assert_eq!(model.nanos_anywhere(Direction::Read, SIZES[3]) as f64, nanos(size.0 - 1));
    }

    #[test]
    fn a_slower_device_is_followed_within_a_few_completions_and_so_is_its_recovery() {
        let mut model = model(DISK);
        for (slower, completions) in [(3, 40), (1, 40)] {
            for _ in 0..completions {
                observe(&mut model, SIZES[2], DISK.of(SIZES[2]) * slower);
            }
            let ratio = off_by(&model, DISK, SIZES[2]) / f64::from(slower);
            assert!((0.9..1.5).contains(&ratio), "{slower}: {ratio}");
        }
    }

    #[test]
    fn a_device_that_becomes_slower_shows_in_short_seeks_too() {
        // Streams that lie close together make short seeks only, and are priced by long ones. While each kind was learned
        // by itself, they were half as fast again, and that was not noticed.
        let mut model = model(DISK);
        let length = SIZES[2];
        for (slower, completions) in [(2, 200), (3, 20)] {
            for _ in 0..completions {
                let command = (START.0, START.1, length);
                model.observe(
                    Instant::ZERO,
                    command,
                    Distance::Near,
                    DISK.of(length) * slower / 2,
                    true,
                    true,
                );
            }
        }
        assert!((1.4..1.6).contains(&off_by(&model, DISK, length)));
    }

    #[test]
    fn slow_short_commands_do_not_make_long_ones_slower() {
        // Calibrated with many commands at once, a flash device shows no access time; one command alone takes 0.1 ms.
        let start = ServiceTime { access: Duration::from_nanos(1), bytes_per_second: Bytes(500_000_000) };
        let truth = ServiceTime { access: Duration::from_micros(100), ..start };
        let mut model = model(start);
        for _ in 0..500 {
            observe(&mut model, SIZES[0], truth.of(SIZES[0]));
        }
        for length in [SIZES[0], SIZES[2]] {
            let ratio = off_by(&model, truth, length);
            assert!((0.8..1.3).contains(&ratio), "{length}: {ratio}");
        }
    }

    /// A span of one command, which the device began after `idle`.
    fn command(
        model: &mut ServiceModel,
        now: &mut Instant,
        direction: Direction,
        idle: Duration,
        took: Duration,
    ) {
        *now += idle + took;
        model.observe(*now, (direction, DeviceOffset(0), SIZES[2]), Distance::Far, took, true, true);
    }

    fn prices(model: &ServiceModel) -> [u64; 2] {
        [Direction::Read, Direction::Write].map(|direction| model.nanos_anywhere(direction, SIZES[2]))
    }

    /// A calibration measured the reads alone, and what it found counted for no more than a guess: the first reads of a start,
    /// one of them slow, made the device a fiftieth slower, and the thirteenth player was refused.
    #[test]
    fn reads_that_were_measured_are_trusted_though_nothing_is_known_of_writes() {
        let off = |calibrated| {
            let mut model = ServiceModel::of(&Config { calibrated, ..config(DISK) });
            observe(&mut model, SIZES[1], DISK.of(SIZES[1]) * 5 / 4);
            for _ in 1..8 {
                observe(&mut model, SIZES[2], DISK.of(SIZES[2]) * 51 / 50);
            }
            off_by(&model, DISK, Bytes::from_mib(32))
        };
        assert_eq!([Calibrated::Reads, Calibrated::All].map(off), [1.0; 2]);
        assert!(off(Calibrated::Nothing) > 1.01);
    }

    #[test]
    fn a_cache_lends_time_and_is_paid_back_by_later_commands() {
        for (calibrated, is_deferred) in [(Calibrated::All, true), (Calibrated::Nothing, false)] {
            let mut model = ServiceModel::of(&Config { calibrated, ..config(DISK) });
            let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
            let mut now = Instant::ZERO;
            // 200 writes take half of what they should, and then 100 reads twice of it.
            for _ in 0..200 {
                command(&mut model, &mut now, Direction::Write, Duration::ZERO, cost / 2);
            }
            assert_eq!(prices(&model) == start, is_deferred);
            for _ in 0..100 {
                command(&mut model, &mut now, Direction::Read, Duration::ZERO, cost * 2);
            }
            assert_eq!(prices(&model) == start, is_deferred);
            // The debt is paid: what is slow now is the device. It shows when the span of five seconds is over.
            for _ in 0..80 {
                command(&mut model, &mut now, Direction::Read, Duration::ZERO, cost * 2);
            }
            assert!(prices(&model)[0] > start[0] * 3 / 2);
        }
    }

    #[test]
    fn idle_time_pays_back_too() {
        let mut model = ServiceModel::of(&Config { calibrated: Calibrated::All, ..config(DISK) });
        let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
        let mut now = Instant::ZERO;
        for _ in 0..200 {
            command(&mut model, &mut now, Direction::Write, cost / 2, cost / 2);
        }
        assert_eq!(prices(&model), start);
        for _ in 0..80 {
            command(&mut model, &mut now, Direction::Read, Duration::ZERO, cost * 2);
        }
        assert!(prices(&model)[0] > start[0] * 3 / 2);
    }

    #[test]
    fn what_is_faster_for_longer_than_any_cache_lends_is_faster() {
        let mut model = ServiceModel::of(&Config { calibrated: Calibrated::All, ..config(DISK) });
        let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
        let mut now = Instant::ZERO;
        let mut write_for = |model: &mut ServiceModel, time: Duration| {
            for _ in 0..(time.as_nanos() * 2 / cost.as_nanos()) {
                command(model, &mut now, Direction::Write, Duration::ZERO, cost / 2);
            }
        };
        // Each puts off half its cost: as much as was written in the twenty seconds before, after some thirty.
        write_for(&mut model, Duration::from_secs(25));
        assert_eq!(prices(&model), start);
        write_for(&mut model, Duration::from_secs(40));
        assert!(prices(&model)[1] < start[1] * 3 / 4);
    }

    /// A copy had the device alone, whose cache wrote between its reads: each of both took half as long again. The reads' price
    /// had not come down when a player asked, and it was refused what there was room for.
    #[test]
    fn what_a_copy_takes_alone_is_no_promises_price() {
        for (in_turn, is_learned) in [(false, false), (true, true)] {
            let mut model = ServiceModel::of(&Config { calibrated: Calibrated::All, ..config(DISK) });
            let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
            for round in 0..500 {
                let direction = if round % 2 == 0 { Direction::Write } else { Direction::Read };
                let command = (direction, DeviceOffset(0), SIZES[2]);
                let took = cost * 3 / 2;
                model.observe(Instant::ZERO, command, Distance::Far, took, false, in_turn);
            }
            assert_eq!(prices(&model) != start, is_learned);
            // Nor is what the cache has still to write of it, when a stream comes: here 2.6 seconds of reads that take twice as long.
            for _ in 0..40 {
                let command = (Direction::Read, DeviceOffset(0), SIZES[2]);
                model.observe(Instant::ZERO, command, Distance::Far, cost * 2, false, true);
            }
            assert_eq!(prices(&model) != start, is_learned);
        }
    }

    #[test]
    fn a_cache_does_not_hide_that_the_device_is_slower() {
        // A tenth of the time is writes, which the cache takes at once, and everything takes half as long again as it
        // should: the debt can be some seconds, but not a minute.
        let mut model = ServiceModel::of(&Config { calibrated: Calibrated::All, ..config(DISK) });
        let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
        let mut now = Instant::ZERO;
        for round in 0..1000 {
            let (direction, took) = match round % 10 {
                0 => (Direction::Write, cost / 10),
                _ => (Direction::Read, cost * 166 / 100),
            };
            now += took;
            model.observe(now, (direction, DeviceOffset(0), SIZES[2]), Distance::Far, took, false, true);
        }
        for (price, start) in prices(&model).into_iter().zip(start) {
            let ratio = price as f64 / start as f64;
            assert!((1.4..1.6).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn nor_that_reads_are_faster() {
        // What reads do not take is no debt, however much a copy writes beside them.
        let mut model = ServiceModel::of(&Config { calibrated: Calibrated::All, ..config(DISK) });
        let (start, cost) = (prices(&model), DISK.of(SIZES[2]));
        let mut now = Instant::ZERO;
        let mut reads_for = |model: &mut ServiceModel, percent: u32, rounds: usize| {
            for round in 0..rounds {
                let is_write = round % 10 == 0;
                let direction = if is_write { Direction::Write } else { Direction::Read };
                let took = if is_write { cost } else { cost * percent / 100 };
                now += took;
                model.observe(now, (direction, DeviceOffset(0), SIZES[2]), Distance::Far, took, false, true);
            }
        };
        // A twentieth less for minutes; and then the device is as slow as it ever was, and that is seen.
        reads_for(&mut model, 95, 3000);
        reads_for(&mut model, 150, 600);
        assert!(prices(&model)[0] > start[0] * 5 / 4, "{:?} {start:?}", prices(&model));
    }

    #[test]
    fn a_device_measured_at_both_ends_is_known_everywhere() {
        let size = Bytes(8 << 40);
        let read_ends = Some([Bytes(210_000_000), Bytes(130_000_000)]);
        let model = |read_ends| {
            ServiceModel::of(&Config {
                device_size: size,
                read_ends,
                calibrated: Calibrated::All,
                ..config(DISK)
            })
        };
        let nanos = |model: &ServiceModel, zone: u64| {
            model.nanos(Direction::Read, DeviceOffset(zone << 40), SIZES[3])
        };
        // An eighth of the device is 10 MB/s slower than the one before; its middle is 205 in the first.
        let measured = model(read_ends);
        for zone in 0..8 {
            let rate = Bytes(205_000_000 - 10_000_000 * zone);
            let time = ServiceTime { bytes_per_second: rate, ..DISK }.of(SIZES[3]);
            assert!(nanos(&measured, zone).abs_diff(time.as_nanos() as u64) < 100_000, "{zone}");
        }
        assert_eq!(measured.nanos_anywhere(Direction::Read, SIZES[3]), nanos(&measured, 7));
        let guessed = model(None);
        assert_eq!(nanos(&guessed, 0), nanos(&guessed, 7));
    }

    #[test]
    fn a_stream_is_priced_by_where_it_lies_within_its_zone() {
        let size = Bytes(8 << 40);
        let ends = [Bytes(210_000_000), Bytes(130_000_000)];
        let read_ends = Some(ends);
        let model = ServiceModel::of(&Config {
            device_size: size,
            read_ends,
            calibrated: Calibrated::All,
            ..config(DISK)
        });
        for sixteenth in 0..=16 {
            // The rate changes evenly, and here the time: between two middles that is off by 5·5/135², beyond by 5·15/130².
            let rate = Bytes(ends[0].0 - 5_000_000 * sixteenth);
            let truth = ServiceTime { bytes_per_second: rate, ..DISK }.of(SIZES[3]).as_nanos() as f64;
            let place = Some(DeviceOffset((sixteenth << 39).min(size.0 - 1)));
            let ratio = model.nanos_at(Direction::Read, place, SIZES[3]) as f64 / truth;
            assert!((0.9955..1.0015).contains(&ratio), "{sixteenth}: {ratio}");
        }
    }

    #[test]
    fn what_lies_close_together_inside_says_nothing_of_what_lies_outside() {
        // Streams in the innermost zone make short seeks among themselves, and take as long as they should.
        let size = Bytes(8 << 40);
        let read_ends = Some([Bytes(250_000_000), Bytes(90_000_000)]);
        let mut model = ServiceModel::of(&Config {
            device_size: size,
            read_ends,
            calibrated: Calibrated::All,
            ..config(DISK)
        });
        let outside = model.nanos(Direction::Read, DeviceOffset(0), SIZES[3]);
        let inside = DeviceOffset(size.0 - 1);
        let rate = Bytes(100_000_000);
        let took = ServiceTime { access: DISK.access / 2, bytes_per_second: rate }.of(SIZES[3]);
        for _ in 0..500 {
            model.observe(
                Instant::ZERO,
                (Direction::Read, inside, SIZES[3]),
                Distance::Near,
                took,
                true,
                true,
            );
        }
        assert_eq!(model.nanos(Direction::Read, DeviceOffset(0), SIZES[3]), outside);
    }
}
