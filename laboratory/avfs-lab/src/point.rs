//! One run, and what it says.
//!
//! **For:** the figures of a run, from what its clients, the LUN, the processors and AVFS said. **Excludes:** carrying it out,
//! and the report. **State:** none. **Invariants:** the same observations make the same figures.

use crate::avfs::AvfsReport;
use crate::lun::Counters;
use crate::processor::ProcessorTime;
use avfs_workloads::Experiment;
use avfs_workloads::histogram::Histogram;
use avfs_workloads::{BEGINS_WITHIN, ClientReport, Pattern};
use serde::{Deserialize, Serialize};
use units::Duration;

/// The device must be able to write on and on at this part of the rate of what recorders produce, or the run would have failed
/// had it been longer.
const KEEPS_UP: f64 = 0.95;

/// From so much stolen processor time on, percent, a point tells about the machine's host. See [`Point::stolen`].
pub const STOLEN_BOUND: f64 = 3.0;

/// How long something took, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// Half of them.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// The longest.
    pub longest_ms: f64,
}

impl Percentiles {
    /// Nothing when nothing was counted.
    fn of(histogram: &Histogram) -> Option<Self> {
        (histogram.count() > 0).then(|| Self {
            p50_ms: histogram.percentile_ms(50.0),
            p99_ms: histogram.percentile_ms(99.0),
            longest_ms: histogram.longest_ms(),
        })
    }
}

/// One run with one number of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Of what was declared, see [`Declaration::pairs`].
    pub pair: u64,
    /// Of what was measured; empty where there is no repository.
    pub commit: String,
    /// When it ended, UTC.
    pub date: String,
    /// Its experiment.
    pub experiment: String,
    /// On whom.
    pub contender: String,
    /// Which search, from 0 on.
    pub repeat: u32,
    /// How many clients; where several come at once, how often.
    pub clients: u32,
    /// Nobody was late, nothing failed, all players play (`start`: within 5 s), and the device can go on so with the recorders
    /// (`sustained`).
    pub clean: bool,
    /// Units that were late.
    pub late: u64,
    /// How many of them were of clients whose streams had a reservation in the end; absent of others than AVFS.
    #[serde(default)]
    pub late_with_reservation: Option<u64>,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// Operations that failed.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// What was written back of what was recorded in the second half of the time, as a part; 1 without recorders.
    pub destaged: f64,
    /// What the device could have written back of it had it written all the time that reads left, as fast as it did while it
    /// wrote: above 1 where it carries more. What memory holds back does not change it. Absent without recorders, and when
    /// nothing was written back.
    #[serde(default)]
    pub sustained: Option<f64>,
    /// The counted clients together, Mbit/s.
    pub megabits: f64,
    /// Those beside them, Mbit/s.
    pub background_megabits: f64,
    /// A unit's latency, milliseconds: half of them, 99 of 100, and the longest.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// See `p50_ms`.
    pub longest_ms: f64,
    /// From a player's first request to its full buffer; absent without players.
    pub start: Option<Percentiles>,
    /// From a jump to its picture, of who searches; absent when nobody does.
    pub jump: Option<Percentiles>,
    /// What copies got in the second half of the time of what everybody else left of the device's sequential rate, percent;
    /// above 100 where they write into memory. Absent without copies, and when nothing was left.
    pub copies_share: Option<f64>,
    /// Processor time of smbd, of the filesystem's daemon, if it has one, and of the kernel's threads for each GB (10^9 bytes)
    /// that clients read or wrote, seconds. Absent when nothing was read or written.
    pub cpu_s_per_gb: Option<f64>,
    /// What AVFS said of itself at the end; absent of others.
    pub avfs: Option<AvfsReport>,
    /// The device: Mbit/s read and written.
    pub device_read_megabits: f64,
    /// See `device_read_megabits`.
    pub device_write_megabits: f64,
    /// A read's mean size, KiB.
    pub read_kib: f64,
    /// A write's mean size, KiB.
    pub write_kib: f64,
    /// Seeks a second.
    pub seeks_per_s: f64,
    /// What is transferred between two seeks, KiB.
    pub kib_per_seek: f64,
    /// The part of the time the device was at work, percent.
    pub utilisation: f64,
    /// The part of the machine's processor time that was spent, percent; without the LUN's process and the clients'.
    pub processors: f64,
    /// The part of it that the machine's own host gave to others while something here wanted to run, percent.
    #[serde(default)]
    pub stolen: f64,
    /// The machine's host disturbed it, and it was measured again: it counts for nothing.
    #[serde(default)]
    pub set_aside: bool,
    /// The deepest queue since the LUN was made.
    pub deepest_queue: u64,
}

