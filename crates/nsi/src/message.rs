//! Messages of the Connection Service 2.1: requests as text, and a parser of what the provider
//! sends.
//!
//! The parser is for input of strangers. It accepts no DTD, so there are no entities but those of
//! XML itself, and a limited number of nodes. It looks names up by their namespaces, and ignores
//! elements that it does not know.

use std::time::Duration;

use roxmltree::{Document, Node, ParsingOptions};

use crate::time;

/// The longest message in bytes.
pub const LONGEST: usize = 1 << 20;
/// The most nodes of a message.
const MOST_NODES: u32 = 20_000;

const SOAP: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const HEADERS: &str = "http://schemas.ogf.org/nsi/2013/12/framework/headers";
const CONNECTION: &str = "http://schemas.ogf.org/nsi/2013/12/connection/types";
const POINT_TO_POINT: &str = "http://schemas.ogf.org/nsi/2013/12/services/point2point";
const PROVIDER: &str = "application/vnd.ogf.nsi.cs.v2.provider+soap";
const REQUESTER: &str = "application/vnd.ogf.nsi.cs.v2.requester+soap";

/// The header of a request.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// `urn:uuid:` and a UUID.
    pub correlation: &'a str,
    pub requester: &'a str,
    pub provider: &'a str,
    /// The URL of the listener for results.
    pub reply_to: &'a str,
}

/// A path that is to be reserved.
#[derive(Clone, Copy, Debug)]
pub struct Reserve<'a> {
    /// `urn:uuid:` and a UUID: the name by which it is found if the answer is lost.
    pub global_id: &'a str,
    pub description: &'a str,
    /// Since 1970; `None`: as soon as possible.
    pub from: Option<Duration>,
    pub until: Duration,
    pub service_type: &'a str,
    /// Bits per second. The message has Mbit/s, rounded up.
    pub capacity: u64,
    pub bidirectional: bool,
    pub source: &'a str,
    pub destination: &'a str,
}

/// Makes the request `reserve`.
pub fn reserve(header: Header<'_>, reserve: &Reserve<'_>) -> String {
    let tag = |name: &str, value: &str| format!("<{name}>{}</{name}>", escaped(value));
    let from = reserve.from.map(|from| tag("startTime", &time::show(from))).unwrap_or_default();
    let direction = if reserve.bidirectional { "Bidirectional" } else { "Unidirectional" };
    let body = [
        "<c:reserve>".to_owned(),
        tag("globalReservationId", reserve.global_id),
        tag("description", reserve.description),
        "<criteria version=\"0\"><schedule>".to_owned(),
        from,
        tag("endTime", &time::show(reserve.until)),
        "</schedule>".to_owned(),
        tag("serviceType", reserve.service_type),
        format!("<p:p2ps xmlns:p=\"{POINT_TO_POINT}\">"),
        tag("capacity", &reserve.capacity.div_ceil(1_000_000).to_string()),
        tag("directionality", direction),
        tag("symmetricPath", "false"),
        tag("sourceSTP", reserve.source),
        tag("destSTP", reserve.destination),
        "</p:p2ps></criteria></c:reserve>".to_owned(),
    ];
    let trace = format!(
        "<t:ConnectionTrace xmlns:t=\"http://nordu.net/namespaces/2013/12/gnsbod\">\
         <Connection index=\"0\">{}:1</Connection></t:ConnectionTrace>",
        escaped(header.requester)
    );
    envelope(header, &trace, &body.concat())
}

/// Makes the request `reserve` that moves the end of a connection. `version` is that of the new
/// criteria, above the present one; criteria that are not named stay.
pub fn extend(header: Header<'_>, connection: &str, version: u32, until: Duration) -> String {
    let body = format!(
        "<c:reserve><connectionId>{}</connectionId><criteria version=\"{version}\"><schedule>\
         <endTime>{}</endTime></schedule></criteria></c:reserve>",
        escaped(connection),
        time::show(until)
    );
    envelope(header, "", &body)
}

/// Makes a request that has only the name of a connection: `reserveCommit`, `provision`...
pub fn request(header: Header<'_>, name: &str, connection: &str) -> String {
    let body = format!("<c:{name}><connectionId>{}</connectionId></c:{name}>", escaped(connection));
    envelope(header, "", &body)
}

/// Makes the request `querySummarySync` for a connection or, without one, for a global ID.
pub fn query(header: Header<'_>, connection: Option<&str>, global_id: &str) -> String {
    let which = match connection {
        Some(connection) => format!("<connectionId>{}</connectionId>", escaped(connection)),
        None => format!("<globalReservationId>{}</globalReservationId>", escaped(global_id)),
    };
    envelope(header, "", &format!("<c:querySummarySync>{which}</c:querySummarySync>"))
}

