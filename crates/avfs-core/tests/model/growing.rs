//! Files that are played while they are recorded.

use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use proptest::prelude::*;
use rtsched::Direction;
use units::{Bitrate, Bytes, Ino};

const MIB: u64 = 1 << 20;
const POLICY: &str = "[[stream]]\npath = \"**\"\nbitrate = \"100 Mbit/s\"";
const LENGTH_MIB: u64 = 64;

/// The byte that is at every place of a MiB of a take.
fn byte(take: usize, mebibyte: u64) -> u8 {
    (take as u64 * 97 + mebibyte % 89 + 1) as u8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Whoever follows a recorder closely finds in memory what was recorded: the device reads nothing. At the end of what
    /// there is, a reader gets what there is, asks again and gets the rest.
    #[test]
    fn a_reader_that_chases_a_recorder_reads_from_memory(
        takes in 1usize..=4,
        behind_mib in prop::collection::vec(0u64..=24, 2),
        seed in any::<u64>(),
    ) {
        // What four takes have in 24 MiB, what waits to be written, and as much again.
        let pool = Pool::new(Bytes::from_mib(400), false).unwrap();
        let config = Config::parse(POLICY).unwrap();
        let mut volume = SimVolume::mount(formatted(Bytes::from_mib(4096)), &pool, config, seed).unwrap();
        let mut recorded = Vec::new();
        for take in 0..takes {
            let (ino, handle) = volume.create(Ino::ROOT, format!("{take}.mov").as_bytes()).unwrap();
            let mut open = || volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle;
            recorded.push((handle, [open(), open()], [0, 0]));
        }
        volume.commands();
        let period = Bitrate::from_megabits(100).time_for(Bytes(MIB));
        for mebibyte in 0..LENGTH_MIB {
            for (take, (recorder, readers, taken)) in recorded.iter_mut().enumerate() {
                let data = vec![byte(take, mebibyte); MIB as usize];
                volume.write(*recorder, mebibyte * MIB, &data).unwrap();
                for ((reader, taken), behind) in readers.iter().zip(taken).zip(&behind_mib) {
                    while *taken + behind * MIB <= mebibyte * MIB {
                        // Asks for more than there is, when it is at the end.
                        let read = volume.read(*reader, *taken, (MIB + MIB / 2) as usize).unwrap();
                        prop_assert!(!read.is_empty());
                        for (index, piece) in read.chunks(MIB as usize / 2).enumerate() {
                            let place = (*taken + index as u64 * MIB / 2) / MIB;
                            prop_assert!(piece.iter().step_by(1021).all(|&found| found == byte(take, place)));
                        }
                        *taken += MIB / 2;
                    }
                }
            }
            volume.pass(period);
        }
        let read: u64 = volume
            .commands()
            .iter()
            .filter(|command| command.direction == Direction::Read)
            .map(|command| command.length.0)
            .sum();
        prop_assert_eq!(read, 0);
        volume.core().audit().map_err(TestCaseError::fail)?;
    }
}
