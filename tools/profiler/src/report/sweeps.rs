//! Results of sweeps, in sentences and tables that terminals and pages share. All texts are
//! cleaned.

pub(super) mod tables;
pub(super) mod terminal;

use super::clean::{NAME, plain};
use super::say;
use crate::sweep::{Curve, CurvePoint, Finding, Knob, Standing, Sweeps, Way};

/// The method, for readers who want to judge it.
pub(super) const METHOD: &str = "Each value was run once in every round, in random order, so that whatever else changed \
     meanwhile met all values alike. Runs far from the others of their value (generalised ESD test at 1 %, and more than 5 % from the \
     median) count as outliers: they are left out of the means, and both figures are given. A difference is called one only where \
     the runs prove it (Welch's t test at 5 % for all comparisons of a setting together) and it is at least 2 %.";

/// The name of a setting at the beginning of a line.
pub(super) fn title(knob: Knob) -> &'static str {
    match knob {
        Knob::Buffer => "Socket buffer",
        Knob::Streams => "Streams",
        Knob::Block => "Block size",
        Knob::Files => "Files in flight",
        Knob::Workload => "Kind of transfer",
    }
}

pub(super) fn heading(curve: &Curve) -> String {
    let way = if curve.way == Way::Back { ", the way back" } else { "" };
    format!("{}{way}", title(curve.knob))
}

