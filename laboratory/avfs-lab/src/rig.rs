//! What stands under a run: LUN, loop device, filesystem, file server.
//!
//! **For:** putting a contender on a new LUN, mounting and sharing it, and taking all of it away. **Excludes:** clients, and
//! what is measured. **State:** the LUN's process, the loop device, the mount, smbd; each is taken down when dropped, in
//! turn. **Invariants:** nothing outlives the rig; a run that is killed leaves no loop device behind, because the device
//! clears itself, and notes of what it changed of the device's settings.

mod file_server;
mod lun_process;
mod support;

pub use file_server::FileServer;
pub use lun_process::LunProcess;
pub use support::RigError;
use support::{await_until, file, run};

use crate::avfs::{self, AvfsReport};
use crate::loop_device::{self, LoopDevice};
use crate::lun::{Counters, Mode};
use crate::processor::ProcessorTime;
use avfs_workloads::ClientSpec;
use avfs_workloads::{Contender, Declaration};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use units::Bytes;

/// What a LUN takes from its host at once.
pub const QUEUE_DEPTH: u32 = 32;

/// A new directory below that for temporary files, which goes when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// Those of the directory above.
    pub fn new() -> Result<Self, RigError> {
        let path = std::env::temp_dir().join(format!("avfs-lab-{}", std::process::id()));
        fs::create_dir(&path).map_err(file(&path))?;
        Ok(Self(path))
    }

    /// Where a loop device notes its settings; the script that starts this command knows the name.
    pub fn notes(&self, number: usize) -> PathBuf {
        self.0.join(format!("loop{number}.settings"))
    }

    /// A new directory in it.
    ///
    /// # Errors
    /// When it is there.
    pub fn directory(&self, name: &str) -> Result<PathBuf, RigError> {
        let path = self.0.join(name);
        fs::create_dir(&path).map_err(file(&path))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Only what is its own: a mount that did not go makes this fail, and keeps its files.
        if let Err(error) = remove(&self.0) {
            eprintln!("avfs-lab: {} stays: {error}", self.0.display());
        }
    }
}

/// As `rm -r`, on one filesystem: the directory of a mount cannot be removed, and nothing in it is touched.
fn remove(directory: &Path) -> io::Result<()> {
    run(Command::new("rm").args(["-r", "-f", "--one-file-system"]).arg(directory))
        .map_err(|error| io::Error::other(error.to_string()))
        .map(drop)
}

/// A contender on a LUN of its own. Fields are dropped in turn.
#[derive(Debug)]
pub struct Rig {
    mounted: Option<Mounted>,
    device: LoopDevice,
    lun: LunProcess,
    contender: Contender,
    volume: PathBuf,
    samba: PathBuf,
    config: Option<PathBuf>,
}

impl Rig {
    /// A new LUN with the contender's filesystem on it, not mounted, its model switched off.
    ///
    /// # Errors
    /// When a part of it fails.
    pub fn build(
        scratch: &Scratch,
        number: usize,
        declaration: &Declaration,
        contender: &Contender,
    ) -> Result<Self, RigError> {
        let place = |what: &str| scratch.directory(&format!("{what}{number}"));
        let told = ["--profile", &declaration.device, "--size-gib", &declaration.size_gib.to_string()];
        let lun = LunProcess::start(&told.map(OsString::from), &place("lun")?)?;
        let mut device = LoopDevice::attach(&lun.device(), scratch.notes(number))?;
        device.set_queue(QUEUE_DEPTH, &contender.scheduler)?;
        // As a SCSI LUN tells its host; Btrfs, for one, places and writes otherwise on what does not turn, and the kernel
        // reads further ahead on what does.
        let arms = crate::experiment::device(declaration)?.turns();
        device.set("rotational", if arms { "1" } else { "0" })?;
        for (attribute, value) in &contender.queue {
            device.set(attribute, value)?;
        }
        device.limit_dirty(Bytes::from_mib(contender.dirty_mib))?;
        let samba = place("samba")?;
        let text = contender.config.as_deref().or(contender.calibrated.then_some(""));
        let config = text.map(|text| {
            let path = samba.join("volume.toml");
            fs::write(&path, text).map_err(file(&path)).map(|()| path)
        });
        let mut rig = Self {
            mounted: None,
            device,
            lun,
            contender: contender.clone(),
            volume: place("volume")?,
            samba,
            config: config.transpose()?,
        };
        rig.calibrate()?;
        rig.set_modelled(false)?;
        rig.format()?;
        rig.mount()?;
        for command in &contender.prepare {
            let command = command.replace("{}", &rig.share().display().to_string());
            run(Command::new("sh").args(["-c", &command]))?;
        }
        rig.unmount();
        Ok(rig)
    }

