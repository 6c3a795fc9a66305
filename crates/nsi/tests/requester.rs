//! The requester against a provider on loopback that misbehaves.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_nsi::Nsi;
use ropewalk_nsi::message::{self, Body, MessageError};
use ropewalk_paths::{
    Binding, Entry, Goal, Journal, Notice, Order, Outcome, Owner, PathError, Provider as _, Request, Runner,
    State, Step, now,
};
use ropewalk_tests::nsi_provider::{
    CONNECTION, Faults, NsiProvider, data_plane_up, free_port, message as from_provider, post,
};
use ropewalk_tests::nsi_schemas::directory;

/// The time for which a path is reserved, if it is to be extended. Messages have whole seconds.
const LONG: Duration = Duration::from_secs(4);

const OTHER_REQUEST: &str = "urn:uuid:00000000-0000-4000-8000-000000000000";

struct Site {
    directory: tempfile::TempDir,
    provider: NsiProvider,
    port: u16,
}

impl Site {
    fn new(faults: Faults) -> Self {
        let provider = NsiProvider::start(faults).unwrap();
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        fs::write(directory.path().join("nsi.toml"), provider.file(port)).unwrap();
        Self { directory, provider, port }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("nsi.toml")
    }

    fn obtain(&self, request: Request) -> Result<(Runner, Binding), PathError> {
        let entry = Entry::new(format!("nsi:{}", self.file().display()), Owner::Transfer, request);
        let mut runner = self.run(entry);
        runner.obtain(Goal::Up, &|| false).map(|binding| (runner, binding))
    }

    fn run(&self, entry: Entry) -> Runner {
        let journal = Journal::at(self.directory.path());
        let provider = Box::new(Nsi::open(&self.file()).unwrap());
        Runner::begin(&journal, entry, provider, Goal::Up).unwrap()
    }

    fn failure(&self) -> String {
        match self.obtain(request()) {
            Ok(_) => panic!("there is a path"),
            Err(error) => error.to_string(),
        }
    }
}

fn request() -> Request {
    let (until, description) = (now() + Duration::from_secs(3600), "a to b & c".to_owned());
    Request { from: None, until, capacity: None, description }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory.join("paths")).unwrap().count() == 0
}

