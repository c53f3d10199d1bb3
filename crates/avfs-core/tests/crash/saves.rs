//! What applications save, without an fsync, is there after a loss of power: the old content or the new, whole.
//!
//! Several documents are saved again and again, each save in one of the ways in which applications do it, in pieces that
//! are mixed with those of other saves, with fsyncs of other files, and with the device's work. Each content is a
//! version; of every cut a few images are judged: each document is one of its versions, not older than the last that was
//! durable, not newer than the last that had begun.

use crate::{DISK, model, pool, restless, rounds, without_streams};
use avfs_core::config::Config;
use avfs_core::core::{Operation, Outcome, Ticket};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use units::{Bytes, Duration, Ino};

/// The ways of applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A new file is renamed over the old one.
    Rename,
    /// The old file is emptied and written again.
    Truncate,
    /// The old file is renamed aside, a new one made in its place, the old one removed.
    Backup,
    /// As before, but the new file is written under another name and renamed.
    BackupAndRename,
    /// The old file gets a second name, the new one is renamed over its first, the second is removed.
    Link,
    /// Both change places, and the old one is removed.
    Exchange,
}

const WAYS: [Way; 6] =
    [Way::Rename, Way::Truncate, Way::Backup, Way::BackupAndRename, Way::Link, Way::Exchange];

