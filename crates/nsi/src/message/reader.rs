//! Reads messages of the provider by the rules of OGF's schemas.
//!
//! The input is that of strangers. There is no DTD, so there are no entities but those of XML
//! itself, and a limited number of nodes. A message that lacks an element that its kind must have,
//! or has a value of another type, is refused as a whole: half of a message is no state of a path.
//! Elements that the schemas do not have are ignored, and so is the order.

use std::time::Duration;

use ropewalk_paths::Id;
use roxmltree::{Document, Node, ParsingOptions};

use super::{
    Body, CONNECTION, Confirmed, HEADERS, LONGEST, Message, MessageError, POINT_TO_POINT, SOAP, ServiceError,
    Summary, vlan,
};
use crate::time;

/// The most nodes of a message.
const MOST_NODES: u32 = 20_000;

const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The values of `ReservationStateEnumType`, and so on.
const RESERVATION_STATES: &[&str] = &[
    "ReserveStart",
    "ReserveChecking",
    "ReserveFailed",
    "ReserveAborting",
    "ReserveHeld",
    "ReserveCommitting",
    "ReserveTimeout",
];
const PROVISION_STATES: &[&str] = &["Released", "Provisioning", "Provisioned", "Releasing"];
const LIFECYCLE_STATES: &[&str] = &["Created", "Failed", "PassedEndTime", "Terminating", "Terminated"];
const EVENTS: &[&str] = &["activateFailed", "deactivateFailed", "dataplaneError", "forcedEnd"];
const DIRECTIONS: &[&str] = &["Bidirectional", "Unidirectional"];

/// The messages of the service that no requester gets from its provider.
const OTHERS: &[&str] = &[
    "reserve",
    "reserveCommit",
    "reserveAbort",
    "provision",
    "release",
    "terminate",
    "querySummary",
    "querySummarySync",
    "queryRecursive",
    "queryRecursiveConfirmed",
    "queryNotification",
    "queryNotificationConfirmed",
    "queryNotificationSync",
    "queryNotificationSyncConfirmed",
    "queryResult",
    "queryResultConfirmed",
    "queryResultSync",
    "queryResultSyncConfirmed",
];

type Result<T> = std::result::Result<T, MessageError>;

/// Parses a message.
///
/// # Errors
/// It is too long, not XML, has a DTD or too many nodes, or breaks a rule of the schemas.
pub fn parse(bytes: &[u8]) -> Result<Message> {
    if bytes.len() > LONGEST {
        return Err(MessageError::TooLong);
    }
    let text = str::from_utf8(bytes).map_err(|_| MessageError::NotText)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    let document =
        Document::parse_with_options(text, options).map_err(|error| MessageError::Xml(error.to_string()))?;
    let envelope = document.root_element();
    if !envelope.has_tag_name((SOAP, "Envelope")) {
        return Err(MessageError::Missing("SOAP envelope"));
    }
    let part = |name| envelope.children().find(|node| node.has_tag_name((SOAP, name)));
    let body = part("Body").ok_or(MessageError::Missing("SOAP body"))?;
    let content = body.children().find(Node::is_element).ok_or(MessageError::Missing("content"))?;
    let header = part("Header")
        .and_then(|header| header.children().find(|node| node.has_tag_name((HEADERS, "nsiHeader"))));
    if header.is_none() && content.has_tag_name((SOAP, "Fault")) {
        let nothing = String::new;
        return Ok(Message {
            correlation: nothing(),
            requester: nothing(),
            provider: nothing(),
            body: read_body(content)?,
        });
    }
    let header = header.ok_or(MessageError::Missing("NSI header"))?;
    required(header, "protocolVersion")?;
    Ok(Message {
        correlation: uuid(required(header, "correlationId")?)?,
        requester: text_of(required(header, "requesterNSA")?),
        provider: text_of(required(header, "providerNSA")?),
        body: read_body(content)?,
    })
}

