use super::*;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const GIB_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES;
const MIB_PER_BLOCK: f64 = BLOCK_BYTES as f64 / (1 << 20) as f64;

fn request(purpose: Purpose, owner: u64, wanted: u64, after: Option<u64>) -> Request {
    Request { wanted, purpose, owner: Owner(owner), after, window_units: None }
}

fn run(start: u64, count: u64) -> BlockRun {
    BlockRun { start, count }
}

/// A volume of so many units of which these runs are free.
fn full_but_for<const N: usize>(units: u64, holes: [BlockRun; N]) -> Allocator {
    let mut allocator = Allocator::new(units);
    allocator.mark_used(run(0, units * BLOCKS_PER_UNIT)).unwrap();
    for hole in holes {
        allocator.free(hole).unwrap();
    }
    allocator
}

/// A file as a caller sees it: neighbouring runs are merged.
#[derive(Default, Clone)]
struct File {
    runs: Vec<BlockRun>,
}

impl File {
    fn after(&self) -> Option<u64> {
        self.runs.last().map(|run| run.end())
    }

    fn push(&mut self, run: BlockRun) {
        match self.runs.last_mut() {
            Some(last) if last.end() == run.start => last.count += run.count,
            _ => self.runs.push(run),
        }
    }

    /// Appends all of `blocks`, or as much as there is; returns how much.
    fn append(&mut self, allocator: &mut Allocator, purpose: Purpose, owner: u64, blocks: u64) -> u64 {
        let mut missing = blocks;
        while missing > 0 {
            let Some(run) = allocator.allocate(&request(purpose, owner, missing, self.after())) else {
                break;
            };
            self.push(run);
            missing -= run.count;
        }
        blocks - missing
    }

    fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }
}

fn mean_run_mib<'a>(files: impl Iterator<Item = &'a File>) -> f64 {
    let (blocks, runs) =
        files.fold((0, 0), |(blocks, runs), file| (blocks + file.blocks(), runs + file.runs.len()));
    blocks as f64 * MIB_PER_BLOCK / runs as f64
}

/// Appends `length` blocks to each of `writers` files in turns of 8 MiB, and closes them.
fn record(allocator: &mut Allocator, first_owner: u64, writers: u64, length: u64) -> Vec<File> {
    let mut files = vec![File::default(); writers as usize];
    for _ in 0..length / BLOCKS_PER_UNIT {
        for (index, file) in files.iter_mut().enumerate() {
            let owner = first_owner + index as u64;
            assert_eq!(file.append(allocator, Purpose::Stream, owner, BLOCKS_PER_UNIT), BLOCKS_PER_UNIT);
        }
    }
    for owner in first_owner..first_owner + writers {
        allocator.release_window(Owner(owner));
    }
    files
}

impl Allocator {
    fn check(&self) {
        self.space.check();
        let mut fenced = std::collections::BTreeSet::new();
        for window in self.windows.all() {
            assert!(!window.units().is_empty());
            for unit in window.units() {
                assert!(fenced.insert(unit), "unit {unit} is in two windows");
            }
        }
        for unit in 0..unit_of(self.total_blocks()) {
            assert_eq!(self.space.is_fenced(unit), fenced.contains(&unit), "unit {unit}");
            assert_eq!(self.windows.owner_of(unit).is_some(), fenced.contains(&unit), "unit {unit}");
        }
    }
}

// Against a model: one flag for each block.

#[derive(Clone, Debug)]
enum Step {
    Allocate { purpose: Purpose, owner: u64, wanted: u64, after: After },
    Free { pick: usize, skip: u64, count: u64 },
    Release(u64),
    Mark(BlockRun),
    Claim(u64),
    Unclaim(u64),
    Reserve(u64),
    Grow(u64),
}

