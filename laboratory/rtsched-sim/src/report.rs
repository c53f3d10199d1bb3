//! What came of it.
//!
//! **For:** the results of a run, as a table for people and as a line of JSON for programs, and whether they are what was
//! expected. **Excludes:** judging what was not declared. **State:** none.

use crate::oracle::MARGIN;
use crate::stream::Stream;
use crate::workload::Expect;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The part of the time that streams leave for which requests may wait although the device has nothing to do: a policy does
/// not know how long exactly a cache writes what it has taken. The rest, 85 %, is what best effort is owed of that time.
pub const IDLE_MAX: f64 = 0.15;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Of this scenario …
    pub scenario: String,
    /// … under this policy …
    pub policy: String,
    /// … on this device …
    pub device: String,
    /// … with this seed …
    pub seed: u64,
    /// … for so long, virtual seconds.
    pub duration_s: f64,
    /// What became of each stream.
    pub streams: Vec<StreamOutcome>,
    /// Who was refused.
    pub refusals: Vec<Refusal>,
    /// The part of the time in which the device worked.
    pub utilisation: f64,
    /// The part of the time in which it had nothing to do, although requests waited.
    pub idle_share: f64,
    /// The part of the time in which it worked for admitted streams.
    pub streams_share: f64,
    /// Best effort's part of the time that streams and metadata left; absent: it had none.
    pub best_effort_share_of_rest: Option<f64>,
    /// What streams got, MB/s (10^6 bytes).
    pub streams_mb_per_s: f64,
    /// What best effort got, MB/s.
    pub best_effort_mb_per_s: f64,
    /// Time of best-effort requests from enqueueing to completion: the longest, and the 99th percentile, milliseconds.
    pub best_effort_ms: Option<(f64, f64)>,
    /// The same of metadata requests.
    pub metadata_ms: Option<(f64, f64)>,
    /// Times the arm went elsewhere.
    pub seeks: u64,
    /// Commands at the device.
    pub commands: u64,
    /// Their mean length, KiB.
    pub command_kib: f64,
    /// How many were of which length: KiB, rounded down to a power of two (0: less than 1), and their number.
    pub command_lengths: Vec<(u64, u64)>,
    /// The most requests that were on their way at once.
    pub most_queued: u64,
    /// The most commands at the device at once.
    pub most_in_flight: u64,
    /// What must never happen and did: requests lost, served twice, or left waiting by an idle device.
    pub violations: Vec<String>,
    /// A hash of all that happened, in order.
    pub trace_hash: String,
}

/// What became of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamOutcome {
    /// Its number.
    pub stream: usize,
    /// Its group.
    pub group: String,
    /// What it asked for, Mbit/s.
    pub rate_mbit: f64,
    /// It keeps to its rate.
    pub behaves: bool,
    /// It may lose its guarantee: it pauses, so others may have its time, or its device becomes slower.
    pub may_be_demoted: bool,
    /// How often it was admitted.
    pub admitted: u32,
    /// How often it was refused.
    pub refused: u32,
    /// How often it lost its guarantee.
    pub demoted: u32,
    /// Units in time while it had a guarantee.
    pub on_time: u64,
    /// Units late, or lost, while it had a guarantee.
    pub late: u64,
    /// Of these, those of visits in which its guarantee was interrupted, before or after.
    pub late_interrupted: u64,
    /// Units in time without a guarantee.
    pub unpromised_on_time: u64,
    /// Units late without a guarantee.
    pub unpromised_late: u64,
    /// By how much its latest request was late, or early (negative), milliseconds.
    pub tardiness_max_ms: Option<f64>,
    /// The longest time from an open or a jump to the first picture, milliseconds.
    pub picture_max_ms: f64,
    /// Length of its last request, KiB.
    pub request_kib: f64,
    /// The granted time to a deadline: how long after joining a player starts, milliseconds.
    pub window_ms: f64,
}

impl StreamOutcome {
    pub(crate) fn new(stream: usize, of: &Stream, device_changes: bool) -> Self {
        let tally = &of.tally;
        Self {
            stream,
            group: of.group.clone(),
            rate_mbit: of.rate.0 as f64 / 1e6,
            behaves: of.pace <= of.rate,
            may_be_demoted: device_changes || of.pauses,
            admitted: tally.admitted,
            refused: tally.refused,
            demoted: tally.demoted,
            on_time: tally.units.saturating_sub(tally.late),
            late: tally.late,
            late_interrupted: tally.late_interrupted,
            unpromised_on_time: tally.unpromised_units.saturating_sub(tally.unpromised_late),
            unpromised_late: tally.unpromised_late,
            tardiness_max_ms: tally.tardiness_max_ms,
            picture_max_ms: tally.picture_max_ms,
            request_kib: tally.request.as_u64() as f64 / 1024.0,
            window_ms: tally.window.as_secs_f64() * 1e3,
        }
    }

