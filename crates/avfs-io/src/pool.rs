//! Pinned memory for everything that moves between clients and the device.
//!
//! One mapping of addresses, handed out in powers of two from 4 KiB to 8 MiB, each aligned to its own size (a buddy allocator), so
//! that one 8 MiB extent is one contiguous piece of memory that a client's read can be answered from without a copy.
//!
//! A pool that is pinned takes memory from the machine in pieces of 8 MiB when there is none left, up to a limit that can be changed, and
//! gives back what is free. Its owner has a thread [tend](Pool::tend) it, so that clients seldom wait for the kernel to clear memory.

mod memory;
mod scratch;

pub use scratch::Scratch;

use memory::Memory;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::{Bytes, Duration};

/// Smallest buffer in bytes.
pub const MIN_BUFFER: usize = 4096;
/// Largest buffer in bytes, and the granularity of the pool.
pub const MAX_BUFFER: usize = 8 << 20;
const ORDERS: usize = (MAX_BUFFER / MIN_BUFFER).ilog2() as usize + 1;

/// A pinned pool that is tended has so much to spare, in bytes: the longest request of a stream, so that it never waits for the
/// kernel to clear memory. An operator's target.
pub const READY: usize = 64 << 20;

/// What a machine can give without another program being swapped out, by its `/proc/meminfo` (proc_meminfo(5)); `None`: it does not say.
pub fn available(meminfo: &str) -> Option<Bytes> {
    kib(meminfo, "MemAvailable:")
}

/// All memory that a machine has, by its `/proc/meminfo`; `None`: it does not say.
pub fn total(meminfo: &str) -> Option<Bytes> {
    kib(meminfo, "MemTotal:")
}

fn kib(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(Bytes::from_kib)
}

/// The memory and its holders. Cloning makes another handle to the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: Memory,
    free: Mutex<FreeLists>,
    /// Less is ready than should be, or the owner wants it tended.
    wanted: Condvar,
    /// Memory has come from the machine, or does not come.
    arrived: Condvar,
}

