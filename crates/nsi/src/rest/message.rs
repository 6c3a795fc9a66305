//! Messages of the NSI Aggregator Proxy: JSON, as its documentation describes them
//! (<https://github.com/workfloworchestrator/nsi-aggregator-proxy>).
//!
//! Members that are not known are ignored. Texts for people are shortened.

use serde::{Deserialize, Serialize};

/// The longest message about one reservation in bytes.
pub const LONGEST: usize = 1 << 20;
/// The longest list of reservations in bytes. The proxy lists those of all its users.
pub const LONGEST_LIST: usize = 16 << 20;
/// The most characters of a text for people.
const LONGEST_TEXT: usize = 1000;

/// The body of `POST /reservations`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserve<'a> {
    /// `urn:uuid:` and a UUID: the name by which it is found if the answer is lost.
    pub global_reservation_id: &'a str,
    pub description: &'a str,
    pub criteria: WantedCriteria<'a>,
    #[serde(rename = "requesterNSA")]
    pub requester: &'a str,
    #[serde(rename = "providerNSA")]
    pub provider: &'a str,
    #[serde(rename = "callbackURL")]
    pub callback: &'a str,
}

/// The wanted service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedCriteria<'a> {
    pub service_type: &'a str,
    pub p2ps: WantedPath<'a>,
}

/// The wanted ends and rate.
#[derive(Clone, Debug, Serialize)]
pub struct WantedPath<'a> {
    /// Mbit/s, above 0.
    pub capacity: u64,
    #[serde(rename = "sourceSTP")]
    pub source: &'a str,
    #[serde(rename = "destSTP")]
    pub destination: &'a str,
}

/// The body of requests that change a reservation.
#[derive(Clone, Debug, Serialize)]
pub struct Change<'a> {
    #[serde(rename = "callbackURL")]
    pub callback: &'a str,
}

/// The state of a reservation at the proxy, which maps the state machines of NSI to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    Reserving,
    Reserved,
    Activating,
    Activated,
    Deactivating,
    Failed,
    Terminated,
}

/// A reservation, in answers and in calls to the listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    pub connection_id: String,
    #[serde(default)]
    pub global_reservation_id: Option<String>,
    #[serde(default)]
    pub criteria: Option<Criteria>,
    pub status: Status,
    #[serde(default)]
    last_error: Option<String>,
}

/// The service that the network has confirmed.
#[derive(Clone, Debug, Deserialize)]
pub struct Criteria {
    pub p2ps: ConfirmedPath,
}

/// The confirmed ends and rate.
#[derive(Clone, Debug, Deserialize)]
pub struct ConfirmedPath {
    /// Mbit/s.
    pub capacity: u64,
    #[serde(rename = "sourceSTP")]
    pub source: String,
}

#[derive(Debug, Deserialize)]
struct List {
    reservations: Vec<Detail>,
}

#[derive(Debug, Deserialize)]
struct Accepted {
    instance: String,
}

/// The body of an answer with an error status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    /// A text or, in errors of the proxy's framework, a list.
    detail: serde_json::Value,
    errors: Vec<FieldError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FieldError {
    field: String,
    reason: String,
}

impl Detail {
    /// # Errors
    /// It is too long or of another form.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let detail: Self = parse(bytes, LONGEST)?;
        match is_name(&detail.connection_id) {
            true => Ok(detail),
            false => Err(format!("{:?} is not the name of a reservation", short(&detail.connection_id))),
        }
    }

    /// The reason of the last failure, for people.
    pub fn failure(&self) -> String {
        match self.last_error.as_deref().map(short) {
            Some(text) if !text.is_empty() => text,
            _ => "the provider gives no reason".to_owned(),
        }
    }
}

/// Parses the answer to `GET /reservations`.
///
/// # Errors
/// It is too long or of another form.
pub fn parse_list(bytes: &[u8]) -> Result<Vec<Detail>, String> {
    parse::<List>(bytes, LONGEST_LIST).map(|list| list.reservations)
}

/// The name of the reservation in the answer to an accepted request.
///
/// # Errors
/// It is too long or of another form.
pub fn accepted(bytes: &[u8]) -> Result<String, String> {
    let Accepted { instance } = parse(bytes, LONGEST)?;
    match instance.rsplit_once("/reservations/") {
        Some((_, name)) if is_name(name) => Ok(name.to_owned()),
        _ => Err(format!("{:?} names no reservation", short(&instance))),
    }
}

/// The reason in an answer with an error status, for people. Empty if there is none.
pub fn problem(bytes: &[u8]) -> String {
    let Ok(Problem { detail, errors }) = parse::<Problem>(bytes, LONGEST) else { return String::new() };
    let mut text = match detail {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    for FieldError { field, reason } in errors {
        text += &format!(" ({field}: {reason})");
    }
    short(&text)
}

/// Whether the text can be the name of a reservation: it becomes a part of URLs.
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':' | b'~' | b'.');
    (1..=200).contains(&text.len()) && text.bytes().all(plain) && text.bytes().any(|byte| byte != b'.')
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8], longest: usize) -> Result<T, String> {
    if bytes.len() > longest {
        return Err(format!("the answer is longer than {longest} bytes"));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("the answer is not as expected: {error}"))
}

fn short(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reservation_of_the_documentation_is_read() {
        let text = br#"{"globalReservationId":"urn:uuid:5fa943ae-32e8-4faa-9080-0bbdc0f405e8",
            "connectionId":"9adfed42-fa58-4d26-bf74-9f5e14ab2281","description":"d","criteria":{"version":1,
            "serviceType":"t","p2ps":{"capacity":1000,"sourceSTP":"urn:a?vlan=1790","destSTP":"urn:b"}},
            "status":"FAILED","lastError":"no\nport","segments":null}"#;
        let detail = Detail::parse(text).unwrap();
        assert_eq!((detail.status, &*detail.failure()), (Status::Failed, "no port"));
        assert_eq!(detail.criteria.unwrap().p2ps.capacity, 1000);
        let without = br#"{"connectionId":"a","description":"d","status":"RESERVED"}"#;
        assert_eq!(Detail::parse(without).unwrap().global_reservation_id, None);
    }

    #[test]
    fn name_that_is_no_part_of_a_url_is_refused() {
        let instance = |text: &str| accepted(format!(r#"{{"instance":"{text}"}}"#).as_bytes());
        assert_eq!(instance("/reservations/9adf-1"), Ok("9adf-1".to_owned()));
        assert_eq!(instance("/aggregator-proxy/reservations/a"), Ok("a".to_owned()));
        for text in ["/reservations/", "/reservations/a/b", "/reservations/..", "/reservations/a?x", "a", ""]
        {
            assert!(instance(text).is_err(), "{text}");
        }
        let detail = Detail::parse(br#"{"connectionId":"../x","status":"RESERVED"}"#);
        assert!(detail.unwrap_err().contains("not the name"));
        let unknown = Detail::parse(br#"{"connectionId":"a","status":"PAUSED"}"#).unwrap_err();
        assert!(unknown.contains("PAUSED"), "{unknown}");
    }

    #[test]
    fn problem_is_worded_whatever_its_form() {
        let fields = br#"{"detail":"bad","errors":[{"field":"sourceSTP","reason":"not found"}]}"#;
        assert_eq!(problem(fields), "bad (sourceSTP: not found)");
        assert_eq!(problem(br#"{"detail":[{"msg":"x"}]}"#), r#"[{"msg":"x"}]"#);
        assert_eq!(problem(b"<html>"), "");
        assert_eq!(problem(br#"{"title":"x"}"#), "");
    }
}