#[test]
fn path_is_reserved_used_and_removed() {
    let site = Site::new(Faults::default());
    let (mut runner, binding) = site.obtain(request()).unwrap();
    assert_eq!(binding.capacity, Some(200_000_000));
    assert_eq!(binding.address, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(runner.entry().reference.as_deref(), Some(CONNECTION));
    runner.end();
    assert!(!runner.is_left() && !site.provider.has_path() && is_empty(site.directory.path()));
    let requests = site.provider.requests();
    let steps: Vec<&str> =
        requests.iter().map(String::as_str).filter(|name| *name != "querySummarySync").collect();
    assert_eq!(steps, ["reserve", "reserveCommit", "provision", "release", "terminate"]);
}

#[test]
fn path_in_use_is_extended_also_if_results_are_lost() {
    for faults in [
        Faults::default(),
        Faults { loses_results: true, ..Faults::default() },
        Faults { counts_from_zero: true, ..Faults::default() },
    ] {
        let site = Site::new(faults);
        let mut entry = Entry::new("nsi:x".to_owned(), Owner::Transfer, request());
        // It is extended at half of its time.
        (entry.request.until, entry.extend_by) = (now() + LONG, Some(LONG));
        let mut runner = site.run(entry);
        runner.obtain(Goal::Up, &|| false).unwrap();
        let first = site.provider.end();
        let extended =
            |notices: &[Notice]| notices.iter().any(|notice| matches!(notice, Notice::Extended(_)));
        let mut notices = Vec::new();
        while !extended(&notices) {
            notices.extend(runner.step().unwrap());
            assert!(!notices.iter().any(|notice| matches!(notice, Notice::NotExtended(_) | Notice::Down(_))));
        }
        assert!(site.provider.end() > first, "{} {first}", site.provider.end());
        assert_eq!(runner.entry().extending, None);
        // The first version is 1, and each change of it has the next one.
        let texts = site.provider.texts();
        let version = |text: &str| text.split("<criteria version=").nth(1).map(|text| text[..3].to_owned());
        let versions: Vec<String> = texts.iter().filter_map(|text| version(text)).collect();
        assert_eq!(versions, ["\"1\"", "\"2\""]);
        let modified = |text: &&String| text.contains("<criteria version=\"2\"><schedule><endTime>");
        assert_eq!(texts.iter().filter(modified).count(), 1);
        runner.end();
        assert!(!runner.is_left() && !site.provider.has_path());
    }
}

#[test]
fn refused_extension_leaves_the_path_in_use() {
    let site = Site::new(Faults { refuses_extensions: Some("busy then"), ..Faults::default() });
    let mut entry = Entry::new("nsi:x".to_owned(), Owner::Transfer, request());
    (entry.request.until, entry.extend_by) = (now() + LONG, Some(LONG));
    let mut runner = site.run(entry);
    runner.obtain(Goal::Up, &|| false).unwrap();
    let mut notices = Vec::new();
    while !notices.iter().any(|notice| matches!(notice, Notice::Down(_))) {
        notices.extend(runner.step().unwrap());
    }
    // A query that comes before the result has no reason.
    let is_reason = |why: &str| why.contains("busy then (error 00600)") || why.contains("does not extend");
    let why = |notice: &Notice| matches!(notice, Notice::NotExtended(why) if is_reason(why));
    assert!(why(&notices[0]), "{notices:?}");
    assert!(matches!(&notices[1], Notice::Down(why) if why.contains("time is over")), "{notices:?}");
    runner.end();
    assert!(!runner.is_left() && !site.provider.has_path());
    assert!(site.provider.requests().contains(&"reserveAbort".to_owned()));
}

#[test]
fn provider_refuses_a_reservation_with_version_zero() {
    let site = Site::new(Faults::default());
    let mut nsi = Nsi::open(&site.file()).unwrap();
    nsi.send(&order(Step::Hold, None));
    let reserve = site.provider.texts().remove(0).replace("criteria version=\"1\"", "criteria version=\"0\"");
    let text = fs::read_to_string(site.file()).unwrap();
    let address = text.lines().next().unwrap().split('/').nth(2).unwrap().to_owned();
    let (status, answer) = post(&address, "/NSI/services/CS2", &reserve).unwrap();
    assert!(status == 500 && answer.contains("version 0 cannot be requested"), "{status} {answer}");
}

#[test]
fn results_that_are_lost_or_of_other_requests_are_queried() {
    for faults in [
        Faults { loses_results: true, ..Faults::default() },
        Faults { confuses_requests: true, ..Faults::default() },
        Faults { lists_others: true, ..Faults::default() },
    ] {
        let site = Site::new(faults.clone());
        let (mut runner, _) = site.obtain(request()).unwrap_or_else(|error| panic!("{faults:?}: {error}"));
        runner.end();
        assert!(!runner.is_left() && !site.provider.has_path(), "{faults:?}");
    }
}

#[test]
fn failure_of_the_provider_is_worded_and_leaves_no_path() {
    for (faults, text) in [
        (Faults { refuses: Some("no such port"), ..Faults::default() }, "no such port (error 00400)"),
        (Faults { fails: Some("no capacity"), ..Faults::default() }, "no capacity (error 00600)"),
        (Faults { never_up: true, ..Faults::default() }, "did not come up in time"),
        (Faults { reverses_times: true, ..Faults::default() }, "ends before it begins"),
    ] {
        let site = Site::new(faults);
        let failure = site.failure();
        assert!(failure.contains(text), "{failure}");
        assert!(!site.provider.has_path() && is_empty(site.directory.path()), "{failure}");
    }
}

#[test]
fn provider_that_never_answers_or_is_not_there_is_an_error() {
    let silent = Site::new(Faults { is_silent: true, ..Faults::default() });
    let mut nsi = Nsi::open(&silent.file()).unwrap();
    let outcome = nsi.send(&order(Step::Hold, None));
    assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains("does not answer")), "{outcome:?}");
    let text = fs::read_to_string(silent.file()).unwrap();
    let (_, port) = text.lines().next().unwrap().split_once("127.0.0.1:").unwrap();
    let port = port.split('/').next().unwrap();
    fs::write(silent.file(), text.replacen(port, &free_port().unwrap().to_string(), 1)).unwrap();
    let failure = silent.failure();
    assert!(failure.contains("cannot be reached"), "{failure}");
    assert!(is_empty(silent.directory.path()));
}

