//! The recorded calls again, to the engine of production, in real time.

use super::record::{Call, Script};
use super::side::{AgreeError, Side};
use crate::lun::Lun;
use avfs_io::engine::{self, Engine};
use avfs_io::pool::Scratch;
use avfs_io::{
    Completion, CompletionSink, DeclaredStream, FileDevice, IoError, IoOperation, IoRequest, IoTag, OpenMode,
};
use parking_lot::{Condvar, Mutex};
use rtsched::{Confidence, Direction, Request, StreamId, StreamSpec};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use units::{Bytes, Duration, Instant};

/// From when everything is ready to the first call.
const HEAD_START: Duration = Duration::from_millis(100);

/// The device answers what it has within this time after the last call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the calls of `script` to an engine on the block device over `lun`.
pub(super) fn play(script: &Script, lun: &Lun, device: &Path) -> Result<Side, AgreeError> {
    let longest = script.calls.iter().map(|(_, call)| match call {
        Call::Enqueue(request) => request.length,
        Call::Admit(..) | Call::Release(_) | Call::Cancel(_) => Bytes::ZERO,
    });
    let memory = Scratch::new(longest.max().unwrap_or_default()).map_err(AgreeError::Memory)?;
    let device = Arc::new(FileDevice::open(device, OpenMode::Exclusive)?);
    let ends = Arc::new(Ends::default());
    let sink = Arc::clone(&ends) as Arc<dyn CompletionSink>;
    let engine = Engine::start(device, script.config.clone(), sink)?;
    let before = lun.counters();
    let start = engine::now() + HEAD_START;
    let mut player = Player { engine: &engine, ends: &ends, memory, start, side: Side::default() };
    for (at, call) in &script.calls {
        thread::sleep(player.here(*at).saturating_since(engine::now()));
        player.make(call);
    }
    let missing = ends.wait_for_all();
    // A cache writes on when everything is answered: of thirteen recorders that had closed, a tenth was still in it.
    thread::sleep(player.here(script.end).saturating_since(engine::now()));
    let commands = engine.statistics().commands;
    engine.shutdown();
    let Tally { side: requests, failed, .. } = std::mem::take(&mut *ends.tally.lock());
    if failed + missing > 0 {
        return Err(AgreeError::Requests { failed, missing });
    }
    let after = lun.counters();
    Ok(Side {
        streams: player.side.streams,
        commands,
        busy: Duration::from_nanos(after.busy_ns - before.busy_ns),
        seeks: after.seeks - before.seeks,
        ..requests
    })
}

/// Who makes the calls.
struct Player<'a> {
    engine: &'a Engine,
    ends: &'a Ends,
    memory: Scratch,
    /// The script's instant zero.
    start: Instant,
    side: Side,
}

impl Player<'_> {
    /// An instant of the script by this machine's clock.
    fn here(&self, at: Instant) -> Instant {
        self.start + at.saturating_since(Instant::ZERO)
    }

    fn make(&mut self, call: &Call) {
        match *call {
            Call::Admit(stream, spec, was_admitted) => self.admit(stream, spec, was_admitted),
            Call::Release(stream) => {
                self.note_grants();
                self.engine.declare(stream, None);
            }
            Call::Enqueue(request) => self.submit(request),
            Call::Cancel(id) => self.engine.cancel(IoTag(id.0)),
        }
    }

    fn admit(&mut self, stream: StreamId, spec: StreamSpec, was_admitted: bool) {
        self.side.granted(stream, None);
        self.engine.declare(stream, Some((spec, Confidence::Known)));
        self.note_grants();
        // Who was refused has left, and must not be admitted when there is room.
        if !was_admitted {
            self.engine.declare(stream, None);
        }
    }

    fn note_grants(&mut self) {
        for DeclaredStream { stream, admitted, .. } in self.engine.streams() {
            self.side.granted(stream, admitted.map(|status| status.terms.into()));
        }
    }

    fn submit(&self, request: Request) {
        let deadline = request.deadline.map(|deadline| self.here(deadline));
        let request = Request { deadline, ..request };
        self.ends.tally.lock().outstanding.insert(IoTag(request.id.0), request);
        let operation = match request.direction {
            Direction::Read => IoOperation::Read,
            Direction::Write => IoOperation::Write { durable: false },
            Direction::Flush => IoOperation::Flush,
        };
        let _ = self.engine.submit([IoRequest {
            tag: IoTag(request.id.0),
            operation,
            offset: request.offset,
            segments: self.memory.segments(request.length),
            class: request.class,
            stream: request.stream,
            deadline,
        }]);
    }
}

/// What has ended.
#[derive(Default)]
struct Ends {
    tally: Mutex<Tally>,
    changed: Condvar,
}

struct Tally {
    outstanding: HashMap<IoTag, Request>,
    failed: u64,
    side: Side,
}

impl Default for Tally {
    fn default() -> Self {
        let side = Side { nearest_s: f64::INFINITY, ..Side::default() };
        Self { outstanding: HashMap::new(), failed: 0, side }
    }
}

impl Ends {
    /// Requests that never ended.
    fn wait_for_all(&self) -> u64 {
        let mut tally = self.tally.lock();
        let end = std::time::Instant::now() + PATIENCE;
        self.changed.wait_while_until(&mut tally, |tally| !tally.outstanding.is_empty(), end);
        tally.outstanding.len() as u64
    }
}

impl CompletionSink for Ends {
    fn completed(&self, now: Instant, completions: &[Completion]) {
        let mut tally = self.tally.lock();
        for completion in completions {
            let Some(request) = tally.outstanding.remove(&completion.tag) else { continue };
            match completion.result {
                Ok(()) => tally.side.completed(now, &request),
                Err(IoError::Cancelled) => {}
                Err(_) => tally.failed += 1,
            }
        }
        self.changed.notify_one();
    }
}
