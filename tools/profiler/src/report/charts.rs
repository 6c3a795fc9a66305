//! The plots of a report. Plots over time have the same horizontal axis: the transfer's time by the
//! clock of the host that wrote the profile.

mod hosts;
mod sweeps;

use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Shape, Unit};

use super::clean;
use super::series::{self, Values};
use super::summary::{host_name, role};
use crate::profile::{ConnectionSample, HostProfile, Profile, Role};
use crate::verdict::{Evidence, moving};

pub(super) use sweeps::{compared, figures as sweeps};

/// A plot and its caption. Both become part of the page, so both are free of markup from the
/// profile.
pub(super) struct Figure {
    /// The element's `id` in the page.
    pub(super) name: &'static str,
    pub(super) svg: String,
    pub(super) caption: &'static str,
}

/// Width of a plot. It is small enough to be readable on a phone, where the plot is scaled to about
/// three quarters.
const WIDTH: u32 = 500;
/// Most series that are drawn as separate lines; more become a band.
const LINES: usize = 6;

/// The data from which the plots are made.
pub(super) struct Figures<'a> {
    profile: &'a Profile,
    evidence: &'a Evidence,
    span: (f64, f64),
}

type Row = (String, Values);

impl<'a> Figures<'a> {
    pub(super) fn new(profile: &'a Profile, evidence: &'a Evidence) -> Self {
        Self { profile, evidence, span: series::span(profile) }
    }

