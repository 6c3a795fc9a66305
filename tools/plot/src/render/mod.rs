//! Draws a chart: places its panels, axes and legends. The series are drawn by [`lines`].

mod canvas;
mod legend;
mod lines;

use crate::chart::{Chart, Panel};
use crate::error::PlotError;
use crate::style::{FAINT, FINE, GRID, TEXT, printable, text_width};
use crate::ticks::Laid;
use canvas::{Anchor, Canvas};
use lines::Frame;

const TITLE: i32 = 17;
const LABEL: i32 = 13;
const SMALL: i32 = 11;
/// Height of a row of event labels.
const FLAG: i32 = 14;
/// Width of the space left of the plot, for tick labels and the rotated title.
const LEFT: i32 = 74;
const RIGHT: i32 = 18;

pub(crate) fn svg(chart: &Chart) -> Result<String, PlotError> {
    let width = chart.width as i32;
    let inner = width - LEFT - RIGHT;
    let legends: Vec<_> = chart.panels.iter().map(|panel| legend::lay(panel, inner)).collect();
    let height_each =
        chart.panel_height.map_or(if chart.panels.len() == 1 { 340 } else { 150 }, |h| h as i32);

    let values = chart.panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
    let marks = chart.events.iter().map(|(x, _)| *x);
    let x = Laid::horizontal(&chart.x, values.map(|point| point.x).chain(marks));
    let flags = flags(chart, &x, LEFT, width - RIGHT);
    let flag_rows = flags.iter().map(|flag| flag.row + 1).max().unwrap_or(0);

    let mut top = 12;
    if !chart.title.is_empty() {
        top += TITLE + 8;
    }
    if !chart.note.is_empty() {
        top += SMALL + 6;
    }
    let mut frames = Vec::new();
    for (number, legend) in legends.iter().enumerate() {
        top += legend.height + 6 + if number == 0 { flag_rows * FLAG } else { 0 };
        frames.push((top, top + height_each));
        top += height_each + 10;
    }
    let height = top - 10 + 44;

    let mut text = String::new();
    let mut canvas = Canvas::new(&mut text, width, height);
    headings(&mut canvas, chart);
    let last = chart.panels.len() - 1;
    for (number, panel) in chart.panels.iter().enumerate() {
        let (top, bottom) = frames[number];
        let y = Laid::vertical(&panel.y, vertical_values(panel));
        let frame = Frame {
            left: LEFT,
            right: width - RIGHT,
            top,
            bottom,
            x: &x,
            y: &y,
            x_axis: &chart.x,
            y_axis: &panel.y,
        };
        let above = if number == 0 { flag_rows * FLAG } else { 0 };
        legends[number].draw(&mut canvas, LEFT, top - above);
        grid(&mut canvas, &frame, number == last);
        levels(&mut canvas, &frame, panel);
        events(&mut canvas, top, bottom, &flags, number == 0);
        let mut drawn = 0;
        for (number, series) in panel.series.iter().enumerate() {
            drawn += lines::draw(&mut canvas, &frame, series, series.colour.unwrap_or(number));
        }
        if drawn == 0 {
            let middle = ((frame.left + frame.right) / 2, (top + bottom) / 2);
            canvas.text("no data", middle, LABEL, FAINT, Anchor::Middle);
        }
        canvas.line(&[(frame.left, top), (frame.left, bottom), (frame.right, bottom)], TEXT, 1.0);
    }
    canvas.finish().map_err(|reason| PlotError::Draw { title: chart.title.clone(), reason })?;
    Ok(document(&text, chart, width, height))
}

/// Replaces the header of the drawing library's document with one in pixels instead of fine units,
/// and adds a title for screen readers.
fn document(text: &str, chart: &Chart, width: i32, height: i32) -> String {
    let body = text.split_once('\n').map_or(text, |(_, body)| body);
    let (fine_width, fine_height) = (width * FINE, height * FINE);
    let title = escaped(&printable(&chart.title));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {fine_width} {fine_height}\" role=\"img\" stroke-linejoin=\"round\">\n\
         <title>{title}</title>\n{body}"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn vertical_values(panel: &Panel) -> impl Iterator<Item = f64> + '_ {
    let points = panel.series.iter().flat_map(|series| &series.points);
    points.flat_map(|point| [point.y, point.low, point.high]).chain(panel.levels.iter().map(|(y, _)| *y))
}

