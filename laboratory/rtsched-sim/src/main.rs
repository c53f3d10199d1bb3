//! `rtsched-sim`: runs scenarios, shows the calibration, counts how many streams each policy carries.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use rtsched_sim::calibration::table_5;
use rtsched_sim::device::DeviceSpec;
use rtsched_sim::policy::PolicyName;
use rtsched_sim::report::Outcome;
use rtsched_sim::scenarios::{self, CapacityQuestion, Mix};
use rtsched_sim::simulation::{self, Happening};
use rtsched_sim::workload::{Scenario, ScenarioError};
use std::io::Write;
use std::process::ExitCode;
use units::{Duration, Instant};

/// Prints a line. When nobody reads any more, the command ends.
macro_rules! say {
    ($($text:tt)*) => {
        if writeln!(std::io::stdout(), $($text)*).is_err() {
            std::process::exit(0);
        }
    };
}

#[derive(Parser)]
#[command(version, about = "The scheduler of AVFS before modelled devices, in virtual time")]
struct Arguments {
    #[command(subcommand)]
    command: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Lists scenarios and devices
    List,
    /// Shows a modelled device beside Table 5 of the paper; fails when a cell is too far off
    Calibrate {
        /// A device's name or declaration
        #[arg(default_value = "raid5-table5")]
        device: String,
        /// What is drawn, is drawn from this
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs scenarios; fails when one does not end as it declares
    Run {
        /// Names or declarations; none: all that are declared
        scenarios: Vec<String>,
        /// Minutes instead of hours, as in the tests
        #[arg(long)]
        short: bool,
        /// Under this policy; by default rtsched
        #[arg(long)]
        policy: Option<PolicyName>,
        /// Also under the policies that the scenario declares for comparison
        #[arg(long)]
        compare: bool,
        /// What is drawn, is drawn from this
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// A line of JSON for each run
        #[arg(long)]
        json: bool,
        /// A row for each stream instead of each kind
        #[arg(long)]
        each: bool,
        /// A line for everything that happens
        #[arg(long)]
        trace: bool,
    },
    /// Runs random scenarios; fails when one goes wrong, and tells its seed
    Random {
        /// Players and reads on the RAID only, instead of everything on any device
        #[arg(long)]
        players: bool,
        /// How many
        #[arg(long, default_value_t = 100)]
        count: u64,
        /// Seed of the first; each next one's is one more
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Virtual seconds of each
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// A line of JSON for each run
        #[arg(long)]
        json: bool,
        /// Print the declarations and the results of those that succeed, too
        #[arg(long)]
        verbose: bool,
    },
    /// Counts how many streams each policy carries without a late unit
    Capacity {
        /// A device's name or declaration
        #[arg(long, default_value = "raid5-table5")]
        device: String,
        /// Mbit/s of each stream
        #[arg(long, default_value_t = 100.0)]
        rate: f64,
        /// Virtual seconds of each try
        #[arg(long, default_value_t = 600.0)]
        seconds: f64,
        /// Lengths of the requests of the policies that choose none themselves, MiB
        #[arg(long, value_delimiter = ',', default_values_t = [8, 64])]
        request_mib: Vec<u64>,
        /// The most that is tried
        #[arg(long, default_value_t = 16)]
        most: u32,
        /// What is drawn, is drawn from this
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    match work(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rtsched-sim: {error}");
            ExitCode::from(2)
        }
    }
}

fn work(work: Work) -> Result<bool, ScenarioError> {
    match work {
        Work::List => list(),
        Work::Calibrate { device, seed } => calibrate(&device, seed),
        Work::Run { scenarios, short, policy, compare, seed, json, each, trace } => {
            let names = match scenarios.is_empty() {
                true => scenarios::names().map(str::to_owned).collect(),
                false => scenarios,
            };
            let (mut good, mut all) = (0, 0);
            for name in &names {
                for scenario in scenarios::named(name)? {
                    let mut policies = vec![policy.unwrap_or(PolicyName::Rtsched)];
                    if compare {
                        policies.extend(scenario.compare());
                    }
                    if !json {
                        say!("{}: {}", scenario.name(), scenario.declaration().title);
                    }
                    let mut holds = true;
                    for policy in policies {
                        let mut print = |at: Instant, what: &Happening<'_>| {
                            if trace {
                                say!("{:.6} {what}", at.saturating_since(Instant::ZERO).as_secs_f64());
                            }
                        };
                        let duration = scenario.duration(!short);
                        let outcome =
                            simulation::run_observed(&scenario, policy, seed, duration, &mut print)?;
                        holds &= show(&scenario, policy, &outcome, json, each);
                    }
                    good += usize::from(holds);
                    all += 1;
                }
            }
            if !json {
                say!("{good} of {all} scenarios end as they declare");
            }
            Ok(good == all)
        }
        Work::Random { players, count, seed, seconds, json, verbose } => {
            let mix = if players { Mix::Players } else { Mix::Everything };
            random(mix, count, seed, seconds, json, verbose)
        }
        Work::Capacity { device, rate, seconds, request_mib, most, seed } => {
            capacity(&device, rate, seconds, &request_mib, most, seed)
        }
    }
}

