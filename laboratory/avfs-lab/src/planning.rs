//! Is the plan right?
//!
//! **For:** what `avfsctl plan` says of a device beside what the same device carries in rehearsal: the whole filesystem in virtual time, with
//! clients that are late or not. **Excludes:** the plan, which is [`avfs_plan`]'s. **State:** none. **Invariants:** both are told the same of
//! the device, and have the same memory.

use crate::rehearsal::{self, RehearsalError};
use avfs_core::config::Config;
use avfs_plan::plan::{Fit, Load, System, fit, measured};
use avfs_workloads::{Contender, CopySpec, Declaration, Experiment, Pattern, StreamSpec};
use rtsched_sim::device::{DeviceError, DeviceSpec};
use std::path::Path;
use thiserror::Error;
use units::{Bitrate, Bytes};

/// The volume's cache.
const CACHE: Bytes = Bytes::from_mib(4096);
/// A point is so long that its clients move so many times the cache, as in the golden set.
const CACHE_PASSES: f64 = 4.0;
/// And no shorter, seconds.
const SHORTEST_S: u64 = 12;
/// What is found by searching and what was planned differ by no more.
pub const TOLERATED: u32 = 1;

/// Why it is not known.
#[derive(Debug, Error)]
pub enum PlanningError {
    /// The rehearsal.
    #[error(transparent)]
    Rehearsal(#[from] RehearsalError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The slower device cannot be written down.
    #[error("the slower device cannot be written: {0}")]
    Scratch(String),
}

/// What is planned and rehearsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The device of the profiles.
    pub device: &'static str,
    /// Of each stream.
    pub megabits: u32,
    /// Of the volume, GiB.
    pub size_gib: u64,
    /// They record.
    pub records: bool,
    /// Beside a copy.
    pub beside_copy: bool,
    /// The volume is 90 % full.
    pub is_aged: bool,
    /// A disk is lost.
    pub is_degraded: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Which.
    pub case: Case,
    /// What the plan says.
    pub planned: Fit,
    /// What each search found.
    pub carried: Vec<u32>,
}

impl Compared {
    /// The middle one of what was found.
    pub fn middle(&self) -> u32 {
        let mut sorted = self.carried.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }

    /// Whether the plan is right.
    pub fn holds(&self) -> bool {
        self.middle().abs_diff(self.planned.streams) <= TOLERATED
    }

    /// In one line.
    pub fn line(&self) -> String {
        let Case { device, megabits, records, beside_copy, is_aged, is_degraded, .. } = self.case;
        let who = if records { "recorders" } else { "players" };
        let said = |is: bool, word: &'static str| if is { word } else { "" };
        let found = self.carried.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        format!(
            "{device}: {who} of {megabits} Mbit/s{}{}{}: planned {} ({:.1} % free{}), carried {found}{}",
            said(beside_copy, " beside a copy"),
            said(is_degraded, ", a disk lost"),
            said(is_aged, ", 90 % full"),
            self.planned.streams,
            f64::from(self.planned.free_permille) / 10.0,
            self.planned.lacks.map(|lacks| format!(", one more lacks {lacks}")).unwrap_or_default(),
            said(!self.holds(), "   NOT WITHIN ONE"),
        )
    }
}

/// Three devices of the three kinds, and in the long form what else an administrator asks of two of them.
pub fn cases(is_short: bool) -> Vec<Case> {
    let case = |device, megabits, size_gib| Case {
        device,
        megabits,
        size_gib,
        records: false,
        beside_copy: false,
        is_aged: false,
        is_degraded: false,
    };
    let devices = [case("raid5-zoned", 100, 128), case("raid5-table5", 100, 128), case("nvme", 2000, 2048)];
    let mut cases = Vec::new();
    for players in devices {
        cases.push(players);
        cases.push(Case { beside_copy: true, ..players });
        if !is_short {
            cases.push(Case { records: true, ..players });
            cases.push(Case { records: true, beside_copy: true, ..players });
        }
    }
    if !is_short {
        for players in [case("disk-ncq", 100, 128), case("raid6-8", 400, 1024)] {
            cases.extend([players, Case { beside_copy: true, ..players }]);
        }
        for device in ["raid5-zoned", "raid5-table5"] {
            cases.push(Case { is_degraded: true, ..case(device, 100, 128) });
            cases.push(Case { is_aged: true, ..case(device, 100, 128) });
        }
    }
    cases
}

