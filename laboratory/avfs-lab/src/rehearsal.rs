//! The experiments on AVFS in virtual time: core, scheduler and modelled device without kernel, Samba and clock.
//!
//! **For:** how many clients a volume carries as far as that is the filesystem's and the scheduler's doing, in seconds and
//! the same each time; and what happened when one was late. **Excludes:** what kernel, network and Samba add; contents
//! (files are zeros). **State:** one [`VirtualTransport`] for each run. **Invariants:** the same declaration gives the
//! same figures.

mod error;
pub mod holdings;
mod laid;
mod transport;
mod watch;

pub use error::RehearsalError;

use crate::point::{Mark, Point, Seen, judge};
use crate::run::{self};
use crate::search::{self, Next};
use avfs_core::config::{Config, DeviceConfig};
use avfs_core::volume::USUAL_CACHE;
use avfs_io::sim::SimDisk;
use avfs_plan::recording::Recording;
use avfs_workloads::{Client, ClientReport, Contender, Declaration, Experiment, clients, needs, ramp};
use laid::{laid, pool};
use rtsched_sim::device::DeviceSpec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};
pub use transport::DeviceCommand;
use transport::{Draws, VirtualTransport};
use units::Bytes;

/// Who hears of a point and of what the device was told in it, and in the end of the largest number of clients.
pub type Tell<'a> = dyn FnMut(&Point, &[DeviceCommand], Option<u32>) + 'a;

/// The contenders of a declaration that are AVFS, through its experiments; `tell` hears each point, and in the end the
/// largest number of clients without a late unit.
///
/// # Errors
/// When a volume cannot be made, or a client fails.
pub fn carry_out(
    declaration: &Declaration,
    only: Option<u32>,
    tell: &mut Tell,
) -> Result<(), RehearsalError> {
    let stage = Stage::prepare(declaration)?;
    for contender in declaration.contenders.iter().filter(|one| one.filesystem == "avfs") {
        for experiment in &declaration.experiments {
            for repeat in 0..declaration.repeats {
                if let Some(number) = only {
                    let Rehearsed { point, commands, .. } =
                        stage.run(contender, experiment, number, repeat, DEVICE)?;
                    tell(&point, &commands, None);
                } else {
                    stage.search(contender, experiment, repeat, tell)?;
                }
            }
        }
    }
    Ok(())
}

/// A point of the first experiment with the first contender that is AVFS, and a recording of it as `avfsctl trace record` makes one.
///
/// # Errors
/// When a volume cannot be made, or a client fails.
pub fn recorded(
    declaration: &Declaration,
    clients: u32,
) -> Result<Option<(Point, Recording)>, RehearsalError> {
    let mut stage = Stage::prepare(declaration)?;
    stage.records = true;
    let contender = declaration.contenders.iter().find(|one| one.filesystem == "avfs");
    let (Some(contender), Some(experiment)) = (contender, declaration.experiments.first()) else {
        return Ok(None);
    };
    let Rehearsed { point, recording, .. } = stage.run(contender, experiment, clients, 0, DEVICE)?;
    Ok(recording.map(|recording| (point, recording)))
}

/// What the device draws is the same in each repeat.
const DEVICE: u64 = 1;

/// A point, and how it came about.
#[derive(Debug)]
pub(crate) struct Rehearsed {
    pub(crate) point: Point,
    /// What the device was told.
    pub(crate) commands: Vec<DeviceCommand>,
    /// Of the counted clients, then of those beside them.
    pub(crate) reports: Vec<ClientReport>,
    /// Where the stage records.
    pub(crate) recording: Option<Recording>,
}

/// Disks with everything that is read in any experiment.
pub(crate) struct Stage<'a> {
    declaration: &'a Declaration,
    device: DeviceSpec,
    /// What is told where a contender is calibrated.
    measured: OnceLock<DeviceConfig>,
    /// Zeros are written and read. It makes no difference but takes longer: 0.76 s instead of 0.06 for 30 s of thirteen players.
    has_contents: bool,
    /// What the engine is asked and does is recorded.
    records: bool,
    /// By how full they were aged.
    disks: BTreeMap<Option<u32>, Arc<SimDisk>>,
}