fn list() -> Result<bool, ScenarioError> {
    for name in scenarios::names() {
        for scenario in scenarios::named(name)? {
            say!("{name:<18} {}", scenario.declaration().title);
        }
    }
    say!("");
    for name in DeviceSpec::names() {
        let source = DeviceSpec::named(name)?.source;
        say!("{name:<18} {}", source.trim());
    }
    Ok(true)
}

fn calibrate(device: &str, seed: u64) -> Result<bool, ScenarioError> {
    let spec = DeviceSpec::named(device)?;
    say!("{}: {}\n", spec.name, spec.source.trim());
    say!(
        "{:<6} {:>8} {:>12} {:>12} {:>9} {:>10}",
        "",
        "KiB",
        "paper Mbit/s",
        "model Mbit/s",
        "error",
        "tolerated"
    );
    let mut holds = true;
    for cell in table_5(&spec, seed) {
        let tolerated = cell.tolerance_percent().map_or("any".to_owned(), |percent| format!("{percent} %"));
        say!(
            "{:<6} {:>8} {:>12.1} {:>12.1} {:>7.2} % {:>10}{}",
            format!("{:?}", cell.direction).to_lowercase(),
            cell.length.as_u64() >> 10,
            cell.published,
            cell.modelled,
            cell.error_percent(),
            tolerated,
            if cell.holds() { "" } else { "  too far off" }
        );
        holds &= cell.holds();
    }
    Ok(holds)
}

/// Prints a run; false when it did not end as declared. Policies for comparison may end as they like, but lose nothing.
fn show(scenario: &Scenario, policy: PolicyName, outcome: &Outcome, json: bool, each: bool) -> bool {
    if json {
        say!("{}", outcome.to_json());
    } else {
        say!("{}", outcome.to_table(each).trim_end());
    }
    let failures = match policy {
        PolicyName::Rtsched => outcome.failures(scenario.expect()),
        _ => outcome.violations.clone(),
    };
    for failure in &failures {
        eprintln!("  FAILED {}: {failure}", scenario.name());
    }
    failures.is_empty()
}

fn random(
    mix: Mix,
    count: u64,
    first: u64,
    seconds: u64,
    json: bool,
    verbose: bool,
) -> Result<bool, ScenarioError> {
    let mut bad = Vec::new();
    let (mut admitted, mut refused, mut on_time) = (0, 0, 0);
    for seed in first..first.saturating_add(count) {
        let scenario = scenarios::random(mix, seed, seconds);
        let outcome = simulation::run(&scenario, PolicyName::Rtsched, seed, Duration::from_secs(seconds))?;
        admitted += outcome.streams.iter().map(|stream| u64::from(stream.admitted)).sum::<u64>();
        refused += outcome.refusals.len();
        on_time += outcome.streams.iter().map(|stream| stream.on_time).sum::<u64>();
        let failures = outcome.failures(scenario.expect());
        if json {
            say!("{}", outcome.to_json());
        } else if verbose || !failures.is_empty() {
            say!("{}", outcome.to_table(true).trim_end());
        }
        if verbose {
            say!("{}", toml::to_string(scenario.declaration()).unwrap_or_default());
        }
        for failure in &failures {
            eprintln!("  FAILED seed {seed}: {failure}");
        }
        if !failures.is_empty() {
            bad.push(seed);
        }
    }
    if !json {
        say!(
            "{count} random scenarios of {seconds} s: {admitted} admissions, {refused} refusals, {on_time} units \
             on time; {} failed{}",
            bad.len(),
            if bad.is_empty() { String::new() } else { format!(": seeds {bad:?}") }
        );
    }
    Ok(bad.is_empty())
}

fn capacity(
    device: &str,
    rate_mbit: f64,
    seconds: f64,
    requests_mib: &[u64],
    most: u32,
    seed: u64,
) -> Result<bool, ScenarioError> {
    say!("streams of {rate_mbit} Mbit/s without a late unit in {seconds} s on {device}");
    say!(
        "{:<22} {:>8} {:>22} {:>10} {:>22}",
        "policy, request",
        "readers",
        "beside a copy (MB/s)",
        "writers",
        "beside a copy (MB/s)"
    );
    let row = |policy: PolicyName, request_mib: u64, name: String| -> Result<(), ScenarioError> {
        let mut cells = Vec::new();
        for records in [false, true] {
            for copier in [false, true] {
                let question = CapacityQuestion {
                    device: device.to_owned(),
                    records,
                    rate_mbit,
                    copier,
                    baseline_request_kib: request_mib << 10,
                    duration: Duration::from_secs_f64(seconds),
                    most,
                };
                let (carried, outcome) = scenarios::carried(&question, policy, seed)?;
                let copied = outcome.map(|outcome| format!("{:.1}", outcome.best_effort_mb_per_s));
                let copied = copied.unwrap_or_else(|| "-".to_owned());
                cells.push(if copier { format!("{carried} ({copied})") } else { carried.to_string() });
            }
        }
        say!("{name:<22} {:>8} {:>22} {:>10} {:>22}", cells[0], cells[1], cells[2], cells[3]);
        Ok(())
    };
    row(PolicyName::Rtsched, 8, "rtsched".to_owned())?;
    for policy in [PolicyName::Edf, PolicyName::Fifo, PolicyName::CScan, PolicyName::MqDeadline] {
        for request_mib in requests_mib {
            row(policy, *request_mib, format!("{}, {request_mib} MiB", policy.as_str()))?;
        }
    }
    Ok(true)
}
