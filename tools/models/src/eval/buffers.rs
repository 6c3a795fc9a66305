//! Evaluates the division of buffers.

use serde_json::{Value, json};

use super::EvalError;
use super::input::{self, Input};
use ropewalk_tuning::buffers::{Policy, exact_shares, negotiate};

const BY_TABLE: Policy = Policy::MinimumThreshold { table_compat: true };
const BY_TEXT: Policy = Policy::MinimumThreshold { table_compat: false };

fn demands(input: &Input<'_>) -> Result<(u64, Vec<u64>), EvalError> {
    let demands =
        input.list("D")?.iter().map(|demand| input::whole("D", demand)).collect::<Result<_, _>>()?;
    Ok((input.whole("P")?, demands))
}

pub(super) fn policies(input: &Input<'_>) -> Result<Value, EvalError> {
    let (budget, demands) = demands(input)?;
    Ok(json!({
        "m": negotiate(Policy::MaxMin, budget, &demands),
        "w": negotiate(Policy::Weighted, budget, &demands),
        "t": negotiate(BY_TEXT, budget, &demands),
        "t_table_compat": negotiate(BY_TABLE, budget, &demands),
    }))
}

/// With the columns of the paper's tables.
pub(super) fn paper(input: &Input<'_>) -> Result<Value, EvalError> {
    let (budget, demands) = demands(input)?;
    Ok(json!({
        "m": negotiate(Policy::MaxMin, budget, &demands),
        "w": negotiate(Policy::Weighted, budget, &demands),
        "t": negotiate(BY_TABLE, budget, &demands),
        "w_exact": exact_shares(Policy::Weighted, budget, &demands),
    }))
}