#[derive(Clone, Debug)]
enum After {
    Nothing,
    /// Behind the run taken this many allocations ago.
    Previous(usize),
    Anywhere(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let wanted = prop_oneof![
        4 => 1u64..100,
        2 => Just(BLOCKS_PER_UNIT),
        2 => 1..6 * BLOCKS_PER_UNIT,
        1 => Just(0u64),
        1 => any::<u64>(),
    ];
    let after = prop_oneof![
        1 => Just(After::Nothing),
        4 => (0usize..4).prop_map(After::Previous),
        1 => (0..20 * BLOCKS_PER_UNIT).prop_map(After::Anywhere),
        1 => (u64::MAX - 5000..=u64::MAX).prop_map(After::Anywhere),
    ];
    let purpose =
        prop_oneof![4 => Just(Purpose::Stream), 4 => Just(Purpose::Small), 1 => Just(Purpose::Metadata)];
    let marked = prop_oneof![
        4 => (0..16 * BLOCKS_PER_UNIT, 0..3 * BLOCKS_PER_UNIT).prop_map(|(start, count)| run(start, count)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(start, count)| run(start, count)),
    ];
    prop_oneof![
        12 => (purpose, 0u64..5, wanted, after)
            .prop_map(|(purpose, owner, wanted, after)| Step::Allocate { purpose, owner, wanted, after }),
        8 => (any::<usize>(), 0..BLOCKS_PER_UNIT, 1..3 * BLOCKS_PER_UNIT)
            .prop_map(|(pick, skip, count)| Step::Free { pick, skip, count }),
        2 => (0u64..5).prop_map(Step::Release),
        1 => marked.prop_map(Step::Mark),
        2 => (0..4 * BLOCKS_PER_UNIT).prop_map(Step::Claim),
        1 => (0..4 * BLOCKS_PER_UNIT).prop_map(Step::Unclaim),
        1 => (0..4 * BLOCKS_PER_UNIT).prop_map(Step::Reserve),
        1 => (0u64..7).prop_map(Step::Grow),
    ]
}

struct Model {
    used: Vec<bool>,
    claimed: u64,
    reserve: u64,
}

impl Model {
    fn slice(&self, run: BlockRun) -> Option<&[bool]> {
        self.used.get(usize::try_from(run.start).ok()?..usize::try_from(run.end()).ok()?)
    }

    fn set(&mut self, run: BlockRun, used: bool) {
        self.used[run.start as usize..run.end() as usize].fill(used);
    }

    fn free(&self) -> u64 {
        self.used.iter().filter(|used| !**used).count() as u64
    }

    fn free_units(&self) -> u64 {
        self.used.chunks(BLOCKS_PER_UNIT as usize).filter(|unit| unit.iter().all(|used| !used)).count() as u64
    }

