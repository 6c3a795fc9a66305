//! A prediction as text and as a chart.

use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};
use ropewalk_tuning::model::{MAX_STREAMS, Reason, units as model_units};

use super::predict::{Prediction, Row};
use super::quantity::{percent, show_ms};
use super::refused;
use crate::units;

/// Most points of a curve.
const POINTS: u64 = 400;

/// 1, 2, 3, 4, 6, 8, 12, 16, … up to `most`.
pub(super) fn rounded_numbers(most: u64) -> Vec<u64> {
    let powers = (0..24).map(|power| 1_u64 << power);
    let numbers = powers.flat_map(|power| [power, power + power / 2]);
    let mut numbers: Vec<u64> = numbers.filter(|&number| number <= most.min(MAX_STREAMS)).collect();
    numbers.dedup();
    numbers
}

/// Why the best number is the best.
pub(super) fn why(prediction: &Prediction) -> String {
    let optimum = &prediction.optimum;
    let bytes = |packets: f64| units::size((packets * prediction.packet) as u64);
    let window = bytes(prediction.path.window());
    match optimum.reason {
        Reason::OneIsEnough => {
            format!(
                "the bandwidth-delay product of {} fits into one window",
                bytes(prediction.path.bandwidth_delay_product())
            )
        }
        Reason::FillsTheLink => format!("this many windows of {window} fill the link; more only add loss"),
        Reason::FillsTheLinkDespiteLoss => format!(
            "loss of {} holds each window at {:.1} packets; this many of them fill the link",
            percent(prediction.path.background_loss()),
            optimum.x_star
        ),
        Reason::Limit => format!(
            "the link is not full, and more streams would help (up to {:.0}), but no more are allowed",
            optimum.streams_real.ceil()
        ),
    }
}

/// Goodput and loss by number of streams.
pub(super) fn chart(prediction: &Prediction, most: u64) -> anyhow::Result<Chart> {
    let Prediction { path, packet, optimum, .. } = prediction;
    let last = (3 * optimum.streams).max(16).min(most.max(2));
    let step = last.div_ceil(POINTS).max(1);
    let mut numbers: Vec<u64> = (1..=last).step_by(step as usize).collect();
    numbers.extend([optimum.streams.min(last), last]);
    numbers.sort_unstable();
    numbers.dedup();
    let rows = numbers.into_iter().map(|streams| Row::new(path, streams)).collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(refused)?;
    let bps = |goodput| model_units::bits_per_second(goodput, *packet);
    let series = |name: &str, value: &dyn Fn(&Row) -> f64| {
        Series::line(name, rows.iter().map(|row| (row.streams as f64, value(row))).collect::<Vec<_>>())
    };
    let best = [(optimum.streams as f64, bps(optimum.steady.goodput))];
    let note = format!(
        "{}, {}, buffers of {}, packets of {packet} bytes, background loss {}",
        units::link_rate(bps(path.bandwidth()) / 8.0),
        show_ms(path.rtt_ms()),
        units::size((path.window() * packet).round() as u64),
        percent(path.background_loss()),
    );
    Ok(Chart::new("Parallel streams: prediction of the model", Axis::linear("streams", Unit::Plain))
        .note(note)
        .panel(
            Panel::new(Axis::linear("goodput", Unit::BitsPerSecond))
                .series(series("model (Eq 12)", &|row| bps(row.steady.goodput)))
                .series(series("a real link", &|row| bps(row.physical.goodput)).dashed())
                .series(Series::points(format!("best: {}", optimum.streams), best))
                .level(bps(path.bandwidth()), "bandwidth"),
        )
        .panel(
            Panel::new(Axis::linear("loss", Unit::Share))
                .series(series("model (Eq 7)", &|row| row.steady.loss))
                .series(series("a real link", &|row| row.physical.loss).dashed()),
        ))
}