    /// Units late that were promised: of visits in which it kept its guarantee, and where it had no reason to lose it, of
    /// the others, too; also those after it lost it, unless it was refused at times, when they cannot be told apart.
    pub fn broken_promises(&self) -> u64 {
        match (self.behaves, self.may_be_demoted) {
            (false, _) => 0,
            (true, true) => self.late - self.late_interrupted,
            (true, false) => {
                self.late + if self.demoted > 0 && self.refused == 0 { self.unpromised_late } else { 0 }
            }
        }
    }

    /// It was admitted and never lost its guarantee, and no unit was late.
    pub fn is_clean(&self) -> bool {
        self.behaves && self.admitted > 0 && self.demoted == 0 && self.late == 0
    }
}

/// A stream that was not admitted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// When, virtual seconds.
    pub at_s: f64,
    /// Which.
    pub stream: usize,
    /// How many had been admitted.
    pub beside: usize,
    /// Why, in the policy's words.
    pub reason: String,
    /// The part of the device's time that the oracle needs for all of them and this one; absent: it lacks memory.
    pub oracle_utilisation: Option<f64>,
}

impl Refusal {
    /// The oracle could have carried it and had its margin left.
    pub fn is_wrong(&self) -> bool {
        self.oracle_utilisation.is_some_and(|used| used <= 1.0 - MARGIN)
    }
}

impl Outcome {
    /// Late units of streams that nothing excuses.
    pub fn late(&self) -> u64 {
        self.streams.iter().map(StreamOutcome::broken_promises).sum()
    }

    /// Streams that were admitted and stayed clean.
    pub fn clean(&self) -> usize {
        self.streams.iter().filter(|stream| stream.is_clean()).count()
    }

    /// What is not as it was declared, and as it must always be; empty: all is well.
    pub fn failures(&self, expect: &Expect) -> Vec<String> {
        let mut failures = self.violations.clone();
        let mut check = |holds: bool, what: String| failures.extend((!holds).then_some(what));
        let idle = self.idle_share / (1.0 - self.streams_share).max(f64::MIN_POSITIVE);
        check(
            idle <= IDLE_MAX,
            format!(
                "the device is idle for {:.1} % of what streams leave although requests wait",
                idle * 100.0
            ),
        );
        check(self.late() == 0, format!("{} units of admitted streams are late", self.late()));
        let wrong: Vec<_> = self.refusals.iter().filter(|refusal| refusal.is_wrong()).collect();
        if let Some(first) = wrong.first() {
            let used = first.oracle_utilisation.unwrap_or_default() * 100.0;
            let (at, count, beside) = (first.at_s, wrong.len(), first.beside);
            let reason = &first.reason;
            check(
                false,
                format!(
                    "{count} streams were refused that the oracle could have carried; the first at {at:.1} s beside \
                     {beside} others, with which it takes {used:.1} % of the time: {reason}"
                ),
            );
        }
        if let Some(least) = expect.clean_min {
            check(self.clean() >= least as usize, format!("{} streams are clean, not {least}", self.clean()));
        }
        if let Some(least) = expect.best_effort_share_min {
            let share = self.best_effort_share_of_rest.unwrap_or(0.0);
            check(
                share >= least,
                format!(
                    "best effort has {:.1} % of what the streams leave, not {:.1} %",
                    share * 100.0,
                    least * 100.0
                ),
            );
        }
        for (name, most, measured) in [
            ("metadata", expect.metadata_max_ms, self.metadata_ms),
            ("best-effort", expect.best_effort_max_ms, self.best_effort_ms),
        ] {
            if let Some(most) = most {
                let longest = measured.map_or(f64::INFINITY, |(longest, _)| longest);
                check(
                    longest <= most,
                    format!("a {name} request took {longest:.1} ms, more than {most:.1} ms"),
                );
            }
        }
        if let Some(group) = &expect.demoted_only {
            let demoted = |stream: &&StreamOutcome| stream.demoted > 0;
            let others = self.streams.iter().filter(demoted).filter(|stream| stream.group != *group).count();
            check(others == 0, format!("{others} streams of other groups than {group} were demoted"));
            let any = self.streams.iter().any(|stream| stream.demoted > 0);
            check(any, format!("no stream of {group} was demoted"));
        }
        failures
    }

