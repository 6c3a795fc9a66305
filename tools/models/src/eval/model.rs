//! Evaluates steady states and optima.

use serde_json::{Value, json};

use super::EvalError;
use super::input::Input;
use ropewalk_tuning::model::{self, MAX_STREAMS, Path, VALID_WINDOW, units, within};

fn path(input: &Input<'_>) -> Result<Path, EvalError> {
    Ok(Path::new(input.number("B")?, input.number("R_ms")?, input.number("W_packets")?)?)
}

pub(super) fn bandwidth(input: &Input<'_>) -> Result<Value, EvalError> {
    Ok(json!({ "B": units::packets_per_ms(input.number("bps")?, input.number("packet")?)? }))
}

pub(super) fn window(input: &Input<'_>) -> Result<Value, EvalError> {
    Ok(json!({ "W": units::packets(input.number("KiB")? * 1024.0, input.number("packet")?)? }))
}

pub(super) fn loss(input: &Input<'_>) -> Result<Value, EvalError> {
    let w = within("window", input.number("w")?, model::WINDOWS, " packets")?;
    Ok(json!({
        "p": model::loss_of_window(w),
        "p_TO": model::timeout_probability(w),
        "extrapolated": w < VALID_WINDOW,
    }))
}

pub(super) fn window_at_loss(input: &Input<'_>) -> Result<Value, EvalError> {
    let p = input.number("p")?;
    Ok(json!({ "w": model::window_of_loss(p)?, "extrapolated": p > model::VALID_LOSS }))
}

pub(super) fn saturated(input: &Input<'_>) -> Result<Value, EvalError> {
    let (p, w) = model::saturated_loss(input.number("B")?, input.number("R")?, input.whole("N")?)?;
    Ok(json!({ "p": p, "w": w }))
}

pub(super) fn steady(input: &Input<'_>) -> Result<Value, EvalError> {
    let steady = model::goodput(&path(input)?, input.whole("N")?)?;
    Ok(json!({
        "goodput": steady.goodput,
        "loss": steady.loss,
        "regime": steady.regime.name(),
        "valid": steady.valid,
    }))
}

pub(super) fn physical(input: &Input<'_>) -> Result<Value, EvalError> {
    let steady = model::physical(&path(input)?, input.whole("N")?)?;
    Ok(json!({ "goodput": steady.goodput, "loss": steady.loss }))
}

pub(super) fn optimum(input: &Input<'_>) -> Result<Value, EvalError> {
    let path = path(input)?;
    let found = model::optimum(&path, MAX_STREAMS)?;
    Ok(json!({
        "x_star": found.x_star,
        "N_real": found.streams_real,
        "N_int": found.streams,
        "goodput_int": found.steady.goodput,
        "goodput_sup": found.goodput_sup,
        "N_99pct": found.streams_99_percent,
        "N_simple_BR_over_W": path.bandwidth_delay_product() / path.window(),
        "eq13_as_printed": model::printed_eq13(&path),
    }))
}

pub(super) fn x_star(input: &Input<'_>, series: bool) -> Result<Value, EvalError> {
    let w = within("window", input.number("W")?, model::WINDOWS, " packets")?;
    let mut out = json!({ "x": model::x_star(w) });
    if series {
        out["x_series"] = json!(model::x_star_series(w));
    }
    Ok(out)
}

pub(super) fn window_needed(input: &Input<'_>) -> Result<Value, EvalError> {
    let path = Path::new(input.number("B")?, input.number("R_ms")?, 1.0)?;
    let window = model::window_needed(&path, input.whole("N")?)?;
    Ok(json!({ "W_packets": window, "W_bytes_1500": (window * 1500.0).ceil() as u64 }))
}

pub(super) fn lossy(input: &Input<'_>) -> Result<Value, EvalError> {
    Ok(json!({ "N_real": model::streams_with_loss(&path(input)?, input.number("p_bg")?)? }))
}
