//! What was measured, in a file.
//!
//! **For:** a declaration's file of results, one line of JSON for each point, and which of them count. **Excludes:**
//! measuring, searching. **State:** the file, which only grows: a run that was broken off goes on behind its last line.
//! **Invariants:** what was measured under other conditions is never taken for a result; a point is written when it is complete;
//! a point that was set aside stays in the file and counts for nothing.

use crate::point::Point;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// See [`Declaration::pairs`](crate::experiment::Declaration::pairs).
pub type Pairs = BTreeMap<(String, String), u64>;

/// A point about which the machine's host may have decided is measured again so often, if that is so each time. What the last
/// says counts, and is marked.
const AGAIN: usize = 3;

/// The points of a declaration.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    points: Vec<Point>,
}

/// A number of clients in a search.
type Number = (u64, u32, u32);

fn number(point: &Point) -> Number {
    (point.pair, point.repeat, point.clients)
}

impl Results {
    /// What a file has of these pairs; nothing when there is no file. An incomplete last line is ignored.
    ///
    /// # Errors
    /// When the file cannot be read, or a line of it is no result.
    pub fn open(path: &Path, pairs: &Pairs) -> io::Result<Self> {
        let known: BTreeSet<u64> = pairs.values().copied().collect();
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut points = Vec::new();
        for (index, line) in whole.lines().enumerate() {
            let point: Point = serde_json::from_str(line).map_err(|error| {
                let (path, line) = (path.display(), index + 1);
                let told = format!("{path}, line {line}, is no result (move the file away): {error}");
                io::Error::new(io::ErrorKind::InvalidData, told)
            })?;
            if known.contains(&point.pair) {
                points.push(point);
            }
        }
        Ok(Self { path: path.to_owned(), points })
    }

    /// The points that count: of each number in each search the last that was not set aside.
    pub fn counting(&self) -> Vec<Point> {
        let kept = || self.points.iter().enumerate().filter(|(_, point)| !point.set_aside);
        let last: BTreeMap<Number, usize> = kept().map(|(index, point)| (number(point), index)).collect();
        kept().filter(|(index, point)| last[&number(point)] == *index).map(|(_, one)| one.clone()).collect()
    }

    /// Of the points that count, those that are not to be measured again.
    pub fn settled(&self) -> Vec<Point> {
        let mut points = self.counting();
        points.retain(|point| !point.is_in_doubt() || self.in_doubt(number(point)) > AGAIN);
        points
    }

    /// Of the numbers about which nothing is settled, what the machine's host may have decided: the last time each. It says
    /// where to go on searching, and is measured again where the search would end by it.
    pub fn doubtful(&self) -> Vec<Point> {
        let settled: BTreeSet<Number> = self.settled().iter().map(number).collect();
        let open = self.points.iter().filter(|point| !settled.contains(&number(point)));
        let last: BTreeMap<Number, &Point> = open.map(|point| (number(point), point)).collect();
        last.into_values().cloned().collect()
    }

    /// How many points do not count.
    pub fn set_aside(&self) -> usize {
        self.points.len() - self.counting().len()
    }

    /// How often the machine's host may have decided about a number.
    fn in_doubt(&self, of: Number) -> usize {
        self.points.iter().filter(|point| number(point) == of && point.is_in_doubt()).count()
    }

    /// Decides whether a point counts, and writes it down.
    ///
    /// # Errors
    /// Those of the file.
    pub fn add(&mut self, mut point: Point) -> io::Result<&Point> {
        point.set_aside = point.is_in_doubt() && self.in_doubt(number(&point)) < AGAIN;
        append(&self.path, &point)?;
        self.points.push(point);
        Ok(&self.points[self.points.len() - 1])
    }
}

