//! Messages of the Connection Service 2.1: requests as text, and the types of what the provider
//! sends. [`parse`] reads it.

mod reader;

use std::time::Duration;

pub use reader::parse;

use crate::time;

/// The version of the first criteria of a reservation. Zero stands for "not reserved yet" and must
/// not be requested (OGF's schema, `ReservationRequestCriteriaType`); some providers count from it
/// nevertheless.
pub const FIRST_VERSION: u32 = 1;
/// The longest message in bytes.
pub const LONGEST: usize = 1 << 20;

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
        format!("<criteria version=\"{FIRST_VERSION}\"><schedule>"),
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
    #[error("{0:?} is no message of the Connection Service")]
    Unknown(String),
    #[error("the message is not valid: {place} has no {name}")]
    Incomplete { place: String, name: &'static str },
    #[error("the message is not valid: {place} is {value:?}, and has to be {expected}")]
    WrongValue { place: String, value: String, expected: String },
}

/// A message of the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Empty if the message has no header, which only faults may lack.
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
    /// Another message of the service, which a requester does not expect.
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

/// A connection as the provider describes it. Members that its kind of message does not have are
/// empty.
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
    /// The version of the criteria; 0 if there are none, or the provider counts from 0.
    pub version: u32,
    pub from: Option<Duration>,
    pub until: Option<Duration>,
    /// Mbit/s.
    pub capacity: Option<u64>,
    /// The label of the source, from `?vlan=`.
    pub vlan: Option<String>,
}

/// The VLAN in a service termination point, such as `urn:...:port?vlan=1784`.
pub(crate) fn vlan(stp: &str) -> Option<String> {
    let (_, labels) = stp.split_once('?')?;
    let value = labels.split(['&', ';']).find_map(|label| label.strip_prefix("vlan="))?;
    value.parse::<u16>().ok().map(|vlan| vlan.to_string())
}
