//! Validates JSON against a JSON schema (draft 2020-12), limited to the keywords that Ropewalk's
//! schemas use.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Keywords that are checked here or that do not restrict values. Any other keyword is an error, so
/// that a missing check cannot pass unnoticed.
const KNOWN: [&str; 19] = [
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "default",
    "format",
    "type",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "enum",
    "const",
    "oneOf",
    "anyOf",
    "minimum",
    "maximum",
    "propertyNames",
];

/// Checks `value` against `schema`.
///
/// # Errors
///
/// Returns the place in `value` and the rule that it violates.
pub fn validate(value: &Value, schema: &Value) -> Result<()> {
    check(value, schema, schema, "")
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str) -> Result<()> {
    let Some(rules) = schema.as_object() else {
        ensure!(schema == &Value::Bool(true), "{at}: nothing is allowed here");
        return Ok(());
    };
    if let Some(unknown) = rules.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        bail!("the schema has {unknown}, which is not checked here");
    }
    if let Some(reference) = rules.get("$ref") {
        let reference =
            reference.as_str().and_then(|text| text.strip_prefix('#')).context("a foreign $ref")?;
        check(value, root.pointer(reference).context("a $ref to nothing")?, root, at)?;
    }
    if let Some(kinds) = rules.get("type") {
        let kinds = kinds.as_array().cloned().unwrap_or_else(|| vec![kinds.clone()]);
        ensure!(kinds.iter().any(|kind| is(value, kind.as_str())), "{at}: {value} is none of {kinds:?}");
    }
    if let Some(allowed) = rules.get("enum").and_then(Value::as_array) {
        ensure!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    if let Some(only) = rules.get("const") {
        ensure!(only == value, "{at}: {value} is not {only}");
    }
    for (bound, over) in [("minimum", -1.0), ("maximum", 1.0)] {
        if let (Some(bound), Some(number)) = (rules.get(bound).and_then(Value::as_f64), value.as_f64()) {
            ensure!((number - bound) * over <= 0.0, "{at}: {number} is beyond {bound}");
        }
    }
    for (word, several) in [("anyOf", true), ("oneOf", false)] {
        if let Some(choices) = rules.get(word).and_then(Value::as_array) {
            let fit = choices.iter().filter(|choice| check(value, choice, root, at).is_ok()).count();
            ensure!(fit == 1 || several && fit > 1, "{at}: {value} fits {fit} of {} choices", choices.len());
        }
    }
    if let (Some(items), Some(list)) = (rules.get("items"), value.as_array()) {
        for (number, item) in list.iter().enumerate() {
            check(item, items, root, &format!("{at}/{number}"))?;
        }
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    for name in rules.get("required").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        ensure!(object.contains_key(name), "{at}: there is no {name}");
    }
    for (name, member) in object {
        let place = format!("{at}/{name}");
        match (rules.get("properties").and_then(|all| all.get(name)), rules.get("additionalProperties")) {
            (Some(rule), _) | (None, Some(rule)) => check(member, rule, root, &place)?,
            // A member that the schema does not describe is an error.
            (None, None) if rules.contains_key("properties") => bail!("{place}: the schema does not know it"),
            (None, None) => {}
        }
    }
    Ok(())
}

fn is(value: &Value, kind: Option<&str>) -> bool {
    match kind {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn validate_invalid_value_fails() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": { "type": "integer", "minimum": 0 },
                "kind": { "oneOf": [{ "const": "a" }, { "$ref": "#/$defs/pair" }] },
            },
            "required": ["n"],
            "$defs": { "pair": { "type": "array", "items": { "type": ["string", "null"] } } },
        });
        for good in [json!({"n": 1}), json!({"n": 1, "kind": "a"}), json!({"n": 0, "kind": ["x", null]})] {
            validate(&good, &schema).unwrap();
        }
        for bad in [
            json!([]),
            json!({}),
            json!({"n": -1}),
            json!({"n": 1.5}),
            json!({"n": 1, "kind": "b"}),
            json!({"n": 1, "kind": [1]}),
            json!({"n": 1, "other": 1}),
        ] {
            assert!(validate(&bad, &schema).is_err(), "{bad}");
        }
        assert!(validate(&json!(1), &json!({"multipleOf": 2})).is_err());
    }
}
