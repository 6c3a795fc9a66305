//! The order of commands and replies, ABOR, and the end of sessions.

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

/// A session in which a transfer is running.
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
fn commands_during_operation_wait() {
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
fn commands_in_fragments_are_answered() {
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
fn many_short_commands_at_once_are_all_answered() {
    let mut host = Host::logged_in();
    let replies = host.input("NOOP\r\n".repeat(5000).as_bytes());
    assert_eq!(replies.lines().filter(|line| *line == NOOP).count(), 5000);
}

#[test]
fn queue_with_more_than_a_thousand_commands_ends_session() {
    let mut host = busy();
    assert_eq!(host.input("NOOP\r\n".repeat(1000).as_bytes()), "");
    assert_eq!(host.session.queued(), 1000);
    assert_eq!(host.input(b"NOOP\r\n"), "ABORT\n500 Pipeline queue full.\nCLOSE");
    assert_eq!(host.complete(Err(Failure::Aborted)), "");
    assert_eq!(host.session.phase(), Phase::Closed);

    // The limit also applies if the operation begins only after the commands were queued.
    let mut host = Host::logged_in();
    let mut input = b"CWD /\r\n".to_vec();
    input.extend(b"NOOP\r\n".repeat(1001));
    assert_eq!(host.input(&input), "500 Pipeline queue full.\nCLOSE");
}

#[test]
fn queue_with_too_many_bytes_ends_session() {
    let mut host =
        Host::logged_in_with(SessionConfig { max_queue_bytes: 10_000, ..SessionConfig::default() });
    host.ask("CWD /");
    let line = format!("CWD {}\r\n", "x".repeat(4000));
    assert_eq!(host.input(line.repeat(2).as_bytes()), "");
    assert_eq!(host.input(line.as_bytes()), "500 Pipeline queue full.\nCLOSE");
}

#[test]
fn abort_without_operation_is_answered_226() {
    let mut host = Host::logged_in();
    for line in
        [&b"ABOR\r\n"[..], b"abor\r\n", b"\xff\xf4\xff\xf2ABOR\r\n", b"\xff\xf4\xf2ABOR\r\n", b"\xf2ABOR\r\n"]
    {
        assert_eq!(host.input(line), ABORT_DONE);
    }
    assert_eq!(host.input(b"NOOP\r\nABOR\r\nNOOP\r\n"), [NOOP, ABORT_DONE, NOOP].join("\n"));
}

#[test]
fn abort_during_transfer_aborts_it() {
    let mut host = busy();
    assert_eq!(host.input(b"\xff\xf4\xff\xf2ABOR\r\n"), "ABORT");
    assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, ABORT_DONE].join("\n"));
    assert_eq!(host.run("NOOP"), NOOP);
    // The channel can still be used.
    assert_eq!(host.run("RETR f"), COMPLETE);
}

#[test]
fn abort_after_end_of_transfer_keeps_its_reply() {
    let mut host = busy();
    assert_eq!(host.input(b"ABOR\r\nABOR\r\n"), "ABORT");
    assert_eq!(host.complete(done()), [COMPLETE, ABORT_DONE, ABORT_DONE].join("\n"));
}

#[test]
fn abort_after_queued_commands_skips_only_long_ones() {
    let mut host = busy();
    assert_eq!(
        host.input(b"REST 5\r\nSTOR a\r\nNOOP\r\nCWD /x\r\nMLSD\r\nABOR\r\nPWD\r\nSTOR b\r\n"),
        "ABORT"
    );
    let restarted = "350 Restart Marker OK. Send STORE or RETR to initiate transfer.";
    assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, restarted, ABORTED, NOOP].join("\n"));
    // Short commands before the ABOR are executed, and so are transfers after it.
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
fn abort_during_short_operation_does_not_abort_it() {
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"MKD x\r\nABOR\r\n"), "");
    assert_eq!(
        host.complete(Ok(Outcome::Done)),
        format!("257 Directory \"/home/alice/x\" created successfully.\n{ABORT_DONE}")
    );
    // Long operations are aborted, with or without a data channel.
    for line in ["CKSM MD5 0 -1 f", "MLSC", "SITE RDEL d"] {
        host.input(format!("{line}\r\n").as_bytes());
        assert_eq!(host.input(b"ABOR\r\n"), "ABORT", "{line}");
        assert_eq!(host.complete(Err(Failure::Aborted)), [ABORTED, ABORT_DONE].join("\n"));
    }
}

