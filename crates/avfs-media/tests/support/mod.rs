//! Drives a probe as a filesystem does, and holds it to its limits.

use avfs_media::{Finding, MAX_BYTES, MAX_READ, MAX_READS, Probe, Refusal, Step};
use std::time::{Duration, Instant};
use units::Bytes;

/// All parsing of one file takes less, whatever is in it. It takes some milliseconds at the most: this is no measurement, but
/// what goes over the same bytes again and again, or forgets to count its steps, takes longer.
const LONGEST: Duration = Duration::from_secs(1);

/// Probes a file of `length` bytes, whose parts `read` returns: offset and length in bytes.
pub(crate) fn probe(length: u64, mut read: impl FnMut(u64, u64) -> Vec<u8>) -> Result<Finding, Refusal> {
    let begun = Instant::now();
    let mut probe = Probe::new(Bytes(length));
    let mut parsing = begun.elapsed();
    let (mut reads, mut bytes) = (0, 0);
    loop {
        assert!(parsing < LONGEST, "{parsing:?} of parsing");
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
                let part = read(offset, wanted.as_u64());
                let begun = Instant::now();
                probe.feed(&part);
                parsing += begun.elapsed();
            }
        }
    }
}

/// Probes a file that consists of `bytes` with so many zeros in their middle; reads may bring half of what they should.
pub(crate) fn probe_folded(bytes: &[u8], gap: u64, short: bool) -> Result<Finding, Refusal> {
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    let pieces = [(0, head), (head.len() as u64 + gap, tail)];
    let read = |offset: u64, length: u64| {
        let mut bytes = vec![0; length as usize];
        for (start, piece) in pieces {
            let (from, to) = (offset.max(start), (offset + length).min(start + piece.len() as u64));
            if from < to {
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
            }
        }
        bytes.truncate(if short { bytes.len() / 2 } else { bytes.len() });
        bytes
    };
    probe(bytes.len() as u64 + gap, read)
}
