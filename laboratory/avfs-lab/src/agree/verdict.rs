//! Both sides beside each other, and what differs.

use super::side::Side;
use rtsched_sim::policy::Grant;
use std::collections::BTreeMap;
use std::fmt::Write;
use units::Bytes;

/// The part by which figures of the device's work may differ.
const TOLERATED: f64 = 0.03;

/// One figure of both sides.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: &'static str,
    simulated: String,
    played: String,
    /// `None`: it is shown, and not judged.
    holds: Option<bool>,
    difference: String,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict(Vec<Row>);

/// Compares the sides: who was admitted on which terms, and that nobody is late, exactly; the device's work within 3 %.
///
/// 3 %, because the order of requests is not the same to the last: a seek more or less is drawn otherwise, and a machine
/// that wakes somebody late changes which request is next on the sweep.
pub fn compare(simulated: &Side, played: &Side) -> Verdict {
    let (a, b) = (simulated, played);
    let admitted = |side: &Side| side.streams.values().flatten().count();
    let refused = |side: &Side| {
        let refused = side.streams.iter().filter(|(_, grant)| grant.is_none());
        refused.map(|(stream, _)| stream.0.to_string()).collect::<Vec<_>>().join(" ")
    };
    let mean_mib = |side: &Side| mebibytes(side.bytes) / side.commands.max(1) as f64;
    let megabytes_per_s = |side: &Side| side.bytes.0 as f64 / 1e6 / side.busy.as_secs_f64();
    let seeks = |side: &Side| side.seeks as f64 / side.commands.max(1) as f64;
    Verdict(vec![
        exact("streams admitted", admitted(a), admitted(b)),
        exact("refused, by number", refused(a), refused(b)),
        exact("terms: request, deadline", terms(a), terms(b)),
        exact(
            "late requests",
            format!("{} of {}", a.late, a.promised),
            format!("{} of {}", b.late, b.promised),
        )
        .judged(a.late == 0 && b.late == 0),
        Row {
            name: "nearest to a deadline, s",
            simulated: format!("{:.2}", a.nearest_s),
            played: format!("{:.2}", b.nearest_s),
            holds: None,
            difference: String::new(),
        },
        near("moved, MiB", mebibytes(a.bytes), mebibytes(b.bytes)),
        near("mean command, MiB", mean_mib(a), mean_mib(b)),
        near("device busy, s", a.busy.as_secs_f64(), b.busy.as_secs_f64()),
        near("device while busy, MB/s", megabytes_per_s(a), megabytes_per_s(b)),
        Row { holds: None, ..near("seeks for each command", seeks(a), seeks(b)) },
    ])
}

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}

/// All terms that streams have, with the number of streams that have them.
fn terms(side: &Side) -> String {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for Grant { request, deadline, .. } in side.streams.values().flatten() {
        *counts.entry(format!("{request} in {:.3} s", deadline.as_secs_f64())).or_default() += 1;
    }
    let all = counts.iter().map(|(terms, count)| format!("{count} × {terms}"));
    all.collect::<Vec<_>>().join(", ")
}

fn exact<T: ToString + PartialEq>(name: &'static str, simulated: T, played: T) -> Row {
    let holds = simulated == played;
    let difference = if holds { "" } else { "differs" };
    Row {
        name,
        simulated: simulated.to_string(),
        played: played.to_string(),
        holds: Some(holds),
        difference: difference.to_owned(),
    }
}

fn near(name: &'static str, simulated: f64, played: f64) -> Row {
    let difference = played / simulated - 1.0;
    Row {
        name,
        simulated: format!("{simulated:.2}"),
        played: format!("{played:.2}"),
        holds: Some(difference.abs() <= TOLERATED),
        difference: format!("{:+.1} %", difference * 100.0),
    }
}

impl Row {
    fn judged(self, holds: bool) -> Self {
        Self { holds: Some(holds), difference: String::new(), ..self }
    }
}

impl Verdict {
    /// Nothing differs by more than it may.
    pub fn holds(&self) -> bool {
        self.0.iter().all(|row| row.holds != Some(false))
    }

    /// As a table in Markdown.
    pub fn markdown(&self) -> String {
        let mut text =
            String::from("| | simulator | engine on the LUN | difference | |\n|---|---|---|--:|---|\n");
        for Row { name, simulated, played, holds, difference } in &self.0 {
            let verdict = match holds {
                Some(true) => "agrees",
                Some(false) => "**differs**",
                None => "shown only",
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {name} | {simulated} | {played} | {difference} | {verdict} |");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsched::StreamId;
    use units::{Duration, Instant};

    fn side() -> Side {
        let grant =
            Grant { request: Bytes::from_mib(64), deadline: Duration::from_secs(8), since: Instant::ZERO };
        Side {
            streams: [(StreamId(0), Some(grant)), (StreamId(1), None)].into(),
            promised: 10,
            late: 0,
            nearest_s: 3.0,
            bytes: Bytes::from_mib(6400),
            commands: 100,
            busy: Duration::from_secs(40),
            seeks: 100,
        }
    }

    #[test]
    fn equal_sides_agree() {
        let verdict = compare(&side(), &side());
        assert!(verdict.holds());
        assert!(verdict.markdown().contains("1 × 64 MiB in 8.000 s"), "{}", verdict.markdown());
    }

    #[test]
    fn work_may_differ_by_three_percent_and_no_more() {
        let busy = |millis| Side { busy: Duration::from_millis(millis), ..side() };
        // Throughput is the inverse: 3 % slower is 2.9 % less.
        assert!(compare(&side(), &busy(41_199)).holds());
        assert!(!compare(&side(), &busy(41_201)).holds());
        assert!(compare(&side(), &busy(38_836)).holds());
        assert!(!compare(&side(), &busy(38_799)).holds());
    }

    #[test]
    fn admission_terms_and_lateness_may_not_differ_at_all() {
        let without = side();
        let mut admitted = side();
        let grant = admitted.streams[&StreamId(0)];
        admitted.streams.insert(StreamId(1), grant);
        let mut shorter = side();
        if let Some(Some(grant)) = shorter.streams.get_mut(&StreamId(0)) {
            grant.request = Bytes::from_mib(32);
        }
        let late = Side { late: 1, ..side() };
        for other in [admitted, shorter, late] {
            assert!(!compare(&without, &other).holds());
            assert!(!compare(&other, &without).holds());
        }
        // Not even when both are late.
        let late = Side { late: 1, ..side() };
        assert!(!compare(&late, &late).holds());
    }
}
