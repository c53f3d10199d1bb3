//! Which opens of a file go through the kernel's page cache.
//!
//! A writer once passed pages by that a reader had made, and its answer waited until the kernel had dropped them: for ever, where
//! the write was that of such a page, stored to through a mapping. Now all opens of a file go through the pages or none does, and
//! the kernel is never told of anything.

use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::{CacheMode, HandleId, OpenFlags};
use avfs_io::pool::Pool;
use units::{Bytes, Ino};

const READ: OpenFlags = OpenFlags::READ;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const KEPT: CacheMode = CacheMode::PageCache { keep: true };
const DROPPED: CacheMode = CacheMode::PageCache { keep: false };

struct Client {
    volume: SimVolume,
    ino: Ino,
}

impl Client {
    /// With a file of 3000 bytes that nothing has open.
    fn new() -> Self {
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        let mut volume =
            SimVolume::mount(formatted(Bytes::from_mib(512)), &pool, Config::default(), 1).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"small").unwrap();
        volume.write(handle, 0, &[7; 3000]).unwrap();
        let mut client = Self { volume, ino };
        client.close(handle);
        client
    }

    fn open(&mut self, flags: OpenFlags) -> (HandleId, CacheMode) {
        let ino = self.ino;
        let opened = self.volume.with(|core, _| core.open(ino, flags)).unwrap();
        (opened.handle, opened.cache)
    }

    fn close(&mut self, handle: HandleId) {
        self.volume.with(|core, now| core.release(now, handle));
    }
}

#[test]
fn the_first_open_decides_for_all() {
    let mut client = Client::new();
    let (reader, through_pages) = client.open(READ);
    assert_eq!(through_pages, DROPPED);
    let (writer, beside_a_reader) = client.open(BOTH);
    assert_eq!(beside_a_reader, DROPPED);
    // Still, when the reader has gone, and past the length up to which a first reader would go through the pages.
    client.close(reader);
    client.volume.write(writer, 2 << 20, &[1; 100]).unwrap();
    let (late, beside_a_writer) = client.open(READ | OpenFlags::DIRECT);
    assert_eq!(beside_a_writer, DROPPED);
    client.close(late);
    client.close(writer);
    // Now its length decides.
    assert_eq!(client.open(READ).1, CacheMode::Direct);
}

#[test]
fn beside_a_writer_that_passes_them_by_no_reader_makes_pages() {
    let mut client = Client::new();
    let (writer, alone) = client.open(BOTH);
    let (reader, beside_it) = client.open(READ);
    assert_eq!((alone, beside_it), (CacheMode::Direct, CacheMode::Direct));
    client.close(writer);
    let (other, beside_a_reader) = client.open(READ);
    assert_eq!(beside_a_reader, CacheMode::Direct);
    client.close(reader);
    client.close(other);
    assert_eq!(client.open(READ).1, DROPPED);
}

/// Of two that open at once the kernel may hear the second answer first. It may keep its pages only when one that has dropped
/// them has begun to read.
#[test]
fn pages_are_kept_when_a_reader_has_shown_that_older_ones_were_dropped() {
    let mut client = Client::new();
    let (first, _) = client.open(READ);
    assert_eq!(client.open(READ).1, DROPPED);
    assert_eq!(client.volume.read(first, 0, 3000).unwrap(), [7; 3000]);
    assert_eq!(client.open(READ).1, KEPT);
}

#[test]
fn pages_outlive_the_last_open_but_not_one_that_passes_them_by() {
    let mut client = Client::new();
    let (reader, _) = client.open(READ);
    client.volume.read(reader, 0, 3000).unwrap();
    client.close(reader);
    let (reader, again) = client.open(READ);
    assert_eq!(again, KEPT);
    client.close(reader);
    let (writer, alone) = client.open(BOTH);
    assert_eq!(alone, CacheMode::Direct);
    client.close(writer);
    assert_eq!(client.open(READ).1, DROPPED);
}
