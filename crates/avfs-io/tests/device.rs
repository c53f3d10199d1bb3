//! Files and block devices, opened for real.

mod common;

use avfs_io::IoError;
use avfs_io::device::{Device, FileDevice, OpenError, OpenMode};
use common::{Loop, no_process_starts};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use units::{Bytes, DeviceOffset};

const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 4096 * 7 + seed) as u8).collect()
}

/// Aligned and unaligned memory, one block and many, at the begin, the middle and the end.
fn reads_back_what_was_written(device: &dyn Device) {
    let size = device.size().as_u64();
    let mut memory = vec![0; 3 * MIB + 8192];
    for (offset, length) in [(0, 4096), (8192, 3 * MIB), (size - 4096, 4096), (4096, MIB + 4096)] {
        for skew in [0, 1, 513] {
            let place = DeviceOffset(offset);
            let written = pattern(length, skew);
            let source = &mut memory[skew..skew + length];
            source.copy_from_slice(&written);
            device.write_at(place, source).unwrap();
            source.fill(0);
            device.read_at(place, &mut memory[skew + 1..skew + 1 + length]).unwrap();
            assert!(
                memory[skew + 1..skew + 1 + length] == written,
                "{length} bytes at {offset}, skew {skew}"
            );
        }
    }
    device.flush().unwrap();
}

fn refuses_what_is_not_on_it(device: &dyn Device) {
    let size = device.size().as_u64();
    let mut bytes = vec![0; 8192];
    assert_eq!(device.read_at(DeviceOffset(size), &mut bytes), Err(IoError::PastEnd));
    assert_eq!(device.write_at(DeviceOffset(size - 4096), &bytes), Err(IoError::PastEnd));
    assert_eq!(device.write_at(DeviceOffset(u64::MAX - 4095), &bytes), Err(IoError::PastEnd));
    assert_eq!(device.read_at(DeviceOffset(1), &mut bytes), Err(IoError::Device(libc::EINVAL)));
    assert_eq!(device.read_at(DeviceOffset(0), &mut bytes[..100]), Err(IoError::Device(libc::EINVAL)));
    assert_eq!(device.discard(DeviceOffset(size), Bytes(4096)), Err(IoError::PastEnd));
}

fn cause(path: &Path, mode: OpenMode) -> OpenError {
    FileDevice::open(path, mode).expect_err("this cannot be opened")
}

#[test]
fn an_image_file_is_a_device() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume.img");
    let device = FileDevice::create(&path, Bytes::from_mib(16)).unwrap();
    assert_eq!(device.size(), Bytes::from_mib(16));
    assert!(!device.is_block_device());
    assert!(device.geometry().logical_block <= Bytes(4096));
    reads_back_what_was_written(&device);
    refuses_what_is_not_on_it(&device);
    device.discard(DeviceOffset(0), Bytes::from_mib(1)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 16 << 20, "an image keeps its size");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn memory_of_the_system_holds_images_too() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm here");
        return;
    };
    let device = FileDevice::create(&directory.path().join("volume.img"), Bytes::from_mib(16)).unwrap();
    reads_back_what_was_written(&device);
    refuses_what_is_not_on_it(&device);
}

#[test]
fn a_block_device_is_one() {
    let Some(attached) = Loop::attach(16 << 20, &[]) else { return };
    let device = FileDevice::open(&attached.device, OpenMode::Exclusive).unwrap();
    assert!(device.is_block_device() && device.is_direct());
    assert_eq!(device.size(), Bytes::from_mib(16));
    assert_eq!(device.geometry().logical_block, Bytes(512));
    reads_back_what_was_written(&device);
    refuses_what_is_not_on_it(&device);
    device.discard(DeviceOffset(0), Bytes::from_mib(1)).unwrap();
    let _alone = no_process_starts();
    drop(device);
    FileDevice::open(&attached.device, OpenMode::Exclusive).unwrap();
}

#[test]
fn the_logical_block_is_the_devices() {
    let Some(attached) = Loop::attach(16 << 20, &["--sector-size", "4096"]) else { return };
    let device = FileDevice::open(&attached.device, OpenMode::Exclusive).unwrap();
    assert_eq!(device.geometry().logical_block, Bytes(4096));
    assert_eq!(device.read_at(DeviceOffset(512), &mut [0; 4096]), Err(IoError::Device(libc::EINVAL)));
    reads_back_what_was_written(&device);
}

#[test]
fn a_second_opener_is_refused_and_a_reader_is_not() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let attached = Loop::attach(1 << 20, &[]);
    let paths = [Some(image.path()), attached.as_ref().map(|attached| attached.device.as_path())];
    for path in paths.into_iter().flatten() {
        let _alone = no_process_starts();
        let first = FileDevice::open(path, OpenMode::Exclusive).unwrap();
        let refusal = cause(path, OpenMode::Exclusive);
        assert!(matches!(&refusal, OpenError::InUse(named) if named == path));
        assert!(refusal.to_string().contains("unmount"), "{refusal}");
        let reader = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
        reader.read_at(DeviceOffset(0), &mut [0; 4096]).unwrap();
        assert!(matches!(reader.write_at(DeviceOffset(0), &[0; 4096]), Err(IoError::Device(_))));
        drop(first);
        FileDevice::open(path, OpenMode::Exclusive).unwrap();
    }
}

#[test]
fn every_refusal_names_its_cause() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(matches!(cause(&missing, OpenMode::Exclusive), OpenError::NotFound(path) if path == missing));
    assert!(matches!(cause(directory.path(), OpenMode::ReadOnly), OpenError::NotADevice(_)));
    assert!(matches!(cause(Path::new("/dev/null"), OpenMode::Exclusive), OpenError::NotADevice(_)));
    let image = directory.path().join("volume.img");
    fs::write(&image, "mine").unwrap();
    let refusal = FileDevice::create(&image, Bytes::from_mib(1)).unwrap_err();
    assert!(matches!(refusal, OpenError::AlreadyExists(_)));
    assert_eq!(fs::read(&image).unwrap(), b"mine");
    let huge = directory.path().join("huge.img");
    let refusal = FileDevice::create(&huge, Bytes(u64::MAX >> 1)).unwrap_err();
    assert!(matches!(refusal, OpenError::CannotCreate { .. }), "{refusal}");
    assert!(!huge.exists());
}

#[test]
fn a_device_that_is_set_read_only_says_so() {
    let Some(attached) = Loop::attach(1 << 20, &["--read-only"]) else { return };
    assert!(matches!(cause(&attached.device, OpenMode::Exclusive), OpenError::ReadOnly(_)));
    FileDevice::open(&attached.device, OpenMode::ReadOnly).unwrap();
}

/// The size is taken when the image is opened. A process that cuts it short then must not make a reader wait or believe.
#[test]
fn an_image_that_was_cut_short_ends() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let device = FileDevice::open(image.path(), OpenMode::Exclusive).unwrap();
    image.as_file().set_len(4096 + 700).unwrap();
    let mut bytes = vec![0; 8192];
    assert_eq!(device.read_at(DeviceOffset(0), &mut bytes), Err(IoError::PastEnd));
    assert_eq!(device.read_at(DeviceOffset(65536), &mut bytes), Err(IoError::PastEnd));
    device.read_at(DeviceOffset(0), &mut bytes[..4096]).unwrap();
}
