//! What came of it, in tables and figures.
//!
//! **For:** the report of declarations from their points, in Markdown, with a [`figure`] of each experiment. **Excludes:**
//! measuring and drawing. **State:** none. **Invariants:** everything in it is from the points and the facts given; the same
//! points make the same text.

mod carried;
mod conditions;
mod processor_time;

pub use carried::{Carried, carried};

use crate::figure;
use crate::point::{Percentiles, Point};
use crate::run::of;
use avfs_workloads::{Contender, Declaration, Experiment};
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

/// A declaration with what was measured of it.
#[derive(Debug)]
pub struct Measured {
    /// What was to be done.
    pub declaration: Declaration,
    /// What came of it so far, and counts.
    pub points: Vec<Point>,
    /// Points that were measured, and do not count.
    pub set_aside: usize,
}

/// What stands above the results.
#[derive(Debug)]
pub struct Head {
    /// The command line that makes the report.
    pub made_by: String,
    /// Lines about machine and versions.
    pub facts: Vec<String>,
    /// What `calibrate` printed, if it was run.
    pub calibration: Option<String>,
}

/// Writes the report, and the figures into `figures`, a directory beside it, which is made.
///
/// # Errors
/// Those of the files and of [`figure::png`], in one line.
pub fn write(
    measured: &[Measured],
    document: &Path,
    figures: &str,
    head: &Head,
) -> Result<(), Box<dyn Error>> {
    let beside = document.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(beside.join(figures))?;
    for Measured { declaration, points, .. } in measured {
        for experiment in &declaration.experiments {
            let place = beside.join(figures).join(stem(declaration, experiment));
            let drawing = figure::svg(declaration, experiment, points);
            std::fs::write(place.with_extension("png"), figure::png(&drawing)?)?;
            std::fs::write(place.with_extension("svg"), drawing)?;
        }
    }
    std::fs::write(document, markdown(measured, figures, head))
        .map_err(|error| format!("{}: {error}", document.display()).into())
}

/// The name of an experiment's figure, without its extension.
fn stem(declaration: &Declaration, experiment: &Experiment) -> String {
    let plain = experiment.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    format!("{}-{plain}", declaration.name)
}

/// The report's text.
pub fn markdown(measured: &[Measured], figures: &str, head: &Head) -> String {
    let mut text = format!("# Report of the laboratory\n\nMade by `{}`; not edited.\n\n", head.made_by);
    for fact in &head.facts {
        let _ = writeln!(text, "- {fact}");
    }
    if let Some(calibration) = &head.calibration {
        let _ = write!(text, "\n## The modelled LUN beside the one that was measured\n\n{calibration}");
    }
    text += &conditions::contenders(measured.iter().map(|one| &one.declaration));
    for Measured { declaration, points, set_aside } in measured {
        let mut section = Section { text: &mut text, declaration, points };
        section.conditions();
        *section.text += &conditions::disturbances(points, *set_aside);
        section.summary();
        for experiment in &declaration.experiments {
            section.experiment(experiment, figures);
        }
    }
    text
}

/// What is said of one declaration.
struct Section<'a> {
    text: &'a mut String,
    declaration: &'a Declaration,
    points: &'a [Point],
}

