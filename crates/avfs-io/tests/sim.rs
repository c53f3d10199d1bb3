//! The simulated disk: what it keeps, what it may lose, and that both are a function of the seed.

use avfs_io::device::Device;
use avfs_io::pool::Pool;
use avfs_io::sim::{Fault, SimDisk, SimEngine, TraceEvent};
use avfs_io::{Completion, Gate, IoError, IoOperation, IoRequest, IoTag, Promotion, Segment};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Config, Direction};
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bytes, DeviceOffset, Instant};

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

fn at(page: u64) -> DeviceOffset {
    DeviceOffset(page * PAGE)
}

fn write(disk: &SimDisk, page: u64, fill: u8) {
    disk.write_at(at(page), &[fill; PAGE as usize]).unwrap();
}

fn read(disk: &SimDisk, page: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; PAGE as usize];
    disk.read_at(at(page), &mut bytes).unwrap();
    bytes
}

fn holds(disk: &SimDisk, page: u64, fill: u8) -> bool {
    read(disk, page) == [fill; PAGE as usize]
}

/// A request over one buffer that is filled with `fill`.
fn request(pool: &Pool, tag: u64, operation: IoOperation, page: u64, pages: u64, fill: u8) -> IoRequest {
    let length = (pages * PAGE) as usize;
    let segments = match operation {
        IoOperation::Flush => smallvec![],
        _ => {
            let buffer = pool.allocate(length).unwrap();
            buffer.copy_in(0, &vec![fill; length]);
            smallvec![Segment { buffer, start: 0, length }]
        }
    };
    let (class, stream, deadline) = (Class::Metadata, None, None);
    IoRequest { tag: IoTag(tag), operation, offset: at(page), segments, class, stream, deadline }
}

const WRITE: IoOperation = IoOperation::Write { durable: false };
const DURABLE: IoOperation = IoOperation::Write { durable: true };

struct Bench {
    engine: SimEngine,
    pool: Pool,
    rng: SmallRng,
}

impl Bench {
    fn new(seed: u64) -> Self {
        Self::on(SimDisk::new(Bytes::from_mib(1)), seed)
    }

