//! The transfer logs.

use std::io::Write as _;

use crate::blocks::{EOD, EOF, block, mode_e};
use crate::client::connect;
use crate::fixture::{Fixture, config};

#[test]
fn finished_transfers_are_logged() {
    let server = Fixture::with(|config, directory| {
        config.log.transfer_log = Some(directory.join("log"));
        config.log.transfer_log_json = Some(directory.join("json"));
    });
    server.write("f", "hello world\n");
    let mut client = server.login();
    client.command("SITE TASKID job-7", 250);
    client.get("RETR /f");
    client.command("MKD /sub", 257);
    client.command("CWD sub", 250);
    let _ = client.put("STOR g", b"x");
    // The log has the name of the complete file.
    let _ = client.put("STOR .h.ropewalk-part", b"x");
    client.list("MLSD");
    let _data = client.data();
    client.command("RETR /nope", 500);
    let log = std::fs::read_to_string(server.directory.path().join("log")).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 5, "{log}");
    assert!(lines[0].contains(" HOST=test PROG=ropewalk NL.EVNT=FTP_INFO START="), "{log}");
    assert!(
        lines[0].contains(" USER=anonymous FILE=/f BUFFER=0 BLOCK=1048576 NBYTES=12 VOLUME=/ STREAMS=1 STRIPES=1 DEST=[127.0.0.1] TYPE=RETR CODE=226 TASKID=job-7"),
        "{log}"
    );
    // The log has the whole path, however the client wrote it.
    assert!(lines[1].contains(" FILE=/sub/g BUFFER=") && lines[1].contains("NBYTES=1 "), "{log}");
    assert!(lines[1].contains("TYPE=STOR CODE=226"), "{log}");
    assert!(lines[2].contains(" FILE=/sub/h BUFFER="), "{log}");
    assert!(lines[3].contains(" FILE=/sub ") && lines[3].contains("TYPE=MLSD CODE=226"), "{log}");
    assert!(lines[4].contains("TYPE=RETR CODE=500"), "{log}");
    let json = std::fs::read_to_string(server.directory.path().join("json")).unwrap();
    assert_eq!(json.lines().count(), 5);
    assert!(json.starts_with("{\"schema\":1,\"host\":\"test\","), "{json}");
}

/// The logs show which user moved which file.
#[test]
fn log_files_are_not_readable_by_others() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Fixture::with(|config, directory| {
        config.log.transfer_log = Some(directory.join("log"));
        config.log.transfer_log_json = Some(directory.join("json"));
        config.log.audit = Some(directory.join("audit"));
    });
    for name in ["log", "json", "audit"] {
        let mode = std::fs::metadata(server.directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{name}: {mode:o}");
    }
}

/// The streams have ended before a transfer ends.
#[test]
fn upload_log_has_number_of_streams() {
    let server = Fixture::with(|config, directory| config.log.transfer_log = Some(directory.join("log")));
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(0, 0, b"data")).unwrap();
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    for code in [150, 112, 112, 111, 226] {
        client.expect(code);
    }
    let log = std::fs::read_to_string(server.directory.path().join("log")).unwrap();
    assert!(log.contains(" STREAMS=1 ") && log.contains("TYPE=STOR CODE=226"), "{log}");
}

#[test]
fn reload_opens_logs_again() {
    let server = Fixture::with(|config, directory| config.log.transfer_log = Some(directory.join("log")));
    let log = server.directory.path().join("log");
    let mut client = server.login();
    let _ = client.put("STOR /g", b"x");
    std::fs::rename(&log, server.directory.path().join("log.1")).unwrap();
    let mut same = config(&server.root());
    same.log.transfer_log = Some(log.clone());
    server.handle.reload(same).unwrap();
    let _ = client.put("STOR /g", b"x");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
}

/// A client that is disconnected because it sends too much gets no reply to its transfer; the log
/// has an entry.
#[test]
fn transfer_without_reply_is_logged() {
    let server = Fixture::with(|config, directory| {
        config.log.transfer_log = Some(directory.join("log"));
        config.limits.queue = 10;
    });
    server.write("f", "x");
    let mut client = server.login();
    client.pasv();
    client.send("RETR /f");
    client.send_bytes("NOOP\r\n".repeat(30).as_bytes());
    while client.try_reply().is_some() {}
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
    let log = std::fs::read_to_string(server.directory.path().join("log")).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("TYPE=RETR CODE=426"), "{log}");
}
