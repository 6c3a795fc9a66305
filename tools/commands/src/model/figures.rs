use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};
use ropewalk_tuning::model::{self, Path, Steady};

use super::refused;
use crate::exit::Exit;

/// Numbers of connections in the curves.
const STREAMS: std::ops::RangeInclusive<u64> = 1..=100;
/// The papers' packet and Kbyte.
const PACKET: f64 = 1500.0;
const KBYTE: f64 = 1024.0;

const RTTS: [f64; 5] = [10.0, 20.0, 50.0, 100.0, 200.0];
const BUFFERS: [f64; 5] = [16.0, 32.0, 64.0, 128.0, 256.0];

/// Draw the papers' figures. Lines are dashed in the range in which the model is extrapolated (less
/// than three packets for each connection).
#[derive(Debug, Args)]
pub(super) struct Figures {
    /// Directory of fig2.svg to fig6.svg
    directory: PathBuf,
    /// Write fig2.png to fig6.png
    #[arg(long)]
    png: bool,
}

#[derive(Clone, Copy)]
enum Shown {
    Goodput,
    Loss,
}

/// One curve: its name and its path.
type Curve = (String, Path);

impl Figures {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot make {}", self.directory.display()))?;
        let slow = by_rtt(8.3).map_err(refused)?;
        let fast = by_rtt(16.6).map_err(refused)?;
        let buffers = by_buffer().map_err(refused)?;
        let of_slow = "B = 8.3 packets/ms (100 Mbit/s), W = 64 KiB, by round-trip time R";
        let of_fast = "B = 16.6 packets/ms (200 Mbit/s), W = 64 KiB, by round-trip time R";
        let of_buffers = "B = 8.3 packets/ms (100 Mbit/s), R = 100 ms, by socket buffer W";
        let figures = [
            (2, "GridFTP goodput", of_slow, &slow, Shown::Goodput),
            (3, "Packet loss probability", of_slow, &slow, Shown::Loss),
            (4, "GridFTP goodput", of_buffers, &buffers, Shown::Goodput),
            (5, "Packet loss probability", of_buffers, &buffers, Shown::Loss),
            (6, "GridFTP goodput", of_fast, &fast, Shown::Goodput),
        ];
        let ending = if self.png { "png" } else { "svg" };
        for (number, title, note, curves, shown) in figures {
            let file = self.directory.join(format!("fig{number}.{ending}"));
            chart(&format!("Fig. {number}: {title}"), note, curves, shown)?.write(&file)?;
            writeln!(io::stdout().lock(), "{}", file.display())?;
        }
        Ok(Exit::Done)
    }
}

fn by_rtt(bandwidth: f64) -> Result<Vec<Curve>, model::ParameterError> {
    let curve = |rtt: f64| Ok((format!("R = {rtt} ms"), Path::new(bandwidth, rtt, 64.0 * KBYTE / PACKET)?));
    RTTS.into_iter().map(curve).collect()
}

fn by_buffer() -> Result<Vec<Curve>, model::ParameterError> {
    let curve = |kib: f64| Ok((format!("W = {kib} KiB"), Path::new(8.3, 100.0, kib * KBYTE / PACKET)?));
    BUFFERS.into_iter().map(curve).collect()
}

fn chart(title: &str, note: &str, curves: &[Curve], shown: Shown) -> anyhow::Result<Chart> {
    let (axis, value): (_, fn(&Steady) -> f64) = match shown {
        Shown::Goodput => (Axis::linear("goodput in packets/ms", Unit::Plain), |steady| steady.goodput),
        Shown::Loss => (Axis::linear("packet loss probability", Unit::Share), |steady| steady.loss),
    };
    let mut panel = Panel::new(axis);
    for (colour, (name, path)) in curves.iter().enumerate() {
        let steady = STREAMS.map(|streams| Ok((streams, model::goodput(path, streams)?)));
        let steady = steady.collect::<Result<Vec<_>, model::ParameterError>>().map_err(refused)?;
        let valid = steady.iter().take_while(|(_, steady)| steady.valid).count();
        let points = |part: &[(u64, Steady)]| -> Vec<(f64, f64)> {
            part.iter().map(|(streams, steady)| (*streams as f64, value(steady))).collect()
        };
        panel = panel.series(Series::line(name, points(&steady[..valid])).colour(colour));
        if valid < steady.len() {
            let rest = points(&steady[valid.saturating_sub(1)..]);
            panel = panel.series(Series::line(format!("{name}, extrapolated"), rest).colour(colour).dashed());
        }
    }
    let streams = Axis::linear("number of parallel TCP connections N", Unit::Plain);
    Ok(Chart::new(title, streams).note(note).panel(panel))
}