/// What a save still has to do.
#[derive(Clone, Debug)]
enum Step {
    /// Makes a file, or opens it and empties it.
    Begin {
        name: String,
        emptied: bool,
    },
    Write {
        offset: usize,
        end: usize,
    },
    Close,
    Move {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Link {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
}

/// The content of a document at one time.
#[derive(Debug)]
struct Version {
    /// Where the disk stood when it began to be written.
    begun: usize,
    length: usize,
}

struct Document {
    number: usize,
    versions: Vec<Version>,
    /// Where the disk stood when it was known that versions before this one cannot come back.
    durable: Vec<(usize, usize)>,
    /// How each but the first was saved.
    ways: Vec<Way>,
    steps: Vec<Step>,
    handle: Option<HandleId>,
    /// The step that waits for the device.
    running: Option<Ticket>,
}

impl Document {
    fn name(&self) -> String {
        format!("project{}", self.number)
    }

    fn is_saved(&self) -> bool {
        self.steps.is_empty() && self.running.is_none()
    }

    fn content(&self, version: usize) -> Vec<u8> {
        model::pattern(self.number, version, 0, self.versions[version].length)
    }

    /// Begins to save another version.
    fn save(&mut self, way: Way, position: usize, random: &mut SmallRng) {
        let length = match random.random_range(0..10) {
            0 => random.random_range(1..200),
            1 => random.random_range(1 << 20..6 << 20),
            _ => random.random_range(1..200_000),
        };
        self.versions.push(Version { begun: position, length });
        let (name, aside, new) = (self.name(), self.name() + "~", self.name() + ".new");
        let moved =
            |from: &String, to: &String, flags| Step::Move { from: from.clone(), to: to.clone(), flags };
        let plain = RenameFlags::empty();
        let remove = |name: &String| Step::Remove { name: name.clone() };
        let mut steps = Vec::new();
        match way {
            Way::Backup | Way::BackupAndRename => steps.push(moved(&name, &aside, plain)),
            Way::Link => steps.push(Step::Link { from: name.clone(), to: aside.clone() }),
            _ => {}
        }
        let written = if matches!(way, Way::Truncate | Way::Backup) { &name } else { &new };
        steps.push(Step::Begin { name: written.clone(), emptied: way == Way::Truncate });
        let pieces = random.random_range(1..4);
        for piece in 0..pieces {
            steps.push(Step::Write { offset: length * piece / pieces, end: length * (piece + 1) / pieces });
        }
        steps.push(Step::Close);
        match way {
            Way::Truncate | Way::Backup => {}
            Way::Exchange => steps.push(moved(&new, &name, RenameFlags::EXCHANGE)),
            _ => steps.push(moved(&new, &name, plain)),
        }
        match way {
            Way::Backup | Way::BackupAndRename | Way::Link => steps.push(remove(&aside)),
            Way::Exchange => steps.push(remove(&new)),
            Way::Rename | Way::Truncate => {}
        }
        steps.reverse();
        self.steps = steps;
    }

    /// The next step of a save.
    fn step(&mut self, volume: &mut SimVolume) {
        let root = Ino::ROOT;
        if let Some(ticket) = self.running {
            match volume.ended(ticket) {
                None => return,
                Some(Outcome::Done(Ok(())) | Outcome::Attributes(Ok(_))) => self.running = None,
                Some(other) => panic!("{other:?}"),
            }
            if self.steps.is_empty() {
                return;
            }
        }
        match self.steps.pop().expect("a save that goes on has a step") {
            Step::Begin { name, emptied: false } => {
                self.handle = Some(volume.create(root, name.as_bytes()).unwrap().1);
            }
            Step::Begin { name, emptied: true } => {
                let found = volume.with(|core, _| core.lookup(root, name.as_bytes())).unwrap();
                self.handle = Some(volume.open(found.attributes.ino).unwrap());
                let emptied = SetAttributes { size: Some(0), ..SetAttributes::default() };
                let ino = found.attributes.ino;
                self.running = Some(volume.begin(Operation::SetAttributes { ino, changes: emptied }));
            }
            Step::Write { offset, end } => {
                let version = self.versions.len() - 1;
                let data = model::pattern(self.number, version, offset as u64, end - offset);
                assert_eq!(volume.write(self.handle.unwrap(), offset as u64, &data), Ok(end - offset));
            }
            Step::Close => {
                let handle = self.handle.take().unwrap();
                volume.with(|core, now| core.release(now, handle));
            }
            Step::Move { from, to, flags } => {
                let (name, new_name) = (from.as_bytes().into(), to.as_bytes().into());
                let caller = Caller::default();
                let rename =
                    Operation::Rename { caller, parent: root, name, new_parent: root, new_name, flags };
                self.running = Some(volume.begin(rename));
            }
            Step::Link { from, to } => {
                let found = volume.with(|core, _| core.lookup(root, from.as_bytes())).unwrap();
                let ino = found.attributes.ino;
                volume.with(|core, now| core.link(now, ino, root, to.as_bytes())).unwrap();
            }
            Step::Remove { name } => {
                let name = name.as_bytes().into();
                self.running = Some(volume.begin(Operation::Unlink { parent: root, name }));
            }
        }
    }

    /// What there is instead of a version.
    fn describe(&self, name: &str, content: &[u8]) -> String {
        let equal = |version: usize| {
            let expected = self.content(version);
            let pages = content.chunks(4096).zip(expected.chunks(4096));
            pages.filter(|(found, expected)| found[..] == expected[..found.len().min(expected.len())]).count()
        };
        let like: Vec<String> = (0..self.versions.len())
            .map(|version| (version, equal(version)))
            .filter(|&(_, pages)| pages > 0)
            .map(|(version, pages)| {
                format!("{pages} pages of version {version} of {} bytes", self.versions[version].length)
            })
            .collect();
        format!("{name} of {} bytes: {}", content.len(), like.join(", "))
    }

    /// The version that one of the names has, if one has one.
    fn judge(&self, cut: usize, volume: &mut SimVolume) -> Result<usize, String> {
        let mut found = Vec::new();
        for name in [self.name(), self.name() + "~"] {
            let Ok(entry) = volume.with(|core, _| core.lookup(Ino::ROOT, name.as_bytes())) else { continue };
            let content = model::read_all(volume, entry.attributes.ino)?;
            found.push(self.describe(&name, &content));
            let whole = (0..self.versions.len()).rev().find(|&version| content == self.content(version));
            let Some(version) = whole else { continue };
            let known =
                self.durable.iter().filter(|(position, _)| *position <= cut).map(|&(_, at_least)| at_least);
            let (first, begun) = (known.max().unwrap_or(0), self.versions[version].begun);
            if version < first || begun > cut {
                return Err(format!("version {version} of {name}, not from {first} on and begun by {cut}"));
            }
            return Ok(version);
        }
        Err(format!("no version of {} whole, but {found:?}; {:?}", self.name(), self.ways))
    }
}

/// Saves on one volume. Returns how many, and how many images were judged.
fn saves(seed: u64, config: Config, ways: &[Way], images: usize) -> (usize, usize) {
    let pool = pool();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut volume = SimVolume::mount(formatted(DISK), &pool, config, seed).unwrap();
    let (other, other_handle) = volume.create(Ino::ROOT, b"other").unwrap();
    let mut documents: Vec<Document> = Vec::new();
    for number in 0..3 {
        let versions = vec![Version { begun: 0, length: random.random_range(1..300_000) }];
        let document = Document {
            number,
            versions,
            durable: Vec::new(),
            ways: Vec::new(),
            steps: Vec::new(),
            handle: None,
            running: None,
        };
        let (_, handle) = volume.create(Ino::ROOT, document.name().as_bytes()).unwrap();
        volume.write(handle, 0, &document.content(0)).unwrap();
        volume.with(|core, now| core.release(now, handle));
        documents.push(document);
    }
    volume.sync().unwrap();
    volume.disk().record();
    let (mut begun, mut beside): (usize, Vec<Ticket>) = (0, Vec::new());
    for _ in 0..160 {
        let index = random.random_range(0..documents.len());
        let document = &mut documents[index];
        if document.is_saved() {
            let position = volume.disk().position();
            let way = ways[random.random_range(0..ways.len())];
            document.save(way, position, &mut random);
            document.ways.push(way);
            begun += 1;
        }
        document.step(&mut volume);
        // A client that has emptied a file does not rest before it writes: the time of a save is some milliseconds.
        volume.pass(Duration::from_micros(random.random_range(0..4000)));
        if random.random_range(0..6) == 0 {
            // Somebody else has his file made durable, and with it the log.
            volume.write(other_handle, random.random_range(0..9) * 5000, &[7; 3000]).unwrap();
            beside.push(volume.begin(Operation::Fsync { ino: other }));
        }
        if documents.iter().all(Document::is_saved) && random.random_range(0..4) == 0 {
            volume.sync().unwrap();
            let position = volume.disk().position();
            for document in &mut documents {
                document.durable.push((position, document.versions.len() - 1));
            }
        }
        while volume.core().under_pressure() && volume.step() {}
    }
    for document in &mut documents {
        while !document.is_saved() {
            document.step(&mut volume);
            volume.pass(Duration::from_millis(1));
        }
    }
    for ticket in beside {
        while !volume.has_ended(ticket) {
            assert!(volume.step(), "seed {seed}: an fsync never ends");
        }
    }
    let recording = volume.disk().crash_images();
    let cuts: Vec<usize> = recording.cuts().collect();
    let judging = crate::pool();
    for index in 0..images {
        let cut = cuts[index * cuts.len().max(images) / images % cuts.len()];
        let disk = Arc::new(recording.image(cut, index as u64));
        let mut left = SimVolume::mount(disk, &judging, Config::default(), 1).unwrap();
        for document in &documents {
            if let Err(error) = document.judge(cut, &mut left) {
                panic!("seed {seed}, {ways:?}, cut {cut}, image {index}: {error}");
            }
        }
    }
    (begun, images)
}

/// Saved by rename, by emptying, with a backup, a second name or an exchange, and not fsynced: names became durable a second
/// after they were changed, the data five seconds after it was written. A server that died between had neither version.
#[test]
fn what_was_saved_is_one_of_its_versions_after_every_cut() {
    let mut total = (0, 0);
    for way in WAYS {
        for seed in 0..rounds() {
            let (begun, judged) = saves(seed, restless(seed), &[way], 60);
            total = (total.0 + begun, total.1 + judged);
        }
    }
    for seed in 0..3 * rounds() {
        let (begun, judged) = saves(seed, restless(seed), &WAYS, 120);
        total = (total.0 + begun, total.1 + judged);
    }
    println!("{} saves, {} images of cuts", total.0, total.1);
}

/// A save's data was written at its rename, also when the next save came before the commit: a thousand saves of ten documents
/// were a thousand writes, and took 40 % longer than before they were safe.
#[test]
fn what_is_saved_again_before_the_commit_is_not_written() {
    let pool = pool();
    let mut volume = SimVolume::mount(formatted(DISK), &pool, Config::default(), 1).unwrap();
    volume.sync().unwrap();
    volume.commands();
    let plain = RenameFlags::empty();
    for save in 0..500 {
        let (ino, handle) = volume.create(Ino::ROOT, b"new").unwrap();
        volume.write(handle, 0, &model::pattern(save % 5, save, 0, 20_000)).unwrap();
        volume.with(|core, now| core.release(now, handle));
        let name = format!("project{}", save % 5);
        volume.rename((Ino::ROOT, b"new"), (Ino::ROOT, name.as_bytes()), plain).unwrap();
        // The kernel forgets what has no name any more.
        volume.with(|core, now| core.forget(now, ino, 1));
        volume.pass(Duration::from_millis(1));
    }
    let early = volume.commands().len();
    assert!(early < 5, "{early} commands for what is saved again");
    // In time for the commit, which comes a second after the first of them.
    volume.pass(Duration::from_millis(550));
    let commands = volume.commands().len();
    // What is nobody's is written together where it lies together.
    let fewest = if without_streams() { 3 } else { 7 };
    assert!((fewest..20).contains(&commands), "{commands} commands for five documents, a flush and the log");
    let mut left = SimVolume::mount(volume.die(), &pool, Config::default(), 1).unwrap();
    for document in 0..5 {
        let name = format!("project{document}");
        let found = left.with(|core, _| core.lookup(Ino::ROOT, name.as_bytes())).unwrap();
        let content = model::read_all(&mut left, found.attributes.ino).unwrap();
        assert!(
            content == model::pattern(document, 495 + document, 0, 20_000),
            "{name} is not its last version"
        );
    }
}

/// A volume with a document of 100 KB that is durable, as it is saved: emptied, and open.
fn saving(pool: &Pool, disk: Bytes) -> (SimVolume, HandleId) {
    let mut volume = SimVolume::mount(formatted(disk), pool, Config::default(), 1).unwrap();
    let (ino, handle) = volume.create(Ino::ROOT, b"document").unwrap();
    volume.write(handle, 0, &model::pattern(0, 0, 0, 100_000)).unwrap();
    volume.with(|core, now| core.release(now, handle));
    volume.sync().unwrap();
    let handle = volume.open(ino).unwrap();
    (volume, handle)
}

fn empty(volume: &mut SimVolume) {
    let ino = volume.with(|core, _| core.lookup(Ino::ROOT, b"document")).unwrap().attributes.ino;
    let changes = SetAttributes { size: Some(0), ..SetAttributes::default() };
    volume.set_attributes(ino, changes).unwrap();
}

fn begin_write(volume: &mut SimVolume, handle: HandleId, offset: u64, data: Vec<u8>) -> Ticket {
    volume.begin(Operation::Write { handle, offset, data, unprivileged: None })
}

/// Beside a copy that fills the memory each piece of a save was answered as late as the copy's. The document stayed open and empty for
/// longer than a commit waits for it, and a server that died then had neither version.
#[test]
fn a_save_does_not_wait_for_the_memory_of_a_copy() {
    let pool = pool();
    let (mut volume, document) = saving(&pool, DISK);
    let (_, copy) = volume.create(Ino::ROOT, b"copy").unwrap();
    let held_back = (0..64).find(|piece| {
        let ticket = begin_write(&mut volume, copy, piece << 20, vec![1; 1 << 20]);
        !volume.has_ended(ticket)
    });
    assert!(held_back.is_some(), "a copy is never held back");
    empty(&mut volume);
    let piece = begin_write(&mut volume, document, 0, vec![2; 10_000]);
    assert!(volume.has_ended(piece), "a save waits for what a copy has written");
}

/// As soon as a client waited for space, what had just been emptied became durable as it was: empty.
#[test]
fn a_save_is_kept_whole_while_a_client_waits_for_space() {
    let pool = pool();
    let (mut volume, document) = saving(&pool, DISK);
    let (_, copy) = volume.create(Ino::ROOT, b"copy").unwrap();
    let mut end = 0;
    while volume.write(copy, end, &[1; 1 << 20]).is_ok() {
        end += 1 << 20;
    }
    volume.sync().unwrap();
    let (_, next) = volume.create(Ino::ROOT, b"next").unwrap();
    volume.with(|core, now| core.release(now, copy));
    empty(&mut volume);
    volume.unlink(Ino::ROOT, b"copy").unwrap();
    let waits = begin_write(&mut volume, next, 0, vec![3; 4 << 20]);
    volume.pass(Duration::from_millis(100));
    assert!(!volume.has_ended(waits), "there is space, so that nothing waits for it");
    volume.with(|core, now| core.release(now, document));
    let mut left = SimVolume::mount(volume.die(), &pool, Config::default(), 1).unwrap();
    let found = left.with(|core, _| core.lookup(Ino::ROOT, b"document")).unwrap();
    let content = model::read_all(&mut left, found.attributes.ino).unwrap();
    assert!(content == model::pattern(0, 0, 0, 100_000), "{} bytes of the document are left", content.len());
}
