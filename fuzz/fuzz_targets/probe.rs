//! Files of any bytes: a probe ends within its limits, which the support module asserts, and does not panic.
//!
//! The last nine bytes of an input say how the file differs from the bytes before: how many zeros lie in its middle, and
//! whether reads end early.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/avfs-media/tests/support/mod.rs"]
mod support;

/// So long can a gap be, in powers of two: up to 2^63 bytes, beyond what a volume can hold.
const LONGEST_GAP: u32 = 63;

fuzz_target!(|input: &[u8]| {
    let Some((bytes, [gap @ .., short])) = input.split_last_chunk::<9>() else { return };
    let gap = u64::from_le_bytes(*gap);
    // Short gaps and none must be as likely as long ones.
    let gap = gap.checked_shr(64 - (gap as u32 % (LONGEST_GAP + 1))).unwrap_or(0);
    let _ = support::probe_folded(bytes, gap, *short == 1);
});
