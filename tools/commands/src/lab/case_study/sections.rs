//! Tables and plots, one section for each part of docs/case-study.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use ropewalk_lab::report::Table;
use ropewalk_lab::report::findings::Section;
use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Unit};
use ropewalk_profiler::profile::{CollectorState, Profile, Role, ShareKind};
use ropewalk_profiler::sweep::{Curve, EndLoad, Knob, Way};
use ropewalk_profiler::verdict::Verdict;
use serde_json::Value;

use super::figures::{count, end, finding, first_cause, for_load, megabytes, percent, rate, ratio};
use super::parts::FAR_ROUNDS;
use super::{Results, build, paper};

/// Smallest share in Table 6.
const SMALL_SHARE: f64 = 0.005;
const MOST_SHARES: usize = 16;

pub(super) fn all(results: &Results<'_>) -> anyhow::Result<Vec<Section>> {
    let parts = [build::section, buffers, doctor, streams, blocks, disks, servers];
    parts.iter().filter_map(|part| part(results).transpose()).collect()
}

fn curve(profile: &Profile, knob: Knob) -> Option<&Curve> {
    profile.sweeps.as_ref()?.curve(knob, Way::Forth)
}

fn rate_axis() -> Axis {
    Axis::linear("rate", Unit::BitsPerSecond)
}

/// Means with their intervals, if the value is a number.
fn points(curve: &Curve) -> Vec<Point> {
    let known = curve.points.iter().filter(|point| point.rate.runs > 0);
    known
        .filter_map(|point| {
            let (x, mean) = (point.value? as f64, point.rate.mean * 8.0);
            let interval = point.rate.interval.unwrap_or(0.0) * 8.0;
            Some(Point { x, y: mean, low: (mean - interval).max(0.0), high: mean + interval })
        })
        .collect()
}

/// Table 1, Figs 2 and 3.
fn buffers(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let (Some(old), Some(new)) = (results.profile("buffers-old.json")?, results.profile("buffers-new.json")?)
    else {
        return Ok(None);
    };
    let (Some(old), Some(new)) = (curve(&old, Knob::Buffer), curve(&new, Knob::Buffer)) else {
        return Ok(None);
    };
    let mut ours = Table::new([
        "requested buffer",
        "old settings: MB/s",
        "new: MB/s",
        "new/old",
        "send buffer in the kernel",
        "packets out/s",
        "new/old",
    ]);
    let mut theirs =
        Table::new(["buffer", "peak load", "I/O transfers/s", "packets in/s", "packets out/s", "new/old"]);
    let own = [paper::BUFFERS[0].0, paper::CLIPPED].into_iter();
    for name in own.chain(paper::BUFFERS.iter().skip(1).map(|row| row.0)) {
        let find = |curve: &'_ Curve| curve.points.iter().find(|point| point.name == name).cloned();
        let (Some(one), Some(other)) = (find(old), find(new)) else { continue };
        let (was, is) = (end(&one, Role::Source), end(&other, Role::Source));
        let both = |of: &dyn Fn(&EndLoad) -> String| {
            [was, is].map(|end| end.map_or_else(|| "–".to_owned(), of)).join(" → ")
        };
        ours.row([
            name.to_owned(),
            rate(&one),
            rate(&other),
            ratio(other.rate.mean, one.rate.mean),
            both(&|end| end.send_buffer.map_or_else(|| "–".to_owned(), crate::units::size)),
            both(&|end| count(end.packets_sent)),
            was.zip(is).map_or_else(|| "–".to_owned(), |(was, is)| ratio(is.packets_sent, was.packets_sent)),
        ]);
    }
    for (_, shown, before, after) in paper::BUFFERS {
        theirs.row([
            shown.to_owned(),
            format!("{} → {} %", before.peak, after.peak),
            format!("{} → {}", before.transfers, after.transfers),
            format!("{} → {}", before.received, after.received),
            format!("{} → {}", before.sent, after.sent),
            ratio(after.sent, before.sent),
        ]);
    }
    let mut text = format!("Ours:\n\n{}\n", ours.markdown());
    let _ = writeln!(text, "Old settings. {}\n\nNew settings. {}\n", finding(old), finding(new));
    let _ = writeln!(text, "The paper's Table 1, old → new:\n\n{}\n", theirs.markdown());
    text += "![Rate over buffer size](plots/case-buffers.svg)\n";
    let mut panel = Panel::new(rate_axis());
    for (name, curve) in [("old settings", old), ("new settings", new)] {
        panel = panel.series(Series::points_and_line(name, points(curve)));
        if let Some(auto) = curve.points.iter().find(|point| point.name == "auto") {
            panel = panel.level(auto.rate.mean * 8.0, format!("auto, {name}"));
        }
    }
    let chart = Chart::new(
        "Rate over socket buffer, put over 16 ms and 1 Gbit/s",
        Axis::log2("requested buffer", Unit::Bytes),
    )
    .note("means with 95 % intervals of 3 runs")
    .panel(panel);
    Ok(Some(Section { name: "case-buffers", text, charts: vec![("case-buffers.svg".into(), chart)] }))
}

