//! Experiments, carried out.
//!
//! **For:** going through a declaration point by point, each with cold caches, and writing down what came of it. **State:**
//! [`Results`]. **Invariants:** what is measured next depends on what was written down and on nothing else.

use crate::ageing::{self, Step};
use crate::facts;
use crate::local::LocalTransport;
use crate::memory;
use crate::point::{Mark, Percentiles, Point, Seen, judge};
use crate::processor::ServingTime;
use crate::results::Results;
use crate::rig::{FileServer, Rig, RigError, Scratch};
use crate::search::{self, Next};
use crate::smb::SmbTransport;
use crate::steal;
use avfs_workloads::{Access, Contender, Declaration, Experiment};
use avfs_workloads::{Client, Transport, clients, needs, ramp};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::time::Instant;
use units::{Bytes, Duration};

/// What was measured of a declaration so far.
#[derive(Debug)]
pub struct Known {
    settled: Vec<Point>,
    doubtful: Vec<Point>,
}

impl Known {
    /// What is written down.
    pub fn of(results: &Results) -> Self {
        Self { settled: results.settled(), doubtful: results.doubtful() }
    }
}

/// What is to be measured next of an experiment on a contender, and in which search.
///
/// What the machine's host may have decided says where to search, like anything else, but ends no search: on a machine of
/// which the host took a tenth, four runs were spent on twelve players who did not matter, because eleven were late, too.
pub fn next(
    declaration: &Declaration,
    contender: &Contender,
    experiment: &Experiment,
    known: &Known,
) -> Option<(u32, u32)> {
    let outcomes = |points: &[Point], repeat: u32| -> BTreeMap<u32, bool> {
        let own = of(points, contender, experiment).into_iter().filter(|point| point.repeat == repeat);
        own.map(|point| (point.clients, point.clean)).collect()
    };
    let mut guess = contender.guess(experiment);
    for repeat in 0..declaration.repeats {
        let settled = outcomes(&known.settled, repeat);
        let mut seen = outcomes(&known.doubtful, repeat);
        seen.extend(&settled);
        match search::next(&seen, guess, experiment.most) {
            Next::Measure(clients) => return Some((repeat, clients)),
            Next::Found(found) => {
                guess = found.max(1);
                let beyond = (found + 1).min(experiment.most);
                let is_open = |number: &u32| seen.contains_key(number) && !settled.contains_key(number);
                if let Some(clients) = [found, beyond].into_iter().find(is_open) {
                    return Some((repeat, clients));
                }
                let missing = (1..=beyond).find(|number| !settled.contains_key(number));
                if let Some(clients) = missing.filter(|_| declaration.curves && repeat == 0) {
                    return Some((repeat, clients));
                }
            }
        }
    }
    None
}

/// A point that is to be measured.
#[derive(Debug)]
struct Due<'a> {
    /// Its place in the declaration.
    contender: usize,
    experiment: &'a Experiment,
    repeat: u32,
    clients: u32,
}

/// The point that is to be measured next of all. Each contender's experiments of an age are done one after the other, so that a
/// volume is made once; where contenders take turns, it is the turn of whom fewer points are known.
fn due<'a>(declaration: &'a Declaration, known: &Known) -> Option<Due<'a>> {
    let pairs = declaration.contenders.iter().enumerate().flat_map(|(number, contender)| {
        declaration.experiments.iter().enumerate().filter_map(move |(place, experiment)| {
            let (repeat, clients) = next(declaration, contender, experiment, known)?;
            let measured = of(&known.settled, contender, experiment).len();
            let (first, turn) = if declaration.take_turns { (0, measured) } else { (number, 0) };
            let order = (first, experiment.aged_percent, place, turn, number);
            Some((order, Due { contender: number, experiment, repeat, clients }))
        })
    });
    pairs.min_by_key(|(order, _)| *order).map(|(_, due)| due)
}