    fn on(disk: SimDisk, seed: u64) -> Self {
        let disk = Arc::new(disk);
        disk.record();
        Self {
            engine: SimEngine::new(disk, Config::default()),
            pool: Pool::new(Bytes::from_mib(8), false).unwrap(),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn submit(&mut self, tag: u64, operation: IoOperation, page: u64, fill: u8) {
        let request = request(&self.pool, tag, operation, page, 1, fill);
        self.engine.submit(Instant::ZERO, request);
    }

    fn step(&mut self) -> Option<Completion> {
        self.engine.step(Instant::ZERO, &mut self.rng)
    }

    fn finish(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.step()).collect()
    }

    fn disk(&self) -> &SimDisk {
        self.engine.disk()
    }
}

#[test]
fn a_new_disk_is_zeros_and_keeps_what_is_written() {
    let disk = SimDisk::new(Bytes(PAGE * 10 + 17));
    assert_eq!(disk.size(), Bytes(PAGE * 10));
    assert!(holds(&disk, 9, 0));
    write(&disk, 9, 7);
    assert!(holds(&disk, 9, 7) && holds(&disk, 8, 0));
    let mut bytes = [0; PAGE as usize];
    assert_eq!(disk.read_at(at(10), &mut bytes), Err(IoError::PastEnd));
    assert_eq!(disk.write_at(DeviceOffset(512), &bytes), Err(IoError::Device(libc::EINVAL)));
}

#[test]
fn flushed_is_kept_and_unflushed_may_be_lost() {
    let disk = SimDisk::new(Bytes::from_mib(1));
    write(&disk, 1, 1);
    disk.flush().unwrap();
    write(&disk, 2, 2);
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let after = disk.crash(seed);
        assert!(holds(&after, 1, 1));
        match read(&after, 2) {
            page if page == [0; PAGE as usize] => lost += 1,
            page if page == [2; PAGE as usize] => kept += 1,
            page => {
                assert!(page.chunks(SECTOR).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
                torn += 1;
            }
        }
    }
    assert!(lost > 20 && kept > 20 && torn > 20, "{lost} lost, {kept} kept, {torn} torn");
}

#[test]
fn a_durable_write_persists_itself_alone_and_hides_older_ones() {
    let mut bench = Bench::new(1);
    bench.submit(1, WRITE, 5, 0x11);
    bench.submit(2, WRITE, 6, 0x22);
    bench.finish();
    bench.submit(3, DURABLE, 5, 0x33);
    bench.finish();
    let images: Vec<_> = (0..100).map(|seed| bench.disk().crash(seed)).collect();
    assert!(images.iter().all(|image| holds(image, 5, 0x33)));
    assert!(images.iter().any(|image| holds(image, 6, 0)));
    // The flush persists the older write too; it must not come back over the newer one.
    bench.submit(4, IoOperation::Flush, 0, 0);
    bench.finish();
    let after = bench.disk().crash(0);
    assert!(holds(&after, 5, 0x33) && holds(&after, 6, 0x22));
}

/// The simulated engine called a durable write durable whatever the disk did, so no crash test could see the flush that production
/// sends behind one.
#[test]
fn where_the_disk_forces_nothing_a_flush_follows_a_durable_write() {
    let mut bench = Bench::on(SimDisk::new(Bytes::from_mib(1)).forcing_nothing(), 1);
    bench.engine.take_commands();
    bench.submit(1, DURABLE, 5, 0x33);
    assert_eq!(bench.finish(), [Completion { tag: IoTag(1), result: Ok(()) }]);
    let directions: Vec<_> = bench.engine.take_commands().iter().map(|command| command.direction).collect();
    assert_eq!(directions, [Direction::Write, Direction::Flush]);
    assert!((0..100).all(|seed| holds(&bench.disk().crash(seed), 5, 0x33)));
    let again = bench.disk().crash(0);
    assert!(!again.forces_writes(), "it is the same disk when power returns");
}

/// The simulated engine served each request of a command by itself, so no test of the filesystem met what production does when one of
/// several fails.
#[test]
fn requests_of_a_command_that_fails_are_tried_alone() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        bench.engine.take_commands();
        for page in [4, 5, 6] {
            bench.submit(page, WRITE, page, page as u8);
        }
        bench.disk().inject(Some(Fault::after(0).writes_only().within(at(5), Bytes(PAGE))));
        let ends: Vec<_> = bench.finish().into_iter().map(|end| (end.tag.0, end.result)).collect();
        assert_eq!(ends, [(4, Ok(())), (5, Err(IoError::Device(libc::EIO))), (6, Ok(()))]);
        let commands = bench.engine.take_commands();
        let places: Vec<_> = commands.iter().map(|one| (one.offset.0 / PAGE, one.length.0 / PAGE)).collect();
        assert_eq!(places, [(4, 3), (4, 1), (5, 1), (6, 1)]);
        assert!(holds(bench.disk(), 4, 4) && holds(bench.disk(), 6, 6));
        assert_eq!((bench.engine.outstanding(), bench.engine.statistics().in_flight), (0, 0));
    }
}

#[test]
fn what_waits_when_the_volume_is_lost_never_reaches_the_disk() {
    let mut bench = Bench::new(0);
    let gate = Arc::new(Gate::open());
    bench.engine = bench.engine.behind(Arc::clone(&gate));
    bench.submit(1, WRITE, 1, 1);
    gate.revoke();
    bench.submit(2, WRITE, 2, 2);
    let fenced = |tag| Completion { tag: IoTag(tag), result: Err(IoError::Fenced) };
    assert_eq!(bench.finish(), [fenced(1), fenced(2)]);
    assert!(holds(bench.disk(), 1, 0) && holds(bench.disk(), 2, 0));
}

#[test]
fn a_flush_covers_what_completed_before_it_was_submitted() {
    for seed in 0..50 {
        let mut bench = Bench::new(seed);
        bench.submit(1, WRITE, 1, 1);
        assert_eq!(bench.finish().len(), 1);
        bench.submit(2, WRITE, 2, 2);
        bench.submit(3, IoOperation::Flush, 0, 0);
        assert_eq!(bench.finish().len(), 2);
        let images: Vec<_> = (0..40).map(|seed| bench.disk().crash(seed)).collect();
        assert!(images.iter().all(|image| holds(image, 1, 1)));
        // It was in flight beside the flush: however the device ordered them, nothing is promised.
        assert!(images.iter().any(|image| !holds(image, 2, 2)));
    }
}

#[test]
fn a_write_in_flight_may_be_on_the_disk_already() {
    let mut bench = Bench::new(3);
    bench.submit(1, DURABLE, 1, 9);
    bench.finish();
    let images = bench.disk().crash_images();
    let cuts: Vec<usize> = images.cuts().collect();
    assert_eq!(cuts.len(), 3);
    assert_eq!(images.event_before(cuts[0]), None);
    assert!(matches!(images.event_before(cuts[1]), Some(TraceEvent::WriteStarted { .. })));
    assert!(matches!(images.event_before(cuts[2]), Some(TraceEvent::WriteCompleted { durable: true, .. })));
    let partly = |image: &SimDisk| {
        let page = read(image, 1);
        page.contains(&9) && page.contains(&0)
    };
    assert!((0..100).all(|seed| holds(&images.image(cuts[0], seed), 1, 0)));
    assert!((0..100).any(|seed| partly(&images.image(cuts[1], seed))));
    assert!((0..100).all(|seed| holds(&images.image(cuts[2], seed), 1, 9)));
}

