//! Evaluates GridFTP-APT on known goodput curves.

use serde_json::{Value, json};

use super::EvalError;
use super::input::{Input, wrong};
use ropewalk_tuning::model::{self, Path, within};
use ropewalk_tuning::tuner::apt::{Below, Bracket, Rule, Settings, trace};

/// Limit of the growth if the vector has none.
const MOST: u32 = 100_000;

type Curve = Box<dyn Fn(u32) -> f64>;

pub(super) fn next(input: &Input<'_>) -> Result<Value, EvalError> {
    let bracket = Bracket { low: input.count("l")?, middle: input.count("m")?, high: input.count("r")? };
    if bracket.low > bracket.middle || bracket.middle > bracket.high {
        return Err(wrong("m", input.need("m")?, "a number between l and r"));
    }
    let mut out = json!({});
    for (name, rule) in [("printed", Rule::Printed), ("golden", Rule::Golden)] {
        match (bracket.next(rule), bracket.next_real(rule)) {
            (Some(next), Some(real)) => {
                out[name] = json!(next);
                out[format!("{name}_real")] = json!(real);
            }
            _ => out[name] = json!("stop"),
        }
    }
    Ok(out)
}

pub(super) fn search(input: &Input<'_>) -> Result<Value, EvalError> {
    let rule = match input.text("rule")? {
        "printed" => Rule::Printed,
        "golden" => Rule::Golden,
        _ => return Err(wrong("rule", input.need("rule")?, "printed or golden")),
    };
    let first = input.count("N0")?;
    let (curve, path) = curve(input)?;
    let expected = match (input.need("g0")?.as_f64(), path) {
        (Some(number), _) => within("g0", number, (1e-12, 1e12), "")?,
        // The vector defines g0 as one window of each connection per round-trip time.
        (None, Some(path)) if input.text("g0")? == "N0*W/R" => {
            f64::from(first) * path.window() / path.rtt_ms()
        }
        (None, Some(_)) => return Err(wrong("g0", input.need("g0")?, "a number or N0*W/R")),
        (None, None) => return Err(wrong("g0", input.need("g0")?, "a number")),
    };
    let delta = if input.get("delta_s").is_some() { input.number("delta_s") } else { input.number("delta") }?;
    let most = if input.get("nmax").is_some() { input.count("nmax")? } else { MOST };
    if first > most {
        return Err(wrong("N0", input.need("N0")?, "a number up to nmax"));
    }
    let settings = Settings {
        rule,
        below: Below::One,
        first,
        alpha: within("alpha", input.number("alpha")?, (1.000_001, 1e6), "")?,
        most,
        delta: within("delta", delta, (1e-9, 1e9), "")?,
        expected,
        // The smallest chunk in the vectors is one unit.
        least_size: 1.0,
    };
    let trace = trace(settings, curve).ok_or(EvalError::Unsettled)?;
    Ok(json!({
        "chunks": trace.chunks,
        "bracket": [trace.bracket.low, trace.bracket.middle, trace.bracket.high],
        "N_final": trace.settled,
    }))
}

/// Returns goodput as a function of the number of connections: from a table, a tent function, or
/// the steady state of a path.
fn curve(input: &Input<'_>) -> Result<(Curve, Option<Path>), EvalError> {
    if let Some(table) = input.get("G") {
        let object = table.as_object().ok_or_else(|| wrong("G", table, "an object"))?;
        let mut points = Vec::new();
        for (name, goodput) in object {
            let number = (name.parse::<u32>().ok(), goodput.as_f64());
            let (Some(streams), Some(goodput)) = number else {
                return Err(wrong("G", table, "numbers by number of connections"));
            };
            if streams.to_string() != *name {
                return Err(wrong("G", table, "numbers of connections as they are written"));
            }
            points.push((streams, within("G", goodput, (0.0, 1e12), "")?));
        }
        if points.is_empty() {
            return Err(wrong("G", table, "numbers by number of connections"));
        }
        // Numbers that are not in the table have goodput 0.
        let goodput = move |n: u32| points.iter().find(|point| point.0 == n).map_or(0.0, |point| point.1);
        return Ok((Box::new(goodput), None));
    }
    if input.get("peak").is_some() {
        let peak = within("peak", input.number("peak")?, (1e-3, 1e6), "")?;
        let tent = move |n: u32| {
            let n = f64::from(n);
            if n <= peak { n / peak } else { (peak / n).powf(0.3) }
        };
        return Ok((Box::new(tent), None));
    }
    let path = Path::new(input.number("B")?, input.number("R_ms")?, input.number("W_packets")?)?;
    let goodput = move |n: u32| model::goodput(&path, u64::from(n)).map_or(0.0, |steady| steady.goodput);
    Ok((Box::new(goodput), Some(path)))
}