fn read_body(content: Node<'_, '_>) -> Result<Body> {
    if content.has_tag_name((SOAP, "Fault")) {
        return fault(content).map(Body::Error);
    }
    let name = content.tag_name().name();
    if content.tag_name().namespace() != Some(CONNECTION) {
        return Err(MessageError::Unknown(name.to_owned()));
    }
    let confirmed = |confirmed| connection(content).map(|id| Body::Confirmed(confirmed, id));
    match name {
        "acknowledgment" => Ok(Body::Acknowledgment),
        "reserveResponse" => connection(content).map(Body::ReserveResponse),
        "reserveConfirmed" => {
            criteria(required(content, "criteria")?)?;
            summary(content).map(Body::Held)
        }
        "reserveCommitConfirmed" => confirmed(Confirmed::Commit),
        "reserveAbortConfirmed" => confirmed(Confirmed::Abort),
        "provisionConfirmed" => confirmed(Confirmed::Provision),
        "releaseConfirmed" => confirmed(Confirmed::Release),
        "terminateConfirmed" => confirmed(Confirmed::Terminate),
        "reserveFailed" | "reserveCommitFailed" => {
            states(required(content, "connectionStates")?)?;
            let error = service_error(required(content, "serviceException")?)?;
            Ok(Body::Failed { connection: connection(content)?, error })
        }
        "error" => service_error(required(content, "serviceException")?).map(Body::Error),
        "querySummaryConfirmed" | "querySummarySyncConfirmed" => {
            let reservations = content.children().filter(|node| node.tag_name().name() == "reservation");
            reservations.map(reservation).collect::<Result<_>>().map(Body::Query)
        }
        "dataPlaneStateChange" | "errorEvent" | "reserveTimeout" | "messageDeliveryTimeout" => {
            notification(content, name)
        }
        name if OTHERS.contains(&name) => Ok(Body::Other(name.to_owned())),
        name => Err(MessageError::Unknown(name.to_owned())),
    }
}

fn notification(content: Node<'_, '_>, name: &str) -> Result<Body> {
    let connection = connection(content)?;
    long(required(content, "notificationId")?)?;
    date(required(content, "timeStamp")?)?;
    match name {
        "dataPlaneStateChange" => {
            data_plane(required(content, "dataPlaneStatus")?)?;
        }
        "messageDeliveryTimeout" => {
            uuid(required(content, "correlationId")?)?;
        }
        "errorEvent" => {
            one_of(required(content, "event")?, EVENTS)?;
            child(content, "serviceException").map(service_error).transpose()?;
        }
        _ => {
            int(required(content, "timeoutValue")?)?;
        }
    }
    if matches!(name, "errorEvent" | "reserveTimeout") {
        required(content, "originatingConnectionId")?;
        required(content, "originatingNSA")?;
    }
    Ok(Body::Notification { connection, name: name.to_owned() })
}

/// A connection in the answer to a query.
fn reservation(node: Node<'_, '_>) -> Result<Summary> {
    let states = states(required(node, "connectionStates")?)?;
    for name in ["notificationId", "resultId"] {
        child(node, name).map(long).transpose()?;
    }
    let requester = text_of(required(node, "requesterNSA")?);
    let States { reservation, provision, lifecycle, active } = states;
    Ok(Summary { requester, reservation, provision, lifecycle, active, ..summary(node)? })
}

/// The part that a confirmed reservation and one in a list have in common.
fn summary(node: Node<'_, '_>) -> Result<Summary> {
    let optional = |name| child(node, name).map(text_of).unwrap_or_default();
    let mut summary = Summary {
        connection: connection(node)?,
        global_id: optional("globalReservationId"),
        description: optional("description"),
        ..Summary::default()
    };
    let all = node.children().filter(|node| node.tag_name().name() == "criteria");
    // The last ones are in force.
    if let Some(last) = all.map(criteria).collect::<Result<Vec<_>>>()?.pop() {
        let Criteria { version, from, until, capacity, vlan } = last;
        summary = Summary { has_criteria: true, version, from, until, capacity, vlan, ..summary };
    }
    Ok(summary)
}

struct Criteria {
    version: u32,
    from: Option<Duration>,
    until: Option<Duration>,
    capacity: Option<u64>,
    vlan: Option<String>,
}

fn criteria(node: Node<'_, '_>) -> Result<Criteria> {
    let schedule = required(node, "schedule")?;
    required(node, "serviceType")?;
    let version = node
        .attribute("version")
        .ok_or_else(|| MessageError::Incomplete { place: place(node), name: "version" })?;
    let version = version.trim().parse::<i32>().map_err(|_| wrong(node, version, "a version"))?;
    let when = |name| match child(schedule, name) {
        Some(node) if matches!(node.attribute((XSI, "nil")), Some("true" | "1")) => Ok(None),
        Some(node) => date(node).map(Some),
        None => Ok(None),
    };
    let mut criteria = Criteria {
        version: u32::try_from(version).unwrap_or(0),
        from: when("startTime")?,
        until: when("endTime")?,
        capacity: None,
        vlan: None,
    };
    if let Some(service) = node.children().find(|node| node.has_tag_name((POINT_TO_POINT, "p2ps"))) {
        // A capacity below 0 is none.
        criteria.capacity = u64::try_from(long(required(service, "capacity")?)?).ok();
        one_of(required(service, "directionality")?, DIRECTIONS)?;
        child(service, "symmetricPath").map(boolean).transpose()?;
        criteria.vlan = vlan(&text_of(required(service, "sourceSTP")?));
        required(service, "destSTP")?;
    }
    Ok(criteria)
}

