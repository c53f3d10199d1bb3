//! By how much commands of a length differ from the line.
//!
//! **For:** commands of the lengths that were measured take as long as they did. An array puts long writes into whole
//! stripes and short ones not. So no line through all of them is right by 2 %, which is what the admission has to
//! spare. The best one through a RAID5's writes says 11 % too little of 8 MiB and 5 % too much of 64 MiB. **Excludes:**
//! the line, which learns; the correction stays. **State:** for each measured length, what it takes of what the line
//! says. **Invariants:** what was measured is said again, within 2^-16 of it.

use crate::cost_model::{Figures, ServiceTime};
use units::{Bytes, Duration};

/// Lengths of writes that are measured: 256 KiB and its doubles up to 64 MiB. An estimator's window.
pub const WRITE_LENGTHS: [Bytes; 9] = {
    let mut lengths = [Bytes::from_kib(256); 9];
    let mut octave = 1;
    while octave < lengths.len() {
        lengths[octave] = Bytes(lengths[octave - 1].0 * 2);
        octave += 1;
    }
    lengths
};
/// How many lengths are measured. Representation.
const MEASURED: usize = WRITE_LENGTHS.len();

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthCorrection {
    /// Parts of 2^16.
    parts: [u64; MEASURED],
}

impl LengthCorrection {
    /// Corrections are in parts of two to this power. Representation.
    const SHIFT: u32 = 16;
    /// The shortest length that is measured. Representation.
    const SHORTEST: Bytes = WRITE_LENGTHS[0];

    /// Commands of these lengths took these `times`, and through them goes this line.
    pub(crate) fn new(line: ServiceTime, times: [Duration; MEASURED]) -> Self {
        let line = Figures::from(line);
        let parts = core::array::from_fn(|octave| {
            let nanos = u128::from(line.nanos(WRITE_LENGTHS[octave]));
            // A line that is off by more than this is none of this device's.
            let part = (times[octave].as_nanos() << Self::SHIFT) / nanos;
            (part as u64).clamp(1 << (Self::SHIFT - 4), 1 << (Self::SHIFT + 4))
        });
        Self { parts }
    }

    /// What a command of `length` takes of which the line says `nanos`: between two measured lengths, evenly.
    pub(crate) fn scale(&self, length: Bytes, nanos: u64) -> u64 {
        ((u128::from(nanos) * u128::from(self.part(length))) >> Self::SHIFT) as u64
    }

    /// The same as a factor.
    pub(crate) fn factor(&self, length: Bytes) -> f64 {
        self.part(length) as f64 / f64::from(1 << Self::SHIFT)
    }

    fn part(&self, length: Bytes) -> u64 {
        let Some(octave) = (length.0 / Self::SHORTEST.0).checked_ilog2() else { return self.parts[0] };
        let octave = octave as usize;
        let Some(next) = self.parts.get(octave + 1) else { return self.parts[MEASURED - 1] };
        // So far into the octave.
        let into = ((length.0 >> octave) - Self::SHORTEST.0) >> (Self::SHORTEST.0.ilog2() - Self::SHIFT);
        (self.parts[octave] * ((1 << Self::SHIFT) - into) + next * into) >> Self::SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: ServiceTime =
        ServiceTime { access: Duration::from_millis(10), bytes_per_second: Bytes(200_000_000) };

    #[test]
    fn what_was_measured_is_said_again_and_between_it_changes_evenly() {
        // Every second one takes half as long again as the line says.
        let mut is_slow = false;
        let times = WRITE_LENGTHS.map(|length| {
            is_slow = !is_slow;
            if is_slow { LINE.of(length) * 3 / 2 } else { LINE.of(length) }
        });
        let correction = LengthCorrection::new(LINE, times);
        let ratio = |length: Bytes| {
            let nanos = LINE.of(length).as_nanos() as u64;
            assert!(
                (correction.factor(length) * nanos as f64 - correction.scale(length, nanos) as f64).abs()
                    < 2.0
            );
            correction.scale(length, nanos) as f64 / nanos as f64
        };
        for (length, time) in WRITE_LENGTHS.into_iter().zip(times) {
            let expected = time.as_secs_f64() / LINE.of(length).as_secs_f64();
            assert!((ratio(length) - expected).abs() < 1e-4, "{length}");
            if length < WRITE_LENGTHS[MEASURED - 1] {
                assert!((ratio(Bytes(length.0 / 2 * 3)) - 1.25).abs() < 1e-4, "{length}");
            }
        }
        // Beyond both ends, as at the end.
        assert!((ratio(Bytes(1)) - 1.5).abs() < 1e-4);
        assert!((ratio(Bytes::from_mib(1 << 20)) - 1.5).abs() < 1e-4);
    }

    #[test]
    fn times_that_are_none_of_this_line_are_off_by_a_bounded_factor() {
        let correction = LengthCorrection::new(LINE, [Duration::ZERO; MEASURED]);
        assert!(correction.scale(Bytes::from_mib(8), 1_000_000) > 0);
        let correction = LengthCorrection::new(LINE, [Duration::from_secs(1 << 40); MEASURED]);
        assert_eq!(correction.scale(Bytes::from_mib(8), 1_000_000), 16_000_000);
    }
}
