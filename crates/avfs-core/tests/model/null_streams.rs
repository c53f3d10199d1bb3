//! A volume of which nothing is wished for any stream.
//!
//! Correctness never depends on what is known of clients: the crash suite and the drawn lives of this one pass with
//! `AVFS_STREAMS=null`, too.

use crate::players::{MIB, POLICY, laid, open};
use avfs_core::config::Config;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_io::pool::Pool;
use rtsched::{Class, Direction};
use units::{Bitrate, Bytes, Duration, Ino};

/// A player and a recorder of files whose rate is known: no stream is declared, everything is best effort and nobody's, and no
/// more is read than was asked for, but for the block with which a file begins.
#[test]
fn without_streams_nothing_is_wished_for() {
    let (disk, inos) = laid(POLICY, &[64], |_, mebibyte| mebibyte as u8);
    let pool = Pool::new(Bytes::from_mib(512), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::parse(POLICY).unwrap(), 6).unwrap();
    volume.without_streams();
    volume.commands();
    let handle = open(&mut volume, inos[0]);
    let frame = Bitrate::from_megabits(100).time_for(Bytes(MIB));
    for mebibyte in 0..32 {
        let data = volume.read(handle, mebibyte * MIB, MIB as usize).unwrap().to_vec();
        assert!(data == vec![mebibyte as u8; MIB as usize], "MiB {mebibyte}");
        volume.pass(frame);
    }
    let played = volume.commands();
    let read = played.iter().filter(|command| command.direction == Direction::Read);
    assert_eq!(read.map(|command| command.length.0).sum::<u64>(), 32 * MIB);

    let (_, recorder) = volume.create(Ino::ROOT, b"take.mxf").unwrap();
    let declared = Declaration { rate: Some(Bitrate::from_megabits(100)), period: None };
    volume.with(|core, _| core.declare(recorder, declared)).unwrap();
    for mebibyte in 0..32 {
        volume.write(recorder, mebibyte * MIB, &vec![7; MIB as usize]).unwrap();
        volume.pass(frame);
    }
    volume.pass(Duration::from_secs(10));
    let recorded = volume.commands();
    assert!(recorded.iter().map(|command| command.length.0).sum::<u64>() >= 32 * MIB);
    for command in played.iter().chain(&recorded) {
        assert_eq!(command.stream, None, "{command:?}");
        assert!(command.class != Class::RealTime, "{command:?}");
    }
    assert_eq!(volume.streams(), []);
    volume.core().audit().unwrap();
}