impl Point {
    /// The machine's own host took so much of the processors that the point may tell about it.
    pub fn is_disturbed(&self) -> bool {
        self.stolen >= STOLEN_BOUND
    }

    /// Whether every player began to play in the time in which one has to.
    pub fn all_play(&self) -> bool {
        self.start.is_none_or(|start| start.longest_ms <= BEGINS_WITHIN.as_secs_f64() * 1e3)
    }

    /// And it may have decided the verdict. Who has nobody beside him is in time in spite of the host, never because of it: with
    /// less of a processor nobody is faster. But a copy that is slower leaves more to others.
    pub fn is_in_doubt(&self) -> bool {
        self.is_disturbed() && !(self.clean && self.background_megabits == 0.0)
    }
}

/// What had been done at a moment of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    /// Since the run began.
    pub(crate) at: Duration,
    pub(crate) counters: Counters,
    pub(crate) processor: ProcessorTime,
    /// Bytes that each client has moved.
    pub(crate) moved: Vec<u64>,
}

/// What was seen of a run.
pub(crate) struct Seen<'a> {
    /// Of the counted clients, then of those beside them, as they are declared.
    pub(crate) reports: &'a [ClientReport],
    /// How many are counted.
    pub(crate) counted: usize,
    /// Processor time that serving took, seconds.
    pub(crate) serving_s: f64,
    /// The processors when the first began.
    pub(crate) began: ProcessorTime,
    /// When all had started, at half of the time, and at the end.
    pub(crate) window: &'a [Mark],
    pub(crate) duration: Duration,
    /// What the device reads on and on, Mbit/s.
    pub(crate) sequential_megabits: f64,
    pub(crate) avfs: Option<AvfsReport>,
    /// Which of the counted clients had a reservation in the end, if that is known.
    pub(crate) reserved: Option<Vec<bool>>,
}

