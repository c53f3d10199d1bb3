//! What streams hold of the memory while they play and record, beside what they may.
//!
//! **State:** a [`Watch`] for each run. **Invariants:** looked at whenever something happened, a millisecond after the last
//! look at the earliest.

use super::error::RehearsalError;
use super::laid::{laid, pool};
use super::transport::{Draws, VirtualTransport};
pub use super::watch::Held;
use super::watch::RATE;
use avfs_core::config::Config;
use avfs_io::sim::SimDisk;
use avfs_workloads::{Client, ClientSpec, Pattern, StreamSpec};
use rtsched_sim::device::DeviceSpec;
use std::sync::Arc;
use units::{Bytes, Duration};

/// Clients begin within so long.
const RAMP: Duration = Duration::from_secs(10);
const STAGGER: Duration = Duration::from_millis(250);
const MEASURED: Duration = Duration::from_secs(20);
const CLIP: Bytes = Bytes::from_mib(256);

/// A disk with a clip for each player.
#[derive(Debug)]
pub struct Stage {
    disk: Arc<SimDisk>,
}

impl Stage {
    const SIZE: Bytes = Bytes(192 << 30);

    /// For so many players at the most.
    ///
    /// # Errors
    /// When the volume cannot be made.
    pub fn prepare(players: u32) -> Result<Self, RehearsalError> {
        let needs = clients(false, players).iter().flat_map(ClientSpec::needs).collect();
        Ok(Self { disk: laid(Self::SIZE, &[], &needs)? })
    }

    /// So many players, or recorders, of 100 Mbit/s on a device.
    ///
    /// # Errors
    /// When the volume cannot be mounted, or a client fails.
    pub fn hold(
        &self,
        device: &str,
        records: bool,
        number: u32,
        memory: Bytes,
    ) -> Result<Held, RehearsalError> {
        let device = DeviceSpec::named(device)?.of_size(Self::SIZE);
        let config = Config::parse("[[stream]]\npath = \"**/*.mov\"\nbitrate = \"100 Mbit/s\"")?;
        let pool = pool(memory)?;
        let draws = Draws { order: 1, device: 1 };
        let mut transport =
            VirtualTransport::on(Arc::new(self.disk.crash(1)), &pool, config, &device, draws)?;
        transport.without_contents();
        transport.watch();
        let mut machines: Vec<Client> = clients(records, number).iter().map(Client::new).collect();
        let duration = stagger(number) * number + MEASURED;
        let reports = avfs_workloads::run(&mut transport, &mut machines, duration, |_, _| {})?;
        if let Some(error) = reports.iter().find_map(|report| report.first_error.clone()) {
            return Err(RehearsalError::Client(error));
        }
        let late = reports.iter().map(|report| report.late).sum();
        Ok(Held { device: device.name, records, clients: number, late, ..transport.watched().sum(memory) })
    }
}

fn stagger(clients: u32) -> Duration {
    STAGGER.min(RAMP / clients.max(1))
}

fn clients(records: bool, number: u32) -> Vec<ClientSpec> {
    let spec = StreamSpec { megabits: RATE.0 as f64 / 1e6, unit_kib: 1024, buffer_ms: 1000 };
    let client = |index| ClientSpec {
        directory: format!("client{index:03}"),
        pattern: if records { Pattern::Recorder(spec) } else { Pattern::Player(spec) },
        start_after: stagger(number) * index,
        clip: CLIP,
        position: (0.618_034 * f64::from(index + 1)).fract(),
        visits: avfs_workloads::Visits::default(),
    };
    (0..number).map(client).collect()
}
