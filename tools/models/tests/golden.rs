//! Test vectors that were computed independently of this crate, evaluated as `ropewalk model eval`
//! does.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use ropewalk_models::eval::Evaluator;
use ropewalk_tuning::model::{Path, goodput};
use serde_json::Value;

const VECTORS: &str = include_str!("golden.jsonl");
const NS2: &str = include_str!("ns2.jsonl");

/// The first difference of `got` from `expected`. Numbers may differ by `relative`, or by the
/// absolute tolerance of their key.
fn difference(expected: &Value, got: &Value, relative: f64, absolute: &Value, key: &str) -> Option<String> {
    match (expected, got) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64()?, b.as_f64()?);
            let slack = (relative * a.abs()).max(absolute.get(key).and_then(Value::as_f64).unwrap_or(0.0));
            // The vectors have twelve digits.
            let slack = slack.max(1e-11 * a.abs()).max(if a == 0.0 { relative } else { 0.0 });
            ((a - b).abs() > slack).then(|| format!("{key}: expected {a}, got {b}"))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).find_map(|(a, b)| difference(a, b, relative, absolute, key))
        }
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            a.iter().find_map(|(key, value)| difference(value, &b[key], relative, absolute, key))
        }
        _ => (expected != got).then(|| format!("{key}: expected {expected}, got {got}")),
    }
}

