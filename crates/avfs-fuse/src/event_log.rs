//! What happened to a volume's clients, kept on this host.
//!
//! **For:** one line in the log for each event, the last events for the control socket, and a file that survives a restart.
//! **Excludes:** noticing. **State:** the last [`MOST`] events in memory, and two files: one that grows to [`LONGEST`], and the one before
//! it. **Invariants:** bounded; a file that is damaged, or cannot be read or written, costs events and nothing else.
//!
//! The file is on this host and not on the volume: what failed most is worth most, and then the volume cannot be written; and what
//! is told of players must not cost them device time. A line of JSON is an event, so that other programs can read it.

use avfs_core::events::{ClientReport, EventKind, EventReport};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Events that are kept in memory and answered: about 1 MB. An operator's figure: a bad evening.
const MOST: usize = 2000;
/// Bytes of one file.
const LONGEST: u64 = 2 << 20;
/// A line that is longer is none of ours.
const LONGEST_LINE: u64 = 64 << 10;

/// Where a host's programs keep what they have to keep, unless systemd says it.
const STATE_DIRECTORY: &str = "/var/lib/avfs";

/// Where events are kept: systemd's word for it comes first.
pub fn state_directory() -> PathBuf {
    std::env::var_os("STATE_DIRECTORY").map_or_else(|| STATE_DIRECTORY.into(), PathBuf::from)
}

/// See the module.
pub struct EventLog {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: VecDeque<EventReport>,
    next: u64,
    /// Since this was opened, by kind.
    counts: BTreeMap<&'static str, u64>,
    /// It was said already that the file cannot be written.
    is_told: bool,
}

impl EventLog {
    /// The events of the volume with this identity, with those that are in the files of `directory`.
    pub fn open(directory: &Path, uuid: &str) -> Self {
        let path = directory.join(format!("{uuid}.events"));
        let mut state = State::default();
        for path in [older(&path), path.clone()] {
            if let Err(error) = read(&path, &mut state)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("{}: events of earlier are not known: {error}", path.display());
            }
        }
        state.next = state.last.back().map_or(1, |event| event.number.saturating_add(1));
        Self { path, state: Mutex::new(state) }
    }

    /// Keeps what has happened, and logs it.
    pub fn add(&self, events: Vec<EventReport>) {
        if events.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let mut lines = Vec::new();
        for mut event in events {
            event.number = state.next;
            state.next += 1;
            for client in [&mut event.client, &mut event.blocker].into_iter().flatten() {
                look_up(client);
            }
            log(&event);
            *state.counts.entry(event.kind.name()).or_default() += u64::from(event.count);
            if event.kind == EventKind::Late && event.is_noticed {
                *state.counts.entry("late_noticed").or_default() += u64::from(event.count);
            }
            // What was just made can be said in JSON.
            if serde_json::to_writer(&mut lines, &event).is_ok() {
                lines.push(b'\n');
            }
            state.push(event);
        }
        if let Err(error) = self.append(&lines)
            && !std::mem::replace(&mut state.is_told, true)
        {
            tracing::warn!("{}: events are not kept beyond a restart: {error}", self.path.display());
        }
    }

    fn append(&self, lines: &[u8]) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let open = || OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&self.path);
        let mut file = open()?;
        let mut length = file.metadata()?.len();
        if length + lines.len() as u64 > LONGEST && length > 0 {
            std::fs::rename(&self.path, older(&self.path))?;
            file = open()?;
            length = file.metadata()?.len();
        }
        // A line that a crash has cut ends there.
        let is_cut = length > 0 && !ends_a_line(&mut file)?;
        let mut written = if is_cut { vec![b'\n'] } else { Vec::new() };
        written.extend_from_slice(lines);
        file.write_all(&written)?;
        file.sync_data()
    }

    /// How often what has happened since it was opened; `late_noticed` is a part of `late`.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts: BTreeMap<String, u64> = EventKind::ALL.map(|kind| (kind.name().to_owned(), 0)).into();
        counts.insert("late_noticed".to_owned(), 0);
        counts.extend(self.state.lock().counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)));
        counts
    }

    /// The last events of at least this number, the oldest first, no more than so many.
    pub fn since(&self, number: u64, most: usize) -> Vec<EventReport> {
        let state = self.state.lock();
        let count = state.last.iter().rev().take(most).take_while(|event| event.number >= number).count();
        state.last.iter().skip(state.last.len() - count).cloned().collect()
    }
}

