//! Messages against the schemas of OGF, with a validator that shares no code with the parser.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use ropewalk_nsi::Nsi;
use ropewalk_nsi::message::{self, Body, MessageError};
use ropewalk_paths::{Entry, Goal, Journal, Notice, Owner, Provider as _, Request, Runner, Step, now};
use ropewalk_tests::nsi_provider::{
    CONNECTION, Faults, NsiProvider, PROVIDER, data_plane_up, free_port, message as from_provider, post,
};
use ropewalk_tests::nsi_schemas::{VALIDATOR, captured, validate};
use ropewalk_tests::peers;

const CORRELATION: &str = "urn:uuid:1debb800-e5e2-11f1-ba2f-02fc00000001";
/// The time for which a path is reserved, if it is to be extended. Messages have whole seconds.
const LONG: Duration = Duration::from_secs(4);

/// All messages of a reservation.
#[derive(Default)]
struct Talk {
    requester: Vec<String>,
    provider: Vec<String>,
}

impl Talk {
    /// Reserves a path from a provider with these faults, uses it, and removes it.
    fn hold(&mut self, faults: Faults, extends: bool) {
        let (provider, directory) = (NsiProvider::start(faults).unwrap(), tempfile::tempdir().unwrap());
        let (file, port) = (directory.path().join("nsi.toml"), free_port().unwrap());
        fs::write(&file, provider.file(port)).unwrap();
        let request = Request {
            from: (!extends).then(now),
            until: now() + if extends { LONG } else { Duration::from_secs(3600) },
            capacity: Some(1),
            description: "a to b & <c> \u{1}".to_owned(),
        };
        let mut entry = Entry::new("nsi:x".to_owned(), Owner::Transfer, request);
        entry.extend_by = extends.then_some(LONG);
        let nsi = Box::new(Nsi::open(&file).unwrap());
        let mut runner = Runner::begin(&Journal::at(directory.path()), entry, nsi, Goal::Up).unwrap();
        let obtained = runner.obtain(Goal::Up, &|| false);
        let over = |notice: &Notice| matches!(notice, Notice::Extended(_) | Notice::NotExtended(_));
        while obtained.is_ok() && extends && !runner.step().unwrap().iter().any(over) {}
        let foreign = from_provider(CORRELATION, &plain("provisionConfirmed"));
        let (status, refusal) = post(&format!("127.0.0.1:{port}"), "/callback", &foreign).unwrap();
        assert_eq!(status, 500);
        runner.end();
        self.requester.extend(provider.texts());
        self.requester.extend(provider.acknowledged());
        self.requester.push(refusal);
        self.provider.extend(provider.sent());
    }

    /// Asks for a path whose name is not known.
    fn query(&mut self) {
        let (provider, directory) =
            (NsiProvider::start(Faults::default()).unwrap(), tempfile::tempdir().unwrap());
        let file = directory.path().join("nsi.toml");
        fs::write(&file, provider.file(free_port().unwrap())).unwrap();
        let request = Request { from: None, until: now(), capacity: None, description: String::new() };
        let id = Entry::new(String::new(), Owner::Transfer, request.clone()).id;
        let order = ropewalk_paths::Order { id, number: 1, step: Step::Query, reference: None, request };
        Nsi::open(&file).unwrap().send(&order);
        self.requester.extend(provider.texts());
        self.provider.extend(provider.sent());
    }
}

fn plain(name: &str) -> String {
    format!("<ctypes:{name}><connectionId>{CONNECTION}</connectionId></ctypes:{name}>")
}

/// The name of the content of a message, without its prefix.
fn name(message: &str) -> &str {
    let (_, body) = message.split_once(":Body>").unwrap();
    let (_, tag) = body.split_once('<').unwrap();
    let tag = tag.split(['>', ' ', '/']).next().unwrap();
    tag.rsplit(':').next().unwrap()
}

fn names(messages: &[String]) -> BTreeSet<&str> {
    messages.iter().map(|message| name(message)).collect()
}

