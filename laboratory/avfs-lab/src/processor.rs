//! How busy are the processors, and with whom?
//!
//! **For:** the part of the machine's processor time that was spent between two moments, without that of processes that
//! only emulate; and what servers and the kernel's own threads spent, whatever else is at work. **State:** none. **Invariants:** everything is counted in the kernel's clock ticks.

use std::collections::BTreeMap;
use std::env;
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
    /// Of all, when something here wanted to run and the machine's own host let others.
    pub stolen: u64,
}

impl ProcessorTime {
    /// Up to now; `emulation` are the processes that do not count.
    ///
    /// # Errors
    /// When `/proc` does not tell.
    pub fn now(emulation: &[u32]) -> io::Result<Self> {
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "/proc tells no processor time");
        let text = std::fs::read_to_string("/proc/stat")?;
        let [all, busy, stolen] = machine(&text).ok_or_else(unknown)?;
        let mut emulated = 0;
        for process in emulation {
            let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
            emulated += process_ticks(&text).ok_or_else(unknown)?;
        }
        Ok(Self { all, busy, emulation: emulated, stolen })
    }

    /// Percent of the machine since `before`, without the emulation.
    pub fn percent_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let busy = self.busy.saturating_sub(before.busy) as f64;
        let emulation = self.emulation.saturating_sub(before.emulation) as f64;
        ((busy - emulation) / all * 100.0).clamp(0.0, 100.0)
    }

    /// Percent of the machine since `before` that its own host gave to others.
    pub fn stolen_percent_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        self.stolen.saturating_sub(before.stolen) as f64 / all * 100.0
    }
}

/// Names a descriptor of the `/proc` outside this process namespace: from inside the kernel's threads cannot be seen.
const HOST_PROC: &str = "HOST_PROC";
/// PF_KTHREAD among the flags of a process, see linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Ticks of everything that serves files, by process: servers with what they started, and the kernel's threads, which write
/// back for a filesystem of the kernel. One rule for filesystems in the kernel and outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingTime {
    servers: BTreeMap<u32, u64>,
    kernel: BTreeMap<u32, u64>,
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    is_kernel_thread: bool,
    ticks: u64,
}

impl ServingTime {
    /// Up to now. `servers` are numbers in this process namespace.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn now(servers: &[u32]) -> io::Result<Self> {
        let inside = processes("/proc")?;
        match env::var(HOST_PROC) {
            Ok(outside) => Ok(Self::of(&inside, &processes(&format!("/proc/self/fd/{outside}"))?, servers)),
            Err(_) => Ok(Self::of(&inside, &inside, servers)),
        }
    }

    /// `processes` have the servers among them, `outside` the kernel's threads.
    fn of(processes: &BTreeMap<u32, Process>, outside: &BTreeMap<u32, Process>, servers: &[u32]) -> Self {
        let serves = |number: u32| {
            // A process' parents have been there before it, so this ends.
            std::iter::successors(Some(number), |number| processes.get(number).map(|process| process.parent))
                .any(|number| servers.contains(&number))
        };
        let ticks = |(number, process): (&u32, &Process)| (*number, process.ticks);
        Self {
            servers: processes.iter().filter(|(number, _)| serves(**number)).map(ticks).collect(),
            kernel: outside.iter().filter(|(_, process)| process.is_kernel_thread).map(ticks).collect(),
        }
    }

    /// Seconds of all processors together since `before`. What ended meanwhile does not count.
    pub fn seconds_since(&self, before: &Self) -> f64 {
        let spent = |now: &BTreeMap<u32, u64>, before: &BTreeMap<u32, u64>| -> u64 {
            now.iter().map(|(number, ticks)| ticks.saturating_sub(*before.get(number).unwrap_or(&0))).sum()
        };
        let ticks = spent(&self.servers, &before.servers) + spent(&self.kernel, &before.kernel);
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// All processes of a `/proc`, by their numbers in its namespace.
fn processes(proc: &str) -> io::Result<BTreeMap<u32, Process>> {
    let mut processes = BTreeMap::new();
    for entry in std::fs::read_dir(proc)? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // One that has just ended is none.
        let text = std::fs::read_to_string(format!("{proc}/{number}/stat")).unwrap_or_default();
        if let Some(process) = process(&text) {
            processes.insert(number, process);
        }
    }
    Ok(processes)
}

