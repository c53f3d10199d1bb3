//! What clients of a file server send, and what must come of it: one run, large requests, no byte that nobody wrote.

use crate::studio::{Clip, GIB, MIB, Studio};
use avfs_core::Error;
use avfs_core::types::AllocateMode;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use units::Duration;

const KIB: u64 = 1 << 10;
const BLOCK: u64 = 4 * KIB;
/// What Windows was seen to do.
const STRIDE: u64 = 128 * KIB;
const AHEAD: u64 = 15 * MIB;
/// Longer than dirty bytes stay in memory.
const LONG: Duration = Duration::from_secs(6);

fn studio() -> Studio {
    Studio::new(16 * GIB, 512 * MIB)
}

/// Goes ahead from `from` with single bytes.
fn mark(studio: &mut Studio, clip: Clip, from: u64, to: u64) {
    for at in (from + STRIDE..=to).step_by(STRIDE as usize) {
        assert_eq!(studio.write(clip, at - 1, 1), Ok(1));
    }
}

/// Every byte of a file was written once, from the first to the last.
fn is_written_in_order(studio: &Studio, clip: Clip) -> bool {
    let written = studio.written_of(clip);
    let ends = std::iter::once(0).chain(written.iter().map(|part| part.end));
    let is_next = written.iter().zip(ends).all(|(part, before)| part.start == before);
    is_next && written.last().is_some_and(|last| last.end == studio.size(clip).next_multiple_of(BLOCK))
}

/// Records `length` bytes as Windows does: marks, then the data up to them. `pause` lies between.
fn record_like_windows(studio: &mut Studio, clip: Clip, length: u64, pause: Duration) {
    for from in (0..length).step_by(AHEAD as usize) {
        let to = (from + AHEAD).min(length);
        mark(studio, clip, from, to);
        studio.pass(pause);
        studio.append(clip, from..to, 64 * KIB);
    }
}

#[test]
fn preallocation_by_single_bytes_costs_nothing() {
    let mut studio = studio();
    let clip = studio.create("capture.avi");
    let length = 240 * MIB;
    record_like_windows(&mut studio, clip, length, Duration::ZERO);
    studio.close(clip);
    studio.sync();
    assert_eq!((studio.size(clip), studio.allocated(clip)), (length, length));
    assert_eq!(studio.runs(clip), [length]);
    assert_eq!(studio.read, []);
    assert_eq!(studio.written, [8 * MIB; 30]);
    assert!(is_written_in_order(&studio, clip));
}

/// Whatever a client hands over at once: a file's requests go up, none of them is shorter than it has to be, and no byte is written
/// twice.
#[test]
fn what_comes_in_order_is_written_in_order_and_in_large_requests() {
    let length = 96 * MIB + 777;
    for piece in [BLOCK, 9123, 64 * KIB, MIB, 4 * MIB] {
        let mut studio = studio();
        let clip = studio.create("render.mov");
        let mut random = SmallRng::seed_from_u64(piece);
        for at in (0..length).step_by(piece as usize) {
            studio.append(clip, at..length.min(at + piece), piece);
            // The device is sometimes ahead of the client.
            if random.random_bool(0.3) {
                studio.drain();
            }
        }
        studio.close(clip);
        studio.sync();
        let written = studio.written_of(clip);
        assert!(is_written_in_order(&studio, clip), "pieces of {piece}: {written:?}");
        // The first one is in blocks that grow with the file.
        let large = written.iter().filter(|part| part.start >= 8 * MIB).map(|part| part.end - part.start);
        let large: Vec<u64> = large.collect();
        let (last, others) = large.split_last().unwrap();
        assert_eq!((others, *last), (&[8 * MIB; 11][..], BLOCK), "pieces of {piece}: {written:?}");
        assert_eq!(studio.read, []);
    }
}

/// Neither a length nor space that was asked for is filled with zeros.
#[test]
fn a_length_or_an_allocation_writes_nothing() {
    for how in [None, Some(AllocateMode::Extend), Some(AllocateMode::KeepSize)] {
        let mut studio = studio();
        let clip = studio.create("copy");
        match how {
            None => studio.set_size(clip, GIB),
            Some(mode) => studio.allocate(clip, 0, GIB, mode),
        }
        studio.pass(LONG);
        studio.close(clip);
        studio.sync();
        assert_eq!(studio.size(clip), if how == Some(AllocateMode::KeepSize) { 0 } else { GIB });
        assert_eq!(studio.allocated(clip), if how.is_some() { GIB } else { 0 });
        assert_eq!((&studio.written[..], &studio.read[..]), (&[][..], &[][..]), "{how:?}");
    }
}

