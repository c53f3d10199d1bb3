//! Numbered files that say in their headers how fast they play: frames of DPX and OpenEXR are one stream of that rate, while of
//! numbered sounds each plays for itself.

use crate::players::wave;
use crate::sequences::{PERIOD, reads, record, remounted, volume};
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use units::Ino;

const LENGTH: u64 = 256 << 10;
const PIECE: u64 = 64 << 10;

/// The header of a frame of DPX, at so many frames a second; what is not defined is all ones.
fn dpx(frames_per_second: u32) -> Vec<u8> {
    let mut header = vec![0xff; 2048];
    header[..4].copy_from_slice(b"SDPX");
    header[4..8].copy_from_slice(&2048_u32.to_be_bytes());
    header[16..20].copy_from_slice(&(LENGTH as u32).to_be_bytes());
    header[1724..1728].copy_from_slice(&(frames_per_second as f32).to_bits().to_be_bytes());
    header
}

/// The header of a frame of OpenEXR.
fn exr(frames_per_second: u32) -> Vec<u8> {
    let mut header = vec![0x76, 0x2f, 0x31, 0x01, 2, 0, 0, 0];
    header.extend(b"framesPerSecond\0rational\0\x08\0\0\0");
    header.extend(frames_per_second.to_le_bytes());
    header.extend([1, 0, 0, 0, 0]);
    header
}

/// A volume with so many files, each with a header, of which nothing is in memory; and its files.
fn recorded(config: &str, suffix: &str, count: u64, header: &[u8]) -> (SimVolume, Vec<Ino>) {
    let mut volume = volume("");
    let files = (1..=count).map(|number| {
        let mut contents = header.to_vec();
        contents.resize(LENGTH as usize, number as u8);
        record(&mut volume, format!("take.{number:04}.{suffix}").as_bytes(), &contents)
    });
    let files: Vec<Ino> = files.collect();
    volume.sync().unwrap();
    (remounted(volume, config), files)
}

/// Reads one file at its time, and says which streams there were until it was closed.
fn take(volume: &mut SimVolume, ino: Ino) -> Vec<StreamReport> {
    let handle = volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle;
    for at in (0..LENGTH).step_by(PIECE as usize) {
        volume.read(handle, at, PIECE as usize).unwrap();
    }
    let streams = volume.streams();
    volume.with(|core, now| core.release(now, handle));
    volume.pass(PERIOD);
    streams
}

/// Nobody knew it for another rate than that at which it was played, and at first for 24 frames a second.
#[test]
fn frames_are_one_stream_of_the_rate_that_their_headers_say() {
    type Header = fn(u32) -> Vec<u8>;
    for (suffix, header) in [("dpx", dpx as Header), ("exr", exr as Header)] {
        for said in [48, 16] {
            let (mut volume, files) = recorded("", suffix, 130, &header(said));
            // For so long that the rate at which it is played is known, too: 24 a second.
            for (number, ino) in (1..).zip(files) {
                let streams = take(&mut volume, ino);
                if number < 5 {
                    continue;
                }
                let [stream] = &streams[..] else { panic!("{streams:?}") };
                let pattern = format!("/take.####.{suffix}");
                assert_eq!((&stream.sequence, stream.state), (&Some(pattern), StreamService::Admitted));
                let rate = LENGTH * 8 * u64::from(said);
                let apart = stream.bits_per_second.abs_diff(rate);
                assert!(apart <= rate / 10_000, "{suffix} of {said} a second, {number}: {stream:?}");
            }
        }
    }
}

/// What an administrator writes down is not asked of a header.
#[test]
fn a_policy_of_frames_is_heard_before_their_headers() {
    let policy = "[[stream]]\npath = \"**\"\nframes_per_second = 30";
    let (mut volume, files) = recorded(policy, "dpx", 20, &dpx(48));
    let streams = files.into_iter().map(|ino| take(&mut volume, ino)).last().unwrap();
    let rates: Vec<_> = streams.iter().map(|stream| stream.bits_per_second / (LENGTH * 8)).collect();
    assert_eq!(rates, [30]);
}

/// Twenty-four sounds a second would be declared, and read ahead, of whom one is heard after the other.
#[test]
fn numbered_sounds_play_each_for_itself() {
    let (mut volume, files) = recorded("", "wav", 20, &wave(LENGTH as u32)[..44]);
    for (number, ino) in (1..).zip(files.into_iter().take(12)) {
        let streams = take(&mut volume, ino);
        let [stream] = &streams[..] else { panic!("{number}: {streams:?}") };
        assert_eq!((stream.ino, &stream.sequence, stream.bits_per_second), (ino.0, &None, 2_304_000));
        assert_eq!(volume.streams(), [], "{number}");
    }
    assert_eq!(reads(&mut volume).iter().sum::<u64>(), 12 * LENGTH, "nothing of those that nobody opened");
}
