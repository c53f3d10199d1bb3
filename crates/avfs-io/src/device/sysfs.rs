//! What the kernel tells of a block device under `/sys/dev/block`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use units::Bytes;

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Every offset and length is a multiple of this; at most 4 KiB.
    pub logical_block: Bytes,
    /// What the medium writes at once; smaller writes cost a read.
    pub physical_block: Bytes,
    /// A stripe, on a RAID: writes that cover it whole are the cheap ones. Zero when unknown.
    pub optimal_io: Bytes,
    /// It has heads that move.
    pub rotational: bool,
}

/// Loop devices over images on loop devices end here.
const MAX_DEPTH: usize = 4;

/// The geometry of the device `number`, or of an image file on it, with block sizes in bytes as already known.
pub(super) fn geometry(number: u64, logical_block: u32, physical_block: u32) -> Geometry {
    let mut optimal_io = 0;
    let mut rotational = false;
    let mut layer = Some(number);
    for _ in 0..MAX_DEPTH {
        let Some(number) = layer else { break };
        if optimal_io == 0 {
            optimal_io = queue_attribute(number, "optimal_io_size").unwrap_or(0);
        }
        // The lowest layer is the one that moves.
        if let Some(moves) = queue_attribute(number, "rotational") {
            rotational = moves != 0;
        }
        layer = backing_device(number);
    }
    Geometry {
        logical_block: Bytes(u64::from(logical_block)),
        physical_block: Bytes(u64::from(physical_block)),
        optimal_io: Bytes(optimal_io),
        rotational,
    }
}

/// True when the device `number` is set read-only.
pub(super) fn is_read_only(number: u64) -> bool {
    attribute(number, "ro").is_some_and(|value| value.trim() == "1")
}

/// The device that holds the image of the loop device `number`.
fn backing_device(number: u64) -> Option<u64> {
    let image = attribute(number, "loop/backing_file")?;
    Some(fs::metadata(image.trim_end_matches('\n')).ok()?.dev())
}

fn queue_attribute(number: u64, name: &str) -> Option<u64> {
    attribute(number, &format!("queue/{name}"))?.trim().parse().ok()
}

/// An attribute of the device, or of the disk of which it is a partition.
fn attribute(number: u64, name: &str) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    [device.join(name), device.join("..").join(name)].iter().find_map(|path| fs::read_to_string(path).ok())
}
