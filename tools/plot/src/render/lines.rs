//! Draws the series of a panel.

use super::canvas::{Canvas, Fine};
use crate::axis::Axis;
use crate::series::{Point, Series, Shape};
use crate::style::{FINE, colour, dashed};
use crate::ticks::Laid;

/// The drawing area of a panel, in pixels, with its axes.
pub(super) struct Frame<'a> {
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) top: i32,
    pub(super) bottom: i32,
    pub(super) x: &'a Laid,
    pub(super) y: &'a Laid,
    pub(super) x_axis: &'a Axis,
    pub(super) y_axis: &'a Axis,
}

impl Frame<'_> {
    /// The pixel column of a position on the horizontal axis.
    pub(super) fn column(&self, place: f64) -> i32 {
        self.fine_column(place) / FINE
    }

    /// The pixel row of a position on the vertical axis.
    pub(super) fn row(&self, place: f64) -> i32 {
        self.fine_row(place) / FINE
    }

    fn fine_column(&self, place: f64) -> i32 {
        let share = (place - self.x.from) / (self.x.to - self.x.from);
        self.left * FINE + (share * f64::from((self.right - self.left) * FINE)).round() as i32
    }

    fn fine_row(&self, place: f64) -> i32 {
        let share = (place - self.y.from) / (self.y.to - self.y.from);
        self.bottom * FINE - (share * f64::from((self.bottom - self.top) * FINE)).round() as i32
    }

    /// The point in fine units; `None` if it cannot be shown or is outside of the axes.
    fn point(&self, x: f64, y: f64) -> Option<Fine> {
        let x = self.x_axis.place(x).filter(|x| (self.x.from..=self.x.to).contains(x))?;
        let y = self.y_axis.place(y).filter(|y| (self.y.from..=self.y.to).contains(y))?;
        Some((self.fine_column(x), self.fine_row(y)))
    }
}

/// Draws the series, and returns the number of its visible points.
pub(super) fn draw(canvas: &mut Canvas<'_>, frame: &Frame<'_>, series: &Series, number: usize) -> usize {
    let paint = colour(number);
    if matches!(series.shape, Shape::Band | Shape::Layer) {
        return area(canvas, frame, series, number);
    }
    let points: Vec<Option<Fine>> = series.points.iter().map(|p| frame.point(p.x, p.y)).collect();
    let marked = matches!(series.shape, Shape::Points | Shape::PointsAndLine);
    if series.shape != Shape::Points {
        let width = if marked { 1.2 } else { 1.8 };
        for run in points.split(Option::is_none) {
            let run: Vec<Fine> = run.iter().copied().flatten().collect();
            let run = thinned(if series.shape == Shape::Steps { stairs(&run) } else { run });
            match run.as_slice() {
                [] => {}
                // A single value between gaps would be an invisible line of length zero, so it is
                // drawn with a minimum length.
                [only] if !marked => canvas.fine_line(vec![*only, (only.0 + 2 * FINE, only.1)], paint, width),
                _ if series.dashed || dashed(number) => canvas.fine_dashes(&run, paint, width),
                _ => canvas.fine_line(run, paint, width),
            }
        }
    }
    for (point, at) in series.points.iter().zip(&points) {
        let Some(at) = at else { continue };
        error_bar(canvas, frame, point, *at, number);
        if marked {
            canvas.mark(*at, paint, number);
        }
    }
    points.iter().flatten().count()
}

/// Draws the area between `low` and `high`. Gaps divide it.
fn area(canvas: &mut Canvas<'_>, frame: &Frame<'_>, series: &Series, number: usize) -> usize {
    let edges: Vec<Option<(Fine, Fine)>> = series
        .points
        .iter()
        .map(|point| Some((frame.point(point.x, point.high)?, frame.point(point.x, point.low)?)))
        .collect();
    let opacity = if series.shape == Shape::Band { 0.25 } else { 0.85 };
    for run in edges.split(Option::is_none) {
        let (upper, lower): (Vec<Fine>, Vec<Fine>) = run.iter().copied().flatten().unzip();
        let mut corners = outline(&upper, |column| column.map(|point| point.1).min());
        let mut below = outline(&lower, |column| column.map(|point| point.1).max());
        if let [only] = corners.as_slice() {
            // A single value between gaps would have no width.
            corners.push((only.0 + 2 * FINE, only.1));
            below.extend(
                below.first().map(|only| (only.0 + 2 * FINE, only.1)).into_iter().collect::<Vec<_>>(),
            );
        }
        corners.extend(below.into_iter().rev());
        if corners.len() > 2 {
            canvas.area(corners, colour(number), opacity);
        }
    }
    edges.iter().flatten().count()
}

/// Reduces the points to one per pixel column.
fn outline(points: &[Fine], of: impl Fn(&mut dyn Iterator<Item = &Fine>) -> Option<i32>) -> Vec<Fine> {
    let columns = points.chunk_by(|a, b| a.0 / FINE == b.0 / FINE);
    columns.filter_map(|column| Some((column.first()?.0, of(&mut column.iter())?))).collect()
}

fn error_bar(canvas: &mut Canvas<'_>, frame: &Frame<'_>, point: &Point, at: Fine, number: usize) {
    let end = |value: f64, limit: f64| {
        // A bar that reaches below zero on a logarithmic axis ends at the frame.
        if value.is_nan() {
            return None;
        }
        let place = frame.y_axis.place(value).unwrap_or(limit);
        Some(frame.fine_row(place.clamp(frame.y.from, frame.y.to)))
    };
    let (Some(low), Some(high)) = (end(point.low, frame.y.from), end(point.high, frame.y.to)) else { return };
    if low == high {
        return;
    }
    let cap = 3 * FINE;
    let path = [
        (at.0 - cap, low),
        (at.0 + cap, low),
        (at.0, low),
        (at.0, high),
        (at.0 - cap, high),
        (at.0 + cap, high),
    ];
    canvas.fine_line(path.to_vec(), colour(number), 1.2);
}

/// Turns points into a line that is horizontal up to the next point.
fn stairs(points: &[Fine]) -> Vec<Fine> {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}

/// Reduces many points in one pixel column to those that are visible: the first, the highest, the
/// lowest and the last.
fn thinned(points: Vec<Fine>) -> Vec<Fine> {
    let mut kept = Vec::with_capacity(points.len().min(4096));
    for column in points.chunk_by(|a, b| a.0 / FINE == b.0 / FINE) {
        if column.len() <= 4 {
            kept.extend_from_slice(column);
            continue;
        }
        let highest = (0..column.len()).min_by_key(|i| column[*i].1).unwrap_or(0);
        let lowest = (0..column.len()).max_by_key(|i| column[*i].1).unwrap_or(0);
        let mut wanted = [0, highest.min(lowest), highest.max(lowest), column.len() - 1].to_vec();
        wanted.dedup();
        kept.extend(wanted.into_iter().map(|i| column[i]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stairs_add_corner_before_each_point() {
        assert_eq!(stairs(&[(0, 5), (10, 7)]), [(0, 5), (10, 5), (10, 7)]);
        assert_eq!(stairs(&[]), []);
    }

    #[test]
    fn thinned_points_keep_peaks() {
        let mut points: Vec<Fine> = (0..FINE * 10).map(|x| (x, 100)).collect();
        points[13].1 = 3;
        points[15].1 = 900;
        let kept = thinned(points);
        assert!(kept.len() <= 40, "{}", kept.len());
        assert!(kept.contains(&(13, 3)) && kept.contains(&(15, 900)));
        assert_eq!((kept[0].0, kept[kept.len() - 1].0), (0, FINE * 10 - 1));
    }
}