/// Free pieces by order (size = 4096 << order), each named by its offset in the mapping.
#[derive(Debug)]
struct FreeLists {
    by_order: [BTreeSet<usize>; ORDERS],
    /// Of what is taken.
    free_bytes: usize,
    /// Addresses of pieces without memory.
    bare: BTreeSet<usize>,
    /// What was taken from the machine and not given back.
    taken_bytes: usize,
    /// What of it is on its way.
    arriving_bytes: usize,
    /// No more is taken.
    limit_bytes: usize,
    /// No more is to be used, for now: at most the limit.
    usable_bytes: usize,
    /// The least that was free since that was asked last.
    least_free_bytes: usize,
    /// It was said already that the machine has given none.
    is_told: bool,
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
        let length = whole(capacity);
        let memory = Memory::map(length, MAX_BUFFER, pin)?;
        if pin {
            memory.take(0, length)?;
        }
        Ok(Self::of(memory, length, length))
    }

    /// Reserves addresses for `most`, or for `limit` if that is more, and takes 64 MiB, or less if that is the limit, which is locked into
    /// memory and backed by huge pages where the kernel has them. Up to `limit` is taken when it is needed. Both are rounded down to whole
    /// 8 MiB, at least one.
    ///
    /// # Errors
    /// When not even the first memory can be had or be locked.
    pub fn growing(limit: Bytes, most: Bytes) -> io::Result<Self> {
        let limit = whole(limit);
        let first = limit.min(READY);
        let memory = Memory::map(whole(most).max(limit), MAX_BUFFER, true)?;
        memory.take(0, first)?;
        Ok(Self::of(memory, first, limit))
    }

    fn of(memory: Memory, taken: usize, limit: usize) -> Self {
        let mut by_order: [BTreeSet<usize>; ORDERS] = Default::default();
        by_order[ORDERS - 1] = (0..taken).step_by(MAX_BUFFER).collect();
        let free = FreeLists {
            by_order,
            free_bytes: taken,
            bare: (taken..memory.length()).step_by(MAX_BUFFER).collect(),
            taken_bytes: taken,
            arriving_bytes: 0,
            limit_bytes: limit,
            usable_bytes: limit,
            least_free_bytes: taken,
            is_told: false,
        };
        Self {
            shared: Arc::new(Shared {
                memory,
                free: Mutex::new(free),
                wanted: Condvar::new(),
                arrived: Condvar::new(),
            }),
        }
    }

    /// A buffer of at least `length` bytes: the next power of two, 4 KiB to 8 MiB. What it holds is unspecified,
    /// but never another process's data. `None` when no free piece is large enough.
    ///
    /// # Panics
    /// When `length` exceeds [`MAX_BUFFER`].
    pub fn allocate(&self, length: usize) -> Option<Buffer> {
        assert!(length <= MAX_BUFFER, "a buffer of {length} bytes was asked for");
        let order = (length.max(MIN_BUFFER).next_power_of_two() / MIN_BUFFER).ilog2() as usize;
        let offset = loop {
            let mut free = self.shared.free.lock();
            if let Some(offset) = free.take(order) {
                let is_short = free.wants_more();
                drop(free);
                if is_short {
                    self.shared.wanted.notify_one();
                }
                break offset;
            }
            if !self.shared.take_more(free) {
                return None;
            }
        };
        Some(Buffer { piece: Arc::new(Piece { shared: Arc::clone(&self.shared), offset, order }) })
    }

    /// The most memory that the pool may have.
    pub fn capacity(&self) -> Bytes {
        Bytes(self.shared.free.lock().limit_bytes as u64)
    }

    /// The most that [`set_capacity`](Self::set_capacity) can give it.
    pub fn largest_capacity(&self) -> Bytes {
        Bytes(self.shared.memory.length() as u64)
    }

    /// What it has from the machine.
    pub fn taken(&self) -> Bytes {
        Bytes(self.shared.free.lock().taken_bytes as u64)
    }

    /// What of it is in use.
    pub fn used(&self) -> Bytes {
        Bytes(self.shared.free.lock().used() as u64)
    }

    /// Memory that is free, or that may still be taken.
    pub fn available(&self) -> Bytes {
        let free = self.shared.free.lock();
        Bytes(free.usable_bytes.saturating_sub(free.used()) as u64)
    }

    /// Changes how much it may have, rounded down to whole 8 MiB, at least one. What is used beyond stays until it is free.
    ///
    /// # Panics
    /// When it is more than [`largest_capacity`](Self::largest_capacity).
    pub fn set_capacity(&self, capacity: Bytes) {
        let limit = whole(capacity);
        assert!(limit <= self.shared.memory.length(), "the addresses do not reach");
        let mut free = self.shared.free.lock();
        (free.limit_bytes, free.usable_bytes, free.is_told) = (limit, limit, false);
        self.shared.wanted.notify_one();
    }

    /// For now no more than so much is to be used, at most the capacity. What is used beyond stays until it is free.
    pub fn set_usable(&self, bytes: Bytes) {
        let mut free = self.shared.free.lock();
        free.usable_bytes = (bytes.as_u64() as usize).min(free.limit_bytes);
    }

    /// Waits until less than [`READY`] is free and more may be taken, or [`wake`](Self::wake) is called, no longer than `time`; then takes
    /// what is lacking. For a thread of the pool's owner. Clients are not held up by it.
    pub fn tend(&self, time: Duration) {
        let mut free = self.shared.free.lock();
        if !free.wants_more() {
            self.shared.wanted.wait_for(&mut free, time);
        }
        while free.wants_more() && self.shared.take_more(free) {
            free = self.shared.free.lock();
        }
    }

    /// Ends a wait of [`tend`](Self::tend).
    pub fn wake(&self) {
        // With the lock, so that a wait that has just been decided on is one already.
        let _free = self.shared.free.lock();
        self.shared.wanted.notify_all();
    }

    /// The least that was free since the last call.
    pub fn least_free(&self) -> Bytes {
        let mut free = self.shared.free.lock();
        let least = std::mem::replace(&mut free.least_free_bytes, usize::MAX);
        Bytes(least.min(free.free_bytes) as u64)
    }

    /// Gives whole free pieces back to the machine, as far as `keep` stays free; also what stays, as far as more was taken than may be.
    /// Gives back how much it was.
    pub fn give_back(&self, keep: Bytes) -> Bytes {
        let keep = keep.as_u64() as usize;
        let mut given = 0;
        loop {
            let mut free = self.shared.free.lock();
            let is_too_much = free.taken_bytes > free.usable_bytes || free.free_bytes >= keep + MAX_BUFFER;
            let Some(offset) = is_too_much.then(|| free.by_order[ORDERS - 1].pop_last()).flatten() else {
                return Bytes(given);
            };
            free.free_bytes -= MAX_BUFFER;
            free.taken_bytes -= MAX_BUFFER;
            free.least_free_bytes = free.least_free_bytes.min(free.free_bytes);
            drop(free);
            let result = self.shared.memory.give_back(offset, MAX_BUFFER);
            let mut free = self.shared.free.lock();
            if let Err(error) = result {
                // It is still there, and can be used.
                tracing::warn!(%error, "memory cannot be given back");
                free.taken_bytes += MAX_BUFFER;
                free.give(offset, ORDERS - 1);
                return Bytes(given);
            }
            free.bare.insert(offset);
            given += MAX_BUFFER as u64;
        }
    }
}