/// Sums up.
pub(crate) fn judge(experiment: &Experiment, seen: Seen<'_>) -> Point {
    let Seen { reports, counted, window, duration, .. } = seen;
    let (streams, beside) = reports.split_at(counted);
    let megabits = |reports: &[ClientReport]| {
        reports.iter().map(|one| one.bytes).sum::<u64>() as f64 * 8.0 / duration.as_secs_f64() / 1e6
    };
    let together = |of: fn(&ClientReport) -> &Histogram, reports: &[ClientReport]| {
        let mut all = Histogram::default();
        reports.iter().for_each(|report| all.merge(of(report)));
        all
    };
    let latency = together(|one| &one.latency, streams);
    let errors: u64 = reports.iter().map(|one| one.errors).sum();
    let late: u64 = streams.iter().map(|one| one.late).sum();
    let first = &window[0];
    let last = &window[window.len() - 1];
    let seconds = (last.at - first.at).as_secs_f64().max(1e-3);
    let span =
        |figure: fn(&Counters) -> u64| figure(&last.counters).saturating_sub(figure(&first.counters)) as f64;
    let transferred = span(|one| one.read_bytes) + span(|one| one.destaged_bytes);
    let recorded = experiment.recorded_megabits(counted as u32);
    let destaged = recorded.map_or(1.0, |megabits| destaged(megabits, window).min(1.0));
    let sustained = recorded.and_then(|megabits| sustained(megabits, window));
    let each = |bytes: f64, count: f64| if count > 0.0 { bytes / count / 1024.0 } else { 0.0 };
    let mut point = Point {
        pair: 0,
        commit: String::new(),
        date: String::new(),
        experiment: experiment.name.clone(),
        contender: String::new(),
        repeat: 0,
        clients: counted as u32 / experiment.at_once,
        clean: late == 0 && errors == 0 && sustained.is_none_or(|part| part >= KEEPS_UP),
        late,
        late_with_reservation: seen.reserved.map(|reserved| {
            let own = std::iter::zip(streams, reserved).filter(|(_, has)| *has);
            own.map(|(client, _)| client.late).sum()
        }),
        latest_ms: streams.iter().map(|one| one.latest_ms).fold(0.0, f64::max),
        errors,
        first_error: reports.iter().find_map(|one| one.first_error.clone()),
        destaged,
        sustained,
        megabits: megabits(streams),
        background_megabits: megabits(beside),
        p50_ms: latency.percentile_ms(50.0),
        p99_ms: latency.percentile_ms(99.0),
        longest_ms: latency.longest_ms(),
        start: Percentiles::of(&together(|one| &one.start, streams)),
        jump: Percentiles::of(&together(|one| &one.jumps, beside)),
        copies_share: copies_share(&experiment.background, counted, window, seen.sequential_megabits),
        cpu_s_per_gb: cpu_s_per_gb(seen.serving_s, reports),
        avfs: seen.avfs,
        device_read_megabits: span(|one| one.read_bytes) * 8.0 / seconds / 1e6,
        device_write_megabits: span(|one| one.destaged_bytes) * 8.0 / seconds / 1e6,
        read_kib: each(span(|one| one.read_bytes), span(|one| one.reads)),
        write_kib: each(span(|one| one.written_bytes), span(|one| one.writes)),
        seeks_per_s: span(|one| one.seeks) / seconds,
        kib_per_seek: each(transferred, span(|one| one.seeks)),
        utilisation: (span(|one| one.busy_ns) / seconds / 1e7).min(100.0),
        processors: last.processor.percent_since(&first.processor),
        stolen: last.processor.stolen_percent_since(&seen.began),
        set_aside: false,
        deepest_queue: last.counters.deepest_queue,
    };
    point.clean &= point.all_play();
    point
}

/// In the second half of the window, because in the first a copy fills memory.
fn copies_share(
    background: &[Pattern],
    counted: usize,
    window: &[Mark],
    sequential_megabits: f64,
) -> Option<f64> {
    let (before, after) = (window.iter().rev().nth(1)?, window.last()?);
    let seconds = (after.at - before.at).as_secs_f64();
    let (mut copies, mut others) = (0.0, 0.0);
    for (client, (from, to)) in std::iter::zip(&before.moved, &after.moved).enumerate() {
        let megabits = to.saturating_sub(*from) as f64 * 8.0 / seconds / 1e6;
        let pattern = client.checked_sub(counted).and_then(|beside| background.get(beside));
        *(if pattern.is_some_and(Pattern::copies) { &mut copies } else { &mut others }) += megabits;
    }
    let left = sequential_megabits - others;
    (background.iter().any(Pattern::copies) && left > 0.0).then(|| copies / left * 100.0)
}

fn cpu_s_per_gb(seconds: f64, reports: &[ClientReport]) -> Option<f64> {
    let bytes: u64 = reports.iter().map(|one| one.bytes).sum();
    (bytes > 0).then(|| seconds / (bytes as f64 / 1e9))
}