/// Plans and rehearses one; `scratch` is a directory for the declaration of a slower device.
///
/// # Errors
/// When it cannot be rehearsed.
pub fn compare(case: &Case, repeats: u32, scratch: &Path) -> Result<Compared, PlanningError> {
    let size = Bytes(case.size_gib << 30);
    let mut device = DeviceSpec::named(case.device)?;
    let mut name = case.device.to_owned();
    if case.is_degraded {
        device = device.degraded().ok_or_else(|| PlanningError::Scratch("it has no parity".to_owned()))?;
        let failed = |error: &dyn std::fmt::Display| PlanningError::Scratch(error.to_string());
        let text = toml::to_string(&device).map_err(|error| failed(&error))?;
        let path = scratch.join("degraded.toml");
        std::fs::write(&path, text).map_err(|error| failed(&error))?;
        name = path.display().to_string();
    }
    // Both are told of the device that the volume fills.
    let device = device.of_size(size);
    let config = Config { device: measured(&device), ..Config::default() };
    let system = System { config, turns: device.turns(), size: device.capacity(), memory: CACHE };
    let rate = Bitrate::from_megabits(case.megabits.into());
    let Case { records, beside_copy, is_aged, .. } = *case;
    let planned = fit(&system, &Load { records, rate, beside_copy, is_aged });
    let declaration = declaration(case, &name, &device, planned.streams, repeats);
    let mut carried = Vec::new();
    rehearsal::carry_out(&declaration, None, &mut |_, _, found| carried.extend(found))?;
    Ok(Compared { case: *case, planned, carried })
}

fn declaration(case: &Case, name: &str, device: &DeviceSpec, planned: u32, repeats: u32) -> Declaration {
    let megabits = case.megabits;
    let config = format!("[[stream]]\npath = \"**/*.mov\"\nbitrate = \"{megabits} Mbit/s\"\n");
    let contender = Contender::rehearsed("AVFS".to_owned(), CACHE.as_u64() >> 30, true, Some(config));
    // A unit plays for as long at each rate, and clients buffer a second.
    let unit_kib = u64::from(megabits) * 1024 / 100;
    let stream = StreamSpec { megabits: megabits.into(), unit_kib, buffer_ms: 1000 };
    let client = if case.records { Pattern::Recorder(stream) } else { Pattern::Player(stream) };
    let copy = |in_flight, files_at_once| CopySpec { request_kib: 1024, in_flight, files_at_once };
    let copy = if case.records { Pattern::CopyTo(copy(1, 12)) } else { Pattern::CopyFrom(copy(12, 1)) };
    let most = planned + planned / 2 + 4;
    let experiment = Experiment {
        background: if case.beside_copy { vec![copy] } else { Vec::new() },
        aged_percent: case.is_aged.then_some(90),
        guess: planned.max(1),
        ..Experiment::of("streams", client, most)
    };
    let moved = f64::from(planned.max(1) * megabits) / 8.0 * 1e6;
    let passes = (CACHE_PASSES * CACHE.as_u64() as f64 / moved).ceil() as u64;
    let seconds = if case.records { passes.max(SHORTEST_S) } else { SHORTEST_S * 2 };
    let mut declaration =
        Declaration::rehearsed("plan", name, case.size_gib, seconds, vec![contender], experiment);
    declaration.repeats = repeats;
    // No client reads the same twice, and a copy has twelve times as much.
    let run_s = seconds + u64::from(most) / 4 + 2;
    let played_mib = u64::from(megabits) * run_s / 8 + 64;
    let copied_mib = if case.beside_copy { device.sequential_mb_per_s() as u64 * run_s / 12 } else { 0 };
    declaration.clip_mib = played_mib.max(copied_mib);
    declaration
}
