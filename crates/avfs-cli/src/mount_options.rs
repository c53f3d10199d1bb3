//! What stands behind `-o`.

use avfs_core::config::parse_cache_size;
use avfs_fuse::Transport;
use avfs_fuse::control::MountedWith;
use avfs_fuse::mount::printable;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use units::Bytes;
use uuid::Uuid;

/// Options of a mount. Of two that contradict each other the later counts, as mount(8) has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Flags that were asked for.
    pub(crate) set: MountFlags,
    /// Flags that were asked not to be there.
    pub(crate) cleared: MountFlags,
    /// Change an existing mount.
    pub(crate) remount: bool,
    /// Policy and tuning.
    pub(crate) config: Option<PathBuf>,
    /// Pinned memory for data.
    pub(crate) cache_size: Option<Bytes>,
    /// Where a daemon logs.
    pub(crate) log: Option<PathBuf>,
    /// How requests come from the kernel.
    pub(crate) transport: Option<Transport>,
    /// A holder of the volume that is confirmed to be dead.
    pub(crate) fenced: Option<Uuid>,
}

/// Option, the flags it sets, the flags it clears.
const FLAGS: [(&str, MountFlags, MountFlags); 18] = {
    const NONE: MountFlags = MountFlags::empty();
    const ATIME: MountFlags = MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);
    [
        ("ro", MountFlags::RDONLY, NONE),
        ("rw", NONE, MountFlags::RDONLY),
        ("nodev", MountFlags::NODEV, NONE),
        ("dev", NONE, MountFlags::NODEV),
        ("nosuid", MountFlags::NOSUID, NONE),
        ("suid", NONE, MountFlags::NOSUID),
        ("noexec", MountFlags::NOEXEC, NONE),
        ("exec", NONE, MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME, ATIME),
        ("atime", NONE, ATIME),
        ("relatime", MountFlags::RELATIME, ATIME),
        ("strictatime", MountFlags::STRICTATIME, ATIME),
        ("nodiratime", MountFlags::NODIRATIME, NONE),
        ("diratime", NONE, MountFlags::NODIRATIME),
        ("sync", MountFlags::SYNCHRONOUS, NONE),
        ("async", NONE, MountFlags::SYNCHRONOUS),
        ("dirsync", MountFlags::DIRSYNC, NONE),
        ("norelatime", NONE, MountFlags::RELATIME),
    ]
};

/// Options that are for mount(8), or that the kernel's table shows of a FUSE mount and mount(8) repeats when it
/// remounts: nothing to do.
const IGNORED: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "allow_other",
    "default_permissions",
    "silent",
    "loud",
];

/// The same, with values.
const IGNORED_WITH_VALUE: [&str; 9] =
    ["user_id", "group_id", "max_read", "blksize", "fsname", "subtype", "comment", "user", "helper"];

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            set: MountFlags::empty(),
            cleared: MountFlags::empty(),
            remount: false,
            config: None,
            cache_size: None,
            log: None,
            transport: None,
            fenced: None,
        }
    }
}

