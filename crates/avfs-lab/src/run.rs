//! Experiments, carried out.
//!
//! **For:** going through a declaration point by point, each with cold caches, and writing down what came of it. **State:**
//! the file of results, which only grows: a run that was broken off goes on behind its last line. **Invariants:** what
//! was measured under other conditions is never taken for a result; a point is written when it is complete.

use crate::experiment::{Access, Contender, Declaration, Experiment};
use crate::facts;
use crate::histogram::Histogram;
use crate::load::{self, Client, ClientReport, ClientSpec, Pattern, Transport};
use crate::local::LocalTransport;
use crate::lun::Counters;
use crate::processor::ProcessorTime;
use crate::rig::{FileServer, Rig, RigError, Scratch};
use crate::search::{self, Next};
use crate::smb::SmbTransport;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;
use units::{Bytes, Duration};

/// Clients start one after the other.
const STAGGER: Duration = Duration::from_millis(250);

/// Who reads as fast as he can gets through so many players' clips in a run; what he read before would come from memory.
const GREEDY_CLIPS: u64 = 12;

/// What recorders produce must reach the platters at this part of its rate while the device is at work for this part of the
/// time, or the run would have failed had it been longer. A device that rests could do more: it was not asked yet.
const KEEPS_UP: f64 = 0.95;

/// See [`Declaration::pairs`].
pub type Pairs = BTreeMap<(String, String), u64>;

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
    /// How many clients.
    pub clients: u32,
    /// Nobody was late, nothing failed, and the device kept up with the recorders.
    pub clean: bool,
    /// Units that were late.
    pub late: u64,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// Operations that failed.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// What was written back of what was recorded, as a part; 1 without recorders.
    pub destaged: f64,
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
    /// The deepest queue since the LUN was made.
    pub deepest_queue: u64,
}

/// The points of these pairs in a file of results; none when there is no file. An incomplete last line is ignored.
///
/// # Errors
/// When the file cannot be read, or a line of it is no result.
pub fn points(results: &Path, pairs: &Pairs) -> Result<Vec<Point>, io::Error> {
    let known: BTreeSet<u64> = pairs.values().copied().collect();
    let text = match std::fs::read_to_string(results) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut points = Vec::new();
    for (index, line) in whole.lines().enumerate() {
        let point: Point = serde_json::from_str(line).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{}, line {}, is no result (move the file away): {error}",
                    results.display(),
                    index + 1
                ),
            )
        })?;
        if known.contains(&point.pair) {
            points.push(point);
        }
    }
    Ok(points)
}

/// Appends a point; a line that a broken run left incomplete ends before it.
fn append(results: &Path, point: &Point) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(results)?;
    let text = std::fs::read(results)?;
    if text.last().is_some_and(|last| *last != b'\n') {
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
    }
    let mut line = serde_json::to_vec(point)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

/// What is to be measured next of an experiment on a contender, and in which search.
pub fn next(
    declaration: &Declaration,
    contender: &Contender,
    experiment: &Experiment,
    own: &[&Point],
) -> Option<(u32, u32)> {
    let mut guess = contender.guess(experiment);
    for repeat in 0..declaration.repeats {
        let outcomes: BTreeMap<u32, bool> = own
            .iter()
            .filter(|point| point.repeat == repeat)
            .map(|point| (point.clients, point.clean))
            .collect();
        match search::next(&outcomes, guess, experiment.most) {
            Next::Measure(clients) => return Some((repeat, clients)),
            Next::Found(found) => {
                guess = found.max(1);
                let beyond = (found + 1).min(experiment.most);
                let missing = (1..=beyond).find(|number| !outcomes.contains_key(number));
                if let Some(clients) = missing.filter(|_| declaration.curves && repeat == 0) {
                    return Some((repeat, clients));
                }
            }
        }
    }
    None
}

