//! Multi-mount protection: no two hosts write the same volume.
//!
//! **For:** the block that says who has the volume: looked at by whoever wants it, and held by whoever repairs it.
//! **Excludes:** its layout ([`format`](crate::format)); its renewal while mounted, which goes through the scheduler like everything
//! else (`Core::renew_mmp`); who has the device on this host, which the device's own lock says. **State:** none.
//! **Invariants:** whoever writes to the volume renews the block each [`RENEWAL`], so that who watches it for [`WATCH`] sees it.

use crate::format::{BLOCK, MMP, MmpBlock};
use avfs_io::IoError;
use avfs_io::device::Device;
use std::sync::mpsc::{RecvTimeoutError, channel};
use units::{DeviceOffset, Duration};

/// Whoever has the volume renews the block so often.
pub(crate) const RENEWAL: Duration = Duration::from_secs(5);
/// A foreign host's block is watched for this long: two of its renewals.
const WATCH: Duration = Duration::from_secs(11);
/// From when a host has found a volume free to when it has written that it has it: longer than two accesses take on a busy RAID.
const SETTLING: Duration = Duration::from_millis(200);

/// What is there for whoever wants a volume that is free; else the name of the host that has it.
pub(crate) type Free<T> = Result<T, String>;

/// Identity of this boot; zeros where the kernel does not tell.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    uuid::Uuid::parse_str(text.trim()).map(|id| *id.as_bytes()).unwrap_or_default()
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// The block of the volume `uuid`; `None` if what stands there is not one of it.
pub(crate) fn read(device: &dyn Device, uuid: [u8; 16]) -> Result<Option<MmpBlock>, IoError> {
    let mut block = vec![0; BLOCK as usize];
    device.read_at(DeviceOffset(MMP), &mut block)?;
    Ok(MmpBlock::decode(&block).filter(|block| block.uuid == uuid))
}

/// Writes the block, durably.
pub(crate) fn write(device: &dyn Device, block: &MmpBlock) -> Result<(), IoError> {
    device.write_at(DeviceOffset(MMP), &block.encode()[..])?;
    device.flush()
}

/// Says that nobody has the volume.
pub(crate) fn release(device: &dyn Device, uuid: [u8; 16]) -> Result<(), IoError> {
    write(device, &MmpBlock { uuid, sequence: 0, boot_id: [0; 16], host: String::new() })
}

/// The same, unless another host has it: who only reads does not hold it, and another one may.
pub(crate) fn let_go(device: &dyn Device, uuid: [u8; 16]) -> Result<(), IoError> {
    match read(device, uuid)? {
        Some(block) if block.boot_id != boot_id() => Ok(()),
        _ => release(device, uuid),
    }
}

/// Takes the volume, in this host's name; or the host that has taken it in the same moment: of several that found it free the last
/// to write keeps it, and each of them sees that after [`SETTLING`].
pub(crate) fn take(device: &dyn Device, uuid: [u8; 16]) -> Result<Free<()>, IoError> {
    take_as(device, &ours(uuid, 1), || std::thread::sleep(SETTLING))
}

fn take_as(device: &dyn Device, block: &MmpBlock, settle: impl FnOnce()) -> Result<Free<()>, IoError> {
    write(device, block)?;
    settle();
    Ok(match read(device, block.uuid)? {
        Some(now) if now.boot_id != block.boot_id => Err(now.host),
        _ => Ok(()),
    })
}

fn ours(uuid: [u8; 16], sequence: u64) -> MmpBlock {
    MmpBlock { uuid, sequence, boot_id: boot_id(), host: host_name() }
}

/// The block of a volume that no other host has; or the host that renews it. A block from this boot is a dead mount's: the device's
/// own lock says that nobody here has it open. A foreign one is watched for as long as a living host takes to renew it twice.
pub(crate) fn look(device: &dyn Device, uuid: [u8; 16]) -> Result<Free<Option<MmpBlock>>, IoError> {
    look_as(device, uuid, boot_id(), || std::thread::sleep(WATCH))
}

/// The same for the boot `boot_id`. `watch` waits between two looks at a foreign block.
pub(crate) fn look_as(
    device: &dyn Device,
    uuid: [u8; 16],
    boot_id: [u8; 16],
    watch: impl FnOnce(),
) -> Result<Free<Option<MmpBlock>>, IoError> {
    let before = match read(device, uuid)? {
        Some(before) if before.sequence != 0 && before.boot_id != boot_id => before,
        free => return Ok(Ok(free)),
    };
    tracing::info!(
        host = before.host,
        "the volume was not unmounted there; watching whether it is still in use"
    );
    watch();
    Ok(match read(device, uuid)? {
        // Whoever gives it back meanwhile leaves it to others.
        Some(after) if after.sequence != 0 && after != before => Err(after.host),
        free => Ok(free),
    })
}

