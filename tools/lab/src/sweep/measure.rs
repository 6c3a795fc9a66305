//! The figures of a run that a sweep stores. They are computed from the result of the run and its
//! time series, and are small enough to be kept for thousands of trials.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::results::{
    CommandResult, ConnectionResult, ConnectionSeries, DirectionResult, End, HostSeries, LinkResult,
    RunResult, TcpSample,
};

/// The figures of one trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Duration of the program in seconds.
    pub seconds: f64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Payload in bits per second, from the start of the program to its end, including connecting
    /// and slow start.
    pub goodput: f64,
    /// Whether the program was stopped before it had transferred everything; `bytes` is then the
    /// number that had arrived.
    pub cut: bool,
    /// CPU seconds of the program and its child processes, without those of the server.
    pub cpu: f64,
    /// Maximum number of TCP connections at the same time.
    pub streams: u32,
    /// Share of packets that were dropped by the queue or lost at random, in the direction of the
    /// data.
    pub loss: f64,
    /// Longest queue in the direction of the data, in packets.
    pub queue_max: u64,
    /// Mean round trip time in seconds that the senders' kernels measured while data was sent.
    pub rtt: f64,
    /// Maximum segment size of the senders, in bytes of payload.
    pub segment: u32,
    /// Number of segments sent, including retransmissions.
    #[serde(default)]
    pub segments: u64,
    /// Number of retransmitted segments.
    #[serde(default)]
    pub retransmitted: u64,
    /// Share of the time in which the last twentieth of the bytes arrived; absent if the program
    /// was stopped before its end.
    #[serde(default)]
    pub tail: Option<f64>,
    /// Number of TCP connections when that last twentieth began. As in `streams`, control
    /// connections are included.
    #[serde(default)]
    pub streams_end: u32,
    /// Payload rate in bits per second of each cross traffic, by name.
    #[serde(default)]
    pub traffic: BTreeMap<String, f64>,
    /// Payload rates in bits per second over spans of [`SPAN`] seconds, from the start of the
    /// program.
    #[serde(default)]
    pub rates: Vec<f64>,
    /// Share of the machine's CPU time that was used during the run, 0 to 1, without programs of a
    /// lower priority (`nice`).
    #[serde(default)]
    pub busy: f64,
    /// The machine's load average at the end.
    #[serde(default)]
    pub load: f64,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
}

/// Length in seconds of each value of [`Measurement::rates`].
pub const SPAN: f64 = 5.0;

impl Measurement {
    /// The figures of the only command of a run, or of all its commands together. The `bytes` and
    /// the time of commands in the background are not included.
    pub fn of(result: &RunResult) -> Self {
        let commands = &result.commands;
        // A command in the background transfers data for as long as the others run, so its bytes
        // and its time are not part of the result.
        let timed = || commands.iter().filter(|command| !command.background);
        let ran = || timed().filter(|command| command.ran());
        let begin = ran().map(|command| command.start).fold(f64::INFINITY, f64::min);
        let end = ran().map(|command| command.start + command.seconds).fold(0.0, f64::max);
        let seconds = if begin.is_finite() { (end - begin).max(0.0) } else { 0.0 };
        let whole =
            |command: &CommandResult| matches!(command.end, End::Exit(0)).then_some(command.bytes).flatten();
        let told: Option<u64> = timed().map(whole).sum();
        let told = told.filter(|_| timed().next().is_some());
        let bytes = told.unwrap_or_else(|| received(result));
        let data = data_directions(result);
        let last = last_twentieth(result, begin, end);
        Self {
            seconds,
            bytes,
            goodput: if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 },
            cut: told.is_none(),
            cpu: commands.iter().map(|command| command.cpu_user + command.cpu_system).sum(),
            streams: commands.iter().map(|command| command.streams_max).max().unwrap_or(0),
            loss: share(
                data.iter().map(|data| data.dropped + data.lost).sum(),
                data.iter().map(|data| data.packets_in).max().unwrap_or(0),
            ),
            queue_max: data.iter().map(|data| data.queue_max).max().unwrap_or(0),
            rtt: round_trip(result),
            segment: own(result).filter(|c| c.last.sent > 0).map(|c| c.last.mss).max().unwrap_or(0),
            segments: own(result).map(segments).sum(),
            retransmitted: own(result).map(|connection| u64::from(connection.last.retransmitted)).sum(),
            tail: last
                .filter(|_| told.is_some() && seconds > 0.0)
                .map(|(at, _)| (end - at).max(0.0) / seconds),
            streams_end: last.map_or(0, |(_, streams)| streams),
            traffic: result.traffic.iter().map(|traffic| (traffic.name.clone(), traffic.rate)).collect(),
            rates: rates(result, if begin.is_finite() { begin } else { 0.0 }),
            busy: result.machine.busy,
            load: result.machine.load,
            warnings: result.warnings.clone(),
        }
    }
}

/// The host that received the most payload.
fn receiver(result: &RunResult) -> Option<&HostSeries> {
    let most = |host: &&HostSeries| host.received.iter().sum::<f64>();
    result.series.hosts.iter().max_by(|a, b| most(a).total_cmp(&most(b)))
}