/// Appends a point; a line that a broken run left incomplete ends before it.
fn append(results: &Path, point: &Point) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(results)?;
    let text = std::fs::read(results)?;
    if text.last().is_some_and(|last| *last != b'\n') {
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
    }
    let mut line = serde_json::to_vec(point)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{point, smoke};
    use crate::run::{self, Known};

    fn pairs(number: u64) -> Pairs {
        Pairs::from([(("ext4".to_owned(), "readers".to_owned()), number)])
    }

    #[test]
    fn a_broken_run_goes_on_behind_its_last_whole_line() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let file = directory.path().join("results.jsonl");
        let (mine, other) = (point(2, true, 0), Point { pair: 7, ..point(1, true, 0) });
        let open = |pair| Results::open(&file, &pairs(pair)).expect("an incomplete line is ignored");
        assert_eq!(open(mine.pair).counting(), [], "no file is no result");
        open(mine.pair).add(mine.clone()).expect("there is room");
        open(7).add(other.clone()).expect("there is room");
        let whole = std::fs::read(&file).expect("it was written");
        std::fs::write(&file, &whole[..whole.len() - 20]).expect("there is room");
        assert_eq!(open(mine.pair).counting(), std::slice::from_ref(&mine));
        open(7).add(other.clone()).expect("there is room");
        assert_eq!(open(7).counting(), [other], "it is whole again");
        std::fs::write(&file, "nonsense\n").expect("there is room");
        let error = Results::open(&file, &pairs(7)).expect_err("no result");
        assert!(error.to_string().contains("line 1"));
    }

    fn stolen(clients: u32, percent: f64) -> Point {
        Point { stolen: percent, ..point(clients, percent < 3.0, 0) }
    }

    /// Searches on a machine of which the host takes so much, point by point, and then nothing more.
    fn search(results: &mut Results, host: &[f64]) -> usize {
        let mut host = host.iter();
        let declaration = smoke();
        for made in 0..20 {
            let (contender, experiment) = (&declaration.contenders[0], &declaration.experiments[0]);
            let Some((_, clients)) = run::next(&declaration, contender, experiment, &Known::of(results))
            else {
                return made;
            };
            results.add(stolen(clients, *host.next().unwrap_or(&0.0))).expect("there is room");
        }
        panic!("the search does not end");
    }

    #[test]
    fn what_the_host_disturbed_is_measured_again_and_counts_for_nothing() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let open = |name: &str| {
            Results::open(&directory.path().join(name), &pairs(1)).expect("a file of results, or none")
        };
        let counting = |results: &Results| -> Vec<(u32, f64)> {
            results.counting().iter().map(|point| (point.clients, point.stolen)).collect()
        };
        // Two clients are the most, and where the search begins. Two in doubt are measured again once one is known.
        let mut quiet = open("quiet");
        assert_eq!((search(&mut quiet, &[2.99]), quiet.set_aside()), (1, 0));
        let mut once = open("once");
        assert_eq!((search(&mut once, &[3.0, 0.0]), once.set_aside()), (3, 1));
        assert_eq!(counting(&once), [(1, 0.0), (2, 0.0)]);
        let mut thrice = open("thrice");
        assert_eq!((search(&mut thrice, &[9.0, 0.0, 8.0, 7.0]), thrice.set_aside()), (5, 3));
        assert_eq!(counting(&thrice), [(1, 0.0), (2, 0.0)]);
        let mut always = open("always");
        assert_eq!((search(&mut always, &[9.0, 0.0, 8.0, 7.0, 6.0]), always.set_aside()), (5, 3));
        assert_eq!(counting(&always), [(1, 0.0), (2, 6.0)], "the last of four counts");
        let lines = std::fs::read_to_string(directory.path().join("always")).expect("it was written");
        let marked = |line: &str| line.contains("\"set_aside\":true");
        assert_eq!(lines.lines().map(marked).collect::<Vec<_>>(), [true, false, true, true, false]);
    }

    /// Of forty points of a quarter of an hour nine were measured again, four of which were of players who were late by one
    /// more than the fewest that are late.
    #[test]
    fn what_the_host_disturbed_is_not_measured_again_unless_it_decides() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let open = || Results::open(&directory.path().join("results"), &pairs(1)).expect("a file, or none");
        // Two late, in doubt; one late as well, and that is looked at as often as may be.
        assert_eq!(search(&mut open(), &[9.0, 9.0, 8.0, 7.0, 6.0]), 5);
        let made: Vec<u32> = open().points.iter().map(|point| point.clients).collect();
        assert_eq!(made, [2, 1, 1, 1, 1]);
        assert_eq!((open().counting().len(), open().set_aside()), (1, 4));
        assert_eq!(search(&mut open(), &[]), 0, "a broken run knows that it is done");
    }

    /// A third of the points of half an hour were measured again, most of which had been in time.
    #[test]
    fn who_is_in_time_alone_in_spite_of_the_host_is_not_measured_again() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        for (clean, background_megabits, again) in [(true, 0.0, 0), (true, 1.0, 1), (false, 0.0, 1)] {
            let file = directory.path().join(format!("{clean}{background_megabits}"));
            let mut results = Results::open(&file, &pairs(1)).expect("no file");
            results.add(stolen(1, 0.0)).expect("there is room");
            results.add(Point { clean, background_megabits, ..stolen(2, 9.0) }).expect("there is room");
            assert_eq!((search(&mut results, &[]), results.set_aside()), (again, again));
        }
    }

    #[test]
    fn a_broken_run_remembers_how_often_it_has_measured_again() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let file = directory.path().join("results.jsonl");
        let open = || Results::open(&file, &pairs(1)).expect("a file of results");
        for percent in [9.0, 8.0] {
            open().add(stolen(2, percent)).expect("there is room");
        }
        assert_eq!((open().counting(), open().set_aside()), (vec![], 2));
        assert_eq!(search(&mut open(), &[0.0, 7.0, 6.0]), 3, "one client, and twice again");
        assert_eq!(open().settled().len(), 2, "nothing is measured any more");
        assert_eq!(search(&mut open(), &[]), 0);
    }

    /// They tell what was stolen or, older still, do not, and nothing was set aside.
    #[test]
    fn files_of_before_are_gone_on_with() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let file = directory.path().join("results.jsonl");
        let open = || Results::open(&file, &pairs(1)).expect("a file of results");
        let line = |clients, told: Option<f64>| {
            let mut line = serde_json::to_value(stolen(clients, told.unwrap_or(0.0))).expect("a line");
            let fields = line.as_object_mut().expect("of fields");
            fields.retain(|field, _| !["set_aside", "sustained"].contains(&field.as_str()));
            if told.is_none() {
                fields.remove("stolen");
            }
            format!("{line}\n")
        };
        std::fs::write(&file, line(2, None)).expect("there is room");
        assert_eq!(search(&mut open(), &[]), 0, "nothing is known against it");
        std::fs::write(&file, line(2, Some(5.0)) + &line(1, Some(2.0))).expect("there is room");
        assert_eq!(
            (open().counting().len(), open().settled().len()),
            (2, 1),
            "reported until it is replaced"
        );
        assert_eq!(search(&mut open(), &[]), 1);
        let last = open();
        assert_eq!((last.counting().len(), last.set_aside()), (2, 1));
        assert!(last.counting().iter().all(|point| !point.is_disturbed()));
        let always = line(2, Some(5.0)) + &line(1, Some(2.0));
        std::fs::write(&file, always).expect("there is room");
        assert_eq!(search(&mut open(), &[9.0; 9]), 3, "as often as any other");
    }
}
