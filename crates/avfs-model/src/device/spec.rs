//! What a device is, as it is declared.
//!
//! **For:** declarations and what follows from them alone. **Excludes:** how long a command takes. **State:** none.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use units::{Bytes, DeviceOffset};

/// A device as declared in a file of `devices/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// What it is called.
    pub name: String,
    /// Where its figures come from.
    pub source: String,
    /// Its size in GB (10^9 bytes), above zero.
    pub capacity_gb: u64,
    /// What it is made of.
    pub model: ModelSpec,
    /// How it changes, in ascending order of time.
    #[serde(default)]
    pub phases: Vec<Phase>,
}

/// What a device is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelSpec {
    /// Arms and platters.
    Disk(DiskSpec),
    /// Parallel channels without a place.
    Flash(FlashSpec),
    /// Something of which only a measurement is known.
    Line(LineSpec),
}

/// Disks that move their arms together: one disk, or a RAID that stripes over several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Disks that hold the data of a stripe, at least 1.
    pub data_disks: u32,
    /// Disks that hold its parity; the parity rotates over all disks.
    pub parity_disks: u32,
    /// What lies on one disk before the next disk follows, KiB.
    pub chunk_kib: u64,
    /// Handling of a command, milliseconds.
    pub command_ms: f64,
    /// The shortest seek, milliseconds.
    pub settle_ms: f64,
    /// A seek over the whole device, milliseconds; between, seeks take settle + (full − settle)·√distance.
    pub full_stroke_ms: f64,
    /// Each disk's arm takes longer by a part of the seek, drawn from 0 to this.
    pub arm_scatter: f64,
    /// One rotation, milliseconds: 60,000 / rpm. A disk waits for a part of it, drawn evenly.
    pub rotation_ms: f64,
    /// Sequential rate at the start of the device, all data disks together, MB/s (10^6 bytes).
    pub outer_mb_per_s: f64,
    /// The same at its end.
    pub inner_mb_per_s: f64,
    /// Which of the commands it holds it serves next.
    #[serde(default)]
    pub queueing: Queueing,
    /// What a write takes once it leaves for the platters: length in KiB and milliseconds, ascending; between two
    /// lengths on a straight line, beyond the last on the last line's continuation. Its mean over random places.
    pub write_ms: Vec<(u64, f64)>,
    /// Absent: a write completes when it is on the platters.
    pub cache: Option<CacheSpec>,
}

/// The order in which a device serves the reads it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// As they came.
    #[default]
    Fifo,
    /// Native command queueing: the nearest one, but one that eight others overtook goes first.
    Nearest,
}

/// A write-back cache in front of the disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Its size, MiB. Above half of it, writing back takes turns with reads; below, reads go first.
    pub size_mib: u64,
    /// The link a write arrives by, MB/s (10^6 bytes).
    pub link_mb_per_s: f64,
    /// With a battery, what is in the cache is durable: a flush costs nothing.
    pub battery: bool,
    /// What is written back before the arm looks for other work, KiB.
    pub step_kib: u64,
    /// Contiguous dirty bytes are written back without looking for older ones up to this, MiB.
    pub run_mib: u64,
}

/// Channels that work in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// How many, at least 1.
    pub channels: u32,
    /// What lies on one channel before the next one follows, KiB.
    pub stripe_kib: u64,
    /// Before the first byte of a read, microseconds.
    pub read_us: f64,
    /// Rate of one channel's reads, MB/s (10^6 bytes).
    pub read_channel_mb_per_s: f64,
    /// Before a write's completion, microseconds.
    pub write_us: f64,
    /// Rate of one channel's writes, MB/s.
    pub write_channel_mb_per_s: f64,
    /// The rate of all together, MB/s.
    pub link_mb_per_s: f64,
    /// A flush, microseconds.
    pub flush_us: f64,
    /// One piece in so many meets an erase, 0: never …
    pub erase_one_in: u32,
    /// … which takes so many microseconds.
    pub erase_us: f64,
}

/// What was measured of a device: an access and a transfer for each command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineSpec {
    /// It has arms: what goes on where the last command ended has no access.
    pub turns: bool,
    /// Before the first byte of a read, milliseconds.
    pub read_ms: f64,
    /// Rate of reads at the start of the device and at its end, MB/s (10^6 bytes); between, it changes evenly.
    pub read_mb_per_s: [f64; 2],
    /// Before the first byte of a write, milliseconds.
    pub write_ms: f64,
    /// Rate of writes, MB/s.
    pub write_mb_per_s: f64,
    /// A flush, milliseconds.
    pub flush_ms: f64,
}

/// From an instant on, the device is slower or faster: a rebuild, a lost disk, a repaired one, a moment without breath.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Since the start, seconds.
    pub at_s: f64,
    /// Multiplies seeks, rotation and access.
    pub access_factor: f64,
    /// Multiplies the time of transfers.
    pub transfer_factor: f64,
}

