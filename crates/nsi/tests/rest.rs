//! The requester against an NSI Aggregator Proxy on loopback that misbehaves.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ropewalk_nsi::NsiRest;
use ropewalk_nsi::rest::message::{LONGEST, LONGEST_LIST};
use ropewalk_paths::{
    Binding, Entry, Goal, Journal, Order, Outcome, Owner, PathError, Phase, Provider as _, Request, Runner,
    State, Step, now,
};
use ropewalk_tests::aggregator_proxy::{AggregatorProxy, Faults, detail};
use ropewalk_tests::nsi_provider::{free_port, post};

struct Site {
    directory: tempfile::TempDir,
    proxy: AggregatorProxy,
    port: u16,
}

impl Site {
    fn new(faults: Faults) -> Self {
        let proxy = AggregatorProxy::start(faults).unwrap();
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        fs::write(directory.path().join("proxy.toml"), proxy.file(port)).unwrap();
        Self { directory, proxy, port }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("proxy.toml")
    }

    fn open(&self) -> NsiRest {
        NsiRest::open(&self.file()).unwrap()
    }

    fn journal(&self) -> Journal {
        Journal::at(self.directory.path())
    }

    fn obtain(&self) -> Result<(Runner, Binding), PathError> {
        let entry = Entry::new(format!("nsi-rest:{}", self.file().display()), Owner::Transfer, request());
        let mut runner = Runner::begin(&self.journal(), entry, Box::new(self.open()), Goal::Up).unwrap();
        runner.obtain(Goal::Up, &|| false).map(|binding| (runner, binding))
    }

    fn failure(&self) -> String {
        match self.obtain() {
            Ok(_) => panic!("there is a path"),
            Err(error) => error.to_string(),
        }
    }

    fn entries(&self) -> Vec<Entry> {
        self.journal().list().unwrap().0.into_iter().map(|(entry, _)| entry).collect()
    }

    /// Removes the paths of the journal, as a later program does.
    fn recover(&self) {
        for entry in self.entries() {
            let taken = self.journal().take_over(&entry.id).unwrap().unwrap();
            let mut runner = Runner::recover(taken, Box::new(self.open()), Goal::End);
            runner.end();
            assert!(!runner.is_left(), "{:?}", runner.entry());
        }
    }
}

fn request() -> Request {
    let (until, description) = (now() + Duration::from_secs(3600), "a to b \"c\"\n".to_owned());
    Request { from: None, until, capacity: Some(150_000_001), description }
}

fn order(step: Step, reference: Option<&str>) -> Order {
    let id = Entry::new(String::new(), Owner::Transfer, request()).id;
    Order { id, number: 1, step, reference: reference.map(str::to_owned), request: request() }
}

#[test]
fn path_is_reserved_used_and_removed() {
    for faults in [Faults::default(), Faults { loses_calls: true, ..Faults::default() }] {
        let site = Site::new(faults);
        let (mut runner, binding) = site.obtain().unwrap();
        assert_eq!(binding.capacity, Some(200_000_000));
        assert_eq!(binding.address, Some("127.0.0.1".parse().unwrap()));
        let reservation = &site.proxy.reservations()[0];
        assert_eq!(runner.entry().reference.as_ref(), Some(&reservation.connection));
        assert_eq!(reservation.request["criteria"]["p2ps"]["capacity"], 151);
        assert_eq!(reservation.request["globalReservationId"], format!("urn:uuid:{}", runner.entry().id));
        runner.end();
        assert!(!runner.is_left() && !site.proxy.has_path() && site.entries().is_empty());
        let own = "/reservations/9adfed42-0";
        assert_eq!(
            site.proxy.changes(),
            [
                "POST /reservations".to_owned(),
                format!("POST {own}/provision"),
                format!("POST {own}/release"),
                format!("DELETE {own}"),
            ]
        );
    }
}

