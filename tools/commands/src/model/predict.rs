use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ropewalk_tuning::model::{self, MAX_STREAMS, Optimum, Path, Steady, units as model_units};
use serde::Serialize;

use super::quantity::{self, percent, show_ms};
use super::{refused, report};
use crate::exit::Exit;
use crate::output::json_line;
use crate::picture::picture;
use crate::units;

/// Predict goodput and loss by number of streams, and the best number, from known properties of a
/// path. docs/models.md describes what the model omits.
#[derive(Debug, Args)]
pub(super) struct Predict {
    /// Rate of the bottleneck: 10Gbit/s, 100MiB/s
    #[arg(short, long, value_name = "RATE", value_parser = quantity::bits_per_second)]
    pub(super) bandwidth: f64,
    /// Round-trip time, with queueing: 80ms, 350us
    #[arg(short, long, value_name = "TIME", value_parser = quantity::milliseconds)]
    pub(super) rtt: f64,
    /// Largest socket buffer (window) of one stream
    #[arg(short = 'w', long, value_name = "SIZE", value_parser = quantity::bytes, default_value = "4MiB")]
    pub(super) buffer: f64,
    /// Share of packets lost without congestion: 0.001 or 0.1%
    #[arg(short, long, value_name = "SHARE", value_parser = quantity::share, default_value = "0")]
    pub(super) loss: f64,
    /// Size of a packet on the link, headers included
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, default_value = "1500B")]
    pub(super) packet: f64,
    /// Largest number of streams
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=MAX_STREAMS))]
    pub(super) max_streams: u64,
    /// Draw goodput and loss by number of streams (SVG; PNG if the name ends in .png)
    #[arg(long, value_name = "FILE", value_parser = picture())]
    plot: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// All results.
pub(super) struct Prediction {
    pub(super) path: Path,
    pub(super) packet: f64,
    pub(super) optimum: Optimum,
    /// For 1 stream up to the largest number.
    pub(super) rows: Vec<Row>,
    /// Window with which one stream fills the path, bytes.
    pub(super) window_of_one: f64,
}

pub(super) struct Row {
    pub(super) streams: u64,
    pub(super) steady: Steady,
    pub(super) physical: Steady,
}

#[derive(Serialize)]
struct Line {
    bandwidth_bps: f64,
    rtt_ms: f64,
    buffer_bytes: f64,
    packet_bytes: f64,
    background_loss: f64,
    optimum: BestLine,
    curve: Vec<RowLine>,
}

#[derive(Serialize)]
struct BestLine {
    streams: u64,
    streams_real: f64,
    streams_99_percent: u64,
    goodput_bps: f64,
    loss: f64,
    window_packets: f64,
    extrapolated: bool,
    why: String,
    window_for_one_stream_bytes: f64,
}

#[derive(Serialize)]
struct RowLine {
    streams: u64,
    goodput_bps: f64,
    loss: f64,
    limited_by: &'static str,
    extrapolated: bool,
    physical_goodput_bps: f64,
    physical_loss: f64,
}

