//! What stands under a run: LUN, loop device, filesystem, file server.
//!
//! **For:** putting a contender on a new LUN, mounting and sharing it, and taking all of it away. **Excludes:** clients, and
//! what is measured. **State:** the LUN's process, the loop device, the mount, smbd; each is taken down when dropped, in
//! turn. **Invariants:** nothing outlives the rig; a run that is killed leaves no loop device behind, because the device
//! clears itself, and notes of what it changed of the device's settings.

use crate::experiment::{Contender, Declaration};
use crate::loop_device::{self, LoopDevice, LoopError};
use crate::lun::Counters;
use crate::processor::ProcessorTime;
use rtsched_sim::device::{DeviceError, ModelSpec};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;
use thiserror::Error;
use units::{Bytes, Duration};

/// What a LUN takes from its host at once.
pub(crate) const QUEUE_DEPTH: u32 = 32;

/// The kernel's dirty pages of a contender. More of them would measure memory: a run would be over before the device
/// is asked.
const DIRTY: Bytes = Bytes::from_mib(256);

/// How long a part of the rig may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no rig.
#[derive(Debug, Error)]
pub enum RigError {
    /// A command failed.
    #[error("{command}: {said}")]
    Command {
        /// As it was called.
        command: String,
        /// What it said.
        said: String,
    },
    /// A file or directory of the rig.
    #[error("{place}: {source}")]
    File {
        /// Which.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The model.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The block device.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A part did not come.
    #[error("{what} did not start: {said}")]
    Absent {
        /// Which.
        what: &'static str,
        /// The last it said.
        said: String,
    },
}

fn file(place: &Path) -> impl FnOnce(io::Error) -> RigError {
    let place = place.display().to_string();
    move |source| RigError::File { place, source }
}

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

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<String, RigError> {
    let called = || {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let called = called();
    let output = command.stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| RigError::Command { command: called.clone(), said: error.to_string() })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(RigError::Command { command: called, said })
}

/// Asks `ready` again and again until it says yes, or patience ends.
fn await_until(mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
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
        let lun = LunProcess::start(declaration, &place("lun")?)?;
        let mut device = LoopDevice::attach(&lun.mountpoint.join("lun"), scratch.notes(number))?;
        device.set_queue(QUEUE_DEPTH, &contender.scheduler)?;
        // As a SCSI LUN tells its host; Btrfs, for one, places and writes otherwise on what does not turn, and the kernel
        // reads further ahead on what does.
        let arms = matches!(declaration.device()?.model, ModelSpec::Disk(_));
        device.set("rotational", if arms { "1" } else { "0" })?;
        for (attribute, value) in &contender.queue {
            device.set(attribute, value)?;
        }
        device.limit_dirty(DIRTY)?;
        let samba = place("samba")?;
        let config = contender.config.as_ref().map(|text| {
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
                loop_device::limit_dirty(&volume.join("bdi"), DIRTY)?;
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

    /// Removes what a run wrote, and gives the space back to the LUN where the filesystem can.
    ///
    /// # Errors
    /// When the files cannot be removed.
    pub fn remove_written(&self) -> Result<(), RigError> {
        let share = self.share();
        for entry in fs::read_dir(&share).map_err(file(&share))? {
            let path = entry.map_err(file(&share))?.path();
            let holds_clips = ["clip.mov", "shot.000000.dpx"].iter().any(|name| path.join(name).exists());
            if !holds_clips {
                fs::remove_dir_all(&path).map_err(file(&path))?;
            }
        }
        // AVFS tells its device nothing about free space.
        let _ = run(Command::new("fstrim").arg(&self.volume));
        Ok(())
    }

    /// Switches the LUN's model on or off.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn set_modelled(&self, modelled: bool) -> Result<(), RigError> {
        let control = self.lun.mountpoint.join("control");
        fs::write(&control, if modelled { "modelled" } else { "fast" }).map_err(file(&control))
    }

    /// What the LUN did so far.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn counters(&self) -> Result<Counters, RigError> {
        let place = self.lun.mountpoint.join("counters");
        let text = fs::read(&place).map_err(file(&place))?;
        serde_json::from_slice(&text).map_err(|error| file(&place)(error.into()))
    }

    /// What the machine's processors did so far; the LUN's process and this one, where the clients are, do not count.
    ///
    /// # Errors
    /// When the LUN is gone.
    pub fn processor_time(&self) -> Result<ProcessorTime, RigError> {
        let emulation = [self.lun.child.id(), std::process::id()];
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

/// The LUN in a process of its own: the kernel writes to it even while the clients' process ends.
#[derive(Debug)]
struct LunProcess {
    child: Child,
    mountpoint: PathBuf,
}

impl LunProcess {
    fn start(declaration: &Declaration, mountpoint: &Path) -> Result<Self, RigError> {
        let own = std::env::current_exe().map_err(file(Path::new("/proc/self/exe")))?;
        // Before everything else on this machine: a device does not wait for its host's processors.
        let mut command = Command::new("chrt");
        command.args(["--fifo", "50"]).arg(own).arg("lun");
        command.args(["--profile", &declaration.device, "--size-gib", &declaration.size_gib.to_string()]);
        let child = command.arg(mountpoint).stdin(Stdio::null()).spawn().map_err(file(mountpoint))?;
        let mut process = Self { child, mountpoint: mountpoint.to_owned() };
        let there = mountpoint.join("lun");
        let mut ended = false;
        await_until(|| {
            ended = !matches!(process.child.try_wait(), Ok(None));
            ended || there.exists()
        });
        if ended || !there.exists() {
            Err(RigError::Absent { what: "the LUN", said: "see above".to_owned() })
        } else {
            Ok(process)
        }
    }
}

impl Drop for LunProcess {
    fn drop(&mut self) {
        let unmounted = run(Command::new("umount").arg(&self.mountpoint));
        if let Err(error) = unmounted {
            eprintln!("avfs-lab: {error}");
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Stock smbd on a free port of the loopback interface, with a configuration and state of its own.
#[derive(Debug)]
pub struct FileServer {
    child: Child,
    address: SocketAddr,
}

impl FileServer {
    /// The name of the share.
    pub const SHARE: &'static str = "media";

    fn start(directory: &Path, share: &Path, contender: &Contender) -> Result<Self, RigError> {
        let address = free_port().map_err(file(Path::new("a port of 127.0.0.1")))?;
        let configuration = directory.join("smb.conf");
        let state = directory.join("state");
        fs::create_dir_all(&state).map_err(file(&state))?;
        fs::write(&configuration, smb_conf(&state, share, address.port(), contender))
            .map_err(file(&configuration))?;
        let log = directory.join("smbd.log");
        let output = fs::File::create(&log).map_err(file(&log))?;
        let errors = output.try_clone().map_err(file(&log))?;
        let mut command = Command::new("smbd");
        // It makes a session of its own, which is well, because at its end it signals the whole process group.
        command.arg("--foreground");
        command.arg(format!("--configfile={}", configuration.display()));
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child = command.spawn().map_err(file(Path::new("smbd")))?;
        let mut ended = false;
        await_until(|| {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || TcpStream::connect(address).is_ok()
        });
        let server = Self { child, address };
        if !ended {
            return Ok(server);
        }
        let said =
            [log, state.join("log.smbd")].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
        Err(RigError::Absent { what: "smbd", said: last.to_owned() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        // TERM lets smbd take its children with it; it is asked through kill(1), by its own number.
        let asked = run(Command::new("kill").arg(self.child.id().to_string()));
        let ended = asked.is_ok() && await_until(|| !matches!(self.child.try_wait(), Ok(None)));
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn smb_conf(state: &Path, share: &Path, port: u16, contender: &Contender) -> String {
    let (state, share) = (state.display(), share.display());
    let mut text = format!(
        "[global]\n\
         workgroup = AVFS\nnetbios name = LABORATORY\nserver role = standalone server\n\
         interfaces = 127.0.0.1/8\nbind interfaces only = yes\nsmb ports = {port}\ndisable netbios = yes\n\
         load printers = no\nprintcap name = /dev/null\ndisable spoolss = yes\n\
         private dir = {state}\nlock directory = {state}\nstate directory = {state}\ncache directory = {state}\n\
         pid directory = {state}\nncalrpc dir = {state}/ncalrpc\nusershare path =\n\
         log file = {state}/log.smbd\nlogging = file\nmax log size = 1000\n\
         map to guest = Bad User\nguest account = root\n\
         kernel oplocks = no\nkernel share modes = no\nposix locking = no\nuse sendfile = no\n\
         [{}]\npath = {share}\nread only = no\nguest ok = yes\n",
        FileServer::SHARE
    );
    for (name, value) in &contender.share {
        text += &format!("{name} = {value}\n");
    }
    text
}
