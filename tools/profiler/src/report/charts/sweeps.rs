//! Plots of sweep curves, with error bars.

use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Shape, Unit};

use super::{Figure, WIDTH, figure};
use crate::profile::Role;
use crate::report::clean;
use crate::report::sweeps::{heading, title};
use crate::sweep::{Curve, CurvePoint, Knob, Sweeps, Way};

/// Most points of a curve that are drawn.
const MOST: usize = 200;
/// Most columns of a name in a legend.
const LEGEND: usize = 24;

/// One plot for each setting that has numbers: rates in both directions, and loads of both ends.
pub(in crate::report) fn figures(sweeps: &Sweeps) -> Vec<Figure> {
    let mut knobs: Vec<Knob> = sweeps.curves.iter().map(|curve| curve.knob).collect();
    // The two directions of a setting usually follow each other. Even if they do not, each setting
    // is drawn once.
    let mut seen = Vec::new();
    knobs.retain(|knob| {
        !seen.contains(knob) && {
            seen.push(*knob);
            true
        }
    });
    let figures = knobs.into_iter().filter_map(|knob| {
        let name = match knob {
            Knob::Buffer => "sweep-buffer",
            Knob::Streams => "sweep-streams",
            Knob::Block => "sweep-block",
            Knob::Files => "sweep-files",
            // The kinds have no order.
            Knob::Workload => return None,
        };
        let ways = [Way::Forth, Way::Back].map(|way| sweeps.curve(knob, way));
        drawing(knob, name, &ways.into_iter().flatten().collect::<Vec<_>>())
    });
    figures.collect()
}

/// Points with runs and a number, in the order of the numbers.
fn numbers(curve: &Curve) -> Vec<(f64, &CurvePoint)> {
    let points = curve.points.iter().filter(|point| point.rate.runs > 0).take(MOST);
    let mut points: Vec<_> =
        points.filter_map(|point| Some((point.value.filter(|value| *value > 0)? as f64, point))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn drawing(knob: Knob, name: &'static str, curves: &[&Curve]) -> Option<Figure> {
    let unit = if knob.is_size() { Unit::Bytes } else { Unit::Plain };
    let mut rates = Panel::new(Axis::linear("rate", Unit::BitsPerSecond));
    let mut loads = Panel::new(Axis::linear("kernel load", Unit::Share));
    let (mut drawn, mut loaded) = (false, false);
    for curve in curves {
        let (way, colour) = match (curve.way, curves.len()) {
            (_, 1) => ("", 0),
            (Way::Forth, _) => ("there", 0),
            (Way::Back, _) => ("back", 1),
        };
        let points = numbers(curve);
        drawn |= !points.is_empty();
        rates = rates.series(Series::new(way, Shape::PointsAndLine, points.iter().map(mean)).colour(colour));
        let far = points.iter().flat_map(|&(x, point)| {
            point.outliers().map(move |run| (x, run.bytes_per_second * 8.0)).take(MOST)
        });
        let far: Vec<(f64, f64)> = far.collect();
        if !far.is_empty() {
            let name = if way.is_empty() { "outliers".to_owned() } else { format!("outliers {way}") };
            rates = rates.series(Series::points(name, far).colour(6));
        }
        rates = automatic(rates, curve, &points, format!("auto {way}").trim(), colour);
        if curve.way == Way::Forth {
            for (role, name, colour) in [
                (Role::Source, "source", 2),
                (Role::Destination, "destination", 3),
                (Role::Both, "source and destination", 2),
            ] {
                let of = |&(x, point): &(f64, &CurvePoint)| {
                    Some((x, point.ends.iter().find(|end| end.role == role)?.kernel))
                };
                let load: Vec<(f64, f64)> = points.iter().filter_map(of).collect();
                if !load.is_empty() {
                    loaded = true;
                    loads = loads.series(Series::points_and_line(name, load).colour(colour));
                }
            }
        }
    }
    let mut chart =
        Chart::new(title(knob), Axis::log2(knob.name(), unit)).width(WIDTH).panel_height(170).panel(rates);
    if loaded {
        chart = chart.panel(loads).panel_height(130);
    }
    let bdp =
        curves.iter().flat_map(|curve| &curve.points).find(|point| point.name.eq_ignore_ascii_case("bdp"));
    if let Some(value) = bdp.and_then(|point| point.value).filter(|value| *value > 0) {
        chart = chart.event(value as f64, "BDP");
    }
    let caption = "Means; the bars reach from the lowest to the highest run, without outliers, which stand apart. Below: the \
                   kernel's share of the processors.";
    drawn.then(|| figure(name, &chart, caption)).flatten()
}

/// Plots the same setting and direction of several profiles, one curve for each.
pub(in crate::report) fn compared(curves: &[Option<&Curve>], names: &[String]) -> Option<Figure> {
    let first = curves.iter().flatten().next()?;
    let name = match (first.knob, first.way) {
        (Knob::Buffer, Way::Forth) => "compare-buffer",
        (Knob::Buffer, Way::Back) => "compare-buffer-back",
        (Knob::Streams, Way::Forth) => "compare-streams",
        (Knob::Streams, Way::Back) => "compare-streams-back",
        (Knob::Block, Way::Forth) => "compare-block",
        (Knob::Block, Way::Back) => "compare-block-back",
        (Knob::Files, Way::Forth) => "compare-files",
        (Knob::Files, Way::Back) => "compare-files-back",
        // The kinds have no order.
        (Knob::Workload, _) => return None,
    };
    let mut panel = Panel::new(Axis::linear("rate", Unit::BitsPerSecond));
    let mut drawn = false;
    for (colour, (curve, name)) in curves.iter().zip(names).enumerate() {
        let Some(curve) = curve else { continue };
        let name = clean::fitted(name, LEGEND);
        let points = numbers(curve);
        drawn |= !points.is_empty();
        panel =
            panel.series(Series::new(&name, Shape::PointsAndLine, points.iter().map(mean)).colour(colour));
        panel = automatic(panel, curve, &points, &format!("auto, {name}"), colour);
    }
    let unit = if first.knob.is_size() { Unit::Bytes } else { Unit::Plain };
    let chart = Chart::new(heading(first), Axis::log2(first.knob.name(), unit)).width(WIDTH);
    let caption = "Means; the bars reach from the lowest to the highest run, without outliers.";
    drawn.then(|| figure(name, &chart.panel_height(200).panel(panel), caption)).flatten()
}

fn mean(&(x, point): &(f64, &CurvePoint)) -> Point {
    let rate = &point.rate;
    Point { x, y: rate.mean * 8.0, low: rate.least * 8.0, high: rate.most * 8.0 }
}

/// A value that the program or the kernel chose has no place on the axis; it is drawn as a line
/// along the whole axis.
fn automatic(panel: Panel, curve: &Curve, points: &[(f64, &CurvePoint)], name: &str, colour: usize) -> Panel {
    let chosen = curve.points.iter().find(|point| point.value.is_none() && point.rate.runs > 0);
    let (Some(point), [first, .., last]) = (chosen, points) else { return panel };
    let y = point.rate.mean * 8.0;
    panel.series(Series::line(name, [(first.0, y), (last.0, y)]).dashed().colour(colour))
}
