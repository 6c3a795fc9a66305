#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use ropewalk_client::{EventSink, Location, parse_location};

use super::super::end::Ends;
use super::*;
use crate::output::{Human, Loudness};

/// A server that starts a measurement, and answers no further command of profiles. Passes on the
/// commands that it gets.
fn falls_silent() -> (Url, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("ftp://127.0.0.1:{}/", listener.local_addr().unwrap().port());
    let (tell, asked) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 ready\r\n").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let Ok(line) = line else { return };
            let answer = match line.trim() {
                "FEAT" => "211-Features\r\n ROPEWALK Profile;\r\n211 End\r\n",
                "SITE PROFILE START" => "250 Profiling 600 seconds at most.\r\n",
                line if line.starts_with("SITE PROFILE") => "",
                line if line.starts_with("USER") => "331 and the password?\r\n",
                line if line.starts_with("PASS") => "230 welcome\r\n",
                line if line.starts_with("AUTH") => "502 no\r\n",
                _ => "200 yes\r\n",
            };
            let _ = tell.send(line);
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let Location::Remote(url) = parse_location(&place).unwrap() else { panic!("{place}") };
    (url, asked)
}

const WANTED: Wanted = Wanted { role: Role::Source, seconds: None, raw: false };
/// Far more than anything here takes, and far less than the client waits for SITE.
const LONG: Duration = Duration::from_secs(300);

#[test]
fn silent_server_is_abandoned() {
    let (url, _asked) = falls_silent();
    let stop = Cancel::new();
    let events: Arc<dyn EventSink> = Arc::new(Human::new(Loudness::Quiet, &stop));
    let mut end = RemoteEnd::start(&url, WANTED, &Options::default(), &events, &stop).unwrap();
    let hasty = Patience::new(Duration::from_millis(20), &stop, Duration::ZERO);
    let error = end.read_clock(&hasty).unwrap_err().to_string();
    assert_eq!(error, "it did not answer within 0.02 seconds");
    // Its session is broken: the profile is not waited for either.
    let begin = Instant::now();
    assert!(end.finish().is_err() && begin.elapsed() < LONG);
}

#[test]
fn ctrl_c_ends_the_wait_for_a_silent_server() {
    let (url, asked) = falls_silent();
    let stop = Cancel::new();
    let events: Arc<dyn EventSink> = Arc::new(Human::new(Loudness::Quiet, &stop));
    let mut end = RemoteEnd::start(&url, WANTED, &Options::default(), &events, &stop).unwrap();
    thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            while asked.recv().unwrap() != "SITE PROFILE STOP" {}
            stop.cancel();
        });
        let patience = Patience::new(LONG, stop, Duration::ZERO);
        let error = end.ask(&patience, Remote::stop_profile).unwrap_err().to_string();
        assert!(error.contains("did not answer"), "{error}");
    });
}

#[test]
fn end_of_the_work_ends_the_wait_for_a_clock() {
    let (url, asked) = falls_silent();
    let stop = Cancel::new();
    let events: Arc<dyn EventSink> = Arc::new(Human::new(Loudness::Quiet, &stop));
    let mut ends = Ends::default();
    ends.silent = true;
    ends.server(&url, Role::Source, None, &Options::default(), &events, &stop);
    assert!(!ends.is_empty(), "{:?}", ends.problems);
    let moved = ends.during_with(Duration::from_millis(1), Duration::ZERO, || {
        while asked.recv().unwrap() != "SITE PROFILE CLOCK" {}
        7
    });
    assert_eq!(moved, 7);
    let measured = ends.finish();
    assert!(measured.hosts.is_empty() && !measured.problems.is_empty());
}