#[test]
fn memory_that_changes_under_the_device_arrives_as_a_mixture() {
    let mixed = (0..50).any(|seed| {
        let mut bench = Bench::new(seed);
        let changing = request(&bench.pool, 1, WRITE, 1, 1, 0x0A);
        let buffer = changing.segments[0].buffer.clone();
        bench.engine.submit(Instant::ZERO, changing);
        // Not its neighbour: that would become one command with it.
        bench.submit(2, WRITE, 3, 2);
        // Both are given to the device; where the other one completes first, ours is still in flight.
        if bench.step().unwrap().tag == IoTag(1) {
            return false;
        }
        buffer.copy_in(0, &[0x0B; PAGE as usize]);
        bench.finish();
        let page = read(bench.disk(), 1);
        assert!(page.iter().all(|byte| [0x0A, 0x0B].contains(byte)));
        page.contains(&0x0A) && page.contains(&0x0B)
    });
    assert!(mixed);
}

#[test]
fn a_crash_can_follow_a_crash() {
    let mut disk = SimDisk::new(Bytes::from_mib(1));
    for round in 0..40 {
        write(&disk, round, round as u8 + 1);
        disk.flush().unwrap();
        write(&disk, 200, round as u8 + 1);
        disk = disk.crash(round);
        for earlier in 0..=round {
            assert!(holds(&disk, earlier, earlier as u8 + 1), "round {round}, page {earlier}");
        }
    }
}

#[test]
fn a_disk_goes_on_after_images_were_taken_from_it() {
    let disk = SimDisk::new(Bytes::from_mib(1));
    disk.record();
    write(&disk, 1, 1);
    disk.flush().unwrap();
    let images = disk.crash_images();
    write(&disk, 1, 2);
    disk.flush().unwrap();
    assert!(holds(&images.image(*images.cuts().end(), 0), 1, 1));
    assert!(holds(&disk.crash(0), 1, 2));
    disk.record();
    assert_eq!(disk.crash_images().cuts().count(), 1);
    assert!(holds(&disk.crash(0), 1, 2));
}

#[test]
fn faults_meet_what_they_are_set_on() {
    let disk = SimDisk::new(Bytes::from_mib(1));
    let eio = Err(IoError::Device(libc::EIO));
    let mut bytes = [0; 2 * PAGE as usize];

    disk.inject(Some(Fault::after(2)));
    write(&disk, 0, 1);
    disk.read_at(at(0), &mut bytes).unwrap();
    assert_eq!(disk.read_at(at(0), &mut bytes), eio);
    assert_eq!(disk.flush(), eio);

    disk.inject(Some(Fault::after(0).within(at(5), Bytes(PAGE))));
    assert_eq!(disk.read_at(at(4), &mut bytes), eio);
    disk.read_at(at(3), &mut bytes).unwrap();
    disk.read_at(at(6), &mut bytes).unwrap();
    disk.flush().unwrap();

    disk.inject(Some(Fault::after(0).writes_only().with_errno(libc::ENOSPC)));
    disk.read_at(at(4), &mut bytes).unwrap();
    assert_eq!(disk.write_at(at(4), &[4; 2 * PAGE as usize]), Err(IoError::Device(libc::ENOSPC)));
    assert_eq!(disk.flush(), Err(IoError::Device(libc::ENOSPC)));

    disk.inject(None);
    assert!(holds(&disk, 4, 4) && holds(&disk, 5, 0), "the first half of a failed write is written");
    disk.flush().unwrap();
}

#[test]
fn a_failed_flush_keeps_no_promise() {
    let disk = SimDisk::new(Bytes::from_mib(1));
    write(&disk, 1, 1);
    disk.inject(Some(Fault::after(0)));
    assert!(disk.flush().is_err());
    assert!((0..50).any(|seed| holds(&disk.crash(seed), 1, 0)));
}