/// The actions of doctor.
fn doctor(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let (Some(report), Some(before), Some(after)) =
        (results.bytes("doctor.json")?, results.profile("before.json")?, results.profile("after.json")?)
    else {
        return Ok(None);
    };
    let report: Value = serde_json::from_slice(&report)?;
    let mut text = format!("First cause before: {}.\n\n", first_cause(&before));
    if let Some(cause) = Verdict::of(&before).causes.first() {
        let _ = writeln!(text, "> {}. To do: {}.\n", cause.evidence, cause.advice);
    }
    let mut changed = Table::new(["setting", "old", "new"]);
    let cell = |change: &Value, key: &str| change[key].as_str().unwrap_or_default().to_owned();
    for change in report["applied"].as_array().into_iter().flatten() {
        changed.row([format!("`{}`", cell(change, "name")), cell(change, "before"), cell(change, "after")]);
    }
    let _ = writeln!(text, "{}", changed.markdown());
    let judged = &report["verified"]["judgement"];
    let mut rates = Table::new(["settings", "MB/s, in the order of the runs", "median"]);
    for name in ["old", "new"] {
        let all = judged[name].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let median = judged[format!("{name}_median")].as_f64().unwrap_or_default();
        rates.row([name.to_owned(), all.map(megabytes).collect::<Vec<_>>().join(", "), megabytes(median)]);
    }
    let _ = writeln!(text, "{}", rates.markdown());
    let _ = writeln!(
        text,
        "{:.1} times as fast; chance alone does as well in {:.0} % of cases; {}. First cause \
         afterwards: {}.\n",
        judged["gain"].as_f64().unwrap_or_default() + 1.0,
        100.0 * judged["chance"].as_f64().unwrap_or(1.0),
        if report["verified"]["kept"] == true { "kept" } else { "not kept" },
        first_cause(&after),
    );
    text += "![Rate over time before and after](plots/case-doctor.svg)\n";
    let line = |name: &str, profile: &Profile| {
        let samples = profile.workload.rates.iter();
        Series::line(name, samples.map(|sample| (sample.time, sample.bytes_per_second * 8.0)))
    };
    let panel = Panel::new(rate_axis()).series(line("before", &before)).series(line("after", &after));
    let chart = Chart::new("The same file with old and new settings", Axis::time()).panel(panel);
    Ok(Some(Section { name: "case-doctor", text, charts: vec![("case-doctor.svg".into(), chart)] }))
}