    /// Has the LUN measured, if the contender is to know it, as who makes a volume can (`mkfs.avfs --calibrate`).
    fn calibrate(&self) -> Result<(), RigError> {
        let Some(config) = self.config.as_ref().filter(|_| self.contender.calibrated) else { return Ok(()) };
        self.lun.set_mode(Mode::Forgetful)?;
        let mut calibrate = Command::new("avfsctl");
        calibrate.args(["calibrate", "--destructive", "--seconds", "60", "--config"]).arg(config);
        run(calibrate.arg(self.device.path())).map(drop)
    }

    fn format(&self) -> Result<(), RigError> {
        let filesystem = self.contender.filesystem.as_str();
        let standing: &[&str] = match filesystem {
            // What is left for later would be done during the first runs.
            "ext4" => &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            "xfs" | "btrfs" => &["-q", "-f"],
            _ => &["--force"],
        };
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        run(mkfs.args(standing).args(&self.contender.mkfs).arg(self.device.path())).map(drop)
    }

    /// Mounts with nothing in memory.
    ///
    /// # Errors
    /// When mount(8) fails.
    pub fn mount(&mut self) -> Result<(), RigError> {
        let mut options = self.contender.mount.clone();
        options.extend(self.config.iter().map(|path| format!("config={}", path.display())));
        if self.contender.filesystem == "avfs" {
            options.push(format!("log={}", self.samba.join("volume.log").display()));
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", &self.contender.filesystem]);
        if !options.is_empty() {
            mount.args(["-o", &options.join(",")]);
        }
        run(mount.arg(self.device.path()).arg(&self.volume))?;
        self.mounted = Some(Mounted(self.volume.clone()));
        self.limit_dirty_of_btrfs()?;
        let share = self.share();
        if !share.is_dir() {
            fs::create_dir(&share).map_err(file(&share))?;
        }
        Ok(())
    }

    /// Btrfs may lie on several devices, so its dirty pages are not those of the device. The limit goes with the mount.
    fn limit_dirty_of_btrfs(&self) -> Result<(), RigError> {
        if self.contender.filesystem != "btrfs" {
            return Ok(());
        }
        let volumes = Path::new("/sys/fs/btrfs");
        let device = Path::new("devices").join(self.device.path().file_name().unwrap_or_default());
        for volume in fs::read_dir(volumes).map_err(file(volumes))? {
            let volume = volume.map_err(file(volumes))?.path();
            if volume.join(&device).exists() {
                loop_device::limit_dirty(&volume.join("bdi"), Bytes::from_mib(self.contender.dirty_mib))?;
            }
        }
        Ok(())
    }

    /// Unmounts; everything is on the device then.
    pub fn unmount(&mut self) {
        self.mounted = None;
    }

    /// The directory that is shared.
    pub fn share(&self) -> PathBuf {
        self.volume.join("share")
    }

    /// A directory of the volume that is not shared.
    pub fn beside_share(&self, name: &str) -> PathBuf {
        self.volume.join(name)
    }

    /// Removes what a run wrote, all but the files of these names, and gives the space back to the LUN where the filesystem
    /// can.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn remove_written<T>(&self, laid: &BTreeMap<String, T>) -> Result<(), RigError> {
        let share = self.share();
        for entry in fs::read_dir(&share).map_err(file(&share))? {
            let client = entry.map_err(file(&share))?;
            let directory = client.path();
            for entry in fs::read_dir(&directory).map_err(file(&directory))? {
                let entry = entry.map_err(file(&directory))?;
                let name = format!(
                    "{}/{}",
                    client.file_name().to_string_lossy(),
                    entry.file_name().to_string_lossy()
                );
                if !laid.contains_key(&name) {
                    fs::remove_file(entry.path()).map_err(file(&entry.path()))?;
                }
            }
        }
        // AVFS tells its device nothing about free space.
        let _ = run(Command::new("fstrim").arg(&self.volume));
        Ok(())
    }

