//! Draws one chart of each kind into the given directory, or into the current one.

use std::error::Error;
use std::path::PathBuf;

use ropewalk_plot::{Axis, Chart, Panel, Point, Series, Unit};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    curve().write(directory.join("curve.svg"))?;
    run().write(directory.join("run.svg"))?;
    buffers().write(directory.join("buffers.svg"))?;
    Ok(())
}

fn curve() -> Chart {
    let measured = (1..=50).step_by(3).map(|n| {
        let y = (f64::from(n) * 5.2e6).min(92e6);
        Point { x: f64::from(n), y, low: y * 0.93, high: y * 1.02 }
    });
    let model = (1..=50).map(|n| (f64::from(n), (f64::from(n) * 5.24e6).min(99e6)));
    Chart::new("Goodput of N streams, 100 Mbit/s, 100 ms", Axis::linear("streams", Unit::Plain))
        .note("median and range of 5 repetitions; W = 64 KiB")
        .panel(
            Panel::new(Axis::linear("goodput", Unit::BitsPerSecond))
                .series(Series::line("model", model))
                .series(Series::points_and_line("measured", measured))
                .level(100e6, "capacity"),
        )
}

fn run() -> Chart {
    let rate = |phase: f64| {
        (0..600).map(move |i| {
            let t = f64::from(i) * 0.1;
            (t, if t < 1.0 { t * 8e7 } else { 8e7 + 1.5e7 * (t + phase).sin() })
        })
    };
    let rtt = (0..600).map(|i| (f64::from(i) * 0.1, 0.1 + 0.02 * f64::from(i % 97) / 97.0));
    Chart::new("paper-100ms", Axis::time())
        .event(20.0, "cross traffic begins")
        .event(22.0, "loss 0.1 %")
        .event(40.0, "cross traffic ends")
        .panel(
            Panel::new(Axis::linear("rate", Unit::BitsPerSecond))
                .series(Series::line("left to right", rate(0.0)))
                .series(Series::line("right to left", rate(1.0)))
                .level(1e8, "link"),
        )
        .panel(
            Panel::new(Axis::linear("streams", Unit::Plain))
                .series(Series::steps("", [(0.0, 1.0), (10.0, 4.0), (60.0, 2.0)])),
        )
        .panel(Panel::new(Axis::linear("RTT", Unit::Seconds)).series(Series::line("", rtt)))
        .panel(
            Panel::new(Axis::log10("loss", Unit::Share))
                .series(Series::points("", (0..60).map(|i| (f64::from(i), 1e-5 * f64::from(1 + i * i))))),
        )
        .panel(
            Panel::new(Axis::linear("queue", Unit::Count("packets")))
                .series(Series::line("", [(0.0, f64::NAN)])),
        )
}

fn buffers() -> Chart {
    let series = (0..9).map(|k| {
        let points =
            (4..=14).map(move |i| (f64::powi(2.0, i) * 1024.0, 1e6 * f64::from(k + 1) * f64::from(i)));
        Series::points_and_line(format!("{} streams", 1 << k), points)
    });
    let panel = Panel::new(Axis::log10("goodput", Unit::BitsPerSecond));
    Chart::new("Socket buffers", Axis::log2("socket buffer", Unit::Bytes))
        .panel(series.fold(panel, Panel::series))
}