/// Table 3, Fig. 4.
fn streams(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let (Some(near), Some(far)) =
        (results.profile("streams-near.json")?, results.profile("streams-far.json")?)
    else {
        return Ok(None);
    };
    let (Some(near), Some(far)) = (curve(&near, Knob::Streams), curve(&far, Knob::Streams)) else {
        return Ok(None);
    };
    let mut table = Table::new([
        "P",
        "6.5 ms: MB/s",
        "kernel load",
        "40 ms: MB/s",
        "kernel load",
        "MB/s per %",
        "paper: MB/s",
        "kernel load",
        "MB/s per %",
    ]);
    for (number, theirs, _, kernel) in paper::STREAMS {
        let mut row = vec![number.to_string()];
        for curve in [near, far] {
            let point = curve.points.iter().find(|point| point.value == Some(number));
            let load = point.and_then(|point| point.kernel_load());
            row.push(point.map_or_else(|| "–".to_owned(), rate));
            row.push(load.map_or_else(|| "–".to_owned(), |load| format!("{:.1} %", load * 100.0)));
            if std::ptr::eq(curve, far) {
                let load = load.unwrap_or(0.0) * 100.0;
                row.push(point.map_or_else(|| "–".to_owned(), |point| for_load(point.rate.mean / 1e6, load)));
            }
        }
        row.extend([format!("{theirs}"), format!("{kernel} %"), for_load(theirs, kernel)]);
        table.row(row);
    }
    let mut text = format!("{}\n6.5 ms. {}\n\n40 ms. {}\n\n", table.markdown(), finding(near), finding(far));
    text += "![Rate and kernel load over streams](plots/case-streams.svg)\n";
    let mut rates = Panel::new(rate_axis());
    let mut loads = Panel::new(Axis::linear("kernel load", Unit::Share));
    for (name, curve) in [("6.5 ms", near), ("40 ms", far)] {
        rates = rates.series(Series::points_and_line(name, points(curve)));
        let load = curve.points.iter().filter_map(|point| Some((point.value? as f64, point.kernel_load()?)));
        loads = loads.series(Series::points_and_line(name, load));
    }
    let chart = Chart::new("Rate and kernel load over streams, 1 Gbit/s", Axis::log2("streams", Unit::Plain))
        .note(format!(
            "means with 95 % intervals of 3 and {FAR_ROUNDS} runs; loss 0.001 % at 6.5 ms, 0.01 % at 40 ms"
        ))
        .panel(rates)
        .panel(loads);
    Ok(Some(Section { name: "case-streams", text, charts: vec![("case-streams.svg".into(), chart)] }))
}

/// Fig. 5.
fn blocks(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let (Some(one), Some(many)) = (results.profile("block-1.json")?, results.profile("block-16.json")?)
    else {
        return Ok(None);
    };
    let (Some(one), Some(many)) = (curve(&one, Knob::Block), curve(&many, Knob::Block)) else {
        return Ok(None);
    };
    let mut table = Table::new(["block", "1 stream: MB/s", "16 streams: MB/s"]);
    for point in &one.points {
        let other = many.points.iter().find(|other| other.name == point.name);
        table.row([point.name.clone(), rate(point), other.map_or_else(|| "–".to_owned(), rate)]);
    }
    let mut text =
        format!("{}\n1 stream. {}\n\n16 streams. {}\n\n", table.markdown(), finding(one), finding(many));
    text += "![Rate over block size](plots/case-block.svg)\n";
    let panel = Panel::new(rate_axis())
        .series(Series::points_and_line("1 stream", points(one)))
        .series(Series::points_and_line("16 streams", points(many)));
    let chart = Chart::new("Rate over block size, 16 ms, 1 Gbit/s", Axis::log2("block", Unit::Bytes))
        .note("means with 95 % intervals of 3 runs")
        .panel(panel);
    Ok(Some(Section { name: "case-block", text, charts: vec![("case-block.svg".into(), chart)] }))
}

/// Tables 5 and 6.
fn disks(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let Some(profile) = results.profile("disks.json")? else { return Ok(None) };
    let Some(curve) = curve(&profile, Knob::Workload) else { return Ok(None) };
    let base = &profile.baselines;
    let known =
        |rate: Option<f64>| rate.map_or_else(|| "not measured".to_owned(), |rate| megabytes(rate) + " MB/s");
    let mut text = format!(
        "Parts alone: path {}, source's disk reading {}, destination's disk writing {}.\n\n",
        known(base.path),
        known(base.source_disk),
        known(base.destination_disk)
    );
    let memory =
        curve.points.iter().find(|point| point.name == "mem-mem").map_or(0.0, |point| point.rate.mean);
    let mut table = Table::new([
        "kind",
        "MB/s",
        "of mem-mem",
        "slowest part alone",
        "of it",
        "paper: MB/s",
        "of mem-mem",
    ]);
    for (name, theirs) in paper::KINDS {
        let Some(point) = curve.points.iter().find(|point| point.name == name) else { continue };
        let parts = [
            base.path,
            base.source_disk.filter(|_| name.starts_with("disk")),
            base.destination_disk.filter(|_| name.ends_with("disk")),
        ];
        let slowest = parts.into_iter().flatten().min_by(f64::total_cmp);
        let share = |of: Option<f64>| match of.filter(|of| *of > 0.0) {
            Some(of) => percent(point.rate.mean / of),
            None => "–".to_owned(),
        };
        table.row([
            name.to_owned(),
            rate(point),
            share(Some(memory)),
            slowest.map_or_else(|| "–".to_owned(), megabytes),
            share(slowest),
            format!("{theirs:.0}"),
            percent(theirs / paper::KINDS[0].1),
        ]);
    }
    let _ = writeln!(text, "{}\n{}\n", table.markdown(), finding(curve));
    text += &shares(curve);
    Ok(Some(Section { name: "case-disks", text, charts: vec![] }))
}