/// Number of payload segments that a connection sent. The last segment of each write may have been
/// shorter, so this is an estimate.
fn segments(connection: &ConnectionResult) -> u64 {
    match connection.last.mss {
        0 => 0,
        size => connection.last.sent.div_ceil(u64::from(size)),
    }
}

/// The time at which the last twentieth of the payload that arrived between `begin` and `end` began
/// to arrive, and the number of connections of the receiver at that time.
fn last_twentieth(result: &RunResult, begin: f64, end: f64) -> Option<(f64, u32)> {
    const WITHOUT: f64 = 0.95;
    let host = receiver(result)?;
    let within = |time: f64| time > begin && time <= end;
    let mut before = 0.0;
    let mut steps = Vec::new();
    for (at, (&time, &rate)) in result.series.times.iter().zip(&host.received).enumerate() {
        let step = time - std::mem::replace(&mut before, time);
        // A step counts if the program ended within it.
        if within(time) || within(time - step) {
            steps.push((at, time - step, step, rate * step));
        }
    }
    let mut left = WITHOUT * steps.iter().map(|step| step.3).sum::<f64>();
    for (at, since, step, bits) in steps {
        if bits > 0.0 && bits >= left {
            // The sample at the end of the step may be from after the end of the program.
            let streams = at.checked_sub(1).and_then(|before| host.streams.get(before));
            return Some((since + step * left / bits, streams.copied().unwrap_or(0)));
        }
        left -= bits;
    }
    None
}

/// The payload rates of the receiver; only complete spans are included.
fn rates(result: &RunResult, begin: f64) -> Vec<f64> {
    let times = &result.series.times;
    let Some(host) = receiver(result) else { return Vec::new() };
    // Bits and seconds of each span. A value belongs to the step that ends at its time.
    let mut spans: Vec<(f64, f64)> = Vec::new();
    let mut before = 0.0;
    for (&time, &rate) in times.iter().zip(&host.received) {
        let step = time - std::mem::replace(&mut before, time);
        if time <= begin || step <= 0.0 {
            continue;
        }
        // The cast saturates.
        let at = ((time - begin) / SPAN) as usize;
        if at >= MOST_SPANS {
            break;
        }
        spans.resize(spans.len().max(at + 1), (0.0, 0.0));
        spans[at].0 += rate * step;
        spans[at].1 += step;
    }
    spans.into_iter().filter(|span| span.1 > 0.8 * SPAN).map(|span| span.0 / span.1).collect()
}

/// The number of spans in one hour.
const MOST_SPANS: usize = 720;

/// Payload received, without cross traffic, by the host that received the most: little but commands
/// went in the other direction.
fn received(result: &RunResult) -> u64 {
    let of =
        |host: &str| own(result).filter(|c| c.host == host).map(|connection| connection.last.received).sum();
    result.hosts.iter().map(|host| of(&host.name)).max().unwrap_or(0)
}

