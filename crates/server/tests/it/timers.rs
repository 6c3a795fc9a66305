//! The timeouts of the server.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::fixture::Fixture;

const SOON: Duration = Duration::from_millis(50);

#[test]
fn session_without_log_in_is_closed() {
    let server = Fixture::with(|config, _| config.timeouts.login = SOON);
    let mut client = server.connect();
    assert_eq!(client.expect(421), "421 Idle Timeout: closing control connection.");
    client.expect_end();
    let mut client = server.connect();
    // This holds however much the client sends. The connection may end before all of it is sent,
    // and the 421 be lost.
    let mut writer = client.writer();
    let begin = Instant::now();
    while writer.write_all(b"NOOP\r\n").is_ok() && client.try_reply().is_some_and(|reply| reply.code != 421) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it stays for ever");
    }
}

#[test]
fn idle_session_is_closed() {
    // Long enough for a log-in on a busy machine.
    let server = Fixture::with(|config, _| config.timeouts.idle = Duration::from_secs(1));
    let mut client = server.login();
    client.command("NOOP", 200);
    client.expect(421);
    client.expect_end();
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
}

/// A command that never ends does not count.
#[test]
fn session_with_unfinished_line_is_idle() {
    let server = Fixture::with(|config, _| config.timeouts.idle = Duration::from_secs(1));
    let mut client = server.login();
    client.command("NOOP", 200);
    let mut writer = client.writer();
    let begin = Instant::now();
    let letters = std::thread::spawn(move || {
        while writer.write_all(b"N").is_ok() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::park_timeout(SOON);
        }
    });
    while client.try_reply().is_some_and(|reply| reply.code != 421) {}
    assert!(begin.elapsed() < Duration::from_secs(20), "it stays for ever");
    drop(client);
    letters.join().unwrap();
}

#[test]
fn session_with_transfer_is_not_idle() {
    let server = Fixture::with(|config, _| config.timeouts.idle = Duration::from_secs(1));
    let mut client = server.login();
    let mut data = client.data();
    client.command("STOR /f", 150);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        data.write_all(b"x").unwrap();
    }
    drop(data);
    client.expect(226);
}

#[test]
fn failed_log_in_is_answered_late_without_thread() {
    let server = Fixture::with(|config, _| {
        config.limits.active = 1;
        config.timeouts.login_failure = Duration::from_millis(100);
    });
    let mut client = server.connect();
    client.command("USER eve", 331);
    let begin = Instant::now();
    client.send("PASS x");
    // Other clients are served meanwhile.
    let mut other = server.login();
    other.command("NOOP", 200);
    client.expect(530);
    assert!(begin.elapsed() >= Duration::from_millis(100));
}

#[test]
fn stalled_transfer_is_broken_off() {
    let server = Fixture::with(|config, _| config.data.stall_timeout = SOON);
    let mut client = server.login();
    let _data = client.data();
    client.command("STOR /f", 150);
    client.expect(426);
}

#[test]
fn markers_are_sent_at_interval() {
    let server = Fixture::with(|config, _| config.files.fsync = ropewalk_server::Fsync::EachMarker);
    let mut client = server.login();
    crate::blocks::mode_e(&mut client);
    client.command("TREV PERF 1", 200);
    client.command("TREV RESTART 1", 200);
    let mut data = crate::client::connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&crate::blocks::block(0, 0, b"abcd")).unwrap();
    client.expect(150);
    client.expect(112);
    let marker = client.expect(112);
    assert!(marker.contains("Stripe Bytes Transferred: 4|"), "{marker}");
    assert_eq!(client.expect(111), "111 Range Marker 0-4");
    data.write_all(&crate::blocks::block(0, 4, b"ef")).unwrap();
    data.write_all(&crate::blocks::block(0x48, 1, b"")).unwrap();
    loop {
        let reply = client.reply();
        match reply.code {
            112 => {}
            // Only the new ranges.
            111 => assert_eq!(reply.text, "111 Range Marker 4-6"),
            code => break assert_eq!(code, 226),
        }
    }
}

#[test]
fn client_that_never_reads_is_disconnected() {
    let server = Fixture::with(|config, _| config.timeouts.write = SOON);
    let client = server.login();
    let mut writer = client.writer();
    let help = "HELP\r\n".repeat(1000);
    while writer.write_all(help.as_bytes()).is_ok() {}
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
}

/// Anonymous log-ins in between must not make guessing passwords faster.
#[test]
fn anonymous_log_in_keeps_failures() {
    let base = Duration::from_millis(20);
    let server = Fixture::with(|config, directory| {
        config.password_file = Some(crate::fixture::passwords(directory, &[("ann", "secret")]));
        config.timeouts.login_failure = base;
    });
    let guess = || {
        let mut client = server.connect();
        client.command("USER ann", 331);
        let begin = Instant::now();
        client.command("PASS wrong", 530);
        begin.elapsed()
    };
    for _ in 0..4 {
        guess();
    }
    server.login();
    assert!(guess() >= 16 * base);
}
