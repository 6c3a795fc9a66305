//! The chart of a sweep: goodput over the first parameter. Parameters whose values are words have
//! an axis in the order given.

use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Unit};
use ropewalk_units::read;

use crate::sweep::{Group, Vary};

/// Goodput over the first parameter: medians, with bars from the least to the greatest. Each value
/// of the second parameter and each program is a series of its own. `capacity` is drawn as a line.
pub fn sweep_chart(title: &str, vary: &[Vary], groups: &[Group], capacity: Option<f64>) -> Chart {
    let Some(first) = vary.first() else {
        return Chart::new(title, Axis::linear("", Unit::Plain)).panel(Panel::new(goodput_axis()));
    };
    let places: Vec<Option<f64>> = first.values.iter().map(|value| place(&value.to_string())).collect();
    let numeric = places.iter().all(Option::is_some);
    let x_of = |group: &Group| {
        let value = group.value(&first.name)?;
        let index = first.values.iter().position(|known| known.to_string() == value)?;
        // Words have no distances, so they are spaced evenly in the order given.
        if numeric { places[index] } else { Some(index as f64) }
    };
    let mut rows: Vec<(String, Vec<Point>)> = Vec::new();
    for group in groups.iter().filter(|group| group.goodput.count > 0) {
        let Some(x) = x_of(group) else { continue };
        let spread = group.goodput;
        let point = Point { x, y: spread.median, low: spread.min, high: spread.max };
        let name = name(group, vary, groups);
        match rows.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => rows.push((name, vec![point])),
        }
    }
    let mut panel = Panel::new(goodput_axis());
    for (name, mut points) in rows {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        panel = panel.series(Series::points_and_line(name, points));
    }
    if let Some(capacity) = capacity.filter(|capacity| capacity.is_finite()) {
        panel = panel.level(capacity, "capacity");
    }
    let repetitions = groups.iter().map(|group| group.goodput.count).max().unwrap_or(0);
    let x = axis(&first.name, &places, numeric);
    Chart::new(title, x).note(format!("median, least and greatest of {repetitions}")).panel(panel)
}

fn goodput_axis() -> Axis {
    Axis::linear("goodput", Unit::BitsPerSecond)
}

/// The name of a series has only the values that differ between series.
fn name(group: &Group, vary: &[Vary], groups: &[Group]) -> String {
    let mut parts = Vec::new();
    if groups.iter().any(|other| other.program != group.program) {
        parts.push(group.program.clone());
    }
    parts.extend(group.values.iter().skip(1).map(
        |(name, value)| match vary.iter().find(|v| v.name == *name) {
            Some(_) => format!("{} {value}", short(name)),
            None => value.clone(),
        },
    ));
    parts.join(", ")
}

/// The last part of a name: `links[0].path.both.queue` becomes `queue`.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The number of a value such as `8`, `64 KiB`, `64K`, `50ms` or `0.1%`.
fn place(value: &str) -> Option<f64> {
    let number = read::share(value).filter(|number| number.is_finite());
    let time = || read::duration(value).map(|time| time.as_secs_f64());
    let rate = || read::rate(value).filter(|_| read::unit(value).ends_with("/s")).map(|bytes| bytes * 8.0);
    number.or_else(time).or_else(rate).or_else(|| read::size(value).map(|bytes| bytes as f64))
}

/// A logarithmic axis if the values about double from one to the next.
fn axis(name: &str, places: &[Option<f64>], numeric: bool) -> Axis {
    let label = short(name);
    let unit = match label {
        "buffer" | "block" | "size" => Unit::Bytes,
        "delay" | "round_trip" | "jitter" => Unit::Seconds,
        "rate" => Unit::BitsPerSecond,
        "loss" => Unit::Share,
        _ => Unit::Plain,
    };
    let values: Vec<f64> = places.iter().copied().flatten().collect();
    let (min, max) = values.iter().fold((f64::INFINITY, 0.0f64), |(min, max), v| (min.min(*v), max.max(*v)));
    let grows = values.windows(2).filter(|pair| pair[1] >= pair[0] * 1.9).count();
    if !numeric {
        return Axis::linear(format!("{label} (in the order given)"), Unit::Plain);
    }
    match unit {
        _ if !(min > 0.0 && max >= min * 8.0 && grows * 2 >= values.len()) => Axis::linear(label, unit),
        Unit::Bytes | Unit::Plain => Axis::log2(label, unit),
        _ => Axis::log10(label, unit),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::Spread;

    fn group(program: &str, streams: &str, buffer: &str, goodput: f64) -> Group {
        Group {
            scenario: "s".into(),
            program: program.into(),
            values: vec![("streams".into(), streams.into()), ("buffer".into(), buffer.into())],
            goodput: Spread { count: 3, median: goodput, min: goodput * 0.9, max: goodput * 1.1 },
            cpu: Spread::default(),
            streams: Spread::default(),
            loss: Spread::default(),
            rtt: Spread::default(),
            segment: 1448,
            seconds: 1.0,
            failed: 0,
            doubtful: 0,
        }
    }

    #[test]
    fn sweep_chart_with_two_parameters_names_the_series() {
        let vary: Vec<Vary> = vec!["streams=1..8*2".parse().unwrap(), "buffer=64K,auto".parse().unwrap()];
        let groups: Vec<Group> = ["1", "2", "4", "8"]
            .iter()
            .flat_map(|n| ["64K", "auto"].map(|buffer| group("iperf3", n, buffer, 1e7)))
            .collect();
        let svg = sweep_chart("t", &vary, &groups, Some(1e8)).to_svg().unwrap();
        for text in ["buffer 64K", "buffer auto", "capacity", "of 3"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("iperf3"), "one program needs no name");
    }

    #[test]
    fn sweep_chart_of_words_or_nothing_has_no_data() {
        let vary: Vec<Vary> = vec!["kernel.congestion=reno,cubic".parse().unwrap()];
        assert!(sweep_chart("t", &vary, &[], None).to_svg().unwrap().contains("no data"));
        assert!(sweep_chart("t", &[], &[], None).to_svg().unwrap().contains("no data"));
        assert_eq!(place("64 KiB"), Some(65536.0));
        assert_eq!(place("0.1%"), Some(0.001));
        assert_eq!(place("reno"), None);
    }
}
