//! The chart of a run over time, with one panel for each of rate, streams, round trip time, losses,
//! queues and disks. It is drawn from the time series of the result alone; the scenario adds marks
//! for its events.

use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};

use crate::results::{DirectionSeries, RunResult};
use crate::scenario::Scenario;
use crate::sweep::Measurement;

/// Rate, streams, round trip time, losses and queues of a run in panels, with the events of its
/// scenario.
pub fn run_chart(result: &RunResult, scenario: Option<&Scenario>) -> Chart {
    let panels = [
        rates(result),
        Some(streams(result)),
        Some(round_trips(result)),
        Some(losses(result)),
        Some(queues(result)),
        disks(result),
    ];
    let chart = Chart::new(result.scenario.clone(), Axis::time()).note(note(result));
    let chart = panels.into_iter().flatten().fold(chart, Chart::panel);
    events(result, scenario).into_iter().fold(chart, |chart, (at, label)| chart.event(at, label))
}

fn note(result: &RunResult) -> String {
    let ran: Vec<_> = result.commands.iter().filter(|command| command.ran()).collect();
    if let [command] = ran.as_slice() {
        let measured = Measurement::of(result);
        return format!("{}: {}", command.name, super::rate_text(measured.goodput));
    }
    let told = ran.iter().map(|command| match command.goodput {
        Some(goodput) => format!("{}: {}", command.name, super::rate_text(goodput)),
        None => format!("{}: {:.1} s", command.name, command.seconds),
    });
    told.take(4).collect::<Vec<_>>().join(", ")
}

fn pairs<'a, T: Copy + 'a>(
    times: &'a [f64],
    values: &'a [T],
    number: impl Fn(T) -> f64 + 'a,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    times.iter().copied().zip(values.iter().map(move |value| number(*value)))
}

/// Links with their directions, named `left to right`. Directions with less than 5 % of the bytes
/// of the busiest one are left out.
fn directions(result: &RunResult) -> Vec<(String, &DirectionSeries)> {
    let all = result.links.iter().zip(&result.series.links).flat_map(|(link, series)| {
        let [first, second] = &link.between;
        let there = (format!("{first} to {second}"), &series.forward, link.forward.bytes);
        let back = (format!("{second} to {first}"), &series.backward, link.backward.bytes);
        [there, back]
    });
    let most =
        result.links.iter().flat_map(|link| [link.forward.bytes, link.backward.bytes]).max().unwrap_or(0);
    all.filter(|(_, _, bytes)| *bytes > most / 20).map(|(name, series, _)| (name, series)).collect()
}

fn rates(result: &RunResult) -> Option<Panel> {
    let mut panel = Panel::new(Axis::linear("rate", Unit::BitsPerSecond));
    for (name, series) in directions(result) {
        panel = panel
            .series(Series::line(format!("link, {name}"), pairs(&series.times, &series.rate, |rate| rate)));
    }
    let times = &result.series.times;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let largest = result.series.hosts.iter().map(|host| most(&host.received)).fold(0.0, f64::max);
    for host in &result.series.hosts {
        if most(&host.received) > largest / 20.0 {
            let points = pairs(times, &host.received, |rate| rate);
            panel = panel.series(Series::line(format!("payload at {}", host.host), points));
        }
        if most(&host.traffic_received) > 0.0 {
            let points = pairs(times, &host.traffic_received, |rate| rate);
            panel = panel.series(Series::line(format!("cross traffic at {}", host.host), points));
        }
    }
    Some(panel)
}

fn streams(result: &RunResult) -> Panel {
    // Both ends of a connection are hosts of the lab; only the host of the commands is counted.
    let client = result.commands.first().map(|command| command.host.as_str());
    let hosts: Vec<_> =
        result.series.hosts.iter().filter(|host| client.is_none_or(|name| name == host.host)).collect();
    hosts.into_iter().fold(Panel::new(Axis::linear("streams", Unit::Plain)), |panel, host| {
        panel.series(Series::steps("", pairs(&result.series.times, &host.streams, f64::from)))
    })
}

/// The median and the largest round trip time of the connections that send.
fn round_trips(result: &RunResult) -> Panel {
    let mut at: Vec<(f64, f64)> = Vec::new();
    for series in &result.series.connections {
        let Some(connection) = result.connections.get(series.connection) else { continue };
        if connection.traffic.is_some() || connection.last.sent <= connection.last.received {
            continue;
        }
        at.extend(series.times.iter().zip(&series.samples).map(|(time, sample)| (*time, sample.rtt)));
    }
    at.retain(|(time, rtt)| time.is_finite() && *rtt > 0.0);
    at.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Samples that were taken together differ by less than a millisecond.
    let moments: Vec<&[(f64, f64)]> = at.chunk_by(|a, b| b.0 - a.0 < 1e-3).collect();
    let several = moments.iter().any(|moment| moment.len() > 1);
    let row = |pick: fn(&[f64]) -> f64| {
        let value = move |moment: &&[(f64, f64)]| {
            let mut values: Vec<f64> = moment.iter().map(|(_, rtt)| *rtt).collect();
            values.sort_by(f64::total_cmp);
            (moment[0].0, pick(&values))
        };
        moments.iter().map(value).collect::<Vec<_>>()
    };
    let panel = Panel::new(Axis::linear("RTT", Unit::Seconds));
    let panel = panel.series(Series::line(
        if several { "median of the streams" } else { "" },
        row(|values| values[values.len() / 2]),
    ));
    if several {
        panel.series(Series::line("slowest stream", row(|values| values[values.len() - 1])))
    } else {
        panel
    }
}

