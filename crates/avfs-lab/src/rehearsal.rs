//! The experiments on AVFS in virtual time: core, scheduler and modelled device without kernel, Samba and clock.
//!
//! **For:** how many clients a volume carries as far as that is the filesystem's and the scheduler's doing, in seconds and
//! the same each time; and what happened when one was late. **Excludes:** what kernel, network and Samba add; contents
//! (files are zeros). **State:** one [`VirtualTransport`] for each run. **Invariants:** the same declaration gives the
//! same figures.

mod transport;

use crate::experiment::{Contender, Declaration, Experiment};
use crate::load::{self, Client, ClientReport, TransportError};
use crate::run::{clients, needs};
use crate::search::{self, Next};
use avfs_core::config::{Config, ConfigError};
use avfs_core::error::Error as VolumeError;
use avfs_core::recovery::RecoveryError;
use avfs_core::simulation::formatted;
use avfs_io::pool::Pool;
use avfs_io::sim::SimDisk;
use rtsched_sim::device::{DeviceError, DeviceSpec, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use transport::VirtualTransport;
use units::{Bytes, Duration};

/// Why there was no rehearsal.
#[derive(Debug, Error)]
pub enum RehearsalError {
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The contender's configuration is none.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No memory for the cache.
    #[error("there is no memory for the cache: {0}")]
    Memory(std::io::Error),
    /// The volume could not be mounted.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The volume failed.
    #[error("the volume failed: {0}")]
    Volume(VolumeError),
    /// Some client's operation failed.
    #[error("{0}")]
    Client(String),
    /// The way to the files is gone.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// What came of one number of clients.
#[derive(Clone, Debug, Default)]
pub struct Rehearsed {
    /// How many are counted.
    pub clients: u32,
    /// Units that were late.
    pub late: u64,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// A unit's latency that one of a hundred exceeds, milliseconds.
    pub p99_ms: f64,
    /// Those that are counted, Mbit/s.
    pub megabits: f64,
    /// Those beside them, Mbit/s.
    pub background_megabits: f64,
    /// The part of the time in which the device was at work, percent.
    pub busy: f64,
    /// What is transferred between two seeks, KiB.
    pub kib_per_seek: f64,
    /// Streams that hold a reservation at the end.
    pub admitted: usize,
}

/// Who hears of a point, and in the end of the largest number of clients.
pub type Tell<'a> = dyn FnMut(&Contender, &Experiment, &Rehearsed, Option<u32>) + 'a;

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
                    tell(contender, experiment, &stage.run(contender, experiment, number, repeat)?, None);
                } else {
                    stage.search(contender, experiment, repeat, tell)?;
                }
            }
        }
    }
    Ok(())
}

/// A disk with everything that is read in any experiment.
struct Stage<'a> {
    declaration: &'a Declaration,
    device: DeviceSpec,
    disk: Arc<SimDisk>,
}

impl<'a> Stage<'a> {
    fn prepare(declaration: &'a Declaration) -> Result<Self, RehearsalError> {
        let size = Bytes(declaration.size_gib << 30);
        // A small LUN is a small disk with the same arm.
        let capacity_gb = size.as_u64().div_ceil(1_000_000_000);
        let device = DeviceSpec { capacity_gb, ..declaration.device()? };
        let pool = pool(Bytes::from_mib(512))?;
        let mut transport = VirtualTransport::untimed(formatted(size), &pool)?;
        let mut laying: Vec<Client> = needs(declaration).into_iter().map(Client::laying).collect();
        let reports = load::run(&mut transport, &mut laying, Duration::from_secs(1 << 20), |_| {})?;
        if let Some(error) = reports.into_iter().find_map(|report| report.first_error) {
            return Err(RehearsalError::Client(error));
        }
        let disk = transport.into_volume().unmount().map_err(RehearsalError::Volume)?;
        Ok(Self { declaration, device, disk })
    }

    /// Finds the largest number of clients without a late unit.
    fn search(
        &self,
        contender: &Contender,
        experiment: &Experiment,
        repeat: u32,
        tell: &mut Tell,
    ) -> Result<(), RehearsalError> {
        let mut outcomes: BTreeMap<u32, Rehearsed> = BTreeMap::new();
        loop {
            let clean = outcomes.iter().map(|(number, one)| (*number, one.late == 0)).collect();
            match search::next(&clean, contender.guess(experiment), experiment.most) {
                Next::Measure(number) => {
                    let rehearsed = self.run(contender, experiment, number, repeat)?;
                    tell(contender, experiment, &rehearsed, None);
                    outcomes.insert(number, rehearsed);
                }
                Next::Found(number) => {
                    let found = outcomes.get(&number).cloned().unwrap_or_default();
                    tell(contender, experiment, &found, Some(number));
                    return Ok(());
                }
            }
        }
    }

    fn run(
        &self,
        contender: &Contender,
        experiment: &Experiment,
        number: u32,
        repeat: u32,
    ) -> Result<Rehearsed, RehearsalError> {
        let mut config = Config::parse(contender.config.as_deref().unwrap_or_default())?;
        if let Some(size) = contender.mount.iter().find_map(|option| option.strip_prefix("cache_size=")) {
            // As mount takes it: 4G are 4 GiB.
            config.cache.size = Config::parse(&format!("[cache]\nsize = \"{size}iB\""))?.cache.size;
        }
        let pool = pool(config.cache.size)?;
        // Each run has a disk of its own over what was laid.
        let disk = Arc::new(self.disk.crash(1));
        let mut transport = VirtualTransport::on(disk, &pool, config, &self.device)?;
        let (specs, counted) = clients(self.declaration, experiment, number, repeat);
        let mut machines: Vec<Client> = specs.iter().map(Client::new).collect();
        let duration = crate::run::duration(self.declaration, number);
        let reports = load::run(&mut transport, &mut machines, duration, |_| {})?;
        if let Some(error) = reports.iter().find_map(|report| report.first_error.clone()) {
            return Err(RehearsalError::Client(error));
        }
        let mut rehearsed = sum_up(&reports, counted, transport.usage(), duration);
        rehearsed.admitted = transport.admitted();
        Ok(rehearsed)
    }
}

fn pool(size: Bytes) -> Result<Pool, RehearsalError> {
    Pool::new(size, false).map_err(RehearsalError::Memory)
}

fn sum_up(reports: &[ClientReport], counted: usize, usage: Usage, duration: Duration) -> Rehearsed {
    let (streams, beside) = reports.split_at(counted);
    let seconds = duration.as_secs_f64();
    let megabits = |reports: &[ClientReport]| {
        reports.iter().map(|one| one.bytes).sum::<u64>() as f64 * 8.0 / seconds / 1e6
    };
    let mut latency = crate::histogram::Histogram::default();
    streams.iter().for_each(|report| latency.merge(&report.latency));
    let busy: Duration = usage.busy.iter().sum();
    Rehearsed {
        clients: counted as u32,
        late: streams.iter().map(|one| one.late).sum(),
        latest_ms: streams.iter().map(|one| one.latest_ms).fold(0.0, f64::max),
        p99_ms: latency.percentile_ms(99.0),
        megabits: megabits(streams),
        background_megabits: megabits(beside),
        busy: busy.as_secs_f64() / seconds * 100.0,
        kib_per_seek: (usage.read.0 + usage.written.0) as f64 / 1024.0 / usage.seeks.max(1) as f64,
        admitted: 0,
    }
}
