//! The legend: the names of the series, in rows above the panel.

use super::LABEL;
use super::canvas::{Anchor, Canvas};
use crate::chart::Panel;
use crate::series::Shape;
use crate::style::{TEXT, colour, dashed, text_width};

const ROW: i32 = 18;
const SAMPLE: i32 = 22;
const SIZE: i32 = LABEL - 1;

pub(super) struct Legend {
    pub(super) height: i32,
    entries: Vec<Entry>,
}

struct Entry {
    row: i32,
    x: i32,
    name: String,
    number: usize,
    shape: Shape,
    dashed: bool,
}

/// Places the entries. Series without a name have no entry.
pub(super) fn lay(panel: &Panel, width: i32) -> Legend {
    let (mut row, mut x) = (0, 0);
    let mut entries = Vec::new();
    for (number, series) in panel.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty()) {
        let needs = SAMPLE + 6 + text_width(&series.name, SIZE) + 16;
        if x > 0 && x + needs > width {
            (row, x) = (row + 1, 0);
        }
        let number = series.colour.unwrap_or(number);
        let dashed = series.dashed || dashed(number);
        entries.push(Entry { row, x, name: series.name.clone(), number, shape: series.shape, dashed });
        x += needs;
    }
    Legend { height: if entries.is_empty() { 0 } else { (row + 1) * ROW }, entries }
}

impl Legend {
    /// Draws the legend above `bottom`.
    pub(super) fn draw(&self, canvas: &mut Canvas<'_>, left: i32, bottom: i32) {
        for entry in &self.entries {
            let y = bottom - 4 - self.height + entry.row * ROW + ROW / 2;
            let x = left + entry.x;
            let paint = colour(entry.number);
            if matches!(entry.shape, Shape::Band | Shape::Layer) {
                let fine = crate::style::FINE;
                let (x, y, wide) = (x * fine, y * fine, SAMPLE * fine);
                let opacity = if entry.shape == Shape::Band { 0.25 } else { 0.85 };
                let (top, bottom) = (y - 5 * fine, y + 5 * fine);
                canvas.area(vec![(x, top), (x + wide, top), (x + wide, bottom), (x, bottom)], paint, opacity);
            } else if entry.shape != Shape::Points {
                let line = [(x, y), (x + SAMPLE, y)];
                if entry.dashed {
                    canvas.dashes(&line, paint, 2.0);
                } else {
                    canvas.line(&line, paint, 2.0);
                }
            }
            if matches!(entry.shape, Shape::Points | Shape::PointsAndLine) {
                let fine = crate::style::FINE;
                canvas.mark(((x + SAMPLE / 2) * fine, y * fine), paint, entry.number);
            }
            canvas.text(&entry.name, (x + SAMPLE + 6, y), SIZE, TEXT, Anchor::Start);
        }
    }
}