    fn used_runs(&self) -> Vec<BlockRun> {
        let mut runs: Vec<BlockRun> = Vec::new();
        for block in (0..self.used.len() as u64).filter(|block| self.used[*block as usize]) {
            match runs.last_mut() {
                Some(last) if last.end() == block => last.count += 1,
                _ => runs.push(run(block, 1)),
            }
        }
        runs
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_a_plain_bitmap(
        units in 0u64..14,
        zone_units in 1usize..6,
        steps in proptest::collection::vec(any_step(), 0..60),
    ) {
        let mut units = units;
        let mut allocator = Allocator::with_zones(units, zone_units);
        let mut model =
            Model { used: vec![false; (units * BLOCKS_PER_UNIT) as usize], claimed: 0, reserve: 0 };
        let mut taken: Vec<BlockRun> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { purpose, owner, wanted, after } => {
                    let after = match after {
                        After::Nothing => None,
                        After::Previous(ago) => taken.iter().rev().nth(ago).map(|run| run.end()),
                        After::Anywhere(block) => Some(block),
                    };
                    let open_units = allocator.longest_free_run();
                    let windows: Vec<_> =
                        (0..units as usize).map(|unit| allocator.windows.owner_of(unit)).collect();
                    match allocator.allocate(&request(purpose, owner, wanted, after)) {
                        Some(run) if purpose == Purpose::Metadata => {
                            prop_assert_eq!(run.count, BLOCKS_PER_UNIT);
                            prop_assert_eq!(run.start % BLOCKS_PER_UNIT, 0);
                            prop_assert_eq!(allocator.free_units(), model.free_units() - 1);
                            taken.push(run);
                        }
                        Some(run) => {
                            prop_assert!((1..=wanted).contains(&run.count));
                            taken.push(run);
                        }
                        None => {
                            let none_free =
                                if purpose == Purpose::Metadata { model.free_units() } else { model.free() };
                            prop_assert!(wanted == 0 || none_free == 0);
                            continue;
                        }
                    }
                    let run = taken[taken.len() - 1];
                    let blocks = model.slice(run).expect("inside the volume");
                    prop_assert!(blocks.iter().all(|used| !used), "{run} overlaps");
                    model.set(run, true);
                    if open_units > 0 {
                        for holder in &windows[unit_of(run.start)..=unit_of(run.end() - 1)] {
                            let own = purpose == Purpose::Stream && *holder == Some(Owner(owner));
                            prop_assert!(own || holder.is_none(), "{run} is in a window of {holder:?}");
                        }
                    }
                }
                Step::Free { pick, skip, count } => {
                    if taken.is_empty() {
                        continue;
                    }
                    // A part from the middle of a run: its head and its tail stay used.
                    let whole = taken.swap_remove(pick % taken.len());
                    let skip = skip.min(whole.count - 1);
                    let part = run(whole.start + skip, count.min(whole.count - skip));
                    prop_assert_eq!(allocator.free(part), Ok(()));
                    model.set(part, false);
                    let tail = run(part.end(), whole.end() - part.end());
                    taken.extend([run(whole.start, skip), tail].into_iter().filter(|run| run.count > 0));
                }
                Step::Release(owner) => allocator.release_window(Owner(owner)),
                Step::Mark(run) => {
                    let possible = run.start.checked_add(run.count).is_some()
                        && model.slice(run).is_some_and(|blocks| blocks.iter().all(|used| !used));
                    prop_assert_eq!(allocator.mark_used(run).is_ok(), possible);
                    if possible {
                        model.set(run, true);
                        taken.extend((run.count > 0).then_some(run));
                    }
                }
                Step::Claim(blocks) => {
                    let available = model.free().saturating_sub(model.claimed).saturating_sub(model.reserve);
                    prop_assert_eq!(allocator.available(), available);
                    if blocks <= available {
                        prop_assert_eq!(allocator.claim(blocks), Ok(()));
                        model.claimed += blocks;
                    } else {
                        prop_assert_eq!(allocator.claim(blocks), Err(NoSpace { wanted: blocks, available }));
                    }
                }
                Step::Unclaim(blocks) => {
                    let blocks = blocks.min(model.claimed);
                    allocator.unclaim(blocks);
                    model.claimed -= blocks;
                }
                Step::Grow(more) => {
                    units += more;
                    allocator.grow(units);
                    model.used.resize((units * BLOCKS_PER_UNIT) as usize, false);
                }
                Step::Reserve(blocks) => {
                    allocator.set_reserve(blocks);
                    model.reserve = blocks;
                }
            }
            prop_assert_eq!(allocator.free_blocks(), model.free());
            prop_assert_eq!(allocator.free_units(), model.free_units());
            prop_assert_eq!(allocator.claimed(), model.claimed);
            allocator.check();
        }
        prop_assert_eq!(allocator.used_runs().collect::<Vec<_>>(), model.used_runs());
        // Nothing is lost: whoever goes on asking gets every free block, whoever holds windows.
        let mut rest = File::default();
        prop_assert_eq!(rest.append(&mut allocator, Purpose::Stream, 99, u64::MAX), model.free());
        prop_assert_eq!(allocator.free_blocks(), 0);
        allocator.check();
    }

    /// What was claimed can be allocated, whatever others claim and metadata takes from its reserve.
    #[test]
    fn claims_are_honoured(
        units in 2u64..12,
        claims in proptest::collection::vec((1..2 * BLOCKS_PER_UNIT, any::<bool>()), 1..30),
    ) {
        let mut allocator = Allocator::new(units);
        allocator.set_reserve(2 * BLOCKS_PER_UNIT);
        let accepted: Vec<_> = (0u64..)
            .zip(claims)
            .filter(|(_, (blocks, _))| allocator.claim(*blocks).is_ok())
            .collect();
        for _ in 0..2 {
            // The reserve counts blocks; before anything is placed those are whole units.
            let unit = allocator.allocate(&request(Purpose::Metadata, 0, BLOCKS_PER_UNIT, None));
            prop_assert!(unit.is_some());
        }
        for (owner, (blocks, small)) in accepted {
            let purpose = if small { Purpose::Small } else { Purpose::Stream };
            prop_assert_eq!(File::default().append(&mut allocator, purpose, owner, blocks), blocks);
            allocator.unclaim(blocks);
        }
        prop_assert_eq!(allocator.claimed(), 0);
    }
}

// Boundaries.

