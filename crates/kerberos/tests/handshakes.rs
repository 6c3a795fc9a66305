//! Token exchanges with both sides in one process, and a real key distribution centre.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Pair, client, connect, established, first_token, in_realm, server};
use ropewalk_kerberos::{
    Acceptor, AcceptorOptions, Credential, Initiator, InitiatorOptions, KerberosError, MAX_TOKEN, Step,
};
use ropewalk_tests::realm::Realm;

#[test]
fn two_sides_know_each_other() {
    in_realm(
        "two_sides_know_each_other",
        |realm| realm.login("ada", "cache", &[]).unwrap(),
        |_| {
            let credential = client(None);
            let (name, expires) = credential.inquire().unwrap();
            assert_eq!(name.as_deref(), Some("ada@ROPEWALK.TEST"));
            assert!(expires.unwrap() > std::time::SystemTime::now());
            let Pair { client, server, tokens } = established(InitiatorOptions::new("localhost"));
            assert_eq!(tokens, 2);
            assert_eq!(server.peer(), "ada@ROPEWALK.TEST");
            assert_eq!(server.server(), "host/localhost@ROPEWALK.TEST");
            assert_eq!(client.peer(), "host/localhost@ROPEWALK.TEST");
            // The server allows for clocks that differ by five minutes.
            let most = expires.unwrap() + std::time::Duration::from_secs(302);
            assert!(server.expires().unwrap() <= most);
        },
    );
}

#[test]
fn tickets_are_forwarded_only_where_that_is_wanted() {
    in_realm(
        "tickets_are_forwarded_only_where_that_is_wanted",
        |realm| realm.login("ada", "cache", &["-f"]).unwrap(),
        |_| {
            let options = InitiatorOptions { delegate: true, ..InitiatorOptions::new("localhost") };
            let mut pair = established(options);
            let delegated = pair.server.take_delegated().unwrap();
            assert_eq!(delegated.inquire().unwrap().0.as_deref(), Some("ada@ROPEWALK.TEST"));
            assert!(pair.server.take_delegated().is_none());
            assert!(established(InitiatorOptions::new("localhost")).server.take_delegated().is_none());
        },
    );
}

#[test]
fn another_service_where_the_first_is_unknown() {
    let set_up = |realm: &Realm| {
        realm.principal("ftp/127.0.0.1", Some("server.keytab")).unwrap();
        realm.principal("HTTP/localhost", Some("server.keytab")).unwrap();
        realm.login("ada", "cache", &[]).unwrap();
    };
    in_realm("another_service_where_the_first_is_unknown", set_up, |_| {
        let pair = established(InitiatorOptions::new("127.0.0.1"));
        assert_eq!(pair.server.server(), "ftp/127.0.0.1@ROPEWALK.TEST");
        // The whole principal is named.
        let named = |principal: &str| InitiatorOptions {
            principal: Some(principal.into()),
            ..InitiatorOptions::new("localhost")
        };
        let pair = established(named("ftp/127.0.0.1@ROPEWALK.TEST"));
        assert_eq!(pair.client.peer(), "ftp/127.0.0.1@ROPEWALK.TEST");
        // The key distribution centre does not know this host.
        let error = connect(InitiatorOptions::new("localhost.elsewhere"), AcceptorOptions::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("not found") && text.contains("principal"), "{text}");
        // The key of another service is in the keytab, but this service is not accepted.
        let web = || InitiatorOptions { services: vec!["HTTP".into()], ..InitiatorOptions::new("localhost") };
        let error = connect(web(), AcceptorOptions::default()).unwrap_err();
        assert!(matches!(error, KerberosError::Service { .. }), "{error}");
        assert!(error.to_string().contains("HTTP/localhost@ROPEWALK.TEST"), "{error}");
        connect(web(), AcceptorOptions { services: Vec::new() }).unwrap();
        for host in ["a/b", "a@b", "", "a\nb", "a\\b"] {
            let error = connect(InitiatorOptions::new(host), AcceptorOptions::default()).unwrap_err();
            assert!(matches!(error, KerberosError::Name { .. }), "{host:?}: {error}");
        }
    });
}