impl Section<'_> {
    fn conditions(&mut self) {
        let Self { text, declaration, points } = self;
        let commits: BTreeSet<&str> = points.iter().map(|point| point.commit.as_str()).collect();
        let commits = commits.into_iter().collect::<Vec<_>>().join(", ");
        let dates = points.iter().map(|point| point.date.as_str());
        let (first, last) = (dates.clone().min().unwrap_or("never"), dates.max().unwrap_or("never"));
        let longer = declaration.recorded_seconds.map_or(String::new(), |seconds| {
            format!(", {seconds} s where somebody records or copies to there")
        });
        let _ = writeln!(
            text,
            "\n## {}\n\nDevice {}, {} GiB. Each point is {} s after all had started{longer}, with cold caches. Searches: {}. \
             Measured from {first} to {last}, at commit {commits}.\n",
            declaration.name,
            declaration.device,
            declaration.size_gib,
            declaration.seconds,
            declaration.repeats
        );
    }

    fn summary(&mut self) {
        let Self { text, declaration, points } = self;
        **text += "Largest number of clients without a late unit: median of the searches, and from least to most where they \
                 differ. Beside others, what those got, Mbit/s.\n\n|";
        for experiment in &declaration.experiments {
            let _ = write!(text, " | {}", experiment.name);
        }
        let _ = writeln!(text, " |\n|---|{}", "--:|".repeat(declaration.experiments.len()));
        for contender in &declaration.contenders {
            let _ = write!(text, "| {}", contender.name);
            for experiment in &declaration.experiments {
                let _ =
                    write!(text, " | {}", cell(experiment, contender, &of(points, contender, experiment)));
            }
            **text += " |\n";
        }
        self.bounds();
        if let Some(agreement) = conditions::agreement(self.declaration, self.points) {
            let _ = writeln!(self.text, "\n{agreement}");
        }
        if let Some(side_by_side) = processor_time::table(self.declaration, self.points) {
            let _ = write!(self.text, "\n{side_by_side}");
        }
    }

    /// What the numbers are to be compared with.
    fn bounds(&mut self) {
        let Self { text, declaration, .. } = self;
        let mut row = |name: &str, number: &dyn Fn(&Experiment) -> Option<u32>| {
            let numbers: Vec<Option<u32>> = declaration.experiments.iter().map(number).collect();
            if numbers.iter().any(Option::is_some) {
                let cells =
                    numbers.iter().map(|number| number.map_or(String::new(), |number| number.to_string()));
                let _ = writeln!(text, "| *{name}* | {} |", cells.collect::<Vec<_>>().join(" | "));
            }
        };
        if let Ok(device) = crate::experiment::device(declaration) {
            row("the device, if it never sought", &|one| Some(one.bound(device.sequential_mb_per_s() * 8.0)));
        }
        let published: BTreeSet<&String> =
            declaration.experiments.iter().flat_map(|one| one.published.keys()).collect();
        for name in published {
            row(name, &|one| one.published.get(name).copied());
        }
        row("wanted of AVFS with bitrates", &|one| one.wanted);
    }

    fn experiment(&mut self, experiment: &Experiment, figures: &str) {
        let Self { text, declaration, points } = self;
        let _ = write!(
            text,
            "\n### {}\n\n{}\n![{}]({figures}/{}.svg)\n\n",
            experiment.name,
            conditions::experiment(experiment),
            experiment.name,
            stem(declaration, experiment)
        );
        **text += "At the largest number (with none carried, at one):\n\n\
                 | | clients | Mbit/s | device, Mbit/s read, written | KiB a read, a write | KiB a seek | seeks/s | busy \
                 | processors | unit: p50, p99, longest, ms |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
        let largest: Vec<(&Contender, &Point)> = declaration
            .contenders
            .iter()
            .filter_map(|contender| Some((contender, at_largest(contender, experiment, points)?)))
            .collect();
        for (contender, point) in &largest {
            **text += &row(contender, point);
        }
        **text += "\n| | start: p50, p99, longest, ms | jump: p50, p99, longest, ms | processor s a GB | copies got of what was left \
                 | sustained of what was recorded |\n|---|--:|--:|--:|--:|--:|\n";
        for (contender, point) in &largest {
            **text += &waits(contender, point);
        }
        if largest.iter().any(|(_, point)| point.avfs.is_some()) {
            **text += "\nWhat AVFS said of itself at the end:\n\n\
                     | | streams with, without reservation | late requests, latest, ms | read ahead, MiB, part of what was read \
                     | never taken by a client, MiB, part of what was read |\n|---|--:|--:|--:|--:|\n";
        }
        for (contender, point) in &largest {
            **text += &said(contender, point).unwrap_or_default();
        }
    }
}