/// Fails with the messages that break a rule.
fn assert_valid(messages: &[String]) {
    let complaints = validate(messages).unwrap();
    let shown =
        complaints.iter().map(|complaint| format!("{}\n{}\n", complaint.text, messages[complaint.message]));
    assert_eq!(shown.collect::<String>(), "");
}

/// Results and notifications that the provider of the tests does not send.
fn rare() -> Vec<String> {
    let exception = format!(
        "<serviceException><nsaId>{PROVIDER}</nsaId><connectionId>{CONNECTION}</connectionId>\
         <errorId>00700</errorId><text>the link is cut</text></serviceException>"
    );
    let head = format!(
        "<connectionId>{CONNECTION}</connectionId><notificationId>7</notificationId>\
         <timeStamp>2026-11-21T20:31:18.5+01:00</timeStamp>"
    );
    let origin = format!(
        "<originatingConnectionId>X</originatingConnectionId><originatingNSA>{PROVIDER}</originatingNSA>"
    );
    let states = "<connectionStates><reservationState>ReserveCommitting</reservationState>\
                  <provisionState>Released</provisionState><lifecycleState>Created</lifecycleState>\
                  <dataPlaneStatus><active>0</active><version>1</version><versionConsistent>1</versionConsistent>\
                  </dataPlaneStatus></connectionStates>";
    let content = [
        format!("<ctypes:errorEvent>{head}<event>forcedEnd</event>{origin}{exception}</ctypes:errorEvent>"),
        format!("<ctypes:errorEvent>{head}<event>dataplaneError</event>{origin}</ctypes:errorEvent>"),
        format!(
            "<ctypes:reserveTimeout>{head}<timeoutValue>120</timeoutValue>{origin}</ctypes:reserveTimeout>"
        ),
        format!(
            "<ctypes:messageDeliveryTimeout>{head}<correlationId>{CORRELATION}</correlationId>\
             </ctypes:messageDeliveryTimeout>"
        ),
        format!(
            "<ctypes:reserveCommitFailed><connectionId>{CONNECTION}</connectionId>{states}{exception}\
             </ctypes:reserveCommitFailed>"
        ),
        format!("<ctypes:error>{exception}</ctypes:error>"),
        "<ctypes:querySummaryConfirmed/>".to_owned(),
        format!(
            "<ctypes:querySummarySyncConfirmed><reservation><connectionId>{CONNECTION}</connectionId>\
             <requesterNSA>urn:x</requesterNSA>{states}<notificationId>1</notificationId><resultId>2</resultId>\
             </reservation><lastModified>2026-11-21T19:31:18Z</lastModified></ctypes:querySummarySyncConfirmed>"
        ),
        format!(
            "<ctypes:reserveConfirmed><connectionId>{CONNECTION}</connectionId><criteria version=\"1\"><schedule>\
             <endTime xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:nil=\"true\"/></schedule>\
             <serviceType>x</serviceType></criteria></ctypes:reserveConfirmed>"
        ),
    ];
    content.iter().map(|content| from_provider(CORRELATION, content)).collect()
}

