//! How busy are the processors, and with whom?
//!
//! **For:** the part of the machine's processor time that was spent between two moments, without that of processes that
//! only emulate; and what servers and the kernel's own threads spent, whatever else is at work. **State:** none. **Invariants:** everything is counted in the kernel's clock ticks.

use std::collections::BTreeMap;
use std::io;

/// Processor time up to a moment, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// Of all processors, idle or not.
    pub all: u64,
    /// Of these, not idle.
    pub busy: u64,
    /// Of these, for the processes that do not count.
    pub emulation: u64,
}

impl ProcessorTime {
    /// Up to now; `emulation` are the processes that do not count.
    ///
    /// # Errors
    /// When `/proc` does not tell.
    pub fn now(emulation: &[u32]) -> io::Result<Self> {
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "/proc tells no processor time");
        let text = std::fs::read_to_string("/proc/stat")?;
        let (all, busy) = machine(&text).ok_or_else(unknown)?;
        let mut emulated = 0;
        for process in emulation {
            let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
            emulated += process_ticks(&text).ok_or_else(unknown)?;
        }
        Ok(Self { all, busy, emulation: emulated })
    }

    /// Percent of the machine since `before`, without the emulation.
    pub fn percent_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let busy = self.busy.saturating_sub(before.busy) as f64;
        let emulation = self.emulation.saturating_sub(before.emulation) as f64;
        ((busy - emulation) / all * 100.0).clamp(0.0, 100.0)
    }
}

/// Ticks of everything that serves files, by process: servers with what they started, and the kernel's threads, which write
/// back for a filesystem of the kernel. One rule for filesystems in the kernel and outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingTime(BTreeMap<u32, u64>);

impl ServingTime {
    /// Up to now.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn now(servers: &[u32]) -> io::Result<Self> {
        let mut processes = BTreeMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // One that has just ended is none.
            let text = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            if let Some(process) = parent_and_ticks(&text) {
                processes.insert(number, process);
            }
        }
        Ok(Self::of(&processes, servers))
    }

    /// `processes`: parent and ticks of each.
    fn of(processes: &BTreeMap<u32, (u32, u64)>, servers: &[u32]) -> Self {
        let serves = |number: u32| {
            // A process' parents have been there before it, so this ends.
            std::iter::successors(Some(number), |number| processes.get(number).map(|(parent, _)| *parent))
                .any(|number| number == KERNEL_THREADS || servers.contains(&number))
        };
        let serving = processes.iter().filter(|(number, _)| serves(**number));
        Self(serving.map(|(number, (_, ticks))| (*number, *ticks)).collect())
    }

    /// Seconds of all processors together since `before`. What ended meanwhile does not count.
    pub fn seconds_since(&self, before: &Self) -> f64 {
        let spent = |(number, ticks): (&u32, &u64)| ticks.saturating_sub(*before.0.get(number).unwrap_or(&0));
        let ticks: u64 = self.0.iter().map(spent).sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// The kernel's threads are children of this process.
const KERNEL_THREADS: u32 = 2;

/// A process' parent and its ticks, from `/proc/PID/stat`.
fn parent_and_ticks(text: &str) -> Option<(u32, u64)> {
    let (_, behind) = text.rsplit_once(')')?;
    Some((behind.split_whitespace().nth(1)?.parse().ok()?, process_ticks(text)?))
}

/// All ticks and busy ones of `/proc/stat`, see proc_stat(5).
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guests are in user and nice.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let all: u64 = ticks.iter().sum();
    Some((all, all - ticks.get(3)? - ticks.get(4)?))
}

/// User and system ticks of `/proc/PID/stat`, see proc_pid_stat(5).
fn process_ticks(text: &str) -> Option<u64> {
    // The name, in parentheses, may hold anything.
    let (_, behind) = text.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        assert_eq!(machine("cpu  10 1 5 80 4 0 0 0 0 0\ncpu0 1"), Some((100, 16)));
        assert_eq!(machine("intr 5"), None);
        let process = "7 (a ) (b) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 99";
        assert_eq!(process_ticks(process), Some(42));
        assert_eq!(process_ticks("7 (a) S 1"), None);
        assert_eq!(parent_and_ticks(process), Some((1, 42)));
    }

    #[test]
    fn servers_their_children_and_the_kernel_serve_and_nobody_else_does() {
        let processes = |ticks: u64| {
            BTreeMap::from([
                (1, (0, ticks)),
                (KERNEL_THREADS, (0, 10)),
                (9, (KERNEL_THREADS, 20 + ticks)),
                (50, (1, 30 + ticks)),
                (51, (50, 40 + 2 * ticks)),
                (60, (1, 500 * ticks)),
            ])
        };
        let before = ServingTime::of(&processes(0), &[50]);
        assert_eq!(before.0.keys().copied().collect::<Vec<_>>(), [2, 9, 50, 51]);
        let mut later = processes(100);
        // One that began meanwhile, and one that ended.
        later.insert(52, (51, 7));
        later.remove(&9);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ServingTime::of(&later, &[50]).seconds_since(&before) * ticks, 307.0);
    }

    #[test]
    fn the_emulation_does_not_count() {
        let before = ProcessorTime { all: 1000, busy: 500, emulation: 100 };
        let after = ProcessorTime { all: 1200, busy: 600, emulation: 140 };
        assert_eq!(after.percent_since(&before), 30.0);
        assert_eq!(before.percent_since(&before), 0.0);
    }

    #[test]
    fn this_process_and_the_machine_have_spent_time() {
        let own = ProcessorTime::now(&[std::process::id()]).expect("it is Linux");
        assert!(own.all >= own.busy && own.busy > 0);
        assert!(ProcessorTime::now(&[u32::MAX]).is_err(), "no such process");
        let serving = ServingTime::now(&[std::process::id()]).expect("it is Linux");
        assert!(serving.0.contains_key(&std::process::id()));
    }
}