#[test]
fn failure_of_the_proxy_is_worded_and_leaves_no_path() {
    for (faults, text) in [
        (Faults { refuses: Some("no such port"), ..Faults::default() }, "no such port (HTTP status 422)"),
        (Faults { fails: Some("[00600] no capacity"), ..Faults::default() }, "no capacity"),
        (Faults { never_up: true, ..Faults::default() }, "did not come up in time"),
    ] {
        let site = Site::new(faults.clone());
        let failure = site.failure();
        assert!(failure.contains(text), "{failure}");
        if faults.never_up {
            // The proxy terminates no path that is being activated.
            assert_eq!(site.entries().len(), 1);
            continue;
        }
        assert!(!site.proxy.has_path() && site.entries().is_empty(), "{failure}");
    }
}

#[test]
fn path_of_a_lost_answer_is_found_by_its_global_id_and_removed() {
    let site = Site::new(Faults { loses_answers: true, lists_others: true, ..Faults::default() });
    let failure = site.failure();
    assert!(failure.contains("/aggregator-proxy/reservations"), "{failure}");
    assert!(!site.proxy.has_path() && site.entries().is_empty(), "{failure}");
    // Another reservation is not taken for it.
    let site = Site::new(Faults { lists_others: true, ..Faults::default() });
    let mut other = site.open();
    assert_eq!(other.send(&order(Step::Query, None)), Outcome::State(State::Gone));
    assert_eq!(other.reference(), None);
}

#[test]
fn proxy_that_never_answers_or_is_not_there_is_an_error() {
    let silent = Site::new(Faults { is_silent: true, ..Faults::default() });
    let outcome = silent.open().send(&order(Step::Hold, None));
    assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains("does not answer")), "{outcome:?}");
    let text = fs::read_to_string(silent.file()).unwrap();
    let (_, port) = text.lines().next().unwrap().split_once("127.0.0.1:").unwrap();
    let port = port.split('/').next().unwrap();
    fs::write(silent.file(), text.replacen(port, &free_port().unwrap().to_string(), 1)).unwrap();
    let failure = silent.failure();
    assert!(failure.contains("cannot be reached"), "{failure}");
    assert!(silent.entries().is_empty());
}

#[test]
fn answers_that_are_no_messages_leave_the_result_open() {
    for (status, answer, text) in [
        (202, "no JSON".to_owned(), "not as expected"),
        (202, "{}".to_owned(), "missing field"),
        (202, r#"{"instance":"/reservations/../x"}"#.to_owned(), "names no reservation"),
        (202, "[".repeat(100_000), "not as expected"),
        (202, "x".repeat(LONGEST + 10), "longer than"),
        (200, "{}".to_owned(), "HTTP status 200"),
        (302, String::new(), "HTTP status 302"),
        (500, "<html>".to_owned(), "HTTP status 500"),
        (502, r#"{"detail":"no aggregator"}"#.to_owned(), "no aggregator (HTTP status 502)"),
    ] {
        let site = Site::new(Faults { answer: Some((status, answer)), ..Faults::default() });
        let outcome = site.open().send(&order(Step::Hold, None));
        assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains(text)), "{text}: {outcome:?}");
    }
    let list = format!("{{\"reservations\":[\"{}\"]}}", "x".repeat(LONGEST_LIST));
    let site = Site::new(Faults { answer: Some((200, list)), ..Faults::default() });
    let outcome = site.open().send(&order(Step::Query, None));
    assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains("longer than")), "{outcome:?}");
}

