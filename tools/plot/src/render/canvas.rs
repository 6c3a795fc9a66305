//! The drawing area: it takes coordinates in pixels and produces SVG. Drawing functions do not
//! return errors; the first error is returned at the end, by `finish`.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, FontTransform, IntoFont, RGBColor, ShapeStyle, TextStyle};

use crate::style::{FINE, printable};

/// plotters divides font sizes by this factor.
const FONT: f64 = 1.24;

/// The alignment of a text relative to its point, and its style.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
    Bold,
    /// Rotated to be read from below, and centred.
    Upwards,
}

pub(crate) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
    error: Option<String>,
}

/// A point in fine units.
pub(crate) type Fine = (i32, i32);

impl<'a> Canvas<'a> {
    /// Makes a white drawing area of this size in pixels. The document is written to `out` from the
    /// start.
    pub(crate) fn new(out: &'a mut String, width: i32, height: i32) -> Self {
        let size = ((width * FINE) as u32, (height * FINE) as u32);
        let area = SVGBackend::with_string(out, size).into_drawing_area();
        let mut canvas = Self { area, error: None };
        let filled = canvas.area.fill(&plotters::style::WHITE);
        canvas.note(filled);
        canvas
    }

    fn note<E: std::fmt::Display>(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.error.get_or_insert(error.to_string());
        }
    }

    pub(crate) fn text(&mut self, text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: Anchor) {
        let horizontal = match anchor {
            Anchor::Start | Anchor::Bold => HPos::Left,
            Anchor::Middle | Anchor::Upwards => HPos::Center,
            Anchor::End => HPos::Right,
        };
        let mut font = ("sans-serif", f64::from(size * FINE) * FONT).into_font();
        if anchor == Anchor::Bold {
            font = font.style(FontStyle::Bold);
        }
        if anchor == Anchor::Upwards {
            font = font.transform(FontTransform::Rotate270);
        }
        let style = TextStyle::from(font).color(&colour).pos(Pos::new(horizontal, VPos::Center));
        let drawn = self.area.draw(&Text::new(printable(text), fine(at), style));
        self.note(drawn);
    }

    /// Draws a line through points in pixels.
    pub(crate) fn line(&mut self, points: &[(i32, i32)], colour: RGBColor, width: f64) {
        self.fine_line(points.iter().map(|point| fine(*point)).collect(), colour, width);
    }

    /// Draws a line through points in fine units.
    pub(crate) fn fine_line(&mut self, points: Vec<Fine>, colour: RGBColor, width: f64) {
        let drawn = self.area.draw(&PathElement::new(points, stroke(colour, width)));
        self.note(drawn);
    }

    /// Draws a dashed line through points in pixels.
    pub(crate) fn dashes(&mut self, points: &[(i32, i32)], colour: RGBColor, width: f64) {
        self.fine_dashes(&points.iter().map(|point| fine(*point)).collect::<Vec<_>>(), colour, width);
    }

    /// Draws a dashed line through points in fine units.
    pub(crate) fn fine_dashes(&mut self, points: &[Fine], colour: RGBColor, width: f64) {
        for dash in dashes(points, f64::from(6 * FINE), f64::from(4 * FINE)) {
            self.fine_line(dash, colour, width);
        }
    }

    /// Fills the polygon with these corners, in fine units.
    pub(crate) fn area(&mut self, corners: Vec<Fine>, colour: RGBColor, opacity: f64) {
        let drawn = self.area.draw(&Polygon::new(corners, colour.mix(opacity).filled()));
        self.note(drawn);
    }

    /// Draws one of several markers, about 7 pixels wide, at a point in fine units.
    pub(crate) fn mark(&mut self, (x, y): Fine, colour: RGBColor, kind: usize) {
        let r = FINE * 7 / 2;
        let filled = colour.filled();
        let corners = match kind % 4 {
            0 => {
                let drawn = self.area.draw(&Circle::new((x, y), r, filled));
                return self.note(drawn);
            }
            1 => vec![(x - r, y + r), (x + r, y + r), (x, y - r)],
            2 => vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
            _ => vec![(x - r - 2, y), (x, y - r - 2), (x + r + 2, y), (x, y + r + 2)],
        };
        let drawn = self.area.draw(&Polygon::new(corners, filled));
        self.note(drawn);
    }

    /// Completes the document.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let presented = self.area.present();
        self.note(presented);
        self.error.take().map_or(Ok(()), Err)
    }
}

fn fine((x, y): (i32, i32)) -> Fine {
    (x * FINE, y * FINE)
}

fn stroke(colour: RGBColor, width: f64) -> ShapeStyle {
    ShapeStyle {
        color: colour.to_rgba(),
        filled: false,
        stroke_width: (width * f64::from(FINE)).round() as u32,
    }
}

/// Splits a path into dashes.
fn dashes(points: &[Fine], on: f64, off: f64) -> Vec<Vec<Fine>> {
    let mut all = Vec::new();
    let mut drawing = true;
    let mut left = on;
    let mut current: Vec<Fine> = points.first().copied().into_iter().collect();
    for pair in points.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = dx.hypot(dy);
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let share = done / length;
            let at = (from.0 + (dx * share) as i32, from.1 + (dy * share) as i32);
            if drawing {
                current.push(at);
                all.push(std::mem::take(&mut current));
            } else {
                current = vec![at];
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
        }
        left -= length - done;
        if drawing {
            current.push(to);
        }
    }
    if drawing && current.len() > 1 {
        all.push(current);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_follow_the_path_around_corners() {
        let all = dashes(&[(0, 0), (10, 0), (10, 10)], 6.0, 4.0);
        assert_eq!(all, [vec![(0, 0), (6, 0)], vec![(10, 0), (10, 6)]]);
        assert!(dashes(&[], 6.0, 4.0).is_empty());
        assert!(dashes(&[(1, 1)], 6.0, 4.0).is_empty());
    }
}