/// Does `work` on a volume that was [taken](take), with the block renewed each `renewal`. Afterwards nobody has the volume, whatever
/// came of it.
///
/// # Errors
/// Those of `work`, and of giving it back.
pub(crate) fn held<T, E: From<IoError>>(
    device: &dyn Device,
    uuid: [u8; 16],
    renewal: Duration,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let done = std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let renewer = scope.spawn(move || {
            let mut sequence = 1;
            while ended.recv_timeout(renewal) == Err(RecvTimeoutError::Timeout) {
                sequence += 1;
                // Whoever repairs finds out by himself that the device fails.
                if let Err(error) = write(device, &ours(uuid, sequence)) {
                    tracing::warn!(%error, "the multi-mount protection block cannot be renewed");
                }
            }
        });
        let done = work();
        drop(end);
        // A panic there would be one of encoding a block.
        let _ = renewer.join();
        done
    });
    let released = release(device, uuid);
    let done = done?;
    released?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::find_superblock;
    use crate::simulation::formatted;
    use avfs_io::sim::SimDisk;
    use std::sync::Arc;
    use std::time::Instant;
    use units::Bytes;

    const ANOTHER: [u8; 16] = [9; 16];

    fn volume() -> (Arc<SimDisk>, [u8; 16]) {
        let disk = formatted(Bytes::from_mib(192));
        let uuid = find_superblock(&*disk).unwrap().uuid;
        (disk, uuid)
    }

    fn sequence(disk: &SimDisk, uuid: [u8; 16]) -> u64 {
        read(disk, uuid).unwrap().unwrap().sequence
    }

    /// Each found it free, and wrote that he had it: both mounted it.
    #[test]
    fn of_two_hosts_that_take_a_volume_in_one_moment_one_has_it() {
        let (disk, uuid) = volume();
        let block =
            |number, host: &str| MmpBlock { uuid, sequence: 1, boot_id: [number; 16], host: host.into() };
        let mut second = None;
        let first = take_as(&*disk, &block(1, "nas-1"), || {
            second = Some(take_as(&*disk, &block(2, "nas-2"), || ()));
        });
        assert_eq!((first, second), (Ok(Err("nas-2".into())), Some(Ok(Ok(())))));
    }

    /// A host that was about to unmount a volume was called the one that has it: unmount it there, said the mount then.
    #[test]
    fn a_volume_that_is_given_back_while_it_is_watched_is_free() {
        let (disk, uuid) = volume();
        let block = MmpBlock { uuid, sequence: 7, boot_id: ANOTHER, host: "nas-2".into() };
        write(&*disk, &block).unwrap();
        let seen = |meanwhile: &dyn Fn()| look_as(&*disk, uuid, boot_id(), meanwhile).unwrap();
        let third = MmpBlock { boot_id: [8; 16], host: "nas-3".into(), ..block.clone() };
        assert_eq!(seen(&|| write(&*disk, &third).unwrap()), Err("nas-3".into()), "with the same number");
        assert_eq!(seen(&|| ()), Ok(Some(third.clone())), "nobody renews it");
        let free = seen(&|| release(&*disk, uuid).unwrap()).unwrap().unwrap();
        assert_eq!(free.sequence, 0);
    }

    #[test]
    fn who_works_on_a_volume_is_seen_by_others_and_leaves_it_to_nobody() {
        let (disk, uuid) = volume();
        assert_eq!(take_as(&*disk, &ours(uuid, 1), || ()), Ok(Ok(())));
        let watch = || {
            let (before, start) = (sequence(&disk, uuid), Instant::now());
            while sequence(&disk, uuid) == before {
                assert!(start.elapsed() < Duration::from_secs(60), "it is not renewed");
                std::thread::yield_now();
            }
        };
        let look = || look_as(&*disk, uuid, ANOTHER, watch);
        let seen: Result<_, IoError> = held(&*disk, uuid, Duration::from_millis(1), look);
        assert_eq!(seen, Ok(Err(host_name())));
        assert!(matches!(look(), Ok(Ok(Some(MmpBlock { sequence: 0, .. })))));
        assert_eq!(sequence(&disk, uuid), 0);
        let failed: Result<(), IoError> = held(&*disk, uuid, RENEWAL, || Err(IoError::PastEnd));
        assert_eq!((failed, sequence(&disk, uuid)), (Err(IoError::PastEnd), 0));
    }

    /// A mount that only reads is told nothing of another host's, and wrote at its end that nobody had the volume.
    #[test]
    fn who_did_not_hold_a_volume_does_not_let_it_go() {
        let (disk, uuid) = volume();
        let block = MmpBlock { uuid, sequence: 7, boot_id: ANOTHER, host: "nas-2".into() };
        write(&*disk, &block).unwrap();
        let_go(&*disk, uuid).unwrap();
        assert_eq!(read(&*disk, uuid), Ok(Some(block.clone())));
        write(&*disk, &MmpBlock { boot_id: boot_id(), ..block }).unwrap();
        let_go(&*disk, uuid).unwrap();
        assert_eq!(sequence(&disk, uuid), 0);
    }
}
