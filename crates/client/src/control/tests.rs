#![allow(clippy::unwrap_used)]
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::checksum::Algorithm;

use super::*;
use crate::model::event::no_events;

const LIMIT: Duration = Duration::from_secs(20);

/// A connection to a server that accepts commands until one begins with `last`, passes them on, and
/// closes.
fn talk(last: &'static str) -> (Control, JoinHandle<()>, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::channel();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        for line in BufReader::new(&stream).lines().map_while(Result::ok) {
            let over = line.starts_with(last);
            tell.send(line).unwrap();
            if over {
                break;
            }
        }
        tell.send("end".to_owned()).unwrap();
    });
    (connect(port), server, told)
}

fn connect(port: u16) -> Control {
    connect_with(port, &Options::default())
}

fn connect_with(port: u16, options: &Options) -> Control {
    let choice = crate::dial::Choice::default();
    Control::connect("127.0.0.1", port, options, &no_events(), &Cancel::new(), choice).unwrap()
}

#[test]
fn leaving_waits_until_the_server_has_ended() {
    let (mut control, server, told) = talk("QUIT");
    assert!(control.leave(LIMIT, true));
    let heard: Vec<String> = told.try_iter().collect();
    assert_eq!(heard, ["ABOR", "NOOP", "QUIT", "end"]);
    server.join().unwrap();

    let (mut control, server, told) = talk("QUIT");
    assert!(control.leave(LIMIT, false));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["QUIT", "end"]);
    server.join().unwrap();
}

#[test]
fn a_transfer_that_waits_ends_with_the_connection() {
    let (mut control, stream) = greeted();
    control.send(&Command::Stor("x".into())).unwrap();
    let server = thread::spawn(move || {
        let heard: Vec<String> = BufReader::new(&stream).lines().map_while(Result::ok).collect();
        assert_eq!(heard, ["STOR x", "QUIT"], "and nothing more, and an end");
    });
    assert!(control.leave(LIMIT, false));
    server.join().unwrap();
}

#[test]
fn a_server_that_stays_is_left_all_the_same() {
    for abort in [true, false] {
        let (mut control, _stream) = greeted();
        let began = Instant::now();
        assert!(!control.leave(Duration::from_millis(50), abort));
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
}

#[test]
fn a_server_that_closes_with_commands_unread_has_ended_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut control = connect(listener.local_addr().unwrap().port());
    let (stream, _) = listener.accept().unwrap();
    control.send(&Command::Noop).unwrap();
    stream.peek(&mut [0]).unwrap();
    drop(stream);
    assert!(control.leave(LIMIT, true));
}

#[test]
fn what_nobody_waits_for_lends_nobody_its_patience() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options::default().with(|o| o.timeouts.reply = Duration::from_millis(50));
    let mut control = connect_with(listener.local_addr().unwrap().port(), &options);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"220 ready\r\n").unwrap();
    control.answer_until(Instant::now() + LIMIT).unwrap().unwrap();
    // SITE commands may take an hour.
    control.suggest(&Command::Site(SiteCommand::ClientInfo("x".into()))).unwrap();
    let error = control.call(&Command::Noop).unwrap_err();
    assert!(matches!(&error, RemoteError::Silent { command, .. } if command == "NOOP"), "{error}");
}

#[test]
fn a_server_that_computes_a_sum_may_be_silent_as_long_as_the_file_takes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options::default().with(|o| o.timeouts.reply = Duration::from_millis(50));
    let mut control = connect_with(listener.local_addr().unwrap().port(), &options);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"220 ready\r\n").unwrap();
    control.answer_until(Instant::now() + LIMIT).unwrap().unwrap();
    let sum = |length| Command::Cksm { algorithm: Algorithm::Md5, offset: 0, length, path: "x".into() };
    control.send(&sum(None)).unwrap();
    assert_eq!(control.patience(), LONG);
    control.last_reads(Some(10 * SLOWEST + 1));
    assert_eq!(control.patience(), Duration::from_millis(10_050));
    stream.write_all(b"213 0\r\n").unwrap();
    control.finish().unwrap();
    // The length of a range is known.
    control.send(&sum(Some(5))).unwrap();
    control.last_reads(Some(u64::MAX));
    assert!(
        matches!(control.finish().unwrap_err(), RemoteError::Silent { command, .. } if command == "CKSM")
    );
    control.send(&sum(Some(u64::MAX))).unwrap();
    stream.write_all(b"213 0\r\n213 0\r\n").unwrap();
    control.finish().unwrap();
}

