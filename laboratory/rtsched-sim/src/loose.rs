//! Files without a stream: copies, random reads, documents.
//!
//! **For:** one request for each operation, where a file lies; a file that is made costs a record of the log and a flush.
//! **Excludes:** memory: whatever is asked for goes to the device. **State:** where files lie, and what is under way.
//! **Invariants:** each operation is answered once.

use crate::stage::{BEST_EFFORT, Client, METADATA, Stage, Wish};
use avfs_workloads::{Answer, Operation, Outcome};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Direction};
use std::collections::BTreeMap;
use units::{Bytes, DeviceOffset};

/// Files begin at multiples of this.
pub(crate) const FILE_ALIGNMENT: u64 = 8 << 20;

/// The log of a filesystem: a region that is written round and round.
const LOG: u64 = 256 << 20;

/// A record of it.
const RECORD: Bytes = Bytes::from_kib(4);

/// An operation under way.
#[derive(Clone, Debug)]
struct Wait {
    client: usize,
    tag: u64,
    answer: Answer,
    /// Requests that are not complete.
    requests: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Loose {
    rng: SmallRng,
    /// Where files lie, by client and name.
    files: BTreeMap<(usize, String), u64>,
    /// Where those lie that are open.
    open: BTreeMap<u64, u64>,
    log: u64,
    waits: BTreeMap<u64, Wait>,
    next: u64,
}

impl Loose {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed ^ 0xb0b),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            log: 0,
            waits: BTreeMap::new(),
            next: 0,
        }
    }

    /// Begins an operation of a client whose files may be so long.
    pub(crate) fn begin(
        &mut self,
        stage: &mut Stage<'_>,
        (client, tag): (usize, u64),
        operation: Operation,
        longest: Bytes,
    ) -> Option<Outcome> {
        self.next += 1;
        let mark = self.next;
        let (answer, requests) = match operation {
            Operation::Open { name, write } => {
                let room = stage.capacity.as_u64().saturating_sub(longest.as_u64()) / FILE_ALIGNMENT;
                let rng = &mut self.rng;
                let place = self.files.entry((client, name));
                let place = *place.or_insert_with(|| rng.random_range(0..room.max(1)) * FILE_ALIGNMENT);
                self.open.insert(mark, place);
                let requests = if write { self.record(stage, mark) } else { 0 };
                (Answer::Opened { file: mark, length: longest.as_u64() }, requests)
            }
            Operation::Read { file, offset, length } | Operation::Write { file, offset, length } => {
                let reads = matches!(operation, Operation::Read { .. });
                let direction = if reads { Direction::Read } else { Direction::Write };
                let place = self.open.get(&file).copied().unwrap_or_default() + offset;
                self.enqueue(stage, mark, Class::BestEffort, direction, place, Bytes(u64::from(length)));
                (Answer::Done, 1)
            }
            Operation::Close { file } => {
                self.open.remove(&file);
                (Answer::Done, 0)
            }
            Operation::MakeDirectory { .. } => (Answer::Done, 0),
        };
        if requests == 0 {
            return Some(Outcome { client, tag, answer: Ok(answer) });
        }
        self.waits.insert(mark, Wait { client, tag, answer, requests });
        None
    }

    /// A record of the log, and a flush.
    fn record(&mut self, stage: &mut Stage<'_>, mark: u64) -> u32 {
        let place = self.log % LOG;
        self.log += RECORD.as_u64();
        self.enqueue(stage, mark, Class::Metadata, Direction::Write, place, RECORD);
        self.enqueue(stage, mark, Class::Metadata, Direction::Flush, 0, Bytes::ZERO);
        2
    }

    fn enqueue(
        &mut self,
        stage: &mut Stage<'_>,
        mark: u64,
        class: Class,
        direction: Direction,
        place: u64,
        length: Bytes,
    ) {
        let owner = if class == Class::Metadata { METADATA } else { BEST_EFFORT };
        let offset = DeviceOffset(place);
        let wish = Wish { mark, class, stream: None, direction, offset, length, deadline: None, owner };
        stage.enqueue(Client::Loose, wish);
    }

    /// One of its requests completed.
    pub(crate) fn completed(&mut self, mark: u64) -> Option<Outcome> {
        let wait = self.waits.get_mut(&mark)?;
        wait.requests -= 1;
        if wait.requests > 0 {
            return None;
        }
        let Wait { client, tag, answer, .. } = self.waits.remove(&mark)?;
        Some(Outcome { client, tag, answer: Ok(answer) })
    }
}