#[test]
fn the_last_block_and_one_more() {
    for purpose in [Purpose::Stream, Purpose::Small] {
        let mut allocator = Allocator::new(2);
        allocator.mark_used(run(0, 2 * BLOCKS_PER_UNIT - 1)).unwrap();
        assert_eq!(allocator.allocate(&request(purpose, 1, 9, None)), Some(run(2 * BLOCKS_PER_UNIT - 1, 1)));
        assert_eq!(allocator.allocate(&request(purpose, 1, 1, None)), None);
        allocator.free(run(2 * BLOCKS_PER_UNIT - 1, 1)).unwrap();
        assert_eq!(allocator.allocate(&request(purpose, 2, 1, None)), Some(run(2 * BLOCKS_PER_UNIT - 1, 1)));
    }
}

#[test]
fn the_last_unit_and_one_more() {
    let mut allocator = Allocator::new(2);
    allocator.mark_used(run(0, 1)).unwrap();
    let unit = request(Purpose::Metadata, 0, BLOCKS_PER_UNIT, None);
    assert_eq!(allocator.allocate(&unit), Some(run(BLOCKS_PER_UNIT, BLOCKS_PER_UNIT)));
    assert_eq!(allocator.allocate(&unit), None);
    assert_eq!(allocator.free_blocks(), BLOCKS_PER_UNIT - 1);
}

#[test]
fn the_last_claim_and_one_more() {
    let mut allocator = Allocator::new(1);
    allocator.set_reserve(48);
    assert_eq!(allocator.claim(2000), Ok(()));
    assert_eq!(allocator.claim(1), Err(NoSpace { wanted: 1, available: 0 }));
    allocator.unclaim(1);
    assert_eq!(allocator.claim(1), Ok(()));
    // More is reserved than is left: nothing underflows.
    allocator.set_reserve(u64::MAX);
    assert_eq!(allocator.available(), 0);
}

#[test]
fn marking_stops_at_the_end_of_the_volume() {
    let mut allocator = Allocator::new(1);
    assert_eq!(allocator.mark_used(run(2047, 1)), Ok(()));
    assert_eq!(allocator.mark_used(run(2046, 2)), Err(Overlap { run: run(2046, 2), block: 2047 }));
    assert_eq!(allocator.mark_used(run(2048, 1)), Err(Overlap { run: run(2048, 1), block: 2048 }));
    let wrapping = run(u64::MAX, 2);
    assert_eq!(allocator.mark_used(wrapping), Err(Overlap { run: wrapping, block: u64::MAX }));
    assert_eq!(allocator.used_runs().collect::<Vec<_>>(), [run(2047, 1)]);
}

#[test]
fn freeing_twice_is_refused_and_changes_nothing() {
    let mut allocator = Allocator::new(1);
    allocator.mark_used(run(10, 10)).unwrap();
    let half_free = run(15, 10);
    if cfg!(debug_assertions) {
        let attempt = std::panic::AssertUnwindSafe(|| allocator.free(half_free));
        assert!(std::panic::catch_unwind(attempt).is_err());
    } else {
        assert_eq!(allocator.free(half_free), Err(DoubleFree { run: half_free, block: 20 }));
    }
    assert_eq!(allocator.used_runs().collect::<Vec<_>>(), [run(10, 10)]);
    allocator.check();
}

// What the policy is for.

#[test]
fn a_recorder_alone_gets_one_run() {
    let mut allocator = Allocator::new(8192);
    let files = record(&mut allocator, 1, 1, 40 * GIB_BLOCKS);
    assert_eq!(files[0].runs, [run(0, 40 * GIB_BLOCKS)]);
}

#[test]
fn a_recorder_alone_gets_one_run_with_appends_of_any_size() {
    let mut allocator = Allocator::new(8192);
    let mut rng = SmallRng::seed_from_u64(3);
    let mut file = File::default();
    for _ in 0..2000 {
        file.append(&mut allocator, Purpose::Stream, 1, rng.random_range(1..3000));
    }
    assert_eq!(file.runs.len(), 1);
}

/// On one zone the recorders meet in every window; on many each has a zone of its own.
#[test]
fn eight_recorders_at_once_get_long_runs() {
    let long = 64.0;
    let mut one_zone = Allocator::new(8192);
    let files = record(&mut one_zone, 1, 8, 4 * GIB_BLOCKS);
    println!("8 recorders, 4 GiB each, one zone: mean run {:.0} MiB", mean_run_mib(files.iter()));
    for file in &files {
        assert!(mean_run_mib([file].into_iter()) >= long);
        // Short is only the last window, which the file did not fill.
        let all_but_last = &file.runs[..file.runs.len() - 1];
        assert!(all_but_last.iter().all(|run| run.count as f64 * MIB_PER_BLOCK >= long), "{:?}", file.runs);
    }
    let mut many_zones = Allocator::new(16 * 8192);
    for file in record(&mut many_zones, 1, 8, 4 * GIB_BLOCKS) {
        assert_eq!(file.runs.len(), 1);
    }
}