/// In whole pieces, at least one.
fn whole(length: Bytes) -> usize {
    (length.as_u64() as usize / MAX_BUFFER).max(1) * MAX_BUFFER
}

impl Shared {
    /// Takes a piece from the machine, if there may be more. The kernel clears it while the lock is not held.
    fn take_more(&self, mut free: MutexGuard<'_, FreeLists>) -> bool {
        let may_have_more = free.taken_bytes + MAX_BUFFER <= free.usable_bytes;
        let Some(offset) = may_have_more.then(|| free.bare.pop_first()).flatten() else {
            // Another client takes what there is: it may leave some of it.
            let comes = free.arriving_bytes > 0;
            if comes {
                self.arrived.wait(&mut free);
            }
            return comes;
        };
        free.taken_bytes += MAX_BUFFER;
        free.arriving_bytes += MAX_BUFFER;
        drop(free);
        let taken = self.memory.take(offset, MAX_BUFFER);
        let mut free = self.free.lock();
        free.arriving_bytes -= MAX_BUFFER;
        self.arrived.notify_all();
        match taken {
            Ok(()) => {
                // What was not there was not free either.
                let least = free.least_free_bytes;
                free.give(offset, ORDERS - 1);
                free.least_free_bytes = least;
                true
            }
            Err(error) => {
                free.taken_bytes -= MAX_BUFFER;
                free.bare.insert(offset);
                if !std::mem::replace(&mut free.is_told, true) {
                    let has = Bytes(free.taken_bytes as u64);
                    tracing::warn!(%error, "the machine gives no more memory for file data: it is {has}");
                }
                false
            }
        }
    }
}

impl FreeLists {
    fn used(&self) -> usize {
        self.taken_bytes - self.free_bytes - self.arriving_bytes
    }

    /// Less is ready than should be, and there may be more.
    fn wants_more(&self) -> bool {
        self.free_bytes < READY && self.taken_bytes + MAX_BUFFER <= self.usable_bytes && !self.is_told
    }