struct States {
    reservation: String,
    provision: String,
    lifecycle: String,
    active: bool,
}

fn states(node: Node<'_, '_>) -> Result<States> {
    Ok(States {
        reservation: one_of(required(node, "reservationState")?, RESERVATION_STATES)?,
        provision: one_of(required(node, "provisionState")?, PROVISION_STATES)?,
        lifecycle: one_of(required(node, "lifecycleState")?, LIFECYCLE_STATES)?,
        active: data_plane(required(node, "dataPlaneStatus")?)?,
    })
}

/// Whether the data plane is active.
fn data_plane(node: Node<'_, '_>) -> Result<bool> {
    int(required(node, "version")?)?;
    boolean(required(node, "versionConsistent")?)?;
    boolean(required(node, "active")?)
}

fn service_error(exception: Node<'_, '_>) -> Result<ServiceError> {
    required(exception, "nsaId")?;
    Ok(ServiceError {
        code: text_of(required(exception, "errorId")?),
        text: text_of(required(exception, "text")?),
    })
}

/// A SOAP fault. Its detail is for people, and read as far as it goes.
fn fault(fault: Node<'_, '_>) -> Result<ServiceError> {
    required(fault, "faultcode")?;
    let reason = text_of(required(fault, "faultstring")?);
    let exception = child(fault, "detail").and_then(|detail| child(detail, "serviceException"));
    let of = |name| exception.and_then(|exception| child(exception, name)).map(text_of).unwrap_or_default();
    let (code, text) = (of("errorId"), of("text"));
    Ok(ServiceError { code, text: if text.is_empty() { reason } else { text } })
}

/// The name of the connection, which is never empty.
fn connection(node: Node<'_, '_>) -> Result<String> {
    match text_of(required(node, "connectionId")?) {
        id if id.is_empty() => {
            Err(MessageError::Incomplete { place: place(node), name: "connectionId with a name" })
        }
        id => Ok(id),
    }
}

/// Elements within a message are not qualified in most programs, and are in some.
fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.is_element() && child.tag_name().name() == name)
}

fn required<'a, 'input>(node: Node<'a, 'input>, name: &'static str) -> Result<Node<'a, 'input>> {
    child(node, name).ok_or_else(|| MessageError::Incomplete { place: place(node), name })
}

/// The text of an element; empty if there is none. Texts for people are shortened.
fn text_of(node: Node<'_, '_>) -> String {
    const LONGEST_TEXT: usize = 1000;
    let text = node.text().unwrap_or_default().trim();
    text.chars().filter(|c| !c.is_control()).take(LONGEST_TEXT).collect()
}

fn typed<T>(node: Node<'_, '_>, expected: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T> {
    let text = text_of(node);
    read(&text).ok_or_else(|| wrong(node, &text, expected))
}

fn int(node: Node<'_, '_>) -> Result<i32> {
    typed(node, "a whole number", |text| text.parse().ok())
}

fn long(node: Node<'_, '_>) -> Result<i64> {
    typed(node, "a whole number", |text| text.parse().ok())
}

fn boolean(node: Node<'_, '_>) -> Result<bool> {
    typed(node, "true or false", |text| match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    })
}

fn date(node: Node<'_, '_>) -> Result<Duration> {
    typed(node, "a date and time with its zone, such as 2026-01-31T12:00:00Z", time::parse)
}

fn uuid(node: Node<'_, '_>) -> Result<String> {
    typed(node, "urn:uuid: and a UUID in small letters", |text| {
        text.strip_prefix("urn:uuid:")?.parse::<Id>().is_ok().then(|| text.to_owned())
    })
}

fn one_of(node: Node<'_, '_>, values: &[&str]) -> Result<String> {
    let text = text_of(node);
    match values.contains(&&*text) {
        true => Ok(text),
        false => Err(wrong(node, &text, &format!("one of {}", values.join(", ")))),
    }
}

fn wrong(node: Node<'_, '_>, value: &str, expected: &str) -> MessageError {
    const LONGEST_VALUE: usize = 60;
    let value = value.chars().take(LONGEST_VALUE).collect();
    MessageError::WrongValue { place: place(node), value, expected: expected.to_owned() }
}

/// The names of an element and of those around it, from the content of the message on.
fn place(node: Node<'_, '_>) -> String {
    let inner = node.ancestors().take_while(|node| {
        node.is_element()
            && !["Envelope", "Header", "Body"].iter().any(|name| node.has_tag_name((SOAP, *name)))
    });
    let mut names: Vec<&str> = inner.map(|node| node.tag_name().name()).collect();
    names.reverse();
    names.join("/")
}
