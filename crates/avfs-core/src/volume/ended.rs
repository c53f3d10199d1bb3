//! What is asked of a volume that was shut down.

use super::*;
use crate::mkfs::{self, MkfsOptions};
use std::sync::mpsc;

/// Longer than any of this takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

fn answered<T: Send + 'static>(what: &str, ask: impl FnOnce(Done<T>)) -> Result<T> {
    let (tell, answer) = mpsc::channel();
    ask(Box::new(move |result| drop(tell.send(result))));
    answer.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} is not answered"))
}

/// The engine drops what it is given after its end. A request that needed the device then waited for ever, and so did a second
/// shutdown: a daemon that was told twice to end did not.
#[test]
fn a_volume_that_was_shut_down_answers() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(Bytes::from_mib(192).as_u64()).unwrap();
    mkfs::make(&FileDevice::open(image.path(), OpenMode::Exclusive).unwrap(), &MkfsOptions::default())
        .unwrap();
    let open = || match Volume::open(
        image.path(),
        OpenOptions { cache_size: Some(SMALLEST_CACHE), ..OpenOptions::default() },
    ) {
        Ok(volume) => volume,
        Err(error) => panic!("{error}"),
    };
    let root = Caller { uid: 0, gid: 0, process: 0 };
    let both = OpenFlags::READ | OpenFlags::WRITE;

    let volume = open();
    let (entry, opened) = volume.create(root, Ino::ROOT, b"film", 0o644, 0, both).unwrap();
    let ino = entry.attributes.ino;
    answered("a write", |done| volume.write(opened.handle, 0, &[7; 100_000], None, done)).unwrap();
    volume.shutdown().unwrap();
    drop(volume);

    let volume = open();
    let handle = volume.open_file(root, ino, both).unwrap().handle;
    answered("an fsync before", |done| volume.fsync_file(handle, done)).unwrap();
    volume.shutdown().unwrap();
    assert_eq!(volume.shutdown(), Ok(()), "a second one says how the first one went");
    let read = answered("a read", |done| volume.read(handle, 0, 4096, done));
    assert_eq!(read.map(|data| data.to_vec()), Err(Error::Device), "its bytes are on the device");
    let written = answered("a write", |done| volume.write(handle, 0, &[8; 5000], None, done));
    assert_eq!(written, Err(Error::ReadOnly), "it could not become durable");
    assert_eq!(volume.lookup(Ino::ROOT, b"film").map(|entry| entry.attributes.size), Ok(100_000));
    let _ = answered("a sync", |done| volume.sync(done));
    let _ = answered("an fsync", |done| volume.fsync_file(handle, done));
    let _ = answered("an fsync of a directory", |done| volume.fsync(Ino::ROOT, done));
}
