//! Does a change of policy make anything worse?
//!
//! **For:** a test that was written down before the run: more points with late units by Fisher's exact test, one-sided; or begins or
//! jumps that take longer. **State:** none. **Invariants:** the same tables give the same verdict.

use super::Row;
use std::collections::BTreeMap;
use std::fmt;

/// A difference that chance makes in fewer than one of twenty is none of chance.
pub const ALPHA: f64 = 0.05;

/// The 99th percentile of begins and of jumps may be so many times what it was.
pub const LONGER_AT_MOST: f64 = 1.05;

/// The logarithms of factorials up to n.
fn ln_factorials(n: u32) -> Vec<f64> {
    let mut logarithms = vec![0.0];
    for number in 1..=n {
        logarithms.push(logarithms[number as usize - 1] + f64::from(number).ln());
    }
    logarithms
}

/// Fisher's exact test, one-sided: `before` and `after` are how many of how many were late. The probability of so many late ones
/// after, or more, if late ones fall on both alike.
///
/// # Panics
/// When more were late than there were.
pub fn fisher_more(before: (u32, u32), after: (u32, u32)) -> f64 {
    let ((late_before, before), (late_after, after)) = (before, after);
    assert!(late_before <= before && late_after <= after, "more late than there are");
    let (all, late) = (before + after, late_before + late_after);
    let ln = ln_factorials(all);
    let ln_choose = |n: u32, k: u32| ln[n as usize] - ln[k as usize] - ln[(n - k) as usize];
    let most = late.min(after);
    let of = |k: u32| (ln_choose(after, k) + ln_choose(before, late - k) - ln_choose(all, late)).exp();
    (late_after..=most).map(of).sum::<f64>().min(1.0)
}

/// What is said of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The commands are the same.
    Equal,
    /// They differ, and nothing is worse.
    NotInferior {
        /// Points with late units, before and after.
        bad: [u32; 2],
    },
    /// Something is worse.
    Worse(Vec<Worse>),
    /// It is in one table only, or with another number of points.
    NotComparable,
}

/// What is worse.
#[derive(Clone, Debug, PartialEq)]
pub enum Worse {
    /// More points have late units.
    Late {
        /// Points with late units, before and after.
        bad: [u32; 2],
        /// Of [`fisher_more`].
        p: f64,
    },
    /// Begins or jumps take longer.
    Longer {
        /// Which.
        what: &'static str,
        /// The 99th percentile before and after, milliseconds; none before, or after, is longer than any.
        p99_ms: [Option<f64>; 2],
    },
}

impl fmt::Display for Worse {
    fn fmt(&self, output: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |ms: Option<f64>| ms.map_or("none".to_owned(), |ms| format!("{ms:.0}"));
        match self {
            Self::Late { bad: [before, after], p } => {
                write!(output, "{before} -> {after} points with late units (p = {p:.3})")
            }
            Self::Longer { what, p99_ms: [before, after] } => {
                write!(output, "{what} p99 {} -> {} ms", told(*before), told(*after))
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, output: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => output.write_str("equal"),
            Self::NotInferior { bad: [before, after] } => {
                write!(output, "differs, not worse ({before} -> {after} points with late units)")
            }
            Self::Worse(worse) => {
                let worse: Vec<String> = worse.iter().map(Worse::to_string).collect();
                write!(output, "WORSE: {}", worse.join("; "))
            }
            Self::NotComparable => output.write_str("in one table only, or with other numbers of points"),
        }
    }
}

fn of(before: &Row, after: &Row) -> Verdict {
    if before.points != after.points {
        return Verdict::NotComparable;
    }
    if before.hash == after.hash {
        return Verdict::Equal;
    }
    let mut worse = Vec::new();
    let p = fisher_more((before.points_late, before.points), (after.points_late, after.points));
    let bad = [before.points_late, after.points_late];
    if p < ALPHA {
        worse.push(Worse::Late { bad, p });
    }
    for (what, p99_ms) in [
        ("begin", [before.begin_p99_ms, after.begin_p99_ms]),
        ("jump", [before.jump_p99_ms, after.jump_p99_ms]),
    ] {
        let is_longer = match p99_ms {
            [Some(before), Some(after)] => after > before * LONGER_AT_MOST,
            [Some(_), None] => true,
            [None, _] => false,
        };
        if is_longer {
            worse.push(Worse::Longer { what, p99_ms });
        }
    }
    if worse.is_empty() { Verdict::NotInferior { bad } } else { Verdict::Worse(worse) }
}

/// Of each cell of either table, in the order of the names.
pub fn judge(before: &[Row], after: &[Row]) -> Vec<(String, Verdict)> {
    let by_cell = |rows: &'_ [Row]| -> BTreeMap<String, Row> {
        rows.iter().map(|row| (row.cell.clone(), row.clone())).collect()
    };
    let (before, after) = (by_cell(before), by_cell(after));
    let mut cells: Vec<&String> = before.keys().chain(after.keys()).collect();
    cells.sort_unstable();
    cells.dedup();
    let verdict = |cell: &String| match (before.get(cell), after.get(cell)) {
        (Some(before), Some(after)) => of(before, after),
        _ => Verdict::NotComparable,
    };
    cells.into_iter().map(|cell| (cell.clone(), verdict(cell))).collect()
}