#[test]
fn messages_of_both_sides_are_valid_and_complete() {
    if !peers::available(&[VALIDATOR]) {
        return;
    }
    let mut talk = Talk::default();
    for faults in [
        Faults::default(),
        Faults { loses_results: true, lists_others: true, ..Faults::default() },
        Faults { refuses: Some("no such port"), ..Faults::default() },
        Faults { fails: Some("no capacity"), ..Faults::default() },
        Faults { reverses_times: true, ..Faults::default() },
    ] {
        talk.hold(faults, false);
    }
    talk.hold(Faults::default(), true);
    talk.hold(Faults { refuses_extensions: Some("busy then"), ..Faults::default() }, true);
    talk.query();
    let requests = [
        "Fault",
        "acknowledgment",
        "provision",
        "querySummarySync",
        "release",
        "reserve",
        "reserveAbort",
        "reserveCommit",
        "terminate",
    ];
    assert_eq!(names(&talk.requester), BTreeSet::from(requests));
    let with = |text: &str| talk.requester.iter().any(|message| message.contains(text));
    assert!(
        with("<c:reserve><connectionId>") && with("<startTime>") && with("<c:querySummarySync><globalRes")
    );
    let answers = [
        "Fault",
        "acknowledgment",
        "dataPlaneStateChange",
        "provisionConfirmed",
        "querySummarySyncConfirmed",
        "releaseConfirmed",
        "reserveAbortConfirmed",
        "reserveCommitConfirmed",
        "reserveConfirmed",
        "reserveFailed",
        "reserveResponse",
        "terminateConfirmed",
    ];
    assert_eq!(names(&talk.provider), BTreeSet::from(answers));
    assert_valid(&talk.requester);
    assert_valid(&talk.provider);
    for text in talk.provider {
        message::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}

#[test]
fn captured_and_rare_messages_are_valid_and_read() {
    if !peers::available(&[VALIDATOR]) {
        return;
    }
    let captured = captured().unwrap();
    assert_eq!(captured.len(), 24);
    let mut messages: Vec<String> = captured.into_iter().map(|(_, text)| text).collect();
    messages.extend(rare());
    assert_valid(&messages);
    for text in &messages {
        let message = message::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
        // Those of the requester are among them.
        let is_request =
            ["reserve", "reserveCommit", "provision", "release", "terminate", "querySummarySync"]
                .contains(&name(text));
        assert_eq!(matches!(message.body, Body::Other(_)), is_request, "{text}");
    }
    let texts: Vec<String> =
        messages.iter().map(|text| format!("{:?}", message::parse(text.as_bytes()))).collect();
    let found = |text: &str| texts.iter().any(|message| message.contains(text));
    assert!(found("Source port dtn1 cannot match label set <Label vlan:99>") && found("00400"));
    assert!(found(
        r#"reservation: "ReserveStart", provision: "Provisioned", lifecycle: "Created", active: false"#
    ));
    assert!(found(r#"capacity: Some(200), vlan: Some("1784")"#) && found("the link is cut"));
}

/// A change to a valid message, and the refusal by the requester's parser.
const MUTATIONS: &[(&str, &str, &str, &str)] = &[
    // In the confirmation of a reservation.
    (
        "reserveConfirmed",
        "<criteria version=\"0\">",
        "<criteria>",
        "reserveConfirmed/criteria has no version",
    ),
    ("reserveConfirmed", "version=\"0\"", "version=\"one\"", "criteria is \"one\", and has to be a version"),
    ("reserveConfirmed", "<connectionId>AL-559ed2489b</connectionId>", "", "has no connectionId"),
    ("reserveConfirmed", "T19:31:18Z", "T19:31:18", "schedule/startTime is \"2026-11-21T19:31:18\""),
    ("reserveConfirmed", "2026-11-21T19:32:14Z", "soon", "criteria/schedule/endTime is \"soon\""),
    (
        "reserveConfirmed",
        "<capacity>200</capacity>",
        "<capacity>fast</capacity>",
        "p2ps/capacity is \"fast\"",
    ),
    ("reserveConfirmed", "<capacity>200</capacity>", "", "criteria/p2ps has no capacity"),
    ("reserveConfirmed", "Bidirectional", "Both", "\"Both\", and has to be one of Bidirectional, Uni"),
    ("reserveConfirmed", ">false</symmetricPath>", ">no</symmetricPath>", "symmetricPath is \"no\""),
    ("reserveConfirmed", "<ctypes:reserveConfirmed>", "<ctypes:reserveConfirmed><x/>", ""),
    // In the answer to a query.
    (
        "querySummarySyncConfirmed",
        ">Provisioned<",
        ">Up<",
        "provisionState is \"Up\", and has to be one of Rel",
    ),
    ("querySummarySyncConfirmed", ">ReserveStart<", "><", "reservationState is \"\""),
    ("querySummarySyncConfirmed", ">Created<", ">Live<", "lifecycleState is \"Live\""),
    (
        "querySummarySyncConfirmed",
        "<active>false</active>",
        "",
        "connectionStates/dataPlaneStatus has no active",
    ),
    ("querySummarySyncConfirmed", "<active>false<", "<active>off<", "dataPlaneStatus/active is \"off\""),
    ("querySummarySyncConfirmed", "<version>0</version>", "<version/>", "dataPlaneStatus/version is \"\""),
    (
        "querySummarySyncConfirmed",
        ">0</notificationId>",
        ">x</notificationId>",
        "reservation/notificationId is \"x\"",
    ),
    ("querySummarySyncConfirmed", "requesterNSA>\n            <conn", "requester>\n            <conn", "XML"),
    // In the header.
    (
        "provisionConfirmed",
        "urn:uuid:1e748d88",
        "urn:uuid:1E748D88",
        "nsiHeader/correlationId is \"urn:uuid:1E7",
    ),
    ("provisionConfirmed", "protocolVersion>", "version>", "nsiHeader has no protocolVersion"),
    ("provisionConfirmed", "header:nsiHeader", "header:Header", "has no NSI header"),
    // The content as a whole.
    (
        "provisionConfirmed",
        "ctypes:provisionConfirmed",
        "ctypes:provisionDone",
        "\"provisionDone\" is no message",
    ),
    ("provisionConfirmed", "ctypes:provisionConfirmed", "header:provisionConfirmed", "is no message"),
    // In results and notifications that are rare.
    ("errorEvent", ">forcedEnd<", ">accident<", "errorEvent/event is \"accident\""),
    (
        "errorEvent",
        "<originatingConnectionId>X</originatingConnectionId>",
        "",
        "has no originatingConnectionId",
    ),
    ("errorEvent", "<errorId>00700</errorId>", "", "errorEvent/serviceException has no errorId"),
    ("reserveTimeout", ">120<", ">two minutes<", "reserveTimeout/timeoutValue is \"two minutes\""),
    ("reserveCommitFailed", "lifecycleState>Created<", "lifecycleState>Gone<", "lifecycleState is \"Gone\""),
    ("error", "serviceException>", "exception>", "error has no serviceException"),
    ("messageDeliveryTimeout", "<timeStamp>2026-11-21T20:31:18.5+01:00</timeStamp>", "", "has no timeStamp"),
];

#[test]
fn messages_that_break_the_schemas_are_refused_by_both() {
    if !peers::available(&[VALIDATOR]) {
        return;
    }
    let mut messages: Vec<String> = captured().unwrap().into_iter().map(|(_, text)| text).collect();
    messages.extend(rare());
    let mut mutated = Vec::new();
    for (kind, from, to, refusal) in MUTATIONS {
        let of_kind = messages.iter().find(|text| name(text) == *kind && text.contains(from));
        let text = of_kind.unwrap_or_else(|| panic!("no {kind} has {from}")).replace(from, to);
        let parsed = message::parse(text.as_bytes()).map_err(|error: MessageError| error.to_string());
        match (&parsed, refusal.is_empty()) {
            // Later versions may have elements that this one does not know.
            (Ok(_), true) => {}
            (Err(why), false) if why.contains(refusal) => {}
            _ => panic!("{kind}, {from} to {to}: expected {refusal:?}: {parsed:?}"),
        }
        mutated.push(text);
    }
    let refused: Vec<usize> = validate(&mutated).unwrap().iter().map(|complaint| complaint.message).collect();
    assert_eq!(refused, (0..mutated.len()).collect::<Vec<_>>());
    // A notification of a connection is not taken for one of another kind.
    let up = from_provider(CORRELATION, &data_plane_up(CONNECTION).replace("notificationId", "resultId"));
    let error = message::parse(up.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "the message is not valid: dataPlaneStateChange has no notificationId");
}
