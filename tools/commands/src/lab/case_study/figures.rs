//! Numbers and sentences of the text.

use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::profile::Role;
use ropewalk_profiler::sweep::{Curve, CurvePoint, EndLoad, Finding};
use ropewalk_profiler::verdict::Verdict;

/// MB/s in the paper's format.
pub(super) fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.*}", digits(bytes_per_second), bytes_per_second / 1e6)
}

fn digits(bytes_per_second: f64) -> usize {
    if bytes_per_second < 1e7 { 2 } else { 1 }
}

/// A point's mean, with its 95 % confidence interval.
pub(super) fn rate(point: &CurvePoint) -> String {
    match (&point.refused, point.rate.runs, point.rate.interval) {
        (Some(_), ..) => "refused".to_owned(),
        (None, 0, _) => "failed".to_owned(),
        (None, _, Some(interval)) => {
            format!("{} ± {:.*}", megabytes(point.rate.mean), digits(point.rate.mean), interval / 1e6)
        }
        (None, _, None) => megabytes(point.rate.mean),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// One digit after the decimal point.
pub(super) fn ratio(new: f64, old: f64) -> String {
    if old > 0.0 { format!("{:.1}", new / old) } else { "–".to_owned() }
}

pub(super) fn count(number: f64) -> String {
    format!("{number:.0}")
}

pub(super) fn end(point: &CurvePoint, role: Role) -> Option<&EndLoad> {
    point.ends.iter().find(|end| end.role == role)
}

/// MB/s for each per cent of processor time in the kernel.
pub(super) fn for_load(rate: f64, load: f64) -> String {
    if load > 0.0 { format!("{:.2}", rate / load) } else { "–".to_owned() }
}

/// The statement that the curve supports, beyond its noise.
pub(super) fn finding(curve: &Curve) -> String {
    let found = Finding::of(curve);
    let name = |at: usize| format!("`{}`", curve.points[at].name);
    let Some(best) = found.best else { return "No run succeeded.".to_owned() };
    let mut text = format!("Best: {}", name(best));
    let alike: Vec<String> = found.alike().map(name).collect();
    if !alike.is_empty() {
        text += &format!("; not distinguishable from it: {}", alike.join(", "));
    }
    let behind: Vec<String> = found
        .behind()
        .map(|(at, gain, error)| format!("{} by {:.0} ± {:.0} %", name(at), 100.0 * gain, 100.0 * error))
        .collect();
    if !behind.is_empty() {
        text += &format!("; it has more than {}", behind.join(", "));
    }
    text + "."
}

/// The first cause, with host and confidence.
pub(super) fn first_cause(profile: &Profile) -> String {
    let verdict = Verdict::of(profile);
    let Some(cause) = verdict.causes.first() else { return "none found".to_owned() };
    let kind = serde_json::to_value(cause.kind).ok();
    let kind = kind.and_then(|kind| Some(kind.as_str()?.replace('_', " "))).unwrap_or_default();
    let at = cause.host.as_ref().map(|host| format!(" at `{host}`")).unwrap_or_default();
    format!("{kind}{at} ({:.2})", cause.confidence)
}

#[cfg(test)]
mod tests {
    use ropewalk_profiler::sweep::CurveRun;

    use super::*;

    #[test]
    fn sentences_of_points_and_curves_follow_the_noise() {
        let point = |name: &str, rates: &[f64]| {
            let run = |&bytes_per_second| CurveRun { bytes_per_second, ..CurveRun::default() };
            let runs = rates.iter().map(run).collect();
            let mut point = CurvePoint { name: name.to_owned(), runs, ..CurvePoint::default() };
            point.sum_up(&[]);
            point
        };
        let points =
            vec![point("1", &[40e6, 41e6, 42e6]), point("4", &[90e6, 91e6, 92e6]), point("8", &[91e6])];
        let curve = Curve { points, ..Curve::default() };
        assert!(rate(&curve.points[0]).starts_with("41.0 ± 2.5"), "{}", rate(&curve.points[0]));
        assert_eq!(rate(&CurvePoint::default()), "failed");
        let said = finding(&curve);
        assert!(said.starts_with("Best: `"), "{said}");
        assert_eq!(finding(&Curve::default()), "No run succeeded.");
        assert_eq!(first_cause(&Profile::default()), "none found");
        assert_eq!(
            (ratio(3.0, 0.0), ratio(3.0, 2.0), megabytes(5e6)),
            ("–".into(), "1.5".into(), "5.00".into())
        );
    }
}
