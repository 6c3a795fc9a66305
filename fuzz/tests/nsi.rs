//! Messages of an NSI provider, which reach the listener of a requester from anywhere.

use ropewalk_fuzz::{ITERATIONS, soup};
use ropewalk_nsi::rest::message as json;
use ropewalk_nsi::topology::{Topology, Vlans};
use ropewalk_nsi::{message, parse_time, show_time};

const WORDS: &[&[u8]] = &[
    b"<s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\" \
      xmlns:c=\"http://schemas.ogf.org/nsi/2013/12/connection/types\">",
    b"<s:Header><h:nsiHeader xmlns:h=\"http://schemas.ogf.org/nsi/2013/12/framework/headers\">",
    b"</h:nsiHeader></s:Header>",
    b"<s:Body>",
    b"</s:Body></s:Envelope>",
    b"<protocolVersion>x</protocolVersion>",
    b"<correlationId>urn:uuid:1debb800-e5e2-11f1-ba2f-02fc00000001</correlationId>",
    b"<requesterNSA>urn:x</requesterNSA><providerNSA>urn:y</providerNSA>",
    b"<c:reserveConfirmed>",
    b"</c:reserveConfirmed>",
    b"<c:querySummarySyncConfirmed><reservation>",
    b"</reservation></c:querySummarySyncConfirmed>",
    b"<c:acknowledgment/>",
    b"<c:dataPlaneStateChange>",
    b"<s:Fault><faultstring>no</faultstring><detail>",
    b"<connectionId>AL-1</connectionId>",
    b"<criteria version=\"0\"><schedule><startTime>2026-11-21T19:31:18+00:00</startTime></schedule>",
    b"<serviceType>x</serviceType>",
    b"<p:p2ps xmlns:p=\"http://schemas.ogf.org/nsi/2013/12/services/point2point\">",
    b"<capacity>99999999999999999999</capacity>",
    b"<capacity>200</capacity><directionality>Bidirectional</directionality>\
      <sourceSTP>urn:x?vlan=1784</sourceSTP><destSTP>urn:y</destSTP></p:p2ps>",
    b"</criteria><connectionStates><reservationState>ReserveStart</reservationState>\
      <provisionState>Released</provisionState><lifecycleState>Created</lifecycleState>",
    b"<dataPlaneStatus><active>true</active><version>0</version><versionConsistent>1</versionConsistent>\
      </dataPlaneStatus></connectionStates>",
    b"<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\">]>",
    b"&a;&#0;&amp;",
    b"<![CDATA[",
    b"<!-- ",
    b"</",
    b"<a",
    b">",
    b"\xff",
];

#[test]
fn messages_are_parsed_or_refused() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        for text in [input.to_vec(), soup(input, WORDS)] {
            if let Ok(message) = message::parse(&text) {
                // Texts of a peer are bounded, and fit into an answer.
                assert!(message.requester.chars().count() <= 1000);
                let answer =
                    message::acknowledgment(&message.correlation, &message.requester, &message.provider);
                // Faults without a header have no correlation ID; they are never acknowledged.
                assert!(message.correlation.is_empty() || message::parse(answer.as_bytes()).is_ok());
            }
        }
    });
}

#[test]
fn times_are_parsed_or_refused() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let words: &[&[u8]] =
            &[b"2026", b"-", b"12", b"31", b"T", b"23", b":", b"59", b"Z", b"+", b".5", b"0"];
        let text = soup(input, words);
        if let Some(time) = str::from_utf8(&text).ok().and_then(parse_time) {
            assert_eq!(parse_time(&show_time(time)), Some(time));
        }
    });
}

#[test]
fn topologies_and_names_of_ports_are_parsed_or_refused() {
    let words: &[&[u8]] = &[
        b"<t:Topology xmlns:t=\"http://schemas.ogf.org/nml/2013/05/base#\" id=\"urn:t\">",
        b"</t:Topology>",
        b"<t:BidirectionalPort id=\"urn:t:p\">",
        b"<t:name>port</t:name>",
        b"<t:PortGroup id=\"urn:t:p-in\"/>",
        b"</t:BidirectionalPort>",
        b"<t:Relation type=\"http://schemas.ogf.org/nml/2013/05/base#hasInboundPort\"><t:PortGroup id=\"urn:t:p-in\">",
        b"<t:LabelGroup labeltype=\"http://schemas.ogf.org/nml/2012/10/ethernet#vlan\">",
        b"1780-1799",
        b",",
        b"-",
        b"4095",
        b"</t:LabelGroup>",
        b"</t:PortGroup></t:Relation>",
        b"<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\">]>",
        b"&a;",
        b"<",
    ];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, words);
        let text = String::from_utf8_lossy(&text);
        if let Ok(topology) = Topology::parse(&text) {
            for name in ["port?vlan=1790", "p", "urn:t:p", "urn:other:p", &text] {
                if let Ok(point) = topology.resolve(name, true) {
                    // A termination point names itself.
                    assert_eq!(topology.resolve(&point, true), Ok(point));
                }
            }
        }
        if let Ok(vlans) = text.parse::<Vlans>() {
            assert_eq!(vlans.to_string().parse(), Ok(vlans));
        }
    });
}

#[test]
fn json_of_a_proxy_is_parsed_or_refused() {
    let words: &[&[u8]] = &[
        b"{\"reservations\":[",
        b"{\"connectionId\":\"9adf-1\",",
        b"\"globalReservationId\":\"urn:uuid:1\",",
        b"\"criteria\":{\"p2ps\":{\"capacity\":1000,\"sourceSTP\":\"urn:x?vlan=1\"}},",
        b"\"status\":\"ACTIVATED\"",
        b"\"status\":\"FAILED\",\"lastError\":\"no\"",
        b"{\"instance\":\"/reservations/",
        b"{\"detail\":",
        b"\"errors\":[{\"field\":\"x\",\"reason\":\"y\"}]",
        b"null",
        b"\"",
        b"[",
        b"]",
        b"}",
        b",",
        b"\\u0000",
        b"-1e999",
        b"\xff",
    ];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        for text in [input.to_vec(), soup(input, words)] {
            for name in [
                json::accepted(&text).ok(),
                json::Detail::parse(&text).ok().map(|detail| detail.connection_id),
            ] {
                // A name becomes a part of URLs.
                assert!(name.is_none_or(|name| json::is_name(&name) && !name.contains(['/', '?', '%'])));
            }
            let _ = json::parse_list(&text);
            assert!(json::problem(&text).chars().all(|c| !c.is_control()));
        }
    });
}
