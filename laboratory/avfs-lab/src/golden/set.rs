//! What the golden set consists of.
//!
//! **State:** none. **Invariants:** a cell's name says what is run, for good: numbers of clients are written here, and not found
//! out when the set is run, so that a policy that carries fewer is seen to carry fewer.

use avfs_workloads::{Contender, Declaration, Experiment};
use avfs_workloads::{CopySpec, EditorSpec, Pattern, ScrubSpec, Span, StreamSpec, Then, Thens};
use rtsched_sim::device::DeviceSpec;

/// What is run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Seeds of each cell, from 0 on.
    pub seeds: u32,
    /// Only cells whose names contain this.
    pub only: Option<String>,
    /// Threads.
    pub workers: usize,
}

/// A device, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// As cells are called.
    pub name: &'static str,
    /// As `rtsched_sim` calls it.
    pub device: &'static str,
    /// Of each client; faster devices have faster clients instead of hundreds.
    pub megabits: u32,
    /// Of the volume, GiB: the clips, and what is written.
    pub size_gib: u64,
    /// Clients in each of [`EXPERIMENTS`], and one fewer and one more beside them: about as many as the device carried without a late
    /// unit when the set was made. They stay: what a policy carries more or less is seen by its late units.
    pub carries: [u32; EXPERIMENTS.len()],
    /// Clients that jump do so after so many seconds.
    pub jumps_every_s: u64,
}

/// The six devices.
pub const TABLES: [Table; 6] = [
    Table {
        name: "disk",
        device: "disk-ncq",
        megabits: 100,
        size_gib: 128,
        carries: [8, 7, 8, 7, 5, 6],
        jumps_every_s: 30,
    },
    Table {
        name: "array",
        device: "raid5-zoned",
        megabits: 100,
        size_gib: 128,
        carries: [11, 10, 13, 12, 9, 10],
        jumps_every_s: 30,
    },
    Table {
        name: "paper",
        device: "raid5-table5",
        megabits: 100,
        size_gib: 128,
        carries: [11, 10, 13, 12, 8, 10],
        jumps_every_s: 30,
    },
    Table {
        name: "seeks",
        device: "raid5-fast-seeks",
        megabits: 100,
        size_gib: 128,
        carries: [11, 10, 13, 12, 9, 10],
        jumps_every_s: 30,
    },
    Table {
        name: "large",
        device: "raid6-8",
        megabits: 200,
        size_gib: 1024,
        carries: [18, 16, 32, 28, 12, 19],
        jumps_every_s: 30,
    },
    Table {
        name: "nvme",
        device: "nvme",
        megabits: 200,
        size_gib: 1024,
        carries: [32, 32, 40, 40, 24, 32],
        jumps_every_s: 10,
    },
];

/// What is rehearsed on each.
pub const EXPERIMENTS: [&str; 6] =
    ["players", "players+copy", "recorders", "recorders+copy", "jumpers", "searcher"];

/// Clients buffer so much, in turn.
pub(super) const BUFFERS_MS: [u64; 4] = [300, 1000, 2000, 4000];

/// A point is so long that its counted clients move the cache's size so many times. Memory is in its steady state long before.
pub const CACHE_PASSES: f64 = 4.0;

/// And no shorter than this, seconds.
const SHORTEST_S: u64 = 12;

/// Jumpers jump so often in a point, at least.
const JUMPS: u64 = 2;

/// Of the settings: what AVFS is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// Rates are named, and the device is measured.
    Named,
    /// Nothing is.
    AsItComes,
}

/// Cells that share a disk with clips.
pub(super) struct Group {
    table: &'static str,
    cache_gib: u64,
    counts: Vec<u32>,
    pub(super) declaration: Declaration,
    only: Option<String>,
}