impl State {
    fn push(&mut self, event: EventReport) {
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("events.old")
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    use io::Read;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Opens what an earlier daemon has kept. It may be anything by now: a pipe would be waited for.
pub(crate) fn open_kept(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

fn read(path: &Path, state: &mut State) -> io::Result<()> {
    let mut reader = BufReader::new(io::Read::take(open_kept(path)?, LONGEST * 2));
    let (mut line, mut damaged) = (Vec::new(), 0_u64);
    loop {
        line.clear();
        if io::Read::take(&mut reader, LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match serde_json::from_slice::<EventReport>(&line) {
            Ok(mut event) => {
                // A daemon that could not read the earlier ones began anew.
                let next = state.last.back().map_or(0, |last| last.number.saturating_add(1));
                event.number = event.number.max(next);
                state.push(event);
            }
            _ if line == b"\n" => {}
            _ => damaged += 1,
        }
    }
    if damaged > 0 {
        tracing::warn!("{}: {damaged} lines are no events, and are left out", path.display());
    }
    Ok(())
}

/// Looks up which program a client is; it may have ended. The kernel names a thread of it.
pub fn look_up(client: &mut ClientReport) {
    let about = |number: u32, what: &str| std::fs::read_to_string(format!("/proc/{number}/{what}")).ok();
    let process = about(client.process, "status")
        .and_then(|status| status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()));
    client.process = process.unwrap_or(client.process);
    if let Some(name) = about(client.process, "comm") {
        client.name = Some(name.trim_end().replace(char::is_control, "?"));
    }
}

fn log(event: &EventReport) {
    // Names of files may hold a line's end, and would forge a message.
    let sentence = event.sentence().replace(char::is_control, "?");
    match event.kind {
        // It has its line where errors are logged and counted.
        EventKind::Error => {}
        EventKind::Late if !event.is_noticed => tracing::info!("{sentence}"),
        EventKind::Restored | EventKind::DeviceFaster | EventKind::ClientLate => tracing::info!("{sentence}"),
        _ => tracing::warn!("{sentence}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str) -> EventReport {
        let text = format!(
            r#"{{"number":0,"at_milliseconds":1,"until_milliseconds":2,"kind":"late","count":1,"ino":5,"path":"{path}"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn paths(log: &EventLog) -> Vec<(u64, String)> {
        log.since(0, MOST).into_iter().map(|event| (event.number, event.path.unwrap())).collect()
    }

    #[test]
    fn events_survive_and_their_numbers_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("not/there/yet");
        let log = EventLog::open(&state, "a");
        assert!(!state.exists(), "nothing has happened");
        log.add(vec![event("/one"), event("/two")]);
        let log = EventLog::open(&state, "a");
        log.add(vec![event("/three")]);
        let all = [(1, "/one"), (2, "/two"), (3, "/three")].map(|(number, path)| (number, path.to_owned()));
        assert_eq!(paths(&log), all);
        assert_eq!(paths(&EventLog::open(&state, "a")), all);
        assert_eq!(log.since(2, 9).len(), 2);
        assert_eq!(log.since(0, 1)[0].number, 3);
        assert_eq!(paths(&EventLog::open(&state, "b")), []);
    }

    /// A crash cuts the last line; a disk that fails damages any.
    #[test]
    fn a_damaged_file_costs_the_damaged_lines() {
        let directory = tempfile::tempdir().unwrap();
        let log = EventLog::open(directory.path(), "a");
        log.add(vec![event("/one"), event("/two")]);
        let path = directory.path().join("a.events");
        let mut bytes = std::fs::read(&path).unwrap();
        let first = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        bytes[first / 2] ^= 0xff;
        bytes.truncate(bytes.len() - 10);
        bytes.extend([0xff; 3]);
        std::fs::write(&path, &bytes).unwrap();
        let log = EventLog::open(directory.path(), "a");
        assert_eq!(paths(&log), []);
        log.add(vec![event("/three")]);
        assert_eq!(paths(&EventLog::open(directory.path(), "a")), [(1, "/three".to_owned())]);
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(paths(&EventLog::open(directory.path(), "a")), []);
    }

    #[test]
    fn a_file_that_cannot_be_had_costs_what_is_kept_beyond_a_restart_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        std::fs::create_dir(directory.path().join("a.events")).unwrap();
        for state in [directory.path().join("file"), directory.path().to_owned()] {
            let log = EventLog::open(&state, "a");
            log.add(vec![event("/one")]);
            assert_eq!(paths(&log), [(1, "/one".to_owned())]);
        }
    }

    #[test]
    fn files_and_memory_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let log = EventLog::open(directory.path(), "a");
        for _ in 0..9 {
            log.add(vec![event(&"x".repeat(1000)); 600]);
        }
        assert_eq!(log.since(0, usize::MAX).len(), MOST);
        for name in ["a.events", "a.events.old"] {
            assert!(std::fs::metadata(directory.path().join(name)).unwrap().len() <= LONGEST, "{name}");
        }
        let again = EventLog::open(directory.path(), "a");
        let numbers: Vec<u64> = again.since(0, MOST).iter().map(|event| event.number).collect();
        assert_eq!(numbers.last(), Some(&5400));
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
}
