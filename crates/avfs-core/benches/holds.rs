//! For how long one client keeps all others from the volume: the longest hold of its lock, and the longest that another client
//! waits that looks up a name again and again, for each operation on very many of something. Prints a table for `doc/benchmarks.md`.
//! It waits from the moment in which it should have run again. A control client does the same on a second volume on which nothing else happens: what it waits is the machine's part.
//!
//! `AVFS_HOLDS_FILES` sets how many files the volume has (10^6), `AVFS_HOLDS_MANY` of how many things an operation is (10^5),
//! `AVFS_HOLDS_DIR` where the volume's image is made. The other client runs beside, so a machine that does other things shows longer
//! waits, of the control too; the bound is on the holds.

use avfs_core::mkfs::{self, MkfsOptions};
use avfs_core::types::*;
use avfs_core::volume::{OpenOptions, Volume};
use avfs_io::device::{FileDevice, OpenMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use units::{Bytes, Ino};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A client that looks up a name again and again, and the longest that it waited for an answer.
struct Looking {
    longest_ns: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Looking {
    fn on(volume: &Arc<Volume>) -> Self {
        let (longest_ns, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (volume, longest_ns, stop) = (Arc::clone(volume), Arc::clone(&longest_ns), Arc::clone(&stop));
            move || {
                let pause = Duration::from_micros(500);
                let mut due = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let _ = volume.lookup(Ino::ROOT, b"nothing of this name");
                    longest_ns.fetch_max(due.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    due = Instant::now() + pause;
                    std::thread::sleep(pause);
                }
            }
        });
        Self { longest_ns, stop, thread }
    }

    fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client ends");
    }
}

/// A volume of 32 GiB in a new image, and the image.
fn new_volume(directory: &str) -> (tempfile::NamedTempFile, Arc<Volume>) {
    let image = tempfile::NamedTempFile::new_in(directory).expect("an image");
    image.as_file().set_len(32 << 30).expect("room");
    {
        let device = FileDevice::open(image.path(), OpenMode::Exclusive).expect("opened");
        mkfs::make(&device, &MkfsOptions::default()).expect("formatted");
    }
    let options = OpenOptions { cache_size: Some(Bytes::from_mib(1024)), ..OpenOptions::default() };
    match Volume::open(image.path(), options) {
        Ok(volume) => (image, volume),
        Err(error) => panic!("{error}"),
    }
}

struct Bench {
    volume: Arc<Volume>,
    other: Looking,
    control: Looking,
    bound: Duration,
    broken: usize,
}

const CALLER: Caller = Caller { uid: 0, gid: 0, process: 0 };

fn wait<T: Send + 'static>(begin: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> T {
    let (sender, receiver) = sync_channel(1);
    begin(Box::new(move |result| _ = sender.send(result)));
    receiver.recv().expect("each operation ends")
}

impl Bench {
    fn measure(&mut self, what: &str, operation: impl FnOnce(&Volume)) {
        self.volume.longest_hold();
        self.other.take_longest();
        self.control.take_longest();
        let begun = Instant::now();
        operation(&self.volume);
        let took = begun.elapsed();
        // What goes on behind it counts, too.
        std::thread::sleep(Duration::from_millis(500));
        let hold = self.volume.longest_hold();
        let (waited, control) = (self.other.take_longest(), self.control.take_longest());
        let mark = if hold > self.bound { " **" } else { "" };
        self.broken += usize::from(hold > self.bound);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| {what} | {:.1} s | {:.2} ms{mark} | {:.2} ms | {:.2} ms |",
            took.as_secs_f64(),
            milliseconds(hold),
            milliseconds(waited),
            milliseconds(control)
        );
    }
}

fn file(volume: &Volume, parent: Ino, name: &str) -> (Ino, HandleId) {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (entry, opened) = volume.create(CALLER, parent, name.as_bytes(), 0o644, 0, flags).expect("created");
    (entry.attributes.ino, opened.handle)
}

fn directory(volume: &Volume, name: &str) -> Ino {
    volume.make_directory(CALLER, Ino::ROOT, name.as_bytes(), 0o755, 0).expect("made").attributes.ino
}