fn headings(canvas: &mut Canvas<'_>, chart: &Chart) {
    let mut y = 12 + TITLE / 2;
    if !chart.title.is_empty() {
        canvas.text(&chart.title, (LEFT, y), TITLE, TEXT, Anchor::Bold);
        y += TITLE + 6;
    }
    if !chart.note.is_empty() {
        canvas.text(&chart.note, (LEFT, y), SMALL, FAINT, Anchor::Start);
    }
}

fn grid(canvas: &mut Canvas<'_>, frame: &Frame<'_>, last: bool) {
    for (place, label) in &frame.y.ticks {
        let y = frame.row(*place);
        canvas.line(&[(frame.left, y), (frame.right, y)], GRID, 1.0);
        canvas.text(label, (frame.left - 7, y), SMALL, TEXT, Anchor::End);
    }
    let mut taken = i32::MIN;
    for (place, label) in &frame.x.ticks {
        let x = frame.column(*place);
        canvas.line(&[(x, frame.top), (x, frame.bottom)], GRID, 1.0);
        let half = text_width(label, SMALL) / 2;
        // Labels that would touch are left out; their grid lines are drawn.
        if last && x - half > taken {
            canvas.text(label, (x, frame.bottom + 13), SMALL, TEXT, Anchor::Middle);
            taken = x + half + 6;
        }
    }
    let middle = (frame.top + frame.bottom) / 2;
    // The font of a long title is reduced, because it would overlap the next panel.
    let room = (frame.bottom - frame.top + 12).max(40);
    let size = LABEL.min(LABEL * room / text_width(&frame.y.title, LABEL).max(1)).max(8);
    canvas.text(&frame.y.title, (20, middle), size, TEXT, Anchor::Upwards);
    if last {
        let middle = (frame.left + frame.right) / 2;
        canvas.text(&frame.x.title, (middle, frame.bottom + 32), LABEL, TEXT, Anchor::Middle);
    }
}

fn levels(canvas: &mut Canvas<'_>, frame: &Frame<'_>, panel: &Panel) {
    for (value, label) in &panel.levels {
        let Some(place) = frame.y_axis.place(*value).filter(|p| (frame.y.from..=frame.y.to).contains(p))
        else {
            continue;
        };
        let y = frame.row(place);
        canvas.dashes(&[(frame.left, y), (frame.right, y)], FAINT, 1.2);
        canvas.text(label, (frame.right - 4, y - 8), SMALL, FAINT, Anchor::End);
    }
}

/// The label of an event, above the first panel.
struct Flag<'a> {
    column: i32,
    at: i32,
    anchor: Anchor,
    row: i32,
    label: &'a str,
}

/// Places the labels of events. Labels that would overlap are put on different rows; events outside
/// of the axis are left out.
fn flags<'a>(chart: &'a Chart, x: &Laid, left: i32, right: i32) -> Vec<Flag<'a>> {
    let mut sorted: Vec<_> = chart.events.iter().collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ends = [i32::MIN; 6];
    let mut flags = Vec::new();
    for (value, label) in sorted {
        let Some(place) = chart.x.place(*value).filter(|place| (x.from..=x.to).contains(place)) else {
            continue;
        };
        let share = (place - x.from) / (x.to - x.from);
        let column = left + (share * f64::from(right - left)) as i32;
        let wide = text_width(label, SMALL);
        let (at, anchor, begin) = if column + 3 + wide > right {
            (column - 3, Anchor::End, column - 3 - wide)
        } else {
            (column + 3, Anchor::Start, column)
        };
        let row = ends.iter().position(|end| *end < begin);
        if let Some(row) = row {
            ends[row] = begin + wide + 8;
        }
        // If there are more overlapping labels than rows, the line has no label.
        let label = if row.is_some() { label.as_str() } else { "" };
        flags.push(Flag { column, at, anchor, row: row.unwrap_or(0) as i32, label });
    }
    flags
}