#[test]
fn wrong_keys() {
    let set_up = |realm: &Realm| {
        realm.login("ada", "cache", &[]).unwrap();
        // The key changes after the keytab was made.
        std::fs::copy(realm.keytab(), realm.path("old.keytab")).unwrap();
        realm.principal("ftp/localhost", Some("other.keytab")).unwrap();
        realm.run("kadmin.local", &["cpw", "-randkey", "host/localhost"]).unwrap().succeeded().unwrap();
        // The keytab has another realm's key for the same name and version.
        let other = Realm::new().unwrap();
        std::fs::copy(other.keytab(), realm.path("foreign.keytab")).unwrap();
        std::fs::write(realm.path("garbage.keytab"), b"\x05\x02nonsense").unwrap();
        std::fs::write(realm.path("empty.keytab"), b"").unwrap();
    };
    in_realm("wrong_keys", set_up, |directory| {
        let refused = |keytab: &str| {
            let path = directory.join(keytab);
            match Credential::server(Some(&path), None) {
                Err(error) => error.to_string(),
                Ok(credential) => {
                    let acceptor = Acceptor::new(credential.into(), AcceptorOptions::default());
                    acceptor.unwrap().step(&first_token()).unwrap_err().to_string()
                }
            }
        };
        for keytab in
            ["old.keytab", "other.keytab", "foreign.keytab", "garbage.keytab", "empty.keytab", "none.keytab"]
        {
            let text = refused(keytab);
            assert!(
                text.contains("keytab") || text.contains("Keytab") || text.contains("key"),
                "{keytab}: {text}"
            );
            println!("{keytab}: {text}");
        }
        let error = Credential::server(None, Some("host/elsewhere@ROPEWALK.TEST")).unwrap_err().to_string();
        assert!(error.contains("host/elsewhere"), "{error}");
    });
}

#[test]
fn a_key_of_another_realm_with_the_same_version() {
    let set_up = |realm: &Realm| {
        realm.login("ada", "cache", &[]).unwrap();
        let other = Realm::new().unwrap();
        std::fs::copy(other.keytab(), realm.keytab()).unwrap();
    };
    in_realm("a_key_of_another_realm_with_the_same_version", set_up, |_| {
        let error = connect(InitiatorOptions::new("localhost"), AcceptorOptions::default()).unwrap_err();
        assert!(error.to_string().contains("export it again"), "{error}");
    });
}

#[test]
fn no_tickets() {
    in_realm(
        "no_tickets",
        |realm| std::fs::write(realm.path("garbage"), b"nonsense").unwrap(),
        |directory| {
            let text = Credential::client(None).unwrap_err().to_string();
            assert!(text.contains("kinit"), "{text}");
            let garbage = format!("FILE:{}", directory.join("garbage").display());
            let text = Credential::client(Some(&garbage)).unwrap_err().to_string();
            assert!(text.contains("garbage") || text.contains("format"), "{text}");
            assert!(Credential::client(Some("NOSUCHTYPE:x")).is_err());
            assert!(matches!(Credential::client(Some("FILE:\0")), Err(KerberosError::Name { .. })));
        },
    );
}

#[test]
fn an_expired_ticket() {
    let realm = || Realm::at(Some("-2h")).unwrap();
    let set_up = |realm: &Realm| {
        realm.login_at(Some("-2h"), "ada", "cache", &["-l", "1h"]).unwrap();
    };
    common::in_this_realm("an_expired_ticket", realm, set_up, |_| {
        let options = InitiatorOptions::new("localhost");
        let text = match Credential::client(None) {
            Err(error) => error.to_string(),
            Ok(credential) => Initiator::new(credential.into(), options).step(&[]).unwrap_err().to_string(),
        };
        assert!(text.contains("expired") && text.contains("kinit"), "{text}");
    });
}

/// Writes the first token of a client whose clock is wrong. The token contains the time.
fn token_by_clock(realm: &Realm, shift: &str) {
    const CLIENT: &str = "import gssapi, sys\n\
        name = gssapi.Name('host@localhost', gssapi.NameType.hostbased_service)\n\
        token = gssapi.SecurityContext(name=name, usage='initiate').step()\n\
        open(sys.argv[1], 'wb').write(token)\n";
    // Debian's Python, which has the gssapi package.
    let mut command = ropewalk_tests::realm::shifted("/usr/bin/python3", Some(shift)).unwrap();
    command.args(["-c", CLIENT]).arg(realm.path("token"));
    ropewalk_tests::process::run(realm.environment(&mut command), common::LIMIT)
        .unwrap()
        .succeeded()
        .unwrap();
}

#[test]
fn a_ticket_that_has_expired_since() {
    let realm = || Realm::at(Some("-2h")).unwrap();
    let set_up = |realm: &Realm| {
        realm.login_at(Some("-2h"), "ada", "cache", &["-l", "1h"]).unwrap();
        token_by_clock(realm, "-2h");
    };
    common::in_this_realm("a_ticket_that_has_expired_since", realm, set_up, |directory| {
        let token = std::fs::read(directory.join("token")).unwrap();
        let text = server(AcceptorOptions::default()).step(&token).unwrap_err().to_string();
        assert!(text.contains("expired") || text.contains("Clock skew"), "{text}");
    });
}