/// Clips of 256 MiB, copied four at once to an empty volume, lay in runs of 32, 64, 128 and 32 MiB, because a first window
/// had 32 MiB whatever there was room for. Thirteen players beside a copy had to seek once more for each, and some were late.
#[test]
fn the_first_window_is_as_long_as_the_volume_has_room_for() {
    let runs_of_first = |units: u64| record(&mut Allocator::new(units), 1, 4, GIB_BLOCKS / 4)[0].runs.len();
    // 256 MiB are a 64th of 16 GiB.
    let least = FIRST_WINDOW_PART * LONGEST_FIRST_WINDOW_UNITS as u64;
    assert_eq!(runs_of_first(least), 1);
    assert_eq!(runs_of_first(least - 1), 2);
    // On a small volume it is 32 MiB, as it was.
    assert_eq!(runs_of_first(FIRST_WINDOW_PART * SHORTEST_FIRST_WINDOW_UNITS as u64), 4);
}

/// Each frame is a file of its own; the directory is the owner.
#[test]
fn frames_of_one_directory_lie_one_behind_the_other() {
    let mut allocator = Allocator::new(8192);
    let frame_blocks = 3117;
    let mut directories = [File::default(), File::default()];
    for _ in 0..600 {
        for (index, directory) in directories.iter_mut().enumerate() {
            let mut frame = File::default();
            frame.append(&mut allocator, Purpose::Stream, index as u64, frame_blocks);
            frame.runs.into_iter().for_each(|run| directory.push(run));
        }
    }
    for directory in &directories {
        assert_eq!(directory.blocks(), 600 * frame_blocks);
        let mean = mean_run_mib([directory].into_iter());
        println!("600 frames of {frame_blocks} blocks, two directories at once: mean run {mean:.0} MiB");
        assert!(mean >= 256.0);
    }
}

#[test]
fn small_files_share_units_and_stay_together() {
    let mut allocator = Allocator::new(1000);
    let mut files = vec![File::default(); 1000];
    for file in &mut files {
        file.append(&mut allocator, Purpose::Small, 7, 10);
        assert_eq!(file.runs.len(), 1);
    }
    assert_eq!(allocator.free_units(), 1000 - 5);
    assert_eq!(allocator.longest_free_run(), 1000 - 5);
}

#[test]
fn a_hole_that_fits_is_filled_before_a_larger_one() {
    let mut allocator =
        full_but_for(10, [run(100, 50), run(BLOCKS_PER_UNIT + 100, 20), run(3 * BLOCKS_PER_UNIT, 1000)]);
    let small = |wanted| request(Purpose::Small, 1, wanted, None);
    assert_eq!(allocator.allocate(&small(20)), Some(run(BLOCKS_PER_UNIT + 100, 20)));
    // The owner's last unit is full; nothing fits better than 50.
    assert_eq!(allocator.allocate(&small(30)), Some(run(100, 30)));
    // Its last unit still has 20.
    assert_eq!(allocator.allocate(&small(20)), Some(run(130, 20)));
    // Nothing holds 1500: as much as there is.
    assert_eq!(allocator.allocate(&small(1500)), Some(run(3 * BLOCKS_PER_UNIT, 1000)));
    assert_eq!(allocator.allocate(&small(1)), None);
}

#[test]
fn the_tail_of_a_recording_is_for_small_files_once_it_is_closed() {
    let mut allocator = Allocator::new(1000);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, 5 * BLOCKS_PER_UNIT + 100);
    let tail = recording.after().unwrap();
    let small = request(Purpose::Small, 2, 50, None);
    let elsewhere = allocator.allocate(&small).unwrap();
    assert!(unit_of(elsewhere.start) != unit_of(tail), "the recorder still writes there");
    allocator.free(elsewhere).unwrap();
    allocator.release_window(Owner(1));
    assert_eq!(allocator.allocate(&small), Some(run(tail, 50)));
    // The recording is opened again: it goes on where nobody is.
    let more = allocator.allocate(&request(Purpose::Stream, 1, BLOCKS_PER_UNIT, Some(tail))).unwrap();
    assert!(more.start >= tail + 50);
}

