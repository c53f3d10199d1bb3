//! Pinned memory for everything that moves between clients and the device.
//!
//! One mapping, taken at mount and never grown. It is handed out in powers of two from 4 KiB to 8 MiB, each aligned
//! to its own size (a buddy allocator), so that one 8 MiB extent is one contiguous piece of memory that the ring
//! can have registered and a client's read can be answered from without a copy.

mod memory;
mod scratch;

pub use scratch::Scratch;

use memory::Memory;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::Bytes;

/// Smallest buffer in bytes.
pub const MIN_BUFFER: usize = 4096;
/// Largest buffer in bytes, and the granularity of the pool.
pub const MAX_BUFFER: usize = 8 << 20;
const ORDERS: usize = (MAX_BUFFER / MIN_BUFFER).ilog2() as usize + 1;

/// What a machine can give without another program being swapped out, by its `/proc/meminfo` (proc_meminfo(5)); `None`: it does not say.
pub fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(Bytes::from_kib)
}

/// The memory and who has it. Cloning makes another handle to the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: Memory,
    free: Mutex<FreeLists>,
}

/// Free pieces by order (size = 4096 << order), each named by its offset in the mapping.
#[derive(Debug)]
struct FreeLists {
    by_order: [BTreeSet<usize>; ORDERS],
    free_bytes: usize,
}

/// A piece of the pool. Cloning shares it; the memory returns to the pool with the last handle.
#[derive(Clone)]
pub struct Buffer {
    piece: Arc<Piece>,
}

struct Piece {
    shared: Arc<Shared>,
    offset: usize,
    order: usize,
}

impl Pool {
    /// Maps `capacity`, rounded down to whole 8 MiB, at least one. With `pin` it is locked into memory and backed
    /// by huge pages where the kernel has them.
    ///
    /// # Errors
    /// When the memory cannot be had or not be locked.
    pub fn new(capacity: Bytes, pin: bool) -> io::Result<Self> {
        let pieces = (capacity.as_u64() as usize / MAX_BUFFER).max(1);
        let memory = Memory::map(pieces * MAX_BUFFER, MAX_BUFFER, pin)?;
        let mut by_order: [BTreeSet<usize>; ORDERS] = Default::default();
        by_order[ORDERS - 1] = (0..pieces).map(|piece| piece * MAX_BUFFER).collect();
        let free = Mutex::new(FreeLists { by_order, free_bytes: pieces * MAX_BUFFER });
        Ok(Self { shared: Arc::new(Shared { memory, free }) })
    }

    /// A buffer of at least `length` bytes: the next power of two, 4 KiB to 8 MiB. What it holds is unspecified,
    /// but never another process's data. `None` when no free piece is large enough.
    ///
    /// # Panics
    /// When `length` exceeds [`MAX_BUFFER`].
    pub fn allocate(&self, length: usize) -> Option<Buffer> {
        assert!(length <= MAX_BUFFER, "a buffer of {length} bytes was asked for");
        let order = (length.max(MIN_BUFFER).next_power_of_two() / MIN_BUFFER).ilog2() as usize;
        let offset = self.shared.free.lock().take(order)?;
        Some(Buffer { piece: Arc::new(Piece { shared: Arc::clone(&self.shared), offset, order }) })
    }

    /// All memory of the pool.
    pub fn capacity(&self) -> Bytes {
        Bytes(self.shared.memory.length() as u64)
    }

    /// Memory that nobody has.
    pub fn available(&self) -> Bytes {
        Bytes(self.shared.free.lock().free_bytes as u64)
    }

    /// Address of the mapping: what the ring registers. Buffers lie at [`Buffer::offset`] from it.
    pub fn base(&self) -> *mut u8 {
        self.shared.memory.base()
    }
}

impl FreeLists {
    fn take(&mut self, order: usize) -> Option<usize> {
        let found = (order..ORDERS).find(|&order| !self.by_order[order].is_empty())?;
        let offset = self.by_order[found].pop_first().expect("a list that is not empty has a first");
        for split in (order..found).rev() {
            self.by_order[split].insert(offset + (MIN_BUFFER << split));
        }
        self.free_bytes -= MIN_BUFFER << order;
        Some(offset)
    }

    fn give(&mut self, mut offset: usize, mut order: usize) {
        self.free_bytes += MIN_BUFFER << order;
        while order < ORDERS - 1 && self.by_order[order].remove(&(offset ^ (MIN_BUFFER << order))) {
            offset &= !(MIN_BUFFER << order);
            order += 1;
        }
        self.by_order[order].insert(offset);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.shared.free.lock().give(self.offset, self.order);
    }
}

