//! A recording as Perfetto opens it.
//!
//! **For:** Chrome's trace-event JSON: the device's commands as bars on tracks of their own, each stream's requests from asking to their
//! end, what happened to streams as marks, and what waited for the device as a curve. **Excludes:** reading. **State:** an [`Export`] knows
//! what is under way. **Invariants:** bounded by what is under way; valid JSON for every recording.
//!
//! The format: "Trace Event Format", Google, 2016. Times are microseconds since the recording's begin. Commands overlap, so they are laid on
//! as few tracks as hold them.

use crate::recording::{Head, rank, words};
use avfs_io::trace::{Happened, Record};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

const DEVICE: u64 = 1;
const STREAMS: u64 = 2;
/// What is under way at once, at most: what more comes has no bar.
const MOST: usize = 1 << 16;

struct Command {
    began: u64,
    track: usize,
    name: String,
    arguments: Value,
}

struct Request {
    asked: u64,
    stream: u64,
    length: u64,
    class: &'static str,
}

/// See the module.
pub struct Export<W> {
    output: W,
    begin: u64,
    is_first: bool,
    names: BTreeMap<u64, String>,
    commands: BTreeMap<u64, Command>,
    tracks: Vec<bool>,
    requests: BTreeMap<u64, Request>,
    of_command: BTreeMap<u64, Vec<u64>>,
    shown: BTreeMap<u64, ()>,
}

impl<W: Write> Export<W> {
    /// Begins.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut output: W, head: &Head) -> io::Result<Self> {
        write!(output, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
        let about = json!({ "volume": head.label, "uuid": head.uuid, "program": head.program,
            "began_milliseconds": head.began_milliseconds });
        serde_json::to_writer(&mut output, &about)?;
        write!(output, ",\"traceEvents\":[")?;
        let mut export = Self {
            output,
            begin: head.begin.at,
            is_first: true,
            names: BTreeMap::new(),
            commands: BTreeMap::new(),
            tracks: Vec::new(),
            requests: BTreeMap::new(),
            of_command: BTreeMap::new(),
            shown: BTreeMap::new(),
        };
        for (process, name) in [(DEVICE, "device"), (STREAMS, "streams")] {
            export.event(
                &json!({ "ph": "M", "name": "process_name", "pid": process, "args": { "name": name } }),
            )?;
        }
        for asked in &head.begin.waiting {
            export.ask(head.begin.at, asked);
        }
        Ok(export)
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_first, false) {
            self.output.write_all(b",")?;
        }
        self.output.write_all(b"\n")?;
        serde_json::to_writer(&mut self.output, event)?;
        Ok(())
    }

    fn micros(&self, at: u64) -> f64 {
        at.saturating_sub(self.begin) as f64 / 1e3
    }

    /// What streams are called from now on.
    pub fn names(&mut self, names: BTreeMap<u64, String>) {
        self.names.extend(names);
    }

    fn name(&self, stream: u64) -> String {
        self.names.get(&stream).cloned().unwrap_or_else(|| format!("stream {stream}"))
    }

    /// Tracks of streams are in the order in which they are first seen.
    fn track_of(&mut self, stream: u64) -> io::Result<u64> {
        if self.shown.insert(stream, ()).is_none() {
            let name = self.name(stream);
            self.event(&json!({ "ph": "M", "name": "thread_name", "pid": STREAMS, "tid": stream,
                "args": { "name": name } }))?;
        }
        Ok(stream)
    }

    fn ask(&mut self, at: u64, asked: &avfs_io::trace::Asked) {
        if let Some(stream) = asked.stream
            && self.requests.len() < MOST
        {
            let class = rank(asked.class);
            self.requests.insert(asked.tag, Request { asked: at, stream, length: asked.length, class });
        }
    }

    /// Adds what happened.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        let Record { at, what, .. } = record;
        match what {
            Happened::Asked(asked) => self.ask(*at, asked),
            Happened::Cancelled { tag } => _ = self.requests.remove(tag),
            Happened::Began { command, tags, class, stream, does, offset, length } => {
                if self.commands.len() >= MOST {
                    return Ok(());
                }
                let does = format!("{does:?}").to_lowercase();
                let whose = stream.map_or_else(|| rank(*class).to_owned(), |stream| self.name(stream));
                let arguments = json!({ "class": rank(*class), "offset": offset, "length": length,
                    "stream": stream, "requests": tags.len() });
                let track = self.tracks.iter().position(|taken| !taken).unwrap_or(self.tracks.len());
                if track == self.tracks.len() {
                    self.tracks.push(false);
                }
                self.tracks[track] = true;
                let name = format!("{does} {whose}");
                if let Some(before) =
                    self.commands.insert(*command, Command { began: *at, track, name, arguments })
                {
                    self.tracks[before.track] = false;
                }
                self.of_command.insert(*command, tags.to_vec());
                self.count(*at)?;
            }
            Happened::Ended { command, failed } => {
                if let Some(Command { began, track, name, mut arguments }) = self.commands.remove(command) {
                    self.tracks[track] = false;
                    arguments["failed"] = json!(failed);
                    let (start, length) = (self.micros(began), at.saturating_sub(began) as f64 / 1e3);
                    self.event(&json!({ "ph": "X", "name": name, "cat": "command", "pid": DEVICE,
                        "tid": track + 1, "ts": start, "dur": length, "args": arguments }))?;
                }
                for tag in self.of_command.remove(command).unwrap_or_default() {
                    let Some(Request { asked, stream, length, class }) = self.requests.remove(&tag) else {
                        continue;
                    };
                    let track = self.track_of(stream)?;
                    // Requests of one stream overlap, so they are no bars but spans with a name.
                    for (phase, time) in [("b", asked), ("e", *at)] {
                        let ts = self.micros(time);
                        self.event(&json!({ "ph": phase, "name": class, "cat": "request", "id": tag,
                            "pid": STREAMS, "tid": track, "ts": ts, "args": { "length": length } }))?;
                    }
                }
                self.count(*at)?;
            }
            Happened::Late { stream, .. }
            | Happened::Promised { stream, .. }
            | Happened::Declared { stream, .. } => {
                let track = self.track_of(*stream)?;
                let said = words(what, |stream| self.name(stream));
                let ts = self.micros(*at);
                self.event(&json!({ "ph": "i", "s": "t", "name": said, "cat": "stream", "pid": STREAMS,
                    "tid": track, "ts": ts }))?;
            }
            Happened::Promoted { .. } | Happened::CancelledStream { .. } | Happened::Accepted { .. } => {}
        }
        Ok(())
    }

    /// The curve of what waits.
    fn count(&mut self, at: u64) -> io::Result<()> {
        let (ts, at_device) = (self.micros(at), self.commands.len());
        self.event(&json!({ "ph": "C", "name": "commands at the device", "pid": DEVICE, "ts": ts,
            "args": { "commands": at_device } }))
    }

    /// Ends.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        self.output.write_all(b"\n]}\n")?;
        self.output.flush()?;
        Ok(self.output)
    }
}
