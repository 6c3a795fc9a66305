//! Evaluates test vectors: `{"id":…,"group":…,"in":{…}}` becomes `{"id":…,"out":{…}}`, with the
//! keys of vectors of that group. `ropewalk model eval` and the tests of this crate use it.
//!
//! Groups: `units.B`, `units.W`, `p_of_w`, `w_of_p`, `p_of_BRN`, `fig2_3`, `fig4_5`, `fig6`,
//! `optimum`, `x_star`, `x_star_ext`, `w_opt`, `n_opt_lossy`, `physical`, `fluid.*`,
//! `fluid.*.steady`, `apt`, `apt.next`, `buffers`, `buffers.paper`.

mod apt;
mod buffers;
mod fluid;
mod input;
mod model;

use serde_json::{Value, json};
use thiserror::Error;

use crate::fluid::FluidError;
use input::Input;
use ropewalk_tuning::model::ParameterError;

/// Why a vector has no result.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EvalError {
    /// The line is not a JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// A member is missing.
    #[error("{0:?} is missing")]
    Missing(String),
    /// A member has the wrong type or an unusable value.
    #[error("{key:?} is {value}: expected {expected}")]
    Kind {
        /// Name of the member.
        key: String,
        /// Its value.
        value: String,
        /// The expected type or range.
        expected: &'static str,
    },
    /// The group is unknown.
    #[error("group {0:?} is not known")]
    Group(String),
    /// A parameter is outside the limits of the models.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A scenario that cannot be simulated.
    #[error(transparent)]
    Fluid(#[from] FluidError),
    /// A search that did not end.
    #[error("the search does not settle")]
    Unsettled,
}

/// Evaluates vectors one after the other. It stores parameters that later vectors refer to ("see
/// fluid.F1/000").
#[derive(Debug, Default)]
pub struct Evaluator {
    fluid: fluid::Cases,
    /// Number of lines read so far.
    lines: u64,
}

impl Evaluator {
    /// Starts another file: the line number restarts.
    pub fn begin(&mut self) {
        self.lines = 0;
    }

    /// Counts a line that is skipped.
    pub fn skip(&mut self) {
        self.lines += 1;
    }

    /// Returns the answer to the next line, which is not UTF-8; `shown` is its readable part.
    pub fn broken(&mut self, shown: &str) -> (Value, Option<EvalError>) {
        self.lines += 1;
        let error = EvalError::Json(format!("line {}: it is no UTF-8", self.lines));
        (json!({ "id": identity(shown), "error": error.to_string() }), Some(error))
    }

    /// Returns the answer to the next line: `{"id":…,"out":{…}}`, or `{"id":…,"error":"…"}` and the
    /// error.
    pub fn line(&mut self, line: &str) -> (Value, Option<EvalError>) {
        self.lines += 1;
        let entry: Value = match serde_json::from_str(line) {
            Ok(entry) => entry,
            Err(error) => {
                let what = error.to_string();
                let what = what.split(" at line ").next().unwrap_or_default();
                let error =
                    EvalError::Json(format!("line {}, column {}: {what}", self.lines, error.column()));
                return (json!({ "id": identity(line), "error": error.to_string() }), Some(error));
            }
        };
        let id = entry.get("id").cloned().unwrap_or(Value::Null);
        match self.entry(&entry) {
            Ok(out) => (json!({ "id": id, "out": out }), None),
            Err(error) => (json!({ "id": id, "error": error.to_string() }), Some(error)),
        }
    }

    /// Returns the result of one vector.
    ///
    /// # Errors
    /// The vector has an unknown group, lacks a member, or has unusable numbers.
    pub fn entry(&mut self, entry: &Value) -> Result<Value, EvalError> {
        let object = entry.as_object().ok_or_else(|| EvalError::Json(input::short(entry)))?;
        let group = match object.get("group") {
            Some(Value::String(group)) => group.as_str(),
            Some(other) => return Err(input::wrong("group", other, "a text")),
            // The group is the beginning of the id.
            None => match object.get("id").and_then(Value::as_str).and_then(|id| id.rsplit_once('/')) {
                Some((group, _)) => group,
                None => return Err(EvalError::Missing("group".into())),
            },
        };
        let input = Input::new(object.get("in").ok_or_else(|| EvalError::Missing("in".into()))?)?;
        match group {
            "units.B" => model::bandwidth(&input),
            "units.W" => model::window(&input),
            "p_of_w" => model::loss(&input),
            "w_of_p" => model::window_at_loss(&input),
            "p_of_BRN" => model::saturated(&input),
            "fig2_3" | "fig4_5" | "fig6" => model::steady(&input),
            "optimum" => model::optimum(&input),
            "x_star" => model::x_star(&input, true),
            "x_star_ext" => model::x_star(&input, false),
            "w_opt" => model::window_needed(&input),
            "n_opt_lossy" => model::lossy(&input),
            "physical" => model::physical(&input),
            "apt" => apt::search(&input),
            "apt.next" => apt::next(&input),
            "buffers" => buffers::policies(&input),
            "buffers.paper" => buffers::paper(&input),
            _ => match group.strip_prefix("fluid.") {
                Some(case) => match case.strip_suffix(".steady") {
                    Some(_) => self.fluid.steady(&input),
                    None => self.fluid.run(&input, object.get("id").and_then(Value::as_str)),
                },
                None => Err(EvalError::Group(group.to_owned())),
            },
        }
    }
}

/// Finds the id in a line that is not valid JSON, so that the user sees which vector the error is
/// about.
fn identity(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("\"id\"")?;
    let text = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (id, _) = text.split_once('"')?;
    (!id.contains('\\')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_invalid_json_reports_position_and_id() {
        let mut evaluator = Evaluator::default();
        evaluator.skip();
        let (answer, error) = evaluator.line(r#"{"id": "p_of_w/7", "in": {"w": NaN}}"#);
        assert!(error.is_some());
        assert_eq!(answer["id"], "p_of_w/7");
        let text = answer["error"].as_str().unwrap_or_default();
        assert!(text.starts_with("not a JSON object: line 2, column 3"), "{text}");
        for junk in ["junk", "{\"id\": 3", "{\"id\": \"a\\\"b\", }", "{\"id\""] {
            assert_eq!(evaluator.line(junk).0["id"], Value::Null, "{junk}");
        }
    }
}