/// Points that are still to come, roughly: a search from a good guess takes three.
fn remaining(declaration: &Declaration, points: &[Point]) -> usize {
    let pairs = declaration
        .contenders
        .iter()
        .flat_map(|one| declaration.experiments.iter().map(move |two| (one, two)));
    pairs
        .map(|(contender, experiment)| {
            let own = of(points, contender, experiment);
            if next(declaration, contender, experiment, &own).is_none() {
                return 0;
            }
            let curve = if declaration.curves { experiment.most as usize / 2 } else { 0 };
            (3 * declaration.repeats as usize + curve).saturating_sub(own.len()).max(1)
        })
        .sum()
}

/// The points of one contender in one experiment.
pub fn of<'a>(points: &'a [Point], contender: &Contender, experiment: &Experiment) -> Vec<&'a Point> {
    let own = |point: &&Point| point.contender == contender.name && point.experiment == experiment.name;
    points.iter().filter(own).collect()
}

/// Carries out what is missing of a declaration.
///
/// # Errors
/// When a rig cannot be built, or the results cannot be written. What was measured stays.
pub fn carry_out(declaration: &Declaration, results: &Path) -> Result<(), Box<dyn Error>> {
    let pairs = declaration.pairs()?;
    let mut points = points(results, &pairs)?;
    let scratch = Scratch::new()?;
    let commit = facts::commit().unwrap_or_default();
    let (start, mut made) = (Instant::now(), 0_u32);
    for (number, contender) in declaration.contenders.iter().enumerate() {
        let open = |points: &[Point]| {
            let missing =
                |one: &&Experiment| next(declaration, contender, one, &of(points, contender, one)).is_some();
            declaration.experiments.iter().find(missing)
        };
        let Some(mut experiment) = open(&points) else { continue };
        eprintln!("{}: building the LUN, laying the clips", contender.name);
        let mut rig = Rig::build(&scratch, number, declaration, contender)?;
        lay(&mut rig, declaration)?;
        loop {
            let own = of(&points, contender, experiment);
            let Some((repeat, clients)) = next(declaration, contender, experiment, &own) else {
                match open(&points) {
                    Some(further) => experiment = further,
                    None => break,
                }
                continue;
            };
            let mut point = measure(&mut rig, declaration, experiment, clients, repeat)?;
            (point.contender, point.repeat) = (contender.name.clone(), repeat);
            point.pair = pairs[&(contender.name.clone(), experiment.name.clone())];
            (point.commit, point.date) = (commit.clone(), facts::date().unwrap_or_default());
            append(results, &point)?;
            points.push(point);
            made += 1;
            progress(&points, remaining(declaration, &points), start.elapsed() / made);
        }
    }
    Ok(())
}

fn progress(points: &[Point], remaining: usize, each: Duration) {
    let Some(point) = points.last() else { return };
    let verdict = match (&point.first_error, point.clean) {
        (Some(error), _) => format!("FAILED: {error}"),
        (None, true) => "in time".to_owned(),
        (None, false) => format!("{} late, {:.0} % destaged", point.late, point.destaged * 100.0),
    };
    let minutes = (each.as_secs_f64() * remaining as f64 / 60.0).ceil();
    eprintln!(
        "{}: {}: {} clients: {verdict} ({:.0} + {:.0} Mbit/s, {:.0} KiB a seek, {:.0} % busy) · about {remaining} runs, \
         {minutes:.0} minutes to go",
        point.contender,
        point.experiment,
        point.clients,
        point.megabits,
        point.background_megabits,
        point.kib_per_seek,
        point.utilisation
    );
}

/// How long a run with so many clients takes: all have started and filled their buffers, and then as long as is measured.
pub(crate) fn duration(declaration: &Declaration, number: u32) -> Duration {
    settled(number) + declaration.measured()
}

/// All have started, and filled their buffers.
fn settled(number: u32) -> Duration {
    STAGGER * number + Duration::from_secs(1)
}