    /// One line of JSON.
    ///
    /// # Panics
    /// Never: there is nothing in it that has no JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, strings and lists")
    }

    /// For people: the run in a few lines, its streams by group (or one by one if `each`).
    pub fn to_table(&self, each: bool) -> String {
        let mut text = String::new();
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let _ = writeln!(
            text,
            "{} under {} on {}, {} s, seed {}, trace {}",
            self.scenario, self.policy, self.device, self.duration_s, self.seed, self.trace_hash
        );
        let _ = writeln!(
            text,
            "  streams: {} clean, {} units late, {} refused of which {} wrongly",
            self.clean(),
            self.late(),
            self.refusals.len(),
            self.refusals.iter().filter(|refusal| refusal.is_wrong()).count()
        );
        let rest = self.best_effort_share_of_rest.map_or("none".to_owned(), |share| {
            format!("{:.1} MB/s in {} of what streams leave", self.best_effort_mb_per_s, percent(share))
        });
        let _ = writeln!(
            text,
            "  device: {} busy, {} for streams ({:.1} MB/s); best effort: {rest}",
            percent(self.utilisation),
            percent(self.streams_share),
            self.streams_mb_per_s
        );
        let _ = writeln!(
            text,
            "  commands: {} of {:.0} KiB on average, {} seeks, at most {} at the device and {} on their way",
            self.commands, self.command_kib, self.seeks, self.most_in_flight, self.most_queued
        );
        let lengths = self.command_lengths.iter().map(|(kib, count)| format!("{count} from {kib} KiB"));
        let _ = writeln!(text, "  lengths: {}", lengths.collect::<Vec<_>>().join(", "));
        for (name, times) in [("metadata", self.metadata_ms), ("best effort", self.best_effort_ms)] {
            if let Some((longest, p99)) = times {
                let _ = writeln!(text, "  {name}: 99 % within {p99:.1} ms, longest {longest:.1} ms");
            }
        }
        let header = [
            "stream",
            "Mbit/s",
            "admitted",
            "refused",
            "demoted",
            "on time",
            "late",
            "tardiness",
            "picture",
            "window",
            "request",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        if each {
            rows.extend(self.streams.iter().map(|stream| row(&[stream])));
        } else {
            let mut groups: BTreeMap<(&str, u64), Vec<&StreamOutcome>> = BTreeMap::new();
            for stream in &self.streams {
                groups.entry((&stream.group, stream.rate_mbit as u64)).or_default().push(stream);
            }
            rows.extend(groups.values().map(|streams| row(streams)));
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells: Vec<String> = cells
                .map(
                    |(column, (cell, width))| {
                        if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                    },
                )
                .collect();
            let _ = writeln!(text, "  {}", cells.join("  "));
        }
        text
    }
}

/// A row of the table, for one stream or several.
fn row(streams: &[&StreamOutcome]) -> [String; 11] {
    let first = streams[0];
    let sum = |of: fn(&StreamOutcome) -> u64| streams.iter().map(|stream| of(stream)).sum::<u64>();
    let most =
        |of: fn(&StreamOutcome) -> f64| streams.iter().map(|stream| of(stream)).fold(f64::MIN, f64::max);
    let name = match streams.len() {
        1 => format!("{} #{}", first.group, first.stream),
        count => format!("{} × {count}", first.group),
    };
    let tardiness = most(|stream| stream.tardiness_max_ms.unwrap_or(f64::NEG_INFINITY));
    [
        name,
        format!("{}", first.rate_mbit),
        sum(|stream| u64::from(stream.admitted)).to_string(),
        sum(|stream| u64::from(stream.refused)).to_string(),
        sum(|stream| u64::from(stream.demoted)).to_string(),
        (sum(|stream| stream.on_time) + sum(|stream| stream.unpromised_on_time)).to_string(),
        (sum(|stream| stream.late) + sum(|stream| stream.unpromised_late)).to_string(),
        if tardiness > f64::MIN { format!("{tardiness:.1} ms") } else { "-".to_owned() },
        format!("{:.0} ms", most(|stream| stream.picture_max_ms)),
        format!("{:.0} ms", most(|stream| stream.window_ms)),
        format!("{:.0} KiB", most(|stream| stream.request_kib)),
    ]
}
