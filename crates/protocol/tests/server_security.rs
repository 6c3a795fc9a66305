//! AUTH, ADAT and what follows (RFC 2228, GFD.20 section 3.1).
#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{Failure, Operation, Outcome, SessionConfig};

fn host(required: bool) -> Host {
    Host::new(SessionConfig { gssapi: true, security_required: required, ..SessionConfig::default() })
}

fn secured() -> Host {
    let mut host = host(true);
    assert_eq!(host.run("AUTH gssapi"), "334 Using authentication type; ADAT must follow.");
    assert!(matches!(host.ask("ADAT Zm9v"), Operation::SecurityToken(token) if token == "Zm9v"));
    host.session.completed(Ok(Outcome::SecurityToken("YmFy".into())));
    assert_eq!(host.poll(), "335 ADAT=YmFy");
    host.ask("ADAT Zm9v");
    host.session.completed(Ok(Outcome::Secured(None)));
    assert_eq!(host.poll(), "235 GSSAPI Authentication successful.\nPROTECT");
    host.check(&[
        ("USER :globus-mapping:", "331 Password required for :globus-mapping:."),
        ("PASS ", "230 User alice logged in."),
    ]);
    host
}

#[test]
fn the_handshake_comes_first_where_it_is_required() {
    let mut host = host(true);
    host.check(&[
        ("USER alice", "530 Must perform GSSAPI authentication"),
        ("PASS x", "530 Must perform GSSAPI authentication"),
        ("AUTH TLS", "504 Unknown authentication type."),
        ("DCAU A", "530 Please login with USER and PASS."),
    ]);
    assert!(host.run("FEAT").contains("DCSC P,D"));
    host.run("AUTH GSSAPI");
    host.ask("ADAT Zm9v");
    let refused = Failure::Refused { code: 530, text: "GSSAPI authentication failed: expired".into() };
    host.session.completed(Err(refused));
    assert_eq!(host.poll(), "530 GSSAPI authentication failed: expired");
    host.check(&[("USER alice", "530 Must perform GSSAPI authentication")]);
}

#[test]
fn clear_commands_behind_the_last_token_end_the_session() {
    for behind in ["USER alice\r\n", "US"] {
        let mut host = host(false);
        host.run("AUTH GSSAPI");
        assert_eq!(host.input(format!("ADAT Zm9v\r\n{behind}").as_bytes()), "");
        host.operation = None;
        host.session.completed(Ok(Outcome::Secured(Some("YmFy".into()))));
        assert_eq!(host.poll(), "235 ADAT=YmFy\nPROTECT\nCLOSE");
    }
}

#[test]
fn data_channels_are_authenticated_unless_told_otherwise() {
    let mut host = secured();
    let channel = |host: &mut Host| match host.ask_and_do("PASV") {
        Operation::Listen(listen) => (listen.channel.authentication, listen.channel.protection),
        other => panic!("{other:?}"),
    };
    assert_eq!(channel(&mut host), (DataAuthentication::SelfAuthentication, Protection::Clear));
    host.check(&[
        ("PBSZ 1048576", "200 PBSZ=1048576"),
        ("PROT P", "200 Protection level set to P."),
        ("DCAU S /O=Grid/CN=Other", "200 DCAU S."),
        ("AUTH GSSAPI", "500 Command not supported."),
        // Without a channel there is no transfer: they closed it.
        ("RETR x", "500 Command failed"),
    ]);
    let subject = DataAuthentication::Subject("/O=Grid/CN=Other".into());
    assert_eq!(channel(&mut host), (subject, Protection::Private));
    assert!(
        matches!(host.ask_and_do("dcsc p Zm9v"), Operation::DataCredential(Some(blob)) if blob.expose() == b"Zm9v")
    );
    // A private key is in it.
    let asked = host.ask_and_do("DCSC P Zm9v");
    assert!(!format!("{asked:?}").contains("Zm9v"), "{asked:?}");
    assert!(matches!(host.ask_and_do("DCSC D"), Operation::DataCredential(None)));
    host.check(&[("DCAU N", "200 DCAU N."), ("PROT C", "200 Protection level set to C.")]);
    assert_eq!(channel(&mut host), (DataAuthentication::None, Protection::Clear));
}

#[test]
fn without_security_nothing_of_it_is_known() {
    let mut host = Host::logged_in();
    host.check(&[
        ("DCAU A", "504 Bad DCAU mode."),
        ("PROT P", "536 P protection level not supported."),
        ("ADAT Zm9v", "500 Command not supported."),
        ("DCSC D", "500 Command not supported."),
    ]);
}