/// The clients of a run, and how many of them count.
pub(crate) fn clients(
    declaration: &Declaration,
    experiment: &Experiment,
    number: u32,
    seed: u32,
) -> (Vec<ClientSpec>, usize) {
    // Odd parts of the golden ratio: spread, and not the same in each search.
    let position = |index: u32| (0.618_034 * f64::from(index + 1) + 0.137 * f64::from(seed)).fract();
    let spec = |directory: String, pattern: &Pattern, index: u32| ClientSpec {
        directory,
        pattern: pattern.clone(),
        start_after: STAGGER * index,
        clip: declaration.clip(),
        position: position(index),
    };
    let counted = (0..number).map(|index| spec(format!("client{index:02}"), &experiment.client, index));
    let beside = experiment.background.iter().enumerate().map(|(index, pattern)| {
        let spec = spec(format!("beside{index:02}"), pattern, index as u32);
        let reads = matches!(pattern, Pattern::CopyFrom(_) | Pattern::RandomReader(_));
        let clip = Bytes(spec.clip.as_u64() * if reads { GREEDY_CLIPS } else { 1 });
        ClientSpec { start_after: Duration::ZERO, clip, ..spec }
    });
    (counted.chain(beside).collect(), number as usize)
}

/// Everything that any experiment reads, for several who lay it at once: a directory's files belong together.
pub(crate) fn needs(declaration: &Declaration) -> Vec<Vec<(String, Bytes)>> {
    const AT_ONCE: usize = 4;
    let all = declaration.experiments.iter().flat_map(|one| clients(declaration, one, one.most, 0).0);
    let needs: BTreeMap<String, Bytes> = all.flat_map(|client| client.needs()).collect();
    let mut shares = vec![Vec::new(); AT_ONCE];
    let directories: BTreeSet<&str> = needs.keys().filter_map(|name| name.split('/').next()).collect();
    for (name, length) in &needs {
        let directory = name.split('/').next().unwrap_or_default();
        let turn = directories.iter().position(|known| *known == directory).unwrap_or(0);
        shares[turn % AT_ONCE].push((name.clone(), *length));
    }
    shares
}

/// Lays everything that any experiment reads, through Samba, with the model switched off.
fn lay(rig: &mut Rig, declaration: &Declaration) -> Result<(), Box<dyn Error>> {
    rig.mount()?;
    let server = rig.serve()?;
    let mut laying: Vec<Client> = needs(declaration).into_iter().map(Client::laying).collect();
    let mut transport = SmbTransport::connect(server.address(), FileServer::SHARE, laying.len())?;
    let reports = load::run(&mut transport, &mut laying, Duration::from_secs(3600), |_| {})?;
    drop(transport);
    drop(server);
    rig.unmount();
    match reports.into_iter().find_map(|report| report.first_error) {
        Some(error) => Err(format!("the clips cannot be laid: {error}").into()),
        None if laying.iter().all(Client::is_finished) => Ok(()),
        None => Err("the clips were not laid within an hour".into()),
    }
}

fn measure(
    rig: &mut Rig,
    declaration: &Declaration,
    experiment: &Experiment,
    number: u32,
    repeat: u32,
) -> Result<Point, Box<dyn Error>> {
    let (specs, counted) = clients(declaration, experiment, number, repeat);
    rig.mount()?;
    let server = (experiment.access == Access::Smb).then(|| rig.serve()).transpose()?;
    let mut transport: Box<dyn Transport> = match &server {
        Some(server) => Box::new(SmbTransport::connect(server.address(), FileServer::SHARE, specs.len())?),
        None => Box::new(LocalTransport::start(&rig.share(), specs.len())?),
    };
    rig.await_rest()?;
    rig.set_modelled(true)?;
    let mut clients: Vec<Client> = specs.iter().map(Client::new).collect();
    let (settled, duration) = (settled(number), duration(declaration, number));
    let mut seen: Vec<Result<Mark, RigError>> = Vec::new();
    let marks = [settled, settled + declaration.measured() / 2];
    let started = transport.now();
    let reports = load::run(transport.as_mut(), &mut clients, duration, |gone| {
        if marks.get(seen.len()).is_some_and(|mark| gone >= *mark) {
            seen.push(mark(rig, gone));
        }
    })?;
    seen.push(mark(rig, transport.now().saturating_since(started)));
    drop(transport);
    rig.set_modelled(false)?;
    drop(server);
    rig.remove_written()?;
    rig.unmount();
    let window = seen.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(judge(experiment, &reports, counted, &window, duration))
}