fn cell(experiment: &Experiment, contender: &Contender, own: &[&Point]) -> String {
    let Some(Carried { median, least, most, .. }) = carried(experiment, contender, own) else {
        return "not measured".to_owned();
    };
    let mut cell = median.to_string();
    if least != most {
        let _ = write!(cell, " ({least} to {most})");
    }
    if !experiment.background.is_empty()
        && let Some(point) = at(own, median)
    {
        let _ = write!(cell, ", {:.0}", point.background_megabits);
    }
    if own.iter().any(|point| point.errors > 0) {
        cell += ", with failures";
    }
    if own.iter().any(|point| point.is_in_doubt()) {
        cell += ", machine disturbed";
    }
    cell
}

/// A point with this number of clients; if there are none, the one with the fewest above.
fn at<'a>(own: &[&'a Point], clients: u32) -> Option<&'a Point> {
    let above = own.iter().filter(|point| point.clients >= clients);
    above.min_by_key(|point| (point.clients, point.repeat)).copied()
}

/// The point at the largest number that a contender carried; with none carried, at one.
fn at_largest<'a>(contender: &Contender, experiment: &Experiment, points: &'a [Point]) -> Option<&'a Point> {
    let own = of(points, contender, experiment);
    at(&own, carried(experiment, contender, &own)?.median.max(1))
}

fn row(contender: &Contender, point: &Point) -> String {
    let disturbed = if point.is_disturbed() { ", machine disturbed" } else { "" };
    format!(
        "| {}{disturbed} | {} | {:.0} | {:.0}, {:.0} | {:.0}, {:.0} | {:.0} | {:.1} | {:.0} % | {:.0} % | {:.0}, {:.0}, {:.0} |\n",
        contender.name,
        point.clients,
        point.megabits,
        point.device_read_megabits,
        point.device_write_megabits,
        point.read_kib,
        point.write_kib,
        point.kib_per_seek,
        point.seeks_per_s,
        point.utilisation,
        point.processors,
        point.p50_ms,
        point.p99_ms,
        point.longest_ms,
    )
}

fn waits(contender: &Contender, point: &Point) -> String {
    let none = || "–".to_owned();
    let times = |times: Option<Percentiles>| {
        times.map_or_else(none, |Percentiles { p50_ms, p99_ms, longest_ms }| {
            format!("{p50_ms:.0}, {p99_ms:.0}, {longest_ms:.0}")
        })
    };
    let cpu = point.cpu_s_per_gb.map_or_else(none, |seconds| format!("{seconds:.2}"));
    let share = point.copies_share.map_or_else(none, |percent| format!("{percent:.0} %"));
    let sustained = point.sustained.map_or_else(none, |part| format!("{:.0} %", part * 100.0));
    let (start, jump) = (times(point.start), times(point.jump));
    format!("| {} | {start} | {jump} | {cpu} | {share} | {sustained} |\n", contender.name)
}