#[test]
fn the_engine_refuses_what_cannot_be_done() {
    let mut bench = Bench::new(0);
    let end = bench.disk().size().as_u64() / PAGE;
    bench.submit(1, WRITE, end, 1);
    bench.submit(2, WRITE, u64::MAX / PAGE, 1);
    let mut misaligned = request(&bench.pool, 3, WRITE, 1, 1, 1);
    misaligned.segments[0].start = 512;
    bench.engine.submit(Instant::ZERO, misaligned);
    bench.submit(4, WRITE, 1, 1);
    bench.submit(4, WRITE, 2, 2);
    let mut results: Vec<_> = bench.finish().into_iter().map(|done| (done.tag.0, done.result)).collect();
    results.sort_by_key(|(tag, result)| (*tag, result.is_ok()));
    let einval = Err(IoError::Device(libc::EINVAL));
    let eexist = Err(IoError::Device(libc::EEXIST));
    let past_end = Err(IoError::PastEnd);
    assert_eq!(results, [(1, past_end), (2, past_end), (3, einval), (4, eexist), (4, Ok(()))]);
    assert!(holds(bench.disk(), 1, 1) && holds(bench.disk(), 2, 0));
}

#[test]
fn cancelled_before_dispatch_means_not_done() {
    let mut bench = Bench::new(0);
    bench.submit(1, WRITE, 1, 1);
    bench.submit(2, WRITE, 2, 2);
    bench.engine.cancel(Instant::ZERO, IoTag(1));
    bench.engine.cancel(Instant::ZERO, IoTag(77));
    let (class, deadline) = (Class::RealTime, Instant::ZERO);
    bench.engine.promote(Instant::ZERO, Promotion { tag: IoTag(2), class, stream: None, deadline });
    assert_eq!(bench.engine.outstanding(), 2);
    let results = bench.finish();
    assert_eq!(results[0], Completion { tag: IoTag(1), result: Err(IoError::Cancelled) });
    assert_eq!(results[1], Completion { tag: IoTag(2), result: Ok(()) });
    assert!(holds(bench.disk(), 1, 0) && holds(bench.disk(), 2, 2));
    assert_eq!(bench.engine.outstanding(), 0);
}

#[test]
fn requests_move_bytes_between_segments_and_disk() {
    let mut bench = Bench::new(0);
    let buffers =
        [bench.pool.allocate(2 * PAGE as usize).unwrap(), bench.pool.allocate(PAGE as usize).unwrap()];
    buffers[0].copy_in(0, &[[1; PAGE as usize], [2; PAGE as usize]].concat());
    buffers[1].copy_in(0, &[3; PAGE as usize]);
    let page = PAGE as usize;
    let mut gathered = request(&bench.pool, 1, WRITE, 10, 1, 0);
    gathered.segments = smallvec![
        Segment { buffer: buffers[1].clone(), start: 0, length: page },
        Segment { buffer: buffers[0].clone(), start: page, length: page },
        Segment { buffer: buffers[0].clone(), start: 0, length: page },
    ];
    bench.engine.submit(Instant::ZERO, gathered);
    bench.finish();
    assert!(holds(bench.disk(), 10, 3) && holds(bench.disk(), 11, 2) && holds(bench.disk(), 12, 1));
    let mut scattered = request(&bench.pool, 2, IoOperation::Read, 11, 1, 0xEE);
    scattered.segments = smallvec![
        Segment { buffer: buffers[1].clone(), start: 0, length: page },
        Segment { buffer: buffers[0].clone(), start: 0, length: 2 * page },
    ];
    bench.engine.submit(Instant::ZERO, scattered);
    bench.finish();
    assert_eq!(buffers[1].bytes(0, page), [2; PAGE as usize]);
    assert_eq!(buffers[0].bytes(0, page), [1; PAGE as usize]);
    assert_eq!(buffers[0].bytes(page, page), [0; PAGE as usize], "never written");
}

/// What the block layer promises, kept beside the disk: per page the versions that an image may show.
#[derive(Default)]
struct Promise {
    /// Fill of the last durable write, and when it completed.
    durable: BTreeMap<u64, (usize, u8)>,
    /// Later writes, which may be there or not, with their completion's place in time.
    possible: BTreeMap<u64, Vec<(usize, u8)>>,
}

impl Promise {
    fn make_durable(&mut self, page: u64, time: usize, fill: u8) {
        let durable = self.durable.entry(page).or_default();
        *durable = (*durable).max((time, fill));
        let (newest, _) = *durable;
        if let Some(possible) = self.possible.get_mut(&page) {
            possible.retain(|(time, _)| *time > newest);
        }
    }

    fn flush(&mut self, covers: usize) {
        let all = self.possible.iter();
        let all = all.flat_map(|(&page, writes)| writes.iter().map(move |&write| (page, write)));
        let completed: Vec<_> = all.filter(|(_, (time, _))| *time <= covers).collect();
        for (page, (time, fill)) in completed {
            self.make_durable(page, time, fill);
        }
    }

