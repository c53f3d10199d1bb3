//! Processor time side by side, where contenders take turns.

use crate::point::Point;
use crate::run::of;
use avfs_workloads::{Contender, Declaration, Experiment};
use std::fmt::Write;

/// What a GB takes, each experiment's with the number of clients that it is to be measured with, and the first contender's ratio to
/// each of the others; below that, a GB of each experiment. Nothing if contenders do not take turns: what the host gives would decide.
pub(super) fn table(declaration: &Declaration, points: &[Point]) -> Option<String> {
    let (first, others) = declaration
        .contenders
        .split_first()
        .filter(|(_, others)| declaration.take_turns && !others.is_empty())?;
    let mut text = String::from(
        "Processor time, s a GB: median, least and most of the points with as many clients; the ratio is that of the medians, and in \
         the last line that of their sums.\n\n| | clients",
    );
    for contender in &declaration.contenders {
        let _ = write!(text, " | {}", contender.name);
    }
    for other in others {
        let _ = write!(text, " | {} to {}", first.name, other.name);
    }
    let columns = 1 + declaration.contenders.len() + others.len();
    let _ = writeln!(text, " |\n|---|{}", "--:|".repeat(columns));
    let mut sums = vec![0.0; declaration.contenders.len()];
    for experiment in &declaration.experiments {
        let taken: Option<Vec<Taken>> =
            declaration.contenders.iter().map(|contender| Taken::of(points, contender, experiment)).collect();
        let Some(taken) = taken else {
            let _ = writeln!(text, "| {} | {}not measured |", experiment.name, "| ".repeat(columns - 1));
            continue;
        };
        let cells: Vec<String> = taken
            .iter()
            .map(|Taken { median, least, most }| format!("{median:.2} ({least:.2} to {most:.2})"))
            .collect();
        let medians: Vec<f64> = taken.iter().map(|taken| taken.median).collect();
        row(&mut text, &format!("{} | {}", experiment.name, experiment.most), cells, &medians);
        for (sum, median) in sums.iter_mut().zip(medians) {
            *sum += median;
        }
    }
    if sums[0] > 0.0 {
        let cells = sums.iter().map(|sum| format!("{sum:.2}")).collect();
        row(&mut text, "a GB of each that was measured | ", cells, &sums);
    }
    Some(text)
}

/// A line: who it is of, a cell for each contender, and the first one's ratio to each of the others.
fn row(text: &mut String, name: &str, mut cells: Vec<String>, seconds: &[f64]) {
    cells.extend(seconds[1..].iter().map(|other| format!("{:.2}", seconds[0] / other)));
    let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
}

/// Seconds that a contender's processors take for a GB.
struct Taken {
    median: f64,
    least: f64,
    most: f64,
}

impl Taken {
    /// Of the points with the most clients that the experiment is to have; `None` without any.
    fn of(points: &[Point], contender: &Contender, experiment: &Experiment) -> Option<Self> {
        let own = of(points, contender, experiment);
        let alike = own.iter().filter(|point| point.clients == experiment.most);
        let mut seconds: Vec<f64> = alike.filter_map(|point| point.cpu_s_per_gb).collect();
        seconds.sort_by(f64::total_cmp);
        let (least, most) = (*seconds.first()?, *seconds.last()?);
        Some(Self { median: seconds[(seconds.len() - 1) / 2], least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{point, smoke};

    #[test]
    fn what_was_measured_of_everybody_is_put_side_by_side_and_summed() {
        let mut declaration = smoke();
        let [first, second] = ["AVFS", "XFS"];
        let contender = |name: &str| Contender { name: name.to_owned(), ..declaration.contenders[0].clone() };
        declaration.contenders = vec![contender(first), contender(second)];
        let most = declaration.experiments[0].most;
        let of = |contender: &str, experiment: usize, clients: u32, seconds: f64| Point {
            contender: contender.to_owned(),
            experiment: declaration.experiments[experiment].name.clone(),
            cpu_s_per_gb: Some(seconds),
            ..point(clients, true, 0)
        };
        let points = [
            of(first, 0, most, 0.9),
            of(first, 0, most, 0.6),
            of(first, 0, most, 0.75),
            of(second, 0, most, 0.5),
            of(second, 0, most - 1, 9.0),
            of(first, 1, declaration.experiments[1].most, 0.25),
            of(second, 1, declaration.experiments[1].most, 1.0),
            of(first, 2, declaration.experiments[2].most, 7.0),
        ];
        assert_eq!(table(&declaration, &points), None, "one came after the other");
        declaration.take_turns = true;
        let empty = table(&declaration, &[]).expect("they take turns");
        assert!(!empty.contains("a GB of each"), "{empty}");
        let text = table(&declaration, &points).expect("they take turns");
        for line in [
            format!(" | {most} | 0.75 (0.60 to 0.90) | 0.50 (0.50 to 0.50) | 1.50 |\n"),
            format!(
                " | {} | 0.25 (0.25 to 0.25) | 1.00 (1.00 to 1.00) | 0.25 |\n",
                declaration.experiments[1].most
            ),
            " | | | | not measured |\n".to_owned(),
            "| a GB of each that was measured |  | 1.00 | 1.50 | 0.67 |\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