fn said(contender: &Contender, point: &Point) -> Option<String> {
    let said = point.avfs?;
    Some(format!(
        "| {} | {}, {} | {}, {:.0} | {:.0}, {:.0} % | {:.0}, {:.1} % |\n",
        contender.name,
        said.streams_admitted,
        said.streams_without,
        said.requests_late,
        said.latest_ms,
        said.read_ahead_mib,
        said.read_ahead_percent,
        said.never_read_mib,
        said.never_read_percent,
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::DECLARED;
    use serde_json::{Value, json};

    pub(crate) fn smoke() -> Declaration {
        let (_, text) = DECLARED.iter().find(|(name, _)| *name == "smoke").expect("the crate's own");
        crate::experiment::parse(text).expect("the crate's own")
    }

    pub(crate) fn point(clients: u32, clean: bool, repeat: u32) -> Point {
        let value: Value = json!({
            "pair": 1, "commit": "abc", "date": "2026-01-02 03:04 UTC", "experiment": "readers",
            "contender": "ext4", "repeat": repeat, "clients": clients, "clean": clean, "late": u32::from(!clean),
            "latest_ms": 0.0, "errors": 0, "first_error": null, "destaged": 1.0,
            "megabits": 100.0 * f64::from(clients), "background_megabits": 0.0, "p50_ms": 10.0, "p99_ms": 20.0,
            "longest_ms": 30.0, "start": { "p50_ms": 500.0, "p99_ms": 900.0, "longest_ms": 900.0 }, "jump": null,
            "copies_share": 40.0, "cpu_s_per_gb": 1.5, "avfs": {
                "streams_admitted": 3, "streams_without": 1, "requests_late": 2, "latest_ms": 7.0,
                "read_ahead_mib": 64.0, "read_ahead_percent": 5.0, "never_read_mib": 9.0, "never_read_percent": 1.5
            }, "device_read_megabits": 110.0, "device_write_megabits": 0.0, "read_kib": 1024.0,
            "write_kib": 0.0, "seeks_per_s": 12.0, "kib_per_seek": 1100.0, "utilisation": 50.0, "processors": 7.0,
            "deepest_queue": 3, "sustained": 0.97
        });
        serde_json::from_value(value).expect("it is a point")
    }

    #[test]
    fn a_cell_tells_the_median_and_where_searches_differ() {
        let declaration = smoke();
        let experiment = Experiment { most: 9, ..declaration.experiments[0].clone() };
        let mut points = vec![point(4, true, 0), point(5, false, 0)];
        let own = |points: &[Point]| {
            cell(&experiment, &declaration.contenders[0], &points.iter().collect::<Vec<_>>())
        };
        assert_eq!(own(&points), "4");
        points.extend([
            point(4, true, 1),
            point(5, true, 1),
            point(6, false, 1),
            point(4, false, 2),
            point(3, true, 2),
        ]);
        assert_eq!(own(&points), "4 (3 to 5)");
        assert_eq!(own(&[point(4, true, 0)]), "not measured", "the search has not ended");
        assert_eq!(own(&[point(1, false, 0)]), "0");
    }

    #[test]
    fn a_report_says_how_far_repeated_searches_differ() {
        let declaration = smoke();
        let searches = |found: &[u32]| {
            let mut points = Vec::new();
            for (repeat, number) in (0..).zip(found) {
                points.extend((1..=2).map(|clients| point(clients, clients <= *number, repeat)));
            }
            conditions::agreement(&declaration, &points)
        };
        assert_eq!(searches(&[1]), None, "nothing was repeated");
        let text = searches(&[1, 1, 2]).expect("it was repeated");
        assert!(text.ends_with("0 were the same each time; the largest difference is 1."), "{text}");
        let text = searches(&[0, 2]).expect("it was repeated");
        assert!(text.ends_with("difference is 2. By more than one client: ext4, readers (2)."), "{text}");
        let text = searches(&[2, 2]).expect("it was repeated");
        assert!(text.contains("1 were the same each time; the largest difference is 0."), "{text}");
    }

    #[test]
    fn a_report_says_under_what_conditions_what_came_of_it() {
        let points = vec![point(1, true, 0), Point { stolen: 3.0, ..point(2, false, 0) }];
        let measured = Measured { declaration: smoke(), points, set_aside: 3 };
        let head = Head {
            made_by: "./lab report smoke".to_owned(),
            facts: vec!["Linux 7".to_owned()],
            calibration: Some("| 64 |\n".to_owned()),
        };
        let text = markdown(&[measured], "figures", &head);
        for part in [
            "\n| 64 |\n",
            "Made by `./lab report smoke`",
            "- Linux 7",
            "from 2026-01-02 03:04 UTC to 2026-01-02 03:04 UTC, at commit abc.",
            "| ext4 | 1, machine disturbed |",
            "3 points were set aside",
            "1 of those that count",
            "- **ext4**: ext4; I/O scheduler `none`, `read_ahead_kb` 8192; at most 2048 MiB dirty\n",
            "| *the device, if it never sought* | 14 | 14 | 7 |",
            "Each client: a player (100 Mbit/s, units of 1024 KiB, a buffer of 1000 ms).",
            "Beside them: a copy that writes (one file at once, 2 × 1024 KiB in flight).",
            "![readers](figures/smoke-readers.svg)",
            "| ext4 | 1 | 100 | 110, 0 |",
            "| ext4 | 500, 900, 900 | – | 1.50 | 40 % | 97 % |",
            "| ext4 | 3, 1 | 2, 7 | 64, 5 % | 9, 1.5 % |",
            "not measured",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
