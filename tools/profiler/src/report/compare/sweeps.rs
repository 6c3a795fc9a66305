//! Compares sweeps of several profiles: their curves in one plot, their rates side by side.

use std::collections::HashSet;

use super::{Cell, Markup, Side, html, number, say, table, text};
use crate::report::charts;
use crate::report::clean::plain;
use crate::report::sweeps::{METHOD, context, heading, label};
use crate::sweep::{Change, Curve, CurvePoint, Knob, Way};

/// Most rows of a table.
const ROWS: usize = 100;
const NOTHING: &str = "–";
const KNOBS: [Knob; 5] = [Knob::Buffer, Knob::Streams, Knob::Block, Knob::Files, Knob::Workload];

pub(super) fn sweeps(out: &mut Markup, sides: &[Side<'_>], names: &[String]) {
    let mut body = Markup::default();
    for knob in KNOBS {
        for way in [Way::Forth, Way::Back] {
            let of = sides.iter().map(|side| side.profile.sweeps.as_ref()?.curve(knob, way));
            curves(&mut body, &of.collect::<Vec<Option<&Curve>>>(), names);
        }
    }
    if body.is_empty() {
        return;
    }
    out.raw("<h2 id=\"sweeps\">Other settings</h2>").part(&body);
    let mut method = Markup::default();
    method.element("p", METHOD);
    html::markup::details(out, "How settings were compared", &method);
}

/// One setting in one direction. A profile without it has no line in the plot, and dashes in the
/// table.
fn curves(out: &mut Markup, curves: &[Option<&Curve>], names: &[String]) {
    let Some(first) = curves.iter().flatten().find(|curve| !curve.points.is_empty()) else { return };
    out.element("h3", &heading(first));
    for (name, curve) in names.iter().zip(curves) {
        if let Some(context) = curve.map(context).filter(|context| !context.is_empty()) {
            out.element("p class=\"faint\"", &format!("{name}: {context}"));
        }
    }
    if let Some(figure) = charts::compared(curves, names) {
        html::gallery(out, &[figure]);
    }
    let rows = rows(curves);
    let mut heads: Vec<&str> = vec![first.knob.name()];
    heads.extend(names.iter().map(String::as_str));
    let compares = curves.len() > 1 && first_and_last(curves).is_some();
    heads.extend(compares.then_some("last against first"));
    let level = 1.0 / rows.len().max(1) as f64;
    let cells = rows.iter().map(|row| {
        let name = row.iter().flatten().next().map(|point| row_name(first.knob, point)).unwrap_or_default();
        let rates = row.iter().map(|point| number(point.map_or_else(|| NOTHING.into(), rate)));
        let mut cells: Vec<Cell> = std::iter::once(text(name)).chain(rates).collect();
        if compares {
            cells.push(number(gain(row, level)));
        }
        cells
    });
    table(out, &heads, cells.collect());
}

fn first_and_last<T: Copy>(all: &[Option<T>]) -> Option<(T, T)> {
    Some(((*all.first()?)?, (*all.last()?)?))
}

/// The points of all curves that have the same value, in the order in which the values were given.
fn rows<'a>(curves: &[Option<&'a Curve>]) -> Vec<Vec<Option<&'a CurvePoint>>> {
    let mut seen = HashSet::new();
    let all = curves.iter().flatten().flat_map(|curve| curve.points.iter().take(ROWS));
    let keys = all.map(key).filter(|key| seen.insert(key.clone())).take(ROWS).collect::<Vec<_>>();
    let find = |key: &String| {
        let of = |curve: &Option<&'a Curve>| {
            curve.and_then(|curve| curve.points.iter().find(|p| self::key(p) == *key))
        };
        curves.iter().map(of).collect()
    };
    keys.iter().map(find).collect()
}

/// The key of a row. BDP is the same row on all paths, whatever its number of bytes.
fn key(point: &CurvePoint) -> String {
    match point.value {
        Some(value) if !is_bdp(point) => value.to_string(),
        _ => plain(point.name.trim(), 24).to_lowercase(),
    }
}

fn is_bdp(point: &CurvePoint) -> bool {
    point.name.trim().eq_ignore_ascii_case("bdp")
}

fn row_name(knob: Knob, point: &CurvePoint) -> String {
    if is_bdp(point) { "BDP".to_owned() } else { label(knob, point) }
}