/// The single bytes are so old that they are written, each with its page, before the data come.
#[test]
fn preallocation_that_is_written_first_reserves_what_is_between() {
    let mut studio = studio();
    let clip = studio.create("capture.avi");
    let length = 4 * AHEAD;
    for from in (0..length).step_by(AHEAD as usize) {
        studio.fsync(clip);
        let written = studio.written.len();
        mark(&mut studio, clip, from, from + AHEAD);
        assert_eq!(studio.written.len(), written);
        studio.pass(LONG);
        assert_eq!(studio.written[written..], vec![BLOCK; (AHEAD / STRIDE) as usize]);
        assert_eq!(studio.size(clip), from + AHEAD);
        // What nobody wrote is no space of the file's yet.
        assert_eq!(studio.allocated(clip), from + AHEAD / STRIDE * BLOCK);
        assert_eq!(studio.runs(clip), [from + AHEAD]);
        studio.append(clip, from..from + AHEAD, 64 * KIB);
    }
    studio.close(clip);
    studio.sync();
    assert_eq!(studio.runs(clip), [length]);
    assert_eq!(studio.allocated(clip), length);
    assert_eq!(studio.read, []);
    assert!(studio.core().extents(clip.ino).unwrap().iter().all(|extent| !extent.unwritten));
}

#[test]
fn an_fsync_between_preallocation_and_data_is_kept() {
    let mut studio = studio();
    let clip = studio.create("capture.avi");
    mark(&mut studio, clip, 0, AHEAD);
    studio.fsync(clip);
    assert_eq!(studio.size(clip), AHEAD);
    studio.append(clip, 0..AHEAD, 9123);
    studio.close(clip);
    studio.sync();
    assert_eq!(studio.runs(clip), [AHEAD]);
    assert_eq!(studio.read, []);
    studio.core().audit().unwrap();
}

#[test]
fn eight_that_preallocate_at_once_get_long_runs() {
    let mut studio = studio();
    let clips: Vec<Clip> = (0..8).map(|number| studio.create(&format!("camera {number}"))).collect();
    let length = 32 * AHEAD;
    for from in (0..length).step_by(AHEAD as usize) {
        clips.iter().for_each(|&clip| mark(&mut studio, clip, from, from + AHEAD));
        studio.pass(LONG);
        for at in (from..from + AHEAD).step_by(MIB as usize) {
            clips.iter().for_each(|&clip| studio.append(clip, at..at + MIB, 64 * KIB));
        }
    }
    studio.sync();
    for clip in clips {
        studio.close(clip);
        let runs = studio.runs(clip);
        assert!(runs.len() as u64 <= 1 + length / (64 * MIB), "{runs:?}");
        assert_eq!(studio.allocated(clip), length);
    }
}

/// A file that only has a byte here and there keeps a block for each of them, and nothing else.
#[test]
fn a_sparse_file_stays_sparse() {
    for (stride, count) in [(STRIDE, 16), (STRIDE, 2000), (MIB, 100), (64 * MIB, 20), (2 * BLOCK, 300)] {
        let mut studio = studio();
        let free = studio.core().statistics().free;
        let clip = studio.create("sparse");
        for number in 1..=count {
            assert_eq!(studio.write(clip, number * stride, 1), Ok(1));
            if number % 7 == 0 {
                studio.pass(LONG);
            }
        }
        studio.sync();
        assert_eq!(studio.allocated(clip), count * BLOCK, "stride {stride}");
        assert!(free - studio.core().statistics().free <= (64 * MIB) / BLOCK + count, "stride {stride}");
        studio.close(clip);
        studio.sync();
        studio.pass(LONG);
        studio.core().audit().unwrap();
        assert_eq!(studio.allocated(clip), count * BLOCK, "stride {stride}");
        assert_eq!(studio.size(clip), count * stride + 1);
        assert_eq!(studio.read, []);
        let blocks: u64 = studio.core().extents(clip.ino).unwrap().iter().map(|extent| extent.length).sum();
        assert_eq!(blocks, count * BLOCK, "stride {stride}");
    }
}

#[test]
fn a_single_byte_far_away_reserves_nothing() {
    let mut studio = studio();
    let clip = studio.create("disk image");
    assert_eq!(studio.write(clip, 100 * GIB - 1, 1), Ok(1));
    studio.fsync(clip);
    assert_eq!(studio.runs(clip), [BLOCK]);
}