impl Group {
    fn new(table: &Table, place: usize, cache_gib: u64, settings: &[Setting]) -> Self {
        let carried = table.carries[place];
        let counts = vec![carried.saturating_sub(1).max(1), carried, carried + 1];
        let experiment = experiment(table, place, carried + 1);
        let device = DeviceSpec::named(table.device).expect("the devices of the set are declared");
        let moved = f64::from(carried * table.megabits) / 8.0 * 1e6;
        let cache = (cache_gib << 30) as f64;
        let passes = (CACHE_PASSES * cache / moved).ceil() as u64;
        let jumps = if EXPERIMENTS[place] == "jumpers" { JUMPS * table.jumps_every_s + 4 } else { 0 };
        let seconds = passes.max(SHORTEST_S).max(jumps);
        let contenders = settings.iter().map(|setting| contender(table, *setting, cache_gib)).collect();
        let name = format!("{}.{}", table.name, EXPERIMENTS[place]);
        let mut declaration =
            Declaration::rehearsed(&name, table.device, table.size_gib, seconds, contenders, experiment);
        // A copy from here has twelve times as much, and comes by nothing twice.
        let run_s = seconds + u64::from(carried) / 4 + 2;
        declaration.clip_mib = (device.sequential_mb_per_s() as u64 * run_s / 12).max(256);
        Self { table: table.name, cache_gib, counts, declaration, only: None }
    }

    pub(super) fn name(&self) -> String {
        format!("{}.{}G", self.declaration.name, self.cache_gib)
    }

    pub(super) fn experiment(&self) -> &Experiment {
        &self.declaration.experiments[0]
    }

    /// As far as it is asked for.
    pub(super) fn only(mut self, request: &Request) -> Option<Self> {
        self.only.clone_from(&request.only);
        (!self.cells().is_empty()).then_some(self)
    }

    /// Names, what AVFS is told, and numbers of clients.
    pub(super) fn cells(&self) -> Vec<(String, &Contender, u32)> {
        let mut cells = Vec::new();
        for contender in &self.declaration.contenders {
            for &count in &self.counts {
                let experiment = &self.experiment().name;
                let cell = format!("{}.{experiment}.{}.{count:02}", self.table, contender.name);
                if self.only.as_ref().is_none_or(|only| cell.contains(only.as_str())) {
                    cells.push((cell, contender, count));
                }
            }
        }
        cells
    }
}

/// All groups.
pub(super) fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for table in &TABLES {
        for place in 0..EXPERIMENTS.len() {
            groups.push(Group::new(table, place, 1, &[Setting::Named, Setting::AsItComes]));
        }
    }
    groups
}

fn contender(table: &Table, setting: Setting, cache_gib: u64) -> Contender {
    let rate = table.megabits;
    let (name, told) = match setting {
        Setting::Named => {
            ("named", Some(format!("[[stream]]\npath = \"**/*.mov\"\nbitrate = \"{rate} Mbit/s\"\n")))
        }
        Setting::AsItComes => ("plain", None),
    };
    let name = if cache_gib == 1 { name.to_owned() } else { format!("{name}-{cache_gib}G") };
    Contender::rehearsed(name, cache_gib, setting == Setting::Named, told)
}

fn experiment(table: &Table, place: usize, most: u32) -> Experiment {
    let megabits = f64::from(table.megabits);
    // A unit plays for as long at each rate.
    let unit_kib = u64::from(table.megabits) * 1024 / 100;
    let stream = |buffer_ms| StreamSpec { megabits, unit_kib, buffer_ms };
    let of = |kind: fn(StreamSpec) -> Pattern| -> Vec<Pattern> {
        BUFFERS_MS.into_iter().map(|buffer_ms| kind(stream(buffer_ms))).collect()
    };
    let (players, recorders) = (of(Pattern::Player), of(Pattern::Recorder));
    let copy = |in_flight, files_at_once| CopySpec { request_kib: 1024, in_flight, files_at_once };
    let jumper = |buffer_ms, then, pause_ms| {
        let play_ms = Span::Fixed(table.jumps_every_s * 1000);
        let (pause_ms, then) = (Span::Fixed(pause_ms), Thens::One(then));
        Pattern::Editor(EditorSpec { megabits, unit_kib, buffer_ms, play_ms, pause_ms, then })
    };
    let (mut counted, background) = match EXPERIMENTS[place] {
        "players" => (players, vec![]),
        "players+copy" => (players, vec![Pattern::CopyFrom(copy(12, 1))]),
        "recorders" => (recorders, vec![]),
        "recorders+copy" => (recorders, vec![Pattern::CopyTo(copy(1, 12))]),
        "jumpers" => (players, vec![jumper(1000, Then::Stop, 1000), jumper(2000, Then::Jump, 0)]),
        _ => (players, vec![Pattern::Scrubber(ScrubSpec { picture_kib: 512, pause_ms: 300 })]),
    };
    Experiment {
        in_turn_with: counted.split_off(1),
        background,
        guess: most - 1,
        ..Experiment::of(EXPERIMENTS[place], counted.remove(0), most)
    }
}
