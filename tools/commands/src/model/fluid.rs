use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use ropewalk_models::fluid::{self, Coupling, Drop, Fluid as Run, Red, Scenario, State};
use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};
use ropewalk_tuning::model::units as model_units;
use serde::Serialize;

use super::quantity::{self, percent};
use super::refused;
use crate::exit::{Exit, usage};
use crate::output::{json_line, say};
use crate::picture::picture;
use crate::units;

/// Number of curves that a panel can show distinctly.
const SHOWN_GROUPS: usize = 8;

/// Simulate groups of streams that share a bottleneck. Each adds one packet a round trip to its
/// window, and reduces it when it loses one. Example: ropewalk model fluid -b 100Mbit/s -g 20x50ms
/// -g 20x150ms --red 0,800,0.05,0.002
#[derive(Debug, Args)]
pub(super) struct Fluid {
    /// Rate of the bottleneck: 10Gbit/s, 100MiB/s
    #[arg(short, long, value_name = "RATE", value_parser = quantity::bits_per_second)]
    bandwidth: f64,
    /// Streams, their round-trip time without queueing, and their buffer size: 20x50ms or
    /// 20x50ms,64KiB
    #[arg(short, long = "group", value_name = "NxTIME[,SIZE]", required = true)]
    groups: Vec<GroupSpec>,
    /// Capacity of the queue in packets
    #[arg(short, long, value_name = "PACKETS", default_value_t = 100.0)]
    queue: f64,
    /// Random early detection instead of drop-tail: lower and upper threshold in packets, largest
    /// loss, weight
    #[arg(long, value_name = "MIN,MAX,LOSS,WEIGHT")]
    red: Option<RedSpec>,
    /// Traffic that fills the queue; paper needs --red
    #[arg(long, value_enum, default_value_t = CouplingName::Physical)]
    coupling: CouplingName,
    /// Simulated time
    #[arg(short, long, value_name = "TIME", value_parser = quantity::milliseconds, default_value = "30s")]
    time: f64,
    /// Size of a packet on the link, headers included
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, default_value = "1500B")]
    packet: f64,
    /// Step of the integration; reduced if the shortest round trip or the fastest loop requires it;
    /// chosen by default
    #[arg(long, value_name = "TIME", value_parser = quantity::milliseconds)]
    step: Option<f64>,
    /// Draw windows, queue, loss and goodput over time (SVG; PNG if the name ends in .png)
    #[arg(long, value_name = "FILE", value_parser = picture())]
    plot: Option<PathBuf>,
    /// One JSON object for each sample
    #[arg(long)]
    json: bool,
    /// Number of samples
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CouplingName {
    /// The packets that were not lost, as in a real queue
    Physical,
    /// All packets that were sent, as in the paper
    Paper,
}

#[derive(Clone, Copy, Debug)]
struct GroupSpec {
    streams: f64,
    delay_ms: f64,
    buffer: Option<f64>,
}

impl FromStr for GroupSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (streams, rest) = text.split_once('x').ok_or("expected for example 20x50ms or 20x50ms,64KiB")?;
        let streams: u32 =
            streams.trim().parse().map_err(|_| format!("{streams:?} is not a number of streams"))?;
        let (delay, buffer) = match rest.split_once(',') {
            Some((delay, buffer)) => (delay, Some(quantity::bytes(buffer)?)),
            None => (rest, None),
        };
        Ok(Self { streams: streams.into(), delay_ms: quantity::milliseconds(delay)?, buffer })
    }
}

#[derive(Clone, Copy, Debug)]
struct RedSpec(Red);

impl FromStr for RedSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXAMPLE: &str = "for example 0,800,0.05,0.002";
        let number = |part: &str| {
            let part = part.trim();
            part.parse().map_err(|_| format!("{part:?} is not a number: expected four, {EXAMPLE}"))
        };
        let numbers = text.split(',').map(number).collect::<Result<Vec<f64>, _>>()?;
        match numbers[..] {
            [min, max, max_loss, weight] => Ok(Self(Red { min, max, max_loss, weight })),
            _ => Err(format!("expected four numbers and not {}, {EXAMPLE}", numbers.len())),
        }
    }
}

/// Steps, summed over groups, that take seconds to compute.
const MANY: f64 = 5e7;

/// The text of a step.
fn short(ms: f64) -> String {
    if ms >= 1e-3 { format!("{ms:.3} ms") } else { format!("{:.3} µs", 1e3 * ms) }
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: f64,
    windows: &'a [f64],
    queue: f64,
    loss: f64,
    goodput_bps: f64,
    sent_bps: f64,
}

