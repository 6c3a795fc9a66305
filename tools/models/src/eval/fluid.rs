//! Evaluates the model in time.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::EvalError;
use super::input::{Input, wrong};
use crate::fluid::{Coupling, Drop, Fluid, FluidError, Group, Red, Scenario, equilibrium};

/// The step if the vector has none.
const STEP_MS: f64 = 0.5;

/// A window limit that is never reached.
const FREE: f64 = 1e9;

/// Scenarios, by the id of the vector that defined them.
#[derive(Debug, Default)]
pub(super) struct Cases {
    seen: HashMap<String, Scenario>,
    /// The last run. Vectors often ask for several times of the same run in order.
    last: Option<Fluid>,
}

/// Maximum of steps times groups for one line. It takes up to a quarter of a minute, since further
/// lines wait.
const MOST_WORK: f64 = 1e8;

impl Cases {
    /// The state at time `t`.
    pub(super) fn run(&mut self, input: &Input<'_>, id: Option<&str>) -> Result<Value, EvalError> {
        let scenario = self.scenario(input, id)?;
        let time_ms = input.number("t")?;
        scenario.check_work(time_ms, MOST_WORK)?;
        let last = self.last.take().filter(|run| *run.scenario() == scenario && run.time_ms() <= time_ms);
        let mut run = match last {
            Some(run) => run,
            None => Fluid::new(scenario)?,
        };
        run.advance(time_ms)?;
        let state = run.state();
        self.last = Some(run);
        Ok(json!({ "w": state.windows, "q": state.queue, "p": state.loss, "goodput": state.goodput }))
    }

    /// The equilibrium of the scenario.
    pub(super) fn steady(&mut self, input: &Input<'_>) -> Result<Value, EvalError> {
        let scenario = self.scenario(input, None)?;
        let rest = equilibrium(&scenario)?.ok_or_else(|| {
            EvalError::Parameter(ropewalk_tuning::model::ParameterError::Combination(
                "no point of rest".into(),
            ))
        })?;
        let windows = rest.windows;
        let alike = windows.windows(2).all(|pair| pair[0] == pair[1]);
        let window = if alike { json!(windows.first()) } else { json!(windows) };
        let mut out = json!({ "w": window, "q": rest.queue, "p": rest.loss });
        if let [group] = scenario.groups[..] {
            out["R"] = json!(group.delay_ms + rest.queue / scenario.bandwidth);
            out["goodput"] = json!(rest.goodput);
        }
        Ok(out)
    }

    /// The scenario in "params": an object, "see ID", or the default of the case.
    fn scenario(&mut self, input: &Input<'_>, id: Option<&str>) -> Result<Scenario, EvalError> {
        let case = || {
            input.text("case").and_then(|case| {
                known(case).ok_or_else(|| wrong("case", &json!(case), "F1, F2, F3, F4 or parameters"))
            })
        };
        match input.get("params") {
            Some(Value::Object(_)) => {
                let scenario = scenario(&Input::new(input.need("params")?)?)?;
                if let Some(id) = id {
                    self.seen.insert(id.to_owned(), scenario.clone());
                }
                Ok(scenario)
            }
            Some(Value::String(text)) => match text.strip_prefix("see ").and_then(|id| self.seen.get(id)) {
                Some(scenario) => Ok(scenario.clone()),
                None => case(),
            },
            Some(other) => Err(wrong("params", other, "an object")),
            None => case(),
        }
    }
}

fn group(connections: f64, delay_ms: f64, window_limit: f64) -> Group {
    Group { connections, delay_ms, window_limit, window: 2.0 }
}

/// The cases that the test vectors refer to by name.
fn known(case: &str) -> Option<Scenario> {
    let red = Drop::Red(Red { min: 0.0, max: 800.0, max_loss: 0.05, weight: 0.002 });
    let (groups, drop, queue_limit) = match case {
        "F1" => (vec![group(60.0, 100.0, FREE)], red, 5000.0),
        "F2" => (vec![group(30.0, 20.0, FREE)], Drop::Tail, 50.0),
        "F3" => (vec![group(10.0, 100.0, 65536.0 / 1500.0)], Drop::Tail, 50.0),
        "F4" => (vec![group(20.0, 50.0, FREE), group(20.0, 150.0, FREE)], red, 5000.0),
        _ => return None,
    };
    let coupling = if drop == red { Coupling::Paper } else { Coupling::Physical };
    Some(Scenario { bandwidth: 25.0 / 3.0, groups, queue_limit, drop, coupling, step_ms: Some(STEP_MS) })
}

fn scenario(params: &Input<'_>) -> Result<Scenario, EvalError> {
    let mut groups = Vec::new();
    for value in params.list("groups")? {
        let numbers: Option<Vec<f64>> =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        match numbers.as_deref() {
            Some(&[connections, delay_ms, window_limit, window]) => {
                groups.push(Group { connections, delay_ms, window_limit, window });
            }
            _ => return Err(wrong("groups", value, "[connections, delay, largest window, first window]")),
        }
    }
    let drop = match params.text("drop")? {
        "tail" => Drop::Tail,
        "red" => Drop::Red(Red {
            min: params.number("minth")?,
            max: params.number("maxth")?,
            max_loss: params.number("maxp")?,
            weight: params.number("wq")?,
        }),
        _ => return Err(wrong("drop", params.need("drop")?, "tail or red")),
    };
    let coupling = match params.text("coupling")? {
        "paper" => Coupling::Paper,
        "physical" => Coupling::Physical,
        _ => return Err(wrong("coupling", params.need("coupling")?, "paper or physical")),
    };
    let mut scenario = Scenario {
        bandwidth: params.number("B")?,
        groups,
        queue_limit: params.number("Q")?,
        drop,
        coupling,
        step_ms: params.get("dt").map(|_| params.number("dt")).transpose()?,
    };
    scenario.check().map_err(|error: FluidError| EvalError::from(error))?;
    // The vectors use half a millisecond unless the method needs a shorter step.
    scenario.step_ms.get_or_insert(STEP_MS.min(scenario.step()));
    Ok(scenario)
}
