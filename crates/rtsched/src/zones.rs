//! What is known of one direction, by place and by how a command gets there.
//!
//! **For:** a [`CostModel`] for each kind of command. Zones of the device are learned apart, because a disk's outer tracks are
//! twice as fast as its inner ones; so are short commands, and those that go on where the last one ended or nearby.
//! **Excludes:** what a completion says, which is [`service`](crate::service)'s. **State:** the models, and which zone speaks
//! for which. **Invariants:** every zone has one that speaks for it; what happens to a line that was known, happened to the
//! device.

use crate::cost_model::{CostModel, Learned, ServiceTime};
use crate::length_correction::LengthCorrection;
use crate::request::Direction;
use units::{Bytes, DeviceOffset, Duration};

/// How far a command starts from where the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    /// Not at all: no seek, and the device may have read ahead.
    Sequential,
    /// A short seek.
    Near,
    /// Anywhere.
    Far,
}

impl Distance {
    /// A seek up to this is a short one: a hundredth of a disk of some TB, where seeks are mostly settling. An
    /// estimator's window.
    const NEAR: Bytes = Bytes::from_mib(16 << 10);

    /// A device of no size takes the same everywhere: on flash neighbours are no nearer than others.
    pub(crate) fn between(end: DeviceOffset, start: DeviceOffset, device_size: Bytes) -> Self {
        match end.distance(start) {
            Bytes::ZERO => Self::Sequential,
            near if near <= Self::NEAR && device_size > Bytes::ZERO => Self::Near,
            _ => Self::Far,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) direction: Direction,
    pub(crate) zone: usize,
    pub(crate) distance: Distance,
    pub(crate) length: Bytes,
}

/// Zones of a device whose size is known. An estimator's window.
const ZONES: usize = 8;
/// After so many completions a zone speaks for itself, and for those around it that do not yet. An estimator's window.
const KNOWN: u32 = 32;
/// After so many completions a zone changes only if the device does. An estimator's window.
const ESTABLISHED: u32 = 64;
/// Commands up to this have a line of their own. On flash they keep one channel of many busy, so they say nothing about
/// transfers. An estimator's window.
const SHORT: Bytes = Bytes::from_kib(256);

/// Two zones that lie side by side, and how far an offset is on the way from the middle of the first to that of the second:
/// 0 to 1, or up to a half less or more at the ends of the device.
pub(crate) struct Neighbours {
    pub(crate) zones: [usize; 2],
    pub(crate) part: f64,
}

/// `None` where the device's size is not known.
pub(crate) fn neighbours(device_size: Bytes, offset: DeviceOffset) -> Option<Neighbours> {
    let length = device_size.0.div_ceil(ZONES as u64);
    let middles = offset.0.min(device_size.0) as f64 / (length > 0).then_some(length as f64)? - 0.5;
    let first = (middles.max(0.0) as usize).min(ZONES - 2);
    Some(Neighbours { zones: [first, first + 1], part: middles - first as f64 })
}

/// Whether a cache may take a command and write it later, and how long it takes to write is known: of short ones it depends
/// on how many others there are.
pub(crate) fn may_be_deferred(direction: Direction, length: Bytes) -> bool {
    direction == Direction::Write && length > SHORT
}

/// Which one an offset is in.
pub(crate) fn zone(device_size: Bytes, offset: DeviceOffset) -> usize {
    match device_size {
        Bytes::ZERO => 0,
        Bytes(size) => ((offset.0 / size.div_ceil(ZONES as u64)) as usize).min(ZONES - 1),
    }
}

/// One direction.
#[derive(Clone, Debug)]
pub(crate) struct CostModels {
    /// Of commands longer than [`SHORT`].
    zones: [CostModel; ZONES],
    /// For each zone the one that speaks for it: the nearest known one. Every request is priced by it.
    speakers: [usize; ZONES],
    short: CostModel,
    /// What follows on what was there, or nearly, lies where it was fast or slow, too.
    near: [CostModel; ZONES],
    sequential: [CostModel; ZONES],
    /// The zone that takes longest, of those that are known.
    worst: usize,
    /// Start values were measured by zone: each is known.
    by_zone: bool,
    /// How commands longer than [`SHORT`] differ from their lines.
    correction: Option<LengthCorrection>,
}

impl CostModels {
    /// The rate changes evenly between the `ends` of the device, if they were measured.
    pub(crate) fn new(
        start: ServiceTime,
        ends: Option<[Bytes; 2]>,
        correction: Option<LengthCorrection>,
        confidence: f64,
    ) -> Self {
        let models = |access: Duration, rate_is_known: bool| {
            core::array::from_fn(|zone| {
                let bytes_per_second = ends.map_or(start.bytes_per_second, |[first, last]| {
                    let (place, of) = (2 * zone as u64 + 1, 2 * ZONES as u64);
                    Bytes(
                        (first.0.saturating_mul(of - place)).saturating_add(last.0.saturating_mul(place))
                            / of,
                    )
                });
                CostModel::new(ServiceTime { access, bytes_per_second }, confidence, rate_is_known)
            })
        };
        // Short ones begin with what the longest of them took.
        let factor = correction.map_or(1.0, |correction| correction.factor(SHORT));
        let short = ServiceTime {
            access: start.access.mul_f64(factor),
            bytes_per_second: Bytes((start.bytes_per_second.0 as f64 / factor) as u64),
        };
        let mut new = Self {
            zones: models(start.access, ends.is_some()),
            speakers: core::array::from_fn(|zone| zone),
            short: CostModel::new(short, confidence, false),
            near: models(start.access / 2, false),
            sequential: models(start.access / 16, false),
            worst: 0,
            by_zone: ends.is_some(),
            correction,
        };
        new.find_worst();
        new
    }