impl Fluid {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let scenario = self.scenario()?;
        scenario.check().and_then(|()| scenario.check_length(self.time)).map_err(refused)?;
        let mut run = Run::new(scenario.clone()).map_err(refused)?;
        let steps = self.time / run.step_ms();
        if steps * self.groups.len() as f64 > MANY {
            let (step, groups) = (short(run.step_ms()), self.groups.len());
            say(format_args!(
                "ropewalk: {steps:.0} steps of {step} for {groups} groups may take minutes; --step and --time make them fewer"
            ));
        }
        let mut samples = vec![run.state()];
        for sample in 1..=self.samples {
            run.advance(self.time * f64::from(sample) / f64::from(self.samples)).map_err(refused)?;
            samples.push(run.state());
        }
        if let Some(file) = &self.plot {
            self.chart(&samples).write(file)?;
        }
        let mut out = io::stdout().lock();
        if self.json {
            for state in &samples {
                json_line(&mut out, &self.line(state))?;
            }
        } else {
            out.write_all(self.text(&scenario, run.step_ms(), &samples)?.as_bytes())?;
        }
        Ok(Exit::Done)
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let window = |buffer: f64| model_units::packets(buffer, self.packet).map_err(refused);
        let groups = self.groups.iter().map(|group| {
            let window_limit = group.buffer.map_or(Ok(1e9), window)?;
            if window_limit < 1.0 {
                return Err(usage(format!("a buffer of {window_limit:.2} packets holds no packet")));
            }
            Ok(fluid::Group {
                connections: group.streams,
                delay_ms: group.delay_ms,
                window_limit,
                window: window_limit.min(2.0),
            })
        });
        Ok(Scenario {
            bandwidth: model_units::packets_per_ms(self.bandwidth, self.packet).map_err(refused)?,
            groups: groups.collect::<anyhow::Result<_>>()?,
            queue_limit: self.queue,
            drop: self.red.map_or(Drop::Tail, |red| Drop::Red(red.0)),
            coupling: match self.coupling {
                CouplingName::Physical => Coupling::Physical,
                CouplingName::Paper => Coupling::Paper,
            },
            step_ms: self.step,
        })
    }

    fn line<'a>(&self, state: &'a State) -> Line<'a> {
        Line {
            time_ms: state.time_ms,
            windows: &state.windows,
            queue: state.queue,
            loss: state.loss,
            goodput_bps: model_units::bits_per_second(state.goodput, self.packet),
            sent_bps: model_units::bits_per_second(state.sent, self.packet),
        }
    }

    fn text(&self, scenario: &Scenario, step_ms: f64, samples: &[State]) -> anyhow::Result<String> {
        let rate = |goodput| units::link_rate(model_units::bits_per_second(goodput, self.packet) / 8.0);
        let last = &samples[samples.len() - 1];
        let mut text = format!("After {:.3} s in steps of {}\n", last.time_ms / 1000.0, short(step_ms));
        text += &format!(
            "goodput {}, loss {}, queue {:.2} of {} packets\n",
            rate(last.goodput),
            percent(last.loss),
            last.queue,
            scenario.queue_limit
        );
        let rest = fluid::equilibrium(scenario).map_err(refused)?;
        for (index, (group, window)) in self.groups.iter().zip(&last.windows).enumerate() {
            let settled = match &rest {
                Some(rest) => format!(" (in equilibrium {:.2})", rest.windows[index]),
                None => String::new(),
            };
            let rtt = group.delay_ms + last.queue / scenario.bandwidth;
            let of_group = rate(group.streams * window / rtt);
            text += &format!(
                "{} stream{}, round trip {rtt:.2} ms: window {window:.2} packets{settled}, {of_group} sent\n",
                group.streams,
                if group.streams == 1.0 { "" } else { "s" }
            );
        }
        text += &match rest {
            Some(rest) => format!(
                "In equilibrium: goodput {}, loss {}, queue {:.2} packets\n",
                rate(rest.goodput),
                percent(rest.loss),
                rest.queue
            ),
            None => {
                "There is no equilibrium: the queue is too short for the loss that it would need\n".into()
            }
        };
        Ok(text)
    }

    fn chart(&self, samples: &[State]) -> Chart {
        let series = |name: &str, value: &dyn Fn(&State) -> f64| {
            let points: Vec<_> = samples.iter().map(|state| (state.time_ms / 1000.0, value(state))).collect();
            Series::line(name, points)
        };
        let mut windows = Panel::new(Axis::linear("window", Unit::Count("packets")));
        for (index, group) in self.groups.iter().take(SHOWN_GROUPS).enumerate() {
            let name = format!("{} x {}", group.streams, quantity::show_ms(group.delay_ms));
            windows = windows.series(series(&name, &|state| state.windows[index]));
        }
        let bps = |goodput| model_units::bits_per_second(goodput, self.packet);
        let shown = self.groups.len().min(SHOWN_GROUPS);
        let of = if shown < self.groups.len() {
            format!(", windows of {shown} of {} groups", self.groups.len())
        } else {
            String::new()
        };
        Chart::new("Parallel streams in time", Axis::time())
            .note(format!("{}, queue of {} packets{of}", units::link_rate(self.bandwidth / 8.0), self.queue))
            .panel(windows)
            .panel(
                Panel::new(Axis::linear("queue", Unit::Count("packets")))
                    .series(series("queue", &|s| s.queue)),
            )
            .panel(Panel::new(Axis::linear("loss", Unit::Share)).series(series("loss", &|s| s.loss)))
            .panel(
                Panel::new(Axis::linear("goodput", Unit::BitsPerSecond))
                    .series(series("goodput", &|state| bps(state.goodput)))
                    .series(series("sent", &|state| bps(state.sent)).dashed()),
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn red_with_an_invalid_number_fails() {
        let red = |text: &str| text.parse::<RedSpec>().map(|RedSpec(red)| red);
        let good = Red { min: 0.0, max: 800.0, max_loss: 0.05, weight: 0.002 };
        assert_eq!(red("0, 800,0.05,0.002"), Ok(good));
        for (text, problem) in [
            ("x,0,800,0.05,0.002", "\"x\" is not a number"),
            ("0,800,0.05,,0.002", "\"\" is not a number"),
            ("0,8OO,0.05,0.002", "\"8OO\" is not a number"),
            ("0,800,0.05", "four numbers and not 3"),
            ("0,800,0.05,0.002,1", "four numbers and not 5"),
        ] {
            assert!(red(text).is_err_and(|error| error.contains(problem)), "{text}");
        }
    }
}
