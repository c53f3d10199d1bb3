//! `avfs-lab`: the laboratory's command.

use avfs_lab::calibrate;
use avfs_lab::loop_device::LoopDevice;
use avfs_lab::lun::{Lun, LunOptions};
use clap::{Parser, Subcommand};
use rtsched_sim::device::DeviceSpec;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use units::Bytes;

/// Measures how many editors a volume carries. Must run as root where it mounts.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a modelled LUN as the file MOUNTPOINT/lun, until it is unmounted.
    Lun {
        #[command(flatten)]
        lun: LunArguments,
        /// A directory. `echo fast > MOUNTPOINT/control` switches the model off, `modelled` on.
        mountpoint: PathBuf,
    },
    /// Measure random reads and writes beside Table 5 of the paper: of a modelled LUN, or of a block device.
    Calibrate {
        #[command(flatten)]
        lun: LunArguments,
        /// A block device to measure instead of a modelled LUN. Its content is lost.
        #[arg(long)]
        device: Option<PathBuf>,
        /// Seconds for each of the fourteen cells.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
}

#[derive(clap::Args)]
struct LunArguments {
    /// A device that rtsched-sim declares, or the path of a declaration (.toml).
    #[arg(long, default_value = "raid5-table5")]
    profile: String,
    /// Size in GiB.
    #[arg(long, default_value_t = 64)]
    size_gib: u64,
    /// A sparse file for the data. Default: memory.
    #[arg(long)]
    backing: Option<PathBuf>,
    /// A file for a JSON line about each device request.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Of what the model draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl LunArguments {
    fn options(&self) -> Result<LunOptions, Box<dyn Error>> {
        Ok(LunOptions {
            spec: DeviceSpec::named(&self.profile)?,
            size: Bytes(self.size_gib << 30),
            backing: self.backing.clone(),
            log: self.log.clone(),
            seed: self.seed,
        })
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("avfs-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Lun { lun, mountpoint } => Ok(Lun::mount(&lun.options()?, &mountpoint)?.serve()?),
        Command::Calibrate { lun, device, seconds } => calibrate(&lun, device.as_deref(), seconds),
    }
}

fn calibrate(lun: &LunArguments, device: Option<&Path>, seconds: f64) -> Result<(), Box<dyn Error>> {
    let seconds = Duration::try_from_secs_f64(seconds)?;
    let measure = |device: &Path, size| {
        calibrate::table_5(device, size, seconds, lun.seed, |cell| eprintln!("{}", calibrate::line(cell)))
    };
    let cells = match device {
        Some(device) => {
            let size = std::fs::File::open(device)
                .and_then(|mut file| std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)))?;
            measure(device, Bytes(size))?
        }
        None => {
            let options = lun.options()?;
            let mountpoint = rig_directory("lun")?;
            let lun = Lun::mount(&options, &mountpoint)?;
            let device = LoopDevice::attach(&mountpoint.join("lun"))?;
            device.set_queue(32, "none")?;
            let cells = measure(device.path(), options.size);
            drop(device);
            drop(lun);
            std::fs::remove_dir(&mountpoint)?;
            cells?
        }
    };
    print!("{}", calibrate::markdown(&cells));
    let beyond = cells.iter().filter(|cell| !cell.holds()).count();
    if beyond > 0 { Err(format!("{beyond} cells are beyond their bounds").into()) } else { Ok(()) }
}

/// A new directory for this process, under the directory for temporary files.
fn rig_directory(name: &str) -> std::io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("avfs-lab-{}-{name}", std::process::id()));
    std::fs::create_dir(&path)?;
    Ok(path)
}
