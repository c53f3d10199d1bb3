//! What streams hold of the memory: one of them at the most, and all together, against the number of clients.

use super::{COLOURS, below, escape, grid_line, key, sheet};
use crate::rehearsal::holdings::Held;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
const PANEL: f64 = 300.0;
const GAP: f64 = 70.0;
const LEFT: f64 = 56.0;

/// One of the two drawings beside each other; clients stand at equal distances.
struct Panel<'a> {
    left: f64,
    most: f64,
    numbers: &'a [u32],
}

impl Panel<'_> {
    fn x(&self, clients: u32) -> f64 {
        let index = self.numbers.iter().position(|number| *number == clients).unwrap_or(0);
        self.left + (index as f64 + 0.5) / self.numbers.len() as f64 * PANEL
    }

    fn y(&self, mib: f64) -> f64 {
        HEIGHT - BOTTOM - mib / self.most * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, text: &mut String, title: &str) {
        let right = self.left + PANEL;
        for quarter in 0..=4 {
            let mib = self.most * f64::from(quarter) / 4.0;
            let y = self.y(mib);
            grid_line(text, self.left..right, y, mib);
        }
        for number in self.numbers {
            below(text, self.x(*number), HEIGHT - BOTTOM, *number);
        }
        let _ =
            writeln!(text, "<text x=\"{}\" y=\"24\" font-size=\"14\">{}</text>", self.left, escape(title));
    }

    fn line(&self, text: &mut String, rows: &[&Held], mib: impl Fn(&Held) -> f64, style: &str) {
        let points: Vec<String> =
            rows.iter().map(|row| format!("{:.1},{:.1}", self.x(row.clients), self.y(mib(row)))).collect();
        let _ = writeln!(text, "<polyline points=\"{}\" fill=\"none\" {style}/>", points.join(" "));
    }
}

/// The figure; rows of one device and kind are a line.
pub fn svg(rows: &[Held]) -> String {
    let mut numbers: Vec<u32> = rows.iter().map(|row| row.clients).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let most = |mib: &dyn Fn(&Held) -> f64| rows.iter().map(mib).fold(1.0, f64::max) * 1.05;
    let one = Panel { left: LEFT, most: most(&|row| row.most_mib.max(row.allowed_mib)), numbers: &numbers };
    let all = Panel { left: LEFT + PANEL + GAP, most: most(&|row| row.memory_mib), numbers: &numbers };
    let mut text = sheet(WIDTH, HEIGHT);
    one.axes(&mut text, "one stream at the most (broken: may), MiB");
    all.axes(&mut text, "all at once, MiB (black: the volume's memory)");
    let mut kinds: Vec<(&str, bool)> = rows.iter().map(|row| (row.device.as_str(), row.records)).collect();
    kinds.dedup();
    for (index, (device, records)) in kinds.into_iter().enumerate() {
        let own: Vec<&Held> =
            rows.iter().filter(|row| row.device == device && row.records == records).collect();
        let colour = COLOURS[index % COLOURS.len()];
        let style = |more: &str| format!("stroke=\"{colour}\" stroke-width=\"1.5\" {more}");
        one.line(&mut text, &own, |row| row.allowed_mib, &style("stroke-dasharray=\"4 3\""));
        one.line(&mut text, &own, |row| row.most_mib, &style(""));
        all.line(&mut text, &own, |row| row.together_mib, &style(""));
        all.line(&mut text, &own, |row| row.memory_mib, "stroke=\"#000000\"");
        let (x, y) = (LEFT + 190.0 * index as f64, HEIGHT - 12.0);
        let kind = if records { "recorders" } else { "players" };
        key(&mut text, (x, y), 18.0, colour, &format!("{device}, {kind}"));
    }
    text + "</svg>\n"
}

/// The same as a table.
pub fn markdown(rows: &[Held]) -> String {
    let mut text = "| device | clients | with a reservation | units late | one held at the most, MiB | and may, MiB | beyond \
                    window and request, MiB | all at once, MiB | of |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            row.device,
            row.clients,
            if row.records { "recorders" } else { "players" },
            row.promised,
            row.late,
            row.most_mib,
            row.allowed_mib,
            row.beyond_mib.max(0.0),
            row.together_mib,
            row.memory_mib,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_and_table_hold_every_row_and_what_is_beyond() {
        let row = |clients, records, beyond_mib| Held {
            device: "raid".to_owned(),
            records,
            clients,
            promised: 1,
            late: 0,
            most_mib: 72.0,
            allowed_mib: 71.6,
            beyond_mib,
            together_mib: 72.0,
            memory_mib: 4096.0,
        };
        let rows = [row(1, false, -3.0), row(20, false, 5.4), row(1, true, 0.0)];
        let table = markdown(&rows);
        assert!(table.contains("| raid | 20 players | 1 | 0 | 72 | 72 | 5 | 72 | 4096 |"), "{table}");
        assert!(table.contains("| raid | 1 players | 1 | 0 | 72 | 72 | 0 |"), "{table}");
        let figure = svg(&rows);
        assert_eq!(figure.matches("stroke-dasharray").count(), 2, "players and recorders");
        assert_eq!(figure.matches("stroke=\"#000000\"").count(), 2);
        assert!(figure.contains(">20</text>") && figure.contains(">raid, recorders</text>"));
    }
}