impl Buffer {
    /// Size in bytes, a power of two.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        MIN_BUFFER << self.piece.order
    }

    /// Offset from the pool's base.
    pub fn offset(&self) -> usize {
        self.piece.offset
    }

    /// Address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.piece.shared.memory.at(self.piece.offset, self.len())
    }

    /// True while another handle to the same memory exists: a request in flight, or a reader.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.piece) > 1
    }

    /// The bytes `start..start + length`, for handing to the kernel or copying from. A client that writes the
    /// same bytes at the same time decides itself what is seen.
    ///
    /// # Panics
    /// When the range does not lie in the buffer.
    pub fn bytes(&self, start: usize, length: usize) -> &[u8] {
        self.check(start, length);
        self.piece.shared.memory.bytes(self.piece.offset + start, length)
    }

    /// Copies `from` to `start`.
    ///
    /// # Panics
    /// When the range does not lie in the buffer.
    pub fn copy_in(&self, start: usize, from: &[u8]) {
        self.check(start, from.len());
        self.piece.shared.memory.copy_in(self.piece.offset + start, from);
    }

    /// Fills `start..start + length` with zeros.
    ///
    /// # Panics
    /// When the range does not lie in the buffer.
    pub fn zero(&self, start: usize, length: usize) {
        self.check(start, length);
        self.piece.shared.memory.zero(self.piece.offset + start, length);
    }

    /// Reads once: the first bytes go to `head`, what does not fit there to the buffer, and what does not fit there to `tail`. Gives
    /// back how many bytes came.
    ///
    /// # Errors
    /// What readv(2) says.
    ///
    /// # Panics
    /// When somebody else has the buffer.
    pub fn receive(&mut self, from: impl AsFd, head: &mut [u8], tail: &mut [u8]) -> io::Result<usize> {
        assert!(!self.is_shared(), "somebody else has the buffer that is to be read into");
        self.piece.shared.memory.receive(self.piece.offset, self.len(), from.as_fd(), head, tail)
    }

    fn check(&self, start: usize, length: usize) {
        assert!(
            start <= self.len() && length <= self.len() - start,
            "{start}+{length} does not lie in a buffer of {} bytes",
            self.len()
        );
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:#x}+{:#x})", self.offset(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_freed_coalesces_into_the_whole_again() {
        let pool = Pool::new(Bytes::from_mib(16), false).unwrap();
        let small: Vec<_> = (0..16 << 20 >> 12).map(|_| pool.allocate(4096).unwrap()).collect();
        assert!(pool.allocate(1).is_none());
        assert_eq!(pool.available(), Bytes::ZERO);
        drop(small);
        let large = [pool.allocate(MAX_BUFFER).unwrap(), pool.allocate(MAX_BUFFER).unwrap()];
        assert!(pool.allocate(1).is_none());
        drop(large);
        assert_eq!(pool.available(), Bytes::from_mib(16));
    }

    #[test]
    fn buffers_are_aligned_to_their_size_and_do_not_overlap() {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        let mut held = Vec::new();
        for length in [4096, 5000, 65536, 1 << 20, 4096, 2 << 20] {
            let buffer = pool.allocate(length).unwrap();
            assert!(buffer.len() >= length && buffer.offset().is_multiple_of(buffer.len()));
            assert!((buffer.address() as usize).is_multiple_of(4096));
            for (fill, other) in held.iter().enumerate() {
                let other: &Buffer = other;
                assert!(other.bytes(0, other.len()).iter().all(|&byte| byte == fill as u8 + 1));
            }
            let fill = vec![held.len() as u8 + 1; buffer.len()];
            buffer.copy_in(0, &fill);
            held.push(buffer);
        }
    }

    #[test]
    fn what_is_read_begins_in_the_head_and_goes_on_in_the_buffer_and_the_tail() {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        let mut buffer = pool.allocate(4096).unwrap();
        buffer.zero(0, 4096);
        for (sent, in_buffer, in_tail) in
            [(0, 0, 0), (3, 0, 0), (8, 0, 0), (9, 1, 0), (4104, 4096, 0), (4105, 4096, 1), (5000, 4096, 4)]
        {
            let (reader, mut writer) = io::pipe().unwrap();
            let bytes: Vec<u8> = (0..sent).map(|number| number as u8 | 1).collect();
            writer.write_all(&bytes).unwrap();
            drop(writer);
            let (mut head, mut tail) = ([0; 8], [0; 4]);
            let received = buffer.receive(&reader, &mut head, &mut tail).unwrap();
            assert_eq!(received, sent.min(8) + in_buffer + in_tail);
            assert_eq!(head[..sent.min(8)], bytes[..sent.min(8)]);
            assert_eq!(buffer.bytes(0, in_buffer), &bytes[sent.min(8)..sent.min(8) + in_buffer]);
            assert_eq!(tail[..in_tail], bytes[received - in_tail..received]);
        }
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        assert!(buffer.receive(&writer, &mut [0; 8], &mut []).is_err());
    }

    #[test]
    #[should_panic(expected = "somebody else has the buffer")]
    fn nothing_is_read_into_what_somebody_else_has() {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        let mut buffer = pool.allocate(4096).unwrap();
        let _reader = buffer.clone();
        let (reader, _writer) = io::pipe().unwrap();
        let _ = buffer.receive(&reader, &mut [], &mut []);
    }

    #[test]
    fn a_clone_keeps_the_memory() {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        let buffer = pool.allocate(MAX_BUFFER).unwrap();
        let reader = buffer.clone();
        assert!(buffer.is_shared());
        drop(buffer);
        assert!(pool.allocate(4096).is_none());
        drop(reader);
        assert!(pool.allocate(4096).is_some());
    }
}