/// Of what recorders produce in the second half of the window, the part that reached the platters in that time. By their
/// bitrate, not by what was taken from them: that began later, and may have been less.
fn destaged(megabits: f64, window: &[Mark]) -> f64 {
    let (Some(before), Some(after)) = (window.iter().rev().nth(1), window.last()) else { return 0.0 };
    let expected = megabits * 1e6 / 8.0 * (after.at - before.at).as_secs_f64();
    let written = after.counters.destaged_bytes.saturating_sub(before.counters.destaged_bytes) as f64;
    if expected > 0.0 { written / expected } else { 0.0 }
}

/// The utilisation law: a device that is at work for a part of the time carries so much more as the time has room for. See
/// [`Point::sustained`].
fn sustained(megabits: f64, window: &[Mark]) -> Option<f64> {
    let (before, after) = (window.iter().rev().nth(1)?, window.last()?);
    let spent = |time: fn(&Counters) -> u64| {
        time(&after.counters).saturating_sub(time(&before.counters)) as f64 / 1e9
    };
    let writing = spent(|counters| counters.write_busy_ns);
    let reading = spent(|counters| counters.busy_ns) - writing;
    let left = (after.at - before.at).as_secs_f64() - reading;
    (writing > 0.0).then(|| destaged(megabits, window) * left.max(0.0) / writing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::smoke;
    use avfs_workloads::CopySpec;

    fn seen<'a>(reports: &'a [ClientReport], counted: usize, window: &'a [Mark]) -> Seen<'a> {
        Seen {
            reports,
            counted,
            serving_s: 4.5,
            began: ProcessorTime::default(),
            window,
            duration: Duration::from_secs(20),
            sequential_megabits: 1000.0,
            avfs: None,
            reserved: None,
        }
    }

    #[test]
    fn who_was_late_with_a_reservation_is_told_from_who_had_none() {
        let late = |late| ClientReport { late, ..ClientReport::default() };
        let reports = [late(0), late(3), late(20), late(100)];
        let window = [Mark::default(), Mark::default()];
        let judged =
            |reserved| judge(&smoke().experiments[0], Seen { reserved, ..seen(&reports, 3, &window) });
        let of = |reserved: [bool; 3]| judged(Some(reserved.to_vec())).late_with_reservation;
        assert_eq!((of([true, true, false]), of([true, false, false])), (Some(3), Some(0)));
        let unknown = judged(None);
        assert_eq!((unknown.late, unknown.late_with_reservation), (23, None));
    }

    /// A seventh film, for which a volume had no room, was in time: it began after 12.4 of 12 seconds.
    #[test]
    fn who_does_not_begin_is_not_in_time() {
        let window = [Mark::default(), Mark::default()];
        let judged = |start_ms| {
            let mut report = ClientReport::default();
            report.start.record(Duration::from_millis(start_ms));
            judge(&smoke().experiments[0], seen(std::slice::from_ref(&report), 1, &window))
        };
        assert!(judged(4_900).clean && !judged(5_100).clean);
        assert_eq!(judged(5_100).late, 0);
    }

    /// Counted by what was taken from the recorders on average since the first started, the last of them hid: thirteen
    /// recorders of 100 Mbit/s were clean on a device that wrote 1150.
    #[test]
    fn a_device_that_falls_behind_the_recorders_is_no_clean_run() {
        let declaration = smoke();
        let experiment = &declaration.experiments[1];
        let at = |seconds, reading_s: u64, writing_s: u64, megabytes: u64| {
            let counters = Counters {
                destaged_bytes: megabytes * 1_000_000,
                busy_ns: (reading_s + writing_s) * 1_000_000_000,
                write_busy_ns: writing_s * 1_000_000_000,
                ..Counters::default()
            };
            Mark { at: Duration::from_secs(seconds), counters, ..Mark::default() }
        };
        let report = ClientReport { bytes: 200 << 20, units: 200, ..ClientReport::default() };
        // One recorder of 100 Mbit/s: 125 MB in the ten seconds that count.
        let judged = |reading_s: u64, writing_s: u64, megabytes: u64| {
            let window =
                [at(0, 0, 0, 0), at(10, 3, 7, 100), at(20, 3 + reading_s, 7 + writing_s, 100 + megabytes)];
            judge(experiment, seen(std::slice::from_ref(&report), 1, &window))
        };
        let clean = |reading_s, writing_s, megabytes| judged(reading_s, writing_s, megabytes).clean;
        assert!(clean(0, 10, 119));
        assert!(!clean(0, 10, 118), "the rest is still in caches");
        assert!(clean(0, 5, 60), "the rest is still in caches, and there is time for it");
        assert!(!clean(0, 5, 59), "there is no time for so much");
        assert!(clean(4, 3, 60), "six seconds are left by reads, twice what it wrote for");
        assert!(!clean(4, 3, 59));
        assert!(clean(10, 0, 0), "nobody knows how fast it would have written");
        let point = judged(0, 5, 75);
        assert_eq!((point.destaged, point.sustained), (0.6, Some(1.2)));
    }

    fn moved(megabytes: u64) -> ClientReport {
        ClientReport { bytes: megabytes * 1_000_000, ..ClientReport::default() }
    }

    #[test]
    fn a_copy_is_judged_by_what_the_others_left_when_memory_is_full() {
        let copy = CopySpec { request_kib: 1024, in_flight: 1, files_at_once: 1 };
        let office = Pattern::Office { pause_ms: 1 };
        // In ten seconds, megabytes.
        let share = |background: &[Pattern], moved: [u64; 4]| {
            let mark = |at, factor| Mark {
                at: Duration::from_secs(at),
                moved: moved.map(|one| 7_000_000_000 + one * factor).to_vec(),
                ..Mark::default()
            };
            copies_share(background, 1, &[mark(0, 0), mark(10, 0), mark(20, 1_000_000)], 1000.0)
        };
        let copies = [office.clone(), Pattern::CopyTo(copy), Pattern::CopyFrom(copy)];
        // 400 Mbit/s are played, an office has 100, and the copies 125 each.
        assert_eq!(share(&copies, [500, 125, 156, 156]).map(f64::round), Some(50.0));
        assert_eq!(share(&[office.clone(), office.clone(), office], [500, 1, 1, 1]), None, "nobody copies");
        assert_eq!(share(&copies, [1250, 0, 1, 1]), None, "nothing is left");
    }

    #[test]
    fn processor_time_is_told_for_what_all_clients_moved() {
        let window = vec![Mark::default(); 2];
        let cpu =
            |reports: &[ClientReport]| judge(&smoke().experiments[0], seen(reports, 1, &window)).cpu_s_per_gb;
        assert_eq!(cpu(&[moved(1500), moved(500)]), Some(4.5 / 2.0));
        assert_eq!(cpu(&[moved(0)]), None);
    }

    #[test]
    fn starts_are_of_the_counted_and_jumps_of_those_beside_them() {
        let mut player = moved(1);
        player.start.record(Duration::from_millis(700));
        let mut other = moved(1);
        other.start.record(Duration::from_millis(1900));
        let mut scrubber = moved(1);
        scrubber.jumps.record(Duration::from_millis(250));
        let window = vec![Mark::default(); 2];
        let reports = [player, other, scrubber];
        let point = judge(&smoke().experiments[0], seen(&reports, 2, &window));
        let (start, jump) = (point.start.expect("two began"), point.jump.expect("one jumped"));
        assert!((700.0..790.0).contains(&start.p50_ms), "{start:?}");
        assert_eq!((start.longest_ms, jump.longest_ms), (1900.0, 250.0));
        assert_eq!(judge(&smoke().experiments[0], seen(&reports[2..], 1, &window)).start, None);
    }

    #[test]
    fn pairs_are_counted_as_pairs() {
        let experiment = Experiment { at_once: 2, ..smoke().experiments[0].clone() };
        let window = vec![Mark::default(); 2];
        let reports = [moved(1), moved(1), moved(1), moved(1)];
        assert_eq!(judge(&experiment, seen(&reports, 4, &window)).clients, 2);
    }
}