/// The mean rate and its interval: `79.1 Mbit/s ± 0.5`.
fn rate(point: &CurvePoint) -> String {
    let rate = &point.rate;
    match (rate.runs, rate.interval) {
        (0, _) if point.refused.is_some() => "refused".to_owned(),
        (0, _) => NOTHING.to_owned(),
        (_, Some(interval)) => format!("{} ± {}", say::rate(rate.mean), say::rate(interval)),
        (_, None) => say::rate(rate.mean),
    }
}

/// The gain of the last profile over the first, as far as the runs prove it.
fn gain(row: &[Option<&CurvePoint>], level: f64) -> String {
    let Some((first, last)) = first_and_last(row) else { return NOTHING.to_owned() };
    match Change::of(first, last, level) {
        Change::More { gain, error } => format!("+{} ± {}", say::percent(gain), say::percent(error)),
        Change::Less { loss, error } => format!("−{} ± {}", say::percent(loss), say::percent(error)),
        Change::Alike => "within the noise".to_owned(),
        Change::Unknown => NOTHING.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::sweep::{CurveRun, Sweeps};

    fn profile(points: &[(&str, u64, &[f64])]) -> Profile {
        let point = |(name, value, rates): &(&str, u64, &[f64])| {
            let run = |rate: &f64| CurveRun { bytes_per_second: rate * 1e6, ..CurveRun::default() };
            let mut point = CurvePoint {
                name: (*name).into(),
                value: Some(*value).filter(|value| *value > 0),
                runs: rates.iter().map(run).collect(),
                ..CurvePoint::default()
            };
            point.sum_up(&[]);
            point
        };
        let curve = Curve {
            knob: Knob::Buffer,
            held: "1 stream".into(),
            points: points.iter().map(point).collect(),
            ..Curve::default()
        };
        Profile { sweeps: Some(Sweeps { curves: vec![curve], ..Sweeps::default() }), ..Profile::default() }
    }

    fn page(sides: &[&Profile]) -> String {
        let sides: Vec<Side<'_>> = sides.iter().map(|profile| Side { name: "x", profile }).collect();
        let names: Vec<String> = (1..=sides.len()).map(|number| format!("profile {number}")).collect();
        let mut out = Markup::default();
        sweeps(&mut out, &sides, &names);
        out.finish()
    }

    #[test]
    fn sweeps_when_values_match_share_a_row() {
        let before = profile(&[
            ("auto", 0, &[10.0, 10.1, 9.9]),
            ("bdp", 1000, &[5.0, 5.1, 4.9]),
            ("64K", 65536, &[5.0, 9.0, 7.0]),
        ]);
        let after = profile(&[
            ("bdp", 2000, &[50.0, 50.1, 49.9]),
            ("64K", 65536, &[7.1, 7.3, 8.0]),
            ("1M", 1 << 20, &[3.0]),
        ]);
        let page = page(&[&before, &after]);
        let rows: Vec<&str> = page.split("<tr>").collect();
        let row = |name: &str| {
            let head = format!("<td>{name}</td>");
            rows.iter().find(|row| row.starts_with(&head)).map(|row| (*row).to_owned()).unwrap_or_default()
        };
        assert!(row("BDP").contains("+900 % ± "), "{page}");
        assert!(row("64.0 KiB").contains("within the noise"), "{page}");
        assert_eq!(row("auto").matches(NOTHING).count(), 2, "{page}");
        assert_eq!(row("1.00 MiB").matches(NOTHING).count(), 2, "{page}");
        assert!(
            page.contains("profile 1: 1 stream") && page.contains("<figure id=\"compare-buffer\">"),
            "{page}"
        );
    }

    #[test]
    fn sweeps_when_profiles_have_none_are_left_out() {
        let none = Profile::default();
        assert_eq!(page(&[&none, &none]), "");
        // A single sweep is shown nevertheless.
        let page = page(&[&none, &profile(&[("64K", 65536, &[1.0, 2.0])])]);
        assert!(page.contains("Socket buffer") && !page.contains("last against first"), "{page}");
    }

    #[test]
    fn gain_when_rate_fell_is_negative() {
        let (fast, slow) = (profile(&[("1", 1, &[10.0, 10.1, 9.9])]), profile(&[("1", 1, &[5.0, 5.1, 4.9])]));
        let page = page(&[&fast, &slow]);
        assert!(page.contains("−50 % ± "), "{page}");
    }
}
