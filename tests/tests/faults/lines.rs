//! Commands that are malformed, too long, binary, or too many.

use std::io::Write;

use ropewalk_tests::control::Control;
use ropewalk_tests::random::Random;

use crate::fixture::Fixture;

/// Commands that must be refused with 4xx or 5xx.
const REFUSED: &[&[u8]] = &[
    b"XYZZ",
    b"LONGVERB",
    b"\x00",
    b"\xfe\xfd\xfc",
    b"RETR",
    b"RETR ",
    b"STOR",
    b"RETR /missing",
    b"RETR /",
    b"STOR /",
    b"CWD /missing",
    b"MODE",
    b"MODE Z",
    b"TYPE L 8",
    b"STRU R",
    b"PORT",
    b"PORT 1,2,3",
    b"PORT 127,0,0,1,256,1",
    b"PORT 127,0,0,1,-1,1",
    b"PORT 127,0,0,1,1,1,1",
    b"PORT 127.0.0.1:80",
    b"EPRT",
    b"EPRT |9|127.0.0.1|1234|",
    b"EPRT |1|127.0.0.1|99999|",
    b"EPRT |1|localhost|1234|",
    b"SPOR 1,2,3",
    b"REST",
    b"REST -1",
    b"REST abc",
    b"REST 99999999999999999999999",
    b"REST 5-3",
    b"REST 0-10,",
    b"OPTS RETR Parallelism=x;",
    b"OPTS RETR Parallelism=99999999999999999999;",
    b"OPTS NOPE x",
    b"ERET",
    b"ERET P",
    b"ERET P -1 -1 /known",
    b"ERET P 99999999999999999999 1 /known",
    b"ERET Q 1 1 /known",
    b"ESTO A -5 /x",
    b"ESTO A 99999999999999999999 /x",
    b"CKSM",
    b"CKSM NOPE 0 -1 /known",
    b"CKSM MD5 -1 -1 /known",
    b"CKSM MD5 0 -1 /missing",
    b"CKSM MD5 x y /known",
    b"MFMT abc /known",
    b"MFMT 20261399999999 /known",
    b"SITE",
    b"SITE NOPE",
    b"SITE CHMOD",
    b"SITE CHMOD xyz /known",
    b"SITE UTIME",
    b"SITE TRNC -1 /known",
    b"RNFR /missing",
    b"RNTO /x",
    b"DELE /missing",
    b"RMD /missing",
    b"MKD /missing/deeper",
    b"SIZE /missing",
    b"MDTM /missing",
    b"MLST /missing",
    b"MLST /nul\x00byte",
    b"ALLO x",
    b"SBUF -1",
    b"USER",
    b"LANG XX",
];

#[test]
fn malformed_commands_are_refused() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = fixture.log_in().unwrap();
    for command in REFUSED {
        let shown = String::from_utf8_lossy(command).into_owned();
        let reply = control.command(command).unwrap_or_else(|error| panic!("{shown:?}: {error:#}"));
        assert!((400..600).contains(&reply.code), "{shown:?} was answered by {reply:?}");
    }
    // The session is still usable.
    let (data, reply) = control.retrieve("/known").unwrap();
    assert_eq!((data.len(), reply.code), (300_000, 226));
    assert_eq!(fixture.visible().unwrap(), ["known"]);
    fixture.still_serves().unwrap();
}

#[test]
fn commands_before_login_are_refused() {
    let mut fixture = Fixture::new().unwrap();
    for command in [
        "RETR /known",
        "STOR /new",
        "DELE /known",
        "PASV",
        "MKD /d",
        "CKSM MD5 0 -1 /known",
        "SITE CHMOD 0 /known",
    ] {
        let mut control = Control::connect(fixture.server.address()).unwrap();
        assert_eq!(control.command(command).unwrap().code, 530, "{command}");
    }
    assert_eq!(fixture.visible().unwrap(), ["known"]);
    fixture.still_serves().unwrap();
}

#[test]
fn lines_of_64_kib_are_refused() {
    let mut fixture = Fixture::new().unwrap();
    for prefix in ["RETR /", "USER ", "", "SITE "] {
        let mut control = fixture.log_in().unwrap();
        let mut line = prefix.as_bytes().to_vec();
        line.resize(64 << 10, b'a');
        // The server may refuse the line or close the connection, but must not execute it.
        if let Ok(reply) = control.command(&line) {
            assert!((400..600).contains(&reply.code), "{prefix}: {}", reply.code);
        }
    }
    fixture.still_serves().unwrap();
}

#[test]
fn endless_line_uses_bounded_memory() {
    let mut fixture = Fixture::new().unwrap();
    fixture.still_serves().unwrap();
    let before = fixture.memory().unwrap();
    let control = fixture.log_in().unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        if control.stream().write_all(&piece).is_err() {
            break;
        }
    }
    let grown = fixture.memory().unwrap().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
    fixture.still_serves().unwrap();
}

#[test]
fn random_bytes_do_no_harm() {
    let mut fixture = Fixture::new().unwrap();
    let mut random = Random::new(99);
    for _ in 0..50 {
        let mut control = fixture.log_in().unwrap();
        let count = 1 + random.below(4000) as usize;
        let mut bytes = random.bytes(count);
        // Insert line ends, so that something is executed.
        for at in (0..bytes.len().saturating_sub(1)).step_by(37) {
            bytes[at..at + 2].copy_from_slice(b"\r\n");
        }
        let _ = control.send_raw(&bytes);
    }
    assert_eq!(fixture.visible().unwrap(), ["known"]);
    fixture.still_serves().unwrap();
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = fixture.log_in().unwrap();
    let count = 500;
    let mut all = Vec::new();
    for _ in 0..count {
        all.extend_from_slice(b"NOOP\r\nPWD\r\n");
    }
    control.send_raw(&all).unwrap();
    for _ in 0..count {
        assert_eq!(control.reply().unwrap().code, 200);
        assert_eq!(control.reply().unwrap().code, 257);
    }
    fixture.still_serves().unwrap();
}

#[test]
fn client_that_never_reads_replies_is_dropped() {
    let mut fixture = Fixture::new().unwrap();
    let control = fixture.log_in().unwrap();
    let before = fixture.memory().unwrap();
    let flood = b"HELP\r\n".repeat(10_000);
    // 120 MB of replies that are never read; the server eventually stops reading or closes the
    // connection.
    for _ in 0..20 {
        if control.stream().write_all(&flood).is_err() {
            break;
        }
    }
    let grown = fixture.memory().unwrap().saturating_sub(before);
    assert!(grown < 32 << 20, "grew by {grown} bytes");
    fixture.still_serves().unwrap();
}