#[test]
fn site_streams_during_transfer_is_executed_at_once() {
    let mut host = busy();
    // SITE STREAMS overtakes the queue, also in several chunks, with Telnet signals, and in any
    // case.
    assert_eq!(host.input(b"NOOP\r\nSITE STREAMS 8\r\nPWD\r\nsite  stre"), "STREAMS 8\n114 Streams 8");
    assert_eq!(host.input(b"ams 2 \r\n"), "STREAMS 2\n114 Streams 2");
    assert_eq!(host.input(b"\xff\xf4\xff\xf2SITE STREAMS 1024\r\n"), "STREAMS 1024\n114 Streams 1024");
    assert_eq!(host.session.queued(), 2);
    assert_eq!(
        host.complete(done()),
        format!("{COMPLETE}\n{NOOP}\n257 \"/home/alice\" is current directory.")
    );
    // The transfer has just ended, so the number applies to the next ones.
    assert_eq!(host.run("SITE STREAMS 5"), "STREAMS 5\n114 Streams 5");
    host.input(b"PASV\r\n");
    assert!(matches!(host.operation, Some(Operation::Listen(ref listen)) if listen.channel.parallelism == 5));
}

#[test]
fn site_streams_with_invalid_number_is_refused() {
    let mut host = busy();
    for line in ["SITE STREAMS", "SITE STREAMS 0", "SITE STREAMS x", "SITE STREAMS 1025", "SITE STREAMS 4 5"]
    {
        let answer = host.input(format!("{line}\r\n").as_bytes());
        assert_eq!(answer, "114 Streams refused: expected a number from 1 to 1024.", "{line}");
    }
    // The number is at most that which the site allows.
    let mut host = Host::logged_in_with(SessionConfig { max_streams: 16, ..SessionConfig::default() });
    assert_eq!(host.run("SITE STREAMS 17"), "STREAMS 16\n114 Streams 16");
    assert_eq!(host.run("SITE STREAMS x"), "114 Streams refused: expected a number from 1 to 16.");
    // A receiver does not decide the number of streams.
    host.run("OPTS RETR Parallelism=3,3,3;");
    host.run("MODE E");
    host.run("PASV");
    assert_eq!(host.input(b"STOR f\r\nSITE STREAMS 9\r\n"), "STREAMS 9\n114 Streams 9", "not begun");
    assert_eq!(host.input(b"SITE STREAMS 7\r\n"), "114 Streams 9");
    assert_eq!(host.complete(done()), COMPLETE);
    let mut host = Host::new(SessionConfig::default());
    assert_eq!(host.run("SITE STREAMS 4"), "114 Streams refused: log in first.");
    // If SITE STREAMS is disabled, it is an unknown command, and answered in the order of the
    // queue.
    for gone in ["SITE", "SITE STREAMS"] {
        let disabled = [gone.to_owned()].into();
        let mut host = Host::logged_in_with(SessionConfig { disabled, ..SessionConfig::default() });
        assert!(host.run("SITE STREAMS 4").starts_with("500 "), "{gone}");
    }
}

#[test]
fn quit_during_operation_waits() {
    let mut host = busy();
    assert_eq!(host.input(b"QUIT\r\nNOOP\r\n"), "");
    assert_eq!(host.complete(done()), format!("{COMPLETE}\n221 Goodbye.\nCLOSE"));
    assert_eq!(host.input(b"NOOP\r\n"), "");
    assert_eq!(host.session.phase(), Phase::Closed);
}

#[test]
fn empty_line_ends_session() {
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"NOOP\r\n\r\nNOOP\r\n"), format!("{NOOP}\nCLOSE"));
    assert_eq!(host.input(b"NOOP\r\n"), "");
    // The empty line is handled in the order of the queue.
    let mut host = busy();
    assert_eq!(host.input(b"\r\n"), "");
    assert_eq!(host.complete(done()), format!("{COMPLETE}\nCLOSE"));
    // Telnet signals alone are not a line.
    let mut host = Host::logged_in();
    assert_eq!(host.input(b"\xff\xf4\r\nNOOP\r\n"), NOOP);
}

#[test]
fn too_long_line_ends_session() {
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
fn lines_without_line_ends_are_executed() {
    let mut host = Host::logged_in();
    host.session.line(b"NOOP");
    assert_eq!(host.poll(), NOOP);
    host.session.line(b"");
    assert_eq!(host.poll(), "CLOSE");
}
