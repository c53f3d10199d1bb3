//! Drives a probe as a filesystem does, and holds it to its limits.

use avfs_media::{Finding, MAX_BYTES, MAX_READ, MAX_READS, Probe, Refusal, Step};
use units::Bytes;

/// Probes a file of `length` bytes, whose parts `read` returns: offset and length in bytes.
pub(crate) fn probe(length: u64, mut read: impl FnMut(u64, u64) -> Vec<u8>) -> Result<Finding, Refusal> {
    let mut probe = Probe::new(Bytes(length));
    let (mut reads, mut bytes) = (0, 0);
    loop {
        match probe.step() {
            Step::Done(result) => return result,
            Step::Read { offset, length: wanted } => {
                reads += 1;
                bytes += wanted.as_u64();
                assert!(reads <= MAX_READS, "{reads} reads");
                assert!(bytes <= MAX_BYTES, "{bytes} bytes read");
                assert!((1..=MAX_READ).contains(&wanted.as_u64()), "a read of {wanted}");
                assert!(offset.saturating_add(wanted.as_u64()) <= length, "{wanted} at {offset} of {length}");
                assert!(offset.is_multiple_of(4096), "a read at {offset}");
                probe.feed(&read(offset, wanted.as_u64()));
            }
        }
    }
}