/// The busier direction of each link.
fn data_directions(result: &RunResult) -> Vec<&DirectionResult> {
    let larger = |link: &'_ LinkResult| link.forward.bytes > link.backward.bytes;
    result.links.iter().map(|link| if larger(link) { &link.forward } else { &link.backward }).collect()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Connections that are not cross traffic.
fn own(result: &RunResult) -> impl Iterator<Item = &ConnectionResult> {
    result.connections.iter().filter(|connection| connection.traffic.is_none())
}

/// The mean of the round trip times in the series, weighted by the bytes sent between samples.
/// Without series, the mean of the final values, weighted by the bytes sent.
fn round_trip(result: &RunResult) -> f64 {
    let mut sum = 0.0;
    let mut weight = 0.0;
    let mut add = |sample: &TcpSample, sent: u64| {
        sum += sample.rtt * sent as f64;
        weight += sent as f64;
    };
    let of_own = |series: &&ConnectionSeries| {
        result.connections.get(series.connection).is_some_and(|connection| connection.traffic.is_none())
    };
    for series in result.series.connections.iter().filter(of_own) {
        for pair in series.samples.windows(2) {
            add(&pair[1], pair[1].sent.saturating_sub(pair[0].sent));
        }
    }
    if weight == 0.0 {
        own(result).for_each(|connection| {
            sum += connection.last.rtt * connection.last.sent as f64;
            weight += connection.last.sent as f64;
        });
    }
    if weight > 0.0 { sum / weight } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::results::HostResult;

    fn result(end: End) -> RunResult {
        let connection = |host: &str, received, sent, traffic: Option<&str>| ConnectionResult {
            host: host.into(),
            traffic: traffic.map(Into::into),
            last: TcpSample {
                received,
                sent,
                rtt: if sent > 1000 { 0.1 } else { 0.05 },
                ..TcpSample::default()
            },
            ..ConnectionResult::default()
        };
        let host = |name: &str| HostResult { name: name.into(), ..HostResult::default() };
        RunResult {
            hosts: vec![host("left"), host("right")],
            commands: vec![CommandResult {
                run: vec!["client".into()],
                start: 1.0,
                seconds: 10.0,
                bytes: Some(10_000_000),
                end,
                streams_max: 3,
                ..CommandResult::default()
            }],
            links: vec![LinkResult {
                backward: DirectionResult {
                    packets_in: 1000,
                    bytes: 1_400_000,
                    dropped: 8,
                    lost: 2,
                    ..Default::default()
                },
                ..LinkResult::default()
            }],
            connections: vec![
                connection("left", 3_000_000, 0, None),
                connection("left", 2_000_000, 0, None),
                connection("right", 500, 5_000_000, None),
                connection("left", 9_000_000, 0, Some("neighbours")),
            ],
            ..RunResult::default()
        }
    }

    #[test]
    fn measurement_of_a_complete_transfer_uses_its_bytes() {
        let measured = Measurement::of(&result(End::Exit(0)));
        assert_eq!((measured.bytes, measured.cut), (10_000_000, false));
        assert!((measured.goodput - 8e6).abs() < 1.0);
        assert!((measured.loss - 0.01).abs() < 1e-9);
        assert!((measured.rtt - 0.1).abs() < 1e-6);
        assert_eq!(measured.streams, 3);
    }

    #[test]
    fn measurement_with_background_commands_leaves_them_out() {
        let mut result = result(End::Exit(0));
        let never = CommandResult { background: true, bytes: Some(7), ..CommandResult::default() };
        let long = CommandResult { run: vec!["x".into()], seconds: 90.0, ..never.clone() };
        result.commands.extend([never, long]);
        let measured = Measurement::of(&result);
        assert_eq!((measured.bytes, measured.cut, measured.seconds), (10_000_000, false, 10.0));
        assert!((measured.goodput - 8e6).abs() < 1.0);
        // This command should have run but was never started, so the run was cut.
        result.commands.push(CommandResult { bytes: Some(7), ..CommandResult::default() });
        let measured = Measurement::of(&result);
        assert_eq!((measured.bytes, measured.cut, measured.seconds), (5_000_000, true, 10.0));
    }

    #[test]
    fn measurement_of_a_stopped_transfer_uses_received_bytes() {
        let measured = Measurement::of(&result(End::Stopped));
        assert_eq!((measured.bytes, measured.cut), (5_000_000, true));
        assert!((measured.goodput - 4e6).abs() < 1.0);
    }

    #[test]
    fn rates_with_an_incomplete_span_leave_it_out() {
        let mut result = result(End::Stopped);
        result.series.times = (1..=120).map(|tenths| f64::from(tenths) / 10.0).collect();
        let host = |name: &str, received: &dyn Fn(u32) -> f64| HostSeries {
            host: name.into(),
            received: (1..=120).map(received).collect(),
            ..HostSeries::default()
        };
        result.series.hosts =
            vec![host("right", &|_| 1.0), host("left", &|tenths| if tenths <= 60 { 2e6 } else { 8e6 })];
        let rates = Measurement::of(&result).rates;
        assert_eq!(rates.len(), 2, "{rates:?}");
        assert!((rates[0] - 2e6).abs() < 1.0 && (rates[1] - 8e6).abs() < 2e5, "{rates:?}");
    }

    #[test]
    fn tail_of_a_slow_end_is_the_last_twentieth() {
        let mut result = result(End::Exit(0));
        result.series.times = (1..=120).map(|tenths| f64::from(tenths) / 10.0).collect();
        // Nine seconds at full rate, then one second with a hundredth of the bytes, over fewer
        // connections.
        let rate = |tenths: u32| match tenths {
            11..=100 => 11e6,
            101..=110 => 1e6,
            _ => 0.0,
        };
        result.series.hosts = vec![HostSeries {
            host: "left".into(),
            received: (1..=120).map(rate).collect(),
            streams: (1..=120).map(|tenths| if tenths <= 100 { 9 } else { 2 }).collect(),
            ..HostSeries::default()
        }];
        let measured = Measurement::of(&result);
        let wanted = (1.0 + 4.0 / 11.0) / 10.0;
        assert!((measured.tail.unwrap() - wanted).abs() < 1e-6, "{:?}", measured.tail);
        assert_eq!(measured.streams_end, 9);
        result.commands[0].end = End::Stopped;
        assert_eq!(Measurement::of(&result).tail, None);
    }

    #[test]
    fn segments_of_a_transfer_are_those_of_the_senders() {
        let mut result = result(End::Exit(0));
        let sender = &mut result.connections[2].last;
        (sender.mss, sender.retransmitted) = (1000, 50);
        result.connections[3].last.retransmitted = 7;
        let measured = Measurement::of(&result);
        assert_eq!((measured.segments, measured.retransmitted), (5000, 50));
    }

    #[test]
    fn measurement_of_an_empty_result_is_zero() {
        let measured = Measurement::of(&RunResult::default());
        assert_eq!((measured.bytes, measured.goodput, measured.seconds), (0, 0.0, 0.0));
    }
}
