//! A volume whose clients write without bytes, on a device that keeps nothing: what is looked at is where data lies and
//! in which requests it goes there, so hours of recording cost neither memory nor time.

use avfs_core::core::{Core, CoreOptions, Operation, Outcome, Ticket, WriteStart};
use avfs_core::recovery::recover;
use avfs_core::simulation::formatted;
use avfs_core::types::*;
use avfs_io::pool::Pool;
use avfs_io::{Completion, IoOperation, IoRequest};
use rtsched::Class;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use units::{Bytes, Duration, Ino, Instant, Now, Timestamp};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) struct Studio {
    core: Core,
    clock: Instant,
    next_ticket: u64,
    /// At the device, oldest first.
    requests: VecDeque<IoRequest>,
    finished: BTreeMap<Ticket, Outcome>,
    /// Lengths of the writes of file data that the device was given, and of all reads.
    pub(crate) written: Vec<u64>,
    pub(crate) read: Vec<u64>,
    /// Where those writes went, in the same order: bytes from the device's start.
    places: Vec<u64>,
}

/// A file that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Clip {
    pub(crate) ino: Ino,
    pub(crate) handle: HandleId,
}

impl Studio {
    pub(crate) fn new(size: u64, cache: u64) -> Self {
        let recovered = recover(&*formatted(Bytes(size))).unwrap();
        let pool = Pool::new(Bytes(cache), false).unwrap();
        let clock = Instant::from_nanos(1_000_000_000);
        let core = Core::new(
            recovered.superblock,
            recovered.metadata,
            recovered.allocator,
            recovered.journal,
            pool,
            CoreOptions::default(),
            at(clock),
        );
        let mut studio = Self {
            core,
            clock,
            next_ticket: 1,
            requests: VecDeque::new(),
            finished: BTreeMap::new(),
            written: Vec::new(),
            read: Vec::new(),
            places: Vec::new(),
        };
        studio.with(|core, now| core.tick(now));
        // The first checkpoint is none of the clients'.
        studio.drain();
        studio.written.clear();
        studio.places.clear();
        studio
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn with<R>(&mut self, operate: impl FnOnce(&mut Core, Now) -> R) -> R {
        self.clock += Duration::from_micros(1);
        let result = operate(&mut self.core, at(self.clock));
        self.take_outbox();
        result
    }

    fn take_outbox(&mut self) {
        let outbox = self.core.take_outbox();
        for request in outbox.requests {
            match request.operation {
                IoOperation::Read => self.read.push(request.length().0),
                IoOperation::Write { .. } if request.class != Class::Metadata => {
                    self.written.push(request.length().0);
                    self.places.push(request.offset.0);
                }
                _ => {}
            }
            self.requests.push_back(request);
        }
        for (ticket, outcome) in outbox.finished {
            self.finished.insert(ticket, outcome);
        }
    }

    /// How many requests are at the device.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// The device ends its oldest request. False when it has none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(request) = self.requests.pop_front() else { return false };
        let completion = Completion { tag: request.tag, result: Ok(()) };
        self.with(|core, now| core.io_completed(now, completion));
        true
    }

    /// The device ends everything.
    pub(crate) fn drain(&mut self) {
        while self.step() {}
    }