    fn take(&mut self, order: usize) -> Option<usize> {
        let found = (order..ORDERS).find(|&order| !self.by_order[order].is_empty())?;
        let offset = self.by_order[found].pop_first().expect("a list that is not empty has a first");
        for split in (order..found).rev() {
            self.by_order[split].insert(offset + (MIN_BUFFER << split));
        }
        self.free_bytes -= MIN_BUFFER << order;
        self.least_free_bytes = self.least_free_bytes.min(self.free_bytes);
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

    /// Offset in the pool.
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
    /// When the buffer is held elsewhere, too.
    pub fn receive(&mut self, from: impl AsFd, head: &mut [u8], tail: &mut [u8]) -> io::Result<usize> {
        assert!(!self.is_shared(), "the buffer that is to be read into is held elsewhere");
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

    /// What this process has locked into memory, of the addresses from here on.
    fn locked(pool: &Pool) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let base = pool.shared.memory.at(0, 0) as u64;
        let own = base..base + pool.largest_capacity().as_u64();
        let (mut is_own, mut locked) = (false, 0);
        for line in smaps.lines() {
            if let Some((start, _)) = line.split_once('-')
                && let Ok(start) = u64::from_str_radix(start, 16)
            {
                is_own = own.contains(&start);
            } else if let (true, Some(kib)) = (is_own, line.strip_prefix("Locked:")) {
                locked += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
            }
        }
        locked
    }

    #[test]
    fn memory_is_taken_when_it_is_needed_and_given_back_when_it_is_free() {
        let (mib, second) = (Bytes::from_mib, Duration::from_secs(1));
        let Ok(pool) = Pool::growing(mib(256), mib(1024)) else {
            eprintln!("not tested: 64 MiB cannot be locked into memory");
            return;
        };
        assert_eq!((pool.capacity(), pool.largest_capacity(), pool.taken()), (mib(256), mib(1024), mib(64)));
        assert_eq!((pool.available(), locked(&pool)), (mib(256), mib(64).0));
        let mut held: Vec<_> = (0..32).map(|_| pool.allocate(MAX_BUFFER).unwrap()).collect();
        assert!(pool.allocate(1).is_none());
        assert_eq!((pool.taken(), pool.available(), locked(&pool)), (mib(256), Bytes::ZERO, mib(256).0));
        held.iter().for_each(|buffer| buffer.copy_in(0, &[7; 5000]));
        // Half of it is free: what is kept ready stays, and what was given back is there again, empty.
        held.truncate(16);
        assert_eq!(pool.give_back(mib(64)), mib(64));
        assert_eq!((pool.taken(), pool.used(), locked(&pool)), (mib(192), mib(128), mib(192).0));
        assert_eq!(pool.give_back(Bytes::ZERO), mib(64));
        held.extend((0..16).map(|_| pool.allocate(MAX_BUFFER).unwrap()));
        assert!(held[16..].iter().all(|buffer| buffer.bytes(0, 5000) == [0; 5000]));
        assert!(held[..16].iter().all(|buffer| buffer.bytes(0, 5000) == [7; 5000]));
        // More, and less: what is used beyond stays until it is free.
        pool.set_capacity(mib(512));
        assert_eq!((pool.available(), pool.capacity()), (mib(256), mib(512)));
        pool.tend(second);
        assert_eq!(pool.taken(), mib(256 + 64));
        pool.set_capacity(mib(64));
        assert_eq!((pool.available(), pool.give_back(mib(64))), (Bytes::ZERO, mib(64)));
        assert!(pool.allocate(4096).is_none());
        held.truncate(4);
        assert_eq!((pool.available(), pool.give_back(mib(64))), (mib(32), mib(192)));
        assert_eq!((pool.taken(), locked(&pool)), (mib(64), mib(64).0));
        drop(held);
        assert_eq!(pool.available(), mib(64));
    }

    #[test]
    fn what_is_tended_has_memory_ready_while_several_take_it() {
        let Ok(pool) = Pool::growing(Bytes::from_mib(512), Bytes::ZERO) else {
            eprintln!("not tested: 64 MiB cannot be locked into memory");
            return;
        };
        std::thread::scope(|scope| {
            let take = |_| scope.spawn(|| (0..64).filter_map(|_| pool.allocate(1 << 20)).collect::<Vec<_>>());
            let threads: Vec<_> = (0..8).map(take).collect();
            let tending = scope.spawn(|| (0..100).for_each(|_| pool.tend(Duration::from_millis(1))));
            let held: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            tending.join().unwrap();
            let mut offsets: Vec<_> = held.iter().map(Buffer::offset).collect();
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!((held.len(), offsets.len(), pool.used()), (512, 512, Bytes::from_mib(512)));
        });
        assert_eq!((pool.taken(), pool.used()), (Bytes::from_mib(512), Bytes::ZERO));
        let least = pool.least_free();
        assert!(least < Bytes::from_mib(512) && pool.least_free() == Bytes::from_mib(512), "{least}");
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
    #[should_panic(expected = "is held elsewhere")]
    fn nothing_is_read_into_what_is_held_elsewhere() {
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
