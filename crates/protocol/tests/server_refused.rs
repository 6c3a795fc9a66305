//! The settings for the next transfer (REST, ALLO, SCKS and others) after a transfer was refused.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{Host, ParsePath};
use ropewalk_protocol::server::{Operation, Outcome, RequiredProtection, SessionConfig, Transfer};

const PASSIVE: &str = "227 Entering Passive Mode (127,0,0,1,179,217)";
const NO_CHANNEL: &str = "500 Command failed. : No data channel: send PASV, EPSV or PORT first.";
const ANNOUNCED: [&str; 4] = ["ALLO 7", "SCKS MD5 00", "SITE STORATTR modify=20200101000000;", "REST 5"];

fn transfer(host: &mut Host, line: &str) -> Transfer {
    match host.ask(line) {
        Operation::Transfer(transfer) => *transfer,
        other => panic!("{line}: {other:?}"),
    }
}

fn end(host: &mut Host) {
    host.session.completed(Ok(Outcome::Transferred { checksum: None }));
    host.poll();
}

fn announce(host: &mut Host) {
    for line in ANNOUNCED {
        let reply = host.run(line);
        assert!(reply.starts_with('2') || reply.starts_with('3'), "{line}: {reply}");
    }
}

/// Checks whether the settings of [`ANNOUNCED`] apply to the next upload after `line` was refused:
/// either none of them, or all.
#[track_caller]
fn check_next(host: &mut Host, line: &str, (restarted, announced): (bool, bool)) {
    if !host.session.has_channel() {
        host.run("PASV");
    }
    let next = transfer(host, "STOR next");
    assert_eq!(next.restarted, restarted, "{line}");
    let all = [next.allocated.is_some(), next.expected.is_some(), next.modified.is_some()];
    assert_eq!(all, [announced; 3], "{line}");
    end(host);
}

#[test]
fn settings_after_refused_transfer_are_reset() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    for (line, refusal) in [
        ("ESTO foo=\"x\" y", "500 command failed."),
        ("ESTO A x y", "501 bad parameter."),
        ("ESTO", "501 Syntax error in parameters or arguments."),
        ("STOR", "501 Syntax error in parameters or arguments."),
        ("stor ", "501 Syntax error in parameters or arguments."),
        ("APPE", "501 Syntax error in parameters or arguments."),
        ("STOR a\0", "501 Syntax error in parameters or arguments."),
    ] {
        announce(&mut host);
        assert_eq!(host.run(line), refusal, "{line}");
        check_next(&mut host, line, (false, false));
    }
    for (line, refusal) in [
        ("ERET foo=\"x\" y", "500 command failed."),
        ("ERET P 0 1", "501 bad parameter."),
        ("RETR", "501 Syntax error in parameters or arguments."),
    ] {
        announce(&mut host);
        assert_eq!(host.run(line), refusal, "{line}");
        check_next(&mut host, line, (false, true));
    }
}

#[test]
fn settings_after_disabled_transfer_are_reset() {
    let mut host = Host::logged_in_with(SessionConfig {
        disabled: BTreeSet::from(["APPE".to_owned()]),
        faults: true,
        ..SessionConfig::default()
    });
    host.run("MODE E");
    announce(&mut host);
    assert_eq!(host.run("APPE a"), "500 Command not supported.");
    check_next(&mut host, "APPE a", (false, false));
    announce(&mut host);
    host.run("SITE FAULT ESTO");
    assert_eq!(host.run("ESTO A 0 a"), "501 Fault requested.");
    check_next(&mut host, "ESTO A 0 a", (false, false));
}

#[test]
fn settings_after_unprotected_transfer_are_reset() {
    let config = SessionConfig { tls: true, required: RequiredProtection::Data, ..SessionConfig::default() };
    let mut host = Host::new(config);
    host.session.begin_within_tls();
    for line in ["USER alice", "PASS x", "MODE E", "PASV"] {
        host.run(line);
    }
    announce(&mut host);
    assert_eq!(host.run("STOR a"), "521 Data has to be protected here: send PROT P first.");
    host.run("PBSZ 0");
    host.run("PROT P");
    check_next(&mut host, "STOR a", (false, false));
}

