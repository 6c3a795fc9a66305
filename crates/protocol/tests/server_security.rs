//! AUTH, ADAT and the commands that depend on them (RFC 2228, GFD.20 section 3.1).
#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::data_key::DataKey;
use ropewalk_protocol::server::{Failure, Operation, Outcome, SessionConfig};

fn host(required: bool) -> Host {
    Host::new(SessionConfig { gssapi: true, security_required: required, ..SessionConfig::default() })
}

fn secured() -> Host {
    within_gssapi(host(true))
}

fn within_gssapi(mut host: Host) -> Host {
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
fn login_without_required_gssapi_is_refused() {
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
fn clear_input_after_last_token_ends_session() {
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
fn data_channels_after_gssapi_are_authenticated_by_default() {
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
        // PROT closed the channel, and without a channel there is no transfer.
        ("RETR x", &closed_by("PROT")),
    ]);
    let subject = DataAuthentication::Subject("/O=Grid/CN=Other".into());
    assert_eq!(channel(&mut host), (subject, Protection::Private));
    assert!(
        matches!(host.ask_and_do("dcsc p Zm9v"), Operation::DataCredential(Some(blob)) if blob.expose() == b"Zm9v")
    );
    // The credential includes a private key.
    let asked = host.ask_and_do("DCSC P Zm9v");
    assert!(!format!("{asked:?}").contains("Zm9v"), "{asked:?}");
    assert!(matches!(host.ask_and_do("DCSC D"), Operation::DataCredential(None)));
    host.check(&[("DCAU N", "200 DCAU N."), ("PROT C", "200 Protection level set to C.")]);
    assert_eq!(channel(&mut host), (DataAuthentication::None, Protection::Clear));
}

/// The refusal of a transfer after a command that has closed the channel.
fn closed_by(command: &str) -> String {
    format!(
        "425 Can't open data connection: {command} has closed the data channel, which had other settings. Send PASV, \
         EPSV or PORT again."
    )
}

#[test]
fn transfer_after_a_setting_that_closed_the_channel_is_refused_with_the_reason() {
    let settings = [
        ("MODE E", "MODE"),
        ("DCAU N", "DCAU"),
        ("PROT P", "PROT"),
        ("DCSC D", "DCSC"),
        ("SITE CHROOT d", "SITE CHROOT"),
    ];
    for (line, command) in settings {
        for channel in ["PASV", "EPSV", "SPAS", "PORT 127,0,0,1,172,43"] {
            let mut host = secured();
            host.run(channel);
            host.run(line);
            for transfer in ["RETR f", "STOR f", "MLSD", "ESTO A 0 f"] {
                assert_eq!(host.run(transfer), closed_by(command), "{channel}, {line}, {transfer}");
            }
            // A later setting has closed nothing.
            host.run("MODE S");
            assert_eq!(host.run("RETR f"), closed_by(command));
            host.run(channel);
            assert!(matches!(host.ask("RETR f"), Operation::Transfer(_)), "{channel}, {line}");
        }
    }
    // The next transfer would make the channel with the former setting.
    let mut host = secured();
    for line in ["OPTS PASV AllowDelayed=1;", "EPSV", "PROT P"] {
        host.run(line);
    }
    assert_eq!(host.run("RETR f"), closed_by("PROT"));
}

#[test]
fn security_commands_without_gssapi_are_refused() {
    let mut host = Host::logged_in();
    host.check(&[
        ("DCAU A", "504 Bad DCAU mode."),
        ("PROT P", "536 P protection level not supported."),
        ("ADAT Zm9v", "500 Command not supported."),
        ("DCSC D", "500 Command not supported."),
    ]);
}

/// The command that sends the key with this number.
fn key(number: u64) -> String {
    format!("SITE DATAKEY {number:016x} {}", "5a".repeat(32))
}

fn key_of_channel(host: &mut Host, line: &str) -> Option<u64> {
    let channel = match host.ask_and_do(line) {
        Operation::Listen(listen) => listen.channel,
        Operation::Connect(connect) => connect.channel,
        other => panic!("{other:?}"),
    };
    assert!(channel.key.as_ref().is_none_or(|key| *key == DataKey::new(key.number(), &[0x5a; 32])));
    channel.key.map(|key| key.number())
}

#[test]
fn data_key_is_used_for_one_channel() {
    let mut host = secured();
    host.check(&[("DCAU N", "200 DCAU N.")]);
    assert!(host.run("FEAT").contains("DataKey;"));
    for (n, channel) in [(1, "PASV"), (2, "EPSV"), (3, "SPAS"), (9, "PORT 127,0,0,1,200,0")] {
        host.check(&[(&key(n), &format!("200 Data key {n:016x} is for the next data channel."))]);
        assert_eq!(key_of_channel(&mut host, channel), Some(n), "{channel}");
        assert_eq!(key_of_channel(&mut host, channel), None, "{channel}");
    }
    // The last key applies. NONE removes it.
    host.run(&key(10));
    host.run(&key(11));
    assert_eq!(key_of_channel(&mut host, "SPOR 127,0,0,1,200,0 127,0,0,1,200,1"), Some(11));
    host.run(&key(12));
    host.check(&[("SITE DATAKEY none", "200 The next data channel has no key.")]);
    assert_eq!(key_of_channel(&mut host, "PASV"), None);
    // A delayed channel has the key that was set before its PASV.
    host.run(&key(13));
    host.check(&[
        ("OPTS PASV AllowDelayed=1;", "200 OPTS Command Successful."),
        ("PASV", "200 Passive delayed."),
    ]);
    let Operation::Transfer(transfer) = host.ask_and_do("RETR x") else { panic!() };
    assert_eq!(transfer.delayed.unwrap().channel.key.unwrap().number(), 13);
}

#[test]
fn data_key_with_used_number_is_refused() {
    let mut host = secured();
    host.run("DCAU N");
    host.run(&key(7));
    assert_eq!(key_of_channel(&mut host, "PASV"), Some(7));
    for old in [7, 6, 0] {
        let text =
            format!("501 Data key {old:016x} is not new: its number has to be above 0000000000000007.");
        host.check(&[(&key(old), &text)]);
        assert_eq!(key_of_channel(&mut host, "PASV"), None);
    }
    // The number of a refused key counts as used, too.
    host.run("DCAU A");
    host.check(&[(&key(8), "503 Data connections are authenticated: send DCAU N before a data key.")]);
    host.run("DCAU N");
    assert!(host.run(&key(8)).starts_with("501 "));
    assert!(host.run(&key(u64::MAX)).starts_with("200 "));
    assert!(host.run(&key(u64::MAX)).starts_with("501 "));
}

#[test]
fn data_key_with_dcau_or_prot_is_refused() {
    let mut host = secured();
    host.run("DCAU N");
    host.run("PROT P");
    host.check(&[(&key(1), "503 Data connections are protected: send PROT C before a data key.")]);
    host.run("PROT C");
    for (other, back) in [("DCAU A", "DCAU N"), ("PROT P", "PROT C")] {
        assert!(host.run(&key(if back == "DCAU N" { 2 } else { 3 })).starts_with("200 "));
        host.run(other);
        host.run(back);
        assert_eq!(key_of_channel(&mut host, "PASV"), None, "{other}");
    }
}

#[test]
fn data_key_on_clear_connection_is_refused() {
    let mut host = Host::logged_in();
    assert!(!host.run("FEAT").contains("DataKey"));
    for line in [&*key(1), "SITE DATAKEY NONE"] {
        host.check(&[(line, "533 SITE DATAKEY needs a protected control connection.")]);
    }
    assert_eq!(key_of_channel(&mut host, "PASV"), None);
    let mut host = Host::new(SessionConfig::default());
    host.check(&[(&key(1), "530 Please login with USER and PASS.")]);
}

#[test]
fn log_in_for_a_server_behind_a_relay_is_accepted_on_a_protected_connection_alone() {
    let line = "SITE HOPLOGIN data.example:2811 ada open sesame";
    let relay = || SessionConfig { hop_logins: true, gssapi: true, ..SessionConfig::default() };
    let mut host = within_gssapi(Host::new(relay()));
    assert!(host.run("FEAT").contains("HopLogin;"));
    let operation = host.ask(line);
    let Operation::HopLogin(login) = &operation else { panic!("{operation:?}") };
    assert_eq!(
        (login.server.to_string(), login.user.to_string()),
        ("data.example:2811".into(), "ada".into())
    );
    assert_eq!(login.secret.expose(), b"open sesame");
    assert!(!format!("{operation:?}").contains("sesame"), "{operation:?}");
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "250 OK.");
    for wrong in ["SITE HOPLOGIN", "SITE HOPLOGIN data.example:2811 ada", "SITE HOPLOGIN data.example ada x"]
    {
        assert!(host.run(wrong).starts_with("501 "), "{wrong}");
    }
    // In clear, and before the log-in.
    let mut host = Host::new(relay());
    host.check(&[(line, "530 Please login with USER and PASS.")]);
    let mut host = Host::logged_in_with(relay());
    assert!(!host.run("FEAT").contains("HopLogin"));
    host.check(&[(line, "533 SITE HOPLOGIN needs a protected control connection.")]);
    // At a server that is no relay.
    let mut host = secured();
    assert!(!host.run("FEAT").contains("HopLogin"));
    host.check(&[(line, "500 Invalid command.")]);
}

