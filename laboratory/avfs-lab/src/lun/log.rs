//! Every device request as a line of JSON.
//!
//! **For:** seeing afterwards what reached the device, and when. **State:** the file, owned by a thread of its own, so that
//! no answer waits for it. **Invariants:** one line a request, in the order in which they were answered; the log is
//! complete when the LUN is dropped.

use super::timekeeper::Asked;
use rtsched::Direction;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use units::Instant;

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    /// When it arrived, microseconds since the LUN was made.
    pub(super) arrived_us: u64,
    /// `R`, `W` or `F`.
    pub(super) direction: char,
    /// First byte.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) length: u64,
    /// From arrival to answer, microseconds.
    pub(super) service_us: u64,
    /// Requests at the device on arrival, itself included.
    pub(super) queue_depth: usize,
}

pub(super) struct RequestLog {
    lines: Option<Sender<Line>>,
    writing: Option<JoinHandle<()>>,
}

impl RequestLog {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let (lines, received) = channel();
        let writing =
            std::thread::Builder::new().name("lun-log".to_owned()).spawn(move || write(file, &received))?;
        Ok(Self { lines: Some(lines), writing: Some(writing) })
    }

    pub(super) fn record(&self, asked: Asked, arrived: Instant, at: Instant, queue_depth: usize) {
        let direction = match asked.direction {
            Direction::Read => 'R',
            Direction::Write => 'W',
            Direction::Flush => 'F',
        };
        let line = Line {
            arrived_us: arrived.as_nanos() / 1000,
            direction,
            offset: asked.offset.as_u64(),
            length: asked.length.as_u64(),
            service_us: at.saturating_since(arrived).as_micros() as u64,
            queue_depth,
        };
        if let Some(lines) = &self.lines {
            // The other end is gone only when the file could not be written, which it has said.
            let _ = lines.send(line);
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.writing.take().map(JoinHandle::join);
    }
}

fn write(file: File, lines: &Receiver<Line>) {
    let mut file = BufWriter::new(file);
    let written = (|| {
        while let Ok(line) = lines.recv() {
            serde_json::to_writer(&mut file, &line)?;
            file.write_all(b"\n")?;
            // Whoever follows the file sees a burst when it is over.
            for line in lines.try_iter() {
                serde_json::to_writer(&mut file, &line)?;
                file.write_all(b"\n")?;
            }
            file.flush()?;
        }
        file.flush()
    })();
    if let Err(error) = written {
        eprintln!("avfs-lab: the log of requests ends here: {error}");
    }
}