/// What is reserved for bytes that may not come is no reason to refuse bytes that are here.
#[test]
fn what_is_only_reserved_yields_to_a_write_that_needs_it() {
    let mut studio = Studio::new(256 * MIB, 64 * MIB);
    let clip = studio.create("capture.avi");
    mark(&mut studio, clip, 0, AHEAD);
    studio.fsync(clip);
    let other = studio.create("other");
    let free = studio.core().statistics().available * BLOCK;
    assert_eq!(studio.core().report().free_bytes / MIB, free / MIB);
    studio.append(other, 0..free, 64 * KIB);
    // Full, but for what the first file reserved: 15 MiB without the pages of the bytes themselves.
    let reserved = AHEAD - AHEAD / STRIDE * BLOCK;
    studio.append(other, free..free + reserved, BLOCK);
    assert_eq!(studio.write(other, free + reserved, BLOCK), Err(Error::NoSpace));
    studio.core().audit().unwrap();
    studio.close(clip);
    studio.close(other);
    studio.sync();
    assert_eq!(studio.size(clip), AHEAD);
    assert_eq!(studio.allocated(clip), AHEAD / STRIDE * BLOCK);
}

/// Where the pieces of a file begin, in an order in which any of the next `depth` may come first, and some wait long.
fn out_of_order(random: &mut SmallRng, length: u64, piece: u64, depth: usize) -> Vec<u64> {
    let mut waiting: Vec<u64> = Vec::new();
    let mut rest = (0..length).step_by(piece as usize);
    let mut order = Vec::new();
    loop {
        waiting.extend(rest.by_ref().take(depth - waiting.len()));
        if waiting.is_empty() {
            return order;
        }
        let pick = random.random_range(0..waiting.len());
        order.push(waiting.remove(pick));
    }
}

/// Also when the last request, which is short, overtakes others. Requests go in the order in which their bytes are complete, so they
/// go up unless a client leaves one piece out for longer than a request takes to come.
#[test]
fn requests_that_overtake_each_other_make_one_run_of_large_requests() {
    for seed in 0..256 {
        let (piece, sized) = ([MIB, 64 * KIB, 4 * MIB][seed as usize % 3], seed % 2 == 0);
        let mut studio = studio();
        let clip = studio.create("copy.mxf");
        let length = 96 * MIB + 777;
        if sized {
            studio.set_size(clip, length);
        }
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut came, mut complete) = (BTreeMap::new(), Vec::new());
        for at in out_of_order(&mut random, length, piece, 10) {
            let length = piece.min(length - at);
            let block = at / (8 * MIB) * (8 * MIB);
            let of_block = came.entry(block).or_insert(0);
            *of_block += length;
            complete.extend((*of_block == 8 * MIB).then_some(block));
            assert_eq!(studio.write(clip, at, length), Ok(length as usize));
            // The device is sometimes ahead of the client.
            if random.random_bool(0.3) {
                studio.drain();
            }
        }
        studio.close(clip);
        studio.sync();
        studio.core().audit().unwrap();
        assert_eq!(studio.size(clip), length);
        assert_eq!(studio.allocated(clip), length.next_multiple_of(BLOCK));
        assert_eq!(studio.runs(clip).len(), 1, "seed {seed}: {:?}", studio.runs(clip));
        let large = studio.written.iter().filter(|&&length| length == 8 * MIB).count() as u64;
        assert!(large >= length / (8 * MIB) - 1, "seed {seed}: {:?}", studio.written);
        // Each as soon as all of it has come, and never again.
        let written = studio.written_of(clip);
        let whole: Vec<u64> =
            written.iter().filter(|part| part.end - part.start == 8 * MIB).map(|part| part.start).collect();
        complete.retain(|start| whole.contains(start));
        assert_eq!(whole, complete, "seed {seed}");
        assert_eq!(studio.written.iter().sum::<u64>(), length.next_multiple_of(BLOCK), "seed {seed}");
        if piece < MIB {
            assert!(is_written_in_order(&studio, clip), "seed {seed}: {written:?}");
        }
        assert_eq!(studio.read, []);
    }
}

#[test]
fn a_header_that_is_written_last_lies_before_its_data() {
    let mut studio = studio();
    let clip = studio.create("clip.mov");
    studio.append(clip, 512 * KIB..64 * MIB, MIB);
    studio.pass(LONG);
    studio.append(clip, 0..512 * KIB, 64 * KIB);
    studio.close(clip);
    studio.sync();
    assert_eq!(studio.runs(clip), [64 * MIB]);
}