/// The transfer was not attempted, because there was no data channel. Clients then create a channel
/// and repeat the command, so the settings are kept.
#[test]
fn settings_without_data_channel_are_kept() {
    for line in ["STOR a", "APPE a", "ESTO A 0 a", "RETR a", "ERET P 0 1 a", "MLSD"] {
        let mut host = Host::logged_in();
        announce(&mut host);
        assert_eq!(host.run(line), NO_CHANNEL, "{line}");
        host.run("PASV");
        host.run("MODE E");
        let closed = host.run(line);
        assert!(closed.starts_with("425 Can't open data connection: MODE has closed"), "{closed}");
        check_next(&mut host, line, (true, true));
    }
}

#[test]
fn settings_after_refused_name_are_reset() {
    const REFUSED: &str = "553 A name must have neither CR nor LF in it: listings could not tell it.";
    let mut host = Host::logged_in();
    assert_eq!(host.run("PASV"), PASSIVE);
    for line in ["STOR d/a\rb", "APPE a\r", "ESTO A 5 a\nb"] {
        for before in ["ALLO 7", "SCKS MD5 0", "REST 5"] {
            host.run(before);
        }
        assert_eq!(host.run(line), REFUSED);
    }
    let next = transfer(&mut host, "STOR c\rd/b");
    assert_eq!(next.path, "/home/alice/c\rd/b".parse_path());
    assert_eq!((next.allocated, next.expected, next.restarted), (None, None, false));
    end(&mut host);
    host.run("PASV");
    transfer(&mut host, "RETR a\rb");
}

/// The host closes the channel together with the old root.
#[test]
fn settings_after_chroot_closed_channel_are_kept() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("PASV");
    host.check(&[("SITE CHROOT d", "250 OK.")]);
    announce(&mut host);
    let closed = host.run("STOR a");
    assert!(closed.starts_with("425 Can't open data connection: SITE CHROOT has closed"), "{closed}");
    check_next(&mut host, "STOR a", (true, true));
}

#[test]
fn rename_source_after_refused_rename_is_reset() {
    const FROM: (&str, &str) = ("RNFR a", "350 OK. Send RNTO with destination name.");
    const LINK: (&str, &str) = ("SITE SYMLINKFROM a", "350 OK. Send SITE SYMLINKTO with symlink name.");
    const SYNTAX: &str = "501 Syntax error in parameters or arguments.";
    const ARGUMENTS: &str = "501 Invalid command arguments.";
    let mut host = Host::logged_in();
    for refused in ["RNFR", "RNFR b\0", "RNTO", "rnto "] {
        host.check(&[FROM, (refused, SYNTAX), ("RNTO b", ARGUMENTS)]);
    }
    for refused in ["SITE SYMLINKFROM", "site  symlinkfrom b\0", "SITE SYMLINKTO", "site symlinkto "] {
        host.check(&[LINK, (refused, SYNTAX), ("SITE SYMLINKTO b", ARGUMENTS)]);
    }
    // In the new root the path would refer to another file.
    host.check(&[FROM, LINK, ("SITE CHROOT d", "250 OK."), ("RNTO b", ARGUMENTS)]);
    host.check(&[("SITE SYMLINKTO b", ARGUMENTS)]);
}

#[test]
fn password_after_refused_user_is_not_used_for_earlier_user() {
    Host::new(SessionConfig::default()).check(&[
        ("USER alice", "331 Password required for alice."),
        ("USER", "501 Syntax error in parameters or arguments."),
        ("PASS x", "503 Login with USER first."),
        ("USER alice", "331 Password required for alice."),
        ("PASS x", "230 User alice logged in."),
    ]);
}