    /// Each zone was measured.
    pub(crate) fn is_known_by_zone(&self) -> bool {
        self.by_zone
    }

    /// What is known of commands anywhere in a zone: an unknown zone is like its nearest known one.
    pub(crate) fn model(&self, zone: usize, length: Bytes) -> &CostModel {
        if length <= SHORT {
            return &self.short;
        }
        &self.zones[self.speakers[zone]]
    }

    /// The same of those that begin so far from where the one before ended.
    pub(crate) fn model_after(&self, distance: Distance, zone: usize, length: Bytes) -> &CostModel {
        match distance {
            Distance::Sequential => &self.sequential[zone],
            Distance::Near => &self.near[zone],
            Distance::Far => self.model(zone, length),
        }
    }

    /// The same in the slowest zone that is known.
    pub(crate) fn worst_model(&self, length: Bytes) -> &CostModel {
        self.model(self.worst, length)
    }

    /// Nanoseconds that a command of `length` takes by this line.
    pub(crate) fn nanos(&self, model: &CostModel, length: Bytes) -> u64 {
        let nanos = model.in_use.nanos(length);
        self.correction.filter(|_| length > SHORT).map_or(nanos, |correction| correction.scale(length, nanos))
    }

    /// Nanoseconds that a completion was expected to take.
    pub(crate) fn expected(&mut self, seen: &Seen) -> f64 {
        let factor = self
            .correction
            .filter(|_| seen.length > SHORT)
            .map_or(1.0, |correction| correction.factor(seen.length));
        self.own(seen).expected(seen.length) * factor
    }

    fn known(&self) -> impl Iterator<Item = usize> {
        (0..ZONES).filter(|zone| self.by_zone || self.zones[*zone].seen >= KNOWN)
    }

    /// Finds for each zone the one that speaks for it: after another one became known.
    fn find_speakers(&mut self) {
        self.speakers = core::array::from_fn(|zone| {
            let nearest = self.known().min_by_key(|known| (known.abs_diff(zone), core::cmp::Reverse(*known)));
            nearest.unwrap_or(zone)
        });
    }

    /// The model that learns from a completion.
    pub(crate) fn own(&mut self, seen: &Seen) -> &mut CostModel {
        match seen.distance {
            Distance::Sequential => &mut self.sequential[seen.zone],
            Distance::Near => &mut self.near[seen.zone],
            Distance::Far if seen.length <= SHORT => &mut self.short,
            Distance::Far => &mut self.zones[seen.zone],
        }
    }

    /// Learns from a completion. Whether what is known has changed, and by which factor all lines were scaled.
    pub(crate) fn observe(&mut self, seen: &Seen, ratio: f64) -> (bool, f64) {
        let model = self.own(seen);
        let learned = model.observe(seen.length, ratio);
        let (is_established, becomes_known) = (model.seen >= ESTABLISHED, model.seen == KNOWN);
        if becomes_known {
            self.find_speakers();
        }
        let is_seek = seen.distance != Distance::Sequential && seen.length > SHORT;
        let moved = match learned {
            // What happened to a line that was known happened to the device.
            Learned::Device(scale) if is_established && is_seek => {
                let is_near = seen.distance == Distance::Near;
                let (far, near) = (self.zones.iter_mut().enumerate(), self.near.iter_mut().enumerate());
                let far = far.filter(|(zone, _)| is_near || *zone != seen.zone);
                let near = near.filter(|(zone, _)| !is_near || *zone != seen.zone);
                far.chain(near).for_each(|(_, model)| model.rescale(scale));
                true
            }
            Learned::Nothing => false,
            _ => seen.distance == Distance::Far,
        };
        let scale = if let Learned::Device(scale) = learned { scale } else { 1.0 };
        (self.find_worst() || moved, scale)
    }

    /// True when it takes another time than before.
    fn find_worst(&mut self) -> bool {
        let takes = |zone: usize| self.zones[zone].in_use.nanos(Bytes::from_mib(8));
        let worst = self.known().max_by_key(|zone| takes(*zone)).unwrap_or(self.worst);
        let moved = takes(worst) != takes(self.worst);
        self.worst = worst;
        moved
    }
}