#[test]
fn a_recording_opened_again_goes_on_behind_itself() {
    let mut allocator = Allocator::new(1000);
    let mut recording = File::default();
    for _ in 0..3 {
        recording.append(&mut allocator, Purpose::Stream, 1, 3 * BLOCKS_PER_UNIT + 700);
        allocator.release_window(Owner(1));
    }
    assert_eq!(recording.runs.len(), 1);
}

#[test]
fn metadata_and_small_files_do_not_cut_a_recording() {
    let mut allocator = Allocator::new(4000);
    let mut recording = File::default();
    for step in 0..2000 {
        recording.append(&mut allocator, Purpose::Stream, 1, BLOCKS_PER_UNIT);
        if step % 10 == 0 {
            assert!(allocator.allocate(&request(Purpose::Metadata, 0, BLOCKS_PER_UNIT, None)).is_some());
            assert!(allocator.allocate(&request(Purpose::Small, 2, 700, None)).is_some());
        }
    }
    assert_eq!(recording.runs.len(), 1);
}

/// Less than 5 % are free: whole units first, the isolated ones before those of a longer run; then parts of units.
#[test]
fn a_nearly_full_volume_gives_single_units_then_parts() {
    let holes =
        [run(100, 7), run(10 * BLOCKS_PER_UNIT, 2 * BLOCKS_PER_UNIT), run(first_block(20), BLOCKS_PER_UNIT)];
    let mut allocator = full_but_for(100, holes);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    assert_eq!(recording.runs, [holes[2], holes[1], holes[0]]);
}

/// Between 5 and 20 % are free: the run that fits is taken, the longest survives.
#[test]
fn a_tight_volume_keeps_its_longest_run() {
    let holes =
        [(100, 80), (300, 5), (500, 20)].map(|(unit, count)| run(first_block(unit), first_block(count)));
    let mut allocator = full_but_for(1000, holes);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, 4 * BLOCKS_PER_UNIT);
    assert_eq!(recording.runs, [run(first_block(300), 4 * BLOCKS_PER_UNIT)]);
    assert_eq!(allocator.longest_free_run(), 80);
}

/// On a tight volume pieces are made of whole units and of what is free beside them. Recordings left what was free in front
/// of their units to small files, and the clips of an aged volume lay in more pieces than it had room for.
#[test]
fn on_a_tight_volume_a_recording_takes_what_is_free_on_both_sides_of_its_units() {
    let hole = run(first_block(40) - 700, 700 + first_block(8) + 300);
    let mut allocator = full_but_for(100, [hole]);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    allocator.check();
    assert_eq!(recording.runs, [hole]);
}

/// Of runs of as many units the one is taken that has most beside it.
#[test]
fn on_a_tight_volume_the_longer_of_two_runs_of_as_many_units_is_taken() {
    let holes = [
        run(first_block(10) - 64, 64 + first_block(4)),
        run(first_block(30) - 128, 128 + first_block(4) + 1),
        run(first_block(50), first_block(4) + 127),
    ];
    let mut allocator = full_but_for(100, holes);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    assert_eq!(recording.runs, [holes[1], holes[2], holes[0]]);
}

/// Where no run is long enough the longest goes first. Those with most whole units went first, and what was free beside them
/// counted between equals alone: of the runs of an aged volume longer ones were left over.
#[test]
fn on_a_tight_volume_the_longest_of_runs_that_are_all_too_short_is_taken() {
    let holes = [
        run(first_block(10), first_block(2)),
        run(first_block(20) - 2000, 2000 + first_block(1) + 500),
        run(first_block(30), first_block(3)),
    ];
    let mut allocator = full_but_for(40, holes);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    assert_eq!(recording.runs, [holes[2], holes[1], holes[0]]);
}

