//! The line through measured service times.
//!
//! **For:** start values of the service model from a measurement of the device. **Excludes:** measuring, and what is
//! learned later. **State:** none.

use crate::cost_model::ServiceTime;
use units::{Bytes, Duration};

impl ServiceTime {
    /// The line of the least relative errors through what commands of different lengths took on average: Σ ((a + b·x − y) / y)²
    /// is least. Neither part is below zero; without two different lengths, all of the time is transfer. `None` without
    /// a command that took time and moved bytes.
    pub fn through(points: &[(Bytes, Duration)]) -> Option<Self> {
        // Least squares of a/y + b·x/y = 1, with u = 1/y and v = x/y.
        let terms = points.iter().filter(|(length, time)| length.0 > 0 && !time.is_zero());
        let terms =
            terms.map(|(length, time)| (1.0 / time.as_secs_f64(), length.0 as f64 / time.as_secs_f64()));
        let (mut u, mut v, mut uu, mut uv, mut vv) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (inverse, rate) in terms {
            u += inverse;
            v += rate;
            uu += inverse * inverse;
            uv += inverse * rate;
            vv += rate * rate;
        }
        if vv <= 0.0 {
            return None;
        }
        let determinant = uu * vv - uv * uv;
        let is_line = determinant > 1e-9 * uu * vv;
        let (access, seconds_per_byte) = if is_line {
            ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant)
        } else {
            (0.0, v / vv)
        };
        let (access, seconds_per_byte) = match (access > 0.0, seconds_per_byte > 0.0) {
            (true, true) => (access, seconds_per_byte),
            (false, _) => (0.0, v / vv),
            // Longer commands take no longer: all of it is access, and the rate as good as unlimited.
            (true, false) => (u / uu, 1e-15),
        };
        Some(Self {
            access: Duration::from_secs_f64(access),
            bytes_per_second: Bytes(((1.0 / seconds_per_byte) as u64).max(1)),
        })
    }

    /// As [`through`](Self::through) if the rate is known: of the lines with this rate, the one with the least relative errors, whose access is not
    /// below zero. `None` without a command that took time, or without a rate.
    pub fn with_rate(points: &[(Bytes, Duration)], bytes_per_second: Bytes) -> Option<Self> {
        let mut access = (0.0, 0.0);
        for (length, time) in points.iter().filter(|(_, time)| !time.is_zero()) {
            let (time, transfer) = (time.as_secs_f64(), length.0 as f64 / bytes_per_second.0 as f64);
            access = (access.0 + (time - transfer) / (time * time), access.1 + 1.0 / (time * time));
        }
        let is_known = access.1 > 0.0 && bytes_per_second.0 > 0;
        is_known.then(|| Self {
            access: Duration::from_secs_f64((access.0 / access.1).max(0.0)),
            bytes_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: ServiceTime =
        ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };

    fn points(of: impl Fn(Bytes) -> Duration) -> [(Bytes, Duration); 4] {
        [1, 4, 16, 64].map(|mib| (Bytes::from_mib(mib), of(Bytes::from_mib(mib))))
    }

    #[test]
    fn a_line_is_found_again() {
        let found = ServiceTime::through(&points(|length| DISK.of(length))).unwrap();
        assert!(found.access.abs_diff(DISK.access) < Duration::from_micros(1), "{found:?}");
        // A line is reckoned in whole picoseconds a byte, one of which is 29 kB/s here.
        assert!(found.bytes_per_second.0.abs_diff(170_000_000) < 29_000, "{found:?}");
    }

    #[test]
    fn what_is_no_line_gives_no_part_below_zero() {
        // Twice as long takes three times the time: a line would begin below zero.
        let convex = |length: Bytes| Duration::from_secs_f64((length.0 as f64 / 1e8).powf(1.5));
        let found = ServiceTime::through(&points(convex)).unwrap();
        assert_eq!(found.access, Duration::ZERO);
        assert!(found.bytes_per_second.0 > 1_000_000);
        // Longer is faster.
        let falling = |length: Bytes| Duration::from_secs_f64(1e6 / length.0 as f64);
        let found = ServiceTime::through(&points(falling)).unwrap();
        assert!(found.access > Duration::ZERO && found.bytes_per_second.0 > 1_000_000_000_000, "{found:?}");
    }

    #[test]
    fn one_length_is_transfer_alone_and_none_is_nothing() {
        let found = ServiceTime::through(&[(Bytes(1_000_000), Duration::from_millis(10))]).unwrap();
        assert_eq!(found.access, Duration::ZERO);
        assert!(found.bytes_per_second.0.abs_diff(100_000_000) < 2, "{found:?}");
        assert_eq!(ServiceTime::through(&[]), None);
        assert_eq!(ServiceTime::through(&[(Bytes::ZERO, Duration::from_millis(1))]), None);
        assert_eq!(ServiceTime::through(&[(Bytes(1), Duration::ZERO)]), None);
    }

    #[test]
    fn with_a_rate_that_is_known_the_access_alone_is_found() {
        let found = ServiceTime::with_rate(&points(|length| DISK.of(length)), DISK.bytes_per_second).unwrap();
        // In whole picoseconds a byte, 64 MiB take up to 34 µs more or less.
        assert!(found.access.abs_diff(DISK.access) < Duration::from_micros(34), "{found:?}");
        assert_eq!(found.bytes_per_second, DISK.bytes_per_second);
        // All of it took less time than it should have taken to move.
        let found =
            ServiceTime::with_rate(&points(|length| DISK.of(length) / 100), DISK.bytes_per_second).unwrap();
        assert_eq!(found.access, Duration::ZERO);
        assert_eq!(ServiceTime::with_rate(&[], Bytes(1)), None);
        assert_eq!(ServiceTime::with_rate(&[(Bytes(1), Duration::ZERO)], Bytes(1)), None);
        assert_eq!(ServiceTime::with_rate(&[(Bytes(1), Duration::from_millis(1))], Bytes::ZERO), None);
    }
}
