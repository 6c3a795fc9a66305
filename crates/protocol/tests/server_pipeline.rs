//! The order of commands and replies, ABOR, and how sessions end.

#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::server::{Event, Failure, Operation, Outcome, Phase, SessionConfig};

const NOOP: &str = "200 NOOP command successful.";
const ABORTED: &str = "426 Command Aborted.";
const ABORT_DONE: &str = "226 Abort successful";
const COMPLETE: &str = "226 Transfer Complete.";

fn done() -> Result<Outcome, Failure> {
    Ok(Outcome::Transferred { checksum: None })
}

/// A session in which a transfer runs.
fn busy() -> Host {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("PASV");
    assert_eq!(host.input(b"RETR big\r\n"), "");
    host.session.event(Event::Begun { reused: false });
    assert_eq!(host.poll(), "150 Beginning transfer.");
    host
}

#[test]
fn commands_wait_for_the_one_under_way() {
    let mut host = busy();
    assert_eq!(host.session.phase(), Phase::Busy);
    assert_eq!(host.input(b"NOOP\r\nSTOR a\r\nPWD\r\n"), "");
    assert_eq!(host.session.queued(), 3);
    assert_eq!(host.complete(done()), [COMPLETE, NOOP].join("\n"));
    assert_eq!(host.session.queued(), 1);
    assert_eq!(host.complete(done()), format!("{COMPLETE}\n257 \"/home/alice\" is current directory."));
    assert_eq!(host.session.phase(), Phase::Idle);
}

#[test]
fn fragments_do_not_matter() {
    let mut host = Host::logged_in();
    for byte in b"NOO" {
        assert_eq!(host.input(&[*byte]), "");
    }
    assert_eq!(host.input(b"P\r"), "");
    assert_eq!(host.input(b"\nPWD\r\nNO"), format!("{NOOP}\n257 \"/home/alice\" is current directory."));
    assert_eq!(host.input(b"OP\r\n"), NOOP);
    // LF alone does not end a command.
    assert_eq!(host.input(b"NOOP\nNOOP\r\n"), "501 Syntax error in parameters or arguments.");
}

#[test]
fn many_commands_at_once_are_worked_off() {
    let mut host = Host::logged_in();
    let replies = host.input("NOOP\r\n".repeat(5000).as_bytes());
    assert_eq!(replies.lines().filter(|line| *line == NOOP).count(), 5000);
}

#[test]
fn a_thousand_may_wait_and_no_more() {
    let mut host = busy();
    assert_eq!(host.input("NOOP\r\n".repeat(1000).as_bytes()), "");
    assert_eq!(host.session.queued(), 1000);
    assert_eq!(host.input(b"NOOP\r\n"), "ABORT\n500 Pipeline queue full.\nCLOSE");
    assert_eq!(host.complete(Err(Failure::Aborted)), "");
    assert_eq!(host.session.phase(), Phase::Closed);

    // Also where the operation begins behind them.
    let mut host = Host::logged_in();
    let mut input = b"CWD /\r\n".to_vec();
    input.extend(b"NOOP\r\n".repeat(1001));
    assert_eq!(host.input(&input), "500 Pipeline queue full.\nCLOSE");
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    let mut host =
        Host::logged_in_with(SessionConfig { max_queue_bytes: 10_000, ..SessionConfig::default() });
    host.ask("CWD /");
    let line = format!("CWD {}\r\n", "x".repeat(4000));
    assert_eq!(host.input(line.repeat(2).as_bytes()), "");
    assert_eq!(host.input(line.as_bytes()), "500 Pipeline queue full.\nCLOSE");
}

#[test]
fn abort_when_idle() {
    let mut host = Host::logged_in();
    for line in
        [&b"ABOR\r\n"[..], b"abor\r\n", b"\xff\xf4\xff\xf2ABOR\r\n", b"\xff\xf4\xf2ABOR\r\n", b"\xf2ABOR\r\n"]
    {
        assert_eq!(host.input(line), ABORT_DONE);
    }
    assert_eq!(host.input(b"NOOP\r\nABOR\r\nNOOP\r\n"), [NOOP, ABORT_DONE, NOOP].join("\n"));
}

#[test]
fn abort_of_a_transfer() {
    let mut host = busy();
    assert_eq!(host.input(b"\xff\xf4\xff\xf2ABOR\r\n"), "ABORT");
    assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, ABORT_DONE].join("\n"));
    assert_eq!(host.run("NOOP"), NOOP);
    // The channel is still there.
    assert_eq!(host.run("RETR f"), COMPLETE);
}

#[test]
fn abort_that_comes_too_late() {
    let mut host = busy();
    assert_eq!(host.input(b"ABOR\r\nABOR\r\n"), "ABORT");
    assert_eq!(host.complete(done()), [COMPLETE, ABORT_DONE, ABORT_DONE].join("\n"));
}

#[test]
fn abort_behind_other_commands() {
    let mut host = busy();
    assert_eq!(
        host.input(b"REST 5\r\nSTOR a\r\nNOOP\r\nCWD /x\r\nMLSD\r\nABOR\r\nPWD\r\nSTOR b\r\n"),
        "ABORT"
    );
    let restarted = "350 Restart Marker OK. Send STORE or RETR to initiate transfer.";
    assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, restarted, ABORTED, NOOP].join("\n"));
    // Short ones before it are carried out, transfers after it too.
    assert!(matches!(host.operation, Some(Operation::ChangeDirectory(_))));
    assert_eq!(
        host.complete(Ok(Outcome::Done)),
        ["250 CWD command successful.", ABORTED, ABORT_DONE, "257 \"/x\" is current directory."].join("\n")
    );
    let Some(Operation::Transfer(transfer)) = &host.operation else { panic!() };
    assert_eq!((transfer.path.as_bytes(), transfer.restarted), (&b"/x/b"[..], false));
    assert_eq!(host.complete(done()), COMPLETE);
}