/// A window that begins behind used blocks covers the unit that they are in. What a stream found there was a hole after the
/// other: of 310 pieces of the clips of an aged volume 42 were shorter than 4 MiB, for each of which who plays has to seek.
#[test]
fn a_recording_does_not_go_on_in_short_holes_while_there_are_units() {
    // It fills this, with what is free behind its units up to a small file. Behind that lie two holes that are too short.
    let begun = run(first_block(10), first_block(4) + 300);
    let short = [run(begun.end() + 10, 200), run(begun.end() + 220, SHORTEST_HOLE_BLOCKS - 1)];
    let next = run(first_block(30), first_block(3));
    let mut allocator = full_but_for(100, [begun, short[0], short[1], next]);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, begun.count + next.count);
    assert_eq!(recording.runs, [begun, next]);
    // When nothing else is left, the longest goes first.
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    allocator.check();
    assert_eq!(recording.runs, [begun, next, short[1], short[0]]);

    let long_enough = run(begun.end() + 10, SHORTEST_HOLE_BLOCKS);
    let mut allocator = full_but_for(100, [begun, long_enough, next]);
    let mut recording = File::default();
    recording.append(&mut allocator, Purpose::Stream, 1, u64::MAX);
    assert_eq!(recording.runs, [begun, long_enough, next]);
}

/// Where there is room, what is free in front of a run is small files'.
#[test]
fn with_room_a_recording_begins_with_a_unit() {
    let mut allocator = Allocator::new(100);
    allocator.mark_used(run(0, first_block(40) - 700)).unwrap();
    let taken = allocator.allocate(&request(Purpose::Stream, 1, 500, None)).unwrap();
    assert_eq!(taken, run(first_block(40), 500));
}

#[test]
fn windows_yield_when_nothing_else_is_free() {
    let mut allocator = Allocator::new(4);
    allocator.allocate(&request(Purpose::Stream, 1, 1, None)).unwrap();
    assert_eq!(allocator.longest_free_run(), 0, "owner 1 holds all of it");
    assert!(allocator.allocate(&request(Purpose::Metadata, 0, BLOCKS_PER_UNIT, None)).is_some());
    allocator.allocate(&request(Purpose::Stream, 1, 1, Some(1))).unwrap();
    let mut other = File::default();
    assert_eq!(other.append(&mut allocator, Purpose::Small, 2, u64::MAX), 3 * BLOCKS_PER_UNIT - 2);
    assert_eq!(allocator.free_blocks(), 0);
}

#[test]
fn a_volume_of_100_terabytes() {
    let units = 100_000_000_000_000 / (BLOCKS_PER_UNIT * BLOCK_BYTES);
    let mut allocator = Allocator::new(units);
    assert_eq!(allocator.longest_free_run(), units);
    let last = allocator.total_blocks() - 1;
    allocator.mark_used(run(last, 1)).unwrap();
    let files = record(&mut allocator, 1, 200, GIB_BLOCKS);
    assert!(files.iter().all(|file| file.runs.len() == 1));
    assert_eq!(allocator.free_blocks(), last - 200 * GIB_BLOCKS);
}

// Age.

/// A volume kept at a fill for many times its size of creating and deleting.
struct Aged {
    allocator: Allocator,
    files: BTreeMap<u64, File>,
    rng: SmallRng,
    next_owner: u64,
}

impl Aged {
    fn length(&mut self) -> u64 {
        match self.rng.random_range(0..100) {
            0..30 => self.rng.random_range(1..512),
            30..85 => self.rng.random_range(GIB_BLOCKS / 16..4 * GIB_BLOCKS),
            _ => self.rng.random_range(4 * GIB_BLOCKS..16 * GIB_BLOCKS),
        }
    }

    fn delete_one(&mut self) {
        let pick = self.rng.random_range(0..self.files.len());
        let owner = *self.files.keys().nth(pick).unwrap();
        for run in self.files.remove(&owner).unwrap().runs {
            self.allocator.free(run).unwrap();
        }
    }

    fn used_percent(&self) -> u64 {
        100 - self.allocator.free_blocks() * 100 / self.allocator.total_blocks()
    }

    /// Four writers append in turns of up to 8 MiB; each that is done is closed and another starts; whenever the
    /// volume is fuller than `percent`, random files are deleted. Ends when `blocks` were written.
    fn churn(&mut self, percent: u64, mut blocks: u64) {
        let mut writing: Vec<(u64, u64, Purpose, File)> = Vec::new();
        while blocks > 0 {
            while writing.len() < 4 {
                let length = self.length();
                let purpose = if length < 512 { Purpose::Small } else { Purpose::Stream };
                writing.push((self.next_owner, length, purpose, File::default()));
                self.next_owner += 1;
            }
            while self.used_percent() > percent {
                self.delete_one();
            }
            let pick = self.rng.random_range(0..writing.len());
            let (owner, length, purpose, file) = &mut writing[pick];
            let piece = BLOCKS_PER_UNIT.min(*length);
            assert_eq!(file.append(&mut self.allocator, *purpose, *owner, piece), piece);
            *length -= piece;
            blocks = blocks.saturating_sub(piece);
            if *length == 0 {
                let (owner, _, _, file) = writing.swap_remove(pick);
                self.allocator.release_window(Owner(owner));
                self.files.insert(owner, file);
            }
        }
        for (owner, _, _, file) in writing {
            self.allocator.release_window(Owner(owner));
            self.files.insert(owner, file);
        }
    }
}