#[test]
fn answers_that_are_no_messages_change_nothing() {
    let bomb =
        "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;\">]><x>&b;&b;&b;&b;</x>";
    for (answer, text) in [
        (bomb.to_owned(), "DTD"),
        ("no XML".to_owned(), "not XML"),
        ("<x/>".to_owned(), "no SOAP envelope"),
        (
            from_provider("urn:uuid:0", "<ctypes:acknowledgment/>"),
            "nsiHeader/correlationId is \"urn:uuid:0\"",
        ),
        (from_provider(OTHER_REQUEST, "<ctypes:acknowledgment/>"), "another request"),
        (from_provider(OTHER_REQUEST, "<ctypes:welcome/>"), "\"welcome\" is no message"),
        ("x".repeat(message::LONGEST + 10), "longer than"),
    ] {
        let site = Site::new(Faults { answer: Some(answer), ..Faults::default() });
        let outcome = Nsi::open(&site.file()).unwrap().send(&order(Step::Hold, None));
        assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains(text)), "{text}: {outcome:?}");
    }
}

fn order(step: Step, reference: Option<&str>) -> Order {
    let id = Entry::new(String::new(), Owner::Transfer, request()).id;
    Order { id, number: 1, step, reference: reference.map(str::to_owned), request: request() }
}

#[test]
fn forged_messages_to_the_listener_are_refused() {
    let site = Site::new(Faults { loses_results: true, ..Faults::default() });
    let mut nsi = Nsi::open(&site.file()).unwrap();
    let hold = order(Step::Hold, None);
    assert_eq!(nsi.send(&hold), Outcome::Accepted);
    let (address, other) = (format!("127.0.0.1:{}", site.port), OTHER_REQUEST);
    let plain =
        |name: &str, id: &str| format!("<ctypes:{name}><connectionId>{id}</connectionId></ctypes:{name}>");
    let confirmed = plain("provisionConfirmed", CONNECTION);
    let own =
        site.provider.texts()[0].split("correlationId>").nth(1).unwrap().trim_end_matches("</").to_owned();
    for (text, reason) in [
        (from_provider(other, &confirmed), "belongs to no request"),
        (from_provider(&own, &plain("terminateConfirmed", "OTHER")), "is not one of this requester"),
        (from_provider(other, &data_plane_up("OTHER")), "is not one of this requester"),
        (from_provider(&own, &confirmed).replace("alpha.test:2026:nsa", "mallory"), "is from the provider"),
        (from_provider(&own, &confirmed).replace("mover.test:2026:nsa", "mallory"), "is for the requester"),
        (from_provider(&own, &plain("reserve", "OTHER")), "does not expect"),
        (from_provider(&own, "<ctypes:provisionConfirmed/>"), "provisionConfirmed has no connectionId"),
        ("<!DOCTYPE x [<!ENTITY a \"a\">]><x>&a;</x>".to_owned(), "DTD"),
    ] {
        let (status, answer) = post(&address, "/callback", &text).unwrap();
        assert!(status == 500 && answer.contains(reason), "{reason}: {status} {answer}");
    }
    assert_eq!(post(&address, "/", &from_provider(&own, &confirmed)).unwrap().0, 404);
    assert_eq!(nsi.receive(Duration::from_millis(1)), None);
    // A result of another kind than the request is not one, whatever its correlation ID.
    post(&address, "/callback", &from_provider(&own, &confirmed)).unwrap();
    assert_eq!(nsi.receive(Duration::from_millis(100)), None);
    // A notification only causes a query.
    post(&address, "/callback", &from_provider(other, &data_plane_up(CONNECTION))).unwrap();
    let notification = nsi.receive(Duration::from_secs(10)).unwrap();
    assert_eq!((notification.number, notification.outcome), (None, Outcome::Accepted));
}

#[test]
fn path_whose_name_was_lost_is_found_by_its_global_id() {
    let site = Site::new(Faults { lists_others: true, ..Faults::default() });
    let mut nsi = Nsi::open(&site.file()).unwrap();
    let hold = order(Step::Hold, None);
    nsi.send(&hold);
    let query = |hold: &Order| Order { step: Step::Query, number: 2, ..hold.clone() };
    let mut later = Nsi::open(&site.file()).unwrap();
    assert_eq!(later.send(&query(&hold)), Outcome::State(State::Held));
    assert_eq!(later.reference().as_deref(), Some(CONNECTION));
    // Another reservation is not taken for it.
    let mut other = Nsi::open(&site.file()).unwrap();
    assert_eq!(other.send(&query(&order(Step::Hold, None))), Outcome::State(State::Gone));
    assert_eq!(other.reference(), None);
}