/// Shares of the profiler by part of the system, a column for each kind.
fn shares(curve: &Curve) -> String {
    let mut all: BTreeMap<(ShareKind, String), Vec<f64>> = BTreeMap::new();
    for (column, point) in curve.points.iter().enumerate() {
        // Both ends are on the same machine here.
        for share in point.ends.first().into_iter().flat_map(|end| &end.shares) {
            let row =
                all.entry((share.kind, share.name.clone())).or_insert_with(|| vec![0.0; curve.points.len()]);
            row[column] = share.share;
        }
    }
    if all.is_empty() {
        return "No profiler could be used.\n".to_owned();
    }
    let most = |row: &[f64]| row.iter().copied().fold(0.0, f64::max);
    let mut rows: Vec<_> = all.into_iter().filter(|(_, row)| most(row) >= SMALL_SHARE).collect();
    rows.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)));
    rows.truncate(MOST_SHARES);
    let mut table = Table::new(
        ["where", "name"].into_iter().map(str::to_owned).chain(curve.points.iter().map(|p| p.name.clone())),
    );
    for ((kind, name), row) in rows {
        let kind = serde_json::to_value(kind).ok().and_then(|kind| Some(kind.as_str()?.to_owned()));
        let cells = row.iter().map(|share| format!("{:.1} %", share * 100.0));
        table.row([kind.unwrap_or_default(), format!("`{name}`")].into_iter().chain(cells));
    }
    table.markdown()
}

