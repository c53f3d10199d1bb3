//! What streams hold of the memory while they play and record, beside what they may.
//!
//! **State:** a [`Watch`] for each run. **Invariants:** looked at whenever something happened, a millisecond after the last
//! look at the earliest.

use super::transport::{Draws, VirtualTransport};
use super::{RehearsalError, laid, pool};
use avfs_core::config::Config;
use avfs_core::core::Core;
use avfs_io::sim::SimDisk;
use avfs_workloads::{Client, ClientSpec, Pattern, StreamSpec};
use rtsched::StreamId;
use rtsched_sim::device::DeviceSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bitrate, Bytes, Duration, Instant};

const LOOK: Duration = Duration::from_millis(1);
const RATE: Bitrate = Bitrate::from_megabits(100);
/// Clients begin within so long.
const RAMP: Duration = Duration::from_secs(10);
const STAGGER: Duration = Duration::from_millis(250);
const MEASURED: Duration = Duration::from_secs(20);
const CLIP: Bytes = Bytes::from_mib(256);

/// What was seen of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    most: u64,
    most_allowed: u64,
    /// What it may hold; what it was promised before counts until it has been played.
    allowed: Bytes,
    until: Instant,
    /// The most that it held beyond what it might.
    beyond: Option<i64>,
}

impl Seen {
    fn allow(&mut self, now: Instant, allowed: Bytes) {
        if allowed >= self.allowed || now >= self.until {
            self.allowed = allowed;
        }
        if allowed == self.allowed {
            self.until = now + RATE.time_for(allowed);
        }
    }
}

/// Looks at what streams hold.
#[derive(Debug, Default)]
pub(super) struct Watch {
    last: Instant,
    streams: BTreeMap<StreamId, Seen>,
    together: u64,
    promised: usize,
}

impl Watch {
    pub(super) fn look(&mut self, now: Instant, core: &Core) {
        if now < self.last + LOOK {
            return;
        }
        self.last = now;
        let (mut together, mut promised) = (0, 0);
        for (stream, held) in core.holdings() {
            let seen = self.streams.entry(stream).or_default();
            let bytes = held.for_later().0;
            together += held.held().0;
            promised += usize::from(held.is_promised);
            seen.most = seen.most.max(bytes);
            if let Some(allowed) = held.allowed() {
                seen.allow(now, allowed);
                let beyond = bytes as i64 - seen.allowed.0 as i64;
                seen.most_allowed = seen.most_allowed.max(seen.allowed.0);
                seen.beyond = Some(seen.beyond.map_or(beyond, |was| was.max(beyond)));
            }
        }
        self.together = self.together.max(together);
        self.promised = self.promised.max(promised);
    }

    /// What was seen, without what is known of the run.
    fn sum(&self, memory: Bytes) -> Held {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let most = self.streams.values().max_by_key(|seen| seen.most).copied().unwrap_or_default();
        let beyond = self.streams.values().filter_map(|seen| seen.beyond).max().unwrap_or_default();
        Held {
            promised: self.promised as u32,
            most_mib: mib(most.most),
            allowed_mib: mib(most.most_allowed),
            beyond_mib: beyond as f64 / f64::from(1 << 20),
            together_mib: mib(self.together),
            memory_mib: mib(memory.0),
            ..Held::default()
        }
    }
}

/// What clients of one kind held with one number of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The device.
    pub device: String,
    /// Whether they record, else they play.
    pub records: bool,
    /// How many.
    pub clients: u32,
    /// How many had a reservation at once, at most.
    pub promised: u32,
    /// Units that were late.
    pub late: u64,
    /// The most that one stream held, MiB.
    pub most_mib: f64,
    /// Of that stream: its window and one request, MiB, at their longest.
    pub allowed_mib: f64,
    /// The most that any held beyond its window and one request, MiB; below zero: nobody ever did.
    pub beyond_mib: f64,
    /// The most that all held at once, MiB.
    pub together_mib: f64,
    /// The volume's memory, MiB.
    pub memory_mib: f64,
}

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
