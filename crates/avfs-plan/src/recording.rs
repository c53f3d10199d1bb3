//! A recording of a volume as a file.
//!
//! **For:** lines of JSON: a head with a version, what the streams are called, what happened, and an end. Written as it comes, read line by
//! line. **Excludes:** asking a daemon, and opening files. **State:** a [`Writer`] knows what it has written, a [`Reader`] the last time.
//! **Invariants:** nothing that is read is trusted: a line is at most [`LONGEST_LINE`] bytes, a recording at most [`MOST_RECORDS`] records and
//! a day, and every value is one that can have been; else the reader says which line is wrong.

use avfs_io::trace::{A_DAY, Begin, Happened, Part, Record, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use thiserror::Error;

/// Of what is written. A reader takes this one alone.
pub const VERSION: u32 = 1;
/// Bytes: it bounds memory.
pub const LONGEST_LINE: u64 = 1 << 20;
/// Some 700 MB in memory, which it bounds.
pub const MOST_RECORDS: usize = 4 << 20;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`VERSION`].
    pub avfs_trace: u32,
    /// What wrote it.
    pub program: String,
    /// The volume's identity.
    pub uuid: String,
    /// The volume's label.
    pub label: String,
    /// When it began, milliseconds since 1970 UTC.
    pub began_milliseconds: i64,
    /// Bytes of the device.
    pub device_bytes: u64,
    /// What was so when it began.
    pub begin: Begin,
}

/// Any other line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// What streams are called: paths on the volume.
    Names(BTreeMap<u64, String>),
    /// So many records were lost here, because more happened than was taken.
    Lost(u64),
    /// What happened.
    Record(Record),
    /// The last line.
    End {
        /// How many records there are.
        records: u64,
        /// How many were lost.
        lost: u64,
        /// When it ended, by the engine's clock, nanoseconds.
        at: u64,
    },
}

/// Why something is no recording.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It does not begin like one.
    #[error("it is no recording of AVFS: {0}")]
    NoRecording(String),
    /// Of another version.
    #[error("it is a recording of version {found}, and this command reads version {VERSION}")]
    Version {
        /// Which.
        found: u64,
    },
    /// A line is wrong.
    #[error("line {line}: {wrong}")]
    Wrong {
        /// Counted from 1.
        line: u64,
        /// What.
        wrong: String,
    },
}

/// Writes one.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    records: u64,
    lost: u64,
    bytes: u64,
    names: BTreeMap<u64, String>,
}

impl<W: Write> Writer<W> {
    /// Writes the head.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(output: W, head: &Head) -> io::Result<Self> {
        let mut writer = Self { output, records: 0, lost: 0, bytes: 0, names: BTreeMap::new() };
        writer.write(head)?;
        Ok(writer)
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.bytes += text.len() as u64;
        self.output.write_all(&text)
    }

    /// Adds what has happened since, and what streams are called that are new.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, part: &Part, names: &BTreeMap<u64, String>) -> io::Result<()> {
        let is_new = |(stream, name): &(&u64, &String)| self.names.get(stream) != Some(name);
        let new: BTreeMap<u64, String> =
            names.iter().filter(is_new).map(|(stream, name)| (*stream, name.clone())).collect();
        if !new.is_empty() {
            self.write(&Line::Names(new.clone()))?;
            self.names.extend(new);
        }
        if part.lost > 0 {
            self.lost += part.lost;
            self.write(&Line::Lost(part.lost))?;
        }
        for record in &part.records {
            self.records += 1;
            self.write(&Line::Record(record.clone()))?;
        }
        Ok(())
    }

    /// So many bytes were written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many records were written, and so many are lost.
    pub fn counts(&self) -> (u64, u64) {
        (self.records, self.lost)
    }

    /// Writes the end, and gives back what it was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(mut self, at: u64) -> io::Result<W> {
        let (records, lost) = (self.records, self.lost);
        self.write(&Line::End { records, lost, at })?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Reads one, line by line.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Of the last line, from 1.
    line: u64,
    records: usize,
    began: u64,
    last: u64,
    has_ended: bool,
    text: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// When it is no recording, or one of another version.
    pub fn new(input: R) -> Result<(Head, Self), RecordingError> {
        let mut reader =
            Self { input, line: 0, records: 0, began: 0, last: 0, has_ended: false, text: Vec::new() };
        if !reader.next_line()? {
            return Err(RecordingError::NoRecording("it is empty".to_owned()));
        }
        #[derive(Deserialize)]
        struct AnyVersion {
            avfs_trace: u64,
        }
        let version: AnyVersion = serde_json::from_slice(&reader.text)
            .map_err(|error| RecordingError::NoRecording(error.to_string()))?;
        if version.avfs_trace != u64::from(VERSION) {
            return Err(RecordingError::Version { found: version.avfs_trace });
        }
        let head: Head = serde_json::from_slice(&reader.text).map_err(|error| reader.wrong(error))?;
        head.begin.check().map_err(|wrong| reader.wrong(wrong))?;
        (reader.began, reader.last) = (head.begin.at, head.begin.at);
        Ok((head, reader))
    }

    fn wrong(&self, wrong: impl ToString) -> RecordingError {
        RecordingError::Wrong { line: self.line, wrong: wrong.to_string() }
    }

    /// Takes a line; false at the end of the file.
    fn next_line(&mut self) -> Result<bool, RecordingError> {
        self.text.clear();
        self.line += 1;
        let taken = io::Read::take(&mut self.input, LONGEST_LINE).read_until(b'\n', &mut self.text)?;
        if taken as u64 == LONGEST_LINE && !self.text.ends_with(b"\n") {
            return Err(self.wrong(format!("it is longer than {LONGEST_LINE} bytes")));
        }
        Ok(taken > 0)
    }

    /// The next line; `None` behind the last one. A recording that was broken off ends without an end.
    ///
    /// # Errors
    /// What is wrong with which line.
    pub fn next_entry(&mut self) -> Result<Option<Line>, RecordingError> {
        if !self.next_line()? {
            return Ok(None);
        }
        if self.has_ended {
            return Err(self.wrong("the recording has ended before"));
        }
        // The last line of one that was broken off may be half a line.
        if !self.text.ends_with(b"\n") {
            return Ok(None);
        }
        let line: Line = serde_json::from_slice(&self.text).map_err(|error| self.wrong(error))?;
        match &line {
            Line::Record(record) => {
                self.records += 1;
                record.check(self.last).map_err(|wrong| self.wrong(wrong))?;
                self.last = record.at;
            }
            Line::End { at, .. } => {
                self.last = self.last.max(*at);
                self.has_ended = true;
            }
            Line::Names(_) | Line::Lost(_) => {}
        }
        if self.records > MOST_RECORDS || self.last - self.began > A_DAY {
            return Err(self.wrong(format!("more than {MOST_RECORDS} records, or than a day: record less")));
        }
        Ok(Some(line))
    }
}