impl<'a> Stage<'a> {
    pub(crate) fn prepare(declaration: &'a Declaration) -> Result<Self, RehearsalError> {
        let size = Bytes(declaration.size_gib << 30);
        let device = crate::experiment::device(declaration)?.of_size(size);
        let mut disks = BTreeMap::new();
        for age in declaration.experiments.iter().map(|one| one.aged_percent) {
            if let Entry::Vacant(vacant) = disks.entry(age) {
                let files = needs(declaration, age);
                let steps = age.map(|percent| run::ageing(declaration, percent, &files)).unwrap_or_default();
                vacant.insert(laid(size, &steps, &files)?);
            }
        }
        Ok(Self {
            declaration,
            device,
            measured: OnceLock::new(),
            has_contents: false,
            records: false,
            disks,
        })
    }

    /// Finds the largest number of clients without a late unit.
    fn search(
        &self,
        contender: &Contender,
        experiment: &Experiment,
        repeat: u32,
        tell: &mut Tell,
    ) -> Result<(), RehearsalError> {
        let mut outcomes: BTreeMap<u32, Point> = BTreeMap::new();
        loop {
            let clean = outcomes.iter().map(|(number, one)| (*number, one.clean)).collect();
            match search::next(&clean, contender.guess(experiment), experiment.most) {
                Next::Measure(number) => {
                    let Rehearsed { point, commands, .. } =
                        self.run(contender, experiment, number, repeat, DEVICE)?;
                    tell(&point, &commands, None);
                    outcomes.insert(number, point);
                }
                Next::Found(number) => {
                    // With none carried, one was measured.
                    if let Some(point) = outcomes.get(&number.max(1)) {
                        tell(point, &[], Some(number));
                    }
                    return Ok(());
                }
            }
        }
    }

    fn measured(&self) -> DeviceConfig {
        *self.measured.get_or_init(|| avfs_plan::plan::measured(&self.device))
    }