#[test]
fn abort_does_not_disturb_short_operations() {
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"MKD x\r\nABOR\r\n"), "");
    assert_eq!(
        host.complete(Ok(Outcome::Done)),
        format!("257 Directory \"/home/alice/x\" created successfully.\n{ABORT_DONE}")
    );
    // Long ones it does, data channel or not.
    for line in ["CKSM MD5 0 -1 f", "MLSC", "SITE RDEL d"] {
        host.input(format!("{line}\r\n").as_bytes());
        assert_eq!(host.input(b"ABOR\r\n"), "ABORT", "{line}");
        assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, ABORT_DONE].join("\n"));
    }
}

#[test]
fn streams_are_set_at_once() {
    let mut host = busy();
    // In front of what waits, in pieces, with Telnet signals, in any case.
    assert_eq!(host.input(b"NOOP\r\nSITE STREAMS 8\r\nPWD\r\nsite  stre"), "STREAMS 8\n114 Streams 8");
    assert_eq!(host.input(b"ams 2 \r\n"), "STREAMS 2\n114 Streams 2");
    assert_eq!(host.input(b"\xff\xf4\xff\xf2SITE STREAMS 1024\r\n"), "STREAMS 1024\n114 Streams 1024");
    assert_eq!(host.session.queued(), 2);
    assert_eq!(
        host.complete(done()),
        format!("{COMPLETE}\n{NOOP}\n257 \"/home/alice\" is current directory.")
    );
    // The transfer has just ended: for the next ones.
    assert_eq!(host.run("SITE STREAMS 5"), "STREAMS 5\n114 Streams 5");
    host.input(b"PASV\r\n");
    assert!(matches!(host.operation, Some(Operation::Listen(ref listen)) if listen.channel.parallelism == 5));
}

#[test]
fn streams_that_cannot_be() {
    let mut host = busy();
    for line in ["SITE STREAMS", "SITE STREAMS 0", "SITE STREAMS x", "SITE STREAMS 1025", "SITE STREAMS 4 5"]
    {
        let answer = host.input(format!("{line}\r\n").as_bytes());
        assert_eq!(answer, "114 Streams refused: expected a number from 1 to 1024.", "{line}");
    }
    // Not more than the site allows.
    let mut host = Host::logged_in_with(SessionConfig { max_streams: 16, ..SessionConfig::default() });
    assert_eq!(host.run("SITE STREAMS 17"), "STREAMS 16\n114 Streams 16");
    assert_eq!(host.run("SITE STREAMS x"), "114 Streams refused: expected a number from 1 to 16.");
    // A receiver has nothing to say about it.
    host.run("OPTS RETR Parallelism=3,3,3;");
    host.run("MODE E");
    host.run("PASV");
    assert_eq!(host.input(b"STOR f\r\nSITE STREAMS 9\r\n"), "STREAMS 9\n114 Streams 9", "not begun");
    assert_eq!(host.input(b"SITE STREAMS 7\r\n"), "114 Streams 9");
    assert_eq!(host.complete(done()), COMPLETE);
    let mut host = Host::new(SessionConfig::default());
    assert_eq!(host.run("SITE STREAMS 4"), "114 Streams refused: log in first.");
    // Where it is turned off, it is an unknown command like others, in the row.
    for gone in ["SITE", "SITE STREAMS"] {
        let disabled = [gone.to_owned()].into();
        let mut host = Host::logged_in_with(SessionConfig { disabled, ..SessionConfig::default() });
        assert!(host.run("SITE STREAMS 4").starts_with("500 "), "{gone}");
    }
}

#[test]
fn quit_waits_too() {
    let mut host = busy();
    assert_eq!(host.input(b"QUIT\r\nNOOP\r\n"), "");
    assert_eq!(host.complete(done()), format!("{COMPLETE}\n221 Goodbye.\nCLOSE"));
    assert_eq!(host.input(b"NOOP\r\n"), "");
    assert_eq!(host.session.phase(), Phase::Closed);
}

#[test]
fn an_empty_line_ends_the_session() {
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"NOOP\r\n\r\nNOOP\r\n"), format!("{NOOP}\nCLOSE"));
    assert_eq!(host.input(b"NOOP\r\n"), "");
    // In its turn.
    let mut host = busy();
    assert_eq!(host.input(b"\r\n"), "");
    assert_eq!(host.complete(done()), format!("{COMPLETE}\nCLOSE"));
    // Telnet signals alone are no line.
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"\xff\xf4\r\nNOOP\r\n"), NOOP);
}

#[test]
fn a_long_line_ends_the_session() {
    let config = SessionConfig { max_line: 100, ..SessionConfig::default() };
    let mut host = Host::logged_in_with(config.clone());
    let line = format!("CWD /{}\r\n", "x".repeat(95));
    host.ask(line.trim_end());
    host.session.completed(Ok(Outcome::Done));
    host.poll();
    assert_eq!(host.input(b"NOOP\r\nCWD /"), NOOP);
    assert_eq!(host.input(&[b'x'; 97]), "500 Command line longer than 100 bytes.\nCLOSE");
    assert_eq!(host.input(b"\r\nNOOP\r\n"), "");

    let mut host = Host::logged_in_with(config);
    assert_eq!(host.input(&[b'x'; 200]), "500 Command line longer than 100 bytes.\nCLOSE");
}

#[test]
fn unwrapped_lines() {
    let mut host = Host::logged_in();
    host.session.line(b"NOOP");
    assert_eq!(host.poll(), NOOP);
    host.session.line(b"");
    assert_eq!(host.poll(), "CLOSE");
}