/// A session whose server has greeted, and the server's end of it.
fn greeted() -> (Control, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut control = connect(listener.local_addr().unwrap().port());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"220 ready\r\n").unwrap();
    control.answer_until(Instant::now() + LIMIT).unwrap().unwrap();
    (control, stream)
}

#[test]
fn features_that_are_known_are_not_waited_for_but_compared() {
    let (mut control, mut stream) = greeted();
    control.send(&Command::Feat).unwrap();
    stream.write_all(b"211-Can\r\n SIZE\r\n211 End\r\n").unwrap();
    let features = Arc::new(FeaturesReply::new(&control.finish().unwrap()));
    assert_eq!(features.lines, ["SIZE"]);

    let (mut control, mut stream) = greeted();
    control.expect_features(features.clone()).unwrap();
    control.expect_success(&Command::Noop, features.clone()).unwrap();
    control.send(&Command::Pwd).unwrap();
    stream.write_all(b"211-May\r\n SIZE\r\n211 End.\r\n200 OK\r\n257 \"/\"\r\n").unwrap();
    assert_eq!(control.finish().unwrap().code(), 257);
    assert!(features.is_current());

    let (mut control, mut stream) = greeted();
    control.expect_features(features.clone()).unwrap();
    control.send(&Command::Pwd).unwrap();
    stream.write_all(b"211-Can\r\n MDTM\r\n211 End\r\n257 \"/\"\r\n").unwrap();
    let error = control.finish().unwrap_err();
    assert!(
        matches!(error, RemoteError::OtherServer { .. }) && error.is_transient() && error.breaks_session()
    );
    // The next session asks again.
    assert!(!features.is_current());
}

#[test]
fn what_has_to_succeed_and_does_not_ends_the_session() {
    let features = Arc::new(FeaturesReply::new(&Reply::new(211, "none")));
    let (mut control, mut stream) = greeted();
    control.expect_success(&Command::Noop, features.clone()).unwrap();
    control.send(&Command::Pwd).unwrap();
    stream.write_all(b"500 no\r\n257 \"/\"\r\n").unwrap();
    let error = control.finish().unwrap_err();
    assert!(matches!(&error, RemoteError::OtherServer { reason, .. } if reason.contains("NOOP")), "{error}");
    // Replies would be assigned to the wrong commands.
    assert!(error.breaks_session() && !features.is_current());
}

#[test]
fn a_server_that_closes_says_why() {
    let features = Arc::new(FeaturesReply::new(&Reply::new(211, "none")));
    let (mut control, mut stream) = greeted();
    control.expect_features(features.clone()).unwrap();
    control.send(&Command::Pwd).unwrap();
    stream.write_all(b"421 too many\r\n").unwrap();
    let error = control.finish().unwrap_err();
    assert!(matches!(&error, RemoteError::Refused { .. }) && error.breaks_session(), "{error}");
    assert!(features.is_current());
}

#[test]
fn a_server_that_closes_when_nothing_is_due_says_why() {
    let (mut control, mut stream) = greeted();
    stream.write_all(b"421 Service not available\r\n").unwrap();
    drop(stream);
    let error = control.finish().unwrap_err();
    assert!(error.to_string().ends_with(" has closed the session: 421 Service not available"), "{error}");
    assert!(error.breaks_session() && error.is_transient());
}
