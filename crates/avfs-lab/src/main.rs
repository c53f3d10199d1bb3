//! `avfs-lab`: the laboratory's command.

use avfs_lab::calibrate;
use avfs_lab::experiment::{DECLARED, Declaration, Experiment};
use avfs_lab::load::{self, Client, ClientSpec, Pattern, Transport};
use avfs_lab::local::LocalTransport;
use avfs_lab::loop_device::LoopDevice;
use avfs_lab::lun::{Lun, LunOptions};
use avfs_lab::rig::Scratch;
use avfs_lab::smb::SmbTransport;
use avfs_lab::{report, run};
use clap::{Parser, Subcommand};
use rtsched_sim::device::DeviceSpec;
use std::error::Error;
use std::net::ToSocketAddrs;
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
        /// Seconds for each of the fourteen cells, at least; the small reads take longer to be known well enough.
        #[arg(long, default_value_t = 12.0)]
        seconds: f64,
    },
    /// Carry out the experiments of a declaration, or what is missing of them, and write the report.
    Run {
        /// One that comes with this command (paper, paper-quick, smoke), or the path of one (.toml).
        declaration: String,
        /// Where results, report and figures go: NAME.jsonl, NAME.md, NAME-….svg.
        #[arg(long, default_value = ".")]
        out: PathBuf,
        /// Only write the report of what was measured so far.
        #[arg(long)]
        report_only: bool,
    },
    /// Run clients of one kind against a share that lets anybody in, or a directory; print a JSON line about each.
    Play {
        /// `HOST:PORT/SHARE` of a file server, or the path of a directory.
        place: String,
        /// How many.
        #[arg(long, default_value_t = 1)]
        clients: usize,
        /// What they do, in TOML, such as `{ kind = "player", megabits = 100, unit_kib = 1024, buffer_ms = 1000 }`.
        #[arg(long)]
        pattern: String,
        /// Seconds.
        #[arg(long, default_value_t = 20.0)]
        seconds: f64,
        /// Length of each client's clip, MiB; it is made first.
        #[arg(long, default_value_t = 256)]
        clip_mib: u64,
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
    match carry_out(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("avfs-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Lun { lun, mountpoint } => Ok(Lun::mount(&lun.options()?, &mountpoint)?.serve()?),
        Command::Calibrate { lun, device, seconds } => calibrate(&lun, device.as_deref(), seconds),
        Command::Run { declaration, out, report_only } => experiments(&declaration, &out, report_only),
        Command::Play { place, clients, pattern, seconds, clip_mib } => {
            play(&place, clients, &pattern, Duration::try_from_secs_f64(seconds)?, Bytes::from_mib(clip_mib))
        }
    }
}

fn experiments(name: &str, out: &Path, report_only: bool) -> Result<(), Box<dyn Error>> {
    let text = match DECLARED.iter().find(|(declared, _)| *declared == name) {
        Some((_, text)) => (*text).to_owned(),
        None if name.ends_with(".toml") => {
            std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?
        }
        None => {
            let names: Vec<_> = DECLARED.iter().map(|(declared, _)| *declared).collect();
            return Err(format!(
                "no experiments are called {name}: it is one of {}, or the path of a .toml file",
                names.join(", ")
            )
            .into());
        }
    };
    let declaration = Declaration::parse(&text)?;
    std::fs::create_dir_all(out)?;
    let results = out.join(format!("{}.jsonl", declaration.name));
    let ended = if report_only { Ok(()) } else { run::carry_out(&declaration, &text, &results) };
    // What was measured until then is reported in any case.
    let points = run::points(&results, run::identity(&text))?;
    let figure = |experiment: &Experiment| {
        let plain = experiment.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        format!("{}-{plain}.svg", declaration.name)
    };
    for experiment in &declaration.experiments {
        std::fs::write(out.join(figure(experiment)), report::svg(&declaration, experiment, &points))?;
    }
    let report = report::markdown(&declaration, &points, &facts(), figure);
    let place = out.join(format!("{}.md", declaration.name));
    std::fs::write(&place, report)?;
    eprintln!("{} points of {}: {}", points.len(), declaration.name, place.display());
    ended
}

/// Machine, versions and commit, as far as they can be found out.
fn facts() -> Vec<String> {
    let said = |command: &str, arguments: &[&str]| {
        let output = std::process::Command::new(command).args(arguments).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned())
    };
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |path: &str, key: &str| {
        let text = file(path);
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let machine = value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let mut facts = vec![
        format!(
            "Machine: {cores} cores, {machine}, {} of memory",
            value("/proc/meminfo", "MemTotal").unwrap_or_default()
        ),
        format!("Load before: {}", file("/proc/loadavg").split(' ').next().unwrap_or_default()),
        format!("Linux {}", file("/proc/sys/kernel/osrelease").trim()),
    ];
    let commands: [(&str, &[&str]); 5] = [
        ("smbd", &["--version"]),
        ("mkfs.ext4", &["-V"]),
        ("mkfs.xfs", &["-V"]),
        ("mkfs.btrfs", &["-V"]),
        ("mkfs.avfs", &["--version"]),
    ];
    facts.extend(commands.iter().filter_map(|(command, arguments)| said(command, arguments)));
    if let Some(commit) = said("git", &["describe", "--always", "--dirty"]) {
        facts.push(format!("Commit {commit}"));
    }
    facts.extend(said("date", &["--utc", "+%F %R UTC"]));
    facts
}

fn play(
    place: &str,
    clients: usize,
    pattern: &str,
    duration: Duration,
    clip: Bytes,
) -> Result<(), Box<dyn Error>> {
    #[derive(serde::Deserialize)]
    struct Given {
        pattern: Pattern,
    }
    let Given { pattern } = toml::from_str(&format!("pattern = {pattern}"))?;
    pattern.check()?;
    let specs: Vec<ClientSpec> = (0..clients)
        .map(|index| ClientSpec {
            directory: format!("client{index:02}"),
            pattern: pattern.clone(),
            start_after: Duration::from_millis(250 * index as u64),
            clip,
            position: (index as f64 * 0.618).fract(),
        })
        .collect();
    let connect = |clients| -> Result<Box<dyn Transport>, Box<dyn Error>> {
        if place.starts_with(['/', '.']) {
            return Ok(Box::new(LocalTransport::start(Path::new(place), clients)?));
        }
        let (server, share) = place.split_once('/').ok_or("the place is no HOST:PORT/SHARE and no path")?;
        let server = server.to_socket_addrs()?.next().ok_or("the host has no address")?;
        Ok(Box::new(SmbTransport::connect(server, share, clients)?))
    };
    let mut laying = vec![Client::laying(specs.iter().flat_map(ClientSpec::needs).collect())];
    let laid = load::run(connect(1)?.as_mut(), &mut laying, Duration::from_secs(3600), |_| {})?;
    if let Some(error) = &laid[0].first_error {
        return Err(format!("the clips cannot be made: {error}").into());
    }
    let mut clients: Vec<Client> = specs.iter().map(Client::new).collect();
    for report in load::run(connect(specs.len())?.as_mut(), &mut clients, duration, |_| {})? {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
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
            let scratch = Scratch::new()?;
            let mountpoint = scratch.directory("lun")?;
            let lun = Lun::mount(&options, &mountpoint)?;
            let mut device = LoopDevice::attach(&mountpoint.join("lun"))?;
            device.set_queue(32, "none")?;
            let cells = measure(device.path(), options.size);
            drop(device);
            drop(lun);
            cells?
        }
    };
    print!("{}", calibrate::markdown(&cells));
    let beyond = cells.iter().filter(|cell| !cell.holds()).count();
    if beyond > 0 { Err(format!("{beyond} cells are beyond their bounds").into()) } else { Ok(()) }
}