/// From `/proc/PID/stat`, see proc_pid_stat(5).
fn process(text: &str) -> Option<Process> {
    let (_, behind) = text.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    Some(Process { parent, is_kernel_thread: flags & KERNEL_THREAD != 0, ticks: process_ticks(text)? })
}

/// All ticks of `/proc/stat`, busy ones and stolen ones, see proc_stat(5).
fn machine(text: &str) -> Option<[u64; 3]> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guests are in user and nice.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let all: u64 = ticks.iter().sum();
    let stolen = *ticks.get(7)?;
    Some([all, all - ticks.get(3)? - ticks.get(4)? - stolen, stolen])
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
        assert_eq!(machine("cpu  10 1 5 76 4 0 0 4 0 0\ncpu0 1"), Some([100, 16, 4]));
        assert_eq!(machine("intr 5"), None);
        let process = "7 (a ) (b) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 99";
        assert_eq!(process_ticks(process), Some(42));
        assert_eq!(process_ticks("7 (a) S 1"), None);
        let user = Process { parent: 1, is_kernel_thread: false, ticks: 42 };
        assert_eq!(super::process(process), Some(user));
        let worker = "9 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 3 4 0 0 20 0 1 0 5";
        assert_eq!(super::process(worker), Some(Process { parent: 2, is_kernel_thread: true, ticks: 7 }));
    }

    #[test]
    fn servers_their_children_and_the_kernel_serve_and_nobody_else_does() {
        let one = |parent, is_kernel_thread, ticks| Process { parent, is_kernel_thread, ticks };
        // 2 is a process of this namespace like any other, and 50 outside another one than here.
        let inside = |ticks: u64| {
            BTreeMap::from([
                (1, one(0, false, ticks)),
                (2, one(1, false, 900 * ticks)),
                (50, one(1, false, 30 + ticks)),
                (51, one(50, false, 40 + 2 * ticks)),
                (60, one(1, false, 500 * ticks)),
            ])
        };
        let outside = |ticks: u64| {
            BTreeMap::from([
                (2, one(0, true, 10)),
                (9, one(2, true, 20 + ticks)),
                (50, one(2, true, 5 + 4 * ticks)),
                (70, one(1, false, 700 * ticks)),
            ])
        };
        let before = ServingTime::of(&inside(0), &outside(0), &[50]);
        assert_eq!(before.servers.keys().copied().collect::<Vec<_>>(), [50, 51]);
        assert_eq!(before.kernel.keys().copied().collect::<Vec<_>>(), [2, 9, 50]);
        let (mut later, mut kernel) = (inside(100), outside(100));
        // One that began meanwhile, and one that ended.
        later.insert(52, one(51, false, 7));
        kernel.remove(&9);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ServingTime::of(&later, &kernel, &[50]).seconds_since(&before) * ticks, 707.0);
    }

    #[test]
    fn the_emulation_does_not_count() {
        let before = ProcessorTime { all: 1000, busy: 500, emulation: 100, stolen: 10 };
        let after = ProcessorTime { all: 1200, busy: 600, emulation: 140, stolen: 20 };
        assert_eq!(after.percent_since(&before), 30.0);
        assert_eq!(after.stolen_percent_since(&before), 5.0);
        assert_eq!(before.percent_since(&before), 0.0);
    }

    #[test]
    fn this_process_and_the_machine_have_spent_time() {
        let own = ProcessorTime::now(&[std::process::id()]).expect("it is Linux");
        assert!(own.all >= own.busy && own.busy > 0);
        assert!(ProcessorTime::now(&[u32::MAX]).is_err(), "no such process");
        let serving = ServingTime::now(&[std::process::id()]).expect("it is Linux");
        assert!(serving.servers.contains_key(&std::process::id()));
    }
}
