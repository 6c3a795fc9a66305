//! Goodput and loss of N connections: GCT and ropewalk with the kernel's TCP Reno, compared with
//! the model of Ito, Ohsaki and Imase (their Figs 2, 7 and 9) and with packet simulation.

use std::fmt::Write;
use std::time::Duration;

use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Unit};
use ropewalk_tuning::model::{self, Path, Steady};

use super::Section;
use super::ns2::simulations;
use crate::library::{Call, Workload, open};
use crate::report::{Table, digits};
use crate::scenario::Value;
use crate::sweep::{Design, Group, Record, SweepError, Trial, Vary, groups, trials};

/// Two-way delays of the paper's figures, in milliseconds.
const ROUND_TRIPS: [u32; 2] = [100, 20];
const PROGRAMS: [&str; 2] = ["globus-url-copy", "ropewalk"];
/// Rate of the link in bits per second.
const RATE: f64 = 100e6;
/// Bytes of a window; `PACKET` has the bytes of a packet.
const WINDOW: f64 = 65536.0;
const PACKET: f64 = 1500.0;

fn scenario_name(round_trip_ms: u32) -> String {
    format!("paper-{round_trip_ms}ms")
}

/// The sweep: each number of streams with each program on both paths. A trial lasts `seconds`.
///
/// # Errors
/// A built-in scenario or program is invalid, which tests exclude.
pub fn paper_trials(streams: &[u32], seconds: u32, repetitions: u32) -> Result<Vec<Trial>, SweepError> {
    let programs = PROGRAMS.iter().map(|name| Call::parse(name)).collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::new();
    for round_trip in ROUND_TRIPS {
        let name = scenario_name(round_trip);
        let document = open(&name)?;
        for count in streams {
            // More bytes than can arrive, so that the time limit ends the trial, but not many more,
            // because the file has to be written first.
            let windows = f64::from(*count) * WINDOW * 8.0 / (f64::from(round_trip) / 1e3);
            let bytes = windows.min(RATE) * 1.1 / 8.0 * f64::from(seconds);
            let workload = Workload {
                size: Some(bytes as u64),
                limit: Some(Duration::from_secs(seconds.into())),
                ..Workload::default()
            };
            let vary = vec![Vary { name: "streams".into(), values: vec![Value::Integer((*count).into())] }];
            let design = Design { programs: programs.clone(), workload, vary, repetitions };
            all.extend(trials(&name, &document, &design)?);
        }
    }
    // Ordered by rounds, not by points.
    all.sort_by_key(|trial| trial.id.repetition);
    Ok(all)
}

/// The section of `docs/lab.md`. Plots are named `plots/paper-...`.
pub fn paper_section(records: &[Record]) -> Section {
    let all = groups(records);
    let mut text = String::new();
    let mut charts = Vec::new();
    for round_trip in ROUND_TRIPS {
        let name = scenario_name(round_trip);
        let own: Vec<&Group> = all.iter().filter(|group| group.scenario == name).collect();
        if own.iter().all(|group| group.goodput.count == 0) {
            continue;
        }
        let file = format!("{name}.svg");
        let _ = writeln!(
            text,
            "### {round_trip} ms\n\n![Goodput and loss over streams, {round_trip} ms](plots/{file})\n"
        );
        let _ = writeln!(text, "{}", table(&own, round_trip).markdown());
        for program in PROGRAMS {
            text += &peak(&own, program, round_trip);
        }
        text.push('\n');
        charts.push((file, chart(&own, round_trip)));
    }
    Section { name: "paper", text, charts }
}

fn streams_of(group: &Group) -> Option<u32> {
    group.value("streams")?.parse().ok()
}

/// Packets per millisecond, where each full segment of payload is one packet: the goodput of the
/// paper.
fn packets(group: &Group, bits_per_second: f64) -> f64 {
    bits_per_second / 8.0 / f64::from(group.segment.max(1)) / 1e3
}