/// What had been done at a moment of a run.
#[derive(Clone, Debug, Default)]
struct Mark {
    /// Since the run began.
    at: Duration,
    counters: Counters,
    processor: ProcessorTime,
}

fn mark(rig: &Rig, at: Duration) -> Result<Mark, RigError> {
    Ok(Mark { at, counters: rig.counters()?, processor: rig.processor_time()? })
}

/// Sums up. `window`: when all had started, at half of the time, and at the end.
fn judge(
    experiment: &Experiment,
    reports: &[ClientReport],
    counted: usize,
    window: &[Mark],
    duration: Duration,
) -> Point {
    let (streams, beside) = reports.split_at(counted);
    let megabits = |reports: &[ClientReport]| {
        reports.iter().map(|one| one.bytes).sum::<u64>() as f64 * 8.0 / duration.as_secs_f64() / 1e6
    };
    let mut latency = Histogram::default();
    for report in streams {
        latency.merge(&report.latency);
    }
    let errors: u64 = reports.iter().map(|one| one.errors).sum();
    let late: u64 = streams.iter().map(|one| one.late).sum();
    let first = &window[0];
    let last = &window[window.len() - 1];
    let seconds = (last.at - first.at).as_secs_f64().max(1e-3);
    let span =
        |figure: fn(&Counters) -> u64| figure(&last.counters).saturating_sub(figure(&first.counters)) as f64;
    let transferred = span(|one| one.read_bytes) + span(|one| one.destaged_bytes);
    let recorded = experiment.client.recorded_megabits();
    let destaged = recorded.map_or(1.0, |megabits| destaged(megabits * counted as f64, window));
    let each = |bytes: f64, count: f64| if count > 0.0 { bytes / count / 1024.0 } else { 0.0 };
    Point {
        pair: 0,
        commit: String::new(),
        date: String::new(),
        experiment: experiment.name.clone(),
        contender: String::new(),
        repeat: 0,
        clients: counted as u32,
        clean: late == 0 && errors == 0 && (destaged >= KEEPS_UP || rests(window)),
        late,
        latest_ms: streams.iter().map(|one| one.latest_ms).fold(0.0, f64::max),
        errors,
        first_error: reports.iter().find_map(|one| one.first_error.clone()),
        destaged,
        megabits: megabits(streams),
        background_megabits: megabits(beside),
        p50_ms: latency.percentile_ms(50.0),
        p99_ms: latency.percentile_ms(99.0),
        longest_ms: latency.longest_ms(),
        device_read_megabits: span(|one| one.read_bytes) * 8.0 / seconds / 1e6,
        device_write_megabits: span(|one| one.destaged_bytes) * 8.0 / seconds / 1e6,
        read_kib: each(span(|one| one.read_bytes), span(|one| one.reads)),
        write_kib: each(span(|one| one.written_bytes), span(|one| one.writes)),
        seeks_per_s: span(|one| one.seeks) / seconds,
        kib_per_seek: each(transferred, span(|one| one.seeks)),
        utilisation: (span(|one| one.busy_ns) / seconds / 1e7).min(100.0),
        processors: last.processor.percent_since(&first.processor),
        deepest_queue: last.counters.deepest_queue,
    }
}

/// Of what recorders produce in the second half of the window, the part that reached the platters in that time. By their
/// bitrate, not by what was taken from them: that began later, and may have been less.
fn destaged(megabits: f64, window: &[Mark]) -> f64 {
    let (Some(before), Some(after)) = (window.iter().rev().nth(1), window.last()) else { return 0.0 };
    let expected = megabits * 1e6 / 8.0 * (after.at - before.at).as_secs_f64();
    let written = after.counters.destaged_bytes.saturating_sub(before.counters.destaged_bytes) as f64;
    if expected > 0.0 { (written / expected).min(1.0) } else { 0.0 }
}

