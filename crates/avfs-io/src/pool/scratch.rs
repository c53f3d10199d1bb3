//! Memory for requests whose bytes are not looked at.

use super::{Buffer, MAX_BUFFER, Pool};
use crate::request::Segment;
use smallvec::SmallVec;
use std::io;
use units::Bytes;

/// Pinned memory as long as the longest request, which all requests share: for measurements.
#[derive(Debug)]
pub struct Scratch {
    pool: Pool,
    buffers: Vec<Buffer>,
}

impl Scratch {
    /// Memory for requests of up to `length`, with nothing but zeros.
    ///
    /// # Errors
    /// When it cannot be had or not be locked.
    pub fn new(length: Bytes) -> io::Result<Self> {
        let pool = Pool::new(Bytes(length.0.next_multiple_of(MAX_BUFFER as u64)), true)?;
        let buffers = std::iter::from_fn(|| pool.allocate(MAX_BUFFER)).collect();
        Ok(Self { pool, buffers })
    }

    /// Fills all of it with copies of `pattern`.
    ///
    /// # Panics
    /// When the pattern is empty.
    pub fn fill(&self, pattern: &[u8]) {
        for buffer in &self.buffers {
            for start in (0..buffer.len()).step_by(pattern.len()) {
                buffer.copy_in(start, &pattern[..pattern.len().min(buffer.len() - start)]);
            }
        }
    }

    /// The pool that the memory is of, for the engine.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The segments of a request of `length`, which is no longer than the memory.
    pub fn segments(&self, length: Bytes) -> SmallVec<[Segment; 2]> {
        let mut left = length.0 as usize;
        let take = |buffer: &Buffer| {
            let length = left.min(MAX_BUFFER);
            left -= length;
            (length > 0).then(|| Segment { buffer: buffer.clone(), start: 0, length })
        };
        self.buffers.iter().map_while(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_add_up_to_what_is_asked_for() {
        let scratch = Scratch::new(Bytes::from_mib(16)).unwrap();
        for length in [0, 4096, MAX_BUFFER - 4096, MAX_BUFFER, MAX_BUFFER + 4096, 2 * MAX_BUFFER] {
            let segments = scratch.segments(Bytes(length as u64));
            assert_eq!(segments.iter().map(|segment| segment.length).sum::<usize>(), length);
            assert!(segments.iter().all(|segment| segment.length > 0));
        }
    }

    #[test]
    fn all_of_it_is_filled() {
        let scratch = Scratch::new(Bytes(1)).unwrap();
        scratch.fill(b"abc");
        let [buffer] = &scratch.buffers[..] else { panic!("one buffer holds a byte") };
        let bytes = buffer.bytes(0, MAX_BUFFER);
        assert!((0..).zip(bytes).all(|(at, byte)| *byte == b"abc"[at % 3]));
    }
}