fn events(canvas: &mut Canvas<'_>, top: i32, bottom: i32, flags: &[Flag<'_>], labelled: bool) {
    for flag in flags {
        let top = if labelled && !flag.label.is_empty() { top - 3 - flag.row * FLAG } else { top };
        canvas.dashes(&[(flag.column, top), (flag.column, bottom)], FAINT, 1.0);
        if labelled {
            canvas.text(flag.label, (flag.at, top - FLAG / 2), SMALL, FAINT, flag.anchor);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{Axis, Chart, Panel, PlotError, Point, Series, Shape, Unit};

    fn chart(series: Series) -> Chart {
        Chart::new("t", Axis::time()).panel(Panel::new(Axis::linear("y", Unit::Plain)).series(series))
    }

    #[test]
    fn svg_text_is_escaped() {
        let evil = "</text><script>alert('&')</script>\u{1}\u{0}";
        let svg = Chart::new(evil, Axis::linear(evil, Unit::Plain))
            .note(evil)
            .event(0.5, evil)
            .panel(
                Panel::new(Axis::linear(evil, Unit::Bytes))
                    .series(Series::line(evil, [(0.0, 1.0), (1.0, 2.0)]))
                    .level(1.5, evil),
            )
            .to_svg()
            .unwrap();
        assert!(!svg.contains("<script"), "{svg}");
        assert!(!svg.chars().any(|c| c.is_control() && c != '\n'));
        assert!(svg.contains("&lt;script&gt;"));
    }

    #[test]
    fn line_with_gap_is_broken() {
        let svg = chart(Series::line("", [(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 2.0)]))
            .to_svg()
            .unwrap();
        assert_eq!(svg.matches("#0072B2").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("no data"));
    }

    #[test]
    fn panel_without_values_shows_a_note() {
        for points in [vec![], vec![(f64::NAN, 1.0)], vec![(1.0, f64::INFINITY), (f64::NEG_INFINITY, 0.0)]] {
            for shape in [Shape::Line, Shape::Steps, Shape::Points, Shape::PointsAndLine] {
                let svg = chart(Series::new("s", shape, points.clone())).to_svg().unwrap();
                assert!(svg.contains("no data"), "{points:?}");
            }
        }
        let nothing = Chart::new("t", Axis::time()).to_svg();
        assert!(matches!(nothing, Err(PlotError::NoPanels { .. })));
    }

    #[test]
    fn points_with_low_and_high_have_error_bars() {
        let points = [
            Point { x: 1.0, y: 5.0, low: 4.0, high: 7.0 },
            Point { x: 2.0, y: 6.0, low: 6.0, high: 6.0 },
            Point { x: 3.0, y: 6.0, low: f64::NAN, high: f64::INFINITY },
        ];
        let svg = chart(Series::points("", points)).to_svg().unwrap();
        assert_eq!(svg.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\"").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn stacked_series_are_drawn_as_layers() {
        let x = [0.0, 1.0, 2.0];
        let layers = Series::stacked(&x, [("a", [1.0, 2.0, 1.0]), ("b", [1.0, 0.0, f64::NAN])]);
        assert_eq!(layers[1].points[0], Point { x: 0.0, y: 2.0, low: 1.0, high: 2.0 });
        let panel = layers
            .into_iter()
            .fold(Panel::new(Axis::linear("", Unit::Share)), |panel, series| panel.series(series));
        let svg = Chart::new("t", Axis::time()).panel(panel).to_svg().unwrap();
        // Two polygons are in the legend, and two in the panel.
        assert_eq!(svg.matches("<polygon").count(), 4, "{svg}");
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn steps_before_draws_means_before_their_times() {
        let series = Series::steps_before([(1.0, 5.0), (2.0, 7.0), (3.0, 6.0)]);
        let corners: Vec<(f64, f64)> = series.points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(corners, [(0.0, 5.0), (1.0, 7.0), (2.0, 6.0), (3.0, 6.0)]);
        assert!(Series::steps_before([]).points.is_empty());
    }

    #[test]
    fn band_with_many_points_is_thinned() {
        let points =
            (0..100_000).map(|i| Point { x: f64::from(i), y: 5.0, low: f64::from(i % 5), high: 9.0 });
        let svg = chart(Series::new("", Shape::Band, points)).to_svg().unwrap();
        assert!(svg.contains("opacity=\"0.25\"") && svg.len() < 60_000, "{}", svg.len());
        let lonely = chart(Series::new("", Shape::Layer, [(1.0, 2.0)])).to_svg().unwrap();
        assert!(lonely.contains("<polygon"));
    }

    #[test]
    fn line_with_many_points_is_thinned() {
        let points = (0..1_000_000).map(|i| (f64::from(i), f64::from(i % 1000)));
        let svg = chart(Series::line("", points)).to_svg().unwrap();
        assert!(svg.len() < 100_000, "{}", svg.len());
    }

    #[test]
    fn chart_with_invalid_range_fails() {
        let bad = Chart::new("t", Axis::time().range(1.0, f64::NAN))
            .panel(Panel::new(Axis::log2("y", Unit::Bytes)));
        assert!(matches!(bad.to_svg(), Err(PlotError::Range { .. })));
    }
}
