//! How much free space there was at earlier times, kept on this host beside the events.
//!
//! **For:** estimates for how long there will be long free runs. **Excludes:** counting and estimating. **State:** a sample an hour of the
//! last days, in memory and in a file. **Invariants:** bounded; a file that is damaged, or cannot be read or written, costs
//! estimates and nothing else.

use crate::event_log::open_kept;
use avfs_core::free_space::Sample;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often free space is counted: estimates are about days. An estimator's window.
const EACH: Duration = Duration::from_secs(3600);
/// Samples that are kept: those of eight days, one more than an estimate looks back. An estimator's window.
const MOST: usize = 8 * 24;
/// Of a longer file no more is read. It bounds memory.
const LONGEST: u64 = 1 << 20;

/// See the module.
pub(crate) struct SpaceLog {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    samples: VecDeque<Sample>,
    next: Instant,
}

impl SpaceLog {
    /// That of the volume with this identity, with what the file of `directory` holds.
    pub(crate) fn open(directory: &Path, uuid: &str) -> Self {
        let path = directory.join(format!("{uuid}.space"));
        let samples = read(&path).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: free space of earlier is not known: {error}", path.display());
            }
            VecDeque::new()
        });
        Self { path, state: Mutex::new(State { samples, next: Instant::now() }) }
    }

    /// Whether it is time for another one.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.state.lock().next
    }

    /// Keeps a sample.
    pub(crate) fn add(&self, sample: Sample) {
        let mut state = self.state.lock();
        state.next = Instant::now() + EACH;
        if state.samples.len() == MOST {
            state.samples.pop_front();
        }
        state.samples.push_back(sample);
        if let Err(error) = self.write(&state.samples) {
            tracing::warn!("{}: free space is not kept beyond a restart: {error}", self.path.display());
        }
    }

    /// What is kept, the earliest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.state.lock().samples.iter().copied().collect()
    }

    fn write(&self, samples: &VecDeque<Sample>) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut lines = Vec::new();
        for sample in samples {
            serde_json::to_writer(&mut lines, sample)?;
            lines.push(b'\n');
        }
        let whole = self.path.with_extension("space.new");
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&whole)?;
        file.write_all(&lines)?;
        std::fs::rename(&whole, &self.path)
    }
}

fn read(path: &Path) -> io::Result<VecDeque<Sample>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(open_kept(path)?, LONGEST), &mut bytes)?;
    let lines = bytes.split(|byte| *byte == b'\n');
    let mut samples: VecDeque<Sample> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    samples.drain(..samples.len().saturating_sub(MOST));
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_are_bounded_and_damage_costs_the_damaged_lines() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("not/there/yet");
        let log = SpaceLog::open(&state, "a");
        assert!(log.is_due() && !state.exists());
        let sample = |at| Sample { at_milliseconds: at, free_bytes: 2, long_bytes: 1 };
        (0..MOST as i64 + 3).for_each(|at| log.add(sample(at)));
        assert!(!log.is_due());
        let again = SpaceLog::open(&state, "a");
        assert_eq!(again.samples(), log.samples());
        assert_eq!((again.samples().len(), again.samples()[0]), (MOST, sample(3)));
        let path = state.join("a.space");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[3] = 0xff;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(SpaceLog::open(&state, "a").samples().len(), MOST - 1);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let log = SpaceLog::open(&state, "a");
        log.add(sample(1));
        assert_eq!(log.samples(), [sample(1)]);
    }
}