/// A GCT server beside a Ropewalk server.
fn servers(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let mut table = Table::new([
        "server",
        "settings",
        "MB/s",
        "first cause",
        "its end was measured by",
        "connections",
        "stages",
    ]);
    let mut said = String::new();
    for (settings, file) in [("old", "old-gct"), ("old", "old-ours"), ("new", "new-gct"), ("new", "new-ours")]
    {
        let Some(profile) = results.profile(&format!("{file}.json"))? else { return Ok(None) };
        let server = if file.ends_with("gct") { "GCT" } else { "ours" };
        let source = profile.source();
        let used = source.map_or_else(String::new, |host| {
            let used = host.collectors.iter().filter(|report| report.state == CollectorState::Used);
            let names = used.filter_map(|report| {
                serde_json::to_value(report.name).ok().and_then(|name| Some(name.as_str()?.to_owned()))
            });
            names.collect::<Vec<_>>().join(", ")
        });
        table.row([
            server.to_owned(),
            settings.to_owned(),
            megabytes(profile.workload.rate()),
            first_cause(&profile),
            used,
            source.map_or(0, |host| host.connections.len()).to_string(),
            if source.is_some_and(|host| host.stages.is_some()) { "yes" } else { "no" }.to_owned(),
        ]);
        if settings == "old"
            && let Some(cause) = Verdict::of(&profile).causes.first()
        {
            let _ = writeln!(said, "> {server}: {}. To do: {}.\n>", cause.evidence, cause.advice);
        }
    }
    let text = format!("{}\n{}\n", table.markdown(), said.trim_end_matches(">\n"));
    Ok(Some(Section { name: "case-servers", text, charts: vec![] }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_profiler::profile::{HostProfile, SCHEMA, Share};
    use ropewalk_profiler::sweep::{CurvePoint, CurveRun, Sweeps};

    use super::*;

    fn profile(knob: Knob, points: &[(&str, Option<u64>, f64)]) -> Vec<u8> {
        let shares = vec![Share { kind: ShareKind::Module, name: "nfs".into(), share: 0.25 }];
        let points = points.iter().map(|&(name, value, rate)| {
            let runs = [0.99, 1.0, 1.01]
                .map(|part| CurveRun { bytes_per_second: rate * part, ..CurveRun::default() });
            let mut point =
                CurvePoint { name: name.into(), value, runs: runs.into(), ..CurvePoint::default() };
            let end = EndLoad {
                runs: 1,
                kernel: 0.2,
                packets_sent: rate / 1000.0,
                shares: shares.clone(),
                ..EndLoad::default()
            };
            point.sum_up(&[vec![end.clone()], vec![end.clone()], vec![end]]);
            point
        });
        let curves = vec![Curve { knob, points: points.collect(), ..Curve::default() }];
        let sweeps = Some(Sweeps { curves, ..Sweeps::default() });
        let host = HostProfile { schema: SCHEMA, ..HostProfile::default() };
        serde_json::to_vec(&Profile { schema: SCHEMA, sweeps, hosts: vec![host], ..Profile::default() })
            .unwrap()
    }

    #[test]
    fn measured_part_has_a_section() {
        let directory = tempfile::tempdir().unwrap();
        let results = Results { directory: directory.path() };
        assert!(all(&results).unwrap().is_empty());
        let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
        write(
            "buffers-old.json",
            &profile(Knob::Buffer, &[("auto", None, 10e6), ("4M", Some(4 << 20), 20e6)]),
        );
        assert!(all(&results).unwrap().is_empty(), "half of it is no comparison");
        write(
            "buffers-new.json",
            &profile(Knob::Buffer, &[("auto", None, 50e6), ("4M", Some(4 << 20), 50e6)]),
        );
        for name in ["streams-near.json", "streams-far.json"] {
            write(name, &profile(Knob::Streams, &[("1", Some(1), 10e6), ("4", Some(4), 40e6)]));
        }
        for name in ["block-1.json", "block-16.json"] {
            write(name, &profile(Knob::Block, &[("64K", Some(65536), 10e6)]));
        }
        write("disks.json", &profile(Knob::Workload, &[("mem-mem", None, 100e6), ("disk-disk", None, 50e6)]));
        for name in
            ["old-gct.json", "old-ours.json", "new-gct.json", "new-ours.json", "before.json", "after.json"]
        {
            write(name, &profile(Knob::Streams, &[]));
        }
        let change = r#"{"name":"net.ipv4.tcp_rmem","before":"1 2 3","after":"1 2 4"}"#;
        let judged =
            r#"{"old":[1e7],"new":[5e7],"old_median":1e7,"new_median":5e7,"gain":4.0,"chance":0.05}"#;
        let report = format!(r#"{{"applied":[{change}],"verified":{{"kept":true,"judgement":{judged}}}}}"#);
        write("doctor.json", report.as_bytes());
        let sections = all(&results).unwrap();
        let text = |name: &str| &sections.iter().find(|section| section.name == name).unwrap().text;
        assert!(
            text("case-buffers").contains("| auto | 10.0 ± 0.2 | 50.0 ± 1.2 | 5.0 |"),
            "{}",
            text("case-buffers")
        );
        assert!(
            text("case-doctor")
                .contains("5.0 times as fast; chance alone does as well in 5 % of cases; kept")
        );
        assert!(text("case-streams").contains("it has more than `1` by 300"), "{}", text("case-streams"));
        assert!(text("case-block").contains("| 64K | 10.0 ± 0.2 | 10.0 ± 0.2 |"));
        assert!(text("case-disks").contains("| 50.0 ± 1.2 | 50 % |") && text("case-disks").contains("`nfs`"));
        assert_eq!(text("case-servers").matches("none found").count(), 4);
        let document = include_str!("../../../../../docs/case-study.md");
        for section in &sections {
            assert!(section.replace_in(document).is_ok(), "{}", section.name);
            for (file, chart) in &section.charts {
                assert!(chart.to_svg().is_ok() && section.text.contains(file), "{file}");
            }
        }
    }
}