#[test]
fn an_aged_volume_still_gives_long_runs() {
    let total_units = 16 * 8192;
    let mut aged = Aged {
        allocator: Allocator::new(total_units),
        files: BTreeMap::new(),
        rng: SmallRng::seed_from_u64(1),
        next_owner: 1000,
    };
    let total_blocks = total_units * BLOCKS_PER_UNIT;
    for percent in [70, 80, 90] {
        aged.churn(percent, 10 * total_blocks);
        let all = mean_run_mib(aged.files.values());
        let mut fresh = |writers: u64, first_owner| {
            let files = record(&mut aged.allocator, first_owner, writers, GIB_BLOCKS);
            let mean = mean_run_mib(files.iter());
            for run in files.iter().flat_map(|file| &file.runs) {
                aged.allocator.free(*run).unwrap();
            }
            mean
        };
        let alone = fresh(1, 1);
        let together = fresh(4, 1);
        let longest = aged.allocator.longest_free_run() * BLOCKS_PER_UNIT / GIB_BLOCKS;
        println!(
            "{percent} % full, {} files: mean run of all {all:.0} MiB, of a new 1 GiB file {alone:.0} MiB, \
             of four at once {together:.0} MiB; longest free run {longest} GiB",
            aged.files.len()
        );
        assert!(alone >= 64.0 && together >= 64.0 && all >= 64.0);
    }
    aged.allocator.check();
}

#[test]
fn the_same_calls_lead_to_the_same_places() {
    let history = || {
        let mut aged = Aged {
            allocator: Allocator::new(2 * 8192),
            files: BTreeMap::new(),
            rng: SmallRng::seed_from_u64(9),
            next_owner: 1,
        };
        aged.churn(60, 30_000 * BLOCKS_PER_UNIT);
        aged.files.values().map(|file| file.runs.clone()).collect::<Vec<_>>()
    };
    assert_eq!(history(), history());
}

/// What is taken to be discarded is all that is free and in nobody's window, each block once, in pieces of the length that is asked
/// for; when it has come back, the volume is what it was.
#[test]
fn all_free_space_outside_of_windows_is_taken_once() {
    let mut allocator =
        full_but_for(16, [run(5, 10), run(100, 1), run(3 * BLOCKS_PER_UNIT - 7, 7 + 9 * BLOCKS_PER_UNIT)]);
    allocator.allocate(&request(Purpose::Stream, 1, 10, None)).unwrap();
    let windows: u64 =
        (0..16).filter(|&unit| allocator.space.is_fenced(unit)).count() as u64 * BLOCKS_PER_UNIT;
    assert!(windows > 0);
    let free = allocator.free_blocks();
    for (shortest, left) in [(1, 0), (2, 1), (11, 18)] {
        let mut taken: Vec<BlockRun> = Vec::new();
        let mut at = 0;
        while let Some(found) = allocator.take_free(at, shortest, BLOCKS_PER_UNIT) {
            assert!(found.start >= at && (shortest..=BLOCKS_PER_UNIT).contains(&found.count), "{found}");
            at = found.end();
            taken.push(found);
        }
        let inside = |block: u64| allocator.space.is_fenced(unit_of(block));
        assert!(taken.iter().all(|found| !inside(found.start) && !inside(found.end() - 1)));
        let all: u64 = taken.iter().map(|found| found.count).sum();
        // Of the first unit of the window ten blocks were given out.
        assert_eq!(all, free + 10 - windows - left, "{shortest}: {taken:?}");
        assert_eq!(allocator.take_free(0, shortest, BLOCKS_PER_UNIT), None);
        taken.into_iter().for_each(|found| allocator.free(found).unwrap());
        assert_eq!(allocator.free_blocks(), free);
        allocator.space.check();
    }
    assert_eq!(allocator.take_free(0, 1, 0), None);
}