    /// The main plots. Values that were not measured have none.
    pub(super) fn main(&self) -> Vec<Figure> {
        [
            self.rate(),
            self.streams(),
            self.rtt(),
            self.retransmissions(),
            self.windows(),
            self.processors(),
            self.disks(),
            self.packets(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Plots for readers who want to know more.
    pub(super) fn more(&self) -> Vec<Figure> {
        [self.queues(), self.utilisation(), self.network(), self.memory()].into_iter().flatten().collect()
    }

    /// The plot of the same transfer with other numbers of streams.
    pub(super) fn sweep(&self) -> Option<Figure> {
        let points = &self.profile.baselines.streams;
        let rates = points.iter().map(|point| Point {
            x: f64::from(point.streams),
            y: point.bytes_per_second * 8.0,
            low: (point.bytes_per_second - point.error).max(0.0) * 8.0,
            high: (point.bytes_per_second + point.error) * 8.0,
        });
        let load = points.iter().map(|point| (f64::from(point.streams), point.kernel_load));
        let chart = Chart::new("Rate by number of streams", Axis::log2("streams", Unit::Plain))
            .width(WIDTH)
            .panel_height(150)
            .panel(Panel::new(Axis::linear("rate", Unit::BitsPerSecond)).series(Series::new(
                "",
                Shape::PointsAndLine,
                rates,
            )))
            .panel(
                Panel::new(Axis::linear("kernel load", Unit::Share))
                    .series(Series::points_and_line("", load).colour(1)),
            );
        let caption = "The same transfer with other numbers of streams: means, with the standard error of repetitions, and how \
                       much of the busier machine's processors the kernel took.";
        // A profile with sweeps has better plots.
        let alone = !points.is_empty() && self.profile.sweeps.is_none();
        alone.then(|| figure("sweep", &chart, caption)).flatten()
    }

    fn time(&self) -> Axis {
        Axis::time().range(self.span.0, self.span.1)
    }

    /// A plot with one panel for each host. Hosts without data are left out. Returns `None` if no
    /// panel is left.
    fn chart(
        &self,
        name: &'static str,
        title: &str,
        caption: &'static str,
        panels: impl IntoIterator<Item = Option<Panel>>,
    ) -> Option<Figure> {
        let panels: Vec<Panel> = panels.into_iter().flatten().collect();
        let height = if panels.len() > 1 { 130 } else { 190 };
        let chart = Chart::new(title, self.time()).width(WIDTH).panel_height(height);
        let empty = panels.is_empty();
        let chart = panels.into_iter().fold(chart, Chart::panel);
        if empty { None } else { figure(name, &chart, caption) }
    }

    fn each_host(&self, panel: impl Fn(&HostProfile) -> Option<Panel>) -> Vec<Option<Panel>> {
        let source = self.profile.source();
        let destination = self.profile.destination().filter(|host| host.role != Role::Both);
        source.into_iter().chain(destination).map(panel).collect()
    }

    fn rate(&self) -> Option<Figure> {
        let rates: Values = bits(series::rates(self.profile));
        let highest = rates.iter().map(|rate| rate.1).fold(0.0, f64::max);
        let mut panel = Panel::new(Axis::linear("payload", Unit::BitsPerSecond))
            .series(Series::steps_before(rates.clone()));
        let mean = self.evidence.rate * 8.0;
        if mean > 0.0 && mean.is_finite() {
            panel = panel.level(mean, "mean");
        }
        // A capacity far above the rate would press the curve flat.
        if let Some(capacity) = self.evidence.capacity().map(|rate| rate * 8.0).filter(|&c| c < highest * 4.0)
        {
            panel = panel.level(capacity, "what the path carries");
        }
        let caption = "How much data arrived per second. A flat line means that something holds it at this rate all the \
                       time; a saw means that it grows and is thrown back.";
        self.chart("rate", "Rate", caption, [drawn(panel, &[("".into(), rates)])])
    }

    fn streams(&self) -> Option<Figure> {
        let mut rows: Vec<Row> = Vec::new();
        if let Some(host) = self.profile.source() {
            rows.push((named(host), series::streams(host, self.profile, true)));
        }
        if let Some(host) = self.profile.destination().filter(|host| host.role != Role::Both) {
            rows.push((named(host), series::streams(host, self.profile, false)));
        }
        rows.retain(|row| !row.1.is_empty());
        let mut panel = Panel::new(Axis::linear("connections", Unit::Plain));
        for (number, (name, values)) in rows.iter().enumerate() {
            let line = Series::steps(name.clone(), values.iter().copied());
            panel = panel.series(if number > 0 { line.dashed() } else { line });
        }
        let caption = "Connections that carried data at each moment, as each machine saw them.";
        self.chart("streams", "Streams", caption, [drawn(panel, &rows)])
    }

    /// One value over time, for each of the sender's connections.
    fn senders(&self, of: impl Fn(&ConnectionSample) -> Option<f64>) -> Vec<Values> {
        let Some(host) = self.profile.source() else { return Vec::new() };
        moving(&host.connections, true)
            .into_iter()
            .map(|connection| series::connection(host, self.profile, connection, &of))
            .collect()
    }

    /// Draws the values as lines, or as a band if there are many.
    fn lines(&self, mut panel: Panel, all: &[Values], prefix: &str) -> Option<Panel> {
        if all.len() <= LINES {
            let rows: Vec<Row> = all
                .iter()
                .enumerate()
                .filter(|(_, values)| !values.is_empty())
                .map(|(number, values)| (format!("{prefix}{}", number + 1), values.clone()))
                .collect();
            for (number, (name, values)) in rows.iter().enumerate() {
                let name = if rows.len() == 1 { String::new() } else { name.clone() };
                panel = panel.series(Series::line(name, values.iter().copied()).colour(number));
            }
            return drawn(panel, &rows);
        }
        let spread = series::spread(all, self.span);
        let band = spread.iter().map(|&(x, [low, y, high])| Point { x, y, low, high });
        let middle: Values = spread.iter().map(|&(x, [_, y, _])| (x, y)).collect();
        panel = panel
            .series(Series::new(format!("lowest to highest of {}", all.len()), Shape::Band, band).colour(0))
            .series(Series::line("median", middle.iter().copied()).colour(0));
        drawn(panel, &[(String::new(), middle)])
    }

    fn rtt(&self) -> Option<Figure> {
        let rtts = self.senders(|sample| Some(sample.rtt).filter(|&rtt| rtt > 0.0));
        let mut panel = Panel::new(Axis::linear("round trip", Unit::Seconds));
        if let Some(rtt) = self.evidence.rtt {
            panel = panel.level(rtt, "idle path");
        }
        let caption = "How long it takes until the sender hears that data has arrived. Well above the idle path, data is \
                       waiting in queues on the way.";
        self.chart("rtt", "Round trip time", caption, [self.lines(panel, &rtts, "connection ")])
    }

    fn retransmissions(&self) -> Option<Figure> {
        let host = self.profile.source()?;
        let again = series::growth(host, self.profile, true, |sample| Some(sample.retransmitted.into()));
        let panel = Panel::new(Axis::linear("per second", Unit::Count("segments")))
            .series(Series::steps_before(again.clone()));
        let caption = "Pieces of data (segments) that had to be sent again, all connections together.";
        self.chart("retransmissions", "Retransmissions", caption, [drawn(panel, &[(String::new(), again)])])
    }

    fn windows(&self) -> Option<Figure> {
        let windows = self.senders(|sample| {
            (sample.cwnd > 0)
                .then(|| f64::from(sample.cwnd) * f64::from(sample.mss))
                .filter(|&bytes| bytes < 1e15)
        });
        let allowed = self.senders(|sample| sample.send_window.map(|bytes| bytes as f64));
        let highest = windows.iter().flatten().map(|window| window.1).fold(0.0, f64::max);
        let mut panel = Panel::new(Axis::linear("per connection", Unit::Bytes));
        let middle: Values = series::spread(&allowed, self.span)
            .iter()
            .map(|&(time, [_, middle, _])| (time, middle))
            .collect();
        // A window far above does not limit, and would press the curves flat.
        if middle.iter().map(|value| value.1).fold(f64::INFINITY, f64::min) < highest * 4.0 {
            panel = panel.series(Series::line("allowed by receiver", middle).dashed().colour(6));
        }
        let caption = "Congestion window: how much data the sender lets be on its way at a time. It grows until something is \
                       lost, and is then cut. The receiver allows so much (dashed, where near).";
        self.chart("cwnd", "Congestion window", caption, [self.lines(panel, &windows, "connection ")])
    }

    fn queues(&self) -> Option<Figure> {
        let mut panels = Vec::new();
        if let Some(host) = self.profile.source() {
            let all = self.senders(|sample| sample.queued.map(|bytes| bytes as f64));
            let panel = Panel::new(Axis::linear("to be sent", Unit::Bytes));
            panels.push(self.lines(panel, &all, &format!("{} ", short(host))));
        }
        if let Some(host) = self.profile.destination() {
            let all: Vec<Values> = moving(&host.connections, false)
                .into_iter()
                .map(|one| {
                    series::connection(host, self.profile, one, |sample| {
                        sample.unread.map(|bytes| bytes as f64)
                    })
                })
                .collect();
            let panel = Panel::new(Axis::linear("not read yet", Unit::Bytes));
            panels.push(self.lines(panel, &all, &format!("{} ", short(host))));
        }
        let caption = "What lies in the buffers of the connections: at the sender what is on its way or waits to be, at the \
                       receiver what its program has not taken yet.";
        self.chart("queues", "Socket buffers", caption, panels)
    }
}

fn bits(values: Values) -> Values {
    values.into_iter().map(|(time, rate)| (time, rate * 8.0)).collect()
}

/// Returns the panel if there is something to see in it.
fn drawn(panel: Panel, rows: &[Row]) -> Option<Panel> {
    rows.iter().any(|(_, values)| !values.is_empty()).then_some(panel)
}

fn short(host: &HostProfile) -> String {
    clean::fitted(&host_name(host), 16)
}

fn named(host: &HostProfile) -> String {
    format!("{} ({})", clean::fitted(&host_name(host), 28), role(host.role))
}

/// The label of an axis, with the name of the host.
fn axis(host: &HostProfile, label: &str) -> String {
    if label.is_empty() { short(host) } else { format!("{}: {label}", short(host)) }
}

fn figure(name: &'static str, chart: &Chart, caption: &'static str) -> Option<Figure> {
    Some(Figure { name, svg: chart.to_svg().ok()?, caption })
}