impl MountOptions {
    /// Reads comma-separated options. With `sloppy`, unknown ones are ignored (mount(8) `-s`).
    ///
    /// # Errors
    /// One line that names the option.
    pub(crate) fn parse(text: &str, sloppy: bool) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            options.add(option, sloppy)?;
        }
        Ok(options)
    }

    fn add(&mut self, option: &str, sloppy: bool) -> Result<(), String> {
        if let Some((_, set, cleared)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            self.set = (self.set - *cleared) | *set;
            self.cleared = (self.cleared | *cleared) - *set;
            return Ok(());
        }
        if IGNORED.contains(&option) || option.starts_with("x-") || option.starts_with("X-") {
            return Ok(());
        }
        match option.split_once('=') {
            None if option == "remount" => self.remount = true,
            // The daemon, which reads it again, has another directory.
            Some(("config", path)) => {
                self.config = Some(std::path::absolute(path).unwrap_or_else(|_| path.into()))
            }
            Some(("log", path)) => self.log = Some(path.into()),
            Some(("transport", name)) => {
                self.transport = Some(name.parse().map_err(|why| format!("transport: {why}"))?);
            }
            Some(("cache_size", size)) => {
                self.cache_size = Some(parse_cache_size(size).map_err(|why| format!("cache_size: {why}"))?);
            }
            Some(("fenced", holder)) => {
                let number = Uuid::parse_str(holder).ok().filter(|number| !number.is_nil());
                let why = || format!("fenced: `{holder}` is no holder, as `avfsctl holder` shows it");
                self.fenced = Some(number.ok_or_else(why)?);
            }
            Some((name, _)) if IGNORED_WITH_VALUE.contains(&name) => {}
            _ if sloppy => {}
            _ => return Err(format!("unknown mount option `{option}`; see mount.avfs(8)")),
        }
        Ok(())
    }

    /// The flags a mount shall have that has `present` now.
    pub(crate) fn flags(&self, present: MountFlags) -> MountFlags {
        (present - self.cleared) | self.set
    }

    /// Those that hold as long as the volume is mounted.
    pub(crate) fn lasting(&self) -> MountedWith {
        MountedWith {
            cache_bytes: self.cache_size.map(|size| size.0),
            config: self.config.clone(),
            log: self.log.clone(),
            transport: self.transport.map(|transport| transport.to_string()),
        }
    }

    /// The first option that a volume which was mounted `with` others would have to be mounted anew for, as it was asked
    /// for. What is not named may be anything.
    pub(crate) fn differs(&self, with: &MountedWith) -> Option<String> {
        let path = |path: &PathBuf| printable(path);
        let asked = self.lasting();
        let pairs = [
            (
                "cache_size",
                asked.cache_bytes.map(|bytes| Bytes(bytes).to_string()),
                asked.cache_bytes == with.cache_bytes,
            ),
            ("config", asked.config.as_ref().map(path), asked.config == with.config),
            ("log", asked.log.as_ref().map(path), asked.log == with.log),
            ("transport", asked.transport.clone(), {
                // A daemon that does not say it is one of before there was a choice.
                let first = Transport::Device.to_string();
                asked.transport == Some(with.transport.clone().unwrap_or(first))
            }),
        ];
        pairs
            .into_iter()
            .find_map(|(name, asked, same)| asked.filter(|_| !same).map(|asked| format!("{name}={asked}")))
    }

    /// True if nothing may be written.
    pub(crate) fn read_only(&self) -> bool {
        self.set.contains(MountFlags::RDONLY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> MountOptions {
        MountOptions::parse(text, false).unwrap()
    }

    #[test]
    fn the_later_option_counts() {
        assert!(!parse("ro,rw").read_only());
        assert!(parse("rw,ro").read_only());
        let flags = parse("nosuid,suid,exec,noexec").flags(MountFlags::empty());
        assert_eq!(flags, MountFlags::NOEXEC);
    }

    #[test]
    fn one_kind_of_access_time_at_a_time() {
        let flags = parse("noatime,relatime").flags(MountFlags::NOATIME);
        assert_eq!(flags, MountFlags::RELATIME);
    }

    #[test]
    fn a_remount_keeps_what_it_does_not_name() {
        let present = MountFlags::NOSUID | MountFlags::RDONLY;
        assert_eq!(parse("remount,rw").flags(present), MountFlags::NOSUID);
        assert_eq!(parse("remount,ro").flags(MountFlags::NODEV), MountFlags::NODEV | MountFlags::RDONLY);
    }

    #[test]
    fn what_fstab_and_the_kernel_add_is_ignored() {
        let shown = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=16777216";
        assert_eq!(parse(shown).set, MountFlags::RELATIME);
        assert_eq!(parse("defaults,nofail,_netdev,x-systemd.automount,user=root"), MountOptions::default());
    }

    #[test]
    fn values_are_read() {
        let options = parse("config=/etc/avfs.toml,cache_size=512M,log=/var/log/avfs,transport=ring,remount");
        assert_eq!(options.config, Some("/etc/avfs.toml".into()));
        assert_eq!(options.cache_size, Some(Bytes::from_mib(512)));
        assert_eq!(options.log, Some("/var/log/avfs".into()));
        assert_eq!((options.transport, parse("rw").transport), (Some(Transport::Ring), None));
        assert!(options.remount);
        let fenced = parse("fenced=0a0b0c0d-0000-4000-8000-000000000001").fenced;
        assert_eq!(fenced.unwrap().as_bytes()[..4], [10, 11, 12, 13]);
    }

    #[test]
    fn an_option_that_holds_as_long_as_the_mount_is_told_from_one_that_was_given() {
        let with = parse("cache_size=128M,log=/var/log/avfs").lasting();
        for same in ["", "ro,noatime", "cache_size=128M", "log=/var/log/avfs,transport=device"] {
            assert_eq!(parse(same).differs(&with), None, "{same}");
        }
        for other in ["cache_size=256M", "config=/etc/avfs.toml", "log=/elsewhere", "transport=ring"] {
            assert!(parse(other).differs(&with).is_some(), "{other}");
        }
        assert_eq!(parse("config=/a b").differs(&with).unwrap(), "config=/a b");
        let with = parse("transport=ring").lasting();
        assert_eq!(parse("transport=ring").differs(&with), None);
        assert_eq!(parse("transport=device").differs(&with).unwrap(), "transport=device");
    }

    #[test]
    fn an_unknown_option_is_named() {
        let refused = MountOptions::parse("rw,stripe=4", false).unwrap_err();
        assert_eq!(refused, "unknown mount option `stripe=4`; see mount.avfs(8)");
        assert!(MountOptions::parse("rw,stripe=4", true).is_ok());
        assert!(
            MountOptions::parse("cache_size=lots", false)
                .unwrap_err()
                .starts_with("cache_size: \"lots\": expected a size")
        );
        // 1 KiB once became 64 MiB without a word.
        let refused = MountOptions::parse("cache_size=1K", false).unwrap_err();
        assert_eq!(refused, "cache_size: 1 KiB is outside of 64 MiB to 16 TiB");
        for holder in ["nas-1", "00000000-0000-0000-0000-000000000000"] {
            let refused = MountOptions::parse(&format!("fenced={holder}"), false).unwrap_err();
            assert_eq!(refused, format!("fenced: `{holder}` is no holder, as `avfsctl holder` shows it"));
        }
        let refused = MountOptions::parse("transport=pigeon", false).unwrap_err();
        assert_eq!(refused, "transport: `pigeon` is none of device, ring");
    }
}
