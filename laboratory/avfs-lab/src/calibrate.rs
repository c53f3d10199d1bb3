//! Does the block device take as long as the one that was measured?
//!
//! **For:** the throughput of random reads and writes of a block device, one at a time with direct I/O, beside Table 5 of
//! the paper on rt-Samba and AVFS. **Excludes:** the table itself, which is `rtsched_sim::calibration`. **State:** none.
//! **Invariants:** a write cell is measured when a cache of 256 MiB has been filled by the same writes.

use avfs_workloads::content;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::Direction;
use rtsched_sim::calibration::{Cell, TABLE_5};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use units::{Bytes, Duration};

/// What a cache may hold before it slows writes down, with a reserve.
const WARM_UP: Bytes = Bytes::from_mib(320);

/// A cell of reads is measured until the standard error of its mean is below this part of it, …
const EXACT: f64 = 0.006;

/// … or so long.
const LONGEST: Duration = Duration::from_secs(60);

/// Alignment of memory and length that every device accepts for direct I/O.
const ALIGNMENT: usize = 4096;

/// Measures all cells of Table 5 on a device, which loses its content. `measured` is called after each.
///
/// # Errors
/// Those of opening, reading and writing the device.
pub fn table_5(
    device: &Path,
    size: Bytes,
    seconds: Duration,
    seed: u64,
    mut measured: impl FnMut(&Cell),
) -> io::Result<Vec<Cell>> {
    let file: File =
        rustix::fs::open(device, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?.into();
    let mut cells = Vec::new();
    // Reads first: what the writes leave in a controller's cache is written back for seconds, at the cost of reads.
    for direction in [Direction::Read, Direction::Write] {
        for (kib, read, write) in TABLE_5 {
            let published = if direction == Direction::Read { read } else { write };
            let length = Bytes::from_kib(kib);
            let modelled = random_megabits(&file, size, direction, length, seconds, seed)?;
            let cell = Cell { direction, length, published, modelled };
            measured(&cell);
            cells.push(cell);
        }
    }
    Ok(cells)
}

fn random_megabits(
    file: &File,
    size: Bytes,
    direction: Direction,
    length: Bytes,
    seconds: Duration,
    seed: u64,
) -> io::Result<f64> {
    let length_bytes = length.as_u64() as usize;
    let mut memory = vec![0_u8; length_bytes + ALIGNMENT];
    let skip = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[skip..skip + length_bytes];
    // What a modelled LUN keeps in little memory.
    content::fill(buffer, seed, 0);
    let places = size.as_u64() / length.as_u64();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut transfer = || {
        let offset = random.random_range(0..places) * length.as_u64();
        match direction {
            Direction::Write => file.write_all_at(buffer, offset),
            _ => file.read_exact_at(buffer, offset),
        }
    };
    let warm_up = if direction == Direction::Write { WARM_UP.as_u64() / length.as_u64() } else { 2 };
    for _ in 0..warm_up {
        transfer()?;
    }
    let (start, mut moments) = (Instant::now(), Moments::default());
    let mut before = start;
    // Writes depend on each other through the cache; reads do not, so it is known how exact their mean is.
    let exact = |moments: &Moments, elapsed| {
        direction == Direction::Write || moments.relative_error() < EXACT || elapsed > LONGEST
    };
    while start.elapsed() < seconds || !exact(&moments, start.elapsed()) {
        transfer()?;
        let now = Instant::now();
        moments.count((now - before).as_secs_f64());
        before = now;
    }
    Ok((moments.count * length.as_u64() * 8) as f64 / (before - start).as_secs_f64() / 1e6)
}

/// Mean and spread of durations, Welford 1962.
#[derive(Default)]
struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn count(&mut self, value: f64) {
        self.count += 1;
        let difference = value - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (value - self.mean);
    }

    /// Standard error of the mean, as a part of it; infinite before the second value.
    fn relative_error(&self) -> f64 {
        if self.count < 2 {
            return f64::INFINITY;
        }
        let count = self.count as f64;
        (self.squares / (count - 1.0) / count).sqrt() / self.mean
    }
}

/// A cell in a line, for progress.
pub fn line(cell: &Cell) -> String {
    let direction = if cell.direction == Direction::Read { "read" } else { "write" };
    format!(
        "{:>6} KiB {direction:<5} {:>7.1} Mbit/s  {:+.1} %",
        cell.length.as_u64() >> 10,
        cell.modelled,
        cell.error_percent()
    )
}

/// The cells as a Markdown table beside the paper's.
pub fn markdown(cells: &[Cell]) -> String {
    let mut text = String::from(
        "| KiB | direction | paper, Mbit/s | here, Mbit/s | error | |\n|--:|---|--:|--:|--:|---|\n",
    );
    for cell in cells {
        let kib = cell.length.as_u64() >> 10;
        let verdict = match (cell.holds(), cell.tolerance_percent()) {
            (true, Some(tolerated)) => format!("within {tolerated} %"),
            (false, Some(tolerated)) => format!("**beyond {tolerated} %**"),
            (_, None) => "no bound".to_owned(),
        };
        let direction = if cell.direction == Direction::Read { "read" } else { "write" };
        text += &format!(
            "| {kib} | {direction} | {:.1} | {:.1} | {:+.1} % | {verdict} |\n",
            cell.published,
            cell.modelled,
            cell.error_percent()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_is_the_textbooks() {
        let mut moments = Moments::default();
        assert_eq!(moments.relative_error(), f64::INFINITY);
        for value in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            moments.count(value);
        }
        // Sum of squares 32, sample variance 32 / 7, mean 5.
        let expected = (32.0_f64 / 7.0 / 8.0).sqrt() / 5.0;
        assert!((moments.relative_error() - expected).abs() < 1e-12);
    }

    #[test]
    fn the_table_tells_which_cells_hold() {
        let cell = |length, modelled| Cell {
            direction: Direction::Read,
            length: Bytes::from_kib(length),
            published: 100.0,
            modelled,
        };
        let text = markdown(&[cell(64, 101.0), cell(512, 95.0)]);
        assert!(text.contains("| 64 | read | 100.0 | 101.0 | +1.0 % | within 3 % |"), "{text}");
        assert!(text.contains("| 512 | read | 100.0 | 95.0 | -5.0 % | **beyond 3 %** |"), "{text}");
    }
}
