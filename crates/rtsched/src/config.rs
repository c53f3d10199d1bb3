//! What an administrator may set.
//!
//! **For:** the figures of the policy, with defaults for a disk array. **Excludes:** reading them from a file.
//! **State:** none. **Invariants:** values out of range count as the nearest one in range.

use crate::cost_model::ServiceTime;
use crate::length_correction::WRITE_LENGTHS;
use crate::unpromised::UNNOTICED_PERMILLE;
use units::{Bytes, Duration};

/// What the floors of the classes without guarantees are a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloorBase {
    /// The device's time: floors take streams away.
    Device,
    /// The time that the admitted streams leave: floors refuse no stream, and share what is left among the
    /// classes when metadata alone could take all of it.
    Remainder,
}

/// What was measured of a device under sustained load, and is trusted for longer than what was guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Calibrated {
    /// Nothing: the values are guesses.
    Nothing,
    /// What reads take; writes and flushes are guesses.
    Reads,
    /// What reads, writes and flushes take. What writes are faster than that is taken for the debt of a cache, which has to be paid.
    All,
}

/// What an administrator may set. Values out of range count as the nearest one in range.
///
/// The defaults are for a disk array, and are what [`Config::default`] says; nothing else states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Commands at the device at once, 1..=1024. By default it is the depth of SATA's queue. A protocol fact.
    pub queue_depth: u32,
    /// Deadline of a metadata request that names none, counted from its arrival. Also of a real-time request that
    /// names none and has no reservation. An operator's target.
    pub metadata_latency: Duration,
    /// Deadline of a best-effort request that names none, counted from its arrival. An operator's target.
    pub best_effort_latency: Duration,
    /// Deadline of an idle request that names none, counted from its arrival. After that, it is served although other
    /// requests wait. An operator's target.
    pub idle_latency: Duration,
    /// What the floors are a part of. An operator's target.
    pub floor_base: FloorBase,
    /// Percent of the [base](Self::floor_base) that metadata gets before real time if it needs it, 0..=30; 0: none. An
    /// operator's target.
    pub metadata_floor_percent: u32,
    /// The same for best effort, 0..=30: what a copy gets while streams take all they can. With 0 it may starve. An
    /// operator's target.
    pub best_effort_floor_percent: u32,
    /// The same for idle work that is older than its deadline, 0..=30. An operator's target.
    pub idle_floor_percent: u32,
    /// Thousandths of the device's time that admitted streams may take together, 10..=999: all but what others may take
    /// [unnoticed](crate::BackgroundLoad). An estimator's window.
    pub streams_max_permille: u32,
    /// The same, 10..=999, while no stream writes and next to nothing without a guarantee uses the device
    /// ([`BackgroundLoad::Nothing`](crate::BackgroundLoad::Nothing)). Reads take what they are reckoned to take, and
    /// less when they are served in sweeps; what a write takes, a cache may have to be paid later. What is left has
    /// only to outweigh that some accesses take longer than others, and that a measurement is off by some thousandths.
    /// Streams that were admitted so stay admitted beside others. An estimator's window.
    pub readers_max_permille: u32,
    /// Thousandths of the device's time that the streams of one [`Account`](crate::Account) may take together,
    /// 0..=1000. What is admitted stays admitted when the device turns out slower. An operator's target.
    pub account_max_permille: u32,
    /// The same of all streams that are on an account, 0..=1000. An operator's target.
    pub accounts_max_permille: u32,
    /// Memory for the buffers of all admitted streams, see [`Terms::buffer`](crate::Terms::buffer). An operator's
    /// target.
    pub buffer_memory: Bytes,
    /// The memory of a stream's buffer is used and given back in pieces of this length. What has been played of a
    /// piece is held until the rest has been, so a stream needs one piece beside its buffer. 0: memory is given back
    /// by the byte. Representation.
    pub buffer_piece: Bytes,
    /// What a stream's request plays for at least, where its length is left to the admission and no short deadline is
    /// in its way. It is longer on a device that seeks and where there is memory. An operator's target.
    pub request_time: Duration,
    /// What such a request plays for at most. What a stream asks for first comes after as much at the latest, so this
    /// is how long a player may have to wait on a full device. An operator's target.
    pub request_time_max: Duration,
    /// The shortest request that is chosen for a stream; at least 1 byte. An operator's target.
    pub request_min: Bytes,
    /// The longest request that is chosen for a stream; not less than [`request_min`](Self::request_min). An
    /// operator's target.
    pub request_max: Bytes,
    /// Chosen requests are whole multiples of this, or this divided by a power of two: files lie in pieces of this
    /// length. At least 1 byte. By default it is a unit of the volume's data area. A protocol fact.
    pub request_unit: Bytes,
    /// After so long without a request, or after two of its periods if that is longer, a reservation's time is given
    /// to others ([`StreamState::Paused`](crate::StreamState::Paused)). An operator's target.
    pub reservation_timeout: Duration,
    /// A demoted stream stays so at least for this time. An estimator's window.
    pub restore_after: Duration,
    /// A demoted stream is restored only when so many percent of the device's time are free beside it, 0..=50. An
    /// estimator's window.
    pub restore_margin_percent: u32,
    /// Bytes on the device, for a service model by zones and seeks; 0: it takes the same everywhere, as flash does.
    /// The device says it. Measured.
    pub device_size: Bytes,
    /// Neighbouring requests are merged into commands of at most this length; 0: never. Those of an admitted stream
    /// are merged up to the length of its requests. An operator's target.
    pub max_merge: Bytes,
    /// While there is real time, the commands at the device together take at most this percentage, 1..=100, of the
    /// shortest time that a real-time request had until its deadline. One command is always allowed. It is half of the
    /// cushion: the other half is for commands that take longer than the average. An operator's target.
    pub blocking_percent: u32,
    /// While streams hold reservations, nothing goes before their requests that would leave them less time to spare
    /// than this percentage of the shortest deadline, 0..=50. It pays for commands that take longer than the average by
    /// which they are reckoned. It also leaves time to notice that the device has become slower. An
    /// operator's target.
    pub cushion_percent: u32,
    /// The longest single request that the classes without guarantees make: what a stream's request may find at the
    /// device, for admission. A longer one is accepted, but may make a stream late. An operator's target.
    pub largest_request: Bytes,
    /// How long after the last tight real-time request the queue of the device is kept as short as
    /// [`blocking_percent`](Self::blocking_percent) says. An estimator's window.
    pub real_time_memory: Duration,
    /// What the device is reckoned to take for a read until it has shown. By default it is a guess for a disk array; a
    /// calibration puts the device's own figures in its place. Measured.
    pub read: ServiceTime,
    /// Bytes a second of a read at the start of the device and at its end, where they were measured apart: between, it
    /// changes evenly. `None`: `read` holds everywhere until the device has shown. A calibration finds it. Measured.
    pub read_ends: Option<[Bytes; 2]>,
    /// What the device is reckoned to take for a write until it has shown. By default it is a guess for a disk array;
    /// a calibration puts the device's own figures in its place. Measured.
    pub write: ServiceTime,
    /// What writes of the [`WRITE_LENGTHS`] took, where each was measured: `write` is the line through them, and
    /// arrays do not keep to it. `None`: they do until the device has shown. A calibration finds it. Measured.
    pub write_times: Option<[Duration; WRITE_LENGTHS.len()]>,
    /// What the device is reckoned to take for a flush, whose length is zero, until it has shown. By default it is a
    /// guess for a disk array; a calibration puts the device's own figures in its place. Measured.
    pub flush: ServiceTime,
    /// Which of the values above were measured under sustained load. Measured.
    pub calibrated: Calibrated,
    /// Learn service times from completions. Without, the values above hold for good: for a device whose worst case is
    /// known. An operator's target.
    pub learning: bool,
    /// Events kept for [`pop_event`](crate::Scheduler::pop_event), for which memory is taken at the start; the oldest
    /// give way. 0: events are counted only. An operator's target.
    pub event_capacity: usize,
}

