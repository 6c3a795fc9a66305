//! Fireflies: UDP messages about a flow, a header like that of RFC 5424 and a JSON object
//! (scitags.org, firefly schema 1).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ropewalk_protocol::date::Civil;
use ropewalk_protocol::scitag::SciTag;
use serde::Serialize;

/// local0.info.
const PRIORITY: u8 = 134;
const PROGRAM: &str = "ropewalk";
const MESSAGE: &str = "firefly-json";
/// A longer host name is cut, so that a message fits in one datagram.
const LONGEST_HOST: usize = 255;

/// The part of its life in which a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    Start,
    Ongoing,
    End,
}

/// The transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowTransport {
    Tcp,
    Udp,
}

/// The ends of a flow. The source is the sender of the data, whichever end connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub transport: FlowTransport,
}

/// Bytes as the source counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub received: u64,
    pub sent: u64,
}

/// A message about one flow. Times count from 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firefly<'a> {
    pub state: FlowState,
    pub tag: SciTag,
    pub flow: FlowId,
    pub started: Duration,
    pub now: Duration,
    pub usage: Usage,
    pub rtt: Option<Duration>,
    /// The name of the host that sends the message.
    pub host: &'a str,
    pub application: &'a str,
}

impl Firefly<'_> {
    /// The datagram.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (now, started) = (time(self.now), time(self.started));
        let FlowId { source, destination, transport } = self.flow;
        let message = Message {
            version: 1,
            lifecycle: Lifecycle {
                state: self.state,
                current_time: &now,
                start_time: &started,
                end_time: (self.state == FlowState::End).then_some(&now),
            },
            usage: self.usage,
            netlink: self.rtt.map(|rtt| Netlink { rtt: rtt.as_micros() as f64 / 1000.0 }),
            context: Context {
                experiment: self.tag.experiment(),
                activity: self.tag.activity(),
                application: self.application,
            },
            flow: Flow {
                afi: if source.is_ipv4() { "ipv4" } else { "ipv6" },
                src_ip: source.ip(),
                dst_ip: destination.ip(),
                protocol: transport,
                src_port: source.port(),
                dst_port: destination.port(),
            },
        };
        let host = header_text(self.host);
        let mut bytes = format!("<{PRIORITY}>1 {now} {host} {PROGRAM} - {MESSAGE} - ").into_bytes();
        // A struct of texts and numbers can always be serialized.
        if serde_json::to_writer(&mut bytes, &message).is_err() {
            bytes.clear();
        }
        bytes
    }
}

/// A field of the header: printable ASCII without spaces, `-` if there is none.
fn header_text(text: &str) -> String {
    let kept: String = text.chars().filter(char::is_ascii_graphic).take(LONGEST_HOST).collect();
    if kept.is_empty() { "-".to_owned() } else { kept }
}

fn time(since_1970: Duration) -> String {
    let c = Civil::from_seconds(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX));
    let micros = since_1970.subsec_micros();
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{micros:06}+00:00",
        c.year, c.month, c.day, c.hour, c.minute, c.second
    )
}

#[derive(Serialize)]
struct Message<'a> {
    version: u8,
    #[serde(rename = "flow-lifecycle")]
    lifecycle: Lifecycle<'a>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    netlink: Option<Netlink>,
    context: Context<'a>,
    #[serde(rename = "flow-id")]
    flow: Flow,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Lifecycle<'a> {
    state: FlowState,
    current_time: &'a str,
    start_time: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<&'a String>,
}

#[derive(Serialize)]
struct Netlink {
    /// In milliseconds.
    rtt: f64,
}

#[derive(Serialize)]
struct Context<'a> {
    #[serde(rename = "experiment-id")]
    experiment: u16,
    #[serde(rename = "activity-id")]
    activity: u16,
    application: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Flow {
    afi: &'static str,
    src_ip: IpAddr,
    dst_ip: IpAddr,
    protocol: FlowTransport,
    src_port: u16,
    dst_port: u16,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn firefly(state: FlowState) -> Firefly<'static> {
        Firefly {
            state,
            tag: SciTag::of(2, 15).unwrap(),
            flow: FlowId {
                source: "[2001:db8::1]:50000".parse().unwrap(),
                destination: "[2001:db8::2]:2811".parse().unwrap(),
                transport: FlowTransport::Tcp,
            },
            started: Duration::new(1_735_689_600, 1_000),
            now: Duration::new(1_735_689_600, 1_000),
            usage: Usage::default(),
            rtt: Some(Duration::from_micros(12_345)),
            host: "host.example",
            application: "ropewalk 1.0",
        }
    }

    #[test]
    fn start_is_the_message_of_the_reference() {
        let expected = "<134>1 2025-01-01T00:00:00.000001+00:00 host.example ropewalk - firefly-json - \
            {\"version\":1,\"flow-lifecycle\":{\"state\":\"start\",\
            \"current-time\":\"2025-01-01T00:00:00.000001+00:00\",\
            \"start-time\":\"2025-01-01T00:00:00.000001+00:00\"},\
            \"usage\":{\"received\":0,\"sent\":0},\"netlink\":{\"rtt\":12.345},\
            \"context\":{\"experiment-id\":2,\"activity-id\":15,\"application\":\"ropewalk 1.0\"},\
            \"flow-id\":{\"afi\":\"ipv6\",\"src-ip\":\"2001:db8::1\",\"dst-ip\":\"2001:db8::2\",\
            \"protocol\":\"tcp\",\"src-port\":50000,\"dst-port\":2811}}";
        assert_eq!(String::from_utf8(firefly(FlowState::Start).to_bytes()).unwrap(), expected);
    }

    #[test]
    fn end_has_an_end_time_and_fits_in_a_datagram() {
        let host = "h".repeat(4000);
        let bytes = Firefly { host: &host, ..firefly(FlowState::End) }.to_bytes();
        assert!(bytes.len() < 1500, "{}", bytes.len());
        let json = &bytes[bytes.iter().position(|byte| *byte == b'{').unwrap()..];
        let value: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!(value["flow-lifecycle"]["end-time"], "2025-01-01T00:00:00.000001+00:00");
        assert_eq!(value["flow-lifecycle"]["state"], "end");
    }

    #[test]
    fn host_name_with_spaces_and_line_ends_stays_one_field() {
        assert_eq!(header_text("a b\r\nc\u{e9}"), "abc");
        assert_eq!(header_text(" "), "-");
    }
}