    /// So much time passes, with what becomes due in it, and a device that is always done.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.clock + time;
        self.drain();
        while self.clock < end {
            self.clock = self.core.next_wakeup().clamp(self.clock, end);
            self.with(|core, now| core.tick(now));
            self.drain();
        }
    }

    pub(crate) fn create(&mut self, name: &str) -> Clip {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = self.with(|core, now| {
            core.create(now, Caller::default(), Ino::ROOT, name.as_bytes(), 0o644, 0, flags)
        });
        let (entry, opened) = made.unwrap();
        Clip { ino: entry.attributes.ino, handle: opened.handle }
    }

    pub(crate) fn close(&mut self, clip: Clip) {
        self.with(|core, now| core.release(now, clip.handle));
    }

    pub(crate) fn delete(&mut self, name: &str, ino: Ino) {
        self.with(|core, now| core.unlink(now, Ino::ROOT, name.as_bytes())).unwrap();
        self.with(|core, now| core.forget(now, ino, 1));
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn finish(&mut self, ticket: Ticket) -> Outcome {
        loop {
            if let Some(outcome) = self.finished.remove(&ticket) {
                return outcome;
            }
            if !self.step() {
                // Only time can help.
                self.clock = self.core.next_wakeup().max(self.clock);
                assert!(self.clock < Instant::FAR_FUTURE, "{ticket:?} waits for nothing");
                self.with(|core, now| core.tick(now));
            }
        }
    }

    fn done(&mut self, operation: Operation) -> Outcome {
        let ticket = self.ticket();
        self.with(|core, now| core.start(now, ticket, operation));
        self.finish(ticket)
    }

    /// Writes `length` bytes, whatever they are.
    pub(crate) fn write(&mut self, clip: Clip, offset: u64, length: u64) -> avfs_core::error::Result<usize> {
        let Clip { handle, .. } = clip;
        let ticket = self.ticket();
        match self.with(|core, now| core.write_begin(now, handle, offset, length as usize, None)) {
            WriteStart::Refused(error) => return Err(error),
            WriteStart::Copy(mut plan) => {
                if let Some(result) = self.with(|core, now| core.write_end(now, ticket, &mut plan)) {
                    return result;
                }
            }
            WriteStart::Later => {
                let data = vec![0; length as usize];
                let operation = Operation::Write { handle, offset, data, unprivileged: None };
                self.with(|core, now| core.start(now, ticket, operation));
            }
        }
        match self.finish(ticket) {
            Outcome::Count(result) => result,
            other => panic!("a write ended as {other:?}"),
        }
    }

    /// Writes `range` in pieces, in order.
    pub(crate) fn append(&mut self, clip: Clip, range: std::ops::Range<u64>, piece: u64) {
        let mut at = range.start;
        while at < range.end {
            let length = piece.min(range.end - at);
            assert_eq!(self.write(clip, at, length), Ok(length as usize));
            at += length;
        }
    }

    pub(crate) fn fsync(&mut self, clip: Clip) {
        let ended = self.done(Operation::Fsync { ino: clip.ino });
        assert!(matches!(ended, Outcome::Done(Ok(()))), "{ended:?}");
    }

    pub(crate) fn sync(&mut self) {
        let ended = self.done(Operation::Sync);
        assert!(matches!(ended, Outcome::Done(Ok(()))), "{ended:?}");
    }

    pub(crate) fn set_size(&mut self, clip: Clip, size: u64) {
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let ended = self.done(Operation::SetAttributes { ino: clip.ino, changes });
        assert!(matches!(ended, Outcome::Attributes(Ok(_))), "{ended:?}");
    }

    pub(crate) fn allocate(&mut self, clip: Clip, offset: u64, length: u64, mode: AllocateMode) {
        let ended = self.done(Operation::Allocate { handle: clip.handle, offset, length, mode });
        assert!(matches!(ended, Outcome::Done(Ok(()))), "{ended:?}");
    }

    /// The runs of the file that are one piece on the device, as lengths in bytes, whatever their state.
    pub(crate) fn runs(&self, clip: Clip) -> Vec<u64> {
        let mut runs: Vec<u64> = Vec::new();
        let mut end = None;
        for extent in self.core.extents(clip.ino).unwrap() {
            match runs.last_mut() {
                Some(last) if end == Some((extent.file_offset, extent.device_offset)) => {
                    *last += extent.length
                }
                _ => runs.push(extent.length),
            }
            end = Some((extent.file_offset + extent.length, extent.device_offset + extent.length));
        }
        runs
    }

    /// The parts of a file that the device was given to write, in this order, in the file's bytes.
    pub(crate) fn written_of(&self, clip: Clip) -> Vec<Range<u64>> {
        let extents = self.core.extents(clip.ino).unwrap();
        let part = |(&place, &length): (&u64, &u64)| {
            let is_here = |extent: &&ExtentReport| {
                (extent.device_offset..extent.device_offset + extent.length).contains(&place)
            };
            let extent = extents.iter().find(is_here)?;
            let at = extent.file_offset + place - extent.device_offset;
            Some(at..at + length)
        };
        self.places.iter().zip(&self.written).filter_map(part).collect()
    }

    /// Bytes of the file's that take space.
    pub(crate) fn allocated(&self, clip: Clip) -> u64 {
        self.core.attributes(clip.ino).unwrap().blocks * 512
    }

    pub(crate) fn size(&self, clip: Clip) -> u64 {
        self.core.attributes(clip.ino).unwrap().size
    }
}

fn at(monotonic: Instant) -> Now {
    let wall = Timestamp { seconds: (monotonic.as_nanos() / 1_000_000_000) as i64, nanoseconds: 0 };
    Now { monotonic, wall }
}