#[test]
fn evaluator_matches_every_vector() {
    let mut evaluator = Evaluator::default();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in VECTORS.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let (answer, error) = evaluator.line(line);
        assert_eq!(error, None, "{line}");
        assert_eq!(answer["id"], vector["id"]);
        let relative = vector["tol"].as_f64().unwrap();
        if let Some(text) = difference(&vector["out"], &answer["out"], relative, &vector["abs_tol"], "") {
            wrong.push(format!("{}: {text}", vector["id"]));
        }
        *counts.entry(vector["group"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(counts.values().sum::<usize>(), VECTORS.lines().count());
    assert_eq!(counts.len(), 24, "{counts:?}");
}

/// The model at the round-trip times that ns-2 measured.
#[test]
fn goodput_matches_the_model_values_beside_ns_2() {
    for line in NS2.lines() {
        let run: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| run["in"][key].as_f64().or(run["out"][key].as_f64()).unwrap();
        let bandwidth = number("B_bps") / (8000.0 * number("packet"));
        let path = Path::new(bandwidth, number("mean_rtt_ms"), number("W_packets")).unwrap();
        let steady = goodput(&path, number("N") as u64).unwrap();
        let (expected, loss) = (number("model_goodput_at_that_rtt"), number("model_loss"));
        assert!((steady.goodput - expected).abs() < 1e-4 * expected.max(1.0), "{} {steady:?}", run["id"]);
        assert!((steady.loss - loss).abs() < 1e-4 * loss.max(0.02), "{} {steady:?}", run["id"]);
    }
}

#[test]
fn line_of_invalid_vector_reports_error() {
    for (line, expected) in [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "\"group\" is missing"),
        (r#"{"group":"nonsense","in":{}}"#, "group \"nonsense\" is not known"),
        (r#"{"group":5,"in":{}}"#, "\"group\" is 5: expected a text"),
        (r#"{"group":"x_star"}"#, "\"in\" is missing"),
        (r#"{"group":"x_star","in":7}"#, "\"in\" is 7: expected an object"),
        (r#"{"group":"x_star","in":{}}"#, "\"W\" is missing"),
        (r#"{"group":"x_star","in":{"W":"a"}}"#, "\"W\" is \"a\": expected a number"),
        (r#"{"group":"x_star","in":{"W":-1}}"#, "window is -1 packets: expected"),
        (r#"{"group":"w_of_p","in":{"p":0}}"#, "loss is 0: expected"),
        (
            r#"{"group":"optimum","in":{"B":1e300,"R_ms":1,"W_packets":1}}"#,
            "bandwidth is 1e300 packets/ms: expected",
        ),
        (r#"{"group":"optimum","in":{"B":1,"R_ms":0,"W_packets":1}}"#, "RTT is 0 ms"),
        (r#"{"group":"fig6","in":{"B":1,"R_ms":1,"W_packets":1,"N":0}}"#, "number of streams is 0"),
        (
            r#"{"group":"fig6","in":{"B":1,"R_ms":1,"W_packets":1,"N":1.5}}"#,
            "\"N\" is 1.5: expected a whole number",
        ),
        (r#"{"group":"n_opt_lossy","in":{"B":1,"R_ms":1,"W_packets":1,"p_bg":1}}"#, "loss is 1: expected"),
        (r#"{"group":"buffers","in":{"P":1,"D":[-1]}}"#, "\"D\" is -1: expected a whole number"),
        (r#"{"group":"fluid.F9","in":{"case":"F9","t":1}}"#, "\"case\" is \"F9\""),
        (r#"{"group":"fluid.F2","in":{"case":"F2","t":1e300}}"#, "time is 1e300 ms"),
        (r#"{"group":"fluid.F2","in":{"case":"F2","t":1e11}}"#, "too much work"),
        (r#"{"group":"apt.next","in":{"l":3,"m":2,"r":1}}"#, "\"m\" is 2: expected a number between"),
        (
            r#"{"group":"apt","in":{"G":{"1":-1},"N0":1,"g0":1,"alpha":2,"rule":"golden","delta":1}}"#,
            "G is -1: expected",
        ),
        (
            r#"{"group":"apt","in":{"G":{},"N0":1,"g0":1,"alpha":2,"rule":"golden","delta":1}}"#,
            "\"G\" is {}: expected",
        ),
        (
            r#"{"group":"apt","in":{"G":{"01":1},"N0":1,"g0":1,"alpha":2,"rule":"golden","delta":1}}"#,
            "\"G\" is {\"01\":1}: expected",
        ),
        (
            r#"{"group":"apt","in":{"peak":9,"N0":10,"nmax":5,"g0":1,"alpha":2,"rule":"golden","delta":1}}"#,
            "\"N0\" is 10: expected",
        ),
        (
            r#"{"group":"apt","in":{"B":1,"R_ms":1,"W_packets":1,"N0":4,"g0":"some","alpha":2,"rule":"golden","delta":1}}"#,
            "\"g0\" is \"some\": expected",
        ),
    ] {
        let (answer, error) = Evaluator::default().line(line);
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.starts_with(expected) || error.contains("work") && expected == "too much work",
            "{line}: {error}"
        );
        assert_eq!(answer["error"], error.as_str());
    }
}

/// Cases that the golden vectors do not contain.
#[test]
fn line_with_unusual_fluid_run_or_search_is_evaluated() {
    let out = |line: &str| {
        let (answer, error) = Evaluator::default().line(line);
        assert!(error.is_none(), "{answer}");
        answer["out"].clone()
    };
    // Each group has its own window in the result, even if some groups are equal.
    let link = r#""Q":50,"drop":"tail","coupling":"physical""#;
    let four = r#"[[1,100,20,2],[1,100,20,2],[1,100,9,2],[1,100,20,2]]"#;
    let rest =
        out(&format!(r#"{{"group":"fluid.x.steady","in":{{"params":{{"B":8.3,"groups":{four},{link}}}}}}}"#));
    assert_eq!(rest["w"], serde_json::json!([20.0, 20.0, 9.0, 20.0]));
    // A step of half a millisecond is too long for this scenario: with it the run settled without
    // loss.
    let one = r#"{"B":8.3,"groups":[[1,20,1000000,2]],"#;
    let run = out(&format!(r#"{{"group":"fluid.x","in":{{"t":60000,"params":{one}{link}}}}}}}"#));
    assert!((run["p"].as_f64().unwrap() / 3.17e-5 - 1.0).abs() < 0.01, "{run}");
    // A search that adds one stream per step ends.
    let slow = r#"{"group":"apt","in":{"N0":1,"alpha":1.001,"rule":"golden","delta":1,"g0":1,"peak":5000}}"#;
    assert_eq!(out(slow)["N_final"], 5000);
    let (answer, error) = Evaluator::default().broken("{\"id\": \"x\"");
    assert!(error.is_some() && answer["error"].as_str().unwrap().contains("no UTF-8"), "{answer}");
}