/// Of eight at once that set a length first, or ask for space, each lies in few runs.
#[test]
fn a_length_or_an_allocation_that_is_told_first_gives_long_runs() {
    let length = GIB;
    for how in [None, Some(AllocateMode::Extend), Some(AllocateMode::KeepSize)] {
        let mut studio = studio();
        let clips: Vec<Clip> = (0..8).map(|number| studio.create(&format!("copy {number}"))).collect();
        for &clip in &clips {
            match how {
                None => studio.set_size(clip, length),
                Some(mode) => studio.allocate(clip, 0, length, mode),
            }
        }
        for at in (0..length).step_by(MIB as usize) {
            clips.iter().for_each(|&clip| studio.append(clip, at..at + MIB, MIB));
        }
        studio.sync();
        for clip in clips {
            assert_eq!((studio.size(clip), studio.allocated(clip)), (length, length));
            assert_eq!(studio.runs(clip), [length], "{how:?}");
        }
        assert_eq!(studio.written.iter().sum::<u64>(), 8 * length, "{how:?}: nothing but the data");
        assert_eq!(studio.read, []);
    }
}

/// Half of the memory waits for a device that is given nothing to do before: what is on its way comes in order all the same.
#[test]
fn a_writer_ahead_of_the_device_is_written_in_order_all_the_same() {
    for (count, memory) in [(1, GIB), (8, GIB), (8, 2 * GIB)] {
        let mut studio = Studio::new(16 * GIB, memory);
        let clips: Vec<Clip> = (0..count).map(|number| studio.create(&format!("copy {number}"))).collect();
        for at in (0..GIB).step_by(MIB as usize) {
            clips.iter().for_each(|&clip| studio.append(clip, at..at + MIB, MIB));
        }
        studio.sync();
        assert!(clips.iter().all(|&clip| is_written_in_order(&studio, clip)), "{count}");
        // A file's first 8 MiB are in blocks that grow with it.
        let short = studio.written.iter().filter(|&&length| length < 8 * MIB).count();
        assert!(short <= 4 * count, "{count}: {short} of {}", studio.written.len());
    }
}

/// As quickly as they are copied, clips with numbers are no frames either: beside each other they took turns in one place.
#[test]
fn clips_with_numbers_that_are_copied_at_once_lie_apart() {
    let mut studio = Studio::new(64 * GIB, 2 * GIB);
    for number in 1..=3 {
        let clip = studio.create(&format!("clip {number}"));
        studio.append(clip, 0..8 * MIB, MIB);
        studio.close(clip);
    }
    for (numbers, length) in [(4..=11, GIB), (12..=19, 103 * MIB)] {
        let clips: Vec<Clip> = numbers.map(|number| studio.create(&format!("clip {number}"))).collect();
        for at in (0..length).step_by(8 * MIB as usize) {
            clips.iter().for_each(|&clip| studio.append(clip, at..length.min(at + 8 * MIB), MIB));
        }
        clips.iter().for_each(|&clip| studio.close(clip));
        studio.sync();
        for clip in clips {
            let runs = studio.runs(clip);
            // Windows of 256, 512 and 1024 MiB.
            assert!(runs.len() as u64 <= 1 + length / (256 * MIB), "{runs:?}");
        }
    }
}

/// With little memory, whoever wrote faster than the device had blocks written that he was still filling: of eight copies with 512 MiB
/// four of five requests were shorter than 8 MiB, because the full ones were on their way already.
#[test]
fn a_writer_ahead_of_the_device_is_written_in_large_requests_with_little_memory() {
    for (count, memory_mib) in [(1, 256), (8, 256), (8, 512)] {
        let mut studio = Studio::new(16 * GIB, memory_mib * MIB);
        let clips: Vec<Clip> = (0..count).map(|number| studio.create(&format!("copy {number}"))).collect();
        for at in (0..GIB).step_by(MIB as usize) {
            clips.iter().for_each(|&clip| studio.append(clip, at..at + MIB, MIB));
        }
        studio.sync();
        let short = studio.written.iter().filter(|&&length| length < 8 * MIB).count();
        assert!(short <= 4 * count, "{count} with {memory_mib} MiB: {short} of {}", studio.written.len());
        assert!(
            clips.iter().all(|&clip| is_written_in_order(&studio, clip)),
            "{count} with {memory_mib} MiB"
        );
    }
}