    /// What the volume says of itself, if it is one of AVFS.
    ///
    /// # Errors
    /// When it does not answer, or what it says is not understood.
    pub fn avfs_report(&self) -> Result<Option<AvfsReport>, RigError> {
        self.ask_avfs(AvfsReport::parse)
    }

    /// Of these clients who has a reservation, if the volume is one of AVFS.
    ///
    /// # Errors
    /// As [`Rig::avfs_report`].
    pub fn have_reservations(&self, clients: &[ClientSpec]) -> Result<Option<Vec<bool>>, RigError> {
        let Some(reserved) = self.ask_avfs(avfs::reserved)? else { return Ok(None) };
        let has = |client: &ClientSpec| {
            client.stream().is_some_and(|(place, writes)| {
                // Who has not begun yet has recorded nothing.
                let file = fs::metadata(self.share().join(place));
                file.is_ok_and(|file| reserved.contains(&(file.ino(), writes)))
            })
        };
        Ok(Some(clients.iter().map(has).collect()))
    }

    /// The process that serves the mounted volume, where the kernel does not do it itself.
    ///
    /// # Errors
    /// As [`Rig::avfs_report`].
    pub fn daemon(&self) -> Result<Option<u32>, RigError> {
        self.ask_avfs(avfs::daemon)
    }

    fn ask_avfs<T>(&self, parse: fn(&str) -> Result<T, serde_json::Error>) -> Result<Option<T>, RigError> {
        if self.contender.filesystem != "avfs" {
            return Ok(None);
        }
        let text = run(Command::new("avfsctl").args(["info", "--json"]).arg(&self.volume))?;
        parse(&text).map(Some).map_err(|error| file(Path::new("avfsctl info --json"))(error.into()))
    }

    /// Switches the LUN's model on or off.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn set_modelled(&self, modelled: bool) -> Result<(), RigError> {
        self.lun.set_mode(if modelled { Mode::Modelled } else { Mode::Fast })
    }

    /// What the LUN did so far.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn counters(&self) -> Result<Counters, RigError> {
        self.lun.counters()
    }

    /// What the machine's processors did so far; the LUN's process and this one, where the clients are, do not count.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn processor_time(&self) -> Result<ProcessorTime, RigError> {
        let emulation = [self.lun.id(), std::process::id()];
        ProcessorTime::now(&emulation).map_err(file(Path::new("/proc")))
    }

    /// Waits until the device has nothing left to write back of what came before.
    ///
    /// # Errors
    /// When the LUN is gone, or does not come to rest.
    pub fn await_rest(&self) -> Result<(), RigError> {
        let mut counters = self.counters();
        let rests = await_until(|| {
            counters = self.counters();
            counters.as_ref().map_or(true, |counters| !counters.at_work)
        });
        counters?;
        let absent =
            || RigError::Absent { what: "the next run", said: "the LUN does not come to rest".to_owned() };
        if rests { Ok(()) } else { Err(absent()) }
    }

    /// Shares the mounted volume with everybody on this machine.
    ///
    /// # Errors
    /// When smbd does not start.
    pub fn serve(&self) -> Result<FileServer, RigError> {
        FileServer::start(&self.samba, &self.share(), &self.contender)
    }
}

#[derive(Debug)]
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // What just ended may hold it a moment longer.
        let mut said = String::new();
        let gone = await_until(|| match run(Command::new("umount").arg(&self.0)) {
            Ok(_) => true,
            Err(error) => {
                said = error.to_string();
                false
            }
        });
        if !gone {
            eprintln!("avfs-lab: {said}");
        }
    }
}
