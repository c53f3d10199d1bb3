//! Quantities whose unit is in the type.
//!
//! **For:** every quantity that crosses a crate boundary: instants, byte counts, places on a device or in a
//! file, bitrates, inode numbers. **Excludes:** behaviour; nothing here allocates, reads a clock or does I/O.
//! **State:** none. **Invariants:** arithmetic either cannot overflow for values a volume can hold (2^63 bytes,
//! 584 years of nanoseconds) or saturates and says so.
//!
//! Bare integers appear only in configuration, in metrics and in the on-disk structures.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};
pub use core::time::Duration;

/// A point on the monotonic clock, in nanoseconds since an arbitrary origin.
///
/// Passed in by the caller everywhere; only the engine's clock and the simulator make new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);
    /// Later than every instant that can be reached: "no deadline".
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanoseconds` after the origin.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is not earlier.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved back by `duration`, at most to the origin.
    pub fn saturating_before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

/// A duration in whole nanoseconds, saturating at 584 years.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    /// Saturates at [`Instant::FAR_FUTURE`].
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `count` × 1024 bytes.
    pub const fn from_kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` × 1024² bytes.
    pub const fn from_mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The bare number of bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self − other`, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that divides the number evenly: `8 MiB`, `4 KiB`, `123 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, name) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{} {name}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// A byte address on the block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOffset(pub u64);

impl DeviceOffset {
    /// The bare byte address.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Distance in bytes to `other`, in either direction: what a head travels.
    pub const fn distance(self, other: Self) -> Bytes {
        Bytes(self.0.abs_diff(other.0))
    }
}

impl Add<Bytes> for DeviceOffset {
    type Output = Self;
    fn add(self, length: Bytes) -> Self {
        Self(self.0 + length.0)
    }
}

impl fmt::Display for DeviceOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of a volume.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitrate(pub u64);

impl Bitrate {
    /// `count` × 10^6 bits per second.
    pub const fn from_megabits(count: u64) -> Self {
        Self(count * 1_000_000)
    }

    /// Whole bytes per second.
    pub const fn bytes_per_second(self) -> Bytes {
        Bytes(self.0 / 8)
    }

    /// How long `length` plays at this rate; [`Duration::MAX`] at rate zero.
    pub fn time_for(self, length: Bytes) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanoseconds = u128::from(length.0) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// How many bytes play in `duration`.
    pub fn bytes_in(self, duration: Duration) -> Bytes {
        let bytes = u128::from(self.0) * duration.as_nanos() / 8 / 1_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// A wall-clock time as a filesystem stores it: seconds since 1970-01-01 UTC and nanoseconds within the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since the epoch; negative before it.
    pub seconds: i64,
    /// Nanoseconds within the second, 0..10^9.
    pub nanoseconds: u32,
}

/// Both clocks at one moment, as every operation of the filesystem receives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For deadlines, timers and ages.
    pub monotonic: Instant,
    /// For the times users see on their files.
    pub wall: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hd_stream_of_100_megabits_plays_8_mib_in_671_ms() {
        let period = Bitrate::from_megabits(100).time_for(Bytes::from_mib(8));
        assert_eq!(period.as_millis(), 671);
    }

    #[test]
    fn bytes_in_inverts_time_for_within_one_byte() {
        let rate = Bitrate::from_megabits(185);
        let length = Bytes::from_mib(64);
        let back = rate.bytes_in(rate.time_for(length));
        assert!(length.as_u64() - back.as_u64() <= 1);
    }

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        assert_eq!(Instant::FAR_FUTURE + Duration::from_secs(1), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO.saturating_since(Instant::from_nanos(5)), Duration::ZERO);
    }
}