    /// One point; `device` is the seed of what the device draws.
    pub(crate) fn run(
        &self,
        contender: &Contender,
        experiment: &Experiment,
        number: u32,
        repeat: u32,
        device: u64,
    ) -> Result<Rehearsed, RehearsalError> {
        let mut config = Config::parse(contender.config.as_deref().unwrap_or_default())?;
        if let Some(size) = contender.mount.iter().find_map(|option| option.strip_prefix("cache_size=")) {
            // As mount takes it: 4G are 4 GiB.
            config.cache.size = Config::parse(&format!("[cache]\nsize = \"{size}iB\""))?.cache.size;
        }
        if contender.calibrated {
            config.device = self.measured();
        }
        let pool = pool(config.cache.size.unwrap_or(USUAL_CACHE))?;
        // Each run has a disk of its own over what was laid.
        let disk = Arc::new(self.disks[&experiment.aged_percent].crash(1));
        let draws = Draws { order: u64::from(repeat), device };
        let mut transport = VirtualTransport::on(disk, &pool, config, &self.device, draws)?;
        if !self.has_contents {
            transport.without_contents();
        }
        if self.records {
            transport.record(self.device.capacity());
        }
        let (specs, counted) = clients(self.declaration, experiment, number, repeat);
        let mut machines: Vec<Client> = specs.iter().map(Client::new).collect();
        let settled = ramp(experiment, counted as u32);
        let duration = settled + self.declaration.measured(experiment);
        let marks = [settled, settled + self.declaration.measured(experiment) / 2];
        let device = transport.device();
        let mut window: Vec<Mark> = Vec::new();
        let mark = |at, clients: &[Client]| Mark {
            at,
            counters: device.as_ref().map(|device| device.counters()).unwrap_or_default(),
            moved: clients.iter().map(Client::moved).collect(),
            ..Mark::default()
        };
        let reports = avfs_workloads::run(&mut transport, &mut machines, duration, |gone, clients| {
            if marks.get(window.len()).is_some_and(|due| gone >= *due) {
                window.push(mark(gone, clients));
            }
        })?;
        window.push(mark(duration, &machines));
        let recording = transport.recording();
        let reserved = transport.have_reservations(&specs[..counted]);
        let seen = Seen {
            reports: &reports,
            counted,
            serving_s: 0.0,
            began: Default::default(),
            window: &window,
            duration,
            sequential_megabits: self.device.sequential_mb_per_s() * 8.0,
            avfs: transport.avfs_report(),
            reserved: Some(reserved),
        };
        let contender = contender.name.clone();
        let point = Point { contender, repeat, ..judge(experiment, seen) };
        let commands = device.map(|device| device.commands()).unwrap_or_default();
        Ok(Rehearsed { point, commands, reports, recording })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_plan::simulate::{Change, recorded_busy_permille, simulate};

    /// Two points of 12 s.
    const SHORT: &str = "size_gib = 32\nseconds = 12\nrepeats = 2\nclip_mib = 256\n";

    const READER: &str = r#"{ kind = "player", megabits = 100.0, unit_kib = 1024, buffer_ms = 1000 }"#;
    /// DPX of 1 MiB, 24 in a second.
    const FILM: &str = r#"{ kind = "frame-player", megabits = 201.3266, unit_kib = 1024, buffer_ms = 1000 }"#;

    /// Whether nobody was late, and how much those with a reservation were, in each point of `clients` of 100 Mbit/s.
    fn points(device: &str, declaration: &str, clients: u32) -> Vec<(bool, Option<u64>)> {
        let points = points_of(READER, device, declaration, clients);
        points.iter().map(|point| (point.clean, point.late_with_reservation)).collect()
    }

    fn points_of(client: &str, device: &str, declaration: &str, clients: u32) -> Vec<Point> {
        let lun = format!("name = \"points\"\ndevice = \"{device}\"\nrecorded_seconds = 18\n");
        let counted =
            format!("[[experiment]]\nname = \"clients\"\nclient = {client}\nmost = 20\nguess = 13\n");
        let (head, background) = declaration.split_once("---").unwrap_or((declaration, ""));
        let declaration =
            crate::experiment::parse(&format!("{lun}{head}\n{counted}{background}")).expect("it is one");
        let mut points = Vec::new();
        carry_out(&declaration, Some(clients), &mut |point, _, _| points.push(point.clone()))
            .expect("it is rehearsed");
        points
    }

    /// What is simulated from a recording beside what really happens on the same device: with how many more players no stream is late.
    #[test]
    #[ignore = "simulated 10, carried 13: players of the simulation are late by 20 to 70 ms where they begin (doc/roadmap.md, known faults)"]
    fn a_recording_says_with_how_many_more_players_nobody_is_late() {
        let declaration = format!(
            "name = \"recorded\"\ndevice = \"raid5-table5\"\nsize_gib = 64\nseconds = 24\nrepeats = 1\nclip_mib = 400\n\
             compare = [\"AVFS with bitrates\"]\n[[experiment]]\nname = \"clients\"\nclient = {READER}\nmost = 20\nguess = 13\n"
        );
        let declaration = crate::experiment::parse(&declaration).expect("it is one");
        let run = |count| recorded(&declaration, count).expect("it is rehearsed").expect("it is AVFS");
        let (eight, recording) = run(8);
        assert!(eight.clean, "eight are in time");
        assert_eq!((recording.lost, recording.head.begin.check()), (0, Ok(())));
        let truth = (12..16).take_while(|count| run(*count).0.clean).last().unwrap_or(11);
        let modelled = DeviceSpec::named("raid5-table5").expect("declared").of_size(Bytes(64 << 30));
        // The device as it is modelled, and as the scheduler knew it.
        for device in [Some(modelled), None] {
            let simulated = |editors| {
                let rate = Some(units::Bitrate::from_megabits(100));
                let change = Change { editors, rate, device: device.clone(), ..Change::default() };
                simulate(&recording, &change)
            };
            let as_it_was = simulated(0);
            assert_eq!((as_it_was.streams.len(), as_it_was.late()), (8, 0), "{as_it_was:?}");
            let recorded = recorded_busy_permille(&recording);
            assert!(
                as_it_was.busy_permille.abs_diff(recorded) < 100,
                "{} {recorded}",
                as_it_was.busy_permille
            );
            let carried = 8 + (1..12).take_while(|more| simulated(*more).late() == 0).count() as u32;
            assert!(carried.abs_diff(truth) <= 1, "simulated {carried}, carried {truth}");
        }
    }

    /// Contents are not moved in rehearsals, which takes a part of the time. What the device is told is the same to the nanosecond.
    #[test]
    fn it_makes_no_difference_that_contents_are_not_moved() {
        let beside = r#"background = [
            { kind = "copy-from", request_kib = 1024, in_flight = 12 },
            { kind = "copy-to", request_kib = 1024, in_flight = 1, files_at_once = 12 },
            { kind = "office", pause_ms = 300 }]"#;
        let recorder = READER.replace("player", "recorder");
        let declaration = format!(
            "name = \"contents\"\ndevice = \"raid5-table5\"\nsize_gib = 32\nseconds = 6\nrepeats = 1\nclip_mib = 64\n\
             compare = [\"AVFS\"]\n[[experiment]]\nname = \"clients\"\nclient = {READER}\nin_turn_with = [{recorder}]\n\
             most = 6\nguess = 6\n{beside}"
        );
        let declaration = crate::experiment::parse(&declaration).expect("it is one");
        let mut stage = Stage::prepare(&declaration).expect("it is laid");
        let told = |stage: &Stage| {
            let (contender, experiment) = (&declaration.contenders[0], &declaration.experiments[0]);
            let Rehearsed { point, commands, .. } =
                stage.run(contender, experiment, 6, 1, 1).expect("it is rehearsed");
            assert_eq!(point.errors, 0, "{:?}", point.first_error);
            commands.iter().map(DeviceCommand::words).collect::<Vec<_>>()
        };
        let without = told(&stage);
        stage.has_contents = true;
        assert!(without.len() > 100, "{}", without.len());
        assert!(told(&stage) == without, "the device was told something else");
    }

