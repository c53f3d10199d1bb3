//! What came of it: tables and figures.
//!
//! **For:** the report of a declaration from its points, in Markdown, with a figure (SVG) of each experiment like Figures 4 and
//! 5 of the paper: what was carried against the number of clients, all contenders in one picture. **Excludes:** measuring.
//! **State:** none. **Invariants:** everything in it is from the points and the facts given; the same points make the same
//! text.

use crate::experiment::{Contender, Declaration, Experiment};
use crate::run::{Point, of};
use crate::search::{self, Next};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What the largest numbers of the searches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The middle one; of two, the lower.
    pub median: u32,
    /// The least.
    pub least: u32,
    /// The most.
    pub most: u32,
}

/// The largest number without anybody late, of the searches that ended.
pub fn carried(experiment: &Experiment, own: &[&Point]) -> Option<Carried> {
    let repeats: BTreeSet<u32> = own.iter().map(|point| point.repeat).collect();
    let mut found: Vec<u32> = repeats
        .into_iter()
        .filter_map(|repeat| {
            let outcomes: BTreeMap<u32, bool> = own
                .iter()
                .filter(|point| point.repeat == repeat)
                .map(|point| (point.clients, point.clean))
                .collect();
            match search::next(&outcomes, experiment.guess, experiment.most) {
                Next::Found(number) => Some(number),
                Next::Measure(_) => None,
            }
        })
        .collect();
    found.sort_unstable();
    let (least, most) = (*found.first()?, *found.last()?);
    Some(Carried { median: found[(found.len() - 1) / 2], least, most })
}

/// The report. `facts` are lines about machine, versions and commit; `figure` names the file of an experiment's figure.
pub fn markdown(
    declaration: &Declaration,
    points: &[Point],
    facts: &[String],
    figure: impl Fn(&Experiment) -> String,
) -> String {
    let mut text = format!("# Report: {}\n\n", declaration.name);
    for fact in facts {
        let _ = writeln!(text, "- {fact}");
    }
    let _ = writeln!(
        text,
        "- Device: {}, {} GiB. Each point: {} s after all had started, cold caches; {} searches.",
        declaration.device, declaration.size_gib, declaration.seconds, declaration.repeats
    );
    text += "\n## Largest number of clients without a late unit\n\n";
    text += "Median of the searches, and from least to most where they differ. Beside others, what those got, Mbit/s.\n\n|";
    for experiment in &declaration.experiments {
        let _ = write!(text, " | {}", experiment.name);
    }
    let _ = writeln!(text, " |\n|---|{}", "--:|".repeat(declaration.experiments.len()));
    for contender in &declaration.contenders {
        let _ = write!(text, "| {}", contender.name);
        for experiment in &declaration.experiments {
            let _ = write!(text, " | {}", cell(experiment, &of(points, contender, experiment)));
        }
        text += " |\n";
    }
    for experiment in &declaration.experiments {
        let _ =
            write!(text, "\n## {}\n\n![{}]({})\n\n", experiment.name, experiment.name, figure(experiment));
        text += "At the largest number (with none carried, at one):\n\n\
                 | | clients | Mbit/s | device, Mbit/s read, written | KiB a read, a write | KiB a seek | seeks/s | busy \
                 | unit: p50, p99, longest, ms |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
        for contender in &declaration.contenders {
            if let Some(row) = row(contender, experiment, points) {
                text += &row;
            }
        }
    }
    text
}

fn cell(experiment: &Experiment, own: &[&Point]) -> String {
    let Some(Carried { median, least, most }) = carried(experiment, own) else {
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
    cell
}

/// A point with this number of clients; if there are none, the one with the fewest above.
fn at<'a>(own: &[&'a Point], clients: u32) -> Option<&'a Point> {
    let above = own.iter().filter(|point| point.clients >= clients);
    above.min_by_key(|point| (point.clients, point.repeat)).copied()
}

fn row(contender: &Contender, experiment: &Experiment, points: &[Point]) -> Option<String> {
    let own = of(points, contender, experiment);
    let point = at(&own, carried(experiment, &own)?.median.max(1))?;
    Some(format!(
        "| {} | {} | {:.0} | {:.0}, {:.0} | {:.0}, {:.0} | {:.0} | {:.1} | {:.0} % | {:.0}, {:.0}, {:.0} |\n",
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
        point.p50_ms,
        point.p99_ms,
        point.longest_ms,
    ))
}