/// Source and destination, and the settings that were not varied.
pub(super) fn context(curve: &Curve) -> String {
    let parts = [&curve.description, &curve.held].map(|text| plain(text.trim(), 300));
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The value of a point.
pub(super) fn label(knob: Knob, point: &CurvePoint) -> String {
    let name = plain(point.name.trim(), 24);
    let value =
        point.value.map(|value| if knob.is_size() { say::size(value as f64) } else { value.to_string() });
    match value {
        Some(value) if name.eq_ignore_ascii_case("bdp") => format!("BDP, {value}"),
        Some(value) => value,
        None => name,
    }
}

/// The conclusions from all curves, a sentence or two for each, including problems.
pub(super) fn findings(sweeps: &Sweeps) -> Vec<String> {
    let mut all: Vec<String> = sweeps.curves.iter().take(MOST).map(finding).collect();
    all.extend(sweeps.broken_off.as_ref().map(|why| {
        format!("The sweep was broken off: {}. What there is until then is told.", plain(why, NAME))
    }));
    all
}

/// Most curves that are shown. A profile that was read has at most two for each setting.
pub(super) const MOST: usize = 16;

/// The conclusion from a curve.
pub(super) fn finding(curve: &Curve) -> String {
    let found = Finding::of(curve);
    let name = |at: usize| curve.points.get(at).map_or_else(String::new, |point| label(curve.knob, point));
    let mut said = format!("{}: ", heading(curve));
    let Some(best) = found.best.and_then(|at| curve.points.get(at)) else {
        return said + "no run ended well." + &troubles(curve);
    };
    let rate = say::rate(best.rate.mean);
    let best_name = label(curve.knob, best);
    let mut behind: Vec<_> = found.behind().collect();
    behind.sort_by(|a, b| a.1.total_cmp(&b.1));
    let alike: Vec<String> = found.alike().map(&name).collect();
    let unknown = found.standings.iter().zip(&curve.points).filter(|(one, _)| **one == Standing::Unknown);
    let single = unknown.filter(|(_, point)| point.rate.runs > 0).count();
    let more = |(at, gain, error): &(usize, f64, f64)| {
        format!("{} ± {} more than {}", say::percent(*gain), say::percent(*error), name(*at))
    };
    match behind.as_slice() {
        [] if alike.is_empty() && single == 0 => {
            said += &format!(
                "only {best_name} has runs that ended well ({rate}), so there is nothing to compare."
            );
        }
        [] if single > 0 && alike.is_empty() => {
            said += &format!(
                "{best_name} had the highest rate ({rate}), but single runs prove nothing: repeat them (--repeat 3 or more)."
            );
        }
        [] => {
            said += &format!(
                "no value was better than the others by more than the noise of the runs. {}",
                spread(curve)
            );
        }
        [only] => said += &format!("{best_name} was best ({rate}), {}.", more(only)),
        [least, .., most] => {
            said += &format!("{best_name} was best ({rate}), {}, and {}.", more(least), more(most));
        }
    }
    if !behind.is_empty() && !alike.is_empty() {
        said += &format!(" The runs do not tell it from {}.", list(&alike));
    }
    said + &troubles(curve)
}

/// How much means and runs differ.
fn spread(curve: &Curve) -> String {
    let several = || curve.points.iter().filter(|point| point.rate.runs > 1 && point.rate.mean > 0.0);
    let means = several().map(|point| point.rate.mean);
    let (least, most) = means.fold((f64::INFINITY, 0.0_f64), |(l, m), mean| (l.min(mean), m.max(mean)));
    let noise =
        several().map(|point| (point.rate.most - point.rate.least) / point.rate.mean).fold(0.0, f64::max);
    let apart = most / least - 1.0;
    let mut said = format!(
        "Their means differ by up to {}, runs of the same value by up to {}.",
        say::percent(apart),
        say::percent(noise)
    );
    if apart > noise {
        said += " More rounds (--repeat) may tell them apart.";
    }
    said
}

/// Describes outliers, failures and refusals.
fn troubles(curve: &Curve) -> String {
    let mut said = String::new();
    for point in &curve.points {
        let (outliers, failures) = (point.outliers().count() as u64, point.failures().count() as u64);
        let value = label(curve.knob, point);
        if let (Some(with), true) = (&point.with_outliers, outliers > 0) {
            said += &format!(
                " {value}: {} left out ({} without, {} with).",
                say::things(outliers, "outlier"),
                say::rate(point.rate.mean),
                say::rate(with.mean)
            );
        }
        if let Some(why) = &point.refused {
            said += &format!(" {value} was not run: {}.", plain(why, NAME).trim_end_matches('.'));
        }
        if let Some(first) = point.failures().find_map(|run| run.failed.as_ref()) {
            let first = plain(first, NAME);
            said += &format!(
                " {value}: {} failed: {}.",
                say::things(failures, "run"),
                first.trim_end_matches('.')
            );
        }
        if said.len() > 1500 {
            return said + " …";
        }
    }
    said
}

fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::CurveRun;

    fn curve(points: &[(&str, &[f64])]) -> Curve {
        let point = |(name, rates): &(&str, &[f64])| {
            let run = |rate: &f64| CurveRun { bytes_per_second: rate * 1e6, ..CurveRun::default() };
            let mut point = CurvePoint {
                name: (*name).into(),
                value: name.parse().ok(),
                runs: rates.iter().map(run).collect(),
                ..CurvePoint::default()
            };
            point.sum_up(&[]);
            point
        };
        Curve { points: points.iter().map(point).collect(), ..Curve::default() }
    }

    #[test]
    fn finding_when_one_is_best_names_its_gain() {
        let said = finding(&curve(&[
            ("1", &[45.0, 45.2, 45.1]),
            ("2", &[52.0, 52.3, 52.1]),
            ("4", &[59.0, 59.2, 59.1]),
            ("8", &[58.9, 59.3, 58.8]),
        ]));
        assert!(said.starts_with("Streams: 4 was best (473 Mbit/s), 13 % ± "), "{said}");
        assert!(said.contains("more than 2, and 31 % ± ") && said.contains("more than 1."), "{said}");
        assert!(said.contains("The runs do not tell it from 8."), "{said}");
    }

    #[test]
    fn finding_when_difference_is_noise_claims_nothing() {
        let said = finding(&curve(&[("1", &[45.0, 66.0, 55.0]), ("auto", &[68.0, 49.0, 59.0])]));
        assert!(said.contains("no value was better") && !said.contains("was best"), "{said}");
        assert!(said.contains("differ by up to 6.0 %, runs of the same value by up to 38 %"), "{said}");
        let said = finding(&curve(&[("1", &[10.0]), ("2", &[90.0])]));
        assert!(said.contains("single runs prove nothing") && !said.contains("was best"), "{said}");
        assert!(finding(&curve(&[("1", &[])])).contains("no run ended well"));
        assert!(finding(&curve(&[("1", &[5.0, 5.1])])).contains("nothing to compare"));
        assert!(finding(&Curve::default()).contains("no run ended well"));
    }

    #[test]
    fn finding_reports_outliers_refusals_and_failures() {
        let mut curve = curve(&[("1", &[100.0, 101.0, 99.0, 60.0, 100.5]), ("2", &[]), ("4", &[])]);
        curve.points[1].refused = Some("501 too large.".into());
        curve.points[2].runs =
            vec![CurveRun { failed: Some("connection reset".into()), ..CurveRun::default() }; 2];
        let said = finding(&curve);
        assert!(said.contains("1: 1 outlier left out (801 Mbit/s without, 737 Mbit/s with)"), "{said}");
        assert!(said.contains("2 was not run: 501 too large."), "{said}");
        assert!(said.contains("4: 2 runs failed: connection reset."), "{said}");
        let sweeps = Sweeps { broken_off: Some("interrupted".into()), ..Sweeps::default() };
        assert!(findings(&sweeps)[0].contains("broken off: interrupted"));
    }
}