/// Of each experiment and setting, over all devices and numbers of clients: points with late units of all points, before and after,
/// and Fisher's p. Of two hundred cells ten are worse by chance; of twelve sums hardly one is.
pub fn pooled(before: &[Row], after: &[Row]) -> BTreeMap<String, ([(u32, u32); 2], f64)> {
    let mut sums: BTreeMap<String, [(u32, u32); 2]> = BTreeMap::new();
    let comparable: Vec<String> = judge(before, after)
        .into_iter()
        .filter(|(_, verdict)| *verdict != Verdict::NotComparable)
        .map(|(cell, _)| cell)
        .collect();
    for (place, rows) in [before, after].into_iter().enumerate() {
        for row in rows.iter().filter(|row| comparable.contains(&row.cell)) {
            let mut parts = row.cell.split('.').skip(1);
            let name = format!("{}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let sum = &mut sums.entry(name).or_default()[place];
            *sum = (sum.0 + row.points_late, sum.1 + row.points);
        }
    }
    sums.into_iter()
        .map(|(name, [before, after])| (name, ([before, after], fisher_more(before, after))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::table::tests::row;

    #[test]
    fn fisher_is_what_tables_say() {
        let near = |found: f64, known: f64| {
            assert!((found - known).abs() < 5e-6 * known.max(1e-3), "{found}, not {known}")
        };
        // The lady who tasted tea: three of four cups, 17/70; all four, 1/70.
        near(fisher_more((1, 4), (3, 4)), 17.0 / 70.0);
        near(fisher_more((0, 4), (4, 4)), 1.0 / 70.0);
        // Convictions of like-sex twins of criminals (Fisher 1935): 2 of 17 beside 10 of 13.
        near(fisher_more((2, 17), (10, 13)), 0.000_465_180_9);
        // None beside k of a hundred: C(100, k) of C(200, k).
        near(fisher_more((0, 100), (4, 100)), 0.060_620_361);
        near(fisher_more((0, 100), (5, 100)), 0.029_691_605);
        assert_eq!(fisher_more((0, 100), (0, 100)), 1.0);
        near(fisher_more((7, 100), (0, 100)), 1.0);
        // From one late point of n in both, to more, chance alone makes more than half.
        assert!(fisher_more((1, 40), (1, 40)) > 0.5);
        // Large sums do not overflow.
        assert!(fisher_more((900, 9000), (1100, 9000)) < 1e-5);
    }

    fn verdict(change: impl FnOnce(&mut Row)) -> Verdict {
        let before = Row { points_late: 0, jump_p99_ms: Some(400.0), ..row("paper.players.named.13") };
        let mut after = Row { hash: before.hash + 1, ..before.clone() };
        change(&mut after);
        let mut verdicts = judge(&[before], &[after]);
        verdicts.remove(0).1
    }

    #[test]
    fn five_more_of_a_hundred_are_worse_and_four_are_not() {
        assert_eq!(verdict(|row| row.points_late = 4), Verdict::NotInferior { bad: [0, 4] });
        let Verdict::Worse(worse) = verdict(|row| row.points_late = 5) else { panic!("it is worse") };
        assert!(matches!(worse[..], [Worse::Late { bad: [0, 5], p }] if p < 0.03));
    }

    #[test]
    fn begins_and_jumps_may_take_a_twentieth_longer() {
        assert_eq!(verdict(|row| row.begin_p99_ms = Some(1470.0)), Verdict::NotInferior { bad: [0, 0] });
        assert_eq!(verdict(|row| row.jump_p99_ms = Some(420.0)), Verdict::NotInferior { bad: [0, 0] });
        let worse = |what, p99_ms| Verdict::Worse(vec![Worse::Longer { what, p99_ms }]);
        let begin = verdict(|row| row.begin_p99_ms = Some(1471.0));
        assert_eq!(begin, worse("begin", [Some(1400.0), Some(1471.0)]));
        assert_eq!(verdict(|row| row.jump_p99_ms = None), worse("jump", [Some(400.0), None]));
        assert!(begin.to_string().contains("begin p99 1400 -> 1471 ms"), "{begin}");
    }

    #[test]
    fn equal_commands_are_equal_and_what_is_in_one_table_only_is_not_compared() {
        let before = [row("a.players.named.1"), row("b.players.named.1")];
        // Figures that differ with the same commands are those of clients: no policy's.
        assert_eq!(judge(&before[..1], &before[..1]), [("a.players.named.1".to_owned(), Verdict::Equal)]);
        let judged = judge(&before, &before[..1]);
        assert_eq!(judged[1].1, Verdict::NotComparable);
        let fewer = Row { points: 10, ..row("a.players.named.1") };
        assert_eq!(judge(&before[..1], &[fewer])[0].1, Verdict::NotComparable);
    }

    #[test]
    fn experiments_are_pooled_over_devices_and_numbers() {
        let rows = |bad: [u32; 3]| {
            let cells = ["a.players.named.1", "b.players.named.7", "a.recorders.plain.1"];
            std::iter::zip(cells, bad)
                .map(|(cell, points_late)| Row { points_late, ..row(cell) })
                .collect::<Vec<_>>()
        };
        let pooled = pooled(&rows([0, 1, 2]), &rows([3, 4, 2]));
        let ([before, after], p) = pooled["players.named"];
        assert_eq!((before, after), ((1, 200), (7, 200)));
        assert!((0.02..0.05).contains(&p), "{p}");
        assert_eq!(pooled["recorders.plain"].0, [(2, 100), (2, 100)]);
    }
}