fn modelled(round_trip_ms: f64, streams: u32) -> Option<[Steady; 2]> {
    let path = Path::new(RATE / 8.0 / PACKET / 1e3, round_trip_ms, WINDOW / PACKET).ok()?;
    Some([model::goodput(&path, streams.into()).ok()?, model::physical(&path, streams.into()).ok()?])
}

fn table(own: &[&Group], round_trip: u32) -> Table {
    let mut table = Table::new([
        "N",
        "GCT",
        "ropewalk",
        "Eq (12)",
        "full link",
        "ns-2",
        "RTT ms",
        "loss GCT",
        "loss ropewalk",
        "Eq (7)",
        "ns-2 loss",
    ]);
    let mut counts: Vec<u32> = own.iter().filter_map(|group| streams_of(group)).collect();
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        let of = |program: &str| {
            let mut measured = own.iter().copied().filter(|group| group.goodput.count > 0);
            measured.find(|group| group.program == program && streams_of(group) == Some(count))
        };
        let found = PROGRAMS.map(of);
        let goodput = |group: Option<&Group>| group.map(|g| format!("{:.3}", packets(g, g.goodput.median)));
        let loss = |group: Option<&Group>| group.map(|g| format!("{:.4}", g.loss.median));
        // As in the paper, the measured round trip time is the input of the model.
        let rtts: Vec<f64> =
            found.iter().flatten().map(|group| group.rtt.median * 1e3).filter(|rtt| *rtt > 0.0).collect();
        let rtt = if rtts.is_empty() {
            f64::from(round_trip)
        } else {
            rtts.iter().sum::<f64>() / rtts.len() as f64
        };
        let models = modelled(rtt, count);
        let simulated = simulations(round_trip).iter().find(|simulated| simulated.streams == count);
        let cells = [
            Some(count.to_string()),
            goodput(found[0]),
            goodput(found[1]),
            models.map(|[paper, _]| format!("{:.3}", paper.goodput)),
            models.map(|[_, physical]| format!("{:.3}", physical.goodput)),
            simulated.map(|simulated| format!("{:.3}", simulated.goodput)),
            Some(format!("{rtt:.1}")),
            loss(found[0]),
            loss(found[1]),
            models.map(|[paper, _]| format!("{:.4}", paper.loss)),
            simulated.map(|simulated| format!("{:.4}", simulated.loss)),
        ];
        table.row(cells.map(Option::unwrap_or_default));
    }
    table
}

/// A sentence that says where the program is fastest, and how far the model differs from it.
fn peak(own: &[&Group], program: &str, round_trip: u32) -> String {
    let measured = own.iter().filter(|group| group.program == program && group.goodput.count > 0);
    let points: Vec<(u32, f64, f64)> = measured
        .filter_map(|group| {
            Some((streams_of(group)?, packets(group, group.goodput.median), group.rtt.median * 1e3))
        })
        .collect();
    let Some((count, best, _)) = points.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return String::new();
    };
    let enough =
        points.iter().filter(|point| point.1 >= best * 0.99).map(|point| point.0).min().unwrap_or(*count);
    let off = |(count, goodput, rtt): &(u32, f64, f64)| {
        let rtt = if *rtt > 0.0 { *rtt } else { f64::from(round_trip) };
        Some((modelled(rtt, *count)?[0].goodput / goodput - 1.0, *count))
    };
    let worst = points
        .iter()
        .filter_map(off)
        .filter(|(error, _)| error.is_finite())
        .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    let mut text = format!(
        "- `{program}`: most at N = {count}, {} packets/ms; N = {enough} is within 1 % of that.",
        digits(*best)
    );
    if let Some((error, at)) = worst {
        let _ = write!(text, " Eq (12) is off by {:+.1} % at most, at N = {at}.", error * 100.0);
    }
    text + "\n"
}