impl Predict {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let prediction = self.predict().map_err(refused)?;
        if let Some(file) = &self.plot {
            report::chart(&prediction, self.max_streams)?.write(file)?;
        }
        if self.json {
            json_line(&mut io::stdout().lock(), &self.line(&prediction))?;
        } else {
            io::stdout().lock().write_all(self.text(&prediction).as_bytes())?;
        }
        Ok(Exit::Done)
    }

    fn predict(&self) -> Result<Prediction, model::ParameterError> {
        let bandwidth = model_units::packets_per_ms(self.bandwidth, self.packet)?;
        let window = model_units::packets(self.buffer, self.packet)?;
        let path = Path::new(bandwidth, self.rtt, window)?.with_background_loss(self.loss)?;
        let optimum = model::optimum(&path, self.max_streams)?;
        let mut numbers = report::rounded_numbers(self.max_streams);
        numbers.extend([optimum.streams, optimum.streams_99_percent, self.max_streams]);
        numbers.sort_unstable();
        numbers.dedup();
        let rows = numbers.into_iter().map(|streams| Row::new(&path, streams)).collect::<Result<_, _>>()?;
        let window_of_one = model::window_needed(&path, 1)? * self.packet;
        Ok(Prediction { path, packet: self.packet, optimum, rows, window_of_one })
    }

    fn line(&self, prediction: &Prediction) -> Line {
        let Prediction { optimum, packet, .. } = prediction;
        let bps = |goodput| model_units::bits_per_second(goodput, *packet);
        Line {
            bandwidth_bps: self.bandwidth,
            rtt_ms: self.rtt,
            buffer_bytes: self.buffer,
            packet_bytes: self.packet,
            background_loss: self.loss,
            optimum: BestLine {
                streams: optimum.streams,
                streams_real: optimum.streams_real,
                streams_99_percent: optimum.streams_99_percent,
                goodput_bps: bps(optimum.steady.goodput),
                loss: optimum.steady.loss,
                window_packets: optimum.x_star,
                extrapolated: !optimum.steady.valid,
                why: report::why(prediction),
                window_for_one_stream_bytes: prediction.window_of_one,
            },
            curve: prediction
                .rows
                .iter()
                .map(|row| RowLine {
                    streams: row.streams,
                    goodput_bps: bps(row.steady.goodput),
                    loss: row.steady.loss,
                    limited_by: row.steady.regime.name(),
                    extrapolated: !row.steady.valid,
                    physical_goodput_bps: bps(row.physical.goodput),
                    physical_loss: row.physical.loss,
                })
                .collect(),
        }
    }

    fn text(&self, prediction: &Prediction) -> String {
        let Prediction { path, packet, optimum, .. } = prediction;
        let rate = |goodput| units::link_rate(model_units::bits_per_second(goodput, *packet) / 8.0);
        let product = path.bandwidth_delay_product();
        let mut text = format!(
            "{}, {}, buffers of {}, packets of {} bytes, {}\n\
             Bandwidth-delay product {} ({product:.0} packets); one buffer holds {:.1} packets\n\n",
            units::link_rate(self.bandwidth / 8.0),
            show_ms(self.rtt),
            units::size(self.buffer as u64),
            packet,
            if self.loss > 0.0 {
                format!("loss of {}", percent(self.loss))
            } else {
                "no loss but congestion".into()
            },
            units::size((product * packet) as u64),
            path.window(),
        );
        text += &format!(
            "{:>9}  {:>13}  {:>11}  {:<10}  {:>13}  {:>11}\n",
            "streams", "goodput", "loss", "limited by", "a real link", "loss"
        );
        let mut extrapolated = false;
        for row in &prediction.rows {
            let mark = if row.streams == optimum.streams { "  <- best" } else { "" };
            let star = if row.steady.valid { ' ' } else { '*' };
            extrapolated |= !row.steady.valid;
            text += &format!(
                "{:>9}{star} {:>13}  {:>11}  {:<10}  {:>13}  {:>11}{mark}\n",
                row.streams,
                rate(row.steady.goodput),
                percent(row.steady.loss),
                row.steady.regime.name(),
                rate(row.physical.goodput),
                percent(row.physical.loss),
            );
        }
        if extrapolated {
            text += "* extrapolated: windows of less than three packets (or a buffer of less than one), where the model is not valid\n";
        }
        text += &format!(
            "\nBest: {} ({:.2} before rounding), {}, loss {}\nWhy: {}\n",
            units::count(optimum.streams, "stream"),
            optimum.streams_real,
            rate(optimum.steady.goodput),
            percent(optimum.steady.loss),
            report::why(prediction),
        );
        if !optimum.steady.valid {
            text += "Even so windows have less than three packets (or buffers less than one): do not trust these numbers\n";
        }
        if optimum.streams_99_percent < optimum.streams {
            let fewer = units::count(optimum.streams_99_percent, "stream");
            text += &format!("{fewer} reach 99 % of that\n");
        }
        if optimum.streams > 1 && self.loss == 0.0 {
            let window = units::size(prediction.window_of_one.ceil() as u64);
            text += &format!("With a buffer of {window}, one stream fills the path\n");
        }
        text
    }
}

impl Row {
    pub(super) fn new(path: &Path, streams: u64) -> Result<Self, model::ParameterError> {
        Ok(Self {
            streams,
            steady: model::goodput(path, streams)?,
            physical: model::physical(path, streams)?,
        })
    }
}