/// All of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Its first line.
    pub head: Head,
    /// What streams are called.
    pub names: BTreeMap<u64, String>,
    /// What happened.
    pub records: Vec<Record>,
    /// How many records were lost.
    pub lost: u64,
    /// When it ended, by the engine's clock, nanoseconds.
    pub until: u64,
}

impl Recording {
    /// Each stream whenever it was declared, the first ones as they were when the recording began.
    pub fn declared(&self) -> impl Iterator<Item = (u64, Wanted)> + '_ {
        let first = self.head.begin.streams.iter().map(|stream| (stream.stream, stream.wanted));
        let later = self.records.iter().filter_map(|record| match &record.what {
            Happened::Declared { stream, wanted: Some(wanted) } => Some((*stream, *wanted)),
            _ => None,
        });
        first.chain(later)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// See [`Reader`].
    pub fn read(input: impl BufRead) -> Result<Self, RecordingError> {
        let (head, mut reader) = Reader::new(input)?;
        let until = head.begin.at;
        let mut recording = Self { head, names: BTreeMap::new(), records: Vec::new(), lost: 0, until };
        while let Some(line) = reader.next_entry()? {
            match line {
                Line::Names(names) => recording.names.extend(names),
                Line::Lost(lost) => recording.lost = recording.lost.saturating_add(lost),
                Line::Record(record) => recording.records.push(record),
                Line::End { .. } => {}
            }
            recording.until = reader.last;
        }
        Ok(recording)
    }

    /// What a stream is called.
    pub fn name(&self, stream: u64) -> String {
        self.names.get(&stream).cloned().unwrap_or_else(|| format!("stream {stream}"))
    }
}

/// What happened in words, for people.
pub fn words(happened: &Happened, name: impl Fn(u64) -> String) -> String {
    let of = |stream: &Option<u64>| stream.map(|stream| format!(" of {}", name(stream))).unwrap_or_default();
    let millis = |nanos: u64| format!("{:.1} ms", nanos as f64 / 1e6);
    match happened {
        Happened::Asked(asked) => {
            let what = format!("{:?}", asked.does).to_lowercase();
            format!(
                "asked     {what} {} at {}{}, {}",
                asked.length,
                asked.offset,
                of(&asked.stream),
                rank(asked.class)
            )
        }
        Happened::Promoted { tag, class, stream, .. } => {
            format!("promoted  request {tag}{}, {}", of(stream), rank(*class))
        }
        Happened::Cancelled { tag } => format!("cancelled request {tag}"),
        Happened::CancelledStream { stream } => format!("cancelled what waits of {}", name(*stream)),
        Happened::Declared { stream, wanted: Some(wanted) } => {
            let does = if wanted.writes { "records" } else { "plays" };
            format!("declared  {} {does} {:.1} Mbit/s", name(*stream), wanted.bits_per_second as f64 / 1e6)
        }
        Happened::Declared { stream, wanted: None } => format!("declared  {} has ended", name(*stream)),
        Happened::Accepted { requests, bytes } => format!("accepted  {bytes} bytes for {requests} requests"),
        Happened::Promised { stream, request: Some(request), deadline } => {
            format!("promised  {}: {request} bytes within {}", name(*stream), millis(deadline.unwrap_or(0)))
        }
        Happened::Promised { stream, .. } => format!("promised  {}: nothing", name(*stream)),
        Happened::Began { command, tags, class, stream, does, offset, length } => {
            let what = format!("{does:?}").to_lowercase();
            format!(
                "began     command {command}: {what} {length} at {offset}{}, {} for {} requests",
                of(stream),
                rank(*class),
                tags.len()
            )
        }
        Happened::Ended { command, failed: 0 } => format!("ended     command {command}"),
        Happened::Ended { command, failed } => {
            format!("ended     command {command}: {failed} requests failed")
        }
        Happened::Late { stream, by } => format!("late      {} by {}", name(*stream), millis(*by)),
    }
}

/// A class in words.
pub fn rank(rank: avfs_io::trace::Rank) -> &'static str {
    use avfs_io::trace::Rank;
    match rank {
        Rank::RealTime => "real time",
        Rank::Metadata => "metadata",
        Rank::BestEffort => "best effort",
        Rank::Idle => "idle",
    }
}
