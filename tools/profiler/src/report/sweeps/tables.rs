//! Tables by value: rates, loads of each host, and the location of its processors' work, as in
//! tables 1, 3 and 6 of the published study.

use std::collections::BTreeMap;

use super::label;
use crate::profile::{Role, ShareKind};
use crate::report::clean::plain;
use crate::report::say;
use crate::sweep::{Curve, CurvePoint, EndLoad, Knob};

/// A table as text. The first column names the row.
pub(in crate::report) struct Table {
    pub(in crate::report) title: String,
    pub(in crate::report) heads: Vec<String>,
    pub(in crate::report) rows: Vec<Vec<String>>,
}

/// Most rows of a table.
const ROWS: usize = 100;
const NOTHING: &str = "–";

fn points(curve: &Curve) -> impl Iterator<Item = &CurvePoint> {
    curve.points.iter().take(ROWS)
}

fn first_head(curve: &Curve) -> String {
    match curve.knob {
        Knob::Buffer => "buffer",
        Knob::Workload => "transfer",
        knob => knob.name(),
    }
    .to_owned()
}

fn table(title: String, heads: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { title, heads: heads.iter().map(|&head| head.to_owned()).collect(), rows }
}

/// Means and their spread, in one unit, which is named in the title.
pub(in crate::report) fn rates(curve: &Curve) -> Table {
    let highest = points(curve).map(|point| point.rate.most * 8.0).fold(0.0, f64::max);
    let (factor, unit) = match highest {
        rate if rate >= 1e10 => (1e9, "Gbit/s"),
        rate if rate >= 1e7 => (1e6, "Mbit/s"),
        _ => (1e3, "kbit/s"),
    };
    let shown = |rate: f64| {
        let value = rate * 8.0 / factor;
        match value {
            value if !value.is_finite() => NOTHING.to_owned(),
            value if value < 9.995 => format!("{value:.2}"),
            value if value < 99.95 => format!("{value:.1}"),
            // Larger than any real rate, but a profile may contain it.
            value if value >= 1e7 => format!("{value:.2e}"),
            value => format!("{value:.0}"),
        }
    };
    let rows = points(curve).map(|point| {
        let rate = &point.rate;
        let figure = |value: f64| if rate.runs > 0 { shown(value) } else { NOTHING.to_owned() };
        let per = point.rate_per_kernel_load().map(|rate| rate / 1e6 / 100.0);
        vec![
            label(curve.knob, point),
            figure(rate.mean),
            rate.interval.map_or_else(|| NOTHING.to_owned(), shown),
            figure(rate.median),
            figure(rate.least),
            figure(rate.most),
            rate.runs.to_string(),
            point.outliers().count().to_string(),
            match per {
                Some(per) if per < 100.0 => format!("{per:.2}"),
                Some(per) => say::count(per),
                None => NOTHING.to_owned(),
            },
        ]
    });
    let heads =
        [&first_head(curve), "mean", "± 95 %", "median", "least", "most", "runs", "outliers", "MB/s/%"];
    let title =
        format!("Rates in {unit}; at last, in MB/s, for each % of the processors that the kernel took");
    table(title, &heads, rows.collect())
}

/// The roles that were measured at any point, source first.
pub(in crate::report) fn roles(curve: &Curve) -> Vec<Role> {
    let has = |role| curve.points.iter().any(|point| point.ends.iter().any(|end| end.role == role));
    [Role::Source, Role::Destination, Role::Both].into_iter().filter(|&role| has(role)).collect()
}

fn end(point: &CurvePoint, role: Role) -> Option<&EndLoad> {
    point.ends.iter().find(|end| end.role == role)
}

/// Role and name of a host: `source left`.
fn who(curve: &Curve, role: Role) -> String {
    let name = curve.points.iter().find_map(|point| end(point, role)).map(|end| plain(end.host.trim(), 40));
    let role = match role {
        Role::Source => "source",
        Role::Destination => "destination",
        Role::Both => "source and destination",
    };
    format!("{role} {}", name.unwrap_or_default()).trim().to_owned()
}

/// Loads, disks and packets of one host.
pub(in crate::report) fn loads(curve: &Curve, role: Role) -> Table {
    let rows = points(curve).map(|point| {
        let mut row = vec![label(curve.knob, point)];
        let Some(end) = end(point, role) else {
            row.resize(8, NOTHING.to_owned());
            return row;
        };
        row.extend([end.load, end.peak, end.kernel].map(say::percent));
        let rates = [end.disk_transfers, end.packets_received, end.packets_sent, end.retransmitted];
        row.extend(rates.map(say::count));
        row
    });
    let title = format!(
        "Load of the {}; per second: disk requests, packets in and out, segments sent again",
        who(curve, role)
    );
    table(title, &[&first_head(curve), "load", "peak", "kernel", "I/O", "in", "out", "again"], rows.collect())
}