/// Of the shortest deadline. An operator's target.
const CUSHION_PERCENT: u32 = 25;

impl Default for Config {
    fn default() -> Self {
        let disk_array =
            ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };
        Self {
            queue_depth: 32,
            metadata_latency: Duration::from_millis(50),
            best_effort_latency: Duration::from_secs(2),
            idle_latency: Duration::from_secs(60),
            floor_base: FloorBase::Remainder,
            metadata_floor_percent: 10,
            best_effort_floor_percent: 10,
            idle_floor_percent: 1,
            streams_max_permille: 1000 - UNNOTICED_PERMILLE as u32,
            readers_max_permille: 995,
            account_max_permille: 1000,
            accounts_max_permille: 1000,
            buffer_memory: Bytes::from_mib(4096),
            buffer_piece: Bytes::ZERO,
            request_time: Duration::from_millis(700),
            request_time_max: Duration::from_secs(8),
            request_min: Bytes::from_kib(256),
            request_max: Bytes::from_mib(64),
            request_unit: Bytes::from_mib(8),
            reservation_timeout: Duration::from_secs(10),
            restore_after: Duration::from_secs(5),
            restore_margin_percent: 5,
            device_size: Bytes::ZERO,
            max_merge: Bytes::from_mib(16),
            blocking_percent: CUSHION_PERCENT / 2,
            cushion_percent: CUSHION_PERCENT,
            largest_request: Bytes::from_mib(8),
            real_time_memory: Duration::from_secs(2),
            read: disk_array,
            read_ends: None,
            write: disk_array,
            write_times: None,
            flush: disk_array,
            calibrated: Calibrated::Nothing,
            learning: true,
            event_capacity: 1024,
        }
    }
}