/// Whether the device had nothing to do for a part of the second half of the window.
fn rests(window: &[Mark]) -> bool {
    let (Some(before), Some(after)) = (window.iter().rev().nth(1), window.last()) else { return false };
    let busy = after.counters.busy_ns.saturating_sub(before.counters.busy_ns) as f64;
    busy / 1e9 < KEEPS_UP * (after.at - before.at).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{point, smoke};

    #[test]
    fn a_broken_run_goes_on_behind_its_last_whole_line() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let results = directory.path().join("results.jsonl");
        let pairs = |number| Pairs::from([(("ext4".to_owned(), "readers".to_owned()), number)]);
        let (mine, other) = (point(2, true, 0), Point { pair: 7, ..point(1, true, 0) });
        let own = pairs(mine.pair);
        assert_eq!(points(&results, &own).expect("no file is no result"), []);
        append(&results, &mine).expect("there is room");
        append(&results, &other).expect("there is room");
        let whole = std::fs::read(&results).expect("it was written");
        std::fs::write(&results, &whole[..whole.len() - 20]).expect("there is room");
        let found = points(&results, &own).expect("an incomplete line is ignored");
        assert_eq!(found, std::slice::from_ref(&mine));
        append(&results, &other).expect("there is room");
        assert_eq!(points(&results, &pairs(7)).expect("it is whole again"), [other]);
        std::fs::write(&results, "nonsense\n").expect("there is room");
        assert!(points(&results, &own).expect_err("no result").to_string().contains("line 1"));
    }

    #[test]
    fn repeats_search_anew_and_curves_fill_what_the_search_left_out() {
        let mut declaration = smoke();
        declaration.repeats = 2;
        declaration.curves = true;
        let experiment = Experiment { most: 9, guess: 5, ..declaration.experiments[0].clone() };
        let mut made: Vec<Point> = Vec::new();
        while let Some((repeat, clients)) =
            next(&declaration, &declaration.contenders[0], &experiment, &made.iter().collect::<Vec<_>>())
        {
            made.push(point(clients, clients <= 6, repeat));
        }
        let mut first: Vec<u32> = made.iter().filter(|one| one.repeat == 0).map(|one| one.clients).collect();
        first.sort_unstable();
        // The search itself went up to 8.
        assert_eq!(first, [1, 2, 3, 4, 5, 6, 7, 8], "all up to one beyond the largest");
        let second: Vec<u32> = made.iter().filter(|one| one.repeat == 1).map(|one| one.clients).collect();
        assert_eq!(second, [6, 7], "begins where the first ended");
    }

    /// Counted by what was taken from the recorders on average since the first started, the last of them hid: thirteen
    /// recorders of 100 Mbit/s were clean on a device that wrote 1150.
    #[test]
    fn a_device_that_falls_behind_the_recorders_is_no_clean_run() {
        let declaration = smoke();
        let experiment = &declaration.experiments[1];
        let at = |seconds, busy_seconds: u64, megabytes: u64| {
            let counters = Counters {
                destaged_bytes: megabytes * 1_000_000,
                busy_ns: busy_seconds * 1_000_000_000,
                ..Counters::default()
            };
            Mark { at: Duration::from_secs(seconds), counters, ..Mark::default() }
        };
        let report = ClientReport { bytes: 200 << 20, units: 200, ..ClientReport::default() };
        // One recorder of 100 Mbit/s: 125 MB in ten seconds.
        let clean = |busy_seconds: u64, written: u64| {
            let window = [at(0, 0, 0), at(10, 10, 100), at(20, 10 + busy_seconds, 100 + written)];
            judge(experiment, std::slice::from_ref(&report), 1, &window, Duration::from_secs(20)).clean
        };
        assert!(clean(10, 125));
        assert!(!clean(10, 115), "the rest is still in caches");
        assert!(clean(9, 0), "a filesystem that holds back what the device has time for");
    }
}