/// Why a declaration is no device.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No declaration of this name.
    #[error("no device is called {name}: it is one of {known}, or the path of a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("the device's declaration {path} cannot be read: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not a declaration.
    #[error("the device's declaration is wrong: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A figure is out of range.
    #[error("device {name}: {figure} must be {range}")]
    Figure {
        /// The device.
        name: String,
        /// Which figure.
        figure: &'static str,
        /// What it must be.
        range: &'static str,
    },
}

/// A disk that is rebuilt gives every third part of its time to that, so a command takes so many times as long. No measurement: controllers
/// let it be set, and an operator who knows better says so.
pub const REBUILDS: f64 = 1.5;

/// The declarations this crate comes with: name and text.
const DECLARED: [(&str, &str); 9] = [
    ("raid5-table5", include_str!("../../devices/raid5-table5.toml")),
    ("raid5-hiccups", include_str!("../../devices/raid5-hiccups.toml")),
    ("raid5-degrading", include_str!("../../devices/raid5-degrading.toml")),
    ("raid5-zoned", include_str!("../../devices/raid5-zoned.toml")),
    ("raid5-fast-seeks", include_str!("../../devices/raid5-fast-seeks.toml")),
    ("raid6-8", include_str!("../../devices/raid6-8.toml")),
    ("disk-ncq", include_str!("../../devices/disk-ncq.toml")),
    ("ssd-sata", include_str!("../../devices/ssd-sata.toml")),
    ("nvme", include_str!("../../devices/nvme.toml")),
];