#[test]
fn query_that_is_answered_for_another_reservation_or_another_url_decides_nothing() {
    let site = Site::new(Faults::default());
    let (mut requester, hold) = (site.open(), order(Step::Hold, None));
    assert_eq!(requester.send(&hold), Outcome::Accepted);
    let query = Order { step: Step::Query, reference: requester.reference(), ..hold.clone() };
    for (faults, text) in [
        (Faults { confuses_reservations: true, ..Faults::default() }, "another reservation"),
        (Faults { answer: Some((500, "{".to_owned())), ..Faults::default() }, "HTTP status 500"),
        (Faults { answer: Some((200, "{".to_owned())), ..Faults::default() }, "not as expected"),
    ] {
        site.proxy.set_faults(faults);
        let outcome = requester.send(&query);
        assert!(matches!(&outcome, Outcome::Unclear(why) if why.contains(text)), "{text}: {outcome:?}");
    }
    // The path exists: an answer about the URL must not end its entry.
    site.proxy.set_faults(Faults {
        answer: Some((404, "{\"detail\":\"Not Found\"}".to_owned())),
        ..Faults::default()
    });
    for step in [Step::Query, Step::Terminate] {
        let outcome = requester.send(&Order { step, ..query.clone() });
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains("Not Found")), "{outcome:?}");
    }
    site.proxy.set_faults(Faults::default());
    let missing = Order { reference: Some("9adfed42-7".to_owned()), ..query };
    assert_eq!(site.open().send(&missing), Outcome::State(State::Gone));
}

#[test]
fn forged_calls_to_the_listener_are_refused_or_cause_a_query_only() {
    let site = Site::new(Faults { loses_calls: true, ..Faults::default() });
    let (mut requester, hold) = (site.open(), order(Step::Hold, None));
    assert_eq!(requester.send(&hold), Outcome::Accepted);
    let (address, own) = (format!("127.0.0.1:{}", site.port), requester.reference().unwrap());
    let up = |connection: &str, id: &str| detail(connection, id, "ACTIVATED", None).to_string();
    for text in [up("OTHER", "urn:uuid:0"), up("../x", "urn:uuid:0"), "{".to_owned(), "x".repeat(LONGEST)] {
        assert_eq!(post(&address, "/callback", &text).unwrap().0, 400);
    }
    // The listener does not read it to its end, so that the answer may be lost.
    let long = post(&address, "/callback", &"x".repeat(LONGEST + 10));
    assert!(long.as_ref().map_or(true, |(status, _)| *status == 413), "{long:?}");
    assert_eq!(post(&address, "/", &up(&own, "urn:uuid:0")).unwrap().0, 404);
    assert_eq!(requester.receive(Duration::from_millis(1)), None);
    assert_eq!(post(&address, "/callback", &up(&own, "urn:uuid:0")).unwrap().0, 200);
    let notification = requester.receive(Duration::from_secs(10)).unwrap();
    assert_eq!((notification.number, notification.outcome), (None, Outcome::Accepted));
}

#[test]
fn path_in_advance_is_refused_before_anything_is_sent() {
    let site = Site::new(Faults::default());
    let in_advance = Request { from: Some(now() + Duration::from_secs(60)), ..request() };
    let over = Request { until: Duration::from_secs(1), ..request() };
    for (request, text) in [(in_advance, "has no schedule"), (over, "wanted time is over")] {
        let outcome = site.open().send(&Order { request, ..order(Step::Hold, None) });
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains(text)), "{outcome:?}");
    }
    assert!(site.proxy.changes().is_empty());
}

#[test]
fn path_that_is_up_is_released_before_a_later_program_removes_it() {
    let site = Site::new(Faults { loses_calls: true, ..Faults::default() });
    let (runner, _) = site.obtain().unwrap();
    assert_eq!(runner.entry().phase, Phase::Up);
    // The process ends without a word.
    drop(runner);
    assert_eq!(site.entries().len(), 1);
    site.recover();
    assert!(!site.proxy.has_path() && site.entries().is_empty());
}

#[test]
fn file_with_settings_that_the_proxy_has_not_is_refused() {
    let site = Site::new(Faults::default());
    let text = fs::read_to_string(site.file()).unwrap();
    for (changed, reason) in [
        (format!("bidirectional = true\n{text}"), "bidirectional"),
        (text.replace("/aggregator-proxy\"", "/reservations/\""), "without /reservations"),
        (text.replace("/aggregator-proxy\"", "/?x\""), "without a query"),
    ] {
        fs::write(site.file(), changed).unwrap();
        let Err(error) = NsiRest::open(&site.file()) else { panic!("{reason}") };
        assert!(error.to_string().contains(reason), "{error}");
    }
}
