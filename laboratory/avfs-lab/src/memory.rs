//! How much memory does a run take?
//!
//! **For:** refusing in one line what would not fit, before a kernel that wants memory kills the LUN and with it the run.
//! **State:** none. **Invariants:** a declaration that is accepted fits into [`BUDGET`], so it runs on a machine of 16 GB.

use avfs_io::pool::available;
use avfs_workloads::{Contender, Declaration};
use std::io;
use units::Bytes;

/// What a LUN may keep in memory of what the laboratory's own clients did not write: the filesystems' metadata.
pub const LUN_MEMORY: Bytes = Bytes::from_mib(2048);
/// What a run may take: of the 14.9 GiB of a machine of 16 GB, what its system leaves.
pub const BUDGET: Bytes = Bytes::from_mib(12 << 10);

/// smbd with its clients' buffers, the clients themselves, filesystems' daemons without their cache, the kernel's inodes.
const PROCESSES: Bytes = Bytes::from_mib(2 << 10);

/// What AVFS takes when nobody says how much, of a machine of 16 GB: a quarter of it.
const DEFAULT_CACHE: Bytes = Bytes::from_mib(4 << 10);

/// What the LUN keeps of each GiB of the clients' pattern: a byte for a block, and stamps in a tree.
const PATTERN_PER_GIB: Bytes = Bytes::from_mib(1);

/// What the contenders of a declaration take at the most, one after the other; where they take turns their LUNs stay. The kernel's
/// page cache does not count: it gives way.
pub fn needed(declaration: &Declaration) -> Bytes {
    let cache = declaration.contenders.iter().map(cache).max().unwrap_or(Bytes::ZERO);
    let pattern = PATTERN_PER_GIB.as_u64() * declaration.size_gib;
    let luns = if declaration.take_turns { declaration.contenders.len() as u64 } else { 1 };
    Bytes(PROCESSES.as_u64() + luns * (LUN_MEMORY.as_u64() + pattern) + cache.as_u64())
}

/// Of a contender: pinned memory, or dirty pages, which cannot give way at once.
fn cache(contender: &Contender) -> Bytes {
    if contender.filesystem != "avfs" {
        return Bytes::from_mib(contender.dirty_mib);
    }
    let told = contender.mount.iter().find_map(|option| option.strip_prefix("cache_size="));
    told.and_then(size).unwrap_or(DEFAULT_CACHE)
}

/// As mount.avfs takes it in the declarations: `4G`, `512M`.
fn size(text: &str) -> Option<Bytes> {
    let (number, shift) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 30),
        None => (text.strip_suffix(['M', 'm'])?, 20),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

/// Whether a declaration fits into the budget.
///
/// # Errors
/// In one line what to do.
pub fn fits(declaration: &Declaration) -> Result<(), String> {
    enough(needed(declaration), BUDGET, "a run may take", "lower cache_size, dirty_mib or size_gib")
}

/// Whether this machine has it now.
///
/// # Errors
/// In one line what to do, or that the machine does not tell.
pub fn is_available(declaration: &Declaration) -> io::Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let available =
        available(&text).ok_or_else(|| io::Error::other("/proc/meminfo tells no MemAvailable"))?;
    enough(needed(declaration), available, "this machine has", "end other programs, or lower cache_size")
        .map_err(io::Error::other)
}

fn enough(needed: Bytes, there: Bytes, whose: &str, what_to_do: &str) -> Result<(), String> {
    let gib = |bytes: Bytes| bytes.as_u64() as f64 / f64::from(1 << 30);
    if needed <= there {
        return Ok(());
    }
    Err(format!("needs {:.1} GiB of memory, and {whose} {:.1}: {what_to_do}", gib(needed), gib(there)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::smoke;

    fn with(filesystem: &str, mount: &str, dirty_mib: u64) -> Declaration {
        let mut declaration = smoke();
        let contender = &mut declaration.contenders[0];
        (contender.filesystem, contender.dirty_mib) = (filesystem.to_owned(), dirty_mib);
        contender.mount = vec!["noatime".to_owned(), mount.to_owned()];
        declaration
    }

    #[test]
    fn the_cache_of_a_contender_is_what_it_cannot_give_back() {
        let without = needed(&with("ext4", "", 0)).as_u64();
        assert_eq!(without, PROCESSES.as_u64() + LUN_MEMORY.as_u64() + (8 << 20));
        for (declaration, mib) in [
            (with("ext4", "", 256), 256),
            (with("avfs", "cache_size=4G", 2048), 4096),
            (with("avfs", "cache_size=512M", 2048), 512),
            (with("avfs", "", 2048), 4096),
        ] {
            assert_eq!(needed(&declaration).as_u64() - without, mib << 20);
        }
    }

    #[test]
    fn who_takes_turns_keeps_a_lun_each() {
        let mut declaration = with("ext4", "", 256);
        declaration.contenders.push(declaration.contenders[0].clone());
        let one_after_the_other = needed(&declaration).as_u64();
        declaration.take_turns = true;
        assert_eq!(needed(&declaration).as_u64() - one_after_the_other, LUN_MEMORY.as_u64() + (8 << 20));
    }

    #[test]
    fn exactly_full_fits_and_one_over_is_told_with_what_to_do() {
        let left = (BUDGET.as_u64() - needed(&with("xfs", "", 0)).as_u64()) >> 20;
        assert_eq!(fits(&with("avfs", &format!("cache_size={left}M"), 0)), Ok(()));
        let error = fits(&with("avfs", &format!("cache_size={}M", left + 1), 0)).expect_err("one over");
        assert_eq!(
            error,
            "needs 12.0 GiB of memory, and a run may take 12.0: lower cache_size, dirty_mib or size_gib"
        );
    }

    #[test]
    fn what_is_available_is_found() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(Bytes::from_mib(2)));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }
}