impl DeviceSpec {
    /// A device that this crate declares, or (a name that ends in `.toml`) one declared in a file.
    ///
    /// # Errors
    /// [`DeviceError`] says what is wrong with the name or the declaration.
    pub fn named(name: &str) -> Result<Self, DeviceError> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name);
            let text = text.map_err(|source| DeviceError::File { path: name.to_owned(), source })?;
            return Self::parse(&text);
        }
        match DECLARED.iter().find(|(declared, _)| *declared == name) {
            Some((_, text)) => Self::parse(text),
            None => {
                let known = Self::names().collect::<Vec<_>>().join(", ");
                Err(DeviceError::Unknown { name: name.to_owned(), known })
            }
        }
    }

    /// The names of the devices this crate declares.
    pub fn names() -> impl Iterator<Item = &'static str> {
        DECLARED.iter().map(|(name, _)| *name)
    }

    /// A declaration in TOML.
    ///
    /// # Errors
    /// When it is none, or a figure is out of range.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        let spec: Self = toml::from_str(text)?;
        spec.check()?;
        Ok(spec)
    }

    /// The same device with another size: a small one is a small disk with the same arm, so seeks keep their share of the
    /// whole stroke.
    #[must_use]
    pub fn of_size(self, size: Bytes) -> Self {
        Self { capacity_gb: size.as_u64().div_ceil(1_000_000_000), ..self }
    }

    /// The same device as it is at first, for good.
    #[must_use]
    pub fn unchanging(&self) -> Self {
        let phases = self.phases.iter().filter(|phase| phase.at_s <= 0.0).copied().collect();
        Self { phases, ..self.clone() }
    }

    /// The same device while a lost disk is rebuilt, for good: by how much that slows it down is [assumed](REBUILDS). `None`: it has no disk
    /// to lose, or loses everything with one.
    pub fn degraded(&self) -> Option<Self> {
        let has_parity = matches!(&self.model, ModelSpec::Disk(disk) if disk.parity_disks > 0);
        has_parity.then(|| self.slowed(REBUILDS))
    }

    /// The same device as it is at first, but each command takes so many times as long.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> Self {
        let slow = |phase: &Phase| Phase {
            access_factor: phase.access_factor * factor,
            transfer_factor: phase.transfer_factor * factor,
            ..*phase
        };
        let whole = Phase { at_s: 0.0, access_factor: 1.0, transfer_factor: 1.0 };
        let first = self.phases.iter().rfind(|phase| phase.at_s <= 0.0).unwrap_or(&whole);
        Self {
            name: format!("{}, {factor} times as slow", self.name),
            phases: vec![slow(first)],
            ..self.clone()
        }
    }

    /// It has arms, which do one thing at a time, and zones.
    pub fn turns(&self) -> bool {
        match &self.model {
            ModelSpec::Disk(_) => true,
            ModelSpec::Flash(_) => false,
            ModelSpec::Line(line) => line.turns,
        }
    }

    /// Its size.
    pub fn capacity(&self) -> Bytes {
        Bytes(self.capacity_gb.saturating_mul(1_000_000_000))
    }

    /// What it reads on and on, the mean of all zones, MB/s (10^6 bytes).
    pub fn sequential_mb_per_s(&self) -> f64 {
        match &self.model {
            ModelSpec::Disk(disk) => f64::midpoint(disk.outer_mb_per_s, disk.inner_mb_per_s),
            ModelSpec::Flash(flash) => {
                flash.link_mb_per_s.min(f64::from(flash.channels) * flash.read_channel_mb_per_s)
            }
            ModelSpec::Line(line) => f64::midpoint(line.read_mb_per_s[0], line.read_mb_per_s[1]),
        }
    }

    /// Seconds by which reading a byte of a file that lies in these pieces takes longer than on average over the device:
    /// outer zones are faster. Of the pieces it is the mean: a place in the middle of them takes less, because the rate
    /// changes evenly and not the time.
    pub fn zone_seconds_per_byte(&self, pieces: &[(DeviceOffset, Bytes)]) -> f64 {
        const SAMPLES: u32 = 256;
        let ModelSpec::Disk(disk) = &self.model else { return 0.0 };
        let seconds =
            |place: f64| 1e-6 / (disk.outer_mb_per_s + (disk.inner_mb_per_s - disk.outer_mb_per_s) * place);
        let mean: f64 = (0..SAMPLES).map(|at| seconds((f64::from(at) + 0.5) / f64::from(SAMPLES))).sum();
        let place =
            |offset: DeviceOffset| (offset.as_u64() as f64 / self.capacity().as_u64() as f64).min(1.0);
        let (mut all, mut bytes) = (0.0, 0.0);
        for (offset, length) in pieces {
            all += seconds(place(*offset + Bytes(length.as_u64() / 2))) * length.as_u64() as f64;
            bytes += length.as_u64() as f64;
        }
        if bytes > 0.0 { all / bytes - mean / f64::from(SAMPLES) } else { 0.0 }
    }

    fn check(&self) -> Result<(), DeviceError> {
        let wrong = |figure, range| Err(DeviceError::Figure { name: self.name.clone(), figure, range });
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let counts = |value: f64| value.is_finite() && value >= 0.0;
        if !(1..=1_000_000_000).contains(&self.capacity_gb) {
            return wrong("capacity_gb", "from 1 to 10^9");
        }
        for phase in &self.phases {
            if !counts(phase.at_s) || !positive(phase.access_factor) || !positive(phase.transfer_factor) {
                return wrong("a phase's factors", "above zero");
            }
        }
        if !self.phases.is_sorted_by(|one, next| one.at_s <= next.at_s) {
            return wrong("phases", "in ascending order of at_s");
        }
        match &self.model {
            ModelSpec::Disk(disk) => {
                let times = [disk.command_ms, disk.settle_ms, disk.full_stroke_ms, disk.rotation_ms];
                if !times.into_iter().chain([disk.arm_scatter]).all(counts) {
                    return wrong("a time of the arm", "zero or more");
                }
                if disk.full_stroke_ms < disk.settle_ms {
                    return wrong("full_stroke_ms", "at least settle_ms");
                }
                if !positive(disk.outer_mb_per_s) || !positive(disk.inner_mb_per_s) {
                    return wrong("a sequential rate", "above zero");
                }
                if disk.data_disks == 0 || disk.data_disks > 256 || disk.parity_disks > 256 {
                    return wrong("data_disks and parity_disks", "from 1 or 0 to 256");
                }
                if disk.chunk_kib == 0 || disk.chunk_kib > 1 << 20 {
                    return wrong("chunk_kib", "from 1 to 2^20");
                }
                let ascending = disk.write_ms.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1);
                if disk.write_ms.len() < 2 || !ascending || !disk.write_ms.iter().all(|(_, ms)| positive(*ms))
                {
                    return wrong("write_ms", "at least two points, ascending in both figures");
                }
                if let Some(cache) = &disk.cache {
                    if cache.step_kib == 0 || cache.step_kib > cache.size_mib << 9 {
                        return wrong("step_kib", "above zero and at most half of the cache");
                    }
                    if !positive(cache.link_mb_per_s) {
                        return wrong("link_mb_per_s", "above zero");
                    }
                }
            }
            ModelSpec::Line(line) => {
                let [outer, inner] = line.read_mb_per_s;
                if ![outer, inner, line.write_mb_per_s].into_iter().all(positive) {
                    return wrong("a rate", "above zero");
                }
                if ![line.read_ms, line.write_ms, line.flush_ms].into_iter().all(counts) {
                    return wrong("a time", "zero or more");
                }
            }
            ModelSpec::Flash(flash) => {
                let rates = [flash.read_channel_mb_per_s, flash.write_channel_mb_per_s, flash.link_mb_per_s];
                if !rates.into_iter().all(positive) {
                    return wrong("a rate", "above zero");
                }
                if ![flash.read_us, flash.write_us, flash.flush_us, flash.erase_us].into_iter().all(counts) {
                    return wrong("a time", "zero or more");
                }
                if flash.channels == 0 || flash.channels > 4096 || flash.stripe_kib == 0 {
                    return wrong("channels and stripe_kib", "from 1 on, and at most 4096 channels");
                }
            }
        }
        Ok(())
    }
}
