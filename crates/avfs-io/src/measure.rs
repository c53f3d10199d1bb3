//! A [`Calibration`] of a real device, through the engine that production uses.
//!
//! **For:** what `avfsctl calibrate` and `mkfs.avfs --calibrate` do. **Excludes:** what is measured next. **State:** none.

use crate::calibration::{Calibration, Command, LONGEST, Measured, Plan, SMALLEST};
use crate::device::{Device, FileDevice};
use crate::engine::{Engine, StartError, now};
use crate::pool::Scratch;
use crate::request::{Completion, CompletionSink, IoError, IoOperation, IoRequest, IoTag};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rtsched::{Class, Config, Direction};
use std::io;
use std::sync::{Arc, mpsc};
use units::{Bytes, Duration, Instant};

/// Commands at a flash device while it is measured: enough for all of its channels. An estimator's window.
const FLASH_DEPTH: u32 = 32;

/// Why a device was not measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// There is too little of it.
    #[error("a device of {0} is too small to be measured: it takes {SMALLEST}")]
    TooSmall(Bytes),
    /// No memory for the requests.
    #[error("cannot pin {LONGEST} of memory ({0}): raise the limit on locked memory (ulimit -l)")]
    Memory(#[source] io::Error),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// The device failed.
    #[error("the device cannot be measured: {0}")]
    Device(#[from] IoError),
    /// Everything took no time.
    #[error("the device answers in no time: there is nothing to measure")]
    Timeless,
}

/// Hands completions to the thread that measures.
struct Ends(Mutex<mpsc::Sender<(Instant, Completion)>>);

impl CompletionSink for Ends {
    fn completed(&self, now: Instant, completions: &[Completion]) {
        let sender = self.0.lock();
        for completion in completions {
            // Gone when the measurement failed.
            let _ = sender.send((now, *completion));
        }
    }
}

/// Measures a device for about `duration`. With `writes`, what it holds is lost.
///
/// # Errors
/// By cause, see [`MeasureError`].
pub fn measure(device: Arc<FileDevice>, writes: bool, duration: Duration) -> Result<Measured, MeasureError> {
    let (device_size, geometry) = (device.size(), device.geometry());
    if device_size < SMALLEST {
        return Err(MeasureError::TooSmall(device_size));
    }
    let depth = if geometry.rotational { 1 } else { FLASH_DEPTH };
    let plan = Plan { device_size, depth, writes, duration };
    let memory = Scratch::new(LONGEST).map_err(MeasureError::Memory)?;
    // As many as the measurement gives: it has its own reasons.
    let config = Config { max_merge: Bytes::ZERO, learning: false, ..Config::default() };
    let (sender, completions) = mpsc::channel();
    let engine = Engine::start(device, config, Arc::new(Ends(Mutex::new(sender))))?;
    let mut calibration = Calibration::new(plan);
    let mut tags = 0..;
    let mut is_filled = false;
    while !calibration.is_finished() {
        while let Some(command) = calibration.next(now()) {
            // The device is empty when writes begin, and what was read before lies in the memory.
            if command.direction == Direction::Write && !std::mem::replace(&mut is_filled, true) {
                memory.fill(&noise());
            }
            let tag = tags.next().map(IoTag).unwrap_or(IoTag(0));
            if !engine.submit([request(tag, command, &memory)]).is_empty() {
                return Err(IoError::Stopped.into());
            }
        }
        let Ok((at, completion)) = completions.recv() else { return Err(IoError::Stopped.into()) };
        completion.result?;
        calibration.completed(at);
    }
    engine.shutdown();
    calibration.result().ok_or(MeasureError::Timeless)
}

/// Devices that compress would be faster with zeros than with footage.
fn noise() -> Vec<u8> {
    let mut noise = vec![0; 1 << 20];
    SmallRng::seed_from_u64(1).fill_bytes(&mut noise);
    noise
}

fn request(tag: IoTag, command: Command, memory: &Scratch) -> IoRequest {
    IoRequest {
        tag,
        operation: match command.direction {
            Direction::Read => IoOperation::Read,
            Direction::Write => IoOperation::Write { durable: false },
            Direction::Flush => IoOperation::Flush,
        },
        offset: command.offset,
        segments: memory.segments(command.length),
        class: Class::BestEffort,
        stream: None,
        deadline: None,
    }
}