/// Names the ends of the site's path, by a topology at this place.
fn name_ends(site: &Site, place: &str, source: &str, destination: &str) {
    let text = fs::read_to_string(site.file()).unwrap();
    let (head, tables) = text.split_once("[binding]").unwrap();
    let is_end = |line: &&str| {
        ["source", "destination", "topology", "[hosts]", "\"dtn2"].iter().any(|name| line.starts_with(name))
    };
    let head: String =
        head.lines().filter(|line| !is_end(line)).fold(String::new(), |all, line| all + line + "\n");
    let ends = format!("source = \"{source}\"\ndestination = \"{destination}\"\ntopology = \"{place}\"\n");
    let hosts = "[hosts]\n\"dtn2.example.org\" = \"dtn2\"\n";
    fs::write(site.file(), format!("{head}{ends}{hosts}[binding]{tables}")).unwrap();
}

#[test]
fn ends_are_named_by_a_topology_in_a_file_or_at_a_url() {
    let document = fs::read_to_string(directory("captures").join("topology.nml.xml")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/topology.nml.xml", listener.local_addr().unwrap());
    let of_server = document.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let head: Vec<String> = BufReader::new(&stream)
                .lines()
                .map(Result::unwrap)
                .take_while(|line| !line.is_empty())
                .collect();
            let (status, text) = match head[0].contains("/topology.nml.xml") {
                true => ("200 OK", of_server.as_str()),
                false => ("404 Not Found", ""),
            };
            let length = text.len();
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{text}").unwrap();
        }
    });
    for place in ["topology.xml", &url] {
        let site = Site::new(Faults::default());
        fs::write(site.directory.path().join("topology.xml"), &document).unwrap();
        name_ends(&site, place, "DTN1", "dtn2.example.org?vlan=1784");
        Nsi::open(&site.file()).unwrap().send(&order(Step::Hold, None));
        let reserve = site.provider.texts().remove(0);
        let network = "urn:ogf:network:alpha.test:2026:topology";
        for end in [
            format!("<sourceSTP>{network}:dtn1?vlan=1780-1799</sourceSTP>"),
            format!("<destSTP>{network}:dtn2?vlan=1784</destSTP>"),
        ] {
            assert!(reserve.contains(&end), "{end}: {reserve}");
        }
        for (source, place, reason) in [
            ("dtn", place, "source: \"dtn\" is no port of urn:ogf:network:alpha.test:2026:topology; similar"),
            ("dtn1?vlan=1800", place, "has the VLANs 1780-1799, and not all of 1800"),
            ("dtn1", "none.xml", "none.xml: No such file"),
            ("dtn1", &url.replace("topology.nml", "other"), "HTTP status 404"),
            ("dtn1", "nsi.toml", "nsi.toml: the topology is not XML"),
        ] {
            name_ends(&site, place, source, "dtn2");
            let outcome = Nsi::open(&site.file()).unwrap().send(&order(Step::Hold, None));
            assert!(
                matches!(&outcome, Outcome::Refused(why) if why.contains(reason)),
                "{reason}: {outcome:?}"
            );
        }
        assert_eq!(site.provider.requests(), ["reserve"]);
    }
}

#[test]
fn time_in_the_past_or_reversed_is_refused_before_anything_is_sent() {
    let site = Site::new(Faults::default());
    let mut nsi = Nsi::open(&site.file()).unwrap();
    for (from, until) in [(None, Duration::from_secs(1)), (Some(now() * 2), now() + Duration::from_secs(60))]
    {
        let request = Request { from, until, ..request() };
        let outcome = nsi.send(&Order { request, ..order(Step::Hold, None) });
        assert!(
            matches!(&outcome, Outcome::Refused(why) if why.contains("ends before it begins")),
            "{outcome:?}"
        );
    }
    assert_eq!(site.provider.requests(), Vec::<String>::new());
}

#[test]
fn deep_and_wide_messages_are_refused_within_bounds() {
    for text in ["<a>".repeat(300_000), format!("<a>{}</a>", "<b/>".repeat(200_000))] {
        assert!(matches!(message::parse(text.as_bytes()), Err(MessageError::Xml(_))));
    }
    let fault = message::fault("a < b & \u{1}c");
    let Body::Error(error) = message::parse(fault.as_bytes()).unwrap().body else { panic!("{fault}") };
    assert_eq!(error.text, "a < b & c");
}
