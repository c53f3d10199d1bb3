//! Buffers that are handed over instead of copied: whoever else has the memory that they replace, each byte is that of the write that
//! ended last, and no memory is lost.

use avfs_core::config::Config;
use avfs_core::core::{HANDED_OVER_BYTES, WritePlan, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::{HandleId, ReadData, SetAttributes};
use avfs_io::pool::Pool;
use proptest::prelude::*;
use units::{Bytes, Duration, Ino};

const SIZE: usize = 12 * HANDED_OVER_BYTES;

#[derive(Clone, Debug)]
enum Step {
    Begin { offset: usize, length: usize },
    End { which: usize },
    Read { offset: usize, keep: bool },
    Forget,
    Fsync,
    Pass { milliseconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let aligned =
        (0..SIZE / HANDED_OVER_BYTES).prop_map(|index| (index * HANDED_OVER_BYTES, HANDED_OVER_BYTES));
    let shifted = (0..SIZE / HANDED_OVER_BYTES - 1, 1..HANDED_OVER_BYTES)
        .prop_map(|(index, shift)| (index * HANDED_OVER_BYTES + shift, HANDED_OVER_BYTES));
    let short = (0..SIZE - HANDED_OVER_BYTES, 1..HANDED_OVER_BYTES);
    let begin = |offset, length| Step::Begin { offset, length };
    prop_oneof![
        6 => aligned.prop_map(move |(offset, length)| begin(offset, length)),
        1 => shifted.prop_map(move |(offset, length)| begin(offset, length)),
        1 => short.prop_map(move |(offset, length)| begin(offset, length)),
        6 => any::<usize>().prop_map(|which| Step::End { which }),
        4 => (0..SIZE - HANDED_OVER_BYTES, any::<bool>()).prop_map(|(offset, keep)| Step::Read { offset, keep }),
        1 => Just(Step::Forget),
        1 => Just(Step::Fsync),
        2 => (1u64..400).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ]
}

struct Client {
    volume: SimVolume,
    ino: Ino,
    handle: HandleId,
    expected: Vec<u8>,
    /// Begun, with what they will write.
    pending: Vec<(WritePlan, usize, Vec<u8>)>,
    /// Being sent to somebody.
    kept: Vec<ReadData>,
    number: u8,
}

impl Client {
    fn take(&mut self, step: Step) {
        match step {
            Step::Begin { offset, length } => self.begin(offset, length),
            Step::End { which } if !self.pending.is_empty() => self.end(which % self.pending.len()),
            Step::End { .. } => {}
            Step::Read { offset, keep } => self.read(offset, keep),
            Step::Forget => self.kept.clear(),
            Step::Fsync => {
                self.end_all();
                self.volume.fsync(self.ino).unwrap();
            }
            Step::Pass { milliseconds } => self.volume.pass(Duration::from_millis(milliseconds)),
        }
        self.volume.core().audit().unwrap();
    }

    fn begin(&mut self, offset: usize, length: usize) {
        let handle = self.handle;
        self.number = self.number.wrapping_add(1);
        let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ self.number).collect();
        let begun = self.volume.with(|core, now| core.write_begin(now, handle, offset as u64, length, None));
        match begun {
            WriteStart::Copy(plan) => self.pending.push((plan, offset, data)),
            WriteStart::Later => {}
            WriteStart::Refused(error) => panic!("{error}"),
        }
    }

    fn end(&mut self, which: usize) {
        let (mut plan, offset, data) = self.pending.swap_remove(which);
        self.volume.fill(&mut plan, &data);
        let ticket = self.volume.ticket();
        let ended = self.volume.with(|core, now| core.write_end(now, ticket, &mut plan));
        SimVolume::reuse(plan);
        if ended.is_none() {
            self.volume.finish(ticket);
        }
        self.expected[offset..offset + data.len()].copy_from_slice(&data);
    }

    fn end_all(&mut self) {
        while !self.pending.is_empty() {
            self.end(0);
        }
    }

    fn read(&mut self, offset: usize, keep: bool) {
        let handle = self.handle;
        let read = self.volume.with(|core, now| core.read(now, handle, offset as u64, HANDED_OVER_BYTES));
        let data = read.map(|data| data.unwrap());
        let bytes = match &data {
            Some(data) => data.to_vec(),
            None => {
                // It would wait for them.
                self.end_all();
                self.volume.read(handle, offset as u64, HANDED_OVER_BYTES).unwrap()
            }
        };
        assert!(bytes == self.expected[offset..offset + HANDED_OVER_BYTES], "what is read at {offset}");
        self.kept.extend(data.filter(|_| keep));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn each_byte_is_of_the_write_that_ended_last(steps in prop::collection::vec(step(), 1..80)) {
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        let mut volume = SimVolume::mount(formatted(Bytes::from_mib(256)), &pool, Config::default(), 3).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"take.mov").unwrap();
        let size = SetAttributes { size: Some(SIZE as u64), ..SetAttributes::default() };
        volume.set_attributes(ino, size).unwrap();
        let expected = vec![0; SIZE];
        let mut client = Client { volume, ino, handle, expected, pending: Vec::new(), kept: Vec::new(), number: 0 };
        for step in steps {
            client.take(step);
        }
        client.end_all();
        let Client { volume, expected, kept, .. } = client;
        let disk = volume.unmount().unwrap();
        drop(kept);
        prop_assert_eq!(pool.available(), pool.capacity());
        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 4).unwrap();
        let handle = volume.open(ino).unwrap();
        for (number, expected) in expected.chunks(HANDED_OVER_BYTES).enumerate() {
            let data = volume.read(handle, (number * HANDED_OVER_BYTES) as u64, HANDED_OVER_BYTES).unwrap();
            prop_assert!(data == expected, "MiB {number} after a mount");
        }
    }
}

/// Nothing but time tells a write that was handed over from one that was copied, so this does: the memory is another one afterwards.
#[test]
fn a_write_of_a_whole_buffer_is_not_copied() {
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(formatted(Bytes::from_mib(256)), &pool, Config::default(), 3).unwrap();
    let (_, handle) = volume.create(Ino::ROOT, b"take.mov").unwrap();
    for number in 0..24 {
        let offset = number * HANDED_OVER_BYTES as u64;
        let WriteStart::Copy(mut plan) =
            volume.with(|core, now| core.write_begin(now, handle, offset, HANDED_OVER_BYTES, None))
        else {
            panic!("there is room");
        };
        let buffer = pool.allocate(HANDED_OVER_BYTES).unwrap();
        let address = buffer.offset();
        plan.hand_over(buffer).unwrap();
        let ticket = volume.ticket();
        volume.with(|core, now| core.write_end(now, ticket, &mut plan));
        assert_ne!(plan.take_back().unwrap().offset(), address, "MiB {number}");
        volume.pass(Duration::from_millis(80));
    }
}
