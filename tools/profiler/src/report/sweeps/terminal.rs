//! Renders sweeps on a terminal, below the screen of the transfer and with as many lines as
//! necessary.

use super::tables::{Table, buffers, loads, rates, roles, shares};
use super::{MOST, context, findings, heading};
use crate::report::clean::{columns, fitted, wrapped};
use crate::report::terminal::{BOLD, Paint};
use crate::sweep::Sweeps;

/// Columns of a terminal for the value and for each module in the table of modules.
const VALUE: usize = 18;
const MODULE: usize = 15;

pub(in crate::report) fn lines(sweeps: &Sweeps, width: usize, paint: Paint) -> Vec<String> {
    let mut all = vec![String::new(), paint.with(BOLD, "Other settings")];
    for said in findings(sweeps) {
        let text = wrapped(&said, width.saturating_sub(2));
        all.extend(
            text.iter()
                .enumerate()
                .map(|(number, line)| format!("{}{line}", if number == 0 { "- " } else { "  " })),
        );
    }
    for curve in sweeps.curves.iter().take(MOST).filter(|curve| !curve.points.is_empty()) {
        all.push(String::new());
        all.push(paint.with(BOLD, &fitted(&heading(curve), width)));
        all.extend(wrapped(&context(curve), width));
        all.extend(grid(&rates(curve), width));
        all.extend(buffers(curve).iter().flat_map(|table| grid(table, width)));
        for role in roles(curve) {
            all.extend(grid(&loads(curve, role), width));
            all.extend(
                shares(curve, role, (width.saturating_sub(VALUE) / MODULE).max(1))
                    .iter()
                    .flat_map(|table| grid(table, width)),
            );
        }
    }
    all
}

/// Renders a table with aligned columns. Lines that are too wide are cut off at the right.
fn grid(table: &Table, width: usize) -> Vec<String> {
    let mut wide: Vec<usize> = table.heads.iter().map(|head| columns(head)).collect();
    for row in &table.rows {
        for (wide, cell) in wide.iter_mut().zip(row) {
            *wide = columns(cell).max(*wide);
        }
    }
    let line = |row: &[String]| {
        let mut line = String::from("  ");
        for (number, (cell, wide)) in row.iter().zip(&wide).enumerate() {
            let blank = " ".repeat(wide.saturating_sub(columns(cell)));
            match number {
                0 => line += &format!("{cell}{blank}"),
                _ => line += &format!("  {blank}{cell}"),
            }
        }
        fitted(&line, width)
    };
    let title = wrapped(&table.title, width);
    title.into_iter().chain([line(&table.heads)]).chain(table.rows.iter().map(|row| line(row))).collect()
}