fn losses(result: &RunResult) -> Panel {
    let mut panel = Panel::new(Axis::linear("lost", Unit::Count("packets/s")));
    for (name, series) in directions(result) {
        let step = |index: usize| {
            let before = if index == 0 { 0.0 } else { series.times[index - 1] };
            (series.times[index] - before).max(1e-3)
        };
        for (what, counts) in
            [("dropped", &series.dropped), ("lost at random", &series.lost), ("marked", &series.marked)]
        {
            if counts.iter().any(|count| *count > 0) {
                let length = counts.len().min(series.times.len());
                let points =
                    (0..length).map(|index| (series.times[index], counts[index] as f64 / step(index)));
                panel = panel.series(Series::line(format!("{what}, {name}"), points.collect::<Vec<_>>()));
            }
        }
    }
    // A line at zero, so that a run without losses has a line too.
    let nothing = result.series.times.iter().map(|time| (*time, 0.0)).collect::<Vec<_>>();
    panel.series(Series::line("", nothing).colour(6))
}

fn queues(result: &RunResult) -> Panel {
    let panel = Panel::new(Axis::linear("queue", Unit::Count("packets")));
    directions(result).into_iter().fold(panel, |panel, (name, series)| {
        panel.series(Series::line(name, pairs(&series.times, &series.queue_max, |queue| queue as f64)))
    })
}

fn disks(result: &RunResult) -> Option<Panel> {
    let mut panel = Panel::new(Axis::linear("disk", Unit::BytesPerSecond));
    let mut any = false;
    for host in &result.series.hosts {
        for (what, rates) in [("read", &host.disk_read), ("written", &host.disk_written)] {
            if rates.iter().any(|rate| *rate > 0.0) {
                any = true;
                let points = pairs(&result.series.times, rates, |bits| bits / 8.0);
                panel = panel.series(Series::line(format!("{what} at {}", host.host), points));
            }
        }
    }
    any.then_some(panel)
}

fn events(result: &RunResult, scenario: Option<&Scenario>) -> Vec<(f64, String)> {
    let mut events = Vec::new();
    if result.commands.len() > 1 {
        let ran = result.commands.iter().filter(|command| command.ran());
        events.extend(ran.map(|command| (command.start, command.name.clone())));
    }
    if let Some(scenario) = scenario {
        for link in &scenario.links {
            events.extend(
                link.changes.iter().map(|change| (change.at.as_secs_f64(), "path changes".to_owned())),
            );
        }
        for traffic in scenario.traffic.iter().filter(|traffic| traffic.on.is_none()) {
            if traffic.start.0.as_secs_f64() > 0.0 {
                events.push((traffic.start.0.as_secs_f64(), format!("{} start", traffic.name)));
            }
            events.extend(traffic.stop.map(|stop| (stop.0.as_secs_f64(), format!("{} stop", traffic.name))));
        }
    }
    // Events after the end of the run would extend the axis.
    events.retain(|(at, _)| *at <= result.seconds);
    events
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::library::open;
    use crate::results;
    use crate::results::{ConnectionResult, ConnectionSeries, HostSeries, LinkResult, LinkSeries, TcpSample};

    #[test]
    fn run_chart_of_an_empty_result_has_no_data() {
        let svg = run_chart(&RunResult::default(), None).to_svg().unwrap();
        assert!(svg.contains("no data"));
    }

    #[test]
    fn run_chart_of_a_full_result_has_all_panels() {
        let times: Vec<f64> = (1..=100).map(|i| f64::from(i) * 0.1).collect();
        let series = |value: u64| DirectionSeries {
            times: times.clone(),
            rate: vec![value as f64 * 1e6; 100],
            queue_max: vec![value; 100],
            dropped: vec![value / 50; 100],
            lost: vec![0; 100],
            marked: vec![0; 100],
            ..DirectionSeries::default()
        };
        let connection = |sent| ConnectionResult {
            last: TcpSample { sent, ..TcpSample::default() },
            ..ConnectionResult::default()
        };
        let samples = |connection, rtt| ConnectionSeries {
            connection,
            times: times.clone(),
            samples: vec![TcpSample { rtt, ..TcpSample::default() }; 100],
        };
        let host = HostSeries {
            host: "left".into(),
            streams: vec![4; 100],
            received: vec![9e7; 100],
            disk_written: vec![9e7; 100],
            ..HostSeries::default()
        };
        let result = RunResult {
            scenario: "changing".into(),
            seconds: 15.0,
            links: vec![LinkResult {
                between: ["left".into(), "right".into()],
                backward: results::DirectionResult { bytes: 1000, ..Default::default() },
                ..LinkResult::default()
            }],
            connections: vec![connection(5), connection(6), connection(0)],
            series: results::Series {
                times: times.clone(),
                hosts: vec![host],
                links: vec![LinkSeries { forward: series(0), backward: series(100) }],
                connections: vec![samples(0, 0.1), samples(1, 0.2), samples(2, 9.0)],
                ..results::Series::default()
            },
            ..RunResult::default()
        };
        let scenario = open("changing-path").unwrap().scenario().unwrap();
        let svg = run_chart(&result, Some(&scenario)).to_svg().unwrap();
        for text in [
            "link, right to left",
            "payload at left",
            "slowest stream",
            "dropped, right to left",
            "written at left",
            "path changes",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("no data"));
        assert_eq!(svg.matches("path changes").count(), 1, "the change at 20 s was after the end");
    }
}
