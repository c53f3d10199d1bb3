//! Whether the memory that a volume wants can be had: a control group may have less than the machine.
//!
//! What goes beyond a group's limit ends in the kernel killing the daemon while it pins its cache, which looks like a crash. So
//! both are compared before.

use avfs_core::volume::SMALLEST_CACHE;
use avfs_io::pool::{available, total};
use std::fs;
use std::path::{Path, PathBuf};
use units::Bytes;

/// What the daemon of an empty volume has besides its cache: its threads and buffers. An estimate; it is to be measured.
const BESIDES: Bytes = Bytes::from_mib(48);

/// A cache that nobody gave a size has one of so many parts of the memory that can be had: the rest is for Samba, for the metadata,
/// which lie in memory as a whole, and for the pages of small files.
const PARTS: u64 = 4;

/// The cache of a volume to which nobody gave a size, by what this machine and the control groups of this process have now. Streams are
/// promised half of it: the eighteenth player of 200 Mbit/s found no room in 1 GiB, on an array that was two thirds busy.
pub(crate) fn usual() -> Bytes {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let group = lowest(&read("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    usual_of(available(&read("/proc/meminfo")), group.map(|(limit, _)| limit))
}

fn usual_of(available: Option<Bytes>, group: Option<Bytes>) -> Bytes {
    let group = group.map(|limit| limit.saturating_sub(BESIDES));
    let memory = available.into_iter().chain(group).min().unwrap_or(Bytes::ZERO);
    Bytes(memory.0 / PARTS).max(SMALLEST_CACHE)
}

/// Refuses a cache that does not fit into this machine, or into what the control groups of this process allow.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn check(cache: Bytes) -> Result<(), String> {
    let machine = total(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    if let Some(machine) = machine.filter(|machine| *machine < cache + BESIDES) {
        return Err(format!(
            "a cache of {cache} does not fit into the {machine} of this machine: give a smaller cache_size"
        ));
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match lowest(&groups, Path::new("/sys/fs/cgroup")) {
        Some((limit, file)) if limit < cache + BESIDES => Err(format!(
            "a cache of {cache} and {BESIDES} besides do not fit into the {limit} of this control group ({}): \
             give a smaller cache_size, or raise that limit",
            file.display()
        )),
        _ => Ok(()),
    }
}

/// The lowest limit of memory that the groups in `groups` (proc_pid_cgroup(5)) are under, and where it stands.
fn lowest(groups: &str, root: &Path) -> Option<(Bytes, PathBuf)> {
    let mut limits = Vec::new();
    for group in groups.lines() {
        let mut fields = group.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (mounted, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // Each group is under the limits of those that contain it, too.
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            let file = mounted.join(ancestor).join(name);
            let limit = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
            // "max": none.
            limits.extend(limit.map(|limit| (Bytes(limit), file)));
        }
    }
    limits.into_iter().min_by_key(|(limit, _)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 GiB was the cache of a laptop and of a server with half a terabyte.
    #[test]
    fn the_usual_cache_follows_what_the_machine_and_the_group_have() {
        let meminfo =
            |kib: u64| format!("MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\nBuffers: 0 kB\n");
        assert_eq!(available(&meminfo(16 << 20)), Some(Bytes::from_mib(16 << 10)));
        assert_eq!(available("MemFree: 1 kB\n"), None);
        let gib = |gib: u64| Some(Bytes(gib << 30));
        assert_eq!(usual_of(gib(16), None), Bytes::from_mib(4 << 10));
        assert_eq!(usual_of(gib(512), gib(1).map(|limit| limit + BESIDES)), Bytes::from_mib(256));
        // It fits into the group, as `check` wants it.
        assert_eq!(usual_of(gib(16), Some(BESIDES)), SMALLEST_CACHE);
        assert_eq!(usual_of(None, None), SMALLEST_CACHE);
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, file: &str, limit: &str| {
            fs::create_dir_all(root.path().join(path)).unwrap();
            fs::write(root.path().join(path).join(file), limit).unwrap();
        };
        group("service/avfs", "memory.max", "max\n");
        group("service", "memory.max", "536870912\n");
        assert_eq!(lowest("0::/", root.path()), None);
        let found = lowest("0::/service/avfs\n", root.path()).unwrap();
        assert_eq!(found, (Bytes::from_mib(512), root.path().join("service/memory.max")));
        group("memory/old", "memory.limit_in_bytes", "268435456\n");
        let both = "4:cpu,memory:/old\n2:cpu:/other\n0::/service/avfs\n";
        assert_eq!(lowest(both, root.path()).unwrap().0, Bytes::from_mib(256));
    }
}
