//! The table as text: what is kept under version control.
//!
//! **State:** none. **Invariants:** what is written is read as itself, up to the digits that are written; a line is a cell, in the
//! order of the names, so that two tables differ in the lines of the cells that differ.

use super::set::BUFFERS_MS;
use std::collections::BTreeMap;
use std::fmt::Write;
use thiserror::Error;

/// A cell's figures, over all its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Device, experiment, what AVFS is told, and how many clients: `paper.players.named.13`.
    pub cell: String,
    /// How many points.
    pub points: u32,
    /// In how many of them some unit was late.
    pub points_late: u32,
    /// Units that were late, of all points and clients.
    pub late: u64,
    /// Of whose clients, by their buffers: 0.3, 1, 2 and 4 s.
    pub late_by_buffer: [u64; BUFFERS_MS.len()],
    /// By how much the latest unit was late.
    pub latest_ms: f64,
    /// The longest that any client waited for its first picture, also after a jump.
    pub picture_ms: Option<f64>,
    /// 99 of 100 clients had full buffers, and began to play, within this.
    pub begin_p99_ms: Option<f64>,
    /// The last to begin of all took this.
    pub begin_ms: Option<f64>,
    /// 99 of 100 jumps had their picture within this.
    pub jump_p99_ms: Option<f64>,
    /// 99 of 100 searches had theirs within this.
    pub search_p99_ms: Option<f64>,
    /// What is moved from seek to seek.
    pub kib_per_seek: f64,
    /// Of what was read, the part that no client took.
    pub unread_percent: f64,
    /// Of the time, the part in which the device was at work.
    pub busy_percent: f64,
    /// What those beside the counted clients moved, Mbit/s.
    pub copy_megabits: f64,
    /// Of what recorders produce, what the device can write on and on.
    pub sustained_percent: Option<f64>,
    /// Streams with a reservation in the end, on average.
    pub promised: f64,
    /// Of the commands of the first seed.
    pub first_hash: u64,
    /// Of the commands of all seeds.
    pub hash: u64,
}

/// A line that is no row.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {problem}")]
pub struct RowError {
    line: usize,
    problem: String,
}

const HEAD: &str = "\
# The golden set (laboratory/golden.md): made by ./lab golden, compared by ./lab golden --compare. Times in ms, all over all points of a cell.
# cell: device.experiment.setting.clients    points: runs, each with a seed of its own    bad: those with a late unit
# late: late units    0.3s 1s 2s 4s: of whose clients, by their buffers    latest: by how much, at most    picture: the longest wait for a first picture
# begin99, begin: until full buffers, 99th percentile and longest    jump99, search99: to the picture, after a jump, in a search
# KiB/seek unread% busy%: means    copy: Mbit/s beside the counted clients    kept%: of what is recorded, what the device can write on and on
# promised: streams with a reservation    hash: of all commands of the device";

/// Columns of [`text`], after the cell.
const COLUMNS: [(&str, usize); 19] = [
    ("points", 6),
    ("bad", 4),
    ("late", 7),
    ("0.3s", 6),
    ("1s", 6),
    ("2s", 6),
    ("4s", 6),
    ("latest", 7),
    ("picture", 7),
    ("begin99", 7),
    ("begin", 7),
    ("jump99", 7),
    ("search99", 8),
    ("KiB/seek", 8),
    ("unread%", 7),
    ("busy%", 6),
    ("copy", 8),
    ("kept%", 6),
    ("promised", 8),
];

fn told(figure: Option<f64>) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.0}"))
}

impl Row {
    fn fields(&self) -> [String; COLUMNS.len()] {
        let [a, b, c, d] = self.late_by_buffer.map(|late| late.to_string());
        [
            self.points.to_string(),
            self.points_late.to_string(),
            self.late.to_string(),
            a,
            b,
            c,
            d,
            format!("{:.0}", self.latest_ms),
            told(self.picture_ms),
            told(self.begin_p99_ms),
            told(self.begin_ms),
            told(self.jump_p99_ms),
            told(self.search_p99_ms),
            format!("{:.0}", self.kib_per_seek),
            format!("{:.2}", self.unread_percent),
            format!("{:.1}", self.busy_percent),
            format!("{:.0}", self.copy_megabits),
            told(self.sustained_percent),
            format!("{:.1}", self.promised),
        ]
    }

    fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [cell, figures @ .., hash] = &fields[..] else { return Err("it is empty".to_owned()) };
        if figures.len() != COLUMNS.len() {
            return Err(format!("{} fields, not {}", fields.len(), COLUMNS.len() + 2));
        }
        let wrong = |place: usize| format!("{} is no {}", figures[place], COLUMNS[place].0);
        let count = |place: usize| figures[place].parse::<u64>().map_err(|_| wrong(place));
        let figure = |place: usize| figures[place].parse::<f64>().map_err(|_| wrong(place));
        let maybe = |place: usize| if figures[place] == "-" { Ok(None) } else { figure(place).map(Some) };
        Ok(Self {
            cell: (*cell).to_owned(),
            points: u32::try_from(count(0)?).map_err(|_| wrong(0))?,
            points_late: u32::try_from(count(1)?).map_err(|_| wrong(1))?,
            late: count(2)?,
            late_by_buffer: [count(3)?, count(4)?, count(5)?, count(6)?],
            latest_ms: figure(7)?,
            picture_ms: maybe(8)?,
            begin_p99_ms: maybe(9)?,
            begin_ms: maybe(10)?,
            jump_p99_ms: maybe(11)?,
            search_p99_ms: maybe(12)?,
            kib_per_seek: figure(13)?,
            unread_percent: figure(14)?,
            busy_percent: figure(15)?,
            copy_megabits: figure(16)?,
            sustained_percent: maybe(17)?,
            promised: figure(18)?,
            first_hash: 0,
            hash: u64::from_str_radix(hash, 16).map_err(|_| format!("{hash} is no hash"))?,
        })
    }
}

fn width(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.cell.len()).max().unwrap_or(0).max(4)
}

/// The table. `made` says of which program, and where.
pub fn text(rows: &[Row], made: &str) -> String {
    let width = width(rows);
    let mut text = format!("{HEAD}\n# {made}\n");
    let _ = write!(text, "{:width$}", "#");
    COLUMNS.iter().for_each(|(name, width)| _ = write!(text, " {name:>width$}"));
    text.push_str(" hash\n");
    for row in rows {
        let _ = write!(text, "{:width$}", row.cell);
        for (field, (_, width)) in std::iter::zip(row.fields(), COLUMNS) {
            let _ = write!(text, " {field:>width$}");
        }
        let _ = writeln!(text, " {:016x}", row.hash);
    }
    text
}

/// The rows of a table.
///
/// # Errors
/// The first line that is none.
pub fn parse(text: &str) -> Result<Vec<Row>, RowError> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let row = |(place, line)| Row::parse(line).map_err(|problem| RowError { line: place + 1, problem });
    lines.map(row).collect()
}

/// Only the hash of each cell's first seed: what the short form compares.
pub fn hashes(rows: &[Row]) -> String {
    let width = width(rows);
    let mut text =
        "# The golden set (laboratory/golden.md): of each cell the hash of the commands of the first seed.\n\
                    # Compared by ./lab golden --short, written by ./lab golden --short --keep.\n"
            .to_owned();
    for row in rows {
        let _ = writeln!(text, "{:width$} {:016x}", row.cell, row.first_hash);
    }
    text
}

/// The same, read.
///
/// # Errors
/// The first line that is none.
pub fn parse_hashes(text: &str) -> Result<BTreeMap<String, u64>, RowError> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let pair = |(place, line): (usize, &str)| {
        let pair = line
            .split_once(' ')
            .and_then(|(cell, hash)| Some((cell.to_owned(), u64::from_str_radix(hash.trim(), 16).ok()?)));
        pair.ok_or_else(|| RowError { line: place + 1, problem: "no cell and hash".to_owned() })
    };
    lines.map(pair).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::golden) fn row(cell: &str) -> Row {
        Row {
            cell: cell.to_owned(),
            points: 100,
            points_late: 3,
            late: 17,
            late_by_buffer: [1, 16, 0, 0],
            latest_ms: 120.0,
            picture_ms: Some(820.0),
            begin_p99_ms: Some(1400.0),
            begin_ms: Some(1900.0),
            jump_p99_ms: None,
            search_p99_ms: Some(212.0),
            kib_per_seek: 24118.0,
            unread_percent: 0.25,
            busy_percent: 97.5,
            copy_megabits: 311.0,
            sustained_percent: None,
            promised: 12.5,
            first_hash: 0,
            hash: 0x00ab_cdef,
        }
    }

    #[test]
    fn what_is_written_is_read_as_itself() {
        let rows = [row("array.players.named.13"), row("nvme.recorders+copy.plain.05")];
        let text = text(&rows, "made of abc");
        assert_eq!(parse(&text).as_deref(), Ok(&rows[..]), "{text}");
        let hashes = parse_hashes(&hashes(&[Row { first_hash: 77, ..row("one") }])).expect("it is a list");
        assert_eq!(hashes, BTreeMap::from([("one".to_owned(), 77)]));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let text = text(&[row("one"), row("two")], "");
        let cut = text.trim_end().rsplit_once(' ').expect("fields").0;
        assert_eq!(parse(cut).expect_err("a field is missing").line, text.lines().count());
        let wrong = text.replace("24118", "many");
        assert!(parse(&wrong).expect_err("no figure").to_string().contains("many is no KiB/seek"));
        assert!(parse_hashes("a 12\nb xyz\n").is_err_and(|error| error.line == 2));
    }
}