/// Makes the answer to a message of the provider.
pub fn acknowledgment(correlation: &str, requester: &str, provider: &str) -> String {
    let head = head(REQUESTER, correlation, requester, provider);
    whole(&format!("<h:nsiHeader>{head}</h:nsiHeader>"), "<c:acknowledgment/>")
}

/// Makes the answer to a message that is refused.
pub fn fault(text: &str) -> String {
    let text = escaped(text);
    whole("", &format!("<s:Fault><faultcode>s:Client</faultcode><faultstring>{text}</faultstring></s:Fault>"))
}

fn envelope(header: Header<'_>, trace: &str, body: &str) -> String {
    let head = head(PROVIDER, header.correlation, header.requester, header.provider);
    let reply_to = escaped(header.reply_to);
    whole(&format!("<h:nsiHeader>{head}<replyTo>{reply_to}</replyTo>{trace}</h:nsiHeader>"), body)
}

fn head(version: &str, correlation: &str, requester: &str, provider: &str) -> String {
    let (correlation, requester, provider) = (escaped(correlation), escaped(requester), escaped(provider));
    format!(
        "<protocolVersion>{version}</protocolVersion><correlationId>{correlation}</correlationId>\
         <requesterNSA>{requester}</requesterNSA><providerNSA>{provider}</providerNSA>"
    )
}

fn whole(header: &str, body: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<s:Envelope xmlns:s=\"{SOAP}\" xmlns:h=\"{HEADERS}\" \
         xmlns:c=\"{CONNECTION}\"><s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>\n"
    )
}

/// Escapes text for the content of an element. Characters that XML does not have are dropped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {}
            c => out.push(c),
        }
    }
    out
}

/// A message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("the message is longer than {LONGEST} bytes")]
    TooLong,
    #[error("the message is not UTF-8")]
    NotText,
    #[error("the message is not XML as expected: {0}")]
    Xml(String),
    #[error("the message has no {0}")]
    Missing(&'static str),
}

/// A message of the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Empty if the message has no header, as faults have not.
    pub correlation: String,
    pub requester: String,
    pub provider: String,
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Acknowledgment,
    /// The name of the connection that is being reserved.
    ReserveResponse(String),
    Confirmed(Confirmed, String),
    /// `reserveConfirmed`.
    Held(Summary),
    /// `reserveFailed`, `reserveCommitFailed`.
    Failed {
        connection: String,
        error: ServiceError,
    },
    /// `error`, or a SOAP fault.
    Error(ServiceError),
    /// `querySummaryConfirmed`, `querySummarySyncConfirmed`.
    Query(Vec<Summary>),
    /// A notification about a connection: its name, and the element.
    Notification {
        connection: String,
        name: String,
    },
    /// A message that a requester does not expect.
    Other(String),
}

/// The request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    Commit,
    Abort,
    Provision,
    Release,
    Terminate,
}

/// An error of the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceError {
    /// Five digits; empty if there is none.
    pub code: String,
    pub text: String,
}

impl ServiceError {
    /// The provider has no such connection (RESERVATION_NONEXISTENT).
    pub fn is_unknown_connection(&self) -> bool {
        self.code == "00203"
    }
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&*self.text, &*self.code) {
            ("", "") => f.write_str("the provider gives no reason"),
            (text, "") => f.write_str(text),
            (text, code) => write!(f, "{text} (error {code})"),
        }
    }
}

/// A connection as the provider describes it. Members that are missing are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub connection: String,
    pub global_id: String,
    pub description: String,
    pub requester: String,
    pub reservation: String,
    pub provision: String,
    pub lifecycle: String,
    pub active: bool,
    /// The provider has agreed to criteria.
    pub has_criteria: bool,
    /// The version of the criteria; 0 if it is not known.
    pub version: u32,
    pub from: Option<Duration>,
    pub until: Option<Duration>,
    /// Mbit/s.
    pub capacity: Option<u64>,
    /// The label of the source, from `?vlan=`.
    pub vlan: Option<String>,
}

/// Parses a message.
///
/// # Errors
/// It is too long, not XML, has a DTD or too many nodes, or misses what its kind needs.
pub fn parse(bytes: &[u8]) -> Result<Message, MessageError> {
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
    let header = part("Header").and_then(|header| child(header, "nsiHeader"));
    let of_header = |name| header.map(|header| text_of(header, name)).unwrap_or_default();
    Ok(Message {
        correlation: of_header("correlationId"),
        requester: of_header("requesterNSA"),
        provider: of_header("providerNSA"),
        body: read_body(content)?,
    })
}

