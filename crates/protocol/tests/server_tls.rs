//! AUTH TLS and the commands that depend on it (RFC 4217).
#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::command::Protection;
use ropewalk_protocol::server::{Failure, Mechanism, Operation, Outcome, RequiredProtection, SessionConfig};

fn host(required: RequiredProtection) -> Host {
    Host::new(SessionConfig { tls: true, required, ..SessionConfig::default() })
}

fn within_tls(required: RequiredProtection) -> Host {
    let mut host = host(required);
    assert!(matches!(host.ask("AUTH tls"), Operation::SecurityBegin(Mechanism::Tls)));
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "234 AUTH TLS successful.\nPROTECT");
    host
}

#[test]
fn auth_accepts_only_offered_mechanisms() {
    let mut host = host(RequiredProtection::None);
    for wrong in ["AUTH SSL", "AUTH TLS-P", "AUTH GSSAPI", "AUTH KERBEROS_V4"] {
        host.check(&[(wrong, "504 Unknown authentication type.")]);
    }
    assert!(matches!(host.ask("AUTH TLS-C"), Operation::SecurityBegin(Mechanism::Tls)));
    let failure = Failure::Refused { code: 431, text: "TLS cannot begin.".into() };
    host.session.completed(Err(failure));
    assert_eq!(host.poll(), "431 TLS cannot begin.");
    assert!(!host.session.is_secured());
    let features = host.run("FEAT");
    assert!(features.contains(" AUTH TLS| PBSZ| PROT|"), "{features}");
    let mut host = Host::new(SessionConfig::default());
    host.check(&[("AUTH TLS", "504 Unknown authentication type.")]);
    assert!(!host.run("FEAT").contains("AUTH"));
}

#[test]
fn auth_tls_resets_state_set_in_clear() {
    let mut host = host(RequiredProtection::None);
    host.check(&[("USER alice", "331 Password required for alice.")]);
    host.ask("AUTH TLS");
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "234 AUTH TLS successful.\nPROTECT");
    assert!(host.session.is_secured());
    host.check(&[
        ("PASS secret", "503 Login with USER first."),
        ("AUTH TLS", "503 You are already authenticated."),
        ("CCC", "533 The control connection stays as protected as it is."),
    ]);
}

#[test]
fn clear_input_after_auth_tls_ends_session() {
    for behind in ["USER alice\r\n", "US"] {
        let mut host = host(RequiredProtection::None);
        assert_eq!(host.input(format!("AUTH TLS\r\n{behind}").as_bytes()), "");
        host.operation = None;
        host.session.completed(Ok(Outcome::Done));
        let said = host.poll();
        assert_eq!(said, "421 Commands came in clear behind AUTH. Closing control connection.\nCLOSE");
    }
}

#[test]
fn prot_over_tls_accepts_clear_and_private() {
    let mut host = within_tls(RequiredProtection::None);
    host.check(&[
        ("PROT P", "503 Send PBSZ 0 before PROT."),
        ("PBSZ 0", "200 PBSZ=0"),
        ("PROT S", "536 S protection level not supported."),
        ("PROT E", "536 E protection level not supported."),
        ("PROT C", "200 Protection level set to C."),
        ("PROT P", "200 Protection level set to P."),
        ("DCAU A", "530 Please login with USER and PASS."),
        ("USER alice", "331 Password required for alice."),
        ("PASS x", "230 User alice logged in."),
        ("DCAU A", "504 Bad DCAU mode."),
        ("DCAU N", "200 DCAU N."),
        ("DCSC D", "500 Command not supported."),
        ("AUTH TLS", "503 AUTH has to come before the log-in."),
    ]);
    let Operation::Listen(listen) = host.ask("PASV") else { panic!("no channel") };
    assert_eq!(listen.channel.protection, Protection::Private);
}

#[test]
fn login_in_clear_when_tls_is_required_is_refused() {
    let mut host = host(RequiredProtection::Control);
    host.check(&[
        ("USER alice", "530 Log-in in clear is refused here: send AUTH TLS first."),
        ("PASS secret", "530 Log-in in clear is refused here: send AUTH TLS first."),
    ]);
    let mut host = within_tls(RequiredProtection::Control);
    host.check(&[
        ("USER alice", "331 Password required for alice."),
        ("PASS x", "230 User alice logged in."),
    ]);
    assert!(matches!(host.ask("PASV"), Operation::Listen(_)));
}

#[test]
fn transfer_in_clear_when_protection_is_required_is_refused() {
    let mut host = within_tls(RequiredProtection::Data);
    let refused = "521 Data has to be protected here: send PROT P first.";
    host.check(&[
        ("USER alice", "331 Password required for alice."),
        ("PASS x", "230 User alice logged in."),
        ("RETR a", refused),
        ("STOR a", refused),
        ("MLSD", refused),
        ("PBSZ 0", "200 PBSZ=0"),
        ("PROT C", "534 Data has to be protected here: send PROT P."),
        ("PROT P", "200 Protection level set to P."),
        ("RETR a", "500 Command failed. : No data channel: send PASV, EPSV or PORT first."),
    ]);
}

#[test]
fn transfer_over_an_encrypting_driver_is_protected_by_a_key() {
    let config = SessionConfig {
        tls: true,
        required: RequiredProtection::Data,
        encrypting_drivers: vec!["quic".to_owned()],
        ..SessionConfig::default()
    };
    let mut host = Host::new(config);
    host.session.begin_within_tls();
    let key = |number: u32| format!("SITE DATAKEY {number:016x} {}", "5a".repeat(32));
    let refused = "521 Data has to be protected here: send PROT P first. \
                   SITE SETNETSTACK quic with SITE DATAKEY protects it too.";
    for line in ["USER alice", "PASS x", "PBSZ 0", "PROT C", &key(1), "PASV"] {
        host.run(line);
    }
    host.check(&[("RETR a", refused), ("SITE SETNETSTACK quic", "250 OK.")]);
    host.run("PASV");
    host.check(&[("RETR a", refused)]);
    host.run(&key(2));
    host.run("PASV");
    assert!(matches!(host.ask_and_do("RETR a"), Operation::Transfer(_)));
    // A key is for one channel.
    host.run("PASV");
    host.check(&[("RETR a", refused)]);
}

#[test]
fn implicit_tls_session_is_secured_from_the_start() {
    let mut host = host(RequiredProtection::Control);
    host.session.begin_within_tls();
    host.check(&[
        ("AUTH TLS", "503 You are already authenticated."),
        ("USER alice", "331 Password required for alice."),
    ]);
}