    fn allows(&self, image: &SimDisk, pages: u64) {
        for page in 0..pages {
            let durable = self.durable.get(&page).map_or(0, |(_, fill)| *fill);
            let possible = self.possible.get(&page).into_iter().flatten().map(|(_, fill)| *fill);
            let allowed: Vec<u8> = std::iter::once(durable).chain(possible).collect();
            for (sector, bytes) in read(image, page).chunks(SECTOR).enumerate() {
                assert!(
                    allowed.contains(&bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0]),
                    "page {page} sector {sector} holds {}, allowed are {allowed:?}",
                    bytes[0]
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random writes, durable writes and flushes in random completion order: at every moment, every image shows of
    /// each sector the durable version or a later one, and the same seed shows the same image.
    #[test]
    fn images_show_only_what_the_block_layer_allows(seed: u64) {
        const PAGES: u64 = 6;
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bench = Bench::new(seed);
        let mut promise = Promise::default();
        let mut outstanding: BTreeMap<u64, (IoOperation, u64, u64, u8, usize)> = BTreeMap::new();
        let mut time = 0;
        for tag in 1..=120u64 {
            let fill = tag as u8;
            let operation = match rng.random_range(0..8) {
                0 => IoOperation::Flush,
                1 => DURABLE,
                _ => WRITE,
            };
            let count = rng.random_range(1..=2);
            let page = rng.random_range(0..=PAGES - count);
            bench.engine.submit(Instant::ZERO, request(&bench.pool, tag, operation, page, count, fill));
            outstanding.insert(tag, (operation, page, count, fill, time));
            if rng.random_bool(0.6) {
                let done = bench.step().unwrap();
                prop_assert_eq!(done.result, Ok(()));
                time += 1;
                let (operation, page, count, fill, submitted) = outstanding.remove(&done.tag.0).unwrap();
                for page in page..page + count {
                    match operation {
                        IoOperation::Flush => {}
                        IoOperation::Write { durable: true } => promise.make_durable(page, time, fill),
                        _ => promise.possible.entry(page).or_default().push((time, fill)),
                    }
                }
                if operation == IoOperation::Flush {
                    promise.flush(submitted);
                }
            }
            // Whatever was submitted and not completed may have been written.
            let mut now = Promise { durable: promise.durable.clone(), possible: promise.possible.clone() };
            for (operation, page, count, fill, _) in outstanding.values() {
                if *operation != IoOperation::Flush {
                    for page in *page..page + count {
                        now.possible.entry(page).or_default().push((usize::MAX, *fill));
                    }
                }
            }
            let image = bench.disk().crash(tag);
            now.allows(&image, PAGES);
            let again = bench.disk().crash(tag);
            for page in 0..PAGES {
                prop_assert_eq!(read(&image, page), read(&again, page));
            }
        }
        // The recording shows the same as the moment itself did.
        let images = bench.disk().crash_images();
        let end = *images.cuts().end();
        for page in 0..PAGES {
            prop_assert_eq!(read(&images.image(end, 5), page), read(&bench.disk().crash(5), page));
        }
    }

    /// Every cut of a recording: pages that no open write touches are exactly what the last flush left.
    #[test]
    fn unflushed_writes_affect_no_other_pages(seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let disk = SimDisk::new(Bytes::from_mib(1));
        for page in 0..32 {
            write(&disk, page, 0xAA);
        }
        disk.flush().unwrap();
        disk.record();
        let touched: Vec<u64> = (0..5).map(|_| rng.random_range(0..32)).collect();
        for page in &touched {
            write(&disk, *page, 0xBB);
        }
        let images = disk.crash_images();
        prop_assert_eq!(images.cuts().count(), 11);
        for cut in images.cuts() {
            let image = images.image(cut, seed);
            for page in (0..32).filter(|page| !touched.contains(page)) {
                prop_assert!(holds(&image, page, 0xAA));
            }
        }
    }
}

#[test]
fn thousands_of_images_are_cheap() {
    let disk = SimDisk::new(Bytes::from_mib(1 << 20));
    for page in 0..2000 {
        write(&disk, page * 1000, 1);
    }
    disk.flush().unwrap();
    disk.record();
    for page in 0..1000 {
        write(&disk, page, 2);
        if page % 10 == 0 {
            disk.flush().unwrap();
        }
    }
    let images = disk.crash_images();
    let taken: Vec<_> = images.cuts().flat_map(|cut| [images.image(cut, 1), images.image(cut, 2)]).collect();
    assert_eq!(taken.len(), 2 * 2101);
    assert!(taken.iter().all(|image| holds(image, 1999 * 1000, 1)));
}
