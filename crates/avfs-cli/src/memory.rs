//! Whether the memory that a volume wants can be had: a control group may have less than the machine.
//!
//! What goes beyond a group's limit ends in the kernel killing the daemon while it pins its cache, which looks like a crash. So
//! both are compared before.

use std::fs;
use std::path::{Path, PathBuf};
use units::Bytes;

/// What the daemon of an empty volume has besides its cache: its threads and buffers. An estimate; it is to be measured.
const BESIDES: Bytes = Bytes::from_mib(48);

/// Refuses a cache that does not fit into what the control groups of this process allow.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn check(cache: Bytes) -> Result<(), String> {
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