#[test]
fn data_key_with_invalid_arguments_is_refused() {
    let mut host = secured();
    host.run("DCAU N");
    for wrong in ["SITE DATAKEY", "SITE DATAKEY x", "SITE DATAKEY 0000000000000001", "SITE DATAKEY NONE x"] {
        let answer = host.run(wrong);
        assert!(answer.starts_with("501 ") || answer.starts_with("500 "), "{wrong}: {answer}");
    }
    let short = key(1);
    assert!(host.run(&short[..short.len() - 1]).starts_with("501 "));
    let asked = {
        host.run(&key(2));
        host.ask_and_do("PASV")
    };
    assert!(!format!("{asked:?}").contains("5a5a") && !format!("{asked:?}").contains("90, 90"), "{asked:?}");
}

#[test]
fn data_key_over_ssh_is_accepted() {
    let mut host = Host::new(SessionConfig::default());
    host.session.begin_within_ssh();
    host.check(&[
        ("USER alice", "331 Password required for alice."),
        ("PASS x", "230 User alice logged in."),
        ("DCAU A", "504 Bad DCAU mode."),
        ("PROT P", "536 P protection level not supported."),
    ]);
    assert!(host.run("FEAT").contains("DataKey;"));
    assert!(host.run(&key(1)).starts_with("200 "));
    assert_eq!(key_of_channel(&mut host, "PASV"), Some(1));
}

fn security_for(host: &mut Host, stack: &str) -> (DataAuthentication, Protection) {
    let Operation::SetNetStack(net) = host.ask_and_do(&format!("SITE SETNETSTACK {stack}")) else {
        panic!("{stack}")
    };
    (net.authentication, net.protection)
}

#[test]
fn net_stack_is_passed_on_with_the_security_of_data_connections() {
    let mut host = secured();
    assert_eq!(
        security_for(&mut host, "tcp,gsi"),
        (DataAuthentication::SelfAuthentication, Protection::Clear)
    );
    host.check(&[("PBSZ 1048576", "200 PBSZ=1048576"), ("PROT P", "200 Protection level set to P.")]);
    assert_eq!(
        security_for(&mut host, "tcp,gsi:protection=private"),
        (DataAuthentication::SelfAuthentication, Protection::Private)
    );
    host.check(&[("DCAU N", "200 DCAU N.")]);
    assert_eq!(security_for(&mut host, "tcp,gsi").0, DataAuthentication::None);
}
