//! Steady state allocates nothing: counted by a global allocator.

use rtsched::{
    Class, Config, Direction, Dispatch, Request, RequestId, Scheduler, ServiceTime, StreamId, StreamSpec,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is no part of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FLASH: ServiceTime =
    ServiceTime { access: Duration::from_micros(20), bytes_per_second: Bytes(3_000_000_000) };

struct Load {
    scheduler: Scheduler,
    now: Instant,
    next: u64,
    dispatch: Dispatch,
    seed: u64,
}

impl Load {
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    /// One more request: of a stream's next piece, a copy, a directory or a scrub.
    fn enqueue(&mut self) {
        self.next += 1;
        let id = self.next;
        let place = self.random() % (1 << 20);
        let piece = ((id % 4) << 20) + (id / 16 * 2 + id % 8 / 4) % (1 << 20);
        let (class, stream, offset, length) = match id % 16 {
            0..8 => (Class::RealTime, Some(StreamId(id % 4)), piece, 256 << 10),
            8..12 => (Class::BestEffort, None, place, 1 << 20),
            12..14 => (Class::Metadata, None, place, 4096),
            14 => (Class::RealTime, None, place, 64 << 10),
            _ => (Class::Idle, None, place, 1 << 20),
        };
        let direction = if id % 16 == 9 { Direction::Write } else { Direction::Read };
        let offset = DeviceOffset(offset << 18);
        let length = Bytes(length);
        let deadline = id.is_multiple_of(3).then(|| self.now + Duration::from_millis(200));
        let request = Request { id: RequestId(id), class, stream, direction, offset, length, deadline };
        self.scheduler.enqueue(self.now, request);
    }

    /// Serves one command and replaces its requests; promotes, cancels, seeks now and then.
    fn step(&mut self) {
        self.now += Duration::from_micros(300);
        let mut dispatch = std::mem::replace(&mut self.dispatch, Dispatch::empty());
        if self.scheduler.dispatch_into(self.now, &mut dispatch) {
            self.scheduler.complete(self.now, dispatch.id);
            for _ in 0..dispatch.requests.len() {
                self.enqueue();
            }
        }
        self.dispatch = dispatch;
        match self.random() % 64 {
            0 => {
                let id = RequestId(self.next - self.random() % 500);
                if self.scheduler.cancel(self.now, id) {
                    self.enqueue();
                }
            }
            1 => {
                let id = RequestId(self.next - self.random() % 500);
                let deadline = self.now + Duration::from_millis(50);
                self.scheduler.promote(self.now, id, Class::RealTime, deadline);
            }
            2 => {
                let stream = StreamId(self.random() % 4);
                let count = self.scheduler.cancel_stream(self.now, stream, |_| {});
                (0..count).for_each(|_| self.enqueue());
            }
            _ => {}
        }
        while self.scheduler.pop_event().is_some() {}
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let config = Config { read: FLASH, write: FLASH, flush: FLASH, event_capacity: 256, ..Config::default() };
    let mut load = Load {
        scheduler: Scheduler::new(config),
        now: Instant::ZERO,
        next: 0,
        dispatch: Dispatch::empty(),
        seed: 7,
    };
    // Two of the four streams hold a reservation.
    for stream in 0..2 {
        let spec = StreamSpec::reader(Bitrate::from_megabits(100));
        let _ = load.scheduler.admit(load.now, StreamId(stream), &spec).expect("it fits");
    }
    (0..1000).for_each(|_| load.enqueue());
    // Until every pool has its size.
    (0..400_000).for_each(|_| load.step());
    let before = ALLOCATIONS.get();
    (0..100_000).for_each(|_| load.step());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(load.scheduler.queued() >= 900, "{}", load.scheduler.queued());
    assert!(load.scheduler.counters().merged > 1000);
}