fn write(volume: &Volume, handle: HandleId, offset: u64, data: &[u8]) {
    wait(|done| volume.write(handle, offset, data, None, done)).expect("written");
}

fn list(volume: &Volume, directory: Ino) -> u64 {
    let (mut cookie, mut count) = (0, 0);
    loop {
        let mut taken = 0;
        let mut last = cookie;
        let mut each = |entry: DirectoryEntry| {
            // 128 KiB of entries, as the kernel asks for at most.
            taken += 1;
            if taken > 800 {
                return false;
            }
            last = entry.cookie;
            true
        };
        volume.read_directory(directory, cookie, true, &mut each).expect("listed");
        cookie = last;
        count += taken.min(800);
        if taken <= 800 {
            return count;
        }
    }
}

fn main() {
    let files = number("AVFS_HOLDS_FILES", 1_000_000);
    let many = number("AVFS_HOLDS_MANY", 100_000);
    let links = (many * 65 / 100).min(64_999);
    let handles = many / 10;
    let directory_of_image = std::env::var("AVFS_HOLDS_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
    let (_image, volume) = new_volume(&directory_of_image);
    let (_image_of_control, idle) = new_volume(&directory_of_image);
    let (other, control) = (Looking::on(&volume), Looking::on(&idle));
    let mut bench =
        Bench { volume: Arc::clone(&volume), other, control, bound: Duration::from_millis(5), broken: 0 };
    println!(
        "| operation | time | longest hold | another client waits | a client of an idle volume |\n|---|--:|--:|--:|--:|"
    );

    bench.measure(&format!("{files} files are made"), |volume| {
        for number in 0..files / 1000 {
            let parent = directory(volume, &format!("d{number}"));
            for file in 0..1000 {
                let name = format!("{file}");
                let made = volume.make_node(CALLER, parent, name.as_bytes(), FileKind::Regular, 0o644, 0, 0);
                volume.forget(made.expect("made").attributes.ino, 1);
            }
        }
    });
    bench.measure("sync of these, and a checkpoint of all", |volume| {
        wait(|done| volume.sync(done)).expect("synced");
        std::thread::sleep(Duration::from_secs(5));
    });
    bench.measure("statfs, figures for the administrator", |volume| {
        volume.statistics();
        volume.report();
        volume.streams();
    });
    bench.measure("a directory with everything below it is renamed", |volume| {
        let parent = directory(volume, "parent");
        wait(|done| volume.rename(CALLER, Ino::ROOT, b"d0", parent, b"d0", RenameFlags::empty(), done))
            .expect("renamed");
    });
    bench.measure("its policy is changed", |volume| {
        let parent = volume.lookup(Ino::ROOT, b"parent").expect("there").attributes.ino;
        volume.set_xattr(parent, b"user.avfs.bitrate", b"10 Mbit/s", XattrFlags::empty()).expect("set");
    });

    let place = directory(&volume, "links");
    let (linked, handle) = file(&volume, place, "file");
    volume.release(handle);
    bench.measure(&format!("{links} hard links to one file are made"), |volume| {
        for number in 0..links - 1 {
            volume.link(linked, place, format!("link {number}").as_bytes()).expect("linked");
        }
    });
    bench.measure("they are listed with attributes", |volume| assert_eq!(list(volume, place), links + 2));
    bench.measure("sync, and a checkpoint of them", |volume| {
        wait(|done| volume.sync(done)).expect("synced");
        std::thread::sleep(Duration::from_secs(2));
    });
    bench.measure("they are removed", |volume| {
        for number in 0..links - 1 {
            wait(|done| volume.unlink(place, format!("link {number}").as_bytes(), done)).expect("removed");
        }
    });

    let small = directory(&volume, "small");
    bench.measure(&format!("{many} small files are written"), |volume| {
        for number in 0..many {
            let (ino, handle) = file(volume, small, &format!("{number}"));
            write(volume, handle, 0, &[1; 3000]);
            volume.release(handle);
            volume.forget(ino, 1);
        }
    });
    bench.measure("sync of them", |volume| wait(|done| volume.sync(done)).expect("synced"));
    bench.measure("they are written again, and grow old", |volume| {
        for number in 0..many {
            let found = volume.lookup(small, format!("{number}").as_bytes()).expect("there");
            let opened = volume.open_file(CALLER, found.attributes.ino, OpenFlags::WRITE).expect("opened");
            write(volume, opened.handle, 0, &[2; 3000]);
            volume.release(opened.handle);
            volume.forget(found.attributes.ino, 1);
        }
        std::thread::sleep(Duration::from_secs(12));
    });
    bench.measure("they are removed", |volume| {
        for number in 0..many {
            wait(|done| volume.unlink(small, format!("{number}").as_bytes(), done)).expect("removed");
        }
    });

    let (random, handle) = file(&volume, Ino::ROOT, "random");
    bench.measure(&format!("{many} blocks of one file are written, none beside another"), |volume| {
        for number in 0..many {
            write(volume, handle, number * 8192, &[3; 4096]);
        }
    });
    bench.measure("fsync of it", |volume| wait(|done| volume.fsync(random, done)).expect("synced"));
    bench.measure("stat, seek to its end by holes, where it lies", |volume| {
        volume.attributes(random).expect("there");
        let _ = volume.seek(handle, 0, Seek::Hole);
        volume.layout(random).expect("there");
    });
    bench.measure("its blocks are written again, and it is cut to nothing", |volume| {
        for number in 0..many {
            write(volume, handle, number * 8192, &[4; 4096]);
        }
        let changes = SetAttributes { size: Some(0), ..SetAttributes::default() };
        wait(|done| volume.set_attributes(random, changes, done)).expect("cut");
        wait(|done| volume.sync(done)).expect("synced");
    });
    bench.measure("the same again, and it is removed", |volume| {
        for number in 0..many {
            write(volume, handle, number * 8192, &[5; 4096]);
        }
        wait(|done| volume.fsync(random, done)).expect("synced");
        volume.release(handle);
        wait(|done| volume.unlink(Ino::ROOT, b"random", done)).expect("removed");
        volume.forget(random, 1);
        wait(|done| volume.sync(done)).expect("synced");
    });

    let place = directory(&volume, "handles");
    let mut open = Vec::new();
    bench.measure(&format!("{handles} files are opened and written"), |volume| {
        for number in 0..handles {
            let (ino, handle) = file(volume, place, &format!("{number}"));
            write(volume, handle, 0, &[6; 5000]);
            open.push((ino, handle));
        }
    });
    bench.measure("fsync of all at once", |volume| {
        let (sender, receiver) = sync_channel(open.len());
        for &(ino, _) in &open {
            let sender = sender.clone();
            volume.fsync(ino, Box::new(move |result| _ = sender.send(result)));
        }
        for _ in &open {
            receiver.recv().expect("ends").expect("synced");
        }
    });
    bench.measure("streams and figures with all of them open", |volume| {
        volume.streams();
        volume.report();
    });
    bench.measure("they are closed and forgotten", |volume| {
        for &(ino, handle) in &open {
            volume.release(handle);
            volume.forget(ino, 1);
        }
    });
    let (noted, handle) = file(&volume, Ino::ROOT, "noted");
    volume.release(handle);
    bench.measure("extended attributes of one file, as many as there can be, and their list", |volume| {
        for number in 0..many {
            let name = format!("user.{number}");
            match volume.set_xattr(noted, name.as_bytes(), &[7; 40], XattrFlags::empty()) {
                Ok(()) => {}
                Err(avfs_core::Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        volume.list_xattrs(CALLER, noted).expect("listed");
    });
    bench.measure("unmount", |volume| volume.shutdown().expect("unmounted"));
    bench.other.end();
    bench.control.end();
    idle.shutdown().expect("unmounted");
    match bench.broken {
        0 => println!("\nverdict: no operation held the lock for longer than 5 ms"),
        broken => {
            println!("\nverdict: {broken} operations held the lock for longer than 5 ms (**)");
            std::process::exit(1);
        }
    }
}