/// The sizes that requested buffers actually got: the kernel counts twice the requested size, and
/// has limits. `None` if another setting was varied.
pub(in crate::report) fn buffers(curve: &Curve) -> Option<Table> {
    if curve.knob != Knob::Buffer || roles(curve).is_empty() {
        return None;
    }
    let rows = points(curve).map(|point| {
        let of = |wanted: fn(Role) -> bool, size: fn(&EndLoad) -> Option<u64>| {
            let bytes = point.ends.iter().find(|end| wanted(end.role)).and_then(size);
            bytes.map_or_else(|| NOTHING.to_owned(), |bytes| say::size(bytes as f64))
        };
        let send = of(Role::sends, |end| end.send_buffer);
        let receive = of(Role::receives, |end| end.receive_buffer);
        vec![label(curve.knob, point), send, receive]
    });
    let title = "What the kernel made of it, as it counts: the largest buffers that were seen".to_owned();
    Some(table(title, &[&first_head(curve), "source sends", "destination receives"], rows.collect()))
}

/// Where a host's processors worked, as shares of their work, in `most` columns: the kernel, its
/// modules and interrupts, then the largest of the rest. `None` if no profiler was used.
pub(in crate::report) fn shares(curve: &Curve, role: Role, most: usize) -> Option<Table> {
    let mut highest: BTreeMap<(ShareKind, &str), f64> = BTreeMap::new();
    for part in points(curve).filter_map(|point| end(point, role)).flat_map(|end| &end.shares) {
        let known = highest.entry((part.kind, part.name.as_str())).or_default();
        *known = known.max(part.share);
    }
    let mut all: Vec<_> = highest.into_iter().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let of_kernel = |kind| {
        matches!(kind, ShareKind::Kernel | ShareKind::Module | ShareKind::Driver | ShareKind::Interrupt)
    };
    // The parts of the kernel get two thirds of the columns, if they need them.
    let (kernel, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|((kind, _), _)| of_kernel(*kind));
    let of_kernel = kernel.len().min((most * 2 / 3).max(most.saturating_sub(rest.len())));
    let columns: Vec<_> = kernel
        .into_iter()
        .take(of_kernel)
        .chain(rest.into_iter().take(most - of_kernel))
        .map(|(key, _)| key)
        .collect();
    if columns.is_empty() {
        return None;
    }
    let rows = points(curve).map(|point| {
        let of = |&(kind, name): &(ShareKind, &str)| {
            let Some(end) = end(point, role).filter(|end| !end.shares.is_empty()) else {
                return NOTHING.to_owned();
            };
            let part = end.shares.iter().find(|part| part.kind == kind && part.name == name);
            say::percent(part.map_or(0.0, |part| part.share))
        };
        std::iter::once(label(curve.knob, point)).chain(columns.iter().map(of)).collect()
    });
    let heads = columns.iter().map(|(_, name)| plain(name.trim(), 12));
    Some(Table {
        title: format!("Where the processors of the {} worked, as shares of their work", who(curve, role)),
        heads: std::iter::once(first_head(curve)).chain(heads).collect(),
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::Share;
    use crate::sweep::{CurveRun, Way};

    fn curve() -> Curve {
        let part = |kind, name: &str, share| Share { kind, name: name.into(), share };
        let mut point = CurvePoint {
            name: "64K".into(),
            value: Some(65536),
            runs: vec![CurveRun { bytes_per_second: 1e6, ..CurveRun::default() }; 2],
            ..CurvePoint::default()
        };
        let end = EndLoad {
            host: "left".into(),
            runs: 1,
            kernel: 0.5,
            packets_sent: 700.0,
            send_buffer: Some(131_072),
            shares: vec![
                part(ShareKind::Program, "cc1", 0.5),
                part(ShareKind::Program, "ropewalk", 0.3),
                part(ShareKind::Library, "libc", 0.1),
                part(ShareKind::Driver, "tg3", 0.02),
                part(ShareKind::Module, "nfs", 0.01),
            ],
            ..EndLoad::default()
        };
        point.sum_up(&[vec![end.clone()], vec![end]]);
        let none = CurvePoint { name: "auto".into(), ..CurvePoint::default() };
        Curve { knob: Knob::Buffer, way: Way::Forth, points: vec![point, none], ..Curve::default() }
    }

    #[test]
    fn tables_have_as_many_cells_as_heads() {
        let curve = curve();
        assert_eq!(roles(&curve), [Role::Source]);
        let tables = [rates(&curve), loads(&curve, Role::Source), shares(&curve, Role::Source, 4).unwrap()];
        for table in &tables {
            assert_eq!(table.rows.len(), 2);
            assert!(table.rows.iter().all(|row| row.len() == table.heads.len()), "{}", table.title);
        }
        assert_eq!(tables[0].rows[0][..3], ["64.0 KiB", "8000", "0.00"]);
        // 1 MB/s with half of the processors.
        assert_eq!(tables[0].rows[0][8], "0.02");
        let buffers = buffers(&curve).unwrap();
        assert_eq!(buffers.rows, [["64.0 KiB", "128 KiB", "–"], ["auto", "–", "–"]]);
        assert!(tables[0].title.contains("kbit/s") && tables[1].title.contains("source left"));
        assert_eq!(tables[2].heads, ["buffer", "tg3", "nfs", "cc1", "ropewalk"]);
        assert_eq!(tables[2].rows[1][1], "–");
        assert!(shares(&curve, Role::Destination, 4).is_none());
        assert!(super::buffers(&Curve { knob: Knob::Streams, ..curve }).is_none());
    }
}