#[test]
fn a_clock_that_is_off() {
    let set_up = |realm: &Realm| {
        realm.login("ada", "cache", &[]).unwrap();
        // Get the ticket now: the key distribution centre would notice the wrong clock too.
        realm.run("kvno", &["host/localhost"]).unwrap().succeeded().unwrap();
        token_by_clock(realm, "+1h");
    };
    in_realm("a_clock_that_is_off", set_up, |directory| {
        let token = std::fs::read(directory.join("token")).unwrap();
        let text = server(AcceptorOptions::default()).step(&token).unwrap_err().to_string();
        assert!(text.contains("Clock skew") && text.contains("the clocks of client"), "{text}");
    });
}

#[test]
fn a_token_that_comes_twice() {
    in_realm(
        "a_token_that_comes_twice",
        |realm| realm.login("ada", "cache", &[]).unwrap(),
        |_| {
            let token = first_token();
            assert!(matches!(server(AcceptorOptions::default()).step(&token), Ok(Step::Done(..))));
            let text = server(AcceptorOptions::default()).step(&token).unwrap_err().to_string();
            assert!(text.contains("replay") && text.contains("log in anew"), "{text}");
        },
    );
}

#[test]
fn tokens_that_are_none() {
    in_realm(
        "tokens_that_are_none",
        |realm| realm.login("ada", "cache", &[]).unwrap(),
        |_| {
            let good = first_token();
            let refused = |token: &[u8]| server(AcceptorOptions::default()).step(token).unwrap_err();
            for end in 0..good.len() {
                assert!(matches!(refused(&good[..end]), KerberosError::Framing(_)), "{end}");
            }
            // Change single bytes: encrypted parts no longer decrypt, and other parts are invalid.
            let mut accepted = 0;
            for at in (0..good.len()).step_by(7) {
                let mut bad = good.clone();
                bad[at] ^= 0x41;
                accepted += usize::from(server(AcceptorOptions::default()).step(&bad).is_ok());
            }
            // A few option bits of the ticket are outside its encrypted part; a change of these
            // passes, but they are not trusted.
            assert!(accepted <= 2, "{accepted} of {} changed tokens passed", good.len() / 7);
            let mut longer = good.clone();
            longer.push(0);
            assert!(matches!(refused(&longer), KerberosError::Framing(_)));
            assert!(matches!(refused(&vec![0x60; MAX_TOKEN + 1]), KerberosError::TooLong { .. }));
            assert!(matches!(refused(b"\x16\x03\x01"), KerberosError::Framing(_)));
            // The framing is right, but the content is not.
            let mut hollow =
                vec![0x60, 13, 0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 1, 0];
            assert!(matches!(refused(&hollow), KerberosError::Gss(_)));
            hollow[1] = 11;
            hollow.truncate(13);
            assert!(matches!(refused(&hollow), KerberosError::Gss(_)));
            let spnego = [0x60, 8, 0x06, 6, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x02];
            assert!(refused(&spnego).to_string().contains("SPNEGO"));
            // An acceptor cannot be used again after it refused a token.
            let mut acceptor = server(AcceptorOptions::default());
            assert!(acceptor.step(&spnego).is_err());
            assert!(matches!(acceptor.step(&good), Err(KerberosError::Over)));
            // The initiator checks the answer as well.
            for answer in [&b""[..], b"nonsense", &good] {
                let mut initiator = Initiator::new(client(None), InitiatorOptions::new("localhost"));
                assert!(matches!(initiator.step(&[]), Ok(Step::Continue(_))));
                let error = initiator.step(answer).unwrap_err();
                assert!(matches!(error, KerberosError::Gss(_)), "{error}");
                assert!(matches!(initiator.step(&[]), Err(KerberosError::Over)));
            }
            // The answer belongs to the token of another client.
            let (mut one, mut other) = (
                Initiator::new(client(None), InitiatorOptions::new("localhost")),
                server(AcceptorOptions::default()),
            );
            assert!(matches!(one.step(&[]), Ok(Step::Continue(_))));
            let Ok(Step::Done(answer, _)) = other.step(&first_token()) else { panic!("not accepted") };
            assert!(matches!(one.step(&answer), Err(KerberosError::Gss(_))));
        },
    );
}

#[test]
fn no_key_distribution_centre() {
    let realm = || {
        let mut realm = Realm::new().unwrap();
        realm.login("ada", "cache", &[]).unwrap();
        realm.stop();
        realm
    };
    common::in_this_realm(
        "no_key_distribution_centre",
        realm,
        |_| (),
        |_| {
            let mut initiator = Initiator::new(client(None), InitiatorOptions::new("localhost"));
            let text = initiator.step(&[]).unwrap_err().to_string();
            assert!(text.contains("ROPEWALK.TEST") && text.contains("krb5.conf"), "{text}");
        },
    );
}
