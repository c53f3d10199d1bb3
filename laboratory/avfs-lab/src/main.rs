//! `avfs-lab`: the laboratory's command.

use avfs_io::trace::Part;
use avfs_lab::agree;
use avfs_lab::calibrate;
use avfs_lab::experiment::{self, DECLARED};
use avfs_lab::facts;
use avfs_lab::figure;
use avfs_lab::golden;
use avfs_lab::local::LocalTransport;
use avfs_lab::loop_device::LoopDevice;
use avfs_lab::lun::{Lun, LunOptions, REACTION};
use avfs_lab::planning;
use avfs_lab::rehearsal::{self, holdings::Stage};
use avfs_lab::report::{self, Head, Measured};
use avfs_lab::results::Results;
use avfs_lab::rig::{self, LunProcess, Scratch};
use avfs_lab::run;
use avfs_lab::smb::SmbTransport;
use avfs_plan::recording::{Recording, Writer};
use avfs_workloads::Declaration;
use avfs_workloads::{Client, ClientSpec, Pattern, Transport};
use clap::{Parser, Subcommand};
use rtsched_sim::device::DeviceSpec;
use rtsched_sim::workload::Scenario;
use std::error::Error;
use std::ffi::OsString;
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
        /// A request that comes so long after an answer still counts as the host's reaction to it, microseconds.
        #[arg(long, default_value_t = REACTION.as_micros() as u64)]
        reaction_us: u64,
        /// A directory. `echo fast > MOUNTPOINT/control` switches the model off, `modelled` on; `forgetful` keeps nothing that is written. Faults are commanded there, too: `refuse read|write OFFSET LENGTH`, `refuse flush`, `short BYTES`, `end BYTES`, `late SECONDS`, `heal`.
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
    /// Run a workload in the simulator and through the engine on the modelled LUN, and compare.
    Agree {
        /// Workloads that come with this command (inside, full), or paths of scenarios (.toml). Default: all.
        workloads: Vec<String>,
        /// The short form of each.
        #[arg(long)]
        short: bool,
        /// Of what the model and the clients draw.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Carry out the experiments of a declaration, or what is missing of them, and write the report.
    Run {
        /// One that comes with this command (paper, paper-quick, copy-quick, copy-one, avfs-quick, mixed, avfs-mixed, recorders, processor, editing, ceiling, smoke), or the path of one (.toml).
        declaration: String,
        /// Where results, report and figures go: NAME.jsonl, NAME.md, NAME/.
        #[arg(long, default_value = ".")]
        out: PathBuf,
    },
    /// Carry out the experiments of a declaration on AVFS in virtual time, without kernel, Samba and clock.
    Rehearse {
        /// As that of `run`.
        declaration: String,
        /// With so many clients, instead of searching for the largest number.
        #[arg(long)]
        clients: Option<u32>,
        /// Show each command that the device is given, too.
        #[arg(long)]
        commands: bool,
        /// With --clients: keep a recording of the first experiment in this file, for `avfsctl trace` and `simulate`.
        #[arg(long, requires = "clients")]
        record: Option<PathBuf>,
    },
    /// The golden set: experiments on six devices with many seeds in virtual time, beside the table that was kept. Ends with 0 when all
    /// commands of all devices are the same.
    Golden {
        /// Only the first seed, and only the hashes of what the devices are told.
        #[arg(long)]
        short: bool,
        /// Seeds of each cell.
        #[arg(long, default_value_t = 100)]
        seeds: u32,
        /// Only cells whose names contain this.
        #[arg(long)]
        only: Option<String>,
        /// Threads. Default: as many as there are processors.
        #[arg(long)]
        workers: Option<usize>,
        /// Compare with what was kept instead of keeping the result there: equal, or which cells differ and whether any is worse.
        #[arg(long)]
        compare: bool,
        /// With --short: keep the hashes instead of comparing them.
        #[arg(long)]
        keep: bool,
        /// A change of policy is compared: end with 0 also when commands differ and nothing is worse.
        #[arg(long)]
        policy: bool,
        /// Take this table instead of running anything, and compare it.
        #[arg(long)]
        table: Option<PathBuf>,
        /// Where table.txt and hashes.txt are kept.
        #[arg(long, default_value = "laboratory/golden")]
        kept: PathBuf,
        /// With --compare: where the table of this run goes.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// What `avfsctl plan` says of devices beside what they carry in virtual time. Ends with 0 when all agree within one stream.
    Plan {
        /// Players alone and beside a copy, on three devices, one search each.
        #[arg(long)]
        short: bool,
        /// Only cases whose lines contain this, such as `nvme`.
        #[arg(long)]
        only: Option<String>,
    },
    /// What streams hold of the memory, beside what they may, with 1 to 200 players and recorders, in virtual time.
    Memory {
        /// Numbers of clients.
        #[arg(long, value_delimiter = ',', default_value = "1,2,5,10,13,20,50,100,200")]
        clients: Vec<u32>,
        /// Devices of rtsched-sim, or paths of declarations (.toml).
        #[arg(long, value_delimiter = ',', default_value = "raid5-table5,nvme")]
        devices: Vec<String>,
        /// The volume's memory.
        #[arg(long, default_value_t = 4096)]
        memory_mib: u64,
        /// Where table, figure and figures as JSON go: memory.md, memory.svg, memory.jsonl.
        #[arg(long, default_value = ".")]
        out: PathBuf,
    },
    /// Write the report of what was measured so far of some declarations: OUT/lab-report.md, figures in OUT/lab.
    Report {
        /// As those of `run`.
        #[arg(required = true)]
        declarations: Vec<String>,
        /// Where the results are.
        #[arg(long, default_value = ".")]
        results: PathBuf,
        /// Where the report goes.
        #[arg(long, default_value = ".")]
        out: PathBuf,
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
        /// The clips are there, from a run before this one with as many clients, as long ones, and 0 seconds.
        #[arg(long)]
        laid: bool,
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
    /// A sparse file for the data. Default: memory, in which what this command's own clients write takes next to none.
    #[arg(long)]
    backing: Option<PathBuf>,
    /// How much memory everything else may take, MiB; writes beyond it fail.
    #[arg(long, default_value_t = avfs_lab::memory::LUN_MEMORY.as_u64() >> 20, conflicts_with = "backing")]
    memory_mib: u64,
    /// A file for a JSON line about each device request.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Of what the model draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl LunArguments {
    fn options(&self, reaction: Duration) -> Result<LunOptions, Box<dyn Error>> {
        Ok(LunOptions {
            spec: DeviceSpec::named(&self.profile)?,
            size: Bytes(self.size_gib << 30),
            backing: self.backing.clone(),
            memory: Bytes::from_mib(self.memory_mib),
            log: self.log.clone(),
            seed: self.seed,
            reaction,
        })
    }

    /// The same for a process that serves the LUN.
    fn told(&self) -> Vec<OsString> {
        let mut told: Vec<OsString> = vec!["--profile".into(), self.profile.clone().into()];
        let size = ["--size-gib".to_owned(), self.size_gib.to_string()];
        told.extend(size.into_iter().chain(["--seed".to_owned(), self.seed.to_string()]).map(OsString::from));
        match &self.backing {
            Some(backing) => told.extend(["--backing".into(), backing.into()]),
            None => told.extend(["--memory-mib".into(), self.memory_mib.to_string().into()]),
        }
        told.extend(self.log.iter().flat_map(|log| ["--log".into(), log.into()]));
        told
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
        Command::Lun { lun, reaction_us, mountpoint } => {
            let options = lun.options(Duration::from_micros(reaction_us))?;
            Ok(Lun::mount(&options, &mountpoint)?.serve()?)
        }
        Command::Calibrate { lun, device, seconds } => calibrate(&lun, device.as_deref(), seconds),
        Command::Agree { workloads, short, seed } => agree(&workloads, short, seed),
        Command::Run { declaration, out } => experiments(&declaration, &out),
        Command::Rehearse { declaration, clients: Some(clients), record: Some(file), .. } => {
            record(&declaration, clients, &file)
        }
        Command::Rehearse { declaration, clients, commands, .. } => rehearse(&declaration, clients, commands),
        Command::Golden { short, seeds, only, workers, compare, keep, policy, table, kept, out } => {
            let workers = workers
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
            let request = golden::Request { seeds: if short { 1 } else { seeds }, only, workers };
            match (short, table) {
                (true, _) => golden_hashes(&request, keep, &kept.join("hashes.txt")),
                (false, Some(table)) => {
                    let rows = golden::parse(&read(&table)?)?;
                    compare_golden(&rows, request.only.as_deref(), policy, &kept.join("table.txt"))
                }
                (false, None) if compare => {
                    let rows = golden_rows(&request)?;
                    if let Some(out) = out {
                        std::fs::write(out, golden::text(&rows, &made(request.seeds)))?;
                    }
                    compare_golden(&rows, request.only.as_deref(), policy, &kept.join("table.txt"))
                }
                (false, None) => {
                    let rows = golden_rows(&request)?;
                    let text = golden::text(&rows, &made(request.seeds));
                    print!("{text}");
                    // A part of the set is looked at, not kept.
                    if request.only.is_none() {
                        std::fs::create_dir_all(&kept)?;
                        std::fs::write(kept.join("table.txt"), text)?;
                        std::fs::write(kept.join("hashes.txt"), golden::hashes(&rows))?;
                    }
                    Ok(())
                }
            }
        }
        Command::Plan { short, only } => plan(short, only.as_deref()),
        Command::Memory { clients, devices, memory_mib, out } => {
            memory(&clients, &devices, Bytes::from_mib(memory_mib), &out)
        }
        Command::Report { declarations, results, out } => {
            report(&declarations, &results, &out.join("lab-report.md"), "lab")
        }
        Command::Play { place, clients, pattern, seconds, clip_mib, laid } => {
            let duration = Duration::try_from_secs_f64(seconds)?;
            play(&place, clients, &pattern, duration, Bytes::from_mib(clip_mib), laid)
        }
    }
}

fn plan(short: bool, only: Option<&str>) -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let directory = scratch.directory("plan")?;
    let (mut passed, mut failed) = (0, 0);
    for case in planning::cases(short) {
        if only.is_some_and(|only| !case.device.contains(only)) {
            continue;
        }
        let compared = planning::compare(&case, if short { 1 } else { 3 }, &directory)?;
        println!("{}", compared.line());
        if compared.holds() { passed += 1 } else { failed += 1 }
    }
    println!("plan: {passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { Ok(()) } else { Err("the plan is not what devices carry".into()) }
}

fn record(declaration: &str, clients: u32, file: &Path) -> Result<(), Box<dyn Error>> {
    let Some((point, recording)) = rehearsal::recorded(&declared(declaration)?, clients)? else {
        return Err("none of its contenders is AVFS".into());
    };
    println!("{}", run::verdict(&point));
    let mut writer = Writer::new(std::io::BufWriter::new(std::fs::File::create(file)?), &recording.head)?;
    let Recording { names, records, lost, until, .. } = recording;
    let part = Part { begin: None, records, next: 0, lost, now: until };
    writer.add(&part, &names)?;
    writer.end(until)?;
    Ok(())
}

fn rehearse(declaration: &str, clients: Option<u32>, commands: bool) -> Result<(), Box<dyn Error>> {
    let declaration = declared(declaration)?;
    rehearsal::carry_out(&declaration, clients, &mut |point, told, found| match found {
        Some(number) => println!("**{}, {}: {number}**", point.contender, point.experiment),
        None => {
            println!("{}", run::verdict(point));
            for one in told.iter().filter(|_| commands) {
                println!("    {one}");
            }
        }
    })?;
    Ok(())
}

fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Of which program a table is, and of how many seeds.
fn made(seeds: u32) -> String {
    format!("{seeds} seeds, at commit {}", facts::commit().unwrap_or_default())
}

fn golden_rows(request: &golden::Request) -> Result<Vec<golden::Row>, Box<dyn Error>> {
    let start = std::time::Instant::now();
    let rows = golden::run(request, &|done, of| {
        if done.is_multiple_of(8) || done == of {
            eprintln!("{done} of {of} parts, {:.0} s", start.elapsed().as_secs_f64());
        }
    })?;
    if rows.is_empty() { Err("no cell has such a name".into()) } else { Ok(rows) }
}

fn golden_hashes(request: &golden::Request, keep: bool, kept: &Path) -> Result<(), Box<dyn Error>> {
    let rows = golden_rows(request)?;
    if keep {
        return Ok(std::fs::write(kept, golden::hashes(&rows))?);
    }
    let known = golden::parse_hashes(&read(kept)?)?;
    let differing: Vec<&str> = rows
        .iter()
        .filter(|row| known.get(&row.cell) != Some(&row.first_hash))
        .map(|row| row.cell.as_str())
        .collect();
    println!("{} of {} cells are equal", rows.len() - differing.len(), rows.len());
    match differing[..] {
        [] => Ok(()),
        _ => Err(format!(
            "devices are told something else in {}: if that is meant, see laboratory/golden.md",
            differing.join(", ")
        )
        .into()),
    }
}

fn compare_golden(
    rows: &[golden::Row],
    only: Option<&str>,
    policy: bool,
    kept: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut before = golden::parse(&read(kept)?)?;
    before.retain(|row| only.is_none_or(|only| row.cell.contains(only)));
    let verdicts = golden::judge(&before, rows);
    for (cell, verdict) in verdicts.iter().filter(|(_, verdict)| *verdict != golden::Verdict::Equal) {
        println!("{cell}: {verdict}");
    }
    let count = |is: fn(&golden::Verdict) -> bool| verdicts.iter().filter(|(_, one)| is(one)).count();
    let equal = count(|one| *one == golden::Verdict::Equal);
    let worse = count(|one| matches!(one, golden::Verdict::Worse(_)));
    let incomparable = count(|one| *one == golden::Verdict::NotComparable);
    for (name, ([before, after], p)) in golden::pooled(&before, rows) {
        let verdict = if p < golden::ALPHA { "WORSE" } else { "not worse" };
        let (before, after) =
            (format!("{} of {}", before.0, before.1), format!("{} of {}", after.0, after.1));
        println!("{name}: {before} -> {after} points with late units (p = {p:.3}): {verdict}");
    }
    println!("{} cells: {equal} equal, {worse} worse, {incomparable} not comparable", verdicts.len());
    let holds = incomparable == 0 && if policy { worse == 0 } else { equal == verdicts.len() };
    if holds { Ok(()) } else { Err("the golden set is not what it was".into()) }
}

fn memory(numbers: &[u32], devices: &[String], memory: Bytes, out: &Path) -> Result<(), Box<dyn Error>> {
    let stage = Stage::prepare(numbers.iter().copied().max().unwrap_or(1))?;
    let mut rows = Vec::new();
    for device in devices {
        for records in [false, true] {
            for &number in numbers {
                let held = stage.hold(device, records, number, memory)?;
                eprintln!("{}", serde_json::to_string(&held)?);
                rows.push(held);
            }
        }
    }
    std::fs::create_dir_all(out)?;
    let lines = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    std::fs::write(out.join("memory.jsonl"), lines.join("\n") + "\n")?;
    std::fs::write(out.join("memory.svg"), figure::memory::svg(&rows))?;
    let table = figure::memory::markdown(&rows);
    std::fs::write(out.join("memory.md"), &table)?;
    print!("{table}");
    Ok(())
}

/// The text of a declaration that comes with this command, or of a file.
fn declared_text(name: &str, known: &[(&str, &str)]) -> Result<String, Box<dyn Error>> {
    match known.iter().find(|(declared, _)| *declared == name) {
        Some((_, text)) => Ok((*text).to_owned()),
        None if name.ends_with(".toml") => {
            std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}").into())
        }
        None => {
            let names: Vec<_> = known.iter().map(|(declared, _)| *declared).collect();
            let names = names.join(", ");
            Err(format!("nothing is called {name}: it is one of {names}, or the path of a .toml file").into())
        }
    }
}

fn declared(name: &str) -> Result<Declaration, Box<dyn Error>> {
    let text = declared_text(name, &DECLARED)?;
    experiment::parse(&text).map_err(|error| format!("{name}: {error}").into())
}

fn agree(workloads: &[String], short: bool, seed: u64) -> Result<(), Box<dyn Error>> {
    let all = || agree::DECLARED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let names: Vec<String> = if workloads.is_empty() { all() } else { workloads.to_vec() };
    let mut differing = Vec::new();
    for name in names {
        let text = declared_text(&name, &agree::DECLARED)?;
        let scenario = Scenario::parse(&text).map_err(|error| format!("{name}: {error}"))?;
        eprintln!("{name}: {} s of real time", scenario.duration(!short).as_secs_f64());
        let (simulated, played) = agree::run(&scenario, !short, seed)?;
        let verdict = agree::compare(&simulated, &played);
        let declaration = scenario.declaration();
        println!("{}, on {}:\n\n{}", declaration.title, declaration.device, verdict.markdown());
        if !verdict.holds() {
            differing.push(name);
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(format!("they differ: {}", differing.join(", ")).into()) }
}

fn results(directory: &Path, declaration: &Declaration) -> PathBuf {
    directory.join(format!("{}.jsonl", declaration.name))
}

fn experiments(name: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    let declaration = declared(name)?;
    std::fs::create_dir_all(out)?;
    let results = results(out, &declaration);
    let ended = run::carry_out(&declaration, &results);
    // What was measured until then is reported in any case.
    report(&[name.to_owned()], out, &out.join(format!("{}.md", declaration.name)), &declaration.name)?;
    ended?;
    let points = Results::open(&results, &experiment::pairs(&declaration)?)?.counting();
    match points.iter().find_map(|point| Some((point, point.first_error.as_ref()?))) {
        Some((point, error)) => {
            Err(format!("{}, {} with {} clients: {error}", point.contender, point.experiment, point.clients))?
        }
        None => Ok(()),
    }
}

fn report(names: &[String], from: &Path, document: &Path, figures: &str) -> Result<(), Box<dyn Error>> {
    let measured = |name: &String| -> Result<Measured, Box<dyn Error>> {
        let declaration = declared(name)?;
        let results = Results::open(&results(from, &declaration), &experiment::pairs(&declaration)?)?;
        let (points, set_aside) = (results.counting(), results.set_aside());
        eprintln!("{} points of {}: {}", points.len(), declaration.name, document.display());
        Ok(Measured { declaration, points, set_aside })
    };
    let measured = names.iter().map(measured).collect::<Result<Vec<_>, _>>()?;
    let head = Head {
        made_by: format!("./lab report {}", names.join(" ")),
        facts: facts::facts(),
        calibration: std::fs::read_to_string(from.join("calibration.md")).ok(),
    };
    report::write(&measured, document, figures, &head)
}

fn play(
    place: &str,
    clients: usize,
    pattern: &str,
    duration: Duration,
    clip: Bytes,
    laid: bool,
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
            visits: avfs_workloads::Visits::default(),
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
    if !laid {
        let mut laying = vec![Client::laying(specs.iter().flat_map(ClientSpec::needs).collect())];
        let reports =
            avfs_workloads::run(connect(1)?.as_mut(), &mut laying, Duration::from_secs(3600), |_, _| {})?;
        if let Some(error) = &reports[0].first_error {
            return Err(format!("the clips cannot be made: {error}").into());
        }
    }
    let mut clients: Vec<Client> = specs.iter().map(Client::new).collect();
    let mut transport = connect(specs.len())?;
    eprintln!("connected");
    for report in avfs_workloads::run(transport.as_mut(), &mut clients, duration, |_, _| {})? {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

/// Longer than this machine ever stands still.
const REACTS_AT_ONCE: Duration = Duration::from_secs(10);

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
            let scratch = Scratch::new()?;
            // What lies between an answer and the next request is this machine's: whoever measures does nothing but ask.
            let told =
                [lun.told(), vec!["--reaction-us".into(), REACTS_AT_ONCE.as_micros().to_string().into()]];
            let process = LunProcess::start(&told.concat(), &scratch.directory("lun")?)?;
            let mut device = LoopDevice::attach(&process.device(), scratch.notes(0))?;
            device.set_queue(rig::QUEUE_DEPTH, "none")?;
            let cells = measure(device.path(), Bytes(lun.size_gib << 30));
            drop(device);
            drop(process);
            cells?
        }
    };
    println!(
        "Made by `./lab calibrate`, {}, at commit {}: random access, one request at a time, direct I/O.\n",
        facts::date().unwrap_or_default(),
        facts::commit().unwrap_or_default()
    );
    print!("{}", calibrate::markdown(&cells));
    let beyond = cells.iter().filter(|cell| !cell.holds()).count();
    if beyond > 0 { Err(format!("{beyond} cells are beyond their bounds").into()) } else { Ok(()) }
}