/// Points that are still to come, roughly: a search from a good guess takes three.
fn remaining(declaration: &Declaration, known: &Known) -> usize {
    let pairs = declaration
        .contenders
        .iter()
        .flat_map(|one| declaration.experiments.iter().map(move |two| (one, two)));
    pairs
        .map(|(contender, experiment)| {
            if next(declaration, contender, experiment, known).is_none() {
                return 0;
            }
            let own = of(&known.settled, contender, experiment);
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
    let pairs = crate::experiment::pairs(declaration)?;
    let mut results = Results::open(results, &pairs)?;
    let mut known = Known::of(&results);
    let scratch = Scratch::new()?;
    let commit = facts::commit().unwrap_or_default();
    memory::is_available(declaration)?;
    let (start, mut made) = (Instant::now(), 0_u32);
    let mut volumes: BTreeMap<(usize, Option<u32>), Volume> = BTreeMap::new();
    while let Some(Due { contender: number, experiment, repeat, clients }) = due(declaration, &known) {
        let contender = &declaration.contenders[number];
        let place = (number, experiment.aged_percent);
        // Those that are done with are not kept beside it.
        volumes.retain(|of, _| *of == place || declaration.take_turns && of.1 == place.1);
        let volume = match volumes.entry(place) {
            Entry::Occupied(known) => known.into_mut(),
            // Each volume is made once, before a point of it: so their numbers differ.
            Entry::Vacant(new) => {
                new.insert(Volume::make(&scratch, made as usize, declaration, contender, place.1)?)
            }
        };
        let mut point = volume.measure(declaration, experiment, clients, repeat)?;
        (point.contender, point.repeat) = (contender.name.clone(), repeat);
        point.pair = pairs[&(contender.name.clone(), experiment.name.clone())];
        (point.commit, point.date) = (commit.clone(), facts::date().unwrap_or_default());
        let point = results.add(point)?.clone();
        known = Known::of(&results);
        made += 1;
        progress(&point, remaining(declaration, &known), start.elapsed() / made);
        if point.set_aside {
            steal::await_processors(steal::look, |told| eprintln!("{told}"))?;
        }
    }
    Ok(())
}

fn progress(point: &Point, remaining: usize, each: Duration) {
    let minutes = (each.as_secs_f64() * remaining as f64 / 60.0).ceil();
    eprintln!("{} · about {remaining} runs, {minutes:.0} minutes to go", verdict(point));
}

/// A line about a point.
pub fn verdict(point: &Point) -> String {
    let verdict = match (&point.first_error, point.clean) {
        (Some(error), _) => format!("FAILED: {error}"),
        (None, true) => "in time".to_owned(),
        (None, false) => match point.sustained {
            Some(part) => {
                format!("{} late, {:.0} % of what is recorded can be sustained", point.late, part * 100.0)
            }
            None => format!("{} late", point.late),
        },
    };
    let begins = match point.start.filter(|_| !point.all_play()) {
        Some(start) => format!(", somebody begins after {:.1} s", start.longest_ms / 1e3),
        None => String::new(),
    };
    let with_reservation = point.late_with_reservation.filter(|_| point.late > 0);
    let with_reservation =
        with_reservation.map_or(String::new(), |late| format!(", {late} of those with a reservation"));
    let within = |name: &str, times: Option<Percentiles>| {
        times.map_or(String::new(), |times| format!(", {name} {:.0} ms", times.p99_ms))
    };
    let stolen = point.is_disturbed().then(|| {
        let again = if point.set_aside { ", SET ASIDE" } else { "" };
        format!(", {:.0} % TAKEN BY THE MACHINE'S HOST{again}", point.stolen)
    });
    format!(
        "{}: {}: {} clients: {verdict}{with_reservation}{begins} ({:.0} + {:.0} Mbit/s, {:.0} KiB a seek, {:.0} % busy{}{}{}{})",
        point.contender,
        point.experiment,
        point.clients,
        point.megabits,
        point.background_megabits,
        point.kib_per_seek,
        point.utilisation,
        within("start", point.start),
        within("jump", point.jump),
        point
            .avfs
            .map_or(String::new(), |said| format!(", {:.1} % read for nobody", said.never_read_percent)),
        stolen.unwrap_or_default(),
    )
}

/// How a volume is aged on which these files are laid then, with which it is so full.
pub(crate) fn ageing(declaration: &Declaration, percent: u32, files: &BTreeMap<String, Bytes>) -> Vec<Step> {
    ageing::plan(full(declaration, percent), together(files))
}

/// So many percent of the LUN.
fn full(declaration: &Declaration, percent: u32) -> Bytes {
    Bytes((declaration.size_gib << 30) * u64::from(percent) / 100)
}

fn together(files: &BTreeMap<String, Bytes>) -> Bytes {
    Bytes(files.values().map(|length| length.as_u64()).sum())
}

/// Files for several who lay them at once: a directory's belong together.
pub(crate) fn shares(files: &BTreeMap<String, Bytes>) -> Vec<Vec<(String, Bytes)>> {
    const AT_ONCE: usize = 4;
    let mut shares = vec![Vec::new(); AT_ONCE];
    let directories: BTreeSet<&str> = files.keys().filter_map(|name| name.split('/').next()).collect();
    for (name, length) in files {
        let directory = name.split('/').next().unwrap_or_default();
        let turn = directories.iter().position(|known| *known == directory).unwrap_or(0);
        shares[turn % AT_ONCE].push((name.clone(), *length));
    }
    shares
}

/// A contender's volume with the clips on it.
struct Volume {
    rig: Rig,
    /// What is laid, and stays.
    laid: BTreeMap<String, Bytes>,
}

impl Volume {
    /// Aged first, if it is to be.
    fn make(
        scratch: &Scratch,
        number: usize,
        declaration: &Declaration,
        contender: &Contender,
        age: Option<u32>,
    ) -> Result<Self, Box<dyn Error>> {
        let laid = needs(declaration, age);
        let clips = together(&laid);
        let full = full(declaration, age.unwrap_or(95));
        if clips > full {
            return Err(format!(
                "the clips take {clips}, and {full} of the LUN are for them: raise size_gib, or lower clip_mib or most"
            )
            .into());
        }
        eprintln!("{}: building the LUN, laying {clips} of clips", contender.name);
        let mut rig = Rig::build(scratch, number, declaration, contender)?;
        if let Some(percent) = age {
            let steps = ageing(declaration, percent, &laid);
            eprintln!("{}: ageing the volume, {} steps", contender.name, steps.len());
            rig.mount()?;
            ageing::carry_out(&steps, &rig.beside_share("aged"))
                .map_err(|error| format!("the volume cannot be aged: {error}"))?;
            rig.unmount();
        }
        let mut volume = Self { rig, laid };
        volume.lay()?;
        Ok(volume)
    }

    /// Lays everything that any experiment reads, through Samba, several files at once, with the model switched off.
    fn lay(&mut self) -> Result<(), Box<dyn Error>> {
        self.rig.mount()?;
        let server = self.rig.serve()?;
        let mut laying: Vec<Client> = shares(&self.laid).into_iter().map(Client::laying).collect();
        let mut transport = SmbTransport::connect(server.address(), FileServer::SHARE, laying.len())?;
        let reports = avfs_workloads::run(&mut transport, &mut laying, Duration::from_secs(3600), |_, _| {})?;
        drop(transport);
        drop(server);
        self.rig.unmount();
        match reports.into_iter().find_map(|report| report.first_error) {
            Some(error) => Err(format!("the clips cannot be laid: {error}").into()),
            None if laying.iter().all(Client::is_finished) => Ok(()),
            None => Err("the clips were not laid within an hour".into()),
        }
    }

    fn measure(
        &mut self,
        declaration: &Declaration,
        experiment: &Experiment,
        number: u32,
        repeat: u32,
    ) -> Result<Point, Box<dyn Error>> {
        let (specs, counted) = clients(declaration, experiment, number, repeat);
        let rig = &mut self.rig;
        rig.mount()?;
        let server = (experiment.access == Access::Smb).then(|| rig.serve()).transpose()?;
        let mut transport: Box<dyn Transport> = match &server {
            Some(server) => {
                Box::new(SmbTransport::connect(server.address(), FileServer::SHARE, specs.len())?)
            }
            None => Box::new(LocalTransport::start(&rig.share(), specs.len())?),
        };
        rig.await_rest()?;
        rig.set_modelled(true)?;
        let mut clients: Vec<Client> = specs.iter().map(Client::new).collect();
        let settled = ramp(experiment, counted as u32);
        let duration = settled + declaration.measured(experiment);
        let mut seen: Vec<Result<Mark, RigError>> = Vec::new();
        let marks = [settled, settled + declaration.measured(experiment) / 2];
        let servers: Vec<u32> =
            rig.daemon()?.into_iter().chain(server.as_ref().map(FileServer::process)).collect();
        let serving = || ServingTime::now(&servers);
        let before = serving()?;
        let began = rig.processor_time()?;
        let started = transport.now();
        let reports = avfs_workloads::run(transport.as_mut(), &mut clients, duration, |gone, clients| {
            if marks.get(seen.len()).is_some_and(|mark| gone >= *mark) {
                seen.push(mark(rig, gone, clients));
            }
        })?;
        seen.push(mark(rig, transport.now().saturating_since(started), &clients));
        let serving_s = serving()?.seconds_since(&before);
        // While the clients' files are open, and with them their streams.
        let avfs = rig.avfs_report()?;
        let reserved = rig.have_reservations(&specs[..counted])?;
        drop(transport);
        rig.set_modelled(false)?;
        drop(server);
        rig.remove_written(&self.laid)?;
        rig.unmount();
        let window = seen.into_iter().collect::<Result<Vec<_>, _>>()?;
        let sequential_megabits = crate::experiment::device(declaration)?.sequential_mb_per_s() * 8.0;
        let reports = &reports;
        let window = &window;
        Ok(judge(
            experiment,
            Seen {
                reports,
                counted,
                serving_s,
                began,
                window,
                duration,
                sequential_megabits,
                avfs,
                reserved,
            },
        ))
    }
}

fn mark(rig: &Rig, at: Duration, clients: &[Client]) -> Result<Mark, RigError> {
    let moved = clients.iter().map(Client::moved).collect();
    Ok(Mark { at, counters: rig.counters()?, processor: rig.processor_time()?, moved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{point, smoke};
    use avfs_workloads::Pattern;

    #[test]
    fn clips_are_as_long_as_the_fastest_who_reads_them_needs() {
        let mut declaration = smoke();
        let slow = declaration.experiments[0].clone();
        let Pattern::Player(spec) = slow.client else { panic!("smoke begins with players") };
        let fast = Pattern::Player(avfs_workloads::StreamSpec { megabits: 800.0, ..spec });
        declaration.experiments.push(Experiment { name: "fast".to_owned(), client: fast, ..slow.clone() });
        declaration.experiments.push(Experiment {
            name: "aged".to_owned(),
            aged_percent: Some(50),
            in_turn_with: vec![Pattern::Recorder(spec)],
            at_once: 2,
            ..slow
        });
        let fresh = needs(&declaration, None);
        // For 4 s, and 1.5 s until both have started.
        assert_eq!(fresh["client01/clip.100.mov"], Bytes::from_mib(66));
        assert_eq!(fresh["client01/clip.800.mov"], Bytes::from_mib(525));
        let mut longer = declaration.clone();
        longer.clip_mib = 256;
        assert_eq!(needs(&longer, None)["client01/clip.100.mov"], Bytes::from_mib(256));
        let aged: Vec<_> = needs(&declaration, Some(50)).into_keys().collect();
        assert_eq!(aged, ["client00/clip.100.mov", "client02/clip.100.mov"], "two pairs, in turns");
        let (specs, counted) = clients(&declaration, &declaration.experiments[1], 1, 0);
        assert_eq!((specs.len(), counted), (2, 1), "and a copy");
    }

    /// Players of 12 s began again 54 MiB before the end of their files, which others needed for 24 s: what they were read ahead
    /// of there took a sixth of the device's time.
    #[test]
    fn clips_end_where_their_files_do() {
        let mut declaration = smoke();
        declaration.experiments.truncate(1);
        let short = declaration.experiments[0].clone();
        let Pattern::Player(spec) = short.client else { panic!("smoke begins with players") };
        let frames = Pattern::FramePlayer(avfs_workloads::StreamSpec { unit_kib: 500, ..spec });
        let both = Experiment { in_turn_with: vec![frames], at_once: 2, ..short };
        let longer = Experiment { name: "longer".to_owned(), most: both.most + 8, ..both.clone() };
        declaration.experiments = vec![both, longer];
        for experiment in &declaration.experiments {
            let clips = clients(&declaration, experiment, 1, 0).0;
            let laid = needs(&declaration, None);
            let frames = laid.keys().filter(|name| name.starts_with("client01/shot.")).count() as u64;
            assert_eq!(clips[0].clip, laid["client00/clip.100.mov"], "{}", experiment.name);
            assert_eq!(clips[1].clip, Bytes::from_kib(500 * frames), "{}", experiment.name);
        }
    }

    #[test]
    fn a_chaser_has_its_recorders_file_and_starts_behind_it() {
        let mut experiment = smoke().experiments[1].clone();
        let Pattern::Recorder(take) = experiment.client else { panic!("smoke goes on with recorders") };
        let avfs_workloads::StreamSpec { megabits, unit_kib, buffer_ms } = take;
        let chaser = avfs_workloads::ChaseSpec { megabits, unit_kib, buffer_ms, behind_ms: 4000 };
        (experiment.in_turn_with, experiment.at_once) = (vec![Pattern::Chaser(chaser)], 2);
        let (specs, counted) = clients(&smoke(), &experiment, 2, 0);
        let starts: Vec<_> =
            specs.iter().map(|one| (one.directory.as_str(), one.start_after.as_millis())).collect();
        assert_eq!(
            (counted, &starts[..4]),
            (4, &[("client00", 0), ("client00", 4250), ("client02", 500), ("client02", 4750)][..])
        );
        assert_eq!(ramp(&experiment, 4), Duration::from_secs(6), "the last has filled its buffer");
    }

    #[test]
    fn repeats_search_anew_and_curves_fill_what_the_search_left_out() {
        let mut declaration = smoke();
        declaration.repeats = 2;
        declaration.curves = true;
        let experiment = Experiment { most: 9, guess: 5, ..declaration.experiments[0].clone() };
        let mut made: Vec<Point> = Vec::new();
        loop {
            let known = Known { settled: made.clone(), doubtful: Vec::new() };
            let Some((repeat, clients)) = next(&declaration, &declaration.contenders[0], &experiment, &known)
            else {
                break;
            };
            made.push(point(clients, clients <= 6, repeat));
        }
        let mut first: Vec<u32> = made.iter().filter(|one| one.repeat == 0).map(|one| one.clients).collect();
        first.sort_unstable();
        // The search itself went up to 8.
        assert_eq!(first, [1, 2, 3, 4, 5, 6, 7, 8], "all up to one beyond the largest");
        let second: Vec<u32> = made.iter().filter(|one| one.repeat == 1).map(|one| one.clients).collect();
        assert_eq!(second, [6, 7], "begins where the first ended");
    }

    /// One contender's points came minutes after the other's, and the same program took 0.68 s/GB and 0.97 minutes apart: the
    /// ratio of two contenders' processor time was between 1.0 and 1.45 from one run to the next.
    #[test]
    fn contenders_take_turns_if_they_are_to() {
        let mut declaration = smoke();
        let (contender, mut experiment) =
            (declaration.contenders[0].clone(), declaration.experiments[0].clone());
        (experiment.guess, experiment.most) = (1, 1);
        let aged = Experiment { name: "aged".to_owned(), aged_percent: Some(50), ..experiment.clone() };
        let second = Experiment { name: "second".to_owned(), ..experiment.clone() };
        declaration.experiments = vec![experiment, aged, second];
        declaration.contenders =
            ["A", "B"].map(|name| Contender { name: name.to_owned(), ..contender.clone() }).into();
        declaration.repeats = 2;
        let order = |declaration: &Declaration| {
            let mut known = Known { settled: Vec::new(), doubtful: Vec::new() };
            let mut order = String::new();
            while let Some(due) = due(declaration, &known) {
                let contender = declaration.contenders[due.contender].name.clone();
                order += &format!("{contender}{} ", &due.experiment.name[..1]);
                let experiment = due.experiment.name.clone();
                known.settled.push(Point { contender, experiment, ..point(due.clients, true, due.repeat) });
            }
            order
        };
        assert_eq!(declaration.experiments[0].name, "readers");
        assert_eq!(order(&declaration), "Ar Ar As As Aa Aa Br Br Bs Bs Ba Ba ");
        declaration.take_turns = true;
        assert_eq!(order(&declaration), "Ar Br Ar Br As Bs As Bs Aa Ba Aa Ba ");
    }
}
