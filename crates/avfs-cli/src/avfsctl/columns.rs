//! Tables for people: columns as wide as what stands in them.

use std::io::{self, Write};

/// Prints a row of heads, and each line below it. What stands in `beside` for a line, if anything, gets a line of its own under its
/// second column, and makes no column wider.
pub(super) fn print<const N: usize>(
    output: &mut impl Write,
    heads: [&str; N],
    rows: &[([String; N], Option<String>)],
) -> io::Result<()> {
    let mut widths = heads.map(|head| head.chars().count());
    for (row, _) in rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let mut line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(output, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    line(heads)?;
    for (row, beside) in rows {
        line(row.each_ref().map(String::as_str))?;
        if let Some(beside) = beside {
            let mut cells = [""; N];
            cells[1] = beside;
            line(cells)?;
        }
    }
    Ok(())
}
