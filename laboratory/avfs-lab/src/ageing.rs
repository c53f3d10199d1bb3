//! A volume that has been in use for long.
//!
//! **For:** files of all sizes, of which many were removed and others written in their place, so that free space lies in
//! many pieces; the clips are laid into those afterwards. **Excludes:** mounting; the LUN's model is off meanwhile. **State:**
//! none. **Invariants:** the steps depend on nothing but sizes, so every filesystem goes through the same ones, one after the
//! other; at the end there is as much room as the clips need, and the rest.

use avfs_workloads::content;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use units::Bytes;

/// Sizes are spread evenly over their logarithm: as many documents as shots, and most of the space with these.
const SMALLEST_KIB: f64 = 64.0;
const LARGEST_KIB: f64 = 65_536.0;

/// How often a part of everything is removed, and made up for.
const ROUNDS: u32 = 2;

/// The part, percent.
const REMOVED_PERCENT: u64 = 25;

/// What happens to a file, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is written.
    Write(u32, Bytes),
    /// It is removed.
    Remove(u32),
}

/// What happens to a volume on which files take `full` bytes when the clips, of `clips` bytes, are there as well.
pub fn plan(full: Bytes, clips: Bytes) -> Vec<Step> {
    let mut plan =
        Plan { steps: Vec::new(), there: Vec::new(), bytes: 0, random: SmallRng::seed_from_u64(1) };
    let full = full.as_u64();
    plan.fill(full);
    for _ in 0..ROUNDS {
        plan.remove(full - full * REMOVED_PERCENT / 100);
        plan.fill(full);
    }
    plan.remove(full.saturating_sub(clips.as_u64()));
    plan.steps
}

struct Plan {
    steps: Vec<Step>,
    there: Vec<(u32, u64)>,
    bytes: u64,
    random: SmallRng,
}

impl Plan {
    /// Writes until there are so many bytes.
    fn fill(&mut self, bytes: u64) {
        while self.bytes < bytes {
            let kib = SMALLEST_KIB * (LARGEST_KIB / SMALLEST_KIB).powf(self.random.random());
            let length = ((kib as u64) << 10).min(bytes - self.bytes);
            let written = self.steps.iter().filter(|step| matches!(step, Step::Write(..))).count() as u32;
            self.steps.push(Step::Write(written, Bytes(length)));
            self.there.push((written, length));
            self.bytes += length;
        }
    }

    /// Removes until there are at most so many bytes.
    fn remove(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let index = self.random.random_range(0..self.there.len());
            let (number, length) = self.there.swap_remove(index);
            self.steps.push(Step::Remove(number));
            self.bytes -= length;
        }
    }
}

/// The directory a file is in, and what it is called there.
pub(crate) fn place(number: u32) -> (String, String) {
    /// Files of a directory.
    const NEIGHBOURS: u32 = 64;
    (format!("{:04}", number / NEIGHBOURS), format!("{number:06}"))
}

/// Takes the steps in a directory, which is made.
///
/// # Errors
/// Those of the filesystem, with the file's name.
pub fn carry_out(steps: &[Step], directory: &Path) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for step in steps {
        let (Step::Write(number, _) | Step::Remove(number)) = *step;
        let (parent, file) = place(number);
        let name = format!("{parent}/{file}");
        let path = directory.join(&name);
        let taken = match step {
            Step::Remove(_) => fs::remove_file(&path),
            Step::Write(_, length) => path
                .parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| write(&path, content::seed(&name), length.as_u64(), &mut buffer)),
        };
        taken.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn write(path: &Path, seed: u64, length: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    for offset in (0..length).step_by(buffer.len()) {
        let piece = &mut buffer[..(length - offset).min(1 << 20) as usize];
        content::fill(piece, seed, offset);
        file.write_all(piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_volume_is_never_fuller_than_declared_and_has_room_for_the_clips_at_the_end() {
        let (full, clips) = (Bytes::from_mib(4096), Bytes::from_mib(1024));
        let steps = plan(full, clips);
        let (mut there, mut most, mut removed) = (BTreeMap::new(), 0, 0);
        for step in &steps {
            match step {
                Step::Write(number, length) => assert_eq!(there.insert(*number, length.as_u64()), None),
                Step::Remove(number) => removed += there.remove(number).expect("it was there"),
            }
            most = most.max(there.values().sum::<u64>());
        }
        assert_eq!(most, full.as_u64());
        let rest = full.as_u64() - clips.as_u64();
        let left: u64 = there.values().sum();
        assert!(left <= rest && left > rest - (64 << 20), "{left}");
        assert!(removed >= full.as_u64() * 3 / 4, "twice a quarter, and room for the clips: {removed}");
        assert_eq!(plan(full, clips), steps, "the same every time");
    }

    #[test]
    fn steps_are_taken() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let length = Bytes(3 * (1 << 20) + 4096);
        let steps = [Step::Write(0, length), Step::Write(65, Bytes::from_kib(4)), Step::Remove(65)];
        carry_out(&steps, directory.path()).expect("there is room");
        let read = fs::read(directory.path().join("0000/000000")).expect("it was written");
        assert_eq!(read.len() as u64, length.as_u64());
        assert_eq!(content::check(&read[3 << 20..], content::seed("0000/000000"), 3 << 20), Ok(()));
        assert!(!directory.path().join("0001/000065").exists());
        let error = carry_out(&[Step::Remove(7)], directory.path()).expect_err("it is not there");
        assert!(error.to_string().contains("000007"), "{error}");
    }
}
