//! Does a modelled device take as long as the one that was measured?
//!
//! **For:** Table 5 of the paper on rt-Samba and AVFS (throughput of random reads and writes of one RAID5 LUN), measured
//! in the same way on a model. **Excludes:** fitting; the figures are in the device's declaration. **State:** none.

pub use avfs_model::calibration::{command_time, depth_of_lines, read_ends, start_values, write_times};
use avfs_model::device::DeviceSpec;
use rtsched::Direction;
use units::Bytes;

/// Table 5: length in KiB; random reads and random writes in Mbit/s (10^6).
pub const TABLE_5: [(u64, f64, f64); 7] = [
    (64, 35.0, 224.3),
    (512, 204.5, 376.3),
    (1024, 361.2, 440.9),
    (2048, 569.9, 674.0),
    (4096, 821.7, 816.6),
    (8192, 1032.4, 925.2),
    (16384, 1216.6, 1123.2),
];

/// A cell: what was published and what the model does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What was done.
    pub direction: Direction,
    /// Each command's length.
    pub length: Bytes,
    /// Mbit/s as published.
    pub published: f64,
    /// Mbit/s of the model.
    pub modelled: f64,
}

impl Cell {
    /// The model's error as a percentage of what was published.
    pub fn error_percent(&self) -> f64 {
        (self.modelled / self.published - 1.0) * 100.0
    }

    /// The error that is tolerated, percent: 3 for reads, 5 for writes. None for the smallest writes, which depend on how
    /// the array's cache orders them.
    pub fn tolerance_percent(&self) -> Option<f64> {
        match self.direction {
            Direction::Read => Some(3.0),
            _ => (self.length > Bytes::from_kib(64)).then_some(5.0),
        }
    }

    /// Whether the model is near enough.
    pub fn holds(&self) -> bool {
        self.tolerance_percent().is_none_or(|tolerated| self.error_percent().abs() <= tolerated)
    }
}

/// All cells of Table 5 on a device, one command at a time at random places.
pub fn table_5(spec: &DeviceSpec, seed: u64) -> Vec<Cell> {
    let cell = |(kib, read, write): (u64, f64, f64)| {
        [(Direction::Read, read), (Direction::Write, write)].map(|(direction, published)| {
            let length = Bytes::from_kib(kib);
            Cell { direction, length, published, modelled: random_megabits(spec, direction, length, seed) }
        })
    };
    TABLE_5.into_iter().flat_map(cell).collect()
}

/// Mbit/s of commands at random places, one after the other, when the cache is as full as it gets.
pub fn random_megabits(spec: &DeviceSpec, direction: Direction, length: Bytes, seed: u64) -> f64 {
    let time = command_time(spec, direction, length, 1, seed);
    length.as_u64() as f64 * 8.0 / time.as_secs_f64() / 1e6
}