/// An experiment's figure: what the clients got against their number; a point where somebody was late is hollow.
pub fn svg(declaration: &Declaration, experiment: &Experiment, points: &[Point]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 400.0;
    const LEFT: f64 = 64.0;
    const RIGHT: f64 = 170.0;
    const TOP: f64 = 34.0;
    const BOTTOM: f64 = 50.0;
    // Colour-blind safe: Okabe and Ito 2008.
    const COLOURS: [&str; 8] =
        ["#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#999999", "#000000", "#009e73", "#cc79a7"];
    let own = |contender: &Contender| of(points, contender, experiment);
    let all: Vec<&Point> = declaration.contenders.iter().flat_map(own).collect();
    let clients = all.iter().map(|point| point.clients).max().unwrap_or(1).max(2);
    let top = all.iter().map(|point| point.megabits).fold(100.0, f64::max);
    let step = [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0].into_iter().find(|step| top / step <= 8.0);
    let step = step.unwrap_or(10_000.0);
    let top = (top / step).ceil() * step;
    let x = |clients: f64, most: u32| LEFT + clients / f64::from(most) * (WIDTH - LEFT - RIGHT);
    let y = |megabits: f64| HEIGHT - BOTTOM - megabits / top * (HEIGHT - TOP - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(&experiment.name)
    );
    let mut mark = 0.0;
    while mark <= top {
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{mark:.0}</text>",
            WIDTH - RIGHT,
            y(mark),
            LEFT - 6.0,
            y(mark) + 4.0
        );
        mark += step;
    }
    for number in 1..=clients {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>",
            x(f64::from(number), clients),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = writeln!(
        text,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">clients (hollow: somebody was late)</text>\
         <text x=\"16\" y=\"{1:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {1:.1})\">Mbit/s</text>",
        HEIGHT - 12.0,
        (TOP + HEIGHT - BOTTOM) / 2.0
    );
    for (index, contender) in declaration.contenders.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if index / COLOURS.len() % 2 == 1 { " stroke-dasharray=\"5 3\"" } else { "" };
        let mut by_number: BTreeMap<u32, Vec<&Point>> = BTreeMap::new();
        for point in own(contender) {
            by_number.entry(point.clients).or_default().push(point);
        }
        let places: Vec<(f64, f64, bool)> = by_number
            .iter()
            .map(|(number, points)| {
                let mean = points.iter().map(|point| point.megabits).sum::<f64>() / points.len() as f64;
                (x(f64::from(*number), clients), y(mean), points.iter().all(|point| point.clean))
            })
            .collect();
        let line: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dash}/>",
            line.join(" ")
        );
        for (x, y, clean) in places {
            let fill = if clean { colour } else { "white" };
            let _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
            );
        }
        let (legend_x, legend_y) = (WIDTH - RIGHT + 14.0, TOP + 18.0 * index as f64 + 8.0);
        let _ = writeln!(
            text,
            "<line x1=\"{legend_x:.1}\" x2=\"{:.1}\" y1=\"{legend_y:.1}\" y2=\"{legend_y:.1}\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dash}/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            legend_x + 22.0,
            legend_x + 28.0,
            legend_y + 4.0,
            escape(&contender.name)
        );
    }
    text + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::DECLARED;
    use serde_json::{Value, json};

    fn point(clients: u32, clean: bool, repeat: u32) -> Point {
        let value: Value = json!({
            "declaration": 1, "experiment": "readers", "contender": "ext4", "repeat": repeat, "clients": clients,
            "clean": clean, "late": u32::from(!clean), "latest_ms": 0.0, "errors": 0, "first_error": null, "destaged": 1.0,
            "megabits": 100.0 * f64::from(clients), "background_megabits": 0.0, "p50_ms": 10.0, "p99_ms": 20.0,
            "longest_ms": 30.0, "device_read_megabits": 110.0, "device_write_megabits": 0.0, "read_kib": 1024.0,
            "write_kib": 0.0, "seeks_per_s": 12.0, "kib_per_seek": 1100.0, "utilisation": 50.0, "deepest_queue": 3
        });
        serde_json::from_value(value).expect("it is a point")
    }

    #[test]
    fn a_cell_tells_the_median_and_where_searches_differ() {
        let declaration = Declaration::parse(DECLARED[2].1).expect("the crate's own");
        let experiment = Experiment { most: 9, ..declaration.experiments[0].clone() };
        let mut points = vec![point(4, true, 0), point(5, false, 0)];
        let own = |points: &[Point]| cell(&experiment, &points.iter().collect::<Vec<_>>());
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
    fn report_and_figure_hold_every_contender_and_point() {
        let declaration = Declaration::parse(DECLARED[2].1).expect("the crate's own");
        let points = [point(1, true, 0), point(2, false, 0)];
        let text = markdown(&declaration, &points, &["commit abc".to_owned()], |_| "figure.svg".to_owned());
        for part in [
            "- commit abc",
            "| ext4 | 1 |",
            "![readers](figure.svg)",
            "| ext4 | 1 | 100 | 110, 0 |",
            "not measured",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let figure = svg(&declaration, &declaration.experiments[0], &points);
        assert_eq!(figure.matches("<circle").count(), 2);
        assert_eq!(figure.matches("fill=\"white\" stroke").count(), 1, "one was late");
        assert!(figure.contains(">ext4</text>"));
    }
}