    /// Thirteen players fill the device. Who came to the end of his clip and went on at its start waited half a second longer than
    /// all others, and was late there.
    #[test]
    fn who_plays_a_clip_in_a_loop_is_in_time_at_its_end() {
        let declaration = r#"
            size_gib = 64
            seconds = 20
            repeats = 2
            clip_mib = 900
            compare = ["AVFS with bitrates"]
        "#;
        assert_eq!(points("raid5-table5", declaration, 13), [(true, Some(0)); 2]);
    }

    /// Two commands that take half a second while players begin make requests late of those that have begun. One late request of the
    /// few there had been so far turned away whoever came within eight seconds: of thirteen players some began to play after ten
    /// seconds, and others lost units to them.
    #[test]
    fn a_device_that_holds_its_breath_while_players_begin_carries_as_many() {
        let declaration = format!("{SHORT}compare = [\"AVFS with bitrates\"]\n");
        assert_eq!(points("raid5-hiccups", &declaration, 13), [(true, Some(0)); 2]);
    }

    /// Of what is read from the device less than a twentieth is for nobody, whoever plays on, pauses, reads at two places, or plays
    /// films, also beside a copy. Who stops or jumps every few seconds leaves a part of what was ahead of him; that it is counted
    /// is seen there.
    #[test]
    fn less_than_a_twentieth_is_read_for_nobody_who_plays_on() {
        let editor = |more: &str| {
            let stream = r#"kind = "editor", megabits = 100.0, unit_kib = 1024, buffer_ms = 1000"#;
            format!("{{ {stream}, {more} }}")
        };
        let known = "compare = [\"AVFS with bitrates\"]\n";
        let alone = format!("{SHORT}{known}");
        let copy = r#"background = [{ kind = "copy-from", request_kib = 1024, in_flight = 12 }]"#;
        let beside_a_copy = format!("{SHORT}{known}---\n{copy}");
        let pauses = editor(r#"play_ms = 4000, pause_ms = 2000, then = "pause""#);
        let two_places = editor(r#"play_ms = 2000, then = "both""#);
        let jumps = editor(r#"play_ms = 4000, then = "jump""#);
        for (client, declaration, clients, is_for_nobody) in [
            (READER, &alone, 12, false),
            (READER, &beside_a_copy, 11, false),
            (FILM, &alone, 6, false),
            (pauses.as_str(), &alone, 10, false),
            (two_places.as_str(), &alone, 9, false),
            (jumps.as_str(), &alone, 6, true),
        ] {
            for point in points_of(client, "raid5-table5", declaration, clients) {
                let percent = point.avfs.expect("it tells").never_read_percent;
                assert_eq!(percent >= 5.0, is_for_nobody, "{percent} % of {clients} {client}");
            }
        }
    }

    /// The first frames of a film came last from the network, after five seconds of what is behind them had been asked for: the second
    /// of these six began after 2.1 s.
    #[test]
    fn films_begin_with_what_they_asked_for_first() {
        let declaration = format!("{SHORT}compare = [\"AVFS with bitrates\"]\n");
        let points = points_of(FILM, "raid5-table5", &declaration, 6);
        assert_eq!(points.len(), 2);
        for point in points {
            let longest_ms = point.start.expect("they begin").longest_ms;
            assert!(point.clean && longest_ms <= 2000.0, "{longest_ms}, {point:?}");
        }
    }

    const COPY_OF_A_FOLDER: &str =
        r#"{ kind = "copy-to", request_kib = 1024, in_flight = 1, files_at_once = 12 }"#;

    /// Somebody copies from here, somebody a folder to here, and somebody reads here and there.
    const TWO_COPIES_AND_RANDOM_READS: &str = r#"
        { kind = "copy-from", request_kib = 1024, in_flight = 12 },
        { kind = "copy-to", request_kib = 1024, in_flight = 1, files_at_once = 12 },
        { kind = "random-reader", request_kib = 64, in_flight = 1 }"#;

    /// Nobody says the rates of eight recorders, and a folder is copied here beside them. They were best effort in one line with the copy:
    /// of three two lost units.
    #[test]
    fn recorders_of_whom_nothing_is_known_do_not_wait_for_a_copy() {
        let recorder = READER.replace("player", "recorder");
        let declaration = format!("{SHORT}compare = [\"AVFS\"]\n---\nbackground = [{COPY_OF_A_FOLDER}]");
        for point in points_of(&recorder, "raid5-table5", &declaration, 8) {
            assert_eq!(point.late, 0, "{point:?}");
        }
    }

    /// Six recorders of films beside such a copy. Their frames were written one by one, and had eight times the memory that they
    /// need: 406 were late, all of those with a reservation.
    #[test]
    fn recorders_of_films_are_in_time_beside_a_copy() {
        let recorder = FILM.replace("player", "recorder");
        let known = "compare = [\"AVFS with bitrates\"]";
        let declaration = format!("{SHORT}{known}\n---\nbackground = [{COPY_OF_A_FOLDER}]");
        for point in points_of(&recorder, "raid5-table5", &declaration, 6) {
            assert_eq!((point.clean, point.late_with_reservation), (true, Some(0)), "{point:?}");
        }
    }

    /// Nobody says the rates of ten players beside a copy: they are found out one after another. Those of whom it was known were read
    /// three seconds ahead, while the last ones waited for what they asked for, and lost a unit.
    #[test]
    fn players_of_whom_nothing_is_known_do_not_wait_for_what_others_want_later() {
        let declaration = r#"
            compare = ["AVFS"]
            ---
            background = [{ kind = "copy-from", request_kib = 1024, in_flight = 12 }]
        "#;
        assert_eq!(points("raid5-table5", &format!("{SHORT}{declaration}"), 10), [(true, Some(0)); 2]);
    }

    /// Two copies and random reads came when twelve players had just begun, sooner than they are promised. They lived on what they left, of
    /// which refused recorders were promised half a second, a copy was promised the last hundredth as if nobody else had come, and who
    /// searched had all the rest: of twelve rehearsals, four had late units of theirs, 51 together. How many hangs on how clips lie: with two
    /// rehearsals this test passed, while a copy was still promised the last hundredth, and 24 of 72 had late units.
    #[test]
    fn who_has_begun_keeps_what_he_needs_when_others_come() {
        let known = "compare = [\"AVFS with bitrates\"]";
        for after_ms in [2800, 3100] {
            let beside =
                format!("beside_after_ms = {after_ms}\nbackground = [{TWO_COPIES_AND_RANDOM_READS}]");
            let declaration =
                format!("{}{known}\n---\n{beside}", SHORT.replace("repeats = 2", "repeats = 6"));
            let points = points("raid5-table5", &declaration, 12);
            let late: Vec<_> =
                points.iter().map(|(_, late_with_reservation)| *late_with_reservation).collect();
            assert_eq!(late, [Some(0); 6], "after {after_ms} ms");
        }
    }

    /// On a full device a copy takes no more than a player. As long as nothing else told it from one, it went before what players want
    /// who begin, and each run of twelve beside two copies and random reads had late units.
    #[test]
    fn a_copy_of_which_nothing_is_known_does_not_go_before_what_players_want() {
        let declaration = r#"
            [[contender]]
            name = "players are known"
            filesystem = "avfs"
            mount = ["cache_size=4G"]
            calibrated = true
            config = """
            [[stream]]
            path = "**/*.100.mov"
            bitrate = "100 Mbit/s"
            """
        "#;
        let declaration = format!("{SHORT}{declaration}\n---\nbackground = [{TWO_COPIES_AND_RANDOM_READS}]");
        assert_eq!(points("raid5-table5", &declaration, 12), [(true, Some(0)); 2]);
    }
}