fn read_body(content: Node<'_, '_>) -> Result<Body, MessageError> {
    if content.has_tag_name((SOAP, "Fault")) {
        return Ok(Body::Error(fault_of(content)));
    }
    let name = content.tag_name().name();
    if content.tag_name().namespace() != Some(CONNECTION) {
        return Ok(Body::Other(name.to_owned()));
    }
    let connection = || match text_of(content, "connectionId") {
        id if id.is_empty() => Err(MessageError::Missing("connectionId")),
        id => Ok(id),
    };
    let confirmed = |confirmed| connection().map(|id| Body::Confirmed(confirmed, id));
    match name {
        "acknowledgment" => Ok(Body::Acknowledgment),
        "reserveResponse" => connection().map(Body::ReserveResponse),
        "reserveConfirmed" => connection().map(|_| Body::Held(summary(content))),
        "reserveCommitConfirmed" => confirmed(Confirmed::Commit),
        "reserveAbortConfirmed" => confirmed(Confirmed::Abort),
        "provisionConfirmed" => confirmed(Confirmed::Provision),
        "releaseConfirmed" => confirmed(Confirmed::Release),
        "terminateConfirmed" => confirmed(Confirmed::Terminate),
        "reserveFailed" | "reserveCommitFailed" => {
            connection().map(|connection| Body::Failed { connection, error: error_of(content) })
        }
        "error" => Ok(Body::Error(error_of(content))),
        "querySummaryConfirmed" | "querySummarySyncConfirmed" => {
            let reservations = content.children().filter(|node| node.tag_name().name() == "reservation");
            Ok(Body::Query(reservations.map(summary).collect()))
        }
        "dataPlaneStateChange" | "errorEvent" | "reserveTimeout" => {
            connection().map(|connection| Body::Notification { connection, name: name.to_owned() })
        }
        _ => Ok(Body::Other(name.to_owned())),
    }
}

fn summary(node: Node<'_, '_>) -> Summary {
    let criteria = node.children().rfind(|node| node.tag_name().name() == "criteria");
    let schedule = criteria.and_then(|criteria| child(criteria, "schedule"));
    let service = criteria.and_then(|criteria| child(criteria, "p2ps"));
    let states = child(node, "connectionStates");
    let state = |name| states.map(|states| text_of(states, name)).unwrap_or_default();
    let when = |name| schedule.and_then(|schedule| time::parse(&text_of(schedule, name)));
    let data_plane = states.and_then(|states| child(states, "dataPlaneStatus"));
    let active = data_plane.map(|status| text_of(status, "active")).unwrap_or_default();
    let source = service.map(|service| text_of(service, "sourceSTP")).unwrap_or_default();
    Summary {
        connection: text_of(node, "connectionId"),
        global_id: text_of(node, "globalReservationId"),
        description: text_of(node, "description"),
        requester: text_of(node, "requesterNSA"),
        reservation: state("reservationState"),
        provision: state("provisionState"),
        lifecycle: state("lifecycleState"),
        active: matches!(&*active, "true" | "1"),
        has_criteria: criteria.is_some(),
        version: criteria.and_then(|criteria| criteria.attribute("version")?.parse().ok()).unwrap_or(0),
        from: when("startTime"),
        until: when("endTime"),
        capacity: service.and_then(|service| text_of(service, "capacity").parse().ok()),
        vlan: vlan(&source),
    }
}

/// The VLAN in a service termination point, such as `urn:...:port?vlan=1784`.
pub(crate) fn vlan(stp: &str) -> Option<String> {
    let (_, labels) = stp.split_once('?')?;
    let value = labels.split(['&', ';']).find_map(|label| label.strip_prefix("vlan="))?;
    value.parse::<u16>().ok().map(|vlan| vlan.to_string())
}

fn fault_of(fault: Node<'_, '_>) -> ServiceError {
    let detail = child(fault, "detail").map(error_of).unwrap_or_default();
    match detail.text.is_empty() {
        true => ServiceError { text: text_of(fault, "faultstring"), ..detail },
        false => detail,
    }
}

fn error_of(node: Node<'_, '_>) -> ServiceError {
    let Some(exception) = child(node, "serviceException") else { return ServiceError::default() };
    ServiceError { code: text_of(exception, "errorId"), text: text_of(exception, "text") }
}

/// Elements within a message are not qualified in most programs, and are in some.
fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.is_element() && child.tag_name().name() == name)
}

/// The text of a child; empty if there is none. Texts for people are shortened.
fn text_of(node: Node<'_, '_>, name: &str) -> String {
    const LONGEST_TEXT: usize = 1000;
    let text = child(node, name).and_then(|child| child.text()).unwrap_or_default().trim();
    text.chars().filter(|c| !c.is_control()).take(LONGEST_TEXT).collect()
}