fn chart(own: &[&Group], round_trip: u32) -> Chart {
    let mbit = |packets_per_ms: f64| packets_per_ms * 1e3 * PACKET * 8.0;
    let curve = |pick: fn([Steady; 2]) -> f64| {
        (1..=50u32)
            .filter_map(move |n| Some((f64::from(n), pick(modelled(round_trip.into(), n)?))))
            .collect::<Vec<_>>()
    };
    let of = |pick: fn(&Group) -> Point| {
        PROGRAMS.map(|program| {
            let measured = own.iter().filter(|group| group.program == program && group.goodput.count > 0);
            let mut points: Vec<Point> = measured
                .filter_map(|group| Some(Point { x: streams_of(group)?.into(), ..pick(group) }))
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            (program, points)
        })
    };
    let goodput = |group: &Group| {
        let scaled = |bits: f64| packets(group, bits) * 1e3 * PACKET * 8.0;
        let spread = group.goodput;
        Point { x: 0.0, y: scaled(spread.median), low: scaled(spread.min), high: scaled(spread.max) }
    };
    let loss =
        |group: &Group| Point { x: 0.0, y: group.loss.median, low: group.loss.min, high: group.loss.max };
    let simulated = simulations(round_trip);
    let mut upper = Panel::new(Axis::linear("rate of packets delivered", Unit::BitsPerSecond))
        .series(
            Series::line(
                "model, Eq (12)",
                curve(|[paper, _]| paper.goodput).into_iter().map(|(n, g)| (n, mbit(g))),
            )
            .colour(6),
        )
        .series(
            Series::line(
                "model, full link",
                curve(|[_, physical]| physical.goodput).into_iter().map(|(n, g)| (n, mbit(g))),
            )
            .colour(6)
            .dashed(),
        );
    let mut lower = Panel::new(Axis::linear("loss", Unit::Share))
        .series(Series::line("", curve(|[paper, _]| paper.loss)).colour(6))
        .series(Series::line("", curve(|[_, physical]| physical.loss)).colour(6).dashed());
    upper = upper.series(
        Series::points("ns-2", simulated.iter().map(|s| (f64::from(s.streams), mbit(s.goodput)))).colour(2),
    );
    lower =
        lower.series(Series::points("", simulated.iter().map(|s| (f64::from(s.streams), s.loss))).colour(2));
    for (number, (program, points)) in of(goodput).into_iter().enumerate() {
        upper = upper.series(Series::points_and_line(program, points).colour(number));
    }
    for (number, (_, points)) in of(loss).into_iter().enumerate() {
        lower = lower.series(Series::points_and_line("", points).colour(number));
    }
    Chart::new(format!("N connections, 100 Mbit/s, {round_trip} ms, W = 64 KiB"), Axis::linear("N", Unit::Plain))
        .note("TCP Reno, queue of 50 packets; medians, from least to greatest; the model with the path's delay alone")
        .panel_height(250)
        .panel(upper)
        .panel(lower)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::{Measurement, Outcome};

    #[test]
    fn paper_section_with_a_few_points_has_tables_and_charts() {
        let all = paper_trials(&[1, 20, 50], 60, 2).unwrap();
        assert_eq!(all.len(), 2 * 2 * 3 * 2);
        assert!(all[..12].iter().all(|trial| trial.id.repetition == 0));
        let record = |trial: &Trial| {
            let n: f64 = trial.id.values[0].1.parse().unwrap();
            let goodput = (n * 5.0e6).min(91e6);
            let measurement =
                Measurement { goodput, loss: 0.001, rtt: 0.1, segment: 1448, ..Measurement::default() };
            Record::new(trial, Outcome::Measured(measurement))
        };
        let records: Vec<Record> = all.iter().map(record).collect();
        let section = paper_section(&records);
        assert_eq!(section.charts.len(), 2);
        assert!(section.text.contains("| 20 | 7.856 | 7.856 |"), "{}", section.text);
        assert!(section.text.contains("`ropewalk`: most at N = 20, 7.86 packets/ms"), "{}", section.text);
        for (_, chart) in &section.charts {
            assert!(!chart.to_svg().unwrap().contains("no data"));
        }
        assert!(paper_section(&[]).text.is_empty());
    }
}
